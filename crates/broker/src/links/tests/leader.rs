//! A leader whose followers are the test's: what they say is taken by hand, so that nothing depends on how long anything takes.

use std::fmt::{Debug, Write};

use mainstem_log::dir::{LogDir, NodeIdentity};
use mainstem_log::sim::{Call, Hooked};
use mainstem_log::storage::{RealStorage, Storage};
use mainstem_log::{Log, LogConfig, PartitionIdentity};
use mainstem_replication::eraftpb::{Entry, Message, MessageType};
use mainstem_replication::journal::{Journal, Start};
use mainstem_replication::{Configuration, GroupId, Replica, ReplicaId, ReplicaOptions, found};
use tracing::field::Field;
use tracing::span;

use super::cluster::{self, append, gate};
use super::*;
use crate::settings::TopicSettings;
use crate::storage::partition::{NoLog, ReplicaEvents};

const GROUP: GroupId = GroupId { topic_id: [7; 16], partition: 0 };
/// The term in which it leads.
const TERM: u64 = 1;

struct NoEvents;

impl ReplicaEvents for NoEvents {
    fn role_changed(&self, _: &Arc<Partition>, _: mainstem_replication::Role) {}
}

/// The first replica of a group, which leads. There are no links to the others.
pub(crate) struct Leader {
    pub(crate) partition: Arc<Partition>,
    links: Arc<Links>,
    dir: Arc<LogDir>,
    clock: Clock,
    _home: tempfile::TempDir,
}

impl Leader {
    /// It has the others' votes, and nothing else of them yet.
    pub(crate) fn of_voters(count: i32) -> Leader {
        Leader::with(count, 1, 30_000)
    }

    /// The same with `min.insync.replicas` and `replica.lag.time.max.ms`.
    fn with(count: i32, min_insync_replicas: i32, replica_lag_max_ms: u64) -> Leader {
        Leader::on(Arc::new(RealStorage), (count, min_insync_replicas, replica_lag_max_ms))
    }

    fn on(
        storage: Arc<dyn Storage>,
        (count, min_insync_replicas, replica_lag_max_ms): (i32, i32, u64),
    ) -> Leader {
        let (clock, home) = (Clock::start(), tempfile::tempdir().expect("a directory"));
        let identity = NodeIdentity { cluster_id: Some("cluster".into()), node_id: 1 };
        let dir = LogDir::open(storage, home.path(), &identity, "boot").expect("it opens");
        let config = LogConfig { segment_bytes: 4_000, retention_bytes: Some(4_000), ..LogConfig::default() };
        let config = Arc::new(config);
        let replica = elected(&dir, config.clone(), count);
        let identity = LinkIdentity { node: 1, generation: 1, cluster_id: "cluster".into() };
        let options = LinksOptions {
            clock: clock.clone(),
            replica_lag_max_ms,
            catch_up_rate: CATCH_UP_RATE,
            silence: SilenceLimits::default(),
            awaited: Arc::default(),
        };
        let links = Links::start(identity, Vec::new(), options, gate()).expect("threads can be made");
        let settings = Arc::new(TopicSettings::of_log(config, false, min_insync_replicas));
        let events = Arc::new(NoEvents);
        let partition =
            Partition::replicated("t".into(), 0, dir.clone(), settings, replica, events, links.clone());
        Leader { partition, links, dir, clock, _home: home }
    }

    pub(crate) fn append(&self, value: &[u8]) {
        append(&self.partition, &self.clock, value).expect("it leads");
    }

    /// Appends a value, and waits for all that `min.insync.replicas` asks for.
    fn produce(&self, value: &[u8]) -> cluster::Fate {
        let (offset, epoch) = append(&self.partition, &self.clock, value).expect("it leads");
        let (wait, fate) = cluster::waiter();
        self.partition.when_committed(offset + 1, epoch, wait);
        fate
    }

