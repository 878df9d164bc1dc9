//! Sessions between our two halves: trusted peers, refusals and their messages, and keys from every kind of store.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};

use super::*;
use crate::KafkaPrincipal;
use crate::SecurityError;
use crate::mapping::PrincipalMapping;
use crate::store::{KeyStore, StorePasswords};

/// A certificate and its key, in PEM.
#[derive(Clone)]
struct Pair {
    certificate: String,
    key: String,
}

/// An authority of the tests.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), certificate }
    }

    fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let mut params = named(name);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Org, Inc.");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn self_signed(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Pair {
    let mut params = named(name);
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    Pair { certificate: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
}

fn expired(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(2001, 1, 1);
}

type Settings<'a> = Vec<(&'a str, &'a str)>;

fn properties(settings: &[(&str, &str)]) -> Result<TlsProperties, SecurityError> {
    let settings: BTreeMap<&str, &str> = settings.iter().copied().collect();
    TlsProperties::read(&|key| settings.get(key).map(ToString::to_string))
}

/// Properties with keys and trust in PEM.
fn inline<'a>(pair: Option<&'a Pair>, trusted: Option<&'a str>, more: &[(&'a str, &'a str)]) -> Settings<'a> {
    let mut settings = vec![("ssl.keystore.type", "PEM"), ("ssl.truststore.type", "PEM")];
    if let Some(pair) = pair {
        settings.push(("ssl.keystore.key", &pair.key));
        settings.push(("ssl.keystore.certificate.chain", &pair.certificate));
    }
    settings.extend(trusted.map(|trusted| ("ssl.truststore.certificates", trusted)));
    settings.extend(more);
    settings
}

fn server(settings: &[(&str, &str)]) -> Result<TlsServer, SecurityError> {
    let properties = properties(settings)?;
    TlsServer::new(&properties, &properties.load(&fixture)?)
}

fn client(settings: &[(&str, &str)]) -> Result<TlsClient, SecurityError> {
    let properties = properties(settings)?;
    TlsClient::new(&properties, &properties.load(&fixture)?)
}

fn fixture(path: &str) -> Result<Vec<u8>, String> {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/fixtures");
    std::fs::read(fixtures.join(path)).map_err(|error| error.to_string())
}

/// One side, with the bytes on their way to it.
struct End {
    session: TlsSession,
    incoming: Vec<u8>,
    received: Vec<u8>,
    result: Option<Result<TlsState, TlsError>>,
}

impl End {
    fn new(session: TlsSession) -> End {
        End { session, incoming: Vec::new(), received: Vec::new(), result: None }
    }

    /// Takes the received bytes; returns those to send.
    fn turn(&mut self) -> Vec<u8> {
        let mut outgoing = Vec::new();
        if matches!(self.result, Some(Err(_))) {
            return outgoing;
        }
        let mut incoming = std::mem::take(&mut self.incoming);
        self.result = Some(self.session.handshake(&mut incoming, &mut outgoing, &mut self.received));
        outgoing
    }
}

struct Talk {
    client: End,
    server: End,
}

impl Talk {
    fn new(client: &TlsClient, server: &TlsServer, host: &str) -> Talk {
        Talk { client: End::new(client.session(host).unwrap()), server: End::new(server.session().unwrap()) }
    }

    /// Lets both sides talk until neither has anything to send; the bytes of one side arrive in pieces.
    fn run(&mut self, piece: usize) {
        loop {
            let sent = self.client.turn();
            let mut quiet = sent.is_empty();
            for part in sent.chunks(piece) {
                self.server.incoming.extend(part);
                let answer = self.server.turn();
                quiet &= answer.is_empty();
                self.client.incoming.extend(answer);
            }
            let answer = self.server.turn();
            self.client.incoming.extend(&answer);
            if quiet && answer.is_empty() && self.client.turn().is_empty() {
                return;
            }
        }
    }

    fn outcome(&self) -> String {
        let shown = |end: &End| match &end.result {
            Some(Ok(state)) => format!("{state:?}"),
            // The times of an expired certificate differ in each run.
            Some(Err(error)) => {
                error.to_string().split(": verification time").next().unwrap_or_default().to_owned()
            }
            None => "nothing".to_owned(),
        };
        format!("client: {}; server: {}", shown(&self.client), shown(&self.server))
    }
}

