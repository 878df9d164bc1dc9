//! Forged messages, from an attacker that has passed for a node: frames that can be read, to a replica in any role.

use super::*;
use crate::link::Frame as LinkFrame;
use crate::store::{is_stub, snapshot_of};
use bytes::Bytes;
use raft::StateRole;
use raft::eraftpb::EntryType;
use std::collections::{BTreeMap, BTreeSet};

/// Seeds of messages, and messages of each.
const SEEDS: u64 = 400;
const MESSAGES: usize = 80;
/// Voters of the groups that get forged messages, and those that elect a leader.
const VOTERS: i32 = 5;
const MAJORITY: usize = 3;
/// The replica that gets them, by its place.
const TARGET: usize = 0;

/// The content that a replica gets of a link.
#[derive(Debug, Clone)]
struct Said {
    message: Message,
    offset: i64,
    batches: Vec<u8>,
}

impl Said {
    /// Without batches.
    fn plain(message: Message) -> Said {
        Said { message, offset: 0, batches: Vec::new() }
    }

    /// The same after it has been a frame; `None`: it cannot be one, or no one reads it.
    fn over_a_link(self) -> Option<Said> {
        let (mut bytes, from, to) = (Vec::new(), self.message.from, self.message.to);
        let is_append = self.message.get_msg_type() == MessageType::MsgAppend;
        if is_append {
            link::append_head(1, &self.message, self.offset, self.batches.len() as u32, &mut bytes);
            bytes.extend_from_slice(&self.batches);
        }
        if !is_append && !link::message(1, &self.message, &mut bytes) {
            return None;
        }
        let (frame, _) = link::decode(&bytes, READ_BYTES).ok()??;
        let mut said = match frame {
            LinkFrame::Message { message, .. } => Said::plain(message),
            LinkFrame::Append { message, offset, batches, .. } => {
                Said { message, offset, batches: batches.to_vec() }
            }
            _ => panic!("another frame than was written"),
        };
        (said.message.from, said.message.to) = (from, to);
        Some(said)
    }
}

fn say(msg_type: MessageType, from: i32, term: u64) -> Message {
    let (from, to) = (ReplicaId::new(from, 1).0, ReplicaId::new(TARGET as i32 + 1, 1).0);
    Message { msg_type, from, to, term, ..Message::default() }
}

/// A batch as it is in a log, at an offset and under a term.
fn batch(offset: i64, term: u64) -> Vec<u8> {
    let mut batch = BatchBuilder::new(BatchOptions::default());
    batch.append(1, None, Some(b"forged"), &[]).expect("a small record");
    let mut bytes = batch.build().expect("a batch");
    bytes[..8].copy_from_slice(&offset.to_be_bytes());
    bytes[12..16].copy_from_slice(&(term as u32).to_be_bytes());
    bytes
}

/// Three nodes that have what the leader among them, the one at a place, has appended.
fn led_by(node: usize) -> Vec<Node> {
    let mut nodes = nodes(3, 1);
    elect(&mut nodes, node, 0);
    (0..3).for_each(|value| nodes[node].append(0, value));
    exchange(&mut nodes, &[0, 1, 2]);
    nodes
}

/// A replica that has asked for votes, which have not come; its own is durable.
fn candidate() -> Vec<Node> {
    let mut nodes = led_by(1);
    make_candidate(&mut nodes[TARGET]);
    nodes[TARGET].sync();
    nodes[TARGET].drive();
    nodes
}

/// It knows that it would get the votes of a majority.
fn make_candidate(node: &mut Node) {
    let replica = node.replica(0);
    let (term, voters) = (replica.role().term, replica.configuration().voters.clone());
    replica.expect_no_leader();
    replica.campaign();
    for voter in &voters[1..] {
        let granted = say(MessageType::MsgRequestPreVoteResponse, voter.node(), term + 1);
        replica.step(granted, 0, &[]).expect("an honest answer");
    }
    assert_eq!(replica.group.raft().state, StateRole::Candidate);
}

/// The state that no message may change that is refused.
fn state_of(node: &mut Node) -> (Role, (u64, u64, u64), u64) {
    let replica = node.replica(0);
    (replica.role(), replica.last_and_committed(), replica.group.raft().vote)
}

