//! Opening replicas of groups: the journal of a log directory knows which ones it has.

use std::sync::Arc;

use mainstem_log::dir::LogDir;
use mainstem_log::{Log, PartitionIdentity};
use mainstem_replication::journal::Start;
use mainstem_replication::{Configuration, GroupId, Replica, ReplicaId, ReplicaOptions};

use crate::error::StoreError;
use crate::journals::Journals;
use crate::partition::{Partition, ReplicaEvents};
use crate::settings::TopicSettings;
use mainstem_links::Links;
use mainstem_runtime::random;

/// Finishes what a stop has interrupted, before the log of a replica is opened: a copy of its leader's log takes its place. Blocks on
/// the disk.
///
/// # Errors
/// When journal or disk cannot be used.
pub fn finish_copy(
    journals: &Journals,
    dir: &Arc<LogDir>,
    identity: &PartitionIdentity,
    mono_ms: u64,
) -> Result<(), StoreError> {
    let (group, partition) = (group_of(identity), identity.topic_partition());
    let journal = journals.of(dir)?;
    let finished = mainstem_replication::finish_replacement(&journal, group, dir, &partition, mono_ms);
    finished.map_err(|source| StoreError::Replica { partition, source })
}

/// The group of a partition.
pub(crate) fn group_of(identity: &PartitionIdentity) -> GroupId {
    GroupId { topic_id: identity.topic_id, partition: identity.partition }
}

/// A replica that may begin.
#[derive(Debug, Clone)]
pub struct Founding {
    /// Its id.
    pub own: ReplicaId,
    /// The voters of its group; none: it gets to know the members from the leader.
    pub voters: Vec<ReplicaId>,
}

/// Parameters of opening a replica.
pub struct OpenReplica<'a> {
    /// The log directory.
    pub dir: &'a Arc<LogDir>,
    /// The journals of the log directories.
    pub journals: &'a Journals,
    /// The partition.
    pub identity: &'a PartitionIdentity,
    /// This replica, and the members with which its group begins where the journal does not know it.
    pub founding: Founding,
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
        let group = group_of(self.identity);
        let journal = self.journals.of(self.dir)?;
        let failed = |source| StoreError::Replica { partition: self.identity.topic_partition(), source };
        let (is_known, promised) = {
            let journal = journal.lock();
            (journal.group(group).is_some(), journal.promised(group, self.founding.own))
        };
        let has_promised = promised.map_err(|error| failed(error.into()))?.is_some();
        if !is_known && (has_promised || log.ends().log_end > 0) {
            return Err(StoreError::JournalMissing { partition: self.identity.topic_partition() });
        }
        if !is_known {
            let configuration = Configuration::of_voters(&self.founding.voters);
            let (own, start) = (self.founding.own, Start::default());
            let founded = mainstem_replication::found(&mut journal.lock(), group, own, &configuration, start);
            founded.map_err(failed)?;
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
}
