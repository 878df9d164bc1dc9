//! Measures, for each method, the time to make appends to many files durable on this machine. The flusher's thresholds
//! come from here (docs/format.md, "Flushing").
//!
//! `cargo run --release -p mainstem-log --example flush_costs -- DIR`; files are created under DIR and removed.

#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use mainstem_log::flusher::{
    FlushOptions, FlushTarget, FlushTicket, FlushWork, Flusher, FlusherParts, FlusherStop,
};
use mainstem_log::storage::{OpenMode, RealStorage, Storage, StorageFile, write_all_at};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const APPEND: [u8; 1024] = [0x5a; 1024];
const ROUNDS: usize = 25;

/// A file with a length, and the appends that wait for its sync.
struct Appended {
    file: Arc<dyn StorageFile>,
    len: AtomicU64,
    ticket: FlushTicket,
    done: Arc<Done>,
}

#[derive(Default)]
struct Done {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Done {
    fn wait_for(&self, count: usize) {
        let mut done = self.count.lock().expect("no waiter panics");
        while *done < count {
            done = self.changed.wait(done).expect("no waiter panics");
        }
        *done = 0;
    }
}

impl Appended {
    fn append(&self) -> io::Result<()> {
        let position = self.len.fetch_add(APPEND.len() as u64, Ordering::Relaxed);
        write_all_at(&*self.file, &APPEND, position)
    }
}

impl FlushTarget for Appended {
    fn ticket(&self) -> &FlushTicket {
        &self.ticket
    }

    fn begin_flush(&self) -> FlushWork {
        FlushWork { files: vec![self.file.clone()], ..FlushWork::default() }
    }

    fn end_flush(&self, _upto: i64, result: io::Result<()>) {
        result.expect("the disk works");
        *self.done.count.lock().expect("no waiter panics") += 1;
        self.done.changed.notify_one();
    }
}

struct Bench {
    dir: PathBuf,
    storage: Arc<dyn Storage>,
    files: Vec<Arc<Appended>>,
    done: Arc<Done>,
}

impl Bench {
    fn new(dir: PathBuf, files: usize) -> io::Result<Bench> {
        let storage: Arc<dyn Storage> = Arc::new(RealStorage);
        storage.create_dir(&dir)?;
        let done = Arc::new(Done::default());
        let open = |index: usize| {
            let file = storage.open(&dir.join(index.to_string()), OpenMode::Create)?;
            Ok(Arc::new(Appended {
                file,
                len: AtomicU64::new(0),
                ticket: FlushTicket::default(),
                done: done.clone(),
            }))
        };
        let files = (0..files).map(open).collect::<io::Result<Vec<_>>>()?;
        Ok(Bench { dir, storage, files, done })
    }

    fn flusher(&self, sync_fs: bool) -> io::Result<Flusher> {
        let options = FlushOptions {
            sync_fs_files_min: if sync_fs { 2 } else { usize::MAX },
            sync_fs_dirty_max: u64::MAX,
            ..FlushOptions::measured()
        };
        self.flusher_with(options)
    }

    fn flusher_with(&self, options: FlushOptions) -> io::Result<Flusher> {
        Flusher::start(FlusherParts {
            storage: self.storage.clone(),
            anchor: self.files[0].file.clone(),
            name: "bench".to_owned(),
            options,
            on_failure: Arc::new(|_| {}),
        })
    }

    /// Median of the time from the first request to the last answer, with something done before each round.
    fn by_flusher(
        &self,
        flusher: &Flusher,
        files: usize,
        before: impl Fn() -> io::Result<()>,
    ) -> io::Result<Duration> {
        let files: Vec<Arc<dyn FlushTarget>> =
            self.files[..files].iter().map(|file| file.clone() as Arc<dyn FlushTarget>).collect();
        median(|| {
            self.files[..files.len()].iter().try_for_each(|file| file.append())?;
            before()?;
            let start = Instant::now();
            for file in &files {
                flusher.request(file);
            }
            self.done.wait_for(files.len());
            Ok(start.elapsed())
        })
    }

