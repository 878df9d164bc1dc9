//! A thread that names handlers which block theirs: no task could where they block all of a runtime.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mainstem_client::TopicPartition;

use crate::status::Status;

/// Interval between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The thread; it ends when this is dropped.
pub(crate) struct Watch {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the watch over an application. If the system refuses a thread, the application runs without it.
    pub(crate) fn start(status: Arc<Status>) -> Watch {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let thread =
            thread::Builder::new().name("flow-watch".to_owned()).spawn(move || watch(&status, &ends));
        let refused =
            |error: std::io::Error| tracing::warn!("handlers that block their thread are not named: {error}");
        Watch { is_over, thread: thread.map_err(refused).ok() }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn watch(status: &Status, is_over: &AtomicBool) {
    let mut named: HashMap<TopicPartition, u64> = HashMap::new();
    while !is_over.load(Ordering::Acquire) {
        thread::park_timeout(LOOK_EVERY);
        let blocked = status.blocked();
        for (partition, since_ms, blocked_ms) in &blocked {
            // Once for each time. Handlers that return are logged by their partition's task.
            if named.get(partition) != Some(since_ms) {
                tracing::warn!(
                    "a handler blocks its thread in partition {partition} for {blocked_ms} ms now; let it await, or give such \
                     work to tokio::task::spawn_blocking"
                );
            }
        }
        named = blocked.into_iter().map(|(partition, since_ms, _)| (partition, since_ms)).collect();
    }
}
