//! Transactions: a producer that commits every 100 records, what reading committed records costs, and the memory for
//! transactional ids.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::cpu::CpuTimes;
use super::{Case, Measured};
use crate::batch::BatchBuilder;
use crate::broker::{Launch, Running};
use crate::clock;
use crate::connection::Connection;
use crate::latency;
use crate::load::create_serving_topic;
use crate::payload::{Payload, PayloadCodec};
use crate::process;
use crate::protocol::transactions::{self, TransactionalProducer};
use crate::protocol::{TopicId, data};
use crate::sampler::{MIB, Sampler};

const TOPIC: &str = "transactions";
const PARTITIONS: i32 = 6;
const RECORDS_OF_A_TRANSACTION: u64 = 100;
const VALUE_BYTES: usize = 100;
/// The number of transactions that are read; one in ten is aborted.
const TRANSACTIONS_TO_READ: u64 = 2_000;
const ABORTED_OF: u64 = 10;
/// The number of times that all of it is read with each isolation level, in turn. A pass is short; disturbances of the machine last longer.
const PASSES: usize = 61;
const READ_UNCOMMITTED: i8 = 0;
const READ_COMMITTED: i8 = 1;

/// A topic, and a producer that writes to it.
fn prepare(broker: &Running) -> Result<(TopicId, TransactionalProducer)> {
    let mut connection = Connection::open(broker.address)?;
    let topic = create_serving_topic(&mut connection, TOPIC, PARTITIONS, &[])?;
    transactions::wait_for_coordinator(&mut connection, "bench")?;
    Ok((topic, TransactionalProducer::new(connection, "bench", topic, PARTITIONS)?))
}

/// One transaction of one batch: each goes to the next partition.
fn send(producer: &mut TransactionalProducer, batch: &mut BatchBuilder, number: u64) -> Result<()> {
    let codec = PayloadCodec::new(VALUE_BYTES);
    let partition = (number % PARTITIONS as u64) as i32;
    let timestamp_ms = clock::wall_ms();
    batch.clear();
    for index in 0..RECORDS_OF_A_TRANSACTION {
        let sequence = number * RECORDS_OF_A_TRANSACTION + index;
        let payload = Payload { sequence, sent_ns: 0, producer: 0, partition: partition as u32 };
        batch.append(timestamp_ms, codec.value_bytes(), |writer| codec.write(writer, payload));
    }
    producer.send(partition, batch)
}

