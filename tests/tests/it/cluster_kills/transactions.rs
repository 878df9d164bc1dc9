//! A loop that reads, writes, and commits its positions, in transactions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mainstem_client::{
    ClientConfig, Error, FetchedBatch, GroupConsumer, GroupEvent, Isolation, Position, Producer,
    ProducerConfig, Record, TopicPartition,
};
use mainstem_replication::history::{Operation, Outcome};
use mainstem_wire::sample::Rng;

use crate::cluster_kills::members;
use crate::cluster_kills::run::{IN, LOOP, OUT, Phase, Run, bytes_of, number};

const TRANSACTIONAL_ID: &str = "kills-loop";
/// The interval of the check whether the run is over.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// The longest that a transaction gathers batches, and the most batches of one.
const GATHER_MAX: Duration = Duration::from_millis(10);
const BATCHES_MAX: usize = 200;
/// One of so many transactions is aborted.
const ABORTED: u64 = 6;

/// Runs the loop until the run stops.
pub(crate) async fn process(run: Arc<Run>, client: ClientConfig, mut rng: Rng) {
    while !run.is_in(Phase::Stop) {
        let config = members::config(&client, LOOP, IN, Isolation::ReadUncommitted);
        let consumer = GroupConsumer::new(config).expect("the settings agree");
        let process = run.process();
        let producer = new_producer(&run, &client).await;
        let mut this = Loop { run: run.clone(), client: client.clone(), process, consumer, producer };
        if let Err(error) = this.go_on(&mut rng).await {
            assert!(!matches!(error, Error::OutOfRange { .. }), "the loop: {error}");
            eprintln!("loop {process}: {error}");
        }
        // A consumer that has failed may not be able to leave.
        let _ = this.consumer.close_within(Duration::from_secs(2)).await;
        this.producer.close_within(Duration::from_secs(2)).await;
    }
}

/// A new producer. It fences the last one and ends that one's transaction.
async fn new_producer(run: &Run, client: &ClientConfig) -> Producer {
    loop {
        let config = ProducerConfig::new(client.clone()).transactional_id(TRANSACTIONAL_ID);
        let config = ProducerConfig { max_block: Duration::from_secs(15), ..config.linger(Duration::ZERO) };
        let producer = Producer::new(config).expect("the settings agree");
        match producer.init_transactions().await {
            Ok(()) => return producer,
            Err(error) => eprintln!("the loop's producer: {error}"),
        }
        if run.is_in(Phase::Stop) {
            return producer;
        }
    }
}

struct Loop {
    run: Arc<Run>,
    client: ClientConfig,
    process: i32,
    consumer: GroupConsumer,
    producer: Producer,
}

/// The end of a transaction.
enum Ended {
    Committed,
    Aborted,
    Unknown,
}

impl Loop {
    async fn go_on(&mut self, rng: &mut Rng) -> Result<(), Error> {
        let mut batches = Vec::new();
        while !self.run.is_in(Phase::Stop) {
            let limit = if batches.is_empty() { LOOK_AGAIN } else { GATHER_MAX };
            let event = match batches.len() {
                BATCHES_MAX => None,
                _ => tokio::time::timeout(limit, self.consumer.next_event()).await.ok(),
            };
            match event.transpose()? {
                Some(GroupEvent::Batch(batch)) => batches.push(batch),
                Some(GroupEvent::Assigned(assigned)) => {
                    for (partition, committed) in assigned {
                        let offset = committed.map_or(0, |committed| committed.offset);
                        let place = (number(&partition), offset);
                        self.run.record(self.process, Operation::Assign, Outcome::Ok, place, LOOP);
                    }
                }
                Some(GroupEvent::Revoking(revoking)) => {
                    self.pass_on(std::mem::take(&mut batches), rng).await?;
                    self.consumer.finish_revocation(revoking);
                }
                Some(_) => batches.clear(),
                None => self.pass_on(std::mem::take(&mut batches), rng).await?,
            }
        }
        Ok(())
    }

    /// Makes one transaction. Afterwards the loop is behind the batches, or before them again.
    async fn pass_on(&mut self, batches: Vec<FetchedBatch>, rng: &mut Rng) -> Result<(), Error> {
        if batches.is_empty() {
            return Ok(());
        }
        let mut begins: BTreeMap<TopicPartition, i64> = BTreeMap::new();
        for batch in &batches {
            let first =
                batch.records().next().transpose()?.map_or(batch.next_offset(), |record| record.offset);
            begins.entry(batch.partition().clone()).or_insert(first);
        }
        let transaction = self.run.value();
        match self.transaction(&batches, transaction, rng.below(ABORTED) == 0).await {
            Ended::Committed => Ok(()),
            Ended::Aborted => {
                begins.iter().try_for_each(|(partition, first)| self.go_back(partition, *first))
            }
            Ended::Unknown => self.recover().await,
        }
    }

