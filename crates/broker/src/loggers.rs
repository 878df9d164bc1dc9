//! The levels of this process's loggers, and the way to change them while it runs.

use mainstem_config::alter::{AlterError, Change};
use mainstem_config::describe::DescribedConfig;
use mainstem_config::loggers::LoggerLevels;
use parking_lot::Mutex;

/// The levels of loggers, as clients see and change them (`kafka-configs --entity-type broker-loggers`). The program
/// that installs the subscriber of `tracing` gives the levels, and a function that applies them.
pub struct Loggers {
    levels: Mutex<LoggerLevels>,
    put_into_force: Box<dyn Fn(&LoggerLevels) + Send + Sync>,
    lines_lost: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl Loggers {
    /// The levels at start. `put_into_force` is called with the new ones after each change, by one thread at a time.
    pub fn new(levels: LoggerLevels, put_into_force: impl Fn(&LoggerLevels) + Send + Sync + 'static) -> Self {
        Loggers {
            levels: Mutex::new(levels),
            put_into_force: Box::new(put_into_force),
            lines_lost: Box::new(|| 0),
        }
    }

    /// Sets the source of the number of lost lines, for the metrics.
    #[must_use]
    pub fn with_lines_lost(self, lines_lost: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Loggers { lines_lost: Box::new(lines_lost), ..self }
    }

    /// The number of lines that could not be written so far.
    pub(crate) fn lines_lost(&self) -> u64 {
        (self.lines_lost)()
    }

    /// All loggers with their effective levels.
    pub(crate) fn describe(&self) -> Vec<DescribedConfig> {
        self.levels.lock().describe()
    }

    /// Makes changes, all or none of them.
    ///
    /// # Errors
    /// When a logger or a level does not exist.
    pub(crate) fn alter(&self, changes: &[Change<'_>], validate_only: bool) -> Result<(), AlterError> {
        let mut levels = self.levels.lock();
        let after = levels.altered(changes)?;
        if !validate_only {
            (self.put_into_force)(&after);
            *levels = after;
        }
        Ok(())
    }
}
