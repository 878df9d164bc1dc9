//! Tests of moves of replicas between nodes: AlterPartitionReassignments and ListPartitionReassignments in a cluster, the reports of
//! leaders, and replicas of lost disks.

use std::borrow::Cow;

use mainstem_records::LeaderEpoch;
use mainstem_wire::Uuid;
use mainstem_wire::messages::alter_partition_reassignments_request::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use mainstem_wire::messages::list_partition_reassignments_request::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsTopics,
};
use mainstem_wire::metadata_frame::MetadataRecord;

use super::session::*;
use super::*;

const NOTHING_MOVES: &str = "NO_REASSIGNMENT_IN_PROGRESS: No partition reassignment is in progress.";

/// The view of node 1 of a cluster that begins at this level.
fn view_of_cluster(level: i16) -> NodeView {
    let lines = "process.roles=broker,controller\nnode.id=1\n\
                 controller.quorum.voters=1@127.0.0.1:19091,2@127.0.0.1:19092,3@127.0.0.1:19093\n\
                 listeners=PLAINTEXT://127.0.0.1:9091,CONTROLLER://127.0.0.1:19091\n\
                 controller.listener.names=CONTROLLER\n";
    view(lines).with_mainstem_version(2, level)
}

/// The log directory of a node.
fn dir(node: i32) -> Uuid {
    Uuid::from_u128(0xd000 + u128::try_from(node).expect("not negative"))
}

/// Five nodes, of which node 4 has a second log directory, and the topics `a` on nodes 1, 2 and 3, and `one` on node 1.
pub(super) fn cluster(level: i16) -> Session {
    let mut session = Session::under(view_of_cluster(level));
    for node_id in 1..=5 {
        let dirs = [dir(node_id), OTHER_DIR];
        let dirs = if node_id == 4 { &dirs[..] } else { &dirs[..1] };
        let features = session.view.feature_ranges();
        session.start(&NodeStart { node_id, features, ..node_start(1, dirs, &[]) });
    }
    assert_eq!(session.create(assigned("a", &[(0, &[1, 2, 3])])), "ok 1x3");
    assert_eq!(session.create(assigned("one", &[(0, &[1])])), "ok 1x1");
    session.commit_all();
    session
}

impl Session {
    fn partition(&self, topic: &str) -> &PartitionImage {
        &self.machine.image().topic(topic).expect("it exists").partitions[0]
    }

    /// Asks for other replicas of the first partition of `a`.
    pub(super) fn move_to(&mut self, replicas: &[i32]) -> String {
        let answer = self.reassign(true, "a", 0, Some(replicas));
        self.commit_all();
        answer
    }

    pub(super) fn cancel(&mut self) -> String {
        let answer = self.reassign(true, "a", 0, None);
        self.commit_all();
        answer
    }

    /// Appends a decision and commits it; returns the number of its records.
    pub(super) fn done(&mut self, decision: Decision<()>) -> usize {
        let records = decision.records.len();
        self.append(decision);
        self.commit_all();
        records
    }

    /// The report that the first partition of `a` is settled at its present version.
    fn settled_note(&self, leader: i32, leader_epoch: i32) -> SettledNote {
        SettledNote {
            topic_id: self.id("a"),
            partition: 0,
            leader,
            leader_epoch: LeaderEpoch::new(leader_epoch),
            version: self.partition("a").wanted_version(),
        }
    }

    pub(super) fn settle(&mut self, leader: i32, leader_epoch: i32) -> usize {
        let note = self.settled_note(leader, leader_epoch);
        self.note(&note)
    }

    fn note(&mut self, note: &SettledNote) -> usize {
        let decision = self.machine.note_settled(&self.view, std::slice::from_ref(note));
        self.done(decision)
    }

    pub(super) fn lead(&mut self, leader: i32, leader_epoch: i32, isr: &[i32]) -> usize {
        let leader_epoch = LeaderEpoch::new(leader_epoch);
        let note =
            LeaderNote { topic_id: self.id("a"), partition: 0, leader, leader_epoch, isr: isr.to_vec() };
        let decision = self.machine.note_leaders(&self.view, &[note]);
        self.done(decision)
    }

