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
    requests: JoinHandle<Vec<Duration>>,
    machine: JoinHandle<Vec<Duration>>,
}

/// What a probe measured, in ascending order.
#[derive(Debug)]
pub struct Latencies {
    requests: Vec<Duration>,
    /// How much later than it wanted a thread ran that asked nothing of the broker.
    machine: Vec<Duration>,
}

impl Probe {
    /// Begins to measure; it makes itself a topic.
    pub fn start(address: SocketAddr, topic: &str) -> Probe {
        let mut client = Client::connect(address);
        client.create_topic(topic, 1, &[]);
        let (topic, stop) = (topic.to_owned(), Arc::new(AtomicBool::new(false)));
        let measured = Arc::new(AtomicUsize::new(0));
        let (stopped, count) = (stop.clone(), measured.clone());
        let requests = std::thread::spawn(move || {
            let batch = batch(Compression::None, 100);
            let mut latencies = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                assert_eq!(client.produce(&topic, 0, 1, &batch), ErrorCode::NONE);
                latencies.push(began.elapsed());
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
            latencies
        });
        let stopped = stop.clone();
        let machine = std::thread::spawn(move || {
            let mut late = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                std::thread::sleep(PAUSE);
                late.push(began.elapsed().saturating_sub(PAUSE));
            }
            late
        });
        Probe { stop, measured, requests, machine }
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
        let mut requests = self.requests.join().expect("every request of the probe is answered");
        let mut machine = self.machine.join().expect("a clock does not panic");
        requests.sort_unstable();
        machine.sort_unstable();
        assert!(!requests.is_empty() && !machine.is_empty(), "the probe got no chance to measure");
        Latencies { requests, machine }
    }
}

impl Latencies {
    /// The value below which `share` (0 to 1) of all requests lie.
    pub fn quantile(&self, share: f64) -> Duration {
        quantile(&self.requests, share)
    }

    /// Fails when neighbours suffered: p99 above `p99_max`, or any request above `max`. What the machine kept a thread waiting that asked
    /// nothing of the broker is added to both, at most once as much again.
    pub fn assert_calm(&self, p99_max: Duration, max: Duration) {
        let (p50, p99, worst) = (self.quantile(0.5), self.quantile(0.99), self.quantile(1.0));
        let (late_p99, latest) = (quantile(&self.machine, 0.99), quantile(&self.machine, 1.0));
        eprintln!("probe: {} requests, p50 {p50:?}, p99 {p99:?}, worst {worst:?}", self.requests.len());
        eprintln!("a thread without requests: p99 {late_p99:?} late, worst {latest:?}");
        let (late_p99, latest) = (late_p99.min(p99_max), latest.min(max));
        assert!(p99 <= p99_max + late_p99, "p99 {p99:?} above {p99_max:?} and the {late_p99:?} of others");
        assert!(worst <= max + latest, "worst {worst:?} above {max:?} and the {latest:?} of others");
    }
}

fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let index = (sorted.len() as f64 * share) as usize;
    sorted[index.min(sorted.len() - 1)]
}
