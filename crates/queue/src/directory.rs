//! A directory before it is written to: its kind, and the processes that hold it.
//!
//! Every command that writes to a directory asks here first. A broker's log directory and all that is within it belong to that
//! broker, whether it runs or not: it checks and repairs its partitions when it starts. A queue belongs to all processes that
//! open it as one; a broker that serves it (`--attach`) and a publisher of its journal are such processes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::byte_lock::LockFile;
use crate::control::{self, lock_bytes};
use crate::error::{QueueError, Result};
use crate::journal::{JOURNAL, JOURNAL_LOCK, is_locked};
use crate::tailers;

/// The file that names the cluster and the node of a log directory.
const META_PROPERTIES: &str = "meta.properties";
/// The file that the broker of a log directory has locked while it runs.
const LOG_DIRECTORY_LOCK: &str = ".lock";
/// Files of a log directory beside its lock, also where its `meta.properties` was removed.
const CHECKPOINTS: [&str; 3] =
    ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"];
/// The file of a partition, of a broker's or of a queue.
const PARTITION_METADATA: &str = "partition.metadata";
/// The kernel's list of locks on files.
const LOCKS: &str = "/proc/locks";

/// A directory as it is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// The path, as it was given.
    pub path: PathBuf,
    /// Its kind.
    pub kind: DirectoryKind,
}

/// The kind of a directory, by the files in it and in its parents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryKind {
    /// There is none.
    Absent,
    /// It has no files.
    Empty,
    /// A broker's log directory.
    LogDirectory,
    /// A directory within a broker's log directory, such as a partition of it.
    WithinLogDirectory(PathBuf),
    /// An embedded queue.
    Queue,
    /// A queue with the identity of a stream.
    Journal,
    /// A directory of other files, or no directory.
    Other,
}

/// A process, or several, that hold a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// The broker whose log directory it is, by its process id where the kernel lists it.
    Broker(Option<u32>),
    /// A broker that serves the queue as a topic.
    AttachedBroker,
    /// The publisher of the journal, by its process id where the kernel lists it.
    Publisher(Option<u32>),
    /// Processes that append to the queue, or are about to open it.
    Appenders,
    /// Processes that read the queue by named tailers.
    Tailers,
}

impl Directory {
    /// Looks at a directory. Nothing is changed. One that cannot be read is [`DirectoryKind::Other`].
    pub fn inspect(path: impl AsRef<Path>) -> Directory {
        let path = path.as_ref().to_owned();
        let kind = kind_of(&path);
        Directory { path, kind }
    }

    /// The processes that hold it now; of a directory within a log directory, those that hold the log directory.
    pub fn holders(&self) -> Vec<Holder> {
        match &self.kind {
            DirectoryKind::LogDirectory => broker_of(&self.path),
            DirectoryKind::WithinLogDirectory(log_directory) => broker_of(log_directory),
            DirectoryKind::Queue | DirectoryKind::Journal => holders_of_queue(&self.path),
            DirectoryKind::Absent | DirectoryKind::Empty | DirectoryKind::Other => Vec::new(),
        }
    }

    /// The log directory that this one is, or is within.
    pub fn log_directory(&self) -> Option<&Path> {
        match &self.kind {
            DirectoryKind::LogDirectory => Some(&self.path),
            DirectoryKind::WithinLogDirectory(log_directory) => Some(log_directory),
            _ => None,
        }
    }

    /// Refuses what belongs to a broker. `advice` is what to do in place of a write.
    ///
    /// # Errors
    /// [`QueueError::OfBroker`].
    pub(crate) fn check_not_of_broker(&self, advice: &'static str) -> Result<()> {
        let Some(log_directory) = self.log_directory() else { return Ok(()) };
        let place = match &self.kind {
            DirectoryKind::LogDirectory => "is the log directory of a broker".to_owned(),
            _ => format!("is within the log directory {} of a broker", log_directory.display()),
        };
        let running = match self.holders().first() {
            Some(Holder::Broker(Some(pid))) => format!(", which runs as process {pid}"),
            Some(_) => ", which runs".to_owned(),
            None => String::new(),
        };
        let reason = format!("{place}{running}; nothing was written; {advice}");
        Err(QueueError::OfBroker { path: self.path.clone(), reason })
    }

    /// Refuses a queue that other processes have open.
    ///
    /// # Errors
    /// [`QueueError::Busy`].
    pub(crate) fn check_not_held(&self) -> Result<()> {
        let holders = self.holders();
        if holders.is_empty() {
            return Ok(());
        }
        let holders = holders.iter().map(|holder| holder.name()).collect::<Vec<_>>().join(", ");
        let reason = format!("other processes have it open ({holders}); end them, then repair it");
        Err(QueueError::Busy { path: self.path.clone(), reason })
    }