    pub(super) fn lose_disk(&mut self, node: i32) -> usize {
        let lost = ["a", "one"].map(|topic| self.lost(topic, node));
        let decision = self.machine.replace_replicas(&self.view, node, &lost);
        self.done(decision)
    }

    /// The replica of a node of the first partition of a topic, as a lost one.
    fn lost(&self, topic: &str, node: i32) -> LostReplica {
        let topic = self.machine.image().topic(topic).expect("a topic");
        let incarnation = topic.partitions[0].incarnation(node).unwrap_or_default();
        LostReplica { topic_id: topic.id, partition: 0, incarnation }
    }

    fn list(&self, topics: Option<&[(&'static str, &[i32])]>) -> Vec<String> {
        let topics = topics.map(|topics| {
            let topic = |(name, partitions): &(&'static str, &[i32])| ListPartitionReassignmentsTopics {
                name: Cow::Borrowed(*name),
                partition_indexes: partitions.to_vec(),
                ..Default::default()
            };
            topics.iter().map(topic).collect()
        });
        let request = ListPartitionReassignmentsRequest { topics, ..Default::default() };
        let response = self.machine.image().list_reassignments(&request);
        assert_eq!((response.error_code, response.error_message), (0, None));
        let listed = response.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|one| {
                let (name, number) = (&topic.name, one.partition_index);
                let (adding, removing) = (&one.adding_replicas, &one.removing_replicas);
                format!("{name}-{number} {:?} +{adding:?} -{removing:?}", one.replicas)
            })
        });
        listed.collect()
    }

    /// Checks what the metadata say of the first partition of `a`: node and incarnation of each replica, with `+` and `-` before those that are
    /// added and removed, the replicas before the move, and the version and settled epoch.
    #[track_caller]
    fn assert_is(&self, expected: &str) {
        check_copies(self);
        let partition = self.partition("a");
        let replica = |node: &i32| {
            let sign = match (partition.adding.contains(node), partition.removing.contains(node)) {
                (true, false) => "+",
                (false, true) => "-",
                _ => "",
            };
            format!("{sign}{node}.{}", partition.incarnation(*node).expect("a replica"))
        };
        let replicas: Vec<_> = partition.replicas.iter().map(replica).collect();
        let from = match partition.is_moving() {
            true => format!(" from {:?}", partition.original()),
            false => String::new(),
        };
        let (version, epoch) = (partition.wanted_version(), partition.settled_epoch());
        assert_eq!(format!("{}{from} v{version} e{epoch}", replicas.join(" ")), expected);
    }
}

/// Checks that a replay of the log and a snapshot make the same metadata.
#[track_caller]
pub(super) fn check_copies(session: &Session) {
    session.machine.check();
    let image = session.machine.image();
    let committed = usize::try_from(image.next_offset()).expect("a short log");
    let (mut replayed, mut loaded) = (MetadataStateMachine::default(), MetadataStateMachine::default());
    for (offset, value) in (0..).zip(&session.log[..committed]) {
        replayed.replay(offset, value).expect("the machine's own record");
    }
    for value in image.snapshot() {
        loaded.load(image.next_offset(), &value).expect("a record of the snapshot");
    }
    assert_eq!((replayed.image(), loaded.image()), (image, image));
}

#[test]
fn a_move_ends_with_the_leaders_report() {
    let mut session = cluster(2);
    session.assert_is("1.1 2.1 3.1 v0 e0");
    assert_eq!(session.partition("a").group, None);
    assert_eq!(session.lead(1, 4, &[1, 2, 3]), 1);
    assert_eq!(session.move_to(&[1, 4, 2]), "ok");
    session.assert_is("1.1 +4.2 2.1 -3.1 from [1, 2, 3] v1 e0");
    let partition = session.partition("a");
    assert_eq!(partition.wanted(), [(1, 1), (4, 2), (2, 1)]);
    assert_eq!((&*partition.isr, partition.leader, partition.leader_epoch), (&[1, 2, 3][..], 1, 4));
    assert_eq!(partition.directories, [dir(1), dir(4), dir(2), dir(3)]);
    assert_eq!(session.move_to(&[1, 4, 2]), "ok");
    session.assert_is("1.1 +4.2 2.1 -3.1 from [1, 2, 3] v1 e0");

    assert_eq!(session.lead(1, 4, &[1, 2, 3, 4]), 1);
    assert_eq!(session.settle(1, 4), 1);
    session.assert_is("1.1 4.2 2.1 v1 e4");
    let partition = session.partition("a");
    assert_eq!((&*partition.isr, partition.leader, partition.leader_epoch), (&[1, 4, 2][..], 1, 4));
    assert_eq!(partition.directories, [dir(1), dir(4), dir(2)]);
    assert_eq!(partition.incarnation(3), None);
    assert_eq!(session.settle(1, 4), 0, "it is known");
    assert_eq!(session.settle(2, 5), 1);
    session.assert_is("1.1 4.2 2.1 v1 e5");
}

