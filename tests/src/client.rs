//! A blocking Kafka connection that sends any request in any version, or raw bytes.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::time::Duration;

use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::request_header::RequestHeader;
use mainstem_wire::messages::response_header::ResponseHeader;
use mainstem_wire::messages::sasl_authenticate_request::SaslAuthenticateRequest;
use mainstem_wire::messages::sasl_handshake_request::SaslHandshakeRequest;
use mainstem_wire::{ApiKey, Decoder, Message, Request, frame};

use crate::wait::TIMEOUT;

/// The most bytes of a response, whatever its length says.
const RESPONSE_BYTES_MAX: usize = 256 << 20;

/// Memory that decoding a response may take.
const RESPONSE_BUDGET: usize = 1 << 30;

/// One connection. Requests may be sent ahead of their responses.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    client_id: String,
    correlation_id: i32,
    frame: Vec<u8>,
}

/// A broker that accepts connections, in any process.
pub trait Reachable {
    /// A new connection.
    fn connect(&self) -> Client;
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// The system's.
    pub fn connect(address: &str) -> io::Result<Client> {
        let address = address.to_socket_addrs()?.next().expect("an address is an address");
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Client { stream, client_id: "test".to_owned(), correlation_id: 0, frame: Vec::new() })
    }

    /// Returns true if bytes of an answer have arrived.
    pub fn has_answer(&self) -> bool {
        self.stream.set_nonblocking(true).expect("sockets can be made so");
        let looked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).expect("and back");
        looked.is_ok()
    }

    /// Sets the client id in the headers.
    pub fn named(mut self, client_id: &str) -> Client {
        client_id.clone_into(&mut self.client_id);
        self
    }

    /// Authenticates by PLAIN.
    ///
    /// # Errors
    /// The connection's; `PermissionDenied` where the broker refuses.
    pub fn log_in(&mut self, user: &str, password: &str) -> io::Result<()> {
        let shaken = self.try_call(&SaslHandshakeRequest { mechanism: "PLAIN".into() }, 1)?.error_code;
        let auth_bytes = format!("\0{user}\0{password}").into_bytes().into();
        let request = SaslAuthenticateRequest { auth_bytes, ..Default::default() };
        let refused = match shaken {
            0 => self.try_call(&request, 2)?.error_code,
            error => error,
        };
        if refused == 0 { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    /// The socket, for bytes that no well-behaved client sends.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Returns true if a broker on this machine has read everything that was sent.
    ///
    /// # Panics
    /// As [`is_read`].
    pub fn is_read(&self) -> bool {
        is_read(&self.stream)
    }

    /// Sets the longest wait for a response.
    ///
    /// # Errors
    /// The system's.
    pub fn set_read_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(timeout))
    }

    /// Sends a request in a version. Returns the correlation id of its response.
    ///
    /// # Errors
    /// The connection's.
    ///
    /// # Panics
    /// When the version cannot encode the request: a mistake of the test.
    pub fn send<'q, R: Request<'q>>(&mut self, request: &R, version: i16) -> io::Result<i32> {
        self.correlation_id += 1;
        let mut bytes = Vec::new();
        let header = self.header(R::KEY.key(), version);
        let written = frame::write_request(&mut bytes, &header, request);
        written.unwrap_or_else(|error| panic!("{} v{version}: {error}", R::KEY.name()));
        self.stream.write_all(&bytes)?;
        Ok(self.correlation_id)
    }

    /// Sends a request whose body is raw bytes. Returns its correlation id.
    ///
    /// # Errors
    /// The connection's.
    pub fn send_body(&mut self, api: i16, version: i16, header_version: i16, body: &[u8]) -> io::Result<i32> {
        self.correlation_id += 1;
        let mut bytes = Vec::new();
        let start = frame::begin_frame(&mut bytes);
        let mut encoder = mainstem_wire::Encoder::new(&mut bytes);
        self.header(api, version).encode(&mut encoder, header_version).expect("the header is plain");
        bytes.extend_from_slice(body);
        frame::finish_frame(&mut bytes, start, &[]).expect("the frame is not that large");
        self.stream.write_all(&bytes)?;
        Ok(self.correlation_id)
    }

    fn header(&self, api: i16, version: i16) -> RequestHeader<'static> {
        RequestHeader {
            request_api_key: api,
            request_api_version: version,
            correlation_id: self.correlation_id,
            client_id: Some(self.client_id.clone().into()),
            ..Default::default()
        }
    }

    /// The next response's frame, without its length.
    ///
    /// # Errors
    /// The connection's; `UnexpectedEof` when the broker has closed it.
    pub fn receive_frame(&mut self) -> io::Result<&[u8]> {
        let mut prefix = [0; frame::LENGTH_BYTES];
        self.stream.read_exact(&mut prefix)?;
        let length = frame::frame_len(&prefix, RESPONSE_BYTES_MAX).map_err(malformed)?.unwrap_or(0);
        self.frame.clear();
        let read = (&mut self.stream).take(length as u64).read_to_end(&mut self.frame)?;
        if read < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(&self.frame)
    }

    /// The next response, which must belong to `R`: its correlation id and body.
    ///
    /// # Errors
    /// The connection's; `InvalidData` when it is malformed.
    pub fn receive<'q, 'r, R: Request<'q>>(&'r mut self, version: i16) -> io::Result<(i32, R::Response<'r>)> {
        self.receive_frame()?;
        let mut decoder = Decoder::with_budget(&self.frame, RESPONSE_BUDGET);
        let header = ResponseHeader::decode(&mut decoder, R::KEY.response_header_version(version));
        let id = header.map_err(malformed)?.correlation_id;
        let response = R::Response::decode(&mut decoder, version).map_err(malformed)?;
        decoder.finish(R::KEY.name()).map_err(malformed)?;
        Ok((id, response))
    }

    /// Sends a request and waits for its response.
    ///
    /// # Errors
    /// The connection's; `InvalidData` when the response is malformed or belongs to another request.
    pub fn try_call<'q, 'r, R: Request<'q>>(
        &'r mut self,
        request: &R,
        version: i16,
    ) -> io::Result<R::Response<'r>> {
        let sent = self.send(request, version)?;
        let (id, response) = self.receive::<R>(version)?;
        if id != sent {
            return Err(malformed(format!("response {id} came for request {sent}")));
        }
        Ok(response)
    }

    /// The same for calls that must not fail.
    ///
    /// # Panics
    /// When there is no response.
    pub fn call<'q, 'r, R: Request<'q>>(&'r mut self, request: &R, version: i16) -> R::Response<'r> {
        let response = self.try_call(request, version);
        response.unwrap_or_else(|error| panic!("{} v{version} was not answered: {error}", R::KEY.name()))
    }

    /// Sends a request as bytes and returns its answer as bytes, without the header.
    ///
    /// # Errors
    /// The connection's; `InvalidData` when the answer belongs to another request.
    pub fn ask_bytes(&mut self, api: ApiKey, version: i16, body: &[u8]) -> io::Result<Vec<u8>> {
        let sent = self.send_body(api.key(), version, api.request_header_version(version), body)?;
        let mut decoder = Decoder::new(self.receive_frame()?);
        let header = ResponseHeader::decode(&mut decoder, api.response_header_version(version));
        match header.map_err(malformed)?.correlation_id {
            id if id == sent => Ok(decoder.rest().to_vec()),
            id => Err(malformed(format!("response {id} came for request {sent}"))),
        }
    }

    /// Waits until the broker closes the connection, and drops all that it sends before.
    ///
    /// # Errors
    /// `WouldBlock` when it stays open.
    pub fn wait_for_close(&mut self) -> io::Result<()> {
        match io::copy(&mut self.stream, &mut io::sink()) {
            Err(error) if error.kind() != io::ErrorKind::ConnectionReset => Err(error),
            _ => Ok(()),
        }
    }

    /// The API keys that the broker serves, with their versions.
    pub fn api_versions(&mut self) -> Vec<(i16, RangeInclusive<i16>)> {
        let request = ApiVersionsRequest {
            client_software_name: "mainstem-tests".into(),
            client_software_version: "1".into(),
            ..Default::default()
        };
        let response = self.call(&request, *ApiKey::ApiVersions.versions().end());
        assert_eq!(response.error_code, 0);
        response.api_keys.iter().map(|api| (api.api_key, api.min_version..=api.max_version)).collect()
    }
}

/// Returns true if a process on this machine has read everything that was sent: neither socket has bytes in its queue.
///
/// # Panics
/// When the system does not list its connections (`/proc/net/tcp`).
pub fn is_read(stream: &TcpStream) -> bool {
    let connections = fs::read_to_string("/proc/net/tcp").expect("Linux lists its connections");
    let port = |address: io::Result<SocketAddr>| format!(":{:04X}", address.expect("it is connected").port());
    let (ours, theirs) = (port(stream.local_addr()), port(stream.peer_addr()));
    let rows: Vec<Vec<_>> = connections.lines().map(|line| line.split_whitespace().collect()).collect();
    let row = |from: &str, to: &str| {
        let is_it = |row: &&Vec<&str>| row.len() > 4 && row[1].ends_with(from) && row[2].ends_with(to);
        rows.iter().find(is_it).and_then(|row| row[4].split_once(':'))
    };
    // Bytes in this socket's send queue are still on their way.
    let is_sent = row(&ours, &theirs).is_some_and(|(unsent, _)| unsent == "00000000");
    is_sent && row(&theirs, &ours).is_some_and(|(_, unread)| unread == "00000000")
}

fn malformed(error: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}
