//! Three replicas whose messages are handed over one by one, and logs that come back shorter than they were.

use super::super::vote_hold::VOTE_HOLD_MS;
use super::super::{Replica, ReplicaOptions};
use super::Lost;
use crate::error::{LeaderAppendError, MessageError, ReplicaError};
use crate::journal::{Journal, Start, Tail};
use crate::{Configuration, GroupId, ReplicaId, RoleState, StepError, TICK_MS, found};
use mainstem_log::Log;
use mainstem_log::dir::{LogDir, NodeIdentity};
use mainstem_log::sim::{Hooked, Random, SimStorage};
use mainstem_log::storage::Storage;
use mainstem_log::{LogConfig, Origin, PartitionIdentity, ReadBound, ReadError, prepare};
use mainstem_records::{Batch, BatchBuilder, BatchOptions, Scratch};
use parking_lot::Mutex;
use raft::eraftpb::{Entry, Message, MessageType};
use std::path::Path;
use std::sync::Arc;

mod deletions;
mod fault_table;
mod files;
mod floors;

const GROUP: GroupId = GroupId { topic_id: [7; 16], partition: 0 };

struct Group {
    /// The setting with which each replica is opened.
    caching: [bool; 3],
    /// `cleanup.policy` of the topic is compact.
    compacts: bool,
    now_ms: u64,
    disks: Vec<SimStorage>,
    /// The disks as the replicas have them.
    hooked: Vec<Hooked>,
    /// A replica whose disk may refuse anything.
    faulty: Option<usize>,
    /// Starts of each machine.
    boots: Vec<u64>,
    replicas: Vec<Option<Replica>>,
    /// Replicas that get nothing, and of which nothing arrives.
    cut_off: Vec<usize>,
    /// Replicas that get all, and of which nothing arrives.
    mute: Vec<usize>,
    /// Logs are synced whenever messages are exchanged, as journals are.
    syncs_logs: bool,
    /// Replicas whose disks do not end a sync.
    hanging: Vec<usize>,
    /// A replica whose disk does so from when it leads.
    hangs_as_leader: Option<usize>,
    /// Replicas whose leaders count on what they have not are put out of service, as drivers do.
    may_stop: bool,
    lost: Vec<(usize, Lost)>,
    /// Replicas that need what no one has any more.
    behind: Vec<ReplicaId>,
}

fn id(node: usize) -> ReplicaId {
    ReplicaId::new(node as i32 + 1, 1)
}

fn message(kind: MessageType, from: usize, to: usize, term: u64) -> Message {
    Message { msg_type: kind, from: id(from).0, to: id(to).0, term, ..Message::default() }
}

impl Group {
    /// Three replicas, of which the first one leads.
    fn led_by_first(caching: bool) -> Group {
        Group::with_settings([caching; 3])
    }

    fn with_settings(caching: [bool; 3]) -> Group {
        let disks = vec![SimStorage::new(), SimStorage::new(), SimStorage::new()];
        let mut group = Group {
            caching,
            compacts: false,
            now_ms: 0,
            hooked: disks.iter().map(Hooked::over).collect(),
            disks,
            faulty: None,
            boots: vec![0; 3],
            replicas: vec![None, None, None],
            cut_off: Vec::new(),
            mute: Vec::new(),
            syncs_logs: true,
            hanging: Vec::new(),
            hangs_as_leader: None,
            may_stop: false,
            lost: Vec::new(),
            behind: Vec::new(),
        };
        (0..3).for_each(|node| group.open(node, i64::MAX, 0));
        group.replica(0).campaign();
        group.exchange();
        assert_eq!(group.replica(0).role().state, RoleState::Leader);
        group
    }

    fn replica(&mut self, node: usize) -> &mut Replica {
        self.replicas[node].as_mut().expect("it is open")
    }

    /// Starts a replica, under another boot, with what its log has before an offset: the rest was never durable, and not noted either.
    fn open(&mut self, node: usize, keep: i64, high_watermark: i64) {
        self.replicas[node] = None;
        self.disks[node].kill();
        let _ = self.disks[node].remove_file(Path::new("/data/mainstem.promises"));
        self.start(node, keep, high_watermark);
    }

    /// Its process ends, in order or not, and another one begins under the same boot.
    fn restart(&mut self, node: usize, is_clean: bool) {
        let mut replica = self.replicas[node].take().expect("it is open");
        if is_clean {
            replica.prepare_close().expect("it is noted");
            replica.journal().lock().sync().expect("a sync");
            let log = replica.into_log();
            let dir = log.dir().clone();
            log.close().expect("the log closes");
            assert!(dir.stop_clean().expect("the directory closes"));
        } else {
            drop(replica);
        }
        self.disks[node].kill();
        self.boots[node] -= 1;
        self.start(node, i64::MAX, 0);
    }