#[test]
fn a_new_replica_gets_the_emptiest_directory_of_its_node() {
    let mut session = cluster(2);
    session.create(assigned("b", &[(0, &[4])]));
    session.commit_all();
    assert_eq!(session.partition("b").directories, [dir(4)]);
    session.move_to(&[4, 2, 3]);
    assert_eq!(session.partition("a").directories[0], OTHER_DIR);
}

#[test]
fn a_move_that_is_cancelled_is_moved_back() {
    let mut session = cluster(2);
    assert_eq!(session.cancel(), NOTHING_MOVES);
    session.move_to(&[1, 2, 4]);
    assert_eq!(session.cancel(), "ok");
    session.assert_is("1.1 2.1 3.1 -4.2 from [1, 2, 3] v2 e0");
    assert_eq!(session.cancel(), NOTHING_MOVES, "it is being moved back");
    session.assert_is("1.1 2.1 3.1 -4.2 from [1, 2, 3] v2 e0");
    assert_eq!(session.settle(3, 1), 1);
    session.assert_is("1.1 2.1 3.1 v2 e1");
    assert_eq!(session.cancel(), NOTHING_MOVES);
}

/// The leader may have removed replicas before it reads of the cancellation.
#[test]
fn a_removal_that_is_cancelled_waits_for_the_leader_too() {
    let mut session = cluster(2);
    session.move_to(&[1, 2]);
    session.assert_is("1.1 2.1 -3.1 from [1, 2, 3] v1 e0");
    assert_eq!(session.cancel(), "ok");
    session.assert_is("1.1 2.1 3.1 from [1, 2, 3] v2 e0");
    assert_eq!(session.list(None), [""; 0], "nothing is added or removed");
    assert_eq!((session.cancel(), session.move_to(&[1, 2, 3])), (NOTHING_MOVES.to_owned(), "ok".to_owned()));
    assert_eq!(session.settle(1, 0), 1);
    session.assert_is("1.1 2.1 3.1 v2 e0");
}

#[test]
fn another_target_takes_the_place_of_the_first() {
    let mut session = cluster(2);
    session.move_to(&[4, 5, 2]);
    session.assert_is("+4.2 +5.3 2.1 -1.1 -3.1 from [1, 2, 3] v1 e0");
    assert_eq!(session.move_to(&[1, 2, 5]), "ok");
    session.assert_is("1.1 2.1 +5.3 -4.2 -3.1 from [1, 2, 3] v2 e0");
    let stale = SettledNote { version: 1, ..session.settled_note(1, 0) };
    assert_eq!(session.note(&stale), 0, "the first target is reached");
    // The replicas from before the move in another order: a cancellation to that order.
    assert_eq!(session.move_to(&[3, 1, 2]), "ok");
    session.assert_is("3.1 1.1 2.1 -5.3 -4.2 from [1, 2, 3] v3 e0");
    assert_eq!(session.cancel(), NOTHING_MOVES);
    assert_eq!(session.settle(3, 0), 1);
    session.assert_is("3.1 1.1 2.1 v3 e0");
}

#[test]
fn a_replica_that_comes_back_is_another_one() {
    let mut session = cluster(2);
    session.move_to(&[1, 2]);
    session.settle(1, 0);
    session.assert_is("1.1 2.1 v1 e0");
    session.move_to(&[1, 2, 3]);
    session.assert_is("1.1 2.1 +3.2 from [1, 2] v2 e0");
    session.settle(1, 0);
    session.assert_is("1.1 2.1 3.2 v2 e0");
}

