//! Threads that take turns: at most one of them runs, and a seed decides which. Their clocks only move when they are advanced.
//!
//! Production code that blocks waits by [`crate::sync`], and starts threads by [`crate::supervised`]. On a thread of a schedule such a
//! wait gives the turn back to the owner of the schedule, a simulation, which picks the next thread: so one seed is one schedule, and
//! what it runs is the code of the broker.
//!
//! A thread deadlocks if it waits for a plain lock whose holder waits for its turn. The owner notices that after a while, and reports
//! the thread.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::clock::Clock;

/// Time of the machine after which a thread that has the turn is taken to be stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// Turns that may be taken without time that passes: more of them are a loop that never waits.
const TURNS_MAX: usize = 200_000;

/// The threads of several nodes.
#[derive(Clone, Default)]
pub struct Schedule(Arc<Shared>);

/// A node's threads: they live and die together, and have one clock.
#[derive(Clone)]
pub struct Group {
    shared: Arc<Shared>,
    number: u64,
    clock: Clock,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// The owner waits here for the turn to come back.
    returned: Condvar,
}

#[derive(Default)]
struct State {
    /// The thread that has the turn; `None`: the owner has it.
    turn: Option<u64>,
    threads: BTreeMap<u64, Thread>,
    last_thread: u64,
    last_group: u64,
    /// The state of each group's random numbers.
    random: BTreeMap<u64, u64>,
    /// Groups that have ended their process, and the reasons.
    ended: BTreeMap<u64, String>,
    /// The panic of a thread, for the owner.
    panic: Option<(String, Box<dyn Any + Send>)>,
}

struct Thread {
    name: String,
    group: Group,
    /// It waits here for its turn.
    baton: Arc<Condvar>,
    does: Does,
    /// The number of its last wait.
    wait: u64,
    has_timed_out: bool,
    is_killed: bool,
    /// It has no turn before this instant of its clock ([`Schedule::stall`]).
    stalled_until: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// It continues with its next turn.
    Ready,
    /// It waits for a notification, or until an instant of its clock.
    Wait { until: Option<Instant> },
}

/// The unwinding of a thread whose node was killed.
struct Killed;

thread_local! {
    /// The thread of a schedule that this is.
    static THREAD: RefCell<Option<Turn>> = const { RefCell::new(None) };
    /// This thread owns a schedule.
    static IS_OWNER: Cell<bool> = const { Cell::new(false) };
    /// The group for which the owner of a schedule acts on this thread.
    static ACTS_FOR: RefCell<Option<Group>> = const { RefCell::new(None) };
}

/// A thread of a schedule, as it sees itself.
#[derive(Clone)]
pub(crate) struct Turn {
    group: Group,
    id: u64,
}

/// One wait of one thread.
pub(crate) struct Waiter {
    shared: Arc<Shared>,
    id: u64,
    wait: u64,
}

impl Schedule {
    /// A schedule without threads.
    pub fn new() -> Schedule {
        Schedule::default()
    }

    /// A group without threads, whose random numbers follow from a seed.
    pub fn group(&self, clock: &Clock, seed: u64) -> Group {
        IS_OWNER.set(true);
        let mut state = self.0.state.lock();
        state.last_group += 1;
        let number = state.last_group;
        state.random.insert(number, seed);
        Group { shared: self.0.clone(), number, clock: clock.clone() }
    }

    /// Lets threads run that have something to do, one after another, until each waits, or `pick` ends it: it is given how many can
    /// run, and returns which one does.
    ///
    /// # Panics
    /// When a thread panics, waits for a lock of one that has no turn, or never waits.
    pub fn run(&self, mut pick: impl FnMut(usize) -> Option<usize>) {
        self.end_waits_that_are_due();
        for _ in 0..TURNS_MAX {
            let ready = self.ready();
            if ready.is_empty() {
                return;
            }
            let Some(next) = pick(ready.len()) else { return };
            self.0.give_turn(ready[next]);
        }
        panic!("threads that never wait: {:?}", self.names());
    }

    fn ready(&self) -> Vec<u64> {
        let state = self.0.state.lock();
        let has_turns = |thread: &Thread| {
            let is_stalled = thread.stalled_until.is_some_and(|until| until > thread.group.clock.instant());
            !is_stalled && !state.ended.contains_key(&thread.group.number)
        };
        let ready =
            state.threads.iter().filter(|(_, thread)| thread.does == Does::Ready && has_turns(thread));
        ready.map(|(id, _)| *id).collect()
    }

    fn end_waits_that_are_due(&self) {
        let mut state = self.0.state.lock();
        for thread in state.threads.values_mut() {
            if let Does::Wait { until: Some(until) } = thread.does
                && until <= thread.group.clock.instant()
            {
                (thread.does, thread.has_timed_out) = (Does::Ready, true);
            }
        }
    }

