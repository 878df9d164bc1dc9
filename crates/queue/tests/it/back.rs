//! Backward reads, mixed with all other moves of a tailer.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use mainstem_queue::{Options, Queue, Start, Tailer, Wait, repair};
use mainstem_records::{BatchBuilder, BatchOptions, Compression};

use crate::queue::{Dice, resident};

/// More records than the window has of one batch.
const MANY: u64 = 5_000;

/// A queue of a broker's batches, and the messages in it.
struct Model {
    dir: tempfile::TempDir,
    messages: Vec<(i64, Vec<u8>)>,
    end: i64,
    log: Vec<u8>,
    base: i64,
}

impl Model {
    fn new() -> Model {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("q")).unwrap();
        Model { dir, messages: Vec::new(), end: 0, log: Vec::new(), base: 0 }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("q")
    }

    fn batch(&mut self, options: BatchOptions, deltas: &[i32], last_delta: i32) {
        let base = self.end;
        let mut builder =
            BatchBuilder::new(BatchOptions { base_offset: base, partition_leader_epoch: 0, ..options });
        let is_control = builder.options_mut().is_control;
        for delta in deltas {
            let offset = base + i64::from(*delta);
            let value = format!("{offset} {}", "x".repeat(offset as usize % 50)).into_bytes();
            builder.append_at(*delta, offset, None, Some(&value), &[]).unwrap();
            if !is_control {
                self.messages.push((offset, value));
            }
        }
        let mut bytes = builder.build().unwrap();
        // Compaction keeps the last offset of a batch whose last records are gone.
        bytes[23..27].copy_from_slice(&last_delta.to_be_bytes());
        let crc = crc32c::crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        self.log.extend_from_slice(&bytes);
        self.end += i64::from(last_delta) + 1;
    }

    /// A batch of random size, codec and gaps, or one of control records.
    fn any_batch(&mut self, dice: &mut Dice) {
        if dice.below(6) == 0 {
            return self.batch(BatchOptions { is_control: true, ..BatchOptions::default() }, &[0], 0);
        }
        let codecs = [Compression::None, Compression::Lz4, Compression::Zstd, Compression::Gzip];
        let compression = codecs[dice.below(4) as usize];
        let count = match dice.below(20) {
            0..8 => 1,
            8..12 => 2,
            19 => MANY / 2 + dice.below(MANY),
            _ => 3 + dice.below(60),
        };
        let with_gaps = dice.below(2) == 0;
        let mut gap = || if with_gaps && dice.below(3) == 0 { 1 + dice.below(4) as i32 } else { 0 };
        let mut deltas = Vec::new();
        let mut next = gap();
        for _ in 0..count {
            deltas.push(next);
            next += 1 + gap();
        }
        self.batch(BatchOptions { compression, ..BatchOptions::default() }, &deltas, next - 1);
    }

    fn roll(&mut self) {
        fs::write(self.path().join(format!("{:020}.log", self.base)), &self.log).unwrap();
        self.log.clear();
        self.base = self.end;
    }

    fn random(dice: &mut Dice) -> (Model, Queue) {
        let mut model = Model::new();
        for _ in 0..=dice.below(3) {
            (0..=dice.below(40)).for_each(|_| model.any_batch(dice));
            model.roll();
        }
        let queue = model.finish();
        let mut appender = queue.appender().unwrap();
        for _ in 0..dice.below(300) {
            let value = format!("appended {}", model.end).into_bytes();
            assert_eq!(appender.append(&value).unwrap(), model.end);
            model.messages.push((model.end, value));
            model.end += 1;
        }
        drop(appender);
        (model, queue)
    }

    /// Makes a queue of the segments.
    fn finish(&mut self) -> Queue {
        repair(self.path(), &Options::new().segment_bytes(1)).unwrap();
        let queue = Queue::open(self.path()).unwrap();
        assert_eq!(queue.ends().next, self.end);
        queue
    }

    fn from(&self, offset: i64) -> usize {
        self.messages.partition_point(|message| message.0 < offset)
    }

    fn after(&self, offset: i64) -> Option<(i64, &[u8])> {
        self.messages.get(self.from(offset)).map(|(offset, value)| (*offset, value.as_slice()))
    }

    fn before(&self, offset: i64) -> Option<(i64, &[u8])> {
        self.from(offset).checked_sub(1).map(|at| (self.messages[at].0, self.messages[at].1.as_slice()))
    }
}