#[test]
fn a_group_stays_one_when_one_replica_is_left() {
    let mut session = cluster(2);
    session.move_to(&[2]);
    session.settle(2, 3);
    session.assert_is("2.1 v1 e3");
    assert!(session.partition("a").has_group() && !session.partition("one").has_group());
    assert_eq!(session.lead(2, 4, &[2]), 1, "its leader is elected");
    session.move_to(&[2, 5]);
    session.assert_is("2.1 +5.2 from [2] v2 e3");
    session.settle(2, 4);
    session.assert_is("2.1 5.2 v2 e4");
}

#[test]
fn the_leader_of_a_group_that_has_moved_is_the_one_that_reports() {
    let mut session = cluster(2);
    session.lead(1, 7, &[1, 2, 3]);
    assert_eq!(session.partition("a").preferred_leader(), Some(1));
    session.move_to(&[4, 5, 3]);
    assert_eq!(session.partition("a").preferred_leader(), Some(3), "the first that stays");
    session.move_to(&[4, 5]);
    assert_eq!(session.partition("a").preferred_leader(), None);
    assert_eq!(session.settle(1, 7), 0, "it is no member of what is wanted");
    assert_eq!(session.settle(5, 9), 1);
    session.assert_is("4.2 5.3 v2 e9");
    let partition = session.partition("a");
    let led = (partition.leader, partition.leader_epoch, &*partition.isr, partition.preferred_leader());
    assert_eq!(led, (5, 9, &[5][..], Some(4)));
    assert_eq!(session.lead(5, 9, &[4, 5]), 1);
}

#[test]
fn another_order_of_the_replicas_is_there_at_once() {
    for level in [1, 2] {
        let mut session = cluster(level);
        assert_eq!(session.move_to(&[3, 1, 2]), "ok");
        session.assert_is("3.1 1.1 2.1 v0 e0");
        assert_eq!(session.partition("a").directories, [dir(3), dir(1), dir(2)]);
    }
    let mut session = cluster(2);
    session.move_to(&[1, 2, 4]);
    session.settle(1, 2);
    assert_eq!(session.move_to(&[4, 2, 1]), "ok");
    session.assert_is("4.2 2.1 1.1 v1 e2");
}

#[test]
fn replicas_do_not_move_below_the_level() {
    let mut session = cluster(1);
    let refused = "UNSUPPORTED_VERSION: Replicas move between nodes from level 2 of mainstem.version on: upgrade all nodes, \
                   then run `mainstem cluster finalize --execute`.";
    for target in [&[1, 2, 4][..], &[1], &[1, 2, 3, 4]] {
        assert_eq!(session.move_to(target), refused);
    }
    assert_eq!(session.cancel(), NOTHING_MOVES);
    assert_eq!(session.lose_disk(1), 0);
    session.assert_is("1.1 2.1 3.1 v0 e0");
}

#[test]
fn reports_that_are_stale_change_nothing() {
    let mut session = cluster(2);
    assert_eq!(session.settle(1, 5), 0, "its members have never changed");
    session.lead(2, 5, &[1, 2, 3]);
    session.move_to(&[1, 2, 4]);
    let note = session.settled_note(2, 5);
    for (stale, why) in [
        (SettledNote { version: 0, ..note.clone() }, "an earlier version"),
        (SettledNote { version: 2, ..note.clone() }, "a version that was never decided"),
        (SettledNote { leader_epoch: LeaderEpoch::new(4), ..note.clone() }, "an earlier leader"),
        (SettledNote { leader: 3, ..note.clone() }, "it is to go"),
        (SettledNote { leader: 9, ..note.clone() }, "no replica"),
        (SettledNote { partition: 1, ..note.clone() }, "no partition"),
        (SettledNote { partition: -1, ..note.clone() }, "no partition"),
        (SettledNote { topic_id: Uuid::from_u128(1), ..note.clone() }, "no topic"),
    ] {
        assert_eq!(session.note(&stale), 0, "{why}");
    }
    let twice = session.machine.note_settled(&session.view, &[note.clone(), note.clone()]);
    assert_eq!(session.done(twice), 1, "once");
    session.assert_is("1.1 2.1 4.2 v1 e5");
    assert_eq!(session.settle(1, 8), 1);
    assert_eq!(session.note(&note), 0, "older than the settled epoch");
    session.assert_is("1.1 2.1 4.2 v1 e8");
}