    /// The reason for which no broker may take it as its log directory, with what to do; `None` if one may.
    pub fn refusal_as_log_directory(&self) -> Option<String> {
        let place = match &self.kind {
            DirectoryKind::Queue => "is an embedded queue",
            DirectoryKind::Journal => "is the journal of a stream",
            DirectoryKind::WithinLogDirectory(_) if self.path.join(PARTITION_METADATA).exists() => {
                return Some(
                    "is a partition of a log directory, and is none itself; name its parent, or choose another directory \
                     (log.dirs)"
                        .to_owned(),
                );
            }
            _ => return None,
        };
        Some(format!(
            "{place}, and not a log directory; choose another directory (log.dirs), or serve it as a topic \
             (--attach NAME={})",
            self.path.display()
        ))
    }
}

impl Holder {
    fn name(&self) -> String {
        let process = |pid: &Option<u32>| pid.map_or(String::new(), |pid| format!(" in process {pid}"));
        match self {
            Holder::Broker(pid) => format!("a broker{}", process(pid)),
            Holder::AttachedBroker => "a broker that serves it".to_owned(),
            Holder::Publisher(pid) => format!("a publisher{}", process(pid)),
            Holder::Appenders => "appenders".to_owned(),
            Holder::Tailers => "named tailers".to_owned(),
        }
    }
}

fn kind_of(path: &Path) -> DirectoryKind {
    if is_log_directory(path) {
        return DirectoryKind::LogDirectory;
    }
    if let Some(log_directory) = parents(path).into_iter().find(|parent| is_log_directory(parent)) {
        return DirectoryKind::WithinLogDirectory(log_directory);
    }
    if path.join(control::FILE).is_file() {
        return match fs::metadata(path.join(JOURNAL)) {
            Ok(journal) if journal.is_file() => DirectoryKind::Journal,
            // If that is unknown, the stricter kind.
            Err(error) if error.kind() != io::ErrorKind::NotFound => DirectoryKind::Journal,
            _ => DirectoryKind::Queue,
        };
    }
    match fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
        Ok(true) => DirectoryKind::Empty,
        Err(error) if error.kind() == io::ErrorKind::NotFound => DirectoryKind::Absent,
        _ => DirectoryKind::Other,
    }
}

/// Returns true for a broker's log directory. A lock file alone may be that of another program, unless it is locked.
fn is_log_directory(directory: &Path) -> bool {
    let has = |name: &str| directory.join(name).is_file();
    has(META_PROPERTIES)
        || has(LOG_DIRECTORY_LOCK)
            && (CHECKPOINTS.iter().any(|name| has(name)) || !broker_of(directory).is_empty())
}

/// Returns all directories that a path is in: by its target, and by its last name, which may be a link.
fn parents(path: &Path) -> Vec<PathBuf> {
    let target = resolved(path);
    let mut parents: Vec<PathBuf> = target.ancestors().skip(1).map(Path::to_owned).collect();
    if path.file_name().is_some()
        && let Some(parent) = path.parent()
    {
        let parent = resolved(parent);
        parents.extend(parent.ancestors().map(Path::to_owned));
    }
    parents
}

/// Returns the absolute path without links. Its last parts need not exist.
fn resolved(path: &Path) -> PathBuf {
    for existing in path.ancestors() {
        let named = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
        if let Ok(absolute) = named.canonicalize() {
            let rest = path.strip_prefix(existing).unwrap_or(Path::new(""));
            return absolute.join(rest);
        }
    }
    path.to_owned()
}

fn broker_of(log_directory: &Path) -> Vec<Holder> {
    lock_of(&log_directory.join(LOG_DIRECTORY_LOCK)).map(Holder::Broker).into_iter().collect()
}

fn holders_of_queue(directory: &Path) -> Vec<Holder> {
    let mut holders = Vec::new();
    if let Ok(file) = File::open(directory.join(control::FILE)) {
        let file = LockFile::new(file);
        // If the kernel does not answer: a writer takes the locks, and is refused by them.
        let is_locked = |byte| file.is_locked_elsewhere(byte).unwrap_or(false);
        if is_locked(lock_bytes::SERVING) {
            holders.push(Holder::AttachedBroker);
        }
        if is_locked(lock_bytes::APPENDING) || is_locked(lock_bytes::OPENING) {
            holders.push(Holder::Appenders);
        }
    }
    holders.extend(lock_of(&directory.join(JOURNAL_LOCK)).map(Holder::Publisher));
    if tailers::list(directory, 0).is_ok_and(|tailers| tailers.iter().any(|tailer| tailer.is_live)) {
        holders.push(Holder::Tailers);
    }
    holders
}

/// Returns the process id of the lock on a file, if the kernel lists it; `None` if no process has one. Kafka's broker has a lock
/// of another kind than ours.
fn lock_of(path: &Path) -> Option<Option<u32>> {
    let file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !is_locked(&file) && !LockFile::new(file).is_locked_elsewhere(0).unwrap_or(false) {
        return None;
    }
    let locks = fs::read_to_string(LOCKS).unwrap_or_default();
    Some(holder_in(&locks, metadata.dev(), metadata.ino()))
}

