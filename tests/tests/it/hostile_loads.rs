//! Loads that are too slow, too large or too many: memory stays within its bounds, and so does the latency of neighbours.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use mainstem_records::Compression;
use mainstem_testkit::figure;
use mainstem_tests::client::is_read;
use mainstem_tests::hostile::batches::batch;
use mainstem_tests::hostile::client::{Client, PRODUCE_VERSION, TIMEOUT, produce, request_bytes};
use mainstem_tests::hostile::probe::Probe;
use mainstem_tests::hostile::victim::Victim;
use mainstem_tests::hostile::{is_long, wait_until};
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::consumer_group_describe_request::ConsumerGroupDescribeRequest;
use mainstem_wire::messages::consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;
use mainstem_wire::messages::consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse;
use mainstem_wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use mainstem_wire::messages::create_topics_response::CreateTopicsResponse;
use mainstem_wire::messages::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_wire::messages::describe_configs_response::{DescribeConfigsResponse, DescribeConfigsResult};
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::describe_groups_response::{DescribeGroupsResponse, DescribedGroupMember};
use mainstem_wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use mainstem_wire::messages::fetch_response::FetchResponse;
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use mainstem_wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_wire::messages::join_group_response::JoinGroupResponse;
use mainstem_wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
use mainstem_wire::messages::metadata_response::MetadataResponse;
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::offset_commit_response::OffsetCommitResponse;
use mainstem_wire::messages::offset_fetch_request::{OffsetFetchRequest, OffsetFetchRequestGroup};
use mainstem_wire::messages::offset_fetch_response::OffsetFetchResponse;
use mainstem_wire::messages::produce_request::PartitionProduceData;
use mainstem_wire::messages::sync_group_request::{SyncGroupRequest, SyncGroupRequestAssignment};
use mainstem_wire::messages::sync_group_response::SyncGroupResponse;
use mainstem_wire::{Decoder, ErrorCode, Message};

const MIB: u64 = 1 << 10;

/// One thread serves all connections: a request that holds it up holds up the probe.
const ONE_LOOP: (&str, &str) = ("num.network.threads", "1");

const FETCH_VERSION: i16 = 11;

/// A fetch of one partition, outside of any session.
fn fetch(topic: &str, offset: i64, bytes_max: i32) -> FetchRequest<'_> {
    let partition =
        FetchPartition { fetch_offset: offset, partition_max_bytes: bytes_max, ..Default::default() };
    let topic = FetchTopic { topic: topic.into(), partitions: vec![partition], ..Default::default() };
    FetchRequest {
        min_bytes: 1,
        max_bytes: bytes_max,
        session_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    }
}

/// Fills partition 0 of a new topic with batches of `value_bytes`.
fn fill(victim: &Victim, topic: &str, value_bytes: usize, count: usize) {
    let mut client = Client::connect(victim.address);
    client.create_topic(topic, 1, &[]);
    let batch = batch(Compression::None, value_bytes);
    for _ in 0..count {
        assert_eq!(client.produce(topic, 0, 1, &batch), ErrorCode::NONE);
    }
}

fn assert_peak(victim: &Victim, mib_max: u64) {
    let peak = victim.memory_kib("VmHWM");
    eprintln!("VmHWM {} MiB", peak as f64 / MIB as f64);
    assert!(peak <= mib_max * MIB, "VmHWM {peak} KiB above {mib_max} MiB");
}