    /// Its machine loses its power, and starts with what the disk has.
    fn lose_power(&mut self, node: usize, random: &mut Random, high_watermark: i64) {
        self.replicas[node] = None;
        self.disks[node].power_cut(random);
        self.start(node, i64::MAX, high_watermark);
    }

    fn start(&mut self, node: usize, keep: i64, high_watermark: i64) {
        let replica = self.try_start(node, keep, high_watermark).expect("a replica");
        self.replicas[node] = Some(replica);
    }

    fn try_start(&mut self, node: usize, keep: i64, high_watermark: i64) -> Result<Replica, ReplicaError> {
        self.boots[node] += 1;
        let storage = Arc::new(self.hooked[node].clone());
        let identity = NodeIdentity { cluster_id: Some("cluster".into()), node_id: node as i32 + 1 };
        let boot = format!("boot-{}", self.boots[node]);
        let dir = LogDir::open(storage.clone(), Path::new("/data"), &identity, &boot);
        let dir = dir.map_err(|error| ReplicaError::Failed(error.to_string()))?;
        let (mut journal, _) = Journal::open(storage, dir.path())?;
        if journal.group(GROUP).is_none() {
            let voters = Configuration::of_voters(&[id(0), id(1), id(2)]);
            found(&mut journal, GROUP, id(node), &voters, Start::default()).expect("a founding");
        }
        let partition = PartitionIdentity { topic: "t".into(), topic_id: GROUP.topic_id, partition: 0 };
        let config =
            Arc::new(LogConfig { retention_ms: None, compact: self.compacts, ..LogConfig::default() });
        let (mut log, _) = Log::open_replica(&dir, &partition, config, self.now_ms)?;
        log.truncate_suffix(keep, self.now_ms)?;
        dir.recovered().map_err(|error| ReplicaError::Failed(error.to_string()))?;
        let options = ReplicaOptions {
            write_caching: self.caching[node],
            seed: node as u64,
            high_watermark,
            broadcast_commit: true,
        };
        let journal = Arc::new(Mutex::new(journal));
        Replica::open(log, GROUP, journal, options, self.now_ms)
    }

    /// The leader in the highest term.
    fn leader(&self) -> usize {
        self.found_leader().expect("a leader")
    }

    fn found_leader(&self) -> Option<usize> {
        let leads = |node: &usize| {
            let role = self.replicas[*node].as_ref()?.role();
            (role.state == RoleState::Leader).then_some((role.term, *node))
        };
        (0..3).filter_map(|node| leads(&node)).max().map(|(_, node)| node)
    }

    fn end(&mut self, node: usize) -> i64 {
        self.replica(node).log().ends().log_end
    }

    /// Appends batches of one record at the leader.
    fn append(&mut self, leader: usize, count: usize) {
        (0..count).for_each(|_| self.try_append(leader).expect("it leads"));
    }

    fn try_append(&mut self, leader: usize) -> Result<(), LeaderAppendError> {
        let mut builder = BatchBuilder::new(BatchOptions::default());
        let key = self.compacts.then_some(&b"key"[..]);
        builder.append(0, key, Some(b"value"), &[]).expect("a record");
        let bytes = builder.build().expect("a batch");
        let now_ms = self.now_ms;
        let replica = self.replica(leader);
        let config = replica.log().config().clone();
        let mut out = Vec::new();
        let batch = prepare(&bytes, &config, 0, Origin::Client, &mut Scratch::new(), &mut out);
        replica.append(&batch.expect("a batch of ours"), now_ms).map(drop)
    }