    fn one_by_one(&self, files: usize) -> io::Result<Duration> {
        median(|| {
            self.files[..files].iter().try_for_each(|file| file.append())?;
            let start = Instant::now();
            self.files[..files].iter().try_for_each(|file| file.file.sync_data())?;
            Ok(start.elapsed())
        })
    }

    fn remove(self) -> io::Result<()> {
        self.storage.remove_dir_all(&self.dir)
    }
}

fn median(mut round: impl FnMut() -> io::Result<Duration>) -> io::Result<Duration> {
    let mut costs = (0..ROUNDS).map(|_| round()).collect::<io::Result<Vec<_>>>()?;
    costs.sort_unstable();
    Ok(costs[costs.len() / 2])
}

fn methods(dir: &Path) -> io::Result<()> {
    println!("files  one by one  in parallel  syncfs   (us, median of {ROUNDS}; 1 KiB appended to each)");
    let bench = Bench::new(dir.join("methods"), 1000)?;
    rustix::fs::sync();
    for files in [1, 2, 3, 4, 6, 8, 16, 32, 100, 300, 1000] {
        let one_by_one = bench.one_by_one(files)?;
        let parallel = bench.by_flusher(&bench.flusher(false)?, files, || Ok(()))?;
        let sync_fs = bench.by_flusher(&bench.flusher(true)?, files, || Ok(()))?;
        println!(
            "{files:5}  {:10}  {:11}  {:6}",
            one_by_one.as_micros(),
            parallel.as_micros(),
            sync_fs.as_micros()
        );
    }
    bench.remove()
}

fn beside_dirty_pages(dir: &Path) -> io::Result<()> {
    println!("\nKiB of other dirty pages  syncfs of 10 files  of 100 files   (us)");
    let bench = Bench::new(dir.join("dirty"), 101)?;
    let flusher = bench.flusher(true)?;
    let other = &bench.files[100].file;
    for kib in [0, 64, 256, 1024, 4096, 16384, 65536] {
        let dirty = vec![0xa5; kib << 10];
        let ten = bench.by_flusher(&flusher, 10, || write_all_at(&**other, &dirty, 0))?;
        let hundred = bench.by_flusher(&flusher, 100, || write_all_at(&**other, &dirty, 0))?;
        println!("{kib:24}  {:18}  {:12}", ten.as_micros(), hundred.as_micros());
    }
    bench.remove()
}

/// Measures one producer that waits for each record: the time that the flusher's thread adds to the `fdatasync`. The next
/// request comes either immediately or after a pause as long as a round trip.
fn overhead(dir: &Path) -> io::Result<()> {
    println!("\none file, one waiter      p50  p99   (us)");
    let bench = Bench::new(dir.join("overhead"), 1)?;
    let flusher = bench.flusher_with(FlushOptions::measured())?;
    let file = &bench.files[0];
    let target: Arc<dyn FlushTarget> = file.clone();
    for pause in [Duration::ZERO, Duration::from_micros(50), Duration::from_millis(1)] {
        let line = |name: &str, sync: &dyn Fn() -> io::Result<()>| -> io::Result<()> {
            let mut costs = Vec::new();
            for _ in 0..1000 {
                thread::sleep(pause);
                file.append()?;
                let start = Instant::now();
                sync()?;
                costs.push(start.elapsed().as_micros());
            }
            costs.sort_unstable();
            println!("{name}, pause {pause:7?}  {:4} {:4}", costs[500], costs[990]);
            Ok(())
        };
        line("fdatasync", &|| file.file.sync_data())?;
        line("flusher  ", &|| {
            flusher.request(&target);
            bench.done.wait_for(1);
            Ok(())
        })?;
    }
    flusher.stop(FlusherStop::Drain);
    drop(flusher);
    bench.remove()
}

fn main() -> io::Result<()> {
    let dir = std::env::args().nth(1).ok_or(io::Error::other("usage: flush_costs DIR"))?;
    let dir = Path::new(&dir);
    methods(dir)?;
    beside_dirty_pages(dir)?;
    overhead(dir)
}
