use super::*;
use proptest::prelude::*;
use prost::Message as _;

fn slices() -> impl Strategy<Value = Option<proto::Slices>> {
    proptest::option::of((0u32..1_100, 0u32..1_100).prop_map(|(from, to)| proto::Slices { from, to }))
}

/// Frames that may come from anything that calls itself a publisher.
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
    // The last frame may be larger than the credit that is left.
    take(&inbox, records(1)).unwrap();
    assert!(take(&inbox, records(2)).unwrap_err().contains("credit"));
    // Bytes that the application has taken are credit again once the publisher has received it.
    assert!(matches!(inbox.look(), Some(Ok(ConsumerEvent::Assigned { .. }))));
    assert!(matches!(inbox.look(), Some(Ok(ConsumerEvent::Records { .. }))));
    assert!(take(&inbox, records(2)).is_err());
    assert!(matches!(sent(&inbox)[..], [from_consumer::Frame::Credit(_)]));
    take(&inbox, records(2)).unwrap();
}

/// The last frame may be larger than the credit. The excess is no credit for the next connection.
#[test]
fn what_was_read_ahead_does_not_grow_with_connections() {
    let inbox = connected();
    assert!(matches!(inbox.look(), Some(Ok(ConsumerEvent::Assigned { .. }))));
    let mut offset = 0;
    for _ in 0..10 {
        let mut read = 0;
        loop {
            let (from, next, batches) = (offset, offset + 1, batch(offset, 900));
            let size = batches.len();
            if take(&inbox, from_publisher::Frame::Records(proto::Records { from, next, batches })).is_err() {
                break;
            }
            (offset, read) = (next, read + size);
        }
        assert!(read <= 2_000, "{read} bytes were read ahead");
        inbox.open(&config());
        let from_publisher::Frame::Opened(opened) = opened() else { panic!("it is Opened") };
        let opened = proto::Opened { resumed: true, end: offset, ..opened };
        take(&inbox, from_publisher::Frame::Opened(opened)).unwrap();
        let slices = Some(proto::Slices { from: 0, to: 1_024 });
        let assign = proto::Assign { assignment: 1, slices, offset, resumed: true };
        take(&inbox, from_publisher::Frame::Assign(assign)).unwrap();
        while inbox.look().is_some() {}
        sent(&inbox);
        inbox.state.lock().check();
    }
}

/// A handler may run for long. Meanwhile the connection is lost, and the instance gets other slices.
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
        take(&inbox, from_publisher::Frame::Skip(proto::Skip { from: offset, next: offset + 1 })).unwrap();
    }
    assert_eq!(inbox.state.lock().waiting(), 1);
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
    inbox.state.lock().check();
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

/// The publisher, which may have restarted meanwhile, resumes the assignment; the application has released it already.
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
        // The publisher may have sent events, and a change of slices, before it received the filter.
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
            // This filter gets no answer.
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
    /// Any frame of a publisher is taken or ends the connection. Later frames continue the earlier ones.
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
