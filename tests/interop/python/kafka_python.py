"""The kafka-python client under test: COMMAND key=value ...

The commands, their arguments and the files that they read and write are the same for every client and are described
in tests/interop/README.md.
"""

import sys
import time
from pathlib import Path

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, NewTopic
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import (
    CommitFailedError,
    InvalidPartitionsError,
    RebalanceInProgressError,
    TopicAlreadyExistsError,
)
from kafka.structs import OffsetAndMetadata

from common import DEADLINE_S, Notes, as_line, check, data, end_of_input, jobs, read_records, run, until

ASSIGNORS = {"eager": RangePartitionAssignor, "cooperative": CooperativeStickyAssignor}


def common(arguments):
    return {"bootstrap_servers": arguments["bootstrap"], "reconnect_backoff_max_ms": 200}


def create(arguments):
    admin = KafkaAdminClient(**common(arguments))
    partitions = int(arguments["partitions"])
    admin.create_topics([NewTopic(name, partitions, 1) for name in arguments["topics"].split(",")])
    admin.close()


def new_producer(arguments, codec):
    settings = {"compression_type": codec, "acks": "all", "enable_idempotence": True, "linger_ms": 5}
    return KafkaProducer(**common(arguments), **settings)


def finish(producer, futures):
    producer.flush(timeout=DEADLINE_S)
    for future in futures:
        future.get(timeout=DEADLINE_S)
    producer.close()


def produce(arguments):
    records = read_records(arguments)
    for codec, topic in jobs(arguments):
        producer = new_producer(arguments, codec)
        futures = []
        for record in records:
            headers = [(name, data(value)) for name, value in record["h"]]
            futures.append(producer.send(topic, data(record["v"]), data(record["k"]), headers, record["p"]))
        finish(producer, futures)


def consume(arguments):
    consumer = KafkaConsumer(**common(arguments), enable_auto_commit=False, max_poll_records=5000)
    for topic in arguments["topics"].split(","):
        consume_topic(consumer, topic, Path(arguments["out"]) / f"{topic}.jsonl")
    consumer.close()


def consume_topic(consumer, topic, path):
    partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    ends = consumer.end_offsets(partitions)
    deadline = time.monotonic() + DEADLINE_S
    with path.open("w", encoding="utf-8") as out:
        while any(consumer.position(p) < ends[p] for p in partitions):
            check(time.monotonic() < deadline, f"{topic}: read to the ends {ends}")
            for found in consumer.poll(100).values():
                out.writelines(as_line(r.partition, r.offset, r.key, r.value, r.headers) for r in found)


def feed(arguments):
    producer = new_producer(arguments, "lz4")
    futures = []
    for line in sys.stdin:
        key, value = line.rstrip("\n").split("\t", 1)
        futures.append(producer.send(arguments["topic"], data(value), data(key)))
    finish(producer, futures)
    print("acknowledged", len(futures))


def transact(arguments):
    producer = KafkaProducer(**common(arguments), transactional_id=arguments["id"])
    producer.init_transactions()
    consumer = KafkaConsumer(
        **common(arguments),
        group_id=arguments["group"],
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_poll_records=200,
    )
    topic = arguments["input"]
    partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    ends, positions = consumer.end_offsets(partitions), {p: 0 for p in partitions}
    deadline, chunks = time.monotonic() + DEADLINE_S, 0
    while any(positions[p] < ends[p] for p in partitions):
        check(time.monotonic() < deadline, f"{positions} of {ends} is passed on")
        records = [record for found in consumer.poll(100).values() for record in found]
        if not records:
            continue
        positions |= {TopicPartition(topic, record.partition): record.offset + 1 for record in records}
        chunks += 1
        for commit in [False, True] if chunks % 3 == 0 else [True]:
            producer.begin_transaction()
            for r in records:
                producer.send(arguments["output"], r.value, r.key, partition=r.partition)
            offsets = {p: OffsetAndMetadata(position, "", -1) for p, position in positions.items()}
            producer.send_offsets_to_transaction(offsets, arguments["group"])
            if commit:
                producer.commit_transaction()
            else:
                producer.flush(timeout=DEADLINE_S)
                producer.abort_transaction()
    consumer.close()
    producer.close()


