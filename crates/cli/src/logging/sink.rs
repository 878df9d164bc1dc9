//! The sink of log lines: stderr, without ever waiting for its reader.
//!
//! A line is written directly if stderr takes it, so that the last lines before a crash are seen. If it does not (a
//! pipe that is not read, a terminal that is held), lines wait in a bounded queue for a thread. Lines beyond the
//! bound are only counted. The count is written when stderr takes bytes again.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

/// Bytes of lines in the queue: the log of some minutes of trouble.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// Bytes that a writable pipe takes without waiting (POSIX's `PIPE_BUF`, here Linux's).
const PIPE_BUF: usize = 4096;

/// The longest that the thread polls before it looks again.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The longest wait for the lock during a panic: the panicking thread may hold it.
const LOCK_TIME: Duration = Duration::from_millis(100);

/// Lines on their way to a descriptor.
pub(super) struct Sink {
    output: Output,
    json: bool,
    state: Mutex<State>,
    changed: Condvar,
    lost: AtomicU64,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines lost since the last count was written.
    unreported: u64,
    has_thread: bool,
}

/// A descriptor that is written to without waiting.
enum Output {
    /// Writes do not wait: a file, or a pipe or terminal that was opened again for it. The flag for that is shared
    /// with other processes that have the same description, so that it is not set on the inherited descriptor.
    Direct(File),
    Socket(OwnedFd),
    /// Polled before each write.
    Polled(File),
}

impl Output {
    fn new(descriptor: OwnedFd) -> io::Result<Output> {
        let kind = FileType::from_raw_mode(fstat(&descriptor)?.st_mode);
        Ok(match kind {
            FileType::Socket => Output::Socket(descriptor),
            FileType::RegularFile => Output::Direct(File::from(descriptor)),
            _ => {
                let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                match open(path, flags, Mode::empty()) {
                    Ok(own) => Output::Direct(File::from(own)),
                    Err(_) => Output::Polled(File::from(descriptor)),
                }
            }
        })
    }

