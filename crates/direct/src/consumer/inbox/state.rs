//! The state behind an inbox: a machine without a clock and without waiting.

use std::collections::VecDeque;

use super::{ConsumerConfig, ConsumerEvent};
use crate::error::{DirectError, Refused, Result};
use crate::proto::{self, from_consumer, from_publisher};
use crate::resume::{Epoch, JournalId, JournalView, RUNS_MAX, Received};
use crate::sequence::Sequence;
use crate::slices::{Done, SliceRange};

/// So many changes of slices wait for the application; an honest publisher waits for it before it makes more.
const CONTROLS_MAX: usize = 1_024;
/// So many changes of the filter wait for it, each between events.
const FILTERED_MAX: usize = 1_024;

/// What has arrived, what is to be sent, and what of it the other side knows.
#[derive(Debug)]
pub(super) struct State {
    /// What comes before records.
    controls: VecDeque<ConsumerEvent>,
    records: VecDeque<ConsumerEvent>,
    is_held: bool,
    /// The application gives this assignment back: what follows waits, though the publisher may have taken it already.
    awaits_release: Option<u64>,
    failed: Option<DirectError>,
    has_failed: bool,
    journal: Option<JournalView>,
    assigned: Option<Assigned>,
    /// The offset behind all events that were received of the journal.
    received_to: i64,
    /// That behind the last one that the publisher has shown, as far as it is known.
    end: Option<i64>,
    credit_bytes: u64,
    credit_due: u64,
    /// What waited for the application at the last `Open` beyond all credit, as the last frame may have more: taken, it is no credit.
    overdrawn: u64,
    /// What the publisher may send still, in bytes; the last frame may have more.
    room: i64,
    outgoing: Outgoing,
    is_leaving: bool,
    /// The last connection.
    attempt: proto::Attempt,
    /// Its `Open` was not answered yet, or by `Opened` alone where an `Assign` follows at once.
    is_opening: bool,
}

#[derive(Debug)]
struct Assigned {
    slices: SliceRange,
    sequence: Sequence,
    done: Done,
    is_revoking: bool,
    /// The application has given it back while `Open` said that it has it: the publisher hears of that behind the answer.
    is_released: bool,
}

#[derive(Debug, Default)]
struct Outgoing {
    has_done: bool,
    /// Until the publisher has it, which the answer to an `Open` with it says, or a next assignment.
    released: Option<Kept<Done>>,
    /// Until it is answered by `FilteredFrom`.
    filter: Option<Kept<proto::Filter>>,
}

/// What is kept until it is known to have arrived, so that a lost connection does not lose it.
#[derive(Debug)]
struct Kept<T> {
    what: T,
    /// It was sent by the present connection.
    is_sent: bool,
}

impl<T: Clone> Kept<T> {
    fn new(what: T) -> Kept<T> {
        Kept { what, is_sent: false }
    }

    /// What is to be sent, once.
    fn take(&mut self) -> Option<T> {
        (!std::mem::replace(&mut self.is_sent, true)).then(|| self.what.clone())
    }
}

fn bytes_of(event: &ConsumerEvent) -> u64 {
    match event {
        ConsumerEvent::Records { batches, .. } => batches.len() as u64,
        _ => 0,
    }
}

impl State {
    /// With what the consumer may be sent before it has taken any, and a number that no other process has.
    pub(super) fn new(credit_bytes: u64, process: u64) -> State {
        State {
            controls: VecDeque::new(),
            records: VecDeque::new(),
            is_held: false,
            awaits_release: None,
            failed: None,
            has_failed: false,
            journal: None,
            assigned: None,
            received_to: 0,
            end: None,
            credit_bytes,
            credit_due: 0,
            overdrawn: 0,
            room: 0,
            outgoing: Outgoing::default(),
            is_leaving: false,
            attempt: proto::Attempt { process, number: 0 },
            is_opening: false,
        }
    }

    /// What the application is brought next; none if nothing is there.
    pub(super) fn look(&mut self) -> Option<Result<ConsumerEvent>> {
        if let Some(control) = self.next_control() {
            return Some(Ok(control));
        }
        if !self.is_held
            && self.awaits_release.is_none()
            && let Some(records) = self.records.pop_front()
        {
            self.give_credit(bytes_of(&records));
            return Some(Ok(records));
        }
        match self.failed.take() {
            Some(error) => Some(Err(error)),
            None => self.has_failed.then_some(Err(DirectError::Closed)),
        }
    }

    /// No records are brought while they are held.
    pub(super) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// The journal, as the publisher described it last.
    pub(super) fn journal(&self) -> Option<&JournalView> {
        self.journal.as_ref()
    }

    /// The publisher's journal ends there now.
    pub(super) fn note_end(&mut self, end: i64) {
        self.end = Some(end);
    }

