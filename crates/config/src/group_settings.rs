//! The settings of consumer groups (KIP-848), typed.

use std::collections::HashMap;
use std::sync::Arc;

/// A server-side assignor by the name that clients know it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assignor {
    /// As even as subscriptions allow, and as close to the last assignment as that allows.
    Uniform,
    /// Each topic in ranges, so that equal partitions of equally large topics meet at one member.
    Range,
}

impl Assignor {
    /// Both, the default one first.
    pub const ALL: [Assignor; 2] = [Assignor::Uniform, Assignor::Range];

    /// The name that clients ask for it by.
    pub fn name(self) -> &'static str {
        match self {
            Assignor::Uniform => "uniform",
            Assignor::Range => "range",
        }
    }

    /// The assignor of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|assignor| assignor.name() == name)
    }
}

/// `group.consumer.migration.policy`: which changes of protocol are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MigrationPolicy {
    /// None; empty groups change nevertheless.
    Disabled,
    /// Classic to consumer.
    Upgrade,
    /// Consumer to classic.
    Downgrade,
    /// Both.
    #[default]
    Bidirectional,
}

impl MigrationPolicy {
    /// The policy of a configured word, in any case.
    pub fn named(name: &str) -> Option<Self> {
        let all = [
            ("disabled", Self::Disabled),
            ("upgrade", Self::Upgrade),
            ("downgrade", Self::Downgrade),
            ("bidirectional", Self::Bidirectional),
        ];
        all.into_iter().find(|(word, _)| name.eq_ignore_ascii_case(word)).map(|(_, policy)| policy)
    }

    /// Returns true if a classic group may become a consumer group.
    pub fn allows_upgrade(self) -> bool {
        matches!(self, Self::Upgrade | Self::Bidirectional)
    }

    /// Returns true if a consumer group may become a classic group.
    pub fn allows_downgrade(self) -> bool {
        matches!(self, Self::Downgrade | Self::Bidirectional)
    }
}

/// The time-outs of one group: those of the broker, or its own by `group` config resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupTimes {
    /// `group.consumer.session.timeout.ms`, `consumer.session.timeout.ms`.
    pub session_timeout_ms: i32,
    /// `group.consumer.heartbeat.interval.ms`, `consumer.heartbeat.interval.ms`.
    pub heartbeat_interval_ms: i32,
    /// `group.consumer.assignment.interval.ms`, `consumer.assignment.interval.ms`: the least time between two targets.
    pub assignment_interval_ms: i32,
}

/// The settings of consumer groups, Kafka's keys with Kafka's defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerGroupConfig {
    /// The time-outs of groups without their own.
    pub times: GroupTimes,
    /// Groups with their own, by group id.
    pub own_times: HashMap<Arc<str>, GroupTimes>,
    /// `group.consumer.max.size`: members of one group.
    pub max_size: usize,
    /// `group.consumer.assignors`: those that members may ask for; the first is the default. Never empty.
    pub assignors: Vec<Assignor>,
    /// `group.consumer.migration.policy`.
    pub migration_policy: MigrationPolicy,
    /// `group.consumer.regex.refresh.interval.ms`.
    pub regex_refresh_interval_ms: u64,
}

impl Default for ConsumerGroupConfig {
    fn default() -> Self {
        Self {
            times: GroupTimes {
                session_timeout_ms: 45_000,
                heartbeat_interval_ms: 5_000,
                assignment_interval_ms: 1_000,
            },
            own_times: HashMap::new(),
            max_size: i32::MAX as usize,
            assignors: Assignor::ALL.to_vec(),
            migration_policy: MigrationPolicy::default(),
            regex_refresh_interval_ms: 600_000,
        }
    }
}

impl ConsumerGroupConfig {
    /// The time-outs of a group.
    pub fn of(&self, group: &str) -> GroupTimes {
        self.own_times.get(group).copied().unwrap_or(self.times)
    }

    /// The assignor of groups whose members ask for none.
    pub fn default_assignor(&self) -> Assignor {
        self.assignors.first().copied().unwrap_or(Assignor::Uniform)
    }
}
