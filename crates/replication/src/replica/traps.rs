//! Traps of disks, peers and the library that a replica has to survive, each a test of its own: nodes on simulated disks, and
//! their messages delivered by hand.

use super::copies::finish_replacement;
use super::effects::Outgoing;
use super::group_journal::found;
use super::role::RoleState;
use super::ticks::TICK_MS;
use super::*;
use crate::index::term_of;
use crate::journal::Frame;
use crate::link;
use crate::setback::Setback;
use crate::snapshots::SnapshotOffer;
use mainstem_log::dir::{LogDir, LogDirOptions, NodeIdentity};
use mainstem_log::partition_dir::SetAside;
use mainstem_log::sim::{Random, SimStorage};
use mainstem_log::{LogConfig, LogError, Origin, PartitionIdentity, ReadBound, prepare};
use mainstem_records::{Batch, BatchBuilder, BatchOptions, Scratch};
use std::ops::Range;
use std::path::Path;

mod copies;
mod forged;
mod members;

const DIR: &str = "/data";
/// More than any replica here has.
const READ_BYTES: usize = 1 << 20;
/// Messages are delivered in so many rounds at most, until no node says anything.
const ROUNDS_MAX: usize = 100;

/// A node with a replica of each partition.
struct Node {
    id: ReplicaId,
    /// The members that its groups begin with; none: they are not known here.
    voters: Vec<ReplicaId>,
    write_caching: bool,
    changes_members: bool,
    broadcast_commit: bool,
    partitions: Vec<PartitionIdentity>,
    storage: SimStorage,
    boot: u64,
    running: Option<Running>,
    /// Data of internal entries that were applied since the start.
    applied: Vec<Vec<u8>>,
    /// The snapshot that it was offered last.
    offered: Option<SnapshotOffer>,
    /// The replicas that need what it has not any more.
    behind: Vec<ReplicaId>,
}

struct Running {
    dir: Arc<LogDir>,
    journal: Arc<Mutex<Journal>>,
    replicas: Vec<Replica>,
    /// The end of each log before its group looked at it.
    found_ends: Vec<i64>,
    now_ms: u64,
}

fn partition_of(topic_id: u8, partition: i32) -> PartitionIdentity {
    PartitionIdentity { topic: "t".into(), topic_id: [topic_id; 16], partition }
}

fn group_of(identity: &PartitionIdentity) -> GroupId {
    GroupId { topic_id: identity.topic_id, partition: identity.partition }
}

/// Nodes that run, with a replica of each partition of one topic.
fn nodes(count: i32, partitions: i32) -> Vec<Node> {
    let voters: Vec<_> = (1..=count).map(|node| ReplicaId::new(node, 1)).collect();
    let start = |id: &ReplicaId| {
        let mut node = Node::new(*id, voters.clone(), partitions);
        node.start();
        node
    };
    voters.iter().map(start).collect()
}

impl Node {
    fn new(id: ReplicaId, voters: Vec<ReplicaId>, partitions: i32) -> Node {
        Node {
            id,
            voters,
            write_caching: false,
            changes_members: false,
            broadcast_commit: true,
            partitions: (0..partitions).map(|partition| partition_of(1, partition)).collect(),
            storage: SimStorage::new(),
            boot: 1,
            running: None,
            applied: Vec::new(),
            offered: None,
            behind: Vec::new(),
        }
    }

    fn start(&mut self) {
        self.applied.clear();
        let storage = Arc::new(self.storage.clone());
        let identity = NodeIdentity { cluster_id: Some("cluster".into()), node_id: self.id.node() };
        let options = LogDirOptions { keep_reserve: true, ..LogDirOptions::default() };
        let dir = options.open(storage.clone(), Path::new(DIR), &identity, &format!("boot-{}", self.boot));
        let dir = dir.expect("the directory opens");
        let (mut journal, _) = Journal::open(storage, dir.path()).expect("the journal opens");
        if self.changes_members {
            journal.let_members_change();
        }
        let (replicas, found_ends) = (Vec::new(), Vec::new());
        let mut running =
            Running { dir, journal: Arc::new(Mutex::new(journal)), replicas, found_ends, now_ms: 0 };
        for one in &self.partitions {
            let finished =
                finish_replacement(&running.journal, group_of(one), &running.dir, &one.topic_partition(), 0);
            finished.expect("what was begun is finished");
        }
        let logs: Vec<_> = self.partitions.iter().map(|one| running.open_log(one).expect("a log")).collect();
        running.dir.recovered().expect("the recovery is noted");
        for (log, identity) in logs.into_iter().zip(&self.partitions) {
            running.begin(
                log,
                identity,
                (self.id, &self.voters),
                (self.write_caching, self.broadcast_commit),
            );
        }
        self.running = Some(running);
    }