fn check_back(reader: &mut Tailer, expected: Option<(i64, &[u8])>) {
    let before = Tailer::position(reader);
    let message = reader.read_back().unwrap();
    let found = message.as_ref().map(|message| (message.offset(), message.value()));
    assert_eq!(found, expected, "before {before}");
    if let Some(message) = &message {
        // Timestamps are offsets in what the model writes, and the time in what is appended.
        assert!(message.timestamp() >= message.offset());
    }
    assert_eq!(Tailer::position(reader), expected.map_or(before, |(offset, _)| offset));
}

fn check_forth(reader: &mut Tailer, expected: Option<(i64, &[u8])>) {
    let found = reader.read().unwrap().map(|record| (record.offset, record.value.unwrap()));
    assert_eq!(found, expected);
}

/// One walk over a queue in random steps.
fn walk(model: &Model, queue: &Queue, dice: &mut Dice) {
    let mut reader = queue.reader(Start::Offset(dice.below(model.end as u64 + 1) as i64)).unwrap();
    for _ in 0..60 {
        let steps = match dice.below(10) {
            0..5 => dice.below(4),
            5..9 => dice.below(100),
            _ => dice.below(4_000),
        };
        match dice.below(5) {
            0 | 1 => {
                for _ in 0..steps {
                    let position = reader.position();
                    check_back(&mut reader, model.before(position));
                }
            }
            2 => {
                for _ in 0..steps {
                    let position = reader.position();
                    check_forth(&mut reader, model.after(position));
                }
            }
            3 => {
                for _ in 0..steps {
                    let expected = model.after(reader.position());
                    let found = reader.read_message().unwrap();
                    assert_eq!(found.as_ref().map(|found| (found.offset(), found.value())), expected);
                }
            }
            _ => reader.seek(Start::Offset(dice.below(model.end as u64 + 1) as i64)).unwrap(),
        }
    }
}

#[test]
fn any_mix_of_steps_finds_what_a_vector_finds() {
    for seed in 0..10 {
        let dice = &mut Dice(seed);
        let (model, queue) = Model::random(dice);
        println!("seed {seed}: {} messages up to offset {}", model.messages.len(), model.end);
        let mut reader = queue.reader(Start::Latest).unwrap();
        for (offset, value) in model.messages.iter().rev() {
            check_back(&mut reader, Some((*offset, value)));
        }
        check_back(&mut reader, None);
        let mut forwards = queue.reader(Start::Earliest).unwrap();
        for (offset, value) in &model.messages {
            check_forth(&mut forwards, Some((*offset, value)));
        }
        check_forth(&mut forwards, None);
        // Records at the end that compaction has removed are not waited for.
        assert!(!forwards.wait(Wait::Yield, Some(std::time::Duration::ZERO)));
        (0..4).for_each(|_| walk(&model, &queue, dice));
    }
}

/// A queue of batches of ten messages in several segments.
fn tens(path: &Path, numbers: Range<i64>) -> Queue {
    let queue = Options::new().segment_bytes(1).open(path).unwrap();
    let mut appender = queue.appender().unwrap();
    for first in numbers.step_by(10) {
        let mut messages = appender.batch();
        (first..first + 10).for_each(|number| messages.push(number.to_string()).unwrap());
        assert_eq!(messages.commit().unwrap(), first);
    }
    drop(appender);
    queue
}

#[test]
fn the_first_message_is_the_one_that_retention_has_left() {
    let dir = tempfile::tempdir().unwrap();
    let queue = tens(dir.path(), 0..20_000);
    assert!(queue.segments().unwrap().len() > 3);
    let delete_before = |offset| queue.appender().unwrap().try_lock().unwrap().unwrap().delete_before(offset);
    // Within the open batch; within another one; and in a segment that retention deletes after a read.
    for (from, start) in [(57, 53), (157, 123), (19_995, 10_001)] {
        let mut reader = queue.reader(Start::Offset(from)).unwrap();
        assert_eq!(reader.read_back().unwrap().unwrap().offset(), from - 1);
        delete_before(start);
        for offset in (start..from - 1).rev() {
            assert_eq!(reader.read_back().unwrap().unwrap().offset(), offset);
        }
        assert!(reader.read_back().unwrap().is_none());
        assert_eq!(reader.position(), start);
        assert_eq!(reader.read().unwrap().unwrap().offset, start);
    }
}