    pub(super) fn end(&self) -> Option<i64> {
        self.end
    }

    pub(super) fn assignment(&self) -> Option<u64> {
        self.assigned.as_ref().map(|one| one.done.assignment)
    }

    /// What was done of an assignment; false if the instance does not have it any more.
    pub(super) fn done(&mut self, done: Done) -> bool {
        let assigned = self.assigned.as_mut().filter(|one| one.done.assignment == done.assignment);
        let Some(assigned) = assigned else { return false };
        assigned.done = done;
        self.outgoing.has_done = true;
        true
    }

    /// The application has given an assignment back. What follows it is brought from now on.
    pub(super) fn release(&mut self, done: Done) {
        if self.awaits_release == Some(done.assignment) {
            // What was lost meanwhile is given back all the same.
            let next = self.controls.front();
            if matches!(next, Some(ConsumerEvent::Lost { assignment, .. }) if *assignment == done.assignment)
            {
                self.controls.pop_front();
            }
            self.awaits_release = None;
        }
        // One that has ended meanwhile has nothing to give back.
        let assigned = self.assigned.as_mut().filter(|one| one.done.assignment == done.assignment);
        let Some(assigned) = assigned else { return };
        (assigned.done, assigned.is_released) = (done, true);
        self.outgoing.has_done = true;
        if !self.is_opening {
            self.give_back();
        }
    }

    pub(super) fn keep_filter(&mut self, filter: proto::Filter) {
        self.outgoing.filter = Some(Kept::new(filter));
    }

