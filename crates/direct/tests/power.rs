//! A publisher whose machine loses its power, again and again: events that a consumer has seen are still there.
//!
//! The publisher is a process of this program, in which [`fdatasync`] and [`fsync`] keep a copy of what they make durable. It is
//! killed, and its directory becomes one that a disk may have after a power cut. Each page is the copy or what was written since,
//! torn between sectors. Names are those that their directory was synced with; later ones may be there or not.
//! `TEST_DIRECT_POWER_CUTS` sets the number of power cuts, 12 by default.
#![allow(unsafe_code, clippy::unwrap_used, clippy::print_stderr)]

#[path = "it/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant, UNIX_EPOCH};

use mainstem_direct::{
    Address, Consumer, ConsumerConfig, ConsumerEvent, DirectError, Done, JournalOptions, Publisher, Refused,
    Visibility,
};
use mainstem_queue::Start;
use support::records;

const ROLE: &str = "TEST_DIRECT_POWER_ROLE";
const ADDRESS: &str = "TEST_DIRECT_POWER_ADDRESS";
/// With it, each sync takes so many milliseconds.
const SLOW: &str = "TEST_DIRECT_POWER_SLOW_MS";
const CUTS: u64 = 12;
const JOURNAL: &str = "cart";
/// The folder with copies of what is on disk, by file.
const DISK: &str = "disk";
/// The number of concurrent appends.
const TASKS: u32 = 20;
const PAGE: usize = 4_096;
const SECTOR: usize = 512;
const DEADLINE: Duration = Duration::from_secs(60);

static SYNCING: Mutex<()> = Mutex::new(());

/// Replaces the C library's.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync(fd)
}

/// Replaces the C library's.
#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    sync(fd)
}

