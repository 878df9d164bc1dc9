//! The broker's threads: one tokio `current_thread` runtime each, on which connections are served to completion.
//!
//! A further loop takes connections only when the first is busy, so that a small load has no wake from one core to
//! another.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;

use mainstem_runtime::clock::machine_now;
use mainstem_runtime::idle_poll::{IdlePoll, attend};
use mainstem_runtime::supervised::{AbortOnPanic, vital};
use mainstem_runtime::wake::Mailbox;

use crate::balance::Balance;

/// The niceness of the thread that authenticates connections. Many logins at the same time then do not slow down the loops for
/// data.
pub const AUTHENTICATION_NICENESS: i32 = 10;

/// Threads of a loop for work in the background. Work that finds none free waits in the order of its arrival.
pub const BACKGROUND_THREADS_MAX: usize = 12;

enum Order {
    Run(Pin<Box<dyn Future<Output = ()> + Send>>),
    Stop,
}

/// One loop as other threads see it.
pub struct EventLoop {
    tasks: mpsc::UnboundedSender<Order>,
    runtime: Handle,
    mailbox: Arc<Mailbox>,
}

impl EventLoop {
    /// Runs a future on this loop, from any thread.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // A loop that has stopped takes no more tasks; dropping the task closes what it owns.
        let _ = self.tasks.send(Order::Run(Box::pin(task)));
    }

    /// The time for which the loop has been busy, without that in which it looked for more.
    fn busy(&self) -> Duration {
        let looked = self.mailbox.idle_poll().looked();
        self.runtime.metrics().worker_total_busy_duration(0).saturating_sub(looked)
    }
}

/// All loops of a broker.
pub struct EventLoops {
    first: Arc<EventLoop>,
    /// The loop that authenticates connections, if any listener requires that.
    authentication: Option<Arc<EventLoop>>,
    loops: Mutex<Loops>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Loops {
    all: Vec<Arc<EventLoop>>,
    /// Knows each of them by its index.
    balance: Balance,
    stopped: bool,
}

impl Loops {
    /// Places a new connection, and returns the index of its loop.
    fn place(&mut self) -> usize {
        let Loops { all, balance, .. } = self;
        balance.place(machine_now(), |number| all[number].busy())
    }

    /// Moves a connection of a loop to another one, if that is due.
    fn relieve(&mut self, from: usize, reads: bool) -> Option<usize> {
        let Loops { all, balance, .. } = self;
        balance.relieve(from, reads, machine_now(), |number| all[number].busy())
    }
}

impl EventLoops {
    /// Starts `count` loops (at least one), and one for authentication if connections have to be authenticated. `idle_poll`:
    /// the time for which a loop looks for more work before it sleeps, while it has had much lately.
    ///
    /// # Errors
    /// The system's, when a thread or an epoll instance cannot be made.
    pub fn start(count: usize, idle_poll: Duration, with_authentication: bool) -> io::Result<Arc<Self>> {
        let own = IdlePoll::default();
        own.set_window(idle_poll);
        let (first, thread) = start_loop("loop-0".to_owned(), 0, own)?;
        let mut threads = vec![thread];
        let mut authentication = None;
        if with_authentication {
            let (event_loop, thread) =
                start_loop("authentication".to_owned(), AUTHENTICATION_NICENESS, IdlePoll::default())?;
            threads.push(thread);
            authentication = Some(event_loop);
        }
        let loops = Loops { all: vec![first.clone()], balance: Balance::new(machine_now()), stopped: false };
        let (loops, threads) = (Mutex::new(loops), Mutex::new(threads));
        let loops = Arc::new(EventLoops { first, authentication, loops, threads });
        loops.resize(count)?;
        Ok(loops)
    }

    /// Sets the number of loops that take connections, at least one. A loop beyond it keeps its thread, and its connections
    /// move away as they work.
    ///
    /// # Errors
    /// As [`EventLoops::start`].
    pub fn resize(&self, count: usize) -> io::Result<()> {
        let mut loops = self.loops.lock();
        while loops.all.len() < count && !loops.stopped {
            let idle_poll = self.first.mailbox.idle_poll().sibling();
            let (event_loop, thread) = start_loop(format!("loop-{}", loops.all.len()), 0, idle_poll)?;
            loops.all.push(event_loop);
            loops.balance.add(machine_now());
            self.threads.lock().push(thread);
        }
        loops.balance.set_in_use(count);
        Ok(())
    }

    /// Sets the time for which loops look for more work before they sleep.
    pub fn set_idle_poll(&self, window: Duration) {
        self.first.mailbox.idle_poll().set_window(window);
    }

    /// Ends every loop after its current work. What its tasks own is dropped.
    pub fn stop(&self) {
        let mut loops = self.loops.lock();
        loops.stopped = true;
        for event_loop in loops.all.iter().chain(&self.authentication) {
            let _ = event_loop.tasks.send(Order::Stop);
        }
    }

    /// Waits for the loops to end after [`EventLoops::stop`].
    pub fn join(&self) {
        for thread in self.threads.lock().drain(..) {
            // A loop that panicked has logged so; there is nothing to add here.
            let _ = thread.join();
        }
    }

    /// The first loop, on which single tasks run (timers of the coordinators, listeners).
    pub fn first(&self) -> &Arc<EventLoop> {
        &self.first
    }

    /// Connections of each loop that takes some, without those that are not authenticated yet.
    pub fn connections(&self) -> Vec<usize> {
        self.loops.lock().balance.connections().collect()
    }