    /// Hands over all messages until there are none, with all syncs done at once.
    fn exchange(&mut self) {
        loop {
            let mut on_their_way = Vec::new();
            for node in 0..3 {
                let Some(replica) = &mut self.replicas[node] else { continue };
                if replica.failed().is_some() {
                    continue;
                }
                if self.hangs_as_leader == Some(node) && replica.role().state == RoleState::Leader {
                    self.hanging.push(node);
                }
                let syncs = !self.hanging.contains(&node);
                let may_fail = self.faulty == Some(node);
                if syncs {
                    let synced = replica.journal().lock().sync();
                    assert!(synced.is_ok() || may_fail, "{synced:?}");
                }
                if syncs && self.syncs_logs {
                    let synced = replica.log_mut().sync_now();
                    assert!(synced.is_ok() || may_fail, "{synced:?}");
                    if let Some(reason) = replica.log().stopped().map(str::to_owned) {
                        replica.stop(reason);
                        continue;
                    }
                }
                replica.persisted();
                let effects = match replica.drive() {
                    Err(_) if may_fail => continue,
                    effects => effects.expect("it works"),
                };
                replica.check();
                self.lost.extend(effects.lost.iter().map(|lost| (node, *lost)));
                self.behind.extend(effects.too_far_behind);
                for outgoing in effects.messages {
                    match read(replica.log(), outgoing.offsets.clone()) {
                        // It is sent again.
                        Err(_) if may_fail => replica.report_unreachable(outgoing.to),
                        bytes => on_their_way.push((node, outgoing, bytes.expect("a read"))),
                    }
                }
            }
            if on_their_way.is_empty() {
                return;
            }
            for (from, outgoing, bytes) in on_their_way {
                let to = outgoing.to.node() as usize - 1;
                if let Some(sender) = self.replicas[from].as_mut().filter(|_| outgoing.begins_coalescing) {
                    // It is not repeated here: it is said in full each time.
                    sender.note_refusal(outgoing.to);
                }
                let may_send = !self.cut_off.contains(&from) && !self.mute.contains(&from);
                let arrives = may_send && !self.cut_off.contains(&to);
                let replica = self.replicas[to].as_mut().filter(|replica| replica.failed().is_none());
                let Some(replica) = replica.filter(|_| arrives) else { continue };
                match replica.step(outgoing.message, outgoing.offset, &bytes) {
                    Err(StepError::Message(MessageError::LostPromise)) if self.may_stop => {
                        replica.stop("it has lost what it has promised".to_owned());
                    }
                    Err(StepError::Replica(_)) if self.faulty == Some(to) => {}
                    stepped => stepped.expect("a message"),
                }
            }
        }
    }

    /// Moves the start of a replica's log, as a committed entry has it do, and notes it.
    fn delete_before(&mut self, node: usize, offset: i64) {
        let replica = self.replica(node);
        replica.log_mut().delete_records_before(offset).expect("they are committed");
        replica.follow_log_start().expect("it is noted");
        replica.log().dir().checkpoints().log_start.commit().expect("a checkpoint");
    }

    /// Removes the segments that may go; returns how many did.
    fn maintain(&mut self, node: usize) -> usize {
        let now_ms = self.now_ms;
        let replica = self.replica(node);
        let done = replica.log_mut().maintain(0, now_ms).expect("it is maintained");
        replica.follow_log_start().expect("it is noted");
        replica.check();
        done.segments_deleted
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / TICK_MS {
            self.now_ms += TICK_MS;
            let now_ms = self.now_ms;
            self.replicas.iter_mut().flatten().for_each(|replica| replica.tick(now_ms));
            self.exchange();
        }
    }
}

fn read(log: &Log, offsets: std::ops::Range<i64>) -> Result<Vec<u8>, ReadError> {
    let (mut bytes, mut next) = (Vec::new(), offsets.start);
    while next < offsets.end {
        let range = log.read_waiting(next, ReadBound::LogEnd, 1 << 20, true)?.expect("records");
        let some = range.to_vec()?;
        let mut rest = &some[..];
        while next < offsets.end
            && let Ok((batch, behind)) = Batch::split_first(rest)
        {
            bytes.extend_from_slice(batch.bytes());
            (next, rest) = (batch.next_offset(), behind);
        }
    }
    Ok(bytes)
}

#[test]
fn a_leader_takes_back_what_it_has_counted_on_and_sends_it_again() {
    let mut group = Group::led_by_first(true);
    group.append(0, 10);
    group.exchange();
    assert_eq!(group.end(1), 10);
    group.open(1, 6, 10);
    assert_eq!(group.end(1), 6);
    group.replica(0).report_unreachable(id(1));
    group.pass(1_000);
    assert_eq!((group.end(1), group.replica(1).failed()), (10, None));
    assert_eq!(group.replica(0).role().state, RoleState::Leader);
    // And what comes then.
    group.append(0, 3);
    group.exchange();
    let matched = group.replica(0).matched();
    assert!(matched.iter().all(|(_, index)| *index == matched[0].1), "{matched:?}");
    assert_eq!((group.end(1), group.lost.len()), (13, 0));
}

/// A refusal that does not contradict an acknowledgement leaves it as it is. The setting of the leader is of no account.
#[test]
fn only_a_refusal_behind_what_was_acknowledged_is_one_of_a_loss() {
    for caching in [true, false] {
        let mut group = Group::led_by_first(caching);
        group.append(0, 5);
        group.exchange();
        let (last, term, _) = group.replica(0).last_and_committed();
        let refusal = |hint| {
            let mut refusal = message(MessageType::MsgAppendResponse, 1, 0, term);
            (refusal.reject, refusal.index, refusal.reject_hint, refusal.log_term) = (true, last, hint, term);
            refusal
        };
        let matched = |group: &mut Group| group.replica(0).matched()[1].1;
        group.replica(0).step(refusal(last), 0, &[]).expect("a message");
        assert_eq!(matched(&mut group), last);
        group.replica(0).step(refusal(last - 2), 0, &[]).expect("a message");
        assert_eq!(matched(&mut group), 0);
    }
}

