//! A node of two log directories, of which one hangs whenever something is read from it.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use mainstem_log::sim::{Call, Hooked};
use mainstem_log::storage::RealStorage;
use mainstem_records::{BatchBuilder, BatchOptions};
use mainstem_wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use mainstem_wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_wire::{ErrorCode, Records};
use parking_lot::{Condvar, Mutex};

use crate::EmbeddedBroker;
use crate::authentication_tests::Peer;
use crate::turns::{Classes, DIRECTORY_THREADS_MAX};
use mainstem_net::event_loop::BACKGROUND_THREADS_MAX;
use mainstem_store::machine::Machine;

/// The longest wait of a test.
const TIMEOUT: Duration = Duration::from_secs(120);
const TOPIC: &str = "topic";
const PARTITIONS: i32 = 8;
/// The time stamp of every record.
const TIMESTAMP_MS: i64 = 1_000;
/// Part of the path of the directory that may hang.
const HANGING: &str = "hanging";

/// The gate before reads from the directory: open or closed, and the number of reads that wait.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_closed: bool,
    waiting: usize,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock();
        state.waiting += 1;
        self.changed.wait_while(&mut state, |state| state.is_closed);
        state.waiting -= 1;
    }

    fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    fn set_closed(&self, is_closed: bool) {
        self.state.lock().is_closed = is_closed;
        self.changed.notify_all();
    }
}

/// Opens the gate when the test ends in any way: the broker's threads are joined after that.
struct Opened(Arc<Gate>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.set_closed(false);
    }
}

/// The real file system, whose reads from one directory pass a gate.
fn gated(gate: &Arc<Gate>) -> Arc<Hooked> {
    let (storage, gate) = (Hooked::new(Arc::new(RealStorage)), gate.clone());
    storage.set_hook(move |call, path| {
        if path.components().any(|part| part.as_os_str() == HANGING) {
            match call {
                Call::Read => gate.pass(),
                Call::ReadCached if gate.is_closed() => return Err(io::ErrorKind::WouldBlock.into()),
                _ => {}
            }
        }
        Ok(())
    });
    Arc::new(storage)
}

/// Directories of this test, removed at its end.
struct Directories(PathBuf);

impl Directories {
    fn new() -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("mainstem-hanging-directory-{}-{number}", std::process::id()));
        // Files of a killed process with the same id are not in use.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("the directory for temporary files can be written");
        Self(path)
    }

    /// The value of `log.dirs`. The metadata are in the first directory.
    fn list(&self) -> String {
        format!("{},{}", self.0.join("healthy").display(), self.0.join(HANGING).display())
    }
}

impl Drop for Directories {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn by_time(partition_index: i32) -> ListOffsetsRequest<'static> {
    let partition = ListOffsetsPartition {
        partition_index,
        current_leader_epoch: -1,
        timestamp: TIMESTAMP_MS,
        ..Default::default()
    };
    let topic = ListOffsetsTopic { name: TOPIC.into(), partitions: vec![partition], ..Default::default() };
    ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() }
}

/// Creates the topic, with a record in each partition.
fn fill(peer: &mut Peer) {
    let topic = CreatableTopic {
        name: TOPIC.into(),
        num_partitions: PARTITIONS,
        replication_factor: 1,
        ..Default::default()
    };
    let create = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    assert_eq!(peer.call(&create, 5).expect("an answer").topics[0].error_code, 0);
    let data = (0..PARTITIONS).map(|index| {
        let mut batch = BatchBuilder::new(BatchOptions::default());
        batch.append(TIMESTAMP_MS, None, Some(b"value"), &[]).expect("it fits");
        let records = Records::Bytes(batch.build().expect("a batch").into());
        PartitionProduceData { records: Some(records), index, ..Default::default() }
    });
    let topic = TopicProduceData { name: TOPIC.into(), partition_data: data.collect(), ..Default::default() };
    let request =
        ProduceRequest { acks: -1, timeout_ms: 10_000, topic_data: vec![topic], ..Default::default() };
    let response = peer.call(&request, 9).expect("an answer");
    let partitions = &response.responses[0].partition_responses;
    assert!(partitions.iter().all(|partition| ErrorCode(partition.error_code) == ErrorCode::NONE));
}

