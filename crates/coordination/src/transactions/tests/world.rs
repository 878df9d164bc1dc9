//! Producers, a coordinator and faults for the properties, with the promises that every answer has to keep.

use std::collections::{BTreeMap, HashMap, HashSet};

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::add_offsets_to_txn_request::AddOffsetsToTxnRequest;
use mainstem_wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use mainstem_wire::messages::end_txn_request::EndTxnRequest;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::list_transactions_request::ListTransactionsRequest;

use super::cluster::{Cluster, PARTITION, replies};
use crate::transactions::image::{EPOCH_BUMP_VERSION, Image, Partitions};
use crate::transactions::records::{self, Record};
use crate::transactions::transaction::Transaction;
use crate::transactions::{
    CoordinatorRecord, MarkerOutcome, Reply, Request, State, Token, TransactionConfig,
};

/// A producer: a process with a transactional id.
#[derive(Debug, Clone)]
pub(super) struct Producer {
    pub(super) id: String,
    /// The producer id and epoch that it was given.
    pub(super) identity: (ProducerId, ProducerEpoch),
    /// The length of the log when another producer got the transactional id.
    fenced: Option<usize>,
    /// Its transactions have version 2.
    is_new: bool,
}

/// The kind of a request, which says how to check its answer.
#[derive(Debug, Clone)]
enum Asked {
    Init { id: String, producer: Option<usize>, is_new: bool },
    Add { producer: usize, identity: (ProducerId, ProducerEpoch), partitions: Partitions },
    End { producer: usize, committed: bool },
    List,
}

pub(super) struct World {
    pub(super) cluster: Cluster,
    pub(super) producers: Vec<Producer>,
    asked: HashMap<Token, Asked>,
    /// The producer that each producer id and epoch was given to.
    given: HashMap<(ProducerId, ProducerEpoch), usize>,
    /// Partitions that have the marker of the transaction that the record at this place in the log decides.
    marked: HashSet<(usize, String, i32)>,
}

/// The partitions that transactions reach, one bit each.
const PARTITIONS: [(&str, i32); 3] = [("t", 0), ("t", 1), ("u", 0)];

/// The partitions whose bits are set.
fn chosen(bits: u8) -> impl Iterator<Item = (&'static str, i32)> {
    let places = PARTITIONS.into_iter().enumerate();
    places.filter(move |(place, _)| bits >> place & 1 == 1).map(|(_, partition)| partition)
}

impl World {
    /// A coordinator with this log, and the producers of its transactional ids.
    pub(super) fn new(config: TransactionConfig, log: Vec<CoordinatorRecord>) -> Self {
        let is_new = config.transaction_version >= EPOCH_BUMP_VERSION;
        let mut world = Self {
            cluster: Cluster::new(config, log),
            producers: Vec::new(),
            asked: HashMap::new(),
            given: HashMap::new(),
            marked: HashSet::new(),
        };
        for (id, (_, image)) in world.durable() {
            let identity = (image.producer_id, image.producer_epoch);
            world.given.insert(identity, world.producers.len());
            world.producers.push(Producer { id, identity, fenced: None, is_new });
        }
        world
    }

    fn producer(&self, index: usize) -> Option<usize> {
        (!self.producers.is_empty()).then(|| index % self.producers.len())
    }

    fn ask(&mut self, version: i16, asked: Asked, request: Request<'_>) {
        let token = self.cluster.send(version, request);
        self.asked.insert(token, asked);
        self.settle();
    }

    /// Initialises a new producer, or one that names its identity.
    pub(super) fn init(&mut self, id: &str, producer: Option<usize>, is_new: bool, timeout_ms: i32) {
        let producer = producer.and_then(|index| self.producer(index));
        let known = producer.map(|index| self.producers[index].clone());
        let id = known.as_ref().map_or(id, |known| known.id.as_str()).to_owned();
        let (producer_id, producer_epoch) =
            known.map_or((ProducerId::NONE, ProducerEpoch::NONE), |known| known.identity);
        let request = InitProducerIdRequest {
            transactional_id: Some(id.clone().into()),
            transaction_timeout_ms: timeout_ms,
            producer_id: producer_id.get(),
            producer_epoch: producer_epoch.get(),
            ..Default::default()
        };
        let is_new = is_new && self.cluster.config.transaction_version >= EPOCH_BUMP_VERSION;
        let request = Request::InitProducerId { request, enable_2pc: false, keep_prepared_txn: false };
        self.ask(5, Asked::Init { id, producer, is_new }, request);
    }

