//! A producer with five requests in flight, which keeps its acknowledged and unanswered batches.

use std::collections::VecDeque;

use mainstem_records::{BatchOptions, ProducerFields};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{BY_NAME, Failure, ReadRecord, batch_with, produce_request};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::produce_request::ProduceRequest;
use mainstem_wire::sample::Rng;

use crate::crash::{Load, TOPIC};

/// The most requests in flight of an idempotent producer.
const IN_FLIGHT: usize = 5;

/// The most records of one batch.
const RECORDS_MAX: u64 = 8;

/// The most bytes of a value behind its tag and number.
const PADDING_MAX: u64 = 300;

/// Writes numbered values to one partition, which it may share with others.
pub(crate) struct Producer {
    tag: u8,
    /// The partition that it writes to.
    pub(crate) partition: i32,
    acks: i16,
    producer_id: Option<i64>,
    next_number: u64,
    next_sequence: i32,
    acknowledged: VecDeque<Sent>,
    /// Batches that were sent in the last round and not answered. An idempotent producer sends them again.
    unanswered: Vec<Sent>,
    rng: Rng,
}

#[derive(Debug, Clone)]
struct Sent {
    first: u64,
    count: u64,
    sequence: i32,
    /// The offset by the broker's answer.
    offset: Option<i64>,
}

impl Producer {
    pub(crate) fn new(
        tag: u8,
        partition: i32,
        acks: i16,
        producer_id: Option<i64>,
        rng: &mut Rng,
    ) -> Producer {
        Producer {
            tag,
            partition,
            acks,
            producer_id,
            next_number: 0,
            next_sequence: 0,
            acknowledged: VecDeque::new(),
            unanswered: Vec::new(),
            rng: Rng(rng.next_u64()),
        }
    }

    /// Produces until the broker is gone.
    pub(crate) fn run(&mut self, load: &Load) {
        let before = std::mem::take(&mut self.unanswered);
        let mut again: VecDeque<Sent> = if self.producer_id.is_some() { before.into() } else { [].into() };
        let mut in_flight = VecDeque::new();
        if let Some(mut client) = load.connect() {
            while self.turn(load, &mut client, &mut again, &mut in_flight).is_some() {}
        }
        self.unanswered = in_flight.into_iter().chain(again).collect();
    }

    /// Sends up to the limit of requests in flight, then takes one answer.
    fn turn(
        &mut self,
        load: &Load,
        client: &mut Client,
        again: &mut VecDeque<Sent>,
        in_flight: &mut VecDeque<Sent>,
    ) -> Option<()> {
        while in_flight.len() < IN_FLIGHT {
            let sent = again.pop_front().unwrap_or_else(|| self.next());
            let batch = self.batch(&sent);
            // It counts as sent even if sending fails: the broker may have all of it.
            in_flight.push_back(sent);
            client.send(&produce_request(TOPIC, self.partition, self.acks, &batch), BY_NAME).ok()?;
        }
        let offset = load.outcome("a produce", receive(client))?;
        let mut sent = in_flight.pop_front().expect("the pipe was just filled");
        sent.offset = Some(offset);
        self.acknowledged.push_back(sent);
        Some(())
    }

    fn next(&mut self) -> Sent {
        let count = 1 + self.rng.below(RECORDS_MAX);
        let sent = Sent { first: self.next_number, count, sequence: self.next_sequence, offset: None };
        self.next_number += count;
        self.next_sequence += count as i32;
        sent
    }

    fn batch(&self, sent: &Sent) -> Vec<u8> {
        let producer = self.producer_id.map(|producer_id| ProducerFields {
            producer_id,
            producer_epoch: 0,
            base_sequence: sent.sequence,
        });
        let options = BatchOptions { producer: producer.unwrap_or_default(), ..BatchOptions::default() };
        let values: Vec<Vec<u8>> = sent.numbers().map(|number| value(self.tag, number)).collect();
        batch_with(options, &values.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// Compares the acknowledged batches with the partition's records, the first of which is at `log_start`.
    pub(crate) fn check(&mut self, log_start: i64, records: &[ReadRecord]) {
        let mine: Vec<(i64, u64)> =
            records.iter().filter_map(|record| Some((record.offset, self.number_of(record)?))).collect();
        for pair in mine.windows(2) {
            let in_order = pair[0].1 < pair[1].1;
            assert!(in_order, "{}: {:?} is followed by {:?}", self.name(), pair[0], pair[1]);
        }
        self.acknowledged
            .retain(|sent| sent.offset.is_some_and(|offset| offset + sent.count as i64 > log_start));
        for sent in &self.acknowledged {
            let base = sent.offset.expect("it was acknowledged");
            for (offset, number) in (base..).zip(sent.numbers()).filter(|(offset, _)| *offset >= log_start) {
                let found = records.get((offset - log_start) as usize).and_then(|at| self.number_of(at));
                assert_eq!(found, Some(number), "{}: acknowledged at {offset}, {sent:?}", self.name());
            }
        }
        self.check_unanswered(&mine);
    }

    /// Asserts that each unanswered batch is there as a whole or not at all, and none behind a missing one.
    fn check_unanswered(&self, mine: &[(i64, u64)]) {
        let is_there = |number: u64| mine.iter().rev().any(|(_, found)| *found == number);
        let mut missing = None;
        for sent in &self.unanswered {
            let there = sent.numbers().filter(|number| is_there(*number)).count() as u64;
            assert!(there == 0 || there == sent.count, "{}: {there} records of {sent:?}", self.name());
            match missing {
                None if there == 0 => missing = Some(sent),
                Some(missing) => assert_eq!(there, 0, "{}: {sent:?} without {missing:?}", self.name()),
                None => {}
            }
        }
    }

    /// The number of a record of this producer, whose bytes must be as they were sent; none for records of others.
    fn number_of(&self, record: &ReadRecord) -> Option<u64> {
        let (tag, rest) = record.value.split_first().expect("no value is empty");
        if *tag != self.tag {
            return None;
        }
        let number = rest.first_chunk().copied().map(u64::from_be_bytes).expect("values have numbers");
        assert_eq!(record.value, value(self.tag, number), "{}: at {}", self.name(), record.offset);
        Some(number)
    }

    fn name(&self) -> String {
        let kind = if self.producer_id.is_some() { "idempotent" } else { "plain" };
        format!("{kind} producer {} with acks={}", char::from(self.tag), self.acks)
    }
}

impl Sent {
    fn numbers(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.count
    }
}

fn value(tag: u8, number: u64) -> Vec<u8> {
    let mut rng = Rng(number ^ (u64::from(tag) << 56));
    let mut value = vec![tag];
    value.extend_from_slice(&number.to_be_bytes());
    value.resize(value.len() + rng.below(PADDING_MAX) as usize, rng.next_u64() as u8);
    value
}

fn receive(client: &mut Client) -> Result<i64, Failure> {
    let (_, response) = client.receive::<ProduceRequest<'_>>(BY_NAME)?;
    let answer = &response.responses[0].partition_responses[0];
    match answer.error_code {
        0 => Ok(answer.base_offset),
        code => Err(Failure::Refused(ErrorCode::from(code))),
    }
}
