//! Fuzz body of this crate: a directory in any state is opened, read, checked, repaired and written without a panic or a hang,
//! and what was repaired is sound.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Options, Queue, QueueError, Result, Start, repair, verify};

/// File, kind, position and value of one change.
const EDIT_BYTES: usize = 14;
const FILES: [&str; 5] = [
    "queue.control",
    "00000000000000000000.log",
    "00000000000000000000.index",
    "00000000000000000000.timeindex",
    "tailers/fuzz.tailer",
];
/// More than the queue has: a longer read is an endless loop.
const READ_MAX: usize = 10_000;

/// A directory that is removed when this is dropped.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Directory(std::env::temp_dir().join(format!("mainstem-queue-fuzz-{}-{number}", process::id())))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Changes a small queue as `data` says, and does everything with it that can be done.
pub fn directory(data: &[u8]) {
    let directory = Directory::new();
    let path = &directory.0;
    fill(path).expect("a new queue can be written");
    data.chunks_exact(EDIT_BYTES).take(64).for_each(|edit| apply(path, edit));
    let options = Options::new().segment_bytes(1);
    // Each may refuse the queue.
    let _ = verify(path);
    let _ = options.clone().create(false).read_only(true).open(path).and_then(|queue| read(&queue));
    let _ = options.open(path).and_then(|queue| write(&queue));
    if repair(path, &options).is_ok() {
        let found = verify(path).expect("what was repaired can be verified");
        assert!(found.is_sound(), "{:?}", found.all_faults().collect::<Vec<_>>());
        let queue = options.open(path).expect("what was repaired can be opened");
        write(&queue).expect("what was repaired can be written and read");
    }
}

fn fill(path: &Path) -> Result<()> {
    let queue = Options::new().segment_bytes(1).open(path)?;
    let mut appender = queue.appender()?;
    for number in 0..100_u64 {
        appender.append_with(Some(&number.to_be_bytes()), &[7; 100], &[], None)?;
    }
    let mut messages = appender.batch();
    (0..10).try_for_each(|_| messages.push("of a batch"))?;
    messages.commit()?;
    queue.tailer("fuzz")?.read().map(drop)
}

/// Makes one change: overwrites eight bytes, cuts or extends a file, or deletes it.
fn apply(path: &Path, edit: &[u8]) {
    let path = path.join(FILES[usize::from(edit[0]) % FILES.len()]);
    let Ok(file) = File::options().write(true).open(&path) else { return };
    let Ok(metadata) = file.metadata() else { return };
    let position = u64::from(u32::from_le_bytes([edit[2], edit[3], edit[4], edit[5]]));
    let position = position % metadata.len().max(1);
    let _ = match edit[1] {
        0 => fs::remove_file(&path),
        1 => file.set_len(position),
        2 => file.set_len(metadata.len() + position % 8192),
        _ => file.write_all_at(&edit[6..], position),
    };
}

/// Reads forwards, backwards, from within and by time; a loop is a failure.
fn read(queue: &Queue) -> Result<()> {
    let ends = queue.ends();
    let middle = ends.start.saturating_add(ends.next) / 2;
    for start in [Start::Earliest, Start::Offset(middle), Start::Time(1), Start::Latest] {
        let mut reader = match queue.reader(start) {
            Err(QueueError::OutOfRange { .. }) => continue,
            reader => reader?,
        };
        let mut count = 0;
        while reader.read()?.is_some() {
            count += 1;
            assert!(count < READ_MAX, "a reader from {start:?} does not end");
        }
        while reader.read_back()?.is_some() {
            count += 1;
            assert!(count < 2 * READ_MAX, "a reader back from {start:?} does not end");
        }
    }
    queue.tailers().map(drop)
}

fn write(queue: &Queue) -> Result<()> {
    read(queue)?;
    for _ in 0..3 {
        queue.append([1; 30_000])?;
    }
    let mut tailer = queue.tailer("fuzz")?;
    let mut count = 0;
    while tailer.read()?.is_some() {
        count += 1;
        assert!(count < READ_MAX, "a tailer does not end");
    }
    assert_eq!(tailer.position(), queue.ends().next, "a tailer waits for what was there");
    read(queue)
}
