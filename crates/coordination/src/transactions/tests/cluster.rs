//! A coordinator with a log, partitions and producer ids whose outcomes the script decides: the driver of all tests here.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use mainstem_records::{LeaderEpoch, ProducerId};
use mainstem_wire::ErrorCode;

use crate::time::Now;
use crate::transactions::{
    CoordinatorRecord, Effect, MarkerOutcome, MarkerTicket, Markers, ProducerIdTicket, Reply, Request,
    Ticket, Token, TransactionConfig, TransactionCoordinator,
};

/// The only partition of `__transaction_state` here.
pub(super) const PARTITION: i32 = 0;
/// The wall clock at the start.
pub(super) const WALL_MS: i64 = 1_000_000;
/// The first producer id.
const FIRST_PRODUCER_ID: i64 = 1_000;

/// A marker that is being written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Marker {
    pub(super) ticket: MarkerTicket,
    pub(super) topic: String,
    pub(super) partition: i32,
}

/// A coordinator, its clocks, its log, and the rules that hold for every driver: each request gets one answer.
pub(super) struct Cluster {
    pub(super) coordinator: TransactionCoordinator,
    pub(super) config: TransactionConfig,
    pub(super) now: Now,
    /// Records that are durable, oldest first.
    pub(super) log: Vec<CoordinatorRecord>,
    /// Appends that have no outcome.
    pub(super) pending: BTreeMap<Ticket, Vec<CoordinatorRecord>>,
    /// Markers that have no outcome.
    pub(super) markers: BTreeMap<Marker, Markers>,
    /// Producer ids that were requested.
    pub(super) asked: BTreeSet<ProducerIdTicket>,
    next_producer_id: i64,
    coordinator_epoch: i32,
    waiting: HashSet<Token>,
    tokens: u64,
}

impl Cluster {
    /// A coordinator that serves its partition, which has these records.
    pub(super) fn new(config: TransactionConfig, log: Vec<CoordinatorRecord>) -> Self {
        let config = TransactionConfig { transaction_state_log_num_partitions: 1, ..config };
        let mut cluster = Self {
            coordinator: TransactionCoordinator::new(config.clone()),
            config,
            now: Now { mono_ms: 0, wall_ms: WALL_MS },
            log,
            pending: BTreeMap::new(),
            markers: BTreeMap::new(),
            asked: BTreeSet::new(),
            next_producer_id: FIRST_PRODUCER_ID,
            coordinator_epoch: 0,
            waiting: HashSet::new(),
            tokens: 0,
        };
        cluster.load();
        cluster
    }

    /// Sends a request; its answer will have the token.
    pub(super) fn send(&mut self, api_version: i16, request: Request<'_>) -> Token {
        self.tokens += 1;
        let token = Token(self.tokens);
        self.waiting.insert(token);
        self.coordinator.step(self.now, token, api_version, request);
        token
    }

    /// Returns the work for the driver. Work with an outcome is recorded, answers are checked off.
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        let effects: Vec<Effect> = self.coordinator.effects().collect();
        for effect in &effects {
            match effect {
                Effect::Append { ticket, records, .. } => {
                    assert_eq!(ticket.partition, PARTITION);
                    assert!(!records.is_empty(), "an append has records");
                    let before = self.pending.insert(*ticket, records.clone());
                    assert_eq!(before, None, "a ticket is given once");
                }
                Effect::WriteMarkers(markers) => self.note(markers),
                Effect::NewProducerId { ticket } => {
                    assert!(self.asked.insert(*ticket), "a ticket is given once");
                }
                Effect::Reply { token, .. } => {
                    assert!(self.waiting.remove(token), "{token:?} is answered twice");
                }
            }
        }
        effects
    }

    fn note(&mut self, markers: &Markers) {
        assert!(!markers.topics.is_empty(), "markers have topics");
        for topic in &markers.topics {
            assert!(!topic.partitions.is_empty(), "{} has partitions", topic.name);
            for partition in &topic.partitions {
                let marker =
                    Marker { ticket: markers.ticket, topic: topic.name.to_string(), partition: *partition };
                let before = self.markers.insert(marker, markers.clone());
                assert_eq!(before, None, "a marker is asked for again only after its outcome");
            }
        }
    }

    /// Reports the outcome of an append.
    pub(super) fn finish(&mut self, ticket: Ticket, outcome: Result<(), ErrorCode>) {
        let records = self.pending.remove(&ticket).expect("the append is pending");
        if outcome.is_ok() {
            self.log.extend(records);
        }
        self.coordinator.appended(self.now, ticket, outcome);
    }

    /// Brings a producer id, or an error.
    pub(super) fn give_id(&mut self, ticket: ProducerIdTicket, outcome: Result<(), ErrorCode>) {
        assert!(self.asked.remove(&ticket), "{ticket:?} is wanted");
        let id = self.next_producer_id;
        self.next_producer_id += i64::from(outcome.is_ok());
        self.coordinator.producer_id(self.now, ticket, outcome.map(|()| ProducerId::new(id)));
    }

    /// Reports the outcome of a marker.
    pub(super) fn mark(&mut self, marker: &Marker, outcome: MarkerOutcome) -> Markers {
        let markers = self.markers.remove(marker).expect("the marker is being written");
        self.coordinator.marked(self.now, marker.ticket, &marker.topic, marker.partition, outcome);
        markers
    }

    /// Kills the coordinator and all but the log and the oldest `kept` appends in flight, which reach the log unnoticed; another one takes
    /// over.
    pub(super) fn crash(&mut self, kept: usize) {
        let pending = std::mem::take(&mut self.pending);
        self.log.extend(pending.into_values().take(kept).flatten());
        self.markers.clear();
        self.asked.clear();
        self.waiting.clear();
        self.coordinator = TransactionCoordinator::new(self.config.clone());
        self.load();
    }

    /// Unloads the partition and loads it again. Waiting requests are answered before.
    pub(super) fn resign(&mut self) -> Vec<Effect> {
        self.coordinator.unload(self.now, PARTITION);
        let effects = self.effects();
        self.pending.clear();
        self.markers.clear();
        self.load();
        effects
    }

    fn load(&mut self) {
        self.coordinator_epoch += 1;
        load_into(&mut self.coordinator, (self.now, self.coordinator_epoch), &self.log);
    }

    /// Advances both clocks.
    pub(super) fn advance(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall_ms += i64::try_from(ms).expect("tests are short");
    }

    /// A coordinator that is rebuilt from the log alone.
    pub(super) fn rebuilt(&self) -> TransactionCoordinator {
        let mut coordinator = TransactionCoordinator::new(self.config.clone());
        load_into(&mut coordinator, (self.now, self.coordinator_epoch), &self.log);
        coordinator
    }

    /// Requests that have no answer yet.
    pub(super) fn unanswered(&self) -> usize {
        self.waiting.len()
    }
}

fn load_into(coordinator: &mut TransactionCoordinator, (now, epoch): (Now, i32), log: &[CoordinatorRecord]) {
    let mut loader = coordinator.begin_load(PARTITION, LeaderEpoch::new(epoch));
    let records = log.iter().map(|record| (record.key.as_slice(), record.value.as_deref()));
    let replayed = loader.load(now, PARTITION, records);
    assert_eq!((replayed.applied, replayed.malformed), (log.len() as u64, 0));
    coordinator.finish_load(now, PARTITION, loader);
}

/// The answers among effects.
pub(super) fn replies(effects: &[Effect]) -> impl Iterator<Item = (Token, &Reply)> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Reply { token, reply } => Some((*token, reply)),
        _ => None,
    })
}
