//! Nodes that join a running cluster, leave it, or move to another address.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::mpsc;

use mainstem_config::Voter;
use mainstem_replication::eraftpb::Message;

use super::*;
use crate::hand::{ReadingEnd, WritingEnd};
use crate::testing::handle;

/// Rounds of tests that look for a race.
const ROUNDS: usize = 20;
/// A port at which nothing listens.
const NOBODY: u16 = 1;

fn peer(node: i32, port: u16) -> Peer {
    Peer { node, host: "127.0.0.1".into(), port }
}

fn set(links: &Arc<Links>, peers: &[Peer]) {
    links.set_peers(peers.to_vec()).expect("threads can be made");
}

fn start(node: i32, peers: &[Peer]) -> Alone {
    Alone::start_as(node, peers.to_vec(), SilenceLimits::default())
}

fn ask(links: &Links, node: i32) -> Result<Vec<u8>, CallError> {
    links.call_blocking(node, CallKind(1), b"ab".to_vec(), SOON)
}

/// Threads of links that have not ended, beside those that serve requests.
fn threads(links: &Links) -> usize {
    links.threads.lock().iter().filter(|thread| !thread.is_finished()).count() - CALL_THREADS
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || holds().then_some(()));
}

/// A node's listener that the test answers at.
struct Dialled {
    node: i32,
    listener: TcpListener,
}

impl Dialled {
    fn new(node: i32) -> Dialled {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket of ours");
        Dialled { node, listener }
    }

    fn peer(&self) -> Peer {
        peer(self.node, self.listener.local_addr().expect("an address").port())
    }

    /// Takes a connection, if one waits, and reads its hello. One that waited for too long may have ended.
    fn greeted(&self) -> Option<TcpStream> {
        let (mut stream, _) = self.listener.accept().ok()?;
        stream.set_nonblocking(false).expect("a socket of ours");
        stream.set_read_timeout(Some(SOON)).expect("a time-out");
        let hello = read_frame(&mut stream).ok()?;
        assert_eq!(Hello::decode(&hello[..]).expect("a hello").to, self.node);
        Some(stream)
    }

    /// Takes hellos until there is a link, and returns its connection.
    #[track_caller]
    fn link(&self, links: &Links) -> TcpStream {
        let mut taken = None;
        wait_until("a link", || {
            if let Some(mut stream) = self.greeted() {
                let _ = stream.write_all(&self.welcome());
                taken = Some(stream);
            }
            links.connected().contains(&self.node)
        });
        taken.expect("the link is one of those that were taken")
    }

    fn welcome(&self) -> Vec<u8> {
        Welcome { cluster_id: "c".into(), node: self.node, refusal: String::new() }.encode()
    }

    /// Checks that no connection waits to be accepted.
    #[track_caller]
    fn has_no_other(&self) {
        let error = self.listener.accept().expect_err("it is not dialled");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
}

/// Reads what a link still has, heartbeats and requests, until its end.
fn read_to_end(mut stream: TcpStream) {
    if let Err(error) = stream.read_to_end(&mut Vec::new()) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the link was not ended");
    }
}

#[test]
fn a_node_that_is_added_later_is_linked_both_ways() {
    let nodes = [1, 2].map(|node| start(node, &[]));
    let [one, two] = &nodes;
    nodes.iter().for_each(|node| node.links.serve_calls(Arc::new(Backwards)));
    assert_eq!(ask(&one.links, 2), Err(CallError::NotConnected));
    let (_, welcome) = one.greet(&hello());
    assert!(welcome.refusal.contains("node 2 is not known to node 1 (yet)"), "{}", welcome.refusal);
    let cluster = [peer(1, one.port), peer(2, two.port)];
    nodes.iter().for_each(|node| set(&node.links, &cluster));
    wait_until("both links", || one.links.connected() == [2] && two.links.connected() == [1]);
    assert_eq!(ask(&one.links, 2), Ok(b"ba\x01".to_vec()));
    assert_eq!(ask(&two.links, 1), Ok(b"ba\x02".to_vec()));
}

/// A message of a replica to one on node 2, which has to know when it is lost.
fn append_to_node_2() -> Outgoing {
    let message = Message { msg_type: MessageType::MsgAppend, ..Message::default() };
    let to = ReplicaId::new(2, 1);
    Outgoing { to, offset: 0, offsets: 0..0, bytes: 0, message, begins_coalescing: false }
}

