//! The course of events: the steps of both ends, and their checks.

mod checks;
mod connection;
mod consumer_end;
mod disturbances;
mod publisher_end;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tonic::{Code, Status};

use connection::{Connection, Down, PublisherEnd, Session, Up};

use super::directory::Directory;
use super::instance::Instance;
use super::publisher::Publisher;
use super::random::Random;
use super::truth::{EventId, Events, Ledger, Sieve, Violation, ensure};
use crate::consumer::fault_of;
use crate::consumer::inbox::{Fault, Rejected};
use crate::cursor::{ALIVE_EVERY, DEAD_AFTER, Next, Now};
use crate::error::{DirectError, Refused};
use crate::handover::{CLAIM_GRACE_MS, REVOKE_MS_MAX};
use crate::member::{Granted, Member, Opening};
use crate::proto::{self, FromConsumer, from_consumer, from_publisher::Frame};
use crate::slices::SliceRange;
use crate::subscription::{Earlier, Subscription};

const STEPS: usize = 1_200;
/// Rounds without faults in which everything has to be handled.
const ROUNDS: usize = 400;
const INSTANCES_MAX: usize = 4;
/// The number of equal ranges of slices. An instance that pins slices pins one or two of them.
const PINS: usize = INSTANCES_MAX;
/// The most frames under way in one direction.
const WINDOW: usize = 6;
/// The most earlier filters that a consumer keeps, as in `subscription/settings.rs`.
const EARLIER_MAX: usize = 4;
const ALIVE_EVERY_MS: u64 = ALIVE_EVERY.as_millis() as u64;
const DEAD_AFTER_MS: u64 = DEAD_AFTER.as_millis() as u64;

/// The kinds of faults of a course.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Profile {
    /// Connections are cut and made again at once, the publisher stops in order or is killed, instances come and leave
    /// in order.
    Orderly,
    /// Kills, power cuts, silence.
    Faults,
    /// And the directory is replaced by older copies and by new ones.
    Copies,
    /// And events are visible before they are on disk.
    Mapped,
}

/// A defect of the surroundings, to show that the checks find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Defect {
    /// All runs have the same id.
    EqualRuns,
    /// Events are shown before they are on disk.
    ShownBeforeSynced,
    /// The consumer's file is not synced.
    ForgetfulDisk,
    /// A frame is lost within a connection.
    LostFrame,
    /// Credit arrives twice.
    DoubledCredit,
}

impl Defect {
    pub(super) const ALL: [Defect; 5] = [
        Defect::EqualRuns,
        Defect::ShownBeforeSynced,
        Defect::ForgetfulDisk,
        Defect::LostFrame,
        Defect::DoubledCredit,
    ];
}

/// Both ends and all between them.
#[derive(Debug)]
pub(super) struct World {
    random: Random,
    profile: Profile,
    /// Faults have ended.
    is_calm: bool,
    defect: Option<Defect>,
    pub(super) history: Vec<String>,
    /// The number of subscriptions that ended, by name of the refusal.
    pub(super) stops: BTreeMap<String, u32>,
    now_ms: Arc<AtomicU64>,
    events: Events,
    ledgers: Vec<Ledger>,
    /// The own filter of all instances.
    own: Sieve,
    credit_bytes: u64,
    start: proto::Start,
    /// Instances pin slices.
    is_pinned: bool,
    directory: Directory,
    copies: Vec<Directory>,
    /// The number of times that another directory has replaced the one before.
    lineage: usize,
    publisher: Option<Publisher>,
    instances: BTreeMap<usize, Instance>,
    instances_so_far: usize,
    connections: Vec<Connection>,
    connections_so_far: usize,
    /// The connection of an instance that the publisher has accepted last.
    joined: BTreeMap<usize, usize>,
    /// The pins of instances, each with the number of the last session that had it.
    pins: BTreeMap<usize, (SliceRange, usize)>,
    sessions_so_far: usize,
    /// Offsets that answers have named as those from which a filter holds.
    named: BTreeSet<i64>,
    /// The lineage and the ledger of each assignment of an instance.
    assignments: BTreeMap<(usize, u64), (usize, usize)>,
}

