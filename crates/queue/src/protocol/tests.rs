//! The protocol in all orders of its threads, and with all effects that the memory model allows (loom).

#![allow(unsafe_code, reason = "loom looks at each access to a cell")]
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;

/// A 32-bit word with the kernel's queue of sleepers.
#[derive(Default)]
struct Futex {
    word: AtomicU32,
    queue: Mutex<()>,
    woken: Condvar,
}

impl Word<u32> for Futex {
    fn load(&self, order: Ordering) -> u32 {
        self.word.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.word.store(value, order);
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.word.swap(value, order)
    }

    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.word.fetch_add(value, order)
    }

    fn fetch_or(&self, value: u32, order: Ordering) -> u32 {
        self.word.fetch_or(value, order)
    }

    fn exchange(&self, from: u32, to: u32, success: Ordering) -> bool {
        self.word.compare_exchange(from, to, success, Relaxed).is_ok()
    }
}

words!(AtomicU64: u64, AtomicI64: i64);

loom::lazy_static! {
    static ref APPENDER: Registered = Registered::default();
}

/// A thread that appends without fences, and the fences that the kernel runs on it for others ([`Memory::fence_appenders`]). They run
/// where the thread looks for them ([`Memory::keep_order`]). The mutex makes that equal to any other order with the thread's accesses.
#[derive(Default)]
struct Registered {
    state: Mutex<Fences>,
    changed: Condvar,
}

#[derive(Default)]
struct Fences {
    is_running: bool,
    asked: u32,
    done: u32,
}

impl Registered {
    fn begin(&self) {
        self.state.lock().unwrap().is_running = true;
    }

    fn end(&self) {
        self.state.lock().unwrap().is_running = false;
        self.changed.notify_all();
    }

    fn interrupt(&self) {
        let mut state = self.state.lock().unwrap();
        if state.is_running && state.done < state.asked {
            fence(SeqCst);
            state.done = state.asked;
            self.changed.notify_all();
        }
    }

    fn fence(&self) {
        fence(SeqCst);
        let mut state = self.state.lock().unwrap();
        state.asked += 1;
        let mine = state.asked;
        while state.is_running && state.done < mine {
            state = self.changed.wait(state).unwrap();
        }
        drop(state);
        fence(SeqCst);
    }
}

/// The model. If no time passes, a lost wake-up is a deadlock. If time passes, every sleep may end at once.
enum Model<const TIME_PASSES: bool> {}

impl<const TIME_PASSES: bool> Memory for Model<TIME_PASSES> {
    type U32 = Futex;
    type U64 = AtomicU64;
    type I64 = AtomicI64;
    const SPINS: usize = 1;

    fn fence() {
        fence(SeqCst);
    }

    fn store_and_fence(word: &AtomicI64, value: i64) {
        // Loom has no total order of accesses, only of fences.
        word.store(value, Release);
        fence(SeqCst);
    }

    fn keep_order() {
        APPENDER.interrupt();
    }

    fn register_appender() -> bool {
        APPENDER.begin();
        true
    }

    fn fence_appenders() -> bool {
        APPENDER.fence();
        true
    }

    fn spin() {}

    fn wait(word: &Futex, seen: u32, timeout: Option<Duration>) -> bool {
        if TIME_PASSES && timeout.is_some() {
            thread::yield_now();
            return false;
        }
        // The kernel looks and sleeps in one step, as far as wakers can tell.
        let queue = word.queue.lock().unwrap();
        if word.word.load(Acquire) == seen {
            drop(word.woken.wait(queue).unwrap());
        }
        true
    }

    fn wake(word: &Futex, count: u32) {
        let _queue = word.queue.lock().unwrap();
        match count {
            1 => word.woken.notify_one(),
            _ => word.woken.notify_all(),
        }
    }
}

type Timeless = Model<false>;
type Timed = Model<true>;

/// Tries all orders with at most so many preemptions; `LOOM_MAX_PREEMPTIONS` sets more.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(run);
}

#[derive(Default)]
struct Words {
    end: AtomicU64,
    next: AtomicI64,
    bases: [AtomicI64; 2],
    sleepers: Futex,
    readers: Futex,
    broker: Futex,
    lock: Futex,
    fences_wanted: Futex,
}