    fn running(&mut self) -> &mut Running {
        self.running.as_mut().expect("it runs")
    }

    fn replica(&mut self, partition: usize) -> &mut Replica {
        &mut self.running().replicas[partition]
    }

    /// Its process dies.
    fn kill(&mut self) {
        self.running = None;
        self.storage.kill();
    }

    /// Its machine loses power: what was not synced is lost in part, as the seed has it.
    fn cut_power(&mut self, seed: u64) {
        self.running = None;
        self.storage.power_cut(&mut Random::new(seed));
        self.boot += 1;
    }

    /// Syncs all logs and the journal.
    fn sync(&mut self) {
        let Running { replicas, journal, .. } = self.running();
        replicas.iter_mut().for_each(|replica| replica.log_mut().sync_now().expect("the log is synced"));
        journal.lock().sync().expect("the journal is synced");
        replicas.iter_mut().for_each(Replica::persisted);
    }

    /// The messages that its replicas want sent, with the bytes of the batches. Nothing is synced.
    fn drive(&mut self) -> Vec<(Outgoing, GroupId, Vec<u8>)> {
        let Node { running, applied, offered, behind, .. } = self;
        let Some(running) = running else { return Vec::new() };
        let mut sent = Vec::new();
        for replica in &mut running.replicas {
            let effects = replica.drive().expect("it is in service");
            replica.check();
            applied.extend(effects.applied.into_iter().map(|entry| entry.data));
            *offered = effects.offered.or(offered.take());
            behind.extend(effects.too_far_behind);
            for outgoing in effects.messages {
                let bytes = read(replica.log(), outgoing.offsets.clone());
                sent.push((outgoing, replica.group(), bytes));
            }
        }
        sent
    }

    fn append(&mut self, partition: usize, value: u64) {
        let mut batch = BatchBuilder::new(BatchOptions::default());
        batch.append(1, None, Some(&value.to_be_bytes()), &[]).expect("a small record");
        let (bytes, config, mut out) = (batch.build().expect("a batch"), LogConfig::default(), Vec::new());
        let batch = prepare(&bytes, &config, 0, Origin::Client, &mut Scratch::new(), &mut out);
        self.replica(partition).append(&batch.expect("a sound batch"), 0).expect("it leads, and has space");
    }

    /// Each batch, and its term.
    fn content(&mut self, partition: usize) -> Vec<(Vec<u8>, u64)> {
        let log = self.replica(partition).log();
        let ends = log.ends();
        let (bytes, mut content) = (read(log, ends.log_start..ends.log_end), Vec::new());
        let mut rest = &bytes[..];
        while let Ok((batch, behind)) = Batch::split_first(rest) {
            content.push((batch.bytes().to_vec(), term_of(LeaderEpoch::new(batch.partition_leader_epoch()))));
            rest = behind;
        }
        content
    }

    /// Learns that the topic was deleted and created again: its log is set aside, and another one begins. A process that is killed
    /// before the old group is forgotten leaves its frames.
    fn create_again(&mut self, forgets: bool) {
        let (own, voters) = (self.id, self.voters.clone());
        let options = (self.write_caching, self.broadcast_commit);
        let before = std::mem::replace(&mut self.partitions[0], partition_of(2, 0));
        let identity = self.partitions[0].clone();
        let running = self.running();
        drop(running.replicas.remove(0).into_log());
        running.found_ends.clear();
        let refused = running.open_log(&identity).err();
        assert!(matches!(refused, Some(LogError::OtherTopic { .. })), "{refused:?}");
        running.dir.set_aside(&[before.topic_partition()], SetAside::Delete, 0).expect("it is set aside");
        if forgets {
            running.journal.lock().append(group_of(&before), &[Frame::Removed]).expect("there is space");
        }
        let log = running.open_log(&identity).expect("a new log");
        running.begin(log, &identity, (own, &voters), options);
    }
}

