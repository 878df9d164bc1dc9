//! The task that keeps a consumer in a group of the consumer protocol (KIP-848): it carries out the decisions of [`Membership`].
//!
//! At most one heartbeat, one change for the consumer and one question for names are under way. Heartbeats continue while
//! the consumer takes over a change.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use mainstem_lines::OneLine;
use mainstem_wire::Uuid;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::calls::{Calls, Identity};
use super::config::GroupConfig;
use super::handover::{Change, LEAVE_LIMIT, Offer, Shared, What, begin_at, hand_over, lose};
use super::membership::{Answer, Heartbeat, Membership, Step};
use crate::backoff::Backoff;
use crate::cluster::Names;
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// The member looks for work at least this often.
const IDLE_LOOK: Duration = Duration::from_secs(60);

/// A request or a change that is under way.
type Task<T> = Option<Pin<Box<dyn Future<Output = T> + Send>>>;

/// The end of a task.
enum Event {
    Stop,
    Look,
    Beaten(Result<Answer, Error>),
    HandedOver(Result<(), Error>),
    Lost,
    Named(Result<Names, Error>),
}

/// A member of a group.
pub(crate) struct ConsumerMember {
    config: Arc<GroupConfig>,
    /// For heartbeats, so that they wait for no other request.
    calls: Calls,
    offsets: Calls,
    shared: Arc<Shared>,
    changes: mpsc::UnboundedSender<Change>,
    membership: Membership,
    member_id: String,
    started: Instant,
    beat: Task<Result<Answer, Error>>,
    change: Task<Event>,
    /// Decides whether that change is made or withdrawn, if it may be withdrawn.
    offer: Option<Offer>,
    question: Task<Result<Names, Error>>,
    /// The heartbeat by which it leaves before its partitions are lost.
    farewell: Option<Heartbeat>,
    /// Names are not asked for again before this time.
    ask_at: Instant,
    ask_backoff: Backoff,
}

impl ConsumerMember {
    pub(crate) fn new(
        config: Arc<GroupConfig>,
        offsets: Calls,
        shared: Arc<Shared>,
        changes: mpsc::UnboundedSender<Change>,
    ) -> ConsumerMember {
        let client = &config.consumer.client;
        let backoff = Backoff::new(client.retry_backoff, client.retry_backoff_max);
        ConsumerMember {
            calls: Calls::new(config.clone()),
            offsets,
            shared,
            changes,
            membership: Membership::new(config.instance_id.is_some(), backoff.clone()),
            // A member chooses its own id (KIP-1082), and keeps it for life.
            member_id: Uuid::from_u128(rand::random()).to_string(),
            started: Instant::now(),
            beat: None,
            change: None,
            offer: None,
            question: None,
            farewell: None,
            ask_at: Instant::now(),
            ask_backoff: backoff,
            config,
        }
    }

    /// Takes part until it has to stop, or cannot continue; then it leaves.
    pub(crate) async fn run(mut self) {
        let failed = self.take_part().await;
        (self.beat, self.change) = (None, None);
        if let Err(error) = failed {
            // Before others have its partitions. Without a consumer there is none to notify.
            let _ = self.changes.send(Change::notice(What::Failed(error)));
        }
        leave(&self.calls, &self.member_id, self.membership.leave()).await;
    }

    async fn take_part(&mut self) -> Result<(), Error> {
        loop {
            let next_look = self.work()?;
            match self.event(next_look).await {
                Event::Stop => return Ok(()),
                event => self.handle(event),
            }
        }
    }

    /// Begins the work that is due. Returns when to look again if nothing happens before.
    fn work(&mut self) -> Result<Instant, Error> {
        if self.membership.takes_part() && self.is_idle() {
            self.go_idle();
        }
        let mut next_look = Instant::now() + IDLE_LOOK.min(self.config.max_poll_interval);
        self.ask_names(&mut next_look);
        loop {
            match self.membership.next(self.now_ms()) {
                Step::Beat(beat) => self.begin_beat(beat),
                Step::Revoke(revoked) => self.begin_revoking(revoked),
                Step::Assign(added) => self.begin_assigning(added),
                Step::Withdraw => self.withdraw(),
                Step::Lose => self.begin_losing(),
                Step::Fail(error) => return Err(error),
                Step::Wait(until_ms) => {
                    let until = self.started.checked_add(Duration::from_millis(until_ms));
                    return Ok(until.map_or(next_look, |until| next_look.min(until)));
                }
            }
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).expect("a process runs no million years")
    }

