//! Tests of the group of the metadata log: nodes that join it, their votes, and the nodes that leave.

use std::borrow::Cow;

use mainstem_wire::messages::register_controller_record::{ControllerEndpoint, RegisterControllerRecord};
use mainstem_wire::metadata_frame::MetadataRecord;
use mainstem_wire::{ErrorCode, UnknownTaggedField, Uuid};

use super::move_tests::{check_copies, cluster};
use super::session::*;
use super::*;

/// A step. Directories are named by a letter, and addresses by the node whose address each is at first.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Join { node: i32, directory: char, address: i32 },
    Update { node: i32, directory: char, address: i32 },
    AddVoter { node: i32, directory: char },
    RemoveVoter { node: i32, directory: char },
    Register(i32),
    Fence(i32),
    Unregister(i32),
}

impl Step {
    /// Parses an act, a node, and then a directory and an address where the act has them.
    fn parse(text: &str) -> Step {
        let words: Vec<&str> = text.split(' ').collect();
        let node = words[1].parse().expect("a node");
        let directory = words.get(2).and_then(|word| word.chars().next()).unwrap_or('a');
        let address = words.get(3).map_or(node, |word| word.parse().expect("the node of an address"));
        match words[0] {
            "join" => Step::Join { node, directory, address },
            "update" => Step::Update { node, directory, address },
            "add" => Step::AddVoter { node, directory },
            "remove" => Step::RemoveVoter { node, directory },
            "register" => Step::Register(node),
            "fence" => Step::Fence(node),
            "unregister" => Step::Unregister(node),
            other => panic!("no act is named {other}"),
        }
    }
}

fn directory(name: char) -> Uuid {
    Uuid::from_u128(u128::from(u32::from(name)))
}

fn host(node: i32) -> String {
    format!("host{node}")
}

fn join(node: i32, name: char, address: i32) -> ControllerJoin {
    let (host, directory) = (host(address), directory(name));
    ControllerJoin { node, host, port: 9093, security_protocol: 0, directory, levels: (1, 2) }
}

/// The founders: nodes 1, 2 and 3, each with directory `a`.
fn founders() -> Vec<FirstController> {
    let founder = |node| {
        let (host, directory) = (host(node), directory('a'));
        FirstController { node, host, port: 9093, security_protocol: 0, directory }
    };
    (1..=3).map(founder).collect()
}

impl Session {
    /// Takes a step, and commits it; returns the answer as text.
    pub(super) fn take(&mut self, step: Step) -> String {
        let (machine, view, first) = (&mut self.machine, &self.view, &founders());
        let answer = match step {
            Step::Join { node, directory, address } => {
                let joined = machine.join_controller(view, &join(node, directory, address), first);
                let joined = self.append(joined).map(|incarnation| format!("ok {incarnation}"));
                joined.unwrap_or_else(|refused| said(refused.code().0, Some(&refused.to_string())))
            }
            Step::Update { node, directory, address } => {
                let updated = machine.update_voter(view, &join(node, directory, address), first);
                self.append_vote(updated)
            }
            Step::AddVoter { node, directory: name } => {
                let added = machine.add_voter(view, node, directory(name), first);
                self.append_vote(added)
            }
            Step::RemoveVoter { node, directory: name } => {
                let removed = machine.remove_voter(view, node, directory(name), first);
                self.append_vote(removed)
            }
            Step::Register(node_id) => {
                let features = view.feature_ranges();
                self.start(&NodeStart { node_id, features, ..node_start(1, &[DIR], &[]) });
                "ok".to_owned()
            }
            Step::Fence(node) => {
                let epoch = machine.image().broker(node).map_or(-1, |broker| broker.epoch);
                let fenced = machine.set_fenced(node, epoch, true);
                self.append(fenced);
                "ok".to_owned()
            }
            Step::Unregister(node) => {
                let removed = machine.unregister_broker(view, node);
                let refused = self.append(removed).err();
                refused.map_or("ok".to_owned(), |refused| said(refused.code.0, Some(&refused.message)))
            }
        };
        self.commit_all();
        answer
    }

    fn append_vote(&mut self, decision: Decision<Result<(), VoterRefused>>) -> String {
        let refused = self.append(decision).err();
        refused.map_or("ok".to_owned(), |refused| said(refused.code().0, Some(&refused.to_string())))
    }

