//! A broker of a test that is started again on its directory.

use mainstem_broker::EmbeddedBroker;
use mainstem_client::{ClientConfig, Error, Producer, ProducerConfig, Record};

#[tokio::test]
async fn what_was_written_is_there_after_a_restart() -> Result<(), Error> {
    let mut broker = EmbeddedBroker::start(&[]);
    let client = ClientConfig::new(broker.address())?;
    let producer = Producer::new(ProducerConfig::new(client))?;
    producer.send(Record::new("orders", "one")).await?.await?;
    broker.start_again();
    let delivery = producer.send(Record::new("orders", "two")).await?;
    assert_eq!(delivery.await?.offset, Some(1), "the same producer continues after the kept records");
    Ok(())
}
