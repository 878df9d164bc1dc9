//! Members of a group change, whatever ends a process or the power meanwhile.

use super::*;
use crate::change::MemberChange;
use crate::journal::EntryKind;
use crate::reconcile::{Step, WantedMembers};
use raft::eraftpb::ConfChangeType;

fn id(node: i32) -> ReplicaId {
    ReplicaId::new(node, 1)
}

fn ids(nodes: &[i32]) -> Vec<ReplicaId> {
    nodes.iter().copied().map(id).collect()
}

/// Three nodes with a group, the first of which leads, and `more` without members in theirs.
fn with_new(more: i32, write_caching: bool) -> Vec<Node> {
    with_new_as(more, write_caching, true)
}

/// The same, with commits that followers get at once or not.
fn with_new_as(more: i32, write_caching: bool, broadcast_commit: bool) -> Vec<Node> {
    let start = |node: i32| {
        let voters = if node <= 3 { ids(&[1, 2, 3]) } else { Vec::new() };
        let mut node = Node::new(id(node), voters, 1);
        node.write_caching = write_caching;
        node.broadcast_commit = broadcast_commit;
        node.changes_members = true;
        node.start();
        node
    };
    let mut nodes: Vec<_> = (1..=3 + more).map(start).collect();
    elect(&mut nodes, 0, 0);
    (0..3).for_each(|value| nodes[0].append(0, value));
    exchange(&mut nodes, &[0, 1, 2]);
    nodes
}

/// The node that leads, of those that run.
fn leader(nodes: &mut [Node]) -> Option<usize> {
    let running = nodes.iter_mut().enumerate().filter(|(_, node)| node.running.is_some());
    let mut leading = running.filter_map(|(at, node)| {
        let replica = node.replica(0);
        replica.leads_settled().then(|| (replica.role().term, at))
    });
    let first = leading.next()?;
    Some(leading.fold(first, std::cmp::max).1)
}

/// The leader takes a step, and 100 ms pass.
fn reconcile(nodes: &mut [Node], wanted: &[ReplicaId]) -> Step {
    let step = leader(nodes).map(|at| {
        let step = nodes[at].replica(0).reconcile(&WantedMembers::of_voters(wanted));
        step.expect("it leads")
    });
    pass(nodes, 100);
    step.unwrap_or(Step::Wait)
}

/// Steps until it is done.
fn run(nodes: &mut [Node], wanted: &[ReplicaId]) -> Vec<Step> {
    let mut steps = Vec::new();
    for _ in 0..400 {
        match reconcile(nodes, wanted) {
            Step::Wait => {}
            Step::Done => return steps,
            step => steps.push(step),
        }
    }
    panic!("not done: {steps:?}");
}

/// All replicas that are wanted have the same log, with the first values, and know each other.
fn check(nodes: &mut [Node], wanted: &[ReplicaId], values: usize) {
    pass(nodes, 2_000);
    let members: Vec<_> = (0..nodes.len()).filter(|at| wanted.contains(&nodes[*at].id)).collect();
    let first = nodes[members[0]].content(0);
    assert_eq!(first.len(), values);
    for at in members {
        assert_eq!(nodes[at].content(0), first, "node {}", at + 1);
        let configuration = nodes[at].replica(0).configuration().in_order();
        assert_eq!(configuration, Configuration::of_voters(wanted), "node {}", at + 1);
    }
}

#[test]
fn a_replica_moves_and_has_everything() {
    let mut nodes = with_new(1, false);
    let wanted = ids(&[1, 3, 4]);
    let steps = run(&mut nodes, &wanted);
    assert_eq!(steps.len(), 3, "a learner, a joint configuration and its end: {steps:?}");
    assert_eq!(steps[2], Step::Change(MemberChange::LeaveJoint));
    check(&mut nodes, &wanted, 3);
    // The one that has left is not needed any more, nor the leader.
    nodes[1].kill();
    nodes[0].kill();
    pass(&mut nodes, 6_000);
    let next = leader(&mut nodes).expect("nodes 3 and 4 are a majority");
    nodes[next].append(0, 3);
    exchange(&mut nodes, &[2, 3]);
    assert_eq!(nodes[next].replica(0).log().ends().high_watermark, 4);
}

/// All three replicas move to other nodes, with the leadership.
#[test]
fn a_whole_group_moves_to_other_nodes() {
    let mut nodes = with_new(3, false);
    let wanted = ids(&[4, 5, 6]);
    let steps = run(&mut nodes, &wanted);
    assert!(steps.iter().any(|step| matches!(step, Step::Transfer(to) if wanted.contains(to))), "{steps:?}");
    check(&mut nodes, &wanted, 3);
    (0..3).for_each(|at| nodes[at].kill());
    let at = leader(&mut nodes).expect("a leader");
    nodes[at].append(0, 3);
    check(&mut nodes, &wanted, 4);
}