    async fn transaction(
        &mut self,
        batches: &[FetchedBatch],
        transaction: u64,
        is_to_be_aborted: bool,
    ) -> Ended {
        if let Err(error) = self.producer.begin_transaction() {
            eprintln!("loop {}: {error}", self.process);
            return Ended::Unknown;
        }
        self.run.record_transaction(self.process, Operation::Begin, Outcome::Ok, transaction);
        for batch in batches {
            self.run.record_batch(self.process, batch, Operation::Read);
        }
        let written = self.write(batches).await;
        let done = match written {
            Ok(()) if is_to_be_aborted => Ok(false),
            Ok(()) => self.commit(batches, transaction).await.map(|()| true),
            Err(error) => Err(error),
        };
        if let Err(error) = &done {
            eprintln!("loop {}: transaction {transaction}: {error}", self.process);
        }
        match done {
            Ok(true) => Ended::Committed,
            Ok(false) | Err(_) => self.abort(transaction).await,
        }
    }

    /// Writes a record for each record read, to the partition of the same number.
    async fn write(&mut self, batches: &[FetchedBatch]) -> Result<(), Error> {
        let mut deliveries = Vec::new();
        let read = batches.iter().flat_map(|batch| batch.records().map(|_| batch.partition().partition));
        for partition in read.collect::<Vec<_>>() {
            let place = number(&TopicPartition::new(OUT, partition));
            let value = self.run.value();
            self.run.record(self.process, Operation::Append, Outcome::Invoke, (place, -1), value);
            match self.producer.send(Record::new(OUT, bytes_of(value)).partition(partition)).await {
                Ok(delivery) => deliveries.push((place, value, delivery)),
                Err(error) => {
                    self.run.record(self.process, Operation::Append, Outcome::Fail, (place, -1), value);
                    return Err(error);
                }
            }
        }
        let mut failed = Ok(());
        for (place, value, delivery) in deliveries {
            let (outcome, offset) = match delivery.outcome().await {
                Ok(delivered) => (Outcome::Ok, delivered.offset.unwrap_or(-1)),
                Err(error) => {
                    failed = Err(error);
                    (Outcome::Info, -1)
                }
            };
            self.run.record(self.process, Operation::Append, outcome, (place, offset), value);
        }
        failed
    }

    async fn commit(&mut self, batches: &[FetchedBatch], transaction: u64) -> Result<(), Error> {
        let offsets = batches.iter().map(|batch| (batch.partition().clone(), batch.next_offset()));
        let offsets: BTreeMap<_, _> = offsets.collect();
        let group = self.consumer.offsets().clone();
        self.record_commits(&offsets, Outcome::Invoke);
        let sent = self.producer.send_offsets(&offsets, &group).await;
        self.record_commits(&offsets, if sent.is_ok() { Outcome::Ok } else { Outcome::Info });
        sent?;
        self.run.record_transaction(self.process, Operation::CommitTransaction, Outcome::Invoke, transaction);
        let committed = self.producer.commit_transaction().await;
        let outcome = if committed.is_ok() { Outcome::Ok } else { Outcome::Info };
        self.run.record_transaction(self.process, Operation::CommitTransaction, outcome, transaction);
        committed
    }

    fn record_commits(&self, offsets: &BTreeMap<TopicPartition, i64>, outcome: Outcome) {
        for (partition, offset) in offsets {
            let place = (number(partition), *offset);
            self.run.record(self.process, Operation::Commit, outcome, place, LOOP);
        }
    }

    async fn abort(&mut self, transaction: u64) -> Ended {
        self.run.record_transaction(self.process, Operation::AbortTransaction, Outcome::Invoke, transaction);
        let aborted = self.producer.abort_transaction().await;
        let outcome = if aborted.is_ok() { Outcome::Ok } else { Outcome::Info };
        self.run.record_transaction(self.process, Operation::AbortTransaction, outcome, transaction);
        match aborted {
            Ok(()) => Ended::Aborted,
            Err(error) => {
                eprintln!("loop {}: aborting {transaction}: {error}", self.process);
                Ended::Unknown
            }
        }
    }

    /// Continues to read from an offset.
    fn go_back(&mut self, partition: &TopicPartition, offset: i64) -> Result<(), Error> {
        if self.consumer.position(partition).is_err() {
            // The partition was revoked meanwhile.
            return Ok(());
        }
        self.run.record(self.process, Operation::Assign, Outcome::Ok, (number(partition), offset), 0);
        self.consumer.seek(partition, Position::Offset(offset))
    }

    /// Ends the transaction in any case, and resumes at the group's offsets.
    async fn recover(&mut self) -> Result<(), Error> {
        let producer = new_producer(&self.run, &self.client).await;
        std::mem::replace(&mut self.producer, producer).close_within(Duration::from_millis(1)).await;
        let partitions: BTreeSet<_> = self.consumer.assignment().into_iter().collect();
        for partition in &partitions {
            self.run.record(
                self.process,
                Operation::Committed,
                Outcome::Invoke,
                (number(partition), -1),
                LOOP,
            );
        }
        let group = self.consumer.offsets().clone();
        let committed = group.committed(&partitions).await?;
        for partition in &partitions {
            let found = committed.get(partition).copied();
            let place = (number(partition), found.unwrap_or(-1));
            self.run.record(self.process, Operation::Committed, Outcome::Ok, place, LOOP);
            self.go_back(partition, found.unwrap_or(0))?;
        }
        Ok(())
    }
}