impl World {
    pub(super) fn new(seed: u64, defect: Option<Defect>) -> World {
        let mut random = Random::new(seed);
        let profile = match seed % 4 {
            0 => Profile::Mapped,
            1 => Profile::Orderly,
            2 => Profile::Faults,
            _ => Profile::Copies,
        };
        let own = if random.one_in(3) { Sieve::of_number(random.below(5)) } else { Sieve::Everything };
        let credit_bytes = random.within(100, 1_500) as u64;
        let start = if random.one_in(4) { proto::Start::Latest } else { proto::Start::Earliest };
        let is_pinned = random.one_in(4);
        let now_ms = Arc::new(AtomicU64::new(1_000));
        World {
            random,
            profile,
            is_calm: false,
            defect,
            history: Vec::new(),
            stops: BTreeMap::new(),
            now_ms,
            events: Events::default(),
            ledgers: vec![Ledger::default()],
            own,
            credit_bytes,
            start,
            is_pinned,
            directory: Directory::new(1, 0),
            copies: Vec::new(),
            lineage: 0,
            publisher: None,
            instances: BTreeMap::new(),
            instances_so_far: 0,
            connections: Vec::new(),
            connections_so_far: 0,
            joined: BTreeMap::new(),
            pins: BTreeMap::new(),
            sessions_so_far: 0,
            named: BTreeSet::from([0]),
            assignments: BTreeMap::new(),
        }
    }

    /// Runs the whole course.
    ///
    /// # Errors
    /// The violated property.
    pub(super) fn run(&mut self) -> Result<(), Violation> {
        self.start_publisher();
        for _ in 0..STEPS {
            self.step()?;
        }
        self.finish()
    }

    fn log(&mut self, what: impl FnOnce() -> String) {
        let now_ms = self.now();
        self.history.push(format!("{now_ms:6} {}", what()));
    }