impl Running {
    fn open_log(&self, identity: &PartitionIdentity) -> Result<Log, LogError> {
        let config = LogConfig { retention_ms: None, ..LogConfig::default() };
        let (log, _) = Log::open_replica(&self.dir, identity, Arc::new(config), self.now_ms)?;
        Ok(log)
    }

    /// Opens the replica of a log, which founds its group where the journal does not know it.
    fn begin(
        &mut self,
        log: Log,
        identity: &PartitionIdentity,
        (own, voters): (ReplicaId, &[ReplicaId]),
        (write_caching, broadcast_commit): (bool, bool),
    ) {
        let group = group_of(identity);
        let is_known = self.journal.lock().group(group).is_some();
        if !is_known {
            assert_eq!(log.ends().log_end, 0, "a group begins with an empty log");
            let configuration = Configuration::of_voters(voters);
            let founded = found(&mut self.journal.lock(), group, own, &configuration, Start::default());
            founded.expect("it can be written");
        }
        self.found_ends.push(log.ends().log_end);
        let options = ReplicaOptions { write_caching, seed: own.0, high_watermark: 0, broadcast_commit };
        let replica = Replica::open(log, group, self.journal.clone(), options, self.now_ms);
        let replica = replica.expect("the replica opens");
        replica.check();
        self.replicas.push(replica);
    }
}

fn read(log: &Log, offsets: Range<i64>) -> Vec<u8> {
    if offsets.is_empty() {
        return Vec::new();
    }
    let range = log.read_waiting(offsets.start, ReadBound::LogEnd, READ_BYTES, true).expect("a read");
    let bytes = range.map_or_else(Vec::new, |range| range.to_vec().expect("a read"));
    let mut rest = &bytes[..];
    while let Ok((batch, behind)) = Batch::split_first(rest)
        && batch.base_offset() < offsets.end
    {
        rest = behind;
    }
    bytes[..bytes.len() - rest.len()].to_vec()
}

/// Delivers what nodes say until they say nothing more. Those in `syncing` sync what they write, the others do not. A message
/// finds the replica of its group, if there is one.
fn exchange(nodes: &mut [Node], syncing: &[usize]) {
    let mut is_quiet = false;
    for _ in 0..ROUNDS_MAX {
        let sent: Vec<_> = nodes.iter_mut().flat_map(Node::drive).collect();
        syncing.iter().for_each(|node| nodes[*node].sync());
        if std::mem::replace(&mut is_quiet, sent.is_empty()) && is_quiet {
            return;
        }
        for (outgoing, group, batches) in sent {
            deliver(nodes, &outgoing, group, &batches);
        }
    }
    panic!("they do not come to an end");
}

fn deliver(nodes: &mut [Node], outgoing: &Outgoing, group: GroupId, batches: &[u8]) {
    let Outgoing { to, offset, message, begins_coalescing, .. } = outgoing;
    if let Some(replica) = replica_of(nodes, *to, group) {
        replica.step(message.clone(), *offset, batches).expect("a message of ours");
    }
    if *begins_coalescing && let Some(leader) = replica_of(nodes, ReplicaId(message.from), group) {
        // No link repeats it here.
        leader.note_refusal(*to);
    }
}

fn replica_of(nodes: &mut [Node], id: ReplicaId, group: GroupId) -> Option<&mut Replica> {
    let running = nodes.iter_mut().find(|node| node.id == id)?.running.as_mut()?;
    running.replicas.iter_mut().find(|replica| replica.group() == group)
}

/// All are known to be without a leader; this one asks for their votes, and gets them.
fn elect(nodes: &mut [Node], node: usize, partition: usize) {
    for other in nodes.iter_mut().filter(|node| node.running.is_some()) {
        other.replica(partition).expect_no_leader();
    }
    nodes[node].replica(partition).campaign();
    let all: Vec<_> = (0..nodes.len()).filter(|node| nodes[*node].running.is_some()).collect();
    exchange(nodes, &all);
    assert!(nodes[node].replica(partition).leads_settled(), "{:?}", nodes[node].replica(partition));
}