fn talk(client_settings: &[(&str, &str)], server_settings: &[(&str, &str)], host: &str) -> Talk {
    let (client, server) = (client(client_settings).unwrap(), server(server_settings).unwrap());
    let mut talk = Talk::new(&client, &server, host);
    talk.run(usize::MAX);
    talk
}

const REQUIRED: (&str, &str) = ("ssl.client.auth", "required");

#[test]
fn both_sides_are_known() {
    let ca = Authority::new("ca");
    let (alice, broker) = (ca.issue("alice", |_| ()), ca.issue("broker", |_| ()));
    for (protocol, suite) in
        [("TLSv1.3", "TLS_AES_128_GCM_SHA256"), ("TLSv1.2", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384")]
    {
        let more = [("ssl.enabled.protocols", protocol), ("ssl.cipher.suites", suite), REQUIRED];
        let ours = inline(Some(&alice), Some(&ca.certificate), &more);
        let theirs = inline(Some(&broker), Some(&ca.certificate), &more);
        let mut talk = talk(&ours, &theirs, "localhost");
        assert_eq!(talk.outcome(), "client: Open; server: Open");
        let session = &mut talk.server.session;
        assert_eq!((session.protocol(), session.cipher_suite().as_deref()), (Some(protocol), Some(suite)));
        assert!(!session.is_resumed() && !session.is_handshaking());
        let principal = |rules: &str| session.principal(&PrincipalMapping::parse(rules).unwrap());
        assert_eq!(principal("DEFAULT"), Ok(KafkaPrincipal::user("CN=alice,O=Org\\, Inc.")));
        assert_eq!(principal("RULE:^CN=([^,]*),.*$/$1/U"), Ok(KafkaPrincipal::user("ALICE")));
        assert_eq!(
            principal("RULE:CN=alice/x/").unwrap_err().to_string(),
            "no rule of ssl.principal.mapping.rules applies to CN=alice,O=Org\\, Inc."
        );
        assert!(!format!("{session:?}").contains("secret"));
        session.close(&mut talk.client.incoming).unwrap();
        talk.client.turn();
        assert_eq!(talk.client.result, Some(Ok(TlsState::PeerClosed)));
    }
}

#[test]
fn data_goes_both_ways() {
    let ca = Authority::new("ca");
    let broker = ca.issue("broker", |_| ());
    let client = client(&inline(None, Some(&ca.certificate), &[])).unwrap();
    let server = server(&inline(Some(&broker), None, &[])).unwrap();
    for piece in [1, 7, 1000, usize::MAX] {
        let mut talk = Talk::new(&client, &server, "127.0.0.1");
        talk.run(piece);
        assert_eq!(talk.outcome(), "client: Open; server: Open", "{piece}");
        let data: Vec<u8> = (0..100_000u32).map(|number| (number % 251) as u8).collect();
        for size in [0, 1, 16_384, 16_385, 100_000] {
            talk.server.received.clear();
            let mut sealed = Vec::new();
            talk.client.session.seal(&data[..size], &mut sealed).unwrap();
            assert!(sealed.len() <= size + (size / 16_384 + 1) * 64, "{size}");
            for part in sealed.chunks(piece) {
                talk.server.incoming.extend(part);
                talk.server.turn();
            }
            assert_eq!(talk.server.received, data[..size], "{size}");
        }
        let mut sealed = Vec::new();
        talk.server.session.seal(&data, &mut sealed).unwrap();
        let mut got = Vec::new();
        let state = talk.client.session.open(&mut sealed, &mut Vec::new(), &mut got);
        assert_eq!((state, got), (Ok(TlsState::Open), data));
    }
}

/// A peer may split a message of the handshake into records, and our side may have to send in between.
#[test]
fn sealing_between_the_parts_of_a_message() {
    let ca = Authority::new("ca");
    let broker = ca.issue("broker", |_| ());
    let client = client(&inline(None, Some(&ca.certificate), &[])).unwrap();
    let server = server(&inline(Some(&broker), None, &[])).unwrap().with_records_of(40);
    let mut talk = Talk::new(&client, &server, "localhost");
    let mut sent = talk.client.turn();
    let (mut sealed, mut between) = (0, 0);
    for _ in 0..6 {
        talk.server.incoming.append(&mut sent);
        for byte in talk.server.turn() {
            talk.client.incoming.push(byte);
            sent.extend(talk.client.turn());
            if talk.client.result == Some(Ok(TlsState::Open)) {
                talk.client.session.seal(b"x", &mut sent).unwrap();
                sealed += 1;
                between += usize::from(talk.client.session.holds_more_than(60));
            }
        }
    }
    talk.server.incoming.append(&mut sent);
    talk.server.turn();
    assert_eq!(talk.server.received, vec![b'x'; sealed], "{}", talk.outcome());
    assert!(between > 0, "a message was held back that is longer than a record");
}

/// A client of rustls itself that trusts an authority, for features that ours lacks.
fn other_client(
    ca: &Authority,
    version: &'static rustls::SupportedProtocolVersion,
    provider: rustls::crypto::CryptoProvider,
) -> rustls::ClientConnection {
    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    let pem = ca.certificate.as_bytes();
    roots.add(rustls::pki_types::CertificateDer::from_pem_slice(pem).unwrap()).unwrap();
    let mut config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.enable_secret_extraction = true;
    rustls::ClientConnection::new(config.into(), "localhost".try_into().unwrap()).unwrap()
}

/// Lets both sides finish the handshake; returns the client's first bytes.
fn shake_hands(client: &mut rustls::ClientConnection, session: &mut TlsSession) -> Vec<u8> {
    let (mut first, mut plain, mut is_open) = (Vec::new(), Vec::new(), false);
    while !is_open {
        let (mut sent, mut answer) = (Vec::new(), Vec::new());
        while client.wants_write() {
            client.write_tls(&mut sent).unwrap();
        }
        if first.is_empty() {
            first.clone_from(&sent);
        }
        is_open = session.handshake(&mut sent, &mut answer, &mut plain) == Ok(TlsState::Open);
        let mut answer = answer.as_slice();
        while !answer.is_empty() {
            client.read_tls(&mut answer).unwrap();
            client.process_new_packets().unwrap();
        }
    }
    assert!(plain.is_empty());
    first
}

/// A record of TLS 1.2 under ChaCha20-Poly1305 (RFC 7905).
fn sealed_record(keys: &rustls::ConnectionTrafficSecrets, number: u64, kind: u8, payload: &[u8]) -> Vec<u8> {
    use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
    let rustls::ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } = keys else {
        panic!("one suite was offered")
    };
    let mut nonce: [u8; 12] = iv.as_ref().try_into().unwrap();
    nonce[4..].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, mask)| *byte ^= mask);
    let length = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
    let head = [&number.to_be_bytes()[..], &[kind, 3, 3], &length(payload.len())].concat();
    let key = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key.as_ref()).unwrap());
    let mut sealed = payload.to_vec();
    let nonce = Nonce::assume_unique_for_key(nonce);
    key.seal_in_place_append_tag(nonce, Aad::from(head), &mut sealed).unwrap();
    [&[kind, 3, 3][..], &length(sealed.len()), &sealed].concat()
}

