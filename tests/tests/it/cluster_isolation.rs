//! A node without its cluster, because it is cut off, stopped or has handed over leadership. It gives no outdated
//! answers, and clients that ask it move on to the others.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mainstem_client::{Admin, Election, NewTopic};
use mainstem_testkit::figure;
use mainstem_tests::broker::binary;
use mainstem_tests::client::Client;
use mainstem_tests::cluster::{Cluster, Setup, System};
use mainstem_tests::kafka::{BY_NAME, Failure, batch, produce_request, refusal};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTopic,
};
use mainstem_wire::messages::delete_groups_request::DeleteGroupsRequest;
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::describe_transactions_request::DescribeTransactionsRequest;
use mainstem_wire::messages::end_txn_request::EndTxnRequest;
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::list_transactions_request::ListTransactionsRequest;
use mainstem_wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};

const TOPIC: &str = "t";
const PARTITIONS: i32 = 6;
const GROUP: &str = "g";
/// An election takes at most three seconds, and a leader without followers notices it after two. The rest is for a busy machine.
const ELECTED_MAX: Duration = Duration::from_secs(120);
/// The longest that a node that hands over leadership keeps a producer waiting for the next leader.
const PARKED_MAX: Duration = Duration::from_secs(1);
/// Errors of a node that may have appended the records.
const MAYBE_APPENDED: [ErrorCode; 2] =
    [ErrorCode::REQUEST_TIMED_OUT, ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND];
/// Errors of a coordinator that say nothing about a group.
const NOT_SAID: [ErrorCode; 3] = [
    ErrorCode::NOT_COORDINATOR,
    ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode::COORDINATOR_NOT_AVAILABLE,
];
/// The number of times that the coordinator is stopped.
const ROUNDS: i64 = 4;
/// The longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(60);

fn start(setup: Setup) -> (Cluster, tokio::runtime::Runtime) {
    let mut cluster = setup.start().expect("our own binary");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        cluster.wait_until_ready().await;
        let topic = NewTopic { replication_factor: Some(3), ..NewTopic::new(TOPIC).partitions(PARTITIONS) };
        Admin::new(cluster.client()).create_topic(&topic).await.expect("a topic of three replicas");
        cluster.wait_until_in_sync(TOPIC).await;
    });
    (cluster, runtime)
}

fn connect(cluster: &Cluster, node: i32) -> Client {
    let addresses = cluster.bootstrap();
    let address = addresses.split(',').nth(node as usize - 1).expect("there is such a node");
    let mut client = Client::connect(address).expect("clients reach all nodes");
    client.set_read_timeout(TIMEOUT).expect("a socket of ours");
    client
}

/// The leader and the error of each partition, by a node.
fn leaders(client: &mut Client) -> Vec<(i32, ErrorCode)> {
    let topics = vec![MetadataRequestTopic { name: Some(TOPIC.into()), ..Default::default() }];
    let request = MetadataRequest { topics: Some(topics), ..Default::default() };
    let response = client.try_call(&request, 12).expect("an answer");
    let mut partitions: Vec<_> = response.topics[0].partitions.iter().collect();
    partitions.sort_by_key(|partition| partition.partition_index);
    partitions.iter().map(|one| (one.leader_id, ErrorCode::from(one.error_code))).collect()
}

