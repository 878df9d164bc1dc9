//! A queue between processes that are killed, stopped and forked at any instruction.
//!
//! Each child is this test program again, with its task in `QUEUE_CHILD`.
#![allow(unsafe_code, reason = "fork and kill")]

use std::collections::HashMap;
use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use mainstem_queue::{Appender, Options, Queue, QueueError, Start, Wait, verify};
use mainstem_records::{Batch, BatchBuilder, BatchOptions};
use mainstem_testkit::figure;

use crate::TIMEOUT;

/// Depth asks for more by it; see CONTRIBUTING.md.
fn kills() -> u32 {
    env::var("TEST_QUEUE_KILLS").ok().and_then(|value| value.parse().ok()).unwrap_or(200)
}

fn open(directory: &Path) -> Queue {
    Options::new()
        .segment_bytes(1)
        .retention_bytes(64 << 20)
        .lock_timeout(Some(TIMEOUT))
        .open(directory)
        .unwrap()
}

/// Runs this program as a child that does `what` in a directory.
fn child(what: &str, directory: &Path, name: &str) -> Child {
    spawn(&mut Command::new(env::current_exe().unwrap()), what, directory, name)
}

/// A command that runs another one in namespaces of its own; `None` if this machine does not allow it, which under `CI=true` is an
/// error.
fn unshare(namespaces: &[&str]) -> Option<Command> {
    // As root, or as root in a user namespace.
    let found = [&[][..], &["--user", "--map-root-user"]].into_iter().find_map(|user| {
        let command = || {
            let mut command = Command::new("unshare");
            command.args(user).args(namespaces);
            command
        };
        let works = command().arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        works.then(command)
    });
    assert!(
        found.is_some() || env::var("CI").as_deref() != Ok("true"),
        "unshare {namespaces:?} does not work"
    );
    found
}

