//! Connections with another encryption than TLS: the event loops serve any session. This one hides bytes by XOR, in
//! blocks, each side by its own key. So each byte that is missing, doubled or out of place shows.
//!
//! ```text
//!  client: X O R key     server: x o r key     then both: length (1 byte), bytes of the block; length 0: nothing follows
//! ```

use std::io::{self, Error, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use mainstem_records::{Batch, BatchBuilder, BatchOptions};
use mainstem_security::tls::{TlsError, TlsSession, TlsState};
use mainstem_wire::Records;
use mainstem_wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use mainstem_wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::heartbeat_request::HeartbeatRequest;
use mainstem_wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_wire::messages::leave_group_request::LeaveGroupRequest;
use mainstem_wire::messages::metadata_request::MetadataRequestTopic;
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::offset_fetch_request::{OffsetFetchRequest, OffsetFetchRequestTopic};
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_wire::messages::sync_group_request::{SyncGroupRequest, SyncGroupRequestAssignment};

use super::*;
use crate::service::Apis;
use mainstem_net::listener;
use mainstem_net::transport::{Seal, Sealed};

const CLIENT_HELLO: &[u8; 3] = b"XOR";
const SERVER_HELLO: &[u8; 3] = b"xor";
const CLIENT_KEY: u8 = 0x5a;
const SERVER_KEY: u8 = 0xc3;
const BLOCK_BYTES_MAX: usize = 255;

/// One direction of a connection.
struct Pad {
    key: u8,
    at: u64,
}

impl Pad {
    fn new(key: u8) -> Pad {
        Pad { key, at: 0 }
    }

    fn apply(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte ^= self.key.wrapping_add((self.at % 251) as u8);
            self.at += 1;
        }
    }

    fn seal(&mut self, bytes: &[u8], sealed: &mut Vec<u8>) {
        for block in bytes.chunks(BLOCK_BYTES_MAX) {
            sealed.push(block.len() as u8);
            let start = sealed.len();
            sealed.extend_from_slice(block);
            self.apply(&mut sealed[start..]);
        }
    }

    /// Decrypts whole blocks at the beginning of `held`, and removes them from it. Returns false after the last one.
    fn open(&mut self, held: &mut Vec<u8>, opened: &mut Vec<u8>) -> bool {
        let mut used = 0;
        let mut is_open = true;
        while let Some((&length, rest)) = held[used..].split_first()
            && let Some(block) = rest.get(..usize::from(length))
            && is_open
        {
            let start = opened.len();
            opened.extend_from_slice(block);
            self.apply(&mut opened[start..]);
            used += 1 + block.len();
            is_open = length > 0;
        }
        held.drain(..used);
        is_open
    }
}

/// The broker's side.
struct XorSession {
    held: Vec<u8>,
    /// Present once the client has named its key.
    receives: Option<Pad>,
    sends: Pad,
}

impl XorSession {
    fn new() -> XorSession {
        XorSession { held: Vec::new(), receives: None, sends: Pad::new(SERVER_KEY) }
    }
}

impl Seal for XorSession {
    fn is_handshaking(&self) -> bool {
        self.receives.is_none()
    }

    fn handshake(
        &mut self,
        received: &mut [u8],
        sealed: &mut Vec<u8>,
        opened: &mut Vec<u8>,
    ) -> Result<TlsState, TlsError> {
        self.held.extend_from_slice(received);
        let Some((hello, rest)) = self.held.split_first_chunk::<4>() else {
            return Ok(TlsState::Handshaking);
        };
        let [name @ .., key] = hello;
        if name != CLIENT_HELLO {
            return Err(TlsError::NotTls);
        }
        self.receives = Some(Pad::new(*key));
        self.held = rest.to_vec();
        sealed.extend_from_slice(SERVER_HELLO);
        sealed.push(SERVER_KEY);
        self.open(&mut [], sealed, opened)
    }

    fn open(
        &mut self,
        received: &mut [u8],
        _: &mut Vec<u8>,
        opened: &mut Vec<u8>,
    ) -> Result<TlsState, TlsError> {
        self.held.extend_from_slice(received);
        let pad = self.receives.as_mut().ok_or(TlsError::CannotSend)?;
        let is_open = pad.open(&mut self.held, opened);
        Ok(if is_open { TlsState::Open } else { TlsState::PeerClosed })
    }

    fn seal(&mut self, bytes: &[u8], sealed: &mut Vec<u8>) -> Result<(), TlsError> {
        self.sends.seal(bytes, sealed);
        Ok(())
    }