    /// Node, directory and incarnation of each controller, with `+` for a vote and its address if that is another node's, and the version.
    fn controllers(&self) -> String {
        let image = self.machine.image();
        let of = |(id, controller): (i32, &ControllerImage)| {
            let mut names = ('a'..='z').filter(|name| directory(*name) == controller.directory);
            let name = names.next().expect("a directory of the tests");
            let vote = if controller.votes { "+" } else { "" };
            let moved = if controller.host == host(id) { "" } else { &format!("@{}", controller.host) };
            format!("{id}{name}.{}{vote}{moved}", controller.incarnation)
        };
        let controllers: Vec<String> = image.controllers().map(of).collect();
        format!("{} v{}", controllers.join(" "), image.controllers_version())
    }
}

/// Takes steps in a cluster at level 2 in which brokers 1 to 5 are running; each answer begins with the given text. At the end the controllers
/// are these.
#[track_caller]
fn check(steps: &[(&str, &str)], controllers: &str) -> Session {
    let mut session = cluster(2);
    take_all(&mut session, steps);
    assert_eq!(session.controllers(), controllers);
    session
}

#[track_caller]
fn take_all(session: &mut Session, steps: &[(&str, &str)]) {
    for (step, expected) in steps {
        let answer = session.take(Step::parse(step));
        assert!(answer.starts_with(expected), "{step}: {answer}");
        check_copies(session);
    }
}

const FOUNDERS: &str = "1a.1+ 2a.1+ 3a.1+ v3";

#[test]
fn the_first_join_names_the_founders() {
    let session = check(&[], " v0");
    assert_eq!(session.machine.image().controller(1), None);
    check(&[("join 6", "ok 2")], "1a.1+ 2a.1+ 3a.1+ 6a.2 v4");
    check(&[("join 2", "ok 1"), ("join 2", "ok 1")], FOUNDERS);
    check(&[("join 2 a 7", "ok 1")], "1a.1+ 2a.1+@host7 3a.1+ v4");
    let session = check(&[("remove 3", "ok")], "1a.1+ 2a.1+ 3a.1 v4");
    let third = session.machine.image().controller(3).expect("it stays");
    assert_eq!((&*third.host, third.port, third.directory), ("host3", 9093, directory('a')));
    // A refusal names no nodes.
    check(
        &[("join 6 a 1", "INVALID_REQUEST"), ("add 6", "REQUEST_TIMED_OUT"), ("add 1", "DUPLICATE_VOTER")],
        " v0",
    );
}

#[test]
fn every_change_is_reported() {
    let mut session = cluster(2);
    let joined = session.machine.join_controller(&session.view, &join(6, 'a', 6), &founders());
    assert_eq!(session.append(joined), Ok(2));
    let changed = |id| MetadataChange::ControllerChanged { id };
    assert_eq!(session.commit_all(), [1, 2, 3, 6].map(changed));
    let removed = session.machine.unregister_broker(&session.view, 6);
    assert_eq!(session.append(removed), Ok(()));
    assert_eq!(session.commit_all(), [changed(6)], "it was no broker");
    session.take(Step::parse("join 7"));
    session.take(Step::parse("register 7"));
    session.take(Step::parse("fence 7"));
    let removed = session.machine.unregister_broker(&session.view, 7);
    assert_eq!(session.append(removed), Ok(()));
    assert_eq!(session.commit_all(), [MetadataChange::BrokerChanged { id: 7 }]);
    assert_eq!(session.machine.image().controller(7), None);
}

#[test]
fn a_snapshot_changes_the_controllers_that_differ() {
    let mut session = check(&[("join 6", "ok 2")], "1a.1+ 2a.1+ 3a.1+ 6a.2 v4");
    let mut behind = MetadataStateMachine::default();
    for (offset, value) in (0..).zip(&session.log) {
        behind.replay(offset, value).expect("a record of the log");
    }
    take_all(&mut session, &[("add 6", "ok"), ("remove 2", "ok"), ("join 7", "ok 3")]);
    let mut newer = MetadataStateMachine::default();
    for value in session.machine.image().snapshot() {
        newer.load(session.end(), &value).expect("a record of the snapshot");
    }
    let changed = |id| MetadataChange::ControllerChanged { id };
    assert_eq!(behind.replace(newer), [2, 6, 7].map(changed));
}