impl Words {
    fn bases(&self) -> [&AtomicI64; 2] {
        [&self.bases[0], &self.bases[1]]
    }

    fn publish(&self, bytes: u32, next_offset: i64) {
        publish::<Timeless>(&self.end, &self.next, End { roll: 0, bytes }, next_offset);
        wake::<Timeless>(&self.sleepers, &self.readers, &self.broker);
    }

    /// The same for a registered appender. The kernel may interrupt it before, within and after it.
    fn publish_unfenced(&self, bytes: u32, next_offset: i64) {
        Timeless::keep_order();
        publish_unfenced::<Timeless>(&self.end, &self.next, End { roll: 0, bytes }, next_offset);
        wake::<Timeless>(&self.sleepers, &self.readers, &self.broker);
    }

    /// Sleeps until the next offset is at least this, whether appenders have fences or not.
    fn sleep_in_order_until(&self, offset: i64) {
        while self.next.load(Acquire) < offset {
            let seen = announce_sleep::<Timeless>(&self.sleepers, &self.readers);
            assert!(order_sleep::<Timeless>(&self.fences_wanted));
            if self.next.load(Acquire) < offset {
                Timeless::wait(&self.readers, seen, None);
            }
        }
    }

    /// Sleeps until the next offset is at least this.
    fn sleep_until(&self, offset: i64) {
        while self.next.load(Acquire) < offset {
            let seen = announce_sleep::<Timeless>(&self.sleepers, &self.readers);
            if self.next.load(Acquire) < offset {
                Timeless::wait(&self.readers, seen, None);
            }
        }
    }
}