/// A process or a machine ends after each step, with the leader of that time or with another node, and comes back.
#[test]
fn a_move_survives_an_end_of_each_node_at_each_step() {
    for victim in 0..4 {
        for is_power_cut in [false, true] {
            for after in 0..16 {
                let mut nodes = with_new(1, false);
                let wanted = ids(&[2, 3, 4]);
                for _ in 0..after {
                    reconcile(&mut nodes, &wanted);
                }
                // In the midst of a step.
                if let Some(at) = leader(&mut nodes) {
                    let _ = nodes[at].replica(0).reconcile(&WantedMembers::of_voters(&wanted));
                }
                match is_power_cut {
                    true => nodes[victim].cut_power(after),
                    false => nodes[victim].kill(),
                }
                pass(&mut nodes, 1_000);
                nodes[victim].start();
                run(&mut nodes, &wanted);
                check(&mut nodes, &wanted, 3);
                nodes.iter_mut().for_each(|node| node.replica(0).check());
            }
        }
    }
}

/// Trap 1: the library makes an empty entry of a change that it refuses. It is counted as what it is after a start.
#[test]
fn a_refused_change_is_not_taken_for_the_beginning_of_a_term() {
    let mut nodes = with_new(0, false);
    let leader = nodes[0].replica(0);
    leader.group.propose_change(&MemberChange::AddLearner(id(4))).expect("it leads");
    assert!(!leader.group.may_change_members(), "a leader asks before it proposes another one");
    leader.group.propose_change(&MemberChange::AddLearner(id(5))).expect("it is made empty");
    nodes[0].append(0, 3);
    exchange(&mut nodes, &[0, 1, 2]);
    let kinds = |node: &mut Node| -> Vec<_> {
        node.replica(0).group.index().internal_entries().iter().map(|entry| entry.kind).collect()
    };
    let expected = [EntryKind::NoOp, EntryKind::ConfigurationChangeV2, EntryKind::Data];
    assert!(nodes.iter_mut().all(|node| kinds(node) == expected), "{:?}", kinds(&mut nodes[0]));
    let ends: Vec<_> = nodes.iter_mut().map(|node| node.replica(0).last_and_committed()).collect();
    for node in &mut nodes {
        // The batch behind it is not synced, and the entry is.
        node.cut_power(7);
        node.start();
        let (last, term, _) = node.replica(0).last_and_committed();
        assert_eq!((last, term), (ends[0].0, ends[0].1));
        assert_eq!(node.content(0).len(), 4);
    }
}

/// Trap 2: the library lets a leader lead that has no vote any more, and ends the process with the next entry.
#[test]
fn a_leader_that_was_removed_leads_no_more() {
    let mut nodes = with_new(0, false);
    // No leader takes this step: it hands over first.
    nodes[0].replica(0).group.propose_change(&MemberChange::RemoveLearner(id(1))).expect("it leads");
    exchange(&mut nodes, &[0, 1, 2]);
    assert!(!nodes[0].replica(0).group.is_leader());
    pass(&mut nodes, 6_000);
    let next = leader(&mut nodes).expect("two voters are left");
    assert_ne!(next, 0);
    nodes[next].append(0, 3);
    nodes.remove(0);
    check(&mut nodes, &ids(&[2, 3]), 4);
}

/// Trap 3: the leader that has entered a joint configuration ends before it leaves it.
#[test]
fn the_next_leader_leaves_a_joint_configuration() {
    let mut nodes = with_new(1, false);
    let wanted = ids(&[2, 3, 4]);
    while nodes[0].replica(0).configuration().voters_outgoing.is_empty() {
        reconcile(&mut nodes, &wanted);
    }
    nodes[0].kill();
    pass(&mut nodes, 6_000);
    let next = leader(&mut nodes).expect("both majorities are there");
    assert!(!nodes[next].replica(0).configuration().voters_outgoing.is_empty());
    let steps = run(&mut nodes, &wanted);
    assert_eq!(steps, [Step::Change(MemberChange::LeaveJoint)]);
    check(&mut nodes, &wanted, 3);
}

