//! What a member and its consumer tell each other: changes one way, being done with them the other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::calls::Identity;
use super::config::GroupConfig;
use super::offsets::Committed;
use crate::consumer::{Position, Start};
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// How long leaving may take.
pub(crate) const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// What the member and its consumer share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) identity: Mutex<Identity>,
    /// Since when nobody waits for records.
    pub(crate) idle_since: Mutex<Option<Instant>>,
    /// The member has to leave.
    pub(crate) stop: Notify,
}

/// Something that the consumer has to do.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) what: What,
    pub(crate) done: Option<oneshot::Sender<()>>,
}

impl Change {
    /// Whether nobody waits for it any more.
    pub(crate) fn is_void(&self) -> bool {
        self.done.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

#[derive(Debug)]
pub(crate) enum What {
    Rebalanced {
        /// To be let go.
        revoked: BTreeSet<TopicPartition>,
        /// To be read, from where.
        added: BTreeMap<TopicPartition, Start>,
    },
    /// All partitions are somebody else's already.
    Lost,
    /// The group cannot be taken part in.
    Failed(Error),
}

/// Hands a change over; resolves when the consumer is done with it.
pub(crate) fn hand_over(
    changes: &mpsc::UnboundedSender<Change>,
    revoked: BTreeSet<TopicPartition>,
    added: BTreeMap<TopicPartition, Start>,
) -> oneshot::Receiver<()> {
    let (done, waits) = oneshot::channel();
    // Without a consumer the sender is dropped, which ends the wait.
    let _ = changes.send(Change { what: What::Rebalanced { revoked, added }, done: Some(done) });
    waits
}

/// Has the consumer give up everything, and waits for it.
pub(crate) async fn lose(changes: &mpsc::UnboundedSender<Change>) {
    let (done, waits) = oneshot::channel();
    let _ = changes.send(Change { what: What::Lost, done: Some(done) });
    // Without a consumer there is nothing to wait for.
    let _ = waits.await;
}

/// Where to begin with partitions: behind what was committed, or where the configuration says.
pub(crate) fn begin_at(
    keys: BTreeSet<TopicPartition>,
    committed: &BTreeMap<TopicPartition, Committed>,
    config: &GroupConfig,
) -> BTreeMap<TopicPartition, Start> {
    let begin = |key: TopicPartition| {
        let begin = committed.get(&key).map_or(config.start_of(&key).into(), |committed| Start {
            position: Position::Offset(committed.offset),
            epoch: committed.leader_epoch,
        });
        (key, begin)
    };
    keys.into_iter().map(begin).collect()
}
