//! The loop of `consume`: fetch, print, move on; as a member of a group also heartbeats and commits.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mainstem_records::{Batch, BatchError, Scratch};

use super::fetcher::{Fetched, Fetcher};
use super::printer::Printer;
use super::start::{self, Start};
use crate::cluster::{Cluster, Topic};
use crate::interrupt::Interrupt;
use crate::leaders::{EARLIEST, LATEST, list_offsets};
use crate::member::{Member, Standing};

const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// What the records of one batch may decompress to.
const DECOMPRESSED_BYTES_MAX: usize = 512 << 20;

/// Reads a topic.
#[derive(Debug)]
pub(crate) struct Reader {
    cluster: Cluster,
    topic: String,
    partitions: Vec<i32>,
    member: Option<Member>,
    fetcher: Fetcher,
    printer: Printer,
    follow: bool,
    interrupt: Interrupt,
    /// The next offset of each partition.
    positions: BTreeMap<i32, i64>,
    /// Where each partition ended at the start.
    ends: BTreeMap<i32, i64>,
    next_commit: Instant,
    buffer: Vec<u8>,
    scratch: Scratch,
}

impl Reader {
    /// A reader that has no partitions yet.
    pub(crate) fn new(
        cluster: Cluster,
        topic: &Topic,
        printer: Printer,
        follow: bool,
        interrupt: Interrupt,
    ) -> Self {
        Reader {
            cluster,
            topic: topic.name.clone(),
            partitions: topic.partitions.iter().map(|partition| partition.index).collect(),
            member: None,
            fetcher: Fetcher::new(topic.clone()),
            printer,
            follow,
            interrupt,
            positions: BTreeMap::new(),
            ends: BTreeMap::new(),
            next_commit: Instant::now() + COMMIT_INTERVAL,
            buffer: Vec::new(),
            scratch: Scratch::new(),
        }
    }

    /// Reads some partitions, all if none is named.
    pub(crate) fn read_partitions(&mut self, chosen: &[i32], from: Start) -> Result<()> {
        let partitions = if chosen.is_empty() { self.partitions.clone() } else { chosen.to_vec() };
        if let Some(unknown) = partitions.iter().find(|index| !self.partitions.contains(index)) {
            bail!(
                "topic {} has no partition {unknown}; it has 0 to {}",
                self.topic,
                self.partitions.len() - 1
            );
        }
        self.positions = start::resolve(&mut self.cluster, &self.topic, &partitions, from)?;
        self.ends = list_offsets(&mut self.cluster, &self.topic, &partitions, LATEST)?;
        self.run(from)
    }

    /// Reads as a member of a group: what the group assigns, from where it has committed.
    pub(crate) fn read_as_member(&mut self, group: &str, from: Start) -> Result<()> {
        let topic = self.cluster.topic(&self.topic)?;
        self.member = Some(Member::new(group, &topic.name, topic.id));
        let read = match self.rejoin(from) {
            Err(_) if self.interrupt.is_raised() => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.run(from),
        };
        let committed = if read.is_ok() { self.commit().map(|_| ()) } else { Ok(()) };
        let left = self.member.as_mut().map_or(Ok(()), |member| member.leave(&mut self.cluster));
        read.and(committed).and(left)
    }

