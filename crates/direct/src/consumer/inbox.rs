//! What has arrived and what is to be sent, between the connection and the application.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::Stream;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{ConsumerConfig, ConsumerEvent};
use crate::error::{DirectError, Refused, Result};
use crate::proto::{self, FromConsumer, from_consumer, from_publisher};
use crate::resume::{Epoch, JournalId, JournalView, RUNS_MAX, Received};
use crate::sequence::Sequence;
use crate::session::ALIVE_EVERY;
use crate::slices::{Done, SliceRange};

/// So many changes of slices wait for the application; an honest publisher waits for it before it makes more.
const CONTROLS_MAX: usize = 1_024;
/// So many changes of the filter wait for it, each between events.
const FILTERED_MAX: usize = 1_024;

/// Why a connection has ended.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Another one may do.
    Lost { was_opened: bool, reason: String },
    /// Another one may do once certificates or the address are others.
    Tls(DirectError),
    /// None will.
    Fatal(DirectError),
}

/// Why a frame of the publisher is not taken; its connection ends.
#[derive(Debug)]
pub(crate) enum Rejected {
    /// It does not keep to the protocol; another connection may be better.
    Protocol(String),
    /// Its journal does not have what was received: no connection will do.
    Refused(Refused),
}

#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// Something has arrived.
    arrived: Notify,
    /// Something is to be sent.
    to_send: Notify,
    left: Notify,
}

#[derive(Debug)]
struct State {
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

impl Inbox {
    /// With what the consumer may be sent before it has taken any, and a number that no other one has.
    pub(crate) fn new(credit_bytes: u64, process: u64) -> Inbox {
        let state = State {
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
            room: 0,
            outgoing: Outgoing::default(),
            is_leaving: false,
            attempt: proto::Attempt { process, number: 0 },
            is_opening: false,
        };
        Inbox {
            state: Mutex::new(state),
            arrived: Notify::new(),
            to_send: Notify::new(),
            left: Notify::new(),
        }
    }

    pub(crate) async fn next(&self) -> Result<ConsumerEvent> {
        loop {
            // Before the look, so that what comes after it is noticed.
            let arrived = self.arrived.notified();
            if let Some(next) = self.look() {
                return next;
            }
            arrived.await;
        }
    }

    /// What is there now.
    pub(crate) fn look(&self) -> Option<Result<ConsumerEvent>> {
        let mut state = self.state.lock();
        if let Some(control) = state.next_control() {
            return Some(Ok(control));
        }
        if !state.is_held
            && state.awaits_release.is_none()
            && let Some(records) = state.records.pop_front()
        {
            state.credit_due += bytes_of(&records);
            if state.is_credit_worth_sending() {
                self.to_send.notify_one();
            }
            return Some(Ok(records));
        }
        match state.failed.take() {
            Some(error) => Some(Err(error)),
            None => state.has_failed.then_some(Err(DirectError::Closed)),
        }
    }

    pub(crate) fn hold(&self, is_held: bool) {
        self.state.lock().is_held = is_held;
        self.arrived.notify_one();
    }

    /// The journal, as the publisher described it last.
    pub(crate) fn journal(&self) -> Option<JournalView> {
        self.state.lock().journal.clone()
    }

    /// The publisher's journal ends there now; 0, it does not say that.
    pub(crate) fn note_end(&self, end: i64) {
        if end > 0 {
            self.state.lock().end = Some(end);
        }
    }

    pub(crate) fn end(&self) -> Option<i64> {
        self.state.lock().end
    }

    pub(crate) fn assignment(&self) -> Option<u64> {
        self.state.lock().assigned.as_ref().map(|one| one.done.assignment)
    }

    pub(crate) fn done(&self, done: Done) {
        let mut state = self.state.lock();
        if let Some(assigned) = state.assigned.as_mut().filter(|one| one.done.assignment == done.assignment) {
            assigned.done = done;
            state.outgoing.has_done = true;
            self.to_send.notify_one();
        }
    }

