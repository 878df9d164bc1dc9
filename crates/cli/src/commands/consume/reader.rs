//! The loop of `consume`: reads a batch, prints it, and checks whether it was the last.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use mainstem_client::{Admin, Error, ErrorCode, FetchedBatch, Position, Positions, TopicPartition};

use super::printer::Printer;
use super::source::Source;
use crate::failure::advised;
use crate::interrupt::Interrupt;
use crate::offsets::{self, Offsets};
use crate::topic;

/// The interval of the check whether the end is reached. Markers and aborted records move the position and print nothing.
const TICK: Duration = Duration::from_millis(100);
/// The time without records after which the cluster is asked whether it still answers. A consumer waits for it
/// without a word.
const QUIET: Duration = Duration::from_secs(5);
/// The state of a group in which each member has its partitions.
const STABLE: &str = "Stable";

/// The topics to read, and the ends.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) admin: Admin,
    pub(crate) topics: Vec<String>,
    pub(crate) group: Option<String>,
    /// The time for which an operation is retried.
    pub(crate) limit: Duration,
    /// The end of each partition at the start; none to read without an end.
    pub(crate) ends: Option<Offsets>,
}

/// Reads and prints until the end is reached, or a signal interrupts it.
pub(crate) async fn read(plan: Plan, source: Source, printer: Printer, interrupt: &Interrupt) -> Result<()> {
    let mut reader = Reader { plan, source, printer };
    let read = tokio::select! {
        biased;
        () = interrupt.raised() => Ok(()),
        read = reader.run() => read,
    };
    let read = read.and(reader.printer.flush());
    let closed = reader.source.close(read.is_err()).await;
    read.and(closed)
}

struct Reader {
    plan: Plan,
    source: Source,
    printer: Printer,
}