/// Returns true if it is noted what it has promised or not.
#[test]
fn a_replica_with_less_than_a_leader_counts_on_lacks_something() {
    for caching in [true, false] {
        let mut group = Group::led_by_first(caching);
        group.append(0, 10);
        group.exchange();
        let (last, term, _) = group.replica(0).last_and_committed();
        group.open(1, 6, 10);
        let mut heartbeat = message(MessageType::MsgHeartbeat, 0, 1, term);
        heartbeat.commit = last;
        group.replica(1).step(heartbeat, 0, &[]).expect("a message");
        assert!(group.replica(1).may_lack_acknowledged());
        // With caching a power cut explains it, and the hold on votes is enough.
        assert_eq!((group.replica(1).holds_votes(), group.replica(1).lacks_promised()), (caching, !caching));
    }
}

/// The refusal of an append says to the leader that what it counts on is not there. The replica gets that before it is sent
/// anything again.
#[test]
fn a_replica_that_refuses_an_append_for_its_loss_is_caught_up() {
    for caching in [true, false] {
        let mut group = Group::led_by_first(caching);
        group.may_stop = true;
        group.append(0, 10);
        group.exchange();
        group.open(1, 6, 10);
        group.append(0, 1);
        group.exchange();
        assert_eq!(group.replica(1).failed(), None);
        assert_eq!((group.end(1), group.end(2)), (11, 11));
        group.append(0, 1);
        group.exchange();
        assert!(!group.replica(1).may_lack_acknowledged());
    }
}

#[test]
fn a_replica_that_holds_its_votes_gives_none_until_its_time_is_over_or_it_has_caught_up() {
    for catches_up in [false, true] {
        let mut group = Group::led_by_first(true);
        group.append(0, 10);
        group.exchange();
        group.open(1, 6, 10);
        assert!(group.replica(1).holds_votes());
        if catches_up {
            group.replica(0).report_unreachable(id(1));
            group.pass(1_000);
            assert!(!group.replica(1).holds_votes());
            continue;
        }
        // The third one lacks nothing but what the second one has lost: with its vote it would lead.
        group.replicas[0] = None;
        group.open(2, 7, 0);
        group.replica(2).group.vote_hold_mut().end();
        group.pass(VOTE_HOLD_MS - 2 * TICK_MS);
        assert_ne!(group.replica(2).role().state, RoleState::Leader);
        group.pass(VOTE_HOLD_MS);
        let leads = |group: &mut Group, node: usize| group.replica(node).role().state == RoleState::Leader;
        assert!(leads(&mut group, 1) || leads(&mut group, 2));
    }
}

/// Retention moves the start of the log into the present term.
#[test]
fn a_replica_whose_log_begins_in_the_present_term_holds_its_votes_too() {
    let mut group = Group::led_by_first(true);
    group.append(0, 4);
    group.exchange();
    // The journal remembers this place.
    group.replica(1).prepare_close().expect("it is noted");
    group.append(0, 6);
    group.exchange();
    let replica = group.replica(1);
    replica.log_mut().delete_records_before(4).expect("they are committed");
    replica.follow_log_start().expect("it is noted");
    let (_, term, _) = replica.last_and_committed();
    assert_eq!((replica.start().offset, replica.start().term), (4, term));
    group.exchange();
    group.open(1, 6, 10);
    assert_eq!(group.replica(1).start().term, term);
    assert!(group.replica(1).holds_votes());
}

#[test]
fn a_leader_without_caching_sends_again_what_a_follower_with_it_has_lost() {
    let mut group = Group::with_settings([false, true, true]);
    group.append(0, 10);
    group.exchange();
    group.open(1, 6, 10);
    group.replica(0).report_unreachable(id(1));
    group.pass(1_000);
    assert_eq!((group.end(1), group.replica(1).failed()), (10, None));
    let matched = group.replica(0).matched();
    assert!(matched.iter().all(|(_, index)| *index == matched[0].1), "{matched:?}");
}

