//! Broker keys that this broker uses.

use super::super::key::ConfigType::*;
use super::super::key::{ConfigKey, Fallback, broker};

/// Broker keys with an effect here.
#[rustfmt::skip] // a row is its facts, then what the key means
pub(super) const BROKER: &[ConfigKey] = &[
    broker("advertised.listeners", List).non_empty_list().high()
        .doc("Addresses that clients connect to, as `NAME://host:port`. Unset: those of \
             `listeners`, an empty host replaced by this host's name."),
    broker("allow.everyone.if.no.acl.found", Bool).default("false").kafka_default(None)
        .doc("With an authorizer: whether everybody may use what no rule concerns."),
    broker("authorizer.class.name", Str).default("").low()
        .doc("`org.apache.kafka.metadata.authorizer.StandardAuthorizer` has every request ask the rules (ACLs) of the \
             metadata. Empty: everybody may do everything."),
    broker("auto.create.topics.enable", Bool).default("true").high()
        .doc("Create a topic when a client first asks for its metadata, with num.partitions and \
             default.replication.factor."),
    broker("auto.leader.rebalance.enable", Bool).default("true").high()
        .doc("Have preferred replicas lead again in the background: the first replica of each partition, once it is in \
             sync."),
    broker("broker.heartbeat.interval.ms", Int).default("2000").at_least(1)
        .doc("Milliseconds between two signs of life of a node to the metadata leader of its cluster."),
    broker("broker.id", Int).default("-1").high()
        .doc("Older name of node.id; if both are set they must agree. -1 is unset."),
    broker("broker.rack", Str)
        .doc("Rack or zone of this node, as clients see it."),
    broker("broker.session.timeout.ms", Int).default("9000").at_least(1)
        .doc("Milliseconds without a sign of life after which the metadata leader fences a node: it is given no new \
             partitions, and clients are not sent to it."),
    broker("compression.gzip.level", Int).default("-1").gzip_level().cluster_wide()
        .doc("Default of the topic key of the same name."),
    broker("compression.type", Str).default("producer")
        .one_of(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]).high().cluster_wide()
        .doc("Default of the topic key of the same name."),
    broker("compression.zstd.level", Int).default("3").between(-131072, 22).cluster_wide()
        .doc("Default of the topic key of the same name."),
    broker("connection.failed.authentication.delay.ms", Int).default("100").at_least(0).low()
        .doc("Milliseconds for which the answer to a failed authentication, and the end of its connection, are held \
             back."),
    broker("connections.max.idle.ms", Long).default("600000")
        .doc("Milliseconds after which a connection without traffic is closed."),
    broker("connections.max.reauth.ms", Long).default("0")
        .doc("Milliseconds after which a client that came by SASL must authenticate again (KIP-368); 0 is never. Also \
             per listener, and per mechanism of one: `listener.name.LISTENER.MECHANISM.connections.max.reauth.ms`. With a \
             listener's prefix it can be changed while the node runs."),
    broker("controlled.shutdown.enable", Bool).default("true")
        .doc("Have other nodes of the cluster lead what this one leads before it stops."),
    broker("controller.listener.names", List).non_empty_list().high()
        .doc("Listeners meant for controllers. The first of them that `listeners` has is opened for the other nodes of \
             the cluster, and not advertised to clients. One node does not open it: it talks to itself without a \
             socket."),
    broker("controller.quorum.voters", List).default("").high()
        .doc("The nodes of the cluster, as `id@host:port` with the port of their controller's listener; the same on \
             each. Empty, or this node alone: one node, which connects to no other."),
    broker("controller.quota.window.num", Int).default("11").at_least(1).low()
        .doc("Samples kept for quotas on topic changes."),
    broker("controller.quota.window.size.seconds", Int).default("1").at_least(1).low()
        .doc("Seconds in one sample of quotas on topic changes."),
    broker("cordoned.log.dirs", List).default("").any_list().per_broker()
        .doc("Log directories that take no new partitions, as in log.dirs; `*` is all of them."),
    broker("default.replication.factor", Int).default("1")
        .doc("Replicas of a topic that is created without saying how many."),
    broker("delete.topic.enable", Bool).default("true").high()
        .doc("Allow topics to be deleted."),
    broker("fetch.max.bytes", Int).default("57671680").at_least(1024)
        .doc("Bytes that one fetch response holds at most, whatever the client asks for; a first batch that \
             is larger is still delivered."),
    broker("follower.replication.throttled.rate", Long).default("9223372036854775807").at_least(0)
        .cluster_wide()
        .doc("Bytes per second that a throttled follower may fetch."),
    broker("group.consumer.assignment.interval.ms", Int).default("1000").at_least(0).cluster_wide()
        .doc("Milliseconds between two computed assignments."),
    broker("group.consumer.assignors", List).default("uniform,range").non_empty_list()
        .doc("Server-side assignors, the first is the default."),
    broker("group.consumer.heartbeat.interval.ms", Int).default("5000").at_least(1)
        .doc("Milliseconds between heartbeats that members are given."),
    broker("group.consumer.max.assignment.interval.ms", Int).default("15000").at_least(0)
        .doc("Largest assignment interval of a group, in milliseconds."),
    broker("group.consumer.max.heartbeat.interval.ms", Int).default("15000").at_least(1)
        .doc("Largest heartbeat interval of a group, in milliseconds."),
    broker("group.consumer.max.session.timeout.ms", Int).default("60000").at_least(1)
        .doc("Largest session time-out of a group, in milliseconds."),
    broker("group.consumer.max.size", Int).default("2147483647").at_least(1)
        .doc("Members that one group may have."),
    broker("group.consumer.migration.policy", Str).default("bidirectional")
        .one_of_ignoring_case(&["DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"])
        .doc("Whether classic and consumer groups may turn into each other."),
    broker("group.consumer.min.assignment.interval.ms", Int).default("0").at_least(0)
        .doc("Smallest assignment interval of a group, in milliseconds."),
    broker("group.consumer.min.heartbeat.interval.ms", Int).default("5000").at_least(1)
        .doc("Smallest heartbeat interval of a group, in milliseconds."),
    broker("group.consumer.min.session.timeout.ms", Int).default("45000").at_least(1)
        .doc("Smallest session time-out of a group, in milliseconds."),
    broker("group.consumer.regex.refresh.interval.ms", Int).default("600000").at_least(10000).internal()
        .doc("Milliseconds after which topic patterns are resolved again."),
    broker("group.consumer.session.timeout.ms", Int).default("45000").at_least(1)
        .doc("Milliseconds without a heartbeat after which a member is removed."),
    broker("group.initial.rebalance.delay.ms", Int).default("3000")
        .doc("Milliseconds for which an empty classic group waits for more members before its first \
             rebalance."),
    broker("group.max.session.timeout.ms", Int).default("1800000")
        .doc("Largest session time-out that a classic member may ask for, in milliseconds."),
    broker("group.max.size", Int).default("2147483647").at_least(1)
        .doc("Members that one classic group may have."),
    broker("group.min.session.timeout.ms", Int).default("6000")
        .doc("Smallest session time-out that a classic member may ask for, in milliseconds."),
    broker("inter.broker.listener.name", Str)
        .doc("Listener that other nodes of the cluster would use. Must be one of the advertised \
             listeners."),
    broker("leader.imbalance.check.interval.seconds", Long).default("300").at_least(1).high()
        .doc("Seconds between looks for leaders that are not the preferred replicas."),
    broker("leader.replication.throttled.rate", Long).default("9223372036854775807").at_least(0)
        .cluster_wide()
        .doc("Bytes per second that a throttled leader may send to followers."),
    broker("listener.security.protocol.map", Str)
        .default("SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT").low()
        .doc("Security protocol of each listener, as `NAME:PROTOCOL`. Only PLAINTEXT listeners can be \
             opened yet."),
    broker("listeners", List).default("PLAINTEXT://127.0.0.1:9092").kafka_default(Some("PLAINTEXT://:9092"))
        .non_empty_list().high()
        .doc("Addresses to listen on, as `NAME://host:port`. An empty host is every interface, port 0 lets \
             the system choose."),
    broker("log.cleaner.backoff.ms", Long).default("15000").at_least(0).cluster_wide()
        .doc("Milliseconds for which a cleaner sleeps when no log is due for compaction."),
    broker("log.cleaner.dedupe.buffer.size", Long).default("25165824").kafka_default(Some("134217728"))
        .cluster_wide()
        .doc("Bytes that all cleaners together may use for the keys of the logs which they compact, 24 for each \
             key. When the keys of a log do not fit, it is gone through several times."),
    broker("log.cleaner.delete.retention.ms", Long).default("86400000").at_least(0).cluster_wide()
        .doc("Default of the topic key delete.retention.ms."),
    broker("log.cleaner.enable", Bool).default("true")
        .doc("Compact logs with `cleanup.policy=compact`, `__consumer_offsets` among them. Without it they grow \
             without end."),
    broker("log.cleaner.io.buffer.load.factor", Double).default("0.9").cluster_wide()
        .doc("Share of log.cleaner.dedupe.buffer.size that may fill: the fuller, the longer a key is searched. \
             At least 0.01 and at most 0.95 counts."),
    broker("log.cleaner.io.buffer.size", Int).default("524288").at_least(0).cluster_wide()
        .doc("Bytes of all cleaners' buffers for reading and writing together. A larger batch gets what it needs."),
    broker("log.cleaner.io.max.bytes.per.second", Double).default("1.7976931348623157E308").cluster_wide()
        .doc("Bytes per second that all cleaners together may read and write."),
    broker("log.cleaner.max.compaction.lag.ms", Long).default("9223372036854775807").at_least(1)
        .cluster_wide()
        .doc("Default of the topic key max.compaction.lag.ms."),
    broker("log.cleaner.min.cleanable.ratio", Double).default("0.5").between_f64(0.0, 1.0).cluster_wide()
        .doc("Default of the topic key min.cleanable.dirty.ratio."),
    broker("log.cleaner.min.compaction.lag.ms", Long).default("0").at_least(0).cluster_wide()
        .doc("Default of the topic key min.compaction.lag.ms."),
    broker("log.cleaner.threads", Int).default("1").at_least(0).cluster_wide()
        .doc("Threads that compact, one log each at a time. A change counts from the next start on."),
    broker("log.cleanup.policy", List).default("delete").list_of(&["compact", "delete"]).cluster_wide()
        .doc("Default of the topic key cleanup.policy."),
    broker("log.dir", List).default("mainstem-data").kafka_default(Some("/tmp/kafka-logs")).non_empty_list()
        .high()
        .doc("One directory for partitions, used when log.dirs is unset."),
    broker("log.dirs", List).non_empty_list().high().falls_back(&[Fallback::same("log.dir")])
        .doc("Directories for partitions, separated by commas. Unset: log.dir."),
    broker("log.flush.interval.messages", Long).default("9223372036854775807").at_least(1).high()
        .cluster_wide()
        .doc("Default of the topic key flush.messages."),
    broker("log.flush.interval.ms", Long).high().cluster_wide()
        .falls_back(&[Fallback::same("log.flush.scheduler.interval.ms")])
        .doc("Default of the topic key flush.ms. Unset: log.flush.scheduler.interval.ms."),
    broker("log.flush.offset.checkpoint.interval.ms", Int).default("60000").at_least(0).high()
        .doc("Milliseconds between two writes of the recovery checkpoints."),
    broker("log.flush.scheduler.interval.ms", Long).default("9223372036854775807").high()
        .doc("Used for log.flush.interval.ms when that is unset."),
    broker("log.flush.start.offset.checkpoint.interval.ms", Int).default("60000").at_least(0).high()
        .doc("Milliseconds between two writes of the log start offset checkpoints."),
    broker("log.index.interval.bytes", Int).default("4096").at_least(0).cluster_wide()
        .doc("Default of the topic key index.interval.bytes."),
    broker("log.index.size.max.bytes", Int).default("10485760").at_least(4).cluster_wide()
        .doc("Default of the topic key segment.index.bytes."),
    broker("log.message.timestamp.after.max.ms", Long).default("3600000").at_least(0).cluster_wide()
        .doc("Default of the topic key message.timestamp.after.max.ms."),
    broker("log.message.timestamp.before.max.ms", Long).default("9223372036854775807").at_least(0)
        .cluster_wide()
        .doc("Default of the topic key message.timestamp.before.max.ms."),
    broker("log.message.timestamp.type", Str).default("CreateTime").one_of(&["CreateTime", "LogAppendTime"])
        .cluster_wide()
        .doc("Default of the topic key message.timestamp.type."),
    broker("log.preallocate", Bool).default("false").cluster_wide()
        .doc("Default of the topic key preallocate."),
    broker("log.retention.bytes", Long).default("-1").high().cluster_wide()
        .doc("Default of the topic key retention.bytes."),
    broker("log.retention.check.interval.ms", Long).default("300000").at_least(1)
        .doc("Milliseconds between two rounds that roll segments by time and delete what retention no \
             longer keeps."),
    broker("log.retention.hours", Int).default("168").high()
        .doc("Hours for which records are kept, used when log.retention.ms and log.retention.minutes are \
             unset; negative is without limit."),
    broker("log.retention.minutes", Int).high()
        .doc("Minutes for which records are kept, used when log.retention.ms is unset; negative is without \
             limit."),
    broker("log.retention.ms", Long).high().cluster_wide()
        .falls_back(&[Fallback::minutes("log.retention.minutes"), Fallback::hours("log.retention.hours")])
        .doc("Default of the topic key retention.ms. Unset: log.retention.minutes, then \
             log.retention.hours."),
    broker("log.roll.hours", Int).default("168").at_least(1).high()
        .doc("Hours after which a segment is closed, used when log.roll.ms is unset."),
    broker("log.roll.jitter.hours", Int).default("0").at_least(0).high()
        .doc("Hours of jitter of the roll time, used when log.roll.jitter.ms is unset."),
    broker("log.roll.jitter.ms", Long).high().cluster_wide()
        .falls_back(&[Fallback::hours("log.roll.jitter.hours")])
        .doc("Default of the topic key segment.jitter.ms. Unset: log.roll.jitter.hours."),
    broker("log.roll.ms", Long).high().cluster_wide().falls_back(&[Fallback::hours("log.roll.hours")])
        .doc("Default of the topic key segment.ms. Unset: log.roll.hours."),
    broker("log.segment.bytes", Int).default("1073741824").at_least(1048576).high().cluster_wide()
        .doc("Default of the topic key segment.bytes."),
    broker("log.segment.delete.delay.ms", Long).default("60000").at_least(0).high().cluster_wide()
        .doc("Default of the topic key file.delete.delay.ms."),
    broker("mainstem.attach", List).default("").any_list().ours()
        .doc("Embedded queues that are served as topics, each as `NAME=DIR`; one that is not there is made. \
             `--attach` adds to them."),
    broker("mainstem.authentication.timeout.ms", Int).default("10000").at_least(1).ours()
        .doc("Milliseconds from accepting a connection of a SASL listener until it is authenticated; then it is closed."),
    broker("mainstem.http.authentication", Str).default("").one_of(&["", "none", "basic", "certificate"]).ours()
        .doc("What clients of `mainstem.http.listener` prove, which has to be said where it is not on a loopback address. `basic`: \
             the name and password of a SCRAM user; `certificate`: that `ssl.truststore.*` trusts theirs. Both are over TLS by \
             `ssl.*`, or `listener.name.http.ssl.*`, and ask an authorizer for Describe of the cluster. `none`: nothing, over \
             plain HTTP: who can reach it may read `/metrics` and `/health`."),
    broker("mainstem.http.listener", Str).default("").ours()
        .doc("Address, as `host:port`, at which `/metrics` and `/health` are served over HTTP. Empty is \
             off."),
    broker("mainstem.lost.replica.timeout.ms", Long).default("60000").at_least(0).ours()
        .doc("Milliseconds from the start of a node after which its lost replicas are replaced: those whose log directory is gone, \
             or whose files are not enough to take part. The node gets new replicas, which other nodes copy to it. Time to \
             mount a disk that is not there."),
    broker("mainstem.metrics.partitions.max", Int).default("2000").at_least(0).cluster_wide().ours()
        .doc("Partitions that have series of their own at `/metrics`, the first by name; 0 is none."),
    broker("mainstem.network.idle.poll.us", Int).default("60").between(0, 10_000).cluster_wide().ours()
        .doc("Microseconds for which a network thread looks for more before it sleeps, as long as requests come \
             at shorter intervals; it leaves its CPU to other threads in between. 0 is off: for machines \
             whose CPU time is metered."),
    broker("mainstem.node.secret.location", Str).default("").ours()
        .doc("A file with the secret by which the nodes of a cluster prove to each other that they are its nodes, made by \
             `mainstem security node-secret FILE` and the same on each of them. It is for the listener of \
             `controller.listener.names` over PLAINTEXT or SSL. The secret itself is never sent."),
    broker("mainstem.producer.ids.max", Int).default("1000000").at_least(1).ours()
        .doc("Producers with sequence numbers that all partitions remember together, of about 250 bytes each; one \
             partition at most a quarter of it. Beyond it a new producer is refused with POLICY_VIOLATION: none is \
             forgotten before producer.id.expiration.ms."),
    broker("mainstem.require.authentication", Bool).default("false").ours()
        .doc("Do not start with a listener whose clients need not prove who they are: each has SASL, or SSL with \
             `ssl.client.auth=required`."),
    broker("mainstem.scram.decoy.secret", Password).cluster_wide().ours()
        .doc("The source of the salts that unknown users of SCRAM are shown, so that they look like known ones. The \
             same on every node, and best left alone: the metadata leader draws one and keeps it with the metadata \
             when it finds none and a listener has SASL."),
    broker("mainstem.unauthenticated.connections.max", Int).default("1000").at_least(1).ours()
        .doc("Connections of SASL listeners at once that are not authenticated yet, a tenth of them from one address. \
             Beyond it the one that has made no progress for the longest time is closed."),
    broker("mainstem.unauthenticated.nodes", Bool).default("false").ours()
        .doc("Start a node of a cluster whose controllers' listener takes connections from other hosts and asks for no proof. \
             Any peer that reaches it can act as a node."),
    broker("max.connection.creation.rate", Int).default("2147483647").at_least(0).cluster_wide()
        .doc("Connections that are accepted per second."),
    broker("max.connections", Int).default("2147483647").at_least(0).cluster_wide()
        .doc("Open connections at once. The descriptors that the process may open bound it further."),
    broker("max.connections.per.ip", Int).default("2147483647").at_least(0).cluster_wide()
        .doc("Open connections at once from one address."),
    broker("max.connections.per.ip.overrides", Str).default("").cluster_wide()
        .doc("Exceptions to max.connections.per.ip, as `address:count` separated by commas."),
    broker("max.incremental.fetch.session.cache.slots", Int).default("1000").at_least(0)
        .doc("Fetch sessions that this node keeps."),
    broker("max.request.partition.size.limit", Int).default("2000").at_least(1)
        .doc("Partitions in one answer of DescribeTopicPartitions."),
    broker("message.max.bytes", Int).default("1048588").at_least(0).high().cluster_wide()
        .doc("Default of the topic key max.message.bytes."),
    broker("metadata.log.dir", Str).high()
        .doc("Directory of the metadata log, one of log.dirs or another one. Unset: the one of log.dirs that has \
             it, at first the first."),
    broker("metadata.log.max.record.bytes.between.snapshots", Long).default("20971520").at_least(1).high()
        .doc("Bytes of metadata records after which a snapshot takes the place of the metadata log before it."),
    broker("metadata.log.max.snapshot.interval.ms", Long).default("3600000").at_least(0).high()
        .doc("Milliseconds after which a snapshot is written if the metadata have changed since the last one; 0 is \
             never. Checked every half second."),
    broker("min.insync.replicas", Int).default("1").at_least(1).high().cluster_wide()
        .doc("Default of the topic key of the same name."),
    broker("node.id", Int).default("1").kafka_default(None).at_least(0).high()
        .doc("Number of this node in its cluster; kept in the data directory."),
    broker("num.network.threads", Int).default("3").at_least(1).high().cluster_wide()
        .doc("Event loops that serve connections and their requests; never more than the machine has \
             cores. A change may at most double or halve it; connections of a loop that is removed move to another \
             one and stay open."),
    broker("num.partitions", Int).default("1").at_least(1)
        .doc("Partitions of a topic that is created without saying how many."),
    broker("num.recovery.threads.per.data.dir", Int).default("2").at_least(1).high().cluster_wide()
        .doc("Threads for each log directory that open, and where needed verify, logs at start. A change may at \
             most double or halve it."),
    broker("offset.metadata.max.bytes", Int).default("4096").high()
        .doc("Bytes of metadata that a client may store beside a committed offset."),
    broker("offsets.commit.timeout.ms", Int).default("5000").at_least(1).high()
        .doc("Milliseconds for which an answer of the group coordinator waits for its records: those to OffsetCommit, \
             LeaveGroup, DeleteGroups and OffsetDelete. Then it is COORDINATOR_NOT_AVAILABLE, on which clients try \
             again."),
    broker("offsets.retention.check.interval.ms", Long).default("600000").at_least(1).high()
        .doc("Milliseconds between two looks for expired offsets."),
    broker("offsets.retention.minutes", Int).default("10080").at_least(1).high()
        .doc("Minutes for which offsets are kept after a group became empty (or, without a group, after the \
             commit)."),
    broker("offsets.topic.num.partitions", Int).default("50").at_least(1).high()
        .doc("Partitions of `__consumer_offsets`; used once, when the topic is created."),
    broker("offsets.topic.replication.factor", Short).default("1").kafka_default(Some("3")).at_least(1).high()
        .doc("Replicas of `__consumer_offsets`; used once, when the topic is created. Unset in a cluster: 3, or as many \
             as it has nodes."),
    broker("offsets.topic.segment.bytes", Int).default("104857600").at_least(1).high()
        .doc("Segment size in bytes of `__consumer_offsets`, at most 4 MiB."),
    broker("process.roles", List).default("broker,controller").kafka_default(None)
        .non_empty_list_of(&["broker", "controller"]).high()
        .doc("Roles of this process. One node is broker and controller, whichever of them is named; \
             `broker` must be. Each node of a cluster is both."),
    broker("producer.id.expiration.check.interval.ms", Int).default("600000").at_least(1).low().internal()
        .doc("Milliseconds between two looks for expired producers."),
    broker("producer.id.expiration.ms", Int).default("86400000").at_least(1).low().cluster_wide()
        .doc("Milliseconds after its last batch at which an idempotent producer is forgotten."),
    broker("queued.max.request.bytes", Long).default("67108864").kafka_default(Some("-1"))
        .doc("Bytes of requests that may be read and not yet answered, over all connections; beyond it \
             sockets are not read. Negative or 0 is without limit."),
    broker("quota.window.num", Int).default("11").at_least(1).low()
        .doc("Samples kept for client quotas."),
    broker("quota.window.size.seconds", Int).default("1").at_least(1).low()
        .doc("Seconds in one sample of client quotas."),
    broker("replica.alter.log.dirs.io.max.bytes.per.second", Long).default("9223372036854775807").at_least(0)
        .cluster_wide()
        .doc("Bytes per second at which partitions are copied from one log directory to another."),
    broker("replica.lag.time.max.ms", Long).default("30000").at_least(1).high()
        .doc("Milliseconds after which a replica that has not caught up with its leader leaves those in sync."),
    broker("sasl.enabled.mechanisms", List).default("GSSAPI").any_list().per_broker()
        .doc("Mechanisms that clients of SASL listeners may use: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512. Also per listener. \
             With another one, such as the default, a SASL listener does not start. A change counts for new connections, and \
             for sessions when they are renewed; not on the controllers' listener, which keeps what it has started with."),
    broker("sasl.jaas.config", Password).per_broker()
        .doc("Login module and its options, as `listener.name.LISTENER.MECHANISM.sasl.jaas.config`; without the prefix \
             it is refused. For PLAIN: `org.apache.kafka.common.security.plain.PlainLoginModule required \
             user_NAME=\"PASSWORD\";`. A change counts as one of `sasl.enabled.mechanisms` does."),
    broker("sasl.mechanism.controller.protocol", Str).default("GSSAPI").high()
        .doc("Mechanism by which a node of a cluster proves itself to the others, on a controllers' listener with SASL. User \
             and password are those of the listener's `sasl.jaas.config` of that mechanism."),
    broker("sasl.server.max.receive.size", Int).default("524288")
        .doc("Bytes of the largest frame on a connection that is not authenticated yet. Also per listener; with a listener's prefix \
             it can be changed while the node runs."),
    broker("security.inter.broker.protocol", Str).default("PLAINTEXT")
        .one_of(&["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
        .doc("Says which listener is that between nodes, where `inter.broker.listener.name` does not: the first of this \
             protocol."),
    broker("socket.listen.backlog.size", Int).default("50").at_least(1)
        .doc("Connections that may wait to be accepted; the system caps it."),
    broker("socket.receive.buffer.bytes", Int).default("-1").kafka_default(Some("102400")).high()
        .doc("SO_RCVBUF of client connections in bytes; -1 leaves it to the system, which adapts it to each \
             connection."),
    broker("socket.request.max.bytes", Int).default("104857600").at_least(1).high()
        .doc("Largest request in bytes; a longer one closes its connection."),
    broker("socket.send.buffer.bytes", Int).default("-1").kafka_default(Some("102400")).high()
        .doc("SO_SNDBUF of client connections in bytes; -1 leaves it to the system, which adapts it to each \
             connection."),
    broker("ssl.allow.dn.changes", Bool).default("false").low()
        .doc("Allow a key store that is read again to have another subject. Also per listener."),
    broker("ssl.allow.san.changes", Bool).default("false").low()
        .doc("Allow a key store that is read again to have other alternative names. Also per listener."),
    broker("ssl.cipher.suites", List).default("").any_list().per_broker()
        .doc("Cipher suites that are allowed, by Java's names; empty is all that are safe. Also per listener."),
    broker("ssl.client.auth", Str).default("none").one_of(&["required", "requested", "none"]).per_broker()
        .doc("Whether clients must show a certificate. On a SASL_SSL listener it counts with the listener's prefix alone, as in Kafka. Also per listener."),
    broker("ssl.enabled.protocols", List).default("TLSv1.2,TLSv1.3").any_list().per_broker()
        .doc("TLS versions that are allowed: TLSv1.2, TLSv1.3. Also per listener."),
    broker("ssl.endpoint.identification.algorithm", Str).default("https").low().per_broker()
        .doc("Check that a node's certificate has the name by which it is dialled (`https`), or do not (empty). Also per \
             listener."),
    broker("ssl.key.password", Password).per_broker()
        .doc("Password of the private key. Also per listener."),
    broker("ssl.keystore.certificate.chain", Password).per_broker()
        .doc("Certificate chain as PEM, with `ssl.keystore.type=PEM`. Also per listener."),
    broker("ssl.keystore.key", Password).per_broker()
        .doc("Private key as PEM (PKCS#8), with `ssl.keystore.type=PEM`. Also per listener."),
    broker("ssl.keystore.location", Str).per_broker()
        .doc("File with the key and the certificates of a listener with SSL or SASL_SSL. It is read again when it changes. Also per listener."),
    broker("ssl.keystore.password", Password).per_broker()
        .doc("Password of the key store; PEM has none. Also per listener."),
    broker("ssl.keystore.type", Str).default("JKS").per_broker()
        .doc("Format of the key store: JKS, PKCS12 or PEM. The first two are distinguished by their contents. Also per listener."),
    broker("ssl.principal.mapping.rules", Str).default("DEFAULT").low()
        .doc("Rules that make a principal of a client certificate's subject; the first that fits counts. Also per listener."),
    broker("ssl.protocol", Str).default("TLSv1.3").per_broker()
        .doc("TLSv1.3 or TLSv1.2; which versions are allowed is said by `ssl.enabled.protocols`. Also per listener."),
    broker("ssl.truststore.certificates", Password).per_broker()
        .doc("Trusted certificates as PEM, with `ssl.truststore.type=PEM`. Also per listener."),
    broker("ssl.truststore.location", Str).per_broker()
        .doc("File with the certificates by which those of clients are checked. It is read again when it changes. Also per listener."),
    broker("ssl.truststore.password", Password).per_broker()
        .doc("Password of the trust store; PEM has none. Also per listener."),
    broker("ssl.truststore.type", Str).default("JKS").per_broker()
        .doc("Format of the trust store: JKS, PKCS12 or PEM. Also per listener."),
    broker("super.users", Str).default("").kafka_default(None)
        .doc("With an authorizer: who may do everything, as `User:NAME`, with semicolons between them."),
    broker("telemetry.max.bytes", Int).default("1048576").at_least(1).low()
        .doc("Largest payload of metrics that a client may push, in bytes, compressed and decompressed."),
    broker("transaction.abort.timed.out.transaction.cleanup.interval.ms", Int).default("10000").at_least(1)
        .low()
        .doc("Milliseconds between looks for transactions that timed out."),
    broker("transaction.max.timeout.ms", Int).default("900000").at_least(1).high()
        .doc("Longest transaction time-out that a client may ask for, in milliseconds."),
    broker("transaction.partition.verification.enable", Bool).default("true").low().cluster_wide()
        .doc("Check that a partition was added to a transaction before it is written."),
    broker("transaction.remove.expired.transaction.cleanup.interval.ms", Int).default("3600000").at_least(1)
        .low()
        .doc("Milliseconds between looks for expired transactional ids."),
    broker("transaction.state.log.min.isr", Int).default("1").kafka_default(Some("2")).at_least(1).high()
        .doc("min.insync.replicas of `__transaction_state`. Unset in a cluster: 2."),
    broker("transaction.state.log.num.partitions", Int).default("50").at_least(1).high()
        .doc("Partitions of `__transaction_state`; used once, when the topic is created."),
    broker("transaction.state.log.replication.factor", Short).default("1").kafka_default(Some("3"))
        .at_least(1).high()
        .doc("Replicas of `__transaction_state`; used once, when the topic is created. Unset in a cluster: 3, or as many \
             as it has nodes."),
    broker("transaction.state.log.segment.bytes", Int).default("104857600").at_least(1).high()
        .doc("Segment size in bytes of `__transaction_state`, at most 4 MiB."),
    broker("transactional.id.expiration.ms", Int).default("604800000").at_least(1).high()
        .doc("Milliseconds after which an unused transactional id is forgotten."),
    broker("write.caching.default", Bool).default("false").cluster_wide().ours()
        .doc("Default of the topic key write.caching."),
];
