//! The state machine of an inbox. It has no clock and does not wait.

use std::collections::VecDeque;

use super::{ConsumerConfig, ConsumerEvent};
use crate::error::{DirectError, Refused, Result};
use crate::proto::{self, from_consumer, from_publisher};
use crate::resume::{Epoch, JournalId, JournalView, RUNS_MAX, Received};
use crate::sequence::Sequence;
use crate::slices::{Done, SliceRange};

/// The most changes of slices that wait for the application. An honest publisher waits for the application before it
/// makes more.
const CONTROLS_MAX: usize = 1_024;
/// The most changes of the filter that wait for the application, between records.
const FILTERED_MAX: usize = 1_024;

/// Frames that have arrived and frames to send, with those of them that the publisher may not have.
#[derive(Debug)]
pub(super) struct State {
    /// Changes of slices, which the application gets before records.
    controls: VecDeque<ConsumerEvent>,
    records: VecDeque<ConsumerEvent>,
    is_held: bool,
    /// The application has this assignment to release: what follows waits, though the publisher may have taken the
    /// slices already.
    awaits_release: Option<u64>,
    failed: Option<DirectError>,
    has_failed: bool,
    journal: Option<JournalView>,
    assigned: Option<Assigned>,
    /// The offset behind all events that were received of the journal.
    received_to: i64,
    /// The offset behind the last event that the publisher has shown, as far as it is known.
    end: Option<i64>,
    credit_bytes: u64,
    credit_due: u64,
    /// Unread bytes beyond the credit at the last `Open`: the last frame may have been larger than the credit. They give no credit
    /// when they are read.
    overdrawn: u64,
    /// The bytes that the publisher may still send. The last frame may have more.
    credit_left: i64,
    outgoing: Outgoing,
    is_leaving: bool,
    /// The number of the last connection.
    attempt: proto::Attempt,
    /// The last `Open` was not answered yet, or by an `Opened` whose `Assign` has not come yet.
    is_opening: bool,
}

#[derive(Debug)]
struct Assigned {
    slices: SliceRange,
    sequence: Sequence,
    done: Done,
    is_revoking: bool,
    /// The application has released it while an `Open` said that it is held. The publisher gets `Released` after its
    /// answer.
    is_released: bool,
}

#[derive(Debug, Default)]
struct Outgoing {
    has_done: bool,
    /// Kept until the answer to an `Open` that named it, or the next assignment, confirms it.
    released: Option<Unconfirmed<Done>>,
    /// Kept until `FilteredFrom` answers it.
    filter: Option<Unconfirmed<proto::Filter>>,
}

/// A message that is kept until it is known to have arrived, so that a lost connection does not lose it.
#[derive(Debug)]
struct Unconfirmed<T> {
    what: T,
    /// It was sent on the present connection.
    is_sent: bool,
}

impl<T: Clone> Unconfirmed<T> {
    fn new(what: T) -> Unconfirmed<T> {
        Unconfirmed { what, is_sent: false }
    }