#[test]
fn reports_about_a_topic_that_was_created_again_change_nothing() {
    let mut session = cluster(2);
    session.move_to(&[1, 2, 4]);
    let (note, id) = (session.settled_note(1, 5), session.id("a"));
    assert_eq!(session.delete(&[(Some("a"), Uuid::ZERO)]), ["ok"]);
    assert_eq!(session.create(assigned("a", &[(0, &[1, 2, 3])])), "ok 1x3");
    session.commit_all();
    session.assert_is("1.1 2.1 3.1 v0 e0");
    session.move_to(&[1, 2, 5]);
    assert_eq!(session.note(&note), 0);
    let lost = LostReplica { topic_id: id, partition: 0, incarnation: 1 };
    let lost = session.machine.replace_replicas(&session.view, 1, &[lost]);
    assert_eq!(session.done(lost), 0);
    session.assert_is("1.1 2.1 +5.2 -3.1 from [1, 2, 3] v1 e0");
}

#[test]
fn moves_are_listed() {
    let mut session = cluster(2);
    session.create(assigned("b", &[(0, &[1, 2]), (1, &[2, 3])]));
    session.commit_all();
    assert_eq!(session.list(None), [""; 0]);
    session.move_to(&[1, 4, 2]);
    assert_eq!(session.reassign(true, "b", 1, Some(&[3])), "ok");
    assert_eq!(session.list(None).len(), 1, "the second move is not committed");
    session.commit_all();
    let (a, b) = ("a-0 [1, 4, 2, 3] +[4] -[3]", "b-1 [3, 2] +[] -[2]");
    assert_eq!(session.list(None), [a, b]);
    assert_eq!(session.list(Some(&[("b", &[0, 1, 2, -1]), ("nope", &[0])])), [b]);
    assert_eq!(session.list(Some(&[("a", &[0]), ("b", &[0])])), [a]);
    assert_eq!(session.list(Some(&[])), [""; 0]);
    session.settle(1, 0);
    assert_eq!(session.list(None), [b]);
}

#[test]
fn moves_that_cannot_be_are_refused() {
    let mut session = cluster(2);
    let end = session.end();
    let mut refused = |may_resize, topic, partition, to: &[i32], expected: &str| {
        assert_eq!(session.reassign(may_resize, topic, partition, Some(to)), expected);
    };
    const MANUAL: &str = "INVALID_REPLICA_ASSIGNMENT: The manual partition assignment includes";
    refused(true, "a", 0, &[1, 6], &format!("{MANUAL} broker 6, but no such broker is registered."));
    refused(true, "a", 0, &[4, 4], &format!("{MANUAL} the broker 4 more than once."));
    refused(true, "a", 0, &[], &format!("{MANUAL} an empty replica list."));
    let fewer = "INVALID_REPLICATION_FACTOR: The replication factor is changed from 3 to 2.";
    refused(false, "a", 0, &[1, 2], fewer);
    refused(true, "a", 1, &[1], "UNKNOWN_TOPIC_OR_PARTITION: Unable to find this partition of the topic.");
    refused(true, "x", 0, &[1], "UNKNOWN_TOPIC_OR_PARTITION: Unable to find a topic of this name.");
    let single = "INVALID_REPLICA_ASSIGNMENT: Partition one-0 has one replica and no group yet, which could copy it: it stays \
                  on [1]. Create a topic with several replicas, and copy the records.";
    refused(true, "one", 0, &[1, 2], single);
    refused(true, "one", 0, &[2], single);
    refused(true, "one", 0, &[1], "ok");
    assert_eq!(session.end(), end);
    // While replicas move, the number is that of the target (KIP-860).
    assert_eq!(session.reassign(false, "a", 0, Some(&[1, 2, 4])), "ok");
    assert_eq!(session.reassign(false, "a", 0, Some(&[1, 5])), fewer);
    assert_eq!(session.reassign(false, "a", 0, Some(&[1, 5, 4])), "ok");
}

