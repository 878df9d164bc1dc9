"""The confluent-kafka client under test: COMMAND key=value ...

The commands, their arguments and the files that they read and write are the same for every client and are described
in tests/interop/README.md.
"""

import contextlib
import json
import os
import queue
import sys
import threading
import time
import traceback
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

DEADLINE_S = 90
# A call that has not come to its end by then is made again.
CALL_S = 10
# So often a transactional producer asks for something that connects it. It is longer than its connections may be idle.
RECONNECT_S = 6
ASSIGNORS = {"eager": "range", "cooperative": "cooperative-sticky"}


def common(arguments):
    settings = {"bootstrap.servers": arguments["bootstrap"], "reconnect.backoff.max.ms": 200}
    if "request_timeout_ms" in arguments:
        settings["socket.timeout.ms"] = int(arguments["request_timeout_ms"])
    return settings


def create(arguments):
    admin = AdminClient(common(arguments))
    names = arguments["topics"].split(",")
    wait(admin.create_topics([NewTopic(name, int(arguments["partitions"]), 1) for name in names]))


def wait(futures):
    """The results of an admin call, by resource; the first error is raised."""
    return {resource: future.result(30) for resource, future in futures.items()}


def new_producer(arguments, codec):
    settings = {"compression.type": codec, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
    return Producer(common(arguments) | settings)


class Deliveries:
    """Counts acknowledged records and keeps the first error."""

    def __init__(self):
        self.acknowledged = 0
        self.error = None

    def __call__(self, error, message):
        if error is None:
            self.acknowledged += 1
        elif self.error is None:
            self.error = error

    def finish(self, producer):
        if producer.flush(DEADLINE_S) != 0 or self.error is not None:
            raise SystemExit(f"not everything was delivered: {self.error}")


def send(producer, topic, deliveries, **record):
    """Queues a record; while the queue is full, serves deliveries."""
    while True:
        try:
            producer.produce(topic, on_delivery=deliveries, **record)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.05)


def produce(arguments):
    records = [json.loads(line) for line in Path(arguments["input"]).read_text("utf-8").splitlines()]
    for job in arguments["jobs"].split(","):
        codec, topic = job.split(":")
        producer = new_producer(arguments, codec)
        deliveries = Deliveries()
        for record in records:
            headers = [(name, value) for name, value in record["h"]]
            send(producer, topic, deliveries, partition=record["p"], key=record["k"], value=record["v"], headers=headers)
        deliveries.finish(producer)


def text(data):
    return None if data is None else data.decode("utf-8")


def as_json(message):
    return {
        "p": message.partition(),
        "o": message.offset(),
        "k": text(message.key()),
        "v": text(message.value()),
        "h": [[name, text(value)] for name, value in message.headers() or []],
    }


def consume(arguments):
    consumer = Consumer(common(arguments) | {"group.id": "unused", "enable.auto.commit": False})
    for topic in arguments["topics"].split(","):
        consume_topic(consumer, topic, Path(arguments["out"]) / f"{topic}.jsonl")
    consumer.close()


def consume_topic(consumer, topic, path):
    partitions = sorted(consumer.list_topics(topic, 30).topics[topic].partitions)
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), 30)[1] for p in partitions}
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    behind = {p for p in partitions if ends[p] > 0}
    deadline = time.monotonic() + DEADLINE_S
    with path.open("w", encoding="utf-8") as out:
        while behind:
            if time.monotonic() > deadline:
                raise SystemExit(f"{topic}: not read to the ends {ends}")
            for message in consumer.consume(1000, 0.1):
                if message.error():
                    raise KafkaException(message.error())
                out.write(json.dumps(as_json(message), ensure_ascii=False) + "\n")
                if message.offset() + 1 >= ends[message.partition()]:
                    behind.discard(message.partition())


def feed(arguments):
    producer = new_producer(arguments, "lz4")
    deliveries = Deliveries()
    for line in sys.stdin:
        key, value = line.rstrip("\n").split("\t", 1)
        send(producer, arguments["topic"], deliveries, key=key, value=value)
    deliveries.finish(producer)
    print("acknowledged", deliveries.acknowledged)


