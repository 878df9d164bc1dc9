//! What has arrived and what is to be sent, between the connection and the application.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::Stream;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{ConsumerConfig, ConsumerEvent};
use crate::error::{DirectError, Result};
use crate::proto::{self, FromConsumer, from_consumer, from_publisher};
use crate::resume::{Epoch, JournalId, JournalView};
use crate::sequence::Sequence;
use crate::session::ALIVE_EVERY;
use crate::slices::{Done, SliceRange};

/// Why a connection has ended.
#[derive(Debug)]
pub(super) enum Fault {
    /// Another one may do.
    Lost { was_opened: bool, reason: String },
    /// None will.
    Fatal(DirectError),
}

#[derive(Debug)]
pub(super) struct Inbox {
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
    failed: Option<DirectError>,
    has_failed: bool,
    journal: Option<JournalView>,
    assigned: Option<Assigned>,
    credit_bytes: u64,
    credit_due: u64,
    outgoing: Outgoing,
    is_leaving: bool,
}

#[derive(Debug)]
struct Assigned {
    slices: SliceRange,
    sequence: Sequence,
    done: Done,
    is_revoking: bool,
}

#[derive(Debug, Default)]
struct Outgoing {
    has_done: bool,
    released: Option<Done>,
    filter: Option<proto::Filter>,
}

fn bytes_of(event: &ConsumerEvent) -> u64 {
    match event {
        ConsumerEvent::Records { batches, .. } => batches.len() as u64,
        _ => 0,
    }
}

impl Inbox {
    pub(super) fn new(credit_bytes: u64) -> Inbox {
        let state = State {
            controls: VecDeque::new(),
            records: VecDeque::new(),
            is_held: false,
            failed: None,
            has_failed: false,
            journal: None,
            assigned: None,
            credit_bytes,
            credit_due: 0,
            outgoing: Outgoing::default(),
            is_leaving: false,
        };
        Inbox {
            state: Mutex::new(state),
            arrived: Notify::new(),
            to_send: Notify::new(),
            left: Notify::new(),
        }
    }

    pub(super) async fn next(&self) -> Result<ConsumerEvent> {
        loop {
            // Before the look, so that what comes after it is noticed.
            let arrived = self.arrived.notified();
            if let Some(next) = self.look() {
                return next;
            }
            arrived.await;
        }
    }

