"""The aiokafka client under test: COMMAND key=value ...

The commands, their arguments and the files that they read and write are the same for every client and are described
in tests/interop/README.md.
"""

import asyncio
import functools
import sys
import time
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import CommitFailedError, InvalidConfigurationError, InvalidPartitionsError
from aiokafka.errors import RebalanceInProgressError, TopicAlreadyExistsError

from common import DEADLINE_S, Notes, as_line, check, data, end_of_input, jobs, read_records, run

# A longer line of input is no record of these checks.
LINE_BYTES_MAX = 1 << 20


def in_loop(command):
    """Makes a plain command of a coroutine."""

    @functools.wraps(command)
    def plain(arguments):
        asyncio.run(command(arguments))

    return plain


async def new_admin(arguments):
    admin = AIOKafkaAdminClient(bootstrap_servers=arguments["bootstrap"])
    await admin.start()
    return admin


def raise_errors(response, wanted=0):
    """Each topic of a response has this error code."""
    for topic, code, *_ in getattr(response, "topic_errors", None) or response.topic_error_codes:
        check(code == wanted, f"{topic} has error code {wanted}, not {code}")


@in_loop
async def create(arguments):
    admin = await new_admin(arguments)
    partitions = int(arguments["partitions"])
    raise_errors(await admin.create_topics([NewTopic(name, partitions, 1) for name in arguments["topics"].split(",")]))
    await admin.close()


async def new_producer(arguments, codec):
    producer = AIOKafkaProducer(
        bootstrap_servers=arguments["bootstrap"],
        compression_type=codec,
        acks="all",
        enable_idempotence=True,
        linger_ms=5,
    )
    await producer.start()
    return producer


async def finish(producer, futures):
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*futures)
        await producer.stop()


@in_loop
async def produce(arguments):
    records = read_records(arguments)
    for codec, topic in jobs(arguments):
        producer = await new_producer(arguments, codec)
        futures = []
        for record in records:
            headers = [(name, data(value)) for name, value in record["h"]]
            key, value, partition = data(record["k"]), data(record["v"]), record["p"]
            futures.append(await producer.send(topic, value, key, partition, headers=headers))
        await finish(producer, futures)


@in_loop
async def consume(arguments):
    for topic in arguments["topics"].split(","):
        await consume_topic(arguments, topic, Path(arguments["out"]) / f"{topic}.jsonl")


async def consume_topic(arguments, topic, path):
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=arguments["bootstrap"], auto_offset_reset="earliest")
    await consumer.start()
    partitions = list(consumer.assignment())
    ends = await consumer.end_offsets(partitions)
    deadline = time.monotonic() + DEADLINE_S
    with path.open("w", encoding="utf-8") as out:
        while any([await consumer.position(p) < ends[p] for p in partitions]):
            check(time.monotonic() < deadline, f"{topic}: read to the ends {ends}")
            for found in (await consumer.getmany(timeout_ms=100, max_records=5000)).values():
                out.writelines(as_line(r.partition, r.offset, r.key, r.value, r.headers) for r in found)
    await consumer.stop()


@in_loop
async def feed(arguments):
    lines = asyncio.StreamReader(LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    producer = await new_producer(arguments, "lz4")
    futures = []
    async for line in lines:
        key, value = line.rstrip(b"\n").split(b"\t", 1)
        futures.append(await producer.send(arguments["topic"], value, key))
    await finish(producer, futures)
    print("acknowledged", len(futures))


@in_loop
async def transact(arguments):
    producer = AIOKafkaProducer(bootstrap_servers=arguments["bootstrap"], transactional_id=arguments["id"])
    await producer.start()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=arguments["bootstrap"],
        group_id=arguments["group"],
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    await consumer.start()
    topic = arguments["input"]
    partitions = [TopicPartition(topic, p) for p in range(int(arguments["partitions"]))]
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    ends, positions = await consumer.end_offsets(partitions), {p: 0 for p in partitions}
    deadline, chunks = time.monotonic() + DEADLINE_S, 0
    while any(positions[p] < ends[p] for p in partitions):
        check(time.monotonic() < deadline, f"{positions} of {ends} is passed on")
        found = await consumer.getmany(timeout_ms=100, max_records=200)
        records = [record for of_one in found.values() for record in of_one]
        if not records:
            continue
        positions |= {TopicPartition(topic, record.partition): record.offset + 1 for record in records}
        chunks += 1
        for commit in [False, True] if chunks % 3 == 0 else [True]:
            await producer.begin_transaction()
            sent = [await producer.send(arguments["output"], r.value, r.key, r.partition) for r in records]
            await asyncio.gather(*sent)
            await producer.send_offsets_to_transaction(positions, arguments["group"])
            await (producer.commit_transaction() if commit else producer.abort_transaction())
    await consumer.stop()
    await producer.stop()


class Member(ConsumerRebalanceListener):
    """One member of a group."""

    def __init__(self, arguments):
        self.topic = arguments["topic"]
        self.notes = Notes(arguments)
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=arguments["bootstrap"],
            group_id=arguments["group"],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=int(arguments["session_ms"]),
            heartbeat_interval_ms=500,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )

    async def run(self, stopping):
        self.consumer.subscribe([self.topic], listener=self)
        await self.consumer.start()
        while not stopping.is_set():
            await self.poll()
            if self.notes.is_commit_due():
                await self.try_commit()
        while not await self.try_commit():
            await self.poll()
        await self.consumer.stop()

    async def poll(self):
        found = await self.consumer.getmany(timeout_ms=100, max_records=500)
        for record in (record for records in found.values() for record in records):
            self.notes.read(record.partition, record.offset, record.value)
        self.notes.out.flush()

    async def try_commit(self):
        """Commits, unless a rebalance is under way: it is to come to its end first."""
        try:
            await self.commit(None)
            return True
        except (CommitFailedError, RebalanceInProgressError):
            return False

    async def commit(self, partitions):
        offsets = self.notes.to_commit(partitions)
        if offsets:
            await self.consumer.commit({TopicPartition(self.topic, p): offset for p, offset in offsets.items()})
        self.notes.committed(offsets)

    async def on_partitions_assigned(self, assigned):
        self.notes.note("assigned", [p.partition for p in assigned])

    async def on_partitions_revoked(self, revoked):
        revoked = [p.partition for p in revoked]
        await self.commit(revoked)
        self.notes.note("revoked", revoked)


