//! The table of APIs against the one that Kafka 4.3.0 documents.

use mainstem_wire::catalogue::{MESSAGES, MessageInfo, MessageKind};
use mainstem_wire::{ApiKey, UnknownApiKey};

#[test]
fn keys_come_back() {
    for number in i16::MIN..=i16::MAX {
        match ApiKey::try_from(number) {
            Ok(key) => assert!(key.key() == number && ApiKey::ALL.contains(&key)),
            Err(UnknownApiKey(unknown)) => assert_eq!(unknown, number),
        }
    }
}

#[test]
fn old_produce_versions_are_claimed_but_unknown() {
    assert_eq!(ApiKey::Produce.advertised_versions(), 0..=13);
    assert_eq!(ApiKey::Produce.versions(), 3..=13);
    assert!(!ApiKey::Produce.has_version(2));
    assert_eq!(ApiKey::Fetch.advertised_versions(), ApiKey::Fetch.versions());
}

#[test]
fn header_versions_follow_flexibility() {
    let headers =
        |key: ApiKey, version| (key.request_header_version(version), key.response_header_version(version));
    assert_eq!(headers(ApiKey::Produce, 8), (1, 0));
    assert_eq!(headers(ApiKey::Produce, 9), (2, 1));
    assert_eq!(headers(ApiKey::SaslHandshake, 1), (1, 0));
    assert_eq!(headers(ApiKey::ApiVersions, 2), (1, 0));
    assert_eq!(headers(ApiKey::ApiVersions, 4), (2, 0));
    assert_eq!(headers(ApiKey::ApiVersions, 99), (2, 0));
}

/// Keys and advertised versions of every API that a broker of Kafka 4.3.0 serves.
const KAFKA_4_3: &str = "
    Produce 0: 0-13, Fetch 1: 4-18, ListOffsets 2: 1-11, Metadata 3: 0-13, OffsetCommit 8: 2-10, OffsetFetch 9: 1-10,
    FindCoordinator 10: 0-6, JoinGroup 11: 0-9, Heartbeat 12: 0-4, LeaveGroup 13: 0-5, SyncGroup 14: 0-5,
    DescribeGroups 15: 0-6, ListGroups 16: 0-5, SaslHandshake 17: 0-1, ApiVersions 18: 0-4, CreateTopics 19: 2-7,
    DeleteTopics 20: 1-6, DeleteRecords 21: 0-2, InitProducerId 22: 0-5, OffsetForLeaderEpoch 23: 2-4,
    AddPartitionsToTxn 24: 0-5, AddOffsetsToTxn 25: 0-4, EndTxn 26: 0-5, WriteTxnMarkers 27: 1-2,
    TxnOffsetCommit 28: 0-5, DescribeAcls 29: 1-3, CreateAcls 30: 1-3, DeleteAcls 31: 1-3, DescribeConfigs 32: 1-4,
    AlterConfigs 33: 0-2, AlterReplicaLogDirs 34: 1-2, DescribeLogDirs 35: 1-5, SaslAuthenticate 36: 0-2,
    CreatePartitions 37: 0-3, CreateDelegationToken 38: 1-3, RenewDelegationToken 39: 1-2,
    ExpireDelegationToken 40: 1-2, DescribeDelegationToken 41: 1-3, DeleteGroups 42: 0-2, ElectLeaders 43: 0-2,
    IncrementalAlterConfigs 44: 0-1, AlterPartitionReassignments 45: 0-1, ListPartitionReassignments 46: 0-0,
    OffsetDelete 47: 0-0, DescribeClientQuotas 48: 0-1, AlterClientQuotas 49: 0-1,
    DescribeUserScramCredentials 50: 0-0, AlterUserScramCredentials 51: 0-0, DescribeQuorum 55: 0-2,
    UpdateFeatures 57: 0-2, DescribeCluster 60: 0-2, DescribeProducers 61: 0-0, UnregisterBroker 64: 0-0,
    DescribeTransactions 65: 0-0, ListTransactions 66: 0-2, ConsumerGroupHeartbeat 68: 0-1,
    ConsumerGroupDescribe 69: 0-1, GetTelemetrySubscriptions 71: 0-0, PushTelemetry 72: 0-0,
    ListConfigResources 74: 0-1, DescribeTopicPartitions 75: 0-0, ShareGroupHeartbeat 76: 1-1,
    ShareGroupDescribe 77: 1-1, ShareFetch 78: 1-2, ShareAcknowledge 79: 1-2, AddRaftVoter 80: 0-1,
    RemoveRaftVoter 81: 0-0, InitializeShareGroupState 83: 0-0, ReadShareGroupState 84: 0-0,
    WriteShareGroupState 85: 0-1, DeleteShareGroupState 86: 0-0, ReadShareGroupStateSummary 87: 0-1,
    StreamsGroupHeartbeat 88: 0-0, StreamsGroupDescribe 89: 0-0, DescribeShareGroupOffsets 90: 0-1,
    AlterShareGroupOffsets 91: 0-0, DeleteShareGroupOffsets 92: 0-0";

#[test]
fn every_api_of_kafka_is_there_with_its_versions() {
    let expected: Vec<String> = KAFKA_4_3.split(',').map(|line| line.trim().to_string()).collect();
    let ours: Vec<String> = ApiKey::ALL
        .iter()
        .map(|key| {
            let versions = key.advertised_versions();
            format!("{} {}: {}-{}", key.name(), key.key(), versions.start(), versions.end())
        })
        .collect();
    assert_eq!(ours, expected);
}

#[test]
fn a_response_has_the_versions_of_its_request() {
    for key in ApiKey::ALL {
        for end in ["Request", "Response"] {
            let message = MessageInfo::find(&format!("{}{end}", key.name())).unwrap();
            assert_eq!((message.key, message.oldest..=message.newest), (Some(key.key()), key.versions()));
        }
    }
}

#[test]
fn every_kind_of_record_is_there() {
    let count = |kind| MESSAGES.iter().filter(|message| message.kind == kind).count();
    assert_eq!(count(MessageKind::Request), ApiKey::ALL.len());
    assert_eq!(count(MessageKind::Header), 2);
    assert_eq!(count(MessageKind::CoordinatorKey), 25);
    assert_eq!(count(MessageKind::CoordinatorValue), 25);
    assert_eq!(count(MessageKind::Metadata), 26);
    assert_eq!(count(MessageKind::Data), 10);
}
