//! A queue in one process.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use mainstem_queue::{Header, Options, Queue, QueueError, Start, Tailer, Wait, plan_repair, repair, verify};
use mainstem_records::Batch;

use crate::{TIMEOUT, Tid};

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("q")
    }

    /// Opens it with the smallest segments.
    fn small(&self) -> Queue {
        Options::new().segment_bytes(1).open(self.path()).unwrap()
    }
}

fn values(tailer: Tailer) -> Vec<String> {
    tailer.map(|message| String::from_utf8(message.unwrap().value().to_vec()).unwrap()).collect()
}

fn fill(queue: &Queue, numbers: Range<i64>, value: impl Fn(i64) -> String) {
    for number in numbers {
        assert_eq!(queue.append(value(number)).unwrap(), number);
    }
}

/// Base offsets of the segments in a directory.
fn segments(directory: &Path) -> Vec<i64> {
    let names =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut bases: Vec<i64> = names.filter_map(|name| name.strip_suffix(".log")?.parse().ok()).collect();
    bases.sort_unstable();
    bases
}

/// Makes the queue look as after a restart of the machine.
fn forget_boot(directory: &Path) {
    let control = fs::File::options().write(true).open(directory.join("queue.control")).unwrap();
    control.write_all_at(&[7; 16], 512).unwrap();
}

#[test]
fn messages_are_read_in_order_over_many_segments() {
    let dir = Dir::new();
    let queue = dir.small();
    let mut appender = queue.exclusive_appender().unwrap();
    let value = |number: i64| format!("{number} {}", "x".repeat(number as usize % 500));
    for number in 0..2_000 {
        assert_eq!(appender.append(value(number)).unwrap(), number);
    }
    assert!(segments(&dir.path()).len() > 5);
    let reader = queue.reader(Start::Earliest).unwrap();
    assert_eq!(values(reader), (0..2_000).map(value).collect::<Vec<_>>());
    // From anywhere, forwards and backwards.
    for offset in [0, 1, 17, 999, 1_000, 1_999] {
        let mut reader = queue.reader(Start::Offset(offset)).unwrap();
        assert_eq!(reader.read().unwrap().unwrap().offset, offset);
        assert_eq!(reader.position(), offset + 1);
        for back in (0..=offset).rev().take(150) {
            let message = reader.read_back().unwrap().unwrap();
            assert_eq!((message.offset(), message.value()), (back, value(back).as_bytes()));
        }
    }
    let mut end = queue.reader(Start::Latest).unwrap();
    assert!(end.read().unwrap().is_none());
    appender.append("one more").unwrap();
    assert_eq!(end.read().unwrap().unwrap().value, Some(&b"one more"[..]));
    let mut first = queue.reader(Start::Earliest).unwrap();
    assert!(first.read_back().unwrap().is_none());
    let error = queue.reader(Start::Offset(9_999)).unwrap_err();
    assert!(matches!(error, QueueError::OutOfRange { offset: 9_999, start: 0, end: 2_001 }), "{error}");
}

#[test]
fn keys_headers_and_timestamps_come_back_and_can_be_sought() {
    let dir = Dir::new();
    let queue = dir.small();
    let mut appender = queue.appender().unwrap();
    let headers = [Header { key: b"a", value: Some(b"1") }, Header { key: b"a", value: None }];
    for number in 0..3_000_i64 {
        let key = number.to_be_bytes();
        appender.append_with(Some(&key), &[0; 100], &headers, Some(1_000 + number / 10 * 10)).unwrap();
    }
    let mut reader = queue.reader(Start::Offset(1_234)).unwrap();
    let record = reader.read().unwrap().unwrap();
    assert_eq!((record.key, record.timestamp), (Some(&1_234_i64.to_be_bytes()[..]), 2_230));
    assert_eq!(record.headers.collect::<Vec<_>>(), headers);
    for (time, offset) in
        [(0, 0), (1_000, 0), (1_001, 10), (2_230, 1_230), (2_231, 1_240), (3_990, 2_990), (3_991, 3_000)]
    {
        assert_eq!(queue.reader(Start::Time(time)).unwrap().position(), offset, "{time}");
    }
}

#[test]
fn a_reservation_is_seen_when_it_is_committed_and_never_otherwise() {
    let dir = Dir::new();
    let queue = dir.small();
    for exclusive in [true, false] {
        let mut appender = if exclusive { queue.exclusive_appender() } else { queue.appender() }.unwrap();
        let next = queue.ends().next;
        let mut reservation = appender.reserve(5).unwrap();
        reservation.copy_from_slice(b"never");
        drop(reservation);
        appender.reserve(5).unwrap().roll_back();
        let mut reservation = appender.reserve(5).unwrap();
        assert_eq!(queue.ends().next, next);
        reservation.copy_from_slice(b"comes");
        assert_eq!(&*reservation, b"comes");
        assert_eq!(reservation.commit(), next);
    }
    assert_eq!(values(queue.reader(Start::Earliest).unwrap()), ["comes", "comes"]);
    // Nothing of what was rolled back is in the file.
    let log = fs::read(dir.path().join("00000000000000000000.log")).unwrap();
    assert!(!log.windows(5).any(|bytes| bytes == b"never"));
}