    async fn event(&mut self, next_look: Instant) -> Event {
        tokio::select! {
            () = self.shared.stop.notified() => Event::Stop,
            answer = ended(&mut self.beat) => Event::Beaten(answer),
            event = ended(&mut self.change) => event,
            names = ended(&mut self.question) => Event::Named(names),
            () = tokio::time::sleep_until(next_look) => Event::Look,
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Stop | Event::Look => {}
            Event::Beaten(Ok(answer)) => self.membership.answered(answer),
            Event::Beaten(Err(error)) => {
                tracing::debug!("{error}");
                self.membership.refused(&error, self.now_ms(), rand::random());
            }
            Event::HandedOver(Ok(())) => self.membership.reconciled(),
            Event::HandedOver(Err(error)) => self.membership.fail(error),
            Event::Lost => self.membership.lost(self.now_ms()),
            Event::Named(names) => {
                self.ask_at = Instant::now() + self.ask_backoff.next(rand::random());
                match names {
                    Ok(names) => self.membership.named(names),
                    Err(error) => tracing::debug!("{error}"),
                }
            }
        }
        self.share_identity();
    }

    /// Publishes the epoch under which commits are made.
    fn share_identity(&self) {
        let generation = self.membership.epoch().unwrap_or(-1);
        *self.shared.identity.lock() = Identity { member_id: self.member_id.clone(), generation };
    }

    fn begin_beat(&mut self, beat: Heartbeat) {
        let (calls, member_id) = (self.calls.clone(), self.member_id.clone());
        self.beat = Some(Box::pin(async move { calls.beat(&member_id, &beat).await }));
    }

    fn begin_revoking(&mut self, revoked: BTreeSet<TopicPartition>) {
        let changes = self.changes.clone();
        self.change = Some(Box::pin(async move {
            // The consumer may be gone; then this ends soon.
            let _ = hand_over(&changes, What::Revoked(revoked), Offer::default()).await;
            Event::HandedOver(Ok(()))
        }));
    }

    fn begin_assigning(&mut self, added: BTreeSet<TopicPartition>) {
        let (offsets, changes, config) = (self.offsets.clone(), self.changes.clone(), self.config.clone());
        let mut backoff = self.ask_backoff.clone();
        backoff.reset();
        let offer = Offer::default();
        self.offer = Some(offer.clone());
        self.change = Some(Box::pin(async move {
            let committed = loop {
                match offsets.committed(&added).await {
                    Ok(committed) => break committed,
                    Err(error) if error.is_retriable() => {
                        tracing::debug!("{error}");
                        tokio::time::sleep(backoff.next(rand::random())).await;
                    }
                    Err(error) => return Event::HandedOver(Err(error)),
                }
            };
            let added = begin_at(added, &committed, &config);
            let _ = hand_over(&changes, What::Assigned(added), offer).await;
            Event::HandedOver(Ok(()))
        }));
    }

    /// Drops the change that is under way, unless the consumer has begun with it.
    fn withdraw(&mut self) {
        if self.offer.take().is_some_and(|offer| offer.withdraw()) {
            self.change = None;
            self.membership.withdrawn();
        }
    }

    fn begin_losing(&mut self) {
        self.beat = None;
        self.share_identity();
        let (changes, calls, member_id) = (self.changes.clone(), self.calls.clone(), self.member_id.clone());
        let farewell = self.farewell.take();
        self.change = Some(Box::pin(async move {
            leave(&calls, &member_id, farewell).await;
            lose(&changes).await;
            Event::Lost
        }));
    }

    /// Asks for the names of topics, if some are missing and it was not done just now.
    fn ask_names(&mut self, next_look: &mut Instant) {
        let unnamed = self.membership.unnamed();
        if unnamed.is_empty() {
            self.ask_backoff.reset();
            return;
        }
        if self.question.is_some() {
            return;
        }
        if self.ask_at > Instant::now() {
            *next_look = self.ask_at.min(*next_look);
            return;
        }
        let cluster = self.offsets.cluster.clone();
        self.question = Some(Box::pin(async move { cluster.names(&unnamed).await }));
    }

    /// Returns true if the caller has not asked for records for too long.
    fn is_idle(&self) -> bool {
        let idle_since = *self.shared.idle_since.lock();
        idle_since.is_some_and(|since| since.elapsed() > self.config.max_poll_interval)
    }

    fn go_idle(&mut self) {
        tracing::warn!(
            "leaving group {}: no record was asked for in {:?} (max_poll_interval)",
            OneLine(&self.config.group_id),
            self.config.max_poll_interval
        );
        self.farewell = self.membership.go_idle();
    }
}

/// Leaves. If the coordinator does not get the request, the session ends by itself.
async fn leave(calls: &Calls, member_id: &str, farewell: Option<Heartbeat>) {
    let Some(farewell) = farewell else { return };
    match tokio::time::timeout(LEAVE_LIMIT, calls.beat(member_id, &farewell)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!("{error}"),
        Err(_) => tracing::debug!("no answer to leaving a group"),
    }
}

/// Waits for the end of a task; for ever if there is none.
async fn ended<T>(task: &mut Task<T>) -> T {
    match task {
        Some(running) => {
            let outcome = running.await;
            *task = None;
            outcome
        }
        None => std::future::pending().await,
    }
}