#[test]
fn a_reader_of_what_is_synced_turns_back_at_the_sync() {
    let dir = tempfile::tempdir().unwrap();
    let queue = tens(dir.path(), 0..20);
    queue.sync().unwrap();
    queue.append("not synced").unwrap();
    let mut reader = queue.reader(Start::Latest).unwrap().synced_only(true);
    for offset in (0..20).rev() {
        assert_eq!(reader.read_back().unwrap().unwrap().offset(), offset);
    }
    assert!(reader.read_back().unwrap().is_none());
    let mut all = queue.reader(Start::Latest).unwrap();
    assert_eq!(all.read_back().unwrap().unwrap().offset(), 20);
}

#[test]
fn a_named_tailer_keeps_what_it_has_gone_back_to() {
    let dir = tempfile::tempdir().unwrap();
    let queue = tens(dir.path(), 0..30);
    let position = || queue.find_tailer("me").unwrap().unwrap().position;
    let mut tailer = queue.tailer("me").unwrap();
    (0..25).for_each(|_| assert!(tailer.read().unwrap().is_some()));
    for offset in (0..25).rev() {
        assert_eq!(tailer.read_back().unwrap().unwrap().offset(), offset);
        assert_eq!(position(), offset);
    }
    assert!(tailer.read_back().unwrap().is_none());
    assert_eq!(position(), 0);
    // A message that was read again is done with the next read.
    assert_eq!(tailer.read().unwrap().unwrap().offset, 0);
    assert_eq!(position(), 0);
    assert_eq!(tailer.read().unwrap().unwrap().offset, 1);
    assert_eq!(position(), 1);
}

#[test]
fn messages_are_read_back_while_others_come() {
    let dir = tempfile::tempdir().unwrap();
    let queue = Options::new().segment_bytes(1).open(dir.path()).unwrap();
    let mut reader = queue.reader(Start::Earliest).unwrap();
    for number in 0..2_000_i64 {
        queue.append([3; 200]).unwrap();
        // Always from the end of an open segment, which is closed now and then.
        assert_eq!(reader.read().unwrap().unwrap().offset, number);
        assert!(reader.read().unwrap().is_none());
        for offset in (number - 2..=number).rev().filter(|offset| *offset >= 0) {
            assert_eq!(reader.read_back().unwrap().unwrap().offset(), offset);
        }
        while reader.read().unwrap().is_some() {}
        assert_eq!(reader.position(), number + 1);
    }
    assert!(queue.segments().unwrap().len() > 3);
}

#[test]
fn damage_is_reported_and_the_position_stays() {
    let mut model = Model::new();
    model.batch(BatchOptions::default(), &[0, 1], 1);
    let damaged = model.log.len();
    model.batch(BatchOptions::default(), &[0, 1], 1);
    model.batch(BatchOptions::default(), &[0, 1], 1);
    model.roll();
    let queue = model.finish();
    let mut reader = queue.reader(Start::Latest).unwrap();
    let path = model.path().join(format!("{:020}.log", 0));
    let file = fs::File::options().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"!", damaged as u64 + 70).unwrap();
    check_back(&mut reader, model.before(6));
    check_back(&mut reader, model.before(5));
    for _ in 0..2 {
        let error = reader.read_back().unwrap_err();
        assert!(matches!(error, mainstem_queue::QueueError::Damaged { offset: 3, .. }), "{error}");
        assert_eq!(reader.position(), 4);
    }
    check_forth(&mut reader, model.after(4));
}

#[test]
fn what_was_read_back_long_ago_is_not_kept_resident() {
    const RESIDENT: usize = 256 << 10;
    const MESSAGES: i64 = 3_000;
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().segment_bytes(16 << 20).resident_bytes(RESIDENT);
    let queue = options.open(dir.path()).unwrap();
    let mut appender = queue.exclusive_appender().unwrap();
    for number in 0..MESSAGES {
        assert_eq!(appender.append([1; 4_000]).unwrap(), number);
    }
    drop(appender);
    let mut reader = queue.reader(Start::Latest).unwrap();
    let mut most = 0;
    for offset in (0..MESSAGES).rev() {
        assert_eq!(reader.read_back().unwrap().unwrap().offset(), offset);
        if offset % 100 == 0 {
            most = most.max(resident(dir.path()));
        }
    }
    // Twice as much; pieces of 64 KiB at both ends, the indexes, the control file.
    let bound = 2 * RESIDENT + (512 << 10);
    assert!(most <= bound, "{most} bytes of 12 MiB are resident, and {bound} may be");
    assert!(most > RESIDENT / 2, "{most} bytes are resident: not those of this queue are counted");
}
