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

/// So late a thread that asks nothing of the broker is where the whole machine stood still, or this process: what others do keeps a
/// thread that slept waiting for some of their time slices.
const STANDSTILL: Duration = Duration::from_millis(100);

/// How long something took, from an instant on.
type Measured = (Instant, Duration);

/// A thread that produces small records with acks=1, one after another.
#[derive(Debug)]
pub struct Probe {
    stop: Arc<AtomicBool>,
    measured: Arc<AtomicUsize>,
    requests: JoinHandle<Vec<Measured>>,
    machine: JoinHandle<Vec<Measured>>,
}

/// What a probe measured, in ascending order.
#[derive(Debug)]
pub struct Latencies {
    /// Without the time in which the machine stood still.
    requests: Vec<Duration>,
    /// How much later than it wanted a thread ran that asked nothing of the broker, where the machine did not stand still.
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
                latencies.push((began, began.elapsed()));
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
            latencies
        });
        let stopped = stop.clone();
        let machine = std::thread::spawn(move || {
            let mut late = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let due = Instant::now() + PAUSE;
                std::thread::sleep(PAUSE);
                late.push((due, due.elapsed()));
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
        let requests = self.requests.join().expect("every request of the probe is answered");
        Latencies::of(&requests, self.machine.join().expect("a clock does not panic"))
    }
}

impl Latencies {
    fn of(requests: &[Measured], machine: Vec<Measured>) -> Latencies {
        assert!(!requests.is_empty() && !machine.is_empty(), "the probe got no chance to measure");
        let (stood, machine): (Vec<_>, Vec<_>) =
            machine.into_iter().partition(|(_, late)| *late >= STANDSTILL);
        let mut requests: Vec<_> = requests.iter().map(|request| without(*request, &stood)).collect();
        let mut machine: Vec<_> = machine.into_iter().map(|(_, late)| late).collect();
        requests.sort_unstable();
        machine.sort_unstable();
        Latencies { requests, machine }
    }

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

/// How long it took, without the time of standstills.
fn without((began, took): Measured, standstills: &[Measured]) -> Duration {
    let ended = began + took;
    let stood =
        standstills.iter().map(|(from, time)| ended.min(*from + *time).duration_since(began.max(*from)));
    took.saturating_sub(stood.sum())
}

/// None is as good as zero.
fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let index = (sorted.len() as f64 * share) as usize;
    sorted.get(index).or(sorted.last()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 101 requests 100 take a millisecond and one takes longer, from its second millisecond on beside a thread that is late.
    fn check(took_ms: u64, late_ms: u64) -> std::thread::Result<()> {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let mut requests: Vec<_> = (0..100).map(|number| (at(number), Duration::from_millis(1))).collect();
        requests.push((at(100), Duration::from_millis(took_ms)));
        let machine = vec![(at(50), Duration::ZERO), (at(101), Duration::from_millis(late_ms))];
        let latencies = Latencies::of(&requests, machine);
        std::panic::catch_unwind(|| latencies.assert_calm(CALM_P99, CALM_WORST))
    }

    #[test]
    fn a_standstill_of_the_machine_is_no_fault_of_who_answers() {
        assert!(check(24, 0).is_ok() && check(2_024, 2_001).is_ok());
        assert!(check(2_024, 1_000).is_err(), "it was longer than that");
        assert!(check(224, 0).is_err() && check(444, 99).is_err(), "the machine did not stand still");
    }
}
