//! A broker on a loopback socket whose answers come from a test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use mainstem_wire::frame::{self, OpenRequest};
use mainstem_wire::messages::api_versions_response::{ApiVersion, ApiVersionsResponse};
use mainstem_wire::messages::init_producer_id_response::InitProducerIdResponse;
use mainstem_wire::messages::metadata_request::MetadataRequest;
use mainstem_wire::messages::metadata_response::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use mainstem_wire::{ApiKey, ErrorCode, Message};

const REQUEST_BYTES_MAX: usize = 16 << 20;

/// The answer to a request.
pub(crate) enum Reply {
    /// Send these bytes.
    Bytes(Vec<u8>),
    /// Close the connection.
    HangUp,
    /// Answer as a broker with one node and one topic `t` of one partition.
    Usual,
}

/// A response as a frame.
pub(crate) fn respond<'a, M: Message<'a>>(request: &OpenRequest<'_>, response: &M) -> Reply {
    let mut bytes = Vec::new();
    let id = request.header.correlation_id;
    frame::write_response(&mut bytes, request.api_key, request.response_version(), id, response)
        .expect("the test's response can be encoded");
    Reply::Bytes(bytes)
}

/// Starts a broker; it ends with the test.
pub(crate) fn start(answer: impl Fn(OpenRequest<'_>) -> Reply + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = answer.clone();
            thread::spawn(move || serve(stream.expect("a connection"), address, &*answer));
        }
    });
    address.to_string()
}

fn serve(mut stream: TcpStream, address: SocketAddr, answer: &dyn Fn(OpenRequest<'_>) -> Reply) {
    while let Some(body) = read_frame(&mut stream) {
        let request = frame::open_request(&body).expect("the tool sends requests that can be read");
        let reply = match answer(request.clone()) {
            Reply::Usual => usual(request, address),
            other => other,
        };
        match reply {
            Reply::Bytes(bytes) => {
                if stream.write_all(&bytes).is_err() {
                    return;
                }
            }
            Reply::HangUp | Reply::Usual => return,
        }
    }
}

fn read_frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut prefix = [0; frame::LENGTH_BYTES];
    stream.read_exact(&mut prefix).ok()?;
    let length = frame::frame_len(&prefix, REQUEST_BYTES_MAX).expect("the tool sends sound frames")?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

fn usual(mut request: OpenRequest<'_>, address: SocketAddr) -> Reply {
    match request.api_key {
        ApiKey::ApiVersions => respond(&request, &versions(|_| true)),
        ApiKey::Metadata => {
            let asked: MetadataRequest<'_> = request.decode().expect("the tool sends sound requests");
            respond(&request, &metadata(&asked, address))
        }
        ApiKey::InitProducerId => respond(
            &request,
            &InitProducerIdResponse { producer_id: 7, producer_epoch: 0, ..Default::default() },
        ),
        other => panic!("the test has no answer to {}", other.name()),
    }
}

/// Every API in every version, where `serves` returns true.
pub(crate) fn versions(serves: impl Fn(ApiKey) -> bool) -> ApiVersionsResponse<'static> {
    let version = |key: &ApiKey| ApiVersion {
        api_key: key.key(),
        min_version: *key.versions().start(),
        max_version: *key.versions().end(),
        ..Default::default()
    };
    let keys = ApiKey::ALL.iter().filter(|key| serves(**key));
    ApiVersionsResponse { api_keys: keys.map(version).collect(), ..Default::default() }
}

fn metadata(asked: &MetadataRequest<'_>, address: SocketAddr) -> MetadataResponse<'static> {
    let names: Vec<String> = match &asked.topics {
        None => vec!["t".into()],
        Some(topics) => {
            topics.iter().map(|topic| topic.name.clone().unwrap_or_default().into_owned()).collect()
        }
    };
    let topic = |name: String| {
        let known = name == "t";
        let partition = MetadataResponsePartition {
            leader_id: 1,
            replica_nodes: vec![1],
            isr_nodes: vec![1],
            ..Default::default()
        };
        MetadataResponseTopic {
            error_code: if known { 0 } else { ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code() },
            name: Some(name.into()),
            partitions: if known { vec![partition] } else { Vec::new() },
            ..Default::default()
        }
    };
    MetadataResponse {
        brokers: vec![MetadataResponseBroker {
            node_id: 1,
            host: address.ip().to_string().into(),
            port: address.port().into(),
            ..Default::default()
        }],
        topics: names.into_iter().map(topic).collect(),
        ..Default::default()
    }
}