fn spawn(command: &mut Command, what: &str, directory: &Path, name: &str) -> Child {
    command
        .args(["--exact", "processes::the_child", "--nocapture", "--test-threads=1"])
        .env("QUEUE_CHILD", what)
        .env("QUEUE_DIRECTORY", directory)
        .env("QUEUE_NAME", name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// Waits for a line of a child that begins with a word; the test runner prints lines of its own.
fn wait_for(child: &mut Child, word: &str) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    let output = child.stdout.as_mut().unwrap();
    loop {
        assert_eq!(output.read(&mut byte).unwrap(), 1, "the child ended before it said {word}");
        if byte[0] == b'\n' {
            if let Some(at) = line.windows(word.len()).position(|part| part == word.as_bytes()) {
                return String::from_utf8(line[at + word.len()..].to_vec()).unwrap();
            }
            line.clear();
        } else {
            line.push(byte[0]);
        }
    }
}

fn say(what: &str) {
    // Not by `println!`, which the test runner may keep.
    let mut out = io::stdout().lock();
    writeln!(out, "{what}").unwrap();
    out.flush().unwrap();
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: a signal to a process that this test started and has not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

#[test]
fn the_child() {
    let Ok(what) = env::var("QUEUE_CHILD") else { return };
    let directory = PathBuf::from(env::var("QUEUE_DIRECTORY").unwrap());
    let name = env::var("QUEUE_NAME").unwrap();
    match &*what {
        "append" => append_for_ever(&directory, &name),
        "hold" => hold_the_lock(&directory),
        "fork" => fork_with_the_lock(&directory),
        "wait" => wait_for_the_lock(&directory),
        "fill" => fill_the_disk(&directory),
        "alone" => append_alone_for_ever(&directory, &name),
        "sealed" => append_and_read_sealed(&directory),
        "unordered" => sleep_without_membarrier(&directory),
        "open" => stop_while_opening(&directory),
        "look on" => read_as_another_user(&directory),
        "cut" => serve_what_is_cut(&directory),
        "fault" => fault_elsewhere(&directory),
        "sync without descriptors" => sync_without_descriptors(&directory),
        "roll without memory" => roll_without_memory(&directory),
        "roll without descriptors" => roll_without_descriptors(&directory),
        other => panic!("no child does {other}"),
    }
}

/// Appends numbers, and prints each when it is in the queue.
fn append_for_ever(directory: &Path, name: &str) {
    let queue = open(directory);
    append_numbers(queue.appender().unwrap(), name);
}

/// The same without a lock, with segments that are made ahead, while another thread syncs.
fn append_alone_for_ever(directory: &Path, name: &str) {
    let queue = open(directory);
    let appender = queue.exclusive_appender().unwrap();
    let _prepared = queue.prepare_ahead().unwrap();
    let _syncing = queue.sync_every(Duration::from_millis(1)).unwrap();
    append_numbers(appender, name);
}

fn append_numbers(mut appender: Appender, name: &str) {
    say("begin");
    let mut out = io::stdout().lock();
    for number in 0_u64.. {
        let text = format!("{name} {number} {}", "z".repeat(number as usize % 700));
        if number % 3 == 0 {
            let mut reservation = appender.reserve(text.len()).unwrap();
            reservation.copy_from_slice(text.as_bytes());
            reservation.commit();
        } else {
            appender.append(&text).unwrap();
        }
        out.write_all(&number.to_le_bytes()).unwrap();
        out.flush().unwrap();
    }
}

/// The last number that a killed child has reported.
fn last_said(mut child: Child) -> Option<u64> {
    let mut rest = Vec::new();
    child.stdout.as_mut().unwrap().read_to_end(&mut rest).unwrap();
    child.wait().unwrap();
    rest.chunks_exact(8).next_back().map(|number| u64::from_le_bytes(number.try_into().unwrap()))
}

/// Reads the queue from an offset, and counts what each writer wrote: its numbers follow each other.
fn check(queue: &Queue, from: i64, counts: &mut HashMap<String, u64>) -> i64 {
    let mut reader = queue.reader(Start::Offset(from)).unwrap();
    while let Some(record) = reader.read().unwrap() {
        let text = str::from_utf8(record.value.unwrap()).unwrap();
        let mut words = text.split(' ');
        let (name, number) = (words.next().unwrap(), words.next().unwrap().parse::<u64>().unwrap());
        assert_eq!(words.next().unwrap().len() as u64, number % 700, "offset {}", record.offset);
        let count = counts.entry(name.to_owned()).or_default();
        assert_eq!(number, *count, "of {name} at offset {}", record.offset);
        *count += 1;
    }
    reader.position()
}

#[test]
fn writers_that_are_killed_at_any_instruction_lose_and_hold_up_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path());
    let (mut counts, mut read_to) = (HashMap::new(), 0);
    let mut steady = child("append", dir.path(), "steady");
    wait_for(&mut steady, "begin");
    let mut output = steady.stdout.take().unwrap();
    // The output is read, as the writer would stop at a full pipe.
    let said = thread::spawn(move || {
        let mut all = 0;
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            all += count as u64;
        }
        all / 8
    });
    for round in 0..kills() {
        let name = format!("w{round}");
        let mut killed = child("append", dir.path(), &name);
        wait_for(&mut killed, "begin");
        thread::sleep(Duration::from_micros(u64::from(round * 7919 % 6_000)));
        signal(&killed, libc::SIGKILL);
        let last = last_said(killed);
        // The others continue at once.
        let before = queue.ends().next;
        let begin = Instant::now();
        while queue.ends().next < before + 3 {
            assert!(begin.elapsed() < TIMEOUT, "round {round}: no process appends any more");
            thread::yield_now();
        }
        read_to = check(&queue, read_to, &mut counts);
        let count = counts.remove(&name).unwrap_or_default();
        assert!(
            last.is_none_or(|last| count > last),
            "round {round}: {count} of more than {last:?} are there"
        );
    }
    signal(&steady, libc::SIGKILL);
    steady.wait().unwrap();
    let said = said.join().unwrap();
    read_to = check(&queue, read_to, &mut counts);
    assert!(counts["steady"] >= said && said > 0, "{} of {said}", counts["steady"]);
    // A process that comes later finds all of it.
    assert_eq!(open(dir.path()).append("later").unwrap(), read_to);
    let found = verify(dir.path()).unwrap();
    assert!(found.is_sound(), "{:?}", found.all_faults().collect::<Vec<_>>());
}

