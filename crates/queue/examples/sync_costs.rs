//! The cost of a sync of an embedded queue: with allocated segments, with segments that were written ahead with zeros, and with such
//! that are also on disk. `cargo run --release -p mainstem-queue --example sync_costs -- DIR`

#![allow(clippy::print_stdout, reason = "a program that prints what it measured")]

use std::path::Path;
use std::time::{Duration, Instant};

use mainstem_queue::{Options, Queue, QueueError};

const SYNCS: usize = 400;
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory =
        std::env::args().nth(1).ok_or("name a directory that is not there, on the disk to be measured")?;
    let directory = Path::new(&directory);
    std::fs::create_dir(directory)?;
    println!("microseconds of one sync after an append of 212 bytes: p50, p99; of {ROUNDS} rounds");
    for round in 1..=ROUNDS {
        for (name, prepared) in [("allocated", false), ("written ahead", true)] {
            let queue = directory.join("q");
            let [p50, p99] = measure(&queue, prepared)?;
            std::fs::remove_dir_all(queue)?;
            println!("round {round}, {name}: {:.0}, {:.0}", micros(p50), micros(p99));
        }
    }
    std::fs::remove_dir(directory)?;
    Ok(())
}

/// Measures a queue whose open segment is the second one, the first that can have been prepared.
fn measure(directory: &Path, prepared: bool) -> Result<[Duration; 2], QueueError> {
    let queue: Queue = Options::new().segment_bytes(4 << 20).open(directory)?;
    queue.append("synced, so that what is prepared is synced too")?;
    queue.sync()?;
    let ahead = if prepared { Some(queue.prepare_ahead()?) } else { None };
    while queue.segments()?.len() < 2 {
        queue.append([1; 4_000])?;
    }
    queue.sync()?;
    let mut costs = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        queue.append([2; 212])?;
        let begin = Instant::now();
        queue.sync()?;
        costs.push(begin.elapsed());
    }
    drop(ahead);
    costs.sort_unstable();
    Ok([costs[SYNCS / 2], costs[SYNCS * 99 / 100]])
}

fn micros(cost: Duration) -> f64 {
    cost.as_secs_f64() * 1e6
}
