//! Connections that are closed when the maximum of connections is reached.

use super::*;

const INNER: [(&str, &str); 3] = [
    ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"),
    ("inter.broker.listener.name", "INNER"),
    ("max.connections", "2"),
];

/// A broker for two connections, with an inter-broker listener beside another one.
fn full(outer: &str) -> EmbeddedBroker {
    let listeners = format!("{outer}://127.0.0.1:0,INNER://127.0.0.1:0");
    broker(&[&INNER[..], &[("listeners", listeners.as_str())]].concat())
}

fn await_open(broker: &EmbeddedBroker, count: usize) {
    let deadline = Instant::now() + TIMEOUT;
    while broker.broker().net.connections.open() != count {
        assert!(Instant::now() < deadline, "{} connections are open", broker.broker().net.connections.open());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Connects, and waits until the connection counts.
fn connect(broker: &EmbeddedBroker, listener: &str, count: usize) -> Peer {
    let peer = Peer::connect_to(broker.address_of(listener));
    await_open(broker, count);
    peer
}

#[test]
fn unauthenticated_peers_do_not_keep_the_inter_broker_listener_shut() {
    let broker = full("SASL_PLAINTEXT");
    let mut peers = [connect(&broker, "SASL_PLAINTEXT", 1), connect(&broker, "SASL_PLAINTEXT", 2)];
    assert!(Peer::connect_to(broker.address_of("SASL_PLAINTEXT")).is_closed(), "there are two");
    // The second one makes progress, so that the first one is closed.
    assert_eq!(peers[1].handshake("PLAIN", 1).0, 0);
    let mut inner = Peer::connect_to(broker.address_of("INNER"));
    assert!(inner.is_served());
    assert!(peers[0].is_closed());
    await_open(&broker, 2);
    assert_eq!(peers[1].token(b"\0alice\0a-secret").error_code, 0, "one was enough");
    assert!(Peer::connect_to(broker.address_of("INNER")).is_served());
    assert!(peers[1].is_closed(), "an authenticated connection is closed too");
    await_open(&broker, 1);
    assert!(inner.is_served());
}

#[test]
fn the_newest_connection_of_another_listener_goes() {
    let broker = full("PLAINTEXT");
    let mut first = connect(&broker, "PLAINTEXT", 1);
    let mut second = connect(&broker, "PLAINTEXT", 2);
    assert!(first.is_served() && second.is_served());
    let mut inner = Peer::connect_to(broker.address_of("INNER"));
    assert!(inner.is_served());
    assert!(second.is_closed() && first.is_served());
    let mut others: Vec<Peer> = (0..3).map(|_| Peer::connect_to(broker.address_of("INNER"))).collect();
    assert!(others.iter_mut().all(Peer::is_served), "max.connections keeps none of them out");
    assert!(first.is_closed() && inner.is_served());
    assert!(Peer::connect_to(broker.address_of("PLAINTEXT")).is_closed());
}

#[test]
fn a_listener_alone_is_bounded() {
    let broker = broker(&[("max.connections", "1")]);
    let _first = connect(&broker, "SASL_PLAINTEXT", 1);
    assert!(Peer::connect_to(broker.address_of("SASL_PLAINTEXT")).is_closed());
}