#[test]
fn an_exclusive_writer_that_is_killed_leaves_what_it_has_said_and_nothing_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path());
    let (mut counts, mut read_to) = (HashMap::new(), 0);
    for round in 0..kills() / 4 {
        let name = format!("w{round}");
        let mut killed = child("alone", dir.path(), &name);
        wait_for(&mut killed, "begin");
        thread::sleep(Duration::from_micros(u64::from(round * 7919 % 6_000)));
        signal(&killed, libc::SIGKILL);
        let last = last_said(killed);
        assert!(queue.ends().synced <= queue.ends().next);
        read_to = check(&queue, read_to, &mut counts);
        let count = counts.remove(&name).unwrap_or_default();
        assert!(last.is_none_or(|last| count > last), "round {round}: {count} of more than {last:?}");
    }
    assert_eq!(queue.exclusive_appender().unwrap().append("later").unwrap(), read_to);
    let found = verify(dir.path()).unwrap();
    assert!(found.is_sound(), "{:?}", found.all_faults().collect::<Vec<_>>());
}

/// Forks a process of one thread, which may only read, write and exit from then on: it appends and reads. Returns how it
/// ended.
fn append_and_read_sealed(directory: &Path) {
    // SAFETY: the child has this thread alone, which holds no lock of another one.
    let pid = match unsafe { libc::fork() } {
        0 => append_and_read_without_system_calls(directory),
        pid => pid,
    };
    let mut status = 0;
    // SAFETY: the process is a child of this one.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    say(&format!("ended {status}"));
}

fn append_and_read_without_system_calls(directory: &Path) -> ! {
    let exclusive = Queue::open(directory.join("exclusive")).unwrap();
    let shared = Queue::open(directory.join("shared")).unwrap();
    let mut all = [
        (exclusive.exclusive_appender().unwrap(), exclusive.reader(Start::Earliest).unwrap()),
        (shared.appender().unwrap(), shared.tailer("me").unwrap()),
    ];
    let mut append_and_read = |count: usize| {
        for (appender, reader) in &mut all {
            for _ in 0..count {
                appender.append([1; 100]).unwrap();
                assert!(reader.read().unwrap().is_some());
            }
        }
    };
    // The first message makes the first 64 KiB of pages present.
    append_and_read(1);
    // SAFETY: from here on any other system call kills this thread.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) }, 0);
    append_and_read(300);
    // SAFETY: the process ends here, without the program's own exit code.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("it has ended")
}

#[test]
fn appends_and_reads_make_no_system_call_while_no_reader_sleeps() {
    let dir = tempfile::tempdir().unwrap();
    let mut sealed = child("sealed", dir.path(), "");
    let status: i32 = wait_for(&mut sealed, "ended ").trim().parse().unwrap();
    assert_eq!(status, 0, "killed by signal {}", libc::WTERMSIG(status));
    sealed.wait().unwrap();
    for name in ["exclusive", "shared"] {
        assert_eq!(Queue::open(dir.path().join(name)).unwrap().ends().next, 301);
    }
}

/// Refuses `membarrier` to this process from here on, as container profiles may.
fn refuse_membarrier() {
    let statement = |code: u32, jump: [u8; 2], k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump[0],
        jf: jump[1],
        k,
    };
    let mut filter = [
        // The number of the system call.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, [0, 0], 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, [0, 1], libc::SYS_membarrier as u32),
        statement(libc::BPF_RET | libc::BPF_K, [0, 0], libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, [0, 0], libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter lives during the call, which changes what the kernel lets this process do.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        // Of all threads of the process.
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
        let set = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program);
        assert_eq!(set, 0);
        assert_eq!(libc::syscall(libc::SYS_membarrier, 0, 0, 0), -1);
    }
}

/// Answers each message of `to` by one in `back`, and sleeps in between.
fn answer_each(directory: &Path, count: usize) {
    let [to, back] = ["to", "back"].map(|name| Queue::open(directory.join(name)).unwrap());
    let mut reader = to.reader(Start::Earliest).unwrap();
    let mut appender = back.appender().unwrap();
    for _ in 0..count {
        let message = reader.follow(Wait::Sleep).next().unwrap().unwrap();
        appender.append(message.value()).unwrap();
    }
}

fn sleep_without_membarrier(directory: &Path) {
    refuse_membarrier();
    say("refused");
    answer_each(directory, 500);
}