#[test]
fn what_counts_as_persisted_is_what_the_setting_says_since_it_was_altered() {
    for caching in [true, false] {
        let mut group = Group::led_by_first(caching);
        group.syncs_logs = false;
        group.append(0, 3);
        group.exchange();
        let committed = |group: &mut Group| group.replica(0).log().ends().high_watermark;
        assert_eq!(committed(&mut group), if caching { 3 } else { 0 });
        (0..3).for_each(|node| group.replica(node).set_write_caching(!caching));
        group.append(0, 3);
        group.exchange();
        assert_eq!(committed(&mut group), if caching { 3 } else { 6 });
        group.syncs_logs = true;
        group.exchange();
        assert_eq!(committed(&mut group), 6);
    }
}

/// No batch counts as persisted before the journal remembers that one may.
#[test]
fn caching_counts_when_the_next_start_will_know_of_it() {
    let mut group = Group::led_by_first(false);
    group.syncs_logs = false;
    group.append(0, 3);
    group.exchange();
    let replica = group.replica(1);
    replica.set_write_caching(true);
    assert_eq!((replica.log().ends().log_end, replica.persisted_end()), (3, 0));
    assert!(replica.journal_sync().is_some(), "it is asked for");
    group.exchange();
    let replica = group.replica(1);
    assert_eq!((replica.log().ends().durable_end, replica.persisted_end()), (0, 3));
    let noted = |group: &mut Group| group.replica(1).journal().lock().group(GROUP).expect("it is known").tail;
    assert_eq!(noted(&mut group), Tail { is_cached: true, holds_votes: false });
    group.replica(1).set_write_caching(false);
    assert!(group.replica(1).drive().expect("it works").flush, "what has counted is to be synced");
    assert_eq!(noted(&mut group), Tail { is_cached: true, holds_votes: false });
    group.syncs_logs = true;
    group.exchange();
    assert!(!group.replica(1).drive().expect("it works").flush);
    assert_eq!(noted(&mut group), Tail::default());
}

/// Records that a power cut has taken were acknowledged under the setting of then.
#[test]
fn a_tail_is_lost_whatever_the_setting_is_at_the_next_start() {
    for is_synced in [false, true] {
        let mut group = Group::led_by_first(true);
        group.append(0, 6);
        group.exchange();
        group.syncs_logs = false;
        group.append(0, 4);
        group.exchange();
        let (last, term, committed) = group.replica(0).last_and_committed();
        assert_eq!(committed, last);
        group.replica(1).set_write_caching(false);
        group.caching[1] = false;
        group.syncs_logs = is_synced;
        group.exchange();
        group.open(1, 6, 10);
        if is_synced {
            // Of what was synced a power cut takes nothing: files are gone.
            let mut heartbeat = message(MessageType::MsgHeartbeat, 0, 1, term);
            heartbeat.commit = last;
            group.replica(1).step(heartbeat, 0, &[]).expect("a message");
            assert!(group.replica(1).lacks_promised());
            continue;
        }
        assert!(group.replica(1).holds_votes());
        group.replica(0).report_unreachable(id(1));
        group.pass(1_000);
        assert_eq!((group.end(1), group.replica(1).failed()), (10, None));
        let noted = group.replica(1).journal().lock().group(GROUP).expect("it is known").tail;
        assert_eq!(noted, Tail::default(), "all is here again");
    }
}

/// Another leader says that there is another entry in the place of a committed one.
fn denied(group: &mut Group, node: usize) -> Result<(), StepError> {
    let (_, term, committed) = group.replica(node).last_and_committed();
    let other = (node + 1) % 3;
    let mut append = message(MessageType::MsgAppend, other, node, term + 1);
    (append.index, append.log_term) = (committed - 1, term);
    append.set_entries(vec![Entry { index: committed, term: term + 1, ..Entry::default() }].into());
    let offset = group.end(node) - 1;
    group.replica(node).step(append, offset, &[])
}

/// Caching was switched off, and all is synced: the replica keeps what is committed, as one does that never had the setting.
#[test]
fn nothing_counts_as_lost_any_more_when_the_setting_is_off_and_all_is_durable() {
    for is_synced in [false, true] {
        let mut group = Group::led_by_first(true);
        group.syncs_logs = false;
        group.append(0, 6);
        group.exchange();
        assert_eq!(group.replica(1).log().ends().high_watermark, 6);
        group.replica(1).set_write_caching(false);
        group.syncs_logs = is_synced;
        group.exchange();
        let stepped = denied(&mut group, 1);
        match is_synced {
            true => {
                assert!(matches!(stepped, Err(StepError::Message(MessageError::LostPromise))), "{stepped:?}")
            }
            false => stepped.expect("a power cut may have taken it elsewhere"),
        }
        assert_eq!(group.end(1), if is_synced { 6 } else { 5 });
    }
    let mut group = Group::led_by_first(true);
    group.replica(1).set_write_caching(false);
    group.exchange();
    group.replica(1).set_write_caching(true);
    group.append(0, 6);
    group.exchange();
    denied(&mut group, 1).expect("it is on again");
}