/// A client that asks for another handshake within a session of TLS 1.2 gets the answer that there is none (RFC 5246, 7.2.2), and the
/// session stays open. A client that asks again loses it.
#[test]
fn renegotiation_is_refused() {
    const ALERT: u8 = 21;
    const HANDSHAKE: u8 = 22;
    const DATA: u8 = 23;
    let ca = Authority::new("ca");
    let broker = ca.issue("broker", |_| ());
    let mut session = server(&inline(Some(&broker), None, &[])).unwrap().session().unwrap();
    let provider = rustls::crypto::CryptoProvider {
        cipher_suites: vec![
            rustls::crypto::aws_lc_rs::cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ],
        ..rustls::crypto::aws_lc_rs::default_provider()
    };
    let mut client = other_client(&ca, &rustls::version::TLS12, provider);
    let first = shake_hands(&mut client, &mut session);
    let hello = &first[5..];
    assert_eq!(session.protocol(), Some("TLSv1.2"));
    let (number, keys) = client.dangerous_extract_secrets().unwrap().tx;
    let mut open = |record: Vec<u8>| {
        let (mut record, mut answer, mut plain) = (record, Vec::new(), Vec::new());
        let result = session.open(&mut record, &mut answer, &mut plain);
        (result, answer.first().copied(), plain)
    };
    let (result, answer, plain) = open(sealed_record(&keys, number, HANDSHAKE, hello));
    assert_eq!((result, answer, plain), (Ok(TlsState::Open), Some(ALERT), Vec::new()));
    let (result, _, plain) = open(sealed_record(&keys, number + 1, DATA, b"data"));
    assert_eq!((result, plain), (Ok(TlsState::Open), b"data".to_vec()), "in the same session");
    let (result, ..) = open(sealed_record(&keys, number + 2, HANDSHAKE, hello));
    let error = result.expect_err("once is enough");
    assert!(error.to_string().contains("TooManyRenegotiationRequests"), "{error}");
}

