//! Producers with acks=all and idempotence.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstem_client::{ClientConfig, Delivery, ErrorClass, Producer, ProducerConfig, Record};
use mainstem_replication::history::{Operation, Outcome};
use mainstem_wire::sample::Rng;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::cluster_kills::run::{IN, PARTITIONS, Phase, Run, bytes_of};

/// The most records that wait for their acknowledgement.
const UNDER_WAY_MAX: usize = 64;

/// Writes while there is a load, and waits for the records in flight.
pub(crate) async fn produce(run: Arc<Run>, client: ClientConfig, mut rng: Rng) {
    while run.is_in(Phase::Load) {
        let process = run.process();
        let config = ProducerConfig::new(client.clone()).linger(Duration::from_millis(1));
        let producer = Producer::new(config).expect("the settings agree");
        produce_as(process, &run, &producer, &mut rng).await;
        producer.close().await;
    }
}

/// Writes until the producer fails for good.
async fn produce_as(process: i32, run: &Arc<Run>, producer: &Producer, rng: &mut Rng) {
    let under_way = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    let has_failed = Arc::new(AtomicBool::new(false));
    let mut deliveries = JoinSet::new();
    while run.is_in(Phase::Load) && !has_failed.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_micros(1_000 + rng.below(8_000))).await;
        let permit = under_way.clone().acquire_owned().await.expect("it is not closed");
        let (value, partition, sent_ms) = (run.value(), rng.below(PARTITIONS as u64) as i32, run.now_ms());
        run.record(process, Operation::Append, Outcome::Invoke, (partition, -1), value);
        let sent = producer.send(Record::new(IN, bytes_of(value)).partition(partition)).await;
        let delivery = match sent {
            Ok(delivery) => delivery,
            Err(error) => {
                // The record was refused: it is never written.
                eprintln!("producer {process}: {error}");
                run.record(process, Operation::Append, Outcome::Fail, (partition, -1), value);
                break;
            }
        };
        let (run, has_failed) = (run.clone(), has_failed.clone());
        deliveries.spawn(async move {
            has_failed
                .fetch_or(!is_delivered(&run, process, delivery, value, sent_ms).await, Ordering::SeqCst);
            drop(permit);
        });
        while deliveries.try_join_next().is_some() {}
    }
    while let Some(ended) = deliveries.join_next().await {
        ended.expect("waiting for a delivery does not panic");
    }
}

/// Notes the outcome of a record. Returns false if the producer has failed for good.
async fn is_delivered(run: &Run, process: i32, delivery: Delivery, value: u64, sent_ms: u64) -> bool {
    match delivery.outcome().await {
        Ok(delivered) => {
            let place = (delivered.partition, delivered.offset.unwrap_or(-1));
            run.record(process, Operation::Append, Outcome::Ok, place, value);
            run.acknowledge(delivered.partition, sent_ms);
            true
        }
        Err(error) => {
            eprintln!("producer {process}: {error}");
            run.record(process, Operation::Append, Outcome::Info, (0, -1), value);
            error.class() != ErrorClass::Fatal
        }
    }
}
