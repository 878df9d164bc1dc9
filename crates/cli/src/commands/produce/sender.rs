//! Sends batches to the leaders and keeps count. With acks=all as an idempotent producer (KIP-98), so that a retry
//! after a lost answer writes nothing twice.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use anyhow::{Result, bail};
use mainstem_records::{BatchBuilder, ProducerFields, increment_sequence};
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_wire::messages::produce_response::PartitionProduceResponse;
use mainstem_wire::{ErrorCode, Records};

use crate::client::{check, check_message, code_of, is_retriable};
use crate::cluster::{Cluster, Topic};
use crate::leaders::by_leader;

const TIMEOUT_MS: i32 = 30_000;
const ALL: i16 = -1;
const NOBODY: i16 = 0;

/// How many failures are reported one by one.
const FAILURES_SHOWN: usize = 10;

/// Refusals that are the fault of a batch: those after it may well be taken.
const FAULTS_OF_BATCH: [ErrorCode; 5] = [
    ErrorCode::MESSAGE_TOO_LARGE,
    ErrorCode::RECORD_LIST_TOO_LARGE,
    ErrorCode::INVALID_RECORD,
    ErrorCode::INVALID_TIMESTAMP,
    ErrorCode::CORRUPT_MESSAGE,
];

/// What was sent so far.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Records that were handed to the sender.
    pub(crate) records: u64,
    /// Those that a broker acknowledged; with acks=0, that were sent.
    pub(crate) acknowledged: u64,
    /// Bytes of the acknowledged batches, as sent.
    pub(crate) bytes: u64,
    /// First and last offset by partition, as far as brokers tell.
    pub(crate) offsets: BTreeMap<i32, (i64, i64)>,
}

impl Totals {
    /// Fails if a record was not acknowledged.
    pub(crate) fn require_all(&self) -> Result<()> {
        match self.records - self.acknowledged {
            0 => Ok(()),
            lost => bail!("{lost} of {} records were not acknowledged", self.records),
        }
    }
}

/// A finished batch.
#[derive(Debug)]
struct ReadyBatch {
    records: i32,
    bytes: Vec<u8>,
}

/// Sends the batches of a topic.
#[derive(Debug)]
pub(crate) struct Sender {
    cluster: Cluster,
    topic: Topic,
    acks: i16,
    /// Id and epoch of the idempotent producer.
    producer: Option<(i64, i16)>,
    /// The next sequence number by partition.
    sequences: HashMap<i32, i32>,
    totals: Totals,
    failures: usize,
}

impl Sender {
    /// A sender; asks for a producer id if it is to be idempotent.
    pub(crate) fn new(mut cluster: Cluster, topic: Topic, acks: i16) -> Result<Self> {
        let producer = if acks == ALL { init_producer_id(&mut cluster)? } else { None };
        Ok(Sender {
            cluster,
            topic,
            acks,
            producer,
            sequences: HashMap::new(),
            totals: Totals::default(),
            failures: 0,
        })
    }

    /// What was sent so far.
    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Sends batches, by partition, and waits until each was acknowledged or refused.
    ///
    /// # Errors
    /// When nothing further can be sent. A refusal that is the fault of one batch is only counted and told.
    pub(crate) fn send(&mut self, builders: BTreeMap<i32, BatchBuilder>) -> Result<()> {
        let mut pending = BTreeMap::new();
        for (partition, builder) in builders {
            self.totals.records += u64::from(builder.record_count().unsigned_abs());
            pending.insert(partition, self.finish(partition, builder)?);
        }
        let Sender { cluster, topic, totals, sequences, failures, acks, .. } = self;
        let mut round = Round { topic, acks: *acks, totals, sequences, failures, pending: &mut pending };
        let mut attempts = 0;
        cluster.retrying(|cluster| {
            if attempts > 0 {
                // The leader may have moved.
                *round.topic = cluster.topic(&round.topic.name)?;
            }
            attempts += 1;
            round.run(cluster)
        })
    }

    fn finish(&mut self, partition: i32, mut builder: BatchBuilder) -> Result<ReadyBatch> {
        if let Some((producer_id, producer_epoch)) = self.producer {
            let base_sequence = *self.sequences.entry(partition).or_insert(0);
            builder.options_mut().producer = ProducerFields { producer_id, producer_epoch, base_sequence };
        }
        let records = builder.record_count();
        Ok(ReadyBatch { records, bytes: builder.build()? })
    }
}

fn init_producer_id(cluster: &mut Cluster) -> Result<Option<(i64, i16)>> {
    let request = InitProducerIdRequest {
        transactional_id: None,
        transaction_timeout_ms: i32::MAX,
        ..Default::default()
    };
    cluster.retrying(|cluster| {
        let client = cluster.any()?;
        if !client.serves::<InitProducerIdRequest<'_>>() {
            return Ok(None);
        }
        let response = client.call(&request)?;
        check(response.error_code, || "a producer id".to_owned())?;
        Ok(Some((response.producer_id, response.producer_epoch)))
    })
}