@in_loop
async def member(arguments):
    await Member(arguments).run(end_of_input())


async def until(condition, what):
    deadline = time.monotonic() + 15
    while not await condition():
        check(time.monotonic() < deadline, what)
        await asyncio.sleep(0.02)


@in_loop
async def admin(arguments):
    client = await new_admin(arguments)
    topic = arguments["topic"]

    async def is_listed():
        return topic in await client.list_topics()

    async def is_gone():
        return not await is_listed()

    async def has_four_partitions():
        return len((await client.describe_topics([topic]))[0]["partitions"]) == 4

    wanted = NewTopic(topic, 2, 1, topic_configs={"retention.ms": "3600000"})
    raise_errors(await client.create_topics([wanted]))
    raise_errors(await client.create_topics([wanted]), TopicAlreadyExistsError.errno)
    await until(is_listed, "listed after creation")
    await configs(client, topic)
    await client.create_partitions({topic: NewPartitions(4)})
    await until(has_four_partitions, "four partitions")
    try:
        await client.create_partitions({topic: NewPartitions(3)})
        check(False, "fewer partitions are refused")
    except InvalidPartitionsError:
        pass
    await delete_records(arguments, client, topic)
    await groups(arguments, client, topic)
    cluster = await client.describe_cluster()
    check(cluster["brokers"] and cluster["cluster_id"], "a node and a cluster id")
    raise_errors(await client.delete_topics([topic]))
    await until(is_gone, "gone after deletion")
    await client.close()


async def configs(client, topic):
    async def read(name):
        responses = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        entries = responses[0].resources[0][4]
        return next(entry[1] for entry in entries if entry[0] == name)

    async def alter(configs):
        """The error code; a configuration that is not named goes back to its default."""
        responses = await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])
        return responses[0].resources[0][0]

    async def is_set():
        return await read("retention.ms") == "7200000"

    async def is_default():
        return await read("retention.ms") == "604800000"

    check(await read("retention.ms") == "3600000", "retention.ms as created")
    check(await read("segment.bytes") == "1073741824", "segment.bytes by default")
    check(await alter({"retention.ms": "7200000"}) == 0, "retention.ms is altered")
    await until(is_set, "retention.ms set")
    check(await alter({"flush.ms": "1000"}) == 0, "another one is altered")
    await until(is_default, "retention.ms back at its default")
    check(await alter({"segment.bytes": "none"}) == InvalidConfigurationError.errno, "what is no number is refused")


async def delete_records(arguments, client, topic):
    producer = await new_producer(arguments, None)
    await finish(producer, [await producer.send(topic, data(f"record {i}"), partition=0) for i in range(10)])
    first = TopicPartition(topic, 0)
    check(await client.delete_records({first: RecordsToDelete(4)}) == {first: 4}, "low watermark 4")
    consumer = AIOKafkaConsumer(bootstrap_servers=arguments["bootstrap"])
    await consumer.start()
    check(await consumer.beginning_offsets([first]) == {first: 4}, "begins at 4")
    check(await consumer.end_offsets([first]) == {first: 10}, "ends at 10")
    await consumer.stop()


async def groups(arguments, client, topic):
    """Commits through a consumer and reads the commit back through the admin client."""
    group, first = f"{topic}-group", TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=arguments["bootstrap"], group_id=group, enable_auto_commit=False)
    consumer.assign([first])
    await consumer.start()
    await consumer.commit({first: 7})
    await consumer.stop()
    check(group in [found[0] for found in await client.list_consumer_groups()], "the group is listed")
    described = (await client.describe_consumer_groups([group]))[0].groups[0]
    check(described[1] == group and not described[5], "the group has no member")
    offsets = await client.list_consumer_group_offsets(group)
    check({p: found.offset for p, found in offsets.items()} == {first: 7}, f"the committed offset: {offsets}")


if __name__ == "__main__":
    run([create, produce, consume, feed, member, admin, transact])