/// Lets time pass for all that run, with all that they say.
fn pass(nodes: &mut [Node], ms: u64) {
    let all: Vec<_> = (0..nodes.len()).filter(|node| nodes[*node].running.is_some()).collect();
    for _ in 0..ms / TICK_MS {
        for running in nodes.iter_mut().filter_map(|node| node.running.as_mut()) {
            running.now_ms += TICK_MS;
            running.dir.retry_after_disk_full(running.now_ms);
            running.replicas.iter_mut().for_each(|replica| replica.tick(running.now_ms));
        }
        exchange(nodes, &all);
    }
}

/// A leader has noted what the others' disks made committed, and a power cut takes of it what its own disk did not have yet. The
/// library does not begin with a commit index beyond the last entry.
#[test]
fn a_commit_index_beyond_the_disk_is_what_the_disk_has() {
    let mut lost = 0;
    for seed in 0..16 {
        let mut nodes = nodes(3, 1);
        elect(&mut nodes, 0, 0);
        (0..5).for_each(|value| nodes[0].append(0, value));
        exchange(&mut nodes, &[1, 2]);
        let (last, _, committed) = nodes[0].replica(0).last_and_committed();
        assert_eq!((last, committed), (6, 6), "a no-op and five batches");
        nodes[0].replica(0).prepare_close().expect("it can be noted");
        nodes[0].running().journal.lock().sync().expect("the journal is synced");
        nodes[0].cut_power(seed);
        nodes[0].start();
        let (last_here, _, committed_here) = nodes[0].replica(0).last_and_committed();
        assert_eq!(committed_here, last_here, "seed {seed}");
        let ends = nodes[0].replica(0).log().ends();
        assert_eq!(ends.high_watermark, ends.log_end, "seed {seed}");
        lost += last - last_here;
        elect(&mut nodes, 1, 0);
        let content = nodes[1].content(0);
        assert_eq!(
            (content.len(), nodes[0].content(0)),
            (5, content),
            "seed {seed}: it gets what it has lost"
        );
    }
    assert!(lost > 0, "no power cut has taken anything");
}

/// It would lead at once, with entries that are not durable, and the library ends the process.
#[test]
fn a_single_voter_with_an_unsynced_tail_waits_for_its_disk() {
    let mut nodes = nodes(1, 1);
    elect(&mut nodes, 0, 0);
    nodes[0].append(0, 7);
    exchange(&mut nodes, &[]);
    // Without space for what it proposes it begins again, as a follower.
    nodes[0].storage.set_free_space(Some(0));
    assert!(nodes[0].replica(0).propose(vec![1]).is_err(), "there is no space");
    nodes[0].storage.set_free_space(None);
    for _ in 0..5_000 / TICK_MS {
        let running = nodes[0].running();
        running.now_ms += TICK_MS;
        running.dir.retry_after_disk_full(running.now_ms);
        let (replica, now_ms) = (&mut running.replicas[0], running.now_ms);
        replica.tick(now_ms);
        replica.campaign();
        exchange(&mut nodes, &[]);
        assert_eq!(nodes[0].replica(0).role().state, RoleState::Follower { leader: None });
    }
    assert!(nodes[0].replica(0).is_taking_part(), "it waits for its disk, and not for space");
    nodes[0].sync();
    pass(&mut nodes, 5_000);
    assert!(nodes[0].replica(0).leads_settled());
    assert_eq!(nodes[0].content(0).len(), 1);
}

/// Each candidate that gets two votes of three leads: with a second vote a term would have two leaders.
#[test]
fn a_replica_that_was_started_again_votes_for_no_other_candidate_of_the_term() {
    let ends: [fn(&mut Node); 2] = [Node::kill, |node| node.cut_power(7)];
    for end in ends {
        let mut nodes = nodes(3, 1);
        let (second, third) = (nodes[1].id, nodes[2].id);
        assert!(votes_for(&mut nodes[0], second, 1));
        end(&mut nodes[0]);
        nodes[0].start();
        assert!(!votes_for(&mut nodes[0], third, 1), "it has voted in this term");
        assert!(votes_for(&mut nodes[0], second, 1), "its vote may not have arrived");
        assert!(votes_for(&mut nodes[0], third, 2), "another term");
    }
}

