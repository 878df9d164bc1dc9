//! Replays: all events of some keys once more, up to the position of the instance, which continues from there.

use crate::support;
use crate::support::{Reader, admin, config, open, records, serve, serve_at};
use mainstem_direct::proto::{self, publisher_client::PublisherClient};
use mainstem_direct::{
    Consumer, DirectError, Grant, JournalOptions, NewEvent, Publisher, Replayed, Transformed, criteria,
};

/// Offsets and values of a replay to its end.
async fn replay(consumer: &mut Consumer, keys: &[&'static str]) -> Result<Vec<(i64, String)>, DirectError> {
    let mut replay = consumer.replay(keys.iter().copied())?;
    let (mut all, mut at) = (Vec::new(), 0);
    while let Some(replayed) =
        tokio::time::timeout(support::DEADLINE, replay.next()).await.expect("something comes")?
    {
        assert_eq!(replayed.from, at);
        at = replayed.next;
        all.extend(events(&replayed));
    }
    Ok(all)
}

fn events(replayed: &Replayed) -> Vec<(i64, String)> {
    replayed.ranges.iter().flat_map(|range| records(&replayed.batches[range.clone()])).collect()
}

fn offsets(events: &[(i64, String)]) -> Vec<i64> {
    events.iter().map(|(offset, _)| *offset).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_read_again_up_to_where_the_consumer_is_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    let event = |n: i64| NewEvent::new(format!("{n}")).key(format!("{}", n % 10));
    for first in (0..600).step_by(100) {
        journal.append_many((first..first + 100).map(event)).await.unwrap();
    }
    let mut reader = Reader::new(config(serving.address(), "cart"));
    // Without slices the instance has no position.
    assert!(reader.consumer.replay(["3"]).is_err());
    // It may have received more events than it has returned. These are not in the replay.
    reader.read(250).await;
    let at = reader.next;
    for again in 0..2 {
        let events = replay(&mut reader.consumer, &["3", "7", "missing"]).await.unwrap();
        let wanted: Vec<_> = (0..at).filter(|n| [3, 7].contains(&(n % 10))).collect();
        assert_eq!(offsets(&events), wanted, "{again}");
        assert!(events.iter().all(|(offset, value)| offset.to_string() == *value));
    }
    assert_eq!(replay(&mut reader.consumer, &["missing"]).await.unwrap(), []);
    // It continues as if there had been no replay, and so does its position.
    journal.append_many((600..700).map(event)).await.unwrap();
    reader.read(700).await;
    assert_eq!(reader.offsets(), (0..700).collect::<Vec<_>>());
    support::until("its position is the end", || async {
        admin(serving.address()).await.describe("cart").await.unwrap()[0].consumers[0].offset == 700
    })
    .await;
    assert_eq!(reader.others, []);
    let refused = replay(&mut reader.consumer, &[]).await.unwrap_err().to_string();
    assert!(refused.contains("one key at least"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_goes_on_at_the_next_run_of_the_publisher() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    let address = serving.address();
    // 12 MiB. Connections hold only a part of it.
    let value = "x".repeat(32 << 10);
    for _ in 0..384 {
        journal.append("key", &value).await.unwrap();
    }
    let mut reader = Reader::new(config(address, "cart"));
    reader.read(384).await;
    let mut replay = reader.consumer.replay(["key"]).unwrap();
    let first = replay.next().await.unwrap().unwrap();
    let mut all = events(&first);
    assert!(all.len() < 384);
    serving.stop().await.unwrap();
    drop(journal);
    let deadline = tokio::time::Instant::now() + support::DEADLINE;
    let journal = loop {
        // The publisher may have it open for a moment longer.
        match JournalOptions::new().open(dir.path().join("cart")) {
            Err(error) if tokio::time::Instant::now() > deadline => panic!("{error}"),
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            Ok(journal) => break journal,
        }
    };
    let _serving = serve_at(&journal, address).await;
    while let Some(replayed) =
        tokio::time::timeout(support::DEADLINE, replay.next()).await.expect("something comes").unwrap()
    {
        all.extend(events(&replayed));
    }
    assert_eq!(offsets(&all), (0..384).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_shows_no_more_than_the_consumer_sees() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("internal"));
    let publisher = Publisher::new().transformed(&journal, "public", |event| {
        Some(Transformed {
            key: event.key.map(bytes::Bytes::copy_from_slice),
            value: [b"public ", event.value.unwrap_or_default()].concat().into(),
            headers: Vec::new(),
        })
    });
    let publisher = publisher.authorize(|_| {
        let granted = [criteria::key("a"), criteria::key("b")];
        Ok(Grant::Only(criteria::only(granted)))
    });
    let serving = publisher.start("127.0.0.1:0").await.unwrap();
    for key in ["a", "secret", "b", "a"] {
        journal.append(key, key).await.unwrap();
    }
    let mut reader =
        Reader::new(config(serving.address(), "public").filter(criteria::only([criteria::key("a")])));
    reader.read(2).await;
    let seen = replay(&mut reader.consumer, &["a", "b", "secret"]).await.unwrap();
    assert_eq!(seen, [(0, "public a".to_owned()), (3, "public a".to_owned())]);
}

/// The index of the queue finds the offset at which a lost call continues: nothing before that is read again.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_reads_from_where_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    // 3 MiB in segments of 256 KiB, batches of ten.
    let value = "x".repeat(3_000);
    for _ in 0..100 {
        journal.append_many((0..10).map(|_| NewEvent::new(value.clone()).key("key"))).await.unwrap();
    }
    Reader::new(config(serving.address(), "cart")).read(1_000).await;
    let mut client = PublisherClient::connect(format!("http://{}", serving.address())).await.unwrap();
    let mut admin = admin(serving.address()).await;
    let request = proto::ReplayRequest {
        stream: "cart".to_owned(),
        consumer: "analytics".to_owned(),
        journal_id: journal.id().0.to_vec().into(),
        from: 875,
        until: 1_000,
        keys: vec!["key".into()],
        ..proto::ReplayRequest::default()
    };
    let before = admin.describe("cart").await.unwrap()[0].events_read;
    let mut frames = client.replay(request).await.unwrap().into_inner();
    let (mut next, mut count) = (875, 0);
    while let Some(frame) = frames.message().await.unwrap() {
        assert_eq!(frame.from, next);
        next = frame.next;
        let mut rest = &frame.batches[..];
        while !rest.is_empty() {
            let (batch, behind) = mainstem_records::Batch::split_first(rest).unwrap();
            count += records(&rest[..batch.size()]).len();
            rest = behind;
        }
    }
    assert_eq!((next, count), (1_000, 125));
    // The batch of the first event begins before it.
    assert_eq!(admin.describe("cart").await.unwrap()[0].events_read - before, 130);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_replayed_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    journal.append("key", "value").await.unwrap();
    Reader::new(config(serving.address(), "cart")).read(1).await;
    let mut client = PublisherClient::connect(format!("http://{}", serving.address())).await.unwrap();
    let good = proto::ReplayRequest {
        stream: "cart".to_owned(),
        consumer: "analytics".to_owned(),
        journal_id: journal.id().0.to_vec().into(),
        until: 1,
        keys: vec!["key".into()],
        ..proto::ReplayRequest::default()
    };
    client.replay(good.clone()).await.unwrap();
    let with = |change: fn(&mut proto::ReplayRequest)| {
        let mut request = good.clone();
        change(&mut request);
        request
    };
    for (request, words) in [
        (with(|request| request.stream = "none".to_owned()), "there is no stream"),
        (with(|request| request.consumer = "none".to_owned()), "has no consumer"),
        (with(|request| request.keys = Vec::new()), "one key at least"),
        (with(|request| request.keys = vec![vec![b'k'; 100_000].into()]), "filter"),
        (with(|request| request.from = -1), "nothing is from offset -1"),
        (with(|request| request.from = 2), "nothing is from offset 2"),
        (with(|request| request.journal_id = vec![9; 16].into()), "is not there any more"),
        (with(|request| request.journal_id = vec![9; 15].into()), "16 bytes"),
        (with(|request| request.until = 2), "events from offset 1 on"),
        (with(|request| request.epochs = vec![proto::Epoch::default(); 2_000]), "runs of a journal"),
    ] {
        let status = client.replay(request).await.unwrap_err();
        assert!(status.message().contains(words), "{words}: {}", status.message());
    }
}
