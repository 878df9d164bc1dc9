//! A leader of which nothing is heard but what the test says.

use std::path::Path;
use std::sync::mpsc;

use mainstem_links::Group as _;
use mainstem_log::sim::{Call, Hooked};
use mainstem_log::storage::RealStorage;
use mainstem_replication::ReplicaId;
use mainstem_replication::eraftpb::{Entry, Message, MessageType};
use mainstem_testkit::Logged;
use parking_lot::Mutex;

use super::*;
use crate::testing::{Leader, TERM, said};

/// A replica fails outside of an append, as in maintenance. Its waits end with the next tick.
#[test]
fn a_replica_that_has_failed_ends_the_waits_with_the_next_tick() {
    let leader = Leader::of_voters(3);
    let fate = leader.produce(&[7; 100]);
    let durable_end = || leader.partition.ends().expect("it leads").durable_end;
    wait_for("its own disk", || (durable_end() == 1).then_some(()));
    let failed = leader.partition.with_replica_by_hand(|replica| replica.stop("the disk is gone".to_owned()));
    assert!(failed.is_some() && leader.partition.has_failed_silently());
    leader.partition.tick(leader.clock.mono_ms());
    assert_eq!(fate.try_recv(), Ok(Err(ErrorCode::KAFKA_STORAGE_ERROR)));
    assert!(leader.partition.replica_failure().is_some_and(|why| why.contains("the disk is gone")));
    leader.partition.check();
}

/// A replica that was away for longer than retention is asked first what it has; then it is said once that it gets a copy, and counted. The
/// others go on.
#[test]
fn a_replica_that_was_away_for_longer_than_retention_is_named() {
    const AWAY: i32 = 5;
    let leader = Leader::with(AWAY, 1, 600_000);
    (0..20).for_each(|_| leader.append(&[7; 1_000]));
    let acknowledged_by_all = |count: u64| (2..AWAY).for_each(|node| leader.acknowledged_by(node, 1 + count));
    acknowledged_by_all(20);
    let durable_end = || leader.partition.ends().expect("it leads").durable_end;
    wait_for("its own disk", || (durable_end() == 20).then_some(()));
    // By size, which leaves the active segment whatever the time.
    wait_for("retention", || {
        leader.partition.maintain(&leader.clock).expect("the disk works");
        // The move of the log start is an entry as well.
        acknowledged_by_all(21);
        let ends = leader.partition.ends().expect("it leads");
        (ends.log_start > 0 && ends.high_watermark == 20).then_some(())
    });
    // Now the records before it go.
    leader.partition.maintain(&leader.clock).expect("the disk works");
    assert_eq!(leader.links.counts().0, 0);
    let logged = Logged::default();
    tracing::subscriber::with_default(logged.clone(), || {
        leader.accept(said(MessageType::MsgHeartbeatResponse, AWAY));
        assert_eq!(leader.links.counts().0, 0, "it may have more than it was heard to have");
        let log_start = leader.partition.ends().expect("it leads").log_start;
        let start = leader.partition.entry_before(log_start).expect("the group begins there");
        // It has nothing.
        let refusal = said(MessageType::MsgAppendResponse, AWAY);
        leader.accept(Message { reject: true, index: start.index, ..refusal });
        (0..3).for_each(|_| leader.accept(said(MessageType::MsgHeartbeatResponse, AWAY)));
    });
    assert_eq!(leader.links.counts().0, 1, "it is counted once");
    wait_for("it was not here lately", || {
        (2..AWAY).for_each(|node| leader.accept(said(MessageType::MsgHeartbeatResponse, node)));
        leader.partition.tick(leader.clock.mono_ms());
        (leader.partition.in_sync() == [1, 2, 3, 4]).then_some(())
    });
    let lines = logged.lines_with("");
    let said: Vec<_> = lines.iter().filter(|line| line.starts_with("WARN")).collect();
    assert_eq!(said.len(), 1, "{lines:?}");
    for named in
        ["topic=t", "partition=0", "node=5", "needs records that retention or compaction has removed"]
    {
        assert!(said[0].contains(named), "{named}: {said:?}");
    }
    leader.append(&[8; 8]);
    acknowledged_by_all(22);
    assert_eq!(leader.partition.ends().map(|ends| ends.high_watermark), Ok(21), "the others go on");
}

