//! Tests of `mainstem.version`: its level rises when all nodes can work at it, and never falls.

use super::features::{FEATURES, MAINSTEM_VERSION};
use super::session::{DIR, Session, node_start, view};
use super::*;
use mainstem_wire::ErrorCode;

const NAME: &str = MAINSTEM_VERSION.name;
/// Upgrade types of UpdateFeatures.
const UPGRADE: i8 = 1;
const SAFE_DOWNGRADE: i8 = 2;
const UNSAFE_DOWNGRADE: i8 = 3;
/// Version of UpdateFeatures.
const VERSION: i16 = 1;

/// The view of node 1 of three, in a cluster that began at this level.
fn view_of_three(highest: i16, first: i16) -> NodeView {
    let lines = "process.roles=broker,controller\nnode.id=1\n\
                 controller.quorum.voters=1@127.0.0.1:19091,2@127.0.0.1:19092,3@127.0.0.1:19093\n\
                 listeners=PLAINTEXT://127.0.0.1:9091,CONTROLLER://127.0.0.1:19091\n\
                 controller.listener.names=CONTROLLER\n";
    view(lines).with_mainstem_version(highest, first)
}

/// A start of this release, which can work at levels up to `highest`.
fn start_of(node_id: i32, start: u128, highest: i16) -> NodeStart {
    let features = view_of_three(highest, 1).feature_ranges();
    NodeStart { node_id, features, ..node_start(start, &[DIR], &[]) }
}

/// A start of Mainstem 0.1, which names no features.
fn start_of_0_1(node_id: i32, start: u128) -> NodeStart {
    NodeStart { node_id, ..node_start(start, &[DIR], &[]) }
}

/// A cluster that began at this level, with node 1.
fn cluster(first: i16) -> Session {
    let mut session = Session::under(view_of_three(MAINSTEM_VERSION.max, first));
    session.start(&start_of(1, 1, MAINSTEM_VERSION.max));
    session
}

fn served(session: &Session) -> Option<i16> {
    let image = session.machine.image();
    let mut served = image.served_features(&session.view);
    served.find(|(name, _)| *name == NAME).map(|(_, level)| level)
}

fn refusal(level: i16, why: &str) -> String {
    format!(
        "INVALID_UPDATE_VERSION: The update failed for all features since the following feature had an error: \
         Invalid update version {level} for feature {NAME}. {why} "
    )
}

#[test]
fn the_level_rises_when_all_nodes_can_work_at_it() {
    let mut session = cluster(1);
    assert_eq!((session.machine.image().feature(NAME), served(&session)), (None, Some(1)));
    session.start(&start_of(2, 2, 2));
    let raise = |session: &mut Session, level| session.update(VERSION, &[(NAME, level, UPGRADE)]);
    let unknown = refusal(2, "Broker 3 is not registered: start it first.");
    assert_eq!(raise(&mut session, 2), unknown, "it is not known what that node can");
    session.start(&start_of_0_1(3, 3));
    let end = session.end();
    assert_eq!(raise(&mut session, 2), refusal(2, "Broker 3 only supports versions 1-1"));
    assert_eq!(raise(&mut session, 3), refusal(3, "Local controller 1 only supports versions 1-2"));
    assert_eq!(raise(&mut session, 0), refusal(0, "Local controller 1 only supports versions 1-2"));
    assert_eq!((raise(&mut session, 1), session.end()), (format!("ok {NAME}"), end), "as it is");

    // A node that is fenced comes back with the release that it had.
    let epoch = session.machine.image().broker(3).expect("registered").epoch;
    let fenced = session.machine.set_fenced(3, epoch, true);
    session.append(fenced);
    assert_eq!(raise(&mut session, 2), refusal(2, "Broker 3 only supports versions 1-1"));
    session.start(&start_of(3, 4, 2));
    assert_eq!(raise(&mut session, 2), format!("ok {NAME}"));
    session.commit_all();
    assert_eq!((session.machine.image().mainstem_version(), served(&session)), (2, Some(2)));
}

#[test]
fn a_level_is_never_lowered() {
    let mut session = cluster(2);
    for (level, kind) in [(1, SAFE_DOWNGRADE), (1, UNSAFE_DOWNGRADE)] {
        let why = "Nodes may have written what the lower level does not have: it is never lowered.";
        assert_eq!(session.update(VERSION, &[(NAME, level, kind)]), refusal(level, why));
    }
    let refused = session.update(0, &[(NAME, 1, UPGRADE)]);
    assert!(refused.contains("Can't downgrade the version of this feature"), "{refused}");
}

#[test]
fn a_node_that_cannot_work_at_the_level_is_not_taken() {
    let mut session = cluster(2);
    assert_eq!(session.machine.image().feature(NAME), Some(2), "a new cluster begins at what its nodes can");
    let refused = |session: &mut Session, start: &NodeStart| {
        let decision = session.machine.register_node(&session.view, start);
        assert!(decision.records.is_empty());
        assert_eq!(session.append(decision), Err(ErrorCode::UNSUPPORTED_VERSION));
    };
    // The first node that registers, too: the level comes with its registration.
    let mut begun = Session::under(view_of_three(2, 2));
    refused(&mut begun, &start_of_0_1(1, 1));
    refused(&mut session, &start_of_0_1(2, 2));
    refused(&mut session, &start_of(2, 3, 1));
    session.start(&start_of(2, 4, 2));
    // The level counts as soon as it is decided.
    let mut session = cluster(1);
    for node in 2..=3 {
        session.start(&start_of(node, 2, 2));
    }
    assert_eq!(session.update(VERSION, &[(NAME, 2, UPGRADE)]), format!("ok {NAME}"));
    refused(&mut session, &start_of_0_1(2, 3));
}