    /// Another replica says that all entries up to one are on its disk.
    pub(crate) fn hear_of_entries(&self, node: i32, index: u64) {
        self.hear(Message { index, ..said(MessageType::MsgAppendResponse, node) });
    }

    fn hear(&self, message: Message) {
        if let Some(step) = self.partition.step_unless_it_waits(message, 0, &[]).expect("it is taken") {
            self.partition.carry_out_disk_step(step, 0, &[]).expect("it is taken");
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.links.stop();
        drop(self.partition.take_log(NoLog::Gone));
        self.dir.unlock();
    }
}

fn said(msg_type: MessageType, node: i32) -> Message {
    let (from, to) = (ReplicaId::new(node, 1).0, ReplicaId::new(1, 1).0);
    Message { msg_type, from, to, term: TERM, ..Message::default() }
}

fn elected(dir: &Arc<LogDir>, config: Arc<LogConfig>, voters: i32) -> Replica {
    let (mut journal, _) = Journal::open(dir.storage().clone(), dir.path()).expect("a journal");
    let own = ReplicaId::new(1, 1);
    let replicas: Vec<_> = (1..=voters).map(|node| ReplicaId::new(node, 1)).collect();
    let configuration = Configuration::of_voters(&replicas);
    found(&mut journal, GROUP, own, &configuration, Start::default()).expect("a founding");
    let identity = PartitionIdentity { topic: "t".into(), topic_id: GROUP.topic_id, partition: 0 };
    let (log, _) = Log::open(dir, &identity, config, 0).expect("a log");
    dir.recovered().expect("the recovery is noted");
    let options =
        ReplicaOptions { write_caching: false, seed: 1, high_watermark: 0, broadcast_commit: false };
    let journal = Arc::new(Mutex::new(journal));
    let mut replica = Replica::open(log, GROUP, journal, options, 0).expect("the replica opens");
    replica.campaign();
    for msg_type in [MessageType::MsgRequestPreVoteResponse, MessageType::MsgRequestVoteResponse] {
        for node in 2..=voters {
            replica.step(said(msg_type, node), 0, &[]).expect("it is taken");
        }
        // The others are asked for their votes when its own is durable.
        replica.journal().lock().sync().expect("the disk works");
        replica.persisted();
    }
    replica
}

/// What is logged on this thread, a line an event.
#[derive(Clone, Default)]
pub(crate) struct Logged(Arc<Mutex<Vec<String>>>);

impl Logged {
    /// The lines that have something in them.
    pub(crate) fn lines_with(&self, part: &str) -> Vec<String> {
        self.0.lock().iter().filter(|line| line.contains(part)).cloned().collect()
    }
}

impl tracing::Subscriber for Logged {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = event.metadata().level().to_string();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            write!(line, " {field}={value:?}").expect("a string takes all");
        });
        self.0.lock().push(line);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A replica that was away for longer than retention is asked first what it has; then it is refused by name, once, and counted. The others