#[test]
fn a_partition_is_named_once_in_a_request() {
    let mut session = cluster(2);
    let to = |replicas: &[i32]| ReassignablePartition {
        partition_index: 0,
        replicas: Some(replicas.to_vec()),
        ..ReassignablePartition::default()
    };
    let topic = ReassignableTopic {
        name: "a".into(),
        partitions: vec![to(&[1, 2, 4]), to(&[1, 2, 5])],
        ..ReassignableTopic::default()
    };
    let request = AlterPartitionReassignmentsRequest { topics: vec![topic], ..Default::default() };
    let decision = session.machine.alter_partition_reassignments(&session.view, &request);
    let answers = session.append(decision).responses[0]
        .partitions
        .iter()
        .map(|answer| said(answer.error_code, answer.error_message.as_deref()))
        .collect::<Vec<_>>();
    session.commit_all();
    assert_eq!(answers, ["ok", "INVALID_REQUEST: The request names partition a-0 twice: name it once."]);
    session.assert_is("1.1 2.1 +4.2 -3.1 from [1, 2, 3] v1 e0");
}

#[test]
fn a_topic_grows_and_goes_while_its_replicas_move() {
    let mut session = cluster(2);
    session.move_to(&[4, 5]);
    assert_eq!(session.grow("a", 2, None), "ok");
    assert_eq!(session.grow("a", 3, Some(&[&[1, 2]])), "ok");
    session.commit_all();
    let partitions = &session.machine.image().topic("a").expect("it exists").partitions;
    assert_eq!(partitions.iter().map(|one| one.replicas.len()).collect::<Vec<_>>(), [5, 2, 2]);
    assert_eq!(session.delete(&[(Some("a"), Uuid::ZERO)]), ["ok"]);
    session.commit_all();
    check_copies(&session);
}

#[test]
fn a_leaders_note_leaves_a_move_as_it_is() {
    let mut session = cluster(2);
    session.move_to(&[1, 2, 4]);
    let before = session.partition("a").clone();
    assert_eq!(session.lead(4, 9, &[4, 3, 2, 7]), 1);
    session.assert_is("1.1 2.1 +4.2 -3.1 from [1, 2, 3] v1 e0");
    let expected = PartitionImage {
        leader: 4,
        leader_epoch: 9,
        partition_epoch: before.partition_epoch + 1,
        isr: vec![2, 4, 3],
        ..before
    };
    assert_eq!(*session.partition("a"), expected);
    assert_eq!(session.lead(5, 10, &[5]), 0, "no replica");
}

#[test]
fn the_replicas_of_a_lost_disk_are_others() {
    let mut session = cluster(2);
    assert_eq!(session.lose_disk(2), 0, "it has no leader");
    session.lead(3, 1, &[1, 3]);
    assert_eq!(session.lose_disk(2), 1);
    session.assert_is("1.1 2.2 3.1 v1 e0");
    assert_eq!(session.lose_disk(4), 0, "it has no replica");
    assert_eq!(session.lose_disk(1), 0, "node 3 alone decides nothing");
    session.lead(3, 1, &[1, 2, 3]);
    assert_eq!(session.lose_disk(3), 0, "it leads");
    assert_eq!(session.lose_disk(1), 1, "and none of the partition without a group");
    session.assert_is("1.3 2.2 3.1 v2 e0");
    assert_eq!(session.settle(3, 0), 0, "of an earlier leader");

    session.move_to(&[3, 4, 5]);
    session.assert_is("3.1 +4.4 +5.5 -1.3 -2.2 from [1, 2, 3] v3 e0");
    session.lead(3, 1, &[1, 2, 3, 4, 5]);
    for node in [4, 2] {
        assert_eq!(session.lose_disk(node), 1);
    }
    session.assert_is("3.1 +4.6 +5.5 -1.3 -2.7 from [1, 2, 3] v5 e0");
    let twice = [session.lost("a", 5); 2];
    let decision = session.machine.replace_replicas(&session.view, 5, &twice);
    assert_eq!(session.done(decision), 1);
    let late = session.machine.replace_replicas(&session.view, 5, &twice);
    assert_eq!(session.done(late), 0, "it has another one by now");
    session.assert_is("3.1 +4.6 +5.8 -1.3 -2.7 from [1, 2, 3] v6 e0");
    session.cancel();
    session.settle(3, 1);
    session.assert_is("1.3 2.7 3.1 v7 e1");
}

