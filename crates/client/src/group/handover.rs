//! Messages between a member and its consumer: changes one way, their completion the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mainstem_wire::ErrorCode;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::calls::Identity;
use super::config::GroupConfig;
use super::held::Held;
use super::offsets::{CommittedOffset, CommittedOffsets};
use crate::consumer::{Position, Start};
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// The time limit for leaving.
pub(crate) const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// The state that the member and its consumer share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) identity: Mutex<Identity>,
    /// True while the member joins and has no new generation yet; the coordinator may have it already.
    is_joining: AtomicBool,
    /// The partitions that the consumer has taken over.
    pub(crate) held: Mutex<Held>,
    /// The time since which no caller waits for records.
    pub(crate) idle_since: Mutex<Option<Instant>>,
    /// Wakes the member: it has to leave.
    pub(crate) stop: Notify,
}

impl Shared {
    /// The state of a member that has not joined yet.
    pub(crate) fn new() -> Shared {
        Shared {
            identity: Mutex::new(Identity::none()),
            is_joining: AtomicBool::new(false),
            held: Mutex::default(),
            idle_since: Mutex::new(Some(Instant::now())),
            stop: Notify::new(),
        }
    }

    /// Notes that the member begins to join, or has ended it: by then its new identity is known, or it has none.
    pub(crate) fn set_joining(&self, is_joining: bool) {
        self.is_joining.store(is_joining, Ordering::SeqCst);
    }

    /// The error of a commit under an identity. If the member itself has joined the next generation, the end of its old one is a
    /// rebalance like any other: the coordinator knows of the next one before the member does.
    pub(crate) fn of_commit(&self, error: Error, identity: &Identity) -> Error {
        match error {
            Error::Broker { code: ErrorCode::ILLEGAL_GENERATION, what, broker, .. }
                if self.moves_on_from(identity) =>
            {
                let code = ErrorCode::REBALANCE_IN_PROGRESS;
                Error::Broker { code, message: code.message().to_owned(), what, broker }
            }
            error => error,
        }
    }

    fn moves_on_from(&self, identity: &Identity) -> bool {
        // In this order: the new identity is set before joining ends.
        self.is_joining.load(Ordering::SeqCst) || *self.identity.lock() != *identity
    }
}

/// A change that the consumer has to make.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) what: What,
    offer: Offer,
    done: Option<oneshot::Sender<()>>,
}

impl Change {
    /// A change that the member does not wait for.
    pub(crate) fn notice(what: What) -> Change {
        Change { what, offer: Offer::default(), done: None }
    }

    /// Begins with the change, or continues it; false if it is not wanted any more.
    pub(crate) fn take(&self) -> bool {
        !self.is_void() && self.offer.take()
    }

    /// Returns true if the member has stopped waiting for the change.
    pub(crate) fn is_void(&self) -> bool {
        self.done.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Reports that the change is made.
    pub(crate) fn finish(self) {
        if let Some(done) = self.done {
            // A member that has to stop waits no more.
            let _ = done.send(());
        }
    }
}

#[derive(Debug)]
pub(crate) enum What {
    /// To be released.
    Revoked(BTreeSet<TopicPartition>),
    /// To be read too, each from a position.
    Assigned(BTreeMap<TopicPartition, Begin>),
    /// All partitions are another member's already.
    Lost,
    /// The member cannot be in its group any more.
    Failed(Error),
}

/// Decides, once, whether a change is made: the consumer takes it, or the member withdraws it. The first of them decides.
#[derive(Debug, Clone, Default)]
pub(crate) struct Offer {
    is_taken: Arc<OnceLock<bool>>,
}

impl Offer {
    /// Returns true if the consumer may make the change.
    fn take(&self) -> bool {
        *self.is_taken.get_or_init(|| true)
    }

    /// Returns true if the consumer has not begun with it and never will.
    pub(crate) fn withdraw(&self) -> bool {
        !*self.is_taken.get_or_init(|| false)
    }
}

/// Lets the consumer know, when it is dropped, of a panic of the member.
pub(crate) struct Alarm {
    pub(crate) group_id: Arc<str>,
    pub(crate) changes: mpsc::UnboundedSender<Change>,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = Error::of_ended_task(&format!("the member of group {}", self.group_id));
            // Without a consumer there is none to notify.
            let _ = self.changes.send(Change::notice(What::Failed(error)));
        }
    }
}

/// Hands a change over; resolves when the consumer is done with it.
pub(crate) fn hand_over(
    changes: &mpsc::UnboundedSender<Change>,
    what: What,
    offer: Offer,
) -> oneshot::Receiver<()> {
    let (done, waits) = oneshot::channel();
    // Without a consumer the sender is dropped, which ends the wait.
    let _ = changes.send(Change { what, offer, done: Some(done) });
    waits
}

/// Lets the consumer drop all partitions, which are lost, and waits for it.
pub(crate) async fn lose(changes: &mpsc::UnboundedSender<Change>) {
    // Without a consumer there is nothing to wait for.
    let _ = hand_over(changes, What::Lost, Offer::default()).await;
}

/// The position at which to begin with a partition.
#[derive(Debug, Clone)]
pub(crate) struct Begin {
    pub(crate) start: Start,
    /// The offset that the group has committed, if there is one.
    pub(crate) committed: Option<CommittedOffset>,
}

/// The positions at which to begin with partitions: the committed offset, or the position that is configured.
pub(crate) fn begin_at(
    keys: BTreeSet<TopicPartition>,
    committed: &CommittedOffsets,
    config: &GroupConfig,
) -> BTreeMap<TopicPartition, Begin> {
    let begin = |key: TopicPartition| {
        let committed = committed.get(&key).cloned();
        let start = committed.as_ref().map_or(config.start_of(&key).into(), |committed| Start {
            position: Position::Offset(committed.offset),
            epoch: committed.wire_epoch(),
        });
        (key, Begin { start, committed })
    };
    keys.into_iter().map(begin).collect()
}
