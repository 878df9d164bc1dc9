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

use parking_lot::{Mutex, RwLock};
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;

use mainstem_runtime::clock::machine_now;
use mainstem_runtime::idle_poll::{IdlePoll, attend};
use mainstem_runtime::supervised::{AbortOnPanic, vital};
use mainstem_runtime::wake::Mailbox;

/// A loop that was busy for less than this share of the time since the last look still counts as free.
const BUSY_SHARE: f64 = 0.4;

/// Time over which the share of busy time is taken.
const BUSY_WINDOW: Duration = Duration::from_millis(50);

/// When a connection leaves its loop for another.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Relief {
    /// The share of time for which its own loop is busy at least.
    from: f64,
    /// By how much less the other is at least, or the two would give the same connection to each other.
    margin: f64,
    /// Looks in a row at which its own loop was that busy, without its share of connections having left in between.
    looks: u32,
}

/// Readers leave first: apart from those who write, neither waits for the other, and both of their CPUs have something to
/// do without a pause, which a CPU pays for by far more than a wake from one loop to the other costs.
const READERS: Relief = Relief { from: 0.45, margin: 0.25, looks: 1 };

/// Everybody else leaves an overloaded loop, after readers have had the time to.
const OTHERS: Relief = Relief { from: 0.85, margin: 0.3, looks: 4 };

/// Of this many connections of a loop one may leave it between two looks, and in any case one: if all that see it busy
/// left at once, the other loop would be the busy one.
const CONNECTIONS_PER_MOVE: usize = 16;

impl Relief {
    /// Whether to go, by the busy shares of both loops.
    fn is_due(self, from: Share, to: Share) -> bool {
        let is_long_enough = from.looks >= self.looks && to.looks >= 1;
        is_long_enough && from.busy >= self.from && to.busy < from.busy - self.margin
    }
}

/// By how much the thread of the door gives way to those of data: their tail is not to move when many log in at once.
pub const DOOR_NICENESS: i32 = 10;

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
    connections: AtomicUsize,
    load: Mutex<Load>,
    mailbox: Arc<Mailbox>,
}

/// How busy a loop was of late.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Share {
    /// The share of time, 0 to 1, between the last two looks.
    busy: f64,
    /// Looks since connections moved from or to it; those at which it was overloaded, if it was at the last.
    looks: u32,
}

impl Share {
    /// By another look.
    fn next(self, busy: f64) -> Share {
        let was_overloaded = self.busy >= OTHERS.from;
        let goes_on = was_overloaded == (busy >= OTHERS.from);
        Share { busy, looks: if goes_on { self.looks.saturating_add(1) } else { 1 } }
    }
}

struct Load {
    at: Instant,
    busy: Duration,
    share: Share,
    /// Connections that moved from or to the loop since the last look.
    moved: usize,
}

impl EventLoop {
    /// Runs a future on this loop, from any thread.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // A loop that has stopped takes no more tasks; dropping the task closes what it owns.
        let _ = self.tasks.send(Order::Run(Box::pin(task)));
    }

    /// Connections placed here.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// How busy the loop was until the last look, at least [`BUSY_WINDOW`] after the one before.
    fn share(&self) -> Share {
        let mut load = self.load.lock();
        let now = machine_now();
        let elapsed = now.duration_since(load.at);
        if elapsed >= BUSY_WINDOW {
            let busy = self.busy();
            let share = busy.saturating_sub(load.busy).as_secs_f64() / elapsed.as_secs_f64();
            *load = Load { at: now, busy, share: load.share.next(share), moved: 0 };
        }
        load.share
    }

    /// A connection moves from or to this loop. With so many of them, what was seen before says nothing any more about who
    /// else should.
    fn moves_one(&self, at_most: usize) {
        let mut load = self.load.lock();
        load.moved += 1;
        if load.moved >= at_most {
            let share = Share { looks: 0, ..load.share };
            *load = Load { at: machine_now(), busy: self.busy(), share, moved: 0 };
        }
    }

    fn busy(&self) -> Duration {
        let looked = self.mailbox.idle_poll().looked();
        self.runtime.metrics().worker_total_busy_duration(0).saturating_sub(looked)
    }
}

