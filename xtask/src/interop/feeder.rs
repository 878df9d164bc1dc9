//! A producer that is fed while it runs.

use std::io::{BufWriter, Write};
use std::process::ChildStdin;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

use super::text::Text;
use crate::process::Process;

/// A producer process and the thread that writes to its input, so that no other waits for a slow one.
pub(crate) struct Feeder {
    process: Process,
    lines: Option<Sender<String>>,
    writer: Option<JoinHandle<()>>,
    fed: usize,
}

impl Feeder {
    pub(crate) fn new(mut process: Process, fed: usize) -> Feeder {
        let (sender, receiver) = channel::<String>();
        let mut input = BufWriter::new(process.take_stdin());
        let writer = thread::spawn(move || {
            for lines in receiver {
                // It fails when the process has ended, which the waiting side sees and reports.
                if write_now(&mut input, &lines).is_err() {
                    return;
                }
            }
        });
        Feeder { process, lines: Some(sender), writer: Some(writer), fed }
    }

    /// Feeds the next `count` records: record `n` has one of 50 keys and the value "n LINE".
    pub(crate) fn feed(&mut self, text: &Text, count: usize) -> Result<()> {
        self.process.check_alive()?;
        let mut lines = String::new();
        for n in self.fed..self.fed + count {
            lines += &format!("key {}\t{}\n", n % 50, fed_value(text, n));
        }
        self.fed += count;
        let sender = self.lines.as_ref().expect("fed before it is finished");
        sender.send(lines).ok().context("the feeder's input is closed")
    }

    /// Returns the number of records that were fed.
    pub(crate) fn fed(&self) -> usize {
        self.fed
    }

    /// Returns true if its input was ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.lines.is_none()
    }

    /// Ends the producer without warning: what it was fed may be written or not.
    pub(crate) fn kill(&mut self) {
        self.lines = None;
        self.process.kill();
        if let Some(writer) = self.writer.take() {
            // It ends by the broken pipe at the latest.
            let _ = writer.join();
        }
    }

    /// Ends the input and waits until every record was acknowledged.
    pub(crate) fn finish(&mut self, limit: Duration) -> Result<()> {
        self.lines = None;
        self.process.wait(limit).context("the producer")?;
        if let Some(writer) = self.writer.take() {
            writer.join().ok().context("the feeder's thread panicked")?;
        }
        Ok(())
    }
}

fn write_now(input: &mut BufWriter<ChildStdin>, lines: &str) -> std::io::Result<()> {
    input.write_all(lines.as_bytes())?;
    input.flush()
}

/// The value of record `n` of a feeder.
pub(crate) fn fed_value(text: &Text, n: usize) -> String {
    format!("{n} {}", text.line(n))
}