#[test]
fn a_node_that_is_removed_has_no_link_and_gets_none() {
    let dialled = Dialled::new(2);
    let node = start(1, &[dialled.peer()]);
    let links = &node.links;
    let from_here = dialled.link(links);
    let (to_here, welcome) = node.greet(&hello());
    assert_eq!(welcome.refusal, "");
    let heard_ms = links.last_heard_ms(2);
    let (answer, answered) = mpsc::channel();
    let on_answer = move |result| answer.send(result).expect("it is waited for");
    links.call_then(2, CallKind(1), Vec::new(), Box::new(on_answer));

    set(links, &[]);
    assert_eq!(ask(links, 2), Err(CallError::NotConnected));
    assert_eq!(links.connected(), [0; 0]);
    let (wakes, lost) = links.send(&handle(Arc::default()), vec![append_to_node_2()], |_| None);
    assert_eq!((wakes, lost), (Wakes::default(), vec![ReplicaId::new(2, 1)]));
    assert_eq!(answered.recv_timeout(SOON), Ok(Err(CallError::Disconnected)));
    read_to_end(from_here);
    is_ended(to_here);
    let (_, welcome) = node.greet(&hello());
    assert!(welcome.refusal.contains("not known"), "{}", welcome.refusal);
    wait_until("the end of its threads", || threads(links) == 0);
    dialled.has_no_other();

    set(links, &[dialled.peer()]);
    let _from_here = dialled.link(links);
    assert_eq!((links.nodes(1), links.last_heard_ms(2)), (vec![2], heard_ms), "its rank is the same");
    assert_eq!(node.greet(&hello()).1.refusal, "");
}

#[test]
fn a_node_that_is_removed_while_it_is_dialled_gets_no_link() {
    let dialled = Dialled::new(2);
    let node = start(1, &[dialled.peer()]);
    let mut stream = wait_for("a hello", || dialled.greeted());
    set(&node.links, &[]);
    let _ = stream.write_all(&dialled.welcome());
    read_to_end(stream);
    wait_until("the end of its thread", || threads(&node.links) == 0);
    assert_eq!(node.links.connected(), [0; 0]);
}

#[test]
fn a_node_that_moves_is_dialled_at_its_new_address_alone_and_others_keep_their_links() {
    let (before, after, other) = (Dialled::new(2), Dialled::new(2), Dialled::new(3));
    let node = start(1, &[before.peer(), other.peer()]);
    let links = &node.links;
    let (old, _kept) = (before.link(links), other.link(links));
    let (to_here, _) = node.greet(&hello());
    let of_other = links.peer(3).expect("it is a peer");

    set(links, &[other.peer(), after.peer()]);
    read_to_end(old);
    is_ended(to_here);
    let _new = after.link(links);
    assert_eq!(links.connected(), [2, 3]);
    assert_eq!(links.nodes(0b11), [2, 3], "in the order of their ranks, and not of the list");
    wait_until("the end of the other threads", || threads(links) == 2);
    [&before, &after, &other].into_iter().for_each(Dialled::has_no_other);
    assert!(Arc::ptr_eq(&of_other, &links.peer(3).expect("it is a peer")));

    let elsewhere = Peer { host: "127.0.0.9".into(), ..after.peer() };
    set(links, &[elsewhere, other.peer()]);
    let of_node = links.peer(2).expect("it is a peer");
    let is_at = |last| of_node.is_at([127, 0, 0, last].into());
    assert_eq!([1, 9].map(is_at), [false, true], "its new host is what a hello has to come from");
}

/// Its peer sees hellos of threads that are about to end, in any order, and then no others.
#[test]
fn a_node_that_is_removed_and_set_again_at_once_has_one_link() {
    let two = start(2, &[peer(1, NOBODY)]);
    two.links.serve_calls(Arc::new(Backwards));
    let one = start(1, &[]);
    for round in 0..ROUNDS {
        set(&one.links, &[peer(2, two.port)]);
        if round % 3 == 0 {
            wait_until("a link", || one.links.connected() == [2]);
        }
        set(&one.links, &[]);
    }
    set(&one.links, &[peer(2, two.port)]);
    // One that dials, and at the peer another one that accepts.
    wait_until("one link", || {
        (threads(&one.links), threads(&two.links)) == (1, 2) && ask(&one.links, 2) == Ok(b"ba\x01".to_vec())
    });
}

#[test]
fn a_node_that_is_removed_is_not_awaited() {
    let node = start(1, &[]);
    let links = &node.links;
    let voter = Voter { id: 2, host: "127.0.0.1".into(), port: NOBODY };
    let describe = || links.awaited().describe(&voter, links.now_ms());
    for _ in 0..ROUNDS {
        set(links, &[peer(2, NOBODY)]);
        wait_until("an attempt", || describe() != voter.to_string());
        let before = links.peer(2).expect("it is a peer");
        set(links, &[]);
        assert_eq!(describe(), voter.to_string());
        links.peers.unless_gone(&before, || panic!("its thread has nothing to say any more"));
    }
    wait_until("the end of the threads", || threads(links) == 0);
    assert_eq!(describe(), voter.to_string());
}

