//! The clock of replicas: one thread that lets the time pass for all groups of this node.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mainstem_replication::TICK_MS;
use parking_lot::{Mutex, MutexGuard};

use crate::{GroupHandle, Links};
use mainstem_runtime::supervised;
use mainstem_runtime::sync::{Condvar, Thread};

/// Between two repeats of the heartbeats that stand: as between two heartbeats of a replica.
const REPEAT_TICKS: u64 = 3;

/// The thread, and the way to end it.
pub struct Ticker {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Thread,
}

impl Ticker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, when no thread can be made.
    pub fn start(links: Arc<Links>) -> io::Result<Ticker> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let own = stop.clone();
        let why = "no group would notice that its leader is gone";
        let thread = supervised::spawn_vital("ticker", why, move || run(&links, &own))?;
        Ok(Ticker { stop, thread })
    }

    /// Ends the thread.
    pub fn stop(self) {
        let (stopped, changed) = &*self.stop;
        *stopped.lock() = true;
        changed.notify_all();
        // A panic has ended the process already.
        let _ = self.thread.join();
    }
}

/// When the time of each replica is to pass next. Most looks find few: so much memory as these times take is all that they touch.
#[derive(Default)]
struct Schedule {
    of: Option<Arc<[Arc<GroupHandle>]>>,
    next_ms: Vec<u64>,
}

impl Schedule {
    /// Calls `tick` with each group whose time is to pass at `now_ms`. `has_earlier` says that one may have an earlier time than it
    /// had at the last call.
    fn pass(
        &mut self,
        groups: &Arc<[Arc<GroupHandle>]>,
        has_earlier: bool,
        now_ms: u64,
        tick: impl Fn(&GroupHandle),
    ) {
        if has_earlier || self.of.as_ref().is_none_or(|of| !Arc::ptr_eq(of, groups)) {
            self.next_ms.clear();
            self.next_ms.extend(groups.iter().map(|one| one.status.next_tick_ms()));
            self.of = Some(groups.clone());
        }
        for (one, next_ms) in groups.iter().zip(&mut self.next_ms) {
            if now_ms >= *next_ms {
                // It may have become later since.
                if now_ms >= one.status.next_tick_ms() {
                    tick(one);
                }
                *next_ms = one.status.next_tick_ms();
            }
        }
    }
}

/// The ticks of all groups of a node, and the work that every third one brings. Called every [`TICK_MS`].
#[derive(Default)]
pub struct Beat {
    passes: u64,
    schedule: Schedule,
}

impl Beat {
    /// Lets the time pass.
    pub fn pass(&mut self, links: &Links) {
        let now_ms = links.now_ms();
        let has_earlier = links.earlier_ticks.take();
        self.schedule.pass(&links.groups(), has_earlier, now_ms, |one| {
            if let Some(group) = one.group() {
                group.tick(now_ms);
            }
        });
        self.passes += 1;
        if self.passes.is_multiple_of(REPEAT_TICKS) {
            links.repeat(now_ms);
            links.end_overdue_calls(now_ms);
            links.say_setbacks(now_ms);
        }
    }
}

fn run(links: &Links, (stopped, changed): &(Mutex<bool>, Condvar)) {
    let tick = Duration::from_millis(TICK_MS);
    let clock = links.clock();
    let mut due = clock.instant() + tick;
    let mut stopped = stopped.lock();
    let mut beat = Beat::default();
    while !*stopped {
        if !clock.wait_until(changed, &mut stopped, due) {
            continue;
        }
        MutexGuard::unlocked(&mut stopped, || beat.pass(links));
        // Ticks that were missed are not made up for: replicas see by the clock how late it is.
        due = (due + tick).max(clock.instant());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::EarlierTicks;
    use crate::testing::handle;

    struct Node {
        earlier: Arc<EarlierTicks>,
        groups: Arc<[Arc<GroupHandle>]>,
        schedule: Schedule,
    }

    impl Node {
        fn new(next_ms: &[u64]) -> Node {
            let earlier = Arc::<EarlierTicks>::default();
            let group = |next_ms: &u64| {
                let group = handle(earlier.clone());
                group.status.set_next_tick_ms(*next_ms);
                group
            };
            let groups = next_ms.iter().map(group).collect();
            Node { earlier, groups, schedule: Schedule::default() }
        }

        /// Ticks of a pass, by the groups' numbers; each is due again 500 ms later.
        fn pass(&mut self, now_ms: u64) -> Vec<usize> {
            let ticked = RefCell::new(Vec::new());
            let earlier = self.earlier.take();
            self.schedule.pass(&self.groups, earlier, now_ms, |one| {
                one.status.set_next_tick_ms(now_ms + 500);
                let is_it = |group: &Arc<GroupHandle>| std::ptr::eq(&**group, one);
                ticked.borrow_mut().extend(self.groups.iter().position(is_it));
            });
            ticked.into_inner()
        }
    }

    #[test]
    fn each_has_its_tick_when_it_is_due() {
        let mut node = Node::new(&[100, 0, 150]);
        assert_eq!(node.pass(50), [1]);
        assert_eq!(node.pass(100), [0]);
        assert_eq!(node.pass(549), [2]);
        assert_eq!(node.pass(550), [1]);
        assert_eq!(node.pass(1_500), [0, 1, 2]);
    }

    #[test]
    fn one_that_has_something_to_do_sooner_is_seen_at_the_next_look() {
        let mut node = Node::new(&[0, 0, 0]);
        assert_eq!(node.pass(50), [0, 1, 2]);
        node.groups[2].status.set_next_tick_ms(100);
        assert_eq!(node.pass(100), [2]);
        node.groups[0].status.set_next_tick_ms(700);
        assert_eq!(node.pass(600), [1, 2], "one of which the time has become later waits for it");
        assert_eq!((node.pass(699), node.pass(700)), (vec![], vec![0]));
    }

    #[test]
    fn groups_that_come_and_go_are_looked_at() {
        let mut node = Node::new(&[0, 0]);
        assert_eq!(node.pass(50), [0, 1]);
        node.groups = [node.groups[1].clone(), handle(node.earlier.clone())].into();
        assert_eq!(node.pass(100), [1], "the new one");
        assert_eq!(node.pass(550), [0]);
    }
}
