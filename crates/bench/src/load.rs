//! One load on one running broker: producers at their pace, and a group of consumers that reads all of it back and
//! checks it.

mod accumulator;
mod closed;
pub(crate) mod cluster;
mod consumer;
mod member;
mod paced;
mod phases;
mod producer;
pub(crate) mod slow;
pub(crate) mod visitors;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;

use self::closed::ClosedLoop;
use self::consumer::{Consumer, ConsumerTotals};
use self::member::Shares;
use self::paced::Paced;
use self::phases::Phases;
use self::producer::{Producer, ProducerTotals};
use crate::connection::Connection;
use crate::latency::new_histogram;
use crate::payload::PayloadCodec;
use crate::protocol::{TopicId, admin, data, error, group};
use crate::secure::Endpoint;
use crate::workload::{Durability, LoadShape, Pace};

const TOPIC: &str = "bench";
const GROUP: &str = "bench-group";
/// Timeout for a broker to make a topic or a coordinator ready.
const SETUP_MAX: Duration = Duration::from_secs(60);
/// Interval between attempts at a coordinator that is loading.
const SETUP_INTERVAL: Duration = Duration::from_millis(20);

/// The broker under load, and how much of Kafka it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) address: Endpoint,
    /// False for the probe: it serves Produce and Fetch alone, so its topic is taken for granted and its partitions
    /// are dealt out by the driver.
    pub(crate) has_topics_and_groups: bool,
}

/// The load to run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) shape: LoadShape,
    pub(crate) target: Target,
    /// The durability that the topic asks for.
    pub(crate) durability: Durability,
    pub(crate) keeps: Keeps,
    /// Load before the window.
    pub(crate) warmup: Duration,
    /// Counts the acknowledged records of the whole load, for those who observe it.
    pub(crate) acked: Arc<AtomicU64>,
}

/// Counts and latencies of a load; latencies in nanoseconds, of records sent (by schedule: due) within the window.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) window: Duration,
    pub(crate) acked_in_window: u64,
    /// Over the whole run, and equal: anything else is an error.
    pub(crate) produced: u64,
    pub(crate) consumed: u64,
    pub(crate) ack_ns: Histogram<u64>,
    pub(crate) end_to_end_ns: Histogram<u64>,
    /// The delay with which the driver itself made the records of a schedule.
    pub(crate) late_ns: Histogram<u64>,
    /// Records that were due within the window and never made, since the broker did not keep up.
    pub(crate) unsent_in_window: u64,
}

/// The part of its records that a topic keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    All,
    /// 256 MiB of each partition, so that a long load does not fill the disk. Deleted records were consumed long before.
    Recent,
}

impl Keeps {
    fn configs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::All => &[],
            Self::Recent => &[("retention.bytes", "268435456"), ("segment.bytes", "67108864")],
        }
    }
}

/// The settings of a topic whose records have that durability.
pub(crate) fn topic_configs(durability: Durability) -> &'static [(&'static str, &'static str)] {
    match durability {
        Durability::PageCache => &[],
        Durability::Fsync => &[("flush.messages", "1")],
    }
}

/// A load whose topic and group are ready, and that has not begun.
#[derive(Debug)]
pub(crate) struct Load<'a> {
    plan: &'a Plan,
    producers: Vec<Producer>,
    consumers: Vec<Consumer>,
}

impl<'a> Load<'a> {
    /// Makes the topic, the group and the connections.
    pub(crate) fn prepare(plan: &'a Plan) -> Result<Self> {
        let topic = prepare_topic(plan)?;
        let consumers = prepare_consumers(plan, topic)?;
        let producers = (0..plan.shape.producers).map(|number| Producer::new(plan, topic, number));
        Ok(Self { plan, producers: producers.collect::<Result<_>>()?, consumers })
    }

    /// Warms, measures for as long as `observe` takes (it samples the broker meanwhile), drains and checks.
    pub(crate) fn run<T>(self, observe: impl FnOnce() -> Result<T>) -> Result<(Outcome, T)> {
        let warmup = self.plan.warmup;
        self.run_warmed(|| thread::sleep(warmup), observe)
    }

    /// Runs the load with a warm-up that lasts as long as `warm` takes.
    fn run_warmed<T>(self, warm: impl FnOnce(), observe: impl FnOnce() -> Result<T>) -> Result<(Outcome, T)> {
        let Self { plan, producers, consumers } = self;
        let phases = Phases::new(plan.acked.clone());
        thread::scope(|scope| {
            let consumers: Vec<_> = consumers
                .into_iter()
                .map(|consumer| scope.spawn(|| phases.guard(consumer.run(&phases))))
                .collect();
            let producers: Vec<_> = producers
                .into_iter()
                .map(|producer| scope.spawn(|| phases.guard(run_producer(producer, &plan.shape, &phases))))
                .collect();
            let observed = measure(&phases, warm, observe);
            phases.stop();
            let produced = join_all(producers).inspect_err(|_| phases.abandon())?;
            phases.expect(produced.iter().map(|totals| totals.produced).sum());
            let mut consumed = join_all(consumers)?;
            consumer::leave_group(&mut consumed)?;
            let (window, observed) = observed?;
            Ok((sum_up(window, &produced, &consumed)?, observed))
        })
    }
}

