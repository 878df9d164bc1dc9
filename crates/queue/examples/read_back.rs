//! The time of reading a queue backwards as a multiple of that of reading it forwards: messages alone, and in batches of several
//! sizes. `cargo run --release -p mainstem-queue --example read_back -- DIR`

#![allow(clippy::print_stdout, reason = "a program that prints what it measured")]

use std::path::Path;
use std::time::{Duration, Instant};

use mainstem_queue::{Queue, QueueError, Start};

const MESSAGES: usize = 200_000;
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("name a directory that is not there")?;
    println!("{MESSAGES} messages of 100 bytes; nanoseconds a message, medians of {ROUNDS} rounds");
    for in_batch in [1, 10, 100, 1_000, 10_000] {
        let queue = fill(Path::new(&directory), in_batch)?;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push((forwards(&queue)?, backwards(&queue)?));
        }
        let forwards = median(rounds.iter().map(|(forwards, _)| *forwards));
        let backwards = median(rounds.iter().map(|(_, backwards)| *backwards));
        println!(
            "batches of {in_batch:>5}: {forwards:>6.1} forwards, {backwards:>8.1} backwards: {:.2} times",
            backwards / forwards
        );
        std::fs::remove_dir_all(&directory)?;
    }
    Ok(())
}

fn fill(directory: &Path, in_batch: usize) -> Result<Queue, QueueError> {
    let queue = Queue::open(directory)?;
    let mut appender = queue.exclusive_appender()?;
    for _ in 0..MESSAGES / in_batch {
        let mut messages = appender.batch();
        for _ in 0..in_batch {
            messages.push([7; 100])?;
        }
        messages.commit()?;
    }
    Ok(queue)
}

fn forwards(queue: &Queue) -> Result<Duration, QueueError> {
    let mut reader = queue.reader(Start::Earliest)?;
    let begin = Instant::now();
    let mut count = 0;
    while reader.read_message()?.is_some() {
        count += 1;
    }
    assert_eq!(count, MESSAGES);
    Ok(begin.elapsed())
}

fn backwards(queue: &Queue) -> Result<Duration, QueueError> {
    let mut reader = queue.reader(Start::Latest)?;
    let begin = Instant::now();
    let mut count = 0;
    while reader.read_back()?.is_some() {
        count += 1;
    }
    assert_eq!(count, MESSAGES);
    Ok(begin.elapsed())
}

fn median(times: impl Iterator<Item = Duration>) -> f64 {
    let mut nanos: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e9 / MESSAGES as f64).collect();
    nanos.sort_by(f64::total_cmp);
    nanos[nanos.len() / 2]
}
