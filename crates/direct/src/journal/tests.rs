//! Journals: durability of appends, identity, and starts after clean and unclean ends.

use super::*;

fn options() -> JournalOptions {
    JournalOptions::new().queue(|queue| queue.segment_bytes(64 << 10))
}

#[tokio::test]
async fn an_append_is_synced_and_visible_when_it_returns() {
    let dir = tempfile::tempdir().unwrap();
    let journal = options().open(dir.path().join("cart")).unwrap();
    assert_eq!(journal.name(), "cart");
    for n in 0..20 {
        assert_eq!(journal.append("key", "value").await.unwrap(), n);
        assert!(journal.queue().ends().synced > n);
        assert!(journal.end() > n);
    }
    let many = (0..100).map(|n| NewEvent::new(format!("event {n}")).tag("many"));
    assert_eq!(journal.append_many(many).await.unwrap(), 20);
    assert_eq!(journal.end(), 120);
    assert!(journal.append_many([]).await.is_err());
    let large = journal.append("key", &vec![0; FRAME_BYTES_MAX]).await.unwrap_err().to_string();
    assert!(large.contains("larger than a frame"), "{large}");
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_at_one_time_share_syncs_and_all_return() {
    let dir = tempfile::tempdir().unwrap();
    let journal = options().open(dir.path()).unwrap();
    let tasks: Vec<_> = (0..200)
        .map(|n| {
            let journal = journal.clone();
            tokio::spawn(async move { journal.append(format!("{n}"), "value").await.unwrap() })
        })
        .collect();
    let mut offsets = Vec::new();
    for task in tasks {
        offsets.push(task.await.unwrap());
    }
    offsets.sort_unstable();
    assert_eq!(offsets, (0..200).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_another_process_appends_becomes_visible_too() {
    let dir = tempfile::tempdir().unwrap();
    let journal = options().open(dir.path()).unwrap();
    Queue::open(dir.path()).unwrap().append("from elsewhere").unwrap();
    let mut ends = journal.ring().watch();
    tokio::time::timeout(Duration::from_secs(60), ends.wait_for(|end| *end == 1)).await.unwrap().unwrap();
    let refused = options().open(dir.path()).unwrap_err().to_string();
    assert!(refused.contains(&format!("in process {}", std::process::id())), "{refused}");
}

#[tokio::test]
async fn an_unclean_start_raises_the_epoch_and_a_clean_one_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let (live, copy) = (dir.path().join("live"), dir.path().join("copy"));
    let journal = options().open(&live).unwrap();
    let id = journal.id();
    journal.append("a", "1").await.unwrap();
    // A copy of an open journal is what a kill leaves behind.
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(&live).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
    }
    drop(journal);
    let again = options().open(&live).unwrap();
    assert_eq!((again.id(), again.epoch(), again.end()), (id, 0, 1));
    let killed = options().open(&copy).unwrap();
    assert_eq!((killed.id(), killed.epoch(), killed.end()), (id, 1, 1));
    assert_eq!(killed.view().epochs.last().map(|epoch| epoch.start), Some(1));
}

#[tokio::test]
async fn each_start_begins_a_run_that_only_its_own_events_are_of() {
    let dir = tempfile::tempdir().unwrap();
    let runs = |journal: &Journal| {
        let runs = journal.view().epochs;
        runs.iter().map(|run| (run.run, run.start)).collect::<Vec<_>>()
    };
    let journal = options().open(dir.path()).unwrap();
    let first = runs(&journal)[0];
    journal.append("a", "1").await.unwrap();
    drop(journal);
    // What others append while no publisher has it is of the run that shows it.
    Queue::open(dir.path()).unwrap().append("from elsewhere").unwrap();
    let journal = options().open(dir.path()).unwrap();
    let second = runs(&journal)[1];
    assert_eq!((runs(&journal), second.1), (vec![first, second], 1));
    assert!(first.0 != second.0 && first.0 != 0 && second.0 != 0);
    drop(journal);
    // A run without events leaves nothing.
    for _ in 0..3 {
        drop(options().open(dir.path()).unwrap());
    }
    let journal = options().open(dir.path()).unwrap();
    assert_eq!((runs(&journal).len(), &runs(&journal)[..2], journal.epoch()), (3, &[first, second][..], 0));
}
