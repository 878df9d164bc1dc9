//! Cost of the codec for a produce and for a fetch, in the versions that the clients of Kafka 4.3 send.

#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use std::borrow::Cow;
use std::hint::black_box;

use mainstem_microbench::{Case, Suite};
use mainstem_wire::frame::{open_request, split_frame, write_request, write_response};
use mainstem_wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use mainstem_wire::messages::fetch_response::{FetchResponse, FetchableTopicResponse, PartitionData};
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_wire::messages::request_header::RequestHeader;
use mainstem_wire::{ApiKey, Records, Request, Uuid};

const PRODUCE_VERSION: i16 = 13;
const FETCH_VERSION: i16 = 18;
const FRAME_BYTES_MAX: usize = 100 << 20;
const TOPIC: Uuid = Uuid([7; 16]);

/// Bytes of a batch with one record of 100 bytes, one of 1,024, and 512 of 100. The codec does not look into it.
const BATCH_100: usize = 170;
const BATCH_1024: usize = 1_094;
const BATCH_512X100: usize = 56_317;

fn main() {
    let mut suite = Suite::from_args("wire");
    for (name, batch_bytes) in [
        ("decode_produce_100", BATCH_100),
        ("decode_produce_1024", BATCH_1024),
        ("decode_produce_512x100", BATCH_512X100),
    ] {
        let input = || produce_frame(batch_bytes);
        suite.measure(Case { name, calls: 1_000 }, input, |frame| {
            black_box(decode::<ProduceRequest<'_>>(frame));
        });
    }
    suite.measure(Case { name: "decode_fetch", calls: 1_000 }, fetch_frame, |frame| {
        black_box(decode::<FetchRequest<'_>>(frame));
    });
    for (name, records) in [
        ("encode_fetch_100", Records::Bytes(vec![b'x'; BATCH_100].into())),
        ("encode_fetch_1024", Records::Bytes(vec![b'x'; BATCH_1024].into())),
        // As the broker answers it: the batch stays in its file.
        ("encode_fetch_512x100", Records::Hole(BATCH_512X100)),
    ] {
        suite.measure(Case { name, calls: 1_000 }, Vec::new, |out| encode_fetch(&records, out));
    }
}

/// Takes a request from the bytes of a connection and reads it to its end.
fn decode<'a, R: Request<'a>>(bytes: &'a [u8]) -> R {
    let (frame, _) = split_frame(bytes, FRAME_BYTES_MAX).unwrap().unwrap();
    open_request(frame).unwrap().decode().unwrap()
}

fn frame<'a, R: Request<'a>>(version: i16, request: &R) -> Vec<u8> {
    let header = RequestHeader {
        request_api_key: R::KEY.key(),
        request_api_version: version,
        correlation_id: 7,
        client_id: Some("producer-1".into()),
        ..Default::default()
    };
    let mut bytes = Vec::new();
    write_request(&mut bytes, &header, request).unwrap();
    bytes
}

fn produce_frame(batch_bytes: usize) -> Vec<u8> {
    let records = Some(Records::Bytes(vec![b'x'; batch_bytes].into()));
    let data = PartitionProduceData { index: 3, records, ..Default::default() };
    let topic = TopicProduceData { topic_id: TOPIC, partition_data: vec![data], ..Default::default() };
    let request =
        ProduceRequest { acks: 1, timeout_ms: 30_000, topic_data: vec![topic], ..Default::default() };
    frame(PRODUCE_VERSION, &request)
}

/// A fetch within a session (KIP-227) that names the one partition whose position has moved.
fn fetch_frame() -> Vec<u8> {
    let partition = FetchPartition {
        partition: 3,
        fetch_offset: 1_000_000,
        partition_max_bytes: 1 << 20,
        ..Default::default()
    };
    let topic = FetchTopic { topic_id: TOPIC, partitions: vec![partition], ..Default::default() };
    let request = FetchRequest {
        max_wait_ms: 500,
        min_bytes: 1,
        max_bytes: 50 << 20,
        session_id: 17,
        session_epoch: 42,
        topics: vec![topic],
        ..Default::default()
    };
    frame(FETCH_VERSION, &request)
}

/// The answer with one partition, into a buffer that was used before.
fn encode_fetch(records: &Records<'static>, out: &mut Vec<u8>) -> usize {
    let records = match records {
        Records::Bytes(bytes) => Records::Bytes(Cow::Borrowed(&**bytes)),
        Records::Hole(len) => Records::Hole(*len),
    };
    let data = PartitionData {
        partition_index: 3,
        high_watermark: 1_000_001,
        last_stable_offset: 1_000_001,
        log_start_offset: 0,
        records: Some(records),
        ..Default::default()
    };
    let topic = FetchableTopicResponse { topic_id: TOPIC, partitions: vec![data], ..Default::default() };
    let response = FetchResponse { session_id: 17, responses: vec![topic], ..Default::default() };
    out.clear();
    write_response(out, ApiKey::Fetch, FETCH_VERSION, 7, &response).unwrap().len()
}