    fn close(&mut self, sealed: &mut Vec<u8>) -> Result<(), TlsError> {
        sealed.push(0);
        Ok(())
    }

    fn tls(&self) -> Option<&TlsSession> {
        None
    }
}

/// The client's side, which blocks, and sends in pieces.
pub(super) struct XorStream {
    stream: TcpStream,
    piece: usize,
    sends: Pad,
    receives: Pad,
    held: Vec<u8>,
    opened: Vec<u8>,
    is_closed: bool,
}

impl XorStream {
    fn begin(mut stream: TcpStream, piece: usize) -> XorStream {
        for part in [&CLIENT_HELLO[..], &[CLIENT_KEY]].concat().chunks(piece) {
            stream.write_all(part).unwrap();
        }
        let mut hello = [0; 4];
        stream.read_exact(&mut hello).unwrap();
        assert_eq!(hello[..3], SERVER_HELLO[..]);
        XorStream {
            stream,
            piece,
            sends: Pad::new(CLIENT_KEY),
            receives: Pad::new(hello[3]),
            held: Vec::new(),
            opened: Vec::new(),
            is_closed: false,
        }
    }
}

impl Read for XorStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.opened.is_empty() && !self.is_closed {
            let mut received = vec![0; self.piece.min(16 * 1024)];
            let length = self.stream.read(&mut received)?;
            if length == 0 {
                return Err(Error::from(ErrorKind::UnexpectedEof));
            }
            self.held.extend_from_slice(&received[..length]);
            self.is_closed = !self.receives.open(&mut self.held, &mut self.opened);
        }
        let length = into.len().min(self.opened.len());
        into[..length].copy_from_slice(&self.opened[..length]);
        self.opened.drain(..length);
        Ok(length)
    }
}

