//! A member of a group, and its notes.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::ChildStdin;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::client::Client;
use crate::process::{Process, ended_by_request};

const LEAVE_DEADLINE: Duration = Duration::from_secs(150);

/// One record that a member read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) value: String,
}

/// A process that is a member of a group, and its notes so far.
pub(crate) struct Member {
    pub(crate) name: String,
    client: Client,
    process: Process,
    input: Option<ChildStdin>,
    out: PathBuf,
    consumed_bytes: u64,
    /// The records that it read, in its order.
    pub(crate) readings: Vec<Reading>,
    /// The last offset that it committed for each partition.
    pub(crate) committed: HashMap<i32, i64>,
    /// The partitions that it has now; not known for kcat.
    pub(crate) assigned: BTreeSet<i32>,
    /// The number of partitions that it had to give up, each time counted.
    pub(crate) revoked: usize,
}

impl Member {
    pub(crate) fn new(client: Client, name: &str, mut process: Process, out: PathBuf) -> Member {
        let input = (client != Client::Kcat).then(|| process.take_stdin());
        let (readings, committed, assigned) = Default::default();
        Member {
            name: name.to_string(),
            client,
            process,
            input,
            out,
            consumed_bytes: 0,
            readings,
            committed,
            assigned,
            revoked: 0,
        }
    }

    /// Reads its notes since the last look; it must be alive.
    pub(crate) fn look(&mut self) -> Result<()> {
        self.process.check_alive()?;
        self.take_in()
    }

    /// Reads the complete lines that were added to its file.
    fn take_in(&mut self) -> Result<()> {
        // Until it has started there is no file.
        let Ok(mut file) = File::open(&self.out) else { return Ok(()) };
        file.seek(SeekFrom::Start(self.consumed_bytes))?;
        let mut added = Vec::new();
        file.read_to_end(&mut added)?;
        let complete = added.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.consumed_bytes += complete as u64;
        let lines =
            std::str::from_utf8(&added[..complete]).with_context(|| format!("{}: not text", self.name))?;
        lines.lines().try_for_each(|line| self.note(line))
    }

    fn note(&mut self, line: &str) -> Result<()> {
        self.note_parts(line).with_context(|| format!("{} wrote down {line:?}", self.name))
    }

    fn note_parts(&mut self, line: &str) -> Result<()> {
        let mut parts = line.splitn(4, ' ');
        let what = parts.next().context("a word")?;
        let partition = parts.next().context("a partition")?.parse()?;
        match what {
            "r" => {
                let offset = parts.next().context("an offset")?.parse()?;
                let value = parts.next().context("a value")?.to_string();
                self.readings.push(Reading { partition, offset, value });
            }
            "c" => drop(self.committed.insert(partition, parts.next().context("an offset")?.parse()?)),
            "assigned" => drop(self.assigned.insert(partition)),
            "revoked" | "lost" => {
                self.assigned.remove(&partition);
                self.revoked += 1;
            }
            _ => anyhow::bail!("an unknown word"),
        }
        Ok(())
    }

    /// Asks it to leave the group, which commits its positions, and waits until it has.
    pub(crate) fn leave(&mut self) -> Result<()> {
        if self.client == Client::Kcat {
            self.process.terminate()?;
            let status = self.process.wait_for_status(LEAVE_DEADLINE)?;
            ensure!(
                ended_by_request(status),
                "{} ended with {status}\n{}",
                self.name,
                self.process.log_ends()
            );
        } else {
            self.input = None;
            self.process.wait(LEAVE_DEADLINE)?;
        }
        self.take_in()
    }

    /// Kills it (SIGKILL).
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process.kill();
        self.take_in()
    }
}
