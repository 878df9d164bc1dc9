//! One blocking connection with one request outstanding at a time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::bytes::{Reader, Writer};
use crate::protocol::Api;

/// A broker that is silent for longer has failed the run.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// More than a fetch may return (`max_bytes` of 50 MiB, and one batch beyond it).
const RESPONSE_BYTES_MAX: usize = 64 << 20;
const CLIENT_ID: &str = "mainstem-bench";

#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    request: Writer,
    /// As long as the largest response yet; its contents beyond the current one are stale.
    response: Vec<u8>,
    correlation_id: i32,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        Ok(Self { stream, request: Writer::default(), response: vec![0; 4096], correlation_id: 0 })
    }

    /// Sends one request and waits for its response; returns the body behind the response header.
    pub(crate) fn call(&mut self, api: Api, body: impl FnOnce(&mut Writer)) -> Result<Reader<'_>> {
        self.correlation_id = self.correlation_id.wrapping_add(1);
        write_request(&mut self.request, api, self.correlation_id, body);
        self.stream.write_all(self.request.as_bytes()).with_context(|| format!("sending {}", api.name))?;
        let end = self.receive().with_context(|| format!("waiting for the response to {}", api.name))?;
        let mut reader = Reader::new(&self.response[4..end]);
        let correlation_id = reader.i32()?;
        ensure!(correlation_id == self.correlation_id, "the response to another request");
        if api.has_flexible_response_header {
            reader.skip_tags()?;
        }
        Ok(reader)
    }

    /// Reads one frame to the front of the buffer and returns its end. With one request outstanding, all that
    /// arrives belongs to its response, so one `read` usually takes all of it.
    fn receive(&mut self) -> Result<usize> {
        let mut filled = 0;
        let mut end = 4;
        while filled < end {
            let read = self.stream.read(&mut self.response[filled..])?;
            ensure!(read > 0, "the broker closed the connection");
            let length_was_known = filled >= 4;
            filled += read;
            if !length_was_known && filled >= 4 {
                end = 4 + Reader::new(&self.response).u32()? as usize;
                ensure!(end <= RESPONSE_BYTES_MAX, "a response of {end} bytes");
                if end > self.response.len() {
                    self.response.resize(end.next_power_of_two(), 0);
                }
            }
        }
        ensure!(filled == end, "{} bytes behind the response", filled - end);
        Ok(end)
    }
}

fn write_request(writer: &mut Writer, api: Api, correlation_id: i32, body: impl FnOnce(&mut Writer)) {
    writer.clear();
    writer.i32(0); // length, below
    writer.i16(api.key);
    writer.i16(api.version);
    writer.i32(correlation_id);
    writer.string(CLIENT_ID);
    writer.no_tags();
    body(writer);
    let length = writer.len() - 4;
    writer.patch_u32(0, u32::try_from(length).expect("the driver sends small requests"));
}