/// It is refused by name, nothing changes, and nothing is said.
#[track_caller]
fn refuse(node: &mut Node, said: Said) -> MessageError {
    let said = said.over_a_link().expect("a link carries it");
    let before = state_of(node);
    let stepped = node.replica(0).step(said.message.clone(), said.offset, &said.batches);
    let Err(StepError::Message(error)) = stepped else { panic!("{stepped:?}: {said:?}") };
    node.sync();
    let said_then = node.drive();
    assert!(said_then.is_empty(), "{said_then:?}");
    assert_eq!(state_of(node), before, "{said:?}");
    assert_ne!(error, MessageError::LostPromise, "the replica would be out of service");
    error
}

/// The library takes a message without a term for one of its own, and looks at nothing of it.
#[test]
fn a_message_without_a_term_is_refused_by_every_replica() {
    let groups: [fn() -> Vec<Node>; 4] = [|| nodes(3, 1), || led_by(1), candidate, || led_by(TARGET)];
    for group in groups {
        let mut nodes = group();
        let node = &mut nodes[TARGET];
        let last = node.replica(0).last_and_committed().0;
        for kind in link::TYPES {
            let mut message = Message { commit: last + 100, index: last + 100, ..say(kind, 2, 0) };
            if matches!(kind, MessageType::MsgReadIndex | MessageType::MsgReadIndexResp) {
                message
                    .set_entries(vec![Entry { data: Bytes::from_static(b"1"), ..Entry::default() }].into());
            }
            refuse(node, Said::plain(message.clone()));
            (message.commit, message.index) = (0, 0);
            refuse(node, Said::plain(message));
        }
        let heartbeat = Message { commit: u64::MAX, ..say(MessageType::MsgHeartbeat, 2, 0) };
        refuse(node, Said::plain(heartbeat));
    }
}

/// Behind its end the library finds the term 0 in a log, and takes all for committed that is said to be.
#[test]
fn an_append_behind_the_log_without_a_term_is_refused() {
    let mut nodes = led_by(1);
    let node = &mut nodes[TARGET];
    let (term, last) = (node.replica(0).role().term, node.replica(0).last_and_committed().0);
    let append = |index, log_term| Message {
        index,
        log_term,
        commit: last + 50,
        ..say(MessageType::MsgAppend, 2, term)
    };
    refuse(node, Said::plain(append(last + 10, 0)));
    refuse(node, Said::plain(append(0, term)));
    let with = |mut message: Message, entries: Vec<Entry>| {
        message.set_entries(entries.into());
        let (offset, mut batches) = (3, Vec::new());
        let stubs = message.get_entries().iter().filter(|entry| is_stub(entry));
        stubs.zip(offset..).for_each(|(entry, offset)| batches.extend(batch(offset, entry.term)));
        Said { message, offset, batches }
    };
    let noop = |index, term| Entry { index, term, ..Entry::default() };
    for entries in [
        vec![noop(last + 1, 0)],
        vec![stub(last + 1, 0)],
        // A term begins with a no-op, and none is later than the leader's.
        vec![noop(last + 1, term + 1)],
        vec![noop(last + 1, term), noop(last + 2, term - 1)],
        vec![stub(last + 1, term), stub(last + 2, term - 1)],
    ] {
        refuse(node, with(append(last, term), entries));
    }
    let append = Message { term: term + 1, ..append(last, term) };
    refuse(node, with(append.clone(), vec![stub(last + 1, term + 1)]));
    let mut change = noop(last + 1, term);
    (change.entry_type, change.data) = (EntryType::EntryConfChangeV2, Bytes::from_static(b"1"));
    refuse(node, with(append.clone(), vec![change]));
    // What the others have is taken.
    let Said { message, offset, batches } =
        with(append, vec![stub(last + 1, term), noop(last + 2, term + 1), stub(last + 3, term + 1)]);
    node.replica(0).step(message, offset, &batches).expect("a leader's entries");
    assert_eq!(node.replica(0).last_and_committed(), (last + 3, term + 1, last + 3));
}

