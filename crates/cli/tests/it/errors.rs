//! Messages and exit codes of commands when a broker refuses, answers nonsense, hangs up or is away.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use mainstem_records::{Batch, BatchBuilder, BatchOptions};
use mainstem_wire::frame::OpenRequest;
use mainstem_wire::messages::create_topics_response::{CreatableTopicResult, CreateTopicsResponse};
use mainstem_wire::messages::fetch_response::{FetchResponse, FetchableTopicResponse, PartitionData};
use mainstem_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use mainstem_wire::messages::produce_request::ProduceRequest;
use mainstem_wire::messages::produce_response::{
    PartitionProduceResponse, ProduceResponse, TopicProduceResponse,
};
use mainstem_wire::{ApiKey, ErrorCode, Records};

use crate::support::fake_broker::{self, Reply, respond, versions};
use crate::support::{run, run_with_input};

/// A port without a listener: the system does not give it to tests, and nothing here uses it.
const UNUSED: &str = "127.0.0.1:1";

/// Values of --timeout, in seconds. The longer ones are for machines that stall for the time of the shorter ones.
const TIMEOUTS: [u32; 3] = [1, 8, 30];

/// A server that is no broker: it answers any request with these bytes and hangs up.
fn no_broker(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut some = [0; 16];
            let _ = stream.read(&mut some).and_then(|_| stream.write_all(answer));
        }
    });
    address
}

fn produced(request: &OpenRequest<'_>, error: ErrorCode) -> Reply {
    let partition = PartitionProduceResponse { error_code: error.code(), ..Default::default() };
    let topic = TopicProduceResponse {
        name: if request.header.request_api_version < 13 { "t".into() } else { "".into() },
        partition_responses: vec![partition],
        ..Default::default()
    };
    respond(request, &ProduceResponse { responses: vec![topic], ..Default::default() })
}

/// A broker that answers the first produces with these errors, `None` being a lost connection, and acknowledges later
/// ones. Returns its address and the number of produces so far.
fn producing(errors: &'static [Option<ErrorCode>]) -> (String, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    let address = fake_broker::start(move |mut request| {
        if request.api_key != ApiKey::Produce {
            return Reply::Usual;
        }
        let sent: ProduceRequest<'_> = request.decode().unwrap();
        let Some(Records::Bytes(bytes)) = &sent.topic_data[0].partition_data[0].records else {
            panic!("a produce has records");
        };
        let (batch, _) = Batch::split_first(bytes).unwrap();
        // Every attempt is the same batch of the same producer.
        assert_eq!((batch.producer_id(), batch.base_sequence(), batch.verify_crc()), (7, 0, true));
        match errors.get(counter.fetch_add(1, Ordering::SeqCst)) {
            Some(Some(error)) => produced(&request, *error),
            Some(None) => Reply::HangUp,
            None => produced(&request, ErrorCode::NONE),
        }
    });
    (address, count)
}

#[test]
fn no_broker_is_there() {
    let address = UNUSED;
    for command in [
        "topic list",
        "topic create x",
        "produce x",
        "consume x",
        "group list",
        "group describe x",
        "group delete x",
        "group delete-offsets x --topic t",
        "group reset x --topic t --to-latest",
    ] {
        let message = run(address, command).failed();
        assert!(message.contains(&format!("cannot connect to {address}")), "{command}: {message}");
        assert!(message.contains("mainstem start"), "{command}: {message}");
        assert!(message.contains("--bootstrap"), "{command}: {message}");
    }
}