impl Write for XorStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut sealed = Vec::new();
        self.sends.seal(bytes, &mut sealed);
        for part in sealed.chunks(self.piece) {
            self.stream.write_all(part)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens one more socket for the broker's first listener, with such encryption.
fn listen(broker: &EmbeddedBroker) -> SocketAddr {
    let broker = broker.broker();
    let socket = listener::bind("127.0.0.1:0".parse().unwrap(), &broker.config().network).unwrap();
    let address = socket.local_addr().unwrap();
    let begin = Box::new(|| Ok(Some(Sealed::begin(XorSession::new()))));
    broker.net.event_loops.first().spawn(listener::accept(
        (broker.net.clone(), Arc::new(Apis(broker.clone()))),
        0,
        socket,
        begin,
    ));
    address
}

fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn connect(address: SocketAddr, piece: usize) -> Peer {
    let stream = XorStream::begin(dial(address), piece);
    Peer { stream: Wire::Xor(Box::new(stream)), frame: Vec::new() }
}

/// A batch larger than any buffer of a connection, with bytes so different that a missing one would show.
fn batch(records: usize) -> Vec<u8> {
    let mut batch = BatchBuilder::new(BatchOptions::default());
    for number in 0..records as u64 {
        let value: Vec<u8> =
            (0..100u64).flat_map(|at| (number * 7919 + at * 104_729).to_be_bytes()).collect();
        batch.append(1_000, Some(&number.to_be_bytes()), Some(&value), &[]).unwrap();
    }
    batch.build().unwrap()
}

fn create(peer: &mut Peer, topic: &str) {
    let topics = vec![CreatableTopic {
        name: topic.into(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    }];
    let request = CreateTopicsRequest { topics, timeout_ms: 10_000, ..Default::default() };
    let response = peer.call(&request, 5).unwrap();
    assert_eq!(response.topics[0].error_code, 0);
}

fn produce(peer: &mut Peer, topic: &str, bytes: &[u8]) -> i64 {
    let data = PartitionProduceData { records: Some(Records::Bytes(bytes.into())), ..Default::default() };
    let topic = TopicProduceData { name: topic.into(), partition_data: vec![data], ..Default::default() };
    let request =
        ProduceRequest { acks: -1, timeout_ms: 10_000, topic_data: vec![topic], ..Default::default() };
    let response = peer.call(&request, 9).unwrap();
    let partition = &response.responses[0].partition_responses[0];
    assert_eq!(partition.error_code, 0);
    partition.base_offset
}

/// The keys and values from an offset on.
fn fetch(peer: &mut Peer, topic: &str, fetch_offset: i64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let partition = FetchPartition { fetch_offset, partition_max_bytes: 1 << 22, ..Default::default() };
    let topic = FetchTopic { topic: topic.into(), partitions: vec![partition], ..Default::default() };
    let request = FetchRequest {
        max_wait_ms: 5_000,
        min_bytes: 1,
        max_bytes: 1 << 24,
        topics: vec![topic],
        ..Default::default()
    };
    let response = peer.call(&request, 11).unwrap();
    let partition = &response.responses[0].partitions[0];
    assert_eq!(partition.error_code, 0);
    let Some(Records::Bytes(bytes)) = &partition.records else { panic!("there are records") };
    let (mut left, mut fetched) = (&bytes[..], Vec::new());
    while !left.is_empty() {
        let (batch, rest) = Batch::split_first(left).expect("whole batches");
        assert!(batch.verify_crc(), "the bytes are those that were produced");
        for record in batch.records_in(batch.payload()).unwrap() {
            let record = record.unwrap();
            fetched.push((record.key.unwrap().to_vec(), record.value.unwrap().to_vec()));
        }
        left = rest;
    }
    fetched
}

/// A member joins, gets its assignment, sends heartbeats, commits, and leaves.
fn take_part_in_a_group(peer: &mut Peer, group: &'static str, topic: &'static str) {
    let found = FindCoordinatorRequest { key: group.into(), ..Default::default() };
    let deadline = Instant::now() + TIMEOUT;
    while peer.call(&found, 3).unwrap().error_code != 0 {
        assert!(Instant::now() < deadline, "no coordinator");
        std::thread::sleep(Duration::from_millis(5));
    }
    let protocol = JoinGroupRequestProtocol {
        name: "range".into(),
        metadata: b"m".as_slice().into(),
        ..Default::default()
    };
    let join = JoinGroupRequest {
        group_id: group.into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        protocol_type: "consumer".into(),
        protocols: vec![protocol],
        ..Default::default()
    };
    let joined = loop {
        let joined = peer.call(&join, 3).unwrap();
        if joined.error_code == 0 {
            break (joined.generation_id, joined.member_id.to_string());
        }
        assert!(Instant::now() < deadline, "the group was not joined: {}", joined.error_code);
        std::thread::sleep(Duration::from_millis(5));
    };
    let (generation_id, member_id) = joined;
    let assignment = SyncGroupRequestAssignment {
        member_id: member_id.as_str().into(),
        assignment: b"all of it".as_slice().into(),
        ..Default::default()
    };
    let sync = SyncGroupRequest {
        group_id: group.into(),
        generation_id,
        member_id: member_id.as_str().into(),
        assignments: vec![assignment],
        ..Default::default()
    };
    assert_eq!(&*peer.call(&sync, 3).unwrap().assignment, b"all of it");
    let heartbeat = HeartbeatRequest {
        group_id: group.into(),
        generation_id,
        member_id: member_id.as_str().into(),
        ..Default::default()
    };
    assert_eq!(peer.call(&heartbeat, 3).unwrap().error_code, 0);
    let partition = OffsetCommitRequestPartition { committed_offset: 42, ..Default::default() };
    let partitions = vec![partition];
    let commit = OffsetCommitRequest {
        group_id: group.into(),
        generation_id_or_member_epoch: generation_id,
        member_id: member_id.as_str().into(),
        topics: vec![OffsetCommitRequestTopic { name: topic.into(), partitions, ..Default::default() }],
        ..Default::default()
    };
    assert_eq!(peer.call(&commit, 7).unwrap().topics[0].partitions[0].error_code, 0);
    let topics = vec![OffsetFetchRequestTopic {
        name: topic.into(),
        partition_indexes: vec![0],
        ..Default::default()
    }];
    let committed = OffsetFetchRequest { group_id: group.into(), topics: Some(topics), ..Default::default() };
    assert_eq!(peer.call(&committed, 5).unwrap().topics[0].partitions[0].committed_offset, 42);
    let leave = LeaveGroupRequest {
        group_id: group.into(),
        member_id: member_id.as_str().into(),
        ..Default::default()
    };
    assert_eq!(peer.call(&leave, 2).unwrap().error_code, 0);
}

#[test]
fn the_loops_serve_a_session_that_is_not_tls() {
    // With a small send buffer the broker often has to wait for the client, within a block too.
    let broker = EmbeddedBroker::start(&[
        ("socket.send.buffer.bytes", "4096"),
        ("offsets.topic.num.partitions", "1"),
        ("group.initial.rebalance.delay.ms", "0"),
    ]);
    let address = listen(&broker);
    let records = 800;
    let bytes = batch(records);
    assert!(bytes.len() > 600_000, "{} bytes", bytes.len());
    for (topic, piece) in [("one", 1000), ("another", usize::MAX)] {
        let mut peer = connect(address, piece);
        create(&mut peer, topic);
        let named = MetadataRequestTopic { name: Some(topic.into()), ..Default::default() };
        let metadata = MetadataRequest { topics: Some(vec![named]), ..Default::default() };
        assert_eq!(peer.call(&metadata, 12).unwrap().topics[0].partitions.len(), 1);
        for round in 0..3 {
            assert_eq!(produce(&mut peer, topic, &bytes), round * records as i64);
        }
        let fetched = fetch(&mut peer, topic, 0);
        assert_eq!(fetched.len(), 3 * records);
        assert_eq!(fetched[records + 1].0, 1u64.to_be_bytes());
        assert_eq!(fetched[..records], fetched[2 * records..]);
        // A client of another transport reads the same bytes.
        assert!(fetched == fetch(&mut Peer::connect(&broker), topic, 0), "bytes differ between transports");
        take_part_in_a_group(&mut peer, topic, topic);
    }
    // Byte for byte, which is slower.
    let mut peer = connect(address, 1);
    assert_eq!(produce(&mut peer, "one", &batch(2)), 3 * records as i64);
    assert_eq!(fetch(&mut peer, "one", 3 * records as i64).len(), 2);
    take_part_in_a_group(&mut peer, "bytewise", "one");
}

#[test]
fn a_handshake_that_stalls_keeps_no_one_waiting_and_ends_in_time() {
    let limit = Duration::from_secs(3);
    let clock = ManualClock::new();
    let broker = broker_at(&clock, &[("mainstem.authentication.timeout.ms", &limit.as_millis().to_string())]);
    let address = listen(&broker);
    let mut silent = dial(address);
    let mut half = dial(address);
    half.write_all(&CLIENT_HELLO[..2]).unwrap();
    // Slow clients that finish in time are authenticated, and later bytes use the same session.
    let mut slow = dial(address);
    slow.write_all(&CLIENT_HELLO[..1]).unwrap();
    let mut quick = connect(address, usize::MAX);
    assert_eq!(quick.log_in(Mechanism::Plain, "alice", "a-secret"), Ok(0));
    assert!(quick.is_served());
    slow.write_all(&CLIENT_HELLO[1..]).unwrap();
    slow.write_all(&[CLIENT_KEY]).unwrap();
    let mut hello = [0; 4];
    slow.read_exact(&mut hello).unwrap();
    assert_eq!(hello[..3], SERVER_HELLO[..]);
    let mut http = dial(address);
    http.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    // Nothing is sent to a client that is not understood, or that said nothing.
    let ends_in_silence = |stream: &mut TcpStream| {
        let mut last_words = Vec::new();
        let read = stream.read_to_end(&mut last_words);
        let is_reset = read.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        assert!(read.is_ok() || is_reset, "{read:?}");
        // After a handshake the last block says that nothing follows.
        assert!(last_words.is_empty() || last_words == [0], "{last_words:?}");
    };
    ends_in_silence(&mut http);
    clock.advance(limit - Duration::from_millis(1));
    assert!(quick.is_served());
    for waiting in [&mut silent, &mut half, &mut slow] {
        waiting.set_nonblocking(true).unwrap();
        let read = waiting.read(&mut [0]);
        assert!(read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "its time is not over");
        waiting.set_nonblocking(false).unwrap();
    }
    clock.advance(Duration::from_millis(1));
    [&mut silent, &mut half, &mut slow].into_iter().for_each(ends_in_silence);
    assert!(quick.is_served(), "an authenticated connection stays");
    assert_no_permit_is_taken(&broker);
}

#[test]
fn a_session_moves_between_loops_with_what_it_holds() {
    let broker = broker(&[("num.network.threads", "3")]);
    let address = listen(&broker);
    // Connections move from the loop for unauthenticated peers to one for data, with the state of their encryption.
    let mut peers: Vec<Peer> = (0..12).map(|at| connect(address, [1, 7, usize::MAX][at % 3])).collect();
    for peer in &mut peers {
        assert_eq!(peer.log_in(Mechanism::Plain, "alice", "a-secret"), Ok(0));
    }
    for _ in 0..20 {
        // All of them send requests before the first one reads.
        peers.iter_mut().for_each(|peer| {
            peer.stream.write_all(&Peer::encode(&MetadataRequest::default(), 12)).unwrap();
        });
        for peer in &mut peers {
            assert_eq!(peer.answer::<MetadataRequest<'_>>(12).unwrap().brokers.len(), 1);
        }
    }
    assert_no_permit_is_taken(&broker);
}