/// go on.
#[test]
fn a_replica_that_was_away_for_longer_than_retention_is_refused_by_name() {
    const AWAY: i32 = 5;
    let leader = Leader::with(AWAY, 1, 600_000);
    (0..20).for_each(|_| leader.append(&[7; 1_000]));
    let hear_of_all = |count: u64| (2..AWAY).for_each(|node| leader.hear_of_entries(node, 1 + count));
    hear_of_all(20);
    let durable_end = || leader.partition.ends().expect("it leads").durable_end;
    wait_for("its own disk", || (durable_end() == 20).then_some(()));
    // By size, which leaves the active segment whatever the time.
    wait_for("retention", || {
        leader.partition.maintain(&leader.clock).expect("the disk works");
        // The move of the log start is an entry as well.
        hear_of_all(21);
        let ends = leader.partition.ends().expect("it leads");
        (ends.log_start > 0 && ends.high_watermark == 20).then_some(())
    });
    // Now the records before it go.
    leader.partition.maintain(&leader.clock).expect("the disk works");
    assert_eq!(leader.links.counts().0, 0);
    let logged = Logged::default();
    tracing::subscriber::with_default(logged.clone(), || {
        leader.hear(said(MessageType::MsgHeartbeatResponse, AWAY));
        assert_eq!(leader.links.counts().0, 0, "it may have more than it was heard to have");
        let log_start = leader.partition.ends().expect("it leads").log_start;
        let start = leader.partition.entry_before(log_start).expect("the group begins there");
        // It has nothing.
        let refusal = said(MessageType::MsgAppendResponse, AWAY);
        leader.hear(Message { reject: true, index: start.index, ..refusal });
        (0..3).for_each(|_| leader.hear(said(MessageType::MsgHeartbeatResponse, AWAY)));
    });
    assert_eq!(leader.links.counts().0, 1, "it is counted once");
    wait_for("it was not here lately", || {
        (2..AWAY).for_each(|node| leader.hear(said(MessageType::MsgHeartbeatResponse, node)));
        leader.partition.tick(leader.clock.mono_ms());
        (leader.partition.in_sync() == [1, 2, 3, 4]).then_some(())
    });
    let lines = logged.0.lock().clone();
    let errors: Vec<_> = lines.iter().filter(|line| line.starts_with("ERROR")).collect();
    assert_eq!(errors.len(), 1, "{lines:?}");
    for named in ["topic=t", "partition=0", "node=5", "needs records that retention has removed"] {
        assert!(errors[0].contains(named), "{named}: {errors:?}");
    }
    leader.append(&[8; 8]);
    hear_of_all(22);
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
    leader.hear_of_entries(2, 2);
    wait_for("its own disk", || (ends().durable_end == 1).then_some(()));
    wait_for("the commit", || (ends().high_watermark == 1).then_some(()));
    leader.hear_of_entries(2, 2);
    assert_eq!(fate.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty), "two of three have it");
    leader.hear_of_entries(3, 2);
    assert_eq!(fate.recv_timeout(SOON), Ok(Ok(())));
    let fate = leader.produce(b"2");
    let refused = wait_for("the lag", || {
        leader.hear_of_entries(2, 3);
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
        leader.hear(said(MessageType::MsgHeartbeatResponse, 2));
        tick();
        (!may_produce()).then_some(())
    });
    let health = leader.partition.replication_health();
    assert!(health.is_leader, "it is heard by a majority");
    assert_eq!((health.in_sync, health.needed), (1, 2));
    // The first entry has no records.
    leader.hear_of_entries(2, 2);
    tick();
    assert!(may_produce(), "two of three have everything");
}

/// Another leader has no entries of this one behind the first, so that the log is cut; its directory hangs in that. Nothing that a link
/// has for the group waits for it meanwhile, and the group goes on when the cut is done.
#[test]
fn a_cut_that_hangs_holds_up_no_link() {
    let storage = Hooked::new(Arc::new(RealStorage));
    let leader = Leader::on(Arc::new(storage.clone()), (3, 1, 30_000));
    leader.append(b"1");
    let partition = &leader.partition;
    wait_for("its own disk", || (partition.ends().expect("it leads").durable_end == 1).then_some(()));
    let ((begun, is_begun), (release, gate)) = (mpsc::channel(), mpsc::channel::<()>());
    let gate = Mutex::new(gate);
    storage.set_hook(move |call, _| {
        if call == Call::SetLen {
            begun.send(()).expect("the test listens");
            gate.lock().recv().expect("it is released");
        }
        Ok(())
    });
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
        partition.let_stand(ReplicaId::new(2, 1), TERM + 1);
        partition.note_refusal(2);
        partition.report_unreachable(2);
        partition.node_gone(2, &|_| true, leader.clock.mono_ms());
        partition.tick(leader.clock.mono_ms());
        storage.clear_hook();
        release.send(()).expect("the cut waits");
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