#[test]
fn preferred_leaders_are_no_replicas_that_move() {
    let mut session = cluster(2);
    session.lead(2, 1, &[1, 2, 3]);
    session.move_to(&[4, 2, 1]);
    let partition = session.partition("a");
    assert_eq!((partition.replicas[0], partition.preferred_leader()), (4, Some(2)));
    session.settle(2, 1);
    assert_eq!(session.partition("a").preferred_leader(), Some(4));
}

#[test]
fn a_snapshot_changes_partitions_that_move() {
    let session = cluster(2);
    let mut moved = cluster(2);
    moved.move_to(&[1, 2, 4]);
    let (mut machine, mut newer) = (session.machine, MetadataStateMachine::default());
    for value in moved.machine.image().snapshot() {
        newer.load(moved.end(), &value).expect("a record of the snapshot");
    }
    let changed = MetadataChange::PartitionChanged { topic_id: moved.id("a"), partition: 0 };
    assert_eq!(machine.replace(newer), [changed]);
    assert_eq!(machine.image(), moved.machine.image());
}

/// A record is refused, and changes nothing, if its group does not fit.
#[test]
fn groups_that_do_not_fit_are_refused() {
    let mut session = cluster(2);
    session.move_to(&[1, 2, 4]);
    let id = session.id("a");
    let before = session.partition("a").clone();
    let newer = PartitionImage { partition_epoch: before.partition_epoch + 1, ..before.clone() };
    let mut refused = |record: MetadataRecord<'_>, what: &str| {
        let mut value = Vec::new();
        record.encode(&mut value, 2).expect("the version has the fields");
        let end = session.end();
        let why = session.machine.replay(end, &value).expect_err("it does not fit").to_string();
        let group = format!("the group of partition 0 of topic id {id} cannot be: {what}");
        assert_eq!(why, format!("metadata record at offset {end}: {group}"));
        session.machine.check();
    };
    let with = |change: fn(&mut GroupImage)| {
        let mut image = newer.clone();
        change(image.group.as_mut().expect("it moves"));
        image
    };
    for (change, what) in [
        (
            (|group| group.incarnations.truncate(3)) as fn(&mut GroupImage),
            "it does not have one incarnation for each replica",
        ),
        (|group| group.incarnations[0] = 0, "it has an incarnation that was never given"),
        (|group| group.incarnations[0] = 3, "it has an incarnation that was never given"),
        (|group| group.version = 0, "it goes back"),
        (|group| group.settled_epoch = -1, "its leader epoch is negative"),
    ] {
        let image = with(change);
        refused(image.record(id, 0), what);
        refused(before.change_to(&image, id, 0), what);
    }
    refused(PartitionImage { group: None, ..newer.clone() }.record(id, 0), "it is gone");
    let mut silent = before.change_to(&before.with_replicas(vec![1, 2]), id, 0);
    if let MetadataRecord::PartitionChangeRecord(record) = &mut silent {
        record.unknown_tagged_fields.clear();
    }
    refused(silent, "the replicas change, and their incarnations are not named");
    session.assert_is("1.1 2.1 +4.2 -3.1 from [1, 2, 3] v1 e0");
}

/// Counters that a damaged log has raised to their end.
#[test]
fn incarnations_and_versions_never_start_over() {
    for end in
        [(|group| group.version = u32::MAX) as fn(&mut GroupImage), |group| group.last_incarnation = u32::MAX]
    {
        let mut session = cluster(2);
        session.move_to(&[1, 2, 4]);
        let before = session.partition("a").clone();
        let mut after = before.clone();
        end(after.group.as_mut().expect("it moves"));
        let record = before.change_to(&after, session.id("a"), 0);
        let decision = session.machine.decide(vec![record], ());
        session.done(decision);
        let refused = session.move_to(&[1, 2, 5]);
        assert!(
            refused.starts_with("INVALID_REPLICA_ASSIGNMENT: The partition has had so many"),
            "{refused}"
        );
        assert_eq!(session.lose_disk(1), 0);
        assert_eq!(*session.partition("a"), PartitionImage { partition_epoch: 2, ..after });
    }
}
