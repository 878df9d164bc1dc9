//! Kafka's error codes.

use std::fmt;

/// An error code of the protocol. Codes that this table does not know are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ErrorCode(pub i16);

/// One line per code: number, name, whether clients retry, meaning.
macro_rules! codes {
    ($($code:literal $name:ident $retriable:literal $message:literal)*) => {
        impl ErrorCode {
            $(#[doc = concat!("Code ", $code, ": ", $message, ".")] pub const $name: ErrorCode = ErrorCode($code);)*

            /// Every code of Kafka 4.3, by rising number.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name),*];

            const fn facts(self) -> Option<(&'static str, bool, &'static str)> {
                match self.0 {
                    $($code => Some((stringify!($name), $retriable, $message)),)*
                    _ => None,
                }
            }
        }
    };
}

#[rustfmt::skip]
codes! {
    -1 UNKNOWN_SERVER_ERROR false "the broker failed in a way that it did not foresee"
    0 NONE false "no error"
    1 OFFSET_OUT_OF_RANGE false "the offset is outside of the partition's range"
    2 CORRUPT_MESSAGE true "the batch is corrupt: checksum, size, or a missing key on a compacted topic"
    3 UNKNOWN_TOPIC_OR_PARTITION true "the broker does not host this topic or partition"
    4 INVALID_FETCH_SIZE false "the fetch size is invalid"
    5 LEADER_NOT_AVAILABLE true "the partition has no leader at the moment"
    6 NOT_LEADER_OR_FOLLOWER true "the broker is not the leader, or not a replica, of the partition"
    7 REQUEST_TIMED_OUT true "the request timed out"
    8 BROKER_NOT_AVAILABLE false "the broker is not available"
    9 REPLICA_NOT_AVAILABLE true "the replica is not available"
    10 MESSAGE_TOO_LARGE false "the batch is larger than the broker accepts"
    11 STALE_CONTROLLER_EPOCH false "the controller has moved"
    12 OFFSET_METADATA_TOO_LARGE false "the metadata of the offset is too large"
    13 NETWORK_EXCEPTION true "the connection was lost before the response"
    14 COORDINATOR_LOAD_IN_PROGRESS true "the coordinator is still loading"
    15 COORDINATOR_NOT_AVAILABLE true "the coordinator is not available"
    16 NOT_COORDINATOR true "the broker is not the coordinator of this group or transactional id"
    17 INVALID_TOPIC_EXCEPTION false "the topic name is invalid, or the operation is not allowed on the topic"
    18 RECORD_LIST_TOO_LARGE false "the batch is larger than a segment"
    19 NOT_ENOUGH_REPLICAS true "fewer replicas are in sync than the topic requires"
    20 NOT_ENOUGH_REPLICAS_AFTER_APPEND true "written, but to fewer in-sync replicas than the topic requires"
    21 INVALID_REQUIRED_ACKS false "acks must be -1, 0 or 1"
    22 ILLEGAL_GENERATION false "the generation is not the group's"
    23 INCONSISTENT_GROUP_PROTOCOL false "the member's protocols do not fit the group's"
    24 INVALID_GROUP_ID false "the group id is invalid"
    25 UNKNOWN_MEMBER_ID false "the group does not know this member"
    26 INVALID_SESSION_TIMEOUT false "the session time-out is outside of the broker's bounds"
    27 REBALANCE_IN_PROGRESS false "the group is rebalancing"
    28 INVALID_COMMIT_OFFSET_SIZE false "the offset commit is too large"
    29 TOPIC_AUTHORIZATION_FAILED false "not authorized for the topic"
    30 GROUP_AUTHORIZATION_FAILED false "not authorized for the group"
    31 CLUSTER_AUTHORIZATION_FAILED false "not authorized for the cluster"
    32 INVALID_TIMESTAMP false "the timestamp is outside of the bounds"
    33 UNSUPPORTED_SASL_MECHANISM false "the SASL mechanism is not supported"
    34 ILLEGAL_SASL_STATE false "the request does not fit the state of the SASL exchange"
    35 UNSUPPORTED_VERSION false "the version of the API is not supported"
    36 TOPIC_ALREADY_EXISTS false "a topic of this name exists"
    37 INVALID_PARTITIONS false "the number of partitions is invalid"
    38 INVALID_REPLICATION_FACTOR false "the replication factor is below 1 or above the number of brokers"
    39 INVALID_REPLICA_ASSIGNMENT false "the replica assignment is invalid"
    40 INVALID_CONFIG false "the configuration is invalid"
    41 NOT_CONTROLLER true "the broker is not the controller"
    42 INVALID_REQUEST false "the request is malformed or contradicts itself"
    43 UNSUPPORTED_FOR_MESSAGE_FORMAT false "the message format does not support the request"
    44 POLICY_VIOLATION false "the request violates the configured policy"
    45 OUT_OF_ORDER_SEQUENCE_NUMBER false "the sequence number leaves a gap"
    46 DUPLICATE_SEQUENCE_NUMBER false "the sequence number was seen before"
    47 INVALID_PRODUCER_EPOCH false "the producer's epoch is old"
    48 INVALID_TXN_STATE false "the transaction is in another state"
    49 INVALID_PRODUCER_ID_MAPPING false "the producer id does not belong to the transactional id"
    50 INVALID_TRANSACTION_TIMEOUT false "the transaction time-out is above the broker's bound"
    51 CONCURRENT_TRANSACTIONS true "another operation on the transaction is under way"
    52 TRANSACTION_COORDINATOR_FENCED false "the transaction coordinator has been replaced"
    53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED false "not authorized for the transactional id"
    54 SECURITY_DISABLED false "security is off"
    55 OPERATION_NOT_ATTEMPTED false "the operation was not attempted"
    56 KAFKA_STORAGE_ERROR true "the disk failed"
    57 LOG_DIR_NOT_FOUND false "the log directory does not exist"
    58 SASL_AUTHENTICATION_FAILED false "SASL authentication failed"
    59 UNKNOWN_PRODUCER_ID false "the producer id is unknown, perhaps because its records were deleted"
    60 REASSIGNMENT_IN_PROGRESS false "a reassignment of the partition is under way"
    61 DELEGATION_TOKEN_AUTH_DISABLED false "delegation tokens are off"
    62 DELEGATION_TOKEN_NOT_FOUND false "there is no such delegation token"
    63 DELEGATION_TOKEN_OWNER_MISMATCH false "the principal does not own the delegation token"
    64 DELEGATION_TOKEN_REQUEST_NOT_ALLOWED false "delegation tokens are not allowed on this channel"
    65 DELEGATION_TOKEN_AUTHORIZATION_FAILED false "not authorized for the delegation token"
    66 DELEGATION_TOKEN_EXPIRED false "the delegation token has expired"
    67 INVALID_PRINCIPAL_TYPE false "the type of principal is not supported"
    68 NON_EMPTY_GROUP false "the group is not empty"
    69 GROUP_ID_NOT_FOUND false "there is no such group"
    70 FETCH_SESSION_ID_NOT_FOUND true "there is no such fetch session"
    71 INVALID_FETCH_SESSION_EPOCH true "the epoch of the fetch session is wrong"
    72 LISTENER_NOT_FOUND true "the leader has no such listener"
    73 TOPIC_DELETION_DISABLED false "topics cannot be deleted here"
    74 FENCED_LEADER_EPOCH true "the leader epoch of the request is older than the broker's"
    75 UNKNOWN_LEADER_EPOCH true "the leader epoch of the request is newer than the broker's"
    76 UNSUPPORTED_COMPRESSION_TYPE false "the client does not support the partition's compression"
    77 STALE_BROKER_EPOCH false "the broker's epoch has changed"
    78 OFFSET_NOT_AVAILABLE true "the high watermark is not known yet after an election"
    79 MEMBER_ID_REQUIRED false "join again with the member id that was given"
    80 PREFERRED_LEADER_NOT_AVAILABLE true "the preferred leader is not available"
    81 GROUP_MAX_SIZE_REACHED false "the group is full"
    82 FENCED_INSTANCE_ID false "another member has taken this instance id"
    83 ELIGIBLE_LEADERS_NOT_AVAILABLE true "no eligible leader is available"
    84 ELECTION_NOT_NEEDED true "no election is needed"
    85 NO_REASSIGNMENT_IN_PROGRESS false "no reassignment is under way"
    86 GROUP_SUBSCRIBED_TO_TOPIC false "the group subscribes to the topic"
    87 INVALID_RECORD false "a record failed validation"
    88 UNSTABLE_OFFSET_COMMIT true "offsets are pending in a transaction"
    89 THROTTLING_QUOTA_EXCEEDED true "the quota is exceeded"
    90 PRODUCER_FENCED false "a newer producer has this transactional id"
    91 RESOURCE_NOT_FOUND false "there is no such resource"
    92 DUPLICATE_RESOURCE false "the same resource is named twice"
    93 UNACCEPTABLE_CREDENTIAL false "the credential is not acceptable"
    94 INCONSISTENT_VOTER_SET false "the voters do not match"
    95 INVALID_UPDATE_VERSION false "the version of the update is invalid"
    96 FEATURE_UPDATE_FAILED false "the feature could not be updated"
    97 PRINCIPAL_DESERIALIZATION_FAILURE false "the principal cannot be read"
    98 SNAPSHOT_NOT_FOUND false "there is no such snapshot"
    99 POSITION_OUT_OF_RANGE false "the position is outside of the snapshot"
    100 UNKNOWN_TOPIC_ID true "the broker does not host this topic id"
    101 DUPLICATE_BROKER_REGISTRATION false "the broker id is taken"
    102 BROKER_ID_NOT_REGISTERED false "the broker id is not registered"
    103 INCONSISTENT_TOPIC_ID true "the topic id is not that of the log"
    104 INCONSISTENT_CLUSTER_ID false "the cluster id is not this cluster's"
    105 TRANSACTIONAL_ID_NOT_FOUND false "there is no such transactional id"
    106 FETCH_SESSION_TOPIC_ID_ERROR true "the fetch session mixes topic names and ids"
    107 INELIGIBLE_REPLICA false "a replica is not eligible for the in-sync set"
    108 NEW_LEADER_ELECTED false "a new leader has been elected meanwhile"
    109 OFFSET_MOVED_TO_TIERED_STORAGE false "the offset has moved to remote storage"
    110 FENCED_MEMBER_EPOCH false "the member's epoch is fenced; it must give up its partitions and join again"
    111 UNRELEASED_INSTANCE_ID false "another member still holds the instance id"
    112 UNSUPPORTED_ASSIGNOR false "the group does not support the assignor"
    113 STALE_MEMBER_EPOCH false "the member's epoch is old; the next heartbeat gives the new one"
    114 MISMATCHED_ENDPOINT_TYPE false "the request reached the wrong kind of endpoint"
    115 UNSUPPORTED_ENDPOINT_TYPE false "the kind of endpoint is not supported"
    116 UNKNOWN_CONTROLLER_ID false "there is no such controller"
    117 UNKNOWN_SUBSCRIPTION_ID false "the telemetry subscription is unknown or old"
    118 TELEMETRY_TOO_LARGE false "the telemetry is larger than the broker accepts"
    119 INVALID_REGISTRATION false "the registration is invalid"
    120 TRANSACTION_ABORTABLE false "the transaction failed; it can be aborted and the transactional id used again"
    121 INVALID_RECORD_STATE false "the records are in another state; the acknowledgement failed"
    122 SHARE_SESSION_NOT_FOUND true "there is no such share session"
    123 INVALID_SHARE_SESSION_EPOCH true "the epoch of the share session is wrong"
    124 FENCED_STATE_EPOCH false "the state epoch of the share group is old"
    125 INVALID_VOTER_KEY false "the voter's key is not this replica's"
    126 DUPLICATE_VOTER false "the replica is a voter already"
    127 VOTER_NOT_FOUND false "the replica is no voter"
    128 INVALID_REGULAR_EXPRESSION false "the regular expression is invalid"
    129 REBOOTSTRAP_REQUIRED false "the client's metadata is too old; bootstrap again"
    130 STREAMS_INVALID_TOPOLOGY false "the topology is invalid"
    131 STREAMS_INVALID_TOPOLOGY_EPOCH false "the epoch of the topology is invalid"
    132 STREAMS_TOPOLOGY_FENCED false "the epoch of the topology is old"
    133 SHARE_SESSION_LIMIT_REACHED true "no more share sessions are allowed"
}

impl ErrorCode {
    /// The number on the wire.
    pub const fn code(self) -> i16 {
        self.0
    }

    /// Returns true if this is no error.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The name in Kafka, as in `OFFSET_OUT_OF_RANGE`; an unknown code is an unknown server error.
    pub const fn name(self) -> &'static str {
        match self.facts() {
            Some((name, ..)) => name,
            None => "UNKNOWN_SERVER_ERROR",
        }
    }

    /// The meaning of the code, as part of a sentence.
    pub const fn message(self) -> &'static str {
        match self.facts() {
            Some((_, _, message)) => message,
            None => "an error code that is not known here",
        }
    }

    /// Returns true if Kafka's own clients retry after it.
    pub const fn is_retriable(self) -> bool {
        matches!(self.facts(), Some((_, true, _)))
    }
}

impl From<ErrorCode> for i16 {
    fn from(error: ErrorCode) -> i16 {
        error.0
    }
}

impl From<i16> for ErrorCode {
    fn from(code: i16) -> ErrorCode {
        ErrorCode(code)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.message())
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}
