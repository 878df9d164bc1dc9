//! One blocking connection to a broker: one request at a time, newest common version.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mainstem_wire::frame::{self, LENGTH_BYTES};
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::api_versions_response::ApiVersionsResponse;
use mainstem_wire::messages::request_header::RequestHeader;
use mainstem_wire::messages::response_header::ResponseHeader;
use mainstem_wire::{ApiKey, Decoder, ErrorCode, Message, Request};

use crate::interrupt::Interrupt;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than a broker takes for any request that does not say itself how long it may wait.
const CALL_TIMEOUT: Duration = Duration::from_secs(40);
/// How often a wait looks whether it is to go on.
const TICK: Duration = Duration::from_millis(200);

/// A response is not larger than this, whatever its length says.
const RESPONSE_BYTES_MAX: usize = 128 << 20;
/// The buffer grows with what arrives by at most this, not with what was announced.
const READ_STEP_BYTES: usize = 256 << 10;

/// A connection to a broker.
#[derive(Debug)]
pub(crate) struct Client {
    address: String,
    stream: TcpStream,
    versions: HashMap<i16, RangeInclusive<i16>>,
    correlation_id: i32,
    frame: Vec<u8>,
    broken: bool,
}

/// How a call may go beyond the usual.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallOptions<'i> {
    /// No newer version than this.
    pub(crate) version_max: i16,
    /// How long to wait for the response.
    pub(crate) timeout: Duration,
    /// Ends the wait early; the connection cannot be used after that.
    pub(crate) interrupt: Option<&'i Interrupt>,
}

impl Default for CallOptions<'_> {
    fn default() -> Self {
        CallOptions { version_max: i16::MAX, timeout: CALL_TIMEOUT, interrupt: None }
    }
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
            broken: false,
        };
        let request = ApiVersionsRequest {
            client_software_name: "mainstem".into(),
            client_software_version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        };
        let response: ApiVersionsResponse<'_> = client
            .call(&request)
            .with_context(|| format!("{address} does not answer as a Kafka broker does"))?;
        check(response.error_code, || "the broker's versions".to_owned())?;
        let versions = response.api_keys.iter().map(|api| (api.api_key, api.min_version..=api.max_version));
        client.versions = versions.collect();
        Ok(client)
    }

    /// Whether a call failed within, so that nothing more can be called.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether the broker serves an API in a version that this tool speaks.
    pub(crate) fn serves<'a, R: Request<'a>>(&self) -> bool {
        self.version_of::<R>(i16::MAX).is_ok()
    }

    /// Whether a call goes out in this version or a newer one.
    pub(crate) fn serves_version<'a, R: Request<'a>>(&self, version: i16) -> bool {
        self.version_of::<R>(i16::MAX).is_ok_and(|newest| newest >= version)
    }

    /// The newest version of an API, up to `version_max`, that both sides have.
    fn version_of<'a, R: Request<'a>>(&self, version_max: i16) -> Result<i16> {
        let ours = R::VERSIONS;
        let theirs = self
            .versions
            .get(&(R::KEY as i16))
            .with_context(|| format!("the broker at {} does not serve {}", self.address, R::KEY.name()))?;
        let version = version_max.min(*ours.end()).min(*theirs.end());
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
        self.call_with(request, CallOptions::default())
    }

    /// The same with options.
    pub(crate) fn call_with<'q, 'r, R>(
        &'r mut self,
        request: &R,
        options: CallOptions<'_>,
    ) -> Result<R::Response<'r>>
    where
        R: Request<'q>,
    {
        let name = R::KEY.name();
        let version = self.version_of::<R>(options.version_max)?;
        let exchanged = self.send_frame(request, version).and_then(|()| self.receive(options));
        self.broken |= exchanged.is_err();
        exchanged.with_context(|| format!("{name} to {} failed", self.address))?;
        let mut decoder = Decoder::new(&self.frame);
        let header = ResponseHeader::decode(&mut decoder, R::KEY.response_header_version(version))?;
        if header.correlation_id != self.correlation_id {
            self.broken = true;
            bail!("{} answered another request than {name}", self.address);
        }
        R::Response::decode(&mut decoder, version)
            .with_context(|| format!("the response to {name} from {} is malformed", self.address))
    }

    /// Sends a request that gets no response: a produce with acks=0.
    pub(crate) fn send<'q, R: Request<'q>>(&mut self, request: &R) -> Result<()> {
        let version = self.version_of::<R>(i16::MAX)?;
        let sent = self.send_frame(request, version);
        self.broken |= sent.is_err();
        sent.with_context(|| format!("{} to {} failed", R::KEY.name(), self.address))
    }

    fn send_frame<'q, R: Request<'q>>(&mut self, request: &R, version: i16) -> Result<()> {
        self.correlation_id = self.correlation_id.wrapping_add(1);
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
        Ok(())
    }

    fn receive(&mut self, options: CallOptions<'_>) -> Result<()> {
        let deadline = Instant::now() + options.timeout;
        self.frame.clear();
        self.read_to(LENGTH_BYTES, deadline, options.interrupt)?;
        let length = frame::frame_len(&self.frame, RESPONSE_BYTES_MAX)?.unwrap_or(0);
        self.frame.clear();
        self.read_to(length, deadline, options.interrupt)?;
        Ok(())
    }

    /// Reads until the frame has `length` bytes.
    fn read_to(&mut self, length: usize, deadline: Instant, interrupt: Option<&Interrupt>) -> io::Result<()> {
        while self.frame.len() < length {
            let start = self.frame.len();
            self.frame.resize(length.min(start + READ_STEP_BYTES), 0);
            let read = self.stream.read(&mut self.frame[start..]);
            self.frame.truncate(start + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the broker hung up")),
                Ok(_) => {}
                Err(error) if is_tick(&error) => {
                    if interrupt.is_some_and(Interrupt::is_raised) {
                        return Err(io::Error::new(ErrorKind::Interrupted, "interrupted"));
                    }
                    if Instant::now() >= deadline {
                        return Err(io::Error::new(ErrorKind::TimedOut, "no response in time"));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn is_tick(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn connect(address: &str) -> Result<TcpStream> {
    let mut last = None;
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TICK))?;
                stream.set_write_timeout(Some(CALL_TIMEOUT))?;
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

/// What a broker refused, and why.
#[derive(Debug, thiserror::Error)]
#[error("{about}: {message} ({})", code.name())]
pub(crate) struct BrokerError {
    /// Kafka's code.
    pub(crate) code: ErrorCode,
    about: String,
    message: String,
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
    let code = ErrorCode::from(code);
    let message = message.filter(|message| !message.is_empty()).unwrap_or(code.message());
    Err(BrokerError { code, about: about(), message: message.trim_end_matches('.').to_owned() }.into())
}

/// The code of a broker's refusal, if that is what the error is.
pub(crate) fn code_of(error: &anyhow::Error) -> Option<ErrorCode> {
    error.downcast_ref::<BrokerError>().map(|error| error.code)
}

/// Whether trying again may help: a retriable code, or a connection that was lost or not made.
pub(crate) fn is_retriable(error: &anyhow::Error) -> bool {
    match code_of(error) {
        Some(code) => code.is_retriable(),
        None => error.chain().any(|cause| {
            cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() != ErrorKind::Interrupted)
        }),
    }
}
