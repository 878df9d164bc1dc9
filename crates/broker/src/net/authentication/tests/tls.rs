//! Connections to listeners with TLS: whose certificate is believed, what is said to who is not, and stores that change.

use std::collections::BTreeMap;
use std::path::Path;

use mainstem_security::tls::{TlsClient, TlsProperties};
use mainstem_wire::messages::metadata_request::MetadataRequestTopic;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};

use super::wire::Session;
use super::*;

/// Certificates of a test, in a directory of its own.
struct Authority {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { issuer: Issuer::new(params, key), dir }
    }

    /// Writes a certificate and its key into one file.
    fn issue(&self, file: &str, subject: &str) -> String {
        let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = self.dir.path().join(file);
        std::fs::write(&path, format!("{}{}", key.serialize_pem(), certificate.pem())).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn trust(&self) -> String {
        self.dir.path().join("ca.pem").to_str().unwrap().to_owned()
    }

    /// A broker with one listener, of a protocol.
    fn broker(&self, protocol: &str, settings: &[(&str, &str)]) -> EmbeddedBroker {
        let (store, trust) = (self.issue("broker.pem", "broker"), self.trust());
        let listeners = format!("{protocol}://127.0.0.1:0");
        let own = [
            ("listeners", listeners.as_str()),
            ("sasl.enabled.mechanisms", "PLAIN"),
            ("listener.name.sasl_ssl.plain.sasl.jaas.config", JAAS),
            ("ssl.keystore.type", "PEM"),
            ("ssl.keystore.location", &store),
            ("ssl.truststore.type", "PEM"),
            ("ssl.truststore.location", &trust),
        ];
        EmbeddedBroker::start(&[&own[..], settings].concat())
    }

    /// A client that believes this authority, and shows a certificate if it has one.
    fn client(&self, store: Option<&str>) -> TlsClient {
        let mut settings = BTreeMap::from([
            ("ssl.truststore.type", "PEM".to_owned()),
            ("ssl.truststore.location", self.trust()),
        ]);
        if let Some(store) = store {
            settings.insert("ssl.keystore.type", "PEM".to_owned());
            settings.insert("ssl.keystore.location", store.to_owned());
        }
        let properties = TlsProperties::read(&|key| settings.get(key).cloned()).unwrap();
        let read = |path: &str| std::fs::read(Path::new(path)).map_err(|error| error.to_string());
        TlsClient::new(&properties, &properties.load(&read).unwrap()).unwrap()
    }
}

fn connect_in_pieces(broker: &EmbeddedBroker, client: &TlsClient, piece: usize) -> std::io::Result<Peer> {
    let stream = TcpStream::connect(broker.address())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let session = Session::begin(stream, client.session("localhost").unwrap(), piece)?;
    Ok(Peer { stream: Wire::Tls(Box::new(session)), frame: Vec::new() })
}

fn connect(broker: &EmbeddedBroker, client: &TlsClient) -> Peer {
    connect_in_pieces(broker, client, usize::MAX).unwrap()
}

fn certificate(peer: &Peer) -> Vec<u8> {
    let Wire::Tls(session) = &peer.stream else { panic!("it has a session") };
    session.tls.peer_certificate().unwrap().to_vec()
}

const SUCCESSFUL: &str = "kafka_server_socket_server_metrics_successful_authentication_total";
const FAILED: &str = "kafka_server_socket_server_metrics_failed_authentication_total";

#[test]
fn requests_are_served_whatever_the_pieces_in_which_they_come() {
    let authority = Authority::new();
    let broker = authority.broker("SSL", &[]);
    let client = authority.client(None);
    for piece in [1, 100, usize::MAX] {
        let mut peer = connect_in_pieces(&broker, &client, piece).unwrap();
        assert!(peer.is_served(), "{piece}");
        let mut metadata = MetadataRequest { allow_auto_topic_creation: false, ..Default::default() };
        let names: Vec<String> =
            (0..3000).map(|number| format!("a-topic-that-is-missing-{number}")).collect();
        let topic =
            |name: &'static str| MetadataRequestTopic { name: Some(name.into()), ..Default::default() };
        metadata.topics = Some(names.iter().map(|name| topic(name.clone().leak())).collect());
        // Longer than a pooled buffer, both ways, and one behind the other.
        let request = Peer::encode(&metadata, 12);
        peer.stream.write_all(&[&request[..], &request, &request].concat()).unwrap();
        for _ in 0..3 {
            assert_eq!(peer.answer::<MetadataRequest<'_>>(12).unwrap().topics.len(), 3000);
        }
    }
    assert_eq!((count(&broker, SUCCESSFUL), count(&broker, FAILED)), (3, 0));
    assert_no_seat_is_taken(&broker);
}

#[test]
fn a_certificate_is_asked_for_and_has_to_be_believed() {
    let (authority, strangers) = (Authority::new(), Authority::new());
    let broker = authority.broker("SSL", &[("ssl.client.auth", "required")]);
    let (alice, mallory) = (authority.issue("alice.pem", "alice"), strangers.issue("m.pem", "mallory"));
    assert!(connect(&broker, &authority.client(Some(&alice))).is_served());
    // The broker's certificate is theirs, and who shows another's has its key.
    std::fs::copy(authority.trust(), strangers.trust()).unwrap();
    for store in [None, Some(mallory.as_str())] {
        // In TLS 1.3 a client learns of it with the first thing that it reads.
        let refused = connect_in_pieces(&broker, &strangers.client(store), usize::MAX)
            .and_then(|mut peer| peer.call(&MetadataRequest::default(), 12).map(|_| ()));
        let error = refused.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::InvalidData, "an alert says so: {error}");
    }
    // The alert is sent before it is counted.
    let deadline = Instant::now() + Duration::from_secs(20);
    while count(&broker, FAILED) < 2 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((count(&broker, SUCCESSFUL), count(&broker, FAILED)), (1, 2));
}