/// Without a wake-up a reader looks again after 100 ms. It gets all answers all the same; the number of late ones is bounded.
#[test]
fn readers_that_the_kernel_gives_no_fences_are_woken_too() {
    let dir = tempfile::tempdir().unwrap();
    let [to, back] = ["to", "back"].map(|name| Queue::open(dir.path().join(name)).unwrap());
    let mut appender = to.exclusive_appender().unwrap();
    let mut reader = back.reader(Start::Earliest).unwrap();
    let fences_wanted = |name: &str| {
        let control = fs::read(dir.path().join(name).join("queue.control")).unwrap();
        u32::from_le_bytes(control[4172..4176].try_into().unwrap())
    };
    assert_eq!(fences_wanted("to"), 0);
    let mut answering = child("unordered", dir.path(), "");
    wait_for(&mut answering, "refused");
    let mut late = 0;
    for number in 0..500_u32 {
        // The writer meets a reader that sleeps, looks, or is about to.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(u64::from(number % 50)) {
            std::hint::spin_loop();
        }
        appender.append(number.to_be_bytes()).unwrap();
        let answer = reader.follow(Wait::Sleep).next().unwrap().unwrap();
        assert_eq!(answer.value(), number.to_be_bytes());
        late += u32::from(begun.elapsed() > Duration::from_millis(90));
    }
    assert!(answering.wait().unwrap().success());
    assert_eq!(fences_wanted("to"), 1);
    // Without wake-ups most answers would be late.
    assert!(late < 250, "{late} of 500 answers are late");
    figure("one_and_late_answers", f64::from(1 + late));
}

/// Reads as a user that may not write, and prints what it reads.
fn read_as_another_user(directory: &Path) {
    // SAFETY: this process has no thread that would stay another user.
    if unsafe { libc::geteuid() } == 0 {
        // SAFETY: as above; no one's files are written by this user.
        assert_eq!(unsafe { libc::setgid(65_534) | libc::setuid(65_534) }, 0);
    }
    let error = Queue::open(directory).unwrap_err();
    assert!(matches!(&error, QueueError::Io { .. }), "{error}");
    let queue = Options::new().read_only(true).open(directory).unwrap();
    let mut reader = queue.reader(Start::Earliest).unwrap();
    for message in reader.follow(Wait::Sleep) {
        say(&format!("read {}", str::from_utf8(message.unwrap().value()).unwrap()));
    }
}

#[test]
fn a_process_without_write_permission_reads_what_others_append() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("q");
    let queue = Options::new().segment_bytes(1).open(&path).unwrap();
    queue.append("before").unwrap();
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(dir.path(), 0o755);
    mode(&path, 0o755);
    fs::read_dir(&path).unwrap().for_each(|entry| mode(&entry.unwrap().path(), 0o444));
    let mut reader = child("look on", &path, "");
    assert_eq!(wait_for(&mut reader, "read "), "before");
    for number in 0..1_000 {
        queue.append(format!("{number} {}", "z".repeat(100))).unwrap();
    }
    // Segments that were made meanwhile can be read too, under the umask of this process.
    wait_for(&mut reader, "read 999 ");
    reader.kill().unwrap();
    reader.wait().unwrap();
}

/// Takes the writer lock, reports that, and keeps it.
fn hold_the_lock(directory: &Path) {
    let queue = open(directory);
    let mut appender = queue.appender().unwrap();
    let mut reservation = appender.reserve(100).unwrap();
    reservation.fill(b'h');
    say("holding");
    let mut byte = [0];
    let _ = io::stdin().read(&mut byte);
    reservation.commit();
    say("given back");
    let _ = io::stdin().read(&mut byte);
}

