//! The task that keeps a consumer in its group: join, sync, heartbeats, and the same again when the group changes.
//!
//! It hands over changes for the consumer and waits for them, so that a partition is released before the group assigns it
//! to another member. Heartbeats continue meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use mainstem_lines::OneLine;
use mainstem_wire::ErrorCode;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::assignor::{Assignments, MemberSubscription, assign};
use super::calls::Calls;
use super::config::{GroupConfig, Subscription, whole_name};
use super::handover::{Change, LEAVE_LIMIT, Offer, Shared, What, begin_at, hand_over, lose};
use super::offsets::CommittedOffsets;
use super::protocol::{decode_assignment, decode_subscription, encode_subscription};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// The reason for the end of a generation.
enum End {
    /// The group changes.
    Rejoin,
    /// The caller has not asked for records for too long.
    Idle,
    Error(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> End {
        match error.code() {
            Some(ErrorCode::REBALANCE_IN_PROGRESS) => End::Rejoin,
            _ => End::Error(error),
        }
    }
}

/// The number of partitions of each topic.
type PartitionCounts = HashMap<Arc<str>, i32>;

/// A member of a group.
pub(crate) struct Member {
    config: Arc<GroupConfig>,
    /// For joining, which may take long.
    calls: Calls,
    /// For requests that must not wait for a join.
    offsets: Calls,
    shared: Arc<Shared>,
    changes: mpsc::UnboundedSender<Change>,
    /// The partitions that the group has assigned to this member.
    owned: BTreeSet<TopicPartition>,
    /// The partitions of them that the consumer has taken over.
    taken: BTreeSet<TopicPartition>,
    /// The topics that it subscribes to in this generation.
    subscribed: BTreeSet<Arc<str>>,
    /// The partitions of topics by which this member has assigned, if it leads. If it came back as the leader (KIP-814), those of
    /// that time.
    assigned_by: Option<(BTreeSet<Arc<str>>, PartitionCounts)>,
    backoff: Backoff,
}

impl Member {
    pub(crate) fn new(
        config: Arc<GroupConfig>,
        offsets: Calls,
        shared: Arc<Shared>,
        changes: mpsc::UnboundedSender<Change>,
    ) -> Member {
        let client = &config.consumer.client;
        let backoff = Backoff::new(client.retry_backoff, client.retry_backoff_max);
        let calls = Calls::new(config.clone());
        Member {
            config,
            calls,
            offsets,
            shared,
            changes,
            owned: BTreeSet::new(),
            taken: BTreeSet::new(),
            subscribed: BTreeSet::new(),
            assigned_by: None,
            backoff,
        }
    }

    /// Takes part until it has to stop, or cannot continue; then it leaves, unless it is a static member.
    pub(crate) async fn run(mut self) {
        let shared = self.shared.clone();
        let failed = tokio::select! {
            () = shared.stop.notified() => None,
            error = self.take_part() => Some(error),
        };
        if let Some(error) = failed {
            shared.identity.lock().generation = -1;
            // Before others have its partitions. Without a consumer there is none to notify.
            let _ = self.changes.send(Change::notice(What::Failed(error)));
        }
        shared.set_joining(false);
        // The group waits for the end of the session of a member that does not leave.
        self.leave().await;
    }

    async fn leave(&self) {
        let identity = self.shared.identity.lock().clone();
        if self.config.instance_id.is_some() || identity.member_id.is_empty() {
            return;
        }
        // If the coordinator does not get the request, the session ends by itself.
        match tokio::time::timeout(LEAVE_LIMIT, self.offsets.leave(&identity)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!("{error}"),
            Err(_) => tracing::debug!("no answer to leaving group {}", OneLine(&self.config.group_id)),
        }
    }

    /// Lives through one generation after another; returns an error that another attempt cannot repair.
    async fn take_part(&mut self) -> Error {
        loop {
            match self.generation().await {
                End::Rejoin => self.backoff.reset(),
                End::Idle => {
                    tracing::warn!(
                        "leaving group {}: no record was asked for in {:?} (max_poll_interval)",
                        OneLine(&self.config.group_id),
                        self.config.max_poll_interval
                    );
                    self.leave().await;
                    self.lose(true).await;
                }
                End::Error(error) => match error.code() {
                    Some(ErrorCode::UNKNOWN_MEMBER_ID) => self.lose(true).await,
                    Some(ErrorCode::ILLEGAL_GENERATION) => self.lose(false).await,
                    _ if error.is_retriable() => {
                        tracing::debug!("{error}");
                        tokio::time::sleep(self.backoff.next(rand::random())).await;
                    }
                    _ => return error,
                },
            }
        }
    }

