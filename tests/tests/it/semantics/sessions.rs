//! Fetch sessions (KIP-227).

use mainstem_tests::client::Client;
use mainstem_tests::kafka::{BY_NAME, batch, bytes_of, fetch_request, fetch_topic, records_in};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::fetch_request::{FetchRequest, FetchTopic, ForgottenTopic};

use crate::semantics::{TOPIC, broker_with_topic};

/// The answer of a session: the error, the id, and the number of records of each partition in it.
type Answer = (ErrorCode, i32, Vec<(i32, usize)>);

fn fetch(
    client: &mut Client,
    (session_id, session_epoch): (i32, i32),
    topics: Vec<FetchTopic<'_>>,
    forget: &[i32],
) -> Answer {
    let forgotten_topics_data = match forget {
        [] => Vec::new(),
        partitions => {
            vec![ForgottenTopic {
                topic: TOPIC.into(),
                partitions: partitions.to_vec(),
                ..Default::default()
            }]
        }
    };
    let request = FetchRequest { session_id, session_epoch, forgotten_topics_data, ..fetch_request(topics) };
    let response = client.call(&request, BY_NAME);
    let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
    let counts = partitions.map(|data| (data.partition_index, records_in(bytes_of(&data.records)).len()));
    (ErrorCode::from(response.error_code), response.session_id, counts.collect())
}

#[test]
fn a_session_answers_with_what_changed_and_remembers_what_is_wanted() {
    let (_broker, mut client) = broker_with_topic("sessions", 3, &[]);
    let all = (0..3).map(|partition| fetch_topic(TOPIC, partition, 0)).collect();
    let (error, id, partitions) = fetch(&mut client, (0, 0), all, &[]);
    assert_eq!((error, partitions), (ErrorCode::NONE, vec![(0, 0), (1, 0), (2, 0)]));
    assert!(id > 0);
    assert_eq!(fetch(&mut client, (id, 1), vec![], &[]), (ErrorCode::NONE, id, vec![]));

    client.produce(TOPIC, 1, 1, &batch(&[b"a", b"b"])).unwrap();
    assert_eq!(fetch(&mut client, (id, 2), vec![], &[]), (ErrorCode::NONE, id, vec![(1, 2)]));
    // The position of partition 1 is still 0. After a move it has no more records.
    assert_eq!(fetch(&mut client, (id, 3), vec![], &[]).2, [(1, 2)]);
    assert_eq!(fetch(&mut client, (id, 4), vec![fetch_topic(TOPIC, 1, 2)], &[]).2, []);

    client.produce(TOPIC, 0, 1, &batch(&[b"a"])).unwrap();
    client.produce(TOPIC, 2, 1, &batch(&[b"a"])).unwrap();
    assert_eq!(fetch(&mut client, (id, 5), vec![], &[0]).2, [(2, 1)], "partition 0 is forgotten");
}

#[test]
fn a_session_knows_its_epoch() {
    let (_broker, mut client) = broker_with_topic("session-epochs", 1, &[]);
    let all = || vec![fetch_topic(TOPIC, 0, 0)];
    let (_, id, _) = fetch(&mut client, (0, 0), all(), &[]);
    assert_eq!(fetch(&mut client, (id, 2), vec![], &[]).0, ErrorCode::INVALID_FETCH_SESSION_EPOCH);
    assert_eq!(fetch(&mut client, (id, 1), vec![], &[]).0, ErrorCode::NONE);
    assert_eq!(fetch(&mut client, (id + 1, 1), vec![], &[]).0, ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
    let (error, closed, partitions) = fetch(&mut client, (id, -1), all(), &[]);
    assert_eq!((error, closed, partitions), (ErrorCode::NONE, 0, vec![(0, 0)]), "a full answer, no session");
    assert_eq!(fetch(&mut client, (id, 2), vec![], &[]).0, ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
}

#[test]
fn a_session_does_not_survive_the_broker() {
    let (mut broker, mut client) = broker_with_topic("session-restart", 1, &[]);
    let (_, id, _) = fetch(&mut client, (0, 0), vec![fetch_topic(TOPIC, 0, 0)], &[]);
    broker.kill();
    broker.start_again();
    let answer = fetch(&mut broker.connect(), (id, 1), vec![], &[]);
    assert_eq!(answer.0, ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
}
