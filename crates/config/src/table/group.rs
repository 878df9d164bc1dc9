//! Group keys: set per group, with a broker key behind most of them.

use super::super::key::ConfigType::*;
use super::super::key::{ConfigKey, Fallback, group};
use super::reason;

/// Every group key of Kafka 4.3.
#[rustfmt::skip] // a row is its facts, then what the key means
pub(super) const GROUP: &[ConfigKey] = &[
    group("consumer.assignment.interval.ms", Int).default("1000").at_least(0)
        .falls_back(&[Fallback::same("group.consumer.assignment.interval.ms")])
        .doc("Milliseconds between two computed assignments of this group."),
    group("consumer.heartbeat.interval.ms", Int).default("5000").at_least(1)
        .falls_back(&[Fallback::same("group.consumer.heartbeat.interval.ms")])
        .doc("Milliseconds between heartbeats of this group's members."),
    group("consumer.session.timeout.ms", Int).default("45000").at_least(1)
        .falls_back(&[Fallback::same("group.consumer.session.timeout.ms")])
        .doc("Milliseconds without a heartbeat after which a member is removed."),
    group("share.assignment.interval.ms", Int).default("1000").at_least(0)
        .falls_back(&[Fallback::same("group.share.assignment.interval.ms")]).later(reason::SHARE)
        .doc("Milliseconds between two computed assignments of this group."),
    group("share.auto.offset.reset", Str).default("latest").offset_reset().later(reason::SHARE)
        .doc("Where a share group begins: `latest`, `earliest` or `by_duration:` and an ISO 8601 \
             duration."),
    group("share.delivery.count.limit", Int).default("5").at_least(2)
        .falls_back(&[Fallback::same("group.share.delivery.count.limit")]).later(reason::SHARE)
        .doc("Attempts to deliver a record."),
    group("share.heartbeat.interval.ms", Int).default("5000").at_least(1)
        .falls_back(&[Fallback::same("group.share.heartbeat.interval.ms")]).later(reason::SHARE)
        .doc("Milliseconds between heartbeats of this group's members."),
    group("share.isolation.level", Str).default("read_uncommitted")
        .one_of(&["read_committed", "read_uncommitted"]).later(reason::SHARE)
        .doc("Whether records of open and aborted transactions are delivered."),
    group("share.partition.max.record.locks", Int).default("2000").at_least(100)
        .falls_back(&[Fallback::same("group.share.partition.max.record.locks")]).later(reason::SHARE)
        .doc("Records of one partition that may be locked at once."),
    group("share.record.lock.duration.ms", Int).default("30000").at_least(1000)
        .falls_back(&[Fallback::same("group.share.record.lock.duration.ms")]).later(reason::SHARE)
        .doc("Milliseconds for which a delivered record is locked."),
    group("share.renew.acknowledge.enable", Bool).default("true").later(reason::SHARE)
        .doc("Allow a member to extend the lock of a record."),
    group("share.session.timeout.ms", Int).default("45000").at_least(1)
        .falls_back(&[Fallback::same("group.share.session.timeout.ms")]).later(reason::SHARE)
        .doc("Milliseconds without a heartbeat after which a member is removed."),
    group("streams.assignment.interval.ms", Int).default("1000").at_least(0)
        .falls_back(&[Fallback::same("group.streams.assignment.interval.ms")]).later(reason::STREAMS)
        .doc("Milliseconds between two computed assignments of this group."),
    group("streams.heartbeat.interval.ms", Int).default("5000").at_least(1)
        .falls_back(&[Fallback::same("group.streams.heartbeat.interval.ms")]).later(reason::STREAMS)
        .doc("Milliseconds between heartbeats of this group's members."),
    group("streams.initial.rebalance.delay.ms", Int).default("3000").at_least(0)
        .falls_back(&[Fallback::same("group.streams.initial.rebalance.delay.ms")]).later(reason::STREAMS)
        .doc("Milliseconds for which an empty group waits for more members."),
    group("streams.num.standby.replicas", Int).default("0").at_least(0)
        .falls_back(&[Fallback::same("group.streams.num.standby.replicas")]).later(reason::STREAMS)
        .doc("Standby replicas of each task."),
    group("streams.session.timeout.ms", Int).default("45000").at_least(1)
        .falls_back(&[Fallback::same("group.streams.session.timeout.ms")]).later(reason::STREAMS)
        .doc("Milliseconds without a heartbeat after which a member is removed."),
];
