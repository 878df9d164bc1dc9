//! Links without replicas: what is said to one, and what it answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mainstem_testkit::{Logged, Random};
use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};

use super::calls::{CALL_TIME_MAX_MS, IN_FLIGHT_MAX, REFUSED};
use super::hello::{Hello, Welcome, read_frame};
use super::testing::{accept_for, gate, greet, greet_over, is_ended};
use super::*;

const SOON: Duration = Duration::from_secs(60);

/// Waits for a condition, and fails where it does not come about.
#[track_caller]
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn identity(node: i32, generation: u64) -> LinkIdentity {
    LinkIdentity { node, generation, cluster_id: "c".into() }
}

fn options(silence: SilenceLimits) -> LinksOptions {
    LinksOptions {
        clock: Clock::start(),
        replica_lag_max_ms: 30_000,
        catch_up_rate: CATCH_UP_RATE,
        absence: AbsenceLimits::default(),
        silence,
        awaited: Arc::default(),
    }
}

/// Links of a node that others dial, without groups.
struct Alone {
    links: Arc<Links>,
    port: u16,
    stop: Arc<AtomicBool>,
}

impl Alone {
    fn start(peers: Vec<Peer>) -> Alone {
        Alone::start_with(peers, SilenceLimits::default())
    }

    fn start_with(peers: Vec<Peer>, silence: SilenceLimits) -> Alone {
        Alone::start_as(1, peers, silence)
    }

    fn start_as(node: i32, peers: Vec<Peer>, silence: SilenceLimits) -> Alone {
        let links = Links::start(identity(node, 5), peers, options(silence), gate());
        let links = links.expect("threads can be made");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let stop = Arc::new(AtomicBool::new(false));
        accept_for(listener, stop.clone(), Arc::new(Mutex::new(Some(links.clone()))));
        Alone { links, port, stop }
    }

    fn knows_node_2() -> Alone {
        Alone::start(vec![Peer { node: 2, host: "127.0.0.1".into(), port: 1 }])
    }

    fn greet(&self, hello: &Hello) -> (TcpStream, Welcome) {
        greet(self.port, hello)
    }
}

/// A connection to a port of this host from one of its loopback addresses.
fn connected_from(address: [u8; 4], port: u16) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((address, 0)).into()).expect("a loopback address");
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).expect("it listens");
    socket.into()
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.links.stop();
    }
}

fn hello() -> Hello {
    Hello { cluster_id: "c".into(), node: 2, generation: 1, to: 1 }
}

#[test]
fn who_is_no_peer_is_refused_by_name() {
    let node = Alone::knows_node_2();
    let check = |hello: Hello, why: &str| {
        let (stream, welcome) = node.greet(&hello);
        assert!(welcome.refusal.contains(why), "{:?}", welcome.refusal);
        is_ended(stream);
    };
    check(Hello { cluster_id: "other".into(), ..hello() }, "of cluster other");
    check(Hello { node: 3, ..hello() }, "neither controller.quorum.voters nor the metadata name it");
    check(Hello { node: 1, ..hello() }, "has this node's id");
    check(Hello { to: 4, ..hello() }, "wants to reach node 4");
    assert_eq!(node.links.counts().1, 4);
    let (kept, welcome) = node.greet(&Hello { generation: 8, ..hello() });
    assert_eq!(welcome.refusal, "");
    check(hello(), "has started since");
    // A later process takes the place, and so does the same one that dials again.
    for generation in [8, 9] {
        assert_eq!(node.greet(&Hello { generation, ..hello() }).1.refusal, "");
    }
    is_ended(kept);
}

/// Its connection stays, as that of a node that hangs does.
#[test]
fn a_link_on_which_nothing_comes_ends_and_another_one_is_taken() {
    let silence = SilenceLimits { silence_max: Duration::from_millis(50), ..SilenceLimits::default() };
    let node = Alone::start_with(vec![Peer { node: 2, host: "127.0.0.1".into(), port: 1 }], silence);
    for _ in 0..2 {
        let (silent, welcome) = node.greet(&hello());
        assert_eq!(welcome.refusal, "");
        is_ended(silent);
    }
    assert_eq!(node.links.counts().1, 0, "silence is no fault in what was sent");
}

