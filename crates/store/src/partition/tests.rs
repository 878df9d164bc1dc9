use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use mainstem_log::dir::NodeIdentity;
use mainstem_log::storage::RealStorage;
use std::time::Duration;

use mainstem_log::{LogConfig, Origin, PartitionIdentity, ReadBound, TransactionMarker, VerificationGuard};
use mainstem_records::{
    BatchBuilder, BatchOptions, CoordinatorEpoch, ProducerEpoch, ProducerFields, ProducerId, Scratch,
};

use crate::replay::{Checksums, Entry};
use crate::signal::FetchWaiter;

use super::*;

fn open(home: &Path) -> (Arc<LogDir>, Arc<Partition>) {
    let identity = NodeIdentity { cluster_id: None, node_id: 1 };
    let dir = LogDir::open(Arc::new(RealStorage), home, &identity, "boot");
    let dir = dir.expect("an empty directory can be used");
    let identity = PartitionIdentity { topic: "t".into(), topic_id: [1; 16], partition: 0 };
    let config = Arc::new(LogConfig { transaction_verification: false, ..LogConfig::default() });
    let (log, _) = Log::open(&dir, &identity, config.clone(), 0).expect("a log can be made");
    let settings = TopicSettings::of_log(config, false, 1);
    let partition = Partition::new("t".into(), 0, dir.clone(), Arc::new(settings), log, LeaderEpoch::ZERO);
    (dir, partition)
}

fn append(partition: &Partition) {
    append_with(partition, BatchOptions::default());
}

fn append_with(partition: &Partition, options: BatchOptions) {
    let mut batch = BatchBuilder::new(options);
    batch.append(0, None, Some(b"value"), &[]).expect("a small record");
    let bytes = batch.build().expect("a batch");
    let appended = partition.append(&bytes, Origin::Client, &Clock::start(), &mut Scratch::new());
    appended.expect("the partition takes it");
}

/// A link's thread waits for a partition that others have nearly all the time, each for long. It has its turn between two looks.
#[test]
fn who_may_give_up_gets_the_lock_of_a_busy_partition_too() {
    let home = tempfile::tempdir().expect("a directory can be made");
    let (_dir, partition) = open(home.path());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let _held = partition.lock();
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
        assert!(partition.lock_unless(|| false).is_some());
        is_over.store(true, Ordering::Release);
    });
    assert!(partition.lock_unless(|| true).is_none());
}

/// It became unwanted while it was waited for.
#[test]
fn a_lock_that_is_not_wanted_any_more_is_not_taken() {
    let home = tempfile::tempdir().expect("a directory can be made");
    let (_dir, partition) = open(home.path());
    let (looks, held) = (std::cell::Cell::new(0), partition.lock());
    drop(held);
    let gives_up = || looks.replace(looks.get() + 1) > 0;
    assert!(partition.lock_unless(gives_up).is_none());
}

#[test]
fn a_waiter_is_registered_where_nothing_has_changed_since_the_read() {
    let home = tempfile::tempdir().expect("a directory can be made");
    let (_dir, partition) = open(home.path());
    let request = PartitionRead {
        offset: 0,
        bound: ReadBound::HighWatermark,
        bytes_max: 1000,
        at_least_one: true,
        current_leader_epoch: LeaderEpoch::NONE,
        last_fetched_epoch: LeaderEpoch::NONE,
    };
    let read = || partition.read(&request, None).expect("it can be read");
    let context = std::task::Context::from_waker(std::task::Waker::noop());
    let waiter = || {
        let waiter = Arc::new(FetchWaiter::default());
        waiter.begin();
        waiter.arm(1);
        waiter
    };

    let (seen, late) = (read(), waiter());
    append(&partition);
    assert!(!partition.watch(&seen, LeaderEpoch::NONE, &late), "the record could be read by now");
    append(&partition);
    assert!(late.poll(&context).is_pending(), "the waiter is not registered");

    let (seen, waits) = (read(), waiter());
    assert!(partition.watch(&seen, LeaderEpoch::NONE, &waits));
    append(&partition);
    assert!(waits.poll(&context).is_ready());

    let seen = read();
    assert!(!partition.watch(&seen, LeaderEpoch::new(1), &waiter()), "the client knows of a later leader");
    partition.set_leader_epoch(LeaderEpoch::new(1));
    assert!(!partition.watch(&seen, LeaderEpoch::NONE, &waiter()), "it leads in another epoch");
    let seen = read();
    assert!(partition.watch(&seen, LeaderEpoch::new(1), &waiter()));
    partition.take_log(NoLog::Offline);
    assert!(!partition.watch(&seen, LeaderEpoch::NONE, &waiter()));
}

