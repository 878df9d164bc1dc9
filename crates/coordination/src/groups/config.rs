//! Settings of the group coordinator, and the limits that bound its memory.

use mainstem_config::ConsumerGroupConfig;

/// The settings of [`GroupCoordinator`](super::GroupCoordinator). Kafka's keys keep Kafka's names and defaults; the
/// `*_max` ones without a Kafka name are our own bounds, so that no peer can make the coordinator grow without end.
#[derive(Debug, Clone)]
pub struct GroupConfig {
    /// `offsets.topic.num.partitions`: the number of partitions of `__consumer_offsets`. If the topic exists already, the driver sets the
    /// topic's own count.
    pub offsets_topic_num_partitions: i32,
    /// `group.min.session.timeout.ms`: the shortest session time-out that a classic member may ask for.
    pub group_min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`: the longest.
    pub group_max_session_timeout_ms: i32,
    /// `group.initial.rebalance.delay.ms`: how long the first rebalance of an empty group waits for more members.
    pub group_initial_rebalance_delay_ms: i32,
    /// `group.max.size`: members of one group.
    pub group_max_size: i32,
    /// `offset.metadata.max.bytes`: the metadata that a client may commit with an offset. As in Kafka it is compared with the metadata's
    /// length in UTF-16 units.
    pub offset_metadata_max_bytes: i32,
    /// `offsets.commit.timeout.ms`: how long an answer waits for its records. Then it is COORDINATOR_NOT_AVAILABLE, and
    /// the records may take effect all the same.
    pub offsets_commit_timeout_ms: i32,
    /// `offsets.retention.minutes`, in milliseconds: the time for which unused offsets are kept.
    pub offsets_retention_ms: i64,
    /// `offsets.retention.check.interval.ms`: how often a partition is searched for offsets that have expired.
    pub offsets_retention_check_interval_ms: u64,
    /// Groups of the consumer protocol.
    pub consumer: ConsumerGroupConfig,
    /// The longest wait of a new member in JoinGroup before it is dropped. Kafka fixes it at five minutes.
    pub new_member_join_timeout_ms: i32,
    /// Groups held at a time; a group beyond it is refused with COORDINATOR_NOT_AVAILABLE.
    pub groups_max: usize,
    /// Members of all groups, including pending joins (KIP-394); a member beyond it is refused with GROUP_MAX_SIZE_REACHED.
    pub members_max: usize,
    /// Bytes of all protocols of one JoinGroup (names and metadata), or of the topic names of one heartbeat. A larger request is refused
    /// with INVALID_REQUEST, because such a member does not fit into one record of `__consumer_offsets`.
    pub member_protocol_bytes_max: usize,
    /// Offsets held at a time, those of open transactions among them; a commit that would add more is refused with
    /// INVALID_COMMIT_OFFSET_SIZE.
    pub offsets_max: usize,
    /// Bytes that clients may make the coordinator keep: names, protocols, assignments, offsets with their metadata, and a fixed amount for
    /// each group, member and offset. Beyond it members are refused with GROUP_MAX_SIZE_REACHED, offsets with INVALID_COMMIT_OFFSET_SIZE,
    /// and assignments with COORDINATOR_NOT_AVAILABLE, on which leaders try again. A request that adds no bytes is not refused. Appends and
    /// deferred reads in flight may take as much again; then further requests get COORDINATOR_NOT_AVAILABLE. A log is loaded whatever its
    /// size. Ours.
    pub memory_bytes_max: usize,
    /// The part of `memory_bytes_max` that is reserved for groups and members, so that offsets cannot use it. Ours.
    pub memory_bytes_for_members: usize,
    /// Appends and deferred reads in flight per partition of `__consumer_offsets`; requests beyond it are refused
    /// with COORDINATOR_NOT_AVAILABLE, on which clients retry.
    pub pending_appends_max: usize,
    /// Tombstones in one append of the expiry check and of a group's deletion.
    pub tombstones_per_append_max: usize,
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            offsets_topic_num_partitions: 50,
            group_min_session_timeout_ms: 6_000,
            group_max_session_timeout_ms: 1_800_000,
            group_initial_rebalance_delay_ms: 3_000,
            group_max_size: i32::MAX,
            offset_metadata_max_bytes: 4_096,
            offsets_commit_timeout_ms: 5_000,
            offsets_retention_ms: 7 * 24 * 60 * 60 * 1_000,
            offsets_retention_check_interval_ms: 600_000,
            consumer: ConsumerGroupConfig::default(),
            new_member_join_timeout_ms: 300_000,
            groups_max: 100_000,
            members_max: 100_000,
            member_protocol_bytes_max: 1 << 20,
            offsets_max: 10_000_000,
            memory_bytes_max: 64 << 20,
            memory_bytes_for_members: 16 << 20,
            pending_appends_max: 10_000,
            tombstones_per_append_max: 1_000,
        }
    }
}
