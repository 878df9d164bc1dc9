//! Tests of logs that Apache Kafka wrote: transactions of metadata (KIP-868), partitions without a leader (KIP-966), levels of older
//! releases, and records that this program only keeps.

use mainstem_wire::Uuid;
use mainstem_wire::messages::abort_transaction_record::AbortTransactionRecord;
use mainstem_wire::messages::begin_transaction_record::BeginTransactionRecord;
use mainstem_wire::messages::clear_elr_record::ClearElrRecord;
use mainstem_wire::messages::delegation_token_record::DelegationTokenRecord;
use mainstem_wire::messages::end_transaction_record::EndTransactionRecord;
use mainstem_wire::messages::feature_level_record::FeatureLevelRecord;
use mainstem_wire::messages::partition_change_record::PartitionChangeRecord;
use mainstem_wire::messages::partition_record::PartitionRecord;
use mainstem_wire::messages::remove_delegation_token_record::RemoveDelegationTokenRecord;
use mainstem_wire::messages::topic_record::TopicRecord;
use mainstem_wire::messages::zk_migration_state_record::ZkMigrationStateRecord;
use mainstem_wire::metadata_frame::MetadataRecord;

use super::features::{METADATA_VERSION, METADATA_VERSION_RAISED_FROM};
use super::session::*;
use super::*;

fn begin() -> MetadataRecord<'static> {
    MetadataRecord::BeginTransactionRecord(Box::default())
}

fn end() -> MetadataRecord<'static> {
    MetadataRecord::EndTransactionRecord(Box::<EndTransactionRecord>::default())
}

fn abort() -> MetadataRecord<'static> {
    MetadataRecord::AbortTransactionRecord(Box::<AbortTransactionRecord>::default())
}

/// Kafka reserves the lowest.
fn id(number: u128) -> Uuid {
    Uuid::from_u128(1000 + number)
}

fn topic_record(number: u128) -> MetadataRecord<'static> {
    MetadataRecord::TopicRecord(Box::new(TopicRecord {
        name: format!("t{number}").into(),
        topic_id: id(number),
        ..TopicRecord::default()
    }))
}

