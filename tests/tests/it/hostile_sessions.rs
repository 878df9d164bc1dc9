//! Listeners with TLS: clients at the port of another protocol, and key stores that become unusable. The operator
//! reads about both in the log.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mainstem_client::{Admin, ClientConfig, Error, ErrorClass, Tls};
use mainstem_tests::broker::{Broker, Setup, binary};
use mainstem_tests::wait::within;

/// The longest wait for a reload: stores are checked every ten seconds.
const RELOADED_MAX: Duration = Duration::from_secs(90);

/// The address of a broker's listener.
fn address(broker: &Broker, listener: &str) -> String {
    let listeners = broker.ready()["listeners"].as_array().expect("a list");
    let found = listeners.iter().find(|one| one["name"] == listener).expect("it was configured");
    found["address"].as_str().expect("a text").to_owned()
}

/// An authority, its certificate `ca.pem`, and that of a broker with its key, `server.pem`.
fn authority() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let made = dir.path().join("made");
    let output =
        Command::new(binary()).args(["security", "init"]).arg(&made).output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    dir
}

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().expect("a name in UTF-8").to_owned()
}

fn connect(address: &str, tls: Tls) -> Result<(), Error> {
    let config = ClientConfig::new(address).expect("HOST:PORT").tls(tls);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { Admin::connect(config).await.map(|_| ()) })
}

/// Waits for a line with all of these; returns it.
fn await_line(broker: &Broker, parts: &[&str]) -> String {
    within(RELOADED_MAX, &format!("a line of the log with {parts:?}"), || {
        let log = broker.log();
        let line = log.lines().find(|line| parts.iter().all(|part| line.contains(part)));
        line.map(str::to_owned)
    })
}

/// Replaces a file atomically, as a person does who replaces a store: every read sees a whole file.
fn replace(path: &str, bytes: &[u8]) {
    let new = format!("{path}.new");
    std::fs::write(&new, bytes).expect("it can be written");
    std::fs::rename(new, path).expect("it can be renamed");
}

fn await_lines(broker: &Broker, what: &str, count: usize) {
    within(RELOADED_MAX, &format!("the log says {count} times {what:?}"), || {
        (broker.log().matches(what).count() >= count).then_some(())
    });
}

#[test]
fn a_client_of_another_protocol_gets_an_answer_that_says_so() {
    let made = authority();
    let dir = made.path().join("made");
    let mut broker = Setup::new("client-of-another-protocol")
        .set("listeners", "PLAINTEXT://127.0.0.1:0,LOGIN://127.0.0.1:0,SSL://127.0.0.1:0")
        .set("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,SSL:SSL")
        .set("sasl.enabled.mechanisms", "SCRAM-SHA-512")
        .set("ssl.keystore.type", "PEM")
        .set("ssl.keystore.location", path(&dir, "server.pem"))
        .start();
    let trust = std::fs::read_to_string(dir.join("ca.pem")).expect("it was made");
    for (number, listener) in ["PLAINTEXT", "LOGIN"].into_iter().enumerate() {
        // The beginning of a ClientHello, in a record of 512 bytes.
        let mut stream = TcpStream::connect(address(&broker, listener)).expect("it listens");
        stream.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]).expect("it takes bytes");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it closes in order");
        assert_eq!(answer, [21, 3, 3, 0, 2, 2, 10], "a fatal alert, unexpected_message");
        let error = connect(&address(&broker, listener), Tls::trusting(&trust).expect("a certificate"));
        let error = error.expect_err("it is refused");
        assert_eq!(error.class(), ErrorClass::Fatal, "{error}");
        assert!(error.to_string().contains("the broker may not speak TLS at this port"), "{error}");
        await_lines(&broker, "the client speaks TLS, which this listener does not", 2 * (number + 1));
    }
    // ApiVersions (18), version 0, to a listener with TLS.
    let mut stream = TcpStream::connect(address(&broker, "SSL")).expect("it listens");
    stream.write_all(&[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 255, 255]).expect("it takes bytes");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it closes in order");
    assert!(answer.is_empty() || answer[0] == 21, "nothing, or an alert: {answer:?}");
    await_lines(
        &broker,
        "what the peer sent is not TLS: it may be configured with PLAINTEXT or SASL_PLAINTEXT",
        1,
    );
    connect(&address(&broker, "SSL"), Tls::trusting(&trust).expect("a certificate"))
        .expect("who fits is served");
    broker.stop();
}

/// A fixture by keytool: `CN=broker,OU=a\,b,O=c`, for localhost.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/security/src/store/fixtures").join(name)
}

#[test]
fn stores_that_cannot_be_used_are_reported_and_those_before_stay() {
    let (made, foreign) = (authority(), authority());
    let (own, other) = (made.path().join("made"), foreign.path().join("made"));
    let (store, pem) = (path(made.path(), "store"), path(&own, "server.pem"));
    std::fs::copy(fixture("java.jks"), &store).expect("it can be copied");
    let mut broker = Setup::new("stores_that_cannot_be_used_are_reported_and_those_before_stay")
        .set("listeners", "STORE://127.0.0.1:0,PEM://127.0.0.1:0")
        .set("listener.security.protocol.map", "STORE:SSL,PEM:SSL")
        .set("inter.broker.listener.name", "PEM")
        .set("listener.name.store.ssl.keystore.location", &store)
        .set("listener.name.store.ssl.keystore.password", "secret1")
        .set("listener.name.pem.ssl.keystore.type", "PEM")
        .set("listener.name.pem.ssl.keystore.location", &pem)
        .start();
    let of_store = || {
        let get = |key: &str| match key {
            "ssl.truststore.location" => Some(path(&fixture("."), "trust.jks")),
            "ssl.truststore.password" => Some("secret1".to_owned()),
            "ssl.endpoint.identification.algorithm" => Some(String::new()),
            _ => None,
        };
        connect(&address(&broker, "STORE"), Tls::from_properties(&get).expect("a trust store"))
    };
    let trust = std::fs::read_to_string(own.join("ca.pem")).expect("it was made");
    let of_pem = || connect(&address(&broker, "PEM"), Tls::trusting(&trust).expect("a certificate"));
    of_store().expect("it is served");
    of_pem().expect("it is served");

    // Two stores that cannot be used: the key has another password than configured, and the key belongs to another certificate.
    replace(&store, &std::fs::read(fixture("jks-keypass.jks")).expect("it can be read"));
    let text = |dir: &Path| std::fs::read_to_string(dir.join("server.pem")).expect("it was made");
    let part = |text: &str, what: &str| {
        let (begin, end) = (format!("-----BEGIN {what}"), format!("-----END {what}"));
        let from = text.find(&begin).expect("it has one");
        let to = from + text[from..].find(&end).expect("it ends");
        format!("{}{end}-----\n", &text[from..to])
    };
    let mixed = part(&text(&other), "PRIVATE KEY") + &part(&text(&own), "CERTIFICATE");
    replace(&pem, mixed.as_bytes());
    for (listener, why) in [("STORE", "the key's password is wrong"), ("PEM", "key")] {
        let line = await_line(&broker, &[listener, "the key stores have changed and cannot be used: "]);
        assert!(line.contains(why) && line.contains("connections still use those before them"), "{line}");
        assert!(!line.contains("secret1"), "{line}");
    }
    of_store().expect("the store before it stays");
    of_pem().expect("the store before it stays");
    broker.stop();
}
