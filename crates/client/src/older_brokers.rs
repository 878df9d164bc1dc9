//! Features that Kafka 3.9 lacks are refused by name, and no others. Older brokers are refused as a whole.

use std::time::Duration;

use mainstem_wire::ApiKey;
use mainstem_wire::messages::api_versions_response::{ApiVersion, ApiVersionsResponse};
use tokio::time::Instant;

use crate::testing::{ScriptedBroker, World, on_kafka, versions};
use crate::{
    Admin, Compression, ConsumerConfig, Error, ErrorClass, GroupConfig, GroupConsumer, GroupProtocol,
    NewTopic, Producer, ProducerConfig, Record, Subscription,
};

on_kafka!(what_a_broker_lacks_is_reported);

async fn what_a_broker_lacks_is_reported(world: World) {
    let release = world.kafka_release().expect("it runs on Kafka alone");
    world.create(1, &[]).await;
    let admin = world.admin();
    admin.create_topic(&NewTopic::new(world.name("defaults"))).await.unwrap();
    let zstd = Producer::new(ProducerConfig::new(world.client()).compression(Compression::Zstd)).unwrap();
    zstd.send(Record::new(world.topic.clone(), "a")).await.unwrap().await.unwrap();

    let pattern = Subscription::Pattern(format!("{}.*", world.topic).into());
    let asked = [
        (
            (4, 0),
            "ConsumerGroupHeartbeat 1, which is needed for subscribing to a pattern; the newest there is 0",
            joined(&world, pattern).await.map(drop),
        ),
        (
            (4, 1),
            "ListConfigResources 1, which is needed for listing all kinds (KIP-1142); the newest there is 0",
            admin.config_resources().await.map(drop),
        ),
    ];
    for (since, lacks, outcome) in asked {
        if release.is_at_least(since.0, since.1) {
            outcome.unwrap();
            continue;
        }
        let error = outcome.expect_err(lacks);
        assert_eq!(error.to_string(), format!("the broker at {} does not serve {lacks}", world.address()));
    }
}

/// Takes part in a group of the consumer protocol, until there is an assignment.
async fn joined(world: &World, subscription: Subscription) -> Result<GroupConsumer, Error> {
    let consumer = ConsumerConfig::new(world.client());
    let config = GroupConfig::new(world.group.as_ref(), [world.topic.clone()], consumer)
        .protocol(GroupProtocol::Consumer { assignor: None });
    let mut member = GroupConsumer::new(GroupConfig { subscription, ..config })?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while member.assignment().is_empty() {
        assert!(Instant::now() < deadline, "nothing is assigned");
        if let Ok(next) = tokio::time::timeout(Duration::from_millis(20), member.next()).await {
            drop(next?);
        }
    }
    Ok(member)
}

/// Checks the error of a client that connects to a broker with these versions.
async fn check_refused(offered: ApiVersionsResponse<'static>, found: &str) {
    let broker = ScriptedBroker::offering(offered);
    let config = broker.client();
    let address = config.bootstrap[0].clone();
    let error = Admin::connect(config).await.expect_err(found);
    assert_eq!(error.class(), ErrorClass::Permanent, "{error}");
    assert_eq!(
        error.to_string(),
        format!("the broker at {address} does not serve {found}: upgrade the broker")
    );
}

#[tokio::test]
async fn brokers_before_3_9_are_refused() {
    let mut of_3_8 = versions();
    for api in &mut of_3_8.api_keys {
        if api.api_key == ApiKey::Fetch as i16 {
            api.max_version = 16;
        }
    }
    let fetch = "Fetch 17, which Apache Kafka 3.9 does, the oldest release that this client supports";
    check_refused(of_3_8, &format!("{fetch}; the newest there is Fetch 16")).await;
}

/// They answer a version that they do not know with version 0, and before Kafka 2.4 without their own (KIP-511).
#[tokio::test]
async fn brokers_before_3_9_are_refused_by_their_first_answer() {
    let unsupported = mainstem_wire::ErrorCode::UNSUPPORTED_VERSION.code();
    let own = ApiVersion { api_key: ApiKey::ApiVersions as i16, max_version: 2, ..Default::default() };
    let asked = "ApiVersions 3, which Apache Kafka 3.9 does, the oldest release that this client supports";
    for (api_keys, newest) in [(vec![], 0), (vec![own], 2)] {
        let refusal = ApiVersionsResponse { error_code: unsupported, api_keys, ..Default::default() };
        check_refused(refusal, &format!("{asked}; the newest there is ApiVersions {newest}")).await;
    }
}