    /// Returns the message to send; `None` if the present connection has sent it.
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
    /// Begins with the credit to give, and a number that no other process has.
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
            credit_left: 0,
            outgoing: Outgoing::default(),
            is_leaving: false,
            attempt: proto::Attempt { process, number: 0 },
            is_opening: false,
        }
    }

    /// Returns the next event for the application, if one is due.
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

    /// Holds records back, or returns them again.
    pub(super) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// The journal, as the publisher described it last.
    pub(super) fn journal(&self) -> Option<&JournalView> {
        self.journal.as_ref()
    }

    /// Notes the end of the publisher's journal.
    pub(super) fn note_end(&mut self, end: i64) {
        self.end = Some(end);
    }

    pub(super) fn end(&self) -> Option<i64> {
        self.end
    }

    pub(super) fn assignment(&self) -> Option<u64> {
        self.assigned.as_ref().map(|one| one.done.assignment)
    }

    /// Notes what was done of an assignment; false if the instance does not have it any more.
    pub(super) fn done(&mut self, done: Done) -> bool {
        let assigned = self.assigned.as_mut().filter(|one| one.done.assignment == done.assignment);
        let Some(assigned) = assigned else { return false };
        assigned.done = done;
        self.outgoing.has_done = true;
        true
    }

    /// Notes that the application has released an assignment. What follows it is due from now on.
    pub(super) fn release(&mut self, done: Done) {
        if self.awaits_release == Some(done.assignment) {
            // If it was lost meanwhile, the application need not learn that any more.
            let next = self.controls.front();
            if matches!(next, Some(ConsumerEvent::Lost { assignment, .. }) if *assignment == done.assignment)
            {
                self.controls.pop_front();
            }
            self.awaits_release = None;
        }
        // An assignment that has ended meanwhile has no slices to give back.
        let assigned = self.assigned.as_mut().filter(|one| one.done.assignment == done.assignment);
        let Some(assigned) = assigned else { return };
        (assigned.done, assigned.is_released) = (done, true);
        self.outgoing.has_done = true;
        if !self.is_opening {
            self.give_back();
        }
    }

    pub(super) fn keep_filter(&mut self, filter: proto::Filter) {
        self.outgoing.filter = Some(Unconfirmed::new(filter));
    }

    pub(super) fn leave(&mut self) {
        self.is_leaving = true;
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Returns true if the instance leaves and the publisher has received everything of it.
    pub(super) fn has_left(&self) -> bool {
        self.is_leaving && !self.owes()
    }

    pub(super) fn fail(&mut self, error: DirectError) {
        (self.failed, self.has_failed) = (Some(error), true);
    }

    /// Makes the first frame of a connection, with what was read and done before.
    pub(super) fn open(&mut self, config: &ConsumerConfig) -> proto::Open {
        self.give_back();
        self.is_opening = true;
        self.attempt.number += 1;
        // Bytes that were read ahead still count against the credit.
        let unread: u64 = self.records.iter().map(bytes_of).sum();
        (self.credit_due, self.outgoing.has_done) = (0, false);
        let credit_bytes = self.credit_bytes.saturating_sub(unread);
        self.overdrawn = unread.saturating_sub(self.credit_bytes);
        self.credit_left = i64::try_from(credit_bytes).unwrap_or(i64::MAX);
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

    /// Returns the next change of slices; `None` while a revoked assignment was not released.
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

    /// Gives the publisher credit again for bytes that wait no more.
    fn give_credit(&mut self, bytes: u64) {
        let overdrawn = bytes.min(self.overdrawn);
        self.overdrawn -= overdrawn;
        self.credit_due += bytes - overdrawn;
    }

    pub(super) fn is_credit_worth_sending(&self) -> bool {
        self.credit_due * 4 >= self.credit_bytes
    }

    /// Returns the next frame to send, if one is due.
    pub(super) fn frame(&mut self) -> Option<from_consumer::Frame> {
        use from_consumer::Frame;
        if let Some(released) = self.outgoing.released.as_mut().and_then(Unconfirmed::take) {
            return Some(Frame::Released(proto::Released { done: Some(released.to_proto()) }));
        }
        if std::mem::take(&mut self.outgoing.has_done)
            && let Some(assigned) = &self.assigned
        {
            return Some(Frame::Done(assigned.done.to_proto()));
        }
        if let Some(filter) = self.outgoing.filter.as_mut().and_then(Unconfirmed::take) {
            return Some(Frame::Filter(filter));
        }
        if !self.is_credit_worth_sending() {
            return None;
        }
        let bytes = std::mem::take(&mut self.credit_due);
        self.credit_left = self.credit_left.saturating_add_unsigned(bytes);
        Some(Frame::Credit(proto::Credit { bytes }))
    }

    /// Returns true if the publisher has to receive something yet: slices that are given back, what was done, or a filter.
    fn owes(&self) -> bool {
        self.assigned.is_some() || self.outgoing.released.is_some() || self.outgoing.filter.is_some()
    }

    /// Has an assignment that the application has released sent as `Released`.
    fn give_back(&mut self) {
        if let Some(released) = self.assigned.take_if(|one| one.is_released) {
            self.outgoing.has_done = false;
            self.outgoing.released = Some(Unconfirmed::new(released.done));
        }
    }

    /// Drops events that were read ahead. The next instance with the slices gets them.
    fn drop_records(&mut self) {
        self.give_credit(self.records.iter().map(bytes_of).sum());
        self.records.retain(|one| matches!(one, ConsumerEvent::FilteredFrom { .. }));
    }

    /// Takes a frame of the publisher.
    ///
    /// # Errors
    /// The breach of the protocol.
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

    /// Compares the journal with everything that was received. The publisher itself compares only what `Open` named: the present
    /// assignment. Earlier ones may have been further.
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
        // `Open` named it.
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
        // The new assignment confirms what was released before.
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
                // The publisher has not received `Released` yet.
                Some(_) => {
                    self.received_to = self.received_to.max(next);
                    self.leave_to_others(batches.len())
                }
                None => Err("events came without an assignment".to_owned()),
            };
        };
        if self.credit_left <= 0 && !batches.is_empty() {
            return Err("more events came than there is credit for".to_owned());
        }
        let ranges = assigned.sequence.accept(from, next, &batches).map_err(|fault| fault.to_string())?;
        self.received_to = self.received_to.max(next);
        self.end = self.end.max(Some(next));
        let assignment = assigned.done.assignment;
        if assigned.is_revoking {
            // The connection before had revoked it, so it is given back all the same.
            return self.leave_to_others(batches.len());
        }
        if batches.is_empty() && self.skip(assignment, next) {
            return Ok(());
        }
        self.credit_left = self.credit_left.saturating_sub_unsigned(batches.len() as u64);
        self.records.push_back(ConsumerEvent::Records { assignment, from, next, batches, ranges });
        Ok(())
    }

    /// Drops events of slices that are being given back. The next instance with the slices gets them.
    fn leave_to_others(&mut self, bytes: usize) -> Result<(), String> {
        self.give_credit(bytes as u64);
        self.credit_left = self.credit_left.saturating_sub_unsigned(bytes as u64);
        Ok(())
    }

    /// Extends the last record frame that waits, so that frames without events take no memory; false if there is none.
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
            // A connection before has revoked it already.
            return;
        }
        self.drop_records();
        self.controls.push_back(ConsumerEvent::Revoking { assignment: revoke.assignment });
    }
}

#[cfg(test)]
impl State {
    /// Checks the invariants.
    ///
    /// # Panics
    /// If one does not hold.
    pub(super) fn check(&self) {
        // A frame may both lose an assignment and bring another one.
        assert!(self.controls.len() <= CONTROLS_MAX + 2, "{} changes of slices wait", self.controls.len());
        let is_filtered = |one: &&ConsumerEvent| matches!(one, ConsumerEvent::FilteredFrom { .. });
        assert!(self.records.iter().filter(is_filtered).count() <= FILTERED_MAX);
        if self.attempt.number == 0 {
            return;
        }
        // Credit left, unread bytes and credit due always add up to the credit, whatever connections have lost.
        let unread: u64 = self.records.iter().map(bytes_of).sum();
        let credit = i128::from(self.credit_left) + i128::from(unread) + i128::from(self.credit_due);
        assert_eq!(credit - i128::from(self.overdrawn), i128::from(self.credit_bytes), "{self:?}");
    }

    /// The number of records, or changes of the filter between them, that wait for the application.
    pub(super) fn waiting(&self) -> usize {
        self.records.len()
    }
}

/// Reads a publisher's description of its journal.
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