    /// Drops the partitions, which are lost.
    async fn lose(&mut self, forgets_name: bool) {
        {
            let mut identity = self.shared.identity.lock();
            identity.generation = -1;
            if forgets_name {
                identity.member_id.clear();
            }
        }
        self.shared.set_joining(false);
        self.owned.clear();
        self.taken.clear();
        lose(&self.changes).await;
    }

    async fn generation(&mut self) -> End {
        match self.join().await {
            Ok(assigned) => match self.hand_over(assigned).await {
                // The group assigns the released partitions now.
                Ok(true) => End::Rejoin,
                Ok(false) => self.stay().await,
                Err(end) => end,
            },
            Err(error) => error.into(),
        }
    }

    /// Joins and syncs, and returns the partitions of this member.
    async fn join(&mut self) -> Result<BTreeSet<TopicPartition>, Error> {
        let before = self.shared.identity.lock().clone();
        self.shared.set_joining(true);
        self.subscribed = self.topics().await?;
        let subscription = MemberSubscription {
            topics: self.subscribed.clone(),
            owned: self.owned.clone(),
            generation: before.generation,
        };
        let subscription =
            encode_subscription(&subscription).map_err(|error| Error::Invalid(error.to_string()))?;
        let named = |name: &str| name.clone_into(&mut self.shared.identity.lock().member_id);
        let joined = self.calls.join(&before.member_id, &subscription, named).await?;
        *self.shared.identity.lock() = joined.identity.clone();
        self.shared.set_joining(false);
        self.assigned_by = None;
        let assignments = match joined.led {
            Some(members) => self.lead(&members, joined.skips_assignment).await?,
            None => Assignments::new(),
        };
        let bytes = self.calls.sync(&joined.identity, &assignments).await?;
        decode_assignment(&bytes).map_err(|error| self.malformed("assignment", &error.to_string()))
    }

    /// The topics that it subscribes to, as far as they exist.
    async fn topics(&self) -> Result<BTreeSet<Arc<str>>, Error> {
        let pattern = match &self.config.subscription {
            Subscription::Topics(topics) => return Ok(topics.iter().cloned().collect()),
            Subscription::Pattern(pattern) => whole_name(pattern)?,
        };
        let all = self.offsets.cluster.topics().await?;
        let wanted = all.iter().filter(|topic| !topic.is_internal && pattern.is_match(&topic.name));
        Ok(wanted.map(|topic| topic.name.clone()).collect())
    }

    fn malformed(&self, what: &str, reason: &str) -> Error {
        let group = self.config.group_id.to_string();
        Error::MalformedByMember { group, what: what.to_owned(), reason: reason.to_owned() }
    }

    /// Assigns as the leader, unless all members keep their partitions. Watches for changes of topics from now on.
    async fn lead(
        &mut self,
        members: &BTreeMap<String, Vec<u8>>,
        skips_assignment: bool,
    ) -> Result<Assignments, Error> {
        let mut subscriptions = BTreeMap::new();
        for (member, bytes) in members {
            let subscription = decode_subscription(bytes)
                .map_err(|error| self.malformed("subscription of a member", &error.to_string()))?;
            subscriptions.insert(member.clone(), subscription);
        }
        let topics: BTreeSet<Arc<str>> =
            subscriptions.values().flat_map(|one: &MemberSubscription| one.topics.iter().cloned()).collect();
        let partitions = self.partitions(&topics).await?;
        let assignments = match skips_assignment {
            true => Assignments::new(),
            false => assign(&subscriptions, &partitions),
        };
        self.assigned_by = Some((topics, partitions));
        Ok(assignments)
    }

    /// The number of partitions of each topic; topics that do not exist are left out.
    async fn partitions(&self, topics: &BTreeSet<Arc<str>>) -> Result<PartitionCounts, Error> {
        let names: Vec<&str> = topics.iter().map(|topic| &**topic).collect();
        let found = self.offsets.cluster.refresh(&names, false).await?;
        let found = found
            .into_iter()
            .filter_map(|topic| topic.inspect_err(|refused| tracing::debug!("{}", refused.error)).ok());
        Ok(found.map(|topic| (topic.name.clone(), topic.partitions.len() as i32)).collect())
    }