#[test]
fn slow_large_produces_hold_bounded_memory_and_nobody_up() {
    let limit = (64 << 20).to_string();
    let mut victim = Victim::start(&[ONE_LOOP, ("queued.max.request.bytes", &limit)]);
    Client::connect(victim.address).create_topic("slow", 1, &[("max.message.bytes", "20000000")]);
    let batch = batch(Compression::None, 10 << 20);
    let request = request_bytes(PRODUCE_VERSION, 1, &produce("slow", 0, 1, &batch));
    let probe = Probe::start(victim.address);
    let mut clients: Vec<_> = (0..200).map(|_| Client::connect(victim.address)).collect();
    for client in &clients {
        client.socket.set_nonblocking(true).unwrap();
    }
    // Each sends a little at a time. Bytes beyond the budget stay in the kernel's buffers.
    let mut sent = vec![0; clients.len()];
    let began = Instant::now();
    let drip = Duration::from_secs(if is_long() { 60 } else { 4 });
    while began.elapsed() < drip {
        for (client, sent) in clients.iter_mut().zip(&mut sent) {
            let end = request.len().min(*sent + 20_000);
            if let Ok(written) = client.socket.write(&request[*sent..end]) {
                *sent += written;
            }
        }
        // These clients pause by their own fault.
        std::thread::sleep(Duration::from_millis(20));
    }
    probe.finish();
    // 64 MiB, one more request, the batch that is being read, and the process itself.
    assert_peak(&victim, 64 + 10 + 16);
    // In the end all of them finish, when they send as fast as they can.
    let senders = clients.into_iter().zip(sent).map(|(mut client, sent)| {
        let rest = request[sent..].to_vec();
        std::thread::spawn(move || {
            client.socket.set_nonblocking(false).unwrap();
            // There are 2 GB in all, for which a slow disk takes its time.
            client.socket.set_read_timeout(Some(10 * TIMEOUT)).unwrap();
            client.socket.write_all(&rest).is_ok() && client.frame().is_ok()
        })
    });
    let finished = senders.collect::<Vec<_>>().into_iter().filter_map(|sender| sender.join().ok());
    let finished = finished.filter(|finished| *finished).count();
    println!("{finished} of 200 finished after {:?}", began.elapsed());
    assert_eq!(finished + victim.logged("arrived too slowly").len(), 200);
    assert_peak(&victim, 64 + 10 + 16);
    println!("VmRSS afterwards {} MiB", victim.memory_kib("VmRSS") / MIB);
    victim.assert_sound();
}

#[test]
fn a_sender_that_stops_is_closed_when_others_wait() {
    let mut victim = Victim::start(&[("queued.max.request.bytes", "1000000")]);
    Client::connect(victim.address).create_topic("stuck", 1, &[]);
    let mut stuck = Client::connect(victim.address);
    // It announces a megabyte, sends half and stops: the budget is used up.
    stuck.socket.write_all(&1_048_576_i32.to_be_bytes()).unwrap();
    stuck.socket.write_all(&vec![0; 500_000]).unwrap();
    // The first of them that needs more than the budget continues beside it.
    wait_until("half of it is read", TIMEOUT, || is_read(&stuck.socket));
    let mut waiting = Client::connect(victim.address);
    let batch = batch(Compression::None, 900_000);
    assert_eq!(
        waiting.produce("stuck", 0, 1, &batch),
        ErrorCode::NONE,
        "it is served when the other is closed"
    );
    assert!(stuck.is_closed());
    victim.expect_logged("arrived too slowly", 1);
    victim.assert_sound();
}

#[test]
fn a_length_that_is_announced_keeps_nobody_waiting() {
    let mut victim = Victim::start(&[]);
    Client::connect(victim.address).create_topic("announced", 1, &[]);
    let silent: Vec<Client> = (0..64)
        .map(|_| {
            let mut client = Client::connect(victim.address);
            client.socket.write_all(&(100_i32 << 20).to_be_bytes()).unwrap();
            client
        })
        .collect();
    let batch = batch(Compression::None, 900_000);
    for _ in 0..20 {
        assert_eq!(Client::connect(victim.address).produce("announced", 0, 1, &batch), ErrorCode::NONE);
    }
    // If a request waits for memory, a slow connection that holds some is closed.
    assert_eq!(victim.logged("arrived too slowly"), [] as [&str; 0], "a request was kept waiting");
    drop(silent);
    victim.assert_sound();
}

#[test]
fn what_is_named_a_hundred_thousand_times_is_described_once() {
    let mut victim = Victim::start(&[]);
    let mut client = Client::connect(victim.address);
    victim.reset_memory_peak();
    let broker =
        DescribeConfigsResource { resource_type: 4, resource_name: "1".into(), ..Default::default() };
    let configs = DescribeConfigsRequest {
        resources: vec![broker; 100_000],
        include_synonyms: true,
        include_documentation: true,
        ..Default::default()
    };
    client.socket.write_all(&request_bytes(4, 1, &configs)).unwrap();
    assert!(client.frame().unwrap().len() < 1 << 20);
    let groups = DescribeGroupsRequest { groups: vec!["g".into(); 100_000], ..Default::default() };
    client.socket.write_all(&request_bytes(5, 2, &groups)).unwrap();
    assert!(client.frame().unwrap().len() < 1 << 10);
    let group = OffsetFetchRequestGroup { group_id: "g".into(), ..Default::default() };
    let offsets = OffsetFetchRequest { groups: vec![group; 100_000], ..Default::default() };
    client.socket.write_all(&request_bytes(8, 3, &offsets)).unwrap();
    assert!(client.frame().unwrap().len() < 1 << 10);
    assert_peak(&victim, 64);
    victim.assert_sound();
}

