//! A well-behaved neighbour that measures how long its small requests take.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mainstem_records::Compression;
use mainstem_wire::ErrorCode;

use super::batches::batch;
use super::client::{Client, PATIENCE};
use super::wait_until;

/// Pause between two requests: the probe is to measure, not to load.
const PAUSE: Duration = Duration::from_micros(500);

/// What a neighbour that is not held up stays below on two cores that are busy with other things too: the kernel alone
/// keeps a ready thread waiting for some of its time slices.
pub const CALM_P99: Duration = Duration::from_millis(25);

/// The same for its slowest request.
pub const CALM_WORST: Duration = Duration::from_millis(200);

/// A thread that produces small records with acks=1, one after another.
#[derive(Debug)]
pub struct Probe {
    stop: Arc<AtomicBool>,
    measured: Arc<AtomicUsize>,
    thread: JoinHandle<Latencies>,
}

/// What a probe measured.
#[derive(Debug)]
pub struct Latencies(Vec<Duration>);

impl Probe {
    /// Begins to measure; it makes itself a topic.
    pub fn start(address: SocketAddr, topic: &str) -> Probe {
        let mut client = Client::connect(address);
        client.create_topic(topic, 1, &[]);
        let (topic, stop) = (topic.to_owned(), Arc::new(AtomicBool::new(false)));
        let measured = Arc::new(AtomicUsize::new(0));
        let (stopped, count) = (stop.clone(), measured.clone());
        let thread = std::thread::spawn(move || {
            let batch = batch(Compression::None, 100);
            let mut latencies = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                assert_eq!(client.produce(&topic, 0, 1, &batch), ErrorCode::NONE);
                latencies.push(began.elapsed());
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
            Latencies(latencies)
        });
        Probe { stop, measured, thread }
    }

    /// Measures so many requests with nothing else going on.
    pub fn alone(address: SocketAddr, topic: &str, count: usize) -> Latencies {
        let probe = Probe::start(address, topic);
        probe.measure(count);
        probe.finish()
    }

    /// Waits until so many more requests are measured.
    ///
    /// # Panics
    /// When they take half a minute.
    pub fn measure(&self, count: usize) {
        let target = self.measured.load(Ordering::Relaxed) + count;
        let what = format!("{count} requests of the probe");
        wait_until(&what, PATIENCE, || self.measured.load(Ordering::Relaxed) >= target);
    }

    /// Ends and gives what was measured.
    ///
    /// # Panics
    /// When a request failed.
    pub fn finish(self) -> Latencies {
        self.stop.store(true, Ordering::Relaxed);
        let mut latencies = self.thread.join().expect("every request of the probe is answered");
        latencies.0.sort_unstable();
        assert!(!latencies.0.is_empty(), "the probe got no chance to measure");
        latencies
    }
}

impl Latencies {
    /// The value below which `share` (0 to 1) of all lie.
    pub fn quantile(&self, share: f64) -> Duration {
        let index = (self.0.len() as f64 * share) as usize;
        self.0[index.min(self.0.len() - 1)]
    }

    /// Fails when neighbours suffered: p99 above `p99_max`, or any request above `max`.
    pub fn assert_calm(&self, p99_max: Duration, max: Duration) {
        let (p50, p99, worst) = (self.quantile(0.5), self.quantile(0.99), self.quantile(1.0));
        eprintln!("probe: {} requests, p50 {p50:?}, p99 {p99:?}, worst {worst:?}", self.0.len());
        assert!(p99 <= p99_max, "p99 {p99:?} above {p99_max:?}");
        assert!(worst <= max, "worst {worst:?} above {max:?}");
    }
}
