//! One blocking connection: a request and its response, or several requests under way whose responses come in order.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::bytes::{Reader, Writer};
use crate::protocol::{Api, SASL_HANDSHAKE};
use crate::secure::{self, Endpoint, TlsStream};

/// A broker that is silent for longer has failed the run.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(60);
/// More than a fetch may return (`max_bytes` of 50 MiB, and one batch beyond it).
const RESPONSE_BYTES_MAX: usize = 64 << 20;
const BUFFER_BYTES: usize = 4096;
const CLIENT_ID: &str = "mainstem-bench";

#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    request: Writer,
    received: Received,
    sent_id: i32,
    received_id: i32,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(TlsStream),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.socket(),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Plain(socket) => socket.write_all(bytes),
            Self::Tls(stream) => stream.write_all(bytes),
        }
    }
}

impl Connection {
    /// Connects; with a login where the endpoint asks for one.
    pub(crate) fn open(endpoint: impl Into<Endpoint>) -> Result<Self> {
        let endpoint = endpoint.into();
        if !endpoint.is_secured {
            return Ok(Self::new(Stream::Plain(connect(endpoint.address)?)));
        }
        let mut connection = Self::open_encrypted(endpoint.address)?;
        secure::log_in(&mut connection).context("logging in")?;
        Ok(connection)
    }

    /// Connects by TLS, without a login.
    pub(crate) fn open_encrypted(address: SocketAddr) -> Result<Self> {
        let stream = TlsStream::open(connect(address)?).with_context(|| format!("TLS with {address}"))?;
        Ok(Self::new(Stream::Tls(stream)))
    }

    fn new(stream: Stream) -> Self {
        let received = Received { bytes: vec![0; BUFFER_BYTES], begin: 0, end: 0 };
        Self { stream, request: Writer::default(), received, sent_id: 0, received_id: 0 }
    }

