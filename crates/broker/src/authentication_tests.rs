//! Connections to a broker with SASL: which are authenticated, which are refused, and the answers to both.

mod acls;
mod changes;
mod places;
mod scripted;
mod tls;
mod wire;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use mainstem_security::scram::{ScramMechanism, salted_password};
use mainstem_security::{ClientExchange, ClientStep, Mechanism, Secret};
use mainstem_wire::messages::alter_user_scram_credentials_request::{
    AlterUserScramCredentialsRequest, ScramCredentialUpsertion,
};
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use mainstem_wire::messages::metadata_request::MetadataRequest;
use mainstem_wire::messages::request_header::RequestHeader;
use mainstem_wire::messages::response_header::ResponseHeader;
use mainstem_wire::messages::sasl_authenticate_request::SaslAuthenticateRequest;
use mainstem_wire::messages::sasl_authenticate_response::SaslAuthenticateResponse;
use mainstem_wire::messages::sasl_handshake_request::SaslHandshakeRequest;
use mainstem_wire::{ApiKey, Decoder, ErrorCode, Message, Request};

use self::wire::Wire;
use crate::{EmbeddedBroker, ManualClock};

/// The longest wait of a test.
const TIMEOUT: Duration = Duration::from_secs(60);

const JAAS: &str =
    "org.apache.kafka.common.security.plain.PlainLoginModule required user_alice=\"a-secret\";";

fn broker(settings: &[(&str, &str)]) -> EmbeddedBroker {
    started(EmbeddedBroker::start, settings)
}

/// The same with a clock that the test advances.
fn broker_at(clock: &ManualClock, settings: &[(&str, &str)]) -> EmbeddedBroker {
    started(|settings| EmbeddedBroker::start_at(clock, settings), settings)
}

fn started(
    start: impl FnOnce(&[(&str, &str)]) -> EmbeddedBroker,
    settings: &[(&str, &str)],
) -> EmbeddedBroker {
    let own = [
        ("listeners", "SASL_PLAINTEXT://127.0.0.1:0"),
        ("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"),
        ("listener.name.sasl_plaintext.plain.sasl.jaas.config", JAAS),
    ];
    let broker = start(&[&own[..], settings].concat());
    for mechanism in ScramMechanism::ALL {
        add_user(&broker, mechanism, "bob", "b-secret");
    }
    broker
}

fn add_user(broker: &EmbeddedBroker, mechanism: ScramMechanism, name: &'static str, password: &str) {
    add_user_of(broker, mechanism, name, (password, 4096));
}