/// A coordinator decides by what it has read in one epoch; between two epochs others may have decided.
#[test]
fn what_was_decided_in_another_epoch_is_not_appended() {
    let home = tempfile::tempdir().expect("a directory can be made");
    let (_dir, partition) = open(home.path());
    let (clock, mut scratch) = (Clock::start(), Scratch::new());
    let marker = TransactionMarker {
        producer_id: ProducerId::new(1),
        producer_epoch: ProducerEpoch::ZERO,
        coordinator_epoch: CoordinatorEpoch::ZERO,
        committed: true,
        transaction_version: 0,
    };
    let mut batch = BatchBuilder::new(BatchOptions::default());
    batch.append(0, Some(b"key"), Some(b"value"), &[]).expect("a small record");
    let bytes = batch.build().expect("a batch");
    partition.set_leader_epoch(LeaderEpoch::new(5));
    let mut both = |epoch: Option<LeaderEpoch>| {
        let decided = (VerificationGuard::NONE, epoch);
        let records = partition.append_decided(&bytes, decided, &clock, &mut scratch);
        let marker = partition.append_marker_decided(&marker, epoch, &clock);
        [records, marker].map(|appended| match appended {
            Ok(_) => ErrorCode::NONE,
            Err(refused) => refused.code(),
        })
    };
    let refused = [ErrorCode::NOT_LEADER_OR_FOLLOWER; 2];
    assert_eq!(both(Some(LeaderEpoch::new(4))), refused);
    assert_eq!(both(Some(LeaderEpoch::new(6))), refused);
    assert_eq!(partition.ends().map(|ends| ends.log_end), Ok(0));
    assert_eq!(both(Some(LeaderEpoch::new(5))), [ErrorCode::NONE; 2]);
    assert_eq!(both(None), [ErrorCode::NONE; 2]);
}

#[test]
fn an_open_transaction_wakes_no_reader_of_read_committed_until_it_ends() {
    let home = tempfile::tempdir().expect("a directory can be made");
    let (_dir, partition) = open(home.path());
    let context = std::task::Context::from_waker(std::task::Waker::noop());
    let wait = |waiter: FetchWaiter, bound| {
        let request = PartitionRead {
            offset: 0,
            bound,
            bytes_max: 1000,
            at_least_one: true,
            current_leader_epoch: LeaderEpoch::NONE,
            last_fetched_epoch: LeaderEpoch::NONE,
        };
        let waiter = Arc::new(waiter);
        waiter.begin();
        partition.read(&request, Some(&waiter)).expect("it can be read");
        waiter.arm(1);
        waiter
    };
    let committed = wait(FetchWaiter::of_read_committed(), ReadBound::LastStable);
    let all = wait(FetchWaiter::default(), ReadBound::HighWatermark);
    for base_sequence in 0..3 {
        let producer = ProducerFields { producer_id: 7, producer_epoch: 0, base_sequence };
        append_with(&partition, BatchOptions { producer, is_transactional: true, ..Default::default() });
    }
    // What is outside of the transaction, and behind its beginning, can be read no sooner.
    append(&partition);
    assert!(all.poll(&context).is_ready());
    assert!(committed.poll(&context).is_pending());
    let marker = TransactionMarker {
        producer_id: ProducerId::new(7),
        producer_epoch: ProducerEpoch::ZERO,
        coordinator_epoch: CoordinatorEpoch::ZERO,
        committed: true,
        transaction_version: 0,
    };
    partition.append_marker(&marker, &Clock::start()).expect("it ends");
    assert!(committed.poll(&context).is_ready());
}