/// Trap 4: a replica that does not know yet that it votes is asked for its vote (etcd #10998).
#[test]
fn a_learner_gives_its_vote_when_it_is_asked() {
    let mut nodes = with_new(1, false);
    let wanted = ids(&[1, 3, 4]);
    run_until_caught_up(&mut nodes, &wanted);
    nodes[0].replica(0).reconcile(&WantedMembers::of_voters(&wanted)).expect("it leads");
    // Nodes 1 and 3 know it, and nothing has got to node 4.
    let without_new: Vec<_> = nodes[0].drive();
    for (outgoing, group, batches) in without_new.iter().filter(|(outgoing, ..)| outgoing.to != id(4)) {
        deliver(&mut nodes, outgoing, *group, batches);
    }
    nodes[0].kill();
    nodes[1].kill();
    nodes[2].sync();
    assert_eq!(nodes[3].replica(0).configuration().learners, ids(&[4]));
    // It is entered where that is committed, for which node 3 needs the vote of node 2 or 1.
    nodes[1].start();
    pass(&mut nodes, 6_000);
    let next = leader(&mut nodes).expect("nodes 2 and 3 have a majority of the first configuration");
    run(&mut nodes, &wanted);
    nodes[0].start();
    check(&mut nodes, &wanted, 3);
    assert_ne!(next, 3, "a learner does not lead");
    // Now node 4 is needed: with node 3 it elects.
    nodes[0].kill();
    nodes[1].kill();
    pass(&mut nodes, 6_000);
    assert!(leader(&mut nodes).is_some());
}

/// The leader waits for nothing but the second that the new replica has to have caught up for.
fn run_until_caught_up(nodes: &mut [Node], wanted: &[ReplicaId]) {
    for _ in 0..11 {
        reconcile(nodes, wanted);
    }
    assert_eq!(nodes[0].replica(0).configuration().learners.len(), 1);
}

/// A tick passes with all that is said. Journals are synced, and no log is.
fn tick_with_journals_synced(nodes: &mut [Node]) {
    for _ in 0..10 {
        let sent: Vec<_> = nodes.iter_mut().flat_map(Node::drive).collect();
        for node in nodes.iter_mut() {
            let Running { replicas, journal, .. } = node.running();
            journal.lock().sync().expect("the journal is synced");
            replicas.iter_mut().for_each(Replica::persisted);
        }
        sent.into_iter().for_each(|(outgoing, group, bytes)| deliver(nodes, &outgoing, group, &bytes));
    }
    for node in nodes {
        let running = node.running();
        running.now_ms += TICK_MS;
        running.replicas[0].tick(running.now_ms);
    }
}

/// Trap 8: with `write.caching` a power cut takes batches that count, and with them the change that followed them.
#[test]
fn a_change_that_counts_is_not_lost_with_the_batch_before_it() {
    for seed in 0..24 {
        let mut nodes = with_new(1, true);
        let wanted = ids(&[1, 3, 4]);
        run_until_caught_up(&mut nodes, &wanted);
        // No disk has this when the change follows.
        (3..6).for_each(|value| nodes[0].append(0, value));
        exchange(&mut nodes, &[]);
        for _ in 0..400 {
            if !nodes[0].replica(0).configuration().voters_outgoing.is_empty() {
                break;
            }
            nodes[0].replica(0).reconcile(&WantedMembers::of_voters(&wanted)).expect("it leads");
            tick_with_journals_synced(&mut nodes);
        }
        assert!(!nodes[0].replica(0).configuration().voters_outgoing.is_empty());
        let entered = nodes[0].replica(0).last_and_committed().2;
        for node in &mut nodes {
            let had = node.replica(0).group.index().last() >= entered;
            node.cut_power(seed);
            node.start();
            let index = node.replica(0).group.index();
            assert!(!had || index.last() >= entered, "seed {seed}: node {} has lost the change", node.id);
        }
        pass(&mut nodes, 12_000);
        run(&mut nodes, &wanted);
        let first = nodes[0].content(0).len();
        check(&mut nodes, &wanted, first);
    }
}

/// Delivers of what nodes want sent now that of which it is said.
fn turn(nodes: &mut [Node], is_delivered: impl Fn(&Outgoing) -> bool) {
    let sent: Vec<_> = nodes.iter_mut().flat_map(Node::drive).collect();
    for (outgoing, group, bytes) in sent.iter().filter(|(outgoing, ..)| is_delivered(outgoing)) {
        deliver(nodes, outgoing, *group, bytes);
    }
}

