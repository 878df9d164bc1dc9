//! A node that its cluster does without, because it is cut off, stopped or has given leadership away: it says nothing that
//! has been overtaken, and clients that ask it move on to the others.

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
/// An election takes at most three seconds, and a leader without followers knows it after two; a busy machine takes its time.
const ELECTED_MAX: Duration = Duration::from_secs(120);
/// So long a node that gives leadership away keeps a producer waiting until it is known who leads.
const PARKED_MAX: Duration = Duration::from_secs(1);
/// What a node answers that may have appended the records.
const IN_DOUBT: [ErrorCode; 2] = [ErrorCode::REQUEST_TIMED_OUT, ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND];
/// What a coordinator answers that does not say anything of a group.
const NOT_SAID: [ErrorCode; 3] = [
    ErrorCode::NOT_COORDINATOR,
    ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode::COORDINATOR_NOT_AVAILABLE,
];
/// How often the coordinator is stopped.
const ROUNDS: i64 = 4;
/// More than any answer takes.
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

/// Leader, and the error beside it, of each partition, as a node says.
fn leaders(client: &mut Client) -> Vec<(i32, ErrorCode)> {
    let topics = vec![MetadataRequestTopic { name: Some(TOPIC.into()), ..Default::default() }];
    let request = MetadataRequest { topics: Some(topics), ..Default::default() };
    let response = client.try_call(&request, 12).expect("an answer");
    let mut partitions: Vec<_> = response.topics[0].partitions.iter().collect();
    partitions.sort_by_key(|partition| partition.partition_index);
    partitions.iter().map(|one| (one.leader_id, ErrorCode::from(one.error_code))).collect()
}

/// Looks again until something is there.
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

/// Appends to the first partition by the node that leads it, one attempt after the other; who led, the offset, and how many
/// attempts before may have been appended.
fn append(cluster: &Cluster, asked: &mut Client, value: &[u8]) -> (i32, i64, i64) {
    let mut in_doubt = 0;
    wait_for(cluster, "an append", || {
        let leader = Some(leaders(asked)[0].0).filter(|leader| *leader > 0)?;
        match connect(cluster, leader).produce(TOPIC, 0, -1, &batch(&[value])) {
            Ok(offset) => Some((leader, offset, in_doubt)),
            Err(Failure::Refused(error)) => {
                assert!(error.is_retriable(), "{error}\n{}", cluster.tails());
                in_doubt += i64::from(IN_DOUBT.contains(&error));
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
    let (_, after, in_doubt) = append(&cluster, &mut other, b"after");
    assert!((before + 1..=before + 1 + in_doubt).contains(&after), "{before}, {after}, {in_doubt} in doubt");
    // Clients that ask the same node again and again, such as librdkafka, have to ask another one.
    wait_for(&cluster, "the connection ends with the answer", || {
        let mut asking = connect(&cluster, node);
        assert!(leaders(&mut asking).iter().all(|leader| *leader == no_leader), "it is cut off still");
        asking.try_call(&MetadataRequest::default(), 12).is_err().then_some(())
    });
    // What is between takes what is sent to the others: that they say nothing is enough to know that they cannot be reached.
    for other in &others {
        wait_for(&cluster, "the link to a silent node is ended", || {
            cluster.log(node).contains(&format!("the link to node {other} ended")).then_some(())
        });
    }
    // Of all that it led at once, and not of each.
    wait_for(&cluster, "it says that it has given up leadership", || {
        cluster
            .log(node)
            .contains("is given up: nothing was heard of a majority of the replicas")
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

/// What comes while leadership is given away waits until it is known who has it: a producer that follows the answer needs
/// one more attempt at most, and no pause.
#[test]
fn a_producer_that_follows_the_answers_of_a_transfer_is_refused_once() {
    let (cluster, _runtime) = start(Setup::new("cluster-transfer", System::Mainstem));
    let (leader, first, _) = append(&cluster, &mut connect(&cluster, 1), b"first");
    let clients = cluster.ids().into_iter().map(|id| (id, connect(&cluster, id))).collect();
    let mut follower = Follower { clients, leader, offset: first + 1, in_doubt: 0 };
    let begin = follower.offset;
    let (moves, unknown) = follower.follow(&cluster);
    let appended = follower.offset - begin;
    assert!(moves >= 5 && appended > 0, "{moves} moves, {appended} records");
    // So often a new leader was unknown too early: between a vote and the leader's first word lie a few messages. A node that does not
    // wait answers so each time.
    figure("one_and_unknown_leaders", 1.0 + unknown as f64);
}

/// A producer that asks whom the last answer named.
struct Follower {
    clients: BTreeMap<i32, Client>,
    leader: i32,
    /// Of the next record.
    offset: i64,
    /// What was under way when it was not known who leads, or took too long, may be there as well.
    in_doubt: i64,
}

impl Follower {
    /// Appends while each node is given leadership twice; how often it moved on, and how often the answer did not say
    /// whereto before it had to.
    fn follow(&mut self, cluster: &Cluster) -> (usize, usize) {
        let (is_over, appended) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (mut moves, mut unknown) = (0, 0);
        std::thread::scope(|scope| {
            let (is_over, appended) = (&is_over, &appended);
            let transfers = scope.spawn(move || {
                for to in [1, 2, 3, 1, 2, 3] {
                    transfer(cluster, to);
                    // One may have been under way to the leader before.
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
                let fitting = self.offset..=self.offset + self.in_doubt;
                assert!(fitting.contains(&answer.base_offset), "appended once, in order: {answer:?}");
                (self.offset, self.in_doubt) = (answer.base_offset + 1, 0);
                Sent::Appended
            }
            // A follower that gets no turn holds up what was appended, and is not in sync for a while.
            ErrorCode::NOT_ENOUGH_REPLICAS => Sent::Again,
            error if IN_DOUBT.contains(&error) => {
                self.in_doubt += 1;
                Sent::Again
            }
            ErrorCode::NOT_LEADER_OR_FOLLOWER if answer.current_leader.leader_id == -1 => {
                // Its wait ended between the vote of this node and the new leader's first word, or the election took
                // longer than the wait.
                self.in_doubt += 1;
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

/// What became of a record.
enum Sent {
    Appended,
    Again,
    /// `is_early`: without the next leader, and before the node had waited for long enough.
    Refused {
        is_early: bool,
    },
}

/// Has a node lead the first partition.
fn transfer(cluster: &Cluster, to: i32) {
    let output = Command::new(binary())
        .args(["cluster", "transfer", TOPIC, "0", &to.to_string(), "--bootstrap", &cluster.bootstrap()])
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The coordinator of the group, where the others of `not` see it.
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

/// What a coordinator is asked while it is stopped, it answers as soon as it goes on: others have committed meanwhile.
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

/// The same of what it says of groups and transactions: another coordinator has deleted one and ended the other meanwhile.
#[test]
fn a_coordinator_that_was_stopped_describes_nothing_that_others_have_overtaken() {
    let (cluster, runtime) = start(Setup::new("cluster-stopped-groups", System::Mainstem));
    let mut client = connect(&cluster, 1);
    // The coordinator, and a transactional id of the same node.
    let (old, id) = wait_for(&cluster, "a coordinator of both", || {
        let old = client.find_coordinator(GROUP).ok()?;
        let mut ids = (0..100).map(|number| format!("tx-{number}"));
        let id = ids.find(|id| Some(old) == transaction_coordinator(&cluster, &mut client, id, None));
        if id.is_none() {
            // Each node has some, unless one was slow and has lost its place. It is looked again whether it has that now.
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

/// What a node says of the group and of a transactional id: error, state, and whether it lists it.
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
