//! Clients that delete records, as DeleteRecords does, and the maintenance of logs whose start has moved.
//!
//! They draw from a generator of their own, so that they do not change the rest of a run. They stop before the faults do:
//! acknowledged deletions have to survive the faults that follow.

use crate::clients::At;
use crate::node::Fate;
use crate::world::World;
use mainstem_log::sim::Random;
use mainstem_replication::history::{Operation, Outcome};

/// The process of the first client.
const FIRST_PROCESS: i32 = 10_000;
/// Percent of the runs in which records are deleted.
const RUNS_PERCENT: u64 = 50;
/// Percent of the runs with copies in which segments are removed when all replicas have them.
const WAITING_PERCENT: u64 = 30;
/// Sets the generator apart from that of the world.
const SEED_OF_DELETIONS: u64 = 0x6465_6c65_7469_6f6e;
/// Turns between two requests of a client, on average.
const ASK_TURNS: u64 = 250;
/// Timeout of a request, in ms.
const ANSWER_MAX_MS: u64 = 2_500;
/// Interval at which segments are removed, in ms.
const MAINTENANCE_MS: u64 = 700;
/// Time until a node has applied a committed deletion, at most, without faults, in ms. It waits for its own disk.
const APPLIED_MS: u64 = 300;

/// All clients that delete records.
pub(crate) struct Deletions {
    random: Random,
    clients: Vec<Client>,
    /// End of the deletions, in ms of virtual time.
    until_ms: u64,
    maintenance_at_ms: u64,
    /// Segments are removed when all replicas have them. Otherwise replicas that lack them get copies.
    waits_for_all: bool,
    /// Number of acknowledged deletions.
    pub(crate) acknowledged: usize,
}

/// A client that deletes records of one partition, one request at a time.
struct Client {
    process: i32,
    partition: usize,
    asked: Option<Asked>,
}

/// A request that has no answer yet.
#[derive(Clone)]
struct Asked {
    /// The new log start: all records before it are to be deleted.
    offset: i64,
    /// Log end of the leader when it got the request.
    log_end: i64,
    node: usize,
    term: u64,
    until_ms: u64,
    fate: Fate,
}

/// Returns true if records are deleted in the run of this seed.
pub(crate) fn has_deletions(seed: u64) -> bool {
    Random::new(seed ^ SEED_OF_DELETIONS).chance(RUNS_PERCENT)
}

impl World {
    /// Starts clients that delete records of data, until a time in the second half of `time_ms`. `has_copies`: nodes give replicas copies
    /// of their logs that are too far behind.
    pub(crate) fn begin_deletions(&mut self, seed: u64, time_ms: u64, has_copies: bool) {
        let mut random = Random::new(!seed ^ SEED_OF_DELETIONS);
        let until_ms = time_ms / 2 + random.below(time_ms / 2 + 1);
        let waits_for_all = !has_copies || random.chance(WAITING_PERCENT);
        let client = |partition| Client { process: FIRST_PROCESS + partition as i32, partition, asked: None };
        let clients = (0..self.data_partitions()).map(client).collect();
        self.deletions = Some(Deletions {
            random,
            clients,
            until_ms,
            maintenance_at_ms: 0,
            waits_for_all,
            acknowledged: 0,
        });
    }

    /// Clients ask, and nodes remove segments.
    pub(crate) fn delete_records(&mut self) {
        let Some(mut deletions) = self.deletions.take() else { return };
        let Deletions { random, clients, until_ms, maintenance_at_ms, waits_for_all, .. } = &mut deletions;
        if self.now_ms < *until_ms {
            for client in clients.iter_mut().filter(|client| client.asked.is_none()) {
                if random.below(ASK_TURNS) == 0 {
                    self.ask_to_delete(client, random);
                }
            }
        }
        if self.now_ms >= *maintenance_at_ms {
            *maintenance_at_ms = self.now_ms + MAINTENANCE_MS;
            clients.iter().for_each(|client| self.maintain(client.partition, *waits_for_all));
        }
        self.deletions = Some(deletions);
    }

    fn ask_to_delete(&mut self, client: &mut Client, random: &mut Random) {
        let Client { process, partition, .. } = *client;
        let Some(node) = self.leader(partition) else { return };
        let Some(term) = self.nodes[node].leads(partition) else { return };
        let Some(ends) = self.nodes[node].ends(partition) else { return };
        // Mostly the records that consumers have read, sometimes all.
        let all = (ends.high_watermark - ends.log_start) as u64;
        let count = if random.chance(15) { all } else { random.below(all + 1) };
        let (offset, log_end) = (ends.log_start + count as i64, ends.log_end);
        self.note(process, Operation::Delete, Outcome::Invoke, At::new(partition, offset, 0));
        match self.nodes[node].delete_records(partition, offset) {
            Some(fate) => {
                let until_ms = self.now_ms + ANSWER_MAX_MS;
                client.asked = Some(Asked { offset, log_end, node, term, until_ms, fate });
            }
            // The deletion may be in the leader's journal.
            None => self.note(process, Operation::Delete, Outcome::Info, At::new(partition, offset, 0)),
        }
    }

    /// Gives clients the outcomes of their requests, in the turn in which they are known.
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

    /// Removes segments before the log start. Without copies that is when all replicas have them on disk, since a removed segment cannot
    /// be sent to any replica.
    fn maintain(&mut self, partition: usize, waits_for_all: bool) {
        let everywhere = self.nodes.iter().map(|node| node.kept_end(partition)).min().unwrap_or(0);
        for node in &mut self.nodes {
            let log_start = node.ends(partition).map_or(0, |ends| ends.log_start);
            if log_start > 0 && (log_start <= everywhere || !waits_for_all) {
                node.maintain(partition);
            }
            node.flush();
        }
    }

    /// Runs until the last deletions are applied everywhere, after all replicas agree.
    pub(crate) fn finish_deletions(&mut self) {
        let until_ms = self.now_ms + APPLIED_MS;
        while self.deletions.is_some() && self.now_ms < until_ms {
            self.turn();
        }
    }

    /// Offset at which a consumer continues that wants `next` from a node: the log start, if `next` is deleted.
    pub(crate) fn position_at(&mut self, node: usize, process: i32, partition: usize, next: i64) -> i64 {
        let log_start = self.nodes[node].ends(partition).map_or(0, |ends| ends.log_start);
        if self.deletions.is_none() || next >= log_start {
            return next;
        }
        self.note(process, Operation::Reset, Outcome::Ok, At::new(partition, log_start, 0));
        log_start
    }
}
