//! Sends records by the producer, and counts the outcomes.

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Result, bail};
use mainstem_client::{Delivered, Delivery, Error, ErrorCode, Producer, ProducerConfig, Record};

use super::Produce;
use super::input::LINE_BYTES_MAX;
use crate::background::Background;
use crate::failure;
use crate::output::counted;

/// Records in flight may take as many bytes as this many batches, or `UNDER_WAY_BYTES_MIN` if that is more. So one
/// batch is gathered and compressed while those before it are sent and written.
const BATCHES_UNDER_WAY: usize = 4;
const UNDER_WAY_BYTES_MIN: usize = 2 << 20;

/// The most refusals that are reported one by one.
const REFUSALS_SHOWN: usize = 10;

/// Refusals because of one record: brokers may accept the records after it.
const FAULTS_OF_RECORDS: [ErrorCode; 5] = [
    ErrorCode::MESSAGE_TOO_LARGE,
    ErrorCode::RECORD_LIST_TOO_LARGE,
    ErrorCode::INVALID_RECORD,
    ErrorCode::INVALID_TIMESTAMP,
    ErrorCode::CORRUPT_MESSAGE,
];

/// Counts of records and bytes so far.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Records given to the sender.
    pub(crate) records: u64,
    /// Records that a broker acknowledged; with acks=0, that were sent.
    pub(crate) acknowledged: u64,
    /// Bytes of the acknowledged batches, as sent.
    pub(crate) bytes: u64,
    /// First and last offset by partition, as far as brokers report them.
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

    fn acknowledge(&mut self, delivered: &Delivered) {
        self.acknowledged += 1;
        if let Some(offset) = delivered.offset {
            let range = self.offsets.entry(delivered.partition).or_insert((offset, offset));
            *range = (range.0.min(offset), range.1.max(offset));
        }
    }
}

/// Sends the records of a topic.
#[derive(Debug)]
pub(crate) struct Sender {
    producer: Producer,
    /// Compresses and sends while lines are read.
    _background: Background,
    /// Records in flight with their sizes in bytes, oldest first.
    under_way: VecDeque<(Delivery, usize)>,
    bytes_under_way: usize,
    bytes_under_way_max: usize,
    totals: Totals,
    refusals: Refusals,
}

impl Sender {
    /// A sender with the options of the command line.
    pub(crate) async fn new(produce: &Produce) -> Result<Self> {
        let client = produce.target.config()?;
        let limit = produce.target.limit();
        let batch_bytes = produce.batch_bytes as usize;
        let config = ProducerConfig {
            linger: super::LINGER,
            batch_bytes,
            request_bytes_max: batch_bytes.max(LINE_BYTES_MAX),
            buffer_bytes: batch_bytes.max(LINE_BYTES_MAX),
            max_block: limit,
            delivery_timeout: limit,
            ..ProducerConfig::new(client)
        };
        let config = config.acks(produce.acks.into()).compression(produce.compression.into());
        // Without idempotence lines keep their order only with one request in flight.
        let in_flight_max = if config.idempotence { config.in_flight_max } else { 1 };
        let background = Background::start("sender")?;
        let producer = {
            let _there = background.handle().enter();
            Producer::new(ProducerConfig { in_flight_max, ..config })?
        };
        // The connection is made on the runtime of the sender, too.
        let (known, topic) = (producer.clone(), produce.topic.clone());
        background.handle().spawn(async move { known.topic(&topic).await.map(drop) }).await??;
        Ok(Sender {
            producer,
            _background: background,
            under_way: VecDeque::new(),
            bytes_under_way: 0,
            bytes_under_way_max: (BATCHES_UNDER_WAY * batch_bytes).max(UNDER_WAY_BYTES_MIN),
            totals: Totals::default(),
            refusals: Refusals::default(),
        })
    }

    /// Counts of records and bytes so far.
    pub(crate) fn totals(&mut self) -> &Totals {
        self.totals.bytes = self.producer.written_bytes();
        &self.totals
    }

    /// Sends the record of a line as soon as its bytes may be in flight.
    ///
    /// # Errors
    /// When nothing further can be sent. A refusal because of one record is only counted and reported.
    pub(crate) async fn send(&mut self, record: Record) -> Result<()> {
        while self.bytes_under_way >= self.bytes_under_way_max {
            self.settle_first().await?;
        }
        let bytes = size(&record);
        let delivery = self.producer.send(record).await?;
        self.totals.records += 1;
        self.bytes_under_way += bytes;
        self.under_way.push_back((delivery, bytes));
        Ok(())
    }