#[test]
fn a_flood_of_new_keys_ends_the_session() {
    let ca = Authority::new("ca");
    let broker = ca.issue("broker", |_| ());
    let mut session = server(&inline(Some(&broker), None, &[])).unwrap().session().unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let mut client = other_client(&ca, &rustls::version::TLS13, provider);
    shake_hands(&mut client, &mut session);
    let mut plain = Vec::new();
    let (mut obeyed, mut answered) = (0, 0);
    let error = loop {
        client.refresh_traffic_keys().unwrap();
        let (mut sent, mut answer) = (Vec::new(), Vec::new());
        client.write_tls(&mut sent).unwrap();
        match session.open(&mut sent, &mut answer, &mut plain) {
            Ok(_) => (obeyed, answered) = (obeyed + 1, answered + answer.len()),
            Err(error) => break error,
        }
        assert!(obeyed < 1_000, "there is an end to it");
    };
    assert!(obeyed > 1 && answered < 4_096, "{obeyed} new keys, {answered} bytes of answers");
    assert!(error.to_string().contains("TooManyKeyUpdateRequests"), "{error}");
}

#[test]
fn nothing_is_sealed_before_the_end_of_the_handshake() {
    let ca = Authority::new("ca");
    let client = client(&inline(None, Some(&ca.certificate), &[])).unwrap();
    let mut session = client.session("localhost").unwrap();
    assert_eq!(session.seal(b"data", &mut Vec::new()), Err(TlsError::CannotSend));
}

#[test]
fn sessions_are_resumed_until_a_reload() {
    let ca = Authority::new("ca");
    let broker = ca.issue("broker", |_| ());
    let settings = inline(Some(&broker), None, &[]);
    let (client, old) =
        (client(&inline(None, Some(&ca.certificate), &[])).unwrap(), server(&settings).unwrap());
    let resumed = |server: &TlsServer| {
        let mut talk = Talk::new(&client, server, "localhost");
        talk.run(usize::MAX);
        assert_eq!(talk.outcome(), "client: Open; server: Open");
        assert_eq!(talk.client.session.is_resumed(), talk.server.session.is_resumed());
        talk.server.session.is_resumed()
    };
    assert_eq!((resumed(&old), resumed(&old)), (false, true));
    assert!(!resumed(&server(&settings).unwrap()), "another server, though of the same key");
}

/// Checks the outcomes on both sides when the client is `ours` and the server `theirs`.
fn check(ours: &[(&str, &str)], theirs: &[(&str, &str)], expect: Expect) {
    expect.assert_eq(&talk(ours, theirs, "localhost").outcome());
}

#[test]
fn clients_that_are_refused() {
    let (ca, other) = (Authority::new("ca"), Authority::new("other"));
    let broker = ca.issue("broker", |_| ());
    let theirs = inline(Some(&broker), Some(&ca.certificate), &[REQUIRED]);
    let refused = |client: Option<&Pair>, expect: Expect| {
        check(&inline(client, Some(&ca.certificate), &[]), &theirs, expect);
    };
    refused(
        None,
        expect![
            "client: the peer asks for a certificate: received fatal alert: CertificateRequired; server: peer sent no certificates"
        ],
    );
    refused(
        Some(&other.issue("eve", |_| ())),
        expect![[
            r#"client: the peer does not trust who issued the certificate that it was shown: received fatal alert: UnknownCA; server: the certificate CN=eve,O=Org\, Inc. is refused: its issuer, CN=other, is not in the trust store: add that one to ssl.truststore.*, or have the peer show all certificates between its own and a trusted one"#
        ]],
    );
    refused(
        Some(&ca.issue("late", expired)),
        expect![[
            r#"client: the certificate that the peer was shown has expired, or is not valid yet: received fatal alert: CertificateExpired; server: the certificate CN=late,O=Org\, Inc. is refused: it has expired on 2001-01-01: have it renewed"#
        ]],
    );
    refused(
        Some(&self_signed("eve", |_| ())),
        expect![[
            r#"client: the peer does not trust who issued the certificate that it was shown: received fatal alert: UnknownCA; server: the certificate CN=eve,O=Org\, Inc. is refused: it is self-signed, and not in the trust store: add it to ssl.truststore.*, or have it issued by an authority that is in there"#
        ]],
    );
    let for_servers = |params: &mut CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    };
    refused(
        Some(&ca.issue("server", for_servers)),
        expect![[
            r#"client: the certificate that the peer was shown is not made for this, or not well enough: received fatal alert: UnsupportedCertificate; server: the certificate CN=server,O=Org\, Inc. is refused: its extended key usage lacks clientAuth: have it issued with that, or without one"#
        ]],
    );
}

