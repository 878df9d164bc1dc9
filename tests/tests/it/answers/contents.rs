//! Contents of requests, by the names of their fields.

use mainstem_tests::kafka::batch;
use mainstem_tests::tree::Say;
use mainstem_wire::Uuid;

/// The existing topic, with three partitions and records.
pub(crate) const TOPIC: &str = "t";
/// The group with a committed offset.
pub(crate) const GROUP: &str = "g";
/// An id that no topic has.
const NO_TOPIC: Uuid = Uuid([7; 16]);
/// The session and rebalance timeouts of members: longer than all requests together.
const MEMBER_TIMEOUT_MS: i64 = 1_000_000;
/// The id of no producer.
const NO_PRODUCER: i64 = 1 << 40;

/// A kind of contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Existing resources, each named once.
    Ordinary,
    /// Lists and names are empty; numbers have their defaults.
    Empty,
    /// Existing resources, each named twice.
    Repeated,
    /// Resources that do not exist.
    Unknown,
    /// Invalid numbers and names.
    Failing,
}

impl Kind {
    pub(crate) const ALL: [Kind; 5] =
        [Kind::Ordinary, Kind::Empty, Kind::Repeated, Kind::Unknown, Kind::Failing];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Ordinary => "ordinary",
            Kind::Empty => "empty",
            Kind::Repeated => "repeated",
            Kind::Unknown => "unknown",
            Kind::Failing => "failing",
        }
    }
}

/// The contents of a request.
pub(crate) struct Contents {
    pub(crate) api: &'static str,
    pub(crate) version: i16,
    pub(crate) kind: Kind,
    pub(crate) topic_id: Uuid,
}

impl Contents {
    /// The value of a field.
    pub(crate) fn say(&self, path: &str) -> Say {
        let leaf = path.strip_suffix("/#").unwrap_or(path);
        let leaf = leaf.rsplit('/').next().unwrap_or(leaf);
        if self.kind == Kind::Empty {
            return self.when_empty(leaf);
        }
        if let Some(said) = self.of_this_api(path, leaf) {
            return said;
        }
        if let Some(said) = list(leaf) {
            return match said {
                1 if self.kind == Kind::Repeated && !path.ends_with("/#") => Say::Count(2),
                count if !path.ends_with("/#") => Say::Count(count),
                _ => self.scalar(leaf),
            };
        }
        self.scalar(leaf)
    }

    /// The value of a field in an empty request. Answers come without a wait, and changes are only validated.
    fn when_empty(&self, leaf: &str) -> Say {
        match leaf {
            "timeoutMs" | "TimeoutMs" => Say::Number(10_000),
            "AllowAutoTopicCreation" => Say::Number(0),
            // Acks of 0 have no answer.
            "Acks" => Say::Number(1),
            _ => Say::Default,
        }
    }

    /// A new group name, for a request that begins a group.
    pub(crate) fn new_group(&self) -> String {
        format!("{}-{}-{}", self.api, self.version, self.kind.name())
    }