    fn now(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    fn is_orderly(&self) -> bool {
        self.profile == Profile::Orderly
    }

    fn name(&self, connection: usize) -> &str {
        let instance = self.connections[connection].instance;
        self.instances.get(&instance).map_or("one that is gone", |instance| &instance.name)
    }

    fn step(&mut self) -> Result<(), Violation> {
        let connection = self.random.below(self.connections.len().max(1));
        let has_connection = connection < self.connections.len();
        match self.random.below(1_000) {
            0..70 => self.append(),
            70..140 => self.sync(),
            140..340 if has_connection => {
                self.poll(connection)?;
            }
            340..500 if has_connection => self.deliver_down(connection)?,
            500..600 if has_connection => self.deliver_up(connection)?,
            600..680 if has_connection => self.say(connection),
            680..890 => self.apply()?,
            890..920 => {
                let ms = self.random.within(1, 400);
                self.pass_time(ms as u64);
            }
            920..960 => self.connect_any(),
            960..1_000 => self.disturb()?,
            _ => {}
        }
        Ok(())
    }

    /// Makes one rare event happen.
    fn disturb(&mut self) -> Result<(), Violation> {
        let is_orderly = self.is_orderly();
        let all_have_slices = self.do_all_have_slices();
        let may_change = !is_orderly || all_have_slices;
        // An instance that comes while another one is away would get its slices.
        let is_none_away = !is_orderly || self.are_all_connected();
        match self.random.below(100) {
            0..16 if may_change => self.spawn(),
            16..24 if may_change => self.leave(),
            24..38 if is_none_away => self.cut_any(),
            38..44 => self.overtake(),
            44..50 => self.change_filter()?,
            50..54 => self.have_instance_change_filter(),
            54..60 => self.pause_or_resume(),
            60..64 => self.reset_anywhere(),
            64..70 if is_none_away => {
                self.stop_publisher()?;
                self.start_with_newcomer();
            }
            70..76 if is_none_away => {
                self.kill_publisher();
                self.start_with_newcomer();
            }
            76..80 if !is_orderly => self.cut_power(),
            80..84 if !is_orderly => self.kill_instance(),
            84..88 if !is_orderly => {
                let ms = self.random.within(1_000, 20_000);
                self.pass_time(ms as u64);
            }
            88..89 => self.sync_positions(),
            89..90 => self.recover(),
            90..94 if matches!(self.profile, Profile::Copies | Profile::Mapped) => self.copy_directory(),
            94..96 if self.profile == Profile::Mapped => self.retain(),
            96..97 if self.profile == Profile::Copies => self.replace_directory()?,
            97..100 if matches!(self.profile, Profile::Copies | Profile::Mapped) => {
                self.restore_directory()?;
            }
            _ => {}
        }
        Ok(())
    }

    fn append(&mut self) {
        // Other processes may append to a directory that no publisher has open, if it was closed in order.
        if self.publisher.is_none() && self.directory.closed_at.is_none() {
            return self.start_publisher();
        }
        let count = self.random.within(1, 4) as usize;
        let mut ids = Vec::new();
        for _ in 0..count {
            let key = self.random.below(10);
            let is_of_others = self.publisher.is_none();
            ids.push(self.events.append(&mut self.directory.history, key, is_of_others));
        }
        let bytes = self.events.batch(&ids);
        self.directory.append(bytes);
        let end = self.directory.end();
        self.log(|| format!("{count} events are appended, up to {end}"));
        let is_shown = self.profile == Profile::Mapped || self.defect == Some(Defect::ShownBeforeSynced);
        if let Some(publisher) = self.publisher.as_ref().filter(|_| is_shown) {
            publisher.show(&mut self.directory, end);
        }
    }

    fn sync(&mut self) {
        let Some(publisher) = &self.publisher else { return self.start_publisher() };
        self.directory.sync();
        let end = self.directory.synced;
        publisher.show(&mut self.directory, end);
        self.log(|| format!("events up to {end} are on the disk"));
    }

    fn start_publisher(&mut self) {
        let run = self.random.next().max(1);
        let run = if self.defect == Some(Defect::EqualRuns) { 7 } else { run };
        let forgets = self.defect == Some(Defect::ForgetfulDisk);
        let publisher = Publisher::start(&mut self.directory, run, &self.now_ms, forgets);
        self.publisher = Some(publisher);
        let runs = self.directory.runs.iter().map(|run| run.start).collect::<Vec<_>>();
        self.log(|| format!("a publisher starts; runs begin at {runs:?}"));
    }

    fn pass_time(&mut self, ms: u64) {
        // Claims of instances that are away would end.
        if self.is_orderly() && !self.is_calm && !self.do_all_have_slices() {
            return;
        }
        let ms = if self.is_orderly() { ms.min(CLAIM_GRACE_MS / 4) } else { ms };
        self.now_ms.fetch_add(ms, Ordering::Relaxed);
        if let Some(subscription) = self.publisher.as_ref().and_then(|one| one.subscription.clone()) {
            subscription.tick();
        }
        let now_ms = self.now();
        for at in 0..self.connections.len() {
            let connection = &self.connections[at];
            if connection.is_consumer_there && connection.heard_ms + DEAD_AFTER_MS <= now_ms {
                self.consumer_lost(at);
            }
        }
    }

    // The end.

    /// Runs without faults until every event is handled.
    fn finish(&mut self) -> Result<(), Violation> {
        self.is_calm = true;
        self.log(|| "faults end".to_owned());
        for at in 0..self.connections.len() {
            if self.connections[at].is_silent {
                self.cut(at, false);
            }
        }
        if self.publisher.is_none() {
            self.start_publisher();
        }
        for _ in 0..ROUNDS {
            self.calm_round()?;
            if self.is_finished() {
                return Ok(());
            }
        }
        let missing = self.directory.history.iter().find(|id| self.is_missing(**id)).copied();
        let missing = missing.map(|id| self.events.get(id).offset);
        Err(format!("without faults it does not end: {missing:?} is not handled; {:?}", self.subscription()))
    }

    fn is_missing(&self, id: EventId) -> bool {
        self.is_admitted(id) && !self.ledgers[self.directory.ledger].is_settled(id)
    }

    fn is_finished(&self) -> bool {
        let frontier = self.subscription().map(|one| one.snapshot().offset);
        let is_missing = self.directory.history.iter().any(|id| self.is_missing(*id));
        frontier == Some(self.directory.end()) && !is_missing
    }

    fn calm_round(&mut self) -> Result<(), Violation> {
        self.sync();
        self.recover();
        self.spawn_missing();
        for instance in self.waiting() {
            self.connect(instance);
        }
        for at in 0..self.connections.len() {
            for _ in 0..WINDOW {
                self.say(at);
                self.deliver_up(at)?;
            }
            while self.poll(at)? {}
            for _ in 0..WINDOW + 1 {
                self.deliver_down(at)?;
            }
        }
        self.pass_time(250);
        for instance in self.instances.keys().copied().collect::<Vec<_>>() {
            while self.take(instance)? {}
            while self.handle(instance)? {}
            self.release(instance);
            self.say_done(instance);
        }
        Ok(())
    }

    /// Continues a consumer that cannot by itself, as its refusal says.
    fn recover(&mut self) {
        let (Some(publisher), Some(subscription)) = (&self.publisher, self.subscription()) else { return };
        let view = publisher.view(&self.directory);
        let refused = subscription.check(&view);
        if subscription.snapshot().settings.is_paused {
            subscription.set(|settings| settings.is_paused = false).expect("the disk takes it");
        }
        match refused {
            Err(Refused::Diverged { at }) => self.reset(at),
            Err(Refused::OutOfRange { start, .. }) => self.reset(start),
            _ => {}
        }
    }
}

/// Returns some of the ranges that instances pin.
fn pin_of(from: usize, to: usize) -> SliceRange {
    let at = |pin: usize| (usize::from(SliceRange::ALL.to) * pin / PINS) as u32;
    SliceRange::new(at(from), at(to)).expect("it is a range")
}

fn text_of(frame: &Frame) -> String {
    match frame {
        Frame::Records(records) => format!("Records {} to {}", records.from, records.next),
        Frame::Skip(skip) => format!("Skip {} to {}", skip.from, skip.next),
        other => format!("{other:?}"),
    }
}
