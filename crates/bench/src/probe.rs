//! The probe: the throughput of records over loopback that this machine allows, measured by the same driver.
//!
//! One thread, one epoll instance. It speaks the frames of Produce (13) and Fetch (18) as the driver sends them. It appends each batch to a
//! file of its partition (page cache, or synced before the acknowledgement), acknowledges, and wakes the long polls that wait for it. A
//! request of its own returns the time of each sync.
//!
//! It leaves out all that makes a broker: other APIs and versions, topics, groups, producer ids, recovery, replication and configuration.
//! It validates no batches and no CRCs, and has no timeouts but the long poll's, no limits and no back-pressure: a reader that does not
//! read stalls all. It does not defend itself against hostile input: a malformed request ends it.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::batch::record_count;
use crate::bytes::{Reader, Writer};
use crate::latency::new_histogram;
use crate::protocol::{FETCH, PRODUCE, SYNC_COSTS, sync_costs};
use crate::workload::Durability;

/// The token of the listening socket; connections have their index.
const LISTENER: u64 = u64::MAX;
/// The most bytes of one partition in one response.
const PARTITION_BYTES_MAX: u64 = 1 << 20;
const READ_BYTES: usize = 64 << 10;

/// Options of the probe.
#[derive(Debug)]
pub struct ProbeOptions {
    /// The folder for its files, one for each partition.
    pub directory: PathBuf,
    /// The number of partitions of its one topic.
    pub partitions: i32,
    /// The durability of a batch before it is acknowledged.
    pub durability: Durability,
}

/// Serves until the process ends; fails on the first malformed request.
pub fn serve(listener: TcpListener, options: &ProbeOptions) -> Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    let create = |index| Partition::create(&options.directory, index);
    let partitions = (0..options.partitions).map(create).collect::<Result<_>>()?;
    let mut probe = Probe {
        epoll,
        listener,
        syncs_ns: (options.durability == Durability::Fsync).then(new_histogram),
        partitions,
        appended: Vec::new(),
        peers: Vec::new(),
        waiting: Vec::new(),
        arrived: vec![0; READ_BYTES],
        out: Writer::default(),
    };
    let mut events = Vec::with_capacity(64);
    loop {
        match epoll::wait(&probe.epoll, spare_capacity(&mut events), probe.time_left().as_ref()) {
            // A tracer that attaches interrupts the wait.
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events.drain(..) {
            match event.data.u64() {
                LISTENER => probe.accept()?,
                peer => probe.read(peer as usize)?,
            }
        }
        probe.expire()?;
    }
}

struct Probe {
    epoll: OwnedFd,
    listener: TcpListener,
    /// The time of each sync since the last question; none if it does not sync.
    syncs_ns: Option<Histogram<u64>>,
    partitions: Vec<Partition>,
    /// Partitions to which the current request has appended.
    appended: Vec<usize>,
    peers: Vec<Option<Peer>>,
    /// Peers with a long poll, oldest first.
    waiting: Vec<usize>,
    /// The bytes that one read has taken from a socket.
    arrived: Vec<u8>,
    /// The response that is being written.
    out: Writer,
}

struct Peer {
    stream: TcpStream,
    received: Vec<u8>,
    /// The next offset per partition that the peer's fetch session reads; none: not in the session.
    positions: Vec<Option<u64>>,
    poll: Option<Poll>,
}

/// A fetch that waits for records.
struct Poll {
    correlation_id: i32,
    session_epoch: i32,
    deadline: Instant,
}