    pub(crate) fn release(&self, done: Done) {
        let mut state = self.state.lock();
        if state.awaits_release == Some(done.assignment) {
            // What was lost meanwhile is given back all the same.
            let next = state.controls.front();
            if matches!(next, Some(ConsumerEvent::Lost { assignment, .. }) if *assignment == done.assignment)
            {
                state.controls.pop_front();
            }
            state.awaits_release = None;
            self.arrived.notify_one();
        }
        // One that has ended meanwhile has nothing to give back.
        let assigned = state.assigned.as_mut().filter(|one| one.done.assignment == done.assignment);
        let Some(assigned) = assigned else { return };
        (assigned.done, assigned.is_released) = (done, true);
        state.outgoing.has_done = true;
        if !state.is_opening {
            state.give_back();
        }
        self.to_send.notify_one();
    }

    pub(crate) fn keep_filter(&self, filter: proto::Filter) {
        self.state.lock().outgoing.filter = Some(Kept::new(filter));
        self.to_send.notify_one();
    }

    pub(crate) fn leave(&self) {
        self.state.lock().is_leaving = true;
        self.to_send.notify_one();
        self.left.notify_one();
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.state.lock().is_leaving
    }

    /// The instance leaves, and there is nothing that the publisher has to hear of it before.
    pub(crate) fn has_left(&self) -> bool {
        let state = self.state.lock();
        state.is_leaving && !state.owes()
    }

    /// Done when the instance leaves.
    pub(crate) async fn left(&self) {
        while !self.is_leaving() {
            self.left.notified().await;
        }
    }

    pub(crate) fn fail(&self, error: DirectError) {
        let mut state = self.state.lock();
        (state.failed, state.has_failed) = (Some(error), true);
        self.arrived.notify_one();
    }

    /// The first frame of a connection: what was read and done before it.
    pub(crate) fn open(&self, config: &ConsumerConfig) -> proto::Open {
        let mut state = self.state.lock();
        state.give_back();
        state.is_opening = true;
        state.attempt.number += 1;
        // What was read ahead counts against the credit still.
        let unread: u64 = state.records.iter().map(bytes_of).sum();
        (state.credit_due, state.outgoing.has_done) = (0, false);
        let credit_bytes = config.credit_bytes.saturating_sub(unread);
        state.room = i64::try_from(credit_bytes).unwrap_or(i64::MAX);
        if let Some(filter) = &mut state.outgoing.filter {
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
            attempt: Some(state.attempt),
            ..proto::Open::default()
        };
        let state = &mut *state;
        let Some(journal) = &state.journal else { return open };
        open.journal_id = journal.id.0.to_vec().into();
        if let Some(assigned) = &state.assigned {
            let slices = Some(assigned.slices.to_proto());
            open.offset = assigned.sequence.next();
            open.held = Some(proto::Held { done: Some(assigned.done.to_proto()), slices });
        } else if let Some(released) = &mut state.outgoing.released {
            released.is_sent = true;
            open.offset = released.what.end();
            open.held = Some(proto::Held { done: Some(released.what.to_proto()), slices: None });
        } else {
            open.offset = state.received_to;
        }
        open.epoch = journal.epoch_before(open.offset);
        open.epochs = journal.runs_before(open.offset).iter().map(|run| run.to_proto()).collect();
        open
    }

    /// The next frame that is due, if one is.
    pub(crate) fn to_be_sent(&self) -> Option<from_consumer::Frame> {
        self.state.lock().frame()
    }

    /// What a connection sends: made when there is room for it.
    pub(crate) fn outbound(self: Arc<Inbox>, open: proto::Open) -> impl Stream<Item = FromConsumer> + Send {
        let first = FromConsumer { frame: Some(from_consumer::Frame::Open(open)) };
        futures_util::stream::unfold((self, Some(first)), |(inbox, mut first)| async move {
            if let Some(first) = first.take() {
                return Some((first, (inbox, None)));
            }
            let alive_at = Instant::now() + ALIVE_EVERY;
            let frame = loop {
                let to_send = inbox.to_send.notified();
                let (frame, is_leaving) = (inbox.to_be_sent(), inbox.is_leaving());
                match frame {
                    Some(frame) => break frame,
                    None if is_leaving => return None,
                    None => {}
                }
                if tokio::time::timeout_at(alive_at, to_send).await.is_err() {
                    break from_consumer::Frame::Alive(proto::Alive {});
                }
            };
            Some((FromConsumer { frame: Some(frame) }, (inbox, None)))
        })
    }