    /// Writes as many bytes as the descriptor takes; 0 if it takes none.
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = 0;
        while written < bytes.len() {
            match self.write_some(&bytes[written..]) {
                Ok(0) => break,
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    fn write_some(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Output::Direct(file) => (&*file).write(bytes),
            Output::Socket(socket) => Ok(send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?),
            Output::Polled(file) => match self.is_writable(Timespec { tv_sec: 0, tv_nsec: 0 })? {
                true => (&*file).write(&bytes[..bytes.len().min(PIPE_BUF)]),
                false => Ok(0),
            },
        }
    }

    /// Returns true if the descriptor takes bytes within a time.
    fn is_writable(&self, within: Timespec) -> io::Result<bool> {
        let descriptor = match self {
            Output::Direct(file) | Output::Polled(file) => file.as_fd(),
            Output::Socket(socket) => socket.as_fd(),
        };
        match poll(&mut [PollFd::new(&descriptor, PollFlags::OUT)], Some(&within)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Sink {
    /// A sink to a descriptor. Its own messages are JSON or text.
    pub(super) fn new(descriptor: OwnedFd, json: bool) -> io::Result<Arc<Sink>> {
        let output = Output::new(descriptor)?;
        let (state, changed) = (Mutex::default(), Condvar::new());
        Ok(Arc::new(Sink { output, json, state, changed, lost: AtomicU64::new(0) }))
    }

    /// The number of lines lost so far.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Takes whole lines. Does not wait.
    pub(super) fn write(self: &Arc<Self>, line: &[u8]) {
        let Some(mut state) = self.lock() else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let written = match state.is_empty() {
            true => self.output.write(line),
            false => Ok(0),
        };
        match written {
            Ok(written) if written == line.len() => {}
            // The rest of a line that is partly written is always queued.
            Ok(written) if written > 0 || state.bytes + line.len() <= QUEUE_BYTES_MAX => {
                state.push(line[written..].to_vec());
                self.ensure_thread(&mut state);
                self.changed.notify_all();
            }
            Ok(_) => {
                state.unreported += 1;
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            // The reader is gone for good.
            Err(_) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Waits until everything is written, or the time has passed.
    pub(super) fn drain(&self, within: Duration) {
        let deadline = Instant::now() + within;
        let mut state = self.state.lock();
        while !state.is_empty() {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return;
            }
        }
    }

    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        match std::thread::panicking() {
            true => self.state.try_lock_for(LOCK_TIME),
            false => Some(self.state.lock()),
        }
    }

    fn ensure_thread(self: &Arc<Self>, state: &mut State) {
        if !state.has_thread {
            let own = self.clone();
            let started = std::thread::Builder::new().name("log-writer".into()).spawn(move || own.run());
            // Without a thread the next line tries again.
            state.has_thread = started.is_ok();
        }
    }

    /// The loop of the thread: waits until the descriptor takes bytes, then writes queued lines.
    fn run(&self) {
        loop {
            let mut state = self.state.lock();
            while state.is_empty() {
                self.changed.notify_all();
                self.changed.wait(&mut state);
            }
            drop(state);
            // The write meets the same error again.
            let _ = self.output.is_writable(LOOK_AGAIN);
            self.write_waiting(&mut self.state.lock());
        }
    }

    fn write_waiting(&self, state: &mut State) {
        loop {
            if state.queue.is_empty() && state.unreported > 0 {
                let lost = std::mem::take(&mut state.unreported);
                state.push(loss_line(lost, self.json));
            }
            let Some(mut line) = state.pop() else { return };
            match self.output.write(&line) {
                Ok(written) if written == line.len() => {}
                Ok(written) => {
                    line.drain(..written);
                    state.bytes += line.len();
                    return state.queue.push_front(line);
                }
                Err(_) => {
                    self.lost.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

impl State {
    /// Nothing waits to be written.
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.unreported == 0
    }

    fn push(&mut self, line: Vec<u8>) {
        self.bytes += line.len();
        self.queue.push_back(line);
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let line = self.queue.pop_front()?;
        self.bytes -= line.len();
        Some(line)
    }
}

/// The line that replaces lost ones.
fn loss_line(lost: u64, json: bool) -> Vec<u8> {
    let message = format!("{lost} lines of the log were lost here: stderr was not read for too long");
    let line = match json {
        true => serde_json::json!({"level": "WARN", "fields": {"message": message}, "target": "mainstem"})
            .to_string(),
        false => format!("WARN mainstem: {message}"),
    };
    (line + "\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    fn pipe() -> (io::PipeReader, Arc<Sink>) {
        let (reader, writer) = io::pipe().expect("a pipe can be made");
        (reader, Sink::new(writer.into(), false).expect("a pipe can be looked at"))
    }

    #[test]
    fn what_no_process_reads_waits_is_counted_and_reported() {
        let (reader, sink) = pipe();
        let line = [b"x".repeat(999), b"\n".to_vec()].concat();
        let lines = 2 * QUEUE_BYTES_MAX / line.len();
        for _ in 0..lines {
            sink.write(&line);
        }
        let lost = sink.lost();
        assert!(lost > 0 && (lost as usize) < lines, "{lost} of {lines}");
        let reading = std::thread::spawn(move || {
            let lines = BufReader::new(reader).lines().map(|line| line.expect("it is text"));
            lines.take_while(|line| line != "the end").collect::<Vec<_>>()
        });
        sink.drain(Duration::from_secs(60));
        sink.write(b"the end\n");
        let read = reading.join().expect("it does not panic");
        let (whole, losses): (Vec<_>, Vec<_>) = read.iter().partition(|line| line.starts_with('x'));
        assert_eq!(whole.len() as u64, lines as u64 - lost);
        assert!(whole.iter().all(|line| line.len() == 999));
        assert!(
            losses.len() == 1 && losses[0].contains(&format!("{lost} lines of the log were lost here")),
            "{losses:?}"
        );
    }

    #[test]
    fn a_reader_that_is_gone_is_no_hindrance() {
        let (reader, sink) = pipe();
        drop(reader);
        sink.write(b"unread\n");
        assert_eq!(sink.lost(), 1);
        sink.drain(Duration::from_secs(60));
    }
}