impl Probe {
    fn accept(&mut self) -> Result<()> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nodelay(true)?;
        let token = epoll::EventData::new_u64(self.peers.len() as u64);
        epoll::add(&self.epoll, &stream, token, epoll::EventFlags::IN)?;
        let positions = vec![None; self.partitions.len()];
        self.peers.push(Some(Peer { stream, received: Vec::new(), positions, poll: None }));
        Ok(())
    }

    /// Takes what has arrived from a peer and serves its complete frames.
    fn read(&mut self, index: usize) -> Result<()> {
        let Some(mut peer) = self.peers[index].take() else { return Ok(()) };
        // A connection is reset if the driver has ended: the same as a close.
        let read = peer.stream.read(&mut self.arrived).unwrap_or(0);
        peer.received.extend_from_slice(&self.arrived[..read]);
        if read == 0 {
            self.waiting.retain(|&waiting| waiting != index);
            return Ok(()); // closed: dropping the stream takes it out of epoll
        }
        let mut received = std::mem::take(&mut peer.received);
        self.peers[index] = Some(peer);
        let mut at = 0;
        while let Some(end) = frame_end(&received[at..]) {
            self.serve_frame(index, &received[at + 4..at + end])?;
            at += end;
        }
        received.drain(..at);
        self.peer(index).received = received;
        Ok(())
    }

    fn peer(&mut self, index: usize) -> &mut Peer {
        self.peers[index].as_mut().expect("a peer is served only while it is connected")
    }

    fn serve_frame(&mut self, index: usize, frame: &[u8]) -> Result<()> {
        let mut reader = Reader::new(frame);
        let (key, version) = (reader.i16()?, reader.i16()?);
        let correlation_id = reader.i32()?;
        reader.string()?; // client id
        reader.skip_tags()?;
        if (key, version) == (PRODUCE.key, PRODUCE.version) {
            self.produce(index, correlation_id, reader)
        } else if (key, version) == (FETCH.key, FETCH.version) {
            self.fetch(index, correlation_id, reader)
        } else if (key, version) == (SYNC_COSTS.key, SYNC_COSTS.version) {
            self.tell_sync_costs(index, correlation_id)
        } else {
            bail!("API {key} in version {version} is not the probe's")
        }
    }

    /// Appends the batches of a produce, acknowledges them, then wakes those who wait for them.
    fn produce(&mut self, index: usize, correlation_id: i32, mut reader: Reader<'_>) -> Result<()> {
        reader.compact_string()?; // transactional id
        reader.raw(2 + 4)?; // acks, timeout
        ensure!(reader.compact_len()? == 1, "one topic");
        let topic = reader.uuid()?;
        let count = reader.compact_len()?;
        let out = &mut self.out;
        begin_response(out, correlation_id);
        out.compact_len(1);
        out.raw(&topic);
        out.compact_len(count);
        self.appended.clear();
        for _ in 0..count {
            let partition = reader.i32()?;
            let batch = reader.compact_bytes()?;
            let base_offset = self.partitions[partition as usize].append(batch, self.syncs_ns.as_mut())?;
            reader.skip_tags()?;
            self.appended.push(partition as usize);
            write_produced(out, partition, base_offset);
        }
        out.no_tags();
        out.i32(0); // throttle time
        out.no_tags();
        self.send(index)?;
        for at in 0..self.appended.len() {
            self.wake(self.appended[at])?;
        }
        Ok(())
    }

    /// Answers with the times of the syncs, and forgets them.
    fn tell_sync_costs(&mut self, index: usize, correlation_id: i32) -> Result<()> {
        begin_response(&mut self.out, correlation_id);
        match &mut self.syncs_ns {
            Some(costs) => {
                sync_costs::write(&mut self.out, costs);
                costs.reset();
            }
            None => sync_costs::write(&mut self.out, &new_histogram()),
        }
        self.send(index)
    }

    /// Moves the session's positions and answers, at once if there is something to read.
    fn fetch(&mut self, index: usize, correlation_id: i32, mut reader: Reader<'_>) -> Result<()> {
        let max_wait = Duration::from_millis(u64::try_from(reader.i32()?)?);
        reader.raw(4 + 4 + 1 + 4)?; // min bytes, max bytes, isolation level, session id
        let session_epoch = reader.i32()?;
        let peer = self.peers[index].as_mut().expect("a peer is served only while it is connected");
        for _ in 0..reader.compact_len()? {
            reader.uuid()?;
            for _ in 0..reader.compact_len()? {
                let partition = reader.i32()? as usize;
                reader.i32()?; // leader epoch
                peer.positions[partition] = Some(u64::try_from(reader.i64()?)?);
                reader.raw(4 + 8 + 4)?; // last fetched epoch, log start offset, max bytes
                reader.skip_tags()?;
            }
            reader.skip_tags()?;
        }
        peer.poll = Some(Poll { correlation_id, session_epoch, deadline: Instant::now() + max_wait });
        if (0..self.partitions.len()).any(|partition| self.has_records_for(index, partition)) {
            self.answer_poll(index)
        } else {
            self.waiting.push(index);
            Ok(())
        }
    }

    fn has_records_for(&self, index: usize, partition: usize) -> bool {
        let position = self.peers[index].as_ref().and_then(|peer| peer.positions[partition]);
        position.is_some_and(|position| position < self.partitions[partition].next_offset)
    }

    fn wake(&mut self, partition: usize) -> Result<()> {
        let mut at = 0;
        while let Some(&index) = self.waiting.get(at) {
            if self.has_records_for(index, partition) {
                self.waiting.remove(at);
                self.answer_poll(index)?;
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// Answers the long polls whose time is over with nothing.
    fn expire(&mut self) -> Result<()> {
        let now = Instant::now();
        while let Some(&index) = self.waiting.first() {
            if self.deadline(index) > now {
                break;
            }
            self.waiting.remove(0);
            self.answer_poll(index)?;
        }
        Ok(())
    }

    fn deadline(&self, index: usize) -> Instant {
        let poll = self.peers[index].as_ref().and_then(|peer| peer.poll.as_ref());
        poll.expect("who waits has a poll").deadline
    }

    /// Returns the time until the oldest long poll expires; all of them wait equally long.
    fn time_left(&self) -> Option<Timespec> {
        let left = self.deadline(*self.waiting.first()?).saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) })
    }

    fn answer_poll(&mut self, index: usize) -> Result<()> {
        let readable: Vec<usize> =
            (0..self.partitions.len()).filter(|&partition| self.has_records_for(index, partition)).collect();
        let peer = self.peers[index].as_mut().expect("who waits is connected");
        let poll = peer.poll.take().expect("who waits has a poll");
        let out = &mut self.out;
        begin_response(out, poll.correlation_id);
        out.i32(0); // throttle time
        out.i16(0); // error code
        out.i32(1 + index as i32); // session id
        ensure!(poll.session_epoch >= 0, "only requests with a session");
        out.compact_len(usize::from(!readable.is_empty()));
        if !readable.is_empty() {
            out.raw(&[0; 16]); // topic id
            out.compact_len(readable.len());
            for partition in readable {
                let position = peer.positions[partition].expect("a readable partition is in the session");
                self.partitions[partition].write_response(partition, position, out)?;
            }
            out.no_tags();
        }
        out.no_tags();
        self.send(index)
    }

    fn send(&mut self, index: usize) -> Result<()> {
        self.out.patch_frame_length();
        let peer = self.peers[index].as_mut().expect("a peer is served only while it is connected");
        // If the peer has gone, the next read finds that.
        let _ = peer.stream.write_all(self.out.as_bytes());
        Ok(())
    }
}

