//! Users and mechanisms of a listener that change while it serves. New connections and renewed sessions use the current ones.

use super::*;

const USERS: &str = "listener.name.sasl_plaintext.plain.sasl.jaas.config";
const MECHANISMS: &str = "listener.name.sasl_plaintext.sasl.enabled.mechanisms";
const SESSION: &str = "listener.name.sasl_plaintext.connections.max.reauth.ms";

/// The length of a session, which clients may renew.
const HOUR_MS: i64 = 3_600_000;
const SCRAM: Mechanism = Mechanism::Scram(ScramMechanism::Sha256);

fn users(names: &[&str]) -> String {
    let users: String = names.iter().map(|name| format!(" user_{name}=\"a-secret\"")).collect();
    format!("org.apache.kafka.common.security.plain.PlainLoginModule required{users};")
}

fn log_in(broker: &EmbeddedBroker, mechanism: Mechanism, user: &str, password: &str) -> Result<Peer, String> {
    let mut peer = Peer::connect_to(broker.address_of("SASL_PLAINTEXT"));
    peer.log_in(mechanism, user, password).map(|_| peer)
}

/// Returns true for each of these users of PLAIN that can log in.
fn come_in<const N: usize>(broker: &EmbeddedBroker, names: [&str; N]) -> [bool; N] {
    names.map(|name| log_in(broker, Mechanism::Plain, name, "a-secret").is_ok())
}

fn broker_with_sessions() -> EmbeddedBroker {
    broker(&[("connections.max.reauth.ms", &HOUR_MS.to_string())])
}

#[test]
fn who_is_no_user_any_more_neither_comes_in_nor_stays_beyond_a_session() {
    let mut broker = broker_with_sessions();
    let mut admin = log_in(&broker, SCRAM, "bob", "b-secret").unwrap();
    let mut alice = log_in(&broker, Mechanism::Plain, "alice", "a-secret").unwrap();
    assert_eq!(alter(&mut admin, USERS, &users(&["carol"])), (0, String::new()));
    assert_eq!(come_in(&broker, ["alice", "carol"]), [false, true]);
    assert!(alice.is_served(), "a session stays open");
    assert!(alice.log_in(Mechanism::Plain, "alice", "a-secret").is_err(), "it is not renewed");
    assert!(alice.is_closed());
    broker.start_again();
    assert_eq!(come_in(&broker, ["alice", "carol"]), [false, true], "after another start");
}

#[test]
fn who_stays_a_user_renews_a_session_of_before() {
    let broker = broker_with_sessions();
    let mut admin = log_in(&broker, SCRAM, "bob", "b-secret").unwrap();
    let mut alice = log_in(&broker, Mechanism::Plain, "alice", "a-secret").unwrap();
    assert_eq!(alter(&mut admin, USERS, &users(&["alice", "carol"])), (0, String::new()));
    assert_eq!(alter(&mut admin, SESSION, "60000"), (0, String::new()));
    assert_eq!(alice.log_in(Mechanism::Plain, "alice", "a-secret"), Ok(60_000), "by what is set now");
    assert!(alice.is_served());
}

#[test]
fn a_mechanism_that_is_not_enabled_any_more_is_refused() {
    let mut broker = broker_with_sessions();
    let mut admin = log_in(&broker, SCRAM, "bob", "b-secret").unwrap();
    let mut alice = log_in(&broker, Mechanism::Plain, "alice", "a-secret").unwrap();
    assert_eq!(alter(&mut admin, MECHANISMS, "SCRAM-SHA-256"), (0, String::new()));
    let refused = (ErrorCode::UNSUPPORTED_SASL_MECHANISM.code(), vec!["SCRAM-SHA-256".to_owned()]);
    assert!(alice.is_served(), "a session stays open");
    assert_eq!(alice.handshake("PLAIN", 1), refused, "it is not renewed");
    for start in ["this start", "another start"] {
        let mut peer = Peer::connect_to(broker.address_of("SASL_PLAINTEXT"));
        assert_eq!(peer.handshake("PLAIN", 1), refused, "{start}");
        assert!(log_in(&broker, SCRAM, "bob", "b-secret").is_ok(), "{start}");
        broker.start_again();
    }
}

#[test]
fn what_cannot_be_obeyed_is_refused_and_changes_nothing() {
    const PREFIXLESS: &str = "sasl.jaas.config";
    let mut broker = broker_with_sessions();
    let mut admin = log_in(&broker, SCRAM, "bob", "b-secret").unwrap();
    let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
    let own = users(&["carol"]);
    for (key, value, why) in [
        (USERS, scram, "the login module is not that of PLAIN"),
        (USERS, "org.apache.kafka.common.security.plain.PlainLoginModule", "plain.sasl.jaas.config: "),
        (MECHANISMS, "GSSAPI", "asks for GSSAPI"),
        (MECHANISMS, "", "names no mechanism"),
        (PREFIXLESS, own.as_str(), "sasl.jaas.config asks for"),
        ("listener.name.sasl_plaintext.sasl.jaas.config", own.as_str(), "sasl.jaas.config asks for"),
    ] {
        let (code, message) = alter(&mut admin, key, value);
        assert_eq!(code, ErrorCode::INVALID_REQUEST.code(), "{key}={value}: {message}");
        assert!(message.contains(why), "{key}={value}: {message}");
        assert!(!message.contains("a-secret"), "{message}");
    }
    assert_eq!(come_in(&broker, ["alice", "carol"]), [true, false]);
    broker.start_again();
    assert_eq!(come_in(&broker, ["alice", "carol"]), [true, false]);
}