    pub(super) fn add(&mut self, producer: usize, bits: u8, verify_only: bool) {
        let Some(index) = self.producer(producer) else { return };
        let Producer { id, identity, is_new, .. } = self.producers[index].clone();
        let mut partitions = Partitions::new();
        for (topic, partition) in chosen(bits) {
            partitions.entry(topic.into()).or_default().insert(partition);
        }
        let topics = chosen(bits).map(|(topic, partition)| AddPartitionsToTxnTopic {
            name: topic.into(),
            partitions: vec![partition],
            ..Default::default()
        });
        let request = AddPartitionsToTxnTransaction {
            transactional_id: id.into(),
            producer_id: identity.0.get(),
            producer_epoch: identity.1.get(),
            verify_only,
            topics: topics.collect(),
            ..Default::default()
        };
        let asked = Asked::Add { producer: index, identity, partitions };
        self.ask(if is_new { 5 } else { 3 }, asked, Request::AddPartitions(request));
    }

    pub(super) fn add_offsets(&mut self, producer: usize) {
        let Some(index) = self.producer(producer) else { return };
        let Producer { id, identity, .. } = self.producers[index].clone();
        let request = AddOffsetsToTxnRequest {
            transactional_id: id.into(),
            producer_id: identity.0.get(),
            producer_epoch: identity.1.get(),
            group_id: "g".into(),
            ..Default::default()
        };
        let partitions = Partitions::from([("__consumer_offsets".into(), [3].into())]);
        self.ask(4, Asked::Add { producer: index, identity, partitions }, Request::AddOffsets(request));
    }

    /// Ends a transaction, or with `late` as if the epoch had not moved yet.
    pub(super) fn end(&mut self, producer: usize, committed: bool, late: bool) {
        let Some(index) = self.producer(producer) else { return };
        let Producer { id, identity, is_new, .. } = self.producers[index].clone();
        let request = EndTxnRequest {
            transactional_id: id.into(),
            producer_id: identity.0.get(),
            producer_epoch: (identity.1.get() - i16::from(late)).max(0),
            committed,
            ..Default::default()
        };
        let asked = Asked::End { producer: index, committed };
        self.ask(if is_new { 5 } else { 4 }, asked, Request::EndTxn(request));
    }

    pub(super) fn list(&mut self) {
        let request = ListTransactionsRequest { duration_filter: -1, ..Default::default() };
        self.ask(2, Asked::List, Request::ListTransactions(request));
    }

    pub(super) fn finish(&mut self, append: usize, error: bool) {
        if self.cluster.pending.is_empty() {
            return;
        }
        let ticket =
            *self.cluster.pending.keys().nth(append % self.cluster.pending.len()).expect("it is one of them");
        self.cluster.finish(ticket, if error { Err(ErrorCode::NOT_ENOUGH_REPLICAS) } else { Ok(()) });
        self.settle();
    }

