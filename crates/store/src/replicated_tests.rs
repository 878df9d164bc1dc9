//! Three replicas in one process, with real sockets and files between them.

mod cluster;
mod compaction;
mod leader;

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mainstem_links::testing::{Hello, greet, is_ended};
use mainstem_records::LeaderEpoch;
use mainstem_replication::eraftpb::{Entry, Message, MessageType};
use mainstem_replication::{GroupId, ReplicaId};
use mainstem_runtime::clock::Clock;
use mainstem_testkit::Random;
use mainstem_wire::ErrorCode;

use crate::partition::Partition;
use crate::settings::TopicSettings;
use crate::testing::{append, waiter};
use cluster::{Cluster, GROUP};

const SOON: Duration = Duration::from_secs(60);

/// Waits for a condition, and fails where it does not come about.
#[track_caller]
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn records_are_on_a_majority_before_they_are_acknowledged_and_survive_their_leader() {
    let mut cluster = Cluster::start(1);
    let first = cluster.leader();
    for value in 0..50 {
        assert_eq!(cluster.produce(first, value), Ok(()));
    }
    let killed = Instant::now();
    cluster.kill(first);
    let second = cluster.leader();
    assert_ne!(first, second);
    cluster.acknowledge(second, 50);
    let took = killed.elapsed();
    // An election takes 2 s; several may come to nothing where threads wait for the processor and the disk.
    assert!(took < Duration::from_secs(30), "acknowledged {took:?} after the leader was gone");
    println!("the second leader acknowledged after {took:?}");
    cluster.restart(first);
    cluster.check(51);
}

#[test]
fn a_tail_that_was_not_acknowledged_is_cut_and_its_waits_fail() {
    let mut cluster = Cluster::with_wires(2, false);
    let first = cluster.leader();
    assert_eq!(cluster.produce(first, 0), Ok(()));
    cluster.cut_off(first);
    let tail: Vec<_> = (100..110).map(|value| cluster.begin(first, value)).collect();
    let second = wait_for("another leader", || cluster.leader_of_others(first));
    assert_eq!(cluster.produce(second, 1), Ok(()));
    cluster.join(first);
    for wait in tail {
        assert_eq!(wait.recv_timeout(SOON), Ok(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER)));
    }
    assert_eq!(cluster.produce(second, 2), Ok(()));
    cluster.check(3);
}