#[test]
fn clients_that_are_asked_and_have_nothing_are_anonymous() {
    let ca = Authority::new("ca");
    let broker = ca.issue("broker", |_| ());
    let theirs = inline(Some(&broker), Some(&ca.certificate), &[("ssl.client.auth", "requested")]);
    let talk = talk(&inline(None, Some(&ca.certificate), &[]), &theirs, "localhost");
    assert_eq!(talk.outcome(), "client: Open; server: Open");
    let principal = talk.server.session.principal(&PrincipalMapping::default());
    assert_eq!(principal, Ok(KafkaPrincipal::anonymous()));
}

#[test]
fn servers_that_are_refused() {
    let (ca, other) = (Authority::new("ca"), Authority::new("other"));
    let refused = |pair: &Pair, host: &str, expect: Expect| {
        let talk = talk(&inline(None, Some(&ca.certificate), &[]), &inline(Some(pair), None, &[]), host);
        expect.assert_eq(&talk.outcome());
    };
    refused(
        &other.issue("broker", |_| ()),
        "localhost",
        expect![[
            r#"client: the certificate CN=broker,O=Org\, Inc. is refused: its issuer, CN=other, is not in the trust store: add that one to ssl.truststore.*, or have the peer show all certificates between its own and a trusted one; server: the peer does not accept the certificate that it was shown, and says itself why: received fatal alert: CertificateUnknown"#
        ]],
    );
    refused(
        &ca.issue("broker", expired),
        "localhost",
        expect![[
            r#"client: the certificate CN=broker,O=Org\, Inc. is refused: it has expired on 2001-01-01: have it renewed; server: the peer does not accept the certificate that it was shown, and says itself why: received fatal alert: CertificateUnknown"#
        ]],
    );
    let broker = ca.issue("broker", |_| ());
    refused(
        &broker,
        "example.com",
        expect![[
            r#"client: the certificate CN=broker,O=Org\, Inc. is refused: it is for localhost, 127.0.0.1, and not for example.com: connect to what it is for, or have it issued for example.com; server: the peer does not accept the certificate that it was shown, and says itself why: received fatal alert: CertificateUnknown"#
        ]],
    );
    refused(
        &broker,
        "127.0.0.2",
        expect![[
            r#"client: the certificate CN=broker,O=Org\, Inc. is refused: it is for localhost, 127.0.0.1, and not for 127.0.0.2: connect to what it is for, or have it issued for 127.0.0.2; server: the peer does not accept the certificate that it was shown, and says itself why: received fatal alert: CertificateUnknown"#
        ]],
    );
    let unchecked = [("ssl.endpoint.identification.algorithm", "")];
    let talk = talk(
        &inline(None, Some(&ca.certificate), &unchecked),
        &inline(Some(&broker), None, &[]),
        "example.com",
    );
    assert_eq!(talk.outcome(), "client: Open; server: Open");
    let unknown = other.issue("broker", |_| ());
    check(
        &inline(None, Some(&ca.certificate), &unchecked),
        &inline(Some(&unknown), None, &[]),
        expect![[
            r#"client: the certificate CN=broker,O=Org\, Inc. is refused: its issuer, CN=other, is not in the trust store: add that one to ssl.truststore.*, or have the peer show all certificates between its own and a trusted one; server: the peer does not accept the certificate that it was shown, and says itself why: received fatal alert: CertificateUnknown"#
        ]],
    );
}

