//! Ctrl-C: the first asks a command to end in order, the second ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit status of a shell's command that SIGINT ended.
const STATUS: i32 = 130;

/// Whether somebody asked the command to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for SIGINT and SIGTERM from now on.
    pub(crate) fn listen() -> Result<Self> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag down, the second finds it up.
            flag::register_conditional_shutdown(signal, STATUS, interrupt.0.clone())
                .and_then(|_| flag::register(signal, interrupt.0.clone()))
                .context("signals cannot be handled")?;
        }
        Ok(interrupt)
    }

    /// Whether a signal came.
    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