#[test]
fn a_refusal_says_the_id_of_the_cluster_to_the_hosts_of_its_nodes_alone() {
    let other = Hello { cluster_id: "other".into(), ..hello() };
    let near = Alone::knows_node_2();
    let (_, welcome) = near.greet(&other);
    assert_eq!(welcome.cluster_id, "c");
    assert!(welcome.refusal.contains("this one of cluster c"), "{}", welcome.refusal);
    let far = Alone::start(vec![Peer { node: 2, host: "127.0.0.9".into(), port: 1 }]);
    for hello in [&other, &Hello { node: 3, ..hello() }, &Hello { to: 4, ..other.clone() }] {
        let (_, welcome) = far.greet(hello);
        assert_eq!(welcome.cluster_id, "");
        assert!(!welcome.refusal.is_empty() && !welcome.refusal.contains("cluster c"), "{}", welcome.refusal);
    }
    // A peer that knows the id is accepted, and keeps its link against hellos from any other address.
    let (_kept, welcome) = far.greet(&hello());
    assert_eq!(welcome.refusal, "");
    let elsewhere = connected_from([127, 0, 0, 8], far.port);
    let (_, welcome) = greet_over(elsewhere, &Hello { generation: 9, ..hello() });
    assert!(welcome.refusal.contains("has a link that lives"), "{}", welcome.refusal);
    let (_later, welcome) = far.greet(&Hello { generation: 9, ..hello() });
    assert_eq!(welcome.refusal, "");
}