#[test]
fn a_known_node_keeps_its_place() {
    let joined = "1a.1+ 2a.1+ 3a.1+ 6a.2 v4";
    check(&[("join 6", "ok 2"), ("join 6", "ok 2")], joined);
    check(&[("join 6", "ok 2"), ("join 6 a 7", "ok 2")], "1a.1+ 2a.1+ 3a.1+ 6a.2@host7 v5");
    check(&[("join 6", "ok 2"), ("register 6", "ok"), ("join 6", "ok 2")], joined);
    check(
        &[("join 6", "ok 2"), ("update 6 a 7", "ok"), ("update 6 a 7", "ok")],
        "1a.1+ 2a.1+ 3a.1+ 6a.2@host7 v5",
    );
    let taken = "INVALID_REQUEST: Node 6 names host1:9093";
    check(&[("join 6", "ok 2"), ("join 6 a 1", taken), ("update 6 a 1", taken)], joined);
    check(
        &[("join 6", "ok 2"), ("update 6 b 7", "VOTER_NOT_FOUND"), ("update 7", "VOTER_NOT_FOUND")],
        joined,
    );
}

#[test]
fn another_directory_is_another_replica() {
    let others = "1a.1+ 2a.1+ 3a.1+";
    check(&[("join 6", "ok 2"), ("join 6 b", "ok 3"), ("join 6 a", "ok 4")], &format!("{others} 6a.4 v6"));
    check(
        &[
            ("join 6", "ok 2"),
            ("register 6", "ok"),
            ("join 6 b", "DUPLICATE_BROKER_REGISTRATION: Node 6 is running"),
        ],
        &format!("{others} 6a.2 v4"),
    );
    check(
        &[("join 6", "ok 2"), ("register 6", "ok"), ("fence 6", "ok"), ("join 6 b", "ok 3")],
        &format!("{others} 6b.3 v5"),
    );
    let votes = format!("DUPLICATE_VOTER: Node 3 has a vote with directory {}", directory('a'));
    check(
        &[
            ("join 3 b", "DUPLICATE_BROKER_REGISTRATION"),
            ("fence 3", "ok"),
            ("join 3 b", &votes),
            ("remove 3", "ok"),
            ("join 3 b", "ok 2"),
            ("add 3", "REQUEST_TIMED_OUT"),
            ("add 3 b", "ok"),
        ],
        "1a.1+ 2a.1+ 3b.2+ v6",
    );
}

#[test]
fn a_node_that_cannot_be_is_refused() {
    check(&[("join -1", "INVALID_REQUEST: Node -1 cannot join")], " v0");
    check(&[("join 4", "DUPLICATE_BROKER_REGISTRATION: Node 4 is running")], " v0");
    check(&[("fence 4", "ok"), ("join 4", "ok 2")], "1a.1+ 2a.1+ 3a.1+ 4a.2 v4");
    let (session, founders) = (&mut cluster(2), founders());
    let mut refused = |join: ControllerJoin| {
        let joined = session.machine.join_controller(&session.view, &join, &founders);
        let refused = session.append(joined).expect_err("it cannot be");
        (refused.code(), refused.to_string())
    };
    let of_release = |levels| ControllerJoin { levels, ..join(6, 'a', 6) };
    for levels in [(1, 1), (3, 4), (2, 1)] {
        let (code, text) = refused(of_release(levels));
        assert_eq!(code, ErrorCode::UNSUPPORTED_VERSION);
        assert!(text.contains("start a release on it that works at level 2"), "{text}");
    }
    let invalid = [
        ControllerJoin { host: String::new(), ..join(6, 'a', 6) },
        ControllerJoin { host: "h".repeat(256), ..join(6, 'a', 6) },
        ControllerJoin { port: 0, ..join(6, 'a', 6) },
        ControllerJoin { directory: Uuid::ZERO, ..join(6, 'a', 6) },
    ];
    for join in invalid {
        let (code, text) = refused(join);
        assert_eq!(code, ErrorCode::INVALID_REQUEST, "{text}");
    }
}

#[test]
fn a_cluster_has_so_many_nodes() {
    let mut session = cluster(2);
    for node in 6..18 {
        assert_eq!(
            session.take(Step::Join { node, directory: 'a', address: node }),
            format!("ok {}", node - 4)
        );
    }
    assert_eq!(session.machine.image().controllers().count(), CONTROLLERS_MAX);
    let full = "POLICY_VIOLATION: Node 18 cannot join: a cluster has at most 15 nodes.";
    take_all(
        &mut session,
        &[("join 18", full), ("join 17 b", "ok 14"), ("unregister 6", "ok"), ("join 18", "ok 15")],
    );
}