/// Safe code may leak a reservation, which holds the writer lock.
#[test]
fn a_reservation_that_is_leaked_is_taken_back_by_the_next_call_or_with_its_appender() {
    let dir = Dir::new();
    let options = Options::new().segment_bytes(1).lock_timeout(Some(Duration::ZERO));
    let queue = options.open(dir.path()).unwrap();
    for exclusive in [true, false] {
        let appender = || if exclusive { queue.exclusive_appender() } else { queue.appender() }.unwrap();
        let mut one = appender();
        let mut leaked = one.reserve(5).unwrap();
        leaked.copy_from_slice(b"never");
        std::mem::forget(leaked);
        one.append("comes").unwrap();
        std::mem::forget(one.reserve(5).unwrap());
        drop(one);
        appender().append("comes").unwrap();
    }
    assert_eq!(values(queue.reader(Start::Earliest).unwrap()), ["comes"; 4]);
    let log = fs::read(dir.path().join("00000000000000000000.log")).unwrap();
    assert!(!log.windows(5).any(|bytes| bytes == b"never"));
}

#[test]
fn a_batch_is_one_batch_and_positions_within_it_are_found() {
    let dir = Dir::new();
    let queue = dir.small();
    let mut appender = queue.appender().unwrap();
    for batch in 0..5 {
        let mut messages = appender.batch();
        assert!(messages.is_empty());
        (0..10).for_each(|number| messages.push(format!("{}", batch * 10 + number)).unwrap());
        assert_eq!(messages.len(), 10);
        assert_eq!(messages.commit().unwrap(), batch * 10);
    }
    assert!(matches!(appender.batch().commit(), Err(QueueError::Build(_))));
    let log = fs::read(dir.path().join("00000000000000000000.log")).unwrap();
    let (batch, _) = Batch::split_first(&log).unwrap();
    assert_eq!((batch.record_count(), batch.verify_crc()), (10, true));
    let mut reader = queue.reader(Start::Offset(37)).unwrap();
    assert_eq!(reader.read().unwrap().unwrap().value, Some(&b"37"[..]));
    assert_eq!(reader.read_back().unwrap().unwrap().value(), b"37");
    assert_eq!(reader.read_back().unwrap().unwrap().value(), b"36");
    assert_eq!(reader.read_back().unwrap().unwrap().value(), b"35");
    assert_eq!(values(reader), (35..50).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[test]
fn a_named_tailer_goes_on_where_it_was_and_is_listed() {
    let dir = Dir::new();
    let queue = dir.small();
    fill(&queue, 0..10, |number| format!("{number}"));
    let mut me = queue.tailer("me/you").unwrap();
    (0..4).for_each(|_| assert!(me.read().unwrap().is_some()));
    // The fourth message was returned, and is not done.
    let [listed] = &queue.tailers().unwrap()[..] else { panic!() };
    assert_eq!((&*listed.name, listed.position, listed.lag, listed.is_live), ("me/you", 3, 7, true));
    assert!(matches!(queue.tailer("me/you"), Err(QueueError::TailerInUse { .. })));
    drop(me);
    assert!(!queue.tailers().unwrap()[0].is_live);
    let again = Queue::open(dir.path()).unwrap().tailer("me/you").unwrap();
    assert_eq!(values(again), ["3", "4", "5", "6", "7", "8", "9"]);
    assert_eq!(queue.tailers().unwrap()[0].lag, 0);
    assert!(matches!(queue.tailer(""), Err(QueueError::TailerName { .. })));
}

#[test]
fn an_exclusive_appender_is_alone() {
    let dir = Dir::new();
    let queue = dir.small();
    queue.append("shared").unwrap();
    let exclusive = queue.exclusive_appender().unwrap();
    let other = Queue::open(dir.path()).unwrap();
    assert!(matches!(other.exclusive_appender(), Err(QueueError::Busy { .. })));
    assert!(matches!(other.append("no"), Err(QueueError::Busy { .. })));
    drop(exclusive);
    other.append("shared again").unwrap();
    assert!(matches!(queue.exclusive_appender(), Err(QueueError::Busy { .. })));
    assert_eq!(values(queue.reader(Start::Earliest).unwrap()), ["shared", "shared again"]);
}

#[test]
fn a_sleeping_reader_is_woken_and_a_time_out_ends_it() {
    let dir = Dir::new();
    let queue = dir.small();
    for how in [Wait::Spin, Wait::Yield, Wait::Sleep] {
        let mut reader = queue.reader(Start::Latest).unwrap();
        assert!(!reader.wait(how, Some(Duration::from_millis(20))));
        let (sender, tids) = mpsc::channel();
        let waiter = thread::spawn(move || {
            sender.send(Tid::own()).unwrap();
            let waited = reader.wait(how, Some(TIMEOUT));
            (waited, reader.read().unwrap().map(|record| record.value == Some(b"wake up")))
        });
        let waiting = tids.recv().unwrap();
        if how == Wait::Sleep {
            waiting.until_asleep();
        }
        queue.append("wake up").unwrap();
        assert_eq!(waiter.join().unwrap(), (true, Some(true)), "{how:?}");
    }
}

#[test]
fn a_reader_does_not_sleep_through_the_death_of_the_one_that_was_to_wake_it() {
    let dir = Dir::new();
    let queue = dir.small();
    let mut reader = queue.reader(Start::Latest).unwrap();
    let waiter = thread::spawn(move || {
        assert!(reader.wait(Wait::Sleep, Some(TIMEOUT * 10)));
        values(reader)
    });
    let control = fs::File::options().read(true).write(true).open(dir.path().join("queue.control")).unwrap();
    // The word of the sleepers, see docs/format.md. A publisher has cleared it and died.
    let mut word = [0; 4];
    while word == [0; 4] {
        control.read_exact_at(&mut word, 4096 + 64).unwrap();
    }
    let begin = Instant::now();
    control.write_all_at(&[0; 4], 4096 + 64).unwrap();
    queue.append("read all the same").unwrap();
    assert_eq!(waiter.join().unwrap(), ["read all the same"]);
    assert!(begin.elapsed() < TIMEOUT, "{:?}", begin.elapsed());
}

#[test]
fn old_segments_go_by_size_by_age_and_not_before_a_named_tailer() {
    let fill = |queue: &Queue, timestamp: Option<i64>| {
        let mut appender = queue.appender().unwrap();
        for _ in 0..1_000 {
            appender.append_with(None, &[1; 500], &[], timestamp).unwrap();
        }
    };
    let dir = Dir::new();
    let queue = Options::new().segment_bytes(1).retention_bytes(200_000).open(dir.path()).unwrap();
    fill(&queue, None);
    let bases = segments(&dir.path());
    assert!((2..=5).contains(&bases.len()), "{bases:?}");
    assert_eq!(queue.ends().start, bases[0]);
    assert_eq!(queue.reader(Start::Earliest).unwrap().read().unwrap().unwrap().offset, bases[0]);
    assert!(matches!(queue.reader(Start::Offset(0)), Err(QueueError::OutOfRange { .. })));

    let dir = Dir::new();
    let options = Options::new().segment_bytes(1).retention(Duration::from_secs(60)).keep_for_tailers(true);
    let queue = options.open(dir.path()).unwrap();
    let mut slow = queue.tailer("slow").unwrap();
    fill(&queue, Some(1));
    assert_eq!(segments(&dir.path())[0], 0);
    slow.seek(Start::Latest).unwrap();
    fill(&queue, None);
    let first = segments(&dir.path())[0];
    assert!((800..=1_000).contains(&first), "{first}");
}

#[test]
fn what_was_synced_survives_the_power_and_a_torn_tail_is_cut() {
    let dir = Dir::new();
    let queue = dir.small();
    let long = |number| format!("{number} {}", "y".repeat(400));
    fill(&queue, 0..500, long);
    assert_eq!(queue.ends().synced, 0);
    assert_eq!(queue.sync().unwrap(), 500);
    fill(&queue, 500..900, long);
    assert_eq!((queue.ends().synced, queue.ends().next), (500, 900));
    drop(queue);
    // After the power cut the last segment has lost a page; the earlier ones are whole.
    let bases = segments(&dir.path());
    let last = dir.path().join(format!("{:020}.log", bases[bases.len() - 1]));
    let torn = fs::File::options().write(true).open(&last).unwrap();
    torn.write_all_at(&[0; 4096], 4096).unwrap();
    forget_boot(&dir.path());
    // The lock was held then.
    let control = fs::File::options().write(true).open(dir.path().join("queue.control")).unwrap();
    control.write_all_at(&[1, 4, 0, 0x80], 4096 + 128).unwrap();

    let queue = Queue::open(dir.path()).unwrap();
    let ends = queue.ends();
    assert!(ends.next >= 500 && ends.next < 900 && ends.synced == ends.next, "{ends:?}");
    let read = values(queue.reader(Start::Earliest).unwrap());
    assert_eq!(read.len() as i64, ends.next);
    assert!(read.iter().enumerate().all(|(number, value)| value.starts_with(&format!("{number} "))));
    assert_eq!(queue.append("continues").unwrap(), ends.next);
    assert_eq!(
        queue.reader(Start::Offset(ends.next)).unwrap().read().unwrap().unwrap().value,
        Some(&b"continues"[..])
    );
    // Indexes are right again.
    for offset in (0..ends.next).step_by(37) {
        assert_eq!(queue.reader(Start::Offset(offset)).unwrap().read().unwrap().unwrap().offset, offset);
    }
}

/// Depth asks for more by it; see CONTRIBUTING.md.
fn power_cuts() -> u64 {
    std::env::var("TEST_QUEUE_POWER_CUTS").ok().and_then(|value| value.parse().ok()).unwrap_or(60)
}

/// Numbers that look random, the same for one seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The number of bytes of a segment with messages before `offset`.
fn bytes_before(log: &[u8], offset: i64) -> usize {
    let mut at = 0;
    while let Ok((batch, _)) = Batch::split_first(&log[at..]) {
        if batch.base_offset() >= offset {
            break;
        }
        at += batch.size();
    }
    at
}

/// Does to a queue what a power cut may do to unsynced data. Each page is there, lost or torn; new files may be missing;
/// lengths that were cut may be the earlier ones.
fn cut_the_power(directory: &Path, synced: i64, controls: &[Vec<u8>], dice: &mut Dice) {
    let file = |base: i64, extension: &str| directory.join(format!("{base:020}.{extension}"));
    for base in segments(directory) {
        if base > synced && dice.below(4) == 0 {
            fs::remove_file(file(base, "log")).unwrap();
            continue;
        }
        let mut log = fs::read(file(base, "log")).unwrap();
        let kept = bytes_before(&log, synced);
        if dice.below(2) == 0 {
            log.resize(64 << 10, 0);
        }
        for page in (0..log.len()).step_by(4_096) {
            let end = (page + 4_096).min(log.len());
            let from = match dice.below(4) {
                0 => page,
                1 => page + 512 * dice.below(8) as usize,
                _ => continue,
            };
            log[from.max(kept).min(end)..end].fill(0);
        }
        // Segments that were closed before the sync are on disk with their indexes.
        if kept < bytes_before(&log, i64::MAX) || base >= synced {
            fs::write(file(base, "log"), &log).unwrap();
            fs::write(file(base, "index"), vec![dice.below(256) as u8; dice.below(3) as usize * 8]).unwrap();
        }
    }
    let control = &controls[dice.below(controls.len() as u64) as usize];
    fs::write(directory.join("queue.control"), control).unwrap();
    forget_boot(directory);
}

#[test]
fn power_cuts_take_nothing_that_was_synced() {
    for seed in 0..power_cuts() {
        let dice = &mut Dice(seed);
        let dir = Dir::new();
        let value = |number: i64| format!("{number} {}", "y".repeat((number * 131 % 900) as usize));
        let queue = dir.small();
        let control = || fs::read(dir.path().join("queue.control")).unwrap();
        let mut controls = vec![control()];
        let synced = dice.below(500) as i64;
        fill(&queue, 0..synced, value);
        assert_eq!(queue.sync().unwrap(), synced);
        controls.push(control());
        let end = synced + dice.below(500) as i64;
        fill(&queue, synced..end, value);
        controls.push(control());
        drop(queue);
        cut_the_power(&dir.path(), synced, &controls, dice);

        let queue = Queue::open(dir.path()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let ends = queue.ends();
        assert!((synced..=end).contains(&ends.next), "seed {seed}: {ends:?}, synced {synced}, end {end}");
        let read = values(queue.reader(Start::Earliest).unwrap());
        assert_eq!(read, (0..ends.next).map(value).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(queue.append("continues").unwrap(), ends.next, "seed {seed}");
        let found = verify(dir.path()).unwrap();
        assert!(found.is_sound(), "seed {seed}: {:?}", found.all_faults().collect::<Vec<_>>());
    }
}

#[test]
fn a_tailer_passes_over_nothing_that_comes_in_place_of_what_a_power_cut_took() {
    let dir = Dir::new();
    for is_repaired in [false, true] {
        let queue = dir.small();
        let first = queue.ends().next;
        fill(&queue, first..first + 50, |number| format!("{number}"));
        assert_eq!(queue.sync().unwrap(), first + 50);
        fill(&queue, first + 50..first + 100, |_| "read, and taken".to_owned());
        let mut tailer = queue.tailer("me").unwrap();
        while tailer.read().unwrap().is_some() {}
        assert_eq!(tailer.position(), first + 100);
        drop((queue, tailer));
        let log = dir.path().join("00000000000000000000.log");
        let kept = bytes_before(&fs::read(&log).unwrap(), first + 50);
        overwrite(&log, kept as u64, &[0; 4_096]);
        match is_repaired {
            true => assert_eq!(repair(dir.path(), &Options::new()).unwrap().lost, 50),
            false => forget_boot(&dir.path()),
        }
        let queue = dir.small();
        fill(&queue, first + 50..first + 120, |number| format!("new {number}"));
        let read = values(queue.tailer("me").unwrap());
        assert_eq!(read, (first + 50..first + 120).map(|number| format!("new {number}")).collect::<Vec<_>>());
        queue.sync().unwrap();
    }
}

#[test]
fn a_power_cut_that_takes_what_was_synced_is_named() {
    let dir = Dir::new();
    let queue = dir.small();
    fill(&queue, 0..100, |_| "z".repeat(300));
    queue.sync().unwrap();
    drop(queue);
    let log = fs::File::options().write(true).open(dir.path().join("00000000000000000000.log")).unwrap();
    log.write_all_at(&[9], 5_000).unwrap();
    forget_boot(&dir.path());
    let error = Queue::open(dir.path()).unwrap_err();
    assert!(matches!(error, QueueError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("mainstem queue repair"), "{error}");
}

/// All files below a directory with their bytes.
fn contents(directory: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        }
        found.push((path.clone(), fs::read(&path).ok()));
    }
    found.sort();
    found
}

#[test]
fn no_queue_is_made_or_repaired_within_a_brokers_log_directory() {
    let dir = Dir::new();
    fill(&dir.small(), 0..10, |number| number.to_string());
    let log_directory = dir.0.path().join("data");
    let partition = log_directory.join("t-0");
    fs::create_dir(&log_directory).unwrap();
    fs::rename(dir.path(), &partition).unwrap();
    fs::write(log_directory.join("meta.properties"), "version=1\ncluster.id=c\nnode.id=1\n").unwrap();
    // With the control file of a queue, as an earlier repair left it, and without one.
    for has_control in [true, false] {
        if !has_control {
            fs::remove_file(partition.join("queue.control")).unwrap();
        }
        let before = contents(&log_directory);
        for path in [&log_directory, &log_directory.join("new"), &partition] {
            for create in [true, false] {
                let error = Options::new().create(create).open(path).unwrap_err();
                assert!(matches!(error, QueueError::OfBroker { .. }), "{error}");
                assert!(error.to_string().contains("choose another directory"), "{error}");
            }
            for error in [repair(path, &Options::new()).unwrap_err(), plan_repair(path).unwrap_err()] {
                assert!(matches!(error, QueueError::OfBroker { .. }), "{error}");
                assert!(error.to_string().contains("the broker checks and repairs"), "{error}");
            }
        }
        assert_eq!(contents(&log_directory), before);
    }
    // A copy elsewhere belongs to no broker.
    fs::rename(&partition, dir.path()).unwrap();
    assert_eq!(repair(dir.path(), &Options::new()).unwrap().next_offset, 10);
}

#[test]
fn a_reader_finds_damage_by_the_crc() {
    let dir = Dir::new();
    let queue = dir.small();
    fill(&queue, 0..10, |_| "z".repeat(300));
    let log = fs::File::options().write(true).open(dir.path().join("00000000000000000000.log")).unwrap();
    log.write_all_at(&[9], 1_000).unwrap();
    let mut reader = queue.reader(Start::Earliest).unwrap();
    let mut read = 0;
    let error = loop {
        match reader.read() {
            Ok(Some(_)) => read += 1,
            Ok(None) => panic!("the damage was not seen"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, QueueError::Damaged { offset: 2, .. }) && read == 2, "{read}: {error}");
}

#[test]
fn what_is_no_queue_is_said_clearly() {
    let dir = Dir::new();
    let error = Options::new().create(false).open(dir.path()).unwrap_err();
    assert!(matches!(error, QueueError::NoQueue { .. }), "{error}");
    // A broker's partition.
    fs::create_dir(dir.path()).unwrap();
    fs::write(dir.path().join("00000000000000000000.log"), "").unwrap();
    let error = Queue::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("a broker's partition"), "{error}");
    fs::remove_file(dir.path().join("00000000000000000000.log")).unwrap();
    drop(Queue::open(dir.path()).unwrap());
    let control = fs::File::options().write(true).open(dir.path().join("queue.control")).unwrap();
    control.write_all_at(&[1], 8).unwrap();
    assert!(matches!(Queue::open(dir.path()), Err(QueueError::OtherVersion { found: 1, known: 3, .. })));
    control.write_all_at(&[2], 8).unwrap();
    control.write_all_at(&[0xff], 20).unwrap();
    let error = Queue::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("is damaged"), "{error}");
    control.write_all_at(b"something else", 0).unwrap();
    let error = Queue::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("is not a queue's control file"), "{error}");
}

#[test]
fn a_queue_of_version_2_is_used_as_it_is() {
    let dir = Dir::new();
    drop(Queue::open(dir.path()).unwrap());
    let control = fs::File::options().read(true).write(true).open(dir.path().join("queue.control")).unwrap();
    control.write_all_at(&[2], 8).unwrap();
    let queue = Queue::open(dir.path()).unwrap();
    let mut reader = queue.reader(Start::Earliest).unwrap();
    let appending = thread::spawn(move || {
        let mut appender = queue.exclusive_appender().unwrap();
        for number in 0..100 {
            // A pace at which the reader sleeps before most messages.
            thread::sleep(Duration::from_millis(1));
            appender.append(format!("message {number}")).unwrap();
        }
    });
    for number in 0..100 {
        assert!(reader.wait(Wait::Sleep, Some(TIMEOUT)));
        assert_eq!(reader.read().unwrap().unwrap().offset, number);
    }
    appending.join().unwrap();
    let mut version = [0];
    control.read_exact_at(&mut version, 8).unwrap();
    assert_eq!(version, [2]);
}

#[test]
fn reading_needs_no_write_permission() {
    let dir = Dir::new();
    let queue = dir.small();
    queue.append("readable").unwrap();
    for entry in fs::read_dir(dir.path()).unwrap() {
        fs::set_permissions(entry.unwrap().path(), fs::Permissions::from_mode(0o444)).unwrap();
    }
    let reading = Options::new().read_only(true).open(dir.path()).unwrap();
    let mut reader = reading.reader(Start::Earliest).unwrap();
    assert_eq!(reader.read().unwrap().unwrap().value, Some(&b"readable"[..]));
    assert!(matches!(reading.append("no"), Err(QueueError::ReadOnly { .. })));
    assert!(matches!(reading.tailer("no"), Err(QueueError::ReadOnly { .. })));
    assert!(!reader.wait(Wait::Sleep, Some(Duration::from_millis(10))));
    queue.append("more").unwrap();
    assert!(reader.wait(Wait::Sleep, Some(TIMEOUT)));
    assert_eq!(reader.read().unwrap().unwrap().value, Some(&b"more"[..]));
}

#[test]
fn a_message_larger_than_a_segment_is_refused_and_the_queue_goes_on() {
    let dir = Dir::new();
    let queue = dir.small();
    let error = queue.append(vec![0; 70_000]).unwrap_err();
    assert!(matches!(error, QueueError::TooLarge { .. }), "{error}");
    assert_eq!(queue.append("fits").unwrap(), 0);
}

#[test]
fn segments_that_were_prepared_are_as_others_and_half_of_one_is_none() {
    let dir = Dir::new();
    let queue = dir.small();
    let spare = |extension: &str| dir.path().join(format!("{extension}.spare"));
    let prepared = queue.prepare_ahead().unwrap();
    assert!(spare("log").exists());
    let mut appender = queue.exclusive_appender().unwrap();
    let value = |number: i64| format!("{number} {}", "x".repeat(number as usize % 900));
    for number in 0..2_000 {
        assert_eq!(appender.append(value(number)).unwrap(), number);
    }
    drop(prepared);
    drop(appender);
    // A process died while it made the spare files, or while it renamed them.
    for (lost, number) in [("timeindex", 2_000), ("index", 3_000)] {
        drop(queue.prepare_ahead().unwrap());
        fs::remove_file(spare(lost)).unwrap();
        fill(&queue, number..number + 1_000, value);
        assert!(!spare("log").exists());
    }
    drop(queue.prepare_ahead().unwrap());
    fs::write(spare("log"), "cut short").unwrap();
    fill(&queue, 4_000..5_000, value);
    assert_eq!(values(queue.reader(Start::Earliest).unwrap()), (0..5_000).map(value).collect::<Vec<_>>());
    let found = verify(dir.path()).unwrap();
    assert!(found.is_sound() && found.segments.len() > 20, "{:?}", found.all_faults().collect::<Vec<_>>());
}

#[test]
fn a_segment_is_closed_when_it_is_old() {
    let dir = Dir::new();
    let queue =
        Options::new().segment_bytes(1).roll_after(Duration::from_millis(30)).open(dir.path()).unwrap();
    queue.append("one").unwrap();
    // Old enough for the rule.
    thread::sleep(Duration::from_millis(40));
    queue.append("two").unwrap();
    assert_eq!(segments(&dir.path()), [0, 1]);
    assert_eq!(values(queue.reader(Start::Earliest).unwrap()), ["one", "two"]);
}

#[test]
fn threads_append_together_while_others_read() {
    let dir = Dir::new();
    let queue = dir.small();
    let begin = Instant::now();
    thread::scope(|scope| {
        for writer in 0..4 {
            let queue = queue.clone();
            scope.spawn(move || {
                let mut appender = queue.appender().unwrap();
                for number in 0..5_000 {
                    appender.append(format!("{writer} {number}")).unwrap();
                }
            });
        }
        for _ in 0..2 {
            let mut reader = queue.reader(Start::Earliest).unwrap();
            scope.spawn(move || {
                let mut next = [0; 4];
                for message in reader.follow(Wait::Sleep).take(20_000) {
                    let message = message.unwrap();
                    let text = str::from_utf8(message.value()).unwrap();
                    let (writer, number) = text.split_once(' ').unwrap();
                    let writer: usize = writer.parse().unwrap();
                    assert_eq!(number.parse(), Ok(next[writer]));
                    next[writer] += 1;
                }
                assert_eq!(next, [5_000; 4]);
            });
        }
    });
    assert!(begin.elapsed() < Duration::from_secs(60));
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

#[test]
fn a_control_file_that_a_power_cut_took_is_rebuilt_from_the_segments() {
    let dir = Dir::new();
    let queue = dir.small();
    fill(&queue, 0..500, |number| format!("{number} {}", "y".repeat(400)));
    queue.sync().unwrap();
    drop(queue);
    let control = dir.path().join("queue.control");
    overwrite(&control, 0, &vec![0; fs::metadata(&control).unwrap().len() as usize]);
    let queue = dir.small();
    assert_eq!(queue.ends(), mainstem_queue::Ends { start: 0, synced: 500, next: 500 });
    assert_eq!(queue.append("continues").unwrap(), 500);
    assert_eq!(values(queue.reader(Start::Earliest).unwrap()).len(), 501);
    assert!(verify(dir.path()).unwrap().is_sound());
}

#[test]
fn verify_names_each_damage_and_is_silent_beside_appends() {
    let dir = Dir::new();
    let queue = dir.small();
    fill(&queue, 0..1_000, |number| format!("{number} {}", "y".repeat(300)));
    let sound = verify(dir.path()).unwrap();
    assert!(sound.is_sound(), "{sound:?}");
    let bases = segments(&dir.path());
    assert_eq!(sound.segments.iter().map(|check| check.base_offset).collect::<Vec<_>>(), bases);
    assert_eq!(sound.segments.iter().map(|check| check.batches).sum::<u64>(), 1_000);
    assert_eq!(sound.segments.last().unwrap().next_offset, 1_000);
    thread::scope(|scope| {
        scope.spawn(|| fill(&queue, 1_000..6_000, |number| format!("{number} {}", "y".repeat(300))));
        while queue.ends().next < 6_000 {
            let found = verify(dir.path()).unwrap();
            assert!(found.is_sound(), "{:?}", found.all_faults().collect::<Vec<_>>());
        }
    });
    // One bit of a closed segment, of an index, and a whole segment.
    let file = |base: i64, extension: &str| dir.path().join(format!("{base:020}.{extension}"));
    overwrite(&file(bases[1], "log"), 5_000, &[0xff; 2]);
    overwrite(&file(bases[0], "index"), 4, &[0, 0, 0, 9]);
    fs::remove_file(file(bases[3], "log")).unwrap();
    let found = verify(dir.path()).unwrap();
    let faults: Vec<_> = found.all_faults().collect();
    assert_eq!(faults.len(), 3, "{faults:?}");
    for (fault, what) in faults.iter().zip(["begins at offset", "entry 0 of its index", "its CRC"]) {
        assert!(fault.contains(what), "{faults:?}");
    }
}

#[test]
fn repair_cuts_at_the_first_damage_and_not_under_others() {
    let dir = Dir::new();
    let queue = dir.small();
    fill(&queue, 0..1_000, |number| format!("{number} {}", "y".repeat(300)));
    queue.sync().unwrap();
    let options = Options::new();
    assert!(matches!(repair(dir.path(), &options), Err(QueueError::Busy { .. })));
    let mut tailer = queue.tailer("slow").unwrap();
    assert!(tailer.read().unwrap().is_some());
    drop(queue);
    assert!(matches!(repair(dir.path(), &options), Err(QueueError::Busy { .. })));
    drop(tailer);
    let bases = segments(&dir.path());
    overwrite(&dir.path().join(format!("{:020}.log", bases[2])), 5_000, &[0xff; 2]);
    assert!(!verify(dir.path()).unwrap().is_sound());
    let planned = plan_repair(dir.path()).unwrap();
    assert!(!verify(dir.path()).unwrap().is_sound(), "a plan changes nothing");
    let repaired = repair(dir.path(), &options).unwrap();
    assert_eq!(planned, repaired);
    assert!((bases[2]..bases[3]).contains(&repaired.next_offset), "{repaired:?}");
    assert_eq!((repaired.lost as i64, repaired.control_rebuilt), (1_000 - repaired.next_offset, false));
    assert!(verify(dir.path()).unwrap().is_sound());
    let queue = Queue::open(dir.path()).unwrap();
    assert_eq!(queue.append("continues").unwrap(), repaired.next_offset);
    assert_eq!(queue.tailers().unwrap()[0].position, 0);
    drop(queue);
    // And without a control file.
    fs::remove_file(dir.path().join("queue.control")).unwrap();
    assert!(matches!(verify(dir.path()), Err(QueueError::NoQueue { .. })));
    let planned = plan_repair(dir.path()).unwrap();
    assert!(!dir.path().join("queue.control").exists(), "a plan changes nothing");
    let again = repair(dir.path(), &options).unwrap();
    assert_eq!(planned, again);
    assert_eq!((again.next_offset, again.control_rebuilt), (repaired.next_offset + 1, true));
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(repair(empty.path(), &options), Err(QueueError::NoQueue { .. })));
}

#[test]
fn repair_rewrites_what_a_failed_sync_leaves_unsynced() {
    /// The place of the word in the control file, as docs/format.md has it.
    const SYNC_FAILED: u64 = 4096 + 272;
    let dir = Dir::new();
    let queue = dir.small();
    fill(&queue, 0..300, |number| format!("{number} {}", "y".repeat(400)));
    queue.sync().unwrap();
    fill(&queue, 300..900, |number| format!("{number} {}", "y".repeat(400)));
    overwrite(&dir.path().join("queue.control"), SYNC_FAILED, &[1]);
    let error = queue.sync().unwrap_err();
    assert!(matches!(error, QueueError::SyncFailed { synced: 300, .. }), "{error}");
    assert!(error.to_string().contains("`mainstem queue repair`"), "{error}");
    let before = values(queue.reader(Start::Earliest).unwrap());
    drop(queue);
    let repaired = repair(dir.path(), &Options::new()).unwrap();
    assert_eq!((repaired.next_offset, repaired.lost, repaired.control_rebuilt), (900, 0, false));
    let queue = dir.small();
    assert_eq!(queue.append("continues").unwrap(), 900);
    assert_eq!(queue.sync().unwrap(), 901);
    assert_eq!(values(queue.reader(Start::Earliest).unwrap())[..900], before);
}

#[test]
fn a_reader_of_what_is_synced_waits_for_the_sync() {
    let dir = Dir::new();
    let queue = dir.small();
    fill(&queue, 0..3, |number| format!("{number}"));
    let mut reader = queue.reader(Start::Earliest).unwrap().synced_only(true);
    assert!(reader.read().unwrap().is_none());
    assert!(!reader.wait(Wait::Sleep, Some(Duration::from_millis(10))));
    let (sender, tids) = mpsc::channel();
    let waiter = thread::spawn(move || {
        sender.send(Tid::own()).unwrap();
        assert!(reader.wait(Wait::Sleep, Some(TIMEOUT)));
        values(reader)
    });
    tids.recv().unwrap().until_asleep();
    assert_eq!(queue.sync().unwrap(), 3);
    fill(&queue, 3..5, |number| format!("{number}"));
    assert_eq!(waiter.join().unwrap(), ["0", "1", "2"]);

    let syncing = queue.sync_every(Duration::from_millis(5)).unwrap();
    let mut reader = queue.reader(Start::Offset(3)).unwrap().synced_only(true);
    assert!(reader.wait(Wait::Sleep, Some(TIMEOUT)));
    assert_eq!(values(reader), ["3", "4"]);
    assert!(syncing.is_running());
    queue.append("at the end").unwrap();
    assert_eq!(syncing.finish().unwrap(), 6);
    assert_eq!(queue.ends().synced, 6);
}

#[test]
fn a_next_offset_that_no_bytes_follow_is_damage_and_not_waited_for() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("q");
    let queue = Queue::open(&directory).unwrap();
    queue.append(b"one").unwrap();
    let control = std::fs::File::options().write(true).open(directory.join("queue.control")).unwrap();
    // The word of the next offset: docs/format.md.
    std::os::unix::fs::FileExt::write_all_at(&control, &100i64.to_le_bytes(), 4096 + 240).unwrap();
    let mut reader = queue.reader(Start::Earliest).unwrap();
    let mut followed = reader.follow(Wait::Yield);
    assert_eq!(followed.next().unwrap().unwrap().value(), b"one");
    let error = followed.next().unwrap().unwrap_err();
    assert!(matches!(error, QueueError::Damaged { offset: 1, .. }), "{error}");
    assert!(error.to_string().contains("before offset 100"), "{error}");
}

