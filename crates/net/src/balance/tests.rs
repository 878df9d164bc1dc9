use mainstem_testkit::{Random, cases, seed};

use super::*;

const COUNTS: [usize; 4] = [1, 2, 8, 64];

/// Loops whose shares of busy time are known, so that no look is due.
struct Seen {
    balance: Balance,
    now: Instant,
}

impl Seen {
    fn new(shares: &[f64]) -> Seen {
        let now = Instant::now();
        let mut balance = loops(shares.len(), now);
        for (load, busy) in balance.loops.iter_mut().zip(shares) {
            load.share = Share { busy: *busy, looks: OTHERS.looks };
        }
        Seen { balance, now }
    }

    /// Puts this many connections on a loop.
    fn with(mut self, number: usize, connections: usize) -> Seen {
        self.balance.loops[number].connections = connections;
        self
    }

    fn place(&mut self) -> usize {
        self.balance.place(self.now, |_| Duration::ZERO)
    }

    fn relieve(&mut self, from: usize, reads: bool) -> Option<usize> {
        self.balance.relieve(from, reads, self.now, |_| Duration::ZERO)
    }
}

/// A rule for this number of loops, all of them in use.
fn loops(count: usize, now: Instant) -> Balance {
    let mut balance = Balance::new(now);
    (1..count).for_each(|_| balance.add(now));
    balance.set_in_use(count);
    balance
}

/// Gives the same share to the loops from the first to the last but one, and another share to the last.
fn all_but_last(count: usize, share: f64, last: f64) -> Vec<f64> {
    let mut shares = vec![share; count];
    shares[count - 1] = last;
    shares
}

#[test]
fn a_new_connection_is_placed_on_the_first_free_loop_or_on_the_least_busy() {
    for (shares, expected) in [
        (vec![0.0], 0),
        (vec![1.0], 0),
        (vec![0.39, 0.0], 0),
        (vec![0.4, 0.0], 1),
        (vec![0.4, 0.5], 0),
        (vec![0.9, 0.9], 0),
        (vec![0.9, 0.5, 0.39, 0.0], 2),
        (vec![0.9, 0.6, 0.5, 0.7], 2),
    ] {
        assert_eq!(Seen::new(&shares).place(), expected, "{shares:?}");
    }
    for count in COUNTS {
        let last = count - 1;
        for (share, of_last, expected) in [(0.0, 0.0, 0), (0.4, 0.39, last), (0.9, 0.8, last), (0.9, 0.9, 0)]
        {
            let shares = all_but_last(count, share, of_last);
            assert_eq!(Seen::new(&shares).place(), expected, "{count} loops: {share} and {of_last}");
        }
    }
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
        for count in COUNTS.into_iter().filter(|count| *count > 1) {
            // The busy one is the last, and the other the last but one.
            let mut shares = all_but_last(count, from, from);
            shares[count - 2] = to;
            for (reads, leaves) in [(true, readers), (false, others)] {
                let mut seen = Seen::new(&shares).with(count - 1, 2);
                let expected = leaves.then_some(count - 2);
                assert_eq!(seen.relieve(count - 1, reads), expected, "{count} loops: {from} to {to}");
            }
        }
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
    assert_eq!((rested.looks, again.looks), (1, 1), "the count begins again with each change");
}

#[test]
fn a_loop_is_looked_at_once_in_an_interval() {
    let start = Instant::now();
    let mut load = Load::new(start);
    let early = start + LOOK_INTERVAL - Duration::from_nanos(1);
    assert_eq!(load.look(early, || unreachable!("it is too early")), Share::default());
    let share = load.look(start + LOOK_INTERVAL, || LOOK_INTERVAL / 2);
    assert_eq!(share, Share { busy: 0.5, looks: 1 });
    let late = start + 3 * LOOK_INTERVAL;
    let share = load.look(late, || LOOK_INTERVAL);
    assert_eq!(share, Share { busy: 0.25, looks: 2 }, "since the look before, however long ago that is");
}

#[test]
fn a_part_of_the_connections_moves_before_the_next_look() {
    for count in [2, 8, 64] {
        for (connections, expected) in [(2, 1), (6, 1), (16, 1), (32, 2), (64, 3), (1_024, 60)] {
            let mut seen = Seen::new(&all_but_last(count, 0.9, 0.1)).with(0, connections);
            let moved = (0..connections).filter_map(|_| seen.relieve(0, false)).collect::<Vec<_>>();
            assert_eq!(moved, vec![count - 1; expected], "{count} loops, {connections} connections");
        }
    }
}

#[test]
fn a_loop_takes_no_more_from_all_others_than_from_one() {
    for count in [3, 8, 64] {
        let mut seen = Seen::new(&all_but_last(count, 0.9, 0.1));
        for number in 0..count - 1 {
            seen = seen.with(number, CONNECTIONS_PER_MOVE);
        }
        let moved = (0..count - 1).filter_map(|from| seen.relieve(from, false)).collect::<Vec<_>>();
        assert_eq!(moved, [count - 1]);
    }
}