    /// Places a new connection (`Balance::place`).
    pub fn place(self: &Arc<Self>) -> Placement {
        let mut loops = self.loops.lock();
        let number = loops.place();
        Placement { loops: self.clone(), event_loop: loops.all[number].clone(), number: Some(number) }
    }

    /// Places a new connection that has to be authenticated first.
    pub fn place_unauthenticated(self: &Arc<Self>) -> Placement {
        match &self.authentication {
            Some(own) => Placement { loops: self.clone(), event_loop: own.clone(), number: None },
            None => self.place(),
        }
    }
}

/// The place of a connection on a loop, counted while it lives.
pub struct Placement {
    loops: Arc<EventLoops>,
    event_loop: Arc<EventLoop>,
    /// The index of the loop. That of connections which are not authenticated yet has none.
    number: Option<usize>,
}

impl Placement {
    /// The loop that has the connection.
    pub fn event_loop(&self) -> &Arc<EventLoop> {
        &self.event_loop
    }

    /// Becomes a place on another loop, if the connection should move there (`Balance::relieve`), and in any case from the loop of
    /// connections which are not authenticated yet. Returns true if so. `reads`: the connection has asked for records last.
    pub fn relieve(&mut self, reads: bool) -> bool {
        let mut loops = self.loops.loops.lock();
        let to = match self.number {
            Some(from) => loops.relieve(from, reads),
            None => Some(loops.place()),
        };
        let Some(to) = to else { return false };
        self.number = Some(to);
        self.event_loop = loops.all[to].clone();
        true
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.loops.loops.lock().balance.leave(number);
        }
    }
}

fn start_loop(
    name: String,
    niceness: i32,
    idle_poll: IdlePoll,
) -> io::Result<(Arc<EventLoop>, JoinHandle<()>)> {
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(BACKGROUND_THREADS_MAX)
        .build()?;
    let (tasks, mut incoming) = mpsc::unbounded_channel();
    let handle = runtime.handle().clone();
    let mailbox = Arc::new(Mailbox::new(idle_poll));
    let own = mailbox.clone();
    let event_loop = Arc::new(EventLoop { tasks, runtime: handle, mailbox });
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        lower_priority(niceness);
        let _guard = AbortOnPanic("its connections would never be served again");
        let _entered = own.enter();
        // It drops its tasks, which may wake others of this loop.
        let runtime = runtime;
        runtime.block_on(async move {
            let delivery = tokio::spawn(vital("the event loop would not be woken any more", attend(own)));
            while let Some(Order::Run(task)) = incoming.recv().await {
                tokio::spawn(task);
            }
            delivery.abort();
        });
    })?;
    Ok((event_loop, thread))
}

/// Makes this thread give way to others. Linux counts niceness by thread.
pub fn lower_priority(niceness: i32) {
    if niceness == 0 {
        return;
    }
    let thread = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(thread), niceness) {
        tracing::debug!("the priority of thread {thread:?} cannot be lowered: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection on the last loop, since all others are busy.
    fn at_last(loops: &Arc<EventLoops>) -> Placement {
        const HOUR: Duration = Duration::from_secs(3600);
        let mut locked = loops.loops.lock();
        let last = locked.all.len() - 1;
        // No loop is looked at before that.
        let later = machine_now() + HOUR;
        let number = locked.balance.place(later, |number| if number < last { HOUR } else { Duration::ZERO });
        assert_eq!(number, last);
        Placement { loops: loops.clone(), event_loop: locked.all[number].clone(), number: Some(number) }
    }

    #[test]
    fn loops_come_and_give_their_connections_away() {
        let loops = EventLoops::start(1, Duration::ZERO, false).expect("a thread can be made");
        let mut stays = loops.place();
        assert_eq!(loops.connections(), [1]);
        loops.resize(3).expect("threads can be made");
        assert_eq!(loops.connections(), [1, 0, 0]);
        assert!(!stays.relieve(true), "its loop is not overloaded");
        let mut leaves = at_last(&loops);
        assert_eq!(loops.connections(), [1, 0, 1]);
        loops.resize(2).expect("nothing is made");
        assert_eq!(loops.connections(), [1, 0]);
        assert!(leaves.relieve(true), "its loop is not wanted any more");
        assert!(Arc::ptr_eq(leaves.event_loop(), loops.first()), "to one that is");
        assert_eq!(loops.connections(), [2, 0]);
        // A loop out of use is taken again before another is started.
        loops.resize(3).expect("nothing is made");
        assert_eq!(loops.threads.lock().len(), 3);
        loops.resize(0).expect("there is always one");
        assert_eq!(loops.connections(), [2]);
        loops.stop();
        loops.resize(4).expect("nothing is made any more");
        loops.join();
        assert_eq!(loops.loops.lock().all.len(), 3);
        assert_eq!(loops.connections(), [2, 0, 0], "all that there are");
        drop((stays, leaves));
        assert_eq!(loops.connections(), [0, 0, 0]);
    }

    #[test]
    fn a_connection_that_is_authenticated_moves_whatever_the_loops_do() {
        let loops = EventLoops::start(2, Duration::ZERO, true).expect("threads can be made");
        let mut placement = loops.place_unauthenticated();
        assert!(!Arc::ptr_eq(placement.event_loop(), loops.first()), "it has a loop of its own");
        assert_eq!(loops.connections(), [0, 0]);
        assert!(placement.relieve(false));
        assert!(Arc::ptr_eq(placement.event_loop(), loops.first()));
        assert_eq!(loops.connections(), [1, 0]);
        assert!(!placement.relieve(false), "it is on a loop for data");
        loops.stop();
        loops.join();
    }
}