#[test]
fn after_a_panic_the_log_is_closed_and_another_thread_ends_the_waits() {
    let home = tempfile::tempdir().expect("a directory can be made");
    let (dir, partition) = open(home.path());
    let (sender, fate) = mpsc::channel();
    let waits = Durable::Call(Box::new(move |result| sender.send(result).expect("the test listens")));
    partition.when_durable(1, waits);

    let panicking = catch_unwind(AssertUnwindSafe(|| partition.with_log(|_| panic!("a mistake"))));
    assert!(panicking.is_err());
    assert!(partition.is_offline() && partition.is_poisoned());
    assert_eq!(partition.ends().err(), Some(ErrorCode::KAFKA_STORAGE_ERROR));
    assert!(fate.try_recv().is_err(), "not while the panic unwinds");

    assert!(partition.take_poisoned() && !partition.take_poisoned());
    assert!(partition.take_log(NoLog::Offline).is_none(), "no one gets what may be half changed");
    assert_eq!(fate.try_recv(), Ok(Err(ErrorCode::KAFKA_STORAGE_ERROR)));
    assert!(!dir.stop_clean().expect("the directory works"), "the next start checks");
}

/// A node follows who leads a partition by what it has seen last: each change has it give up, take over, both in this order, or look
/// again soon.
#[test]
fn a_change_of_leadership_follows_from_what_was_seen_before() {
    let epoch = LeaderEpoch::new;
    let seen = |is_leader, is_settled, at| Leadership {
        leader: None,
        epoch: epoch(at),
        is_leader,
        is_settled,
        is_searching: false,
    };
    let gained = |at, had_before| RoleChange::Gained { epoch: epoch(at), had_before };
    for (now, led, expected) in [
        (seen(false, false, 3), None, RoleChange::None),
        (seen(false, false, 3), Some(2), RoleChange::Lost),
        (seen(true, false, 3), None, RoleChange::Unsettled),
        (seen(true, false, 3), Some(2), RoleChange::Unsettled),
        (seen(true, true, 3), None, gained(3, false)),
        (seen(true, true, 3), Some(3), RoleChange::None),
        (seen(true, true, 3), Some(2), gained(3, true)),
    ] {
        assert_eq!(now.change_from(led.map(epoch)), expected, "{now:?}, led in {led:?}");
    }
}

/// The lock is free while entries are handed out, and nothing begins to compact what is read.
#[test]
fn a_log_is_replayed_piece_by_piece_and_not_compacted_meanwhile() {
    let home = tempfile::tempdir().expect("a directory can be made");
    let (_dir, partition) = open(home.path());
    (0..3).for_each(|_| append(&partition));
    let bound = || crate::cleaner::compaction_bound(&partition);
    assert_eq!(bound(), Some(i64::MAX));
    let mut replay = LogReplay::begin(&partition, Checksums::Verified);
    let mut entries = 0;
    let mut next = |replay: &mut LogReplay| {
        replay
            .next_piece(|entry| {
                assert!(matches!(entry, Entry::Record { .. }) && partition.try_lock().is_some());
                entries += 1;
            })
            .expect("it has a log")
            .expect("it can be read")
    };
    assert!(next(&mut replay));
    append(&partition);
    assert!(next(&mut replay) && !next(&mut replay), "what comes meanwhile is a piece, too");
    assert_eq!((entries, bound()), (4, None));
    drop(replay);
    assert_eq!(bound(), Some(i64::MAX));
}