fn feature(name: &'static str, level: i16) -> MetadataRecord<'static> {
    MetadataRecord::FeatureLevelRecord(Box::new(FeatureLevelRecord {
        name: name.into(),
        feature_level: level,
        ..FeatureLevelRecord::default()
    }))
}

/// A log that another program writes, and the state that it makes here.
struct Foreign {
    machine: MetadataStateMachine,
    offset: i64,
}

impl Foreign {
    fn new() -> Foreign {
        Foreign { machine: MetadataStateMachine::default(), offset: 0 }
    }

    fn write(&mut self, record: &MetadataRecord<'_>) -> Result<(), String> {
        let mut value = Vec::new();
        record.encode(&mut value, if record.name().starts_with("Partition") { 2 } else { 0 }).unwrap();
        let replayed = self.machine.replay(self.offset, &value).map_err(|error| error.to_string());
        self.offset += i64::from(replayed.is_ok());
        assert_eq!(self.machine.image().next_offset(), self.offset, "every record has its offset");
        replayed.map(|_| ())
    }

    fn write_all(&mut self, records: &[MetadataRecord<'_>]) {
        for record in records {
            self.write(record).unwrap();
        }
    }

    fn topics(&self) -> Vec<&str> {
        self.machine.image().topics().map(|topic| topic.name.as_str()).collect()
    }

    /// Starts the node here, over the log as it is.
    fn take_over(&mut self) {
        let aborted = self.machine.abort_transaction();
        self.machine.committed(aborted.reply_at);
        let decision = self.machine.register_node(&view(""), &node_start(1, &[DIR], &[]));
        self.machine.committed(decision.reply_at);
        self.offset = decision.reply_at;
    }
}

#[test]
fn a_transaction_is_applied_whole_or_not_at_all() {
    let mut log = Foreign::new();
    log.write_all(&[topic_record(2), begin(), topic_record(3), topic_record(4)]);
    assert_eq!(log.topics(), ["t2"], "not before its end");
    log.write(&end()).unwrap();
    assert_eq!(log.topics(), ["t2", "t3", "t4"]);
    log.write_all(&[begin(), topic_record(5), abort(), topic_record(6)]);
    assert_eq!(log.topics(), ["t2", "t3", "t4", "t6"]);
    // One record of it cannot be applied.
    log.write_all(&[begin(), topic_record(7), topic_record(2)]);
    let before = log.machine.image().clone();
    let error = log.write(&end()).unwrap_err();
    assert!(error.contains("exists or cannot exist"), "{error}");
    assert_eq!(log.machine.image(), &before);
    log.write(&abort()).unwrap();
}

#[test]
fn transactions_begin_and_end_once() {
    let mut log = Foreign::new();
    for record in [end(), abort()] {
        let error = log.write(&record).unwrap_err();
        assert!(error.contains("does not belong here"), "{error}");
    }
    log.write(&begin()).unwrap();
    let second = MetadataRecord::BeginTransactionRecord(Box::<BeginTransactionRecord>::default());
    let error = log.write(&second).unwrap_err();
    assert!(error.contains("a BeginTransactionRecord does not belong here"), "{error}");
}

/// Kafka was killed within a transaction: its records are dropped, and those of the start are not part of it.
#[test]
fn an_open_transaction_is_aborted_before_anything_else() {
    let mut log = Foreign::new();
    log.write_all(&[begin(), topic_record(2)]);
    let aborted = log.machine.abort_transaction();
    assert_eq!(aborted.records.len(), 1);
    log.machine.committed(aborted.reply_at);
    assert!(log.machine.abort_transaction().records.is_empty(), "once is enough");
    log.take_over();
    assert_eq!(log.topics(), Vec::<&str>::new());
    assert!(log.machine.image().broker(1).is_some(), "the registration holds at once");
}

/// The leader of a partition was stopped in order by Kafka 4.3.0. The records are those that Kafka writes then.
#[test]
fn a_partition_without_a_leader_is_led_again() {
    let mut log = Foreign::new();
    let topic_id = id(2);
    let partition = |partition_id, replicas: &[i32]| {
        MetadataRecord::PartitionRecord(Box::new(PartitionRecord {
            partition_id,
            topic_id,
            replicas: replicas.to_vec(),
            isr: replicas.to_vec(),
            leader: 1,
            leader_epoch: 4,
            partition_epoch: 7,
            directories: vec![DIR; replicas.len()],
            ..PartitionRecord::default()
        }))
    };
    let stopped = |partition_id, eligible: &[i32]| {
        MetadataRecord::PartitionChangeRecord(Box::new(PartitionChangeRecord {
            partition_id,
            topic_id,
            isr: Some(vec![]),
            leader: -1,
            eligible_leader_replicas: Some(eligible.to_vec()),
            last_known_elr: Some(vec![1]),
            ..PartitionChangeRecord::default()
        }))
    };
    log.write_all(&[topic_record(2), partition(0, &[1]), partition(1, &[1, 2])]);
    log.write_all(&[stopped(0, &[1]), stopped(1, &[2])]);
    let before = &log.machine.image().topic("t2").unwrap().partitions[0];
    assert_eq!((before.leader, before.leader_epoch), (-1, 5));
    assert_eq!((&before.eligible_leader_replicas[..], &before.last_known_elr[..]), (&[1][..], &[1][..]));
    assert_eq!(log.machine.image().replicated_elsewhere(1), Some(("t2", &[1, 2][..])));
    log.take_over();
    let partitions = &log.machine.image().topic("t2").unwrap().partitions;
    assert_eq!((partitions[0].leader, partitions[0].leader_epoch, &partitions[0].isr[..]), (1, 6, &[1][..]));
    assert!(partitions[0].eligible_leader_replicas.is_empty() && partitions[0].last_known_elr.is_empty());
    assert_eq!(partitions[1].leader, -1, "node 2 may have more of it");
    let clear = ClearElrRecord { topic_name: "t2".into(), ..ClearElrRecord::default() };
    log.write(&MetadataRecord::ClearElrRecord(Box::new(clear))).unwrap();
    assert!(log.machine.image().topic("t2").unwrap().partitions[1].eligible_leader_replicas.is_empty());
    let clear = ClearElrRecord { topic_name: "t9".into(), ..ClearElrRecord::default() };
    assert!(log.write(&MetadataRecord::ClearElrRecord(Box::new(clear))).is_err());
}

#[test]
fn the_metadata_version_of_an_older_release_is_raised() {
    for (level, is_taken) in [(METADATA_VERSION_RAISED_FROM - 1, false), (21, true), (30, true), (31, false)]
    {
        let mut log = Foreign::new();
        log.write(&feature("metadata.version", level)).unwrap();
        assert_eq!(log.machine.image().unsupported_feature(&view("")).is_none(), is_taken, "{level}");
    }
    let mut log = Foreign::new();
    log.write_all(&[feature("metadata.version", 21), feature("share.version", 1)]);
    log.take_over();
    let features: Vec<_> = log.machine.image().features().collect();
    assert_eq!(features, [("metadata.version", METADATA_VERSION.max), ("share.version", 1)]);
    let served: Vec<_> = log.machine.image().served_features(&view("")).map(|(name, _)| name).collect();
    assert_eq!(served, ["metadata.version"], "other features are kept, and clients do not see them");
}

#[test]
fn a_migration_from_zookeeper_has_to_be_finished() {
    let state = |zk_migration_state| {
        let record = ZkMigrationStateRecord { zk_migration_state, ..ZkMigrationStateRecord::default() };
        MetadataRecord::ZkMigrationStateRecord(Box::new(record))
    };
    let mut log = Foreign::new();
    log.write_all(&[state(0), state(3)]);
    for unfinished in [1, 2] {
        let error = log.write(&state(unfinished)).unwrap_err();
        assert!(error.contains("finish it with Apache Kafka 3.9"), "{error}");
    }
}

/// Tokens and eligible replicas are in the snapshot that Kafka finds when it takes the directory back.
#[test]
fn what_nothing_here_obeys_is_kept() {
    let token = |id: &'static str| {
        MetadataRecord::DelegationTokenRecord(Box::new(DelegationTokenRecord {
            owner: "User:alice".into(),
            token_id: id.into(),
            ..DelegationTokenRecord::default()
        }))
    };
    let mut log = Foreign::new();
    log.write_all(&[token("a"), token("b"), topic_record(2)]);
    let removed = RemoveDelegationTokenRecord { token_id: "a".into(), ..Default::default() };
    log.write(&MetadataRecord::RemoveDelegationTokenRecord(Box::new(removed))).unwrap();
    log.write(&MetadataRecord::PartitionRecord(Box::new(PartitionRecord {
        partition_id: 0,
        topic_id: id(2),
        replicas: vec![1],
        eligible_leader_replicas: Some(vec![1]),
        last_known_elr: Some(vec![1]),
        ..PartitionRecord::default()
    })))
    .unwrap();
    assert_eq!(log.machine.image().protection(false, false), ["1 delegation tokens"]);
    let mut loaded = MetadataStateMachine::default();
    for value in log.machine.image().snapshot() {
        loaded.load(log.offset, &value).unwrap();
    }
    assert_eq!(loaded.image(), log.machine.image());
}