#[test]
fn a_look_begins_the_count_of_moves_again() {
    let mut seen = Seen::new(&[0.9, 0.1]).with(0, 64);
    assert_eq!([seen.relieve(0, false), seen.relieve(0, false)], [Some(1); 2], "a third would be the last");
    let later = seen.now + LOOK_INTERVAL;
    let busy = |number: usize| LOOK_INTERVAL.mul_f64([0.9, 0.1][number]);
    let moved = (0..64).filter_map(|_| seen.balance.relieve(0, false, later, busy)).collect::<Vec<_>>();
    assert_eq!(moved, [1; 3]);
}

#[test]
fn a_connection_of_a_loop_out_of_use_moves_whatever_the_others_do() {
    for count in COUNTS {
        let mut seen = Seen::new(&vec![0.9; count + 1]).with(count, 1);
        seen.balance.set_in_use(count);
        assert_eq!(seen.relieve(count, false), Some(0), "though it is the last one");
        assert_eq!(seen.balance.loops[count].connections, 0);
        assert_eq!(seen.balance.connections().sum::<usize>(), 1);
    }
    let mut balance = loops(8, Instant::now());
    for (count, in_use) in [(0, 1), (3, 3), (8, 8), (9, 8)] {
        balance.set_in_use(count);
        assert_eq!(balance.connections().count(), in_use);
    }
}

/// One connection of a [`World`].
#[derive(Debug, Clone)]
struct Connection {
    number: usize,
    reads: bool,
    /// The share of a CPU that it would take if it were alone.
    demand: f64,
    /// The time for which it has worked since it asked whether to move.
    worked: Duration,
    /// All loops that it was on.
    been: Vec<usize>,
}

/// The time between two checks of a busy connection: 1,024 requests.
const ASKS_AFTER: Duration = Duration::from_millis(10);

/// Loops under load, in steps from look to look.
struct World {
    balance: Balance,
    now: Instant,
    busy: Vec<Duration>,
    connections: Vec<Connection>,
    random: Random,
}

impl World {
    fn new(count: usize, seed: u64) -> World {
        let now = Instant::now();
        let busy = vec![Duration::ZERO; count];
        World { balance: loops(count, now), now, busy, connections: Vec::new(), random: Random::new(seed) }
    }

    fn connect(&mut self, reads: bool, demand: f64) {
        let number = self.balance.place(self.now, |number| self.busy[number]);
        self.connections.push(Connection {
            number,
            reads,
            demand,
            worked: Duration::ZERO,
            been: vec![number],
        });
    }

    /// Puts a connection on a loop, whatever the rule says.
    fn put(&mut self, number: usize, reads: bool, demand: f64) {
        self.balance.loops[number].connections += 1;
        self.connections.push(Connection {
            number,
            reads,
            demand,
            worked: Duration::ZERO,
            been: vec![number],
        });
    }

    /// Ends a connection.
    fn disconnect(&mut self, index: usize) {
        let ended = self.connections.swap_remove(index);
        self.balance.leave(ended.number);
    }

    /// The share of a CPU that the connections of each loop would take; above 1 it is overloaded.
    fn demands(&self) -> Vec<f64> {
        let mut demands = vec![0.0; self.busy.len()];
        self.connections.iter().for_each(|one| demands[one.number] += one.demand);
        demands
    }

    /// Lets the time to the next look pass; connections that have worked for long enough ask, in any order. Returns how many moved.
    fn step(&mut self) -> usize {
        self.now += LOOK_INTERVAL;
        let demands = self.demands();
        for (busy, demand) in self.busy.iter_mut().zip(&demands) {
            *busy += LOOK_INTERVAL.mul_f64(demand.min(1.0));
        }
        for last in (1..self.connections.len()).rev() {
            self.connections.swap(last, self.random.below(last as u64 + 1) as usize);
        }
        let mut moved = 0;
        for one in &mut self.connections {
            one.worked += LOOK_INTERVAL.mul_f64(one.demand / demands[one.number].max(1.0));
            if one.worked < ASKS_AFTER {
                continue;
            }
            one.worked = Duration::ZERO;
            let before = self.balance.loops[one.number].connections;
            let to = self.balance.relieve(one.number, one.reads, self.now, |number| self.busy[number]);
            let Some(to) = to else { continue };
            let may_move = before > 1 || one.number >= self.balance.in_use;
            assert!(may_move && to != one.number, "{one:?} of {before} moves to {to}");
            one.number = to;
            one.been.push(to);
            moved += 1;
        }
        self.check();
        moved
    }

    /// Asserts that the rule counts the connections that there are.
    fn check(&self) {
        self.balance.check();
        let mut counted = vec![0; self.busy.len()];
        self.connections.iter().for_each(|one| counted[one.number] += 1);
        let counts: Vec<usize> = self.balance.loops.iter().map(|load| load.connections).collect();
        assert_eq!(counts, counted);
    }