/// Has a candidate without entries ask a node for its vote in a term. Returns true if it gets it, durably.
fn votes_for(node: &mut Node, candidate: ReplicaId, term: u64) -> bool {
    let msg_type = MessageType::MsgRequestVote;
    let (from, to) = (candidate.0, node.id.0);
    let request = Message { msg_type, from, to, term, ..Message::default() };
    node.replica(0).step(request, 0, &[]).expect("a message of ours");
    let mut sent = node.drive();
    node.sync();
    sent.extend(node.drive());
    let is_vote = |message: &Message| message.get_msg_type() == MessageType::MsgRequestVoteResponse;
    let mut votes = sent.iter().map(|(outgoing, ..)| &outgoing.message).filter(|message| is_vote(message));
    !votes.next().expect("an answer").reject
}

/// No other node has voted: where a power cut takes a term from the journal, the next leader leads in it again. Batches of the first
/// time that are still in the log are not counted to the second.
#[test]
fn a_single_voter_that_uses_a_lost_term_again_has_nothing_of_the_first_time() {
    let (mut again, mut cut) = (0, 0);
    for seed in 0..64 {
        let mut nodes = nodes(1, 1);
        elect(&mut nodes, 0, 0);
        nodes[0].append(0, 0);
        exchange(&mut nodes, &[0]);
        let acknowledged = nodes[0].content(0);
        nodes[0].kill();
        nodes[0].start();
        nodes[0].replica(0).campaign();
        exchange(&mut nodes, &[]);
        let first = nodes[0].replica(0).role();
        assert_eq!(first.state, RoleState::Leader);
        (1..4).for_each(|value| nodes[0].append(0, value));
        exchange(&mut nodes, &[]);
        nodes[0].cut_power(seed);
        nodes[0].start();
        let before = nodes[0].content(0);
        assert!(before.starts_with(&acknowledged), "seed {seed}");
        cut += nodes[0].running().found_ends[0] - before.len() as i64;
        elect(&mut nodes, 0, 0);
        let second = nodes[0].replica(0).role().term;
        assert!(
            before.iter().all(|(_, term)| *term < second),
            "seed {seed}: {before:?} before term {second}"
        );
        again += i32::from(second == first.term);
    }
    assert!(again > 0 && cut > 0, "no term was lost, or no batch of one was left: {again}, {cut}");
}

/// The library lists what is committed behind what is applied, and reads all of it before it campaigns.
#[test]
fn what_was_applied_before_a_stop_is_not_listed_again() {
    let mut nodes = nodes(1, 1);
    elect(&mut nodes, 0, 0);
    for data in 1..4 {
        nodes[0].replica(0).propose(vec![data]).expect("it leads");
    }
    exchange(&mut nodes, &[0]);
    assert_eq!(nodes[0].applied, [[1], [2], [3]]);
    let last = nodes[0].replica(0).last_and_committed().0;
    nodes[0].replica(0).prepare_close().expect("it can be noted");
    nodes[0].sync();
    nodes[0].kill();
    nodes[0].start();
    assert_eq!(nodes[0].replica(0).group.applied(), last);
    elect(&mut nodes, 0, 0);
    assert!(nodes[0].applied.is_empty(), "{:?}", nodes[0].applied);
    nodes[0].replica(0).propose(vec![4]).expect("it leads");
    exchange(&mut nodes, &[0]);
    assert_eq!(nodes[0].applied, [[4]]);
}

