//! What waits for an attached queue when one of its threads has a mistake.

use super::*;
use crate::settings::TopicSettings;
use crate::supervised::child::{self, End};

/// Panics in a call on the thread of a queue that syncs, that appends, and that waits for all queues.
#[test]
fn the_process_ends_with_the_threads_of_a_queue() {
    const THIS: &str = "storage::attached::tests::the_process_ends_with_the_threads_of_a_queue";
    match child::part() {
        Some(part) => make(&part),
        None => {
            for part in ["attached", "attached-sync", "attached-append"] {
                assert_eq!(child::run(THIS, part), End::Aborted, "{part}");
            }
        }
    }
}

fn make(part: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let queue = Attached::open("trades", &directory.path().join("trades"), Arc::default(), 86_400_000);
    let queue = queue.expect("a new queue");
    queue.queue().append("a message").expect("there is room");
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