/// A follower would hand it on to its leader, as the library sees it, and the library does not expect a term in it.
#[test]
fn what_a_replica_says_to_itself_alone_is_refused() {
    for group in [led_by(1), candidate(), led_by(TARGET)] {
        let mut nodes = group;
        let node = &mut nodes[TARGET];
        let term = node.replica(0).role().term;
        for term in [term, term + 1] {
            let kind = MessageType::MsgTransferLeader;
            assert_eq!(refuse(node, Said::plain(say(kind, 2, term))), MessageError::Type);
            for kind in [MessageType::MsgReadIndex, MessageType::MsgReadIndexResp] {
                let mut message = say(kind, 2, term);
                message
                    .set_entries(vec![Entry { data: Bytes::from_static(b"1"), ..Entry::default() }].into());
                assert_eq!(refuse(node, Said::plain(message)), MessageError::Type);
            }
        }
    }
}

/// It would be followed, get votes, or put the replica out of service by what it counts on.
#[test]
fn who_is_not_in_the_group_has_no_say_in_it() {
    for group in [led_by(1), candidate(), led_by(TARGET)] {
        let mut nodes = group;
        let node = &mut nodes[TARGET];
        let (term, last) = (node.replica(0).role().term, node.replica(0).last_and_committed().0);
        let own = node.id;
        for from in [ReplicaId::new(2, 99), ReplicaId::new(9, 1), own] {
            let of = |msg_type| Message { from: from.0, ..say(msg_type, 2, term + 1) };
            let vote = Message { index: last + 9, log_term: term, ..of(MessageType::MsgRequestVote) };
            let forced = Message { context: Bytes::from_static(b"CampaignTransfer"), ..vote.clone() };
            let heartbeat = Message { commit: last + 9, ..of(MessageType::MsgHeartbeat) };
            for message in [vote, forced, heartbeat, of(MessageType::MsgTimeoutNow)] {
                assert_eq!(refuse(node, Said::plain(message)), MessageError::Sender(from));
            }
        }
    }
}

/// The library refuses the request, and has no term for its answer.
#[test]
fn a_candidate_with_a_priority_is_refused() {
    let mut nodes = nodes(3, 1);
    let request = Message { priority: -1, ..say(MessageType::MsgRequestPreVote, 2, 1) };
    refuse(&mut nodes[TARGET], Said::plain(request));
}

/// Arithmetic that overflows ends the process, too.
#[test]
fn numbers_beyond_all_that_there_can_be_are_refused() {
    let mut nodes = led_by(TARGET);
    let node = &mut nodes[TARGET];
    let (term, last) = (node.replica(0).role().term, node.replica(0).last_and_committed().0);
    node.replica(0).report_unreachable(ReplicaId::new(2, 1));
    let answer = Message { reject: true, index: last, ..say(MessageType::MsgAppendResponse, 2, term) };
    refuse(node, Said::plain(Message { reject_hint: u64::MAX, ..answer.clone() }));
    refuse(node, Said::plain(Message { index: u64::MAX, ..answer.clone() }));
    refuse(node, Said::plain(Message { request_snapshot: 1, ..answer }));
    let append = Message { index: u64::MAX, log_term: term, ..say(MessageType::MsgAppend, 2, term + 1) };
    refuse(node, Said::plain(append.clone()));
    refuse(node, Said { message: Message { index: last, ..append }, offset: i64::MAX, batches: Vec::new() });
}

/// The library would lead with entries that are not durable, which it does not expect.
#[test]
fn a_vote_that_comes_before_it_was_asked_for_is_refused() {
    let mut nodes = led_by(1);
    nodes[1].append(0, 3);
    exchange(&mut nodes, &[1, 2]);
    let node = &mut nodes[TARGET];
    make_candidate(node);
    let term = node.replica(0).group.term();
    let granted = |from| say(MessageType::MsgRequestVoteResponse, from, term);
    let stepped = node.replica(0).step(granted(2), 0, &[]);
    assert!(matches!(stepped, Err(StepError::Message(MessageError::Impossible(_)))), "{stepped:?}");
    assert_eq!(node.replica(0).role().state, RoleState::Candidate);
    node.sync();
    let asked = node
        .drive()
        .iter()
        .filter(|(outgoing, ..)| {
            (outgoing.message.get_msg_type(), outgoing.message.term) == (MessageType::MsgRequestVote, term)
        })
        .count();
    assert_eq!(asked, 2);
    node.replica(0).step(granted(2), 0, &[]).expect("it was asked for");
    assert_eq!(node.replica(0).role(), Role { term, state: RoleState::Leader });
}