impl Reader {
    async fn run(&mut self) -> Result<()> {
        let positions = self.source.positions();
        while !self.printer.is_done() && !self.plan.is_at_end(&positions) {
            if self.plan.group.is_some() {
                // A commit covers printed records only, so these are flushed before the next read.
                self.printer.flush()?;
            }
            match self.next(&positions).await? {
                Some(Ok(batch)) => self.print(&batch)?,
                Some(Err(error)) => self.repair(error).await?,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// The next batch; none at the end.
    async fn next(&mut self, positions: &Positions) -> Result<Option<Result<FetchedBatch, Error>>> {
        // The same future is polled until it is ready: it may be in the middle of a rebalance.
        let mut next = std::pin::pin!(self.source.next());
        tokio::select! {
            biased;
            batch = &mut next => return Ok(Some(batch)),
            () = std::future::ready(()) => self.printer.flush()?,
        }
        let mut silence = Silence::begin(positions);
        loop {
            tokio::select! {
                batch = &mut next => return Ok(Some(batch)),
                () = tokio::time::sleep(TICK) => {}
            }
            if self.plan.is_at_end(positions) || silence.ends_all(&self.plan, positions).await? {
                return Ok(None);
            }
        }
    }

    /// Prints the records before the end.
    fn print(&mut self, batch: &FetchedBatch) -> Result<()> {
        let key = batch.partition();
        let end = self.plan.end(key);
        let mut next = batch.next_offset();
        for record in batch.records() {
            let record = record?;
            if record.offset >= end {
                next = end;
                break;
            }
            self.printer.print(&key.topic, key.partition, &record)?;
            if self.printer.is_done() {
                next = record.offset.saturating_add(1);
                break;
            }
        }
        if next < batch.next_offset() {
            self.source.seek(key, next)?;
        }
        if next >= end {
            self.source.pause(key)?;
        }
        Ok(())
    }

    /// Continues at another offset if records are gone.
    async fn repair(&mut self, error: Error) -> Result<()> {
        match error {
            Error::OutOfRange { partition, offset, .. } => self.skip(&partition, offset).await,
            Error::Truncated { partition, diverges_at: Some(at), .. } => {
                eprintln!(
                    "mainstem: {partition} was cut at offset {at} when its leader changed: going on there"
                );
                match self.source.positions().assignment().contains(&partition) {
                    true => Ok(self.source.seek(&partition, at)?),
                    false => Ok(()),
                }
            }
            error => Err(advised(error, advice).into()),
        }
    }

    /// Moves behind records that retention has removed, or back to the end of a log that was cut.
    async fn skip(&mut self, key: &TopicPartition, position: i64) -> Result<()> {
        let admin = &self.plan.admin;
        let earliest = offsets::find(admin, [key], Position::Beginning).await?.get(key).copied().unwrap_or(0);
        let latest = offsets::find(admin, [key], Position::End).await?.get(key).copied().unwrap_or(earliest);
        let next = if position < earliest { earliest } else { latest };
        eprintln!(
            "mainstem: {key} no longer has offset {position}; it has {earliest} to {latest}: going on at {next}"
        );
        Ok(self.source.seek(key, next)?)
    }
}

/// A time without records.
struct Silence {
    /// The last time the cluster was asked for a reason.
    asked: Instant,
    /// The time at which the positions last changed.
    since: Instant,
    known: Offsets,
}

impl Silence {
    fn begin(positions: &Positions) -> Silence {
        Silence { asked: Instant::now(), since: Instant::now(), known: positions.known() }
    }

    /// Returns true if there is nothing more to wait for. Asks the cluster at most once in 5 s.
    ///
    /// # Errors
    /// When the positions do not change for too long, or the cluster cannot be asked.
    async fn ends_all(&mut self, plan: &Plan, positions: &Positions) -> Result<bool> {
        let quiet = QUIET.min(plan.limit);
        if self.asked.elapsed() < quiet {
            return Ok(false);
        }
        let is_over = plan.is_over(positions).await?;
        self.asked = Instant::now();
        let known = positions.known();
        if known != self.known {
            (self.known, self.since) = (known, Instant::now());
        }
        if self.since.elapsed() >= plan.limit + quiet {
            plan.check_progress(&self.known)?;
        }
        Ok(is_over)
    }
}

impl Plan {
    /// The offset before which a partition is read.
    fn end(&self, partition: &TopicPartition) -> i64 {
        self.ends.as_ref().and_then(|ends| ends.get(partition)).copied().unwrap_or(i64::MAX)
    }

    /// Returns true if all assigned partitions are read to their ends. A member of a group without partitions may still get some.
    fn is_at_end(&self, positions: &Positions) -> bool {
        let Some(ends) = &self.ends else { return false };
        let (assigned, known) = (positions.assignment(), positions.known());
        let is_at_end = |key: &TopicPartition| {
            ends.get(key).is_none_or(|end| known.get(key).is_some_and(|position| position >= end))
        };
        assigned.iter().all(is_at_end) && (self.group.is_none() || !assigned.is_empty())
    }

    /// Fails if a partition is not at its end: it has delivered nothing for too long.
    fn check_progress(&self, known: &Offsets) -> Result<()> {
        let end = |key| self.ends.as_ref().and_then(|ends| ends.get(key)).copied();
        for (key, position) in known {
            if let Some(end) = end(key).filter(|end| position < end) {
                bail!(
                    "gave up after {} s (--timeout): nothing came of {key} from offset {position} on, though there are \
                     records up to {end}; the broker's log may say why",
                    self.limit.as_secs()
                );
            }
        }
        Ok(())
    }

    /// Returns true if there is nothing to wait for, after a time without records.
    ///
    /// # Errors
    /// When the cluster does not answer, or a topic or partition is gone.
    async fn is_over(&self, positions: &Positions) -> Result<bool> {
        for topic in &self.topics {
            topic::find(&self.admin, topic).await?;
        }
        let assigned = positions.assignment();
        offsets::find(&self.admin, &assigned, Position::End).await?;
        let Some(group) = &self.group else { return Ok(false) };
        let Some(group) = self.admin.describe_group(group).await? else { return Ok(false) };
        Ok(self.ends.is_some() && group.state == STABLE && positions.assignment().is_empty())
    }
}

/// Advice about a group that refuses a member.
fn advice(code: ErrorCode) -> Option<&'static str> {
    (code == ErrorCode::INCONSISTENT_GROUP_PROTOCOL).then_some(
        "its members do not offer the assignor cooperative-sticky; let them, or read in another group or without one",
    )
}