def append(arguments):
    producer = new_producer(arguments, "none")
    with Path(arguments["out"]).open("w", encoding="utf-8") as out:

        def delivered(error, message):
            if error is not None:
                print(error, file=sys.stderr)
            place = f"ok {message.partition()} {message.offset()}" if error is None else f"info {message.partition()} -1"
            out.write(f"{place} {text(message.value())}\n")
            out.flush()

        stopped = threading.Event()

        def serve():
            while not stopped.is_set():
                producer.poll(0.02)

        # Lines may come slowly, acknowledgements do not wait for them.
        server = threading.Thread(target=serve)
        server.start()
        for line in sys.stdin:
            partition, value = line.rstrip("\n").split(" ", 1)
            send(producer, arguments["topic"], delivered, partition=int(partition), value=value)
        stopped.set()
        server.join()
        producer.flush(DEADLINE_S)


def transact(arguments):
    producer = Producer(common(arguments) | {"transactional.id": arguments["id"], "linger.ms": 5})
    producer.init_transactions(DEADLINE_S)
    settings = {"group.id": arguments["group"], "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer(common(arguments) | settings)
    topic = arguments["input"]
    partitions = sorted(consumer.list_topics(topic, 30).topics[topic].partitions)
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), 30)[1] for p in partitions}
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    positions = {p: 0 for p in partitions}
    deadline, chunks = time.monotonic() + DEADLINE_S, 0
    while any(positions[p] < ends[p] for p in partitions):
        if time.monotonic() > deadline:
            raise SystemExit(f"only {positions} of {ends} is passed on")
        messages = consumer.consume(200, 0.1)
        if not messages:
            continue
        for message in messages:
            if message.error():
                raise KafkaException(message.error())
            positions[message.partition()] = message.offset() + 1
        chunks += 1
        for commit in [False, True] if chunks % 3 == 0 else [True]:
            pass_on(arguments, producer, consumer, messages, positions, commit)
    consumer.close()


def pass_on(arguments, producer, consumer, messages, positions, commit):
    """Writes a chunk and commits how far it goes, in one transaction."""
    producer.begin_transaction()
    deliveries = Deliveries()
    for m in messages:
        send(producer, arguments["output"], deliveries, partition=m.partition(), key=m.key(), value=m.value())
    offsets = [TopicPartition(arguments["input"], p, position) for p, position in positions.items()]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), DEADLINE_S)
    if commit:
        producer.commit_transaction(DEADLINE_S)
    else:
        producer.flush(DEADLINE_S)
        producer.abort_transaction(DEADLINE_S)