#[test]
fn a_stop_while_peers_are_set_leaves_no_thread() {
    let other = start(3, &[peer(1, NOBODY)]);
    for _ in 0..ROUNDS {
        let links = Links::start(identity(1, 1), Vec::new(), options(SilenceLimits::default()), gate());
        let links = links.expect("threads can be made");
        let (is_over, sets) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let setter = {
            let (links, is_over, sets) = (links.clone(), is_over.clone(), sets.clone());
            let (linked, moved) = ([peer(2, NOBODY), peer(3, other.port)], [peer(3, NOBODY)]);
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    set(&links, &linked);
                    set(&links, &moved);
                    sets.fetch_add(1, Ordering::Release);
                }
            })
        };
        wait_until("a few", || sets.load(Ordering::Acquire) > 2);
        links.stop();
        let at_stop = sets.load(Ordering::Acquire);
        wait_until("others after the stop", || sets.load(Ordering::Acquire) > at_stop + 1);
        is_over.store(true, Ordering::Release);
        setter.join().expect("it sets peers");
        // Each thread would have the links.
        assert_eq!((Arc::strong_count(&links), links.threads.lock().len()), (1, 0));
    }
}

/// Links without threads.
fn by_hand(node: i32, peers: &[Peer]) -> Arc<Links> {
    Links::by_hand(identity(node, 1), peers.to_vec(), options(SilenceLimits::default()))
}

#[test]
fn a_rank_belongs_to_a_node_for_ever_and_those_beyond_the_last_are_left_out() {
    let links = by_hand(1, &[]);
    let peers: BTreeMap<i32, Peer> = (1..=67).map(|node| (node, peer(node, NOBODY))).collect();
    let of = |nodes: &[i32]| -> Vec<Peer> { nodes.iter().map(|node| peers[node].clone()).collect() };
    let logged = Logged::default();
    tracing::subscriber::with_default(logged.clone(), || {
        set(&links, &of(&(1..=65).collect::<Vec<_>>()));
        assert_eq!(links.nodes(u64::MAX), (2..=65).collect::<Vec<_>>());
        assert_eq!(logged.lines_with(""), [""; 0]);
        for _ in 0..2 {
            set(&links, &of(&[66, 9, 1, 67, 4]));
            assert_eq!(links.nodes(u64::MAX), [4, 9]);
        }
    });
    assert_eq!((links.nodes(1 << 2), links.nodes(1 << 63)), (vec![4], vec![]));
    let lines = logged.lines_with("restart this node");
    assert_eq!(lines.len(), 2, "each is named once: {lines:?}");
    assert!(lines[0].starts_with("ERROR") && lines[0].contains("node 66 gets no link"), "{lines:?}");
    set(&links, &of(&[65, 3, 3]));
    assert_eq!(links.nodes(1 << 63 | 1 << 1), [3, 65], "one entry of two for a node");
}

#[test]
fn links_without_threads_have_their_peers_set_too() {
    let (one, two) = (by_hand(1, &[]), by_hand(2, &[peer(1, NOBODY)]));
    for _ in 0..2 {
        set(&one, &[peer(2, NOBODY)]);
        assert!(one.has_peer(2));
        let (mut writing, mut reading) = (WritingEnd::begin(&one, 2), ReadingEnd::begin(&two, 1));
        let (mut writing_back, mut reading_back) = (WritingEnd::begin(&two, 1), ReadingEnd::begin(&one, 2));
        assert_eq!(one.connected(), [2]);
        let (answer, answered) = mpsc::channel();
        one.call_then(
            2,
            CallKind(1),
            Vec::new(),
            Box::new(move |result| answer.send(result).expect("it is kept")),
        );
        let bytes = writing.write().expect("a link");
        reading.read(&bytes).expect("a request");
        two.call_then(1, CallKind(1), Vec::new(), Box::new(|_| {}));
        let bytes = writing_back.write().expect("a link");
        set(&one, &[]);
        assert!(!one.has_peer(2) && one.connected().is_empty());
        let aborted = |error: std::io::Error| assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        aborted(writing.write().expect_err("the link has ended"));
        aborted(reading_back.read(&bytes).expect_err("the link has ended"));
        writing.end();
        assert_eq!(answered.try_recv(), Ok(Err(CallError::Disconnected)));
        writing_back.end();
    }
    assert_eq!(one.threads.lock().len(), 0);
}
