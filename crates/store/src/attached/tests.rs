//! Waits for an attached queue when one of its threads has a mistake, or another process cuts its files.

use std::sync::mpsc;
use std::time::Instant;

use mainstem_records::{BatchBuilder, BatchOptions};

use super::*;
use crate::settings::TopicSettings;
use mainstem_testkit::child::{self, End};

/// Panics in a call on the thread of a queue that syncs, that appends, and that waits for all queues.
#[test]
fn the_process_ends_with_the_threads_of_a_queue() {
    const THIS: &str = "attached::tests::the_process_ends_with_the_threads_of_a_queue";
    match child::part() {
        Some(part) => make(&part),
        None => {
            for part in ["attached", "attached-sync", "attached-append"] {
                assert_eq!(child::run(THIS, part), End::Aborted, "{part}");
            }
        }
    }
}

fn options() -> AttachOptions {
    AttachOptions { budget: Arc::default(), producer_expiration_ms: 86_400_000, clock: Clock::start() }
}

fn make(part: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let queue = Attached::open("trades", &directory.path().join("trades"), options());
    let queue = queue.expect("a new queue");
    queue.queue().append("a message").expect("there is free space");
    let mistake = format!("a mistake in {part}");
    match part {
        "attached" => {
            let wait = Durable::Call(Box::new(move |_| panic!("{mistake}")));
            queue.waits.lock().durable.push((0, wait));
            Watcher::start(&[queue]).expect("a thread").stop();
        }
        "attached-sync" => {
            queue.when_durable(1, Durable::Call(Box::new(move |_| panic!("{mistake}"))));
            queue.stop();
        }
        _ => {
            let settings = TopicSettings::of_log(Arc::default(), false, 1);
            let (settings, due) = (Arc::new(settings), Instant::now());
            queue.append_later(b"", settings, due, Box::new(move |_| panic!("{mistake}")));
            queue.stop();
        }
    }
}

fn open_with_a_message(directory: &Path) -> Arc<Attached> {
    let queue = Attached::open("trades", directory, options()).expect("a new queue");
    queue.queue().append("a message").expect("there is free space");
    queue
}

fn cut(file: &Path) {
    fs::File::options().write(true).open(file).and_then(|file| file.set_len(0)).expect("it is there");
}

/// Appends as a client does.
fn append(queue: &Arc<Attached>, value: &[u8]) -> Result<AppendOutcome, Refused> {
    let mut builder = BatchBuilder::new(BatchOptions::default());
    builder.append(1, None, Some(value), &[]).expect("it fits");
    let mut records = Vec::new();
    builder.finish(&mut records).expect("there is a message");
    let (done, outcome) = mpsc::channel();
    let settings = Arc::new(TopicSettings::of_log(Arc::default(), false, 1));
    let deadline = Instant::now() + Duration::from_secs(600);
    queue.append_later(&records, settings, deadline, Box::new(move |outcome| drop(done.send(outcome))));
    outcome.recv().expect("it is answered")
}

/// Waits for the sync of an offset.
fn wait_for_sync(queue: &Attached, upto: i64) -> Result<(), ErrorCode> {
    let (done, outcome) = mpsc::channel();
    queue.when_durable(
        upto,
        Durable::Call(Box::new(move |result| done.send(result).expect("it is waited for"))),
    );
    outcome.recv().expect("it ends")
}

#[test]
fn a_file_that_is_cut_costs_its_queue_and_not_the_broker() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let [sound, log, control] = ["sound", "log", "control"].map(|name| open_with_a_message(&path(name)));
    let large = vec![7; 5_000];
    cut(&path("log/00000000000000000000.log"));
    let refused = append(&log, &large).map(|_| ()).map_err(|refused| refused.code());
    assert_eq!(refused, Err(ErrorCode::KAFKA_STORAGE_ERROR));
    cut(&path("control/queue.control"));
    assert_eq!(control.ends().err(), Some(ErrorCode::KAFKA_STORAGE_ERROR));
    assert_eq!(control.search(None), Err(ErrorCode::KAFKA_STORAGE_ERROR));
    assert_eq!(wait_for_sync(&control, 1), Err(ErrorCode::KAFKA_STORAGE_ERROR));
    assert_eq!(
        append(&control, &large).err().map(|refused| refused.code()),
        Some(ErrorCode::KAFKA_STORAGE_ERROR)
    );
    assert_eq!(append(&sound, &large).ok().map(|outcome| outcome.appended.base_offset), Some(1));
    assert_eq!(wait_for_sync(&sound, 2), Ok(()));
    [sound, log, control].iter().for_each(|queue| queue.stop());
    // A clean stop writes nothing of what is not known.
    let files = fs::read_dir(path("control")).expect("it is there").flatten();
    assert!(files.into_iter().all(|file| !file.file_name().to_string_lossy().ends_with(".snapshot")));
}
