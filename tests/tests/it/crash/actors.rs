//! A consumer, commits of offsets, DeleteRecords, producer ids: each keeps the answers it got.

use std::collections::HashSet;

use mainstem_tests::client::Client;
use mainstem_tests::kafka::{BY_NAME, Failure, ReadRecord, bytes_of, fetch_request, fetch_topic, records_in};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::fetch_request::FetchRequest;
use mainstem_wire::sample::Rng;

use crate::crash::{Load, PARTITIONS, TOPIC};

/// Reads all partitions by long polls. A record that was read once stays until it is deleted.
#[derive(Default)]
pub(crate) struct Consumer {
    positions: [i64; PARTITIONS as usize],
    read: [Vec<ReadRecord>; PARTITIONS as usize],
}

impl Consumer {
    pub(crate) fn run(&mut self, load: &Load) {
        let Some(mut client) = load.connect() else { return };
        while self.poll(load, &mut client).is_some() {}
    }

    fn poll(&mut self, load: &Load, client: &mut Client) -> Option<()> {
        let wanted = self.positions.iter().enumerate();
        let topics = wanted.map(|(partition, position)| fetch_topic(TOPIC, partition as i32, *position));
        let request = FetchRequest { max_wait_ms: 500, ..fetch_request(topics.collect()) };
        let response = client.try_call(&request, BY_NAME).map_err(Failure::from);
        let response = load.outcome("a fetch", response)?;
        for data in response.responses.iter().flat_map(|topic| &topic.partitions) {
            let refused = Err(Failure::Refused(ErrorCode::from(data.error_code)));
            load.outcome("a fetch", if data.error_code == 0 { Ok(()) } else { refused })?;
            let partition = data.partition_index as usize;
            for record in records_in(bytes_of(&data.records)) {
                let position = &mut self.positions[partition];
                if record.offset >= *position {
                    assert_eq!(record.offset, *position, "the consumer of {partition} missed records");
                    *position += 1;
                    self.read[partition].push(record);
                }
            }
        }
        Some(())
    }

    /// Asserts that records that were read are still there, and the same.
    pub(crate) fn check(&mut self, partition: i32, log_start: i64, records: &[ReadRecord]) {
        let read = std::mem::take(&mut self.read[partition as usize]);
        for seen in read.iter().filter(|record| record.offset >= log_start) {
            let found = records.get((seen.offset - log_start) as usize);
            assert_eq!(found, Some(seen), "partition {partition}: read at {} before the end", seen.offset);
        }
        let position = &mut self.positions[partition as usize];
        *position = (*position).max(log_start);
    }
}

/// Commits rising offsets for a few groups.
#[derive(Default)]
pub(crate) struct Commits {
    /// The last acknowledged and the last sent offset of each group.
    groups: [(i64, i64); 3],
}

impl Commits {
    pub(crate) fn run(&mut self, load: &Load) {
        let Some(mut client) = load.connect() else { return };
        for rank in (0..self.groups.len()).cycle() {
            let (acknowledged, sent) = &mut self.groups[rank];
            *sent += 1;
            let committed = client.commit(&format!("group-{rank}"), TOPIC, 0, *sent);
            // The disk took longer than `offsets.commit.timeout.ms`: the commit may be done, now or later.
            if matches!(committed, Err(Failure::Refused(ErrorCode::COORDINATOR_NOT_AVAILABLE))) {
                continue;
            }
            let Some(()) = load.outcome("a commit", committed) else { return };
            *acknowledged = *sent;
        }
    }

    pub(crate) fn check(&mut self, client: &mut Client) {
        for (rank, (acknowledged, sent)) in self.groups.iter().enumerate() {
            let committed = client.committed(&format!("group-{rank}"), TOPIC, 0).expect("an offset");
            let allowed = if *acknowledged == 0 { -1 } else { *acknowledged }..=*sent;
            assert!(allowed.contains(&committed), "group {rank} has {committed}, not one of {allowed:?}");
        }
    }
}

/// Deletes the older records of all partitions bit by bit.
pub(crate) struct Deletions {
    /// The log start of each partition.
    log_starts: [LogStart; PARTITIONS as usize],
    rng: Rng,
}

#[derive(Default)]
struct LogStart {
    acknowledged: i64,
    asked_for: i64,
    /// The offset before which records may be deleted in this round.
    limit: i64,
}

impl Deletions {
    pub(crate) fn new(rng: &mut Rng) -> Deletions {
        Deletions { log_starts: Default::default(), rng: Rng(rng.next_u64()) }
    }

    pub(crate) fn run(&mut self, load: &Load) {
        let Some(mut client) = load.connect() else { return };
        for partition in (0..PARTITIONS).cycle() {
            let start = &mut self.log_starts[partition as usize];
            let step = self.rng.below(((start.limit - start.acknowledged) / 20 + 1) as u64);
            start.asked_for = start.acknowledged + step as i64;
            let deleted = client.delete_records(TOPIC, partition, start.asked_for);
            let Some(log_start) = load.outcome("DeleteRecords", deleted) else { return };
            assert_eq!(log_start, start.asked_for, "the log start of partition {partition}");
            start.acknowledged = log_start;
        }
    }

    /// Asserts that the log start is where the last answer had it, and never goes back.
    pub(crate) fn check(&mut self, partition: i32, log_start: i64) {
        let start = &mut self.log_starts[partition as usize];
        let allowed = start.acknowledged..=start.asked_for.max(start.acknowledged);
        assert!(allowed.contains(&log_start), "partition {partition} starts at {log_start}, not {allowed:?}");
        start.acknowledged = log_start;
    }

    /// Sets the limit of the next round.
    pub(crate) fn may_reach(&mut self, partition: i32, limit: i64) {
        self.log_starts[partition as usize].limit = limit;
    }
}

/// Asks for producer ids, none of which may come twice.
#[derive(Default)]
pub(crate) struct ProducerIds {
    given: HashSet<i64>,
}

impl ProducerIds {
    pub(crate) fn run(&mut self, load: &Load) {
        let Some(mut client) = load.connect() else { return };
        while let Some(id) = load.outcome("InitProducerId", client.init_producer_id()) {
            self.note(id);
        }
    }

    /// Takes one id, for another actor.
    pub(crate) fn take(&mut self, client: &mut Client) -> i64 {
        let id = client.init_producer_id().expect("a producer id");
        self.note(id);
        id
    }

    fn note(&mut self, id: i64) {
        assert!(self.given.insert(id), "producer id {id} was handed out twice");
    }
}