/// Waits until there is a value.
#[track_caller]
fn wait_for<T>(cluster: &Cluster, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + ELECTED_MAX;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {ELECTED_MAX:?}\n{}", cluster.tails());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Appends to the first partition by the node that leads it, with one attempt after the other. Returns the leader,
/// the offset, and the number of earlier attempts that may have been appended.
fn append(cluster: &Cluster, asked: &mut Client, value: &[u8]) -> (i32, i64, i64) {
    let mut maybe_appended = 0;
    wait_for(cluster, "an append", || {
        let leader = Some(leaders(asked)[0].0).filter(|leader| *leader > 0)?;
        match connect(cluster, leader).produce(TOPIC, 0, -1, &batch(&[value])) {
            Ok(offset) => Some((leader, offset, maybe_appended)),
            Err(Failure::Refused(error)) => {
                assert!(error.is_retriable(), "{error}\n{}", cluster.tails());
                maybe_appended += i64::from(MAYBE_APPENDED.contains(&error));
                None
            }
            Err(Failure::Connection(error)) => panic!("{error}"),
        }
    })
}

#[test]
fn a_node_that_is_cut_off_names_no_leader_and_takes_no_records() {
    let (cluster, _runtime) = start(Setup::new("cluster-isolation", System::Mainstem).proxied());
    let (node, before, _) = append(&cluster, &mut connect(&cluster, 1), b"before");
    let others: Vec<_> = cluster.ids().into_iter().filter(|other| *other != node).collect();
    let mut other = connect(&cluster, others[0]);
    for other in &others {
        cluster.cut(node, *other);
        cluster.cut(*other, node);
    }
    let no_leader = (-1, ErrorCode::LEADER_NOT_AVAILABLE);
    wait_for(&cluster, "no leader is named", || {
        leaders(&mut connect(&cluster, node)).iter().all(|leader| *leader == no_leader).then_some(())
    });
    let refused = refusal(connect(&cluster, node).produce(TOPIC, 0, -1, &batch(&[b"refused"])));
    assert_eq!(refused, ErrorCode::NOT_LEADER_OR_FOLLOWER);
    wait_for(&cluster, "the others lead", || {
        leaders(&mut other).iter().all(|(leader, _)| others.contains(leader)).then_some(())
    });
    let (_, after, maybe_appended) = append(&cluster, &mut other, b"after");
    assert!(
        (before + 1..=before + 1 + maybe_appended).contains(&after),
        "{before}, {after}, {maybe_appended} maybe appended"
    );
    // Clients that ask the same node repeatedly, such as librdkafka, have to ask another one.
    wait_for(&cluster, "the connection ends with the answer", || {
        let mut asking = connect(&cluster, node);
        assert!(leaders(&mut asking).iter().all(|leader| *leader == no_leader), "it is cut off still");
        asking.try_call(&MetadataRequest::default(), 12).is_err().then_some(())
    });
    // The proxies take the node's messages to the others. Their silence is enough to know that they cannot be reached.
    for other in &others {
        wait_for(&cluster, "the link to a silent node is ended", || {
            cluster.log(node).contains(&format!("the link to node {other} ended")).then_some(())
        });
    }
    // One line for all partitions that it led, not one for each.
    wait_for(&cluster, "it says that it no longer leads", || {
        cluster
            .log(node)
            .contains("is lost: nothing was received from a majority of the replicas")
            .then_some(())
    });
    assert!(!cluster.log(node).contains("stepped down to follower"), "{}", cluster.tails());
    cluster.heal();
    wait_for(&cluster, "connections to it stay", || {
        let mut asking = connect(&cluster, node);
        leaders(&mut asking);
        asking.try_call(&MetadataRequest::default(), 12).is_ok().then_some(())
    });
    wait_for(&cluster, "it knows the new leaders", || {
        let known = leaders(&mut connect(&cluster, node));
        (known.iter().all(|(leader, _)| *leader > 0) && known == leaders(&mut other)).then_some(())
    });
}

/// A produce during a hand-over of leadership waits until the next leader is known. A producer that follows the
/// answer needs one more attempt at most, and no pause.
#[test]
fn a_producer_that_follows_the_answers_of_a_transfer_is_refused_once() {
    let (cluster, _runtime) = start(Setup::new("cluster-transfer", System::Mainstem));
    let (leader, first, _) = append(&cluster, &mut connect(&cluster, 1), b"first");
    let clients = cluster.ids().into_iter().map(|id| (id, connect(&cluster, id))).collect();
    let mut follower = Follower { clients, leader, offset: first + 1, maybe_appended: 0 };
    let begin = follower.offset;
    let (moves, unknown) = follower.follow(&cluster);
    let appended = follower.offset - begin;
    assert!(moves >= 5 && appended > 0, "{moves} moves, {appended} records");
    // The number of answers without a new leader that came too early: between a vote and the leader's first message
    // lie a few messages. A node that does not wait gives such an answer each time.
    figure("one_and_unknown_leaders", 1.0 + unknown as f64);
}

/// A producer that asks the node that the last answer named.
struct Follower {
    clients: BTreeMap<i32, Client>,
    leader: i32,
    /// The offset of the next record.
    offset: i64,
    /// Records that may have been appended too: they were sent while no leader was known, or took too long.
    maybe_appended: i64,
}

impl Follower {
    /// Appends while each node becomes the leader twice. Returns how often it moved on, and how often an answer
    /// lacked the new leader before the wait was over.
    fn follow(&mut self, cluster: &Cluster) -> (usize, usize) {
        let (is_over, appended) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (mut moves, mut unknown) = (0, 0);
        std::thread::scope(|scope| {
            let (is_over, appended) = (&is_over, &appended);
            let transfers = scope.spawn(move || {
                for to in [1, 2, 3, 1, 2, 3] {
                    transfer(cluster, to);
                    // One record may have been on its way to the old leader.
                    let count = appended.load(Ordering::Acquire) + 2;
                    wait_for(cluster, "records by the new leader", || {
                        (appended.load(Ordering::Acquire) >= count).then_some(())
                    });
                }
                is_over.store(true, Ordering::Release);
            });
            while !is_over.load(Ordering::Acquire) && !transfers.is_finished() {
                let before = self.leader;
                match self.send(cluster) {
                    Sent::Appended => _ = appended.fetch_add(1, Ordering::Release),
                    Sent::Again => {}
                    Sent::Refused { is_early } => unknown += usize::from(is_early),
                }
                moves += usize::from(self.leader != before);
            }
            transfers.join().expect("transfers");
        });
        (moves, unknown)
    }

    fn send(&mut self, cluster: &Cluster) -> Sent {
        let client = self.clients.get_mut(&self.leader).expect("it is one of the nodes");
        let value = batch(&[b"value"]);
        let begun = Instant::now();
        let response = client.try_call(&produce_request(TOPIC, 0, -1, &value), BY_NAME).expect("an answer");
        let took = begun.elapsed();
        let answer = &response.responses[0].partition_responses[0];
        match ErrorCode::from(answer.error_code) {
            ErrorCode::NONE => {
                let fitting = self.offset..=self.offset + self.maybe_appended;
                assert!(fitting.contains(&answer.base_offset), "appended once, in order: {answer:?}");
                (self.offset, self.maybe_appended) = (answer.base_offset + 1, 0);
                Sent::Appended
            }
            // A follower without processor time holds up the record, and is out of sync for a while.
            ErrorCode::NOT_ENOUGH_REPLICAS => Sent::Again,
            error if MAYBE_APPENDED.contains(&error) => {
                self.maybe_appended += 1;
                Sent::Again
            }
            ErrorCode::NOT_LEADER_OR_FOLLOWER if answer.current_leader.leader_id == -1 => {
                // Its wait ended between the vote of this node and the new leader's first message, or the election
                // took longer than the wait.
                self.maybe_appended += 1;
                self.leader = wait_for(cluster, "a leader is known", || {
                    Some(leaders(client)[0].0).filter(|known| *known > 0)
                });
                Sent::Refused { is_early: took < PARKED_MAX }
            }
            ErrorCode::NOT_LEADER_OR_FOLLOWER => {
                let named = answer.current_leader.leader_id;
                assert!(named > 0 && named != self.leader, "node {} names node {named}", self.leader);
                self.leader = named;
                Sent::Refused { is_early: false }
            }
            other => panic!("{other:?}\n{}", cluster.tails()),
        }
    }
}

/// The outcome of a record.
enum Sent {
    Appended,
    Again,
    /// `is_early`: the answer lacks the next leader, and the node has not waited for long enough.
    Refused {
        is_early: bool,
    },
}

/// Makes a node the leader of the first partition.
fn transfer(cluster: &Cluster, to: i32) {
    let output = Command::new(binary())
        .args(["cluster", "transfer", TOPIC, "0", &to.to_string(), "--bootstrap", &cluster.bootstrap()])
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The coordinator of the group, as nodes other than `not` report it.
fn coordinator(cluster: &Cluster, not: Option<i32>) -> i32 {
    let asked = cluster.ids().into_iter().find(|node| Some(*node) != not).expect("there are three");
    let mut client = connect(cluster, asked);
    wait_for(cluster, "a coordinator", || {
        client.find_coordinator(GROUP).ok().filter(|node| Some(*node) != not)
    })
}

#[track_caller]
fn commit(cluster: &Cluster, node: i32, offset: i64) {
    let mut client = connect(cluster, node);
    wait_for(cluster, "a commit", || client.commit(GROUP, TOPIC, 0, offset).ok());
}

/// A stopped coordinator answers requests of that time as soon as it resumes. Other nodes have committed meanwhile.
#[test]
fn a_coordinator_that_was_stopped_answers_no_offset_that_others_have_overtaken() {
    let (cluster, _runtime) = start(Setup::new("cluster-stopped-coordinator", System::Mainstem));
    let mut acknowledged = 1;
    commit(&cluster, coordinator(&cluster, None), acknowledged);
    let mut answered = 0;
    for _ in 0..ROUNDS {
        let old = coordinator(&cluster, None);
        let mut clients: Vec<_> = (0..4).map(|_| connect(&cluster, old)).collect();
        let known = wait_for(&cluster, "the offset", || clients[0].committed(GROUP, TOPIC, 0).ok());
        assert_eq!(known, acknowledged);
        cluster.pause(old);
        std::thread::scope(|scope| {
            let ask = |mut client: Client| move || client.committed(GROUP, TOPIC, 0);
            let asked: Vec<_> = clients.into_iter().map(|client| scope.spawn(ask(client))).collect();
            let new = coordinator(&cluster, Some(old));
            acknowledged += 1;
            commit(&cluster, new, acknowledged);
            cluster.resume(old);
            for answer in asked {
                match answer.join().expect("no panic") {
                    Ok(offset) => assert_eq!(offset, acknowledged, "an offset that was overtaken"),
                    Err(Failure::Refused(error)) => {
                        assert!(NOT_SAID.contains(&error), "{error}\n{}", cluster.tails());
                        answered += 1;
                    }
                    Err(Failure::Connection(error)) => panic!("{error}"),
                }
            }
        });
    }
    assert!(answered > 0, "no coordinator was asked for what it had in memory");
}

/// The same for groups and transactions: another coordinator has deleted a group and ended a transaction meanwhile.
#[test]
fn a_coordinator_that_was_stopped_describes_nothing_that_others_have_overtaken() {
    let (cluster, runtime) = start(Setup::new("cluster-stopped-groups", System::Mainstem));
    let mut client = connect(&cluster, 1);
    // The coordinator of the group, and a transactional id with the same coordinator.
    let (old, id) = wait_for(&cluster, "a coordinator of both", || {
        let old = client.find_coordinator(GROUP).ok()?;
        let mut ids = (0..100).map(|number| format!("tx-{number}"));
        let id = ids.find(|id| Some(old) == transaction_coordinator(&cluster, &mut client, id, None));
        if id.is_none() {
            // Each node has some, unless one was slow and has lost its leaderships. Preferred leaders are elected again then.
            let admin = Admin::new(cluster.client());
            let _ = runtime.block_on(admin.elect_leaders(Election::Preferred, None));
        }
        Some((old, id?))
    });
    commit(&cluster, old, 1);
    let mut producer = connect(&cluster, old);
    let (producer_id, producer_epoch) = wait_for(&cluster, "a producer id", || {
        let request = InitProducerIdRequest {
            transactional_id: Some(id.as_str().into()),
            transaction_timeout_ms: 60_000,
            ..Default::default()
        };
        let response = producer.call(&request, 4);
        (response.error_code == 0).then_some((response.producer_id, response.producer_epoch))
    });
    wait_for(&cluster, "a transaction", || {
        let topic = AddPartitionsToTxnTopic { name: TOPIC.into(), partitions: vec![0], ..Default::default() };
        let request = AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: id.as_str().into(),
            v3_and_below_producer_id: producer_id,
            v3_and_below_producer_epoch: producer_epoch,
            v3_and_below_topics: vec![topic],
            ..Default::default()
        };
        let response = producer.call(&request, 3);
        let result = &response.results_by_topic_v3_and_below[0].results_by_partition[0];
        (result.partition_error_code == 0).then_some(())
    });
    let whole = (0, "Empty".to_owned(), true, 0, "Ongoing".to_owned(), true);
    wait_for(&cluster, "the group and the transaction", || {
        (describe(&mut producer, &id) == whole).then_some(())
    });

    let mut asking = connect(&cluster, old);
    cluster.pause(old);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| describe(&mut asking, &id));
        let new = coordinator(&cluster, Some(old));
        let mut admin = connect(&cluster, new);
        wait_for(&cluster, "the deletion", || {
            let request = DeleteGroupsRequest { groups_names: vec![GROUP.into()], ..Default::default() };
            (admin.call(&request, 2).results[0].error_code == 0).then_some(())
        });
        let others: Vec<_> = cluster.ids().into_iter().filter(|node| *node != old).collect();
        let mut client = connect(&cluster, others[0]);
        let new = wait_for(&cluster, "a coordinator", || {
            transaction_coordinator(&cluster, &mut client, &id, Some(old))
        });
        let mut admin = connect(&cluster, new);
        wait_for(&cluster, "the end of the transaction", || {
            let request = EndTxnRequest {
                transactional_id: id.as_str().into(),
                producer_id,
                producer_epoch,
                committed: true,
                ..Default::default()
            };
            (admin.call(&request, 3).error_code == 0).then_some(())
        });
        cluster.resume(old);
        let (group_error, group, is_group_listed, error, transaction, is_listed) =
            asked.join().expect("no panic");
        let is_refused = |error: i16, state: &str| NOT_SAID.contains(&error.into()) && state.is_empty();
        assert!(is_refused(group_error, &group), "a group that others have deleted: {group_error} {group}");
        assert!(
            is_refused(error, &transaction),
            "a transaction that others have ended: {error} {transaction}"
        );
        assert!(!is_group_listed && !is_listed, "it lists what others coordinate");
    });
}

