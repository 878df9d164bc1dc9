//! One closed-loop load on one running broker: producers that await every acknowledgement, and a group of consumers
//! that reads all of it back and checks it.

mod consumer;
mod member;
mod phases;
mod producer;

use std::net::SocketAddr;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;

use self::consumer::{Consumer, ConsumerTotals};
use self::phases::Phases;
use self::producer::{Producer, ProducerTotals};
use crate::connection::Connection;
use crate::payload::PayloadCodec;
use crate::protocol::{TopicId, admin, data, error, group};

pub(crate) const PARTITIONS: i32 = 6;
const TOPIC: &str = "bench";
const GROUP: &str = "bench-group";
/// How long a broker may take to make a topic or a coordinator ready.
const SETUP_MAX: Duration = Duration::from_secs(60);

/// A load by the name that it has in reports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// The size of a record's value.
    pub(crate) value_bytes: usize,
    pub(crate) producers: u32,
    pub(crate) consumers: u32,
}

pub(crate) const WORKLOADS: [Workload; 2] = [
    Workload { name: "small-msg-saturate", value_bytes: 100, producers: 1, consumers: 1 },
    Workload { name: "local-1kb-saturate", value_bytes: 1024, producers: 2, consumers: 2 },
];

/// The broker under load, and how much of Kafka it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// False for the probe: it serves Produce and Fetch alone, so its topic is taken for granted and its partitions
    /// are dealt out by the driver.
    pub(crate) has_topics_and_groups: bool,
}

/// What to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) workload: Workload,
    pub(crate) target: Target,
    /// Whether the topic asks for an fsync of every record (`flush.messages=1`).
    pub(crate) fsync: bool,
    /// Load before the window.
    pub(crate) warmup: Duration,
}

/// What the driver saw; latencies in nanoseconds, of records sent within the window.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) window: Duration,
    pub(crate) acked_in_window: u64,
    /// Over the whole run, and equal: anything else is an error.
    pub(crate) produced: u64,
    pub(crate) consumed: u64,
    pub(crate) ack_ns: Histogram<u64>,
    pub(crate) end_to_end_ns: Histogram<u64>,
}

/// An empty histogram of nanoseconds up to a minute, with three digits.
fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are constants that fit")
}

/// Sets up, warms, measures for as long as `observe` takes (it samples the broker meanwhile), drains and checks.
pub(crate) fn run<T>(plan: &Plan, observe: impl FnOnce() -> Result<T>) -> Result<(Outcome, T)> {
    let topic = prepare_topic(plan)?;
    let consumers = prepare_consumers(plan, topic)?;
    let producers =
        (0..plan.workload.producers).map(|id| Producer::new(plan, topic, id)).collect::<Result<Vec<_>>>()?;
    let phases = Phases::default();
    thread::scope(|scope| {
        let consumers: Vec<_> = consumers
            .into_iter()
            .map(|consumer| scope.spawn(|| phases.guard(consumer.run(&phases))))
            .collect();
        let producers: Vec<_> = producers
            .into_iter()
            .map(|producer| scope.spawn(|| phases.guard(producer.run(&phases))))
            .collect();
        let observed = measure(&phases, plan.warmup, observe);
        phases.stop();
        let produced = join_all(producers).inspect_err(|_| phases.abandon())?;
        phases.expect(produced.iter().map(|totals| totals.produced).sum());
        let consumed = join_all(consumers)?;
        let (window, observed) = observed?;
        Ok((sum_up(window, &produced, &consumed)?, observed))
    })
}

/// Runs `observe` between the two ends of the window, and returns the window's length.
fn measure<T>(
    phases: &Phases,
    warmup: Duration,
    observe: impl FnOnce() -> Result<T>,
) -> Result<(Duration, T)> {
    thread::sleep(warmup);
    let begin = phases.begin_window();
    let observed = observe();
    let end = phases.end_window();
    Ok((Duration::from_nanos(end - begin), observed?))
}

fn join_all<T>(threads: Vec<ScopedJoinHandle<'_, Result<T>>>) -> Result<Vec<T>> {
    threads.into_iter().map(|thread| thread.join().expect("a thread of the load panicked")).collect()
}