/// A request that describes groups, which need not exist, with their configurations.
fn describe_groups(count: usize) -> Vec<u8> {
    let group = |number| DescribeConfigsResource {
        resource_type: 32,
        resource_name: format!("group-{number}").into(),
        ..Default::default()
    };
    let request = DescribeConfigsRequest {
        resources: (0..count).map(group).collect(),
        include_synonyms: true,
        include_documentation: true,
        ..Default::default()
    };
    request_bytes(4, 1, &request)
}

#[test]
fn a_large_answer_ends_where_its_memory_does() {
    let mut victim = Victim::start(&[]);
    let mut client = Client::connect(victim.address);
    // The answer is put together before its first byte is sent, which takes a while on a busy machine.
    client.socket.set_read_timeout(Some(10 * TIMEOUT)).unwrap();
    victim.reset_memory_peak();
    client.socket.write_all(&describe_groups(60_000)).unwrap();
    let frame = client.frame().unwrap();
    let mut decoder = Decoder::new(&frame[5..]);
    let answer = DescribeConfigsResponse::decode(&mut decoder, 4).unwrap();
    assert_eq!(answer.results.len(), 60_000);
    let refused =
        |result: &&DescribeConfigsResult<'_>| result.error_code == ErrorCode::POLICY_VIOLATION.code();
    assert!(answer.results[0].error_code == 0 && answer.results.iter().rfind(refused).is_some());
    assert_peak(&victim, 256);
    victim.assert_sound();
}

/// Creates topics of one partition each.
fn create_many(client: &mut Client, count: usize, name: impl Fn(usize) -> String) {
    let topic = |number| CreatableTopic {
        name: name(number).into(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    let topics = (0..count).map(topic).collect();
    let request = CreateTopicsRequest { topics, timeout_ms: 60_000, ..Default::default() };
    let body = client.ask(7, &request);
    let response = CreateTopicsResponse::decode(&mut Decoder::new(&body), 7).expect("it is well-formed");
    assert!(response.topics.iter().all(|topic| topic.error_code == 0));
}

/// The number of produces of a neighbour on the same loop until a request has the first bytes of its answer.
fn answered_meanwhile(asking: &mut Client, request: &[u8], neighbour: &mut Client, topic: &str) -> usize {
    let batch = batch(Compression::None, 100);
    asking.socket.write_all(request).expect("the broker reads");
    asking.socket.set_nonblocking(true).expect("it is a socket");
    let mut answered = 0;
    while asking.socket.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
        assert_eq!(neighbour.produce(topic, 0, 1, &batch), ErrorCode::NONE);
        answered += 1;
    }
    asking.socket.set_nonblocking(false).expect("it is a socket");
    answered
}

/// The number of produces of a neighbour on the same loop until a condition holds.
fn answered_until(is_over: impl Fn() -> bool, neighbour: &mut Client, topic: &str) -> usize {
    let batch = batch(Compression::None, 100);
    let mut answered = 0;
    while !is_over() {
        assert_eq!(neighbour.produce(topic, 0, 1, &batch), ErrorCode::NONE);
        answered += 1;
    }
    answered
}

/// Checks and reports the answers of a neighbour during a request: a loop that is held up answers it once.
fn tell_answers(answered: usize) {
    assert!(answered > 1, "the neighbour was answered {answered} times");
    figure("thousand_by_answers", 1_000.0 / answered as f64);
}

#[test]
fn a_description_of_thousands_of_resources_holds_no_neighbour_up() {
    const GROUPS: usize = 10_000;
    let mut victim = Victim::start(&[ONE_LOOP]);
    let (mut asking, mut neighbour) = (Client::connect(victim.address), Client::connect(victim.address));
    neighbour.create_topic("neighbour", 1, &[]);
    let answered = answered_meanwhile(&mut asking, &describe_groups(GROUPS), &mut neighbour, "neighbour");
    let frame = asking.frame().unwrap();
    let answer = DescribeConfigsResponse::decode(&mut Decoder::new(&frame[5..]), 4).unwrap();
    assert_eq!(answer.results.len(), GROUPS);
    assert!(answer.results.iter().all(|result| result.error_code == 0 && !result.configs.is_empty()));
    tell_answers(answered);
    victim.assert_sound();
}

/// A request to join a group of its own with a pattern.
fn join_by_pattern(member: usize, pattern: &str) -> ConsumerGroupHeartbeatRequest<'_> {
    ConsumerGroupHeartbeatRequest {
        group_id: format!("group-{member}").into(),
        member_id: format!("member-{member}").into(),
        rebalance_timeout_ms: 10_000,
        subscribed_topic_regex: Some(pattern.into()),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    }
}

