//! Measures a durable append to a segment that grows, that has reserved blocks, or that was filled with zeros.
//!
//! `cargo run --release -p mainstem-log --example write_ahead -- DIR`

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use mainstem_log::storage::{OpenMode, RealStorage, Storage, StorageFile, write_all_at};
use std::path::Path;
use std::time::{Duration, Instant};

const APPENDS: u64 = 1500;
const RUNS: usize = 5;

/// The preparation of a segment.
#[derive(Debug, Clone, Copy)]
enum Layout {
    /// The file grows with each append.
    Growing,
    /// Its blocks are reserved, its length is not (`fallocate` with `KEEP_SIZE`).
    Reserved,
    /// The file was filled with zeros and synced: appends overwrite.
    WrittenAhead,
}

fn main() {
    let dir = std::env::args().nth(1).expect("the directory to measure in");
    println!("us per append and fdatasync, lowest of {RUNS} runs: median / 99th percentile");
    for bytes in [1024, 4096, 65536] {
        for layout in [Layout::Growing, Layout::Reserved, Layout::WrittenAhead] {
            let best = (0..RUNS).map(|_| measure(Path::new(&dir), layout, bytes)).min().unwrap();
            println!("{bytes:6} {layout:?}: {:?} / {:?}", best.0, best.1);
        }
    }
}

fn measure(dir: &Path, layout: Layout, bytes: usize) -> (Duration, Duration) {
    let storage = RealStorage;
    let path = dir.join("write-ahead-probe");
    let file = storage.open(&path, OpenMode::Create).unwrap();
    prepare(&*file, layout, APPENDS * bytes as u64);
    let record = vec![0x5a; bytes];
    let mut costs: Vec<_> = (0..APPENDS)
        .map(|number| {
            let start = Instant::now();
            write_all_at(&*file, &record, number * bytes as u64).unwrap();
            file.sync_data().unwrap();
            start.elapsed()
        })
        .collect();
    storage.remove_file(&path).unwrap();
    costs.sort_unstable();
    (costs[costs.len() / 2], costs[costs.len() * 99 / 100])
}

fn prepare(file: &dyn StorageFile, layout: Layout, len: u64) {
    match layout {
        Layout::Growing => {}
        Layout::Reserved => file.allocate(0, len).unwrap(),
        Layout::WrittenAhead => {
            for position in (0..len).step_by(1 << 20) {
                let count = (len - position).min(1 << 20) as usize;
                write_all_at(file, &vec![0; count], position).unwrap();
            }
        }
    }
    file.sync_data().unwrap();
}
