//! Three records through a producer and a consumer of a group. docs/getting-started.md shows it, and `cargo xtask readme` runs it.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use mainstem_client::{ClientConfig, ConsumerConfig, Error, GroupConfig, GroupConsumer, Position};
use mainstem_client::{Producer, ProducerConfig, Record};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let client = ClientConfig::new("127.0.0.1:9092")?;
    let producer = Producer::new(ProducerConfig::new(client.clone()))?;
    let mut deliveries = Vec::new();
    for number in 0..3 {
        deliveries.push(producer.send(Record::new("letters", format!("letter {number}"))).await?);
    }
    for delivery in deliveries {
        delivery.await?;
    }

    let config = GroupConfig::new("postmen", ["letters"], ConsumerConfig::new(client));
    let mut consumer = GroupConsumer::new(GroupConfig { start: Position::Beginning, ..config })?;
    let mut read = 0;
    while read < 3 {
        let batch = consumer.next().await?;
        for record in batch.records() {
            println!("{}", String::from_utf8_lossy(record?.value.unwrap_or_default()));
            read += 1;
        }
    }
    consumer.close().await
}
