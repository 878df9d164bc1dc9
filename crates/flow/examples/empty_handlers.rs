//! Throughput of empty handlers beside that of a bare group consumer: five topics, 1,000,000 records of 100 B each.
//!
//! `cargo run --release -p mainstem-flow --example empty_handlers [HOST:PORT]`; a broker of its own without an address. Each
//! reads everything twice, in turn; contents are counted, and what is measured goes from the first record to the last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use mainstem_broker::EmbeddedBroker;
use mainstem_client::{
    Admin, ClientConfig, ConsumerConfig, GroupConfig, GroupConsumer, NewTopic, Position, Producer,
    ProducerConfig, Record,
};
use mainstem_flow::{App, Msg, Raw, Route};

const TOPICS: u64 = 5;
const RECORDS: u64 = 1_000_000;
const RECORD_BYTES: usize = 100;
const PARTITIONS: i32 = 2;
const LIMIT: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() -> Result<()> {
    let named = std::env::args().nth(1);
    let broker = named.is_none().then(|| EmbeddedBroker::start(&[("offsets.topic.num.partitions", "1")]));
    let address = named.or_else(|| broker.as_ref().map(|one| one.address().to_owned())).unwrap_or_default();
    let topics: Vec<String> =
        (0..TOPICS).map(|number| format!("empty-{}-{number}", std::process::id())).collect();
    fill(&address, &topics).await?;
    for round in 0..2 {
        let bare = bare(&address, &topics, round).await?;
        let handled = handled(&address, &topics, round).await?;
        let per_second = |time: Duration| (TOPICS * RECORDS) as f64 / time.as_secs_f64() / 1e6;
        eprintln!(
            "bare consumer {:.2} M/s, empty handlers {:.2} M/s, {:.2} of it",
            per_second(bare),
            per_second(handled),
            bare.as_secs_f64() / handled.as_secs_f64()
        );
    }
    Ok(())
}

async fn fill(address: &str, topics: &[String]) -> Result<()> {
    let client = ClientConfig::new(address)?;
    let admin = Admin::new(client.clone());
    let config = ProducerConfig { batch_bytes: 64 << 10, ..ProducerConfig::new(client) };
    let producer = Producer::new(config.linger(Duration::from_millis(20)))?;
    for topic in topics {
        admin.create_topic(&NewTopic::new(topic.as_str()).partitions(PARTITIONS)).await?;
        let topic: Arc<str> = topic.as_str().into();
        for number in 0..RECORDS {
            let key = format!("key-{}", number % 10_000);
            let value = vec![b'x'; RECORD_BYTES - key.len()];
            drop(producer.send(Record::new(topic.clone(), value).key(key)).await?);
        }
    }
    producer.flush().await;
    Ok(())
}

/// The loop that a program would write by itself.
async fn bare(address: &str, topics: &[String], round: u32) -> Result<Duration> {
    let consumer = ConsumerConfig::new(ClientConfig::new(address)?);
    let name = format!("bare-{}-{round}", std::process::id());
    let config = GroupConfig::new(name, topics.iter().map(String::as_str), consumer);
    let mut consumer = GroupConsumer::new(GroupConfig { start: Position::Beginning, ..config })?;
    let (mut seen, mut started) = (0, None);
    while seen < TOPICS * RECORDS {
        let batch = tokio::time::timeout(LIMIT, consumer.next()).await??;
        started.get_or_insert_with(Instant::now);
        for record in batch.records() {
            let record = record?;
            seen += u64::from(record.value.is_some() && record.key.is_some());
        }
    }
    let took = started.map_or(Duration::ZERO, |started| started.elapsed());
    consumer.close().await?;
    Ok(took)
}

/// The same by handlers.
async fn handled(address: &str, topics: &[String], round: u32) -> Result<Duration> {
    let seen = Arc::new(AtomicU64::new(0));
    let name = format!("handlers-{}-{round}", std::process::id());
    let mut app = App::new(name, &format!("kafka://{address}"))?;
    for topic in topics {
        let seen = seen.clone();
        app = app.add(Route::topic(topic, move |message: Msg<Raw>| {
            seen.fetch_add(u64::from(!message.is_empty()), Ordering::Relaxed);
            std::future::ready(())
        }));
    }
    let running = app.start()?;
    let deadline = Instant::now() + LIMIT;
    let mut started = None;
    loop {
        let now = seen.load(Ordering::Relaxed);
        if now > 0 {
            started.get_or_insert_with(Instant::now);
        }
        if now >= TOPICS * RECORDS {
            break;
        }
        if Instant::now() > deadline {
            bail!("only {now} messages were handled in {LIMIT:?}");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = started.map_or(Duration::ZERO, |started| started.elapsed());
    running.stop().await?;
    Ok(took)
}
