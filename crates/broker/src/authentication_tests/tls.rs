//! Connections to listeners with TLS: trusted certificates, answers to clients without one, and stores that change.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use mainstem_security::tls::{TlsClient, TlsProperties};
use mainstem_wire::messages::metadata_request::MetadataRequestTopic;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use socket2::{Domain, Socket, Type};

use super::wire::Session;
use super::*;
use mainstem_listener_security::DaysLeft;

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
        self.issue_until(file, subject, None)
    }

    /// The same, valid for so many seconds from now. A negative number is an end in the past.
    fn issue_until(&self, file: &str, subject: &str, valid_seconds: Option<i64>) -> String {
        let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject);
        if let Some(seconds) = valid_seconds {
            let (now, offset) = (SystemTime::now(), Duration::from_secs(seconds.unsigned_abs()));
            params.not_after = if seconds < 0 { now - offset } else { now + offset }.into();
        }
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
        self.started(EmbeddedBroker::start, protocol, settings)
    }

    fn started(
        &self,
        start: impl FnOnce(&[(&str, &str)]) -> EmbeddedBroker,
        protocol: &str,
        settings: &[(&str, &str)],
    ) -> EmbeddedBroker {
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
        start(&[&own[..], settings].concat())
    }

    /// A client that trusts this authority, and shows a certificate if it has one.
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
    connect_to(broker.address().parse().unwrap(), client, piece)
}

fn connect_to(address: SocketAddr, client: &TlsClient, piece: usize) -> std::io::Result<Peer> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
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
        // Requests and answers longer than a pooled buffer, one behind the other.
        let request = Peer::encode(&metadata, 12);
        peer.stream.write_all(&[&request[..], &request, &request].concat()).unwrap();
        for _ in 0..3 {
            assert_eq!(peer.answer::<MetadataRequest<'_>>(12).unwrap().topics.len(), 3000);
        }
    }
    assert_eq!((count(&broker, SUCCESSFUL), count(&broker, FAILED)), (3, 0));
    assert_no_permit_is_taken(&broker);
}

#[test]
fn a_certificate_is_asked_for_and_has_to_be_believed() {
    let (authority, other_authority) = (Authority::new(), Authority::new());
    let broker = authority.broker("SSL", &[("ssl.client.auth", "required")]);
    let (alice, mallory) = (authority.issue("alice.pem", "alice"), other_authority.issue("m.pem", "mallory"));
    assert!(connect(&broker, &authority.client(Some(&alice))).is_served());
    // The broker's certificate is from the other authority. Clients that show another one have its key.
    std::fs::copy(authority.trust(), other_authority.trust()).unwrap();
    for store in [None, Some(mallory.as_str())] {
        // In TLS 1.3 the first read tells a client of the refusal.
        let refused = connect_in_pieces(&broker, &other_authority.client(store), usize::MAX)
            .and_then(|mut peer| peer.call(&MetadataRequest::default(), 12).map(|_| ()));
        let error = refused.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::InvalidData, "an alert says so: {error}");
    }
    // The alert is sent before it is counted.
    let deadline = Instant::now() + TIMEOUT;
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
    let clock = ManualClock::new();
    let start = |settings: &[(&str, &str)]| EmbeddedBroker::start_at(&clock, settings);
    let broker = authority.started(start, "SSL", &[("mainstem.authentication.timeout.ms", "3000")]);
    let mut silent = Peer::connect(&broker);
    let mut half = Peer::connect(&broker);
    half.stream.write_all(&[0x16, 3, 1, 0]).unwrap();
    // Connections are accepted in their order: those before this one were accepted.
    let mut inside = connect(&broker, &authority.client(None));
    clock.advance(Duration::from_millis(2_999));
    assert!(inside.is_served() && !silent.has_answer() && !half.has_answer(), "their time is not over");
    clock.advance(Duration::from_millis(1));
    assert!(silent.is_closed() && half.is_closed());
    assert!(inside.is_served(), "an open connection stays");
    assert_no_permit_is_taken(&broker);
}

