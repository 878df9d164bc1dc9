//! Times at which events pass their stages, from the trace events of `mainstem-direct` and those of the handlers, a line each.
//!
//! | line | from |
//! |---|---|
//! | `synced NEXT NS` | publisher |
//! | `handed CONSUMER PEER FROM NEXT WOKEN_NS NS` | publisher; the frame's making began at `WOKEN_NS` |
//! | `written PEER NS` | publisher |
//! | `received CONSUMER FROM NEXT NS` | consumer |
//! | `handled CONSUMER OFFSET SENT_NS NS` | consumer |
//!
//! Times are nanoseconds since 1970: both processes are on one machine.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Result, ensure};
use mainstem_direct::STAGES;
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::now_ns;

/// More text than this is not kept: a measurement has to be shorter.
const TEXT_BYTES_MAX: usize = 512 << 20;

/// Stages that were recorded since the last `begin`.
#[derive(Clone, Default)]
pub(crate) struct Stages(Arc<Inner>);

#[derive(Default)]
struct Inner {
    is_on: AtomicBool,
    text: Mutex<String>,
    listens: OnceLock<()>,
}

impl Stages {
    /// Forgets what was recorded, and records from now on.
    pub(crate) fn begin(&self) {
        self.0.listens.get_or_init(|| {
            let set = tracing::subscriber::set_global_default(Listener(self.clone()));
            set.expect("this process has no other subscriber");
        });
        self.0.text.lock().clear();
        self.0.is_on.store(true, Ordering::Relaxed);
    }

    /// Stops recording, and writes what was recorded to a file.
    pub(crate) fn end(&self, file: &Path) -> Result<()> {
        self.0.is_on.store(false, Ordering::Relaxed);
        let text = std::mem::take(&mut *self.0.text.lock());
        ensure!(text.len() < TEXT_BYTES_MAX, "more was seen than is kept; look for a shorter time");
        Ok(std::fs::write(file, text)?)
    }

    /// Records that a handler begins with an event.
    pub(crate) fn handled(&self, consumer: &str, offset: i64, sent_ns: u64, now_ns: u64) {
        if self.0.is_on.load(Ordering::Relaxed) {
            self.keep(format_args!("handled {consumer} {offset} {sent_ns} {now_ns}"));
        }
    }

    fn keep(&self, line: std::fmt::Arguments<'_>) {
        let mut text = self.0.text.lock();
        if text.len() < TEXT_BYTES_MAX {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{line}");
        }
    }
}

/// Takes the trace events of one target, and none of others.
struct Listener(Stages);

/// The fields of one.
#[derive(Default)]
struct Fields {
    stage: String,
    consumer: String,
    peer: String,
    from: i64,
    next: i64,
    woken_ns: u64,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "peer" {
            self.peer = format!("{value:?}");
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "stage" => self.stage = value.to_owned(),
            "consumer" => self.consumer = value.to_owned(),
            _ => {}
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        match field.name() {
            "from" => self.from = value,
            "next" => self.next = value,
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "woken_ns" {
            self.woken_ns = value;
        }
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == STAGES
    }

    fn event(&self, event: &Event<'_>) {
        if !self.0.0.is_on.load(Ordering::Relaxed) {
            return;
        }
        let now = now_ns();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let Fields { stage, consumer, peer, from, next, woken_ns } = &fields;
        match stage.as_str() {
            "synced" => self.0.keep(format_args!("synced {next} {now}")),
            "written" => self.0.keep(format_args!("written {peer} {now}")),
            "received" => self.0.keep(format_args!("received {consumer} {from} {next} {now}")),
            "handed" => {
                let woken = now.saturating_sub(*woken_ns);
                self.0.keep(format_args!("handed {consumer} {peer} {from} {next} {woken} {now}"));
            }
            _ => {}
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