/// Java trusts a certificate that is in the trust store, whichever authority issued it.
#[test]
fn certificates_that_are_themselves_trusted() {
    let other = Authority::new("other");
    let as_ca = |params: &mut CertificateParams| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let open = expect!["client: Open; server: Open"];
    for pair in [self_signed("peer", |_| ()), self_signed("peer", as_ca), other.issue("peer", |_| ())] {
        let settings = inline(Some(&pair), Some(&pair.certificate), &[REQUIRED]);
        open.assert_eq(&talk(&settings, &settings, "localhost").outcome());
    }
    let late = self_signed("late", expired);
    let broker = self_signed("broker", |_| ());
    check(
        &inline(Some(&late), Some(&broker.certificate), &[]),
        &inline(Some(&broker), Some(&late.certificate), &[REQUIRED]),
        expect![[
            r#"client: the certificate that the peer was shown has expired, or is not valid yet: received fatal alert: CertificateExpired; server: the certificate CN=late,O=Org\, Inc. is refused: it has expired on 2001-01-01: have it renewed"#
        ]],
    );
}

#[test]
fn peers_that_do_not_speak_tls() {
    let broker = self_signed("broker", |_| ());
    let server = server(&inline(Some(&broker), None, &[])).unwrap();
    for bytes in [&b"\0\0\0\x2a\0\x12\0\x04"[..], b"GET / HTTP/1.1\r\n"] {
        let mut session = server.session().unwrap();
        let (mut outgoing, mut plain) = (Vec::new(), Vec::new());
        let result = session.handshake(&mut bytes.to_vec(), &mut outgoing, &mut plain);
        assert_eq!(result, Err(TlsError::NotTls));
    }
    let mut client =
        client(&inline(None, Some(&broker.certificate), &[])).unwrap().session("localhost").unwrap();
    let mut hello = Vec::new();
    client.handshake(&mut [], &mut hello, &mut Vec::new()).unwrap();
    // What our listeners without TLS answer.
    let alert = &mut [21, 3, 3, 0, 2, 2, 10];
    let answered = client.handshake(alert, &mut Vec::new(), &mut Vec::new());
    assert_eq!(answered, Err(TlsError::NotTls));
    assert!(is_client_hello(&hello) && !is_client_hello(b"\0\0\0\x2a\0\x12"));
    let none = [("ssl.enabled.protocols", "TLSv1.2")];
    let only = [("ssl.enabled.protocols", "TLSv1.3")];
    check(
        &inline(None, Some(&broker.certificate), &none),
        &inline(Some(&broker), None, &only),
        expect![
            "client: received fatal alert: ProtocolVersion; server: peer is incompatible: Tls12NotOfferedOrEnabled"
        ],
    );
}

/// Stores of Java's keytool and of OpenSSL work on either side.
#[test]
fn keys_of_every_store() {
    let password = |key: &'static str| (key, "secret1");
    for (keystore, truststore) in [
        ("java.p12", "trust.p12"),
        ("java.jks", "trust.p12"),
        ("openssl.p12", "trust.jks"),
        ("converted.p12", "trust.jks"),
    ] {
        let settings = [
            ("ssl.keystore.location", keystore),
            password("ssl.keystore.password"),
            ("ssl.truststore.location", truststore),
            password("ssl.truststore.password"),
            REQUIRED,
        ];
        let talk = talk(&settings, &settings, "localhost");
        assert_eq!(talk.outcome(), "client: Open; server: Open", "{keystore}");
        let principal = talk.server.session.principal(&PrincipalMapping::default()).unwrap();
        assert_eq!(principal.to_string(), "User:CN=broker,OU=a\\,b,O=c");
    }
    let rsa = [("ssl.keystore.location", "rsa.p12"), password("ssl.keystore.password")];
    let certificate = KeyStore::open(
        "rsa.p12",
        &fixture("rsa.p12").unwrap(),
        StorePasswords { store: Some(&"secret1".into()), key: None },
    );
    let pem = rcgen_pem(&certificate.unwrap().keys[0].chain[0]);
    let ours = inline(None, Some(&pem), &[("ssl.endpoint.identification.algorithm", "")]);
    for protocol in ["TLSv1.3", "TLSv1.2"] {
        let ours = [ours.clone(), vec![("ssl.enabled.protocols", protocol)]].concat();
        assert_eq!(talk(&ours, &rsa, "localhost").outcome(), "client: Open; server: Open");
    }
}

