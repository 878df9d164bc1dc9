//! Opening replicas of groups: the journal of a log directory knows which ones it has.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use mainstem_log::dir::LogDir;
use mainstem_log::meta_properties::{GROUPS_FORMAT_VERSION, MetaProperties};
use mainstem_log::placement::DirectoryId;
use mainstem_log::{Log, PartitionIdentity};
use mainstem_replication::journal::{Frame, JOURNAL, Journal, Start};
use mainstem_replication::{Configuration, GroupId, Replica, ReplicaId, ReplicaOptions};
use parking_lot::Mutex;

use crate::error::StoreError;
use crate::partition::{Partition, ReplicaEvents};
use crate::settings::TopicSettings;
use mainstem_links::Links;
use mainstem_runtime::random;

/// Replicas have this number until they can be replaced: those that a topic was created with.
const FIRST_INCARNATION: u32 = 1;

/// The journal of each log directory, from its first group on.
#[derive(Default)]
pub struct Journals(Mutex<HashMap<DirectoryId, Arc<Mutex<Journal>>>>);

impl Journals {
    /// That of a directory. Blocks on the disk.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged, or the directory's format cannot be raised.
    pub fn of(&self, dir: &LogDir) -> Result<Arc<Mutex<Journal>>, StoreError> {
        let mut journals = self.0.lock();
        if let Some(journal) = journals.get(&dir.directory_id()) {
            return Ok(journal.clone());
        }
        let failed = |error| StoreError::Format { dir: dir.path().to_owned(), error };
        if has_lost_journal(dir).map_err(failed)? {
            return Err(StoreError::JournalLost { dir: dir.path().to_owned() });
        }
        // The journal first: a directory whose format says that it has one has one.
        let (journal, cut) = Journal::open(dir.storage().clone(), dir.path())?;
        dir.raise_format(GROUPS_FORMAT_VERSION).map_err(failed)?;
        if cut > 0 {
            tracing::warn!(dir = %dir.path().display(), bytes = cut, "a torn tail of the journal of groups was cut off");
        }
        let journal = Arc::new(Mutex::new(journal));
        journals.insert(dir.directory_id(), journal.clone());
        Ok(journal)
    }
}

/// Returns true if a directory had a journal and has none any more. A new one would know of no vote and of nothing that was acknowledged.
fn has_lost_journal(dir: &LogDir) -> io::Result<bool> {
    let (storage, path) = (&**dir.storage(), dir.path());
    if storage.exists(&path.join(JOURNAL))? {
        return Ok(false);
    }
    // What is wrong with the file was reported when the directory was opened.
    let meta = MetaProperties::read(storage, path)?.and_then(Result::ok);
    Ok(meta.and_then(|meta| meta.format_version).is_some_and(|version| version >= GROUPS_FORMAT_VERSION))
}

impl Journals {
    /// Syncs what replicas have promised since this was asked last, so that a power cut takes no more of it. Blocks on the disks.
    pub fn sync_promises(&self) {
        let journals: Vec<_> = self.0.lock().values().cloned().collect();
        for journal in journals {
            if let Err(error) = Journal::sync_promises_beside_others(&journal) {
                tracing::error!("{error}; the groups of its directory stop");
            }
        }
    }

    /// Forgets groups of a topic that is gone, wherever their replicas were. Their frames go when the journal is rewritten.
    pub fn forget(&self, topic_id: [u8; 16]) {
        for journal in self.0.lock().values() {
            let mut journal = journal.lock();
            let groups: Vec<_> =
                journal.groups().map(|(group, _)| group).filter(|group| group.topic_id == topic_id).collect();
            for group in groups {
                match journal.append(group, &[Frame::Removed]) {
                    Ok(_) => journal.forget_promise(group),
                    Err(error) => tracing::warn!("a group of a deleted topic stays in the journal: {error}"),
                }
            }
        }
    }
}

impl Journals {
    /// Rewrites journals that have grown. Blocks on the disk; appends to them do not wait for that.
    pub fn rewrite_grown(&self) {
        let journals: Vec<_> = self.0.lock().values().cloned().collect();
        for journal in journals {
            if !journal.lock().rewrite_due() {
                continue;
            }
            let Err(error) = Journal::rewrite_beside_others(&journal) else { continue };
            match journal.lock().has_failed() {
                true => tracing::error!("{error}"),
                false => {
                    tracing::warn!("{error}; it stays as it was, and is rewritten when it has grown further")
                }
            }
        }
    }
}

/// Parameters of opening a replica.
pub struct OpenReplica<'a> {
    /// The log directory.
    pub dir: &'a Arc<LogDir>,
    /// The journals of the log directories.
    pub journals: &'a Journals,
    /// The partition.
    pub identity: &'a PartitionIdentity,
    /// The nodes that the group began with.
    pub voters: &'a [i32],
    /// This node.
    pub own: i32,
    /// Receives its events.
    pub events: Arc<dyn ReplicaEvents>,
    /// Links to the other nodes.
    pub links: &'a Arc<Links>,
    /// Followers get commits at once.
    pub broadcast_commit: bool,
}

impl OpenReplica<'_> {
    /// Makes a replica of a log that was just opened. Blocks on the disk. It takes part when it is
    /// [registered](Self::register).
    ///
    /// # Errors
    /// When journal or log cannot be used.
    pub fn open(&self, log: Log, settings: Arc<TopicSettings>) -> Result<Arc<Partition>, StoreError> {
        let group = self.group();
        let journal = self.journals.of(self.dir)?;
        let failed = |source| StoreError::Replica { partition: self.identity.topic_partition(), source };
        let (is_known, promised) = {
            let journal = journal.lock();
            (journal.group(group).is_some(), journal.promised(group))
        };
        let has_promised = promised.map_err(|error| failed(error.into()))?.is_some();
        if !is_known && (has_promised || log.ends().log_end > 0) {
            return Err(StoreError::JournalMissing { partition: self.identity.topic_partition() });
        }
        let replica = |node: &i32| ReplicaId::new(*node, FIRST_INCARNATION);
        if !is_known {
            let voters: Vec<_> = self.voters.iter().map(replica).collect();
            let configuration = Configuration::of_voters(&voters);
            let mut journal = journal.lock();
            mainstem_replication::found(
                &mut journal,
                group,
                replica(&self.own),
                &configuration,
                Start::default(),
            )
            .map_err(failed)?;
        }
        let partition = self.identity.topic_partition();
        let options = ReplicaOptions {
            write_caching: settings.write_caching,
            seed: u64::from_ne_bytes(random::bytes()),
            high_watermark: self.dir.checkpoints().replication.get(&partition).unwrap_or(0),
            broadcast_commit: self.broadcast_commit,
        };
        let replica = Replica::open(log, group, journal, options, self.links.now_ms()).map_err(failed)?;
        Ok(Partition::replicated(
            self.identity.topic.clone(),
            self.identity.partition,
            self.dir.clone(),
            settings,
            replica,
            self.events.clone(),
            self.links.clone(),
        ))
    }

    /// Has it take part.
    pub fn register(&self, partition: &Arc<Partition>) {
        partition.join_group();
    }

    fn group(&self) -> GroupId {
        GroupId { topic_id: self.identity.topic_id, partition: self.identity.partition }
    }
}
