//! The few Kafka requests that the harness itself sends, spelled by hand: it shares no code with the broker.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

const LIST_OFFSETS: i16 = 2;
const METADATA: i16 = 3;
const OFFSET_FETCH: i16 = 9;
const TIMEOUT: Duration = Duration::from_secs(30);
/// No answer to these requests is larger; a longer length is a broken one.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Returns true if the broker answers Metadata (v1) and knows of at least one broker.
pub(crate) fn is_ready(address: SocketAddr) -> bool {
    // An empty array of topics asks for none.
    let body = 0i32.to_be_bytes();
    call(address, METADATA, 1, &body)
        .and_then(|answer| Reader(&answer).i32())
        .is_ok_and(|brokers| brokers > 0)
}

/// Returns the committed offset of each of a topic's partitions, -1 if there is none (OffsetFetch v1).
pub(crate) fn committed_offsets(
    address: SocketAddr,
    group: &str,
    topic: &str,
    partitions: i32,
) -> Result<Vec<i64>> {
    let mut body = Vec::new();
    put_string(&mut body, group);
    body.extend(1i32.to_be_bytes());
    put_string(&mut body, topic);
    body.extend(partitions.to_be_bytes());
    (0..partitions).for_each(|partition| body.extend(partition.to_be_bytes()));
    let answer = call(address, OFFSET_FETCH, 1, &body)?;
    let mut reader = Reader(&answer);
    ensure!(reader.i32()? == 1, "an answer for one topic");
    reader.string()?;
    let mut offsets = vec![-1; usize::try_from(partitions)?];
    for _ in 0..reader.i32()? {
        let partition = usize::try_from(reader.i32()?)?;
        let offset = reader.i64()?;
        reader.string()?;
        let error = reader.i16()?;
        ensure!(error == 0, "OffsetFetch of {topic}-{partition}: error {error}");
        *offsets.get_mut(partition).context("a partition that was asked for")? = offset;
    }
    Ok(offsets)
}

/// Returns the number of records of a topic's partitions, counted from offset 0 to their ends (ListOffsets v1, latest).
pub(crate) fn record_count(address: SocketAddr, topic: &str, partitions: i32) -> Result<i64> {
    let mut body = Vec::new();
    body.extend((-1i32).to_be_bytes());
    body.extend(1i32.to_be_bytes());
    put_string(&mut body, topic);
    body.extend(partitions.to_be_bytes());
    for partition in 0..partitions {
        body.extend(partition.to_be_bytes());
        body.extend((-1i64).to_be_bytes());
    }
    let answer = call(address, LIST_OFFSETS, 1, &body)?;
    let mut reader = Reader(&answer);
    ensure!(reader.i32()? == 1, "an answer for one topic");
    reader.string()?;
    let mut count = 0;
    for _ in 0..reader.i32()? {
        let (partition, error, _timestamp) = (reader.i32()?, reader.i16()?, reader.i64()?);
        ensure!(error == 0, "ListOffsets of {topic}-{partition}: error {error}");
        count += reader.i64()?;
    }
    Ok(count)
}

/// Sends one request with header v1 and returns the body behind the answer's correlation id.
fn call(address: SocketAddr, api_key: i16, version: i16, body: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut request = Vec::new();
    request.extend(api_key.to_be_bytes());
    request.extend(version.to_be_bytes());
    request.extend(7i32.to_be_bytes());
    put_string(&mut request, "interop");
    request.extend(body);
    let length = i32::try_from(request.len())?;
    stream.write_all(&[length.to_be_bytes().as_slice(), &request].concat())?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = usize::try_from(i32::from_be_bytes(length))?;
    ensure!((4..=ANSWER_BYTES_MAX).contains(&length), "an answer of {length} bytes");
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer)?;
    ensure!(answer[..4] == 7i32.to_be_bytes(), "the answer has another correlation id");
    Ok(answer.split_off(4))
}

fn put_string(buffer: &mut Vec<u8>, text: &str) {
    let length = i16::try_from(text.len()).expect("names here are short");
    buffer.extend(length.to_be_bytes());
    buffer.extend(text.as_bytes());
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((head, rest)) = self.0.split_first_chunk::<N>() else { bail!("the answer ends too early") };
        self.0 = rest;
        Ok(*head)
    }

    fn i16(&mut self) -> Result<i16> {
        self.take().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Result<i32> {
        self.take().map(i32::from_be_bytes)
    }

    fn i64(&mut self) -> Result<i64> {
        self.take().map(i64::from_be_bytes)
    }

    /// Reads a string or a null, which counts as an empty one here.
    fn string(&mut self) -> Result<&'a [u8]> {
        let length = usize::try_from(self.i16()?.max(0))?;
        let (head, rest) = self.0.split_at_checked(length).context("the answer ends within a string")?;
        self.0 = rest;
        Ok(head)
    }
}
