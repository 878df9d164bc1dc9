//! A queue in one process: what it and others appended, read under a name. docs/queue.md shows it.
#![allow(clippy::print_stdout, reason = "an example prints")]

use mainstem_queue::{Queue, QueueError};

fn main() -> Result<(), QueueError> {
    let queue = Queue::open("trades")?;
    queue.append("third trade")?;
    for message in queue.tailer("me")? {
        println!("{}", String::from_utf8_lossy(message?.value()));
    }
    Ok(())
}