/// A follower learns that a joint configuration counts from the entry that ends it, and acknowledges that one. After a power cut it knows
/// the joint configuration at least: with the members before that it could elect beside the new majority.
#[test]
fn a_replica_that_has_the_next_change_decides_by_the_last_one() {
    for seed in 0..8 {
        let mut nodes = with_new_as(1, false, false);
        let wanted = ids(&[1, 3, 4]);
        run_until_caught_up(&mut nodes, &wanted);
        nodes[0].replica(0).reconcile(&WantedMembers::of_voters(&wanted)).expect("it leads");
        let third = |nodes: &mut [Node]| nodes[2].replica(0).configuration().clone();
        for _ in 0..20 {
            if !nodes[0].replica(0).configuration().voters_outgoing.is_empty() {
                break;
            }
            // Node 3 gets the entry, and not that it is committed.
            let last = nodes[0].replica(0).last_and_committed();
            turn(&mut nodes, |one| one.to != id(3) || last.2 < last.0);
            nodes.iter_mut().for_each(Node::sync);
        }
        assert!(!nodes[0].replica(0).configuration().voters_outgoing.is_empty());
        assert!(third(&mut nodes).voters_outgoing.is_empty(), "it does not know yet");
        let before = nodes[2].replica(0).group.index().last();
        let step = nodes[0].replica(0).reconcile(&WantedMembers::of_voters(&wanted)).expect("it leads");
        assert_eq!(step, Step::Change(MemberChange::LeaveJoint));
        // The entry alone gets to node 3, which answers; its journal is not synced again.
        turn(&mut nodes, |one| one.to != id(3) || !one.message.get_entries().is_empty());
        nodes[2].drive();
        assert_eq!(
            nodes[2].replica(0).group.index().last(),
            before + 1,
            "it has the end of the joint configuration"
        );
        nodes[2].cut_power(seed);
        nodes[2].start();
        assert_eq!(nodes[2].replica(0).group.index().last(), before + 1);
        let known = third(&mut nodes);
        assert!(known.voters.contains(&id(4)), "seed {seed}: {known:?}");
        run(&mut nodes, &wanted);
        check(&mut nodes, &wanted, 3);
    }
}

/// Trap 10: what a replica says that was replaced counts no more, however late it comes.
#[test]
fn a_late_answer_or_vote_of_an_earlier_incarnation_does_not_count() {
    let mut nodes = with_new(0, false);
    let next = ReplicaId::new(2, 2);
    let mut wiped = Node::new(next, Vec::new(), 1);
    wiped.changes_members = true;
    wiped.start();
    let old = std::mem::replace(&mut nodes[1], wiped);
    let wanted = [id(1), next, id(3)];
    run(&mut nodes, &wanted);
    check(&mut nodes, &wanted, 3);
    // Node 3 is away, and the new replica does not answer: nothing can be committed.
    nodes[2].kill();
    nodes[1].kill();
    nodes[0].append(0, 3);
    nodes[0].drive();
    nodes[0].sync();
    let (last, term, committed) = nodes[0].replica(0).last_and_committed();
    assert_eq!(last, committed + 1);
    let msg_type = MessageType::MsgAppendResponse;
    let mut answer = Message { msg_type, term, index: last, commit: committed, ..Message::default() };
    (answer.from, answer.to) = (old.id.0, id(1).0);
    nodes[0].replica(0).step(answer, 0, &[]).expect("it may have been one");
    nodes[0].drive();
    assert_eq!(nodes[0].replica(0).last_and_committed().2, committed);
    // It leads no more, and asks for votes.
    pass(&mut nodes, 2_000);
    let replica = nodes[0].replica(0);
    assert!(!replica.leads());
    replica.campaign();
    nodes[0].drive();
    nodes[0].sync();
    for (kind, further) in
        [(MessageType::MsgRequestPreVoteResponse, 1), (MessageType::MsgRequestVoteResponse, 0)]
    {
        let term = nodes[0].replica(0).group.term() + further;
        let mut vote = Message { msg_type: kind, term, ..Message::default() };
        (vote.from, vote.to) = (old.id.0, id(1).0);
        nodes[0].replica(0).step(vote, 0, &[]).expect("it may have been one");
        nodes[0].drive();
        assert!(!nodes[0].replica(0).leads());
        assert_eq!(nodes[0].replica(0).role().state, RoleState::Candidate, "it has no majority");
    }
}