/// One of two leaders in a term is none, and this replica has its votes.
#[test]
fn another_leader_in_the_term_of_a_leader_is_refused() {
    for write_caching in [false, true] {
        let mut nodes = led_by(TARGET);
        let node = &mut nodes[TARGET];
        node.replica(0).set_write_caching(write_caching);
        node.sync();
        node.drive();
        let (term, last) = (node.replica(0).role().term, node.replica(0).last_and_committed().0);
        let mut append = Message { index: last - 1, log_term: term, ..say(MessageType::MsgAppend, 2, term) };
        append.set_entries(vec![Entry { index: last, term, ..Entry::default() }].into());
        refuse(node, Said { message: append, offset: 2, batches: Vec::new() });
        refuse(node, Said::plain(say(MessageType::MsgHeartbeat, 2, term)));
    }
}

/// A replica that took it over would count votes of others than its voters. Members may have changed, and its journal have no frames for
/// that yet.
#[test]
fn a_snapshot_of_a_group_with_other_members_is_not_taken() {
    let mut nodes = led_by(1);
    let node = &mut nodes[TARGET];
    let term = node.replica(0).role().term;
    let offer = |index, start_term, voters: &[ReplicaId]| {
        let start = Start { index, term: start_term, offset: 50 };
        let configuration = Configuration::of_voters(voters);
        let mut message = say(MessageType::MsgSnapshot, 2, term);
        message.set_snapshot(snapshot_of(&SnapshotOffer { start, configuration, len: 10, crc: 7 }));
        Said::plain(message)
    };
    let voters = node.voters.clone();
    for others in [&[node_id(1), node_id(9)], &voters[..2]] {
        node.replica(0)
            .step(offer(50, term, others).message, 0, &[])
            .expect("it may be able to take it soon");
        assert!(node.replica(0).drive().expect("it is in service").offered.is_none());
    }
    refuse(node, offer(50, term + 1, &voters));
    refuse(node, offer(u64::MAX, term, &voters));
    let sound = offer(50, term, &[voters[0], voters[1], voters[2]]);
    node.replica(0).step(sound.message, 0, &[]).expect("it can be");
    assert!(node.replica(0).drive().expect("it is in service").offered.is_some());
}

fn node_id(node: i32) -> ReplicaId {
    ReplicaId::new(node, 1)
}

/// The acts of a replica that it may not take back.
#[derive(Default)]
struct Done {
    term: u64,
    /// Whom it has voted for, by term: as the library has it, as the journal has it, and as it was said.
    votes: BTreeMap<u64, u64>,
    /// Whose votes it has got, by term.
    granted: BTreeMap<u64, BTreeSet<u64>>,
    led: BTreeSet<u64>,
}

impl Done {
    fn note_vote(&mut self, term: u64, candidate: u64) {
        let first = *self.votes.entry(term).or_insert(candidate);
        assert_eq!(first, candidate, "a second vote in term {term}");
    }

    fn look(&mut self, node: &mut Node) {
        let group = node.replica(0).group();
        let written = node.running().journal.lock().group(group).map(|state| state.vote).unwrap_or_default();
        let raft = node.replica(0).group.raft();
        let (term, vote, log) = (raft.term, raft.vote, &raft.raft_log);
        assert!(term >= self.term, "from term {} to {term}", self.term);
        assert!(log.committed <= log.last_index(), "committed {} of {}", log.committed, log.last_index());
        self.term = term;
        if vote != 0 {
            self.note_vote(term, vote);
        }
        if let Some(candidate) = written.candidate {
            self.note_vote(written.term, candidate.0);
        }
        let role = node.replica(0).role();
        if role.state == RoleState::Leader && self.led.insert(role.term) {
            let others = self.granted.get(&role.term).map_or(0, BTreeSet::len);
            assert!(1 + others >= MAJORITY, "it leads in term {} with {others} votes of others", role.term);
        }
        for (outgoing, ..) in node.drive() {
            let message = outgoing.message;
            if message.get_msg_type() == MessageType::MsgRequestVoteResponse && !message.reject {
                self.note_vote(message.term, message.to);
            }
        }
    }
}

