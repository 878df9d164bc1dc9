//! The course of events: who does what, step by step, and what is checked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tonic::{Code, Status};

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
use crate::member::{Member, Opening};
use crate::proto::{self, FromConsumer, from_consumer, from_publisher::Frame};
use crate::slices::SliceRange;
use crate::subscription::{Earlier, Subscription};

const STEPS: usize = 1_200;
/// Rounds without faults in which everything has to be handled.
const ROUNDS: usize = 400;
const INSTANCES_MAX: usize = 4;
/// Frames that are under way one way.
const WINDOW: usize = 6;
/// Filters of before that a consumer keeps: with more, the oldest count as one.
const EARLIER_MAX: usize = 4;
const ALIVE_EVERY_MS: u64 = ALIVE_EVERY.as_millis() as u64;
const DEAD_AFTER_MS: u64 = DEAD_AFTER.as_millis() as u64;

/// What may happen in a course.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Profile {
    /// Connections are cut and taken up again at once, the publisher stops in order, instances come and go in order.
    Orderly,
    /// Kills, power cuts, silence.
    Faults,
    /// And older copies of the directory, and others.
    Copies,
    /// And events that are visible before they are on the disk.
    Mapped,
}

/// A fault of the surroundings, to show that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Defect {
    /// Runs of copies have one id.
    EqualRuns,
    /// Events are shown that are not on the disk.
    ShownBeforeSynced,
    /// What is to be synced of a consumer is not.
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

/// On the way to the publisher.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all of them are frames")]
enum Up {
    Frame(from_consumer::Frame),
    /// Nothing more is sent.
    End,
    Broken,
}

/// On the way to the consumer.
#[derive(Debug)]
enum Down {
    /// With the last event that the instance has received then.
    Frame(Frame, Option<EventId>),
    End(Option<Status>),
    Broken,
}

/// The publisher's end of a connection.
#[derive(Debug)]
enum PublisherEnd {
    /// `Open` has not come.
    Accepting,
    Open(Box<Seat>),
    Gone,
}

#[derive(Debug)]
struct Seat {
    member: Member,
    began_ms: u64,
    slices: Option<SliceRange>,
    is_revoked: bool,
}

impl Seat {
    fn time(&self, now_ms: u64) -> Duration {
        Duration::from_millis(now_ms - self.began_ms)
    }
}

