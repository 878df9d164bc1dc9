//! A thin Kafka client for the operator's commands: one blocking connection, one request at a time.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mainstem_wire::frame::{self, LENGTH_BYTES};
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::api_versions_response::ApiVersionsResponse;
use mainstem_wire::messages::request_header::RequestHeader;
use mainstem_wire::messages::response_header::ResponseHeader;
use mainstem_wire::{ApiKey, Decoder, ErrorCode, Message, Request};

/// Longer than any request of ours makes a broker wait.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A response is not larger than this, whatever its length says.
const RESPONSE_BYTES_MAX: usize = 128 << 20;

/// A connection to a broker.
pub(crate) struct Client {
    address: String,
    stream: TcpStream,
    versions: HashMap<i16, RangeInclusive<i16>>,
    correlation_id: i32,
    frame: Vec<u8>,
}

impl Client {
    /// Connects and asks which versions the broker has.
    pub(crate) fn connect(address: &str) -> Result<Self> {
        let stream = connect(address).with_context(|| {
            format!(
                "cannot connect to {address}; is a broker running there? Start one with `mainstem start`, \
                 or name another with --bootstrap HOST:PORT"
            )
        })?;
        let mut client = Client {
            address: address.to_owned(),
            stream,
            versions: HashMap::from([(ApiKey::ApiVersions as i16, 0..=3)]),
            correlation_id: 0,
            frame: Vec::new(),
        };
        let request = ApiVersionsRequest {
            client_software_name: "mainstem".into(),
            client_software_version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        };
        let response: ApiVersionsResponse<'_> = client.call(&request)?;
        check(response.error_code, || "the broker's versions".to_owned())?;
        let versions = response.api_keys.iter().map(|api| (api.api_key, api.min_version..=api.max_version));
        client.versions = versions.collect();
        Ok(client)
    }

    /// Where it is connected to.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The newest version of an API that both sides have.
    pub(crate) fn version_of<'a, R: Request<'a>>(&self) -> Result<i16> {
        let ours = R::VERSIONS;
        let theirs = self
            .versions
            .get(&(R::KEY as i16))
            .with_context(|| format!("the broker at {} does not serve {}", self.address, R::KEY.name()))?;
        let version = *ours.end().min(theirs.end());
        if version < *ours.start() || version < *theirs.start() {
            bail!(
                "the broker at {} serves {} in versions {theirs:?}; this tool speaks {ours:?}",
                self.address,
                R::KEY.name()
            );
        }
        Ok(version)
    }

    /// Sends a request and waits for its response.
    pub(crate) fn call<'q, 'r, R>(&'r mut self, request: &R) -> Result<R::Response<'r>>
    where
        R: Request<'q>,
    {
        let version = self.version_of::<R>()?;
        self.call_version(request, version)
    }

    /// The same in a given version.
    pub(crate) fn call_version<'q, 'r, R>(&'r mut self, request: &R, version: i16) -> Result<R::Response<'r>>
    where
        R: Request<'q>,
    {
        let name = R::KEY.name();
        self.correlation_id += 1;
        self.exchange::<R>(request, version).with_context(|| format!("{name} to {} failed", self.address))?;
        let mut decoder = Decoder::new(&self.frame);
        let header = ResponseHeader::decode(&mut decoder, R::KEY.response_header_version(version))?;
        if header.correlation_id != self.correlation_id {
            bail!("{} answered another request than {name}", self.address);
        }
        R::Response::decode(&mut decoder, version)
            .with_context(|| format!("the response to {name} from {} is malformed", self.address))
    }

    fn exchange<'q, R: Request<'q>>(&mut self, request: &R, version: i16) -> Result<()> {
        let header = RequestHeader {
            request_api_key: R::KEY as i16,
            request_api_version: version,
            correlation_id: self.correlation_id,
            client_id: Some("mainstem".into()),
            ..Default::default()
        };
        let mut bytes = Vec::new();
        frame::write_request(&mut bytes, &header, request)?;
        self.stream.write_all(&bytes)?;
        let mut prefix = [0; LENGTH_BYTES];
        self.stream.read_exact(&mut prefix)?;
        let length = frame::frame_len(&prefix, RESPONSE_BYTES_MAX)?.unwrap_or(0);
        self.frame.clear();
        // Grows with what arrives, not with what was announced.
        (&mut self.stream).take(length as u64).read_to_end(&mut self.frame)?;
        if self.frame.len() < length {
            bail!("the connection was closed within the response");
        }
        Ok(())
    }
}

fn connect(address: &str) -> Result<TcpStream> {
    let mut last = None;
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(READ_TIMEOUT))?;
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error.into()),
        None => bail!("the name has no address"),
    }
}

/// Turns an error code of a response into an error that says what it was about.
pub(crate) fn check(code: i16, about: impl FnOnce() -> String) -> Result<()> {
    check_message(code, None, about)
}

/// The same where the response has a message of its own.
pub(crate) fn check_message(code: i16, message: Option<&str>, about: impl FnOnce() -> String) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let error = ErrorCode::from(code);
    let message = message.filter(|message| !message.is_empty()).unwrap_or(error.message());
    bail!("{}: {message} ({})", about(), error.name())
}