fn begin_response(out: &mut Writer, correlation_id: i32) {
    out.clear();
    out.i32(0); // length, patched before sending
    out.i32(correlation_id);
    out.no_tags();
}

fn write_produced(out: &mut Writer, partition: i32, base_offset: u64) {
    out.i32(partition);
    out.i16(0); // error code
    out.i64(base_offset as i64);
    out.i64(-1); // log append time
    out.i64(0); // log start offset
    out.compact_len(0); // record errors
    out.compact_null(); // error message
    out.no_tags();
}

/// The end of the first frame, if all of it has arrived.
fn frame_end(bytes: &[u8]) -> Option<usize> {
    let end = 4 + u32::from_be_bytes(*bytes.first_chunk()?) as usize;
    (bytes.len() >= end).then_some(end)
}

/// One file of batches.
struct Partition {
    file: File,
    /// The first offset and the place of each batch.
    batches: Vec<(u64, u64)>,
    next_offset: u64,
    end: u64,
    batch: Vec<u8>,
}

impl Partition {
    fn create(directory: &Path, index: i32) -> Result<Self> {
        let path = directory.join(format!("probe-{index}.log"));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(Self { file, batches: Vec::new(), next_offset: 0, end: 0, batch: Vec::new() })
    }

    /// Returns the offset of the first record. If the times of syncs are recorded, it syncs.
    fn append(&mut self, batch: &[u8], syncs_ns: Option<&mut Histogram<u64>>) -> Result<u64> {
        let base_offset = self.next_offset;
        self.batch.clear();
        self.batch.extend_from_slice(&base_offset.to_be_bytes());
        self.batch.extend_from_slice(&batch[8..]);
        self.file.write_all_at(&self.batch, self.end)?;
        if let Some(costs) = syncs_ns {
            let begin = Instant::now();
            self.file.sync_data()?;
            costs.saturating_record(begin.elapsed().as_nanos() as u64);
        }
        self.batches.push((base_offset, self.end));
        self.next_offset += record_count(batch)?;
        self.end += batch.len() as u64;
        Ok(base_offset)
    }

    /// Returns the range in the file of the batches that answer a fetch from `position`: one batch at least.
    fn range(&self, position: u64) -> (u64, u64) {
        let first = self.batches.partition_point(|&(base_offset, _)| base_offset <= position) - 1;
        let begin = self.batches[first].1;
        let ends = self.batches[first + 1..].iter().map(|&(_, at)| at).chain([self.end]);
        let fitting = ends.clone().take_while(|end| end - begin <= PARTITION_BYTES_MAX).last();
        let end = fitting.or_else(|| ends.clone().next()).expect("the end of the file is among them");
        (begin, end)
    }

    fn write_response(&mut self, index: usize, position: u64, out: &mut Writer) -> Result<()> {
        let (begin, end) = self.range(position);
        self.batch.resize((end - begin) as usize, 0);
        self.file.read_exact_at(&mut self.batch, begin)?;
        let next_offset = self.next_offset as i64;
        out.i32(index as i32);
        out.i16(0); // error code
        out.i64(next_offset); // high watermark
        out.i64(next_offset); // last stable offset
        out.i64(0); // log start offset
        out.compact_null(); // aborted transactions
        out.i32(-1); // preferred read replica
        out.compact_bytes(&self.batch);
        out.no_tags();
        Ok(())
    }
}