#[derive(Debug)]
struct Connection {
    number: usize,
    instance: usize,
    up: VecDeque<Up>,
    down: VecDeque<Down>,
    publisher_end: PublisherEnd,
    /// The consumer's end is there.
    is_consumer_there: bool,
    /// It has ended, and not both ends have noticed.
    is_cut: bool,
    /// Nothing arrives any more, and neither end notices.
    is_silent: bool,
    /// Where the journal had left what the instance has received, when the publisher accepted it; none if it has received nothing.
    left_at: Option<[i64; 2]>,
    /// That was before its end.
    is_left: bool,
    was_opened: bool,
    has_said_all: bool,
    heard_ms: u64,
    said_ms: u64,
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
    /// How often subscriptions ended, by name.
    pub(super) stops: BTreeMap<String, u32>,
    now_ms: Arc<AtomicU64>,
    events: Events,
    ledgers: Vec<Ledger>,
    /// What all instances want to see.
    own: Sieve,
    credit_bytes: u64,
    start: proto::Start,
    directory: Directory,
    copies: Vec<Directory>,
    /// Another directory took the place of the one before so often.
    lineage: usize,
    publisher: Option<Publisher>,
    instances: BTreeMap<usize, Instance>,
    instances_so_far: usize,
    connections: Vec<Connection>,
    connections_so_far: usize,
    /// The connection of an instance that the publisher has accepted last.
    joined: BTreeMap<usize, usize>,
    /// Offsets that were named as those from which a filter holds.
    named: BTreeSet<i64>,
    /// Of which lineage and ledger an instance's assignment is.
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
            directory: Directory::new(1, 0),
            copies: Vec::new(),
            lineage: 0,
            publisher: None,
            instances: BTreeMap::new(),
            instances_so_far: 0,
            connections: Vec::new(),
            connections_so_far: 0,
            joined: BTreeMap::new(),
            named: BTreeSet::from([0]),
            assignments: BTreeMap::new(),
        }
    }

    /// The whole course.
    ///
    /// # Errors
    /// What must not be.
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

    // The steps.

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

    /// What does not happen all the time.
    fn disturb(&mut self) -> Result<(), Violation> {
        let is_orderly = self.is_orderly();
        let are_seated = self.are_all_seated();
        let may_change = !is_orderly || are_seated;
        // After a start the first instance that comes gets what is free, while another may still handle what it had received.
        let may_stop = !is_orderly || (are_seated && self.instances.len() == 1);
        match self.random.below(100) {
            0..16 if may_change => self.spawn(),
            16..24 if may_change => self.leave(),
            24..38 if may_change => self.cut_any(),
            38..44 => self.overtake(),
            44..50 => self.change_filter()?,
            50..54 => self.have_instance_change_filter(),
            54..60 => self.pause_or_resume(),
            60..64 => self.reset_anywhere(),
            64..70 if may_stop => self.stop_publisher()?,
            70..76 if !is_orderly => self.kill_publisher(),
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
        // To a directory that no publisher has open others may append, if it was left in order.
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
        // Claims of instances that are away end.
        if self.is_orderly() && !self.is_calm && !self.are_all_seated() {
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

    // The publisher's end.

    /// Has the publisher make the next frame of a connection; false if there is none.
    fn poll(&mut self, at: usize) -> Result<bool, Violation> {
        let Some(publisher) = &self.publisher else { return Ok(false) };
        let connection = &mut self.connections[at];
        let PublisherEnd::Open(seat) = &mut connection.publisher_end else { return Ok(false) };
        if connection.down.len() >= WINDOW {
            return Ok(false);
        }
        let time = seat.time(self.now_ms.load(Ordering::Relaxed));
        let now = Now { time, end: publisher.ring.end(), is_stopping: false };
        loop {
            let frame = match seat.member.next(now) {
                Ok(Next::Frame(frame)) => frame,
                Ok(Next::Wait { .. }) => return Ok(false),
                Ok(Next::Left) => {
                    self.end_session(at, None);
                    return Ok(true);
                }
                Ok(Next::Read(offset)) => {
                    let read = publisher.find(&self.directory, offset).map_err(|refused| refused.to_status());
                    let read = read.and_then(|chunk| seat.member.read(&chunk, &publisher.counters, time));
                    match read {
                        Ok(Some(frame)) => frame,
                        Ok(None) => continue,
                        Err(status) => return self.refuse(at, &status).map(|()| true),
                    }
                }
                Err(status) => return self.refuse(at, &status).map(|()| true),
            };
            self.send(at, frame)?;
            return Ok(true);
        }
    }

    fn send(&mut self, at: usize, frame: Frame) -> Result<(), Violation> {
        self.check_sent(at, &frame)?;
        let text = text_of(&frame);
        let name = self.name(at).to_owned();
        self.log(|| format!("to {name}: {text}"));
        let upto = match &frame {
            Frame::Records(records) => Some(records.next),
            Frame::Skip(skip) => Some(skip.next),
            // What is before is done, by this instance or by others.
            Frame::Assign(assign) => Some(assign.offset),
            _ => None,
        };
        let tip =
            upto.filter(|upto| *upto > 0).and_then(|upto| self.directory.history.get(upto as usize - 1));
        let tip = tip.copied();
        let is_lost = self.defect == Some(Defect::LostFrame) && self.random.one_in(50);
        if !self.connections[at].is_silent && !is_lost {
            self.connections[at].down.push_back(Down::Frame(frame, tip));
        }
        Ok(())
    }

    /// A session ends; a status is sent, if there is one.
    fn end_session(&mut self, at: usize, status: Option<Status>) {
        let name = self.name(at).to_owned();
        let words = status.as_ref().map_or("it has left", |status| status.message()).to_owned();
        self.log(|| format!("the session of {name} ends: {words}"));
        let connection = &mut self.connections[at];
        connection.publisher_end = PublisherEnd::Gone;
        if !connection.is_silent {
            connection.down.push_back(Down::End(status));
        }
    }

    /// A session ends by an error, which has to have a reason.
    fn refuse(&mut self, at: usize, status: &Status) -> Result<(), Violation> {
        let connection = &self.connections[at];
        let began_ms = match &connection.publisher_end {
            PublisherEnd::Open(seat) => Some(seat.began_ms),
            _ => None,
        };
        let is_explained = match Refused::of_status(status) {
            Some(Refused::Fenced) => {
                // It may not have been told yet that it was to give slices back.
                let is_late = began_ms.is_some_and(|ms| ms + REVOKE_MS_MAX <= self.now());
                is_late || self.is_overtaken(at)
            }
            Some(Refused::OutOfRange { offset, start, .. }) => {
                offset < start && start == self.directory.start
            }
            Some(_) => false,
            None => matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded),
        };
        ensure!(is_explained, "the session of {} ends: {}", self.name(at), status.message());
        self.end_session(at, Some(status.clone()));
        Ok(())
    }

    /// The publisher has a later connection of the instance.
    fn is_overtaken(&self, at: usize) -> bool {
        let connection = &self.connections[at];
        self.joined.get(&connection.instance).is_some_and(|last| *last > connection.number)
    }

    /// `Open` has come.
    fn accept(&mut self, at: usize, open: proto::Open) -> Result<(), Violation> {
        let Some(mut publisher) = self.publisher.take() else { return Ok(()) };
        let view = publisher.view(&self.directory);
        let (mut begun, mut kept_at) = (None, None);
        let joined = Opening::of(open, None).and_then(|opening| {
            opening.check(&view, &publisher.lenses)?;
            let (subscription, begins) = publisher.subscription(&self.directory, opening.start);
            begun = begins;
            kept_at = subscription.check(&view).err();
            Member::join(subscription, publisher.lenses.clone(), opening, &view)
        });
        self.publisher = Some(publisher);
        if let Some(from) = begun {
            let before = self.directory.history[..from as usize].iter().copied();
            self.ledgers[self.directory.ledger].waived.extend(before);
        }
        match joined {
            Ok(member) => {
                ensure!(
                    !self.is_overtaken(at),
                    "a late connection of {} takes the place of a later one",
                    self.name(at)
                );
                let received =
                    self.instances.get(&self.connections[at].instance).and_then(|one| one.received);
                self.connections[at].left_at = received.map(|tip| self.left_at(tip));
                self.connections[at].is_left = received.is_some_and(|tip| self.is_left(tip));
                self.joined.insert(self.connections[at].instance, self.connections[at].number);
                let began_ms = self.now();
                let seat = Seat { member, began_ms, slices: None, is_revoked: false };
                self.connections[at].publisher_end = PublisherEnd::Open(Box::new(seat));
            }
            Err(status) => {
                self.check_refused(at, &status, kept_at.as_ref())?;
                self.end_session(at, Some(status));
            }
        }
        Ok(())
    }

    fn deliver_up(&mut self, at: usize) -> Result<(), Violation> {
        let now_ms = self.now();
        let Some(up) = self.connections[at].up.pop_front() else { return Ok(()) };
        let message = match up {
            Up::Frame(frame) => Some(frame),
            Up::End => None,
            Up::Broken => {
                self.connections[at].publisher_end = PublisherEnd::Gone;
                self.log(|| "a session ends with its connection".to_owned());
                return Ok(());
            }
        };
        let text = format!("{message:?}");
        let name = self.name(at).to_owned();
        let is_open = matches!(message, Some(from_consumer::Frame::Open(_)));
        if !is_open {
            self.log(|| format!("{name} says {text}"));
        }
        match (&mut self.connections[at].publisher_end, message) {
            (PublisherEnd::Accepting, Some(from_consumer::Frame::Open(open))) => self.accept(at, open),
            (PublisherEnd::Open(seat), message) => {
                let time = seat.time(now_ms);
                let message = message.map(|frame| FromConsumer { frame: Some(frame) });
                let taken = seat.member.take(message, time);
                self.note_filter();
                taken.or_else(|status| self.refuse(at, &status))
            }
            _ => Ok(()),
        }
    }

    // The consumer's end.

    fn connect_any(&mut self) {
        let waiting = self.waiting();
        if waiting.is_empty() {
            return;
        }
        let instance = waiting[self.random.below(waiting.len())];
        self.connect(instance);
    }

    /// Instances without a connection.
    fn waiting(&self) -> Vec<usize> {
        let is_connected = |instance: &usize| {
            self.connections.iter().any(|one| one.instance == *instance && one.is_consumer_there)
        };
        self.instances.keys().filter(|instance| !is_connected(instance)).copied().collect()
    }

    fn connect(&mut self, instance: usize) {
        if self.publisher.is_none() {
            return;
        }
        let Some(one) = self.instances.get(&instance) else { return };
        let open = one.inbox.open(&one.config);
        let text = format!(
            "{} connects, at {} with {:?} of {:?}",
            one.name,
            open.offset,
            open.held.as_ref().and_then(|held| held.done.as_ref()),
            open.held.as_ref().and_then(|held| held.slices.as_ref().map(|slices| slices.from..slices.to))
        );
        self.log(|| text);
        self.connections.retain(|one| {
            let is_open = matches!(one.publisher_end, PublisherEnd::Open(_));
            one.is_consumer_there || is_open || !one.up.is_empty()
        });
        let now_ms = self.now();
        self.connections_so_far += 1;
        let number = self.connections_so_far;
        self.connections.push(Connection {
            number,
            instance,
            up: VecDeque::from([Up::Frame(from_consumer::Frame::Open(open))]),
            down: VecDeque::new(),
            publisher_end: PublisherEnd::Accepting,
            is_consumer_there: true,
            is_cut: false,
            is_silent: false,
            left_at: None,
            is_left: false,
            was_opened: false,
            has_said_all: false,
            heard_ms: now_ms,
            said_ms: now_ms,
        });
    }

    /// The consumer sends what is due.
    fn say(&mut self, at: usize) {
        let now_ms = self.now();
        let connection = &mut self.connections[at];
        let Some(instance) = self.instances.get(&connection.instance) else { return };
        if !connection.is_consumer_there || connection.has_said_all || connection.up.len() >= WINDOW {
            return;
        }
        let up = match instance.inbox.to_be_sent() {
            Some(frame) => Up::Frame(frame),
            None if instance.inbox.is_leaving() => {
                connection.has_said_all = true;
                Up::End
            }
            None if connection.said_ms + ALIVE_EVERY_MS <= now_ms => {
                Up::Frame(from_consumer::Frame::Alive(proto::Alive {}))
            }
            None => return,
        };
        connection.said_ms = now_ms;
        if connection.is_silent {
            return;
        }
        if let (Some(Defect::DoubledCredit), Up::Frame(from_consumer::Frame::Credit(credit))) =
            (self.defect, &up)
        {
            connection.up.push_back(Up::Frame(from_consumer::Frame::Credit(*credit)));
        }
        connection.up.push_back(up);
    }

    fn deliver_down(&mut self, at: usize) -> Result<(), Violation> {
        let now_ms = self.now();
        let connection = &mut self.connections[at];
        let Some(down) = connection.down.pop_front() else { return Ok(()) };
        let Some(instance) = self.instances.get_mut(&connection.instance) else { return Ok(()) };
        if !connection.is_consumer_there {
            return Ok(());
        }
        connection.heard_ms = now_ms;
        match down {
            Down::Frame(frame, tip) => {
                connection.was_opened |= matches!(frame, Frame::Opened(_));
                instance.has_filter &= !matches!(frame, Frame::FilteredFrom(_));
                let offset_of = |id: EventId| self.events.get(id).offset;
                match frame {
                    Frame::Assign(_) => instance.assigned = tip,
                    _ if instance.received.map(offset_of) < tip.map(offset_of) => instance.received = tip,
                    _ => {}
                }
                let is_opened = matches!(frame, Frame::Opened(_));
                match instance.inbox.take(frame) {
                    Ok(()) if is_opened && connection.is_left => Err(format!(
                        "{} goes on, and the journal has left its events at {:?}",
                        instance.name, connection.left_at
                    )),
                    Ok(()) => Ok(()),
                    Err(Rejected::Protocol(reason)) => Err(format!(
                        "the publisher does not keep to the protocol with {}: {reason}",
                        instance.name
                    )),
                    Err(Rejected::Refused(refused)) => {
                        let left_at = connection.left_at;
                        let is_explained = match refused {
                            Refused::Diverged { at } => left_at.is_some_and(|offsets| offsets.contains(&at)),
                            _ => false,
                        };
                        ensure!(is_explained, "{} ends by {refused:?}, not {left_at:?}", instance.name);
                        self.stop_instance(at, &refused);
                        Ok(())
                    }
                }
            }
            Down::End(None) | Down::Broken => {
                self.consumer_lost(at);
                Ok(())
            }
            Down::End(Some(status)) => {
                match fault_of(&instance.config, &status, connection.was_opened) {
                    Fault::Lost { .. } => self.consumer_lost(at),
                    Fault::Fatal(DirectError::Refused { refused, .. }) => self.stop_instance(at, &refused),
                    Fault::Fatal(error) => {
                        return Err(format!("{} stops without a name: {error}", instance.name));
                    }
                }
                Ok(())
            }
        }
    }

    /// The consumer leaves a connection, and its process ends if it was to.
    fn consumer_lost(&mut self, at: usize) {
        let name = self.name(at).to_owned();
        let connection = &mut self.connections[at];
        if !std::mem::take(&mut connection.is_consumer_there) {
            return;
        }
        if !connection.is_silent {
            connection.up.push_back(Up::Broken);
        }
        let instance = connection.instance;
        let is_leaving = self.instances.get(&instance).is_some_and(|one| one.is_leaving);
        if is_leaving {
            self.instances.remove(&instance);
        }
        self.log(|| format!("{name} {}", if is_leaving { "is gone" } else { "has lost its connection" }));
    }

    fn stop_instance(&mut self, at: usize, refused: &Refused) {
        let words = format!("{refused:?}");
        let name = words.split([' ', '{']).next().unwrap_or_default();
        *self.stops.entry(name.to_owned()).or_insert(0) += 1;
        let instance = self.connections[at].instance;
        self.consumer_lost(at);
        self.log(|| format!("instance {instance} stops: {words}"));
        self.instances.remove(&instance);
    }

    /// An application does something.
    fn apply(&mut self) -> Result<(), Violation> {
        if self.instances.is_empty() {
            return Ok(());
        }
        let which = self.random.below(self.instances.len());
        let instance = *self.instances.keys().nth(which).expect("there are so many");
        match self.random.below(12) {
            0..5 => self.take(instance)?,
            5..10 => self.handle(instance)?,
            10 => self.say_done(instance),
            _ => self.release(instance),
        };
        Ok(())
    }

    /// An instance whose application has not stopped.
    fn running(&mut self, instance: usize) -> Option<&mut Instance> {
        self.instances.get_mut(&instance).filter(|one| !one.is_leaving)
    }

    fn say_done(&mut self, instance: usize) -> bool {
        self.running(instance).map(|one| one.say_done()).is_some()
    }

    fn take(&mut self, instance: usize) -> Result<bool, Violation> {
        let one = self.instances.get_mut(&instance).filter(|one| !one.is_leaving);
        let Some(one) = one else { return Ok(false) };
        let taken = one.take(&self.events)?;
        let name = one.name.clone();
        let is_something = taken.is_some();
        if let Some(text) = taken {
            self.log(|| format!("{name} {text}"));
        }
        Ok(is_something)
    }

    fn release(&mut self, instance: usize) -> bool {
        let Some(one) = self.running(instance) else { return false };
        let is_released = one.release();
        let name = one.name.clone();
        if is_released {
            self.log(|| format!("{name} gives back"));
        }
        is_released
    }

    fn handle(&mut self, instance: usize) -> Result<bool, Violation> {
        let which = self.random.below(1_000);
        let Some(one) = self.running(instance) else { return Ok(false) };
        let Some(id) = one.application.handle(which) else { return Ok(false) };
        let name = one.name.clone();
        let assignment = one.application.assignment.unwrap_or_default();
        let event = self.events.get(id);
        let (offset, slice) = (event.offset, event.slice);
        self.log(|| format!("{name} handles {offset} of slice {slice}"));
        let of = self.assignments.get(&(instance, assignment)).copied();
        let Some((lineage, ledger)) = of.filter(|(_, ledger)| *ledger == self.directory.ledger) else {
            // What came before a reset is void.
            return Ok(true);
        };
        if lineage == self.lineage {
            self.check_order(id)?;
        }
        let count = self.ledgers[ledger].handled.entry(id).or_insert(0);
        *count += 1;
        ensure!(self.profile != Profile::Orderly || *count == 1, "{name} handles {offset} again");
        Ok(true)
    }

    // Disturbances.

    /// All instances are connected and have slices, and none is about to go.
    fn are_all_seated(&self) -> bool {
        self.instances.iter().all(|(number, instance)| {
            let connection =
                self.connections.iter().find(|one| one.instance == *number && one.is_consumer_there);
            let has_slices = connection.is_some_and(|one| match &one.publisher_end {
                PublisherEnd::Open(seat) => seat.slices.is_some() && !seat.is_revoked && !one.is_cut,
                _ => false,
            });
            has_slices && instance.inbox.assignment().is_some() && !instance.is_leaving
        })
    }

    fn spawn(&mut self) {
        if self.instances.len() >= INSTANCES_MAX {
            return;
        }
        self.instances_so_far += 1;
        let number = self.instances_so_far;
        let (own, start, credit_bytes) = (self.own.to_proto(), self.start, self.credit_bytes);
        let instance = Instance::new(number, |config| {
            let config = config.start(start).credit_bytes(credit_bytes);
            own.map_or(config.clone(), |filter| config.filter(filter))
        });
        self.log(|| format!("i{number} comes"));
        self.instances.insert(number, instance);
        self.connect(number);
    }

    fn any_instance(&mut self) -> Option<usize> {
        let which = self.random.below(self.instances.len().max(1));
        self.instances.keys().nth(which).copied()
    }

    fn leave(&mut self) {
        let Some(number) = self.any_instance() else { return };
        let Some(instance) = self.instances.get_mut(&number) else { return };
        instance.say_done();
        instance.inbox.leave();
        instance.is_leaving = true;
        let is_waiting = self.waiting().contains(&number);
        self.log(|| format!("i{number} leaves"));
        if is_waiting {
            // There is no stream to say so on.
            self.instances.remove(&number);
        }
    }

    fn kill_instance(&mut self) {
        let Some(number) = self.any_instance() else { return };
        self.log(|| format!("i{number} is killed"));
        self.instances.remove(&number);
        for connection in self.connections.iter_mut().filter(|one| one.instance == number) {
            if std::mem::take(&mut connection.is_consumer_there) && !connection.is_silent {
                connection.up.push_back(Up::Broken);
            }
        }
    }

    fn cut_any(&mut self) {
        if self.connections.is_empty() {
            return;
        }
        let at = self.random.below(self.connections.len());
        let instance = self.connections[at].instance;
        if self.is_orderly() && self.instances.get(&instance).is_none_or(|one| one.is_leaving) {
            return;
        }
        let is_silent = !self.is_orderly() && self.random.one_in(4);
        let name = self.name(at).to_owned();
        self.log(|| {
            format!("the connection of {name} {}", if is_silent { "falls silent" } else { "is cut" })
        });
        self.cut(at, is_silent);
    }

    /// An instance gives up a connection whose `Open` is under way, and makes another one: either may arrive first.
    fn overtake(&mut self) {
        let is_accepting = |connection: &Connection| {
            matches!(connection.publisher_end, PublisherEnd::Accepting) && connection.is_consumer_there
        };
        let accepting: Vec<usize> =
            (0..self.connections.len()).filter(|at| is_accepting(&self.connections[*at])).collect();
        if accepting.is_empty() {
            return;
        }
        let at = accepting[self.random.below(accepting.len())];
        self.connections[at].is_cut = true;
        self.consumer_lost(at);
        self.connect(self.connections[at].instance);
    }

    /// Some of what is under way arrives still.
    fn cut(&mut self, at: usize, is_silent: bool) {
        let connection = &mut self.connections[at];
        let up = self.random.below(connection.up.len() + 1);
        let down = self.random.below(connection.down.len() + 1);
        connection.up.truncate(up);
        connection.down.truncate(down);
        (connection.is_cut, connection.is_silent) = (true, is_silent);
        if !is_silent {
            connection.up.push_back(Up::Broken);
            connection.down.push_back(Down::Broken);
        }
    }

    fn subscription(&self) -> Option<&Arc<Subscription>> {
        self.publisher.as_ref()?.subscription.as_ref()
    }

    fn change_filter(&mut self) -> Result<(), Violation> {
        let sieve = Sieve::of_number(self.random.below(5));
        if !self.may_change_filter() {
            return Ok(());
        }
        let Some(subscription) = self.subscription() else { return Ok(()) };
        let filter = sieve.to_proto().unwrap_or_default();
        subscription.keep_filter(&filter).map_err(|status| status.message().to_owned())?;
        self.note_filter();
        Ok(())
    }

    /// Of more filters than are kept the oldest count as one: few courses go so far.
    fn may_change_filter(&self) -> bool {
        let coming = self.instances.values().filter(|instance| instance.has_filter).count();
        self.subscription().is_some_and(|one| one.snapshot().settings.earlier.len() + coming < EARLIER_MAX)
    }

    fn have_instance_change_filter(&mut self) {
        let sieve = Sieve::of_number(self.random.below(5));
        if !self.may_change_filter() {
            return;
        }
        let Some(number) = self.any_instance() else { return };
        self.log(|| format!("i{number} is to have {sieve:?} kept"));
        let Some(instance) = self.instances.get_mut(&number) else { return };
        instance.inbox.keep_filter(sieve.to_proto().unwrap_or_default());
        instance.has_filter = true;
    }

    /// The filter may have changed: what is true follows.
    fn note_filter(&mut self) {
        let Some(snapshot) = self.subscription().map(|one| one.snapshot()) else { return };
        let (settings, frontier) = (snapshot.settings, snapshot.offset);
        let sieve = Sieve::of_proto(settings.filter.as_ref());
        let &(_, before) = self.directory.filters.last().expect("there is one");
        if sieve == before {
            return;
        }
        let from = settings.filtered_from;
        self.log(|| format!("from {from} on {sieve:?} holds"));
        self.named.insert(from);
        self.directory.filters.retain(|(other, _)| *other < from);
        self.directory.filters.push((from, sieve));
        if settings.earlier.len() == EARLIER_MAX {
            self.note_oldest_filters(frontier, &settings.earlier[0]);
        }
        // What instances have received that have not come back since the publisher started, is not known to it.
        let offset_of = |id: EventId| self.events.get(id).offset + 1;
        let received = self.instances.values().filter_map(|one| one.received.map(offset_of)).max();
        let end = self.directory.history.len();
        let (from, to) = (from as usize, end.min(received.unwrap_or(0) as usize));
        if let Some(unknown) = self.directory.history.get(from..to) {
            self.ledgers[self.directory.ledger].waived.extend(unknown.iter().copied());
        }
    }

    /// The oldest of the filters that are kept holds for all before it too, from the frontier on; what went through one that is not
    /// kept any more may have been left out by it.
    fn note_oldest_filters(&mut self, frontier: i64, oldest: &Earlier) {
        let sieve = Sieve::of_proto(oldest.filter.as_ref());
        let filters = &mut self.directory.filters;
        let first_after = filters.partition_point(|(from, _)| *from < oldest.until);
        let after = filters.split_off(first_after);
        filters.retain(|(from, _)| *from < frontier);
        filters.push((frontier, sieve));
        filters.extend(after);
        let to = self.directory.history.len().min(oldest.until as usize);
        let unclear = self.directory.history.get(frontier as usize..to).unwrap_or_default();
        self.ledgers[self.directory.ledger].waived.extend(unclear.iter().copied());
    }

    fn pause_or_resume(&mut self) {
        let is_paused = self.random.one_in(2);
        let Some(subscription) = self.subscription() else { return };
        subscription.set(|settings| settings.is_paused = is_paused).expect("the disk takes it");
        self.log(|| format!("paused: {is_paused}"));
    }

    fn reset_anywhere(&mut self) {
        let Some(publisher) = &self.publisher else { return };
        let view = publisher.view(&self.directory);
        let offset = self.random.within(view.start, view.end);
        self.reset(offset);
    }

    fn reset(&mut self, offset: i64) {
        let Some(subscription) = self.subscription() else { return };
        subscription.reset(offset).expect("the disk takes it");
        self.log(|| format!("reset to {offset}"));
        let waived = self.directory.history[..offset as usize].iter().copied().collect();
        self.ledgers.push(Ledger { waived, ..Ledger::default() });
        self.directory.ledger = self.ledgers.len() - 1;
        let &(_, sieve) = self.directory.filters.last().expect("there is one");
        self.directory.filters = vec![(0, sieve)];
        self.directory.cut_at.clear();
    }

    fn sync_positions(&mut self) {
        self.directory.subscription.sync();
        self.log(|| "positions are on the disk".to_owned());
    }

    fn stop_publisher(&mut self) -> Result<(), Violation> {
        if self.publisher.is_none() || self.is_orderly() && self.instances.values().any(|one| one.is_leaving)
        {
            return Ok(());
        }
        self.log(|| "the publisher stops".to_owned());
        let now_ms = self.now();
        for at in 0..self.connections.len() {
            let status = match &mut self.connections[at].publisher_end {
                PublisherEnd::Gone => continue,
                PublisherEnd::Accepting => Status::unavailable("the publisher stops"),
                PublisherEnd::Open(seat) => {
                    let now = Now { time: seat.time(now_ms), end: 0, is_stopping: true };
                    match seat.member.next(now) {
                        Err(status) => status,
                        Ok(Next::Left) => {
                            self.end_session(at, None);
                            continue;
                        }
                        Ok(next) => {
                            return Err(format!("a session goes on while the publisher stops: {next:?}"));
                        }
                    }
                }
            };
            self.end_session(at, Some(status));
        }
        self.publisher = None;
        self.directory.subscription.sync();
        self.directory.sync();
        self.directory.closed_at = Some(self.directory.end());
        Ok(())
    }

    fn kill_publisher(&mut self) {
        let Some(publisher) = self.publisher.take() else { return };
        self.log(|| "the publisher is killed".to_owned());
        publisher.kill();
        for at in 0..self.connections.len() {
            if !matches!(self.connections[at].publisher_end, PublisherEnd::Gone) {
                let is_silent = self.connections[at].is_silent;
                self.cut(at, is_silent);
                self.connections[at].publisher_end = PublisherEnd::Gone;
            }
        }
    }

    fn cut_power(&mut self) {
        self.kill_publisher();
        self.directory.cut_power(&mut self.random);
        let end = self.directory.end();
        self.log(|| format!("the power is cut: {end} events are left"));
    }

    fn copy_directory(&mut self) {
        let end = self.directory.end();
        let closed_at = self.directory.closed_at;
        self.log(|| format!("a copy of {end} events is made, closed at {closed_at:?}"));
        self.copies.push(self.directory.clone());
    }

    fn restore_directory(&mut self) -> Result<(), Violation> {
        if self.copies.is_empty() {
            return Ok(());
        }
        self.end_publisher()?;
        let which = self.random.below(self.copies.len());
        let copy = self.copies[which].clone();
        let end = copy.end();
        self.log(|| format!("a copy of {end} events takes the place of the directory"));
        // The one before can be one to come back to.
        let before = std::mem::replace(&mut self.directory, copy);
        self.copies[which] = before;
        self.lineage += 1;
        Ok(())
    }

    fn replace_directory(&mut self) -> Result<(), Violation> {
        self.end_publisher()?;
        self.ledgers.push(Ledger::default());
        let number = u8::try_from(self.lineage + 2).unwrap_or(u8::MAX);
        self.directory = Directory::new(number, self.ledgers.len() - 1);
        self.lineage += 1;
        self.log(|| "the directory is lost, and begun anew".to_owned());
        Ok(())
    }

    fn end_publisher(&mut self) -> Result<(), Violation> {
        match self.random.below(3) {
            0 => self.kill_publisher(),
            1 => self.cut_power(),
            _ => self.stop_publisher()?,
        }
        Ok(())
    }

    fn retain(&mut self) {
        let Some(publisher) = &self.publisher else { return };
        let end = publisher.ring.end().min(self.directory.synced);
        let to = self.random.within(self.directory.start, end);
        self.directory.start = self.directory.boundary(to).min(end);
        let start = self.directory.start;
        self.log(|| format!("retention takes events before {start}"));
    }

    // What is checked.

    fn is_admitted(&self, id: EventId) -> bool {
        let event = self.events.get(id);
        self.own.passes(event) && self.directory.sieve(event.offset).passes(event)
    }

    /// All events of its slice ahead of it are handled, or need not be.
    fn check_order(&self, id: EventId) -> Result<(), Violation> {
        let ledger = &self.ledgers[self.directory.ledger];
        let mut ahead = self.events.get(id).before_in_slice;
        while let Some(one) = ahead.filter(|one| !ledger.handled.contains_key(one)) {
            let (event, offset) = (self.events.get(one), self.events.get(id).offset);
            let is_due = self.is_admitted(one) && !ledger.waived.contains(&one);
            ensure!(!is_due, "{offset} is handled before {} of the same slice", event.offset);
            ahead = event.before_in_slice;
        }
        Ok(())
    }

    fn check_sent(&mut self, at: usize, frame: &Frame) -> Result<(), Violation> {
        let instance = self.connections[at].instance;
        let of = (self.lineage, self.directory.ledger);
        let PublisherEnd::Open(seat) = &mut self.connections[at].publisher_end else { return Ok(()) };
        match frame {
            Frame::Assign(assign) => {
                seat.slices = assign.slices.as_ref().and_then(SliceRange::of_proto);
                seat.is_revoked = false;
                let known = self.assignments.get(&(instance, assign.assignment));
                // One that goes on is of the same reset as before.
                let ledger = known.filter(|_| assign.resumed).map_or(of.1, |(_, ledger)| *ledger);
                self.assignments.insert((instance, assign.assignment), (of.0, ledger));
                Ok(())
            }
            Frame::Revoke(revoke) => {
                seat.is_revoked = !revoke.lost;
                Ok(())
            }
            Frame::FilteredFrom(filtered) => {
                // It may be followed by another.
                ensure!(self.named.contains(&filtered.offset), "no filter holds from {} on", filtered.offset);
                Ok(())
            }
            Frame::Records(records) => self.check_events(at, records.from, records.next, &records.batches),
            Frame::Skip(skip) => self.check_events(at, skip.from, skip.next, &[]),
            Frame::Opened(_) | Frame::Alive(_) => Ok(()),
        }
    }

    /// What is sent is right, and what is left out is not missed.
    fn check_events(&self, at: usize, from: i64, next: i64, batches: &[u8]) -> Result<(), Violation> {
        let PublisherEnd::Open(seat) = &self.connections[at].publisher_end else { return Ok(()) };
        let slices = seat.slices.ok_or("events are sent without slices")?;
        let sent = self.events.read(batches)?;
        let ledger = &self.ledgers[self.directory.ledger];
        if self.profile != Profile::Mapped {
            ensure!(next <= self.directory.synced, "{next} is sent, and {} is synced", self.directory.synced);
        }
        let mut sent = sent.into_iter().peekable();
        for offset in from..next {
            let id = *self.directory.history.get(offset as usize).ok_or("it does not have what is sent")?;
            let is_sent = sent.next_if_eq(&id).is_some();
            let is_its = slices.contains(self.events.get(id).slice) && self.is_admitted(id);
            ensure!(!is_sent || is_its, "{offset} is sent to {}, and not for it", self.name(at));
            ensure!(
                is_sent || !is_its || ledger.is_settled(id),
                "{offset} is left out of what {} is sent, and not handled",
                self.name(at)
            );
        }
        ensure!(sent.peek().is_none(), "{from} to {next} has other events than the journal");
        Ok(())
    }

    /// The journal does not have all of the history that ends with `tip`.
    fn is_left(&self, tip: EventId) -> bool {
        self.events.common_end(&self.directory.history, tip) <= self.events.get(tip).offset
    }

    /// An instance is refused: what has happened explains why.
    fn check_refused(&self, at: usize, status: &Status, kept: Option<&Refused>) -> Result<(), Violation> {
        if status.code() == Code::Aborted {
            ensure!(self.is_overtaken(at), "{} is refused as if it were late", self.name(at));
            return Ok(());
        }
        let Some(instance) = self.instances.get(&self.connections[at].instance) else { return Ok(()) };
        let refused = Refused::of_status(status).ok_or_else(|| status.message().to_owned())?;
        let common = |one: EventId| self.events.common_end(&self.directory.history, one);
        let (received, assigned) = (instance.received.map(common), instance.assigned.map(common));
        let is_explained = match refused {
            _ if kept == Some(&refused) => self.explains_kept(&refused),
            Refused::JournalReplaced { was, now } => {
                was != now && now == self.directory.id && received.is_none_or(|common| common == 0)
            }
            Refused::Diverged { at } => {
                let tips = [instance.received, instance.assigned];
                tips.into_iter().flatten().any(|tip| self.left_at(tip).contains(&at))
            }
            Refused::OutOfRange { .. } | Refused::Fenced => false,
        };
        ensure!(
            is_explained,
            "{} is refused by {refused:?} (kept: {kept:?}), and has {received:?} and {assigned:?} in common",
            instance.name
        );
        Ok(())
    }

    /// Where the history that ends with `tip` has left that of the directory. Of what others appended to a directory that no publisher
    /// had open, it is not known whether copies have the same.
    fn left_at(&self, tip: EventId) -> [i64; 2] {
        let common = self.events.common_end(&self.directory.history, tip);
        let mut known = common;
        while known > 0 && self.events.get(self.directory.history[known as usize - 1]).is_of_others {
            known -= 1;
        }
        [common, known].map(|offset| offset.max(self.directory.start))
    }

    fn explains_kept(&self, refused: &Refused) -> bool {
        match refused {
            Refused::Diverged { at } => {
                self.profile == Profile::Mapped
                    && self.directory.cut_at.iter().any(|cut| (*cut).max(self.directory.start) == *at)
            }
            Refused::OutOfRange { offset, start, .. } => offset < start && *start == self.directory.start,
            _ => false,
        }
    }

    // The end.

    /// Without faults everything comes to be handled.
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
        if self.instances.values().all(|one| one.is_leaving) {
            self.spawn();
        }
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

    /// Goes on where the consumer cannot by itself, as its name says.
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

fn text_of(frame: &Frame) -> String {
    match frame {
        Frame::Records(records) => format!("Records {} to {}", records.from, records.next),
        Frame::Skip(skip) => format!("Skip {} to {}", skip.from, skip.next),
        other => format!("{other:?}"),
    }
}