fn add_user_of(
    broker: &EmbeddedBroker,
    mechanism: ScramMechanism,
    name: &'static str,
    (password, iterations): (&str, i32),
) {
    let salt = b"0123456789abcdefghijklmno";
    let salted = salted_password(mechanism, &Secret::from(password), salt, iterations as u32).unwrap();
    let request = AlterUserScramCredentialsRequest {
        upsertions: vec![ScramCredentialUpsertion {
            name: name.into(),
            mechanism: mechanism.code(),
            iterations,
            salt: salt.as_slice().into(),
            salted_password: salted.expose().to_vec().into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let broker = broker.broker();
    let reply = broker.controller.decide(|machine| machine.alter_user_scram_credentials(&request)).unwrap();
    assert_eq!(reply.results[0].error_code, 0);
}

/// A client of one connection.
pub(crate) struct Peer {
    stream: Wire,
    frame: Vec<u8>,
}

impl Peer {
    pub(crate) fn connect(broker: &EmbeddedBroker) -> Peer {
        Peer::connect_to(broker.address())
    }

    pub(crate) fn connect_to(address: impl std::net::ToSocketAddrs) -> Peer {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Peer { stream: Wire::Plain(stream), frame: Vec::new() }
    }

    fn encode<'q, R: Request<'q>>(request: &R, version: i16) -> Vec<u8> {
        let header = RequestHeader {
            request_api_key: R::KEY as i16,
            request_api_version: version,
            correlation_id: 7,
            ..Default::default()
        };
        let mut bytes = Vec::new();
        mainstem_wire::frame::write_request(&mut bytes, &header, request).unwrap();
        bytes
    }

    fn receive(&mut self) -> std::io::Result<&[u8]> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        self.frame.resize(u32::from_be_bytes(length) as usize, 0);
        self.stream.read_exact(&mut self.frame)?;
        Ok(&self.frame)
    }

    /// Sends a request without reading its answer.
    pub(crate) fn send<'q, R: Request<'q>>(&mut self, request: &R, version: i16) -> std::io::Result<()> {
        self.stream.write_all(&Peer::encode(request, version))
    }

    /// Returns true if bytes of an answer, or the end of the connection, have arrived.
    pub(crate) fn has_answer(&self) -> bool {
        let Wire::Plain(stream) = &self.stream else { panic!("only a plain socket can be looked at") };
        stream.set_nonblocking(true).unwrap();
        let looked = stream.peek(&mut [0]);
        stream.set_nonblocking(false).unwrap();
        !looked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Waits for the answer to the oldest request without one.
    pub(crate) fn answer<'q, 'r, R: Request<'q>>(
        &'r mut self,
        version: i16,
    ) -> std::io::Result<R::Response<'r>> {
        let frame = self.receive()?;
        let mut decoder = Decoder::new(frame);
        let header = ResponseHeader::decode(&mut decoder, R::KEY.response_header_version(version)).unwrap();
        assert_eq!(header.correlation_id, 7);
        Ok(R::Response::decode(&mut decoder, version).unwrap())
    }

    pub(crate) fn call<'q, 'r, R: Request<'q>>(
        &'r mut self,
        request: &R,
        version: i16,
    ) -> std::io::Result<R::Response<'r>> {
        self.send(request, version)?;
        self.answer::<R>(version)
    }

    fn handshake(&mut self, mechanism: &str, version: i16) -> (i16, Vec<String>) {
        let request = SaslHandshakeRequest { mechanism: mechanism.into() };
        let response = self.call(&request, version).unwrap();
        (response.error_code, response.mechanisms.iter().map(ToString::to_string).collect())
    }

    fn token(&mut self, token: &[u8]) -> SaslAuthenticateResponse<'_> {
        let request = SaslAuthenticateRequest { auth_bytes: token.into(), ..Default::default() };
        self.call(&request, 2).unwrap()
    }

    /// Authenticates. Returns the session's length, or the refusal's text.
    fn log_in(&mut self, mechanism: Mechanism, user: &str, password: &str) -> Result<i64, String> {
        assert_eq!(self.handshake(mechanism.name(), 1).0, 0);
        let mut exchange = ClientExchange::new(mechanism, user, Secret::from(password), 5);
        let (mut challenge, mut lifetime) = (Vec::new(), 0);
        while let ClientStep::Send(token) = exchange.step(&challenge).unwrap() {
            let response = self.token(&token);
            if response.error_code != 0 {
                assert_eq!(response.error_code, ErrorCode::SASL_AUTHENTICATION_FAILED.code());
                return Err(response.error_message.unwrap_or_default().into_owned());
            }
            challenge = response.auth_bytes.to_vec();
            lifetime = response.session_lifetime_ms;
        }
        Ok(lifetime)
    }

    fn is_served(&mut self) -> bool {
        self.call(&MetadataRequest::default(), 12).is_ok()
    }

    /// Waits until the broker has closed the connection without sending more.
    fn is_closed(&mut self) -> bool {
        let read = loop {
            match self.stream.read(&mut [0; 1]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        matches!(&read, Ok(0)) || read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
    }
}

/// Sets a key of the node by IncrementalAlterConfigs. Returns the error code and the message.
fn alter(peer: &mut Peer, key: &'static str, value: &str) -> (i16, String) {
    let config =
        AlterableConfig { name: key.into(), value: Some(value.to_owned().into()), ..Default::default() };
    let resource = AlterConfigsResource {
        resource_type: 4,
        resource_name: "1".into(),
        configs: vec![config],
        ..Default::default()
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    let answer = &peer.call(&request, 1).expect("an answer").responses[0];
    (answer.error_code, answer.error_message.as_deref().unwrap_or_default().to_owned())
}

/// The value of a metric; without labels in its name the sum over all of them.
fn count(broker: &EmbeddedBroker, name: &str) -> u64 {
    let text = crate::metrics::exposition(broker.broker());
    let is_it = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
    let values = text.lines().filter(is_it);
    let values = values.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64);
    values.reduce(|a, b| a + b).expect("it is counted")
}

#[test]
fn each_mechanism_lets_in_who_knows_the_password() {
    let broker = broker(&[]);
    let scram = ScramMechanism::ALL.map(Mechanism::Scram);
    let (alice, bob) = (("alice", "a-secret"), ("bob", "b-secret"));
    for (mechanism, (user, password)) in [(Mechanism::Plain, alice), (scram[0], bob), (scram[1], bob)] {
        let mut peer = Peer::connect(&broker);
        let asked = ApiVersionsRequest {
            client_software_name: "test".into(),
            client_software_version: "1".into(),
            ..Default::default()
        };
        assert_eq!(peer.call(&asked, 3).unwrap().error_code, 0);
        assert_eq!(peer.log_in(mechanism, user, password), Ok(0), "{mechanism}");
        assert!(peer.is_served(), "{mechanism}");
        assert_eq!(peer.handshake("PLAIN", 1).0, ErrorCode::ILLEGAL_SASL_STATE.code(), "the session lasts");
        assert_eq!(peer.token(b"x").error_code, ErrorCode::ILLEGAL_SASL_STATE.code());
        assert!(peer.is_served());
    }
    let successful = "kafka_server_socket_server_metrics_successful_authentication_total";
    assert_eq!(count(&broker, successful), 3);
    let shown = crate::metrics::exposition(broker.broker());
    assert!(shown.contains(&format!("{successful}{{listener=\"SASL_PLAINTEXT\"}} 3\n")), "{shown}");
    assert_no_permit_is_taken(&broker);
}

#[test]
fn an_answer_that_refuses_does_not_come_together_with_the_end_of_the_connection() {
    /// The time for which nothing but the answer is sent.
    const ALONE: Duration = Duration::from_millis(500);
    let broker = broker(&[("connection.failed.authentication.delay.ms", "0")]);
    let mut peer = Peer::connect(&broker);
    let began = Instant::now();
    assert!(peer.log_in(Mechanism::Plain, "alice", "wrong").is_err());
    assert!(peer.is_closed(), "a client that does not close it is closed");
    assert!(began.elapsed() >= ALONE, "both came within {:?}", began.elapsed());
}

#[test]
fn who_does_not_know_the_password_is_answered_so_later_and_once() {
    let broker = broker(&[("connection.failed.authentication.delay.ms", "150")]);
    let scram = ScramMechanism::ALL.map(Mechanism::Scram);
    let hidden = "Authentication failed during authentication due to invalid credentials with SASL mechanism";
    let plain = "Authentication failed: Invalid username or password".to_owned();
    for (mechanism, user, expected) in [
        (Mechanism::Plain, "alice", plain.clone()),
        (Mechanism::Plain, "bob", plain),
        (scram[0], "bob", format!("{hidden} SCRAM-SHA-256")),
        (scram[1], "bob", format!("{hidden} SCRAM-SHA-512")),
        (scram[1], "unknown", format!("{hidden} SCRAM-SHA-512")),
    ] {
        let mut peer = Peer::connect(&broker);
        let began = Instant::now();
        assert_eq!(peer.log_in(mechanism, user, "wrong"), Err(expected), "{mechanism} {user}");
        assert!(began.elapsed() >= Duration::from_millis(150), "{mechanism} {user}");
        // Bytes that are sent meanwhile do not make the system drop the answer.
        let _ = peer.stream.write_all(&[0; 100]);
        assert!(peer.is_closed());
    }
    assert_eq!(count(&broker, "kafka_server_socket_server_metrics_failed_authentication_total"), 5);
}

/// The salt and the iterations that are shown for a user.
fn shown(broker: &EmbeddedBroker, user: &str) -> String {
    let mut peer = Peer::connect_to(broker.address_of("SASL_PLAINTEXT"));
    assert_eq!(peer.handshake("SCRAM-SHA-512", 1).0, 0);
    let response = peer.token(format!("n,,n={user},r=nonce").as_bytes());
    let text = String::from_utf8(response.auth_bytes.to_vec()).unwrap();
    let (_, after) = text.split_once(",s=").unwrap();
    after.to_owned()
}

/// Changes over time do not reveal which users exist.
#[test]
fn an_unknown_user_is_shown_the_same_after_another_start_and_with_other_users() {
    let mut broker = broker(&[]);
    let before = ["bob", "carol", "dave"].map(|user| shown(&broker, user));
    broker.start_again();
    assert_eq!(["bob", "carol", "dave"].map(|user| shown(&broker, user)), before);
    add_user(&broker, ScramMechanism::Sha512, "eve", "e-secret");
    assert_eq!(["bob", "carol", "dave"].map(|user| shown(&broker, user)), before);
    let secrets = ["mainstem.scram.decoy.secret"].map(|key| {
        let image = broker.broker().controller.image();
        let cluster = mainstem_controller::ConfigResource::new(mainstem_controller::ResourceKind::Broker, "");
        image.configs(&cluster).get(key).cloned()
    });
    assert!(secrets[0].as_ref().is_some_and(|secret| secret.len() == 44), "32 bytes, with the metadata");
}

#[test]
fn a_password_of_an_unknown_user_is_hashed_as_often_as_that_of_most_users() {
    let broker = broker(&[]);
    let shape = || crate::users::shape_of_most(broker.broker());
    assert_eq!(shape(), (ScramMechanism::Sha512, 4096));
    for name in ["carol", "dave"] {
        add_user_of(&broker, ScramMechanism::Sha256, name, ("secret", 8192));
    }
    assert_eq!(shape(), (ScramMechanism::Sha256, 8192));
}

#[test]
fn an_unknown_user_is_shown_what_a_known_one_is() {
    let broker = broker(&[]);
    let shown = |user: &str| shown(&broker, user);
    let (known, unknown) = (shown("bob"), shown("carol"));
    assert_eq!(known.len(), unknown.len(), "{known} {unknown}");
    assert!(known.ends_with(",i=4096") && unknown.ends_with(",i=4096"));
    assert_eq!(unknown, shown("carol"), "a salt stays");
    assert_ne!(unknown, shown("dave"));
}

#[test]
fn a_mechanism_that_the_listener_lacks_is_refused_with_those_that_it_has() {
    let broker = broker(&[("listener.name.sasl_plaintext.sasl.enabled.mechanisms", "SCRAM-SHA-512")]);
    let mut peer = Peer::connect(&broker);
    let expected = (ErrorCode::UNSUPPORTED_SASL_MECHANISM.code(), vec!["SCRAM-SHA-512".to_owned()]);
    assert_eq!(peer.handshake("PLAIN", 1), expected);
    assert!(peer.is_closed());
}

#[test]
fn nothing_else_is_served_before() {
    let broker = broker(&[("sasl.server.max.receive.size", "2000")]);
    let token = SaslAuthenticateRequest { auth_bytes: b"\0alice\0a-secret".into(), ..Default::default() };
    for bytes in [
        Peer::encode(&MetadataRequest::default(), 12),
        Peer::encode(&token, 2),
        2001u32.to_be_bytes().to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0, 0, 0, 3, 1, 2, 3],
    ] {
        let mut peer = Peer::connect(&broker);
        peer.stream.write_all(&bytes).unwrap();
        assert!(peer.is_closed(), "{bytes:?}");
    }
    let mut peer = Peer::connect(&broker);
    assert_eq!(peer.handshake("PLAIN", 1).0, 0);
    peer.stream.write_all(&Peer::encode(&MetadataRequest::default(), 12)).unwrap();
    assert!(peer.is_closed(), "between handshake and token");
}