/// The resident bytes of a directory's mapped files in this process, by the kernel's count.
pub(crate) fn resident(directory: &Path) -> usize {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let directory = directory.canonicalize().unwrap();
    let directory = directory.to_str().unwrap();
    let (mut is_ours, mut kib) = (false, 0);
    for line in smaps.lines() {
        match line.split_once(':') {
            Some(("Rss", rest)) if is_ours => {
                kib += rest.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
            }
            Some((field, _)) if field.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_') => {}
            // The first line of the next mapping, with its file.
            _ => is_ours = line.contains(directory),
        }
    }
    kib << 10
}

#[test]
fn what_was_read_and_written_long_ago_is_not_kept_resident() {
    const RESIDENT: usize = 256 << 10;
    let dir = Dir::new();
    let options = Options::new().segment_bytes(16 << 20).resident_bytes(RESIDENT);
    let queue = options.open(dir.path()).unwrap();
    let (mut appender, mut tailer) =
        (queue.exclusive_appender().unwrap(), queue.reader(Start::Earliest).unwrap());
    let mut most = 0;
    for round in 0..12 {
        for number in 0..256 {
            assert_eq!(appender.append([1; 4_000]).unwrap(), round * 256 + number);
        }
        while tailer.read().unwrap().is_some() {}
        most = most.max(resident(&dir.path()));
    }
    assert_eq!(tailer.position(), 12 * 256);
    // The tailer has twice as much, the appender a quarter more; pieces of 64 KiB at both ends of each, the indexes, the control file.
    let bound = 2 * RESIDENT + RESIDENT + RESIDENT / 4 + (512 << 10);
    assert!(most <= bound, "{most} bytes of 12 MiB are resident, and {bound} may be");
    assert!(most > RESIDENT / 2, "{most} bytes are resident: not those of this queue are counted");
    // A reader can read it once more.
    tailer.seek(Start::Earliest).unwrap();
    assert_eq!(tailer.read().unwrap().unwrap().value, Some([1; 4_000].as_slice()));
}