/// All loops of a broker.
pub struct EventLoops {
    first: Arc<EventLoop>,
    /// Where connections are authenticated, if any have to be.
    door: Option<Arc<EventLoop>>,
    loops: RwLock<Loops>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Loops {
    all: Vec<Arc<EventLoop>>,
    /// So many of them take connections. The others serve those that they have, until these are gone.
    in_use: usize,
    stopped: bool,
}

impl EventLoops {
    /// Starts `count` loops (at least one), and the door beside them if connections have to be authenticated. `idle_poll`:
    /// for how long a loop looks for more before it sleeps, while there has been much of late.
    ///
    /// # Errors
    /// The system's, when a thread or an epoll instance cannot be made.
    pub fn start(count: usize, idle_poll: Duration, with_door: bool) -> io::Result<Arc<Self>> {
        let own = IdlePoll::default();
        own.set_window(idle_poll);
        let (first, thread) = start_loop("loop-0".to_owned(), 0, own)?;
        let mut threads = vec![thread];
        let mut door = None;
        if with_door {
            let (event_loop, thread) = start_loop("door".to_owned(), DOOR_NICENESS, IdlePoll::default())?;
            threads.push(thread);
            door = Some(event_loop);
        }
        let loops = Loops { all: vec![first.clone()], in_use: 1, stopped: false };
        let threads = Mutex::new(threads);
        let loops = Arc::new(EventLoops { first, door, loops: RwLock::new(loops), threads });
        loops.resize(count)?;
        Ok(loops)
    }

    /// From now on so many loops (at least one) take connections. A loop that is not wanted any more keeps its thread
    /// and gives its connections away as they go on working.
    ///
    /// # Errors
    /// As [`EventLoops::start`].
    pub fn resize(&self, count: usize) -> io::Result<()> {
        let mut loops = self.loops.write();
        let count = count.max(1);
        while loops.all.len() < count && !loops.stopped {
            let idle_poll = self.first.mailbox.idle_poll().sibling();
            let (event_loop, thread) = start_loop(format!("loop-{}", loops.all.len()), 0, idle_poll)?;
            loops.all.push(event_loop);
            self.threads.lock().push(thread);
        }
        loops.in_use = count.min(loops.all.len());
        Ok(())
    }

    /// From now on loops look for so long for more before they sleep.
    pub fn set_idle_poll(&self, window: Duration) {
        self.first.mailbox.idle_poll().set_window(window);
    }