/// A group of which one replica gets what follows, in a role that the seed chooses.
fn any_group(seed: u64, done: &mut Done) -> Vec<Node> {
    let mut nodes = nodes(VOTERS, 1);
    let all: Vec<_> = (0..VOTERS as usize).collect();
    let leader = match seed % 4 {
        0 => return nodes,
        1 => TARGET,
        _ => 1,
    };
    elect(&mut nodes, leader, 0);
    (0..4).for_each(|value| nodes[leader].append(0, value));
    // With a tail that is not durable, or without.
    exchange(&mut nodes, if seed % 8 < 4 { &all[..] } else { &all[1..] });
    if seed % 4 == 3 {
        make_candidate(&mut nodes[TARGET]);
    }
    if seed % 8 == 3 {
        // It has asked for votes.
        nodes[TARGET].sync();
    }
    let role = nodes[TARGET].replica(0).role();
    if role.state == RoleState::Leader {
        done.led.insert(role.term);
    }
    nodes[TARGET].replica(0).set_write_caching(seed % 16 < 8);
    nodes
}

fn one_of<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize]
}

/// Entries behind an index, with the batches that they stand for; some as a leader has them.
fn any_entries(random: &mut Random, message: &mut Message, offset: i64) -> Vec<u8> {
    let (mut entries, mut batches, mut term) = (Vec::new(), Vec::new(), message.log_term);
    let (mut index, mut offset) = (message.index, offset);
    for _ in 0..random.below(4) {
        index = index.wrapping_add(1);
        let next = one_of(random, &[term, term, term, message.term, message.term, 0, message.term + 1]);
        let is_noop = next != term && random.chance(80);
        term = next;
        let data = Bytes::from_static(b"a");
        let entry = match random.below(10) {
            _ if is_noop => Entry { index, term, ..Entry::default() },
            0 => Entry { index, term, ..Entry::default() },
            1 => Entry { index, term, data, ..Entry::default() },
            2 => Entry { index, term, data, entry_type: EntryType::EntryConfChange, ..Entry::default() },
            _ => {
                batches.extend(batch(offset, term));
                offset = offset.wrapping_add(1);
                stub(index, term)
            }
        };
        entries.push(entry);
    }
    message.set_entries(entries.into());
    batches
}

fn any_offer(random: &mut Random, index: u64, term: u64) -> SnapshotOffer {
    let others = [ReplicaId::new(1, 1), ReplicaId::new(9, 1)];
    let same: Vec<_> = (1..=VOTERS).map(node_id).collect();
    let configuration = Configuration::of_voters(if random.chance(50) { &others } else { &same });
    SnapshotOffer { start: Start { index, term, offset: 7 }, configuration, len: 10, crc: 7 }
}