#[test]
fn something_else_is_there() {
    for answer in
        [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x02xy", b"\0\0\0\x08\0\0\0\0\0\0\0\0"]
    {
        let message = run(&no_broker(answer), "topic list").failed();
        assert!(message.contains("does not answer as a Kafka broker does"), "{answer:?}: {message}");
    }
}

#[test]
fn bad_arguments() {
    let message = run("nowhere", "topic list").failed();
    assert!(message.contains("--bootstrap takes HOST:PORT"), "{message}");
    let usage = |arguments: &str| run("127.0.0.1:1", arguments);
    for (arguments, why) in [
        ("topic create x --config retention.ms", "KEY=VALUE"),
        ("topic create x --partitions 0", "0 is not in"),
        ("topic alter x", "required"),
        ("consume x --from tomorrow", "expected beginning"),
        ("consume x --group g --partition 1", "cannot be used with"),
        ("produce x --compression rar", "possible values"),
        ("produce x --header k", "KEY=VALUE"),
        ("group reset g --topic t", "--to-earliest"),
        ("group reset g --to-latest", "--topic"),
        ("group reset g --topic t --to-latest --to-earliest", "cannot be used with"),
        ("group reset g --topic t --from-file f", "cannot be used with"),
        ("group reset g --topic t --to-offset -1", "-1 is not in"),
        ("group reset g --topic t --to-datetime tomorrow", "expected a time such as"),
        ("group reset g --topic t --by-duration 1h", "such as PT90M"),
        ("group reset g --topic t:x --to-latest", "such as orders:0,2"),
        ("group delete", "required"),
        ("group delete-offsets g", "--topic"),
    ] {
        let run = usage(arguments);
        assert_eq!(run.code, Some(2), "{arguments}: {run:?}");
        assert!(run.stderr.contains(why), "{arguments}: {}", run.stderr);
    }
}

#[test]
fn the_broker_does_not_serve_an_api() {
    let address = fake_broker::start(|request| match request.api_key {
        ApiKey::ApiVersions => respond(&request, &versions(|key| key != ApiKey::ListGroups)),
        _ => Reply::Usual,
    });
    let message = run(&address, "group list").failed();
    assert!(message.contains(&format!("the broker at {address} does not serve ListGroups")), "{message}");
}

#[test]
fn there_is_no_such_topic() {
    let address = fake_broker::start(|_| Reply::Usual);
    for command in ["produce nope", "consume nope", "topic describe nope", "topic alter nope -p 3"] {
        let message = run(&address, command).failed();
        assert!(message.contains("there is no topic nope; create it with"), "{command}: {message}");
    }
    let message = run(&address, "topic delete t nope").failed();
    assert!(message.contains("there is no topic nope; nothing was deleted"), "{message}");
}

#[test]
fn a_refusal_comes_with_the_brokers_own_words() {
    let address = fake_broker::start(|request| {
        if request.api_key != ApiKey::CreateTopics {
            return Reply::Usual;
        }
        let result = CreatableTopicResult {
            name: "x".into(),
            error_code: ErrorCode::INVALID_REPLICATION_FACTOR.code(),
            error_message: Some("only 1 broker is there.".into()),
            ..Default::default()
        };
        respond(&request, &CreateTopicsResponse { topics: vec![result], ..Default::default() })
    });
    let message = run(&address, "topic create x --replication-factor 3").failed();
    assert_eq!(
        message,
        "mainstem: cannot create topic x: only 1 broker is there (INVALID_REPLICATION_FACTOR)\n"
    );
}

#[test]
fn a_produce_is_tried_again() {
    let (address, count) =
        producing(&[Some(ErrorCode::NOT_LEADER_OR_FOLLOWER), None, Some(ErrorCode::NOT_ENOUGH_REPLICAS)]);
    let report = run_with_input(&address, "produce t", b"one\ntwo\n").ok();
    assert!(report.starts_with("2 records to t acknowledged"), "{report}");
    assert_eq!(count.load(Ordering::SeqCst), 4);
}

#[test]
fn a_lost_answer_is_no_loss_and_no_duplicate() {
    let (address, _) = producing(&[None, Some(ErrorCode::DUPLICATE_SEQUENCE_NUMBER)]);
    let report = run_with_input(&address, "produce t", b"one\n").ok();
    assert!(report.starts_with("1 record to t acknowledged"), "{report}");
}

#[test]
fn retries_end() {
    // A machine that stalls may use up a short time before the second attempt.
    let is_reported = TIMEOUTS.into_iter().any(|seconds| {
        let (address, count) = producing(&[Some(ErrorCode::NOT_ENOUGH_REPLICAS); 1_000]);
        let run = run_with_input(&address, &format!("produce t --timeout {seconds}"), b"one\n");
        if count.load(Ordering::SeqCst) <= 2 {
            return false;
        }
        assert!(run.stdout.starts_with("only 0 of 1 records to t acknowledged"), "{run:?}");
        let (message, words) = (run.failed(), format!("gave up after {seconds} s of retries"));
        assert!(message.contains(&words) && message.contains("NOT_ENOUGH_REPLICAS"), "{message}");
        true
    });
    assert!(is_reported, "it was not tried again");
}

#[test]
fn a_record_that_is_too_large_is_reported() {
    let (address, count) = producing(&[Some(ErrorCode::MESSAGE_TOO_LARGE)]);
    let run = run_with_input(&address, "produce t", b"one\n");
    assert!(run.stdout.starts_with("only 0 of 1 records to t acknowledged"), "{run:?}");
    let message = run.failed();
    assert!(message.contains("raise the topic's max.message.bytes"), "{message}");
    assert!(message.contains("1 of 1 records were not acknowledged"), "{message}");
    assert_eq!(count.load(Ordering::SeqCst), 1, "there is no use in trying again");
}

#[test]
fn a_faulty_line_is_named_and_what_came_before_is_written() {
    let (address, _) = producing(&[]);
    let run = run_with_input(&address, "produce t --json", b"{\"value\":\"a\"}\n{\"valve\":\"b\"}\n");
    assert!(run.stdout.contains("\"acknowledged\":1"), "{run:?}");
    let message = run.failed();
    assert!(message.contains("line 2 of the input") && message.contains("valve"), "{message}");
}

/// A broker whose topic has a batch of one record; without `batch` it hangs up on each fetch.
fn fetching(batch: Option<Vec<u8>>) -> String {
    fake_broker::start(move |request| match request.api_key {
        ApiKey::ListOffsets => {
            let partition = ListOffsetsPartitionResponse { offset: 0, ..Default::default() };
            let partition = match asks_for_latest(request.clone()) {
                true => ListOffsetsPartitionResponse { offset: 1, ..partition },
                false => partition,
            };
            let topic = ListOffsetsTopicResponse {
                name: "t".into(),
                partitions: vec![partition],
                ..Default::default()
            };
            respond(&request, &ListOffsetsResponse { topics: vec![topic], ..Default::default() })
        }
        ApiKey::Fetch => {
            let Some(batch) = batch.clone() else { return Reply::HangUp };
            let data = PartitionData {
                high_watermark: 1,
                records: Some(Records::Bytes(batch.into())),
                ..Default::default()
            };
            let topic =
                FetchableTopicResponse { topic: "t".into(), partitions: vec![data], ..Default::default() };
            respond(&request, &FetchResponse { responses: vec![topic], ..Default::default() })
        }
        _ => Reply::Usual,
    })
}

fn asks_for_latest(mut request: OpenRequest<'_>) -> bool {
    let asked: mainstem_wire::messages::list_offsets_request::ListOffsetsRequest<'_> =
        request.decode().unwrap();
    asked.topics[0].partitions[0].timestamp == -1
}

#[test]
fn a_corrupt_batch_is_not_printed() {
    let mut builder = BatchBuilder::new(BatchOptions::default());
    builder.append(1, None, Some(b"value"), &[]).unwrap();
    let batch = builder.build().unwrap();
    assert_eq!(run(&fetching(Some(batch.clone())), "consume t").ok(), "value\n");
    let mut corrupt = batch;
    *corrupt.last_mut().unwrap() ^= 1;
    let run = run(&fetching(Some(corrupt)), "consume t");
    assert_eq!(run.stdout, "");
    let message = run.failed();
    assert!(
        message.contains("checksum") && message.contains("t-0 cannot be read from offset 0"),
        "{message}"
    );
}

#[test]
fn what_is_not_to_be_seen_at_the_end_is_not_waited_for() {
    let options = BatchOptions { is_control: true, is_transactional: true, ..Default::default() };
    let mut builder = BatchBuilder::new(options);
    builder.append(1, Some(&[0, 0, 0, 1]), Some(&[0; 6]), &[]).unwrap();
    let run = run(&fetching(Some(builder.build().unwrap())), "consume t");
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (Some(0), "", ""));
}