    /// Sends one request and waits for its response; returns the body behind the response header.
    pub(crate) fn call(&mut self, api: Api, body: impl FnOnce(&mut Writer)) -> Result<Reader<'_>> {
        self.send(api, body)?;
        self.wait_response(api)
    }

    /// Waits for the next response; returns its body behind the header.
    pub(crate) fn wait_response(&mut self, api: Api) -> Result<Reader<'_>> {
        while self.received.frame()?.is_none() {
            self.read().with_context(|| format!("waiting for the response to {}", api.name))?;
        }
        let response = self.take_response(api)?;
        Ok(response.expect("a complete frame was seen"))
    }

    /// Sends one request, whose response is taken by [`Self::take_response`] in the order of the requests.
    pub(crate) fn send(&mut self, api: Api, body: impl FnOnce(&mut Writer)) -> Result<()> {
        self.sent_id = self.sent_id.wrapping_add(1);
        write_request(&mut self.request, api, self.sent_id, body);
        self.stream.write_all(self.request.as_bytes()).with_context(|| format!("sending {}", api.name))
    }

    /// Sends the first half of a request, as a client that dies in between.
    pub(crate) fn send_half(&mut self, api: Api, body: impl FnOnce(&mut Writer)) -> Result<()> {
        self.sent_id = self.sent_id.wrapping_add(1);
        write_request(&mut self.request, api, self.sent_id, body);
        let half = self.request.len() / 2;
        self.stream
            .write_all(&self.request.as_bytes()[..half])
            .with_context(|| format!("sending {}", api.name))
    }

    /// Waits until bytes arrive, at most for `timeout`, and reads them once. False after the timeout.
    pub(crate) fn read_within(&mut self, timeout: Duration) -> Result<bool> {
        let mut fds = [PollFd::new(self.stream.socket(), PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(timeout))) {
            Ok(0) | Err(Errno::INTR) => Ok(false),
            Ok(_) => self.read().map(|()| true),
            Err(error) => Err(error).context("waiting for a socket"),
        }
    }

    /// The next response, if all of it has been read: its body behind the header.
    pub(crate) fn take_response(&mut self, api: Api) -> Result<Option<Reader<'_>>> {
        let Some((begin, end)) = self.received.frame()? else { return Ok(None) };
        self.received.begin = end;
        self.received_id = self.received_id.wrapping_add(1);
        let mut reader = Reader::new(&self.received.bytes[begin..end]);
        let correlation_id = reader.i32()?;
        ensure!(correlation_id == self.received_id, "the response to another request than {}", api.name);
        if api.has_flexible_response_header {
            reader.skip_tags()?;
        }
        Ok(Some(reader))
    }

    fn read(&mut self) -> Result<()> {
        let received = &mut self.received;
        let read = match &mut self.stream {
            Stream::Plain(socket) => socket.read(received.free_space()?),
            Stream::Tls(stream) => {
                let is_open = stream.read(|bytes, from| received.append(bytes, from));
                return is_open.and_then(|is_open| match is_open {
                    true => Ok(()),
                    false => bail!("the broker closed the connection"),
                });
            }
        };
        match read {
            Ok(0) => bail!("the broker closed the connection"),
            Ok(read) => {
                self.received.end += read;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                bail!("the broker has been silent for {SILENCE_MAX:?}")
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    Ok(stream)
}

/// Waits until bytes arrive on one of several connections, at most for `timeout`, and reads each of them once that has some.
/// False after the timeout.
pub(crate) fn read_any_within(mut connections: Vec<&mut Connection>, timeout: Duration) -> Result<bool> {
    let mut ready = {
        let mut fds: Vec<_> = connections
            .iter()
            .map(|connection| PollFd::new(connection.stream.socket(), PollFlags::IN))
            .collect();
        match poll(&mut fds, Some(&timespec(timeout))) {
            Ok(0) | Err(Errno::INTR) => return Ok(false),
            Ok(_) => fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>(),
            Err(error) => return Err(error).context("waiting for sockets"),
        }
    };
    for (connection, _) in connections.iter_mut().zip(ready.drain(..)).filter(|(_, is_ready)| *is_ready) {
        connection.read()?;
    }
    Ok(true)
}

fn timespec(timeout: Duration) -> Timespec {
    Timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    }
}

/// Bytes that have been read, and not been taken yet.
#[derive(Debug)]
struct Received {
    /// A buffer of the length of the largest response yet.
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Received {
    /// Returns the range of the first frame's content, if all of it has been read.
    fn frame(&self) -> Result<Option<(usize, usize)>> {
        let Some(length) = self.frame_length()? else { return Ok(None) };
        let (begin, end) = (self.begin + 4, self.begin + 4 + length);
        Ok((end <= self.end).then_some((begin, end)))
    }

    fn frame_length(&self) -> Result<Option<usize>> {
        if self.end - self.begin < 4 {
            return Ok(None);
        }
        let length = Reader::new(&self.bytes[self.begin..]).u32()? as usize;
        ensure!(length <= RESPONSE_BYTES_MAX, "a response of {length} bytes");
        Ok(Some(length))
    }

    /// Appends a number of bytes, read from `from`.
    fn append(&mut self, bytes: usize, from: &mut dyn Read) -> Result<()> {
        while self.bytes.len() < self.end + bytes {
            let wanted = (self.end - self.begin + bytes).next_power_of_two();
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            self.bytes.resize(wanted.max(self.bytes.len()), 0);
        }
        from.read_exact(&mut self.bytes[self.end..self.end + bytes])?;
        self.end += bytes;
        Ok(())
    }

    /// Returns the free space behind the bytes: at least for the rest of the first frame, if its length is known.
    fn free_space(&mut self) -> Result<&mut [u8]> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
        let wanted = 4 + self.frame_length()?.unwrap_or(0);
        if self.begin > 0 && (self.begin + wanted > self.bytes.len() || self.end == self.bytes.len()) {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        if wanted > self.bytes.len() {
            self.bytes.resize(wanted.next_power_of_two(), 0);
        }
        Ok(&mut self.bytes[self.end..])
    }
}

/// Writes a whole frame: its length, a request header, the body.
pub(crate) fn write_request(
    writer: &mut Writer,
    api: Api,
    correlation_id: i32,
    body: impl FnOnce(&mut Writer),
) {
    writer.clear();
    writer.i32(0); // length, below
    writer.i16(api.key);
    writer.i16(api.version);
    writer.i32(correlation_id);
    writer.string(CLIENT_ID);
    if api.key != SASL_HANDSHAKE.key {
        writer.no_tags();
    }
    body(writer);
    writer.patch_frame_length();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the stream in pieces of `piece` bytes and returns the frames that come out.
    fn frames(stream: &[u8], piece: usize) -> Vec<Vec<u8>> {
        let mut received = Received { bytes: vec![0; 8], begin: 0, end: 0 };
        let (mut frames, mut rest) = (Vec::new(), stream);
        while !rest.is_empty() {
            let space = received.free_space().unwrap();
            let taken = piece.min(space.len()).min(rest.len());
            assert!(taken > 0, "there is always space for a byte");
            space[..taken].copy_from_slice(&rest[..taken]);
            received.end += taken;
            rest = &rest[taken..];
            while let Some((begin, end)) = received.frame().unwrap() {
                frames.push(received.bytes[begin..end].to_vec());
                received.begin = end;
            }
        }
        frames
    }

    #[test]
    fn frames_come_out_whole_however_they_arrive() {
        let contents: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; usize::from(n) * 3 % 50]).collect();
        let mut stream = Vec::new();
        for content in &contents {
            stream.extend_from_slice(&(content.len() as u32).to_be_bytes());
            stream.extend_from_slice(content);
        }
        for piece in [1, 2, 3, 7, 64, 10_000] {
            assert_eq!(frames(&stream, piece), contents, "pieces of {piece}");
        }
    }

    #[test]
    fn a_frame_beyond_the_bound_is_an_error() {
        let mut received = Received { bytes: vec![0xff; 8], begin: 0, end: 8 };
        assert!(received.frame().is_err());
        assert!(received.free_space().is_err());
    }
}