/// Whatever changes a leader has committed, no replica ends the process: it takes part with members that make sense, or in nothing.
#[test]
fn no_change_of_members_ends_the_process() {
    let mut random = Random::new(7);
    let (mut applied, mut refused) = (0, 0);
    for _ in 0..300 {
        let mut nodes = with_new(0, false);
        for _ in 0..4 {
            let base = nodes[1].replica(0).configuration().clone();
            let mut some = || id(random.below(5) as i32 + 1);
            let (one, two) = (some(), some());
            let change = match random.below(4) {
                0 => MemberChange::AddLearner(one),
                1 => MemberChange::RemoveLearner(one),
                2 => MemberChange::EnterJoint { add: vec![one], remove: vec![two] },
                _ => MemberChange::LeaveJoint,
            };
            let Some(stepped) = append_change(&mut nodes, change.encode(&base.in_order())) else { break };
            assert!(!matches!(stepped, Err(StepError::Message(_))), "it makes sense by itself: {stepped:?}");
            match nodes[1].replica(0).failed() {
                Some(_) => refused += 1,
                None => applied += 1,
            }
            nodes[1].replica(0).check();
        }
    }
    assert!(applied > 100 && refused > 100, "{applied} applied, {refused} refused");
}

/// The first node says to the second that a change is its next entry, and committed; `None`: that one is out of service.
fn append_change(nodes: &mut [Node], data: Vec<u8>) -> Option<Result<(), StepError>> {
    if nodes[1].replica(0).failed().is_some() {
        return None;
    }
    let (index, log_term, _) = nodes[1].replica(0).last_and_committed();
    let term = nodes[1].replica(0).group.term();
    let msg_type = MessageType::MsgAppend;
    let mut message = Message { msg_type, term, index, log_term, commit: index + 1, ..Message::default() };
    (message.from, message.to) = (id(1).0, id(2).0);
    let entry_type = raft::eraftpb::EntryType::EntryConfChangeV2;
    let entry = Entry { index: index + 1, term, entry_type, data: data.into(), ..Entry::default() };
    message.set_entries(vec![entry].into());
    let offset = nodes[1].replica(0).log().ends().log_end;
    let stepped = nodes[1].replica(0).step(message, offset, &[]);
    // It is committed when the disk has it.
    let Running { replicas, journal, .. } = nodes[1].running();
    journal.lock().sync().expect("the journal is synced");
    replicas[0].persisted();
    let _ = replicas[0].drive();
    Some(stepped)
}

/// Changes of members are refused where not all nodes may know them, and where they make no sense.
#[test]
fn changes_are_taken_where_all_nodes_know_them() {
    let append = |nodes: &mut [Node], data: Vec<u8>| append_change(nodes, data).expect("it is in service");
    let change = MemberChange::AddLearner(id(4)).encode(&Configuration::of_voters(&ids(&[1, 2, 3])));
    let mut old = nodes(3, 1);
    elect(&mut old, 0, 0);
    let ends = old[1].replica(0).last_and_committed();
    append(&mut old, change.clone()).expect("it may be able to take it soon");
    assert_eq!(old[1].replica(0).last_and_committed(), ends, "it was taken");
    let refused = append(&mut old, vec![1, 2, 3]);
    assert!(matches!(refused, Err(StepError::Message(MessageError::Impossible(_)))), "{refused:?}");
    // The group of the metadata has it from the leader that members may change.
    old[1].replica(0).believe_changes();
    append(&mut old, change.clone()).expect("a change");
    assert_eq!(old[1].replica(0).last_and_committed().0, ends.0 + 1, "it was not taken");
    let mut new = with_new(0, false);
    let refused = append(&mut new, vec![1, 2, 3]);
    assert!(matches!(refused, Err(StepError::Message(MessageError::Impossible(_)))), "{refused:?}");
    let (last, ..) = new[1].replica(0).last_and_committed();
    append(&mut new, change.clone()).expect("a change");
    assert_eq!(new[1].replica(0).last_and_committed().0, last + 1, "it was not taken");
    let decoded = crate::change::decode(&change).expect("a change");
    assert_eq!(decoded.change.get_changes()[0].get_change_type(), ConfChangeType::AddLearnerNode);
}

/// The index that is applied is noted at a stop in order alone. A snapshot from before a change must not name the members behind it: who begins there
/// could not apply that change.
#[test]
fn the_members_at_an_earlier_entry_are_known_again_after_a_kill() {
    let mut nodes = with_new(1, false);
    let wanted = ids(&[1, 2, 3, 4]);
    let (before, ..) = nodes[0].replica(0).last_and_committed();
    while reconcile(&mut nodes, &wanted) != Step::Change(MemberChange::AddLearner(id(4))) {}
    pass(&mut nodes, 1_000);
    let founders = Configuration::of_voters(&ids(&[1, 2, 3]));
    for node in &mut nodes[..3] {
        assert_eq!(node.replica(0).configuration_at(before), founders);
        node.kill();
        node.start();
        let replica = node.replica(0);
        assert_eq!(replica.configuration().learners, ids(&[4]), "the journal has noted it");
        assert_eq!(replica.configuration_at(before), founders);
        assert!(!replica.are_all_at(before));
    }
}