/// A process dies in the midst of an orderly stop, when the journal has all that it gets, and the checkpoint of the log start may not.
#[test]
fn a_deletion_that_only_a_killed_process_knew_of_is_applied_again() {
    for is_noted in [false, true] {
        let mut nodes = nodes(1, 1);
        elect(&mut nodes, 0, 0);
        (0..5).for_each(|value| nodes[0].append(0, value));
        nodes[0].replica(0).propose(vec![3]).expect("it leads");
        exchange(&mut nodes, &[0]);
        assert_eq!(nodes[0].applied, [[3]]);
        let log = nodes[0].replica(0).log_mut();
        log.delete_records_before(3).expect("they are committed");
        if is_noted {
            log.dir().checkpoints().log_start.commit().expect("a checkpoint");
        }
        nodes[0].replica(0).prepare_close().expect("it can be noted");
        nodes[0].running().journal.lock().sync().expect("the journal is synced");
        nodes[0].kill();
        nodes[0].start();
        assert_eq!(nodes[0].replica(0).log().ends().log_start, if is_noted { 3 } else { 0 });
        elect(&mut nodes, 0, 0);
        let again: Vec<Vec<u8>> = if is_noted { vec![] } else { vec![vec![3]] };
        assert_eq!(nodes[0].applied, again, "noted {is_noted}");
    }
}

/// Everything that a replica takes a term from, with one that has no epoch.
fn beyond_all_epochs() -> Vec<Message> {
    let term = 1 << 31;
    let of_type = |msg_type| Message { msg_type, term, from: ReplicaId::new(2, 1).0, ..Message::default() };
    let mut messages: Vec<_> = link::TYPES.into_iter().map(of_type).collect();
    messages.push(of_type(MessageType::MsgSnapshot));
    let in_term_1 = |msg_type| Message { term: 1, ..of_type(msg_type) };
    messages.push(Message { log_term: term, ..in_term_1(MessageType::MsgRequestVote) });
    messages.push(Message { commit_term: term, ..in_term_1(MessageType::MsgRequestVoteResponse) });
    let mut append = Message { index: 1, ..in_term_1(MessageType::MsgAppend) };
    append.set_entries(vec![Entry { index: 2, term, ..Entry::default() }].into());
    messages.push(append);
    messages
}

/// It would be written, and from then on no leader could append.
#[test]
fn a_term_beyond_all_leader_epochs_is_refused_and_not_written() {
    let mut nodes = nodes(3, 1);
    elect(&mut nodes, 1, 0);
    let (role, size) = (nodes[0].replica(0).role(), nodes[0].running().journal.lock().size());
    for message in beyond_all_epochs() {
        let refused = nodes[0].replica(0).step(message.clone(), 0, &[]);
        assert!(
            matches!(refused, Err(StepError::Message(MessageError::Term(term))) if term == 1 << 31),
            "{message:?}: {refused:?}"
        );
        exchange(&mut nodes, &[0, 1, 2]);
        assert_eq!((nodes[0].replica(0).role(), nodes[0].running().journal.lock().size()), (role, size));
    }
    nodes[1].append(0, 0);
    exchange(&mut nodes, &[0, 1, 2]);
    assert_eq!(nodes[0].content(0).len(), 1, "it follows on");
}

/// The last term is one. A replica that is to lead in the next does not write it.
#[test]
fn the_last_term_is_not_followed_by_another() {
    let mut nodes = nodes(3, 1);
    let (from, term) = (ReplicaId::new(2, 1).0, i32::MAX as u64);
    let say = |msg_type| Message { msg_type, term, from, to: ReplicaId::new(1, 1).0, ..Message::default() };
    nodes[0].replica(0).step(say(MessageType::MsgHeartbeat), 0, &[]).expect("it is a term");
    let refused = nodes[0].replica(0).step(say(MessageType::MsgTimeoutNow), 0, &[]);
    assert!(matches!(refused, Err(StepError::Replica(ReplicaError::Damaged(_)))), "{refused:?}");
    assert!(nodes[0].replica(0).failed().is_some());
    let group = group_of(&partition_of(1, 0));
    assert_eq!(nodes[0].running().journal.lock().group(group).map(|state| state.vote.term), Some(term));
}