#[test]
fn a_stopped_holder_holds_up_appends_alone_and_a_dead_one_none() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().segment_bytes(1).lock_timeout(Some(Duration::ZERO));
    let queue = options.open(dir.path()).unwrap();
    queue.append("before").unwrap();
    let mut holder = child("hold", dir.path(), "");
    wait_for(&mut holder, "holding");
    signal(&holder, libc::SIGSTOP);
    let error = queue.append("no").unwrap_err();
    assert!(matches!(error, QueueError::WriterBlocked { pid, .. } if pid == holder.id()), "{error}");
    let mut reader = queue.reader(Start::Earliest).unwrap();
    assert_eq!(reader.read().unwrap().unwrap().value, Some(&b"before"[..]));
    assert!(reader.read().unwrap().is_none());
    signal(&holder, libc::SIGCONT);
    holder.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    wait_for(&mut holder, "given back");
    assert_eq!(reader.read().unwrap().unwrap().value, Some(&[b'h'; 100][..]));
    assert_eq!(queue.append("after").unwrap(), 2);
    holder.kill().unwrap();
    holder.wait().unwrap();

    // One check shows that the holder is dead: a waiter with a timeout of zero makes no second one.
    let mut holder = child("hold", dir.path(), "");
    wait_for(&mut holder, "holding");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(queue.append("after its death").unwrap(), 3);
    assert!(reader.wait(Wait::Sleep, Some(TIMEOUT)));
    assert_eq!(reader.by_ref().last().unwrap().unwrap().value(), b"after its death");
}

/// Forks while it holds the lock, and dies. The child lives on with everything that it inherited.
fn fork_with_the_lock(directory: &Path) {
    let queue = open(directory);
    let mut appender = queue.appender().unwrap();
    appender.append("of the parent").unwrap();
    let reservation = appender.reserve(10).unwrap();
    // SAFETY: this process has the test's own threads, which do nothing; the child uses the queue alone.
    match unsafe { libc::fork() } {
        0 => {
            std::mem::forget(reservation);
            // The parent's death is noticed although its child has its open files. Its own append comes after another
            // process's.
            let _ = io::stdin().read(&mut [0]);
            let appended = queue.append("of the child").unwrap();
            say(&format!("child {appended}"));
            thread::sleep(Duration::from_secs(30));
            std::process::exit(0);
        }
        pid => {
            say(&format!("forked {pid}"));
            // SAFETY: the death that the test is about.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    }
}

#[test]
fn the_death_of_a_parent_with_the_lock_is_noticed_by_its_child_and_by_others() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path());
    let mut parent = child("fork", dir.path(), "");
    let forked: i32 = wait_for(&mut parent, "forked ").trim().parse().unwrap();
    let others = queue.append("of another").unwrap();
    parent.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    let childs: i64 = wait_for(&mut parent, "child ").trim().parse().unwrap();
    assert_eq!([0, others, childs], [0, 1, 2]);
    // SAFETY: the process was forked by the child that this test started.
    unsafe { libc::kill(forked, libc::SIGKILL) };
    parent.wait().unwrap();
    let read: Vec<_> =
        queue.reader(Start::Earliest).unwrap().map(|message| message.unwrap().value().to_vec()).collect();
    assert_eq!(read, [&b"of the parent"[..], b"of another", b"of the child"]);
}

/// Cannot append while another process has the lock, and can once that is dead.
fn wait_for_the_lock(directory: &Path) {
    let queue = Options::new()
        .segment_bytes(1)
        .lock_timeout(Some(Duration::from_millis(50)))
        .open(directory)
        .unwrap();
    match queue.append("no") {
        Err(QueueError::WriterBlocked { pid, .. }) => {
            say(&format!("blocked by {pid}, being {}", std::process::id()))
        }
        other => panic!("{other:?}"),
    }
    let _ = io::stdin().read(&mut [0]);
    let begin = Instant::now();
    let appended = loop {
        match queue.append("yes") {
            // The killed process has not ended yet.
            Err(QueueError::WriterBlocked { .. }) if begin.elapsed() < TIMEOUT => {}
            appended => break appended.unwrap(),
        }
    };
    say(&format!("appended {appended}"));
}