class Member(AsyncConsumerRebalanceListener):
    """One member of a group."""

    def __init__(self, arguments):
        self.topic = arguments["topic"]
        self.notes = Notes(arguments)
        self.unplaced = set()
        self.consumer = KafkaConsumer(
            **common(arguments),
            group_id=arguments["group"],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=int(arguments["session_ms"]),
            heartbeat_interval_ms=500,
            partition_assignment_strategy=[ASSIGNORS[arguments["rebalance"]]],
        )

    def run(self, stopping):
        self.consumer.subscribe([self.topic], listener=self)
        # A leader that joins before it has learnt of its subscription's topic wants to assign again as soon as it has. If
        # it has when the second join is under way, it takes that for done and is without heartbeats from then on.
        until(lambda: self.topic in self.consumer.topics(), "the topic is known")
        while not stopping.is_set():
            self.poll()
            if self.notes.is_commit_due():
                self.try_commit()
        while not self.try_commit():
            self.poll()
        self.consumer.close()

    def poll(self):
        found = self.consumer.poll(100)
        for partition in self.unplaced:
            found.pop(partition, None)
            self.begin_at_committed(partition)
        self.unplaced.clear()
        for records in found.values():
            for record in records:
                self.notes.read(record.partition, record.offset, record.value)
        self.notes.out.flush()

    def begin_at_committed(self, partition):
        """The client keeps its position in a partition that it had, gave up and has again, when it joined a generation in
        between without learning what it was assigned there: it would read again what others read meanwhile.
        """
        committed = self.consumer.committed(partition)
        if committed is None:
            self.consumer.seek_to_beginning(partition)
        else:
            self.consumer.seek(partition, committed)

    def try_commit(self):
        """Commits, unless a rebalance is under way: it is to be polled to its end first."""
        try:
            offsets = self.notes.to_commit()
            if offsets:
                self.consumer.commit(self.named(offsets))
            self.notes.committed(offsets)
            return True
        except (CommitFailedError, RebalanceInProgressError):
            return False

    def named(self, offsets):
        return {TopicPartition(self.topic, p): OffsetAndMetadata(o, "", -1) for p, o in offsets.items()}

    async def on_partitions_assigned(self, assigned):
        self.unplaced.update(assigned)
        self.notes.note("assigned", [p.partition for p in assigned])

    async def on_partitions_revoked(self, revoked):
        """Runs on the consumer's own thread, where a call that blocks is refused, so the commit is awaited."""
        self.unplaced.difference_update(revoked)
        revoked = [p.partition for p in revoked]
        offsets = self.notes.to_commit(revoked)
        if offsets:
            await self.consumer.commit_async(self.named(offsets))
        self.notes.committed(offsets)
        self.notes.note("revoked", revoked)

    async def on_partitions_lost(self, lost):
        self.unplaced.difference_update(lost)
        self.notes.note("lost", [p.partition for p in lost])


def member(arguments):
    Member(arguments).run(end_of_input())


def expect_error(error, call, *arguments):
    try:
        call(*arguments)
    except error:
        return
    raise SystemExit(f"no {error.__name__}")


def admin(arguments):
    client = KafkaAdminClient(**common(arguments))
    topic = arguments["topic"]
    wanted = {topic: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "3600000"}}}
    client.create_topics(wanted)
    expect_error(TopicAlreadyExistsError, client.create_topics, wanted)
    until(lambda: topic in client.list_topics(), "listed after creation")
    configs(client, topic)
    client.create_partitions({topic: 4})
    until(lambda: len(client.describe_topics([topic])[0]["partitions"]) == 4, "four partitions")
    expect_error(InvalidPartitionsError, client.create_partitions, {topic: 3})
    delete_records(arguments, client, topic)
    groups(arguments, client, topic)
    cluster = client.describe_cluster()
    check(cluster["brokers"] and cluster["cluster_id"], "a node and a cluster id")
    client.delete_topics([topic])
    until(lambda: topic not in client.list_topics(), "gone after deletion")
    client.close()


def configs(client, topic):
    def read(name):
        found = client.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")
        return found["topic"][topic][name]

    def alter(name, value):
        return client.alter_configs([ConfigResource("TOPIC", topic, {name: value})])["topic"][topic]

    check(read("retention.ms")["value"] == "3600000", "retention.ms as created")
    check(read("segment.bytes")["value"] == "1073741824", "segment.bytes by default")
    check(alter("retention.ms", "7200000") == "OK", "retention.ms is altered")
    until(lambda: read("retention.ms")["value"] == "7200000", "retention.ms set")
    client.reset_configs([ConfigResource("TOPIC", topic, ["retention.ms"])])
    until(lambda: read("retention.ms")["value"] == "604800000", "retention.ms back at its default")
    refused = alter("segment.bytes", "none")
    check("InvalidConfigurationError" in refused, f"a segment size that is no number is refused: {refused}")


def delete_records(arguments, client, topic):
    producer = new_producer(arguments, None)
    finish(producer, [producer.send(topic, data(f"record {i}"), partition=0) for i in range(10)])
    first = TopicPartition(topic, 0)
    deleted = client.delete_records({first: 4})[first]
    check(deleted["low_watermark"] == 4, f"low watermark 4: {deleted}")
    consumer = KafkaConsumer(**common(arguments))
    check(consumer.beginning_offsets([first]) == {first: 4}, "begins at 4")
    check(consumer.end_offsets([first]) == {first: 10}, "ends at 10")
    consumer.close()


def groups(arguments, client, topic):
    """Commits through a consumer and reads the commit back through the admin client."""
    group, first = f"{topic}-group", TopicPartition(topic, 0)
    consumer = KafkaConsumer(**common(arguments), group_id=group, enable_auto_commit=False)
    consumer.assign([first])
    consumer.commit({first: OffsetAndMetadata(7, "", -1)})
    consumer.close()
    check(group in [found["group_id"] for found in client.list_groups()], "the group is listed")
    described = client.describe_groups([group])[group]
    check(not described["members"], "the group has no member")
    offsets = client.list_group_offsets(group)[group]
    check({p: found.offset for p, found in offsets.items()} == {first: 7}, f"the committed offset: {offsets}")


if __name__ == "__main__":
    run([create, produce, consume, feed, member, admin, transact])