#[test]
fn what_is_published_was_written_before() {
    model(3, || {
        let shared = Arc::new((Words::default(), [(); 2].map(|()| UnsafeCell::new(0))));
        let writing = Arc::clone(&shared);
        let writer = thread::spawn(move || {
            let (words, bytes) = &*writing;
            for (at, byte) in bytes.iter().enumerate() {
                byte.with_mut(|byte| {
                    // SAFETY: loom fails the test if any thread has it at the same time.
                    unsafe { *byte = at as u32 + 7 }
                });
                words.publish(at as u32 + 1, at as i64 + 1);
            }
        });
        let (words, bytes) = &*shared;
        // The next offset is never ahead of the bytes.
        let next = words.next.load(Acquire);
        let end = End::unpack(words.end.load(Acquire));
        assert!(i64::from(end.bytes) >= next);
        for (at, byte) in bytes.iter().enumerate().take(end.bytes as usize) {
            // SAFETY: as above.
            byte.with(|byte| assert_eq!(unsafe { *byte }, at as u32 + 7));
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_base_belongs_to_the_segment_whose_end_was_read() {
    model(3, || {
        let words = Arc::new(Words::default());
        let rolling = Arc::clone(&words);
        let writer = thread::spawn(move || {
            for roll in 1..=3 {
                publish_segment::<Timeless>(
                    &rolling.end,
                    &rolling.next,
                    rolling.bases(),
                    roll,
                    10 * i64::from(roll),
                );
            }
        });
        let (base, end) = open_segment::<Timeless>(&words.end, words.bases());
        assert_eq!(base, 10 * i64::from(end.roll));
        writer.join().unwrap();
    });
}

#[test]
fn a_reader_that_sleeps_is_woken() {
    model(3, || {
        let words = Arc::new(Words::default());
        let reading = Arc::clone(&words);
        let reader = thread::spawn(move || (1..=2).for_each(|offset| reading.sleep_until(offset)));
        words.publish(1, 1);
        words.publish(2, 2);
        reader.join().unwrap();
    });
}

#[test]
fn a_reader_that_sleeps_is_woken_by_one_who_publishes_without_a_fence() {
    model(3, || {
        let words = Arc::new(Words::default());
        assert!(Timeless::register_appender());
        let reading = Arc::clone(&words);
        let reader = thread::spawn(move || (1..=2).for_each(|offset| reading.sleep_in_order_until(offset)));
        words.publish_unfenced(1, 1);
        words.publish_unfenced(2, 2);
        APPENDER.end();
        reader.join().unwrap();
    });
}

#[test]
fn readers_of_appenders_with_and_without_fences_are_all_woken() {
    model(2, || {
        let words = Arc::new(Words::default());
        assert!(Timeless::register_appender());
        let sleeping = [0, 1].map(|_| Arc::clone(&words));
        let readers = sleeping.map(|words| thread::spawn(move || words.sleep_in_order_until(2)));
        words.publish_unfenced(1, 1);
        words.publish(2, 2);
        APPENDER.end();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn readers_and_a_broker_that_sleep_are_all_woken() {
    model(2, || {
        let words = Arc::new(Words::default());
        let sleeping = [0, 1].map(|_| Arc::clone(&words));
        let readers = sleeping.map(|words| thread::spawn(move || words.sleep_until(1)));
        let serving = Arc::clone(&words);
        let broker = thread::spawn(move || {
            let seen = serving.broker.load(Acquire);
            serving.sleepers.fetch_or(sleeper::BROKER, SeqCst);
            fence(SeqCst);
            if serving.next.load(Acquire) < 1 {
                Timeless::wait(&serving.broker, seen, None);
            }
            assert_eq!(serving.next.load(Acquire), 1);
        });
        words.publish(1, 1);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        broker.join().unwrap();
    });
}

/// Adds one to the counter that the lock protects.
fn add_one(count: &UnsafeCell<u32>) {
    count.with_mut(|count| {
        // SAFETY: loom fails the test if any other thread has it at the same time.
        unsafe { *count += 1 }
    });
}

#[test]
fn the_lock_has_one_holder_and_all_who_wait_for_it_get_it() {
    model(2, || {
        let shared = Arc::new((Words::default(), UnsafeCell::new(0)));
        let run = |shared: &(Words, UnsafeCell<u32>), mine: u32| {
            let (words, count) = shared;
            if !try_acquire::<Timeless>(&words.lock, mine) {
                let none_dies = |_| -> Result<bool, ()> { unreachable!("no time passes") };
                let had = wait_for_lock::<Timeless, ()>(&words.lock, mine, Duration::ZERO, none_dies);
                assert_eq!(had, Ok(Acquired::InOrder));
            }
            add_one(count);
            release::<Timeless>(&words.lock);
        };
        let threads = [1, 2].map(|mine| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || run(&shared, mine))
        });
        run(&shared, 3);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // SAFETY: as above.
        shared.1.with(|count| assert_eq!(unsafe { *count }, 3));
        assert_eq!(shared.0.lock.load(Relaxed), 0);
    });
}

#[test]
fn one_of_those_who_wait_takes_the_lock_from_the_dead_and_knows_it() {
    model(2, || {
        let shared = Arc::new((Words::default(), UnsafeCell::new(0), AtomicBool::new(false)));
        let dying = Arc::clone(&shared);
        // It dies with the lock.
        let holder = thread::spawn(move || {
            let (words, count, is_dead) = &*dying;
            let has_it = try_acquire::<Timed>(&words.lock, 1);
            if has_it {
                add_one(count);
                is_dead.store(true, SeqCst);
            }
            has_it
        });
        let run = |shared: &(Words, UnsafeCell<u32>, AtomicBool), mine: u32| {
            let (words, count, is_dead) = shared;
            let mut had = Acquired::InOrder;
            if !try_acquire::<Timed>(&words.lock, mine) {
                let is_dead = |word| Ok::<bool, ()>(word & !CONTENDED == 1 && is_dead.load(SeqCst));
                had = wait_for_lock::<Timed, ()>(&words.lock, mine, Duration::ZERO, is_dead).unwrap();
            }
            add_one(count);
            release::<Timed>(&words.lock);
            had == Acquired::FromDeadHolder
        };
        let waiting = Arc::clone(&shared);
        let waiter = thread::spawn(move || run(&waiting, 2));
        let took = [run(&shared, 3), waiter.join().unwrap()];
        if holder.join().unwrap() && shared.0.lock.load(Relaxed) == 0 {
            // A thread that had it last still has it.
            assert_eq!(took.iter().filter(|took| **took).count(), 1);
        } else {
            assert_eq!(took, [false, false]);
        }
    });
}
