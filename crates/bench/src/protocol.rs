//! The requests that the driver sends, each in the version that the Java client of Kafka 4.3.0 prefers.
//! An older one is sent if a newer version would carry nothing more. OffsetCommit 9 and OffsetFetch 9 name topics, which needs no id; InitProducerId 5
//! has no two-phase commit; ListOffsets 9 has no timeout.

pub(crate) mod admin;
pub(crate) mod data;
pub(crate) mod group;
pub(crate) mod sync_costs;
pub(crate) mod transactions;

use anyhow::{Result, bail};

/// One API in one version; all of them have the flexible request header (version 2) but SaslHandshake.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Api {
    pub(crate) name: &'static str,
    pub(crate) key: i16,
    pub(crate) version: i16,
    /// False for ApiVersions (KIP-511), and for SaslHandshake, which is older.
    pub(crate) has_flexible_response_header: bool,
}

const fn api(name: &'static str, key: i16, version: i16) -> Api {
    Api { name, key, version, has_flexible_response_header: key != 18 && key != 17 }
}

pub(crate) const PRODUCE: Api = api("Produce", 0, 13);
pub(crate) const FETCH: Api = api("Fetch", 1, 18);
pub(crate) const METADATA: Api = api("Metadata", 3, 13);
pub(crate) const OFFSET_COMMIT: Api = api("OffsetCommit", 8, 9);
pub(crate) const OFFSET_FETCH: Api = api("OffsetFetch", 9, 9);
pub(crate) const FIND_COORDINATOR: Api = api("FindCoordinator", 10, 6);
pub(crate) const JOIN_GROUP: Api = api("JoinGroup", 11, 9);
pub(crate) const HEARTBEAT: Api = api("Heartbeat", 12, 4);
pub(crate) const LEAVE_GROUP: Api = api("LeaveGroup", 13, 5);
pub(crate) const SYNC_GROUP: Api = api("SyncGroup", 14, 5);
pub(crate) const SASL_HANDSHAKE: Api = api("SaslHandshake", 17, 1);
pub(crate) const API_VERSIONS: Api = api("ApiVersions", 18, 4);
pub(crate) const CREATE_TOPICS: Api = api("CreateTopics", 19, 7);
pub(crate) const INIT_PRODUCER_ID: Api = api("InitProducerId", 22, 5);
pub(crate) const END_TXN: Api = api("EndTxn", 26, 5);
pub(crate) const CREATE_ACLS: Api = api("CreateAcls", 30, 3);
pub(crate) const SASL_AUTHENTICATE: Api = api("SaslAuthenticate", 36, 2);
pub(crate) const ALTER_SCRAM: Api = api("AlterUserScramCredentials", 51, 0);
pub(crate) const LIST_OFFSETS: Api = api("ListOffsets", 2, 9);
/// The probe's own API, under a key that Kafka will not reach.
pub(crate) const SYNC_COSTS: Api = api("SyncCosts", i16::MAX, 0);

/// Error codes that the driver handles.
pub(crate) mod error {
    pub(crate) const NONE: i16 = 0;
    pub(crate) const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
    pub(crate) const LEADER_NOT_AVAILABLE: i16 = 5;
    pub(crate) const NOT_LEADER_OR_FOLLOWER: i16 = 6;
    pub(crate) const REQUEST_TIMED_OUT: i16 = 7;
    pub(crate) const COORDINATOR_LOAD_IN_PROGRESS: i16 = 14;
    pub(crate) const COORDINATOR_NOT_AVAILABLE: i16 = 15;
    pub(crate) const NOT_COORDINATOR: i16 = 16;
    pub(crate) const NOT_ENOUGH_REPLICAS: i16 = 19;
    pub(crate) const NOT_ENOUGH_REPLICAS_AFTER_APPEND: i16 = 20;
    pub(crate) const REBALANCE_IN_PROGRESS: i16 = 27;
    pub(crate) const DUPLICATE_SEQUENCE_NUMBER: i16 = 46;
    pub(crate) const MEMBER_ID_REQUIRED: i16 = 79;
    pub(crate) const UNKNOWN_TOPIC_ID: i16 = 100;
    const CONCURRENT_TRANSACTIONS: i16 = 51;
    /// Errors after which a transactional client repeats its request.
    pub(crate) const PASSING: [i16; 5] = [
        COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE,
        NOT_COORDINATOR,
        NOT_ENOUGH_REPLICAS,
        CONCURRENT_TRANSACTIONS,
    ];
}

/// Fails with the API's name unless the code is 0.
pub(crate) fn check(api: Api, code: i16) -> Result<()> {
    match code {
        error::NONE => Ok(()),
        code => bail!("{} was answered with Kafka's error code {code}", api.name),
    }
}

/// A topic's id, the same in all requests.
pub(crate) type TopicId = [u8; 16];
