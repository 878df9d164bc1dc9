//! Brokers with encryption and authentication: brokers that a client trusts, refusals, and sessions that are renewed under load.

use std::time::{Duration, Instant};

use crate::testing::boxed;
use crate::testing::secured::{Authority, ELSEWHERE, LOGIN, MUTUAL, SESSION, SecuredWorld, TLS, USER};
use crate::{
    Admin, ClientConfig, Consumer, ConsumerConfig, Error, ErrorClass, Position, Producer, ProducerConfig,
    Record, Sasl, TopicPartition,
};

/// Defines each test for a function of that name: as `mainstem::NAME`, and against the newest Kafka as `kafka::NAME`.
macro_rules! on_secured_brokers {
    ($($test:ident),+ $(,)?) => {
        mod mainstem {
            $(#[tokio::test]
            async fn $test() {
                super::boxed(super::$test(super::SecuredWorld::mainstem())).await;
            })+
        }
        mod kafka {
            $(#[tokio::test]
            async fn $test() {
                let name = concat!(module_path!(), "::", stringify!($test));
                let release = &$crate::testing::releases::NEWEST;
                if let Some(world) = super::SecuredWorld::kafka(release, name) {
                    super::boxed(super::$test(world)).await;
                }
            })+
        }
    };
}

on_secured_brokers!(
    records_go_both_ways_over_a_session,
    a_broker_is_believed_by_its_issuer_and_its_name,
    who_has_no_certificate_that_is_believed_is_reported_at_once,
    a_password_is_shown_by_each_mechanism,
    sessions_are_renewed_under_load,
);

/// Writes so many records and reads them back, in their order.
async fn round_trip(world: &SecuredWorld, config: ClientConfig, count: usize) -> Result<(), Error> {
    let topic = world.world.name("of-round-trip");
    let admin = Admin::new(config.clone());
    match admin.create_topic(&world.world.new_topic(topic.as_str(), 1)).await {
        Err(error) if error.code() != Some(crate::ErrorCode::TOPIC_ALREADY_EXISTS) => return Err(error),
        _ => {}
    }
    let mut consumer = Consumer::new(ConsumerConfig::new(config.clone()))?;
    let producer = Producer::new(ProducerConfig::new(config))?;
    let value = |number: usize| format!("{number}:{}", "x".repeat(number % 2000));
    let mut sent = Vec::new();
    for number in 0..count {
        sent.push(producer.send(Record::new(topic.as_str(), value(number))).await?);
    }
    let mut first = None;
    for delivery in sent {
        first = first.or(delivery.await?.offset);
    }
    let begin = Position::Offset(first.expect("there are records"));
    consumer.assign([(TopicPartition::new(topic.as_str(), 0), begin)]);
    let mut read = 0;
    while read < count {
        for record in consumer.next().await?.owned_records() {
            assert_eq!(record?.value.as_deref(), Some(value(read).as_bytes()), "record {read}");
            read += 1;
        }
    }
    Ok(())
}

async fn records_go_both_ways_over_a_session(world: SecuredWorld) {
    round_trip(&world, world.client(TLS), 5000).await.unwrap();
}

/// The error of a connection that is refused at the first attempt, though there would be time for many.
async fn refused(config: ClientConfig) -> String {
    let (began, limit) = (Instant::now(), config.operation_timeout);
    let error = match Admin::connect(config).await {
        Ok(admin) => admin.topics().await.map(|_| ()).expect_err("it is refused"),
        Err(error) => error,
    };
    assert!(began.elapsed() < limit / 2, "{error}");
    assert_eq!(error.class(), ErrorClass::Fatal, "{error}");
    error.to_string()
}

async fn a_broker_is_believed_by_its_issuer_and_its_name(world: SecuredWorld) {
    let untrusted = Authority::new("an untrusted authority");
    let error = refused(world.client(TLS).tls(untrusted.tls())).await;
    assert!(error.contains("is not in the trust store") && error.contains("ssl.truststore"), "{error}");
    let error = refused(world.client(ELSEWHERE)).await;
    assert!(error.contains("connect to what it is for"), "{error}");
}