#[test]
fn requests_behind_the_handshake_are_served_in_order_once_it_is_done() {
    let broker = broker(&[("sasl.server.max.receive.size", "200")]);
    let handshake = SaslHandshakeRequest { mechanism: "PLAIN".into() };
    let token = SaslAuthenticateRequest { auth_bytes: b"\0alice\0a-secret".into(), ..Default::default() };
    let mut metadata = MetadataRequest::default();
    let name = "x".repeat(200);
    metadata.topics = Some(vec![mainstem_wire::messages::metadata_request::MetadataRequestTopic {
        name: Some(name.as_str().into()),
        ..Default::default()
    }]);
    let mut peer = Peer::connect(&broker);
    let bytes = [Peer::encode(&handshake, 1), Peer::encode(&token, 2), Peer::encode(&metadata, 12)].concat();
    peer.stream.write_all(&bytes).unwrap();
    assert_eq!(peer.answer::<SaslHandshakeRequest<'_>>(1).unwrap().error_code, 0);
    assert_eq!(peer.answer::<SaslAuthenticateRequest<'_>>(2).unwrap().error_code, 0);
    assert_eq!(peer.answer::<MetadataRequest<'_>>(12).unwrap().topics.len(), 1);
    assert!(peer.is_served());
}

#[test]
fn bare_tokens_follow_the_first_version_of_the_handshake() {
    let broker = broker(&[]);
    for (password, comes_in) in [("a-secret", true), ("wrong", false)] {
        let mut peer = Peer::connect(&broker);
        assert_eq!(peer.handshake("PLAIN", 0).0, 0);
        let token = format!("\0alice\0{password}");
        let frame = [&(token.len() as u32).to_be_bytes(), token.as_bytes()].concat();
        peer.stream.write_all(&frame).unwrap();
        if comes_in {
            assert_eq!(peer.receive().unwrap(), b"");
            assert!(peer.is_served());
        } else {
            assert!(peer.is_closed());
        }
    }
}

/// Waits until no permit is taken: a permit is released a moment after its connection was closed.
fn assert_no_permit_is_taken(broker: &EmbeddedBroker) {
    let deadline = Instant::now() + TIMEOUT;
    while broker.broker().net.unauthenticated.taken() > 0 {
        assert!(
            Instant::now() < deadline,
            "{} permits are taken",
            broker.broker().net.unauthenticated.taken()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn who_takes_too_long_is_closed() {
    let limit = Duration::from_secs(3);
    let clock = ManualClock::new();
    let broker = broker_at(&clock, &[("mainstem.authentication.timeout.ms", &limit.as_millis().to_string())]);
    let mut inside = Peer::connect(&broker);
    assert_eq!(inside.log_in(Mechanism::Plain, "alice", "a-secret"), Ok(0));
    let mut silent = Peer::connect(&broker);
    let mut slow = Peer::connect(&broker);
    // Connections are accepted in their order: both have been.
    assert_eq!(slow.handshake("PLAIN", 1).0, 0);
    clock.advance(limit - Duration::from_millis(1));
    assert_eq!(slow.token(b"\0alice\0a-secret").error_code, 0, "its time is not over");
    let mut slow = Peer::connect(&broker);
    assert_eq!(slow.handshake("PLAIN", 1).0, 0);
    assert!(!silent.has_answer(), "nor is that of the one before it");
    clock.advance(limit);
    assert!(silent.is_closed() && slow.is_closed());
    assert!(inside.is_served(), "an authenticated connection stays");
    assert_no_permit_is_taken(&broker);
}

#[test]
fn a_new_connection_gets_the_permit_of_one_without_progress() {
    let broker = broker(&[("mainstem.unauthenticated.connections.max", "20")]);
    let mut inside = Peer::connect(&broker);
    assert_eq!(inside.log_in(Mechanism::Plain, "alice", "a-secret"), Ok(0));
    // A tenth of the places is for this address.
    let mut first = Peer::connect(&broker);
    assert_eq!(first.handshake("PLAIN", 1).0, 0);
    let mut second = Peer::connect(&broker);
    assert_eq!(second.handshake("PLAIN", 1).0, 0);
    // The order of progress is known to the millisecond.
    std::thread::sleep(Duration::from_millis(5));
    let mut third = Peer::connect(&broker);
    assert!(first.is_closed());
    assert_eq!(second.token(b"\0alice\0a-secret").error_code, 0);
    assert_eq!(third.log_in(Mechanism::Plain, "alice", "a-secret"), Ok(0));
    assert!(inside.is_served());
}

/// A connection that was refused and waits for the answer counts as unauthenticated, like any other.
#[test]
fn a_refused_peer_keeps_its_permit_and_is_the_first_to_lose_it() {
    let broker = broker(&[
        ("mainstem.unauthenticated.connections.max", "30"),
        ("connection.failed.authentication.delay.ms", "3600000"),
    ]);
    // A tenth of the places is for this address.
    let mut silent = Peer::connect(&broker);
    assert_eq!(silent.handshake("PLAIN", 1).0, 0);
    let refuse = |count_before: u64| {
        let mut peer = Peer::connect(&broker);
        assert_eq!(peer.handshake("PLAIN", 1).0, 0);
        let token = SaslAuthenticateRequest { auth_bytes: b"\0alice\0wrong".into(), ..Default::default() };
        peer.stream.write_all(&Peer::encode(&token, 2)).unwrap();
        let deadline = Instant::now() + TIMEOUT;
        let failed = "kafka_server_socket_server_metrics_failed_authentication_total";
        while count(&broker, failed) <= count_before {
            assert!(Instant::now() < deadline, "it is refused");
            std::thread::sleep(Duration::from_millis(5));
        }
        peer
    };
    let mut refused = [refuse(0), refuse(1)];
    assert_eq!(broker.broker().net.unauthenticated.taken(), 3, "their connections are open");
    let mut others = Vec::new();
    for peer in &mut refused {
        others.push(Peer::connect(&broker));
        assert!(peer.is_closed(), "an hour before its answer");
    }
    assert_eq!(
        silent.token(b"\0alice\0a-secret").error_code,
        0,
        "a connection that may still authenticate is older than they are"
    );
}

#[test]
fn ten_thousand_silent_connections_do_not_keep_users_out() {
    // With a full backlog of the socket, connecting would take a second.
    let broker = broker(&[("socket.listen.backlog.size", "4096")]);
    let mut inside = Peer::connect(&broker);
    assert_eq!(inside.log_in(Mechanism::Plain, "alice", "a-secret"), Ok(0));
    // The oldest of them have lost their permits.
    let mut silent = std::collections::VecDeque::new();
    for number in 1..=10_000 {
        silent.push_back(TcpStream::connect(broker.address()).unwrap());
        if silent.len() > 1_000 {
            silent.pop_front();
        }
        if number % 1_000 == 0 {
            let taken = broker.broker().net.unauthenticated.taken();
            assert!(taken <= 100, "{taken} permits of the 100 for an address");
            assert_eq!(Peer::connect(&broker).log_in(Mechanism::Plain, "alice", "a-secret"), Ok(0));
            assert!(inside.is_served());
        }
    }
    drop(silent);
    assert_no_permit_is_taken(&broker);
}

#[test]
fn a_session_is_renewed_or_ends() {
    const SESSION_MS: i64 = 8_000;
    // At most once a second.
    const RENEWED_EVERY: Duration = Duration::from_millis(1_050);
    const RENEWALS: u32 = 8;
    let clock = ManualClock::new();
    let settings = [
        ("listener.name.sasl_plaintext.plain.connections.max.reauth.ms", &*SESSION_MS.to_string()),
        ("connections.max.reauth.ms", "60000"),
        ("connection.failed.authentication.delay.ms", "0"),
    ];
    let broker = broker_at(&clock, &settings);
    let mut lasting = Peer::connect(&broker);
    let scram = Mechanism::Scram(ScramMechanism::Sha256);
    assert_eq!(lasting.log_in(scram, "bob", "b-secret"), Ok(60_000));
    let mut ending = Peer::connect(&broker);
    assert_eq!(ending.log_in(Mechanism::Plain, "alice", "a-secret"), Ok(SESSION_MS));
    let mut renewing = Peer::connect(&broker);
    assert_eq!(renewing.log_in(Mechanism::Plain, "alice", "a-secret"), Ok(SESSION_MS));
    let mut other = Peer::connect(&broker);
    assert_eq!(other.log_in(Mechanism::Plain, "alice", "a-secret"), Ok(SESSION_MS));
    for renewal in 1..=RENEWALS {
        if renewal == RENEWALS {
            assert!(ending.is_served(), "its session lasts");
        }
        clock.advance(RENEWED_EVERY);
        assert_eq!(renewing.log_in(Mechanism::Plain, "alice", "a-secret"), Ok(SESSION_MS));
    }
    assert!(clock.passed() > Duration::from_millis(SESSION_MS as u64));
    assert!(renewing.is_served(), "longer than a session");
    assert!(!ending.is_served(), "its session is over");
    assert_eq!(other.handshake("SCRAM-SHA-256", 1).0, 0);
    let refused = other.token(b"n,,n=bob,r=nonce");
    assert_eq!(refused.error_code, ErrorCode::SASL_AUTHENTICATION_FAILED.code(), "another mechanism");
    assert!(other.is_closed());
    assert!(lasting.is_served());
    assert_eq!(
        count(&broker, "kafka_server_socket_server_metrics_successful_reauthentication_total"),
        u64::from(RENEWALS)
    );
    assert_eq!(count(&broker, "kafka_server_socket_server_metrics_failed_reauthentication_total"), 1);
    assert_eq!(count(&broker, "kafka_server_socket_server_metrics_expired_connections_killed_count"), 1);
}

/// As in Kafka, requests from before the end of the session are answered, and none after it.
#[test]
fn a_fetch_that_waits_is_answered_though_its_session_ends() {
    use mainstem_wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
    use mainstem_wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
    const SESSION_MS: i32 = 4_000;
    let session_ms = SESSION_MS.to_string();
    let clock = ManualClock::new();
    let broker = broker_at(
        &clock,
        &[("listener.name.sasl_plaintext.plain.connections.max.reauth.ms", session_ms.as_str())],
    );
    let log_in = || {
        let mut peer = Peer::connect(&broker);
        assert_eq!(peer.log_in(Mechanism::Plain, "alice", "a-secret"), Ok(i64::from(SESSION_MS)));
        peer
    };
    let topic = CreatableTopic {
        name: "quiet".into(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    let create = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    assert_eq!(log_in().call(&create, 7).unwrap().topics[0].error_code, 0);
    let partition = FetchPartition { partition: 0, partition_max_bytes: 1000, ..Default::default() };
    let request = FetchRequest {
        max_wait_ms: 2 * SESSION_MS,
        min_bytes: 1,
        max_bytes: 1000,
        session_epoch: -1,
        topics: vec![FetchTopic { topic: "quiet".into(), partitions: vec![partition], ..Default::default() }],
        ..Default::default()
    };
    let mut waiting = log_in();
    waiting.send(&request, 11).expect("it is sent");
    let deadline = Instant::now() + TIMEOUT;
    while broker.broker().net.counters.latencies.received_of(ApiKey::Fetch) == 0 {
        assert!(Instant::now() < deadline, "the fetch was not taken up in its session");
        std::thread::sleep(Duration::from_millis(1));
    }
    clock.advance_until(Duration::from_millis(SESSION_MS as u64 + 1), || waiting.has_answer());
    let response = waiting.answer::<FetchRequest<'_>>(11).expect("it is answered");
    assert_eq!(response.responses[0].partitions[0].error_code, 0);
    assert!(clock.passed() > Duration::from_millis(SESSION_MS as u64), "its session has ended meanwhile");
    assert!(waiting.call(&request, 11).is_err(), "nothing is asked after it");
    assert_eq!(count(&broker, "kafka_server_socket_server_metrics_expired_connections_killed_count"), 1);
}

#[test]
fn a_listener_without_sasl_has_no_use_for_it() {
    let broker = EmbeddedBroker::start(&[]);
    let mut peer = Peer::connect(&broker);
    assert_eq!(peer.handshake("PLAIN", 1), (ErrorCode::ILLEGAL_SASL_STATE.code(), Vec::new()));
    assert_eq!(peer.token(b"\0alice\0a-secret").error_code, ErrorCode::ILLEGAL_SASL_STATE.code());
    assert!(peer.is_served());
}

#[test]
fn a_jaas_text_that_cannot_be_obeyed_stops_the_start() {
    let wrong = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
    let started = std::panic::catch_unwind(|| {
        broker(&[("listener.name.sasl_plaintext.plain.sasl.jaas.config", wrong)])
    });
    let panic = started.err().expect("it does not start");
    let text = panic.downcast_ref::<String>().expect("it says why");
    let expected =
        "listener.name.sasl_plaintext.plain.sasl.jaas.config: the login module is not that of PLAIN";
    assert_eq!(text, expected);
}
