//! The log of a test's process.

/// What this process has logged.
pub(crate) fn log() -> String {
    String::from_utf8_lossy(&LOG.get_or_init(Log::install).0.lock().unwrap()).into_owned()
}

static LOG: std::sync::OnceLock<Log> = std::sync::OnceLock::new();

#[derive(Clone, Default)]
struct Log(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl Log {
    fn install() -> Log {
        let log = Log::default();
        let lines = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || lines.clone());
        tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
        log
    }
}

impl std::io::Write for Log {
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