fn sum_up(window: Duration, produced: &[ProducerTotals], consumed: &[ConsumerTotals]) -> Result<Outcome> {
    let mut outcome = Outcome {
        window,
        acked_in_window: produced.iter().map(|totals| totals.acked_in_window).sum(),
        produced: produced.iter().map(|totals| totals.produced).sum(),
        consumed: consumed.iter().map(|totals| totals.consumed).sum(),
        ack_ns: new_histogram(),
        end_to_end_ns: new_histogram(),
    };
    for totals in produced {
        outcome.ack_ns.add(&totals.ack_ns)?;
    }
    for totals in consumed {
        outcome.end_to_end_ns.add(&totals.end_to_end_ns)?;
    }
    let (produced, consumed) = (outcome.produced, outcome.consumed);
    ensure!(produced == consumed, "{produced} records were acknowledged, {consumed} consumed");
    ensure!(outcome.acked_in_window > 0, "nothing was acknowledged within the window");
    Ok(outcome)
}

/// Creates the topic and warms the coordinator, so that neither happens within the window.
fn prepare_topic(plan: &Plan) -> Result<TopicId> {
    if !plan.target.has_topics_and_groups {
        return Ok([0; 16]);
    }
    let mut connection = Connection::open(plan.target.address)?;
    let configs: &[_] = if plan.fsync { &[("flush.messages", "1")] } else { &[] };
    let topic = create_serving_topic(&mut connection, TOPIC, PARTITIONS, configs)?;
    wait_for("group coordinator", || match group::find_coordinator(&mut connection, GROUP)? {
        error::NONE => Ok(Some(())),
        error::COORDINATOR_NOT_AVAILABLE => Ok(None),
        code => bail!("FindCoordinator was answered with Kafka's error code {code}"),
    })?;
    Ok(topic)
}

/// Creates a topic and waits until each of its partitions has a leader that serves it.
pub(crate) fn create_serving_topic(
    connection: &mut Connection,
    name: &str,
    partitions: i32,
    configs: &[(&str, &str)],
) -> Result<TopicId> {
    let id = admin::create_topic(connection, name, partitions, configs)?;
    wait_for("topic with leaders", || {
        let state = admin::topic_state(connection, name)?;
        Ok(state.filter(|state| state.led_partitions == partitions && state.id == id))
    })?;
    wait_for("topic that serves", || {
        Ok(data::all_partitions_serve(connection, &id, partitions)?.then_some(id))
    })
}

fn prepare_consumers(plan: &Plan, topic: TopicId) -> Result<Vec<Consumer>> {
    let codec = PayloadCodec::new(plan.workload.value_bytes);
    let all = plan.workload.consumers;
    thread::scope(|scope| {
        let threads = (0..all)
            .map(|index| {
                let codec = codec.clone();
                scope.spawn(move || {
                    let (member, partitions) = if plan.target.has_topics_and_groups {
                        let (member, partitions) = member::join(plan.target.address, GROUP, TOPIC, all)?;
                        (Some(member), partitions)
                    } else {
                        (None, member::deal(all, index))
                    };
                    Consumer::new(plan, topic, codec, member, &partitions)
                })
            })
            .collect();
        join_all(threads).context("joining the group")
    })
}

/// Asks every 5 ms until there is an answer.
fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + SETUP_MAX;
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        ensure!(Instant::now() < deadline, "no {what} within {SETUP_MAX:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::probe;

    fn run_against_probe(workload: Workload, fsync: bool) -> Outcome {
        let directory =
            std::env::temp_dir().join(format!("{}-{}-{fsync}", workload.name, std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let probe_directory = directory.clone();
        // The probe serves until its process ends; the thread is left to that.
        thread::spawn(move || probe::serve(listener, &probe_directory, fsync));
        let target = Target { address, has_topics_and_groups: false };
        let plan = Plan { workload, target, fsync, warmup: Duration::from_millis(50) };
        let observe = || {
            thread::sleep(Duration::from_millis(150));
            Ok(())
        };
        let (outcome, ()) = run(&plan, observe).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        outcome
    }

    #[test]
    fn everything_produced_to_the_probe_is_consumed_and_timed() {
        for workload in WORKLOADS {
            for fsync in [false, true] {
                let outcome = run_against_probe(workload, fsync);
                assert_eq!(outcome.produced, outcome.consumed);
                assert!(outcome.window >= Duration::from_millis(150));
                assert!(outcome.acked_in_window < outcome.produced, "the warm-up does not count");
                assert!(outcome.ack_ns.min() > 0);
                // Both count the records that were sent in the window; its ends are noticed within one record.
                let edges = 2 * u64::from(workload.producers);
                assert!(outcome.ack_ns.len().abs_diff(outcome.end_to_end_ns.len()) <= edges);
                assert!(outcome.ack_ns.len().abs_diff(outcome.acked_in_window) <= edges);
            }
        }
    }
}
