use super::*;
use crate::storage::RealStorage;
use proptest::prelude::*;
use std::fs;
use std::thread;

fn offsets(entries: &[(&str, i32, i64)]) -> Offsets {
    entries
        .iter()
        .map(|(topic, partition, offset)| (TopicPartition::new(*topic, *partition), *offset))
        .collect()
}

#[test]
fn the_text_is_that_of_kafka() {
    assert_eq!(format(&Offsets::new()), "0\n0\n");
    assert_eq!(format(&offsets(&[("b", 1, 98), ("a.b_c-d", 0, 1742)])), "0\n2\na.b_c-d 0 1742\nb 1 98\n");
}

#[test]
fn files_are_understood_or_refused_by_line() {
    let check = |text: &str, expected: Result<Offsets, &str>| {
        let parsed = parse(text.as_bytes()).map_err(|error| error.to_string());
        assert_eq!(parsed, expected.map_err(str::to_owned), "{text:?}");
    };
    check("", Ok(Offsets::new()));
    check("0\n", Ok(Offsets::new()));
    check("0\n0\n", Ok(Offsets::new()));
    check("0\n1\nt 0 5\n", Ok(offsets(&[("t", 0, 5)])));
    check("0\r\n1\r\nt  0\t5\r\n", Ok(offsets(&[("t", 0, 5)])));
    check("0\n1\nt 0 9223372036854775807", Ok(offsets(&[("t", 0, i64::MAX)])));
    check("1\n1\nt 0 5\n", Err("its version is \"1\" and not 0"));
    check("0\nx\n", Err("line 2 is malformed: \"x\""));
    check("0\n-1\n", Err("line 2 is malformed: \"-1\""));
    check("0\n1\nt 0\n", Err("line 3 is malformed: \"t 0\""));
    check("0\n1\nt 0 5 6\n", Err("line 3 is malformed: \"t 0 5 6\""));
    check("0\n1\nt 0 9223372036854775808\n", Err("line 3 is malformed: \"t 0 9223372036854775808\""));
    check("0\n1\n\n", Err("line 3 is malformed: \"\""));
    check("0\n2\nt 0 5\n", Err("it has 1 entries and says 2"));
    check("0\n99999999999\nt 0 5\n", Err("it has 1 entries and says 99999999999"));
    check("0\n0\nt 0 5\n", Err("it has 1 entries and says 0"));
}

proptest! {
    #[test]
    fn offsets_survive_their_file(
        offsets in proptest::collection::btree_map(
            ("[a-zA-Z0-9._-]{1,20}", 0..i32::MAX).prop_map(|(topic, partition)| TopicPartition::new(topic, partition)),
            any::<i64>(),
            0..20,
        ),
    ) {
        prop_assert_eq!(parse(format(&offsets).as_bytes()), Ok(offsets));
    }
}

fn load(dir: &Path) -> OffsetCheckpoint {
    OffsetCheckpoint::load(Arc::new(RealStorage), dir, LOG_START_CHECKPOINT).unwrap()
}

fn text(dir: &Path) -> String {
    fs::read_to_string(dir.join(LOG_START_CHECKPOINT)).unwrap()
}

#[test]
fn the_file_follows_when_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = load(dir.path());
    let partition = TopicPartition::new("t", 3);
    assert_eq!(checkpoint.get(&partition), None);
    checkpoint.set(&partition, 7);
    assert_eq!(checkpoint.get(&partition), Some(7));
    assert!(!dir.path().join(LOG_START_CHECKPOINT).exists());
    checkpoint.write().unwrap();
    assert_eq!(text(dir.path()), "0\n1\nt 3 7\n");
    assert_eq!(load(dir.path()).get(&partition), Some(7));

    assert!(checkpoint.retain(|_| false));
    checkpoint.commit().unwrap();
    assert_eq!(text(dir.path()), "0\n0\n");
}

#[test]
fn an_unchanged_file_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = load(dir.path());
    checkpoint.set(&TopicPartition::new("t", 0), 7);
    checkpoint.write().unwrap();
    fs::remove_file(dir.path().join(LOG_START_CHECKPOINT)).unwrap();
    checkpoint.set(&TopicPartition::new("t", 0), 7);
    checkpoint.write().unwrap();
    assert!(!dir.path().join(LOG_START_CHECKPOINT).exists());
}

#[test]
fn a_damaged_file_counts_as_empty() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(LOG_START_CHECKPOINT), "0\n5\nt 0 1\n").unwrap();
    let checkpoint = load(dir.path());
    assert_eq!(checkpoint.get(&TopicPartition::new("t", 0)), None);
}

#[test]
fn a_failed_write_is_reported_and_made_up_for() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let checkpoint = load(&inner);
    checkpoint.set(&TopicPartition::new("t", 0), 1);
    fs::remove_dir(&inner).unwrap();
    assert_eq!(checkpoint.commit().unwrap_err().kind(), io::ErrorKind::NotFound);
    fs::create_dir(&inner).unwrap();
    checkpoint.commit().unwrap();
    assert_eq!(text(&inner), "0\n1\nt 0 1\n");
}

#[test]
fn those_that_wait_together_share_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = load(dir.path());
    let (sender, receiver) = mpsc::channel();
    let mut wakes = 0;
    for index in 0..10 {
        checkpoint.set(&TopicPartition::new("t", index), i64::from(index));
        let sender = sender.clone();
        wakes += usize::from(checkpoint.enqueue(Box::new(move |result| sender.send(result).unwrap())));
    }
    assert_eq!(wakes, 1, "one of them has the file written");
    checkpoint.write_for_waiting();
    assert_eq!(receiver.try_iter().filter(Result::is_ok).count(), 10);
    assert!(checkpoint.enqueue(Box::new(|_| {})), "no thread writes any more");
}

#[test]
fn every_commit_finds_its_update_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = load(dir.path());
    thread::scope(|scope| {
        for thread in 0..4 {
            let (checkpoint, dir) = (&checkpoint, dir.path());
            scope.spawn(move || {
                let partition = TopicPartition::new("t", thread);
                for offset in 0..20 {
                    checkpoint.set(&partition, offset);
                    checkpoint.commit().unwrap();
                    assert_eq!(load(dir).get(&partition), Some(offset));
                }
            });
        }
    });
}