#[test]
fn records_that_do_not_come_are_not_waited_for_for_ever() {
    let mut messages = Vec::new();
    let is_reported = TIMEOUTS.into_iter().any(|seconds| {
        let message = run(&fetching(None), &format!("consume t --timeout {seconds}")).failed();
        let words = format!("gave up after {seconds} s (--timeout)");
        let is_of_records = message.contains("t-0 from offset 0 on");
        assert!(!is_of_records || message.contains(&words), "{message}");
        messages.push(message);
        is_of_records
    });
    assert!(is_reported, "{messages:?}");
}

#[test]
fn an_absurd_length_is_an_error() {
    let address = fake_broker::start(|request| match request.api_key {
        ApiKey::Metadata => Reply::Bytes(i32::MAX.to_be_bytes().to_vec()),
        _ => Reply::Usual,
    });
    let message = run(&address, "topic list").failed();
    assert!(message.contains("a frame of 2147483647 bytes"), "{message}");
}

#[test]
fn for_programs_errors_are_json() {
    let error = |text: &str| -> serde_json::Value { serde_json::from_str(text).unwrap() };
    let address = UNUSED;
    let message = error(&run(address, "topic list --json").failed());
    assert!(
        message["error"].as_str().unwrap().contains(&format!("cannot connect to {address}")),
        "{message}"
    );
    let broker = mainstem_broker::EmbeddedBroker::start(&[]);
    let message = error(&run(broker.address(), "topic describe nowhere --json").failed());
    assert!(message["error"].as_str().unwrap().contains("nowhere"), "{message}");
    run(broker.address(), "topic create x --set retention.ms=1000").ok();
    run(broker.address(), "topic alter x --config retention.ms=2000").ok();
    let message = error(&run(broker.address(), "topic create x --json").failed());
    assert_eq!(message["code"], "TOPIC_ALREADY_EXISTS", "{message}");
    let usage = run(address, "topic create x --json --partitions 0");
    assert_eq!(usage.code, Some(2));
    assert!(error(&usage.stderr)["error"].as_str().unwrap().contains("0 is not in"), "{usage:?}");
    assert!(run(address, "topic list").failed().starts_with("mainstem: "));
}