/// One producer, one transaction after another.
pub(super) fn run_commits(case: &Case<'_>, settings: &'static [&'static str]) -> Result<Measured> {
    let broker = Running::start_ready(case.environment, Launch { settings, ..case.launch() })?;
    let (_, mut producer) = prepare(&broker)?;
    let committed = Arc::new(AtomicU64::new(0));
    let sampler = Sampler::start(broker.pid(), committed.clone());
    let (mut batch, mut number) = (BatchBuilder::default(), 0);
    let (mut commit_ns, mut whole_ns) = (latency::new_histogram(), latency::new_histogram());
    let mut run_for = |time: Duration| -> Result<u64> {
        let (begin, first) = (Instant::now(), number);
        while begin.elapsed() < time {
            let began = Instant::now();
            send(&mut producer, &mut batch, number)?;
            let sent = Instant::now();
            producer.end(true)?;
            commit_ns.record(sent.elapsed().as_nanos() as u64)?;
            whole_ns.record(began.elapsed().as_nanos() as u64)?;
            committed.fetch_add(RECORDS_OF_A_TRANSACTION, Ordering::Relaxed);
            number += 1;
        }
        Ok(number - first)
    };
    run_for(case.extent.warmup)?;
    let (before, begin) = (CpuTimes::sample(broker.pid())?, Instant::now());
    let done = run_for(case.extent.window)? as f64;
    let seconds = begin.elapsed().as_secs_f64();
    let cpu = CpuTimes::sample(broker.pid())?.since(&before);
    let mut measured = Measured { samples: sampler.finish(), ..Measured::default() };
    let memory = process::memory(broker.pid())?;
    measured.add([
        ("transactions_per_s", done / seconds),
        ("transactions_per_cpu_s", done / cpu.broker_s().max(0.01)),
        ("vm_hwm_mib", memory.peak as f64 / MIB),
        ("vm_rss_mib", memory.resident as f64 / MIB),
        ("window_s", seconds),
    ]);
    latency::add_figures(&mut measured.figures, "commit", &commit_ns);
    latency::add_figures(&mut measured.figures, "transaction", &whole_ns);
    cpu.add_circumstances(&mut measured, seconds);
    broker.stop()?;
    Ok(measured)
}

/// Reads all that was written by transactions, with one isolation level and the other in turn.
pub(super) fn run_reads(case: &Case<'_>) -> Result<Measured> {
    let broker = Running::start_ready(case.environment, case.launch())?;
    let (topic, mut producer) = prepare(&broker)?;
    let mut batch = BatchBuilder::default();
    for number in 0..TRANSACTIONS_TO_READ {
        send(&mut producer, &mut batch, number)?;
        // Otherwise each partition would have either all aborted transactions or none.
        let turn = number / PARTITIONS as u64;
        producer.end(turn % ABORTED_OF != number % PARTITIONS as u64)?;
    }
    let mut connection = Connection::open(broker.address)?;
    let mut read = |isolation| -> Result<(u64, Duration, Duration)> {
        let (before, begin) = (CpuTimes::sample(broker.pid())?, Instant::now());
        let mut bytes = 0;
        for partition in 0..PARTITIONS {
            bytes += data::read_all(&mut connection, &topic, partition, isolation)?;
        }
        let took = begin.elapsed();
        let cpu = CpuTimes::sample(broker.pid())?.since(&before);
        Ok((bytes, took, Duration::from_secs_f64(cpu.broker_s())))
    };
    let (mut bytes, mut took, mut cpu) = ([0; 2], [Vec::new(), Vec::new()], [Duration::ZERO; 2]);
    // The first pass of each warms up.
    for pass in 0..=PASSES {
        for (level, isolation) in [READ_UNCOMMITTED, READ_COMMITTED].into_iter().enumerate() {
            let (read, seconds, of_broker) = read(isolation)?;
            if pass > 0 {
                bytes[level] += read;
                took[level].push(seconds);
                cpu[level] += of_broker;
            }
        }
    }
    ensure!(bytes[0] == bytes[1], "{} bytes are committed of {} at the end", bytes[1], bytes[0]);
    let costs = took[0].iter().zip(&took[1]);
    let costs = costs.map(|(uncommitted, committed)| committed.as_secs_f64() / uncommitted.as_secs_f64());
    let rates = [0, 1].map(|level: usize| {
        let seconds = median(took[level].iter().map(Duration::as_secs_f64).collect());
        bytes[level] as f64 / PASSES as f64 / MIB / seconds
    });
    let mut measured = Measured::of([
        ("uncommitted_mib_per_s", rates[0]),
        ("committed_mib_per_s", rates[1]),
        ("committed_cost_percent", 100.0 * (median(costs.collect()) - 1.0)),
        ("broker_cpu_s", cpu[1].as_secs_f64()),
    ]);
    measured.notes.push(format!(
        "{PASSES} passes over {TRANSACTIONS_TO_READ} transactions with each isolation level in turn; the cost is the median of the passes beside each other"
    ));
    broker.stop()?;
    Ok(measured)
}

/// Uses each of so many transactional ids once.
pub(super) fn run_ids(case: &Case<'_>, count: u32) -> Result<Measured> {
    let broker = Running::start_ready(case.environment, case.launch())?;
    let mut connection = Connection::open(broker.address)?;
    transactions::wait_for_coordinator(&mut connection, "bench")?;
    let before = process::memory(broker.pid())?;
    for number in 0..count {
        transactions::init(&mut connection, &format!("application-0a1b2c3d-{number:08}"))?;
    }
    let memory = process::memory(broker.pid())?;
    broker.stop()?;
    Ok(Measured::of([
        ("vm_hwm_mib", memory.peak as f64 / MIB),
        ("vm_rss_mib", memory.resident as f64 / MIB),
        ("vm_rss_growth_mib", (memory.resident as f64 - before.resident as f64) / MIB),
    ]))
}

/// Returns the median of an odd number of values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
