//! Broker keys of Kafka 4.3 that are known and validated, so that a server.properties starts, but that have no
//! effect here (yet).

use super::super::key::ConfigType::*;
use super::super::key::{ConfigKey, broker};
use super::reason;

/// Broker keys without an effect here, each with the reason.
#[rustfmt::skip] // a row is its facts, then what the key means
pub(super) const NAMED: &[ConfigKey] = &[
    broker("add.partitions.to.txn.retry.backoff.max.ms", Int).default("100").at_least(0).high()
        .unused(reason::TXN_WAIT)
        .doc("Longest pause between attempts to add partitions to a transaction, in milliseconds."),
    broker("add.partitions.to.txn.retry.backoff.ms", Int).default("20").at_least(1).high().unused(reason::TXN_WAIT)
        .doc("First pause between attempts to add partitions to a transaction, in milliseconds."),
    broker("alter.config.policy.class.name", Class).low().unused(reason::JVM)
        .doc("Policy class asked before a configuration changes."),
    broker("alter.log.dirs.replication.quota.window.num", Int).default("11").at_least(1).low()
        .unused(reason::SAMPLES)
        .doc("Samples kept for the quota on moves between log directories."),
    broker("alter.log.dirs.replication.quota.window.size.seconds", Int).default("1").at_least(1).low()
        .unused(reason::SAMPLES)
        .doc("Seconds in one sample of the quota on moves between log directories."),
    broker("background.threads", Int).default("10").at_least(1).high().cluster_wide().unused(reason::THREADS)
        .doc("Threads for background work."),
    broker("client.quota.callback.class", Class).low().unused(reason::JVM)
        .doc("Class that computes client quotas."),
    broker("compression.lz4.level", Int).default("9").between(1, 17).cluster_wide().named_only(reason::LZ4)
        .doc("Default of the topic key of the same name."),
    broker("config.providers", List).default("").any_list().low().cluster_wide().unused(reason::FILE)
        .doc("Names of classes that resolve variables in the values of a file: Kafka's `EnvVarConfigProvider`, `FileConfigProvider`, `DirectoryConfigProvider`, each as `config.providers.NAME.class`."),
    broker("controller.performance.always.log.threshold.ms", Long).default("2000").at_least(0).internal()
        .unused(reason::INTERNAL)
        .doc("Milliseconds above which a slow controller event is logged."),
    broker("controller.performance.sample.period.ms", Long).default("60000").at_least(100).internal()
        .unused(reason::INTERNAL)
        .doc("Milliseconds between samples of the controller's speed."),
    broker("controller.quorum.append.linger.ms", Int).default("25").at_least(0).unused(reason::QUORUM)
        .doc("Milliseconds for which the controller gathers records before it writes them."),
    broker("controller.quorum.auto.join.enable", Bool).default("false").low().unused(reason::QUORUM)
        .doc("Join the controllers' voters at start."),
    broker("controller.quorum.bootstrap.servers", List).default("").high()
        .doc("Nodes of the cluster that this node joins, HOST:PORT each, of their controllers' listeners. Without effect where `controller.quorum.voters` is set."),
    broker("controller.quorum.election.backoff.max.ms", Int).default("1000").at_least(0).high()
        .unused(reason::QUORUM)
        .doc("Longest pause in milliseconds before the next election."),
    broker("controller.quorum.election.timeout.ms", Int).default("1000").at_least(0).high()
        .unused(reason::QUORUM)
        .doc("Milliseconds without a leader before an election."),
    broker("controller.quorum.fetch.max.bytes", Int).default("1048576").at_least(1).low()
        .unused(reason::QUORUM)
        .doc("Bytes in one fetch of metadata records."),
    broker("controller.quorum.fetch.snapshot.max.bytes", Int).default("1048576").at_least(1).low()
        .unused(reason::QUORUM)
        .doc("Bytes in one fetch of a metadata snapshot."),
    broker("controller.quorum.fetch.timeout.ms", Int).default("2000").at_least(0).high()
        .unused(reason::QUORUM)
        .doc("Milliseconds without a successful fetch before an election."),
    broker("controller.quorum.request.timeout.ms", Int).default("2000").at_least(0).unused(reason::QUORUM)
        .doc("Milliseconds for which a request between controllers may take."),
    broker("controller.quorum.retry.backoff.ms", Int).default("20").at_least(0).low().unused(reason::QUORUM)
        .doc("Milliseconds between attempts of requests between controllers."),
    broker("controller.socket.timeout.ms", Int).default("30000").unused(reason::QUORUM)
        .doc("Milliseconds for which the broker waits for its controller."),
    broker("create.topic.policy.class.name", Class).low().unused(reason::JVM)
        .doc("Policy class asked before a topic is created."),
    broker("delegation.token.expiry.check.interval.ms", Long).default("3600000").at_least(1).low()
        .later(reason::TOKENS)
        .doc("Milliseconds between looks for expired tokens."),
    broker("delegation.token.expiry.time.ms", Long).default("86400000").at_least(1).later(reason::TOKENS)
        .doc("Milliseconds for which a token is valid without renewal."),
    broker("delegation.token.max.lifetime.ms", Long).default("604800000").at_least(1).later(reason::TOKENS)
        .doc("Milliseconds after which a token cannot be renewed."),
    broker("delegation.token.secret.key", Password).later(reason::TOKENS)
        .doc("Secret with which tokens are signed."),
    broker("delete.records.purgatory.purge.interval.requests", Int).default("1").unused(reason::PURGATORY)
        .doc("Requests after which finished DeleteRecords waits are dropped."),
    broker("early.start.listeners", List).any_list().high().unused(reason::AUTHZ)
        .doc("Listeners opened before the authorizer is ready."),
    broker("fetch.purgatory.purge.interval.requests", Int).default("1000").unused(reason::PURGATORY)
        .doc("Requests after which finished fetch waits are dropped."),
    broker("follower.fetch.last.tiered.offset.enable", Bool).default("false").cluster_wide()
        .named_only(reason::REMOTE)
        .doc("Let a new follower begin behind the tiered segments."),
    broker("group.coordinator.append.linger.ms", Int).default("-1").at_least(-1).unused(reason::INTERNAL)
        .doc("Milliseconds for which the coordinator gathers records before it writes them; -1 adapts."),
    broker("group.coordinator.background.threads", Int).default("2").at_least(1).high()
        .unused(reason::THREADS)
        .doc("Threads for the group coordinator's background work."),
    broker("group.coordinator.cached.buffer.max.bytes", Int).default("1048588").at_least(524288)
        .cluster_wide().unused(reason::INTERNAL)
        .doc("Bytes of write buffer that the group coordinator keeps."),
    broker("group.coordinator.rebalance.protocols", List).default("classic,consumer,streams")
        .non_empty_list_of(&["consumer", "classic", "share", "streams"]).unused(reason::PROTOCOLS)
        .doc("Group protocols that are served."),
    broker("group.coordinator.threads", Int).default("4").at_least(1).high().unused(reason::THREADS)
        .doc("Threads of the group coordinator."),
    broker("group.share.assignment.interval.ms", Int).default("1000").at_least(0).cluster_wide()
        .later(reason::SHARE)
        .doc("Milliseconds between two computed assignments."),
    broker("group.share.assignors", List).default("simple").non_empty_list().later(reason::SHARE)
        .doc("Server-side assignors of share groups."),
    broker("group.share.delivery.count.limit", Int).default("5").between(2, 10).later(reason::SHARE)
        .doc("Attempts to deliver a record."),
    broker("group.share.heartbeat.interval.ms", Int).default("5000").at_least(1).later(reason::SHARE)
        .doc("Milliseconds between heartbeats that members are given."),
    broker("group.share.initialize.retry.interval.ms", Int).default("30000").at_least(1).low().internal()
        .later(reason::SHARE)
        .doc("Milliseconds between attempts to initialise a share group's state."),
    broker("group.share.max.assignment.interval.ms", Int).default("15000").at_least(0).later(reason::SHARE)
        .doc("Largest assignment interval of a group, in milliseconds."),
    broker("group.share.max.delivery.count.limit", Int).default("10").between(5, 25).later(reason::SHARE)
        .doc("Largest delivery count limit of a group."),
    broker("group.share.max.heartbeat.interval.ms", Int).default("15000").at_least(1).later(reason::SHARE)
        .doc("Largest heartbeat interval of a group, in milliseconds."),
    broker("group.share.max.partition.max.record.locks", Int).default("4000").between(2000, 10000)
        .later(reason::SHARE)
        .doc("Largest number of record locks that a group may set."),
    broker("group.share.max.record.lock.duration.ms", Int).default("60000").between(30000, 3600000)
        .later(reason::SHARE)
        .doc("Longest record lock of a group, in milliseconds."),
    broker("group.share.max.session.timeout.ms", Int).default("60000").at_least(1).later(reason::SHARE)
        .doc("Largest session time-out of a group, in milliseconds."),
    broker("group.share.max.share.sessions", Int).default("2000").at_least(1).later(reason::SHARE)
        .doc("Share sessions that this node keeps."),
    broker("group.share.max.size", Int).default("200").between(1, 1000).later(reason::SHARE)
        .doc("Members that one share group may have."),
    broker("group.share.min.assignment.interval.ms", Int).default("0").at_least(0).later(reason::SHARE)
        .doc("Smallest assignment interval of a group, in milliseconds."),
    broker("group.share.min.delivery.count.limit", Int).default("2").between(2, 5).later(reason::SHARE)
        .doc("Smallest delivery count limit of a group."),
    broker("group.share.min.heartbeat.interval.ms", Int).default("5000").at_least(1).later(reason::SHARE)
        .doc("Smallest heartbeat interval of a group, in milliseconds."),
    broker("group.share.min.partition.max.record.locks", Int).default("100").between(100, 2000)
        .later(reason::SHARE)
        .doc("Smallest number of record locks that a group may set."),
    broker("group.share.min.record.lock.duration.ms", Int).default("15000").between(1000, 30000)
        .later(reason::SHARE)
        .doc("Shortest record lock of a group, in milliseconds."),
    broker("group.share.min.session.timeout.ms", Int).default("45000").at_least(1).later(reason::SHARE)
        .doc("Smallest session time-out of a group, in milliseconds."),
    broker("group.share.partition.max.record.locks", Int).default("2000").between(100, 10000)
        .later(reason::SHARE)
        .doc("Records of one partition that may be locked at once."),
    broker("group.share.persister.class.name", Str)
        .default("org.apache.kafka.server.share.persister.DefaultStatePersister").internal()
        .unused(reason::JVM)
        .doc("Class that stores the state of share groups."),
    broker("group.share.record.lock.duration.ms", Int).default("30000").between(1000, 3600000)
        .later(reason::SHARE)
        .doc("Milliseconds for which a delivered record is locked."),
    broker("group.share.session.timeout.ms", Int).default("45000").at_least(1).later(reason::SHARE)
        .doc("Milliseconds without a heartbeat after which a member is removed."),
    broker("group.streams.assignment.interval.ms", Int).default("1000").at_least(0).cluster_wide()
        .later(reason::STREAMS)
        .doc("Milliseconds between two computed assignments."),
    broker("group.streams.heartbeat.interval.ms", Int).default("5000").at_least(1).later(reason::STREAMS)
        .doc("Milliseconds between heartbeats that members are given."),
    broker("group.streams.initial.rebalance.delay.ms", Int).default("3000").at_least(0).later(reason::STREAMS)
        .doc("Milliseconds for which an empty group waits for more members."),
    broker("group.streams.max.assignment.interval.ms", Int).default("15000").at_least(0)
        .later(reason::STREAMS)
        .doc("Largest assignment interval of a group, in milliseconds."),
    broker("group.streams.max.heartbeat.interval.ms", Int).default("15000").at_least(1).later(reason::STREAMS)
        .doc("Largest heartbeat interval of a group, in milliseconds."),
    broker("group.streams.max.session.timeout.ms", Int).default("60000").at_least(1).later(reason::STREAMS)
        .doc("Largest session time-out of a group, in milliseconds."),
    broker("group.streams.max.size", Int).default("2147483647").at_least(1).later(reason::STREAMS)
        .doc("Members that one streams group may have."),
    broker("group.streams.max.standby.replicas", Int).default("2").at_least(0).later(reason::STREAMS)
        .doc("Largest number of standby replicas of a group."),
    broker("group.streams.min.assignment.interval.ms", Int).default("0").at_least(0).later(reason::STREAMS)
        .doc("Smallest assignment interval of a group, in milliseconds."),
    broker("group.streams.min.heartbeat.interval.ms", Int).default("5000").at_least(1).later(reason::STREAMS)
        .doc("Smallest heartbeat interval of a group, in milliseconds."),
    broker("group.streams.min.session.timeout.ms", Int).default("45000").at_least(1).later(reason::STREAMS)
        .doc("Smallest session time-out of a group, in milliseconds."),
    broker("group.streams.num.standby.replicas", Int).default("0").at_least(0).later(reason::STREAMS)
        .doc("Standby replicas of each task."),
    broker("group.streams.session.timeout.ms", Int).default("45000").at_least(1).later(reason::STREAMS)
        .doc("Milliseconds without a heartbeat after which a member is removed."),
    broker("initial.broker.registration.timeout.ms", Int).default("60000").unused(reason::QUORUM)
        .doc("Milliseconds for which the broker tries to register at start."),
    broker("internal.metadata.delete.delay.millis", Long).default("60000").low().internal()
        .unused(reason::INTERNAL)
        .doc("Milliseconds before a dropped metadata segment is deleted."),
    broker("internal.metadata.log.segment.bytes", Int).low().internal().unused(reason::INTERNAL)
        .doc("Size in bytes of a segment of the metadata log, for tests."),
    broker("internal.metadata.max.batch.size.in.bytes", Int).default("8388608").low().internal()
        .unused(reason::INTERNAL)
        .doc("Largest batch in bytes of the metadata log."),
    broker("kafka.metrics.polling.interval.secs", Int).default("10").at_least(1).low().unused(reason::METRICS)
        .doc("Seconds between polls of the metrics reporters."),
    broker("kafka.metrics.reporters", List).default("").any_list().low().unused(reason::JVM)
        .doc("Metrics reporter classes."),
    broker("log.dir.failure.timeout.ms", Long).default("30000").at_least(1).low().unused(reason::QUORUM)
        .doc("Milliseconds for which a failed directory may go unreported."),
    broker("log.initial.task.delay.ms", Long).default("30000").at_least(0).low().internal()
        .unused(reason::INTERNAL)
        .doc("Milliseconds after start before the log's background tasks run."),
    broker("log.local.retention.bytes", Long).default("-2").at_least(-2).cluster_wide()
        .named_only(reason::REMOTE)
        .doc("Default of local.retention.bytes."),
    broker("log.local.retention.ms", Long).default("-2").at_least(-2).cluster_wide()
        .named_only(reason::REMOTE)
        .doc("Default of local.retention.ms."),
    broker("metadata.log.segment.bytes", Int).default("1073741824").at_least(8388608).high()
        .named_only(reason::SNAPSHOT)
        .doc("Size in bytes of a segment of the metadata log."),
    broker("metadata.log.segment.ms", Long).default("604800000").high().named_only(reason::SNAPSHOT)
        .doc("Milliseconds after which a segment of the metadata log is closed."),
    broker("metadata.max.idle.interval.ms", Int).default("500").at_least(0).low().unused(reason::QUORUM)
        .doc("Milliseconds between empty records of an idle metadata log."),
    broker("metadata.max.retention.bytes", Long).default("104857600").high().named_only(reason::SNAPSHOT)
        .doc("Bytes of old metadata segments and snapshots that are kept."),
    broker("metadata.max.retention.ms", Long).default("604800000").high().named_only(reason::SNAPSHOT)
        .doc("Milliseconds for which old metadata segments and snapshots are kept."),
    broker("metric.reporters", List).default("org.apache.kafka.common.metrics.JmxReporter").any_list().low()
        .cluster_wide().unused(reason::JVM)
        .doc("Metrics reporter classes."),
    broker("metrics.num.samples", Int).default("2").at_least(1).low().unused(reason::METRICS)
        .doc("Samples from which a metric is computed."),
    broker("metrics.recording.level", Str).default("INFO").low().unused(reason::METRICS)
        .doc("Finest level of metric that is recorded."),
    broker("metrics.sample.window.ms", Long).default("30000").at_least(1).low().unused(reason::METRICS)
        .doc("Milliseconds in one sample of a metric."),
    broker("num.io.threads", Int).default("8").at_least(1).high().cluster_wide().unused(reason::THREADS)
        .doc("Threads that serve requests."),
    broker("num.replica.alter.log.dirs.threads", Int).high().unused(reason::MOVER)
        .doc("Threads that move partitions between directories."),
    broker("num.replica.fetchers", Int).default("1").at_least(1).high().cluster_wide().later(reason::REPLICA)
        .doc("Threads that fetch from each other broker."),
    broker("offsets.load.buffer.size", Int).default("5242880").at_least(1).high().unused(reason::INTERNAL)
        .doc("Bytes read at once when offsets are loaded."),
    broker("offsets.topic.compression.codec", Int).default("0").high().unused(reason::INTERNAL)
        .doc("Codec of the offsets topic; 0 is none."),
    broker("principal.builder.class", Class)
        .default("org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder").per_broker()
        .unused(reason::JVM)
        .doc("Class that names the user of a connection."),
    broker("producer.purgatory.purge.interval.requests", Int).default("1000").unused(reason::PURGATORY)
        .doc("Requests after which finished produce waits are dropped."),
    broker("queued.max.requests", Int).default("500").at_least(1).high().unused(reason::THREADS)
        .doc("Requests that may wait for a thread."),
    broker("remote.fetch.max.wait.ms", Int).default("500").at_least(1).cluster_wide()
        .named_only(reason::REMOTE)
        .doc("Milliseconds for which a fetch waits for tiered storage."),
    broker("remote.list.offsets.request.timeout.ms", Long).default("30000").at_least(1).cluster_wide()
        .named_only(reason::REMOTE)
        .doc("Milliseconds for which ListOffsets waits for tiered storage."),
    broker("remote.log.index.file.cache.total.size.bytes", Long).default("1073741824").at_least(1).low()
        .cluster_wide().named_only(reason::REMOTE)
        .doc("Bytes of cached tiered index files."),
    broker("remote.log.index.file.cache.ttl.ms", Long).default("900000").at_least(-1).low().internal()
        .named_only(reason::REMOTE)
        .doc("Milliseconds for which tiered index files stay cached."),
    broker("remote.log.manager.copier.thread.pool.size", Int).default("10").at_least(1).cluster_wide()
        .named_only(reason::REMOTE)
        .doc("Threads that copy segments."),
    broker("remote.log.manager.copy.max.bytes.per.second", Long).default("9223372036854775807").at_least(1)
        .cluster_wide().named_only(reason::REMOTE)
        .doc("Bytes per second that may be copied."),
    broker("remote.log.manager.copy.quota.window.num", Int).default("11").at_least(1)
        .named_only(reason::REMOTE)
        .doc("Samples kept for the copy quota."),
    broker("remote.log.manager.copy.quota.window.size.seconds", Int).default("1").at_least(1)
        .named_only(reason::REMOTE)
        .doc("Seconds in one sample of the copy quota."),
    broker("remote.log.manager.expiration.thread.pool.size", Int).default("10").at_least(1).cluster_wide()
        .named_only(reason::REMOTE)
        .doc("Threads that delete tiered segments."),
    broker("remote.log.manager.fetch.max.bytes.per.second", Long).default("9223372036854775807").at_least(1)
        .cluster_wide().named_only(reason::REMOTE)
        .doc("Bytes per second that may be fetched."),
    broker("remote.log.manager.fetch.quota.window.num", Int).default("11").at_least(1)
        .named_only(reason::REMOTE)
        .doc("Samples kept for the fetch quota."),
    broker("remote.log.manager.fetch.quota.window.size.seconds", Int).default("1").at_least(1)
        .named_only(reason::REMOTE)
        .doc("Seconds in one sample of the fetch quota."),
    broker("remote.log.manager.follower.thread.pool.size", Int).default("2").at_least(1).cluster_wide()
        .named_only(reason::REMOTE)
        .doc("Threads that follow tiered partitions."),
    broker("remote.log.manager.task.interval.ms", Long).default("30000").at_least(1).low()
        .named_only(reason::REMOTE)
        .doc("Milliseconds between runs of the copy and delete tasks."),
    broker("remote.log.manager.task.retry.backoff.max.ms", Long).default("30000").at_least(1).low().internal()
        .named_only(reason::REMOTE)
        .doc("Longest pause in milliseconds before a task is tried again."),
    broker("remote.log.manager.task.retry.backoff.ms", Long).default("500").at_least(1).low().internal()
        .named_only(reason::REMOTE)
        .doc("First pause in milliseconds before a task is tried again."),
    broker("remote.log.manager.task.retry.jitter", Double).default("0.2").between_f64(0.0, 0.5).low()
        .internal().named_only(reason::REMOTE)
        .doc("Random share of the pause before a task is tried again."),
    broker("remote.log.manager.thread.pool.size", Int).default("2").at_least(1).named_only(reason::REMOTE)
        .doc("Threads that schedule the copy and delete tasks."),
    broker("remote.log.metadata.custom.metadata.max.bytes", Int).default("128").at_least(0).low()
        .named_only(reason::REMOTE)
        .doc("Bytes of metadata that a storage plug-in may attach to a segment."),
    broker("remote.log.metadata.manager.class.name", Str)
        .default("org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager")
        .non_empty().named_only(reason::REMOTE)
        .doc("Class that keeps the metadata of tiered segments."),
    broker("remote.log.metadata.manager.class.path", Str).named_only(reason::REMOTE)
        .doc("Class path of the metadata plug-in."),
    broker("remote.log.metadata.manager.impl.prefix", Str).default("rlmm.config.").non_empty()
        .named_only(reason::REMOTE)
        .doc("Prefix of the metadata plug-in's own keys."),
    broker("remote.log.metadata.manager.listener.name", Str).non_empty().named_only(reason::REMOTE)
        .doc("Listener that the metadata plug-in uses."),
    broker("remote.log.reader.max.pending.tasks", Int).default("100").at_least(1).named_only(reason::REMOTE)
        .doc("Reads that may wait for a reader thread."),
    broker("remote.log.reader.threads", Int).default("10").at_least(1).cluster_wide()
        .named_only(reason::REMOTE)
        .doc("Threads that read tiered segments."),
    broker("remote.log.storage.manager.class.name", Str).non_empty().named_only(reason::REMOTE)
        .doc("Class that stores tiered segments."),
    broker("remote.log.storage.manager.class.path", Str).named_only(reason::REMOTE)
        .doc("Class path of the storage plug-in."),
    broker("remote.log.storage.manager.impl.prefix", Str).default("rsm.config.").non_empty()
        .named_only(reason::REMOTE)
        .doc("Prefix of the storage plug-in's own keys."),
    broker("remote.log.storage.system.enable", Bool).default("false").named_only(reason::REMOTE)
        .doc("Switch tiered storage on."),
    broker("replica.fetch.backoff.ms", Int).default("1000").at_least(0).later(reason::REPLICA)
        .doc("Milliseconds for which a fetcher pauses after an error."),
    broker("replica.fetch.max.bytes", Int).default("1048576").at_least(0).later(reason::REPLICA)
        .doc("Bytes that a follower asks for per partition."),
    broker("replica.fetch.min.bytes", Int).default("1").high().later(reason::REPLICA)
        .doc("Bytes that a follower waits for."),
    broker("replica.fetch.response.max.bytes", Int).default("10485760").at_least(0).later(reason::REPLICA)
        .doc("Bytes that a follower asks for per fetch."),
    broker("replica.fetch.wait.max.ms", Int).default("500").high().later(reason::REPLICA)
        .doc("Milliseconds for which a follower's fetch waits."),
    broker("replica.high.watermark.checkpoint.interval.ms", Long).default("5000").high()
        .later(reason::REPLICA)
        .doc("Milliseconds between two writes of the high watermark checkpoints."),
    broker("replica.selector.class", Str).unused(reason::JVM)
        .doc("Class that chooses the replica from which a consumer reads."),
    broker("replica.socket.receive.buffer.bytes", Int).default("65536").high().later(reason::REPLICA)
        .doc("Receive buffer in bytes of replication connections."),
    broker("replica.socket.timeout.ms", Int).default("30000").high().later(reason::REPLICA)
        .doc("Milliseconds for which replication requests may take."),
    broker("replication.quota.window.num", Int).default("11").at_least(1).low().later(reason::REPLICA)
        .doc("Samples kept for replication quotas."),
    broker("replication.quota.window.size.seconds", Int).default("1").at_least(1).low().later(reason::REPLICA)
        .doc("Seconds in one sample of replication quotas."),
    broker("request.timeout.ms", Int).default("30000").high().unused(reason::CLIENT)
        .doc("Milliseconds for which the broker waits for an answer to its own requests."),
    broker("sasl.client.callback.handler.class", Class).later(reason::SASL)
        .doc("Class that supplies the client side's credentials."),
    broker("sasl.kerberos.kinit.cmd", Str).default("/usr/bin/kinit").per_broker().later(reason::SASL)
        .doc("Path of the kinit command."),
    broker("sasl.kerberos.min.time.before.relogin", Long).default("60000").per_broker().later(reason::SASL)
        .doc("Milliseconds between two renewals of the ticket."),
    broker("sasl.kerberos.principal.to.local.rules", List).default("DEFAULT").any_list().per_broker()
        .later(reason::SASL)
        .doc("Rules that map principals to short names."),
    broker("sasl.kerberos.service.name", Str).per_broker().later(reason::SASL)
        .doc("Kerberos name of the service."),
    broker("sasl.kerberos.ticket.renew.jitter", Double).default("0.05").per_broker().later(reason::SASL)
        .doc("Random share of the renewal time."),
    broker("sasl.kerberos.ticket.renew.window.factor", Double).default("0.8").per_broker().later(reason::SASL)
        .doc("Share of the ticket's life after which it is renewed."),
    broker("sasl.login.callback.handler.class", Class).later(reason::SASL)
        .doc("Class that answers the login module."),
    broker("sasl.login.class", Class).later(reason::SASL)
        .doc("Class that logs in."),
    broker("sasl.login.connect.timeout.ms", Int).low().later(reason::SASL)
        .doc("Milliseconds for connecting to the identity provider."),
    broker("sasl.login.read.timeout.ms", Int).low().later(reason::SASL)
        .doc("Milliseconds for reading from the identity provider."),
    broker("sasl.login.refresh.buffer.seconds", Short).default("300").per_broker().later(reason::SASL)
        .doc("Seconds before expiry by which credentials are refreshed."),
    broker("sasl.login.refresh.min.period.seconds", Short).default("60").per_broker().later(reason::SASL)
        .doc("Seconds between two refreshes at least."),
    broker("sasl.login.refresh.window.factor", Double).default("0.8").per_broker().later(reason::SASL)
        .doc("Share of the credential's life after which it is refreshed."),
    broker("sasl.login.refresh.window.jitter", Double).default("0.05").per_broker().later(reason::SASL)
        .doc("Random share of the refresh time."),
    broker("sasl.login.retry.backoff.max.ms", Long).default("10000").low().later(reason::SASL)
        .doc("Longest pause in milliseconds between login attempts."),
    broker("sasl.login.retry.backoff.ms", Long).default("100").low().later(reason::SASL)
        .doc("First pause in milliseconds between login attempts."),
    broker("sasl.mechanism.inter.broker.protocol", Str).default("GSSAPI").per_broker().unused(reason::CLIENT)
        .doc("Mechanism towards brokers."),
    broker("sasl.oauthbearer.assertion.algorithm", Str).default("RS256")
        .one_of_ignoring_case(&["ES256", "RS256"]).later(reason::SASL)
        .doc("Algorithm that signs the assertion."),
    broker("sasl.oauthbearer.assertion.claim.aud", Str).later(reason::SASL)
        .doc("Audience claim of the assertion."),
    broker("sasl.oauthbearer.assertion.claim.exp.seconds", Int).default("300").between(0, 86400).low()
        .later(reason::SASL)
        .doc("Seconds for which the assertion is valid."),
    broker("sasl.oauthbearer.assertion.claim.iss", Str).later(reason::SASL)
        .doc("Issuer claim of the assertion."),
    broker("sasl.oauthbearer.assertion.claim.jti.include", Bool).default("false").later(reason::SASL)
        .doc("Give each assertion an id."),
    broker("sasl.oauthbearer.assertion.claim.nbf.seconds", Int).default("60").between(0, 3600).low()
        .later(reason::SASL)
        .doc("Seconds by which the assertion is valid before now."),
    broker("sasl.oauthbearer.assertion.claim.sub", Str).later(reason::SASL)
        .doc("Subject claim of the assertion."),
    broker("sasl.oauthbearer.assertion.file", Str).later(reason::SASL)
        .doc("File that holds a finished assertion."),
    broker("sasl.oauthbearer.assertion.private.key.file", Str).later(reason::SASL)
        .doc("File of the key that signs the assertion."),
    broker("sasl.oauthbearer.assertion.private.key.passphrase", Password).later(reason::SASL)
        .doc("Passphrase of the key that signs the assertion."),
    broker("sasl.oauthbearer.assertion.template.file", Str).later(reason::SASL)
        .doc("File with further claims of the assertion."),
    broker("sasl.oauthbearer.client.credentials.client.id", Str).later(reason::SASL)
        .doc("Client id for the client credentials grant."),
    broker("sasl.oauthbearer.client.credentials.client.secret", Password).later(reason::SASL)
        .doc("Client secret for the client credentials grant."),
    broker("sasl.oauthbearer.clock.skew.seconds", Int).default("30").low().later(reason::SASL)
        .doc("Seconds by which clocks may differ."),
    broker("sasl.oauthbearer.expected.audience", List).default("").any_list().low().later(reason::SASL)
        .doc("Audiences that a token may name."),
    broker("sasl.oauthbearer.expected.issuer", Str).low().later(reason::SASL)
        .doc("Issuer that a token must name."),
    broker("sasl.oauthbearer.jwks.endpoint.refresh.ms", Long).default("3600000").low().later(reason::SASL)
        .doc("Milliseconds between fetches of the verification keys."),
    broker("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", Long).default("10000").low()
        .later(reason::SASL)
        .doc("Longest pause in milliseconds between attempts to fetch the verification keys."),
    broker("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", Long).default("100").low().later(reason::SASL)
        .doc("First pause in milliseconds between attempts to fetch the verification keys."),
    broker("sasl.oauthbearer.jwks.endpoint.url", Str).later(reason::SASL)
        .doc("Address of the verification keys."),
    broker("sasl.oauthbearer.jwt.retriever.class", Class)
        .default("org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever").later(reason::SASL)
        .doc("Class that fetches tokens."),
    broker("sasl.oauthbearer.jwt.validator.class", Class)
        .default("org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator").later(reason::SASL)
        .doc("Class that checks tokens."),
    broker("sasl.oauthbearer.scope", Str).later(reason::SASL)
        .doc("Scope that is asked for."),
    broker("sasl.oauthbearer.scope.claim.name", Str).default("scope").low().later(reason::SASL)
        .doc("Name of the scope claim."),
    broker("sasl.oauthbearer.sub.claim.name", Str).default("sub").low().later(reason::SASL)
        .doc("Name of the subject claim."),
    broker("sasl.oauthbearer.token.endpoint.url", Str).later(reason::SASL)
        .doc("Address at which tokens are fetched."),
    broker("sasl.server.callback.handler.class", Class).later(reason::SASL)
        .doc("Class that checks credentials."),
    broker("security.providers", Str).low().unused(reason::JVM)
        .doc("Classes that provide security algorithms."),
    broker("server.max.startup.time.ms", Long).default("9223372036854775807").at_least(0).internal()
        .unused(reason::INTERNAL)
        .doc("Milliseconds after which an unfinished start is aborted."),
    broker("share.coordinator.append.linger.ms", Int).default("-1").at_least(-1).later(reason::SHARE)
        .doc("Milliseconds for which the share coordinator gathers records before it writes them."),
    broker("share.coordinator.cached.buffer.max.bytes", Int).default("1048588").at_least(524288)
        .cluster_wide().later(reason::SHARE)
        .doc("Bytes of write buffer that the share coordinator keeps."),
    broker("share.coordinator.cold.partition.snapshot.interval.ms", Int).default("300000").at_least(1).low()
        .internal().later(reason::SHARE)
        .doc("Milliseconds after which idle share partitions are snapshotted."),
    broker("share.coordinator.load.buffer.size", Int).default("5242880").at_least(1).high()
        .later(reason::SHARE)
        .doc("Bytes read at once when share state is loaded."),
    broker("share.coordinator.snapshot.update.records.per.snapshot", Int).default("500").between(0, 500)
        .later(reason::SHARE)
        .doc("Updates between two snapshots of a share partition."),
    broker("share.coordinator.state.topic.compression.codec", Int).default("0").high().later(reason::SHARE)
        .doc("Codec of `__share_group_state`; 0 is none."),
    broker("share.coordinator.state.topic.min.isr", Short).default("1").kafka_default(Some("2")).at_least(1)
        .high().later(reason::SHARE)
        .doc("min.insync.replicas of `__share_group_state`."),
    broker("share.coordinator.state.topic.num.partitions", Int).default("50").at_least(1).high()
        .later(reason::SHARE)
        .doc("Partitions of `__share_group_state`."),
    broker("share.coordinator.state.topic.prune.interval.ms", Int).default("300000").at_least(1).low()
        .internal().later(reason::SHARE)
        .doc("Milliseconds between prunings of `__share_group_state`."),
    broker("share.coordinator.state.topic.replication.factor", Short).default("1").kafka_default(Some("3"))
        .at_least(1).high().later(reason::SHARE)
        .doc("Replicas of `__share_group_state`."),
    broker("share.coordinator.state.topic.segment.bytes", Int).default("104857600").at_least(1).high()
        .later(reason::SHARE)
        .doc("Segment size in bytes of `__share_group_state`."),
    broker("share.coordinator.threads", Int).default("1").at_least(1).later(reason::SHARE)
        .doc("Threads of the share coordinator."),
    broker("share.coordinator.write.timeout.ms", Int).default("5000").at_least(1).high().later(reason::SHARE)
        .doc("Milliseconds for which a write of share state may take."),
    broker("share.fetch.purgatory.purge.interval.requests", Int).default("1000").unused(reason::PURGATORY)
        .doc("Requests after which finished share fetch waits are dropped."),
    broker("socket.connection.setup.timeout.max.ms", Long).default("30000").unused(reason::CLIENT)
        .doc("Longest time-out in milliseconds for opening connections."),
    broker("socket.connection.setup.timeout.ms", Long).default("10000").unused(reason::CLIENT)
        .doc("First time-out in milliseconds for opening connections."),
    broker("ssl.engine.factory.class", Class).low().per_broker().later(reason::TLS)
        .doc("Class that makes TLS engines."),
    broker("ssl.keymanager.algorithm", Str).default("SunX509").per_broker().later(reason::TLS)
        .doc("Algorithm of the key manager."),
    broker("ssl.provider", Str).per_broker().later(reason::TLS)
        .doc("Security provider of TLS."),
    broker("ssl.secure.random.implementation", Str).low().per_broker().later(reason::TLS)
        .doc("Source of randomness of TLS."),
    broker("ssl.trustmanager.algorithm", Str).default("PKIX").per_broker().later(reason::TLS)
        .doc("Algorithm of the trust manager."),
    broker("transaction.state.log.load.buffer.size", Int).default("5242880").at_least(1).high()
        .unused(reason::CHUNKS)
        .doc("Bytes read at once when transactions are loaded."),
    broker("transaction.two.phase.commit.enable", Bool).default("false").low().later(reason::TWO_PHASE)
        .doc("Allow two-phase commit (KIP-939)."),
    broker("unclean.leader.election.enable", Bool).default("false").high().cluster_wide()
        .named_only(reason::UNCLEAN)
        .doc("Default of the topic key of the same name."),
    broker("unclean.leader.election.interval.ms", Long).default("300000").at_least(1).internal()
        .named_only(reason::UNCLEAN)
        .doc("Milliseconds between looks for partitions that need an unclean election."),
    broker("unstable.api.versions.enable", Bool).default("false").high().internal().unused(reason::INTERNAL)
        .doc("Serve versions of APIs that are still in development."),
    broker("unstable.feature.versions.enable", Bool).default("false").high().internal()
        .unused(reason::INTERNAL)
        .doc("Allow feature levels that are still in development."),
];
