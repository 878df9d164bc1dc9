//! A coordinator with a log whose outcomes the script decides: the driver of all tests here.

use std::collections::{BTreeMap, HashSet};

use mainstem_wire::messages::consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;
use mainstem_wire::{ErrorCode, Uuid};

use crate::groups::{
    CoordinatorRecord, Effect, GroupConfig, GroupCoordinator, LogEntry, MatchedPatterns, Producer, Reply,
    Request, RequestContext, Ticket, Token, TransactionEnd, VisibleTopics,
};
use crate::time::Now;

/// The only partition of `__consumer_offsets` here.
pub(super) const PARTITION: i32 = 0;
/// The wall clock at the start.
const WALL_MS: i64 = 1_000_000;

/// A coordinator, its clocks, its log, and the rules that hold for every driver: each request gets one answer.
pub(super) struct Cluster {
    pub(super) coordinator: GroupCoordinator,
    pub(super) config: GroupConfig,
    pub(super) now: Now,
    /// The durable entries, oldest first.
    pub(super) log: Vec<Logged>,
    /// Appends that have no outcome, or wait for the outcome of an earlier one.
    pub(super) pending: BTreeMap<Ticket, Pending>,
    /// Every topic with its id and number of partitions.
    pub(super) topics: BTreeMap<String, (Uuid, i32)>,
    topic_ids: u8,
    waiting: HashSet<Token>,
    tokens: u64,
    randoms: u8,
}

/// One entry of the log.
#[derive(Debug, Clone)]
pub(super) enum Logged {
    /// A record, perhaps of a producer's transaction.
    Record(CoordinatorRecord, Option<Producer>),
    /// A marker.
    End(TransactionEnd),
}

impl Logged {
    /// A record of no transaction.
    pub(super) fn plain(record: CoordinatorRecord) -> Self {
        Logged::Record(record, None)
    }

    /// The record, if it is one.
    pub(super) fn record(&self) -> Option<&CoordinatorRecord> {
        match self {
            Logged::Record(record, _) => Some(record),
            Logged::End(_) => None,
        }
    }

    /// As the driver reads it.
    fn read(&self) -> LogEntry<'_> {
        match self {
            Logged::Record(record, producer) => {
                LogEntry::Record { key: &record.key, value: record.value.as_deref(), producer: *producer }
            }
            Logged::End(end) => LogEntry::End(*end),
        }
    }
}

/// An append in flight.
pub(super) struct Pending {
    pub(super) entries: Vec<Logged>,
    pub(super) outcome: Option<Result<(), ErrorCode>>,
}

impl Cluster {
    /// A coordinator that serves its partition, which is empty.
    pub(super) fn new(config: GroupConfig) -> Self {
        let config = GroupConfig { offsets_topic_num_partitions: 1, ..config };
        let mut cluster = Self {
            coordinator: GroupCoordinator::new(config.clone()),
            config,
            now: Now { mono_ms: 0, wall_ms: WALL_MS },
            log: Vec::new(),
            pending: BTreeMap::new(),
            topics: BTreeMap::new(),
            topic_ids: 0,
            waiting: HashSet::new(),
            tokens: 0,
            randoms: 0,
        };
        cluster.load();
        cluster
    }

    /// Sends a request; its answer will have the token.
    pub(super) fn send(&mut self, api_version: i16, client_id: &str, request: Request<'_>) -> Token {
        self.tokens += 1;
        let token = Token(self.tokens);
        self.waiting.insert(token);
        let context =
            RequestContext { api_version, client_id, client_host: "/host", visible: VisibleTopics::ALL };
        self.coordinator.step(self.now, token, context, request);
        token
    }

    /// Matches the patterns that are due with a heartbeat, as the driver does before the heartbeat.
    pub(super) fn matched(&self, request: &ConsumerGroupHeartbeatRequest<'_>) -> Option<MatchedPatterns> {
        let due = self.coordinator.patterns_due(self.now, request);
        Some(due.map(|due| due.matched(VisibleTopics::ALL)).unwrap_or_default())
    }

    /// The random bytes of the n-th JoinGroup are all n.
    pub(super) fn random(&mut self) -> [u8; 16] {
        self.randoms = self.randoms.wrapping_add(1);
        [self.randoms; 16]
    }

