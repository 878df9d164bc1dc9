//! The broker's threads: one tokio `current_thread` runtime each, on which connections are served to completion.
//!
//! A further loop takes connections only when the first is busy, so that a small load has no wake from one core to
//! another.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;

use crate::wake::Mailbox;

/// A loop that was busy for less than this share of the time since the last look still counts as free.
const BUSY_SHARE: f64 = 0.5;

/// The share of time above which a loop gives connections away, if another is free.
const OVERLOAD_SHARE: f64 = 0.85;

/// Time over which the share of busy time is taken.
const BUSY_WINDOW: Duration = Duration::from_millis(50);

/// Threads of a loop for work that waits for the disk. What waits for a thread waits in the order of its arrival.
const BACKGROUND_THREADS_MAX: usize = 8;

enum Order {
    Run(Pin<Box<dyn Future<Output = ()> + Send>>),
    Stop,
}

/// One loop as other threads see it.
pub(crate) struct EventLoop {
    tasks: mpsc::UnboundedSender<Order>,
    runtime: Handle,
    connections: AtomicUsize,
    load: Mutex<Load>,
}

struct Load {
    at: Instant,
    busy: Duration,
    share: f64,
}

impl EventLoop {
    /// Runs a future on this loop, from any thread.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // A loop that has stopped takes no more tasks; dropping the task closes what it owns.
        let _ = self.tasks.send(Order::Run(Box::pin(task)));
    }

    /// Connections placed here.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The share of time, 0 to 1, that the loop was busy since the last look at least [`BUSY_WINDOW`] ago.
    fn busy_share(&self) -> f64 {
        let mut load = self.load.lock();
        let elapsed = load.at.elapsed();
        if elapsed >= BUSY_WINDOW {
            let busy = self.runtime.metrics().worker_total_busy_duration(0);
            load.share = (busy.saturating_sub(load.busy)).as_secs_f64() / elapsed.as_secs_f64();
            load.busy = busy;
            load.at = Instant::now();
        }
        load.share
    }
}

/// All loops of a broker.
pub(crate) struct EventLoops {
    loops: Vec<Arc<EventLoop>>,
}

/// The threads behind [`EventLoops`], joined by their owner.
pub(crate) struct EventLoopThreads(Vec<JoinHandle<()>>);

impl EventLoops {
    /// Starts `count` loops (at least one).
    ///
    /// # Errors
    /// The system's, when a thread or an epoll instance cannot be made.
    pub(crate) fn start(count: usize) -> io::Result<(Arc<Self>, EventLoopThreads)> {
        let mut loops = Vec::new();
        let mut threads = Vec::new();
        for index in 0..count.max(1) {
            let (event_loop, thread) = start_loop(index)?;
            loops.push(event_loop);
            threads.push(thread);
        }
        Ok((Arc::new(EventLoops { loops }), EventLoopThreads(threads)))
    }

    /// Has every loop end after what it is doing; what its tasks own is dropped.
    pub(crate) fn stop(&self) {
        for event_loop in &self.loops {
            let _ = event_loop.tasks.send(Order::Stop);
        }
    }

    /// The first loop, on which single tasks run (timers of the coordinators, listeners).
    pub(crate) fn first(&self) -> &Arc<EventLoop> {
        &self.loops[0]
    }

    /// The loop for a new connection: the first that is not busy, or the least busy one.
    pub(crate) fn place(&self) -> Placement {
        let shares = self.loops.iter().map(|event_loop| event_loop.busy_share());
        let mut least = (0, f64::MAX);
        for (index, share) in shares.enumerate() {
            if share < BUSY_SHARE {
                least = (index, share);
                break;
            }
            if share < least.1 {
                least = (index, share);
            }
        }
        Placement::new(&self.loops[least.0])
    }

    /// A loop to which a connection of an overloaded loop should move, if there is a free one.
    pub(crate) fn relief(&self, from: &Placement) -> Option<Placement> {
        if self.loops.len() < 2 || from.event_loop.connections() < 2 {
            return None;
        }
        if from.event_loop.busy_share() < OVERLOAD_SHARE {
            return None;
        }
        let free = self.loops.iter().find(|other| other.busy_share() < BUSY_SHARE)?;
        Some(Placement::new(free))
    }
}

impl EventLoopThreads {
    /// Waits for the loops to end after [`EventLoops::stop`].
    pub(crate) fn join(self) {
        for thread in self.0 {
            // A loop that panicked has logged so; there is nothing to add here.
            let _ = thread.join();
        }
    }
}

/// A connection's seat on a loop, counted while it lives.
pub(crate) struct Placement {
    event_loop: Arc<EventLoop>,
}

impl Placement {
    fn new(event_loop: &Arc<EventLoop>) -> Self {
        event_loop.connections.fetch_add(1, Ordering::Relaxed);
        Placement { event_loop: event_loop.clone() }
    }

    /// The loop.
    pub(crate) fn event_loop(&self) -> &Arc<EventLoop> {
        &self.event_loop
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.event_loop.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

fn start_loop(index: usize) -> io::Result<(Arc<EventLoop>, JoinHandle<()>)> {
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(BACKGROUND_THREADS_MAX)
        .build()?;
    let (tasks, mut incoming) = mpsc::unbounded_channel();
    let load = Mutex::new(Load { at: Instant::now(), busy: Duration::ZERO, share: 0.0 });
    let handle = runtime.handle().clone();
    let event_loop = Arc::new(EventLoop { tasks, runtime: handle, connections: AtomicUsize::new(0), load });
    let thread = std::thread::Builder::new().name(format!("loop-{index}")).spawn(move || {
        let mailbox = Arc::new(Mailbox::default());
        mailbox.enter();
        runtime.block_on(async move {
            let delivery = tokio::spawn(mailbox.deliver());
            while let Some(Order::Run(task)) = incoming.recv().await {
                tokio::spawn(task);
            }
            delivery.abort();
        });
    })?;
    Ok((event_loop, thread))
}