fn error_of(answer: &[u8]) -> ErrorCode {
    let answer = ConsumerGroupHeartbeatResponse::decode(&mut Decoder::new(answer), 1);
    ErrorCode::from(answer.expect("it is well-formed").error_code)
}

/// Makes the broker create the coordinator of groups: a usual pattern is accepted.
fn join_usual_group(client: &mut Client) {
    let find = FindCoordinatorRequest { coordinator_keys: vec!["group".into()], ..Default::default() };
    client.ask(6, &find);
    let request = join_by_pattern(usize::MAX, "[01]+-[0-9]*7");
    wait_until("a member that joins", TIMEOUT, || error_of(&client.ask(1, &request)) == ErrorCode::NONE);
}

#[test]
fn topic_patterns_of_many_members_hold_no_neighbour_up() {
    const MEMBERS: usize = 64;
    let mut victim = Victim::start(&[ONE_LOOP]);
    let mut client = Client::connect(victim.address);
    let bits =
        |number: usize| (0..100).map(move |bit| ((number * 0x9E37_79B9) >> (bit % 48) & 1).to_string());
    create_many(&mut client, 300, |number| format!("{}-{number}", bits(number).collect::<String>()));
    client.create_topic("neighbour", 1, &[]);
    join_usual_group(&mut client);
    // The patterns are large when compiled, with too many states. Nothing is written, so that no client waits for the disk.
    let pattern = |number: usize| format!(r"\w{{{}}}[01]*0[01]{{14}}-[0-9]+", 16 + number % 8);
    let mut members: Vec<_> = (0..MEMBERS).map(|_| Client::connect(victim.address)).collect();
    let mut join_all = || {
        for (number, member) in members.iter_mut().enumerate() {
            member.send(1, &join_by_pattern(number, &pattern(number))).expect("the broker reads");
        }
        for member in &mut members {
            let answer = member.answer::<ConsumerGroupHeartbeatRequest<'_>>(1).expect("the broker answers");
            assert_eq!(error_of(&answer), ErrorCode::INVALID_REGULAR_EXPRESSION);
        }
    };
    // A loop that matches patterns answers the neighbour at most once between two members.
    tell_answers(std::thread::scope(|scope| {
        let members = scope.spawn(&mut join_all);
        answered_until(|| members.is_finished(), &mut client, "neighbour")
    }));
    victim.assert_sound();
}

/// Sends requests for a large answer on many connections that do not read. Memory stays within its bound, and in the
/// end a connection that reads gets a whole answer, as `is_whole` checks.
fn ask_and_read_nothing(
    victim: &mut Victim,
    request: &[u8],
    is_whole: impl Fn(&mut Decoder<'_>) -> bool,
    mib_max: u64,
) {
    victim.reset_memory_peak();
    let silent: Vec<_> = (0..40)
        .map(|_| {
            let mut client = Client::connect(victim.address);
            client.socket.write_all(request).unwrap();
            client
        })
        .collect();
    let probe = || {
        let mut client = Client::connect(victim.address);
        // The broker may close the connection at any point while it lacks memory.
        client.socket.write_all(request).is_ok()
            && client.frame().is_ok_and(|frame| is_whole(&mut Decoder::new(&frame[5..])))
    };
    // Each of them is answered in turn, and has seconds to read.
    wait_until("connections that do not read are closed", Duration::from_secs(300), probe);
    assert_peak(victim, mib_max);
    drop(silent);
    victim.assert_sound();
}

/// Large answers that are held or put together, the allocator's reserve, the requests and the process itself. The
/// answers to all requests would take more than 1,000.
const ANSWERS_MIB_MAX: u64 = 64 + 17 * 4 + 40 + 16;

#[test]
fn answers_that_nobody_reads_have_one_bound_and_give_way() {
    let mut victim = Victim::start(&[]);
    let is_whole = |decoder: &mut Decoder<'_>| {
        let answer = DescribeConfigsResponse::decode(decoder, 4).unwrap();
        answer.results.iter().all(|result| result.error_code == 0)
    };
    ask_and_read_nothing(&mut victim, &describe_groups(10_000), is_whole, ANSWERS_MIB_MAX);
}

/// Answers that are held, two that are put together, the state of the coordinator, and the process itself. The
/// answers to all requests would take more than 1,000.
const GROUPS_MIB_MAX: u64 = 64 + 2 * 128 + 64 + 16;