/// They come from another process, and go into the metadata log.
#[test]
fn features_that_make_no_sense_are_not_taken() {
    let many = |count| (0..count).map(|number| (format!("f{number}"), (0, 1))).collect::<FeatureRanges>();
    let one = |name: String, range| FeatureRanges::from([(name, range)]);
    let mut session = cluster(1);
    let epoch = session.start(&start_of(2, 2, 2));
    for features in [
        many(65),
        one("x".repeat(250), (0, 1)),
        one("x".repeat(40_000), (0, 1)),
        one(String::new(), (0, 1)),
        one("f".into(), (2, 1)),
        one("f".into(), (-1, 1)),
    ] {
        let start = NodeStart { features: features.clone(), ..start_of(3, 3, 2) };
        let decision = session.machine.register_node(&session.view, &start);
        assert_eq!(session.append(decision), Err(ErrorCode::INVALID_REGISTRATION));
        let decision = session.machine.note_features(2, epoch, &features);
        assert!(decision.records.is_empty());
        session.append(decision);
    }
    session.start(&NodeStart { features: many(64), ..start_of(3, 3, 2) });
}

/// Nodes of several releases begin a cluster at the lowest level. It has no record, which Mainstem 0.1 would not start with.
#[test]
fn a_new_cluster_begins_at_the_level_of_its_view() {
    let features = |session: &Session| session.machine.image().features().count();
    assert_eq!(features(&cluster(1)), FEATURES.len());
    assert_eq!(features(&cluster(2)), FEATURES.len() + 1);
    let single = Session::new("");
    assert_eq!((features(&single), served(&single)), (FEATURES.len(), None), "one node has no level");
    let mut single = single;
    assert_eq!(
        single.update(VERSION, &[(NAME, 2, UPGRADE)]),
        refusal(2, "Local controller 1 does not support this feature.")
    );
}

/// A metadata leader of Mainstem 0.1 leaves out the features of those that it registers.
#[test]
fn a_heartbeat_completes_a_registration() {
    let mut session = cluster(1);
    let epoch = session.start(&start_of_0_1(2, 2));
    let features = start_of(2, 2, 2).features;
    let registered = |session: &Session| session.machine.image().broker(2).expect("registered").clone();
    let note = |session: &mut Session, epoch, features: &FeatureRanges| {
        let decision = session.machine.note_features(2, epoch, features);
        session.append(decision);
        session.commit_all();
    };
    let before = registered(&session);
    note(&mut session, epoch - 1, &features);
    assert_eq!(registered(&session), before, "a heartbeat of the start before");
    note(&mut session, epoch, &features);
    let after = BrokerImage { features: features.clone(), ..before };
    assert_eq!(registered(&session), after);
    let end = session.end();
    note(&mut session, epoch, &features);
    assert_eq!(session.end(), end, "once");

    session.start(&start_of(3, 3, 2));
    let mut copy = MetadataStateMachine::default();
    for (offset, value) in (0..).zip(session.machine.image().snapshot()) {
        copy.replay(offset, &value).expect("a record of a snapshot");
    }
    assert_eq!(copy.image().broker(2), Some(&after), "a snapshot keeps it");
    assert_eq!(session.update(VERSION, &[(NAME, 2, UPGRADE)]), format!("ok {NAME}"));
}

/// A snapshot of Mainstem 0.1 has registrations without features.
#[test]
fn a_node_without_features_is_one_of_the_first_release() {
    let mut session = cluster(1);
    let mut broker = session.machine.image().broker(1).expect("registered").clone();
    broker.features.clear();
    let record = registration::registration_record(&broker);
    let decision = session.machine.decide(vec![record], ());
    session.append(decision);
    session.commit_all();
    for node in 2..=3 {
        session.start(&start_of(node, 2, 2));
    }
    let raise = |session: &mut Session| session.update(VERSION, &[(NAME, 2, UPGRADE)]);
    assert_eq!(raise(&mut session), refusal(2, "Broker 1 only supports versions 1-1"));
    let noted = session.machine.note_features(1, broker.epoch, &start_of(1, 1, 2).features);
    session.append(noted);
    assert_eq!(raise(&mut session), format!("ok {NAME}"));
}

/// Metadata at a level that a release does not know are no metadata for it.
#[test]
fn a_release_does_not_start_with_a_level_that_it_does_not_know() {
    let session = cluster(2);
    let image = session.machine.image();
    assert_eq!(image.unsupported_feature(&view_of_three(2, 1)), None);
    assert_eq!(image.unsupported_feature(&view_of_three(1, 1)), Some((NAME, 2)));
    assert_eq!(image.unsupported_feature(&view("")), Some((NAME, 2)), "nor does one node alone");
}
