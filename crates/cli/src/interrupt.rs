//! Ctrl-C: the first asks a command to end in order, the second ends it at once.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;

/// The exit status of a command that SIGINT ended, as shells report it.
const STATUS: i32 = 130;

/// The signals that ask a command to end.
#[derive(Debug)]
pub(crate) struct Interrupt {
    is_raised: Arc<AtomicBool>,
    /// Readable from the first signal on.
    wake: tokio::net::UnixStream,
}

impl Interrupt {
    /// Listens for SIGINT and SIGTERM from now on, within a runtime.
    pub(crate) fn listen() -> Result<Self> {
        let is_raised = Arc::new(AtomicBool::new(false));
        let (wake, waker) = UnixStream::pair().context("signals cannot be handled")?;
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the first signal finds the flag unset, the second finds it set.
            flag::register_conditional_shutdown(signal, STATUS, is_raised.clone())
                .and_then(|_| flag::register(signal, is_raised.clone()))
                .and_then(|_| pipe::register(signal, waker.try_clone()?))
                .context("signals cannot be handled")?;
        }
        wake.set_nonblocking(true).context("signals cannot be handled")?;
        let wake = tokio::net::UnixStream::from_std(wake).context("signals cannot be handled")?;
        Ok(Interrupt { is_raised, wake })
    }

    /// Returns true after the first signal.
    pub(crate) fn is_raised(&self) -> bool {
        self.is_raised.load(Ordering::Relaxed)
    }

    /// Waits for a signal.
    pub(crate) async fn raised(&self) {
        while !self.is_raised() {
            // The bytes are never read, so that a task that waits later finds it readable, too.
            if self.wake.readable().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