    fn of_this_api(&self, path: &str, leaf: &str) -> Option<Say> {
        let is_list = !path.ends_with("/#");
        Some(match (self.api, path) {
            ("JoinGroup" | "ConsumerGroupHeartbeat", "GroupId") if self.kind != Kind::Failing => {
                Say::Text(self.new_group())
            }
            ("JoinGroup", "MemberId") if self.kind != Kind::Unknown => Say::Text(String::new()),
            // Kafka never answers a member that names a protocol twice.
            ("JoinGroup", "Protocols") => Say::Count(1),
            ("JoinGroup", "Protocols/Name") => self.text("range", "range", ""),
            ("ConsumerGroupHeartbeat", "MemberEpoch") if self.kind != Kind::Unknown => Say::Number(0),
            ("ConsumerGroupHeartbeat", "SubscribedTopicNames") => Say::Count(1),
            ("ConsumerGroupHeartbeat", "TopicPartitions") => Say::Count(0),
            ("CreateTopics", "Topics/Name") => self.text("new", "new", "a/b"),
            ("CreateTopics", "Topics/Assignments") => Say::Count(0),
            ("CreateTopics" | "CreatePartitions", "ValidateOnly" | "validateOnly") => Say::Number(1),
            ("CreatePartitions", "Topics/Assignments") => Say::Null,
            ("CreatePartitions", "Topics/Count") => self.number(4, 4, -1),
            ("DeleteTopics", "Topics/Name" | "TopicNames/#") => match self.kind {
                Kind::Ordinary | Kind::Repeated => {
                    Say::Text(format!("doomed-{}-{}", self.version, self.kind.name()))
                }
                _ => self.text("", "missing", "a/b"),
            },
            ("DeleteTopics", "Topics/TopicId") => Say::Default,
            ("Metadata", "Topics/Name") => self.text(TOPIC, "missing", "a/b"),
            ("Metadata", "Topics/TopicId") => Say::Default,
            ("AlterConfigs" | "IncrementalAlterConfigs" | "CreateTopics", _) if leaf == "Configs" => {
                Say::Count(if self.kind == Kind::Repeated { 2 } else { 1 })
            }
            ("AlterConfigs" | "IncrementalAlterConfigs", "Resources/Configs/Name")
            | ("CreateTopics", "Topics/Configs/Name") => {
                self.text("retention.ms", "no.such.key", "retention.ms")
            }
            ("AlterConfigs" | "IncrementalAlterConfigs", "Resources/Configs/Value")
            | ("CreateTopics", "Topics/Configs/Value") => self.text("60000", "60000", "many"),
            ("DescribeConfigs", "Resources/ConfigurationKeys") if is_list => {
                Say::Count(if self.kind == Kind::Repeated { 2 } else { 1 })
            }
            ("DescribeConfigs", "Resources/ConfigurationKeys/#") => {
                self.text("retention.ms", "no.such.key", "retention.ms")
            }
            ("DescribeGroups" | "OffsetFetch" | "OffsetDelete" | "DeleteGroups" | "OffsetCommit", _)
                if leaf == "Groups" && path.ends_with("/#") =>
            {
                self.text(GROUP, "missing", "")
            }
            ("Produce" | "InitProducerId", "TransactionalId") if self.kind != Kind::Failing => Say::Null,
            ("InitProducerId", "ProducerId" | "ProducerEpoch") if self.kind != Kind::Failing => Say::Default,
            ("ListTransactions", "StateFilters" | "ProducerIdFilters")
            | ("ListGroups", "StatesFilter" | "TypesFilter")
                if matches!(self.kind, Kind::Ordinary | Kind::Repeated) =>
            {
                Say::Count(0)
            }
            ("DescribeQuorum", "Topics/TopicName") => self.text("__cluster_metadata", "missing", "a/b"),
            ("DescribeClientQuotas", "Components/Match") => self.text("u", "missing", "u"),
            ("AlterPartitionReassignments", "Topics/Partitions/Replicas") if is_list => match self.kind {
                Kind::Ordinary | Kind::Repeated => Say::Null,
                _ => Say::Count(1),
            },
            ("UpdateFeatures", "FeatureUpdates/MaxVersionLevel") => self.number(30, 1, -1),
            ("WriteTxnMarkers", "Markers/Topics/PartitionIndexes/#") => Say::Number(9),
            ("DescribeTopicPartitions", "Cursor") => Say::Null,
            ("DescribeTopicPartitions", "ResponsePartitionLimit") => self.number(100, 100, -1),
            ("FindCoordinator", "Key" | "CoordinatorKeys/#") => self.text(GROUP, "missing", ""),
            ("AlterUserScramCredentials", "Upsertions/Mechanism" | "Deletions/Mechanism") => {
                self.number(1, 1, 99)
            }
            ("DescribeAcls" | "DeleteAcls", "ResourceTypeFilter" | "Filters/ResourceTypeFilter")
            | ("DescribeAcls" | "DeleteAcls", "PatternTypeFilter" | "Filters/PatternTypeFilter") => {
                self.number(1, 1, 99)
            }
            _ => return None,
        })
    }

    fn text(&self, there: &str, missing: &str, cannot_be: &str) -> Say {
        Say::Text(match self.kind {
            Kind::Unknown => missing.to_owned(),
            Kind::Failing => cannot_be.to_owned(),
            _ => there.to_owned(),
        })
    }

    fn number(&self, there: i64, missing: i64, cannot_be: i64) -> Say {
        Say::Number(match self.kind {
            Kind::Unknown => missing,
            Kind::Failing => cannot_be,
            _ => there,
        })
    }

