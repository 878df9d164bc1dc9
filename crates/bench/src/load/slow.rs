//! Consumers that ask for much old data and take it slowly: an answer of 50 MiB takes each of them more than a minute.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::bytes::{Reader, Writer};
use crate::connection::{SILENCE_MAX, write_request};
use crate::protocol::{FETCH, TopicId, check, data};

/// The number of these consumers.
pub(crate) const CONSUMERS: u32 = 64;
/// The bytes that each of them takes at a time, and the interval: 640 KiB/s.
const BYTES_OF_A_TURN: usize = 64 << 10;
const TURN: Duration = Duration::from_millis(100);
/// Bytes of an answer up to the error code of its one partition, with the length in front.
const HEAD_BYTES: usize = 43;

/// The records that they read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OldData {
    pub(crate) topic: TopicId,
    pub(crate) partitions: i32,
    /// The records of each partition.
    pub(crate) records: i64,
    /// The records of each batch: all have the same number.
    pub(crate) records_of_a_batch: i64,
}

/// All of them, served by one thread; they end by [`Self::finish`], or with their broker.
#[derive(Debug)]
pub(crate) struct SlowConsumers {
    is_over: Arc<AtomicBool>,
    taken: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
    began: Instant,
}

impl SlowConsumers {
    /// Lets each ask, and waits until each has got the first bytes of its answer.
    pub(crate) fn start(address: SocketAddr, data: OldData) -> Result<Self> {
        let mut consumers = Vec::new();
        for number in 0..CONSUMERS {
            let mut consumer = SlowConsumer::open(address, data, number)?;
            consumer.ask()?;
            consumers.push(consumer);
        }
        for consumer in &mut consumers {
            let mut first = [0; 1];
            consumer.stream.set_nonblocking(false)?;
            consumer.stream.read_exact(&mut first).context("a slow consumer is not answered")?;
            consumer.take(&first)?;
            consumer.stream.set_nonblocking(true)?;
        }
        let (is_over, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, count) = (is_over.clone(), taken.clone());
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                thread::sleep(TURN);
                for consumer in &mut consumers {
                    count.fetch_add(consumer.turn()?, Ordering::Relaxed);
                }
            }
            Ok(())
        });
        Ok(Self { is_over, taken, thread, began: Instant::now() })
    }

    /// Ends them; bytes per second that all took together.
    pub(crate) fn finish(self) -> Result<f64> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the thread of slow consumers panicked")?;
        let taken = self.taken.load(Ordering::Relaxed);
        ensure!(taken > 0, "the slow consumers were given nothing");
        Ok(taken as f64 / self.began.elapsed().as_secs_f64())
    }
}

/// A slow consumer. A response is under way to it all the time.
#[derive(Debug)]
struct SlowConsumer {
    stream: TcpStream,
    request: Writer,
    data: OldData,
    partition: i32,
    position: i64,
    requests: i32,
    /// The head of the response that is under way.
    head: Vec<u8>,
    bytes_left: usize,
}

impl SlowConsumer {
    /// Connects. Consumers of one partition begin at equal distances.
    fn open(address: SocketAddr, data: OldData, number: u32) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        let batches = data.records / data.records_of_a_batch;
        let begin = batches * i64::from(number) / i64::from(CONSUMERS);
        Ok(Self {
            stream,
            request: Writer::default(),
            data,
            partition: number as i32 % data.partitions,
            position: begin * data.records_of_a_batch,
            requests: 0,
            head: Vec::new(),
            bytes_left: 0,
        })
    }

    fn ask(&mut self) -> Result<()> {
        self.requests += 1;
        let Self { request, data, partition, position, .. } = self;
        write_request(request, FETCH, self.requests, |writer| {
            data::write_large_fetch(writer, &data.topic, *partition, *position);
        });
        self.head.clear();
        self.stream.write_all(self.request.as_bytes()).context("a slow consumer cannot ask")
    }

    /// Takes the bytes that have arrived, up to its measure. Returns their number.
    fn turn(&mut self) -> Result<u64> {
        let mut bytes = [0; BYTES_OF_A_TURN];
        match self.stream.read(&mut bytes) {
            Ok(0) => bail!("the broker closed the connection of a slow consumer"),
            Ok(read) => self.take(&bytes[..read]).map(|()| read as u64),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
            Err(error) => Err(error).context("a slow consumer cannot read"),
        }
    }

    /// Takes the bytes of a response; at its end sends the next request.
    fn take(&mut self, mut bytes: &[u8]) -> Result<()> {
        if self.head.len() < HEAD_BYTES {
            let (head, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - self.head.len()));
            self.head.extend_from_slice(head);
            if self.head.len() < HEAD_BYTES {
                return Ok(());
            }
            self.bytes_left = rest_of_answer(&self.head)?;
            let records_bytes = self.bytes_left as i64;
            self.advance(records_bytes);
            bytes = rest;
        }
        self.bytes_left = self.bytes_left.checked_sub(bytes.len()).context("bytes behind an answer")?;
        if self.bytes_left == 0 { self.ask() } else { Ok(()) }
    }

    /// Moves the position behind a response of so many bytes, or to the start if nothing is left.
    fn advance(&mut self, bytes: i64) {
        let OldData { records, records_of_a_batch, .. } = self.data;
        // Values of 1 KiB, and at most 12 bytes around each.
        let batches = (bytes / (records_of_a_batch * (1_024 + 12))).max(1);
        self.position += batches * records_of_a_batch;
        if self.position >= records {
            self.position = 0;
        }
    }
}

/// Returns the bytes of a response behind its head, which must contain no error.
fn rest_of_answer(head: &[u8]) -> Result<usize> {
    let mut reader = Reader::new(head);
    let length = reader.u32()? as usize;
    reader.i32()?; // correlation id
    reader.skip_tags()?;
    reader.i32()?; // throttle time
    check(FETCH, reader.i16()?)?;
    reader.i32()?; // session id
    ensure!(reader.compact_len()? == 1, "a slow consumer was answered for other topics");
    reader.uuid()?;
    ensure!(reader.compact_len()? == 1, "a slow consumer was answered for other partitions");
    reader.i32()?; // partition
    check(FETCH, reader.i16()?)?;
    (4 + length).checked_sub(HEAD_BYTES).context("an answer without records")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(length: u32, error: i16) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(&length.to_be_bytes());
        writer.i32(7);
        writer.no_tags();
        writer.i32(0);
        writer.i16(0);
        writer.i32(0);
        writer.compact_len(1);
        writer.raw(&[3; 16]);
        writer.compact_len(1);
        writer.i32(2);
        writer.i16(error);
        writer.as_bytes().to_vec()
    }

    #[test]
    fn the_head_of_an_answer_tells_its_length_and_its_error() {
        assert_eq!(head(1_000, 0).len(), HEAD_BYTES);
        assert_eq!(rest_of_answer(&head(1_000, 0)).unwrap(), 1_004 - HEAD_BYTES);
        assert!(rest_of_answer(&head(1_000, 1)).unwrap_err().to_string().contains("error code 1"));
        assert!(rest_of_answer(&head(10, 0)).is_err());
    }
}