#[test]
fn processes_of_one_pid_in_two_namespaces_are_distinguished() {
    let dir = tempfile::tempdir().unwrap();
    let namespaces = ["--pid", "--fork", "--kill-child", "--"];
    let Some(mut unshare_one) = unshare(&namespaces) else {
        eprintln!("skipped: this machine lets us have no pid namespaces");
        return;
    };
    let mut unshare_other = unshare(&namespaces).unwrap();
    let program = env::current_exe().unwrap();
    let mut holder = spawn(unshare_one.arg(&program), "hold", dir.path(), "");
    wait_for(&mut holder, "holding");
    let mut waiter = spawn(unshare_other.arg(&program), "wait", dir.path(), "");
    assert_eq!(wait_for(&mut waiter, "blocked by "), "1, being 1");
    // Closing it would make the holder continue.
    let _stdin = holder.stdin.take();
    holder.kill().unwrap();
    holder.wait().unwrap();
    waiter.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    assert_eq!(wait_for(&mut waiter, "appended "), "0");
    waiter.wait().unwrap();
}

/// Holds the locks of a process that opens the queue.
fn stop_while_opening(directory: &Path) {
    let control = fs::File::options().read(true).write(true).open(directory.join("queue.control")).unwrap();
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 1 << 40,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the file is open, and the structure is the kernel's.
    assert_eq!(unsafe { libc::fcntl(control.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) }, 0);
    say("opening");
    let _ = io::stdin().read(&mut [0]);
}

#[test]
fn one_that_is_stopped_while_it_opens_the_queue_holds_up_no_one() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).append("before").unwrap();
    let mut opening = child("open", dir.path(), "");
    wait_for(&mut opening, "opening");
    signal(&opening, libc::SIGSTOP);
    let (done, opened) = std::sync::mpsc::channel();
    let path = dir.path().to_owned();
    thread::spawn(move || {
        let read_only = Options::new().read_only(true).open(&path).unwrap();
        assert_eq!(read_only.reader(Start::Earliest).unwrap().by_ref().count(), 1);
        done.send(open(&path).append("after").unwrap()).unwrap();
    });
    assert_eq!(opened.recv_timeout(TIMEOUT), Ok(1));
    opening.kill().unwrap();
    opening.wait().unwrap();
}

/// Appends until the disk is full, and again when there is space.
fn fill_the_disk(directory: &Path) {
    let ballast = directory.join("ballast");
    std::fs::write(&ballast, vec![1; 200 << 10]).unwrap();
    let path = directory.join("q");
    let queue = Options::new().segment_bytes(64 << 10).open(&path).unwrap();
    let value = |number: i64| format!("{number} {}", "z".repeat(1_000));
    let mut appended = 0;
    let error = loop {
        match queue.append(value(appended)) {
            Ok(offset) => assert_eq!(offset, appended),
            Err(error) => break error,
        }
        appended += 1;
    };
    assert!(matches!(error, QueueError::DiskFull { .. }), "{error}");
    let check = |count: i64| {
        let read = queue.reader(Start::Earliest).unwrap().map(|message| message.unwrap().value().to_vec());
        assert!(read.eq((0..count).map(|number| value(number).into_bytes())), "{count}");
        let found = verify(&path).unwrap();
        assert!(found.is_sound(), "{:?}", found.all_faults().collect::<Vec<_>>());
    };
    check(appended);
    assert!(matches!(queue.append("still none"), Err(QueueError::DiskFull { .. })));
    std::fs::remove_file(&ballast).unwrap();
    assert_eq!(queue.append(value(appended)).unwrap(), appended);
    check(appended + 1);
    say(&format!("appended {appended}"));
}

#[test]
fn a_full_disk_is_an_error_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut unshare) = unshare(&["--mount", "--"]) else {
        eprintln!("skipped: this machine lets us mount nothing");
        return;
    };
    let mount = format!("mount -t tmpfs -o size=1m none '{}' && exec \"$@\"", dir.path().display());
    let program = env::current_exe().unwrap();
    let mut filler = spawn(unshare.args(["sh", "-c", &mount, "sh"]).arg(program), "fill", dir.path(), "");
    let appended: u32 = wait_for(&mut filler, "appended ").trim().parse().unwrap();
    assert!((300..1_000).contains(&appended), "{appended}");
    assert!(filler.wait().unwrap().success());
}

/// Runs with a lower limit of a resource, at which further use fails; then restores the limit.
fn with_at_most<T>(resource: libc::__rlimit_resource_t, most: u64, run: impl FnOnce() -> T) -> T {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read and write one structure of their type.
    unsafe {
        assert_eq!(libc::getrlimit(resource, &raw mut limit), 0);
        let short = libc::rlimit { rlim_cur: most, ..limit };
        assert_eq!(libc::setrlimit(resource, &raw const short), 0);
        let done = run();
        assert_eq!(libc::setrlimit(resource, &raw const limit), 0);
        done
    }
}

