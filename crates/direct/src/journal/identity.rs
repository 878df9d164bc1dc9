//! The identity of a journal: an id, and the runs that have appended to it, in epochs between unclean starts.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mainstem_queue::Queue;
use prost::Message;

use crate::error::{DirectError, Result};
use crate::resume::{Epoch, JournalId, reopen};
use crate::slot_file::SlotFile;

const FILE: &str = "direct.journal";
const LOCK: &str = "direct.lock";

/// The contents of a journal's file.
#[derive(Clone, PartialEq, Message)]
struct Written {
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    epochs: Vec<crate::proto::Epoch>,
    /// The end when it was closed in order; absent while it is open.
    #[prost(int64, optional, tag = "3")]
    closed_at: Option<i64>,
}

/// The identity of an open journal.
#[derive(Debug)]
pub(crate) struct Identity {
    file: SlotFile,
    pub(crate) id: JournalId,
    /// The last run is the present one, which ends with the journal.
    pub(crate) epochs: Arc<[Epoch]>,
}

impl Identity {
    /// Reads or makes the identity, and begins a run. It is in the next epoch if the journal was not closed in order, or has lost
    /// events since.
    pub(crate) fn open(directory: &Path, queue: &Queue) -> Result<Identity> {
        let path = directory.join(FILE);
        let (file, kept) = SlotFile::open(&path)?;
        let end = queue.ends().next;
        let (id, mut epochs, closed_at) = match kept {
            None => (random_id(&path)?, Vec::new(), Some(0)),
            Some(bytes) => {
                let damaged =
                    |reason: &str| DirectError::Damaged { path: path.clone(), reason: reason.to_owned() };
                let written = Written::decode(&bytes[..])
                    .map_err(|_| damaged("it is of another version of this program; use that one"))?;
                let id = written.id.as_slice().try_into().map(JournalId);
                let id =
                    id.map_err(|_| damaged("it has no id; restore it, or delete it to begin a new journal"))?;
                let epochs: Vec<Epoch> = written.epochs.iter().map(Epoch::of_proto).collect();
                (id, epochs, written.closed_at)
            }
        };
        reopen(&mut epochs, closed_at, end, random_run(&path)?);
        let mut identity = Identity { file, id, epochs: epochs.into() };
        identity.write(None)?;
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(|error| DirectError::io("syncing", directory, error))?;
        Ok(identity)
    }

    /// Notes that the journal is closed in order.
    pub(crate) fn close(&mut self, end: i64) -> Result<()> {
        self.write(Some(end))
    }

    fn write(&mut self, closed_at: Option<i64>) -> Result<()> {
        let epochs = self.epochs.iter().map(|one| one.to_proto());
        let written = Written { id: self.id.0.to_vec(), epochs: epochs.collect(), closed_at };
        self.file.write(&written.encode_to_vec(), true)
    }
}

fn random_id(path: &Path) -> Result<JournalId> {
    let mut id: [u8; 16] = random(path)?;
    // A random UUID (RFC 9562, version 4).
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    Ok(JournalId(id))
}

/// Returns a random id of a run, not 0, which means none.
fn random_run(path: &Path) -> Result<u64> {
    Ok(u64::from_le_bytes(random(path)?).max(1))
}

fn random<const N: usize>(path: &Path) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| DirectError::io("reading random bytes for", path, error.into()))?;
    Ok(bytes)
}

/// The lock of the process that has a directory open as a journal. The system releases it when the process ends.
#[derive(Debug)]
pub(crate) struct ServingLock(#[expect(dead_code, reason = "it is held, not used")] File);

/// The time for which a lock has to be held to count. A process that only asks whether it is held takes it for an
/// instant.
const GLANCE: Duration = Duration::from_secs(1);

/// Locks a file; tries again for as long as `timeout` while it is locked.
fn take_within(file: &File, timeout: Duration) -> rustix::io::Result<()> {
    let begin = Instant::now();
    loop {
        match rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if begin.elapsed() < timeout => {
                thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

impl ServingLock {
    pub(crate) fn take(directory: &Path) -> Result<ServingLock> {
        let path = directory.join(LOCK);
        let failed = |what, error| DirectError::io(what, &path, error);
        let opened = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let mut file = opened.map_err(|error| failed("opening", error))?;
        match take_within(&file, GLANCE) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                // The holder may be just about to write its id.
                let _ = file.read_to_string(&mut holder);
                return Err(DirectError::Invalid(format!(
                    "{} is open as a journal already, in process {}; one has it, and others ask that one by its address",
                    directory.display(),
                    holder.trim()
                )));
            }
            Err(error) => return Err(failed("locking", error.into())),
        }
        let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(|error| failed("writing", error))?;
        Ok(ServingLock(file))
    }
}
