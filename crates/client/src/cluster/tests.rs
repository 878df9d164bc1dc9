//! Connections that a cluster shares among callers.

use mainstem_wire::messages::leave_group_request::LeaveGroupRequest;
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;
use crate::testing::{NoBroker, ScriptedBroker, WAIT_TIMEOUT, World, eventually};

#[tokio::test]
async fn the_connection_to_a_silent_broker_is_closed_though_no_caller_waits_so_long() {
    let broker = ScriptedBroker::start(1, |_| None);
    let request_timeout = Duration::from_millis(200);
    let cluster = Cluster::new(ClientConfig { request_timeout, ..broker.client() });
    // A machine that stands still may take the time of an attempt.
    let connected = async || {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            match cluster.any().await {
                Ok(connection) => return connection,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    };
    let silent = connected().await;
    eventually("the connection is closed", async || {
        let request = ListGroupsRequest::default();
        let _ = tokio::time::timeout(Duration::from_millis(20), cluster.call_any(&request)).await;
        silent.is_lost()
    })
    .await;
    assert!(!connected().await.is_lost(), "there is another one");
}

/// Two calls are under way when their connection ends.
#[tokio::test]
async fn each_request_that_has_no_answer_is_named() {
    let broker = ScriptedBroker::start(1, |_| None);
    let connection = Cluster::new(broker.client()).any().await.unwrap();
    let (list, leave) = (ListGroupsRequest::default(), LeaveGroupRequest::default());
    // It ends the connection once it has bytes that it does not read.
    broker.set_reading(false);
    let ending = async { drop(broker) };
    let (listed, left, ()) = tokio::join!(connection.call(&list), connection.call(&leave), ending);
    for (outcome, asked) in [(listed.map(drop), "ListGroups"), (left.map(drop), "LeaveGroup")] {
        let lost = outcome.unwrap_err();
        assert!(matches!(lost, Error::ConnectionLost { api, .. } if api == asked), "{lost}, not {asked}");
    }
}

#[tokio::test]
async fn an_attempt_to_connect_is_one_for_all_who_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let refusing = tokio::spawn(async move {
        loop {
            let _ = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let cluster = Cluster::new(ClientConfig::new(&address).unwrap());
    let mut asking = JoinSet::new();
    for _ in 0..20 {
        let cluster = cluster.clone();
        asking.spawn(async move { cluster.any().await });
    }
    let outcomes = asking.join_all().await;
    assert!(outcomes.iter().all(Result::is_err));
    assert_eq!(attempts.load(Ordering::Relaxed), 1);
    assert!(cluster.any().await.is_err());
    assert_eq!(attempts.load(Ordering::Relaxed), 2, "who comes later tries again");
    refusing.abort();
}

/// A broker that is cut off may name no other broker than itself.
#[tokio::test]
async fn brokers_that_the_configuration_names_have_their_turn() {
    let (named, other) = (ScriptedBroker::start(1, |_| None), ScriptedBroker::start(2, |_| None));
    let bootstrap = [named.client().bootstrap, other.client().bootstrap].concat();
    let cluster = Cluster::new(ClientConfig { bootstrap: bootstrap.clone(), ..named.client() });
    for address in &bootstrap {
        cluster.connect(&Arc::from(address.as_str())).await.unwrap();
    }
    cluster.inner.known.lock().nodes.insert(1, Arc::from(bootstrap[0].as_str()));
    let mut asked = Vec::new();
    for _ in 0..bootstrap.len() {
        asked.push(cluster.any().await.unwrap().broker().to_owned());
    }
    asked.sort();
    let mut expected = bootstrap.clone();
    expected.sort();
    assert_eq!(asked, expected);
}

#[tokio::test]
async fn a_topic_is_asked_for_again_when_it_is_old() {
    let world = World::mainstem();
    world.create(1, &[]).await;
    let count = async |cluster: &Cluster| cluster.topic(&world.topic, false).await.unwrap().partitions.len();
    let young = Cluster::new(world.client());
    let old = Cluster::new(ClientConfig { metadata_max_age: Duration::ZERO, ..world.client() });
    assert_eq!((count(&young).await, count(&old).await), (1, 1));
    world.admin().create_partitions(&world.topic, 3).await.unwrap();
    assert_eq!((count(&young).await, count(&old).await), (1, 3));
}

#[tokio::test]
async fn what_no_request_can_hold_is_not_the_fault_of_a_broker() {
    let broker = ScriptedBroker::start(1, |_| None);
    let refused = Cluster::new(broker.client()).topic(&"x".repeat(70_000), false).await.unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
}

#[tokio::test]
async fn a_broker_that_may_come_back_counts_more_than_one_that_is_none() {
    let none = NoBroker::start().await;
    let alone = Cluster::new(ClientConfig::new(&none.address).unwrap());
    let refused = alone.any().await.unwrap_err();
    assert!(matches!(refused, Error::Malformed { .. }), "{refused}");
    let with_another = ClientConfig::new(&format!("{},127.0.0.1:1", none.address)).unwrap();
    let refused = Cluster::new(with_another).any().await.unwrap_err();
    assert_eq!((refused.is_retriable(), refused.broker()), (true, Some("127.0.0.1:1")));
}

#[test]
fn a_leader_is_not_forgotten_for_one_of_before() {
    let topic = |id, leaders: &[(i32, i32)]| {
        let partition = |(index, &(leader, leader_epoch)): (usize, &(i32, i32))| Partition {
            index: index as i32,
            leader: Some(leader),
            leader_epoch,
            replicas: vec![1, 2, 3],
            isr: vec![leader],
        };
        let partitions = leaders.iter().enumerate().map(partition).collect();
        Arc::new(Topic { name: "orders".into(), id, is_internal: false, partitions })
    };
    let (id, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let known = topic(id, &[(3, 7), (2, 4)]);
    let leaders = |found: Arc<Topic>| {
        let topic = found.with_newer_leaders(&known);
        topic.partitions.iter().map(|one| (one.leader, one.leader_epoch)).collect::<Vec<_>>()
    };
    assert_eq!(leaders(topic(id, &[(1, 6), (1, 5)])), [(Some(3), 7), (Some(1), 5)]);
    assert_eq!(leaders(topic(id, &[(1, 7), (1, 4)])), [(Some(1), 7), (Some(1), 4)]);
    // A topic of the same name that was created again counts from the beginning.
    assert_eq!(leaders(topic(other, &[(1, 0), (1, 0)])), [(Some(1), 0), (Some(1), 0)]);
    // More partitions than before.
    assert_eq!(leaders(topic(id, &[(1, 6), (1, 5), (1, 0)])).len(), 3);
}

#[test]
fn topics_that_are_not_asked_for_any_more_are_forgotten() {
    let age_max = Duration::from_secs(1);
    let topic = |name: &str, seconds: u64| {
        let answered =
            Instant::now().checked_sub(Duration::from_secs(seconds)).expect("the machine runs longer");
        let topic = Topic { name: name.into(), id: Uuid::default(), is_internal: false, partitions: vec![] };
        let known = KnownTopic { topic: topic.into(), at: None, answered, invalidated: BTreeSet::new() };
        (Arc::from(name), known)
    };
    let mut known = Known { topics: [topic("used", 1), topic("unused", 2)].into(), ..Known::default() };
    known.forget_unused(age_max);
    assert_eq!(known.topics.into_keys().collect::<Vec<Arc<str>>>(), ["used".into()]);
}