/// The hold on votes is over, and there was no contact yet with the leader that counts on what was lost.
#[test]
fn a_replica_allows_for_its_loss_until_it_has_caught_up_whatever_the_setting_is() {
    let mut group = Group::led_by_first(true);
    group.append(0, 6);
    group.exchange();
    group.syncs_logs = false;
    group.append(0, 4);
    group.exchange();
    group.replica(1).set_write_caching(false);
    group.caching[1] = false;
    group.cut_off = vec![1];
    group.open(1, 6, 0);
    group.syncs_logs = true;
    group.pass(2 * VOTE_HOLD_MS);
    assert!(!group.replica(1).holds_votes());
    group.cut_off.clear();
    group.replica(0).report_unreachable(id(1));
    group.pass(3_000);
    assert_eq!((group.end(1), group.replica(1).failed()), (10, None));
    assert!(!group.replica(1).losses.are_possible(), "all is here again");
}

#[test]
fn a_hold_on_votes_outlives_what_is_no_end_of_it() {
    for is_clean in [true, false] {
        let mut group = Group::led_by_first(true);
        group.append(0, 10);
        group.exchange();
        group.cut_off = vec![1];
        group.open(1, 6, 10);
        group.pass(1_000);
        group.restart(1, is_clean);
        assert!(group.replica(1).holds_votes());
        // It begins when the replica takes part, however long its node has opened others.
        group.now_ms += 2 * VOTE_HOLD_MS;
        group.pass(VOTE_HOLD_MS - 2 * TICK_MS);
        assert!(group.replica(1).holds_votes());
        group.pass(3 * TICK_MS);
        assert!(!group.replica(1).holds_votes() && group.replica(1).holds_campaign());
        group.restart(1, is_clean);
        assert!(group.replica(1).holds_votes(), "it has not asked for votes yet");
        group.pass(2 * VOTE_HOLD_MS + TICK_MS);
        group.restart(1, is_clean);
        assert!(!group.replica(1).holds_campaign(), "its time is over");
    }
}

/// A majority has lost records to a power cut. Each of these replicas would vote for the other, and the one that has all would lose them.
#[test]
fn replicas_that_may_lack_something_elect_the_one_that_lost_nothing() {
    for seed in 0..20 {
        let mut group = Group::led_by_first(true);
        group.append(0, 10);
        group.exchange();
        // The first one runs on. The others have some of it left, and hear of it while they vote and do not ask.
        group.cut_off = vec![0];
        group.open(1, 6, 10);
        group.open(2, 4, 10);
        group.pass(VOTE_HOLD_MS + seed * 2 * TICK_MS);
        group.cut_off.clear();
        group.pass(2 * VOTE_HOLD_MS);
        assert_eq!(group.leader(), 0, "seed {seed}");
        assert_eq!((0..3).map(|node| group.end(node)).collect::<Vec<_>>(), [10, 10, 10], "seed {seed}");
        assert_eq!(group.lost, [], "seed {seed}");
    }
}

#[test]
fn a_replica_cuts_off_what_its_new_leader_has_lost_and_counts_it() {
    let mut group = Group::led_by_first(true);
    group.append(0, 10);
    group.exchange();
    group.cut_off = vec![0];
    // Without what they had noted as committed they do not know that it is gone.
    group.open(1, 6, 0);
    group.open(2, 4, 8);
    group.pass(3 * VOTE_HOLD_MS);
    assert_eq!(group.replica(1).role().state, RoleState::Leader, "it has more than the other one");
    assert_eq!(group.lost, [(2, Lost { offset: 6, records: 2 })]);
    group.append(1, 1);
    group.exchange();
    group.cut_off.clear();
    group.replica(1).report_unreachable(id(0));
    group.pass(4_000);
    assert_eq!(group.lost[1..], [(0, Lost { offset: 6, records: 4 })]);
    assert_eq!((0..3).map(|node| group.end(node)).collect::<Vec<_>>(), [7, 7, 7]);
    assert!(group.replicas.iter().flatten().all(|replica| replica.failed().is_none()));
}