async fn who_has_no_certificate_that_is_believed_is_reported_at_once(world: SecuredWorld) {
    let (ours, untrusted) = (&world.authority, Authority::new("an untrusted authority"));
    let config = world.client(MUTUAL);
    round_trip(&world, config.clone().tls(ours.mutual(ours)), 10).await.unwrap();
    for tls in [ours.tls(), ours.mutual(&untrusted)] {
        let error = refused(config.clone().tls(tls)).await;
        assert!(error.contains("show a certificate that the broker trusts"), "{error}");
    }
}

async fn a_password_is_shown_by_each_mechanism(world: SecuredWorld) {
    let config = world.client(LOGIN);
    for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] {
        let sasl =
            |user: &str, password: &str| config.clone().sasl(Sasl::new(mechanism, user, password).unwrap());
        round_trip(&world, sasl(USER.0, USER.1), 10).await.unwrap();
        for (user, password) in [(USER.0, "wrong"), ("mallory", USER.1)] {
            let error = refused(sasl(user, password)).await;
            assert!(error.contains("uthenticat"), "{mechanism}: {error}");
            assert!(error.contains(user) && error.contains(mechanism), "it says who is refused: {error}");
        }
    }
}

/// It runs for eight times as long as a session lasts. The broker closes a connection whose session is not renewed, and the
/// client connects again. That happens to nearly no connection, unless the machine stands still for a moment.
async fn sessions_are_renewed_under_load(world: SecuredWorld) {
    const RENEWALS: u32 = 8;
    /// The length of a standstill that may take the time in which a session is renewed.
    const STANDSTILL: Duration = Duration::from_millis(250);
    world.world.create(1, &[]).await;
    let connections = world.counted();
    let config = connections.client.clone().sasl(Sasl::scram_sha_512(USER.0, USER.1));
    let topic = world.world.topic.clone();
    let mut consumer = Consumer::new(ConsumerConfig::new(config.clone())).unwrap();
    consumer.assign([(TopicPartition::new(topic.clone(), 0), Position::Beginning)]);
    let (count, mut counts) = tokio::sync::watch::channel(None);
    let reader = tokio::spawn(async move {
        let mut read = 0;
        while *counts.borrow_and_update() != Some(read) {
            tokio::select! {
                records = consumer.next() => {
                    for record in records.unwrap().owned_records() {
                        let value = record.unwrap().value;
                        assert_eq!(value.as_deref(), Some(read.to_string().as_bytes()), "in order, once");
                        read += 1;
                    }
                }
                _ = counts.changed() => {}
            }
        }
    });
    let producer = Producer::new(ProducerConfig::new(config)).unwrap();
    let (began, mut sent, mut first) = (Instant::now(), Vec::new(), None);
    let mut standstills = 0;
    while began.elapsed() < SESSION * RENEWALS {
        sent.push(producer.send(Record::new(topic.clone(), sent.len().to_string())).await.unwrap());
        let asked = Instant::now();
        tokio::time::sleep(Duration::from_millis(2)).await;
        standstills += usize::from(asked.elapsed() > STANDSTILL);
        if first.is_none() && began.elapsed() > SESSION / 2 {
            first = Some(connections.count());
        }
    }
    let all = sent.len();
    for (number, delivery) in sent.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset, Some(number as i64), "in order, once");
    }
    count.send(Some(all)).unwrap();
    tokio::time::timeout(Duration::from_secs(60), reader).await.expect("all is read").unwrap();
    let reconnected = connections.count() - first.expect("it takes more than half a session");
    // A machine that stands still ends a session of either client.
    assert!(
        reconnected <= RENEWALS as usize / 2 + 2 * standstills,
        "{reconnected} connections were made again in {RENEWALS} sessions of two clients, and {standstills} standstills"
    );
}