/// Each byte is progress, and none of it extends the deadline.
#[test]
fn a_handshake_that_drips_has_the_same_deadline() {
    let authority = Authority::new();
    let limit = Duration::from_millis(400);
    let timeout = limit.as_millis().to_string();
    let broker = authority.broker("SSL", &[("mainstem.authentication.timeout.ms", &timeout)]);
    let client = authority.client(None);
    let mut hello = Vec::new();
    client.session("localhost").unwrap().handshake(&mut [], &mut hello, &mut Vec::new()).unwrap();
    let pause = Duration::from_millis(10);
    assert!(pause * hello.len() as u32 > limit * 2, "there are bytes for longer than that");
    let began = Instant::now();
    let dripping = TcpStream::connect(broker.address()).unwrap();
    dripping.set_nodelay(true).unwrap();
    dripping.set_read_timeout(Some(pause)).unwrap();
    let is_open = |byte: &&u8| {
        let sent = (&dripping).write_all(&[**byte]);
        let read = sent.and_then(|()| (&dripping).read(&mut [0; 1]));
        // No bytes arrive before the pause is over: the connection is open.
        read.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    };
    let sent = hello.iter().take_while(is_open).count();
    assert!(began.elapsed() >= limit, "it has its time");
    assert!(sent < hello.len(), "it is still sent after its time");
    assert!(!(&dripping).read(&mut [0; 1]).is_ok_and(|read| read > 0), "it is closed, unanswered");
    // Fast clients are authenticated, which on a busy machine are not all of them.
    let deadline = Instant::now() + TIMEOUT;
    let comes_in = || connect_in_pieces(&broker, &client, usize::MAX).is_ok_and(|mut peer| peer.is_served());
    while !comes_in() {
        assert!(Instant::now() < deadline, "no client comes in");
    }
    assert_no_permit_is_taken(&broker);
}