fn run_producer(producer: Producer, shape: &LoadShape, phases: &Phases) -> Result<ProducerTotals> {
    match shape.pace {
        Pace::Closed => ClosedLoop::new(producer, shape).run(phases),
        Pace::Rate { .. } | Pace::Pipelined { .. } => Paced::new(producer, shape).run(phases),
    }
}

/// Runs `observe` between the two ends of the window, and returns the window's length.
fn measure<T>(
    phases: &Phases,
    warm: impl FnOnce(),
    observe: impl FnOnce() -> Result<T>,
) -> Result<(Duration, T)> {
    warm();
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
        late_ns: new_histogram(),
        unsent_in_window: produced.iter().map(|totals| totals.unsent_in_window).sum(),
    };
    for totals in produced {
        outcome.ack_ns.add(&totals.ack_ns)?;
        outcome.late_ns.add(&totals.late_ns)?;
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
    let configs = [topic_configs(plan.durability), plan.keeps.configs()].concat();
    let topic = create_serving_topic(&mut connection, TOPIC, plan.shape.partitions, &configs)?;
    wait_for("group coordinator", || match group::find_coordinator(&mut connection, GROUP)?.error_code {
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
    let codec = PayloadCodec::new(plan.shape.value_bytes);
    let shares = Shares { members: plan.shape.consumers, partitions: plan.shape.partitions };
    thread::scope(|scope| {
        let threads = (0..shares.members)
            .map(|index| {
                let codec = codec.clone();
                scope.spawn(move || {
                    let (member, partitions) = if plan.target.has_topics_and_groups {
                        let (member, partitions) = member::join(plan.target.address, GROUP, TOPIC, shares)?;
                        (Some(member), partitions)
                    } else {
                        (None, shares.deal(index))
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
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;
    use crate::probe;
    use crate::workload::Workload;

    fn run_against_probe(shape: LoadShape, durability: Durability) -> Outcome {
        let directory = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let options = probe::ProbeOptions {
            directory: directory.path().to_owned(),
            partitions: shape.partitions,
            durability,
        };
        // The probe serves until its process ends; the thread is left to that.
        thread::spawn(move || probe::serve(listener, &options));
        let target = Target { address: address.into(), has_topics_and_groups: false };
        let (warmup, keeps) = (Duration::ZERO, Keeps::All);
        let acked = Arc::new(AtomicU64::new(0));
        let plan = Plan { shape, target, durability, keeps, warmup, acked: acked.clone() };
        let observe = || {
            // Records that were sent in the warm-up are not timed. A busy machine may acknowledge only such for long.
            let of_warmup = acked.load(SeqCst) + under_way(shape);
            thread::sleep(Duration::from_millis(150));
            wait_for("acknowledgement", || Ok((acked.load(SeqCst) > of_warmup).then_some(())))
        };
        // After this, records exist which were acknowledged before the window.
        let warm = || {
            wait_for("acknowledgement", || Ok((acked.load(SeqCst) > 0).then_some(()))).unwrap();
        };
        Load::prepare(&plan).unwrap().run_warmed(warm, observe).unwrap().0
    }

    /// Records that may be sent and not acknowledged, at most.
    fn under_way(shape: LoadShape) -> u64 {
        let of_producer = match shape.pace {
            Pace::Pipelined { outstanding_max, .. } => outstanding_max,
            Pace::Closed | Pace::Rate { .. } => 1,
        };
        of_producer * u64::from(shape.producers)
    }

    #[test]
    fn everything_produced_to_the_probe_is_consumed_and_timed() {
        for workload in Workload::all() {
            let Some(shape) = workload.shape() else { continue };
            for durability in Durability::ALL {
                let outcome = run_against_probe(shape, durability);
                assert!(outcome.acked_in_window < outcome.produced, "the warm-up does not count");
                assert_eq!(outcome.produced, outcome.consumed, "{}", workload.name());
                assert!(outcome.window >= Duration::from_millis(150));
                assert!(outcome.ack_ns.min() > 0);
                // Both count the records that were sent in the window; its ends are noticed within one record, or
                // within those that are under way.
                let counted = outcome.ack_ns.len() - outcome.unsent_in_window;
                let difference = counted.abs_diff(outcome.end_to_end_ns.len());
                assert!(difference <= 2 * under_way(shape), "{}", workload.name());
            }
        }
    }

    #[test]
    fn a_schedule_is_kept_by_the_probe() {
        let shape = Workload::parse("fixed-rate-2000").unwrap().shape().unwrap();
        let outcome = run_against_probe(shape, Durability::PageCache);
        let due = (outcome.window.as_secs_f64() * 2_000.0) as u64;
        assert!(outcome.ack_ns.len().abs_diff(due) <= 2, "{} of {due}", outcome.ack_ns.len());
        assert_eq!(outcome.late_ns.len(), outcome.ack_ns.len());
    }
}
