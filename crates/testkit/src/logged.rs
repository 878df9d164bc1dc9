//! The log of a thread, as a test sees it.

use std::fmt::{Debug, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::field::Field;
use tracing::span;

/// Events that are logged on a thread, a line each: the level, then its fields. It is set by `tracing::subscriber::with_default`.
#[derive(Clone, Default)]
pub struct Logged(Arc<Mutex<Vec<String>>>);

impl Logged {
    /// The lines that have something in them.
    pub fn lines_with(&self, part: &str) -> Vec<String> {
        self.0.lock().iter().filter(|line| line.contains(part)).cloned().collect()
    }
}

impl tracing::Subscriber for Logged {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = event.metadata().level().to_string();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            write!(line, " {field}={value:?}").expect("a string takes all");
        });
        self.0.lock().push(line);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
