//! Log directories that take no new partitions (KIP-1066).

use mainstem_tests::broker::Broker;
use mainstem_tests::client::Client;
use mainstem_tests::kafka::refusal;
use mainstem_tests::wait::eventually;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};

use super::{TOPIC, broker_with_topic, partitions_in, place};

/// Sets `cordoned.log.dirs` of the node.
fn alter(client: &mut Client, value: &str) -> ErrorCode {
    const BROKER: i8 = 4;
    let config =
        AlterableConfig { name: "cordoned.log.dirs".into(), value: Some(value.into()), ..Default::default() };
    let resource = AlterConfigsResource {
        resource_type: BROKER,
        resource_name: "1".into(),
        configs: vec![config],
        ..Default::default()
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    ErrorCode::from(client.call(&request, 1).responses[0].error_code)
}

fn cordon(client: &mut Client, broker: &Broker, ranks: &[usize]) {
    let names: Vec<String> = ranks.iter().map(|rank| broker.log_dir(*rank).display().to_string()).collect();
    assert_eq!(alter(client, &names.join(",")), ErrorCode::NONE);
    let is_so = |client: &mut Client| {
        let dirs = client.log_dirs().unwrap();
        (0..dirs.len()).all(|rank| dirs[rank].is_cordoned == ranks.contains(&rank))
    };
    assert!(is_so(client), "{ranks:?}");
}

#[test]
fn a_cordoned_directory_takes_no_new_partitions() {
    let (mut broker, mut client) = broker_with_topic("cordoned", 2);
    assert_eq!(alter(&mut client, "/elsewhere"), ErrorCode::INVALID_REQUEST);
    cordon(&mut client, &broker, &[1]);
    // The controller learns of it a moment later.
    let mut created = 0..;
    eventually("new partitions stay out of it", || {
        let topic = format!("cordoned-{}", created.next().unwrap());
        client.create_topic(&topic, 8, &[]).unwrap();
        (client.log_dirs().unwrap()[1].replicas.iter().all(|replica| replica.topic != topic)).then_some(())
    });
    let at = place(&client.log_dirs().unwrap(), 0);
    cordon(&mut client, &broker, &[1 - at]);
    let refused = client.move_partition(TOPIC, 0, &broker.log_dir(1 - at));
    assert_eq!(refusal(refused), ErrorCode::INVALID_REPLICA_ASSIGNMENT);
    cordon(&mut client, &broker, &[0, 1]);
    let mut created = 0..;
    eventually("nothing is created any more", || {
        let topic = format!("nowhere-{}", created.next().unwrap());
        let result = client.create_topic(&topic, 1, &[]);
        result.is_err().then(|| assert_eq!(refusal(result), ErrorCode::INVALID_REPLICATION_FACTOR))
    });
    let before = partitions_in(&client.log_dirs().unwrap()[0]);
    broker.kill();
    broker.start_again();
    let mut client = broker.connect();
    assert_eq!(refusal(client.create_topic("after", 1, &[])), ErrorCode::INVALID_REPLICATION_FACTOR);
    assert_eq!(partitions_in(&client.log_dirs().unwrap()[0]), before, "what is there is served");
    cordon(&mut client, &broker, &[]);
    eventually("topics are created again", || client.create_topic("again", 1, &[]).ok());
}