/// With `min.insync.replicas=3` a commit, which two of three make, is no acknowledgement: that waits for the third disk. Where the third
/// replica is silent for longer than `replica.lag.time.max.ms`, the producer hears that its records are on too few.
#[test]
fn an_acknowledgement_waits_for_as_many_disks_as_are_asked_for() {
    let leader = Leader::with(3, 3, 300);
    let ends = || leader.partition.ends().expect("it leads");
    // Entry 1 is the leader's first, without records.
    let fate = leader.produce(b"1");
    leader.acknowledged_by(2, 2);
    wait_for("its own disk", || (ends().durable_end == 1).then_some(()));
    wait_for("the commit", || (ends().high_watermark == 1).then_some(()));
    leader.acknowledged_by(2, 2);
    assert_eq!(fate.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty), "two of three have it");
    leader.acknowledged_by(3, 2);
    assert_eq!(fate.recv_timeout(SOON), Ok(Ok(())));
    let fate = leader.produce(b"2");
    let refused = wait_for("the lag", || {
        leader.acknowledged_by(2, 3);
        leader.partition.tick(leader.clock.mono_ms());
        fate.try_recv().ok()
    });
    assert_eq!(refused, Err(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND));
    assert_eq!(ends().high_watermark, 2, "it is committed all the same");
}

/// A replica that answers keeps its leader in office. Where it takes none of the records, and the third one is away, no majority will
/// have them: producers are refused, and need not wait for their time-outs.
#[test]
fn producers_are_refused_where_no_majority_keeps_up() {
    let leader = Leader::with(3, 1, 300);
    leader.append(b"1");
    let may_produce = || leader.partition.has_min_insync(1);
    assert!(may_produce(), "all count at the beginning");
    let tick = || leader.partition.tick(leader.clock.mono_ms());
    wait_for("the lag", || {
        leader.accept(said(MessageType::MsgHeartbeatResponse, 2));
        tick();
        (!may_produce()).then_some(())
    });
    let health = leader.partition.replication_health();
    assert!(health.is_leader, "it is heard by a majority");
    assert_eq!((health.in_sync, health.needed), (1, 2));
    // The first entry has no records.
    leader.acknowledged_by(2, 2);
    tick();
    assert!(may_produce(), "two of three have everything");
}

/// A leader with a record that is durable here, over a disk that a test may have hang.
fn on_a_disk() -> (Hooked, Leader) {
    let storage = Hooked::new(Arc::new(RealStorage));
    let leader = Leader::on(Arc::new(storage.clone()), (3, 1, 30_000));
    leader.append(b"1");
    let durable_end = || leader.partition.ends().expect("it leads").durable_end;
    wait_for("its own disk", || (durable_end() == 1).then_some(()));
    (storage, leader)
}

/// Has calls hang, each of which is announced, until the second value is dropped.
fn hang(
    storage: &Hooked,
    hangs: impl Fn(Call, &Path) -> bool + Send + Sync + 'static,
) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
    let ((begun, is_begun), (release, gate)) = (mpsc::channel(), mpsc::channel::<()>());
    let gate = Mutex::new(gate);
    storage.set_hook(move |call, path| {
        if hangs(call, path) {
            begun.send(()).expect("the test listens");
            let _ = gate.lock().recv();
        }
        Ok(())
    });
    (is_begun, release)
}

