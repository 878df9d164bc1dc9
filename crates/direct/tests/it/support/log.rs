//! The log of a test's process, in both formats of a program's log.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;

/// The log of this process, as text.
pub(crate) fn log() -> String {
    LOG.get_or_init(Logs::install).text.read()
}

/// The same as objects of JSON, one a line, with what is of level DEBUG.
pub(crate) fn json_log() -> String {
    LOG.get_or_init(Logs::install).json.read()
}

static LOG: OnceLock<Logs> = OnceLock::new();

struct Logs {
    text: Log,
    json: Log,
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Logs {
    fn install() -> Logs {
        let logs = Logs { text: Log::default(), json: Log::default() };
        let layer = tracing_subscriber::fmt::layer().with_ansi(false);
        let text =
            layer.with_writer(logs.text.clone()).with_filter(tracing_subscriber::filter::LevelFilter::INFO);
        let own = Targets::new().with_target("mainstem_direct", tracing::Level::DEBUG);
        let json = tracing_subscriber::fmt::layer().json().with_writer(logs.json.clone()).with_filter(own);
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(text).with(json))
            .unwrap();
        logs
    }
}

impl Log {
    fn read(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Log;

    fn make_writer(&self) -> Log {
        self.clone()
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Waits for a line, behind so many, that has all of these words.
pub(crate) async fn until_logged(behind: usize, words: &[&str]) {
    let is_logged = || {
        let log = log();
        log.lines().skip(behind).any(|line| words.iter().all(|word| line.contains(word)))
    };
    super::until(&format!("{words:?} is in the log"), || std::future::ready(is_logged())).await;
}
