//! Clients that delete records, as DeleteRecords does, and what becomes of logs whose start has moved.
//!
//! They draw from a generator of their own, so that a run without them is as it was. They stop before the faults do: what was
//! acknowledged has to outlive the rest.

use crate::clients::At;
use crate::node::Fate;
use crate::world::World;
use mainstem_log::sim::Random;
use mainstem_replication::history::{Operation, Outcome};

/// The process of the first client.
const FIRST_PROCESS: i32 = 10_000;
/// In so many runs records are deleted.
const RUNS_PERCENT: u64 = 50;
/// Sets the generator apart from that of the world.
const SEED_OF_DELETIONS: u64 = 0x6465_6c65_7469_6f6e;
/// A client asks once in so many turns.
const ASK_TURNS: u64 = 250;
/// An answer is waited for so long.
const ANSWER_MAX_MS: u64 = 2_500;
/// How often segments are removed.
const MAINTENANCE_MS: u64 = 700;
/// What is committed is done by a node when its own disk has it: that takes so long at most where nothing is wrong.
const APPLIED_MS: u64 = 300;

/// All that deletes records.
pub(crate) struct Deletions {
    random: Random,
    clients: Vec<Client>,
    /// No record is deleted from then on.
    until_ms: u64,
    maintenance_at_ms: u64,
    /// Deletions that were acknowledged.
    pub(crate) acknowledged: usize,
}

/// Deletes records of one partition, one request at a time.
struct Client {
    process: i32,
    partition: usize,
    asked: Option<Asked>,
}

/// A request that has no answer yet.
#[derive(Clone)]
struct Asked {
    /// What is before it is to be deleted.
    offset: i64,
    /// Where the log of the leader ended.
    log_end: i64,
    node: usize,
    term: u64,
    until_ms: u64,
    fate: Fate,
}

/// Whether records are deleted in the run of a seed.
pub(crate) fn has_deletions(seed: u64) -> bool {
    Random::new(seed ^ SEED_OF_DELETIONS).chance(RUNS_PERCENT)
}

impl World {
    /// From now on clients delete records of data, until some time in the second half of `time_ms`.
    pub(crate) fn begin_deletions(&mut self, seed: u64, time_ms: u64) {
        let mut random = Random::new(!seed ^ SEED_OF_DELETIONS);
        let until_ms = time_ms / 2 + random.below(time_ms / 2 + 1);
        let client = |partition| Client { process: FIRST_PROCESS + partition as i32, partition, asked: None };
        let clients = (0..self.data_partitions()).map(client).collect();
        self.deletions = Some(Deletions { random, clients, until_ms, maintenance_at_ms: 0, acknowledged: 0 });
    }

    /// Clients ask, and nodes remove segments.
    pub(crate) fn delete_records(&mut self) {
        let Some(mut deletions) = self.deletions.take() else { return };
        let Deletions { random, clients, until_ms, maintenance_at_ms, .. } = &mut deletions;
        if self.now_ms < *until_ms {
            for client in clients.iter_mut().filter(|client| client.asked.is_none()) {
                if random.below(ASK_TURNS) == 0 {
                    self.ask_to_delete(client, random);
                }
            }
        }
        if self.now_ms >= *maintenance_at_ms {
            *maintenance_at_ms = self.now_ms + MAINTENANCE_MS;
            clients.iter().for_each(|client| self.maintain(client.partition));
        }
        self.deletions = Some(deletions);
    }

    fn ask_to_delete(&mut self, client: &mut Client, random: &mut Random) {
        let Client { process, partition, .. } = *client;
        let Some(node) = self.leader(partition) else { return };
        let Some(term) = self.nodes[node].leads(partition) else { return };
        let Some(ends) = self.nodes[node].ends(partition) else { return };
        // Mostly what consumers have read, now and then all that there is.
        let all = (ends.high_watermark - ends.log_start) as u64;
        let count = if random.chance(15) { all } else { random.below(all + 1) };
        let (offset, log_end) = (ends.log_start + count as i64, ends.log_end);
        self.note(process, Operation::Delete, Outcome::Invoke, At::new(partition, offset, 0));
        match self.nodes[node].delete_records(partition, offset) {
            Some(fate) => {
                let until_ms = self.now_ms + ANSWER_MAX_MS;
                client.asked = Some(Asked { offset, log_end, node, term, until_ms, fate });
            }
            // It may be in the leader's journal.
            None => self.note(process, Operation::Delete, Outcome::Info, At::new(partition, offset, 0)),
        }
    }

    /// Clients learn what was done, in the turn in which it was.
    pub(crate) fn answer_deletions(&mut self) {
        let Some(mut deletions) = self.deletions.take() else { return };
        for client in &mut deletions.clients {
            let Some(asked) = &client.asked else { continue };
            let Asked { offset, log_end, node, term, until_ms, ref fate } = *asked;
            let (process, partition) = (client.process, client.partition);
            let leads = self.nodes[node].leads(partition) == Some(term);
            let (outcome, value) = match fate.outcome() {
                Some(Ok(())) => (Outcome::Ok, log_end.unsigned_abs()),
                None if leads && self.now_ms < until_ms => continue,
                _ => (Outcome::Info, 0),
            };
            client.asked = None;
            deletions.acknowledged += usize::from(outcome == Outcome::Ok);
            self.note(process, Operation::Delete, outcome, At::new(partition, offset, value));
        }
        self.deletions = Some(deletions);
    }

    /// Nodes remove what precedes the start of a log, where all replicas have it for good: what is gone can be sent to none. A broker does so
    /// every five minutes, which is longer than any of these nodes is away.
    fn maintain(&mut self, partition: usize) {
        let everywhere = self.nodes.iter().map(|node| node.kept_end(partition)).min().unwrap_or(0);
        for node in &mut self.nodes {
            let log_start = node.ends(partition).map_or(0, |ends| ends.log_start);
            if log_start > 0 && log_start <= everywhere {
                node.maintain(partition);
            }
            node.flush();
        }
    }

    /// Lets the last deletions be done everywhere, when all replicas agree.
    pub(crate) fn finish_deletions(&mut self) {
        let until_ms = self.now_ms + APPLIED_MS;
        while self.deletions.is_some() && self.now_ms < until_ms {
            self.turn();
        }
    }

    /// Where a consumer goes on that wants the record at `next` from a node: at the log start, where that is deleted.
    pub(crate) fn position_at(&mut self, node: usize, process: i32, partition: usize, next: i64) -> i64 {
        let log_start = self.nodes[node].ends(partition).map_or(0, |ends| ends.log_start);
        if self.deletions.is_none() || next >= log_start {
            return next;
        }
        self.note(process, Operation::Reset, Outcome::Ok, At::new(partition, log_start, 0));
        log_start
    }
}