/// Sessions that an authority has confirmed are void when it is no longer trusted.
#[test]
fn a_session_is_not_resumed_when_its_authority_is_gone() {
    let (authority, other_authority) = (Authority::new(), Authority::new());
    let broker = authority.broker("SSL", &[("ssl.client.auth", "required")]);
    let alice = authority.client(Some(&authority.issue("alice.pem", "alice")));
    let is_resumed = |peer: &Peer| {
        let Wire::Tls(session) = &peer.stream else { panic!("it has a session") };
        session.tls.is_resumed()
    };
    let mut first = connect(&broker, &alice);
    assert!(first.is_served() && !is_resumed(&first));
    let mut second = connect(&broker, &alice);
    assert!(second.is_served() && is_resumed(&second));

    std::fs::copy(other_authority.trust(), authority.trust()).unwrap();
    broker.broker().security.tls_listeners().for_each(|tls| tls.reload_if_changed());
    assert_eq!(count(&broker, "mainstem_listener_key_store_failed{listener=\"SSL\"}"), 0, "it is read");
    let refused = connect_in_pieces(&broker, &alice, usize::MAX)
        .and_then(|mut peer| peer.call(&MetadataRequest::default(), 12).map(|_| ()));
    assert!(refused.is_err(), "her certificate is not believed any more");
    assert!(first.is_served() && second.is_served(), "sessions go on");
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
    assert!(before.is_served(), "a session stays open");

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
fn handshakes_are_counted_by_what_was_agreed_upon() {
    let authority = Authority::new();
    let broker = authority.broker("SSL", &[]);
    let client = authority.client(None);
    let mut peer = connect(&broker, &client);
    let Wire::Tls(session) = &peer.stream else { panic!("it has a session") };
    let (cipher, protocol) = (session.tls.cipher_suite().unwrap(), session.tls.protocol().unwrap());
    let agreed = format!("cipher=\"{cipher}\",protocol=\"{protocol}\",listener=\"SSL\"");
    let open = format!("kafka_server_socket_server_metrics_connections{{{agreed},networkprocessor=\"0\"}}");
    let done = format!("mainstem_tls_handshakes_total{{{agreed}}}");
    let failed = "mainstem_tls_handshakes_failed_total{listener=\"SSL\"}";
    assert!(peer.is_served());
    assert_eq!([&*open, &*done, failed].map(|name| count(&broker, name)), [1, 1, 0]);

    assert!(connect(&broker, &client).is_served());
    let unknown = Authority::new().client(None);
    assert!(connect_in_pieces(&broker, &unknown, usize::MAX).is_err());
    let deadline = Instant::now() + TIMEOUT;
    while [&*open, &*done, failed].map(|name| count(&broker, name)) != [1, 2, 1] {
        assert!(Instant::now() < deadline, "{}", crate::metrics::exposition(broker.broker()));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(peer.is_served());
}

#[test]
fn the_expiry_of_a_certificate_is_said_in_metrics_and_health_and_daily_in_the_log() {
    const DAY: i64 = 24 * 3600;
    let authority = Authority::new();
    let broker = authority.broker("SSL", &[]);
    let security = &broker.broker().security;
    let tls = security.tls_listeners().next().expect("one listener has TLS");
    let expiry =
        || count(&broker, "mainstem_listener_certificate_expiry_timestamp_seconds{listener=\"SSL\"}");
    let health = || broker.broker().health.report(Some(&crate::operator::serving(broker.broker())));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    let reissue = |valid_seconds| {
        authority.issue_until("broker.pem", "broker", Some(valid_seconds));
        tls.reload_if_changed();
        expiry() as i64 - now - valid_seconds
    };
    assert!(expiry() as i64 > now + 1000 * DAY);
    assert_eq!(health(), (true, serde_json::json!({ "status": "ok" })));
    assert_eq!(tls.expiry_warning(now), None);

    // The certificate is made after `now`, and its times have no fractions.
    assert!((-1..600).contains(&reissue(20 * DAY + DAY / 2)), "{}", expiry());
    let (is_well, report) = health();
    let warnings = serde_json::json!(["the certificate of the listener SSL expires in less than 21 days"]);
    assert_eq!((is_well, &report["status"], &report["warnings"]), (true, &"ok".into(), &warnings));
    let later = |seconds| tls.expiry_warning(now + 700 + seconds);
    assert_eq!(later(DAY / 2), None, "the log has said it when the certificate was read");
    assert_eq!(later(DAY), Some(DaysLeft::Days(19)));
    assert_eq!(later(DAY + 1), None);
    assert_eq!(later(2 * DAY), Some(DaysLeft::Days(18)));
    assert_eq!(later(21 * DAY), Some(DaysLeft::Expired));

    assert!((-1..600).contains(&reissue(-DAY)), "{}", expiry());
    let (is_well, report) = health();
    assert!(is_well, "a connected client is served");
    assert_eq!(report["warnings"][0], "the certificate of the listener SSL has expired: clients refuse it");
    std::fs::write(authority.dir.path().join("broker.pem"), "-----BEGIN").unwrap();
    tls.reload_if_changed();
    let warnings = health().1["warnings"].clone();
    assert!(
        warnings[1].as_str().is_some_and(|text| text.contains("have changed and cannot be used")),
        "{warnings}"
    );
}

#[test]
fn a_store_that_is_set_counts_at_once_and_one_that_cannot_be_used_is_refused() {
    const LOCATION: &str = "listener.name.ssl.ssl.keystore.location";
    let authority = Authority::new();
    let mut broker = authority.broker("SSL", &[]);
    let client = authority.client(None);
    let mut admin = connect(&broker, &client);
    let first = certificate(&admin);
    let now = || certificate(&connect(&broker, &client));

    for (file, why) in [("missing.pem", "No such file"), ("half.pem", "half.pem"), ("other.pem", "DN=")] {
        let path = match file {
            "other.pem" => authority.issue(file, "other"),
            _ => authority.dir.path().join(file).to_str().unwrap().to_owned(),
        };
        if file == "half.pem" {
            std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nMIIB").unwrap();
        }
        let (code, message) = alter(&mut admin, LOCATION, &path);
        assert_eq!(code, ErrorCode::INVALID_REQUEST.code(), "{file}: {message}");
        assert!(message.contains("the listener SSL cannot use TLS") && message.contains(why), "{message}");
        assert_eq!(now(), first, "{file}");
    }

    let second = authority.issue("second.pem", "broker");
    assert_eq!(alter(&mut admin, LOCATION, &second), (0, String::new()));
    let after = now();
    assert_ne!(after, first);
    assert!(admin.is_served(), "a session stays open");

    authority.issue("second.pem", "broker");
    assert_eq!(alter(&mut admin, LOCATION, &second), (0, String::new()));
    let last = now();
    assert_ne!(last, after, "the same value has it read again");

    broker.start_again();
    let restarted = connect_to(broker.address_of("SSL"), &client, usize::MAX).unwrap();
    assert_eq!(certificate(&restarted), last, "it counts at the next start, not that of the properties");
}

/// The status line and the body of the HTTP listener's answer.
fn get(
    broker: &EmbeddedBroker,
    client: &TlsClient,
    path: &str,
    user: Option<&str>,
) -> std::io::Result<(String, String)> {
    get_from(Ipv4Addr::LOCALHOST, broker.http().expect("it is configured"), client, (path, user))
}

/// The same for a client with this address.
fn get_from(
    address: Ipv4Addr,
    listener: SocketAddr,
    client: &TlsClient,
    (path, user): (&str, Option<&str>),
) -> std::io::Result<(String, String)> {
    use base64::prelude::{BASE64_STANDARD, Engine};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((address, 0)).into())?;
    socket.connect(&listener.into())?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT))?;
    let session = Session::begin(stream, client.session("localhost").unwrap(), usize::MAX)?;
    let mut wire = Wire::Tls(Box::new(session));
    let login = user.map(|user| format!("Authorization: Basic {}\r\n", BASE64_STANDARD.encode(user)));
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", login.unwrap_or_default());
    wire.write_all(request.as_bytes())?;
    let mut answer = String::new();
    wire.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.lines().next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).unwrap_or_default();
    Ok((status.to_owned(), body.to_owned()))
}

fn status(broker: &EmbeddedBroker, client: &TlsClient, path: &str, user: Option<&str>) -> String {
    get(broker, client, path, user).map_or_else(|_| "closed".to_owned(), |(status, _)| status)
}

