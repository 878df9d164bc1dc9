//! The log of a test's thread.

use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

/// The log of this thread since [`Logs::capture`]. A test of tokio with one thread runs all tasks there.
pub(crate) struct Logs {
    text: Arc<Mutex<Vec<u8>>>,
    _guard: DefaultGuard,
}

impl Logs {
    pub(crate) fn capture() -> Logs {
        let text = Arc::default();
        let writer = Writer(Arc::clone(&text));
        let subscriber = tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_ansi(false);
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        Logs { text, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// Returns the lines that contain a text.
    pub(crate) fn lines(&self, what: &str) -> Vec<String> {
        let text = String::from_utf8(self.text.lock().clone()).unwrap();
        text.lines().filter(|line| line.contains(what)).map(str::to_owned).collect()
    }
}

#[derive(Clone)]
struct Writer(Arc<Mutex<Vec<u8>>>);

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
