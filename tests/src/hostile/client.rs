//! A blocking connection that sends any bytes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use mainstem_wire::frame;
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::api_versions_response::ApiVersionsResponse;
use mainstem_wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use mainstem_wire::messages::create_topics_response::CreateTopicsResponse;
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_wire::messages::produce_response::ProduceResponse;
use mainstem_wire::messages::request_header::RequestHeader;
use mainstem_wire::messages::response_header::ResponseHeader;
use mainstem_wire::{ApiKey, Decoder, ErrorCode, Message, Records, Request};
use socket2::SockRef;

/// The longest wait for an answer.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A blocking connection.
#[derive(Debug)]
pub struct Client {
    /// The socket, for bytes that are no request.
    pub socket: TcpStream,
    correlation_id: i32,
}

impl Client {
    /// Connects.
    ///
    /// # Panics
    /// When the broker does not accept it.
    pub fn connect(address: SocketAddr) -> Client {
        let socket = TcpStream::connect(address).expect("the broker accepts");
        socket.set_nodelay(true).expect("it is a TCP socket");
        socket.set_read_timeout(Some(TIMEOUT)).expect("the time is not zero");
        Client { socket, correlation_id: 0 }
    }

    /// Sends a request and returns the body of its answer.
    ///
    /// # Panics
    /// When the connection ends instead.
    pub fn ask<'a, R: Request<'a>>(&mut self, version: i16, request: &R) -> Vec<u8> {
        self.send(version, request).expect("the broker reads");
        self.answer::<R>(version).expect("the broker answers")
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The socket's.
    pub fn send<'a, R: Request<'a>>(&mut self, version: i16, request: &R) -> io::Result<()> {
        self.correlation_id += 1;
        let bytes = request_bytes(version, self.correlation_id, request);
        self.socket.write_all(&bytes)
    }

    /// Reads the next answer, which must belong to the last request. Returns its body.
    ///
    /// # Errors
    /// The socket's, also at its end.
    pub fn answer<'a, R: Request<'a>>(&mut self, version: i16) -> io::Result<Vec<u8>> {
        let frame = self.frame()?;
        let mut decoder = Decoder::new(&frame);
        let header = ResponseHeader::decode(&mut decoder, R::KEY.response_header_version(version));
        assert_eq!(header.expect("an answer has a header").correlation_id, self.correlation_id);
        Ok(decoder.rest().to_vec())
    }

    /// Reads one frame without its length.
    ///
    /// # Errors
    /// The socket's, also at its end.
    pub fn frame(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.socket.read_exact(&mut length)?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.socket.read_exact(&mut frame)?;
        Ok(frame)
    }

    /// Returns true if the broker closes the connection, perhaps after some answers.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = [0; 4096];
        loop {
            match self.socket.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
            }
        }
    }

    /// The APIs that the broker serves, by ApiVersions.
    ///
    /// # Panics
    /// When the connection ends instead.
    pub fn served(&mut self) -> Vec<ApiKey> {
        let body = self.ask(0, &ApiVersionsRequest::default());
        let response = ApiVersionsResponse::decode(&mut Decoder::new(&body), 0).expect("it is well-formed");
        let known = response.api_keys.iter().filter_map(|api| ApiKey::try_from(api.api_key).ok());
        known.collect()
    }

    /// Closes the connection by a reset.
    pub fn vanish(self) {
        let socket = SockRef::from(&self.socket);
        socket.set_linger(Some(Duration::ZERO)).expect("it is a TCP socket");
    }

    /// Creates a topic.
    ///
    /// # Panics
    /// When the broker refuses.
    pub fn create_topic(&mut self, name: &str, num_partitions: i32, configs: &[(&str, &str)]) {
        use mainstem_wire::messages::create_topics_request::CreatableTopicConfig;
        let configs = configs.iter().map(|(name, value)| CreatableTopicConfig {
            name: (*name).into(),
            value: Some((*value).into()),
            ..Default::default()
        });
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions,
            replication_factor: 1,
            configs: configs.collect(),
            ..Default::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
        let body = self.ask(7, &request);
        let response = CreateTopicsResponse::decode(&mut Decoder::new(&body), 7).expect("it is well-formed");
        let result = &response.topics[0];
        assert_eq!(ErrorCode::from(result.error_code), ErrorCode::NONE, "{:?}", result.error_message);
    }

    /// Produces one batch and returns the error code.
    ///
    /// # Panics
    /// When the connection ends instead.
    pub fn produce(&mut self, topic: &str, partition: i32, acks: i16, batch: &[u8]) -> ErrorCode {
        let body = self.ask(PRODUCE_VERSION, &produce(topic, partition, acks, batch));
        let response =
            ProduceResponse::decode(&mut Decoder::new(&body), PRODUCE_VERSION).expect("it is well-formed");
        ErrorCode::from(response.responses[0].partition_responses[0].error_code)
    }
}

/// The last version that names topics.
pub const PRODUCE_VERSION: i16 = 12;

/// A produce of one batch.
pub fn produce<'a>(topic: &'a str, index: i32, acks: i16, batch: &'a [u8]) -> ProduceRequest<'a> {
    let records = Some(Records::Bytes(batch.into()));
    let partition = PartitionProduceData { index, records, ..Default::default() };
    let topic =
        TopicProduceData { name: topic.into(), partition_data: vec![partition], ..Default::default() };
    ProduceRequest { acks, timeout_ms: 30_000, topic_data: vec![topic], ..Default::default() }
}

/// A request's frame with its length.
pub fn request_bytes<'a, R: Request<'a>>(version: i16, correlation_id: i32, request: &R) -> Vec<u8> {
    let header = RequestHeader {
        request_api_key: R::KEY as i16,
        request_api_version: version,
        correlation_id,
        client_id: Some("hostile".into()),
        ..Default::default()
    };
    let mut bytes = Vec::new();
    frame::write_request(&mut bytes, &header, request).expect("a test's request is well-formed");
    bytes
}

/// A request's frame with any body: only its header has to be well-formed.
pub fn raw_request(api: ApiKey, version: i16, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; frame::LENGTH_BYTES];
    frame.extend((api as i16).to_be_bytes());
    frame.extend(version.to_be_bytes());
    frame.extend(7_i32.to_be_bytes());
    frame.extend((-1_i16).to_be_bytes());
    if api.request_header_version(version) >= 2 {
        frame.push(0);
    }
    frame.extend(body);
    let length = (frame.len() - frame::LENGTH_BYTES) as i32;
    frame[..frame::LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    frame
}