/// A node's answers about the group and a transactional id: error, state, and whether it lists it.
fn describe(client: &mut Client, id: &str) -> (i16, String, bool, i16, String, bool) {
    let request = DescribeGroupsRequest { groups: vec![GROUP.into()], ..Default::default() };
    let response = client.call(&request, 5);
    let (group_error, group) = (response.groups[0].error_code, response.groups[0].group_state.to_string());
    let listed = client.call(&ListGroupsRequest::default(), 4);
    let is_group_listed = listed.groups.iter().any(|group| group.group_id == GROUP);
    let request = DescribeTransactionsRequest { transactional_ids: vec![id.into()], ..Default::default() };
    let response = client.call(&request, 0);
    let state = &response.transaction_states[0];
    let (error, transaction) = (state.error_code, state.transaction_state.to_string());
    let listed = client.call(&ListTransactionsRequest::default(), 0);
    let is_listed = listed.transaction_states.iter().any(|state| state.transactional_id == id);
    (group_error, group, is_group_listed, error, transaction, is_listed)
}

/// The coordinator of a transactional id, unless it is `not`.
fn transaction_coordinator(
    cluster: &Cluster,
    client: &mut Client,
    id: &str,
    not: Option<i32>,
) -> Option<i32> {
    let request = FindCoordinatorRequest { key: id.into(), key_type: 1, ..Default::default() };
    let node = wait_for(cluster, "an answer", || {
        let response = client.call(&request, 3);
        (response.error_code == 0).then_some(response.node_id)
    });
    (Some(node) != not).then_some(node)
}
