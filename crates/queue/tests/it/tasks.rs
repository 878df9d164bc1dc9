//! Tailers that tasks wait for, on a small executor: nothing here is tokio's.

use std::future::{Future, poll_fn};
use std::os::unix::fs::PermissionsExt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use futures_util::stream::StreamExt;
use mainstem_queue::{AsyncTailer, Options, Queue, Start};
use parking_lot::{Mutex, MutexGuard};

use crate::Tid;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        assert!(Instant::now() < deadline, "no task was woken");
        thread::park_timeout(Duration::from_secs(61));
    }
}

/// Tests count threads of this process, so they take turns. A turn begins when the threads of the last one are gone.
fn take_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock();
    let deadline = Instant::now() + Duration::from_secs(60);
    while bells() > 0 {
        assert!(Instant::now() < deadline, "a thread has not ended");
        thread::yield_now();
    }
    turn
}

/// The number of threads of queues that sleep for tasks.
fn bells() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        threads.filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).ok());
    names.filter(|name| name.trim() == "queue-bell").count()
}

async fn next_text(tailer: &mut AsyncTailer) -> String {
    String::from_utf8(tailer.next().await.unwrap().value().to_vec()).unwrap()
}

#[test]
fn tasks_of_many_tailers_are_woken_by_one_thread_and_miss_nothing() {
    let _turn = take_turn();
    const TAILERS: usize = 50;
    const MESSAGES: usize = 2_000;
    let dir = tempfile::tempdir().unwrap();
    let queue = Options::new().segment_bytes(1).open(dir.path()).unwrap();
    let mut reading: Vec<_> = (0..TAILERS)
        .map(|_| {
            let tailer = queue.reader(Start::Earliest).unwrap().into_async();
            Box::pin(async move {
                let mut tailer = tailer.enumerate().take(MESSAGES);
                while let Some((number, message)) = tailer.next().await {
                    assert_eq!(message.unwrap().value(), number.to_string().as_bytes());
                }
            })
        })
        .collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..MESSAGES {
                queue.append(number.to_string()).unwrap();
                // Sometimes all tasks sleep, sometimes they read while more comes.
                if number % 100 == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        block_on(poll_fn(|context| {
            reading.retain_mut(|task| task.as_mut().poll(context).is_pending());
            assert!(bells() <= 1, "one for all tailers");
            if reading.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        }));
    });
}

#[test]
fn a_future_that_is_dropped_takes_no_message_and_a_named_tailer_goes_on() {
    let _turn = take_turn();
    let dir = tempfile::tempdir().unwrap();
    let queue = Queue::open(dir.path()).unwrap();
    let mut tailer = queue.tailer("me").unwrap().into_async();
    {
        let mut next = pin!(tailer.next());
        assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    queue.append("one").unwrap();
    queue.append("two").unwrap();
    assert_eq!(block_on(next_text(&mut tailer)), "one");
    assert_eq!(tailer.position(), 1);
    let mut tailer = tailer.into_inner();
    assert_eq!(tailer.read().unwrap().unwrap().value, Some(&b"two"[..]));
    drop(tailer);
    // The last message is not done.
    let mut again = queue.tailer("me").unwrap().into_async();
    assert_eq!(block_on(next_text(&mut again)), "two");
}

#[test]
fn tasks_wait_for_syncs_and_without_write_permission() {
    let _turn = take_turn();
    let dir = tempfile::tempdir().unwrap();
    let queue = Queue::open(dir.path()).unwrap();
    queue.append("one").unwrap();
    let reader = queue.reader(Start::Earliest).unwrap().synced_only(true);
    let mut synced = reader.into_async();
    assert!(pin!(synced.next()).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        std::fs::set_permissions(entry.unwrap().path(), PermissionsExt::from_mode(0o444)).unwrap();
    }
    let reading = Options::new().read_only(true).open(dir.path()).unwrap();
    let mut latest = reading.reader(Start::Latest).unwrap().into_async();
    let waiting = Tid::own();
    thread::scope(|scope| {
        scope.spawn(|| {
            waiting.until_asleep();
            queue.sync().unwrap();
            waiting.until_asleep();
            queue.append("two").unwrap();
        });
        assert_eq!(block_on(next_text(&mut synced)), "one");
        assert_eq!(block_on(next_text(&mut latest)), "two");
    });
}

/// Drops its tailer when it is woken, as an executor does with a task that is over.
struct DropWhenWoken(Mutex<Option<AsyncTailer>>);

impl Wake for DropWhenWoken {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().take());
    }
}

#[test]
fn the_last_tailer_may_end_on_the_thread_that_wakes_it() {
    let _turn = take_turn();
    let dir = tempfile::tempdir().unwrap();
    let writing = Queue::open(dir.path()).unwrap();
    let mut tailer = Queue::open(dir.path()).unwrap().reader(Start::Latest).unwrap().into_async();
    let owner = Arc::new(DropWhenWoken(Mutex::new(None)));
    let waker = Waker::from(Arc::clone(&owner));
    assert!(pin!(tailer.next()).poll(&mut Context::from_waker(&waker)).is_pending());
    *owner.0.lock() = Some(tailer);
    writing.append("wake up").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while owner.0.lock().is_some() || bells() > 0 {
        assert!(Instant::now() < deadline, "the thread has not ended");
        thread::yield_now();
    }
}