    pub(super) fn give_id(&mut self, error: bool) {
        if let Some(ticket) = self.cluster.asked.first().copied() {
            let outcome = if error { Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS) } else { Ok(()) };
            self.cluster.give_id(ticket, outcome);
            self.settle();
        }
    }

    /// Answers for a partition: its marker must be that of the durable decision.
    pub(super) fn mark(&mut self, marker: usize, outcome: MarkerOutcome) {
        if self.cluster.markers.is_empty() {
            return;
        }
        let at = marker % self.cluster.markers.len();
        let marker = self.cluster.markers.keys().nth(at).expect("it is one of them").clone();
        let markers = self.cluster.markers[&marker].clone();
        let durable = self.durable();
        let (place, image) = &durable[&*markers.transactional_id];
        let decision = if markers.committed { State::PrepareCommit } else { State::PrepareAbort };
        assert_eq!(
            (image.state, image.producer_id, image.producer_epoch),
            (decision, markers.producer_id, markers.producer_epoch),
            "a marker of what is not decided: {markers:?}"
        );
        let is_in = image.partitions.get(&*marker.topic).is_some_and(|of| of.contains(&marker.partition));
        assert!(is_in, "a marker where nothing is to end: {marker:?}");
        if !matches!(outcome, MarkerOutcome::Failed(_)) {
            self.marked.insert((*place, marker.topic.clone(), marker.partition));
        }
        self.cluster.mark(&marker, outcome);
        self.settle();
    }

    /// Lets everything in flight succeed.
    pub(super) fn flow(&mut self) {
        while !(self.cluster.pending.is_empty()
            && self.cluster.asked.is_empty()
            && self.cluster.markers.is_empty())
        {
            self.finish(0, false);
            self.give_id(false);
            self.mark(0, MarkerOutcome::Written);
        }
    }

    /// Lets time pass; with `flows` everything in flight succeeds meanwhile.
    pub(super) fn wait(&mut self, ms: u64, flows: bool) {
        let end = self.cluster.now.mono_ms + ms;
        loop {
            if flows {
                self.flow();
            }
            let Some(at) = self.cluster.coordinator.next_deadline_ms().filter(|at| *at <= end) else { break };
            self.cluster.advance(at.saturating_sub(self.cluster.now.mono_ms));
            self.cluster.coordinator.tick(self.cluster.now);
            self.settle();
        }
        self.cluster.advance(end - self.cluster.now.mono_ms);
    }

    pub(super) fn crash(&mut self, kept: usize) {
        self.cluster.crash(kept);
        self.asked.clear();
        self.settle();
    }

    pub(super) fn resign(&mut self) {
        let effects = self.cluster.resign();
        for (token, reply) in replies(&effects) {
            let asked = self.asked.remove(&token).expect("it was asked");
            self.check_answer(asked, reply);
        }
        assert_eq!(self.cluster.unanswered(), 0, "giving a partition up answers everybody");
        self.settle();
    }

    /// Checks every answer against what is in the log at this moment.
    fn settle(&mut self) {
        let effects = self.cluster.effects();
        for (token, reply) in replies(&effects) {
            let asked = self.asked.remove(&token).expect("it was asked");
            self.check_answer(asked, reply);
        }
        self.check_state();
    }

    fn check_answer(&mut self, asked: Asked, reply: &Reply) {
        match (asked, reply) {
            (Asked::Init { id, producer, is_new }, Reply::InitProducerId(response))
                if response.error_code == 0 =>
            {
                let identity = identity_of(response.producer_id, response.producer_epoch);
                let durable = self.durable();
                let image = &durable[&id].1;
                let said = (image.state, (image.producer_id, image.producer_epoch));
                assert_eq!(said, (State::Empty, identity), "{id} has a producer that is not durable");
                self.initialised(id, producer, is_new, identity);
            }
            (Asked::Add { producer, identity, partitions }, Reply::AddPartitions(response)) => {
                let results = response.topic_results.iter().flat_map(|topic| &topic.results_by_partition);
                let mut codes = results.map(|result| result.partition_error_code);
                // Adding is for all or none; a verification may find some of them.
                if !partitions.is_empty() && codes.all(|code| code == 0) {
                    self.added(producer, identity, &partitions);
                }
            }
            (Asked::Add { producer, identity, partitions }, Reply::AddOffsets(response))
                if response.error_code == 0 =>
            {
                self.added(producer, identity, &partitions);
            }
            (Asked::End { producer, committed }, Reply::EndTxn(response)) if response.error_code == 0 => {
                let next = identity_of(response.producer_id, response.producer_epoch);
                self.ended(producer, committed, next);
            }
            (Asked::List, Reply::ListTransactions(response)) => {
                let listed = response.transaction_states.iter().map(|listed| {
                    let state = State::from_name(&listed.transaction_state).expect("a state");
                    (listed.transactional_id.to_string(), ProducerId::new(listed.producer_id), state)
                });
                let durable = self.durable().into_iter();
                let durable = durable.map(|(id, (_, image))| (id, image.producer_id, image.state));
                assert!(listed.eq(durable), "a list of what is not durable: {response:?}");
            }
            _ => {}
        }
    }

    fn initialised(
        &mut self,
        id: String,
        producer: Option<usize>,
        is_new: bool,
        identity: (ProducerId, ProducerEpoch),
    ) {
        let index = producer.unwrap_or(self.producers.len());
        match producer {
            Some(index) => {
                // Only a transactional id that was removed meanwhile does not know later producers.
                if let Some(fenced) = self.producers[index].fenced {
                    let since = &self.cluster.log[fenced..];
                    assert!(
                        since.iter().any(|record| is_tombstone(record, &id)),
                        "{id}: a fenced producer is served"
                    );
                }
                self.producers[index].identity = identity;
            }
            None => self.producers.push(Producer { id: id.clone(), identity, fenced: None, is_new }),
        }
        for (other, producer) in self.producers.iter_mut().enumerate().filter(|(_, other)| other.id == id) {
            producer.fenced = (other != index).then_some(self.cluster.log.len());
        }
        self.give(index, identity);
    }

    /// Checks that no other producer has ever had this id and epoch.
    fn give(&mut self, producer: usize, identity: (ProducerId, ProducerEpoch)) {
        let owner = *self.given.entry(identity).or_insert(producer);
        assert_eq!(owner, producer, "two producers are {identity:?}");
    }

    fn added(&self, producer: usize, identity: (ProducerId, ProducerEpoch), partitions: &Partitions) {
        let producer = &self.producers[producer];
        assert_eq!(producer.fenced, None, "{producer:?} is fenced and adds");
        let durable = self.durable();
        let image = &durable[&producer.id].1;
        let said = (image.state, (image.producer_id, image.producer_epoch));
        assert_eq!(said, (State::Ongoing, identity), "{producer:?} adds to what is not durable");
        assert!(image.has(partitions), "{producer:?}: {partitions:?} are not durable in {image:?}");
    }

    fn ended(&mut self, index: usize, committed: bool, next: (ProducerId, ProducerEpoch)) {
        let producer = &self.producers[index];
        assert_eq!(producer.fenced, None, "{producer:?} is fenced and ends");
        let durable = self.durable();
        let image = &durable[&producer.id].1;
        let decided = match image.state {
            State::PrepareCommit | State::CompleteCommit => Some(true),
            State::PrepareAbort | State::CompleteAbort => Some(false),
            _ => None,
        };
        assert_eq!(decided, Some(committed), "{producer:?} was answered what is not durable: {image:?}");
        if producer.is_new {
            assert_eq!(next, image.identity_afterwards(), "the next identity of {producer:?}");
            self.producers[index].identity = next;
            self.give(index, next);
        } else {
            assert_eq!(next, (ProducerId::NONE, ProducerEpoch::NONE));
        }
    }

    /// The last record of every transactional id, with its place in the log.
    fn durable(&self) -> BTreeMap<String, (usize, Image)> {
        let mut durable = BTreeMap::new();
        for (place, record) in self.cluster.log.iter().enumerate() {
            match decoded(record) {
                (id, Some(image)) => durable.insert(id, (place, image)),
                (id, None) => durable.remove(&id),
            };
        }
        durable
    }

    /// Checks the state after a step: the coordinator knows what the log says, and nothing else.
    fn check_state(&self) {
        let transactions = self.cluster.coordinator.transactions(PARTITION);
        let durable = self.durable();
        for transaction in transactions.values() {
            match durable.get(&*transaction.id) {
                Some((_, image)) => self.check_same(transaction, image),
                None => assert!(!transaction.stored && transaction.pending.is_some(), "{transaction:?}"),
            }
        }
        let missing: Vec<_> = durable.keys().filter(|id| !transactions.contains_key(id.as_str())).collect();
        assert!(missing.is_empty(), "{missing:?} are in the log only");
        self.cluster.coordinator.check();
    }

    /// Compares a transactional id with its last record. Epochs before the last are in no record, and written markers are known in memory
    /// alone.
    fn check_same(&self, transaction: &Transaction, durable: &Image) {
        let mut image = transaction.image.clone();
        assert!(transaction.stored, "{transaction:?} is in the log");
        image.last_producer_epoch = durable.last_producer_epoch;
        if image.state.is_ending() {
            assert!(durable.has(&image.partitions), "{transaction:?} ends more than was decided");
            image.partitions = durable.partitions.clone();
        }
        if self.cluster.config.transaction_version == 0 {
            image.previous_producer_id = durable.previous_producer_id;
        }
        assert_eq!(&image, durable, "{}", transaction.id);
    }

    /// Checks that every transaction ends once, as it was first decided, after all its partitions have their markers.
    fn check_log(&self) {
        let mut last: BTreeMap<String, (usize, Image)> = BTreeMap::new();
        for (place, record) in self.cluster.log.iter().enumerate() {
            let (id, image) = decoded(record);
            let before = last.remove(&id);
            let Some(image) = image else {
                let (_, before) = before.expect("only what is there gets a tombstone");
                assert!(before.state.may_become(State::Dead), "{id} was {before:?}");
                continue;
            };
            if let Some((decided, before)) = before {
                assert!(before.state.may_become(image.state), "{id}: {image:?} follows {before:?}");
                if before.state.is_ending() {
                    let identity = (image.producer_id, image.producer_epoch);
                    assert_eq!(identity, before.identity_afterwards(), "{id} after {before:?}");
                    self.check_marked(decided, &before);
                }
            }
            last.insert(id, (place, image));
        }
    }

    fn check_marked(&self, decided: usize, image: &Image) {
        for (topic, indexes) in &image.partitions {
            for index in indexes {
                let marker = (decided, topic.to_string(), *index);
                assert!(self.marked.contains(&marker), "{marker:?} is missing, and {image:?} has ended");
            }
        }
    }

    /// Checks the end without faults: all requests are answered, every transaction ends, and the log has the whole state.
    pub(super) fn check_end(mut self) {
        // The next coordinator writes the markers that this one has dropped.
        self.flow();
        self.resign();
        self.wait(200_000, true);
        assert_eq!(self.cluster.unanswered(), 0, "{:?}", self.asked);
        let rebuilt = self.cluster.rebuilt();
        let (ours, theirs) =
            (self.cluster.coordinator.transactions(PARTITION), rebuilt.transactions(PARTITION));
        assert_eq!(ours.len(), theirs.len());
        for (id, transaction) in ours {
            assert!(transaction.image.state.is_idle(), "{transaction:?} has not ended");
            self.check_same(transaction, &theirs[id].image);
        }
        self.check_log();
        self.cluster.coordinator.unload(self.cluster.now, PARTITION);
        assert_eq!(
            (self.cluster.coordinator.stats(), self.cluster.coordinator.waits()),
            (Default::default(), (0, 0))
        );
    }
}

/// The identity of the producer in an answer.
fn identity_of(producer_id: i64, producer_epoch: i16) -> (ProducerId, ProducerEpoch) {
    (ProducerId::new(producer_id), ProducerEpoch::new(producer_epoch))
}

fn decoded(record: &CoordinatorRecord) -> (String, Option<Image>) {
    match records::decode(&record.key, record.value.as_deref()) {
        Record::Transaction { id, image } => (id, image),
        other => panic!("{other:?} is not ours"),
    }
}

fn is_tombstone(record: &CoordinatorRecord, of: &str) -> bool {
    matches!(decoded(record), (id, None) if id == of)
}