#[test]
fn garbage_ends_a_link_and_nothing_else() {
    let node = Alone::knows_node_2();
    let mut random = Random::new(7);
    for round in 0..40 {
        let (mut stream, welcome) = node.greet(&hello());
        assert_eq!(welcome.refusal, "");
        let mut garbage: Vec<u8> = (0..1 + random.below(2_000)).map(|_| random.below(256) as u8).collect();
        match round % 4 {
            // A length that is never kept.
            0 => garbage.splice(..0, u32::MAX.to_be_bytes()).for_each(drop),
            // A frame of a kind that is known, with nonsense in it.
            1 => {
                let head =
                    [&(garbage.len() as u32 + 1).to_be_bytes()[..], &[1 + random.below(6) as u8]].concat();
                garbage.splice(..0, head).for_each(drop);
            }
            // A group that is not there: it may be soon, so nothing happens; then an end within a frame.
            2 => {
                garbage.clear();
                let group = GroupId { topic_id: [9; 16], partition: 0 };
                let alias = mainstem_replication::link::Alias {
                    number: 0,
                    group,
                    from: ReplicaId::new(2, 1),
                    to: ReplicaId::new(1, 1),
                };
                mainstem_replication::link::group(&alias, &mut garbage);
                garbage.extend_from_slice(&[0, 0, 0, 90, 3]);
            }
            _ => {}
        }
        // It may have been ended while this is written.
        let _ = stream.write_all(&garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let ended = stream.take(1 << 20).read_to_end(&mut rest);
        assert!(ended.is_ok_and(|_| rest.len() < 1 << 10) || rest.is_empty(), "it answered garbage");
    }
    let (_stream, welcome) = node.greet(&hello());
    assert_eq!(welcome.refusal, "", "a link of the same node is taken after it");
}

/// An unauthenticated peer may send a valid hello any number of times.
#[test]
fn a_peer_whose_links_end_for_one_reason_is_one_line() {
    let node = Alone::knows_node_2();
    let logged = Logged::default();
    tracing::subscriber::with_default(logged.clone(), || {
        for _ in 0..5 {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = listener.local_addr().expect("an address").port();
            let mut peer = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
            let (stream, _) = listener.accept().expect("it has connected");
            // A frame of an unknown kind follows.
            let said = [&hello().encode()[..], &[0, 0, 0, 1, 99]].concat();
            peer.write_all(&said).expect("it fits");
            let mut arrived = gate().accept(stream).expect("nothing is asked for");
            let frame = read_frame(&mut arrived.channel.reader).expect("a hello");
            accept::run(&node.links, arrived, &frame);
        }
    });
    let lines = logged.lines_with("the link from node 2 ended: a frame that makes no sense");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN"), "{lines:?}");
    assert_eq!(node.links.counts().1, 5, "each is counted");
}

#[test]
fn one_node_does_not_speak_for_another() {
    let node = Alone::knows_node_2();
    let (mut stream, _) = node.greet(&hello());
    let mut frame = Vec::new();
    let group = GroupId { topic_id: [9; 16], partition: 0 };
    let (from, to) = (ReplicaId::new(3, 1), ReplicaId::new(1, 1));
    mainstem_replication::link::group(
        &mainstem_replication::link::Alias { number: 0, group, from, to },
        &mut frame,
    );
    stream.write_all(&frame).expect("it reads");
    is_ended(stream);
}

/// Answers with what it was asked, backwards; refuses kind 9.
struct Backwards;

impl CallHandler for Backwards {
    fn call(&self, from: i32, kind: CallKind, mut body: Vec<u8>, reply: CallReply) {
        if kind != CallKind(9) {
            body.reverse();
            body.push(from as u8);
            reply.answer(&body);
        }
    }
}

/// Node 2, which has a link to node 1.
fn asking(port: u16) -> Arc<Links> {
    let peers = vec![Peer { node: 1, host: "127.0.0.1".into(), port }];
    let links = Links::start(identity(2, 1), peers, options(SilenceLimits::default()), gate());
    let links = links.expect("threads can be made");
    wait_for("a link", || (links.connected() == [1]).then_some(()));
    links
}

#[test]
fn a_node_asks_another_and_gets_its_answer() {
    let served = Alone::knows_node_2();
    served.links.serve_calls(Arc::new(Backwards));
    let links = asking(served.port);
    let ask = |kind, body: &[u8]| links.call_blocking(1, CallKind(kind), body.to_vec(), SOON);
    let large = vec![7; 3 << 20];
    assert_eq!(ask(1, &large), Ok([&large[..], b"\x02"].concat()));
    assert_eq!(ask(9, b"abc"), Err(CallError::Refused));
    assert_eq!(links.call_blocking(3, CallKind(1), Vec::new(), SOON), Err(CallError::NotConnected));
    drop(served);
    wait_for("the end", || (ask(1, b"") == Err(CallError::NotConnected)).then_some(()));
    links.stop();
}

/// Keeps all that it is asked.
#[derive(Default)]
struct Keeps(Mutex<Vec<CallReply>>);

impl CallHandler for Keeps {
    fn call(&self, _: i32, _: CallKind, _: Vec<u8>, reply: CallReply) {
        self.0.lock().push(reply);
    }
}

/// The link stays connected, and other requests are served.
#[test]
fn an_answer_that_never_comes_is_not_waited_for() {
    let served = Alone::knows_node_2();
    let kept = Arc::<Keeps>::default();
    served.links.serve_calls(kept.clone());
    let links = asking(served.port);
    let (answer, answered) = std::sync::mpsc::channel();
    for number in 0..2 {
        let answer = answer.clone();
        let on_answer = move |result| answer.send((number, result)).expect("it is waited for");
        links.call_then(1, CallKind(1), Vec::new(), Box::new(on_answer));
    }
    let asked_ms = links.now_ms();
    wait_for("both requests", || (kept.0.lock().len() == 2).then_some(()));
    links.end_overdue_calls(asked_ms);
    assert!(answered.try_recv().is_err(), "there is time left");
    links.end_overdue_calls(asked_ms + CALL_TIME_MAX_MS);
    assert_eq!(
        answered.try_iter().collect::<Vec<_>>(),
        [0, 1].map(|number| (number, Err(CallError::TimedOut)))
    );
    // No caller waits for the late answers any more, and the link stays.
    kept.0.lock().drain(..).for_each(|reply| reply.answer(b"late"));
    let on_answer = move |result| answer.send((2, result)).expect("it is waited for");
    links.call_then(1, CallKind(1), Vec::new(), Box::new(on_answer));
    wait_for("the next request", || kept.0.lock().pop()).answer(b"in time");
    assert_eq!(answered.recv_timeout(SOON), Ok((2, Ok(b"in time".to_vec()))));
    links.stop();
}

/// Each request that is served takes a thread. Those of an earlier link of the peer are served on.
#[test]
fn a_peer_has_no_more_requests_served_than_a_node_has_in_flight() {
    const ON_FIRST: usize = 1_000;
    const ANSWER_BYTES: usize = 14;
    let node = Alone::knows_node_2();
    let keeps = Arc::new(Keeps::default());
    node.links.serve_calls(keeps.clone());
    let ask = |stream: &mut TcpStream, count: usize| {
        let mut frames = Vec::new();
        (0..count as u64).for_each(|id| mainstem_replication::link::call(id, 1, &[], &mut frames));
        stream.write_all(&frames).expect("it reads");
    };
    let kept = || keeps.0.lock().len();
    let (mut first, _) = node.greet(&hello());
    ask(&mut first, ON_FIRST);
    wait_for("requests", || (kept() == ON_FIRST).then_some(()));
    let (mut second, _) = node.greet(&hello());
    ask(&mut second, IN_FLIGHT_MAX);
    // Those beyond the bound are refused at once.
    let mut answers = vec![0; ON_FIRST * ANSWER_BYTES];
    second.read_exact(&mut answers).expect("answers");
    let statuses: Vec<u8> = answers.chunks(ANSWER_BYTES).map(|answer| answer[ANSWER_BYTES - 1]).collect();
    assert!(statuses.iter().all(|status| *status == REFUSED), "{statuses:?}");
    wait_for("the rest", || (kept() == IN_FLIGHT_MAX).then_some(()));
    let answered = std::mem::take(&mut *keeps.0.lock());
    answered.into_iter().for_each(|reply| reply.answer(b""));
    ask(&mut second, IN_FLIGHT_MAX);
    wait_for("others", || (kept() == IN_FLIGHT_MAX).then_some(()));
    // Their answers go nowhere when the links are gone.
    keeps.0.lock().clear();
}

mod peers;