/// Another leader has none of this leader's entries but the first, so that the log is truncated, and its directory hangs in that. No
/// message of a link waits for it meanwhile, and the group continues when the truncation is done.
#[test]
fn a_cut_that_hangs_holds_up_no_link() {
    let (storage, leader) = on_a_disk();
    let partition = &leader.partition;
    let (is_begun, release) = hang(&storage, |call, _| call == Call::SetLen);
    let another = |msg_type| Message { term: TERM + 1, ..said(msg_type, 2) };
    let begins = Entry { index: 2, term: TERM + 1, ..Entry::default() };
    let append =
        Message { index: 1, log_term: TERM, entries: vec![begins].into(), ..another(MessageType::MsgAppend) };
    let take = |message: Message| partition.step_unless_it_waits(message, 0, &[]).expect("a leader sends it");
    assert!(take(another(MessageType::MsgHeartbeat)).is_none(), "nothing is cut");
    let cut = take(append.clone()).expect("the entry is another one");
    assert!(take(append.clone()).is_none(), "one message at a time waits for the disk");
    std::thread::scope(|scope| {
        let carried_out = scope.spawn(|| partition.carry_out_disk_step(cut, 0, &[]));
        is_begun.recv().expect("the log is cut");
        // The lock of the partition is taken: each of these would wait until the test ends.
        assert!(take(another(MessageType::MsgHeartbeat)).is_none());
        partition.accept_coalesced(ReplicaId::new(2, 1), TERM + 1);
        partition.note_refusal(2);
        partition.report_unreachable(2);
        partition.node_gone(2, &|_| true, leader.clock.mono_ms());
        partition.tick(leader.clock.mono_ms());
        storage.clear_hook();
        drop(release);
        carried_out.join().expect("no panic").expect("a leader sends it");
    });
    assert!(take(append.clone()).is_none(), "it is here now");
    let with_data = Entry { index: 3, term: TERM + 1, data: vec![7].into(), ..Entry::default() };
    let follows = Message { index: 2, log_term: TERM + 1, entries: vec![with_data].into(), ..append };
    let step = take(follows.clone()).expect("an entry with data is synced before anything else");
    partition.carry_out_disk_step(step, 0, &[]).expect("a leader sends it");
    assert!(take(follows).is_none(), "it is here now");
    assert_eq!(partition.leadership().leader, Some(2));
    assert_eq!(partition.ends().map(|ends| ends.log_end), Ok(0), "its record is gone");
}

/// The journal's disk hangs while the leader proposes that the log is to start elsewhere. A link waits for that once, and then drops what is
/// for this partition.
#[test]
fn a_proposal_that_hangs_holds_up_no_link() {
    let (storage, leader) = on_a_disk();
    let partition = &leader.partition;
    leader.acknowledged_by(2, 2);
    wait_for("the commit", || (partition.ends().expect("it leads").high_watermark == 1).then_some(()));
    let is_of_journal = |call, path: &Path| call == Call::Sync && path.ends_with("mainstem.groups");
    let (is_begun, release) = hang(&storage, is_of_journal);
    std::thread::scope(|scope| {
        let (wait, fate) = waiter();
        let proposed = scope.spawn(|| partition.delete_records_before(1, wait));
        is_begun.recv().expect("the journal is synced");
        // The lock of the partition is taken: each of these would wait until the test ends.
        leader.acknowledged_by(2, 2);
        partition.accept_coalesced(ReplicaId::new(2, 1), TERM);
        partition.note_refusal(2);
        partition.report_unreachable(2);
        partition.node_gone(2, &|_| true, leader.clock.mono_ms());
        partition.tick(leader.clock.mono_ms());
        storage.clear_hook();
        drop(release);
        assert_eq!(proposed.join().expect("no panic"), Ok(1));
        leader.acknowledged_by(2, 3);
        assert_eq!(fate.recv_timeout(SOON), Ok(Ok(())), "it is taken from links again");
    });
    assert_eq!(partition.ends().map(|ends| ends.log_start), Ok(1));
}

/// A replica that the metadata do not name any more stays where a leader of a later term than they know of may count on it.
#[test]
fn a_replica_leaves_for_good_where_no_later_leader_counts_on_it() {
    let leader = Leader::of_voters(3);
    assert!(leader.partition.leave_for_good(Some(TERM - 1)).is_none());
    assert!(leader.partition.leadership().is_leader, "it takes part as before");
    let (_, group) = leader.partition.leave_for_good(Some(TERM)).expect("it may go");
    assert_eq!(Some(group), leader.partition.group_id());
    assert!(leader.partition.is_elsewhere());
}