    pub(super) fn leave(&mut self) {
        self.is_leaving = true;
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// The instance leaves, and there is nothing that the publisher has to hear of it before.
    pub(super) fn has_left(&self) -> bool {
        self.is_leaving && !self.owes()
    }

    pub(super) fn fail(&mut self, error: DirectError) {
        (self.failed, self.has_failed) = (Some(error), true);
    }

    /// The first frame of a connection: what was read and done before it.
    pub(super) fn open(&mut self, config: &ConsumerConfig) -> proto::Open {
        self.give_back();
        self.is_opening = true;
        self.attempt.number += 1;
        // What was read ahead counts against the credit still.
        let unread: u64 = self.records.iter().map(bytes_of).sum();
        (self.credit_due, self.outgoing.has_done) = (0, false);
        let credit_bytes = self.credit_bytes.saturating_sub(unread);
        self.overdrawn = unread.saturating_sub(self.credit_bytes);
        self.room = i64::try_from(credit_bytes).unwrap_or(i64::MAX);
        if let Some(filter) = &mut self.outgoing.filter {
            filter.is_sent = false;
        }
        let mut open = proto::Open {
            stream: config.stream.clone(),
            consumer: config.consumer.clone(),
            instance: config.instance.clone(),
            pinned: config.pinned.map(SliceRange::to_proto),
            filter: config.filter.clone(),
            credit_bytes,
            start: config.start.into(),
            attempt: Some(self.attempt),
            ..proto::Open::default()
        };
        let Some(journal) = &self.journal else { return open };
        open.journal_id = journal.id.0.to_vec().into();
        if let Some(assigned) = &self.assigned {
            let slices = Some(assigned.slices.to_proto());
            open.offset = assigned.sequence.next();
            open.held = Some(proto::Held { done: Some(assigned.done.to_proto()), slices });
        } else if let Some(released) = &mut self.outgoing.released {
            released.is_sent = true;
            open.offset = released.what.end();
            open.held = Some(proto::Held { done: Some(released.what.to_proto()), slices: None });
        } else {
            open.offset = self.received_to;
        }
        open.epoch = journal.epoch_before(open.offset);
        open.epochs = journal.runs_before(open.offset).iter().map(|run| run.to_proto()).collect();
        open
    }

    /// The next change of slices; none before what was revoked is given back.
    fn next_control(&mut self) -> Option<ConsumerEvent> {
        if self.awaits_release.is_some() {
            return None;
        }
        let control = self.controls.pop_front();
        if let Some(ConsumerEvent::Revoking { assignment }) = control {
            self.awaits_release = Some(assignment);
        }
        control
    }

    /// What was read ahead is not kept any more.
    fn give_credit(&mut self, bytes: u64) {
        let overdrawn = bytes.min(self.overdrawn);
        self.overdrawn -= overdrawn;
        self.credit_due += bytes - overdrawn;
    }

    pub(super) fn is_credit_worth_sending(&self) -> bool {
        self.credit_due * 4 >= self.credit_bytes
    }

    /// What is to be sent now.
    pub(super) fn frame(&mut self) -> Option<from_consumer::Frame> {
        use from_consumer::Frame;
        if let Some(released) = self.outgoing.released.as_mut().and_then(Kept::take) {
            return Some(Frame::Released(proto::Released { done: Some(released.to_proto()) }));
        }
        if std::mem::take(&mut self.outgoing.has_done)
            && let Some(assigned) = &self.assigned
        {
            return Some(Frame::Done(assigned.done.to_proto()));
        }
        if let Some(filter) = self.outgoing.filter.as_mut().and_then(Kept::take) {
            return Some(Frame::Filter(filter));
        }
        if !self.is_credit_worth_sending() {
            return None;
        }
        let bytes = std::mem::take(&mut self.credit_due);
        self.room = self.room.saturating_add_unsigned(bytes);
        Some(Frame::Credit(proto::Credit { bytes }))
    }

    /// Returns true if the instance has anything of which the publisher is to hear that it is given back or done, or to be kept.
    fn owes(&self) -> bool {
        self.assigned.is_some() || self.outgoing.released.is_some() || self.outgoing.filter.is_some()
    }

    /// What the application has given back is to be said.
    fn give_back(&mut self) {
        if let Some(released) = self.assigned.take_if(|one| one.is_released) {
            self.outgoing.has_done = false;
            self.outgoing.released = Some(Kept::new(released.done));
        }
    }

    /// Events that were read ahead are left to the next one that has the slices.
    fn drop_records(&mut self) {
        self.give_credit(self.records.iter().map(bytes_of).sum());
        self.records.retain(|one| matches!(one, ConsumerEvent::FilteredFrom { .. }));
    }

    /// Takes a frame of the publisher.
    ///
    /// # Errors
    /// How it does not keep to the protocol.
    pub(super) fn take(&mut self, frame: from_publisher::Frame) -> Result<(), String> {
        use from_publisher::Frame;
        if matches!(frame, Frame::Assign(_) | Frame::Revoke(_)) && self.controls.len() >= CONTROLS_MAX {
            return Err(format!("{CONTROLS_MAX} changes of slices are not taken yet, and another one comes"));
        }
        match frame {
            Frame::Opened(opened) => self.opened(&opened),
            Frame::Assign(assign) => self.assign(&assign),
            Frame::Records(records) => self.records(records),
            Frame::Skip(skip) => {
                let records =
                    proto::Records { from: skip.from, next: skip.next, batches: bytes::Bytes::new() };
                self.records(records)
            }
            Frame::FilteredFrom(filtered) => self.filtered_from(filtered.offset),
            Frame::Revoke(revoke) => {
                self.revoke(&revoke);
                Ok(())
            }
            Frame::Alive(_) => Ok(()),
        }
    }

    /// Holds the journal against all that was received of it. `Open` named what the present assignment has, and there may have been
    /// others that were further.
    pub(super) fn check_opened(&self, opened: &proto::Opened) -> Result<(), Refused> {
        let (Some(before), Ok(now)) = (&self.journal, view_of(opened)) else { return Ok(()) };
        let offset = self.received_to;
        now.check_received(&Received {
            journal: before.id,
            epoch: before.epoch_before(offset),
            offset,
            runs: before.runs_before(offset).to_vec(),
        })
    }

    fn opened(&mut self, opened: &proto::Opened) -> Result<(), String> {
        self.journal = Some(view_of(opened)?);
        self.is_opening = opened.resumed;
        self.end = Some(opened.end);
        // `Open` had it.
        self.outgoing.released.take_if(|released| released.is_sent);
        if !opened.resumed {
            self.lose(false);
        }
        Ok(())
    }

    fn lose(&mut self, by_reset: bool) {
        if let Some(lost) = self.assigned.take().filter(|one| !one.is_released) {
            self.drop_records();
            let assignment = lost.done.assignment;
            self.controls.push_back(ConsumerEvent::Lost { assignment, by_reset });
        }
    }

    fn assign(&mut self, assign: &proto::Assign) -> Result<(), String> {
        let slices =
            assign.slices.as_ref().and_then(SliceRange::of_proto).ok_or("an assignment has no slices")?;
        let (assignment, offset) = (assign.assignment, assign.offset);
        self.is_opening = false;
        if assign.resumed {
            let held =
                self.assigned.as_ref().map(|one| (one.done.assignment, one.slices, one.sequence.next()));
            if held != Some((assignment, slices, offset)) {
                return Err(format!(
                    "assignment {assignment} is to go on, which this instance does not have"
                ));
            }
            self.give_back();
            return Ok(());
        }
        self.lose(false);
        // It follows what was released before.
        self.outgoing.released = None;
        let done = Done { assignment, offset, finished: Vec::new() };
        let (sequence, is_revoking, is_released) = (Sequence::new(offset), false, false);
        self.assigned = Some(Assigned { slices, sequence, done, is_revoking, is_released });
        let epoch = self.journal.as_ref().map_or(0, |journal| journal.epoch_before(offset));
        self.controls.push_back(ConsumerEvent::Assigned { assignment, slices, offset, epoch });
        Ok(())
    }

    fn records(&mut self, records: proto::Records) -> Result<(), String> {
        let proto::Records { from, next, batches } = records;
        let Some(assigned) = self.assigned.as_mut() else {
            return match self.outgoing.released {
                // The publisher has not heard of it yet.
                Some(_) => {
                    self.received_to = self.received_to.max(next);
                    self.leave_to_others(batches.len())
                }
                None => Err("events came without an assignment".to_owned()),
            };
        };
        if self.room <= 0 && !batches.is_empty() {
            return Err("more events came than there is credit for".to_owned());
        }
        let ranges = assigned.sequence.accept(from, next, &batches).map_err(|fault| fault.to_string())?;
        self.received_to = self.received_to.max(next);
        self.end = self.end.max(Some(next));
        let assignment = assigned.done.assignment;
        if assigned.is_revoking {
            // It was taken up again, and is given back all the same.
            return self.leave_to_others(batches.len());
        }
        if batches.is_empty() && self.skip(assignment, next) {
            return Ok(());
        }
        self.room = self.room.saturating_sub_unsigned(batches.len() as u64);
        self.records.push_back(ConsumerEvent::Records { assignment, from, next, batches, ranges });
        Ok(())
    }

    /// Events of slices that are being given back are for the next one that has them.
    fn leave_to_others(&mut self, bytes: usize) -> Result<(), String> {
        self.give_credit(bytes as u64);
        self.room = self.room.saturating_sub_unsigned(bytes as u64);
        Ok(())
    }

    /// Has the last frame that waits end later, so that frames without events take no room; false if there is none.
    fn skip(&mut self, assignment: u64, to: i64) -> bool {
        match self.records.back_mut() {
            Some(ConsumerEvent::Records { assignment: last, next, .. }) if *last == assignment => {
                *next = to;
                true
            }
            _ => false,
        }
    }

    fn filtered_from(&mut self, offset: i64) -> Result<(), String> {
        self.outgoing.filter.take_if(|filter| filter.is_sent);
        if let Some(ConsumerEvent::FilteredFrom { offset: last }) = self.records.back_mut() {
            *last = offset;
            return Ok(());
        }
        let count =
            self.records.iter().filter(|one| matches!(one, ConsumerEvent::FilteredFrom { .. })).count();
        if count >= FILTERED_MAX {
            return Err(format!(
                "{FILTERED_MAX} changes of the filter are not taken yet, and another one comes"
            ));
        }
        self.records.push_back(ConsumerEvent::FilteredFrom { offset });
        Ok(())
    }

    fn revoke(&mut self, revoke: &proto::Revoke) {
        let assigned = self.assigned.as_mut().filter(|one| one.done.assignment == revoke.assignment);
        let Some(assigned) = assigned else { return };
        if revoke.lost {
            return self.lose(true);
        }
        if std::mem::replace(&mut assigned.is_revoking, true) {
            // By the connection before, too.
            return;
        }
        self.drop_records();
        self.controls.push_back(ConsumerEvent::Revoking { assignment: revoke.assignment });
    }
}

#[cfg(test)]
impl State {
    /// Checks what holds whatever comes.
    ///
    /// # Panics
    /// If it does not.
    pub(super) fn check(&self) {
        // A frame may both lose an assignment and bring another one.
        assert!(self.controls.len() <= CONTROLS_MAX + 2, "{} changes of slices wait", self.controls.len());
        let is_filtered = |one: &&ConsumerEvent| matches!(one, ConsumerEvent::FilteredFrom { .. });
        assert!(self.records.iter().filter(is_filtered).count() <= FILTERED_MAX);
        if self.attempt.number == 0 {
            return;
        }
        // What may be sent, what waits and what was taken are the credit, whatever was lost with connections.
        let unread: u64 = self.records.iter().map(bytes_of).sum();
        let credit = i128::from(self.room) + i128::from(unread) + i128::from(self.credit_due);
        assert_eq!(credit - i128::from(self.overdrawn), i128::from(self.credit_bytes), "{self:?}");
    }

    /// How many records, or changes of the filter between them, wait for the application.
    pub(super) fn waiting(&self) -> usize {
        self.records.len()
    }
}

/// A publisher's journal, as it names it.
fn view_of(opened: &proto::Opened) -> Result<JournalView, String> {
    let id =
        <[u8; 16]>::try_from(&opened.journal_id[..]).map_err(|_| "a journal's id has 16 bytes".to_owned())?;
    if opened.epochs.len() > RUNS_MAX {
        return Err(format!(
            "it names {} runs of its journal, and {RUNS_MAX} are the most",
            opened.epochs.len()
        ));
    }
    let epochs = opened.epochs.iter().map(Epoch::of_proto).collect();
    let (start, end) = (opened.start, opened.end);
    Ok(JournalView { id: JournalId(id), epochs, start, end })
}
