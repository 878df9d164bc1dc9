//! Placement of partitions, and finding them again.

use std::fs;

use mainstem_tests::broker::Setup;
use mainstem_tests::kafka::{EARLIEST, batch, refusal};
use mainstem_wire::ErrorCode;

use super::{TOPIC, broker_with_topic, copy_dir, logged, partitions_in, place, produce};

#[test]
fn new_partitions_go_where_there_are_fewest() {
    let (mut broker, mut client) = broker_with_topic("dirs-spread", 4);
    produce(&mut client, 2, 1000);
    let dirs = client.log_dirs().unwrap();
    assert_eq!(
        dirs.iter().map(|dir| &dir.path).collect::<Vec<_>>(),
        [&broker.log_dir(0), &broker.log_dir(1)]
    );
    assert_eq!(dirs.iter().map(|dir| partitions_in(dir).len()).collect::<Vec<_>>(), [2, 2]);
    assert!(dirs.iter().all(|dir| dir.space.0 >= dir.space.1 && dir.space.1 > 0), "{dirs:?}");
    let of = |partition: i32| {
        let replicas = dirs.iter().flat_map(|dir| &dir.replicas);
        replicas.clone().find(|replica| replica.partition == partition).unwrap()
    };
    assert_eq!((of(0).size, of(0).lag, of(2).lag), (0, 0, 0));
    assert!((1000..1200).contains(&of(2).size), "{:?}", of(2));
    for rank in 0..2 {
        for file in [".lock", "meta.properties"] {
            assert!(broker.log_dir(rank).join(file).exists(), "{file} in directory {rank}");
        }
    }
    let ids = [0, 1].map(|rank| fs::read_to_string(broker.log_dir(rank).join("meta.properties")).unwrap());
    let id = |text: &str, key| text.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert_ne!(id(&ids[0], "directory.id"), id(&ids[1], "directory.id"));
    assert_eq!(id(&ids[0], "cluster.id"), id(&ids[1], "cluster.id"));
    client.create_topic("other", 1, &[]).unwrap();
    client.delete_topic(TOPIC).unwrap();
    client.create_topic(TOPIC, 3, &[]).unwrap();
    let counts: Vec<_> = client.log_dirs().unwrap().iter().map(|dir| dir.replicas.len()).collect();
    assert_eq!(counts, [2, 2], "the deleted ones do not count");
    broker.stop();
    for rank in 0..2 {
        assert!(broker.log_dir(rank).join(".kafka_cleanshutdown").exists(), "directory {rank}");
    }
    broker.start_again();
    assert_eq!(broker.ready()["last_stop"], "clean");
    broker.assert_healthy();
}

#[test]
fn a_partition_is_found_where_it_was_put() {
    let (mut broker, mut client) = broker_with_topic("dirs-found", 2);
    (0..2).for_each(|partition| produce(&mut client, partition, 10));
    let from = place(&client.log_dirs().unwrap(), 0);
    broker.stop();
    let name = format!("{TOPIC}-0");
    fs::rename(broker.log_dir(from).join(&name), broker.log_dir(1 - from).join(&name)).unwrap();
    for _ in 0..2 {
        broker.start_again();
        client = broker.connect();
        assert_eq!(place(&client.log_dirs().unwrap(), 0), 1 - from);
        assert_eq!(client.read_all(TOPIC, 0, 0).unwrap().len(), 1);
        broker.assert_healthy();
        broker.stop();
    }
}

#[test]
fn a_partition_in_two_directories_is_offline_with_advice() {
    let (mut broker, mut client) = broker_with_topic("dirs-twice", 2);
    (0..2).for_each(|partition| produce(&mut client, partition, 10));
    let from = place(&client.log_dirs().unwrap(), 0);
    broker.stop();
    let name = format!("{TOPIC}-0");
    let copy = broker.log_dir(1 - from).join(&name);
    copy_dir(&broker.log_dir(from).join(&name), &copy);
    broker.start_again();
    client = broker.connect();
    let refused = refusal(client.produce(TOPIC, 0, -1, &batch(&[b"x"])));
    assert_eq!(refused, ErrorCode::KAFKA_STORAGE_ERROR);
    produce(&mut client, 1, 10);
    let both = [0, 1].map(|rank| broker.log_dir(rank).display().to_string());
    assert!(logged(&broker, &["topic-0", &both[0], &both[1], "move the other away"]), "{}", broker.log());
    broker.stop();
    fs::remove_dir_all(copy).unwrap();
    broker.start_again();
    client = broker.connect();
    assert_eq!(client.read_all(TOPIC, 0, 0).unwrap().len(), 1);
    broker.assert_healthy();
}

#[test]
fn a_stray_stays() {
    let (mut broker, _) = broker_with_topic("dirs-stray", 1);
    broker.stop();
    copy_dir(&broker.log_dir(0).join("topic-0"), &broker.log_dir(1).join("unknown-0"));
    broker.start_again();
    broker.assert_healthy();
    broker.stop();
    broker.start_again();
    let names = fs::read_dir(broker.log_dir(1)).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    let is_stray = |name: &&String| name.starts_with("unknown-0.") && name.ends_with("-stray");
    assert_eq!(names.iter().filter(is_stray).count(), 1, "{names:?}");
    // Each start logs it in one line, and the metrics show it.
    let log = broker.log();
    let said = log.lines().filter(|line| line.contains("mainstem log strays") && line.contains("data-1"));
    assert_eq!(said.count(), 2, "{log}");
    let metrics = broker.http("/metrics");
    for name in ["mainstem_log_stray_directories", "mainstem_log_stray_bytes"] {
        let of = |dir: &str| {
            let line = metrics.lines().find(|line| line.starts_with(name) && line.contains(dir)).unwrap();
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
        };
        assert!(of("data-1\"") > 0.0, "{metrics}");
        let first = broker.log_dir(0).display().to_string();
        assert!(of(&format!("{first}\"")) == 0.0, "{metrics}");
    }
}

#[test]
fn the_metadata_log_has_a_directory_of_its_own() {
    let home = tempfile::tempdir().unwrap();
    let metadata = home.path().join("metadata");
    let mut broker =
        Setup::new("dirs-metadata").log_dirs(2).set("metadata.log.dir", metadata.display()).start();
    let mut client = broker.connect();
    client.create_topic(TOPIC, 2, &[]).unwrap();
    produce(&mut client, 0, 10);
    assert!(metadata.join("__cluster_metadata-0").exists());
    assert_eq!(client.log_dirs().unwrap().len(), 2, "it is for no other partitions");
    broker.stop();
    broker.start_again();
    assert_eq!(broker.connect().offset_at(TOPIC, 0, EARLIEST).unwrap(), 0);
    broker.stop();
    // A start without the setting is refused.
    broker.set("metadata.log.dir", broker.log_dir(0).display());
    let moved = broker.log_dir(1).join("__cluster_metadata-0");
    copy_dir(&metadata.join("__cluster_metadata-0"), &moved);
    let (status, said) = broker.start_another("127.0.0.1:0", &broker.data_dir());
    assert!(!status.success());
    let advice = format!("the metadata log is in {}; set it", broker.log_dir(1).display());
    assert!(said.contains(&advice), "{said}");
}