    /// Takes a frame of the publisher.
    ///
    /// # Errors
    /// Why the connection ends.
    pub(crate) fn take(&self, frame: from_publisher::Frame) -> Result<(), Rejected> {
        let mut state = self.state.lock();
        if let from_publisher::Frame::Opened(opened) = &frame {
            state.check_opened(opened).map_err(Rejected::Refused)?;
        }
        let is_assign = matches!(frame, from_publisher::Frame::Assign(_));
        let taken = state.take(frame);
        self.arrived.notify_one();
        if is_assign {
            self.to_send.notify_one();
        }
        taken.map_err(Rejected::Protocol)
    }
}

impl State {
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

    fn is_credit_worth_sending(&self) -> bool {
        self.credit_due * 4 >= self.credit_bytes
    }

    /// What is to be sent now.
    fn frame(&mut self) -> Option<from_consumer::Frame> {
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
        self.credit_due += self.records.iter().map(bytes_of).sum::<u64>();
        self.records.retain(|one| matches!(one, ConsumerEvent::FilteredFrom { .. }));
    }

    fn take(&mut self, frame: from_publisher::Frame) -> Result<(), String> {
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
    fn check_opened(&self, opened: &proto::Opened) -> Result<(), Refused> {
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
        self.credit_due += bytes as u64;
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use prost::Message as _;

    fn slices() -> impl Strategy<Value = Option<proto::Slices>> {
        proptest::option::of((0u32..1_100, 0u32..1_100).prop_map(|(from, to)| proto::Slices { from, to }))
    }

    /// Frames that may come from anybody who calls itself a publisher.
    fn frame() -> impl Strategy<Value = from_publisher::Frame> {
        use from_publisher::Frame;
        let bytes = prop::collection::vec(any::<u8>(), 0..100);
        let offset = prop_oneof![0i64..20, any::<i64>()];
        let assignment = 0u64..4;
        prop_oneof![
            (prop::collection::vec(any::<u8>(), 14..18), any::<bool>()).prop_map(|(id, resumed)| {
                Frame::Opened(proto::Opened { journal_id: id.into(), resumed, ..proto::Opened::default() })
            }),
            (assignment.clone(), slices(), offset.clone(), any::<bool>()).prop_map(
                |(assignment, slices, offset, resumed)| {
                    Frame::Assign(proto::Assign { assignment, slices, offset, resumed })
                }
            ),
            (offset.clone(), offset.clone(), bytes).prop_map(|(from, next, batches)| {
                Frame::Records(proto::Records { from, next, batches: batches.into() })
            }),
            (offset.clone(), offset.clone()).prop_map(|(from, next)| Frame::Skip(proto::Skip { from, next })),
            offset.prop_map(|offset| Frame::FilteredFrom(proto::FilteredFrom { offset })),
            (assignment, any::<bool>())
                .prop_map(|(assignment, lost)| Frame::Revoke(proto::Revoke { assignment, lost })),
        ]
    }

    fn take(inbox: &Inbox, frame: from_publisher::Frame) -> Result<(), String> {
        inbox.state.lock().take(frame)
    }

    fn config() -> ConsumerConfig {
        ConsumerConfig::new(super::super::Address::new("a:1").unwrap(), "s", "c").credit_bytes(1_000)
    }

    fn opened() -> from_publisher::Frame {
        let epochs = vec![proto::Epoch { epoch: 0, start: 0, run: 7 }];
        let journal_id = vec![1; 16].into();
        from_publisher::Frame::Opened(proto::Opened { journal_id, epochs, ..proto::Opened::default() })
    }

    fn assign(assignment: u64) -> from_publisher::Frame {
        let slices = Some(proto::Slices { from: 0, to: 1_024 });
        from_publisher::Frame::Assign(proto::Assign { assignment, slices, offset: 0, resumed: false })
    }

    fn batch(base_offset: i64, bytes: usize) -> bytes::Bytes {
        use mainstem_records::{BatchBuilder, BatchOptions};
        let mut builder = BatchBuilder::new(BatchOptions { base_offset, ..BatchOptions::default() });
        builder.append(1, None, Some(&vec![b'x'; bytes]), &[]).unwrap();
        builder.build().unwrap().into()
    }

    fn connected() -> Inbox {
        let inbox = Inbox::new(1_000, 7);
        inbox.open(&config());
        take(&inbox, opened()).unwrap();
        take(&inbox, assign(1)).unwrap();
        inbox
    }

    fn sent(inbox: &Inbox) -> Vec<from_consumer::Frame> {
        std::iter::from_fn(|| inbox.to_be_sent()).collect()
    }

    #[test]
    fn a_publisher_that_heeds_no_credit_is_at_fault() {
        let inbox = connected();
        let records = |offset| {
            from_publisher::Frame::Records(proto::Records {
                from: offset,
                next: offset + 1,
                batches: batch(offset, 900),
            })
        };
        take(&inbox, records(0)).unwrap();
        // The last frame may have more than there is room for.
        take(&inbox, records(1)).unwrap();
        assert!(take(&inbox, records(2)).unwrap_err().contains("credit"));
        // What the application has taken is room again, when the publisher was told.
        assert!(matches!(inbox.look(), Some(Ok(ConsumerEvent::Assigned { .. }))));
        assert!(matches!(inbox.look(), Some(Ok(ConsumerEvent::Records { .. }))));
        assert!(take(&inbox, records(2)).is_err());
        assert!(matches!(sent(&inbox)[..], [from_consumer::Frame::Credit(_)]));
        take(&inbox, records(2)).unwrap();
    }

    /// A handler may run for long; meanwhile the connection is lost, and its instance gets other slices.
    #[test]
    fn what_follows_waits_until_the_application_has_given_back() {
        let inbox = connected();
        assert!(matches!(inbox.look(), Some(Ok(ConsumerEvent::Assigned { assignment: 1, .. }))));
        inbox.take(from_publisher::Frame::Revoke(proto::Revoke { assignment: 1, lost: false })).unwrap();
        assert!(matches!(inbox.look(), Some(Ok(ConsumerEvent::Revoking { assignment: 1 }))));
        inbox.open(&config());
        inbox.take(opened()).unwrap();
        inbox.take(assign(2)).unwrap();
        let (from, next, batches) = (0, 1, batch(0, 10));
        inbox.take(from_publisher::Frame::Records(proto::Records { from, next, batches })).unwrap();
        assert!(inbox.look().is_none(), "the first is not given back");
        inbox.release(Done { assignment: 1, offset: 0, finished: Vec::new() });
        assert!(matches!(inbox.look(), Some(Ok(ConsumerEvent::Assigned { assignment: 2, .. }))));
        assert!(matches!(inbox.look(), Some(Ok(ConsumerEvent::Records { assignment: 2, .. }))));
        // What is lost meanwhile is given back all the same.
        inbox.take(from_publisher::Frame::Revoke(proto::Revoke { assignment: 2, lost: false })).unwrap();
        assert!(matches!(inbox.look(), Some(Ok(ConsumerEvent::Revoking { assignment: 2 }))));
        inbox.take(from_publisher::Frame::Revoke(proto::Revoke { assignment: 2, lost: true })).unwrap();
        inbox.take(assign(3)).unwrap();
        assert!(inbox.look().is_none() && inbox.look().is_none(), "the second is not given back");
        inbox.release(Done { assignment: 2, offset: 1, finished: Vec::new() });
        assert!(matches!(inbox.look(), Some(Ok(ConsumerEvent::Assigned { assignment: 3, .. }))));
    }

    /// A journal of two runs, the second from an offset on.
    fn opened_in(run: u64, start: i64, end: i64) -> from_publisher::Frame {
        let from_publisher::Frame::Opened(mut opened) = opened() else { panic!("it is Opened") };
        opened.epochs.push(proto::Epoch { epoch: 1, start, run });
        opened.end = end;
        from_publisher::Frame::Opened(opened)
    }

    #[test]
    fn what_was_received_by_an_earlier_assignment_is_held_against_the_journal_too() {
        let inbox = Inbox::new(1_000, 7);
        inbox.open(&config());
        inbox.take(opened_in(8, 20, 60)).unwrap();
        let skip = |from, next| from_publisher::Frame::Skip(proto::Skip { from, next });
        inbox.take(assign(1)).unwrap();
        inbox.take(skip(0, 50)).unwrap();
        inbox.take(from_publisher::Frame::Revoke(proto::Revoke { assignment: 1, lost: true })).unwrap();
        inbox.take(assign(2)).unwrap();
        inbox.take(skip(0, 10)).unwrap();
        assert_eq!(inbox.open(&config()).offset, 10);
        inbox.take(opened_in(8, 20, 60)).unwrap();
        // The publisher has what the present assignment received, and not all that came before.
        let rejected = inbox.take(opened_in(9, 30, 60));
        assert!(matches!(rejected, Err(Rejected::Refused(Refused::Diverged { at: 20 }))), "{rejected:?}");
    }

    #[test]
    fn frames_without_events_take_no_memory() {
        let inbox = connected();
        inbox.hold(true);
        for offset in 0..100_000 {
            take(&inbox, from_publisher::Frame::Skip(proto::Skip { from: offset, next: offset + 1 }))
                .unwrap();
        }
        assert_eq!(inbox.state.lock().records.len(), 1);
        let mut refused = None;
        for offset in 100_000..200_000 {
            let filtered = from_publisher::Frame::FilteredFrom(proto::FilteredFrom { offset });
            let skip = from_publisher::Frame::Skip(proto::Skip { from: offset, next: offset + 1 });
            refused = take(&inbox, filtered).and_then(|()| take(&inbox, skip)).err();
            if refused.is_some() {
                break;
            }
        }
        assert!(refused.is_some_and(|reason| reason.contains("filter")));
        let mut refused = None;
        for assignment in 2..100_000 {
            refused = take(&inbox, assign(assignment)).err();
            if refused.is_some() {
                break;
            }
        }
        assert!(refused.is_some_and(|reason| reason.contains("slices")));
        assert!(inbox.state.lock().controls.len() <= CONTROLS_MAX + 2);
    }

    #[test]
    fn what_was_released_and_another_filter_outlive_the_connection_that_they_were_sent_by() {
        let inbox = connected();
        let done = Done { assignment: 1, offset: 0, finished: std::iter::once(3..5).collect() };
        take(&inbox, from_publisher::Frame::Revoke(proto::Revoke { assignment: 1, lost: false })).unwrap();
        inbox.release(done.clone());
        let filter = crate::filter::criteria::only([]);
        inbox.keep_filter(filter.clone());
        let (released, changed) = (
            from_consumer::Frame::Released(proto::Released { done: Some(done.to_proto()) }),
            from_consumer::Frame::Filter(filter),
        );
        assert_eq!(sent(&inbox), [released, changed.clone()]);
        // The connection is lost before the publisher has them, and the next one too.
        for _ in 0..2 {
            let held = inbox.open(&config()).held.unwrap();
            assert_eq!((held.done, held.slices), (Some(done.to_proto()), None));
        }
        take(&inbox, opened()).unwrap();
        assert_eq!(sent(&inbox), [changed], "Open had what was released");
        take(&inbox, from_publisher::Frame::FilteredFrom(proto::FilteredFrom { offset: 5 })).unwrap();
        let open = inbox.open(&config());
        assert_eq!((open.held, sent(&inbox)), (None, vec![]), "both are answered");
    }

    /// The publisher has it go on, as one that may have started anew meanwhile; the application has given it back already.
    #[test]
    fn what_is_given_back_over_a_lost_connection_is_said_when_it_goes_on() {
        let revoke = || from_publisher::Frame::Revoke(proto::Revoke { assignment: 1, lost: false });
        let resumed = || {
            let from_publisher::Frame::Opened(opened) = opened() else { panic!("it is Opened") };
            from_publisher::Frame::Opened(proto::Opened { resumed: true, ..opened })
        };
        let goes_on = || {
            let from_publisher::Frame::Assign(assign) = assign(1) else { panic!("it is Assign") };
            from_publisher::Frame::Assign(proto::Assign { resumed: true, ..assign })
        };
        let done = Done { assignment: 1, offset: 0, finished: std::iter::once(3..5).collect() };
        let frames = || {
            let said = from_consumer::Frame::Done(done.to_proto());
            (said, from_consumer::Frame::Released(proto::Released { done: Some(done.to_proto()) }))
        };
        for is_answered in [false, true] {
            let inbox = connected();
            inbox.take(revoke()).unwrap();
            let mut events = std::iter::from_fn(|| inbox.look()).map(Result::unwrap);
            assert!(matches!(events.next(), Some(ConsumerEvent::Assigned { .. })));
            assert_eq!(events.next(), Some(ConsumerEvent::Revoking { assignment: 1 }));
            let held = inbox.open(&config()).held.unwrap();
            assert_eq!(held.slices, Some(proto::Slices { from: 0, to: 1_024 }));
            if is_answered {
                inbox.take(resumed()).unwrap();
            }
            inbox.release(done.clone());
            assert_eq!(sent(&inbox), [frames().0]);
            if !is_answered {
                inbox.take(resumed()).unwrap();
            }
            inbox.take(goes_on()).unwrap();
            // The publisher may have been faster with events, and with another question.
            let (from, next, batches) = (0, 1, batch(0, 10));
            inbox.take(from_publisher::Frame::Records(proto::Records { from, next, batches })).unwrap();
            inbox.take(revoke()).unwrap();
            assert_eq!(sent(&inbox), [frames().1]);
            assert!(inbox.look().is_none());
            inbox.take(assign(2)).unwrap();
            assert!(matches!(inbox.look(), Some(Ok(ConsumerEvent::Assigned { assignment: 2, .. }))));
        }
    }

    #[test]
    fn what_is_given_back_while_the_publisher_is_away_is_in_the_next_open() {
        for is_asked in [false, true] {
            let inbox = connected();
            inbox.take(from_publisher::Frame::Revoke(proto::Revoke { assignment: 1, lost: false })).unwrap();
            while inbox.look().is_some() {}
            if is_asked {
                // This one is not answered.
                inbox.open(&config());
            }
            let done = Done { assignment: 1, offset: 0, finished: std::iter::once(3..5).collect() };
            inbox.release(done.clone());
            let held = inbox.open(&config()).held.unwrap();
            assert_eq!((held.done, held.slices), (Some(done.to_proto()), None));
            inbox.take(opened()).unwrap();
            assert!(sent(&inbox).is_empty() && inbox.look().is_none());
        }
    }

    proptest! {
        /// Whatever a publisher sends is taken or ends the connection; what it says goes on from where it was.
        #[test]
        fn any_frames_are_taken_or_refused(frames in prop::collection::vec(frame(), 0..40)) {
            let config = config();
            let inbox = Inbox::new(1_000, 7);
            inbox.open(&config);
            for frame in frames {
                if inbox.take(frame).is_err() {
                    // As after a connection that was lost.
                    let open = inbox.open(&config);
                    prop_assert!(open.encoded_len() < 100_000);
                }
                while let Some(Ok(event)) = inbox.look() {
                    if let ConsumerEvent::Records { assignment, next, .. } = event {
                        inbox.done(Done { assignment, offset: next, finished: Vec::new() });
                    }
                }
                while inbox.to_be_sent().is_some() {}
            }
        }

        #[test]
        fn any_bytes_of_a_consumer_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(FromConsumer { frame: Some(frame) }) = FromConsumer::decode(&bytes[..]) {
                match frame {
                    from_consumer::Frame::Done(done) => prop_assert!(Done::of_proto(&done).finished.len() <= 1_024),
                    from_consumer::Frame::Filter(filter) => drop(crate::filter::Filter::compile(&filter)),
                    _ => {}
                }
            }
            let _ = proto::FromPublisher::decode(&bytes[..]);
        }
    }
}