/// A leader that gets no turn for a minute, as all of a machine may, has got nothing meanwhile: that says nothing of its
/// followers.
#[test]
fn a_leader_that_stood_still_keeps_its_followers_in_sync() {
    const LAG_MAX_MS: u64 = 3_000;
    let mut nodes = nodes(3, 1);
    elect(&mut nodes, 0, 0);
    nodes[0].append(0, 0);
    pass(&mut nodes, 500);
    let resumed_ms = nodes[0].running().now_ms + 60_000;
    let leader = nodes[0].replica(0);
    assert_eq!(leader.in_sync(resumed_ms, LAG_MAX_MS).len(), 3, "before its first tick");
    for now_ms in (resumed_ms..resumed_ms + 500).step_by(100) {
        leader.tick(now_ms);
        leader.drive().expect("it is in service");
        assert_eq!(leader.in_sync(now_ms, LAG_MAX_MS).len(), 3, "{now_ms}");
    }
    assert_eq!(leader.role().state, RoleState::Leader);
}

/// A follower has no space for a batch: that group continues without it, and it follows in all of them. It catches up when there is
/// space.
#[test]
fn a_full_disk_stalls_that_group_alone() {
    const LAG_MAX_MS: u64 = 1_000;
    let mut nodes = nodes(3, 2);
    elect(&mut nodes, 0, 0);
    elect(&mut nodes, 1, 1);
    (0..2).for_each(|partition| nodes[partition].append(partition, 0));
    pass(&mut nodes, 500);
    let roles = |nodes: &mut [Node]| -> Vec<Role> {
        let of_node = |node: &mut Node| [node.replica(0).role(), node.replica(1).role()];
        nodes.iter_mut().flat_map(of_node).collect()
    };
    let before = roles(&mut nodes);
    nodes[2].storage.set_free_space(Some(0));
    nodes[0].append(0, 1);
    pass(&mut nodes, 3_000);
    assert_eq!(nodes[0].replica(0).log().ends().high_watermark, 2, "two of three have it");
    assert_eq!(nodes[2].content(0).len(), 1);
    assert!(nodes[2].running().dir.is_full());
    assert_eq!(roles(&mut nodes), before, "no node has looked for another leader");
    let mut in_sync = |node: usize| {
        let now_ms = nodes[node].running().now_ms;
        nodes[node].replica(node).in_sync(now_ms, LAG_MAX_MS).len()
    };
    assert_eq!(
        (in_sync(0), in_sync(1)),
        (2, 3),
        "of the group that has something to write, and of the other"
    );
    nodes[2].storage.set_free_space(None);
    pass(&mut nodes, 3_000);
    for partition in 0..2 {
        let contents: Vec<_> = nodes.iter_mut().map(|node| node.content(partition)).collect();
        assert!(contents.iter().all(|content| *content == contents[0]), "{contents:?}");
        assert_eq!(contents[0].len(), 2 - partition);
    }
    assert_eq!(roles(&mut nodes), before);
}

/// A leader says once that it has lost its majority, and that it has made way for want of space, and another change of its role is no
/// setback. Whoever drives it says so of all replicas at once.
#[test]
fn setbacks_of_a_leader_are_reported_once_each() {
    let mut nodes = nodes(3, 1);
    elect(&mut nodes, 0, 0);
    nodes[0].append(0, 0);
    exchange(&mut nodes, &[0, 1, 2]);
    let setbacks = |nodes: &mut [Node]| {
        let mut setbacks = Vec::new();
        for _ in 0..3_000 / TICK_MS {
            let running = nodes[0].running();
            running.now_ms += TICK_MS;
            let replica = &mut running.replicas[0];
            replica.tick(running.now_ms);
            setbacks.extend(replica.drive().expect("it is in service").setbacks);
        }
        setbacks
    };
    assert_eq!(setbacks(&mut nodes), [Setback::LostMajority], "nothing gets to it");
    assert_ne!(nodes[0].replica(0).role().state, RoleState::Leader);
    pass(&mut nodes, 3_000);
    elect(&mut nodes, 0, 0);
    let to = nodes[1].id;
    nodes[0].replica(0).transfer(to);
    let effects = nodes[0].replica(0).drive().expect("it is in service");
    assert_eq!(effects.setbacks, [], "it was asked to");
    // What it has said did not arrive.
    pass(&mut nodes, 3_000);
    elect(&mut nodes, 0, 0);
    let running = nodes[0].running();
    running.dir.note_full();
    running.now_ms += TICK_MS;
    running.replicas[0].tick(running.now_ms);
    let effects = running.replicas[0].drive().expect("it is in service");
    assert_eq!(effects.setbacks, [Setback::HandedOffLeadership]);
}