impl Group {
    /// The first replica, whose log begins within what the two others have lost, and all that it can know of the new leaders.
    fn without_what_precedes(&mut self, keep: i64, leaders: &[usize]) {
        assert!(self.replica(0).start().offset > keep);
        self.cut_off = vec![0];
        self.open(1, keep, 0);
        self.open(2, keep, 0);
        self.pass(3 * VOTE_HOLD_MS);
        for next in leaders {
            let leader = self.leader();
            self.replica(leader).transfer(id(*next));
            self.exchange();
            assert_eq!(self.leader(), *next);
        }
        let leader = self.leader();
        self.append(leader, 1);
        self.exchange();
        self.cut_off.clear();
        self.replica(leader).report_unreachable(id(0));
        for _ in 0..4_000 / TICK_MS {
            self.pass(TICK_MS);
            let (last, ..) = self.replica(leader).last_and_committed();
            let matched = self.replica(leader).matched();
            assert!(matched.iter().all(|(_, index)| *index <= last), "{matched:?} of {last}");
        }
    }
}

/// Deleted records, and retention, move the start of a log into what the others lose. What they have in its place has to come from them.
#[test]
fn a_replica_begins_again_where_its_new_leader_lacks_what_precedes_its_log() {
    for leaders in [&[][..], &[1], &[2], &[1, 2, 1]] {
        let mut group = Group::led_by_first(true);
        group.append(0, 8);
        group.exchange();
        group.replica(0).prepare_close().expect("it is noted");
        group.append(0, 2);
        group.exchange();
        group.delete_before(0, 8);
        group.without_what_precedes(6, leaders);
        let start = group.replica(0).start();
        assert_eq!(start, Start { index: 7, term: 1, offset: 6 }, "{leaders:?}: behind what all have");
        assert_eq!((0..3).map(|node| group.end(node)).collect::<Vec<_>>(), [7, 7, 7], "{leaders:?}");
        assert_eq!(group.lost, [(0, Lost { offset: 6, records: 4 })], "{leaders:?}");
        assert!(group.replicas.iter().flatten().all(|replica| replica.failed().is_none()), "{leaders:?}");
        // As it is at the next start.
        group.open(0, i64::MAX, 0);
        assert_eq!(group.replica(0).start(), start);
        group.pass(2 * VOTE_HOLD_MS);
        let leader = group.leader();
        let matched = group.replica(leader).matched();
        assert!(matched.iter().all(|(_, index)| *index == matched[0].1), "{matched:?}");
    }
}

/// A leader has nothing of the term in which the replica's log began: it is not known what precedes, and the replica gets everything.
#[test]
fn a_replica_begins_without_any_entry_where_its_leader_has_nothing_of_its_term() {
    let mut group = Group::led_by_first(true);
    group.append(0, 6);
    group.exchange();
    group.replica(1).expect_no_leader();
    group.replica(2).expect_no_leader();
    group.replica(1).campaign();
    group.exchange();
    assert_eq!(group.replica(1).role().state, RoleState::Leader);
    group.append(1, 3);
    group.exchange();
    group.replica(0).prepare_close().expect("it is noted");
    group.append(1, 1);
    group.exchange();
    group.delete_before(0, 9);
    assert_eq!(group.replica(0).start().term, group.replica(1).role().term);
    group.without_what_precedes(5, &[]);
    assert_eq!(group.replica(0).start(), Start::default());
    assert_eq!((0..3).map(|node| group.end(node)).collect::<Vec<_>>(), [6, 6, 6]);
    assert_eq!(group.lost, [(0, Lost { offset: 5, records: 5 })]);
    let records = [0, 1].map(|node| read(group.replica(node).log(), 0..6).expect("a read"));
    assert_eq!(records[0], records[1]);
}

/// An append may deny what precedes the log. Behind it, without a term, it is of no leader, and the library would end the process.
#[test]
fn a_leader_that_denies_the_start_of_a_log_is_a_lost_promise_without_caching() {
    for (index, log_term) in [(4, 3), (9, 2), (9, 3), (20, 0)] {
        let mut group = Group::led_by_first(false);
        group.append(0, 8);
        group.exchange();
        group.replica(1).prepare_close().expect("it is noted");
        group.delete_before(1, 8);
        assert_eq!(group.replica(1).start(), Start { index: 9, term: 1, offset: 8 });
        let mut append = message(MessageType::MsgAppend, 0, 1, 3);
        (append.index, append.log_term) = (index, log_term);
        let stepped = group.replica(1).step(append, 3, &[]);
        assert!(
            match log_term {
                0 => matches!(stepped, Err(StepError::Message(MessageError::Impossible(_)))),
                _ => matches!(stepped, Err(StepError::Message(MessageError::LostPromise))),
            },
            "({index}, {log_term}): {stepped:?}"
        );
    }
}