    fn scalar(&self, leaf: &str) -> Say {
        match leaf {
            "Topic" | "Name" | "TopicName" | "SubscribedTopicNames" => self.text(TOPIC, "missing", "a/b"),
            "ResourceName" => self.text(TOPIC, "missing", "a/b"),
            "TopicId" if self.kind == Kind::Unknown => Say::Uuid(NO_TOPIC),
            "TopicId" if self.kind == Kind::Failing => Say::Default,
            "TopicId" => Say::Uuid(self.topic_id),
            "GroupId" | "GroupIds" | "GroupsNames" | "Groups" => self.text(GROUP, "missing", ""),
            "TransactionalId" | "TransactionalIds" | "V3AndBelowTransactionalId" => {
                self.text("x", "missing", "")
            }
            "MemberId" => self.text("", "missing", "missing"),
            "ProtocolType" => self.text("consumer", "consumer", ""),
            "ProtocolName" => self.text("range", "range", ""),
            "ClientSoftwareName" => self.text("test", "test", "a b"),
            "ClientSoftwareVersion" => self.text("1", "1", ""),
            "Principal" | "PrincipalFilter" => self.text("User:a", "User:missing", "nonsense"),
            "Host" => self.text("*", "*", ""),
            "Mechanism" => self.text("PLAIN", "NONE", ""),
            "Path" => self.text("/missing", "/missing", "missing"),
            "EntityType" => self.text("user", "user", "nonsense"),
            "EntityName" => self.text("u", "missing", ""),
            "Key" => self.text("producer_byte_rate", "no.such.key", ""),
            "Feature" => self.text("metadata.version", "missing", ""),
            "StateFilters" | "StatesFilter" | "TypesFilter" => self.text("", "missing", "nonsense"),
            "CommittedMetadata" => self.text("m", "m", "m"),
            "Value" => Say::Float(if self.kind == Kind::Failing { -1.0 } else { 1e9 }),
            "Records" if self.kind == Kind::Failing => Say::Bytes(vec![1; 20]),
            "Records" => Say::Bytes(batch(&[b"a record"])),
            "Salt" | "SaltedPassword" => Say::Bytes(vec![1; if self.kind == Kind::Failing { 0 } else { 32 }]),
            "Iterations" => self.number(4096, 4096, 1),
            "Index" | "Partition" | "PartitionIndex" | "Partitions" | "PartitionIndexes" => {
                self.number(0, 77, -1)
            }
            "Acks" => self.number(-1, -1, 7),
            "MaxWaitMs" | "MinBytes" => Say::Number(0),
            "MaxBytes" | "PartitionMaxBytes" => Say::Number(1 << 20),
            "FetchOffset" | "Offset" => self.number(0, 0, -7),
            "Timestamp" => self.number(-1, 1 << 60, -99),
            "CommittedOffset" => self.number(1, 1, -7),
            "ReplicaId" | "CurrentLeaderEpoch" | "CommittedLeaderEpoch" | "LastFetchedEpoch" => {
                self.number(-1, -1, -1)
            }
            "LeaderEpoch" => self.number(0, 0, -7),
            "GenerationId" | "GenerationIdOrMemberEpoch" | "MemberEpoch" | "RetentionTimeMs" => {
                self.number(-1, 7, -1)
            }
            "SessionTimeoutMs" => self.number(MEMBER_TIMEOUT_MS, MEMBER_TIMEOUT_MS, 1),
            "RebalanceTimeoutMs" => Say::Number(MEMBER_TIMEOUT_MS),
            "TransactionTimeoutMs" => self.number(60_000, 60_000, -1),
            "TimeoutMs" | "timeoutMs" => Say::Number(10_000),
            "ProducerId" | "V3AndBelowProducerId" | "ProducerIdFilters" => {
                self.number(NO_PRODUCER, NO_PRODUCER, -7)
            }
            "NumPartitions" | "ReplicationFactor" => self.number(1, 1, -7),
            "ResourceType" => self.number(2, 2, 99),
            "ResourcePatternType" => self.number(3, 3, 99),
            "Operation" | "PermissionType" => self.number(3, 3, 99),
            "KeyType" | "IsolationLevel" | "ElectionType" | "MatchType" | "ConfigOperation" => {
                self.number(0, 0, 99)
            }
            "EndpointType" => self.number(1, 1, 99),
            // The node that answers stays the same.
            "BrokerId" | "BrokerIds" | "Replicas" => self.number(98, 98, -7),
            "AllowAutoTopicCreation" => Say::Number(0),
            "ValidateOnly" | "VerifyOnly" => Say::Number(1),
            name if name.starts_with("Include") && name.ends_with("Operations") => Say::Number(1),
            _ => Say::Default,
        }
    }
}

/// Lists, with the number of their elements where nothing is repeated.
fn list(leaf: &str) -> Option<usize> {
    Some(match leaf {
        "ForgottenTopicsData" | "Owners" | "Assignments" => 0,
        "TopicData"
        | "PartitionData"
        | "Topics"
        | "Partitions"
        | "Groups"
        | "PartitionIndexes"
        | "Members"
        | "Protocols"
        | "CoordinatorKeys"
        | "TopicNames"
        | "Transactions"
        | "V3AndBelowTopics"
        | "Markers"
        | "Creations"
        | "Filters"
        | "Resources"
        | "Configs"
        | "Dirs"
        | "BrokerIds"
        | "GroupsNames"
        | "TopicPartitions"
        | "Replicas"
        | "Components"
        | "Entries"
        | "Entity"
        | "Ops"
        | "Users"
        | "Deletions"
        | "Upsertions"
        | "FeatureUpdates"
        | "TransactionalIds"
        | "StateFilters"
        | "ProducerIdFilters"
        | "GroupIds"
        | "StatesFilter"
        | "TypesFilter"
        | "SubscribedTopicNames"
        | "ConfigurationKeys"
        | "ResourceTypes" => 1,
        _ => return None,
    })
}