#[test]
fn a_subject_without_a_rule_is_refused() {
    let authority = Authority::new();
    let rules = ("ssl.principal.mapping.rules", "RULE:^CN=alice$/alice/");
    let broker = authority.broker("SSL", &[("ssl.client.auth", "required"), rules]);
    for (name, comes_in) in [("alice", true), ("bob", false)] {
        let client = authority.client(Some(&authority.issue("client.pem", name)));
        let served = connect(&broker, &client).is_served();
        assert_eq!(served, comes_in, "{name}");
    }
}

#[test]
fn passwords_go_within_a_session() {
    let authority = Authority::new();
    let broker = authority.broker("SASL_SSL", &[]);
    let client = authority.client(None);
    let mut peer = connect(&broker, &client);
    assert_eq!(peer.log_in(Mechanism::Plain, "alice", "a-secret"), Ok(0));
    assert!(peer.is_served());
    let mut peer = connect(&broker, &client);
    assert!(peer.log_in(Mechanism::Plain, "alice", "wrong").is_err());
    assert!(peer.is_closed());
    let mut peer = connect(&broker, &client);
    assert!(!peer.is_served(), "it is not authenticated");
}

#[test]
fn who_speaks_another_protocol_is_closed() {
    let authority = Authority::new();
    let broker = authority.broker("SSL", &[]);
    let mut plain = Peer::connect(&broker);
    assert!(!plain.is_served());
    let open = EmbeddedBroker::start(&[]);
    assert!(connect_in_pieces(&open, &authority.client(None), usize::MAX).is_err());
    assert!(Peer::connect(&open).is_served());
}

#[test]
fn a_handshake_has_a_deadline() {
    let authority = Authority::new();
    let broker = authority.broker("SSL", &[("mainstem.authentication.timeout.ms", "300")]);
    let mut inside = connect(&broker, &authority.client(None));
    let mut silent = Peer::connect(&broker);
    let mut half = Peer::connect(&broker);
    half.stream.write_all(&[0x16, 3, 1, 0]).unwrap();
    assert!(silent.is_closed() && half.is_closed());
    assert!(inside.is_served(), "who is in stays");
    assert_no_seat_is_taken(&broker);
}

#[test]
fn stores_that_change_are_read_again_if_they_may() {
    let authority = Authority::new();
    let broker = authority.broker("SSL", &[]);
    let client = authority.client(None);
    let reload = || broker.broker().security.tls_listeners().for_each(|tls| tls.reload_if_changed());
    let mut before = connect(&broker, &client);
    let first = certificate(&before);
    reload();
    assert_eq!(certificate(&connect(&broker, &client)), first, "nothing has changed");

    authority.issue("broker.pem", "broker");
    reload();
    let second = certificate(&connect(&broker, &client));
    assert_ne!(second, first);
    assert!(before.is_served(), "a session goes on");

    let failed = "mainstem_listener_key_store_failed{listener=\"SSL\"}";
    for what in ["half a file", "another subject"] {
        match what {
            "half a file" => std::fs::write(authority.dir.path().join("broker.pem"), "-----BEGIN").unwrap(),
            _ => drop(authority.issue("broker.pem", "other")),
        }
        reload();
        assert_eq!(certificate(&connect(&broker, &client)), second, "{what}");
        assert_eq!(count(&broker, failed), 1, "{what}");
    }
    authority.issue("broker.pem", "broker");
    reload();
    assert_ne!(certificate(&connect(&broker, &client)), second);
    assert_eq!(count(&broker, failed), 0);
}

#[test]
fn a_listener_without_a_usable_store_stops_the_start() {
    let authority = Authority::new();
    for (settings, expected) in [
        ([("ssl.keystore.location", "")], "the listener SSL cannot use TLS: "),
        ([("ssl.keystore.location", "/missing.pem")], "key store /missing.pem: "),
        ([("ssl.client.auth", "maybe")], "ssl.client.auth"),
    ] {
        let start = std::panic::AssertUnwindSafe(|| authority.broker("SSL", &settings));
        let started = std::panic::catch_unwind(start);
        let panic = started.err().expect("it does not start");
        let text = panic.downcast_ref::<String>().expect("it says why");
        assert!(text.contains(expected), "{text}");
    }
}