    /// Has every loop end after what it is doing; what its tasks own is dropped.
    pub fn stop(&self) {
        let mut loops = self.loops.write();
        loops.stopped = true;
        for event_loop in loops.all.iter().chain(&self.door) {
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

    /// The loop for a new connection: the first that is not busy, or the least busy one.
    pub fn place(&self) -> Placement {
        let loops = self.loops.read();
        let mut least = (&self.first, f64::MAX);
        for event_loop in loops.in_use() {
            let busy = event_loop.share().busy;
            if busy < least.1 {
                least = (event_loop, busy);
            }
            if busy < BUSY_SHARE {
                break;
            }
        }
        Placement::new(least.0)
    }

    /// The loop for a new connection that has to be authenticated first.
    pub fn place_at_door(&self) -> Placement {
        self.door.as_ref().map_or_else(|| self.place(), Placement::new)
    }

    /// A loop to which a connection should move: that of a busy loop if there is a free one, that of a loop that is not
    /// wanted any more in any case. `reads`: it has asked for records last.
    pub fn relief(&self, from: &Placement, reads: bool) -> Option<Placement> {
        let loops = self.loops.read();
        if !loops.in_use().iter().any(|event_loop| Arc::ptr_eq(event_loop, &from.event_loop)) {
            drop(loops);
            return Some(self.place());
        }
        if loops.in_use < 2 || from.event_loop.connections() < 2 {
            return None;
        }
        let relief = if reads { READERS } else { OTHERS };
        let share = from.event_loop.share();
        let free = loops.in_use().iter().find(|other| relief.is_due(share, other.share()))?;
        let at_most = (from.event_loop.connections() / CONNECTIONS_PER_MOVE).max(1);
        from.event_loop.moves_one(at_most);
        free.moves_one(at_most);
        Some(Placement::new(free))
    }
}

impl Loops {
    fn in_use(&self) -> &[Arc<EventLoop>] {
        &self.all[..self.in_use]
    }
}

/// A connection's seat on a loop, counted while it lives.
pub struct Placement {
    event_loop: Arc<EventLoop>,
}

impl Placement {
    fn new(event_loop: &Arc<EventLoop>) -> Self {
        event_loop.connections.fetch_add(1, Ordering::Relaxed);
        Placement { event_loop: event_loop.clone() }
    }

    /// The loop that has the connection.
    pub fn event_loop(&self) -> &Arc<EventLoop> {
        &self.event_loop
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.event_loop.connections.fetch_sub(1, Ordering::Relaxed);
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
    let load =
        Mutex::new(Load { at: machine_now(), busy: Duration::ZERO, share: Share::default(), moved: 0 });
    let handle = runtime.handle().clone();
    let mailbox = Arc::new(Mailbox::new(idle_poll));
    let own = mailbox.clone();
    let event_loop =
        Arc::new(EventLoop { tasks, runtime: handle, connections: AtomicUsize::new(0), load, mailbox });
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        lower_priority(niceness);
        let _guard = AbortOnPanic("its connections would never be served again");
        own.enter();
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

    fn names(loops: &EventLoops) -> Vec<usize> {
        loops.loops.read().in_use().iter().map(|event_loop| event_loop.connections()).collect()
    }

    #[test]
    fn readers_leave_a_busy_loop_and_others_an_overloaded_one() {
        for (from, to, readers, others) in [
            (0.4, 0.0, false, false),
            (0.5, 0.0, true, false),
            (0.5, 0.3, false, false),
            (0.9, 0.0, true, true),
            (0.9, 0.45, true, true),
            (0.9, 0.62, true, false),
            (0.9, 0.7, false, false),
        ] {
            let share = |busy| Share { busy, looks: 4 };
            assert_eq!(READERS.is_due(share(from), share(to)), readers, "{from} to {to}");
            assert_eq!(OTHERS.is_due(share(from), share(to)), others, "{from} to {to}");
            let comes_back = READERS.is_due(share(to), share(from)) || OTHERS.is_due(share(to), share(from));
            assert!(!comes_back, "from {to} to {from}");
        }
    }

    #[test]
    fn after_a_move_there_is_a_look_before_the_next_and_writers_wait_for_readers() {
        let overloaded = |looks| (0..looks).fold(Share::default(), |share, _| share.next(0.9));
        let free = Share { busy: 0.1, looks: 1 };
        assert!(!READERS.is_due(overloaded(0), free), "nothing is known of it");
        assert!(!READERS.is_due(overloaded(1), Share { looks: 0, ..free }), "nothing is known of the other");
        assert!(READERS.is_due(overloaded(1), free));
        assert!(!OTHERS.is_due(overloaded(3), free), "readers come first");
        assert!(OTHERS.is_due(overloaded(4), free));
        let (rested, again) = (overloaded(9).next(0.8), overloaded(9).next(0.8).next(0.9));
        assert_eq!((rested.looks, again.looks), (1, 1), "the count begins anew with each change");
    }

    #[test]
    fn a_part_of_the_connections_moves_before_the_next_look() {
        for (connections, expected) in [(2, 1), (6, 1), (64, 4)] {
            let loops = EventLoops::start(2, Duration::ZERO, false).expect("threads can be made");
            for (event_loop, busy) in loops.loops.read().all.iter().zip([0.9, 0.1]) {
                let mut load = event_loop.load.lock();
                // No loop looks before that.
                load.at = Instant::now() + Duration::from_secs(3600);
                load.share = Share { busy, looks: 4 };
            }
            let placed: Vec<Placement> = (0..connections).map(|_| Placement::new(loops.first())).collect();
            let moved = placed.iter().filter_map(|placement| loops.relief(placement, false)).count();
            assert_eq!(moved, expected, "of {connections}");
            loops.stop();
            loops.join();
        }
    }

    #[test]
    fn loops_come_and_give_their_connections_away() {
        let loops = EventLoops::start(1, Duration::ZERO, false).expect("a thread can be made");
        let stays = loops.place();
        assert_eq!(names(&loops), [1]);
        loops.resize(3).expect("threads can be made");
        assert_eq!(names(&loops), [1, 0, 0]);
        assert!(loops.relief(&stays, true).is_none(), "its loop is not overloaded");
        let leaves = Placement::new(&loops.loops.read().all[2]);
        loops.resize(2).expect("nothing is made");
        assert_eq!(names(&loops), [1, 0]);
        let moved = loops.relief(&leaves, true).expect("its loop is not wanted any more");
        assert!(Arc::ptr_eq(moved.event_loop(), loops.first()), "to the first that is not busy");
        drop(leaves);
        assert_eq!(names(&loops), [2, 0]);
        // A loop that was given up is taken again before another is started.
        loops.resize(3).expect("nothing is made");
        assert_eq!(loops.threads.lock().len(), 3);
        loops.resize(0).expect("there is always one");
        assert_eq!(names(&loops), [2]);
        loops.stop();
        loops.resize(4).expect("nothing is made any more");
        loops.join();
        assert_eq!(loops.loops.read().all.len(), 3);
    }
}