#[test]
fn leadership_is_given_away_and_the_old_leader_refuses() {
    let mut cluster = Cluster::start(3);
    let first = cluster.leader();
    assert_eq!(cluster.produce(first, 0), Ok(()));
    let to = (first + 1) % 3;
    assert!(cluster.partition(first).transfer(to as i32 + 1));
    wait_for("the other leads", || (cluster.partition(to).leadership().is_settled).then_some(()));
    wait_for("the first one knows", || {
        (cluster.partition(first).leadership().leader == Some(to as i32 + 1)).then_some(())
    });
    assert_eq!(cluster.produce(first, 9), Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    assert_eq!(cluster.partition(first).lead(LeaderEpoch::NONE), Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    assert_eq!(cluster.produce(to, 1), Ok(()));
    assert_eq!(cluster.partition(to).in_sync(), [1, 2, 3]);
    cluster.check(2);
}

/// No time has to pass: one of a node that the cluster has fenced, and one that its own node says to be out of service.
#[test]
fn a_replica_that_is_known_to_be_gone_is_out_of_sync_at_once() {
    let mut cluster = Cluster::start(40);
    cluster.acknowledge_anywhere(0);
    let all = [1, 2, 3];
    let another = GroupId { topic_id: [9; 16], ..GROUP };
    // Places behind the leader: of fenced nodes, then what the one two places behind it says of its replicas, and who is left.
    type Case = (&'static [usize], Option<GroupId>, &'static [usize]);
    let cases: [Case; 6] = [
        (&[], None, &[0, 1, 2]),
        (&[1, 0], None, &[0, 2]),
        (&[1], Some(another), &[0, 2]),
        (&[1], Some(GROUP), &[0]),
        (&[], Some(GROUP), &[0, 1]),
        (&[], None, &[0, 1, 2]),
    ];
    for (fenced, of_other, left) in cases {
        let seen = wait_for("a leader that is one while it is looked at", || {
            let leader = cluster.leader();
            let (partition, links) = (cluster.partition(leader), cluster.links(leader));
            let node = |behind: usize| all[(leader + behind) % 3];
            let ids = |behind: &[usize]| behind.iter().map(|behind| node(*behind)).collect::<BTreeSet<_>>();
            let epoch = partition.leadership().epoch;
            links.out_of_sync.set_nodes(ids(fenced));
            links.out_of_sync.set_replicas(node(2), of_other.into_iter().collect::<HashSet<_>>());
            let (in_sync, has_two) = (partition.in_sync(), partition.has_min_insync(2));
            let is_under_replicated = partition.replication_health().is_under_replicated();
            let leadership = partition.leadership();
            let seen = (in_sync.into_iter().collect::<BTreeSet<_>>(), has_two, is_under_replicated);
            (leadership.is_leader && leadership.epoch == epoch).then(|| (seen, ids(left)))
        });
        let (seen, left) = seen;
        let (has_two, is_under_replicated) = (left.len() >= 2, left.len() < 3);
        assert_eq!(seen, (left, has_two, is_under_replicated));
    }
}

#[test]
fn a_leader_that_is_cut_off_confirms_nothing_and_soon_names_nobody() {
    let mut cluster = Cluster::with_wires(5, false);
    let first = cluster.leader();
    let epoch = cluster.partition(first).leadership().epoch;
    let ask = |cluster: &Cluster, node: usize, epoch| {
        let (wait, fate) = waiter();
        cluster.partition(node).when_confirmed(epoch, wait);
        fate
    };
    let asked: Vec<_> = (0..3).map(|_| ask(&cluster, first, epoch)).collect();
    for fate in asked {
        assert_eq!(fate.recv_timeout(SOON), Ok(Ok(())));
    }
    let refused = Ok(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    assert_eq!(
        ask(&cluster, first, LeaderEpoch::new(epoch.get() - 1)).recv_timeout(SOON),
        refused,
        "it led then, and may not have since"
    );
    assert_eq!(ask(&cluster, (first + 1) % 3, epoch).recv_timeout(SOON), refused);
    cluster.cut_off(first);
    let asked: Vec<_> = (0..3).map(|_| ask(&cluster, first, epoch)).collect();
    let second = wait_for("another leader", || cluster.leader_of_others(first));
    let now = cluster.partition(second).leadership().epoch;
    assert_eq!(ask(&cluster, second, now).recv_timeout(SOON), Ok(Ok(())));
    for fate in asked {
        assert_eq!(fate.recv_timeout(SOON), refused);
    }
    let leadership = cluster.partition(first).leadership();
    assert!(leadership.is_searching && leadership.leader.is_none(), "{leadership:?}");
    cluster.join(first);
    wait_for("the new leader is known", || {
        (cluster.partition(first).leadership().leader == Some(second as i32 + 1)).then_some(())
    });
}

#[test]
fn a_quiescent_group_keeps_its_leader_and_resumes() {
    let mut cluster = Cluster::start(6);
    let leader = cluster.leader();
    assert_eq!(cluster.produce(leader, 0), Ok(()));
    let epoch = cluster.partition(leader).leadership().epoch;
    let begun = Instant::now();
    // Longer than the longest election time-out.
    wait_for("time", || (begun.elapsed() > Duration::from_millis(2_500)).then_some(()));
    for node in 0..3 {
        let leadership = cluster.partition(node).leadership();
        assert_eq!((leadership.leader, leadership.epoch), (Some(leader as i32 + 1), epoch));
    }
    assert_eq!(cluster.produce(leader, 1), Ok(()));
    // Followers learn of the commit with the next heartbeat, since the group is not quiescent any more.
    let end = |cluster: &Cluster, node: usize| cluster.partition(node).ends().map(|ends| ends.high_watermark);
    for node in 0..3 {
        wait_for("the commit", || (end(&cluster, node) == Ok(2)).then_some(()));
    }
    cluster.check(2);
}

#[test]
fn records_are_deleted_on_all_replicas() {
    let mut cluster = Cluster::start(4);
    // One lacks what is deleted, and gets it all the same: its segment is there.
    let away = (cluster.leader() + 2) % 3;
    cluster.kill(away);
    (0..20).for_each(|value| cluster.acknowledge_anywhere(value));
    wait_for("the deletion", || {
        let (wait, done) = waiter();
        let log_start = cluster.partition(cluster.leader()).delete_records_before(10, wait);
        (log_start == Ok(10) && done.recv_timeout(SOON) == Ok(Ok(()))).then_some(())
    });
    cluster.restart(away);
    for node in 0..3 {
        let start = |cluster: &Cluster| cluster.partition(node).ends().map(|ends| ends.log_start);
        wait_for("the log start", || (start(&cluster) == Ok(10)).then_some(()));
    }
    // The leader may change meanwhile.
    wait_for("a follower's refusal", || {
        let (wait, _done) = waiter();
        let follower = cluster.partition((cluster.leader() + 1) % 3);
        (follower.delete_records_before(11, wait) == Err(ErrorCode::NOT_LEADER_OR_FOLLOWER)).then_some(())
    });
}

/// Records that are acknowledged from the page cache are not synced until `write.caching` is switched off.
#[test]
fn what_was_acknowledged_in_the_page_cache_is_synced_when_that_is_switched_off() {
    let mut cluster = Cluster::with_wires(6, true);
    for value in 0..20 {
        cluster.acknowledge_anywhere(value);
    }
    cluster.check_acknowledged();
    for node in 0..3 {
        let partition = cluster.partition(node);
        let settings = TopicSettings::of_log(partition.settings().log.clone(), false, 2);
        partition.set_settings(Arc::new(settings));
        let ends = || partition.ends().expect("it runs");
        wait_for("its sync", || (ends().durable_end == ends().log_end).then_some(()));
    }
    cluster.acknowledge_anywhere(20);
    let ends = |node: usize| cluster.partition(node).ends().expect("it runs");
    let committed = ends(cluster.leader()).high_watermark;
    let durable = (0..3).filter(|node| ends(*node).durable_end >= committed);
    assert!(durable.count() >= 2, "it is on a majority of the disks before it is acknowledged");
    cluster.check_acknowledged();
}

#[test]
fn a_replica_that_catches_up_takes_its_time_and_holds_up_no_other() {
    check_catch_up(Cluster::that_catch_up(7, 300, (1 << 20, None)));
}

#[test]
fn the_rate_of_an_operator_takes_the_place_of_the_usual_one() {
    check_catch_up(Cluster::that_catch_up(8, 300, (u64::MAX, Some(1 << 20))));
}

/// Records that a replica missed while it was away go to it at 1 MiB/s from each leader; those that are there do not wait for it.
fn check_catch_up(mut cluster: Cluster) {
    /// Acknowledgements of which it is known how long they take.
    const USUAL: u64 = 10;
    /// Records that a replica misses: 2.1 MB.
    const MISSED: usize = 700;
    let away = (cluster.leader() + 1) % 3;
    cluster.acknowledge_anywhere(0);
    cluster.kill(away);
    wait_for("out of sync", || (cluster.partition(cluster.leader()).in_sync().len() == 2).then_some(()));
    let asked = Instant::now();
    (0..USUAL).for_each(|value| cluster.acknowledge_anywhere(1_000 + value));
    let usual = asked.elapsed().div_f64(USUAL as f64);
    let (mut missed, begun) = (0, Instant::now());
    while missed < MISSED {
        assert!(begun.elapsed() < SOON, "{missed} of {MISSED} records are acknowledged");
        let leader = cluster.leader();
        let fates: Vec<_> = (missed..MISSED).map(|_| cluster.begin_bytes(leader, &[7; 3_000])).collect();
        missed += fates.into_iter().filter(|fate| fate.recv_timeout(SOON) == Ok(Ok(()))).count();
    }
    cluster.restart(away);
    let (begun, mut written) = (Instant::now(), 0);
    let mut leaders = BTreeSet::new();
    let end = |cluster: &Cluster, node: usize| cluster.partition(node).ends().map(|ends| ends.log_end);
    loop {
        let leader = cluster.leader();
        leaders.insert(cluster.partition(leader).leadership().epoch.get());
        if end(&cluster, away) == end(&cluster, leader) {
            break;
        }
        assert!(begun.elapsed() < SOON, "it does not catch up: {:?}", end(&cluster, away));
        cluster.acknowledge_anywhere(2_000 + written);
        written += 1;
        // The pace of the load.
        std::thread::sleep(Duration::from_millis(2));
    }
    let took = begun.elapsed();
    // Each new leader sends the first 256 KiB without a delay.
    let least =
        Duration::from_millis(1_500).saturating_sub(Duration::from_millis(500) * (leaders.len() as u32 - 1));
    assert!(took > least, "it caught up within {took:?}, from {} leaders", leaders.len());
    mainstem_testkit::figure("acknowledgement", took.div_f64(written.max(1) as f64).div_duration_f64(usual));
    wait_for("in sync", || (cluster.partition(cluster.leader()).in_sync().len() == 3).then_some(()));
}

/// Faults by seed: nodes are killed, cut off and come back while one producer sends on.
#[test]
fn nothing_acknowledged_is_lost_whatever_happens_to_links_and_nodes() {
    let runs = std::env::var("TEST_LINK_SEEDS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(2);
    let first = std::env::var("TEST_LINK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(100);
    for seed in first..first + runs {
        println!("seed {seed} (TEST_LINK_SEED)");
        let mut random = Random::new(seed);
        let mut cluster = Cluster::with_wires(seed, seed % 2 == 1);
        let mut value = 0;
        for _ in 0..6 {
            let leader = cluster.leader();
            let victim = if random.below(2) == 0 { leader } else { random.below(3) as usize };
            for _ in 0..random.below(30) {
                cluster.acknowledge(leader, value);
                value += 1;
            }
            match random.below(3) {
                0 => {
                    cluster.kill(victim);
                    cluster.acknowledge_anywhere(value);
                    cluster.restart(victim);
                }
                1 => {
                    cluster.cut_off(victim);
                    // Of these nothing is known.
                    drop(
                        (0..random.below(9))
                            .map(|tail| cluster.begin(victim, 1_000_000 + tail))
                            .collect::<Vec<_>>(),
                    );
                    let leader = wait_for("a leader", || cluster.leader_of_others(victim));
                    cluster.acknowledge(leader, value);
                    cluster.join(victim);
                }
                _ => {
                    (0..3).for_each(|node| cluster.kill(node));
                    (0..3).for_each(|node| cluster.restart(node));
                    cluster.acknowledge_anywhere(value);
                }
            }
            value += 1;
        }
        cluster.acknowledge_anywhere(value);
        cluster.check_acknowledged();
    }
}

/// Sends values to one replica, whatever it is at the moment, with several on their way.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    thread: JoinHandle<Vec<(i64, u64)>>,
}

impl Load {
    fn on(partition: Arc<Partition>, first_value: u64) -> Load {
        let (stop, acknowledged, refused) =
            (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (ends, counted, lost) = (stop.clone(), acknowledged.clone(), refused.clone());
        let run = move || {
            let clock = Clock::start();
            let (mut value, mut all, mut waiting) = (first_value, Vec::new(), VecDeque::new());
            loop {
                let is_over = ends.load(Ordering::Acquire);
                if !is_over && waiting.len() < 100 {
                    match append(&partition, &clock, &value.to_be_bytes()) {
                        Ok((offset, epoch)) => {
                            let (wait, fate) = waiter();
                            partition.when_committed(offset + 1, epoch, wait);
                            waiting.push_back((offset, value, fate));
                            value += 1;
                        }
                        Err(error) => assert_eq!(error, ErrorCode::NOT_LEADER_OR_FOLLOWER),
                    }
                }
                let timeout = if is_over { SOON } else { Duration::from_millis(1) };
                match waiting.front().map(|(_, _, fate)| fate.recv_timeout(timeout)) {
                    Some(Ok(result)) => {
                        let (offset, value, _) = waiting.pop_front().expect("it was looked at");
                        match result {
                            Ok(()) => {
                                all.push((offset, value));
                                counted.fetch_add(1, Ordering::Release);
                            }
                            Err(error) => {
                                assert_eq!(error, ErrorCode::NOT_LEADER_OR_FOLLOWER);
                                lost.fetch_add(1, Ordering::Release);
                            }
                        }
                    }
                    Some(Err(_)) => assert!(!is_over, "what was appended has no fate"),
                    None if is_over => return all,
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        };
        Load { stop, acknowledged, refused, thread: std::thread::spawn(run) }
    }

    fn wait_for_more(&self, what: &str) {
        let before = self.acknowledged.load(Ordering::Acquire);
        wait_for(what, || (self.acknowledged.load(Ordering::Acquire) >= before + 50).then_some(()));
    }

    /// Ends the load. Returns offsets and values of the acknowledged records.
    fn end(self) -> Vec<(i64, u64)> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().expect("no panic")
    }
}

/// Reads what one replica says is committed, on and on. Returns all of it.
fn read_on(partition: Arc<Partition>, stop: Arc<AtomicBool>) -> JoinHandle<Vec<(i64, u64)>> {
    std::thread::spawn(move || {
        let mut read = Vec::new();
        let mut next = 0;
        while !stop.load(Ordering::Acquire) {
            let end = partition.ends().expect("it runs").high_watermark;
            if end > next {
                read.extend(cluster::records(&partition, next..end));
                next = end;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        read
    })
}

#[test]
fn a_served_partition_leads_follows_is_cut_and_leads_again_under_load() {
    let mut cluster = Cluster::with_wires(8, false);
    let first = cluster.leader();
    let stop = Arc::<AtomicBool>::default();
    let readers: Vec<_> = (0..3).map(|node| read_on(cluster.partition(node).clone(), stop.clone())).collect();
    let load = Load::on(cluster.partition(first).clone(), 0);
    load.wait_for_more("it leads");

    // The old leader still takes records for a while, which will all be truncated.
    cluster.cut_off(first);
    let second = wait_for("another leader", || cluster.leader_of_others(first));
    let others = Load::on(cluster.partition(second).clone(), 1 << 32);
    others.wait_for_more("the other one leads");
    let ends = cluster.partition(first).ends().expect("it runs");
    assert!(ends.log_end > ends.high_watermark, "{ends:?}");

    cluster.join(first);
    wait_for("it follows", || {
        (cluster.partition(first).leadership().leader == Some(second as i32 + 1)).then_some(())
    });
    wait_for("its tail is cut, and replaced", || {
        let now = cluster.partition(first).ends().expect("it runs");
        (now.high_watermark > ends.log_end).then_some(())
    });
    wait_for("who waited hears of it", || (load.refused.load(Ordering::Acquire) > 0).then_some(()));
    others.wait_for_more("the other one leads yet");

    wait_for("it is given leadership back", || {
        cluster.partition(second).transfer(first as i32 + 1);
        cluster.partition(first).leadership().is_settled.then_some(())
    });
    load.wait_for_more("it leads again");
    assert!(cluster.has_led(first).len() >= 2, "in two terms");
    cluster.add_acknowledged(load.end());
    cluster.add_acknowledged(others.end());
    stop.store(true, Ordering::Release);
    cluster.check_acknowledged();
    let log = cluster.records(first);
    for (node, reader) in readers.into_iter().enumerate() {
        let read = reader.join().expect("no panic");
        assert!(read.len() > 100, "{node} read {}", read.len());
        assert_eq!(read[..], log[..read.len()], "what was read of {node} as committed stays so");
    }
}

/// Invalid frames in the name of a replica of an existing group.
fn frames_that_no_replica_sends(term: u64) -> Vec<Vec<u8>> {
    use mainstem_replication::link;
    let framed = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = Vec::new();
        write(&mut frame);
        frame
    };
    let message = |message: Message| framed(&|out| assert!(link::message(0, &message, out)));
    let of = |msg_type, term| Message { msg_type, term, ..Message::default() };
    let beat = [link::Heartbeat { alias: 0, term: 0, commit: u64::MAX }];
    let append = Message { index: 1 << 40, commit: 1 << 40, ..of(MessageType::MsgAppend, term) };
    let mut asked = of(MessageType::MsgReadIndex, term);
    asked.set_entries(vec![Entry { data: vec![1].into(), ..Entry::default() }].into());
    vec![
        framed(&|out| link::heartbeats(&beat, out)),
        framed(&|out| link::coalesced_heartbeats(&beat, out)),
        framed(&|out| link::append_head(0, &append, 0, 0, out)),
        message(of(MessageType::MsgTransferLeader, term)),
        message(asked),
        message(of(MessageType::MsgRequestPreVote, 0)),
        message(of(MessageType::MsgRequestVote, 0)),
        message(of(MessageType::MsgRequestVoteResponse, 0)),
        message(Message { reject: true, reject_hint: u64::MAX, ..of(MessageType::MsgAppendResponse, term) }),
    ]
}

/// A peer that knows the cluster's id can send a valid hello and name a group. Each invalid frame ends its link, and the process
/// continues: a panic of one of its threads would end it.
#[test]
fn frames_that_no_replica_sends_end_a_link_and_nothing_else() {
    let mut cluster = Cluster::start(9);
    cluster.acknowledge_anywhere(0);
    let leader = cluster.leader();
    let epoch = cluster.partition(leader).leadership().epoch;
    let term = u64::from(epoch.get().cast_unsigned());
    for receiver in [leader, (leader + 1) % 3] {
        let sender = (receiver + 1) % 3;
        let (node, to) = (sender as i32 + 1, receiver as i32 + 1);
        let hello = Hello { cluster_id: "cluster".into(), node, generation: u64::MAX, to };
        let before = cluster.refused(receiver);
        let send = |from: ReplicaId, frame: &[u8]| {
            let (mut stream, welcome) = greet(cluster.port(receiver), &hello);
            assert_eq!(welcome.refusal, "");
            let (mut bytes, group, to) = (Vec::new(), GROUP, ReplicaId::new(to, 1));
            let alias = mainstem_replication::link::Alias { number: 0, group, from, to };
            mainstem_replication::link::group(&alias, &mut bytes);
            bytes.extend_from_slice(frame);
            stream.write_all(&bytes).expect("it reads");
            is_ended(stream);
        };
        let frames = frames_that_no_replica_sends(term);
        frames.iter().for_each(|frame| send(ReplicaId::new(node, 1), frame));
        // Another replica of the same node, in a later term: it would be followed.
        let mut frame = Vec::new();
        let beat = mainstem_replication::link::Heartbeat { alias: 0, term: term + 9, commit: 0 };
        mainstem_replication::link::heartbeats(&[beat], &mut frame);
        send(ReplicaId::new(node, 99), &frame);
        let sent = frames.len() as u64 + 1;
        wait_for("refusals", || (cluster.refused(receiver) >= before + sent).then_some(()));
    }
    cluster.acknowledge_anywhere(1);
    cluster.check_acknowledged();
}