    /// Lets the consumer take over an assignment. Returns true if partitions were released, which other members get when this one
    /// joins again. The revocation comes first and waits for nothing else.
    async fn hand_over(&mut self, assigned: BTreeSet<TopicPartition>) -> Result<bool, End> {
        let gives_up = !self.owned.is_subset(&assigned);
        let revoked: BTreeSet<_> = self.taken.difference(&assigned).cloned().collect();
        if !revoked.is_empty() {
            self.wait_for(hand_over(&self.changes, What::Revoked(revoked), Offer::default())).await?;
            self.taken.retain(|key| assigned.contains(key));
        }
        self.owned = assigned;
        let added: BTreeSet<_> = self.owned.difference(&self.taken).cloned().collect();
        if added.is_empty() {
            return Ok(gives_up);
        }
        let committed = match gives_up {
            // Other members wait for this one: offsets that are not known soon are asked for in the next generation.
            true => self.committed_soon(&added).await?,
            false => Some(self.committed(&added).await?),
        };
        if let Some(committed) = committed {
            let added = begin_at(added, &committed, &self.config);
            self.wait_for(hand_over(&self.changes, What::Assigned(added), Offer::default())).await?;
            self.taken.clone_from(&self.owned);
        }
        Ok(gives_up)
    }

    /// The committed offsets of partitions. Heartbeats continue while it asks, until the group changes.
    async fn committed(&self, keys: &BTreeSet<TopicPartition>) -> Result<CommittedOffsets, End> {
        let mut backoff = self.backoff.clone();
        loop {
            match self.offsets.committed(keys).await {
                Ok(committed) => return Ok(committed),
                Err(error) if error.is_retriable() => {
                    tracing::debug!("{error}");
                    tokio::time::sleep(backoff.next(rand::random())).await;
                    self.beat().await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The same, but none if the answer takes longer than a heartbeat interval.
    async fn committed_soon(&self, keys: &BTreeSet<TopicPartition>) -> Result<Option<CommittedOffsets>, End> {
        match tokio::time::timeout(self.config.heartbeat_interval, self.offsets.committed(keys)).await {
            Ok(Ok(committed)) => Ok(Some(committed)),
            Ok(Err(error)) if !error.is_retriable() => Err(error.into()),
            Ok(Err(error)) => {
                tracing::debug!("{error}");
                Ok(None)
            }
            Err(_) => Ok(None),
        }
    }

    /// Waits for the consumer to make a change.
    async fn wait_for(&self, mut done: oneshot::Receiver<()>) -> Result<(), End> {
        loop {
            tokio::select! {
                _ = &mut done => return Ok(()),
                () = tokio::time::sleep(self.config.heartbeat_interval) => {}
            }
            match self.beat().await {
                // The consumer comes first, since the group waits for it.
                Ok(()) | Err(End::Rejoin) => {}
                Err(End::Error(error)) if error.is_retriable() => tracing::debug!("{error}"),
                Err(end) => return Err(end),
            }
        }
    }

    /// Stays in the generation until it ends.
    async fn stay(&mut self) -> End {
        let mut looked_at = Instant::now();
        loop {
            tokio::time::sleep(self.config.heartbeat_interval).await;
            match self.beat().await {
                Ok(()) => {}
                Err(End::Error(error)) if error.is_retriable() => tracing::debug!("{error}"),
                Err(end) => return end,
            }
            match self.has_other_partitions(&mut looked_at).await {
                Ok(true) => return End::Rejoin,
                Ok(false) => {}
                Err(error) => tracing::debug!("{error}"),
            }
        }
    }

    async fn beat(&self) -> Result<(), End> {
        let idle_since = *self.shared.idle_since.lock();
        if idle_since.is_some_and(|since| since.elapsed() > self.config.max_poll_interval) {
            return Err(End::Idle);
        }
        let identity = self.shared.identity.lock().clone();
        Ok(self.calls.heartbeat(&identity).await?)
    }

    /// Returns true if the topics or their partitions have changed since this member joined or assigned them. It looks when the
    /// metadata are old, and at every heartbeat while a topic is missing.
    async fn has_other_partitions(&self, looked_at: &mut Instant) -> Result<bool, Error> {
        let is_complete = !self.subscribed.is_empty()
            && self.assigned_by.as_ref().is_none_or(|(topics, partitions)| topics.len() == partitions.len());
        if is_complete && looked_at.elapsed() < self.config.consumer.client.metadata_max_age {
            return Ok(false);
        }
        *looked_at = Instant::now();
        if self.topics().await? != self.subscribed {
            return Ok(true);
        }
        match &self.assigned_by {
            Some((topics, partitions)) => Ok(self.partitions(topics).await? != *partitions),
            None => Ok(false),
        }
    }
}