    /// Returns true if no loop is so much busier than another one that a connection should move.
    fn is_even(&self, reads: bool) -> bool {
        let relief = if reads { READERS } else { OTHERS };
        let shares = || self.demands().into_iter().map(|demand| demand.min(1.0));
        // Busy time is counted in whole nanoseconds.
        let (most, least) = (shares().fold(0.0, f64::max) - 1e-6, shares().fold(1.0, f64::min));
        most < relief.from || most - least <= relief.margin
    }
}

/// The number of looks after which many connections of the same kind, which all came to the first loop, are shared.
fn looks_max(count: usize, reads: bool) -> usize {
    match (count, reads) {
        (2, true) => 20,
        (2, false) => 40,
        (8, true) => 60,
        (8, false) => 200,
        (64, true) => 200,
        (64, false) => 400,
        _ => 0,
    }
}

/// The looks at which nothing moves any more once the loops share their work.
const QUIET_LOOKS: usize = 100;

/// The loads of loops, six connections each on average, at the moment when all connections have come to the first one.
fn all_on_the_first(count: usize, reads: bool, seed: u64) -> World {
    let mut world = World::new(count, seed);
    for _ in 0..6 * count {
        // 0.05 to 0.15: together they could take 0.6 of all CPUs.
        let demand = 0.05 + world.random.below(1_000) as f64 / 10_000.0;
        world.connect(reads, demand);
    }
    assert_eq!(world.balance.connections().next(), Some(6 * count), "no loop has been looked at");
    world
}

fn each_world(mut test: impl FnMut(usize, bool, u64)) {
    for count in COUNTS {
        for reads in [true, false] {
            (0..u64::from(cases(6))).for_each(|number| test(count, reads, seed().wrapping_add(number)));
        }
    }
}

#[test]
fn work_that_comes_to_one_loop_ends_evenly_shared_and_stays_so() {
    each_world(|count, reads, seed| {
        let mut world = all_on_the_first(count, reads, seed);
        (0..looks_max(count, reads)).for_each(|_| _ = world.step());
        let of = format!("of {count} loops, reads: {reads}, seed {seed}");
        assert!(world.is_even(reads), "{of}: {:?}", world.demands());
        let late: usize = (0..QUIET_LOOKS).map(|_| world.step()).sum();
        assert_eq!(late, 0, "{of}");
        if count <= 2 {
            let mut moved = world.connections.iter().map(|one| one.been.len() - 1);
            assert!(moved.all(|moves| moves < count), "a connection came back, {of}");
        }
    });
}

#[test]
fn what_is_counted_and_shared_holds_while_connections_come_and_go() {
    each_world(|count, reads, seed| {
        let mut world = World::new(count, seed);
        for _ in 0..100 {
            for _ in 0..world.random.below(2 + count as u64 / 4) {
                let demand = world.random.below(1_000) as f64 / 10_000.0;
                world.connect(reads, demand);
            }
            for _ in 0..world.random.below(2 + count as u64 / 8).min(world.connections.len() as u64) {
                let index = world.random.below(world.connections.len() as u64) as usize;
                world.disconnect(index);
            }
            world.step();
        }
        (0..looks_max(count, reads)).for_each(|_| _ = world.step());
        assert!(world.is_even(reads), "{count} loops, reads: {reads}, seed {seed}: {:?}", world.demands());
        (0..world.connections.len()).for_each(|_| world.disconnect(0));
        world.check();
    });
}

#[test]
fn idle_loops_move_nothing() {
    each_world(|count, reads, seed| {
        let mut world = World::new(count, seed);
        for number in 0..count {
            // All of a loop are less than what makes it busy.
            (0..4).for_each(|_| world.put(number, reads, 0.1));
        }
        let moved: usize = (0..QUIET_LOOKS).map(|_| world.step()).sum();
        assert_eq!(moved, 0, "of {count} loops, reads: {reads}, seed {seed}");
    });
}

#[test]
fn a_connection_that_is_alone_stays() {
    for count in COUNTS {
        for reads in [true, false] {
            let mut world = World::new(count, seed());
            world.put(0, reads, 1.0);
            let moved: usize = (0..QUIET_LOOKS).map(|_| world.step()).sum();
            assert_eq!(moved, 0, "of {count} loops, reads: {reads}");
        }
    }
}

#[test]
fn loops_out_of_use_give_all_of_their_work_away() {
    for count in COUNTS {
        let mut world = World::new(count, seed());
        for number in 0..count {
            (0..4).for_each(|_| world.put(number, number % 2 == 0, 0.1));
        }
        world.balance.set_in_use(1);
        (0..QUIET_LOOKS).for_each(|_| _ = world.step());
        assert_eq!(world.balance.connections().collect::<Vec<_>>(), [4 * count]);
        assert!(world.balance.loops[1..].iter().all(|load| load.connections == 0));
    }
}
