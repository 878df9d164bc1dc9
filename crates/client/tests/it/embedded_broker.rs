//! A test with a broker of its own, as docs/getting-started.md shows it.

use mainstem_broker::EmbeddedBroker;
use mainstem_client::{ClientConfig, Error, Producer, ProducerConfig, Record};

#[tokio::test]
async fn an_order_is_written() -> Result<(), Error> {
    let broker = EmbeddedBroker::start(&[("num.partitions", "4")]);
    let client = ClientConfig::new(broker.address())?;
    let producer = Producer::new(ProducerConfig::new(client))?;
    assert_eq!(producer.topic("orders").await?.partitions.len(), 4);
    let delivery = producer.send(Record::new("orders", "two pounds of tea").key("customer-7")).await?;
    assert_eq!(delivery.await?.offset, Some(0));
    Ok(())
}
