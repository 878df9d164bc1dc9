//! Signals of the system, and their effect on an application.

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::app::{Stop, change};
use crate::error::{Error, Result};
use crate::status::Status;

/// Exit code of a process that was interrupted twice.
const INTERRUPTED: i32 = 2;

/// The signals that an application heeds.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    report: Signal,
    quiet: Signal,
    resume: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Signals> {
        let heed =
            |kind| signal(kind).map_err(|error| Error::Invalid(format!("signals cannot be heeded: {error}")));
        Ok(Signals {
            terminate: heed(SignalKind::terminate())?,
            interrupt: heed(SignalKind::interrupt())?,
            report: heed(SignalKind::user_defined1())?,
            quiet: heed(SignalKind::from_raw(libc::SIGTSTP))?,
            resume: heed(SignalKind::from_raw(libc::SIGCONT))?,
        })
    }

    /// SIGTERM and SIGINT stop in order, and at once when they come again; SIGTSTP starts nothing
    /// more until SIGCONT; SIGUSR1 logs what runs.
    pub(crate) async fn heed(&mut self, stop: &watch::Sender<Stop>, status: &Arc<Status>) {
        let mut is_stopping = false;
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
                _ = self.report.recv() => {
                    status.log();
                    continue;
                }
                _ = self.quiet.recv() => {
                    tracing::info!("quiet: nothing more is started until SIGCONT; handlers that run continue");
                    change(stop, Stop::Quiet);
                    continue;
                }
                _ = self.resume.recv() => {
                    change(stop, Stop::No);
                    continue;
                }
            }
            if std::mem::replace(&mut is_stopping, true) {
                tracing::warn!("stopping at once; what was not committed runs again");
                std::process::exit(INTERRUPTED);
            }
            tracing::info!("stopping: what runs is finished and committed; another signal ends at once");
            let _ = stop.send(Stop::Orderly);
        }
    }
}