/// Finds the process that locks a file in the kernel's list. Layered file systems have another device there; then the inode
/// decides.
fn holder_in(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let device = format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device));
    let mut of_other_device = None;
    for line in locks.lines() {
        // `1: FLOCK ADVISORY WRITE 4711 fd:01:1234 0 EOF`; a waiting process has `->` before the kind.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK" | "POSIX", _, "WRITE", pid, file, ..] = fields[..] else { continue };
        let (Ok(pid), Some((on, number))) = (pid.parse::<u32>(), file.rsplit_once(':')) else { continue };
        if number.parse() != Ok(inode) {
            continue;
        }
        if on == device {
            return Some(pid);
        }
        of_other_device = Some(pid);
    }
    of_other_device
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Queue;

    fn kind(path: &Path) -> DirectoryKind {
        Directory::inspect(path).kind
    }

    #[test]
    fn each_directory_has_a_kind() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let path = |name: &str| root.join(name);
        assert_eq!(kind(&path("none")), DirectoryKind::Absent);
        fs::create_dir(path("empty")).unwrap();
        assert_eq!(kind(&path("empty")), DirectoryKind::Empty);
        fs::create_dir(path("other")).unwrap();
        fs::write(path("other/file"), "").unwrap();
        assert_eq!(
            (kind(&path("other")), kind(&path("other/file"))),
            (DirectoryKind::Other, DirectoryKind::Other)
        );
        drop(Queue::open(path("queue")).unwrap());
        assert_eq!(kind(&path("queue")), DirectoryKind::Queue);
        fs::write(path("queue/direct.journal"), "").unwrap();
        assert_eq!(kind(&path("queue")), DirectoryKind::Journal);
    }

    #[test]
    fn all_within_a_log_directory_is_of_its_broker() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let log_directory = root.join("data");
        fs::create_dir_all(log_directory.join("t-0")).unwrap();
        fs::create_dir(root.join("disk")).unwrap();
        std::os::unix::fs::symlink(root.join("disk"), log_directory.join("linked-0")).unwrap();
        std::os::unix::fs::symlink(&log_directory, root.join("link")).unwrap();
        assert_eq!(kind(&log_directory.join("t-0")), DirectoryKind::Empty, "nothing says so yet");
        fs::write(log_directory.join("meta.properties"), "version=1\n").unwrap();
        assert_eq!(kind(&log_directory), DirectoryKind::LogDirectory);
        assert_eq!(kind(&root.join("link")), DirectoryKind::LogDirectory);
        let within = DirectoryKind::WithinLogDirectory(log_directory.clone());
        for path in ["data/t-0", "data/none/at/all", "data/linked-0", "link/t-0", "disk/../data/t-0"] {
            assert_eq!(kind(&root.join(path)), within, "{path}");
        }
        // By a path that leads through it and out of it.
        assert_eq!(kind(&log_directory.join("t-0/../../disk")), DirectoryKind::Empty);
        assert_eq!(kind(&log_directory.join("..")), DirectoryKind::Other);
    }

    #[test]
    fn a_lock_file_alone_counts_while_it_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let queue = dir.path().join("q");
        let lock = File::create(dir.path().join(".lock")).unwrap();
        assert_eq!(kind(&queue), DirectoryKind::Absent);
        lock.lock().unwrap();
        let found = Directory::inspect(&queue);
        assert!(matches!(found.holders()[..], [Holder::Broker(_)]), "{found:?}");
        drop(lock);
        assert_eq!(kind(&queue), DirectoryKind::Absent);
        fs::write(dir.path().join(CHECKPOINTS[0]), "0\n0\n").unwrap();
        assert_eq!(Directory::inspect(&queue).log_directory(), Some(&*dir.path().canonicalize().unwrap()));
    }

    #[test]
    fn holders_of_a_queue_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let holders = || Directory::inspect(dir.path()).holders();
        let queue = Queue::open(dir.path()).unwrap();
        assert_eq!(holders(), []);
        let serving = queue.serve().unwrap();
        assert_eq!(holders(), [Holder::AttachedBroker]);
        let appender = queue.appender().unwrap();
        let tailer = queue.tailer("me").unwrap();
        assert_eq!(holders(), [Holder::AttachedBroker, Holder::Appenders, Holder::Tailers]);
        drop((serving, appender, tailer));
        assert_eq!(holders(), []);
        let lock = File::create(dir.path().join(JOURNAL_LOCK)).unwrap();
        lock.lock().unwrap();
        assert!(matches!(holders()[..], [Holder::Publisher(_)]));
    }

    #[test]
    fn the_kernels_list_is_read() {
        let locks = "1: OFDLCK ADVISORY  WRITE -1 fd:01:7 0 EOF\n2: POSIX  ADVISORY  READ 5 fd:01:7 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 11 00:2b:7 0 EOF\n3: -> FLOCK ADVISORY WRITE 13 fd:01:7 0 EOF\n\
                     4: POSIX  ADVISORY  WRITE 12 fd:01:7 0 9223372036854775806\nnonsense\n";
        let device = rustix::fs::makedev(0xfd, 1);
        assert_eq!(holder_in(locks, device, 7), Some(12));
        assert_eq!(holder_in(locks, rustix::fs::makedev(8, 2), 7), Some(12), "by the number alone");
        assert_eq!(holder_in(locks, device, 8), None);
    }
}