#[test]
fn votes_change_one_by_one() {
    check(&[("join 6", "ok 2"), ("add 6", "ok"), ("add 6", "DUPLICATE_VOTER")], "1a.1+ 2a.1+ 3a.1+ 6a.2+ v5");
    check(
        &[("add 1", "DUPLICATE_VOTER"), ("add 1 b", "DUPLICATE_VOTER"), ("remove 1 b", "VOTER_NOT_FOUND")],
        " v0",
    );
    check(
        &[("remove 6", "VOTER_NOT_FOUND"), ("join 6", "ok 2"), ("remove 6", "VOTER_NOT_FOUND")],
        "1a.1+ 2a.1+ 3a.1+ 6a.2 v4",
    );
    check(
        &[("join 6", "ok 2"), ("add 6 b", "REQUEST_TIMED_OUT: Node 6 has not joined")],
        "1a.1+ 2a.1+ 3a.1+ 6a.2 v4",
    );
    let last = "INVALID_REQUEST: Node 3 has the last vote";
    check(
        &[("remove 1", "ok"), ("remove 2", "ok"), ("remove 3", last), ("add 1", "ok")],
        "1a.1+ 2a.1 3a.1+ v6",
    );
}

#[test]
fn a_node_with_replicas_is_not_unregistered() {
    let mut session = check(&[("join 6", "ok 2"), ("register 6", "ok")], "1a.1+ 2a.1+ 3a.1+ 6a.2 v4");
    assert_eq!(session.create(assigned("t", &[(0, &[1, 2]), (1, &[1, 6]), (2, &[6, 2])])), "ok 3x2");
    session.commit_all();
    let refused = "INVALID_REQUEST: Broker 6 has replicas, 2 in all, such as that of t-1: move them";
    take_all(&mut session, &[("fence 6", "ok"), ("unregister 6", refused)]);
    session.delete(&[(Some("t"), Uuid::ZERO)]);
    session.commit_all();
    take_all(&mut session, &[("unregister 6", "ok")]);
}

#[test]
fn a_node_that_votes_is_not_unregistered() {
    let voter = "INVALID_REQUEST: Broker 3 is a voter: ";
    check(
        &[
            ("fence 3", "ok"),
            ("unregister 3", voter),
            ("join 6", "ok 2"),
            ("unregister 3", voter),
            ("remove 3", "ok"),
            ("unregister 3", "INVALID_REQUEST: Broker 3 has replicas"),
            ("unregister 7", "BROKER_ID_NOT_REGISTERED"),
        ],
        "1a.1+ 2a.1+ 3a.1 6a.2 v5",
    );
    check(
        &[("join 6", "ok 2"), ("register 6", "ok"), ("unregister 6", "INVALID_REQUEST: Broker 6 is running")],
        "1a.1+ 2a.1+ 3a.1+ 6a.2 v4",
    );
    // An incarnation is not given again, also not after a start from a snapshot.
    let mut session = check(
        &[
            ("join 6", "ok 2"),
            ("add 6", "ok"),
            ("unregister 6", "INVALID_REQUEST"),
            ("remove 6", "ok"),
            ("unregister 6", "ok"),
        ],
        "1a.1+ 2a.1+ 3a.1+ v7",
    );
    let mut loaded = MetadataStateMachine::default();
    for value in session.machine.image().snapshot() {
        loaded.load(session.end(), &value).expect("a record of the snapshot");
    }
    session.machine = loaded;
    let joined = session.machine.join_controller(&session.view, &join(6, 'a', 6), &[]);
    assert_eq!(joined.reply, Ok(3));
}

#[test]
fn lower_levels_and_single_nodes_have_no_controllers() {
    let refused = |mut session: Session, first: &[FirstController]| {
        let joined = session.machine.join_controller(&session.view, &join(6, 'a', 6), first).reply;
        let added = session.machine.add_voter(&session.view, 1, directory('a'), first).reply;
        let fixed = match (joined, added) {
            (Err(JoinRefused::Fixed(joined)), Err(VoterRefused::Fixed(added))) if joined == added => joined,
            other => panic!("{other:?}"),
        };
        assert!(!session.machine.has_pending());
        (fixed.code(), fixed)
    };
    let unsupported = ErrorCode::UNSUPPORTED_VERSION;
    assert_eq!(refused(cluster(1), &founders()), (unsupported, ControllersFixed::Level(1)));
    assert_eq!(refused(Session::new(""), &founders()), (unsupported, ControllersFixed::OneNode));
    assert_eq!(refused(cluster(2), &[]), (ErrorCode::INVALID_REQUEST, ControllersFixed::NoFounders));
    let text = ControllersFixed::Level(1).to_string();
    assert!(text.contains("mainstem cluster finalize --execute"), "{text}");
}