/// Any message, of numbers that mean something to the replica more often than not.
fn any_message(random: &mut Random, replica: &Replica) -> Said {
    let (raft, index) = (replica.group.raft(), replica.group.index());
    let (term, last, committed) = (raft.term, index.last(), raft.raft_log.committed);
    let terms = [0, term.saturating_sub(1), term, term, term, term + 1, term + 2];
    let indexes = [0, 1, committed, committed + 1, last.saturating_sub(1), last, last, last + 1, last + 9];
    let large = [1 << 62, u64::MAX];
    let number = |random: &mut Random| match random.chance(4) {
        true => one_of(random, &large),
        false => one_of(random, &indexes),
    };
    let kind = match random.below(16) {
        at if (at as usize) < link::TYPES.len() => link::TYPES[at as usize],
        12 => MessageType::MsgSnapshot,
        _ => MessageType::MsgAppend,
    };
    let mut message = say(kind, 1 + random.below(VOTERS as u64) as i32, one_of(random, &terms));
    if random.chance(10) {
        message.from = one_of(random, &[ReplicaId::new(2, 99).0, ReplicaId::new(9, 1).0]);
    }
    (message.index, message.commit) = (number(random), number(random));
    let known = index.term(message.index).filter(|_| message.index <= last);
    message.log_term = match known {
        Some(known) if random.chance(70) => known,
        _ => one_of(random, &terms),
    };
    (message.commit_term, message.reject_hint) = (one_of(random, &terms), number(random));
    message.reject = random.chance(40);
    message.request_snapshot = if random.chance(5) { number(random) } else { 0 };
    message.priority = if random.chance(5) { one_of(random, &[-1, 1]) } else { 0 };
    let contexts: [&'static [u8]; 5] = [b"", b"", b"", b"CampaignTransfer", &[0; 8]];
    message.context = Bytes::from_static(one_of(random, &contexts));
    let behind = index.offset_behind(message.index, replica.log()).expect("the log can be read");
    let offset = behind.filter(|_| random.chance(90)).unwrap_or(one_of(random, &[0, 9, i64::MAX]));
    let mut batches = Vec::new();
    match kind {
        MessageType::MsgAppend => batches = any_entries(random, &mut message, offset),
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => {
            message.set_entries(vec![Entry { data: Bytes::from_static(b"1"), ..Entry::default() }].into());
        }
        MessageType::MsgSnapshot => {
            let (index, term) = (number(random).max(1), one_of(random, &terms).max(1));
            message.set_snapshot(snapshot_of(&any_offer(random, index, term)));
        }
        _ => {}
    }
    Said { message, offset, batches }
}

/// The answer to a request for a vote, as a voter may give it.
fn any_vote(random: &mut Random, term: u64) -> Said {
    let from = 1 + random.below(VOTERS as u64) as i32;
    let reject = random.chance(20);
    Said::plain(Message { reject, ..say(MessageType::MsgRequestVoteResponse, from, term) })
}

/// Whatever a peer says: no panic, no step back, no second vote, no leader without its votes, nothing committed that is not there.
#[test]
fn no_forged_message_has_a_replica_break_its_word() {
    let (mut taken, mut refused, mut appended, mut elected) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let (mut random, mut done) = (Random::new(seed), Done::default());
        let mut nodes = any_group(seed, &mut done);
        let node = &mut nodes[TARGET];
        done.look(node);
        let led_before = done.led.len();
        for _ in 0..MESSAGES {
            match random.below(12) {
                0 => node.sync(),
                1 => {
                    let running = node.running();
                    running.now_ms += TICK_MS * random.below(50);
                    let now_ms = running.now_ms;
                    node.replica(0).tick(now_ms);
                }
                2 => {
                    node.replica(0).expect_no_leader();
                    node.replica(0).campaign();
                }
                _ => {
                    let replica = node.replica(0);
                    let said = match replica.group.raft().state == StateRole::Candidate && random.chance(50) {
                        true => any_vote(&mut random, replica.group.term()),
                        false => any_message(&mut random, replica),
                    };
                    let Some(said) = said.over_a_link() else { continue };
                    let raft = node.replica(0).group.raft();
                    let (asks_in, last) = (
                        (raft.state == StateRole::Candidate).then_some(raft.term),
                        raft.raft_log.last_index(),
                    );
                    let message = said.message.clone();
                    match node.replica(0).step(said.message, said.offset, &said.batches) {
                        Ok(()) => taken += 1,
                        Err(StepError::Message(_)) => {
                            refused += 1;
                            continue;
                        }
                        // A batch or an offset that does not fit its log: it is out of service, and says nothing any more.
                        Err(StepError::Replica(_)) => break,
                    }
                    let is_vote =
                        message.get_msg_type() == MessageType::MsgRequestVoteResponse && !message.reject;
                    let voter =
                        node.voters.iter().find(|voter| voter.0 == message.from && **voter != node.id);
                    if let Some(voter) = voter.filter(|_| is_vote && asks_in == Some(message.term)) {
                        done.granted.entry(message.term).or_default().insert(voter.0);
                    }
                    appended += u64::from(node.replica(0).last_and_committed().0 > last);
                }
            }
            done.look(node);
        }
        elected += done.led.len() - led_before;
    }
    println!(
        "{taken} taken, {refused} refused, {appended} with entries that were new, {elected} elections won"
    );
    assert!(taken > 0 && refused > 0 && appended > 0 && elected > 0);
}