/// Makes a stable group of one member, with `bytes` in its protocol and as many in its assignment.
fn found_group(client: &mut Client, group: &str, bytes: usize) {
    let join = JoinGroupRequest {
        group_id: group.into(),
        session_timeout_ms: 600_000,
        rebalance_timeout_ms: 600_000,
        protocol_type: "consumer".into(),
        protocols: vec![JoinGroupRequestProtocol {
            name: "range".into(),
            metadata: vec![1; bytes].into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let body = client.ask(3, &join);
    let joined = JoinGroupResponse::decode(&mut Decoder::new(&body), 3).expect("it is well-formed");
    assert_eq!(ErrorCode::from(joined.error_code), ErrorCode::NONE);
    let sync = SyncGroupRequest {
        group_id: group.into(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        assignments: vec![SyncGroupRequestAssignment {
            member_id: joined.member_id.clone(),
            assignment: vec![2; bytes].into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let body = client.ask(2, &sync);
    let synced = SyncGroupResponse::decode(&mut Decoder::new(&body), 2).expect("it is well-formed");
    assert_eq!((synced.error_code, synced.assignment.len()), (0, bytes));
}

#[test]
fn groups_that_are_there_are_described_within_the_bound_of_answers() {
    const GROUPS: usize = 40;
    const BYTES: usize = 400_000;
    let mut victim = Victim::start(&[("group.initial.rebalance.delay.ms", "0")]);
    let mut client = Client::connect(victim.address);
    join_usual_group(&mut client);
    let groups: Vec<String> = (0..GROUPS).map(|number| format!("large-{number}")).collect();
    groups.iter().for_each(|group| found_group(&mut client, group, BYTES));
    let names = groups.iter().map(|group| group.as_str().into()).collect();
    let request = request_bytes(5, 1, &DescribeGroupsRequest { groups: names, ..Default::default() });
    let is_whole = |decoder: &mut Decoder<'_>| {
        let answer = DescribeGroupsResponse::decode(decoder, 5).unwrap();
        assert_eq!(answer.groups.len(), GROUPS);
        let without_memory = ErrorCode::COORDINATOR_NOT_AVAILABLE.code();
        answer.groups.iter().all(|group| match group.error_code {
            0 => {
                let bytes = |member: &DescribedGroupMember<'_>| {
                    member.member_metadata.len() + member.member_assignment.len()
                };
                assert_eq!(group.members.iter().map(bytes).sum::<usize>(), 2 * BYTES);
                true
            }
            error => {
                assert_eq!(error, without_memory);
                false
            }
        })
    };
    ask_and_read_nothing(&mut victim, &request, is_whole, GROUPS_MIB_MAX);
}

#[test]
fn offsets_that_are_there_are_fetched_within_the_bound_of_answers() {
    const GROUPS: usize = 12;
    const PARTITIONS: i32 = 100;
    const BYTES: usize = 30_000;
    let mut victim = Victim::start(&[("offset.metadata.max.bytes", "32000")]);
    let mut client = Client::connect(victim.address);
    client.create_topic("topic", PARTITIONS, &[]);
    join_usual_group(&mut client);
    let metadata = "m".repeat(BYTES);
    let groups: Vec<String> = (0..GROUPS).map(|number| format!("large-{number}")).collect();
    for group in &groups {
        // As many as fit into a batch.
        for first in (0..PARTITIONS).step_by(25) {
            let partition = |partition_index| OffsetCommitRequestPartition {
                partition_index,
                committed_offset: 1,
                committed_metadata: Some(metadata.as_str().into()),
                ..Default::default()
            };
            let topic = OffsetCommitRequestTopic {
                name: "topic".into(),
                partitions: (first..first + 25).map(partition).collect(),
                ..Default::default()
            };
            let request = OffsetCommitRequest {
                group_id: group.as_str().into(),
                generation_id_or_member_epoch: -1,
                topics: vec![topic],
                ..Default::default()
            };
            let body = client.ask(8, &request);
            let answer =
                OffsetCommitResponse::decode(&mut Decoder::new(&body), 8).expect("it is well-formed");
            assert!(answer.topics[0].partitions.iter().all(|partition| partition.error_code == 0));
        }
    }
    let group = |group: &String| OffsetFetchRequestGroup {
        group_id: group.clone().into(),
        topics: None,
        ..Default::default()
    };
    let request = OffsetFetchRequest { groups: groups.iter().map(group).collect(), ..Default::default() };
    let is_whole = |decoder: &mut Decoder<'_>| {
        let answer = OffsetFetchResponse::decode(decoder, 8).unwrap();
        assert_eq!(answer.groups.len(), GROUPS);
        answer.groups.iter().all(|group| match group.error_code {
            0 => {
                let partitions = group.topics.iter().flat_map(|topic| &topic.partitions);
                let bytes = partitions.map(|one| one.metadata.as_ref().map_or(0, |metadata| metadata.len()));
                assert_eq!(bytes.sum::<usize>(), PARTITIONS as usize * BYTES);
                true
            }
            error => {
                assert_eq!(error, ErrorCode::COORDINATOR_NOT_AVAILABLE.code());
                false
            }
        })
    };
    ask_and_read_nothing(&mut victim, &request_bytes(8, 1, &request), is_whole, GROUPS_MIB_MAX);
}

#[test]
fn a_name_that_no_answer_can_repeat_is_answered() {
    let mut victim = Victim::start(&[]);
    let mut client = Client::connect(victim.address);
    let long = "x".repeat(32_767);
    let topic = |name: &str| CreatableTopic {
        name: name.to_owned().into(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    let create = CreateTopicsRequest {
        topics: vec![topic("beside"), topic(&long)],
        timeout_ms: 10_000,
        ..Default::default()
    };
    let requests = [
        request_bytes(7, 1, &create),
        request_bytes(
            5,
            2,
            &DescribeGroupsRequest { groups: vec![long.clone().into()], ..Default::default() },
        ),
        request_bytes(
            1,
            3,
            &ConsumerGroupDescribeRequest { group_ids: vec![long.clone().into()], ..Default::default() },
        ),
        request_bytes(
            4,
            4,
            &DescribeConfigsRequest {
                resources: [2, 4, 8, 16, 32]
                    .map(|resource_type| DescribeConfigsResource {
                        resource_type,
                        resource_name: long.clone().into(),
                        ..Default::default()
                    })
                    .into(),
                ..Default::default()
            },
        ),
        request_bytes(
            1,
            5,
            &IncrementalAlterConfigsRequest {
                resources: [2, 4, 8, 16, 32]
                    .map(|resource_type| AlterConfigsResource {
                        resource_type,
                        resource_name: long.clone().into(),
                        configs: vec![AlterableConfig { name: long.clone().into(), ..Default::default() }],
                        ..Default::default()
                    })
                    .into(),
                ..Default::default()
            },
        ),
    ];
    for request in requests {
        client.socket.write_all(&request).unwrap();
        assert!(!client.frame().expect("an answer").is_empty());
    }
    victim.assert_sound();
}

#[test]
fn ten_thousand_pipelined_requests_without_reading_hold_bounded_memory() {
    let mut victim = Victim::start(&[ONE_LOOP]);
    fill(&victim, "read", 16_000, 20);
    victim.reset_memory_peak();
    let probe = Probe::start(victim.address);
    let mut requests = Vec::new();
    for id in 0..10_000 {
        match id % 2 {
            0 => requests.extend(request_bytes(0, id, &ApiVersionsRequest::default())),
            _ => requests.extend(request_bytes(FETCH_VERSION, id, &fetch("read", 0, 30_000))),
        }
    }
    let clients: Vec<_> = (0..16).map(|_| Client::connect(victim.address)).collect();
    let mut writers = Vec::new();
    for client in &clients {
        let (mut socket, requests) = (client.socket.try_clone().unwrap(), requests.clone());
        socket.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        writers.push(std::thread::spawn(move || socket.write_all(&requests)));
    }
    for writer in writers {
        // The broker stops reading: the socket's buffer fills up and the write times out.
        let _ = writer.join().unwrap();
    }
    probe.measure(500);
    probe.finish();
    assert_peak(&victim, 32);
    victim.assert_sound();
}

#[test]
fn slow_readers_of_large_fetches_hold_bounded_memory() {
    let mut victim = Victim::start(&[ONE_LOOP]);
    fill(&victim, "large", 900_000, 30);
    fill(&victim, "small", 25_000, 40);
    victim.reset_memory_peak();
    let probe = Probe::start(victim.address);
    let mut clients: Vec<_> = (0..64).map(|_| Client::connect(victim.address)).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        let (topic, bytes_max) = if index % 2 == 0 { ("large", 50 << 20) } else { ("small", 30_000) };
        for _ in 0..20 {
            client.send(FETCH_VERSION, &fetch(topic, 0, bytes_max)).unwrap();
        }
    }
    let mut some = [0; 1000];
    for _ in 0..20 {
        clients.iter_mut().for_each(|client| client.socket.read_exact(&mut some).unwrap());
        // As above.
        std::thread::sleep(Duration::from_millis(20));
    }
    probe.finish();
    // At most the backlog of a connection, for half of them, and the process itself.
    assert_peak(&victim, 32);
    victim.assert_sound();
}

#[test]
fn requests_that_name_a_hundred_thousand_things_are_answered() {
    let mut victim = Victim::start(&[ONE_LOOP, ("auto.create.topics.enable", "false")]);
    let mut client = Client::connect(victim.address);
    client.create_topic("once", 1, &[]);
    let probe = Probe::start(victim.address);
    let partitions = |partition: fn(i32) -> i32| {
        let partition = |index| FetchPartition {
            partition: partition(index),
            partition_max_bytes: 1 << 20,
            ..Default::default()
        };
        (0..100_000).map(partition).collect::<Vec<_>>()
    };
    let cases: [fn(i32) -> i32; 2] = [|index| index + 1, |_| 0];
    for case in cases {
        let topic = FetchTopic { topic: "once".into(), partitions: partitions(case), ..Default::default() };
        let request = FetchRequest { max_wait_ms: 100, topics: vec![topic], ..fetch("once", 0, 1 << 20) };
        let began = Instant::now();
        let body = client.ask(FETCH_VERSION, &request);
        println!("fetch of 100,000 partitions: {:?}", began.elapsed());
        let response = FetchResponse::decode(&mut Decoder::new(&body), FETCH_VERSION).unwrap();
        let answered = response.responses[0].partitions.len();
        assert!(answered == 100_000 || answered == 1, "{answered} partitions");
    }
    let named =
        |index| MetadataRequestTopic { name: Some(format!("name-{index}").into()), ..Default::default() };
    let topics = Some((0..100_000).map(named).collect());
    let request = MetadataRequest { topics, allow_auto_topic_creation: true, ..Default::default() };
    let began = Instant::now();
    let body = client.ask(9, &request);
    println!("metadata of 100,000 names: {:?}", began.elapsed());
    assert!(body.len() > 100_000 * 10);
    probe.finish();
    assert_peak(&victim, 128);
    victim.assert_sound();
}

#[test]
fn decompression_bombs_are_refused_and_neighbours_are_served() {
    let mut victim = Victim::start(&[ONE_LOOP]);
    let mut client = Client::connect(victim.address);
    client.create_topic("bombs", 20, &[]);
    let bombs = [Compression::Gzip, Compression::Zstd, Compression::Lz4].map(|codec| batch(codec, 100 << 20));
    victim.reset_memory_peak();
    let probe = Probe::start(victim.address);
    for bomb in bombs.iter().filter(|bomb| bomb.len() < 1 << 20).cycle().take(30) {
        let error = client.produce("bombs", 0, 1, bomb);
        assert_ne!(error, ErrorCode::NONE, "a batch of {} bytes", bomb.len());
    }
    // Many in one request, each just below the limit: one may hold up the others, all together may not.
    let heavy = batch(Compression::Gzip, 60 << 20);
    for (batch, acks) in [(&heavy, 1), (&heavy, -1), (&heavy, 0), (&bombs[0], 1), (&bombs[0], 0)] {
        let mut request = produce("bombs", 0, acks, batch);
        let partition = request.topic_data[0].partition_data[0].clone();
        let of_index = |index| PartitionProduceData { index, ..partition.clone() };
        request.topic_data[0].partition_data = (0..20).map(of_index).collect();
        client.send(PRODUCE_VERSION, &request).unwrap();
        if acks != 0 {
            let frame = client.frame().unwrap();
            assert!(frame.len() > 20 * 20, "every one is answered");
        } else if std::ptr::eq(batch, &heavy) {
            client.ask(0, &ApiVersionsRequest::default());
        } else {
            assert!(client.is_closed(), "a client that wants no answer learns by losing its connection");
        }
    }
    probe.finish();
    assert_peak(&victim, 32);
    victim.assert_sound();
}

#[test]
fn a_join_with_giant_metadata_is_answered_or_refused() {
    let mut victim =
        Victim::start(&[("group.initial.rebalance.delay.ms", "0"), ("offsets.topic.num.partitions", "1")]);
    for bytes in [100_000, 900_000, 8 << 20] {
        let mut client = Client::connect(victim.address);
        let join = |member_id: &str| JoinGroupRequest {
            group_id: format!("giant-{bytes}").into(),
            session_timeout_ms: 10_000,
            rebalance_timeout_ms: 10_000,
            member_id: member_id.to_owned().into(),
            protocol_type: "consumer".into(),
            protocols: vec![JoinGroupRequestProtocol {
                name: "range".into(),
                metadata: vec![7; bytes].into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        client.send(3, &join("")).unwrap();
        let answered = client.frame();
        assert!(answered.is_ok(), "{bytes} bytes of metadata: {answered:?}");
    }
    assert_peak(&victim, 64);
    victim.assert_sound();
}

#[test]
fn a_flood_of_automatic_creations_leaves_the_broker_whole() {
    let mut victim = Victim::start(&[]);
    let probe = Probe::start(victim.address);
    let creators = (0..8).map(|creator| {
        let address = victim.address;
        std::thread::spawn(move || {
            let mut client = Client::connect(address);
            for index in 0..10 {
                let named = |topic| MetadataRequestTopic {
                    name: Some(format!("flood-{creator}-{index}-{topic}").into()),
                    ..Default::default()
                };
                let topics = Some((0..5).map(named).collect());
                client.ask(
                    9,
                    &MetadataRequest { topics, allow_auto_topic_creation: true, ..Default::default() },
                );
            }
        })
    });
    for creator in creators.collect::<Vec<_>>() {
        creator.join().unwrap();
    }
    probe.finish();
    assert_peak(&victim, 32);
    victim.assert_sound();
}

/// Drops a file's pages from the page cache.
fn drop_pages(path: &std::path::Path) {
    let file = std::fs::File::open(path).expect("the broker has made it");
    file.sync_all().expect("it can be synced");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("the advice is known");
}

#[test]
fn a_cold_read_does_not_hold_up_its_loop() {
    let mut victim = Victim::start(&[ONE_LOOP]);
    let count = if is_long() { 1100 } else { 280 };
    fill(&victim, "cold", 1_000_000, count);
    let folder = victim.data_dir().join("cold-0");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "log") {
            drop_pages(&path);
        }
    }
    let probe = Probe::start(victim.address);
    let mut client = Client::connect(victim.address);
    let began = Instant::now();
    let mut offset = 0;
    while offset < count as i64 {
        let body = client.ask(FETCH_VERSION, &fetch("cold", offset, 50 << 20));
        let response = FetchResponse::decode(&mut Decoder::new(&body), FETCH_VERSION).unwrap();
        assert_eq!(response.responses[0].partitions[0].error_code, 0);
        offset += (body.len() / 1_000_000) as i64;
    }
    probe.finish();
    println!("{count} MB read in {:?}", began.elapsed());
    let (by_loop, by_helpers) = (victim.bytes_from_disk("loop-"), victim.bytes_from_disk("cold-reads-"));
    println!("bytes from disk: by the loop {by_loop}, by the helpers {by_helpers}");
    assert!(by_helpers > count as u64 * 900_000, "the pages were not cold");
    // A lookup that misses the cache requests its pages and does not wait. Sent bytes are never read by this thread.
    assert!(by_loop < by_helpers / 8, "the loop itself reads what it sends");
    assert_peak(&victim, 24);
    victim.assert_sound();
}

#[test]
fn a_topic_that_is_named_ten_thousand_times_is_described_once() {
    const VERSION: i16 = 9;
    let mut victim = Victim::start(&[]);
    let mut client = Client::connect(victim.address);
    client.create_topic("wide", 1000, &[]);
    victim.reset_memory_peak();
    let named = MetadataRequestTopic { name: Some("wide".into()), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![named; 10_000]), ..Default::default() };
    let body = client.ask(VERSION, &request);
    let response = MetadataResponse::decode(&mut Decoder::new(&body), VERSION).unwrap();
    let partitions: Vec<_> = response.topics.iter().map(|topic| topic.partitions.len()).collect();
    assert_eq!(partitions, [1000]);
    assert_peak(&victim, 48);
    victim.assert_sound();
}

#[test]
fn a_connection_that_never_reads_is_closed_in_the_end() {
    let mut victim = Victim::start(&[("connections.max.idle.ms", "5000")]);
    fill(&victim, "unread", 900_000, 20);
    let mut client = Client::connect(victim.address);
    client.ask(0, &ApiVersionsRequest::default());
    let descriptors = victim.descriptors();
    for _ in 0..20 {
        client.send(FETCH_VERSION, &fetch("unread", 0, 50 << 20)).unwrap();
    }
    wait_until("it is closed", Duration::from_secs(60), || victim.descriptors() < descriptors);
    victim.assert_sound();
}
