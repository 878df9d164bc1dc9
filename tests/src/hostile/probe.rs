//! A well-behaved neighbour of a hostile load: each of its requests must be answered, and their latencies are measured.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mainstem_records::Compression;
use mainstem_testkit::figure;
use mainstem_wire::ErrorCode;

use super::batches::batch;
use super::client::{Client, TIMEOUT};
use super::wait_until;

/// The pause between two requests: the probe measures and is no load.
const PAUSE: Duration = Duration::from_micros(500);

/// Requests before a load begins: the base of comparison.
const ALONE: usize = 200;

/// The least number of requests beside a load: none may wait for [`TIMEOUT`].
const BESIDE: usize = 10;

/// A thread that produces small records with acks=1, one after another.
#[derive(Debug)]
pub struct Probe {
    stop: Arc<AtomicBool>,
    measured: Arc<AtomicUsize>,
    requests: JoinHandle<Vec<Duration>>,
}

impl Probe {
    /// Creates a topic, measures the latency without a load, and continues to send requests.
    ///
    /// # Panics
    /// When a request is not answered in time.
    pub fn start(address: SocketAddr) -> Probe {
        const TOPIC: &str = "probe";
        let mut client = Client::connect(address);
        client.create_topic(TOPIC, 1, &[]);
        let (stop, measured) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, count) = (stop.clone(), measured.clone());
        let requests = std::thread::spawn(move || {
            let batch = batch(Compression::None, 100);
            let mut latencies = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                assert_eq!(client.produce(TOPIC, 0, 1, &batch), ErrorCode::NONE);
                latencies.push(began.elapsed());
                count.fetch_add(1, Ordering::Relaxed);
                // The pause is no wait: the probe must not be a load.
                std::thread::sleep(PAUSE);
            }
            latencies
        });
        let probe = Probe { stop, measured, requests };
        probe.measure(ALONE);
        probe
    }

    /// Waits until so many more requests are answered.
    ///
    /// # Panics
    /// When they take longer than [`TIMEOUT`].
    pub fn measure(&self, count: usize) {
        let target = self.measured.load(Ordering::Relaxed) + count;
        let what = format!("{count} requests of the probe");
        wait_until(&what, TIMEOUT, || self.measured.load(Ordering::Relaxed) >= target);
    }

    /// Ends the probe after some more requests. Its figures are the p99 and the maximum of the latencies beside the
    /// load, as multiples of the median before it.
    ///
    /// # Panics
    /// When a request failed or was not answered in time.
    pub fn finish(self) {
        self.measure(BESIDE);
        self.stop.store(true, Ordering::Relaxed);
        let mut requests = self.requests.join().expect("every request of the probe is answered");
        let mut beside = requests.split_off(ALONE);
        let usual = quantile(&mut requests, 0.5);
        let times = |share, latencies: &mut [Duration]| quantile(latencies, share).div_duration_f64(usual);
        figure("neighbour_p99", times(0.99, &mut beside));
        figure("neighbour_worst", times(1.0, &mut beside));
    }
}

/// The value below which this share (0 to 1) of the latencies lies.
fn quantile(latencies: &mut [Duration], share: f64) -> Duration {
    latencies.sort_unstable();
    let index = (latencies.len() as f64 * share) as usize;
    latencies[index.min(latencies.len() - 1)]
}
