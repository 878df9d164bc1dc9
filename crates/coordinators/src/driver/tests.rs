//! A coordinator that panics.

use std::net::Ipv4Addr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use mainstem_store::testing::store;
use mainstem_testkit::child::{self, End};

/// The place of a coordinator's mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// It takes a request.
    Step,
    /// Another change of it.
    Change,
    /// A look at it, which leaves nothing half done.
    Look,
    /// The driver takes its effects.
    Effects,
    /// Its append is made, without its lock.
    Write,
    /// It takes the outcome of the append.
    Appended,
    /// The rest of its effects is carried out, without its lock.
    Perform,
}

/// Those that leave something half done.
const MISTAKES: [Mistake; 6] =
    [Mistake::Step, Mistake::Change, Mistake::Effects, Mistake::Write, Mistake::Appended, Mistake::Perform];

/// A coordinator that appends a record and performs something for each request, before it replies.
struct Mistaken {
    mistake: Mistake,
    decided: Vec<Effect<Mistaken>>,
    /// Replies wait for the outcome of an append.
    waiting: Vec<Token>,
}

/// All has been decided, so that what comes next is done without the lock. One process has one mistake.
static IS_DECIDED: AtomicBool = AtomicBool::new(false);

impl Mistake {
    /// Panics if it is this one.
    fn happen(self, here: Mistake) {
        assert!(self != here, "a mistake of the test: {here:?}");
    }
}

impl Coordinator for Mistaken {
    type Request<'a> = ();
    type Reply = ();
    type Ticket = Mistake;
    type Other = Mistake;

    /// There is no such topic: each append is refused.
    const TOPIC: &'static str = "mistakes";

    fn step(&mut self, _now: Now, token: Token, _origin: &RequestOrigin<'_>, (): ()) {
        IS_DECIDED.store(false, Ordering::Release);
        let records = vec![CoordinatorRecord { key: vec![0], value: None }];
        let batch = BatchOptions::default();
        self.decided.push(Effect::Append { ticket: self.mistake, timestamp_ms: 0, batch, records });
        self.decided.push(Effect::Other(self.mistake));
        self.waiting.push(token);
        self.mistake.happen(Mistake::Step);
    }

    fn effects(&mut self) -> Vec<Effect<Self>> {
        self.mistake.happen(Mistake::Effects);
        std::mem::take(&mut self.decided)
    }

    fn next_deadline_ms(&self) -> Option<u64> {
        IS_DECIDED.store(true, Ordering::Release);
        None
    }

    fn tick(&mut self, _now: Now) {}

    fn appended(&mut self, _now: Now, ticket: Mistake, outcome: Result<(), ErrorCode>) {
        assert_eq!(outcome, Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
        ticket.happen(Mistake::Appended);
        self.decided.extend(self.waiting.drain(..).map(|token| Effect::Reply { token, reply: () }));
    }

    fn partition_of(ticket: Mistake) -> i32 {
        if IS_DECIDED.load(Ordering::Acquire) {
            ticket.happen(Mistake::Write);
        }
        0
    }

    fn partition_for(&self, _key: &str) -> i32 {
        self.mistake.happen(Mistake::Look);
        0
    }

    fn set_partition_count(&mut self, _count: i32) {}

    fn begin_load(&mut self, _partition: i32, _leader_epoch: LeaderEpoch) -> Self {
        Mistaken { mistake: self.mistake, decided: Vec::new(), waiting: Vec::new() }
    }

    fn load(&mut self, _now: Now, _partition: i32, _entry: LogEntry<'_>) -> u64 {
        0
    }

    fn finish_load(&mut self, _now: Now, _partition: i32, _loader: Self) {}

    fn take_wanted(&mut self) -> Option<i32> {
        None
    }

    fn unload(&mut self, _now: Now, _partition: i32) {
        self.mistake.happen(Mistake::Change);
    }

    fn check(&self) {}
}

#[test]
fn a_panic_in_a_coordinator_ends_the_process() {
    const THIS: &str = "driver::tests::a_panic_in_a_coordinator_ends_the_process";
    match child::part() {
        Some(part) => return make(&part),
        None => assert_eq!(child::run(THIS, "None"), End::Returned, "without a mistake it returns"),
    }
    assert_eq!(child::run(THIS, "Look"), End::Returned);
    for mistake in MISTAKES {
        assert_eq!(child::run(THIS, &format!("{mistake:?}")), End::Aborted, "{mistake:?}");
    }
}

/// Uses a coordinator with a mistake. Panics are caught as those of connections are.
fn make(mistake: &str) {
    let mistakes = MISTAKES.into_iter().chain([Mistake::None, Mistake::Look]);
    let mistake =
        mistakes.into_iter().find(|one| format!("{one:?}") == mistake).expect("there is such a one");
    let home = tempfile::tempdir().expect("a directory");
    let machine = Mistaken { mistake, decided: Vec::new(), waiting: Vec::new() };
    let driver = Driver::new(machine, &store(home.path()), &loads());
    driver.set_perform(Box::new(|other: Mistake| other.happen(Mistake::Perform)));
    let origin = RequestOrigin { version: 0, client_id: "", address: Ipv4Addr::LOCALHOST.into() };
    let looked = catch_unwind(AssertUnwindSafe(|| driver.partition_for("a key")));
    assert_eq!(looked.is_err(), mistake == Mistake::Look);
    let used = catch_unwind(AssertUnwindSafe(|| {
        driver.change(|machine, now| machine.unload(now, 0));
        matches!(driver.ask(&origin, ()), Asked::Now(()))
    }));
    let is_sound = matches!(mistake, Mistake::None | Mistake::Look);
    assert!(used.unwrap_or(!is_sound), "what has no mistake is answered");
}
