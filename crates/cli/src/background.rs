//! A runtime on a thread of its own, for tasks that run while a command works.

use std::thread;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// The runtime. It ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    handle: Handle,
    _alive: oneshot::Sender<()>,
}

impl Background {
    /// Starts the thread under a name.
    pub(crate) fn start(name: &str) -> Result<Background> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("nothing can be done in the background here")?;
        let handle = runtime.handle().clone();
        let (alive, ended) = oneshot::channel();
        let run = move || {
            // The sender is dropped; nothing is ever sent.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .context("a thread for the background cannot be started")?;
        Ok(Background { handle, _alive: alive })
    }

    /// The handle by which tasks are spawned on the runtime.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}