/// Standard input, output and error have the first three descriptors, so no file can be opened.
fn without_descriptors<T>(run: impl FnOnce() -> T) -> T {
    with_at_most(libc::RLIMIT_NOFILE, 3, run)
}

/// Only a tenth of a segment of [`LARGE`] can be mapped.
fn without_memory<T>(run: impl FnOnce() -> T) -> T {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    // SAFETY: a number of the system's.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    with_at_most(libc::RLIMIT_AS, pages * page + LARGE / 10, run)
}

/// The size of a segment that cannot hold two values of [`TWO_THIRDS`].
const LARGE: u64 = 32 << 20;
const TWO_THIRDS: usize = 20 << 20;

fn lengths(directory: &Path) -> Vec<usize> {
    let mut reader = Options::new().read_only(true).open(directory).unwrap().reader(Start::Earliest).unwrap();
    let mut lengths = Vec::new();
    while let Some(record) = reader.read().unwrap() {
        lengths.push(record.value.unwrap().len());
    }
    lengths
}

fn files(directory: &Path) -> Vec<(String, u64)> {
    let file = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())
    };
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(file).collect();
    files.sort_unstable();
    files
}

fn sync_without_descriptors(directory: &Path) {
    let queue = Queue::open(directory).unwrap();
    queue.append("one").unwrap();
    let error = without_descriptors(|| queue.sync().unwrap_err());
    assert!(error.is_shortage(), "{error}");
    assert_eq!(queue.sync().unwrap(), 1);
    queue.append("two").unwrap();
    let ended = without_descriptors(|| queue.sync_every(Duration::from_secs(3_600)).unwrap().finish());
    assert!(ended.is_err_and(|error| error.is_shortage()));
    assert_eq!(queue.ends().synced, 1);
}

/// If the next segment cannot be made, the open one takes messages that fit, from this process and others.
fn roll_without_memory(directory: &Path) {
    let queue = Options::new().segment_bytes(LARGE).open(directory).unwrap();
    let large = vec![7; TWO_THIRDS];
    let mut other = queue.appender().unwrap();
    queue.append(&large).unwrap();
    other.append("as").unwrap();
    let before = files(directory);
    let error = without_memory(|| queue.append(&large).unwrap_err());
    assert!(error.is_shortage(), "{error}");
    assert_eq!(files(directory), before);
    queue.append(&large[..20_000]).unwrap();
    other.append(&large[..30_000]).unwrap();
    assert_eq!(lengths(directory), [TWO_THIRDS, 2, 20_000, 30_000]);
    assert_eq!(queue.append(&large).unwrap(), 4);
    assert_eq!(lengths(directory), [TWO_THIRDS, 2, 20_000, 30_000, TWO_THIRDS]);
}

/// The same with prepared files of the next segment.
fn roll_without_descriptors(directory: &Path) {
    let queue = Options::new().segment_bytes(LARGE).open(directory).unwrap();
    let large = vec![7; TWO_THIRDS];
    queue.append(&large).unwrap();
    drop(queue.prepare_ahead().unwrap());
    let error = without_descriptors(|| queue.append(&large).unwrap_err());
    assert!(error.is_shortage(), "{error}");
    let bases: Vec<_> = queue.segments().unwrap().iter().map(|segment| segment.base_offset).collect();
    assert_eq!((bases, lengths(directory)), (vec![0], vec![TWO_THIRDS]));
    let log = files(directory).into_iter().find(|(name, _)| name.ends_with("0.log")).unwrap();
    assert_eq!(log.1, LARGE);
    queue.append(&large[..20_000]).unwrap();
    assert_eq!(queue.append(&large).unwrap(), 2);
    assert_eq!(lengths(directory), [TWO_THIRDS, 20_000, TWO_THIRDS]);
}

/// Runs a child in a directory of its own, and expects it to succeed.
fn passes(what: &str) {
    let dir = tempfile::tempdir().unwrap();
    let status = child(what, dir.path(), "").wait().unwrap();
    assert!(status.success(), "{what}: {status}");
}