/// A record of a controller with these values of the tagged field, or without the field.
fn record(id: i32, name: char, field: Option<(u32, u32, u8, u32)>) -> Vec<u8> {
    let endpoint =
        ControllerEndpoint { host: Cow::Borrowed("host"), port: 9093, ..ControllerEndpoint::default() };
    let field = field.map(|(incarnation, version, votes, last)| {
        let numbers =
            [&[1][..], &incarnation.to_be_bytes(), &version.to_be_bytes(), &[votes], &last.to_be_bytes()];
        UnknownTaggedField { tag: 10_000, data: Cow::Owned(numbers.concat()) }
    });
    let record = MetadataRecord::RegisterControllerRecord(Box::new(RegisterControllerRecord {
        controller_id: id,
        incarnation_id: directory(name),
        end_points: vec![endpoint],
        unknown_tagged_fields: field.into_iter().collect(),
        ..RegisterControllerRecord::default()
    }));
    let mut value = Vec::new();
    record.encode(&mut value, 0).expect("the version has the fields");
    value
}

/// Replays records behind a log in which nodes 1 and 2 have votes, and node 2 its second incarnation; returns the fault of the last.
fn fault(records: &[Vec<u8>]) -> Option<String> {
    let mut machine = MetadataStateMachine::default();
    let known = [record(1, 'a', Some((1, 1, 1, 1))), record(2, 'b', Some((2, 2, 1, 2)))];
    let mut fault = None;
    for value in known.iter().chain(records) {
        assert_eq!(fault, None);
        let (before, offset) = (machine.shared_image(), machine.image().next_offset());
        fault = machine.replay(offset, value).err().map(|error| error.to_string());
        assert!(fault.is_none() || *before == *machine.image(), "a refused record changes nothing");
    }
    fault
}

#[test]
fn kafkas_own_record_changes_nothing() {
    let mut machine = MetadataStateMachine::default();
    assert_eq!(machine.replay(0, &record(1, 'a', None)), Ok(MetadataChange::None));
    let empty = MetadataStateMachine::default();
    assert_eq!(machine.image().controllers().count(), 0);
    assert!(machine.image().snapshot().eq(empty.image().snapshot()));
    assert_eq!(fault(&[record(1, 'z', None)]), None);
}

#[test]
fn a_record_that_contradicts_those_before_it_is_refused() {
    let refused = |id, name, field| fault(&[record(id, name, Some(field))]);
    let with = |what: &str, id: i32| {
        Some(format!(
            "metadata record at offset 2: the place of node {id} in the group of the metadata log cannot be: {what}"
        ))
    };
    assert_eq!(refused(3, 'c', (3, 3, 0, 3)), None);
    assert_eq!(refused(3, 'c', (5, 9, 0, 7)), None, "records of a snapshot are left out between");
    assert_eq!(refused(3, 'c', (1, 2, 0, 2)), None, "a record of the same snapshot");
    assert_eq!(refused(2, 'b', (2, 3, 0, 2)), None);
    assert_eq!(refused(3, 'c', (1, 1, 0, 2)), with("it goes back", 3));
    assert_eq!(refused(3, 'c', (1, 3, 0, 1)), with("it goes back", 3));
    assert_eq!(refused(2, 'b', (2, 2, 0, 2)), with("its version does not rise", 2));
    assert_eq!(refused(3, 'c', (3, 2, 0, 3)), with("its version does not rise", 3));
    assert_eq!(refused(3, 'c', (1, 3, 0, 2)), with("its incarnation was given before", 3));
    assert_eq!(refused(1, 'c', (2, 3, 1, 2)), with("its incarnation was given before", 1));
    assert_eq!(refused(3, 'c', (2, 2, 0, 2)), with("its incarnation is that of another node", 3));
    let other = with("its directory is another one, and its incarnation is not", 2);
    assert_eq!(refused(2, 'c', (2, 3, 1, 2)), other);
    let without = fault(&[record(1, 'a', Some((1, 3, 0, 2))), record(2, 'b', Some((2, 4, 0, 2)))]);
    assert!(without.is_some_and(|text| text.ends_with("no node votes without it")));
}
