//! The interface of a queue for the broker that serves it.

use std::time::{Duration, Instant};

use mainstem_queue::{Options, Queue, QueueError, Serving, Start, wait_any};
use mainstem_records::{Batch, BatchBuilder, BatchOptions};

use crate::Tid;

fn batch(values: &[&str]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(BatchOptions::default());
    for value in values {
        builder.append(5, None, Some(value.as_bytes()), &[]).unwrap();
    }
    builder.build().unwrap()
}

fn values(queue: &Queue) -> Vec<String> {
    let reader = queue.reader(Start::Earliest).unwrap();
    reader.map(|message| String::from_utf8(message.unwrap().value().to_vec()).unwrap()).collect()
}

#[test]
fn one_broker_at_a_time_serves_a_queue_and_appends_between_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let queue = Queue::open(directory.path()).unwrap();
    let serving = queue.serve().unwrap();
    assert_ne!(serving.topic_id().unwrap(), [0; 16]);
    assert_eq!((serving.leader_epoch(), serving.leader_epochs().unwrap()), (0, vec![(0, 0)]));
    let other = Queue::open(directory.path()).unwrap();
    let refused = other.serve().unwrap_err();
    assert!(matches!(&refused, QueueError::Busy { .. }), "{refused}");
    assert!(refused.to_string().contains("another broker serves it"), "{refused}");

    queue.append("one").unwrap();
    let mut appender = other.appender().unwrap();
    let bytes = batch(&["two", "three"]);
    let (two, _) = Batch::split_first(&bytes).unwrap();
    let header = two.bytes().first_chunk().unwrap();
    let mut locked = appender.try_lock().unwrap().unwrap();
    assert_eq!(locked.append(header, &two).unwrap(), 1);
    drop(locked);
    queue.append("four").unwrap();
    assert_eq!(values(&queue), ["one", "two", "three", "four"]);

    drop(serving);
    other.serve().unwrap();
}

#[test]
fn who_holds_the_lock_rolls_and_deletes_by_the_rules_of_the_directory() {
    const OLD: Duration = Duration::from_millis(30);
    for (roll_after, kept) in [(OLD, &["two"][..]), (Duration::from_secs(3_600), &["one", "two"])] {
        let directory = tempfile::tempdir().unwrap();
        let rules = Options::new().segment_bytes(64 << 10).roll_after(roll_after).retention_bytes(0);
        let queue = rules.open(directory.path()).unwrap();
        // A broker opens it as it is: the options for a new queue do not count.
        let of_broker = Options::new().retention(Duration::from_secs(1)).open(directory.path()).unwrap();
        let serving = of_broker.serve().unwrap();
        assert_eq!(serving.queue().rules(), queue.rules());
        assert_eq!(u128::from(serving.queue().rules().roll_ms.unwrap()), roll_after.as_millis());
        let id = serving.topic_id().unwrap();
        let mut appender = of_broker.appender().unwrap();
        queue.append("one").unwrap();
        // Old enough for the rule.
        std::thread::sleep(OLD * 2);
        appender.try_lock().unwrap().unwrap().maintain().unwrap();
        assert_eq!(queue.ends().start, 2 - kept.len() as i64, "what is old is closed, and not kept");
        assert_eq!(queue.append("two").unwrap(), 1);
        assert_eq!(values(&queue), kept);
        drop(serving);
        assert_eq!(queue.serve().unwrap().topic_id().unwrap(), id);
    }
}

#[test]
fn the_lock_is_only_tried() {
    let directory = tempfile::tempdir().unwrap();
    let queue = Queue::open(directory.path()).unwrap();
    let (mut holder, mut tries) = (queue.appender().unwrap(), queue.appender().unwrap());
    let held = holder.reserve(10).unwrap();
    for _ in 0..3 {
        assert!(tries.try_lock().unwrap().is_none(), "a try takes the lock from no other");
    }
    held.roll_back();
    assert!(tries.try_lock().unwrap().is_some());
    let patient = Options::new().lock_timeout(Some(Duration::from_millis(20)));
    let mut waits = patient.open(directory.path()).unwrap().appender().unwrap();
    let _held = holder.reserve(10).unwrap();
    assert!(matches!(waits.lock(), Err(QueueError::WriterBlocked { .. })));
}