/// A partition in the directory that may hang, or in the other one.
fn partition_in(broker: &EmbeddedBroker, hanging: bool) -> i32 {
    let is_there = |index: &i32| {
        let partition = broker.broker().store.topics.partition(TOPIC, *index).expect("it was created");
        let (dir, _) = partition.place().expect("it is open");
        dir.path().ends_with(HANGING) == hanging
    };
    (0..PARTITIONS).find(is_there).expect("partitions are spread over the directories")
}

#[test]
fn reads_from_a_directory_that_hangs_leave_threads_to_those_from_others() {
    let (gate, directories) = (Arc::<Gate>::default(), Directories::new());
    let machine = Machine { storage: gated(&gate), ..Machine::default() };
    let dirs = directories.list();
    let settings =
        [("num.network.threads", "1"), ("auto.create.topics.enable", "false"), ("log.dirs", dirs.as_str())];
    let broker = EmbeddedBroker::start_on(machine, &settings);
    let _opened = Opened(gate.clone());
    let mut peer = Peer::connect(&broker);
    fill(&mut peer);
    let (stuck, healthy) = (partition_in(&broker, true), partition_in(&broker, false));
    gate.set_closed(true);
    // One more request than there are threads.
    let mut asking: Vec<Peer> = (0..=BACKGROUND_THREADS_MAX).map(|_| Peer::connect(&broker)).collect();
    for peer in &mut asking {
        peer.send(&by_time(stuck), 7).expect("the broker reads");
    }
    let deadline = Instant::now() + TIMEOUT;
    while gate.waiting() < DIRECTORY_THREADS_MAX {
        assert!(Instant::now() < deadline, "{} reads wait for the directory", gate.waiting());
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..BACKGROUND_THREADS_MAX {
        let answer = peer.call(&by_time(healthy), 7).expect("an answer");
        assert_eq!(answer.topics[0].partitions[0].offset, 0);
    }
    assert!(asking.iter().all(|peer| !peer.has_answer()));
    // A client that waits for its turn leaves, and frees its place.
    drop(asking.pop());
    gate.set_closed(false);
    for mut peer in asking {
        let answer = peer.answer::<ListOffsetsRequest<'_>>(7).expect("an answer");
        assert_eq!(answer.topics[0].partitions[0].offset, 0);
    }
}

#[test]
fn each_directory_has_turns_of_its_own() {
    let classes = Classes::new();
    let mut context = Context::from_waker(Waker::noop());
    let mut turn = |directory: u8| match pin!(classes.turn_of(Some([directory; 16]))).poll(&mut context) {
        Poll::Ready(turn) => Some(turn),
        Poll::Pending => None,
    };
    let held: Vec<_> = (0..DIRECTORY_THREADS_MAX).map(|_| turn(1).expect("one is left")).collect();
    assert!(turn(1).is_none(), "they are all taken");
    assert!(turn(2).is_some(), "those of another directory are not");
    drop(held);
    assert!(turn(1).is_some());
}

#[test]
fn what_is_named_again_and_again_is_not_looked_for() {
    let (gate, directories) = (Arc::<Gate>::default(), Directories::new());
    let machine = Machine { storage: gated(&gate), ..Machine::default() };
    let dirs = directories.list();
    let broker = EmbeddedBroker::start_on(machine, &[("log.dirs", dirs.as_str())]);
    let _opened = Opened(gate.clone());
    let mut peer = Peer::connect(&broker);
    fill(&mut peer);
    let stuck = partition_in(&broker, true);
    gate.set_closed(true);
    let mut request = by_time(stuck);
    let partitions = &mut request.topics[0].partitions;
    *partitions = vec![partitions[0].clone(); 5_000];
    // The answer would wait for the directory.
    let answer = peer.call(&request, 7).expect("an answer");
    let codes: Vec<_> = answer.topics[0].partitions.iter().map(|one| ErrorCode(one.error_code)).collect();
    assert_eq!((codes, gate.waiting()), (vec![ErrorCode::INVALID_REQUEST], 0));
}