#[test]
fn a_sync_that_was_not_made_for_want_of_descriptors_is_no_failed_sync() {
    passes("sync without descriptors");
}

#[test]
fn a_segment_goes_on_where_the_next_one_cannot_be_mapped() {
    passes("roll without memory");
}

#[test]
fn a_segment_goes_on_where_it_cannot_be_closed() {
    passes("roll without descriptors");
}

fn batch(values: &[&str]) -> Vec<u8> {
    let mut builder =
        BatchBuilder::new(BatchOptions { partition_leader_epoch: 0, ..BatchOptions::default() });
    for value in values {
        builder.append(1, None, Some(value.as_bytes()), &[]).unwrap();
    }
    let mut bytes = Vec::new();
    builder.finish(&mut bytes).unwrap();
    bytes
}

/// Appends as a broker does.
fn append_batch(appender: &mut Appender, value: &str) -> Result<i64, QueueError> {
    let bytes = batch(&[value]);
    let (batch, _) = Batch::split_first(&bytes).unwrap();
    let mut locked = appender.try_lock()?.expect("nobody else has the lock");
    locked.append(bytes.first_chunk().unwrap(), &batch)
}

fn cut(file: &Path) {
    fs::File::options().write(true).open(file).unwrap().set_len(0).unwrap();
}

/// Serves queues whose files other processes cut.
fn serve_what_is_cut(directory: &Path) {
    let served = |name: &str| Queue::open(directory.join(name)).unwrap().serve().unwrap();
    let (sound, log, index, control) = (served("sound"), served("log"), served("index"), served("control"));
    let mut appenders = [&sound, &log, &index, &control].map(|serving| serving.queue().appender().unwrap());
    for appender in &mut appenders {
        assert_eq!(append_batch(appender, "before").unwrap(), 0);
    }
    cut(&directory.join("log/00000000000000000000.log"));
    cut(&directory.join("index/00000000000000000000.index"));
    cut(&directory.join("control/queue.control"));
    let large = "x".repeat(5_000);
    let [of_sound, of_log, of_index, of_control] = &mut appenders;
    for _ in 0..3 {
        let error = append_batch(of_log, &large).unwrap_err();
        assert!(
            matches!(&error, QueueError::Cut { path } if path.ends_with("00000000000000000000.log")),
            "{error}"
        );
        let error = append_batch(of_control, &large).unwrap_err();
        assert!(matches!(&error, QueueError::Cut { path } if path.ends_with("queue.control")), "{error}");
    }
    // It finds the cut when it writes an index entry.
    let refused = (0..10).find_map(|_| append_batch(of_index, &large).err()).unwrap();
    assert!(
        matches!(&refused, QueueError::Cut { path } if path.ends_with("00000000000000000000.index")),
        "{refused}"
    );
    assert!(control.check_whole().is_err() && log.check_whole().is_ok() && sound.check_whole().is_ok());
    assert_eq!(log.queue().ends().next, 1);
    // The zeros in place of the cut file are not read as messages.
    assert!(log.queue().reader(Start::Earliest).unwrap().read().is_err());
    assert_eq!(append_batch(of_sound, &large).unwrap(), 1);
    assert_eq!(lengths(&directory.join("sound")), [6, 5_000]);
}

/// Maps a file that is not a queue's, and cuts it.
fn fault_elsewhere(directory: &Path) {
    let _serving = Queue::open(directory.join("queue")).unwrap().serve().unwrap();
    let path = directory.join("other");
    fs::write(&path, [7; 4096]).unwrap();
    let file = fs::File::open(&path).unwrap();
    // SAFETY: a new mapping, of which one byte is read.
    unsafe {
        let mapped =
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(mapped, libc::MAP_FAILED);
        cut(&path);
        std::ptr::read_volatile(mapped.cast::<u8>());
    }
}

#[test]
fn a_file_that_is_cut_costs_its_queue_and_not_the_process_that_serves_it() {
    passes("cut");
}

#[test]
fn a_fault_that_is_not_of_a_queue_ends_the_process_as_it_would_have() {
    use std::os::unix::process::ExitStatusExt;
    let dir = tempfile::tempdir().unwrap();
    let status = child("fault", dir.path(), "").wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}