fn rcgen_pem(der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

#[test]
fn properties_that_cannot_be_honoured() {
    let pair = self_signed("broker", |_| ());
    let other = self_signed("other", |_| ());
    let mixed = Pair { certificate: other.certificate.clone(), key: pair.key.clone() };
    let jks = ("ssl.keystore.type", "JKS");
    let key = ("ssl.keystore.key", pair.key.as_str());
    let chain = ("ssl.keystore.certificate.chain", pair.certificate.as_str());
    let path = ("ssl.keystore.location", "java.p12");
    let pem = ("ssl.keystore.type", "PEM");
    let password = ("ssl.keystore.password", "secret1");
    let both = inline(Some(&pair), None, &[]);
    let mut cases: Vec<Settings<'_>> = vec![
        vec![],
        vec![jks, key],
        vec![pem, key],
        vec![pem, key, chain, path],
        vec![pem, key, chain, password],
        vec![chain],
        vec![pem, path, password],
        vec![password],
        vec![path],
        vec![path, ("ssl.keystore.password", "wrong")],
        vec![("ssl.keystore.location", "absent.p12"), password],
        vec![("ssl.keystore.location", "legacy.p12"), password],
        vec![("ssl.keystore.location", "trust.p12"), password],
        vec![("ssl.keystore.type", "BCFKS")],
        vec![("ssl.truststore.password", "x")],
        vec![
            path,
            password,
            ("ssl.truststore.location", "openssl-trust.p12"),
            ("ssl.truststore.password", "secret1"),
        ],
        inline(Some(&mixed), None, &[]),
    ];
    for more in [
        REQUIRED,
        ("ssl.client.auth", "sometimes"),
        ("ssl.enabled.protocols", "TLSv1.2,TLSv1.1"),
        ("ssl.protocol", "SSLv3"),
        ("ssl.cipher.suites", "RC4"),
        ("ssl.cipher.suites", "TLS_RSA_WITH_AES_128_CBC_SHA"),
        ("ssl.engine.factory.class", "com.example.Engine"),
        ("ssl.endpoint.identification.algorithm", "LDAPS"),
    ] {
        cases.push([both.clone(), vec![more]].concat());
    }
    let lines: Vec<String> =
        cases.iter().map(|case| server(case).map(|_| ()).unwrap_err().to_string()).collect();
    let shown = lines.join("\n").replace(&fixture("absent.p12").unwrap_err(), "ABSENT");
    expect![[r#"
        a listener with SSL needs ssl.keystore.location, or ssl.keystore.key with ssl.keystore.certificate.chain
        SSL private key can be specified only for PEM, but key store type is JKS.
        SSL private key is specified, but certificate chain is not specified.
        Both SSL key store location and separate private key are specified.
        SSL key store password cannot be specified with PEM format, only key password may be specified.
        SSL certificate chain is specified, but private key is not specified
        SSL key store password cannot be specified with PEM format, only key password may be specified
        SSL key store is not specified, but key store password is specified.
        SSL key store is specified, but key store password is not specified.
        key store java.p12: the password is wrong, or the file is damaged
        key store absent.p12: ABSENT
        key store legacy.p12: it is encrypted with RC2, which is too weak: convert it by OpenSSL 3: openssl pkcs12 -legacy -in legacy.p12 -nodes | openssl pkcs12 -export -out NEW.p12
        the key store: it has no private key, or none without a password
        ssl.keystore.type: BCFKS is not supported: use PEM, PKCS12 or JKS
        SSL trust store is not specified, but trust store password is specified.
        the trust store: it has no trusted certificate; in PKCS12 those count that keytool -importcert imported
        the key kafka: it does not fit its certificate
        ssl.client.auth needs ssl.truststore.location or ssl.truststore.certificates, which say whose certificates are accepted
        ssl.client.auth: sometimes is none of none, requested, required
        ssl.enabled.protocols: TLSv1.1 is not supported: use TLSv1.3 and TLSv1.2
        ssl.protocol: SSLv3 is not supported: use TLSv1.3 or TLSv1.2
        ssl.cipher.suites: RC4 is no cipher suite
        ssl.cipher.suites: none of them is supported: use some of TLS_AES_256_GCM_SHA384, TLS_AES_128_GCM_SHA256, TLS_CHACHA20_POLY1305_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
        ssl.engine.factory.class names a class of Java's, which is not supported: remove it
        ssl.endpoint.identification.algorithm: LDAPS is not supported: use https, or nothing"#]].assert_eq(&shown);
    assert!(!shown.contains("PRIVATE KEY-"), "no secret is printed");
    let some = [("ssl.cipher.suites", "TLS_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_128_CBC_SHA")];
    let left_out = properties(&some).unwrap().unsupported_cipher_suites();
    assert_eq!(left_out, ["TLS_RSA_WITH_AES_128_CBC_SHA"]);
    assert!(client(&[]).unwrap_err().to_string().contains("certificates to trust"));
}

fn material(pair: Option<&Pair>, trusted: Option<&str>) -> TlsMaterial {
    properties(&inline(pair, trusted, &[])).unwrap().load(&fixture).unwrap()
}

#[test]
fn reloads() {
    let old = self_signed("broker", |_| ());
    let renewed = self_signed("Broker", |params| params.not_after = date_time_ymd(2040, 1, 1));
    let renamed = self_signed("other", |_| ());
    let moved = self_signed("broker", |params| {
        params.subject_alt_names =
            CertificateParams::new(["example.com".to_owned()]).unwrap().subject_alt_names;
    });
    let before = material(Some(&old), None);
    let check = |new: &TlsMaterial, dn: bool, san: bool| match before.check_reload(new, dn, san) {
        Ok(()) => "fits".to_owned(),
        Err(error) => error.to_string(),
    };
    let lines = [
        check(&material(Some(&renewed), None), false, false),
        check(&material(Some(&renamed), None), false, false),
        check(&material(Some(&renamed), None), true, false),
        check(&material(Some(&moved), None), false, false),
        check(&material(Some(&moved), None), false, true),
        check(&material(None, None), true, true),
        check(&material(Some(&old), Some(&old.certificate)), true, true),
    ];
    expect![[r#"
        fits
        the reloaded key store is refused, the one before stays in force: Keystore DistinguishedName does not match:  existing={alias=kafka, DN=CN=broker,O=Org\, Inc.}, new={alias=kafka, DN=CN=other,O=Org\, Inc.}
        fits
        the reloaded key store is refused, the one before stays in force: Keystore SubjectAltNames do not match:  existing={alias=kafka}, new={alias=kafka}
        fits
        the reloaded key store is refused, the one before stays in force: Cannot remove the SSL keystore from an existing listener for which a keystore was configured.
        the reloaded key store is refused, the one before stays in force: Cannot add SSL truststore to an existing listener for which no truststore was configured."#]].assert_eq(&lines.join("\n"));
    assert_eq!(material(Some(&renewed), None).expires_at(), Some(2_208_988_800));
    assert_eq!(material(None, None).expires_at(), None);
    assert!(material(None, None).check_reload(&before, true, true).is_err());
    let files = properties(&[("ssl.keystore.location", "java.p12"), ("ssl.keystore.password", "x")]).unwrap();
    assert_eq!(files.files().collect::<Vec<_>>(), ["java.p12"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(mainstem_testkit::cases(64)))]

    /// A byte that is changed on the way ends the session on the side that it reaches, with an alert, or changes nothing.
    #[test]
    fn damage_ends_a_session(at in 0usize..4000, byte: u8, piece in 1usize..500) {
        let broker = self_signed("broker", |_| ());
        let client = client(&inline(None, Some(&broker.certificate), &[])).unwrap();
        let server = server(&inline(Some(&broker), None, &[])).unwrap();
        let mut talk = Talk::new(&client, &server, "localhost");
        let mut sent = 0;
        for _ in 0..8 {
            let mut flight = talk.client.turn();
            if let Some(place) = at.checked_sub(sent).and_then(|at| flight.get_mut(at)) {
                *place = byte;
            }
            sent += flight.len();
            for part in flight.chunks(piece) {
                talk.server.incoming.extend(part);
                let mut answer = talk.server.turn();
                if let Some(place) = at.checked_sub(sent).and_then(|at| answer.get_mut(at)) {
                    *place = byte;
                }
                sent += answer.len();
                talk.client.incoming.extend(answer);
            }
        }
        prop_assert!(talk.server.received.is_empty() && talk.client.received.is_empty());
    }

    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..300), head in 0usize..3) {
        let heads: [&[u8]; 3] = [b"", b"\x16\x03\x01\0\x20\x01\0\0\x1c\x03\x03", b"\x16\x03\x03"];
        crate::fuzz::tls(&[heads[head], &data].concat());
    }
}