    /// Takes the outcomes that are known by now.
    pub(crate) fn take_note(&mut self) -> Result<()> {
        while let Some((first, _)) = self.under_way.front()
            && let Some(outcome) = first.poll_outcome()
        {
            self.settle(outcome)?;
        }
        Ok(())
    }

    /// Waits for the outcomes of all records in flight. After a failure it only counts those that succeed.
    pub(crate) async fn finish(&mut self) -> Result<()> {
        let mut finished = Ok(());
        // The flush sends batches without waiting for the linger.
        let producer = self.producer.clone();
        let flushed = tokio::spawn(async move { producer.flush().await });
        while !self.under_way.is_empty() {
            let settled = self.settle_first().await;
            finished = finished.and(settled);
        }
        // There is nothing left to wait for; a panic of the task was reported when it happened.
        let _ = flushed.await;
        self.refusals.end();
        finished
    }

    async fn settle_first(&mut self) -> Result<()> {
        let Some((first, _)) = self.under_way.front() else { return Ok(()) };
        let outcome = first.outcome().await;
        self.settle(outcome)
    }

    /// Takes the outcome of the oldest record in flight.
    fn settle(&mut self, outcome: Result<Delivered, Error>) -> Result<()> {
        let (_, bytes) = self.under_way.pop_front().expect("its outcome came");
        self.bytes_under_way -= bytes;
        match outcome {
            Ok(delivered) => {
                self.refusals.end();
                self.totals.acknowledge(&delivered);
                Ok(())
            }
            Err(error) if error.code().is_some_and(|code| FAULTS_OF_RECORDS.contains(&code)) => {
                self.refusals.add(error);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The approximate size of a record in memory, in bytes.
fn size(record: &Record) -> usize {
    /// Bytes beside key, value and headers: structure, and a place in the queue.
    const OVERHEAD_BYTES: usize = 48;
    let len = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map_or(0, bytes::Bytes::len);
    let headers = record.headers.iter().map(|(key, value)| key.len() + len(value));
    OVERHEAD_BYTES + len(&record.key) + len(&record.value) + headers.sum::<usize>()
}

/// Refusals by brokers. Equal ones in a row are reported together.
#[derive(Debug, Default)]
struct Refusals {
    reported: usize,
    /// The last refusal, and the number of records in a row with it.
    open: Option<(Error, u64)>,
}

impl Refusals {
    fn add(&mut self, error: Error) {
        match &mut self.open {
            Some((open, records)) if *open == error => *records += 1,
            _ => {
                self.end();
                self.open = Some((error, 1));
            }
        }
    }

    /// Reports the last refusal.
    fn end(&mut self) {
        let Some((error, records)) = self.open.take() else { return };
        self.reported += 1;
        match self.reported.cmp(&(REFUSALS_SHOWN + 1)) {
            std::cmp::Ordering::Greater => {}
            std::cmp::Ordering::Equal => eprintln!("mainstem: further refusals are only counted"),
            std::cmp::Ordering::Less => eprintln!("mainstem: {}", refusal(error, records)),
        }
    }
}

fn refusal(error: Error, records: u64) -> String {
    let advice = match error.code() {
        Some(ErrorCode::MESSAGE_TOO_LARGE) => "; raise the topic's max.message.bytes",
        _ => "",
    };
    let verb = if records == 1 { "was" } else { "were" };
    format!("{} {verb} refused: {}{advice}", counted(records, "record"), failure::text(&error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: ErrorCode) -> Error {
        let what = "cannot write to t-0".to_owned();
        Error::Broker { code, message: "too large".into(), what, broker: "b:9092".into() }
    }

    #[test]
    fn refusals_in_a_row_are_one() {
        let mut refusals = Refusals::default();
        (0..3).for_each(|_| refusals.add(refused(ErrorCode::MESSAGE_TOO_LARGE)));
        assert_eq!((refusals.reported, refusals.open.as_ref().map(|open| open.1)), (0, Some(3)));
        refusals.add(refused(ErrorCode::INVALID_RECORD));
        assert_eq!((refusals.reported, refusals.open.as_ref().map(|open| open.1)), (1, Some(1)));
        refusals.end();
        assert!(refusals.reported == 2 && refusals.open.is_none());
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        assert_eq!(
            refusal(refused(ErrorCode::MESSAGE_TOO_LARGE), 2),
            "2 records were refused: cannot write to t-0: too large (MESSAGE_TOO_LARGE); raise the topic's \
             max.message.bytes"
        );
    }
}
