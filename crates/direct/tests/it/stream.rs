//! Publishers and consumers in one process, over loopback.

use std::time::Duration;

use crate::support;
use crate::support::{DEADLINE, Reader, address, admin, config, open, serve, serve_at, until};
use bytes::Bytes;
use futures_util::future::join_all;
use mainstem_direct::proto::manage_request::Action;
use mainstem_direct::proto::{self, reset::To};
use mainstem_direct::{
    Admin, Call, ConsumerConfig, ConsumerEvent, DirectError, Done, Grant, NewEvent, Publisher, Transformed,
    criteria,
};

fn reset(to: To) -> Action {
    Action::Reset(proto::Reset { to: Some(to) })
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_in_order_and_what_is_done_is_not_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    for n in 0..50 {
        journal.append(format!("cart-{}", n % 7), &format!("event {n}")).await.unwrap();
    }
    let mut reader = Reader::new(config(serving.address(), "cart"));
    let events = reader.read(50).await;
    assert_eq!(events[7], (7, "event 7".to_owned()));
    journal.append_many((50..200).map(|n| NewEvent::new(format!("event {n}")))).await.unwrap();
    reader.read(200).await;
    assert_eq!(reader.offsets(), (0..200).collect::<Vec<_>>());
    reader.consumer.leave().await;
    journal.append("cart-1", "the next one").await.unwrap();
    let mut again = Reader::new(config(serving.address(), "cart"));
    assert_eq!(again.read(1).await, [(200, "the next one".to_owned())]);
    let info = admin(serving.address()).await.describe("cart").await.unwrap().remove(0);
    assert_eq!((info.end, info.consumers.len(), info.consumers[0].instances.len()), (201, 1, 1));
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_starts_again_repeats_nothing_to_those_that_live() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("cart");
    let mut journal = open(&directory);
    let mut serving = serve(&journal).await;
    let (id, address) = (journal.id(), serving.address());
    let mut reader = Reader::new(config(address, "cart"));
    for round in 0..4 {
        for n in 0..20 {
            journal.append("key", &format!("{round}/{n}")).await.unwrap();
        }
        reader.read((round + 1) * 20).await;
        serving.stop().await.unwrap();
        drop(journal);
        journal = open(&directory);
        assert_eq!((journal.id(), journal.epoch()), (id, 0));
        serving = serve_at(&journal, address).await;
    }
    journal.append("key", "last").await.unwrap();
    reader.read(81).await;
    assert_eq!(reader.offsets(), (0..81).collect::<Vec<_>>());
    assert_eq!(reader.others, [], "it went on with what it had each time");
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_share_slices_and_orderly_hand_overs_repeat_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    let mut readers = Vec::new();
    let (done, dones) = tokio::sync::watch::channel(false);
    let mut all = Vec::new();
    for n in 0..4 {
        let mut reader = Reader::new(config(serving.address(), "cart").instance(format!("instance {n}")));
        let mut dones = dones.clone();
        readers.push(tokio::spawn(async move {
            loop {
                tokio::select! {
                    stepped = reader.step() => stepped.unwrap(),
                    _ = dones.wait_for(|done| *done) => break,
                }
            }
            let offsets = reader.offsets();
            reader.consumer.leave().await;
            offsets
        }));
        for k in 0..100 {
            journal.append(format!("key {k}"), "value").await.unwrap();
        }
        if n == 2 {
            // One instance leaves in the middle.
            let mut goes = Reader::new(config(serving.address(), "cart"));
            while goes.assigned.is_none() {
                goes.step().await.unwrap();
            }
            for k in 0..100 {
                journal.append(format!("key {k}"), "value").await.unwrap();
            }
            goes.read(1).await;
            all.extend(goes.offsets());
            goes.consumer.leave().await;
        }
    }
    let mut admin = admin(serving.address()).await;
    loop {
        let info = admin.describe("cart").await.unwrap().remove(0).consumers.remove(0);
        let slices = info.instances.iter().filter_map(|instance| instance.slices);
        let counts: Vec<u32> = slices.map(|slices| slices.to - slices.from).collect();
        // The slices of the one that left may still be on their way to a neighbour.
        if info.lag == 0 && counts.iter().sum::<u32>() == 1_024 {
            assert_eq!(counts.len(), 4, "{counts:?}");
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    done.send(true).unwrap();
    for reader in readers {
        all.extend(reader.await.unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (0..500).collect::<Vec<_>>());
}

/// A stop also ends the subscriptions and syncs that were under way.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_stop_a_journal_can_be_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..5 {
        let journal = open(&dir.path().join("cart"));
        let serving = serve(&journal).await;
        journal.append("key", "value").await.unwrap();
        let at = address(serving.address());
        let named = |n: u32| ConsumerConfig::new(at.clone(), "cart", format!("{round}-{n}"));
        let mut readers: Vec<_> = (0..8).map(|n| Reader::new(named(n))).collect();
        for reader in &mut readers {
            reader.read(1).await;
        }
        serving.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_holds_from_the_offset_that_is_named_and_outlives_all() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("cart");
    let journal = open(&directory);
    let serving = serve(&journal).await;
    let address = serving.address();
    let appending = tokio::spawn({
        let journal = journal.clone();
        async move {
            for n in 0..2_000 {
                journal.append(format!("{}", n % 10), &format!("{n}")).await.unwrap();
            }
        }
    });
    let mut reader = Reader::new(config(address, "cart"));
    reader.read(200).await;
    let odd = criteria::only(["1", "3", "5", "7", "9"].map(criteria::key));
    reader.consumer.keep_filter(odd.clone());
    let at = loop {
        reader.step().await.unwrap();
        if let Some(ConsumerEvent::FilteredFrom { offset }) = reader.others.first() {
            break *offset;
        }
    };
    let shown_at = reader.events.len();
    reader.read_to(2_000).await;
    appending.await.unwrap();
    let wanted: Vec<i64> = (0..2_000).filter(|offset| *offset < at || offset % 2 == 1).collect();
    assert_eq!(reader.offsets(), wanted, "from {at}");
    assert!(shown_at <= at as usize, "it is said before the first event that it holds for");
    reader.consumer.leave().await;
    serving.stop().await.unwrap();
    drop(journal);
    let journal = open(&directory);
    let serving = serve_at(&journal, address).await;
    let info = admin(address).await.describe("cart").await.unwrap().remove(0);
    assert_eq!(info.consumers[0].filter, Some(odd));
    for n in 2_000..2_010 {
        journal.append(format!("{}", n % 10), "x").await.unwrap();
    }
    // The instance's own filter holds beside that.
    let not_three = proto::Filter { exclude: vec![criteria::key("3")], include: vec![] };
    let mut again = Reader::new(config(address, "cart").filter(not_three));
    again.read_to(2_010).await;
    assert_eq!(again.offsets(), [2_001, 2_005, 2_007, 2_009]);
    drop(serving);
}

/// Waits until the publisher knows that the only consumer has done what is before an offset.
async fn until_done(admin: &mut Admin, offset: i64) {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while admin.describe("cart").await.unwrap()[0].consumers[0].offset < offset {
        assert!(tokio::time::Instant::now() < deadline, "what is before {offset} is done");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the offset that a reader receives for a filter.
async fn filtered_from(reader: &mut Reader) -> i64 {
    loop {
        let offset = reader.others.iter().rev().find_map(|event| match event {
            ConsumerEvent::FilteredFrom { offset } => Some(*offset),
            _ => None,
        });
        if let Some(offset) = offset {
            return offset;
        }
        reader.step().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_holds_from_one_offset_for_all_and_for_what_is_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("cart");
    let journal = open(&directory);
    let serving = serve(&journal).await;
    let address = serving.address();
    journal.append_many((0..100).map(|n| NewEvent::new("x").key(format!("{}", n % 10)))).await.unwrap();
    let mut readers = Vec::new();
    for n in 0..2 {
        readers.push(Reader::new(config(address, "cart").instance(format!("instance {n}"))));
        while readers[n].assigned.is_none() {
            // The first gives half of its slices to the second.
            for reader in &mut readers {
                drop(tokio::time::timeout(Duration::from_millis(20), reader.step()).await);
            }
        }
    }
    journal.append_many((100..200).map(|n| NewEvent::new("x").key(format!("{}", n % 10)))).await.unwrap();
    for reader in &mut readers {
        reader.read_to(200).await;
    }
    // All instances get the same offset as the administrator, and so does a client that asks for the same filter again.
    let odd = criteria::only(["1", "3", "5", "7", "9"].map(criteria::key));
    let mut admin = admin(address).await;
    let changed = admin.manage("cart", "analytics", Action::Filter(odd.clone())).await.unwrap().unwrap();
    assert_eq!(changed.filtered_from, 200);
    for reader in &mut readers {
        assert_eq!(filtered_from(reader).await, 200);
        reader.others.clear();
    }
    readers[0].consumer.keep_filter(odd.clone());
    assert_eq!(filtered_from(&mut readers[0]).await, 200);
    for reader in readers {
        reader.consumer.leave().await;
    }
    // An instance that has done nothing of what it was sent through that filter is killed, and so is the publisher.
    journal.append_many((200..300).map(|n| NewEvent::new("x").key(format!("{}", n % 10)))).await.unwrap();
    let mut killed = mainstem_direct::Consumer::new(config(address, "cart"));
    loop {
        let event = tokio::time::timeout(support::DEADLINE, killed.next()).await.unwrap().unwrap();
        if matches!(event, ConsumerEvent::Records { next: 300, .. }) {
            break;
        }
    }
    let none = criteria::only([criteria::key("none")]);
    let changed = admin.manage("cart", "analytics", Action::Filter(none)).await.unwrap().unwrap();
    assert_eq!((changed.offset, changed.filtered_from), (200, 300));
    drop(killed);
    serving.stop().await.unwrap();
    drop(journal);
    let journal = open(&directory);
    journal.append_many((300..400).map(|n| NewEvent::new("x").key(format!("{}", n % 10)))).await.unwrap();
    let serving = serve_at(&journal, address).await;
    let mut again = Reader::new(config(address, "cart"));
    assert_eq!(filtered_from(&mut again).await, 300, "it is said to those that come later too");
    again.read_to(400).await;
    assert_eq!(again.offsets(), (200..300).filter(|offset| offset % 2 == 1).collect::<Vec<_>>());
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_are_managed_while_they_run_and_while_nothing_does() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    for n in 0..10 {
        journal.append("key", &format!("{n}")).await.unwrap();
    }
    let mut reader = Reader::new(config(serving.address(), "cart"));
    reader.read(10).await;
    let mut admin = admin(serving.address()).await;
    until_done(&mut admin, 10).await;
    let paused = admin.manage("cart", "analytics", Action::Pause(proto::Pause {})).await.unwrap().unwrap();
    assert!(paused.paused);
    journal.append("key", "10").await.unwrap();
    tokio::time::timeout(Duration::from_millis(200), reader.step()).await.unwrap_err();
    let info = admin.describe("cart").await.unwrap().remove(0).consumers.remove(0);
    assert_eq!((info.offset, info.lag), (10, 1));
    assert!(info.lag_ms >= 200, "{info:?}");
    admin.manage("cart", "analytics", Action::Resume(proto::Resume {})).await.unwrap();
    reader.read(11).await;
    // What was under way before a reset is void.
    let before = reader.assigned.unwrap().0;
    admin.manage("cart", "analytics", reset(To::Offset(4))).await.unwrap();
    reader.read(18).await;
    assert_eq!(reader.offsets()[11..], [4, 5, 6, 7, 8, 9, 10]);
    assert_eq!(reader.others, [ConsumerEvent::Lost { assignment: before, by_reset: true }]);
    let refused = admin.manage("cart", "analytics", Action::Forget(proto::Forget {})).await.unwrap_err();
    assert!(refused.to_string().contains("are connected"), "{refused}");
    let unknown = admin.manage("cart", "missing", Action::Pause(proto::Pause {})).await.unwrap_err();
    assert!(unknown.to_string().contains("it has analytics"), "{unknown}");
    let beyond = admin.manage("cart", "analytics", reset(To::Offset(12))).await.unwrap_err();
    assert!(beyond.to_string().contains("0 to 11"), "{beyond}");
    reader.consumer.leave().await;
    let latest =
        admin.manage("cart", "analytics", reset(To::Latest(proto::Everything {}))).await.unwrap().unwrap();
    assert_eq!((latest.offset, latest.lag), (11, 0));
    admin.manage("cart", "analytics", Action::Pause(proto::Pause {})).await.unwrap();
    assert!(
        journal.queue().tailers().unwrap().iter().any(|one| one.name == "analytics" && one.position == 11)
    );
    serving.stop().await.unwrap();
    drop(journal);
    let local = mainstem_direct::LocalAdmin::open(&dir.path().join("cart")).unwrap();
    let info = local.describe().consumers.remove(0);
    assert_eq!((info.offset, info.paused), (11, true));
    assert_eq!(local.manage("analytics", &Action::Forget(proto::Forget {})).unwrap(), None);
    assert_eq!(local.describe().consumers, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_finds_the_first_event_of_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let mut appender = journal.queue().appender().unwrap();
    for n in 0..10 {
        appender.append_with(Some(b"key"), b"value", &[], Some(1_000 + n * 10)).unwrap();
    }
    drop(appender);
    let serving = serve(&journal).await;
    let mut reader = Reader::new(config(serving.address(), "cart"));
    reader.read(10).await;
    reader.consumer.leave().await;
    let mut admin = admin(serving.address()).await;
    for (time_ms, offset) in [(1_045, 5), (1_050, 5), (0, 0), (5_000, 10)] {
        let changed = admin.manage("cart", "analytics", reset(To::TimeMs(time_ms))).await.unwrap().unwrap();
        assert_eq!(changed.offset, offset, "{time_ms} ms");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_slices_are_read_by_their_instances_alone() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    let pinned = |from, to| {
        let slices = mainstem_direct::SliceRange::new(from, to).unwrap();
        Reader::new(config(serving.address(), "cart").pinned(slices))
    };
    let (mut lower, mut upper) = (pinned(0, 512), pinned(512, 1_024));
    journal.append_many((0..100).map(|n| NewEvent::new("x").key(format!("key {n}")))).await.unwrap();
    lower.read_to(100).await;
    upper.read_to(100).await;
    let is_lower =
        |offset: &i64| mainstem_records::slice_of(Some(format!("key {offset}").as_bytes()), *offset) < 512;
    let (of_lower, of_upper): (Vec<i64>, Vec<i64>) = (0..100).partition(is_lower);
    assert!(!of_lower.is_empty() && !of_upper.is_empty());
    assert_eq!((lower.offsets(), upper.offsets()), (of_lower, of_upper));
    // An instance that pins some of these slices takes the place of the one that has them, and resumes at its position.
    lower.consumer.leave().await;
    let mut part = pinned(0, 100);
    let mut late = pinned(600, 700);
    journal.append_many((100..200).map(|n| NewEvent::new("x").key(format!("key {n}")))).await.unwrap();
    part.read_to(200).await;
    late.read_to(200).await;
    let of = |from, to| {
        let slices = mainstem_direct::SliceRange::new(from, to).unwrap();
        move |offset: &i64| {
            slices.contains(mainstem_records::slice_of(Some(format!("key {offset}").as_bytes()), *offset))
        }
    };
    assert_eq!(part.offsets(), (100..200).filter(of(0, 100)).collect::<Vec<_>>());
    let late_offsets = late.offsets();
    assert_eq!(
        late_offsets.iter().filter(|offset| **offset >= 100).count(),
        (100..200).filter(of(600, 700)).count()
    );
    loop {
        if let Err(error) = upper.step().await {
            assert!(error.to_string().contains("pin no slice twice"), "{error}");
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_sends_with_its_calls_is_seen_where_they_are_judged() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let publisher = Publisher::new().stream(&journal).authorize(|access| {
        let token = access.metadata.get("authorization").and_then(|token| token.to_str().ok());
        match token == Some("Bearer tea") {
            true => Ok(mainstem_direct::Grant::Everything),
            false => Err("the token is none of ours".to_owned()),
        }
    });
    let serving = publisher.start("127.0.0.1:0").await.unwrap();
    journal.append("key", "value").await.unwrap();
    let with = |token: &str| support::address(serving.address()).metadata("Authorization", token);
    let of = |address| mainstem_direct::ConsumerConfig::new(address, "cart", "analytics");
    Reader::new(of(with("Bearer tea"))).read(1).await;
    let refused = Reader::new(of(with("Bearer milk"))).step().await.unwrap_err();
    assert!(refused.to_string().contains("none of ours"), "{refused}");
    let mut admin = mainstem_direct::Admin::connect(with("Bearer tea")).await.unwrap();
    assert_eq!(admin.describe("").await.unwrap().len(), 1);
}

/// A client that may read and not manage changes nothing for other instances, neither by a call nor as an instance.
#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_an_instance_keeps_for_all_is_judged_as_a_change_of_its_consumer() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let publisher = Publisher::new().stream(&journal).authorize(|access| {
        let token = access.metadata.get("authorization").and_then(|token| token.to_str().ok());
        match access.call {
            Call::Manage if token != Some("manager") => Err("only managers change consumers".to_owned()),
            _ => Ok(Grant::Everything),
        }
    });
    let serving = publisher.start("127.0.0.1:0").await.unwrap();
    journal.append("1", "value").await.unwrap();
    let of = |token: &str| {
        let address = support::address(serving.address()).metadata("Authorization", token);
        ConsumerConfig::new(address, "cart", "analytics")
    };
    let filter = criteria::only([criteria::key("2")]);
    let mut reader = Reader::new(of("reader"));
    reader.read(1).await;
    reader.consumer.keep_filter(filter.clone());
    let refused = loop {
        if let Err(error) = reader.step().await {
            break error;
        }
    };
    assert!(
        matches!(refused, DirectError::Status { code: tonic::Code::PermissionDenied, .. }),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("only managers change consumers"), "{refused}");
    let kept = async || {
        let info = admin(serving.address()).await.describe("cart").await.unwrap().remove(0);
        info.consumers[0].filter.clone()
    };
    assert_eq!((kept().await, reader.others.as_slice()), (None, &[][..]));
    let mut manager = Reader::new(of("manager"));
    manager.consumer.keep_filter(filter.clone());
    assert!(filtered_from(&mut manager).await >= 1);
    assert_eq!(kept().await, Some(filter));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_consumers_cost_one_read_and_one_evaluation() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    let address = serving.address();
    let even = criteria::only(["0", "2", "4", "6", "8"].map(criteria::key));
    let mut readers: Vec<Reader> = (0..100)
        .map(|n| {
            let consumer =
                mainstem_direct::ConsumerConfig::new(support::address(address), "cart", format!("c{n}"));
            Reader::new(consumer.filter(even.clone()))
        })
        .collect();
    for reader in &mut readers {
        while reader.assigned.is_none() {
            reader.step().await.unwrap();
        }
    }
    for n in 0..300 {
        journal.append(format!("{}", n % 10), "value").await.unwrap();
    }
    for reader in &mut readers {
        reader.read_to(300).await;
        assert_eq!(reader.offsets(), (0..300).step_by(2).collect::<Vec<_>>());
    }
    let info = admin(address).await.describe("cart").await.unwrap().remove(0);
    assert_eq!(info.events_read, 300);
    assert!(
        info.events_evaluated <= 330,
        "a chunk is looked at again by a straggler at most: {}",
        info.events_evaluated
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_consumer_holds_no_other_up_and_reads_from_disk_later() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    let mut slow = Reader::new(config(serving.address(), "cart").credit_bytes(1_000));
    let mut quick = Reader::new(mainstem_direct::ConsumerConfig::new(
        support::address(serving.address()),
        "cart",
        "quick",
    ));
    let value = "x".repeat(2_000);
    let many = || (0..1_000).map(|_| NewEvent::new(value.clone()).key("key"));
    for _ in 0..8 {
        // 16 MiB in all: more than the ring has.
        for _ in 0..20 {
            journal.append_many(many().take(50)).await.unwrap();
        }
    }
    quick.read(8_000).await;
    slow.read(8_000).await;
    assert_eq!(slow.offsets(), (0..8_000).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_finished_ahead_is_not_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    journal.append_many((0..10).map(|n| NewEvent::new(format!("{n}")))).await.unwrap();
    let mut reader = Reader::new(config(serving.address(), "cart"));
    reader.read(10).await;
    let mut admin = admin(serving.address()).await;
    admin.manage("cart", "analytics", reset(To::Offset(0))).await.unwrap();
    while reader.others.is_empty() || reader.assigned.is_none() {
        reader.step().await.unwrap();
    }
    let assignment = reader.assigned.unwrap().0;
    // It has done some of the events, out of order, and leaves.
    until("the events came again", || async { reader.consumer.positions().assignment() == Some(assignment) })
        .await;
    while reader.events.len() < 20 {
        let event = reader.consumer.next().await.unwrap();
        if let ConsumerEvent::Records { batches, ranges, .. } = event {
            reader.events.extend(ranges.into_iter().flat_map(|range| support::records(&batches[range])));
        }
    }
    reader.consumer.positions().done(Done { assignment, offset: 3, finished: vec![5..6, 8..10] });
    reader.consumer.leave().await;
    let mut next = Reader::new(config(serving.address(), "cart"));
    next.read_to(10).await;
    assert_eq!(next.offsets(), [3, 4, 6, 7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_shows_what_its_transformation_makes() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("internal"));
    let publisher = Publisher::new().transformed(&journal, "public", |event| {
        let value = event.value.unwrap_or_default();
        let is_public = !value.starts_with(b"secret");
        is_public.then(|| Transformed {
            key: event.key.map(Bytes::copy_from_slice),
            value: [b"public ", value].concat().into(),
            headers: Vec::new(),
        })
    });
    let serving = publisher.start("127.0.0.1:0").await.unwrap();
    for value in ["one", "secret two", "three"] {
        journal.append("key", value).await.unwrap();
    }
    let mut reader = Reader::new(config(serving.address(), "public"));
    let seen = reader.read(2).await;
    assert_eq!(seen, [(0, "public one".to_owned()), (2, "public three".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_is_read_in_small_pieces_while_another_consumer_is_sent_new_events() {
    const PIECE_BYTES: usize = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    // 8 MiB in batches of 16 KiB, of which the newest 4 MiB are in memory.
    let (batches, end) = (512, 512 * 16);
    let events = || (0..16).map(|_| NewEvent::new("x".repeat(1_000)));
    for appended in join_all((0..batches).map(|_| journal.append_many(events()))).await {
        appended.unwrap();
    }
    let mut readers = 0;
    let mut first_frame = async || {
        readers += 1;
        let name = format!("reader {readers}");
        let mut reader = Reader::new(ConsumerConfig::new(address(serving.address()), "cart", name));
        loop {
            let event =
                tokio::time::timeout(DEADLINE, reader.consumer.next()).await.expect("something comes");
            if let ConsumerEvent::Records { from: 0, batches, .. } = event.unwrap() {
                return batches.len();
            }
        }
    };
    assert!(first_frame().await > 2 * PIECE_BYTES, "there is no other consumer");
    let mut live = Reader::new(config(serving.address(), "cart"));
    live.read_to(end).await;
    // A stalled machine may take the time between both.
    let deadline = tokio::time::Instant::now() + DEADLINE;
    for new in 1.. {
        journal.append("key", "a new one").await.unwrap();
        live.read_to(end + new).await;
        let bytes = first_frame().await;
        if bytes <= PIECE_BYTES {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{bytes} bytes at once");
    }
}