/// A replica of the topic that is gone says nothing to the groups of the new one, and gets nothing from them. When its node
/// learns of both, its replica begins with nothing: no entry, no vote.
#[test]
fn a_topic_that_was_created_again_while_a_node_was_away_is_another_group() {
    let mut nodes = nodes(3, 1);
    elect(&mut nodes, 0, 0);
    (0..5).for_each(|value| nodes[0].append(0, value));
    exchange(&mut nodes, &[0, 1, 2]);
    elect(&mut nodes, 1, 0);
    let old = group_of(&partition_of(1, 0));
    nodes[2].kill();
    nodes[..2].iter_mut().for_each(|node| node.create_again(true));
    elect(&mut nodes, 1, 0);
    nodes[1].append(0, 9);
    exchange(&mut nodes, &[0, 1]);
    let roles = [nodes[0].replica(0).role(), nodes[1].replica(0).role()];
    // It comes back with what it knows, and looks for the leader of the group that is gone.
    nodes[2].start();
    pass(&mut nodes, 5_000);
    assert_eq!([nodes[0].replica(0).role(), nodes[1].replica(0).role()], roles);
    assert_eq!((nodes[2].content(0).len(), nodes[2].replica(0).role().leader(nodes[2].id)), (5, None));
    nodes[2].create_again(false);
    assert!(nodes[2].running().journal.lock().group(old).is_some_and(|state| state.vote.term == 2));
    assert_eq!((nodes[2].replica(0).role().term, nodes[2].content(0).len()), (0, 0));
    pass(&mut nodes, 3_000);
    let content = nodes[1].content(0);
    assert_eq!((content.len(), &nodes[0].content(0), &nodes[2].content(0)), (1, &content, &content));
}

/// Proposals are dropped while leadership is given away: a batch is refused before it is in the log, and so is an entry without records,
/// which takes its place in no log. When the other replica does not take over, the leader continues.
#[test]
fn what_is_proposed_while_leadership_is_given_away_is_refused() {
    let mut nodes = nodes(3, 1);
    elect(&mut nodes, 0, 0);
    nodes[0].append(0, 0);
    exchange(&mut nodes, &[0, 1, 2]);
    // The other one lacks a batch, and so it is not asked to lead yet.
    nodes[0].append(0, 1);
    let to = nodes[1].id;
    nodes[0].replica(0).transfer(to);
    assert!(nodes[0].replica(0).hands_over());
    // What it says does not arrive.
    nodes[0].drive();
    let before = nodes[0].replica(0).last_and_committed();
    let refused = nodes[0].replica(0).propose(vec![7]);
    assert!(matches!(refused, Err(LeaderAppendError::NotLeader { .. })), "{refused:?}");
    let refused = nodes[0].replica(0).append_with(1, |_, _| unreachable!("the log is not asked"));
    assert!(matches!(refused, Err(LeaderAppendError::NotLeader { .. })), "{refused:?}");
    assert_eq!(nodes[0].replica(0).last_and_committed().0, before.0, "nothing has got a place");
    assert!(nodes[0].replica(0).failed().is_none());
    for _ in 0..3_000 / TICK_MS {
        let running = nodes[0].running();
        running.now_ms += TICK_MS;
        let now_ms = running.now_ms;
        nodes[0].replica(0).tick(now_ms);
        if !nodes[0].replica(0).hands_over() {
            break;
        }
        nodes[0].drive();
        nodes[0].sync();
    }
    assert!(!nodes[0].replica(0).hands_over());
    elect(&mut nodes, 0, 0);
    nodes[0].replica(0).propose(vec![8]).expect("it leads");
    exchange(&mut nodes, &[0, 1, 2]);
    assert!(nodes.iter().all(|node| node.applied == [[8]]));
    let contents: Vec<_> = nodes.iter_mut().map(|node| node.content(0)).collect();
    assert!(contents.iter().all(|content| *content == contents[0] && content.len() == 2), "{contents:?}");
}