class Member:
    """One member of a group: writes down what it read and what it committed, in that order."""

    def __init__(self, arguments, out):
        self.out = out
        self.commit_every = int(arguments["commit_every"])
        self.commit_when_idle = "commit_when_idle" in arguments
        self.positions = {}
        self.committed = {}
        self.uncommitted = 0
        settings = {
            "group.id": arguments["group"],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        if arguments["rebalance"] == "consumer":
            # Times and assignors are the broker's (KIP-848).
            settings["group.protocol"] = "consumer"
        else:
            settings["session.timeout.ms"] = int(arguments["session_ms"])
            settings["heartbeat.interval.ms"] = 500
            settings["partition.assignment.strategy"] = ASSIGNORS[arguments["rebalance"]]
        self.consumer = Consumer(common(arguments) | settings)
        self.topic = arguments["topic"]

    def run(self, stopping):
        self.consumer.subscribe([self.topic], on_assign=self.assigned, on_revoke=self.revoked, on_lost=self.lost)
        while not stopping.is_set():
            self.poll()
        while not self.try_commit():
            self.poll()
        self.consumer.close()

    def poll(self):
        message = self.consumer.poll(0.1)
        if message is None:
            self.out.flush()
            if self.commit_when_idle and self.uncommitted > 0:
                self.try_commit()
        elif message.error():
            raise KafkaException(message.error())
        else:
            self.read(message)

    def read(self, message):
        self.write(f"r {message.partition()} {message.offset()} {text(message.value())}")
        self.positions[message.partition()] = message.offset() + 1
        self.uncommitted += 1
        if self.uncommitted >= self.commit_every:
            self.try_commit()

    def try_commit(self):
        """Commits, unless a rebalance is under way: it is to be polled to its end first."""
        try:
            self.commit(list(self.positions))
            return True
        except KafkaException as e:
            if e.args[0].code() not in (KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS):
                raise
            return False

    def commit(self, partitions):
        # What is committed has to be written down, whatever kills us in between.
        self.out.flush()
        offsets = [TopicPartition(self.topic, p, self.positions[p]) for p in partitions if self.has_moved(p)]
        if offsets:
            for done in self.consumer.commit(offsets=offsets, asynchronous=False):
                if done.error:
                    raise KafkaException(done.error)
        self.uncommitted = 0
        for offset in offsets:
            self.committed[offset.partition] = offset.offset
            self.write(f"c {offset.partition} {offset.offset}")
        self.out.flush()

    def has_moved(self, partition):
        """Returns true if records of a partition were read that are not committed. A close that falls into a rebalance may
        leave the group before it calls for the revocation (librdkafka leaves when the rebalance ends), and then takes no
        commit: what `run` committed before the close is not committed again."""
        return partition in self.positions and self.positions[partition] != self.committed.get(partition)

    def commit_revoked(self, partitions):
        """A close may come when the member has joined a new generation whose leader has not assigned it yet: until it
        has, a coordinator takes no commits of that generation."""
        deadline = time.monotonic() + 10
        while True:
            try:
                return self.commit(partitions)
            except KafkaException as e:
                if e.args[0].code() != KafkaError.REBALANCE_IN_PROGRESS or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def assigned(self, _consumer, partitions):
        self.note("assigned", partitions)

    def revoked(self, _consumer, partitions):
        self.commit_revoked([p.partition for p in partitions])
        self.forget(partitions)
        self.note("revoked", partitions)

    def lost(self, _consumer, partitions):
        self.forget(partitions)
        self.note("lost", partitions)

    def forget(self, partitions):
        for partition in partitions:
            self.positions.pop(partition.partition, None)
            self.committed.pop(partition.partition, None)

    def note(self, what, partitions):
        for partition in partitions:
            self.write(f"{what} {partition.partition}")
        self.out.flush()

    def write(self, line):
        self.out.write(line + "\n")


def member(arguments):
    stopping = threading.Event()

    def watch():
        sys.stdin.buffer.read()
        stopping.set()

    threading.Thread(target=watch, daemon=True).start()
    run_until_its_end(arguments, lambda out: Member(arguments, out).run(stopping))


class Loop:
    """Reads, and writes a new record for each to the partition of the same number, in transactions with how far it has read.
    Writes down each step before what others can see of it, and the outcome behind it."""

    # One transaction of so many is aborted when all of it is sent.
    ABORTED = 6
    # A transaction has so many records at most, and what comes within this time.
    RECORDS_MAX = 200
    GATHER_S = 0.05

    def __init__(self, arguments, out, answers):
        self.out, self.answers = out, answers
        self.topic, self.output = arguments["topic"], arguments["output"]
        self.next_value = int(arguments["values"])
        self.transactions = 0
        self.gathered = []
        settings = {"transactional.id": arguments["id"], "linger.ms": 1}
        # A call of send_offsets_to_transaction() may wait for a coordinator that librdkafka has forgotten until the connection to some
        # broker changes, whatever the call's limit is (librdkafka issues 5511, 5456). It forgets all brokers when they are down at once,
        # unless configured otherwise, and one that the cluster does not name any more, as it hangs or starts again. Connections
        # that were not used for longer than a request may take end then, and new ones are made. A transaction outlasts some of that.
        settings["metadata.recovery.strategy"] = "none"
        settings["connections.max.idle.ms"] = 4_000
        settings["transaction.timeout.ms"] = 300_000
        self.producer = Producer(common(arguments) | settings)
        settings = {
            "group.id": arguments["group"],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # Offsets of a transaction that has not ended are waited for.
            "isolation.level": "read_committed",
            "partition.assignment.strategy": ASSIGNORS["eager"],
            "session.timeout.ms": int(arguments["session_ms"]),
            "heartbeat.interval.ms": 500,
        }
        self.consumer = Consumer(common(arguments) | settings)

    def run(self, stopping):
        # What one before it has left open is aborted by that.
        again(self.producer.init_transactions)
        threading.Thread(target=self.connect_again, args=[stopping], daemon=True).start()
        self.consumer.subscribe([self.topic], on_assign=self.assigned, on_revoke=self.taken, on_lost=self.taken)
        while not stopping.is_set():
            self.gather()
            if self.gathered:
                self.pass_on()
            self.out.flush()
        self.consumer.close()

    def connect_again(self, stopping):
        """Asks a broker for something, now and then, which makes a connection when all have ended as idle."""
        while not stopping.wait(RECONNECT_S):
            with contextlib.suppress(KafkaException):
                self.producer.list_topics(self.output, timeout=1)

    def gather(self):
        message, end = self.consumer.poll(0.1), time.monotonic() + self.GATHER_S
        while message is not None:
            if message.error():
                raise KafkaException(message.error())
            self.gathered.append(message)
            if len(self.gathered) == self.RECORDS_MAX or time.monotonic() > end:
                return
            message = self.consumer.poll(0.01)

    def assigned(self, _consumer, partitions):
        for partition in partitions:
            self.write(f"assigned {partition.partition}")

    def taken(self, _consumer, _partitions):
        # It is read again by who has the partitions next.
        self.gathered = []

    def pass_on(self):
        """One transaction, after which the loop is behind what was gathered, or before it again."""
        messages, self.gathered = self.gathered, []
        begins, ends = {}, {}
        self.transactions += 1
        self.producer.begin_transaction()
        self.write("begin")
        for message in messages:
            self.write(f"r {message.partition()} {message.offset()} {text(message.value())}")
            begins.setdefault(message.partition(), message.offset())
            ends[message.partition()] = message.offset() + 1
        try:
            self.send_all(messages)
            if self.send_offsets(ends) and self.transactions % self.ABORTED != 0:
                self.write("committing")
                again(self.producer.commit_transaction)
                self.write("committed")
                return
        except KafkaException as e:
            if e.args[0].fatal():
                raise
            print(e, file=sys.stderr)
        self.abort(begins)

    def send_all(self, messages):
        for message in messages:
            value, self.next_value = self.next_value, self.next_value + 1
            self.write(f"w {message.partition()} {value}")
            send(self.producer, self.output, self.delivered, partition=message.partition(), value=str(value))
        if self.producer.flush(DEADLINE_S) != 0:
            raise RuntimeError("not everything was delivered")

    def delivered(self, error, message):
        # A record that was there already when it came again may be acknowledged without its offset.
        offset = -1 if error is not None or message.offset() is None else message.offset()
        self.write(f"{'ok' if error is None else 'info'} {message.partition()} {offset} {text(message.value())}")

    def send_offsets(self, ends):
        """Makes the offsets a part of the transaction, when the one who reads what is written here knows of them: others may see
        them from then on. False: it is to stop."""
        for partition, offset in ends.items():
            self.write(f"offset {partition} {offset}")
        self.write("ask")
        self.out.flush()
        if self.answers.get() is None:
            return False
        offsets = [TopicPartition(self.topic, partition, offset) for partition, offset in ends.items()]
        group = self.consumer.consumer_group_metadata()
        again(lambda limit: self.producer.send_offsets_to_transaction(offsets, group, limit))
        self.write("sent")
        return True

    def abort(self, begins):
        self.write("aborting")
        again(self.producer.abort_transaction)
        self.write("aborted")
        assigned = {partition.partition for partition in self.consumer.assignment()}
        for partition, offset in begins.items():
            if partition in assigned:
                self.write(f"seek {partition} {offset}")
                self.consumer.seek(TopicPartition(self.topic, partition, offset))

    def write(self, line):
        self.out.write(line + "\n")


def again(call):
    """Makes a call, which takes how long it may wait, until it has come to its end."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return call(CALL_S)
        except KafkaException as e:
            if not e.args[0].retriable() or time.monotonic() > deadline:
                raise
            print("again:", e, file=sys.stderr)
            time.sleep(0.1)


def loop(arguments):
    stopping, answers = threading.Event(), queue.SimpleQueue()

    def listen():
        for line in sys.stdin:
            answers.put(line)
        stopping.set()
        answers.put(None)

    threading.Thread(target=listen, daemon=True).start()
    run_until_its_end(arguments, lambda out: Loop(arguments, out, answers).run(stopping))


def run_until_its_end(arguments, run):
    with Path(arguments["out"]).open("w", encoding="utf-8") as out:
        try:
            run(out)
        except Exception:
            # The client's threads would keep a process that ends in the ordinary way from ending.
            traceback.print_exc()
            out.flush()
            os._exit(1)


def check(holds, what):
    if not holds:
        raise SystemExit(f"does not hold: {what}")


def expect_error(futures, code):
    try:
        wait(futures)
    except KafkaException as e:
        check(e.args[0].code() == code, f"error {code}, not {e}")
        return
    raise SystemExit(f"no error {code}")


def until(condition, what):
    deadline = time.monotonic() + 15
    while not condition():
        check(time.monotonic() < deadline, what)
        time.sleep(0.02)


def admin(arguments):
    client = AdminClient(common(arguments))
    topic = arguments["topic"]
    wanted = NewTopic(topic, 2, 1, config={"retention.ms": "3600000"})
    wait(client.create_topics([wanted]))
    expect_error(client.create_topics([wanted]), KafkaError.TOPIC_ALREADY_EXISTS)
    until(lambda: topic in client.list_topics(timeout=30).topics, "listed after creation")
    configs(client, topic)
    wait(client.create_partitions([NewPartitions(topic, 4)]))
    until(lambda: len(client.list_topics(topic, 30).topics[topic].partitions) == 4, "four partitions")
    expect_error(client.create_partitions([NewPartitions(topic, 3)]), KafkaError.INVALID_PARTITIONS)
    delete_records(arguments, client, topic)
    groups(arguments, client, topic)
    cluster = client.describe_cluster().result(30)
    check(cluster.nodes and cluster.cluster_id, "a node and a cluster id")
    wait(client.delete_topics([topic]))
    until(lambda: topic not in client.list_topics(timeout=30).topics, "gone after deletion")


def configs(client, topic):
    def read(name):
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        return wait(client.describe_configs([resource]))[resource][name]

    def alter(name, value, operation):
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        return client.incremental_alter_configs([resource])

    retention = read("retention.ms")
    check(retention.value == "3600000", "retention.ms as created")
    check(retention.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value, "retention.ms is of the topic")
    check(read("segment.bytes").value == "1073741824", "segment.bytes by default")
    wait(alter("retention.ms", "7200000", AlterConfigOpType.SET))
    until(lambda: read("retention.ms").value == "7200000", "retention.ms set")
    wait(alter("retention.ms", None, AlterConfigOpType.DELETE))
    until(lambda: read("retention.ms").is_default, "retention.ms back at its default")
    expect_error(alter("segment.bytes", "none", AlterConfigOpType.SET), KafkaError.INVALID_CONFIG)


def delete_records(arguments, client, topic):
    producer = new_producer(arguments, "none")
    deliveries = Deliveries()
    for i in range(10):
        send(producer, topic, deliveries, partition=0, value=f"record {i}")
    deliveries.finish(producer)
    low = wait(client.delete_records([TopicPartition(topic, 0, 4)]))
    check([deleted.low_watermark for deleted in low.values()] == [4], "low watermark 4")
    consumer = Consumer(common(arguments) | {"group.id": "unused"})
    check(consumer.get_watermark_offsets(TopicPartition(topic, 0), 30) == (4, 10), "begins at 4, ends at 10")
    consumer.close()
    latest = wait(client.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()}))
    check([found.offset for found in latest.values()] == [10], "latest offset 10")


def groups(arguments, client, topic):
    """Commits through a consumer and reads the commit back through the admin client."""
    group = f"{topic}-group"
    consumer = Consumer(common(arguments) | {"group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    consumer.close()
    listed = client.list_consumer_groups().result(30).valid
    check(group in [entry.group_id for entry in listed], "the group is listed")
    described = wait(client.describe_consumer_groups([group]))[group]
    check(described.group_id == group and not described.members, "the group has no member")
    offsets = wait(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))[group]
    check([(o.partition, o.offset) for o in offsets.topic_partitions] == [(0, 7)], "the committed offset")


COMMANDS = {f.__name__: f for f in (create, produce, consume, feed, append, member, admin, transact, loop)}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](dict(argument.split("=", 1) for argument in sys.argv[2:]))