    fn look(&self) -> Option<Result<ConsumerEvent>> {
        let mut state = self.state.lock();
        if let Some(control) = state.controls.pop_front() {
            return Some(Ok(control));
        }
        if !state.is_held
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

    pub(super) fn hold(&self, is_held: bool) {
        self.state.lock().is_held = is_held;
        self.arrived.notify_one();
    }

    pub(super) fn assignment(&self) -> Option<u64> {
        self.state.lock().assigned.as_ref().map(|one| one.done.assignment)
    }

    pub(super) fn done(&self, done: Done) {
        let mut state = self.state.lock();
        if let Some(assigned) = state.assigned.as_mut().filter(|one| one.done.assignment == done.assignment) {
            assigned.done = done;
            state.outgoing.has_done = true;
            self.to_send.notify_one();
        }
    }

    pub(super) fn release(&self, done: Done) {
        let mut state = self.state.lock();
        // One that has ended meanwhile has nothing to give back.
        if state.assigned.take_if(|one| one.done.assignment == done.assignment).is_some() {
            state.outgoing.has_done = false;
            state.outgoing.released = Some(done);
            self.to_send.notify_one();
        }
    }

    pub(super) fn keep_filter(&self, filter: proto::Filter) {
        self.state.lock().outgoing.filter = Some(filter);
        self.to_send.notify_one();
    }

    pub(super) fn leave(&self) {
        self.state.lock().is_leaving = true;
        self.to_send.notify_one();
        self.left.notify_one();
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.state.lock().is_leaving
    }

    /// Done when the instance leaves.
    pub(super) async fn left(&self) {
        while !self.is_leaving() {
            self.left.notified().await;
        }
    }

    pub(super) fn fail(&self, error: DirectError) {
        let mut state = self.state.lock();
        (state.failed, state.has_failed) = (Some(error), true);
        self.arrived.notify_one();
    }

    /// The first frame of a connection: what was read and done before it.
    pub(super) fn open(&self, config: &ConsumerConfig) -> proto::Open {
        let mut state = self.state.lock();
        state.forget_what_is_revoked();
        // What was read ahead counts against the credit still.
        let unread: u64 = state.records.iter().map(bytes_of).sum();
        (state.credit_due, state.outgoing.has_done) = (0, false);
        let mut open = proto::Open {
            stream: config.stream.clone(),
            consumer: config.consumer.clone(),
            instance: config.instance.clone(),
            pinned: config.pinned.map(SliceRange::to_proto),
            filter: config.filter.clone(),
            credit_bytes: config.credit_bytes.saturating_sub(unread),
            start: config.start.into(),
            ..proto::Open::default()
        };
        let Some(journal) = &state.journal else { return open };
        open.journal_id = journal.id.0.to_vec().into();
        if let Some(assigned) = &state.assigned {
            let slices = Some(assigned.slices.to_proto());
            open.offset = assigned.sequence.next();
            open.epoch = journal.epoch_before(open.offset);
            open.held = Some(proto::Held { done: Some(assigned.done.to_proto()), slices });
        } else if let Some(released) = &state.outgoing.released {
            open.offset = released.end();
            open.epoch = journal.epoch_before(open.offset);
            open.held = Some(proto::Held { done: Some(released.to_proto()), slices: None });
        }
        state.outgoing.released = None;
        open
    }

    /// What a connection sends: made when there is room for it.
    pub(super) fn outbound(self: Arc<Inbox>, open: proto::Open) -> impl Stream<Item = FromConsumer> + Send {
        let first = FromConsumer { frame: Some(from_consumer::Frame::Open(open)) };
        futures_util::stream::unfold((self, Some(first)), |(inbox, mut first)| async move {
            if let Some(first) = first.take() {
                return Some((first, (inbox, None)));
            }
            let alive_at = Instant::now() + ALIVE_EVERY;
            let frame = loop {
                let to_send = inbox.to_send.notified();
                let (frame, is_leaving) = {
                    let mut state = inbox.state.lock();
                    (state.frame(), state.is_leaving)
                };
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
    pub(super) fn take(&self, frame: from_publisher::Frame) -> Result<(), Fault> {
        let mut state = self.state.lock();
        let taken = state.take(frame);
        self.arrived.notify_one();
        taken.map_err(|reason| Fault::Lost { was_opened: false, reason })
    }
}

impl State {
    fn is_credit_worth_sending(&self) -> bool {
        self.credit_due * 4 >= self.credit_bytes
    }

    /// What is to be sent now.
    fn frame(&mut self) -> Option<from_consumer::Frame> {
        use from_consumer::Frame;
        if let Some(released) = self.outgoing.released.take() {
            return Some(Frame::Released(proto::Released { done: Some(released.to_proto()) }));
        }
        if std::mem::take(&mut self.outgoing.has_done)
            && let Some(assigned) = &self.assigned
        {
            return Some(Frame::Done(assigned.done.to_proto()));
        }
        if let Some(filter) = self.outgoing.filter.take() {
            return Some(Frame::Filter(filter));
        }
        self.is_credit_worth_sending()
            .then(|| Frame::Credit(proto::Credit { bytes: std::mem::take(&mut self.credit_due) }))
    }

    /// After a lost connection: what was being given back is others' now.
    fn forget_what_is_revoked(&mut self) {
        if let Some(revoked) = self.assigned.take_if(|one| one.is_revoking) {
            self.outgoing.released = Some(revoked.done);
        }
    }

    /// Events that were read ahead are left to the next one that has the slices.
    fn drop_records(&mut self) {
        self.credit_due += self.records.drain(..).map(|one| bytes_of(&one)).sum::<u64>();
    }

    fn take(&mut self, frame: from_publisher::Frame) -> Result<(), String> {
        use from_publisher::Frame;
        match frame {
            Frame::Opened(opened) => self.opened(&opened),
            Frame::Assign(assign) => self.assign(&assign),
            Frame::Records(records) => self.records(records),
            Frame::Skip(skip) => {
                let records =
                    proto::Records { from: skip.from, next: skip.next, batches: bytes::Bytes::new() };
                self.records(records)
            }
            Frame::FilteredFrom(filtered) => {
                self.records.push_back(ConsumerEvent::FilteredFrom { offset: filtered.offset });
                Ok(())
            }
            Frame::Revoke(revoke) => {
                self.revoke(&revoke);
                Ok(())
            }
            Frame::Alive(_) => Ok(()),
        }
    }

    fn opened(&mut self, opened: &proto::Opened) -> Result<(), String> {
        let id = <[u8; 16]>::try_from(&opened.journal_id[..])
            .map_err(|_| "a journal's id has 16 bytes".to_owned())?;
        let epochs: Vec<Epoch> =
            opened.epochs.iter().map(|one| Epoch { epoch: one.epoch, start: one.start }).collect();
        let (start, end) = (opened.start, opened.end);
        self.journal = Some(JournalView { id: JournalId(id), epochs, start, end });
        if !opened.resumed {
            self.lose();
        }
        Ok(())
    }

    fn lose(&mut self) {
        if let Some(lost) = self.assigned.take() {
            self.drop_records();
            self.controls.push_back(ConsumerEvent::Lost { assignment: lost.done.assignment });
        }
    }

    fn assign(&mut self, assign: &proto::Assign) -> Result<(), String> {
        let slices =
            assign.slices.as_ref().and_then(SliceRange::of_proto).ok_or("an assignment has no slices")?;
        let (assignment, offset) = (assign.assignment, assign.offset);
        if assign.resumed {
            let held =
                self.assigned.as_ref().map(|one| (one.done.assignment, one.slices, one.sequence.next()));
            return match held == Some((assignment, slices, offset)) {
                true => Ok(()),
                false => {
                    Err(format!("assignment {assignment} is to go on, which this instance does not have"))
                }
            };
        }
        self.lose();
        let done = Done { assignment, offset, finished: Vec::new() };
        self.assigned = Some(Assigned { slices, sequence: Sequence::new(offset), done, is_revoking: false });
        let epoch = self.journal.as_ref().map_or(0, |journal| journal.epoch_before(offset));
        self.controls.push_back(ConsumerEvent::Assigned { assignment, slices, offset, epoch });
        Ok(())
    }

    fn records(&mut self, records: proto::Records) -> Result<(), String> {
        let assigned = self.assigned.as_mut().filter(|one| !one.is_revoking);
        let Some(assigned) = assigned else { return Err("events came without an assignment".to_owned()) };
        let proto::Records { from, next, batches } = records;
        let ranges = assigned.sequence.accept(from, next, &batches).map_err(|fault| fault.to_string())?;
        let assignment = assigned.done.assignment;
        self.records.push_back(ConsumerEvent::Records { assignment, from, next, batches, ranges });
        Ok(())
    }

    fn revoke(&mut self, revoke: &proto::Revoke) {
        let assigned = self.assigned.as_mut().filter(|one| one.done.assignment == revoke.assignment);
        let Some(assigned) = assigned else { return };
        if revoke.lost {
            return self.lose();
        }
        assigned.is_revoking = true;
        self.drop_records();
        self.controls.push_back(ConsumerEvent::Revoking { assignment: revoke.assignment });
    }
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

    proptest! {
        /// Whatever a publisher sends is taken or ends the connection; what it says goes on from where it was.
        #[test]
        fn any_frames_are_taken_or_refused(frames in prop::collection::vec(frame(), 0..40)) {
            let config = ConsumerConfig::new(super::super::Address::new("a:1").unwrap(), "s", "c");
            let inbox = Inbox::new(1_000);
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
                while inbox.state.lock().frame().is_some() {}
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