    fn run(&mut self, from: Start) -> Result<()> {
        while !self.interrupt.is_raised() && !self.is_done() {
            if self.keep_standing()? == Standing::Stable {
                self.fetch_and_print()?;
                continue;
            }
            match self.rejoin(from) {
                Err(_) if self.interrupt.is_raised() => break,
                joined => joined?,
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        let at_end = |(index, position): (&i32, &i64)| self.ends.get(index).is_none_or(|end| position >= end);
        self.printer.is_done() || !self.follow && self.positions.iter().all(at_end)
    }

    /// Joins the group, again if need be, and takes up its assignment.
    fn rejoin(&mut self, from: Start) -> Result<()> {
        let Some(member) = &mut self.member else { return Ok(()) };
        let assigned = member.join(&mut self.cluster, &self.interrupt)?;
        let committed = member.committed(&mut self.cluster, &assigned)?;
        let fresh: Vec<i32> =
            assigned.iter().copied().filter(|index| !committed.contains_key(index)).collect();
        self.positions = start::resolve(&mut self.cluster, &self.topic, &fresh, from)?;
        self.positions.extend(committed);
        self.ends = list_offsets(&mut self.cluster, &self.topic, &assigned, LATEST)?;
        self.next_commit = Instant::now() + COMMIT_INTERVAL;
        Ok(())
    }

    /// Sends what keeps the member in its group; commits before the partitions go to others.
    fn keep_standing(&mut self) -> Result<Standing> {
        let Some(member) = &mut self.member else { return Ok(Standing::Stable) };
        let standing = member.heartbeat_if_due(&mut self.cluster)?;
        match standing {
            Standing::Stable if Instant::now() < self.next_commit => Ok(Standing::Stable),
            Standing::Stable => self.commit(),
            // Even if this fails, joining again is what is left to do.
            Standing::Rebalancing => self.commit().map(|_| Standing::Rebalancing),
            Standing::Lost => Ok(Standing::Lost),
        }
    }

    fn commit(&mut self) -> Result<Standing> {
        let Some(member) = &mut self.member else { return Ok(Standing::Stable) };
        self.next_commit = Instant::now() + COMMIT_INTERVAL;
        if self.positions.is_empty() {
            return Ok(Standing::Stable);
        }
        member.commit(&mut self.cluster, &self.positions)
    }

    fn fetch_and_print(&mut self) -> Result<()> {
        if self.positions.is_empty() {
            // A member without partitions waits for the next rebalance.
            std::thread::sleep(Duration::from_millis(200));
            return Ok(());
        }
        let open: BTreeMap<i32, i64> = match self.follow {
            true => self.positions.clone(),
            false => {
                let ends = &self.ends;
                let before_end =
                    |(index, position): &(&i32, &i64)| ends.get(index).is_some_and(|end| *position < end);
                self.positions
                    .iter()
                    .filter(before_end)
                    .map(|(index, position)| (*index, *position))
                    .collect()
            }
        };
        for (partition, fetched) in self.fetcher.fetch(&mut self.cluster, &open)? {
            match fetched {
                Fetched::Batches(bytes) => self.print_batches(partition, &bytes)?,
                Fetched::OutOfRange => self.skip_to_start(partition)?,
            }
        }
        self.printer.flush()
    }

    fn print_batches(&mut self, partition: i32, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() && !self.printer.is_done() {
            let (batch, rest) = match Batch::split_first(bytes) {
                Err(BatchError::Truncated { .. }) => return Ok(()),
                split => split.with_context(|| self.place(partition))?,
            };
            bytes = rest;
            if !batch.verify_crc() {
                bail!(
                    "the checksum of a batch is wrong: {}; the record data changed on its way",
                    self.place(partition)
                );
            }
            if !self.print_batch(partition, batch).with_context(|| self.place(partition))? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Prints the records from the position on; false if the end was reached within the batch.
    fn print_batch(&mut self, partition: i32, batch: Batch<'_>) -> Result<bool> {
        let position = self.positions.entry(partition).or_insert(0);
        let end = match self.ends.get(&partition) {
            Some(end) if !self.follow => *end,
            _ => i64::MAX,
        };
        if !batch.attributes().is_control() {
            let records = batch.records(&mut self.buffer, DECOMPRESSED_BYTES_MAX, &mut self.scratch)?;
            for record in records {
                let record = record?;
                if record.offset < *position {
                    continue;
                }
                if record.offset >= end || self.printer.is_done() {
                    return Ok(false);
                }
                self.printer.print(&self.topic, partition, &record)?;
                *position = record.offset.saturating_add(1);
            }
            if self.printer.is_done() {
                return Ok(false);
            }
        }
        *position = batch.next_offset().max(*position);
        Ok(true)
    }

    fn place(&self, partition: i32) -> String {
        let position = self.positions.get(&partition).copied().unwrap_or(0);
        format!("{}-{partition} from offset {position} on", self.topic)
    }

    /// Retention has overtaken the reader, or the log was cut.
    fn skip_to_start(&mut self, partition: i32) -> Result<()> {
        let earliest = list_offsets(&mut self.cluster, &self.topic, &[partition], EARLIEST)?;
        let latest = list_offsets(&mut self.cluster, &self.topic, &[partition], LATEST)?;
        let range = (earliest.get(&partition).copied(), latest.get(&partition).copied());
        let (Some(earliest), Some(latest)) = range else { return Ok(()) };
        let position = self.positions.entry(partition).or_insert(0);
        let next = if *position < earliest { earliest } else { latest };
        eprintln!(
            "mainstem: {}-{partition} no longer has offset {position}; it has {earliest} to {latest}: going on at {next}",
            self.topic
        );
        *position = next;
        Ok(())
    }
}
