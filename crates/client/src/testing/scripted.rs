//! A broker of one node that answers as a test says, for cases that a real broker has too seldom.
//!
//! It names itself for everything, has one topic, `t`, and serves every version, or those that a test names. A request
//! that the test does not answer gets no answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use mainstem_wire::frame::{OpenRequest, open_request, split_frame, write_response};
use mainstem_wire::messages::api_versions_response::{ApiVersion, ApiVersionsResponse};
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::find_coordinator_response::{Coordinator, FindCoordinatorResponse};
use mainstem_wire::messages::metadata_response::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use mainstem_wire::{ApiKey, Message, Uuid};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::ClientConfig;

/// The most bytes of a request.
const REQUEST_BYTES_MAX: usize = 16 << 20;
/// The least number of bytes that the kernel buffers for a connection that is not read.
const RECEIVE_BUFFER: u32 = 4096;

/// A request that the test is to answer.
pub(crate) type Asked<'a> = OpenRequest<'a>;
/// The frame of the answer; none for no answer.
pub(crate) type Answered = Option<Vec<u8>>;
type Script = Arc<Mutex<dyn FnMut(&mut Asked<'_>) -> Answered + Send>>;

/// The frame of an answer.
pub(crate) fn answer<'a>(asked: &Asked<'_>, response: &impl Message<'a>) -> Answered {
    let mut frame = Vec::new();
    let correlation_id = asked.header.correlation_id;
    write_response(&mut frame, asked.api_key, asked.response_version(), correlation_id, response).unwrap();
    Some(frame)
}

/// The broker.
pub(crate) struct ScriptedBroker {
    address: String,
    reads: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl ScriptedBroker {
    /// A broker with so many partitions of its topic.
    pub(crate) fn start(
        partitions: i32,
        script: impl FnMut(&mut Asked<'_>) -> Answered + Send + 'static,
    ) -> ScriptedBroker {
        ScriptedBroker::new(partitions, versions(), script)
    }

    /// A broker that answers ApiVersions so, and nothing else.
    pub(crate) fn offering(versions: ApiVersionsResponse<'static>) -> ScriptedBroker {
        ScriptedBroker::new(1, versions, |_| None)
    }

    fn new(
        partitions: i32,
        versions: ApiVersionsResponse<'static>,
        script: impl FnMut(&mut Asked<'_>) -> Answered + Send + 'static,
    ) -> ScriptedBroker {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(RECEIVE_BUFFER).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(16).unwrap();
        let address = listener.local_addr().unwrap();
        let (reads, is_reading) = watch::channel(true);
        let node = Node {
            port: address.port().into(),
            partitions,
            versions: Arc::new(versions),
            script: Arc::new(Mutex::new(script)),
            is_reading,
        };
        ScriptedBroker { address: address.to_string(), reads, task: tokio::spawn(serve(listener, node)) }
    }

    /// Stops reading from its sockets, or continues.
    pub(crate) fn set_reading(&self, is_reading: bool) {
        self.reads.send_replace(is_reading);
    }

    /// The configuration of clients, without long waits between attempts.
    pub(crate) fn client(&self) -> ClientConfig {
        ClientConfig {
            retry_backoff: Duration::from_millis(1),
            retry_backoff_max: Duration::from_millis(5),
            ..ClientConfig::new(&self.address).unwrap()
        }
    }
}

impl Drop for ScriptedBroker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
struct Node {
    port: i32,
    partitions: i32,
    versions: Arc<ApiVersionsResponse<'static>>,
    script: Script,
    is_reading: watch::Receiver<bool>,
}

async fn serve(listener: TcpListener, node: Node) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        tokio::spawn(node.clone().serve(socket));
    }
}

impl Node {
    /// Serves until the client or the test has gone.
    async fn serve(mut self, mut socket: TcpStream) {
        let mut buffer = BytesMut::new();
        loop {
            while let Ok(Some((frame, taken))) = split_frame(&buffer, REQUEST_BYTES_MAX) {
                if let Some(answer) = self.answer(&mut open_request(frame).unwrap()) {
                    socket.write_all(&answer).await.unwrap();
                }
                buffer.advance(taken);
            }
            if self.is_reading.wait_for(|reads| *reads).await.is_err() || socket.readable().await.is_err() {
                return;
            }
            // Bytes that have arrived stay unread if the test has stopped reading meanwhile.
            let is_over =
                *self.is_reading.borrow() && socket.try_read_buf(&mut buffer).is_ok_and(|count| count == 0);
            if is_over {
                return;
            }
        }
    }

    fn answer(&self, asked: &mut Asked<'_>) -> Answered {
        match asked.api_key {
            ApiKey::ApiVersions => self.offer(asked),
            ApiKey::Metadata => answer(asked, &self.metadata()),
            ApiKey::FindCoordinator => {
                let request: FindCoordinatorRequest<'_> = asked.decode().unwrap();
                let keys = request.coordinator_keys.into_iter();
                let coordinators = keys.map(|key| Coordinator {
                    key,
                    node_id: 1,
                    host: "127.0.0.1".into(),
                    port: self.port,
                    ..Default::default()
                });
                answer(
                    asked,
                    &FindCoordinatorResponse { coordinators: coordinators.collect(), ..Default::default() },
                )
            }
            _ => (self.script.lock())(asked),
        }
    }

    /// The answer to ApiVersions; a refusal has version 0, as the broker does not know the version that was asked for.
    fn offer(&self, asked: &Asked<'_>) -> Answered {
        let version = if self.versions.error_code == 0 { asked.response_version() } else { 0 };
        let mut frame = Vec::new();
        let correlation_id = asked.header.correlation_id;
        write_response(&mut frame, asked.api_key, version, correlation_id, &*self.versions).unwrap();
        Some(frame)
    }

    fn metadata(&self) -> MetadataResponse<'static> {
        let partition = |partition_index| MetadataResponsePartition {
            partition_index,
            leader_id: 1,
            leader_epoch: 0,
            ..Default::default()
        };
        let topic = MetadataResponseTopic {
            name: Some("t".into()),
            topic_id: Uuid::from_u128(7),
            partitions: (0..self.partitions).map(partition).collect(),
            ..Default::default()
        };
        let host = "127.0.0.1".into();
        let broker = MetadataResponseBroker { node_id: 1, host, port: self.port, ..Default::default() };
        MetadataResponse { brokers: vec![broker], topics: vec![topic], ..Default::default() }
    }
}

/// Every version of every API.
pub(crate) fn versions() -> ApiVersionsResponse<'static> {
    let api = |key: &ApiKey| {
        let versions = key.versions();
        ApiVersion {
            api_key: *key as i16,
            min_version: *versions.start(),
            max_version: *versions.end(),
            ..Default::default()
        }
    };
    ApiVersionsResponse { api_keys: ApiKey::ALL.iter().map(api).collect(), ..Default::default() }
}