    /// Returns the work for the driver. Appends are recorded as pending, answers are checked off.
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        let effects: Vec<Effect> = self.coordinator.effects().collect();
        for effect in &effects {
            match effect {
                Effect::Append { ticket, producer, records, .. } => {
                    let entry = |record: &CoordinatorRecord| Logged::Record(record.clone(), *producer);
                    self.write(*ticket, records.iter().map(entry).collect());
                }
                Effect::Reply { token, .. } => {
                    assert!(self.waiting.remove(token), "{token:?} is answered twice");
                }
            }
        }
        effects
    }

    /// Records entries that are in flight.
    fn write(&mut self, ticket: Ticket, entries: Vec<Logged>) {
        assert_eq!(ticket.partition, PARTITION);
        let last = self.pending.last_key_value();
        assert!(last.is_none_or(|(last, _)| *last < ticket), "tickets ascend");
        self.pending.insert(ticket, Pending { entries, outcome: None });
    }

    /// Writes the marker of a producer's transaction, unless the coordinator is not ready for that.
    pub(super) fn end_transaction(&mut self, end: TransactionEnd) -> Result<(), ErrorCode> {
        self.coordinator.may_end_transaction(PARTITION)?;
        let ticket = self.coordinator.transaction_ended(self.now, PARTITION, end).expect("it was just ready");
        self.write(ticket, vec![Logged::End(end)]);
        Ok(())
    }

    /// Reports an outcome. Records get into the log in the order of their tickets.
    pub(super) fn finish(&mut self, ticket: Ticket, outcome: Result<(), ErrorCode>) {
        self.pending.get_mut(&ticket).expect("the append is pending").outcome = Some(outcome);
        while let Some(first) = self.pending.first_entry().filter(|first| first.get().outcome.is_some()) {
            let Pending { entries, outcome } = first.remove();
            if outcome == Some(Ok(())) {
                self.log.extend(entries);
            }
        }
        self.coordinator.appended(self.now, ticket, outcome);
    }

    /// The oldest append without an outcome.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = Ticket> {
        self.pending.iter().filter(|(_, pending)| pending.outcome.is_none()).map(|(ticket, _)| *ticket)
    }

    /// Kills the coordinator and everything that is not in the log; another one takes over.
    pub(super) fn reload(&mut self) {
        self.pending.clear();
        self.coordinator = GroupCoordinator::new(self.config.clone());
        self.load();
    }

    /// Loads the partition from the log.
    fn load(&mut self) {
        for (name, (id, partitions)) in &self.topics {
            self.coordinator.topic_changed(name, *id, *partitions);
        }
        load_into(&mut self.coordinator, self.now, &self.log);
    }

    /// Creates a topic, or gives it more partitions; without partitions it is deleted.
    pub(super) fn set_topic(&mut self, name: &str, partitions: i32) {
        if partitions == 0 {
            self.topics.remove(name);
            return self.coordinator.topic_deleted(self.now, name);
        }
        let known = self.topics.get(name).map(|(id, _)| *id);
        let id = known.unwrap_or_else(|| {
            self.topic_ids += 1;
            Uuid([self.topic_ids; 16])
        });
        self.topics.insert(name.to_owned(), (id, partitions));
        self.coordinator.topic_changed(name, id, partitions);
    }

    /// The name of a topic that exists or existed.
    pub(super) fn topic_name(&self, id: Uuid) -> String {
        let known = self.topics.iter().find(|(_, (known, _))| *known == id);
        known.map_or_else(|| format!("#{}", id.0[0]), |(name, _)| name.clone())
    }

    /// Advances both clocks.
    pub(super) fn advance(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall_ms += i64::try_from(ms).expect("tests are short");
    }

    /// A coordinator that is rebuilt from the log alone.
    pub(super) fn rebuilt(&self) -> GroupCoordinator {
        let mut coordinator = GroupCoordinator::new(self.config.clone());
        for (name, (id, partitions)) in &self.topics {
            coordinator.topic_changed(name, *id, *partitions);
        }
        load_into(&mut coordinator, self.now, &self.log);
        coordinator
    }

    /// Requests that have no answer yet.
    pub(super) fn unanswered(&self) -> usize {
        self.waiting.len()
    }
}

fn load_into(coordinator: &mut GroupCoordinator, now: Now, log: &[Logged]) {
    let mut loader = coordinator.begin_load(PARTITION);
    let replayed = loader.load(now, PARTITION, log.iter().map(Logged::read));
    assert_eq!((replayed.applied, replayed.malformed), (log.len() as u64, 0));
    coordinator.finish_load(now, PARTITION, loader);
}

/// The answers among effects.
pub(super) fn replies(effects: &[Effect]) -> impl Iterator<Item = (Token, &Reply)> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Reply { token, reply } => Some((*token, reply)),
        Effect::Append { .. } => None,
    })
}

/// The appends among effects.
pub(super) fn tickets(effects: &[Effect]) -> impl Iterator<Item = Ticket> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Append { ticket, .. } => Some(*ticket),
        Effect::Reply { .. } => None,
    })
}