const GUARDED: [(&str, &str); 3] = [
    ("mainstem.http.listener", "127.0.0.1:0"),
    ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    ("super.users", "User:bob;User:CN=operator"),
];

#[test]
fn metrics_are_for_users_with_a_password() {
    let authority = Authority::new();
    let broker =
        authority.broker("SSL", &[&GUARDED[..], &[("mainstem.http.authentication", "basic")]].concat());
    for (mechanism, name) in [(ScramMechanism::Sha256, "bob"), (ScramMechanism::Sha512, "eve")] {
        add_user(&broker, mechanism, name, "b-secret");
    }
    let client = authority.client(None);
    for (user, expected) in [
        (Some("bob:b-secret"), "200 OK"),
        (Some("bob:wrong"), "401 Unauthorized"),
        (Some("mallory:b-secret"), "401 Unauthorized"),
        (Some("bob"), "401 Unauthorized"),
        (None, "401 Unauthorized"),
        (Some("eve:b-secret"), "403 Forbidden"),
    ] {
        assert_eq!(status(&broker, &client, "/metrics", user), expected, "{user:?}");
    }
    let (status, body) = get(&broker, &client, "/health", None).unwrap();
    assert_eq!((status.as_str(), body.as_str()), ("200 OK", "{}\n"), "no more than how it is");
    let (status, body) = get(&broker, &client, "/health", Some("bob:b-secret")).unwrap();
    assert!(status == "200 OK" && body.len() > 10, "{body}");

    let mut plain = TcpStream::connect(broker.http().unwrap()).unwrap();
    plain.set_read_timeout(Some(TIMEOUT)).unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(answer.is_empty(), "a client without TLS gets no answer");
}

/// A password takes thousands of hashes, and any client may send one.
#[test]
fn who_guesses_passwords_keeps_no_other_address_from_the_metrics() {
    const DELAY: Duration = Duration::from_millis(200);
    let delay = DELAY.as_millis().to_string();
    let guarded = [
        ("mainstem.http.authentication", "basic"),
        ("connection.failed.authentication.delay.ms", delay.as_str()),
    ];
    let authority = Authority::new();
    let broker = authority.broker("SSL", &[&GUARDED[..], &guarded].concat());
    add_user_of(&broker, ScramMechanism::Sha512, "bob", ("b-secret", 16_384));
    let client = authority.client(None);
    let listener = broker.http().expect("it is configured");
    let ask = |address, user| {
        let answer = get_from(address, listener, &client, ("/metrics", Some(user)));
        answer.map_or_else(|_| "closed".to_owned(), |(status, _)| status)
    };
    let own = |user| ask(Ipv4Addr::new(127, 0, 0, 2), user);
    let began = Instant::now();
    assert_eq!(own("bob:wrong"), "401 Unauthorized");
    assert!(began.elapsed() >= DELAY, "guessing is slowed down");

    let (stop, denied) = (AtomicBool::new(false), AtomicUsize::new(0));
    let guess = || {
        while !stop.load(Ordering::Relaxed) {
            match ask(Ipv4Addr::LOCALHOST, "bob:guess").as_str() {
                // On a busy machine a slow client's connection may be closed.
                "401 Unauthorized" | "closed" => {}
                "429 Too Many Requests" => _ = denied.fetch_add(1, Ordering::Relaxed),
                other => panic!("{other}"),
            }
        }
    };
    std::thread::scope(|scope| {
        let guessing: Vec<_> = (0..4).map(|_| scope.spawn(guess)).collect();
        let deadline = Instant::now() + TIMEOUT;
        let mut served = 0;
        while (served < 5 || denied.load(Ordering::Relaxed) == 0) && Instant::now() < deadline {
            let answer = own("bob:b-secret");
            served += usize::from(answer == "200 OK");
        }
        stop.store(true, Ordering::Relaxed);
        guessing.into_iter().for_each(|guess| guess.join().expect("it is answered"));
        assert!(served >= 5, "{served}");
        assert!(denied.load(Ordering::Relaxed) > 0, "one address has few passwords in hand");
    });
    assert_eq!(own("bob:b-secret"), "200 OK");
}

#[test]
fn metrics_are_for_certificates() {
    let authority = Authority::new();
    let settings = [&GUARDED[..], &[("mainstem.http.authentication", "certificate")]].concat();
    let broker = authority.broker("SSL", &settings);
    let of = |name| authority.client(Some(&authority.issue("client.pem", name)));
    assert_eq!(status(&broker, &of("operator"), "/metrics", None), "200 OK");
    assert_eq!(status(&broker, &of("other"), "/metrics", None), "403 Forbidden");
    assert_eq!(status(&broker, &authority.client(None), "/metrics", None), "closed");
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
