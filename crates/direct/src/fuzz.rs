//! Fuzz bodies of this crate. Any frame that either end is sent is taken or refused, and leaves a consistent state in bounded
//! memory. The input is frames, each behind its length in two bytes, little-endian.

use std::sync::Arc;

use prost::Message as _;

use crate::consumer::inbox::Inbox;
use crate::credit::Credit;
use crate::filter::Filter;
use crate::handover::{Connection, Effect, Handover, Joining};
use crate::proto::{FromConsumer, FromPublisher, from_consumer, from_publisher};
use crate::resume::{Epoch, JournalId, JournalView, Received};
use crate::slices::{Done, SliceRange};
use crate::{Address, CREDIT_BYTES_MAX, ConsumerConfig, ConsumerEvent};

const FRAMES_MAX: usize = 64;
const CREDIT_BYTES: u64 = 10_000;

fn frames(mut data: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while let Some((length, rest)) = data.split_first_chunk::<2>()
        && frames.len() < FRAMES_MAX
    {
        let (frame, rest) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*length))));
        frames.push(frame);
        data = rest;
    }
    frames
}

/// Frames that instances of a consumer send to a publisher; each `Open` is another connection.
pub fn from_consumer(data: &[u8]) {
    let epochs: Arc<[Epoch]> =
        [(0, 0, 7), (0, 10, 8), (1, 15, 9)].map(|(epoch, start, run)| Epoch { epoch, start, run }).into();
    let view = JournalView { id: JournalId([1; 16]), epochs, start: 5, end: 20 };
    let (mut handover, mut credit, mut connection, mut now_ms) = (Handover::new(5), Credit::new(0), 0, 0);
    for frame in frames(data) {
        let Ok(FromConsumer { frame: Some(frame) }) = FromConsumer::decode(frame) else { continue };
        now_ms += 300;
        let effects = take(&view, &mut handover, &mut credit, &mut connection, now_ms, frame);
        for effect in effects.into_iter().chain(handover.tick(now_ms)) {
            if let Effect::Assign { offset, parts, .. } = effect {
                assert!(!parts.is_empty() && offset >= 0, "{handover:?}");
            }
        }
        let (generation, parts) = (handover.generation(), handover.parts().to_vec());
        assert!(Handover::restored(generation, parts).is_some(), "{handover:?}");
        assert!(handover.frontier() >= 5, "done is done: {handover:?}");
    }
    credit.take(CREDIT_BYTES_MAX as usize);
    assert!(!credit.is_available(), "{credit:?}");
}

fn take(
    view: &JournalView,
    handover: &mut Handover,
    credit: &mut Credit,
    connection: &mut Connection,
    now_ms: u64,
    frame: from_consumer::Frame,
) -> Vec<Effect> {
    use from_consumer::Frame;
    // As the session does, an instance is refused that has done more than it was sent.
    let own = |done: Option<&crate::proto::Done>| {
        let done = Done::of_proto(done?);
        (done.end() <= view.end).then_some(done)
    };
    match frame {
        Frame::Open(open) => {
            let received = Received {
                journal: open.journal_id[..].try_into().map_or(view.id, JournalId),
                epoch: open.epoch,
                offset: open.offset,
                runs: open.epochs.iter().map(Epoch::of_proto).collect(),
            };
            let Ok(held) = crate::member::held_of(&open) else { return Vec::new() };
            if view.check_received(&received).is_err() {
                return Vec::new();
            }
            *connection += 1;
            let pinned = open.pinned.as_ref().and_then(SliceRange::of_proto);
            let attempt = open.attempt.as_ref().map(crate::member::attempt_of);
            let joining = Joining { connection: *connection, name: open.instance, attempt, pinned, held };
            handover.join(joining, now_ms).unwrap_or_default()
        }
        Frame::Credit(more) => {
            credit.give(more.bytes);
            Vec::new()
        }
        Frame::Done(done) => {
            if let Some(done) = own(Some(&done)) {
                handover.done(*connection, &done);
            }
            Vec::new()
        }
        Frame::Released(released) => match own(released.done.as_ref()) {
            Some(done) => handover.released(*connection, &done, now_ms),
            None => Vec::new(),
        },
        Frame::Filter(filter) => {
            // It is compiled within bounds, or refused.
            let _ = Filter::compile(&filter);
            Vec::new()
        }
        Frame::Alive(_) => handover.leave(*connection, true, now_ms),
    }
}

/// Frames that a publisher sends to an instance, which reconnects after a fault.
pub fn from_publisher(data: &[u8]) {
    let address = Address::new("localhost:1").expect("it is an address");
    let config = ConsumerConfig::new(address, "stream", "consumer").credit_bytes(CREDIT_BYTES);
    let inbox = Inbox::new(CREDIT_BYTES, 1);
    inbox.open(&config);
    let mut due = None;
    for (frame, number) in frames(data).into_iter().zip(0..) {
        let Ok(FromPublisher { frame: Some(frame), end }) = FromPublisher::decode(frame) else { continue };
        inbox.note_end(end);
        let is_opened = matches!(frame, from_publisher::Frame::Opened(_));
        if inbox.take(frame).is_err() {
            inbox.open(&config);
        }
        // Every other time the application is too slow.
        while number % 2 == 0
            && !is_opened
            && let Some(Ok(event)) = inbox.look()
        {
            match event {
                ConsumerEvent::Assigned { assignment, offset, .. } => due = Some((assignment, offset)),
                ConsumerEvent::Records { assignment, from, next, .. } => {
                    assert_eq!(due, Some((assignment, from)), "nothing is missing, nothing comes twice");
                    due = Some((assignment, next));
                    inbox.done(Done { assignment, offset: next, finished: Vec::new() });
                }
                ConsumerEvent::Revoking { assignment } => {
                    inbox.release(Done { assignment, offset: 0, finished: Vec::new() });
                }
                ConsumerEvent::Lost { .. } | ConsumerEvent::FilteredFrom { .. } => {}
            }
        }
        while inbox.to_be_sent().is_some() {}
    }
}