    /// Gives a thread no turn for some time of its clock, as a machine does whose processors are busy. `pick` chooses among all threads, of
    /// which it gets the numbers of their groups and their names, if there are some. Returns true if it has chosen one.
    pub fn stall(&self, time: Duration, pick: impl FnOnce(&[(u64, &str)]) -> Option<usize>) -> bool {
        let mut state = self.0.state.lock();
        let threads: Vec<_> =
            state.threads.values().map(|thread| (thread.group.number, thread.name.as_str())).collect();
        let picked = if threads.is_empty() { None } else { pick(&threads) };
        let Some(thread) = picked.and_then(|picked| state.threads.values_mut().nth(picked)) else {
            return false;
        };
        thread.stalled_until = Some(thread.group.clock.instant() + time);
        true
    }

    /// Gives all threads turns again.
    pub fn end_stalls(&self) {
        self.0.state.lock().threads.values_mut().for_each(|thread| thread.stalled_until = None);
    }

    /// The names of the threads that there are, and those that can run.
    pub fn names(&self) -> Vec<(String, bool)> {
        let state = self.0.state.lock();
        state.threads.values().map(|thread| (thread.name.clone(), thread.does == Does::Ready)).collect()
    }
}

impl Group {
    /// Starts a thread, which has its first turn later.
    ///
    /// # Errors
    /// The system's, when no thread can be made.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Handle<T>> {
        let mut state = self.shared.state.lock();
        state.last_thread += 1;
        let id = state.last_thread;
        let thread = Thread {
            name: name.to_owned(),
            group: self.clone(),
            baton: Arc::default(),
            does: Does::Ready,
            wait: 0,
            has_timed_out: false,
            is_killed: false,
            stalled_until: None,
        };
        state.threads.insert(id, thread);
        drop(state);
        let ended = Arc::new(Ended { value: Mutex::default(), waiters: Mutex::default() });
        let (turn, of_thread) = (Turn { group: self.clone(), id }, ended.clone());
        let body = move || {
            THREAD.with_borrow_mut(|thread| *thread = Some(turn.clone()));
            let value = catch_unwind(AssertUnwindSafe(|| {
                turn.begin();
                run()
            }));
            THREAD.with_borrow_mut(|thread| *thread = None);
            of_thread.end(value.as_ref().is_ok().then_some(()));
            let panic = match value {
                Ok(value) => {
                    *of_thread.value.lock() = Some(Some(value));
                    None
                }
                Err(panic) => (!panic.is::<Killed>()).then_some(panic),
            };
            of_thread.wake_all();
            turn.end(panic);
        };
        std::thread::Builder::new().name(name.into()).spawn(body)?;
        Ok(Handle { ended })
    }

    /// Ends all threads of the group where they are, as the end of their process does. What they hold is dropped.
    ///
    /// # Panics
    /// When one of them does not end.
    pub fn kill(&self) {
        loop {
            let mut state = self.shared.state.lock();
            let of_group = state.threads.iter_mut().find(|(_, thread)| thread.group.number == self.number);
            let Some((id, thread)) = of_group else { return };
            (thread.is_killed, thread.does) = (true, Does::Ready);
            let id = *id;
            drop(state);
            self.shared.give_turn(id);
        }
    }

    /// Has the owner of the schedule act for the group: threads that it starts are of the group, and its random numbers are the
    /// group's.
    pub fn act<T>(&self, act: impl FnOnce() -> T) -> T {
        let before = ACTS_FOR.with_borrow_mut(|group| group.replace(self.clone()));
        let value = act();
        ACTS_FOR.with_borrow_mut(|group| *group = before);
        value
    }

    /// The reason why the group's process has ended itself, if it has. Its threads have no turn until they are killed.
    pub fn ended(&self) -> Option<String> {
        self.shared.state.lock().ended.get(&self.number).cloned()
    }

    /// Its number in the schedule.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns true if the group has threads.
    pub fn has_threads(&self) -> bool {
        let state = self.shared.state.lock();
        state.threads.values().any(|thread| thread.group.number == self.number)
    }

    /// The next random number of the group (SplitMix64).
    pub(crate) fn draw(&self) -> u64 {
        let mut state = self.shared.state.lock();
        let seed = state.random.get_mut(&self.number).expect("a group has its seed");
        *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Shared {
    /// Gives a thread its turn, and waits until it gives it back.
    fn give_turn(&self, id: u64) {
        let mut state = self.state.lock();
        assert_eq!(state.turn, None, "a schedule has one owner");
        let Some(thread) = state.threads.get(&id) else { return };
        let baton = thread.baton.clone();
        state.turn = Some(id);
        baton.notify_one();
        while state.turn.is_some() {
            if self.returned.wait_for(&mut state, STUCK_AFTER).timed_out() && state.turn.is_some() {
                let name = state.threads.get(&id).map(|thread| thread.name.clone());
                panic!(
                    "{name:?} is stuck: it waits for a lock whose holder waits for its turn, or for a thread of another kind"
                );
            }
        }
        if let Some((name, panic)) = state.panic.take() {
            drop(state);
            eprintln!("the thread {name} of the schedule has panicked");
            resume_unwind(panic);
        }
    }
}

impl Turn {
    fn begin(&self) {
        let state = self.group.shared.state.lock();
        self.await_turn(state);
    }

    /// Waits for the turn.
    fn await_turn(&self, mut state: MutexGuard<'_, State>) -> bool {
        let baton = self.entry(&mut state).baton.clone();
        while state.turn != Some(self.id) {
            baton.wait(&mut state);
        }
        let thread = self.entry(&mut state);
        let (is_killed, has_timed_out) = (thread.is_killed, thread.has_timed_out);
        drop(state);
        if is_killed {
            self.die();
        }
        has_timed_out
    }

    fn entry<'s>(&self, state: &'s mut MutexGuard<'_, State>) -> &'s mut Thread {
        state.threads.get_mut(&self.id).expect("a thread that runs is known")
    }

    /// Unwinds, unless that is under way.
    fn die(&self) {
        if !std::thread::panicking() {
            resume_unwind(Box::new(Killed));
        }
    }

    /// Waits for a notification to the waiter that `register` puts where it is found, or until an instant. Returns true if that has
    /// come first.
    pub(crate) fn wait(&self, until: Option<Instant>, register: impl FnOnce(Waiter)) -> bool {
        let shared = &self.group.shared;
        let mut state = shared.state.lock();
        let thread = self.entry(&mut state);
        if thread.is_killed {
            drop(state);
            self.die();
            return true;
        }
        thread.wait += 1;
        (thread.does, thread.has_timed_out) = (Does::Wait { until }, false);
        let waiter = Waiter { shared: shared.clone(), id: self.id, wait: thread.wait };
        drop(state);
        // No other thread runs until the turn is given back.
        register(waiter);
        let mut state = shared.state.lock();
        state.turn = None;
        shared.returned.notify_one();
        self.await_turn(state)
    }

    /// The thread is over.
    fn end(&self, panic: Option<Box<dyn Any + Send>>) {
        let shared = &self.group.shared;
        let mut state = shared.state.lock();
        let thread = state.threads.remove(&self.id).expect("a thread that runs is known");
        state.panic = panic.map(|panic| (thread.name, panic));
        state.turn = None;
        shared.returned.notify_one();
    }

    /// The clock of its node.
    pub(crate) fn clock(&self) -> &Clock {
        &self.group.clock
    }

    /// Returns true if its node was killed, so that it unwinds.
    fn is_killed(&self) -> bool {
        let state = self.group.shared.state.lock();
        state.threads.get(&self.id).is_some_and(|thread| thread.is_killed)
    }
}

impl Waiter {
    /// Has the thread go on, if it is still at this wait. Returns true if it was.
    pub(crate) fn wake(&self) -> bool {
        let mut state = self.shared.state.lock();
        let Some(thread) = state.threads.get_mut(&self.id) else { return false };
        let waits = thread.wait == self.wait && matches!(thread.does, Does::Wait { .. });
        if waits {
            thread.does = Does::Ready;
        }
        waits
    }
}

/// The end of a thread of a schedule.
pub struct Handle<T> {
    ended: Arc<Ended<T>>,
}

struct Ended<T> {
    /// `None`: the thread runs; within, its value, where it has not unwound.
    value: Mutex<Option<Option<T>>>,
    waiters: Mutex<Vec<Waiter>>,
}

impl<T> Ended<T> {
    fn end(&self, _: Option<()>) {
        self.value.lock().get_or_insert(None);
    }

    fn wake_all(&self) {
        self.waiters.lock().drain(..).for_each(|waiter| _ = waiter.wake());
    }
}

impl<T> Handle<T> {
    /// Returns true if the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.ended.value.lock().is_some()
    }

    /// Waits for the end of the thread. `None`: it has unwound.
    ///
    /// # Panics
    /// On a thread that is none of a schedule, where the thread has not ended.
    pub fn join(self) -> Option<T> {
        while !self.is_finished() {
            let turn = current().expect("the owner of a schedule waits for no thread");
            turn.wait(None, |waiter| self.ended.waiters.lock().push(waiter));
            if turn.is_killed() {
                return None;
            }
        }
        self.ended.value.lock().take().flatten()
    }
}

/// The thread of a schedule that this is, if it is one.
pub(crate) fn current() -> Option<Turn> {
    THREAD.with_borrow(Clone::clone)
}

/// The group of this thread, or for which the owner of a schedule acts on it.
pub(crate) fn group() -> Option<Group> {
    let of_thread = THREAD.with_borrow(|turn| turn.as_ref().map(|turn| turn.group.clone()));
    of_thread.or_else(|| ACTS_FOR.with_borrow(Clone::clone))
}

/// Ends the process of this thread's node: its other threads have no turn any more. Returns on a thread that is none of a schedule.
pub(crate) fn end_process(why: &str) {
    let Some(turn) = current() else { return };
    let mut state = turn.group.shared.state.lock();
    state.ended.entry(turn.group.number).or_insert_with(|| why.to_owned());
    turn.entry(&mut state).is_killed = true;
    drop(state);
    turn.die();
}

/// Returns true on a thread that owns a schedule.
pub(crate) fn is_owner() -> bool {
    IS_OWNER.get()
}

#[cfg(test)]
mod tests;