/// The attempts to get some batches acknowledged.
struct Round<'s> {
    topic: &'s mut Topic,
    acks: i16,
    totals: &'s mut Totals,
    sequences: &'s mut HashMap<i32, i32>,
    failures: &'s mut usize,
    /// Not answered for good yet.
    pending: &'s mut BTreeMap<i32, ReadyBatch>,
}

impl Round<'_> {
    /// One attempt for all that is pending. The error is the last retriable one, or one that ends everything.
    fn run(&mut self, cluster: &mut Cluster) -> Result<()> {
        let partitions: Vec<i32> = self.pending.keys().copied().collect();
        let mut retriable = Ok(());
        for (leader, partitions) in by_leader(self.topic, &partitions)? {
            match self.send_to(cluster, leader, &partitions) {
                Err(error) if is_retriable(&error) => retriable = Err(error),
                sent => sent?,
            }
        }
        retriable?;
        match self.pending.keys().next() {
            None => Ok(()),
            Some(left) => bail!("the broker left out the answer for {}-{left}", self.topic.name),
        }
    }

    fn send_to(&mut self, cluster: &mut Cluster, leader: i32, partitions: &[i32]) -> Result<()> {
        let request = self.request(partitions);
        let client = cluster.node(leader)?;
        if self.acks == NOBODY {
            client.send(&request)?;
            for partition in partitions {
                self.acknowledge(*partition, None);
            }
            return Ok(());
        }
        let response = client.call(&request)?;
        let mut retriable = Ok(());
        for answer in response.responses.iter().flat_map(|topic| &topic.partition_responses) {
            match self.take_answer(answer) {
                Err(error) if is_retriable(&error) => retriable = Err(error),
                taken => taken?,
            }
        }
        retriable
    }

    fn request(&self, partitions: &[i32]) -> ProduceRequest<'_> {
        let data = |index: &i32| PartitionProduceData {
            index: *index,
            records: Some(Records::Bytes(Cow::Borrowed(&self.pending[index].bytes))),
            ..Default::default()
        };
        ProduceRequest {
            acks: self.acks,
            timeout_ms: TIMEOUT_MS,
            topic_data: vec![TopicProduceData {
                name: self.topic.name.as_str().into(),
                topic_id: self.topic.id,
                partition_data: partitions.iter().map(data).collect(),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn take_answer(&mut self, answer: &PartitionProduceResponse<'_>) -> Result<()> {
        if answer.error_code == ErrorCode::DUPLICATE_SEQUENCE_NUMBER.code() {
            // An attempt whose answer was lost has written it.
            self.acknowledge(answer.index, None);
            return Ok(());
        }
        let place = || format!("{}-{}", self.topic.name, answer.index);
        let checked = check_message(answer.error_code, answer.error_message.as_deref(), || {
            format!("records to {}", place())
        });
        match checked {
            Ok(()) => {
                self.acknowledge(answer.index, Some(answer.base_offset));
                Ok(())
            }
            Err(error) if code_of(&error).is_some_and(|code| FAULTS_OF_BATCH.contains(&code)) => {
                self.refuse(answer, &error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn acknowledge(&mut self, partition: i32, base_offset: Option<i64>) {
        let Some(batch) = self.pending.remove(&partition) else { return };
        let next = self.sequences.entry(partition).or_insert(0);
        *next = increment_sequence(*next, batch.records);
        self.totals.acknowledged += u64::from(batch.records.unsigned_abs());
        self.totals.bytes += batch.bytes.len() as u64;
        if let Some(first) = base_offset.filter(|offset| *offset >= 0) {
            let last = first.saturating_add(i64::from(batch.records) - 1);
            let range = self.totals.offsets.entry(partition).or_insert((first, last));
            range.1 = last;
        }
    }

    fn refuse(&mut self, answer: &PartitionProduceResponse<'_>, error: &anyhow::Error) {
        let Some(batch) = self.pending.remove(&answer.index) else { return };
        *self.failures += 1;
        match (*self.failures).cmp(&(FAILURES_SHOWN + 1)) {
            std::cmp::Ordering::Greater => return,
            std::cmp::Ordering::Equal => {
                eprintln!("mainstem: further refusals are only counted");
                return;
            }
            std::cmp::Ordering::Less => {}
        }
        let advice = match code_of(error) {
            Some(ErrorCode::MESSAGE_TOO_LARGE) if batch.records > 1 => {
                "; choose smaller batches by --batch-bytes, or raise the topic's max.message.bytes"
            }
            Some(ErrorCode::MESSAGE_TOO_LARGE) => "; raise the topic's max.message.bytes",
            _ => "",
        };
        let first =
            answer.record_errors.first().and_then(|record| record.batch_index_error_message.as_deref());
        let first = first.map_or(String::new(), |message| format!(": {message}"));
        eprintln!("mainstem: a batch of {} was refused: {error}{first}{advice}", batch.records);
    }
}