#[test]
fn what_a_leader_has_not_is_not_acknowledged_to_it() {
    for caching in [true, false] {
        let mut group = Group::led_by_first(caching);
        group.append(0, 5);
        group.exchange();
        let (last, term, _) = group.replica(0).last_and_committed();
        let before = group.replica(0).matched();
        let mut answer = message(MessageType::MsgAppendResponse, 1, 0, term);
        answer.index = last + 5;
        group.replica(0).step(answer, 0, &[]).expect("a message");
        assert_eq!(group.replica(0).matched(), before);
        group.cut_off = vec![1, 2];
        group.append(0, 3);
        group.exchange();
        assert_eq!(group.replica(0).last_and_committed().2, last, "no replica has the rest");
    }
}

/// Records that were noted as committed stay noted until it is certain that they are here or gone: it may take more than one start.
#[test]
fn what_is_known_to_be_committed_outlives_another_start() {
    let mut group = Group::led_by_first(true);
    group.append(0, 10);
    group.exchange();
    assert_eq!(group.replica(1).high_watermark_to_note(), Some(10));
    group.cut_off = vec![0];
    group.open(1, 6, 10);
    assert_eq!(group.replica(1).high_watermark_to_note(), None);
    group.open(1, 5, 10);
    group.open(2, 4, 0);
    group.pass(3 * VOTE_HOLD_MS);
    assert_eq!(group.replica(1).role().state, RoleState::Leader, "it has more than the other one");
    assert_eq!(group.lost, [(1, Lost { offset: 5, records: 5 })]);
    assert_eq!(group.replica(1).high_watermark_to_note(), Some(5));
    // What is in the place of the lost records is not known to be committed.
    group.append(1, 7);
    group.exchange();
    group.open(1, 12, 12);
    group.cut_off.clear();
    group.pass(3 * VOTE_HOLD_MS);
    assert_eq!(group.lost[1..], [(0, Lost { offset: 5, records: 5 })]);
    assert_eq!((0..3).map(|node| group.end(node)).collect::<Vec<_>>(), [12, 12, 12]);
}

/// The journal hangs, and with it what says where a segment begins: of what is committed meanwhile the next start knows all the same.
#[test]
fn what_is_committed_while_the_journal_hangs_is_noted() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut group = Group::led_by_first(true);
        group.append(0, 4);
        group.exchange();
        group.hanging = vec![0];
        group.syncs_logs = false;
        group.replica(0).log_mut().close_segment(0).expect("it is closed");
        group.append(0, 4);
        group.exchange();
        assert!(group.replica(0).journal_sync().is_some(), "the mark of the segment waits");
        assert_eq!(group.replica(0).log().ends().high_watermark, 8);
        let noted = group.replica(0).high_watermark_to_note();
        assert_eq!(noted, Some(8));
        // The leader alone has noted it.
        (0..3).for_each(|node| group.lose_power(node, &mut random, if node == 0 { 8 } else { 4 }));
        group.hanging.clear();
        group.pass(3 * VOTE_HOLD_MS);
        let leader = group.leader();
        group.append(leader, 1);
        group.pass(1_000);
        // The last one is new.
        let lost = 8 + 1 - group.end(leader);
        let counted: i64 = group.lost.iter().map(|(_, lost)| lost.records).sum();
        assert_eq!(counted, lost, "seed {seed}: {:?}", group.lost);
    }
}

/// The next start could not say what is lost of a term that the journal does not have durably.
#[test]
fn what_is_committed_in_a_term_that_the_journal_lacks_is_not_noted() {
    let mut group = Group::led_by_first(true);
    group.append(0, 4);
    group.exchange();
    group.hangs_as_leader = Some(1);
    group.replica(0).transfer(id(1));
    group.exchange();
    assert_eq!(group.leader(), 1);
    group.append(1, 3);
    group.exchange();
    let noted = |group: &mut Group, node: usize| group.replica(node).high_watermark_to_note();
    assert_eq!(group.replica(1).log().ends().high_watermark, 7);
    assert_eq!([0, 1, 2].map(|node| noted(&mut group, node)), [Some(7), Some(4), Some(7)]);
    group.hangs_as_leader = None;
    group.hanging.clear();
    group.exchange();
    assert_eq!(noted(&mut group, 1), Some(7));
}

/// Records that were known to be committed are here again, under any leader.
#[test]
fn what_others_have_is_not_lost() {
    let mut group = Group::led_by_first(true);
    group.append(0, 10);
    group.exchange();
    group.open(1, 0, 10);
    group.replicas[0] = None;
    group.pass(3 * VOTE_HOLD_MS);
    assert_eq!(group.replica(2).role().state, RoleState::Leader);
    assert_eq!((group.end(1), group.lost.len()), (10, 0));
    group.open(0, 3, 10);
    group.pass(3 * VOTE_HOLD_MS);
    assert_eq!((group.end(0), group.lost.len()), (10, 0));
}
