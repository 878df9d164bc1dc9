//! Ends of links for the tests of this crate and of those that are built on it.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mainstem_replication::eraftpb::Message;
use mainstem_replication::{GroupId, MessageError, ReplicaId};
use mainstem_runtime::clock::Clock;
use parking_lot::Mutex;

pub use crate::hello::{Hello, Welcome, read_frame};
use crate::{DiskStep, EarlierTicks, Group, GroupHandle, Links, NodeGate};

/// An answer comes within this time, or never.
const SOON: Duration = Duration::from_secs(60);

/// A gate that asks nothing of anybody.
pub fn gate() -> Arc<NodeGate> {
    Arc::new(NodeGate::open_to_all(Clock::start()))
}

/// Hands what is accepted to links, if there are any; ends the thread soon after `stop`.
pub fn accept_for(listener: TcpListener, stop: Arc<AtomicBool>, links: Arc<Mutex<Option<Arc<Links>>>>) {
    listener.set_nonblocking(true).expect("a socket of ours");
    std::thread::spawn(move || {
        while !stop.load(Ordering::Acquire) {
            let Ok((stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            stream.set_nonblocking(false).expect("a socket of ours");
            let links = links.lock().clone();
            let Ok(mut arrived) = gate().accept(stream) else { continue };
            if let (Ok(frame), Some(links)) = (read_frame(&mut arrived.channel.reader), links) {
                links.accept(arrived, frame);
            }
        }
    });
}

/// A group whose replica has gone.
pub fn handle(earlier: Arc<EarlierTicks>) -> Arc<GroupHandle> {
    let id = GroupId { topic_id: [7; 16], partition: 0 };
    GroupHandle::new(id, ReplicaId::new(1, 1), earlier, Weak::<Gone>::new())
}

/// A replica that there is none of.
enum Gone {}

impl Group for Gone {
    fn topic_partition(&self) -> (Arc<str>, i32) {
        match *self {}
    }

    fn take_part(&self, _: u64) {
        match *self {}
    }

    fn tick(&self, _: u64) {
        match *self {}
    }

    fn step_unless_it_waits(&self, _: Message, _: i64, _: &[u8]) -> Result<Option<DiskStep>, MessageError> {
        match *self {}
    }

    fn carry_out_disk_step(&self, _: DiskStep, _: i64, _: &[u8]) -> Result<(), MessageError> {
        match *self {}
    }

    fn accept_coalesced(&self, _: ReplicaId, _: u64) {
        match *self {}
    }

    fn note_refusal(&self, _: i32) {
        match *self {}
    }

    fn node_gone(&self, _: i32, _: &dyn Fn(i32) -> bool, _: u64) {
        match *self {}
    }

    fn report_unreachable(&self, _: i32) {
        match *self {}
    }

    fn read_batches(&self, _: &Range<i64>, _: &mut Vec<u8>) -> io::Result<()> {
        match *self {}
    }
}

/// Says hello to a port of this host. Returns the connection with the answer.
pub fn greet(port: u16, hello: &Hello) -> (TcpStream, Welcome) {
    greet_over(TcpStream::connect(("127.0.0.1", port)).expect("it listens"), hello)
}

/// Says hello over a connection. Returns it with the answer.
pub fn greet_over(mut stream: TcpStream, hello: &Hello) -> (TcpStream, Welcome) {
    stream.set_read_timeout(Some(SOON)).expect("a time-out");
    stream.write_all(&hello.encode()).expect("it reads");
    let frame = read_frame(&mut stream).expect("an answer");
    (stream, Welcome::decode(&frame).expect("an answer to a hello"))
}

/// Checks that the other end has ended a connection.
#[track_caller]
pub fn is_ended(mut stream: TcpStream) {
    let mut rest = [0; 64];
    match stream.read(&mut rest) {
        Ok(0) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("the link was not ended: {other:?}"),
    }
}