fn sync(fd: c_int) -> c_int {
    let is_kept = std::env::var(ROLE).is_ok_and(|role| role.starts_with("publisher"));
    if !is_kept {
        // SAFETY: the caller has it open.
        return done(rustix::fs::fsync(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok());
    }
    let _turn = SYNCING.lock().unwrap();
    let path = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
    // The copy is made before the sync, so that after it the copy is complete.
    let copy = Path::new(DISK).join("new");
    if path.is_dir() {
        let names: String =
            files(&path).into_iter().map(|name| format!("{} {name}\n", id(&path.join(&name)))).collect();
        fs::write(&copy, names).unwrap();
    } else {
        // By the descriptor: another file may have its name by now.
        fs::copy(format!("/proc/self/fd/{fd}"), &copy).unwrap();
    }
    let id = id(Path::new(&format!("/proc/self/fd/{fd}")));
    if let Ok(slow) = std::env::var(SLOW) {
        std::thread::sleep(Duration::from_millis(slow.parse().unwrap()));
    }
    // SAFETY: the caller has it open.
    let is_synced = rustix::fs::fsync(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok();
    if is_synced {
        fs::rename(copy, Path::new(DISK).join(id)).unwrap();
    }
    done(is_synced)
}

fn done(is_done: bool) -> c_int {
    if is_done { 0 } else { -1 }
}

/// The inode of a file and its time of birth, which identify it under any name.
fn id(path: &Path) -> String {
    let metadata = fs::metadata(path).unwrap();
    let born = metadata.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    format!("{}-{}", metadata.ino(), born.unwrap_or_default().as_nanos())
}

/// Names of regular files in a directory.
fn files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    files.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// The body of the processes that the tests start; nothing in a test itself.
#[test]
fn role() {
    let Some((role, address, runtime)) = support::role(ROLE, ADDRESS) else { return };
    match role.as_str() {
        "publisher" => runtime.block_on(publish(&address, Visibility::Synced)),
        "publisher-mapped" => runtime.block_on(publish(&address, Visibility::Mapped)),
        _ => runtime.block_on(consume(&address)),
    }
}

async fn publish(address: &str, visibility: Visibility) {
    let options = JournalOptions::new().queue(|queue| queue.segment_bytes(64 << 10)).visibility(visibility);
    let journal = options.open(JOURNAL).unwrap();
    let _serving = Publisher::new().stream(&journal).start(address).await.unwrap();
    // This file is on the machine of the test, which keeps its power.
    let acked = File::options().create(true).append(true).open("acked").unwrap();
    let run = std::process::id();
    let append = async |task: u32| {
        for number in 0.. {
            // All events differ, so that one that has taken another's offset is noticed.
            let value = format!("{run}/{task}/{number}");
            let offset = journal.append(format!("{task}"), &value).await.unwrap();
            (&acked).write_all(format!("{offset} {value}\n").as_bytes()).unwrap();
        }
    };
    futures_util::future::join_all((0..TASKS).map(append)).await;
}

async fn consume(address: &str) {
    let mut consumer =
        Consumer::new(ConsumerConfig::new(Address::new(address).unwrap(), JOURNAL, "analytics"));
    let mut handled = File::options().create(true).append(true).open("handled").unwrap();
    let (mut assignment, mut done) = (0, Done::default());
    loop {
        match consumer.next().await {
            Ok(ConsumerEvent::Assigned { assignment: new, offset, .. }) => {
                (assignment, done) = (new, Done { assignment: new, offset, finished: Vec::new() });
            }
            Ok(ConsumerEvent::Records { next, batches, ranges, .. }) => {
                let events = ranges.into_iter().flat_map(|range| records(&batches[range]));
                let lines: String = events.map(|(offset, value)| format!("{offset} {value}\n")).collect();
                handled.write_all(lines.as_bytes()).unwrap();
                done = Done { assignment, offset: next, finished: Vec::new() };
                consumer.positions().done(done.clone());
            }
            Ok(ConsumerEvent::Revoking { .. }) => consumer.release(done.clone()),
            Ok(_) => {}
            Err(DirectError::Refused { refused: Refused::Diverged { .. }, .. }) => {
                return fs::write("diverged", "").unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A process that is killed when this is dropped.
struct Process(Child);

impl Process {
    fn start(directory: &Path, address: &str, role: &str, slow_ms: Option<u64>) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role", "--nocapture"]).env(ROLE, role).env(ADDRESS, address);
        command.envs(slow_ms.map(|ms| (SLOW, ms.to_string())));
        let log = File::options().create(true).append(true).open(directory.join(role)).unwrap();
        command.current_dir(directory).stdout(Stdio::null()).stderr(log);
        Process(command.spawn().unwrap())
    }

    fn kill(mut self, directory: &Path, role: &str) {
        let ended = self.0.try_wait().unwrap();
        let log = fs::read_to_string(directory.join(role)).unwrap();
        assert_eq!(ended, None, "the {role} has ended by itself: {log}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A small generator: the test's choices follow from its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Turns a directory, and those in it, into what a disk may have of them.
fn cut_the_power(directory: &Path, disk: &Path, dice: &mut Dice) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            cut_the_power(&entry.path(), disk, dice);
        }
    }
    let present: BTreeMap<String, String> =
        files(directory).into_iter().map(|name| (id(&directory.join(&name)), name)).collect();
    // Without a sync the directory may be as it was made: empty.
    let synced = fs::read_to_string(disk.join(id(directory))).unwrap_or_default();
    let mut names: BTreeMap<&str, &str> = synced.lines().map(|line| line.split_once(' ').unwrap()).collect();
    for (id, name) in &present {
        if names.get(id.as_str()) != Some(&name.as_str()) && dice.below(2) == 0 {
            // The file was made or renamed since, and the name came to the disk.
            names.retain(|_, other| *other != name.as_str());
            names.insert(id, name);
        }
    }
    // A removal may have come to the disk or not.
    names.retain(|id, _| present.contains_key(*id) || (disk.join(id).exists() && dice.below(2) == 0));
    let contents: Vec<(PathBuf, Vec<u8>)> = names
        .iter()
        .map(|(id, name)| {
            let on_disk = fs::read(disk.join(id)).unwrap_or_default();
            let written =
                present.get(*id).map_or_else(Vec::new, |name| fs::read(directory.join(name)).unwrap());
            (directory.join(name), mixed(on_disk, &written, dice))
        })
        .collect();
    for name in present.values() {
        fs::remove_file(directory.join(name)).unwrap();
    }
    for (path, content) in contents {
        fs::write(path, content).unwrap();
    }
}

/// Takes of each sector either what was synced or what was written since.
fn mixed(mut on_disk: Vec<u8>, written: &[u8], dice: &mut Dice) -> Vec<u8> {
    if on_disk.len() < written.len() && dice.below(2) == 0 {
        on_disk.resize(written.len(), 0);
    }
    let len = on_disk.len();
    for (number, page) in on_disk.chunks_mut(PAGE).enumerate() {
        let from = match dice.below(4) {
            0 => 0,
            1 => SECTOR * dice.below(PAGE / SECTOR),
            _ => continue,
        };
        let at = number * PAGE;
        let end = written.len().min(len).min(at + page.len());
        if let Some(written) = written.get(at + from..end) {
            page[from..from + written.len()].copy_from_slice(written);
        }
    }
    on_disk
}

/// Makes the journal look as after a restart of the machine.
fn forget_boot(journal: &Path) {
    let control = File::options().write(true).open(journal.join("queue.control"));
    // The file may not have come to the disk.
    if let Ok(control) = control {
        control.write_all_at(&[7; 16], 512).unwrap();
    }
}

/// Reads the lines of a file, each with an offset and a value.
fn lines(path: &Path) -> Vec<(i64, String)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let words = text.lines().map(|line| line.split_once(' ').unwrap());
    words.map(|(offset, value)| (offset.parse().unwrap(), value.to_owned())).collect()
}

fn events(journal: &Path) -> BTreeMap<i64, String> {
    let queue = mainstem_queue::Queue::open(journal).unwrap();
    let mut reader = queue.reader(Start::Earliest).unwrap();
    let mut events = BTreeMap::new();
    while let Some(event) = reader.read().unwrap() {
        events.insert(event.offset, String::from_utf8(event.value.unwrap().to_vec()).unwrap());
    }
    events
}

fn missing(seen: &[(i64, String)], events: &BTreeMap<i64, String>) -> Vec<(i64, String)> {
    seen.iter().filter(|(offset, value)| events.get(offset) != Some(value)).cloned().collect()
}

/// The length of the list of handled events, in bytes.
fn handled_bytes(directory: &Path) -> u64 {
    fs::metadata(directory.join("handled")).map_or(0, |metadata| metadata.len())
}

/// Waits until the list is longer.
fn handle_more(directory: &Path, than_bytes: u64) {
    let deadline = Instant::now() + DEADLINE;
    while handled_bytes(directory) <= than_bytes {
        let log = |role: &str| fs::read_to_string(directory.join(role)).unwrap_or_default();
        assert!(
            Instant::now() < deadline,
            "the consumer handles nothing: {}",
            ["publisher", "publisher-mapped", "consumer"].map(log).concat()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn no_power_cut_takes_back_what_a_consumer_has_seen() {
    let cuts: u64 = std::env::var("TEST_DIRECT_POWER_CUTS").map_or(CUTS, |cuts| cuts.parse().unwrap());
    let seed = std::env::var("TEST_DIRECT_SEED").map_or(4_711, |seed| seed.parse().unwrap());
    eprintln!("seed {seed}, {cuts} power cuts");
    let dir = tempfile::tempdir().unwrap();
    let (journal, disk) = (dir.path().join(JOURNAL), dir.path().join(DISK));
    let address = format!("127.0.0.1:{}", mainstem_testkit::port());
    let dice = &mut Dice(seed);
    fs::create_dir(&disk).unwrap();
    let consumer = Process::start(dir.path(), &address, "consumer", None);
    let mut lost = 0;
    for cut in 0..cuts {
        let before = handled_bytes(dir.path());
        let publisher = Process::start(dir.path(), &address, "publisher", None);
        handle_more(dir.path(), before);
        std::thread::sleep(Duration::from_millis(dice.below(150) as u64));
        publisher.kill(dir.path(), "publisher");
        let written = events(&journal).len();
        cut_the_power(&journal, &disk, dice);
        forget_boot(&journal);
        // The next publisher finds this; it becomes what is on disk.
        let events = events(&journal);
        lost += written - events.len();
        for (path, what) in [("acked", "it was acknowledged"), ("handled", "a consumer has handled it")] {
            let missing = missing(&lines(&dir.path().join(path)), &events);
            assert_eq!(missing, [], "{what}, cut {cut}");
        }
        fs::remove_dir_all(&disk).unwrap();
        fs::create_dir(&disk).unwrap();
        keep(&journal, &disk);
    }
    consumer.kill(dir.path(), "consumer");
    eprintln!("{lost} events were written and not on the disk");
}

/// Makes all present files durable.
fn keep(directory: &Path, disk: &Path) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => keep(&entry.path(), disk),
            false => drop(fs::copy(entry.path(), disk.join(id(&entry.path()))).unwrap()),
        }
    }
    let names = files(directory).into_iter().map(|name| format!("{} {name}\n", id(&directory.join(&name))));
    fs::write(disk.join(id(directory)), names.collect::<String>()).unwrap();
}

/// The test above can fail: events that are shown before they are synced are lost, and the consumer stops.
#[test]
fn where_events_are_shown_before_they_are_synced_a_power_cut_ends_the_consumer() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, disk) = (dir.path().join(JOURNAL), dir.path().join(DISK));
    let address = format!("127.0.0.1:{}", mainstem_testkit::port());
    fs::create_dir(&disk).unwrap();
    let consumer = Process::start(dir.path(), &address, "consumer", None);
    for cut in 0.. {
        let before = handled_bytes(dir.path());
        let publisher = Process::start(dir.path(), &address, "publisher-mapped", Some(30));
        handle_more(dir.path(), before + 100);
        publisher.kill(dir.path(), "publisher-mapped");
        cut_the_power(&journal, &disk, &mut Dice(cut));
        forget_boot(&journal);
        if !missing(&lines(&dir.path().join("handled")), &events(&journal)).is_empty() {
            break;
        }
        assert!(cut < 20, "no power cut takes anything");
    }
    let _publisher = Process::start(dir.path(), &address, "publisher-mapped", None);
    let deadline = Instant::now() + DEADLINE;
    while !dir.path().join("diverged").exists() {
        assert!(Instant::now() < deadline, "{}", fs::read_to_string(dir.path().join("consumer")).unwrap());
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(consumer);
}