#[test]
fn every_offset_is_found_in_its_segment() {
    let directory = tempfile::tempdir().unwrap();
    let queue = Options::new().segment_bytes(64 << 10).open(directory.path()).unwrap();
    let serving = queue.serve().unwrap();
    for number in 0..2000 {
        queue.append(format!("message {number} {}", "x".repeat(100))).unwrap();
    }
    let segments = queue.segments().unwrap();
    assert!(segments.len() > 3);
    for offset in 0..2000 {
        let found = serving.locate(offset).unwrap();
        let bytes = std::fs::read(&found.path).unwrap();
        let (batch, _) = Batch::split_first(&bytes[found.position as usize..found.bytes as usize]).unwrap();
        assert!((offset - 100..=offset).contains(&batch.base_offset()));
        let next = segments.iter().map(|segment| segment.base_offset).find(|base| *base > found.base_offset);
        assert_eq!(found.next_segment, next);
    }
    let past = serving.locate(2000);
    assert!(matches!(past, Err(QueueError::OutOfRange { offset: 2000, start: 0, end: 2000 })));
    let mut appender = queue.appender().unwrap();
    appender.lock().unwrap().delete_before(1000);
    assert!(matches!(serving.locate(999), Err(QueueError::OutOfRange { start: 1000, .. })));
    assert!(serving.locate(1000).unwrap().base_offset <= 1000);
    assert!(queue.segments().unwrap()[0].base_offset > 0, "segments before it are gone");
    assert_eq!(queue.first_at(0).unwrap().unwrap().0, 1000);
}

#[test]
fn a_broker_that_sleeps_is_woken_by_appends_to_any_queue_and_by_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let queues: Vec<_> = (0..3).map(|n| Queue::open(directory.path().join(n.to_string())).unwrap()).collect();
    let serving: Vec<_> = queues.iter().map(|queue| queue.serve().unwrap()).collect();
    let look = || serving.iter().map(|serving| (serving, serving.sequence())).collect::<Vec<_>>();
    let wait = |seen: Vec<(&Serving, u32)>, timeout: Duration| {
        let begun = Instant::now();
        match wait_any(&seen, Some(timeout)) {
            // An old kernel: the broker has a thread for each queue.
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::Unsupported),
            Ok(()) => return begun.elapsed(),
        }
        wait_any(&seen[2..], Some(timeout)).unwrap();
        begun.elapsed()
    };
    queues[2].append("not asked for").unwrap();
    let short = Duration::from_millis(50);
    assert!(wait(look(), short) >= short, "it slept on");
    serving.iter().for_each(|serving| serving.arm());
    // Taken before the append, so that the wait does not miss it.
    let seen = look();
    let long = Duration::from_secs(60);
    let waiting = Tid::own();
    let appended = std::thread::scope(|scope| {
        let appending = scope.spawn(|| {
            waiting.until_asleep();
            queues[2].append("now").unwrap();
        });
        let waited = wait(seen, long);
        appending.join().unwrap();
        waited
    });
    assert!(appended < long / 2, "{appended:?}");
    serving[1].notify();
    let seen = serving[2].sequence();
    queues[2].append("it was woken once").unwrap();
    assert_eq!(serving[2].sequence(), seen, "one wake-up for each sleep");
}

#[test]
fn a_named_tailer_can_be_found_moved_and_forgotten_unless_it_is_live() {
    let directory = tempfile::tempdir().unwrap();
    let queue = Queue::open(directory.path()).unwrap();
    for number in 0..10 {
        queue.append(format!("{number}")).unwrap();
    }
    assert_eq!(queue.find_tailer("me").unwrap(), None);
    assert!(!queue.remove_tailer("me").unwrap());
    let tailer = queue.tailer("me").unwrap();
    assert!(queue.find_tailer("me").unwrap().unwrap().is_live);
    assert!(matches!(queue.move_tailer("me", 3), Err(QueueError::TailerInUse { .. })));
    assert!(matches!(queue.remove_tailer("me"), Err(QueueError::TailerInUse { .. })));
    drop(tailer);
    queue.move_tailer("me", 7).unwrap();
    let found = queue.find_tailer("me").unwrap().unwrap();
    assert_eq!((found.position, found.lag, found.is_live), (7, 3, false));
    queue.move_tailer("me", 1000).unwrap();
    assert_eq!(queue.tailer("me").unwrap().position(), 10, "as far as there is something");
    assert!(queue.remove_tailer("me").unwrap());
    assert_eq!(queue.tailers().unwrap(), []);
    assert_eq!(queue.tailer("me").unwrap().position(), 0);
}

#[test]
fn a_restart_of_the_machine_begins_another_leader_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let queue = Queue::open(directory.path()).unwrap();
    queue.append("before").unwrap();
    drop(queue);
    // The control file has the id of another boot.
    let path = directory.path().join("queue.control");
    let mut control = std::fs::read(&path).unwrap();
    control[512] ^= 1;
    std::fs::write(&path, control).unwrap();
    let queue = Queue::open(directory.path()).unwrap();
    let serving = queue.serve().unwrap();
    assert_eq!((serving.leader_epoch(), serving.leader_epochs().unwrap()), (1, vec![(0, 0), (1, 1)]));
    queue.append("after").unwrap();
    let found = serving.locate(1).unwrap();
    let bytes = std::fs::read(found.path).unwrap();
    let (first, rest) = Batch::split_first(&bytes).unwrap();
    let (second, _) = Batch::split_first(rest).unwrap();
    assert_eq!([first, second].map(|batch| batch.partition_leader_epoch()), [0, 1]);
}
