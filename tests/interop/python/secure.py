"""The ways of a plan in which a Python client logs in; the plan and what is printed are described in
tests/interop/README.md.

Arguments: client, plan=FILE."""

import asyncio
import functools
import json
import logging
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import logins

CLIENT = sys.argv[1]
RECORDS = 100
TIMEOUT = 30.0


class Confluent:
    def settings(self, way):
        return logins.confluent_way(way) | {"message.timeout.ms": 20_000}

    def write(self, way, topic, count):
        from confluent_kafka import KafkaException, Producer

        shown, failed = [], []
        producer = Producer(self.settings(way) | {"error_cb": shown.append})
        try:
            for number in range(count):
                producer.produce(topic, str(number), callback=lambda error, _: error and failed.append(error))
        except KafkaException as error:
            # What it knows of the topic already it says at once.
            failed.append(error.args[0])
        end = time.monotonic() + TIMEOUT
        while len(producer) and not shown and time.monotonic() < end:
            producer.poll(0.05)
        # Its record waits for another broker, or another password: the error is what its user sees.
        if failed or shown:
            producer.purge()
            raise KafkaException((failed or shown)[0])
        return count - len(producer)

    def read(self, way, group):
        from confluent_kafka import Consumer, KafkaException

        consumer = Consumer(self.settings(way) | {"group.id": group, "auto.offset.reset": "earliest"})
        try:
            consumer.subscribe(["orders"])
            count, end = 0, time.monotonic() + TIMEOUT
            while count < RECORDS and time.monotonic() < end:
                message = consumer.poll(0.5)
                if message and message.error():
                    raise KafkaException(message.error())
                count += message is not None
            consumer.commit(asynchronous=False)
            return count
        finally:
            consumer.close()

    def name(self, error):
        inner = error.args[0]
        return f"{inner.name()}: {inner.str()}" if hasattr(inner, "name") else str(error)


class Logged(logging.Handler):
    """Keeps what a client logs of its errors: kafka-python and aiokafka raise of a broker that they cannot enter only that
    they cannot begin with it, and log why."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []
        logging.getLogger().addHandler(self)

    def emit(self, record):
        self.messages.append(record.getMessage())


class KafkaPython:
    def __init__(self):
        self.logged = Logged()

    def settings(self, way, is_brief=False):
        # It tries for as long, whatever the broker answers.
        return logins.kafka_python_way(way) | {"bootstrap_timeout_ms": 1_000 if is_brief else 30_000}

    def write(self, way, topic, count):
        if not way["use"]:
            try:
                return self.write_by(self.settings(way, True), topic, count)
            except Exception:
                said = " ".join(self.logged.messages).lower()
                # A machine that was busy all the time has kept the broker's answer from it.
                if any(word in said for word in ("authentication", "certificate")):
                    raise
        return self.write_by(self.settings(way), topic, count)

    def write_by(self, settings, topic, count):
        from kafka import KafkaProducer

        self.logged.messages.clear()
        producer = KafkaProducer(**settings)
        try:
            sent = [producer.send(topic, str(number).encode()) for number in range(count)]
            return sum(one.get(TIMEOUT) is not None for one in sent)
        finally:
            producer.close(0)

    def read(self, way, group):
        from kafka import KafkaConsumer

        self.logged.messages.clear()
        consumer = KafkaConsumer("orders", group_id=group, auto_offset_reset="earliest", **self.settings(way))
        try:
            count, end = 0, time.monotonic() + TIMEOUT
            while count < RECORDS and time.monotonic() < end:
                count += sum(map(len, consumer.poll(500).values()))
            consumer.commit()
            return min(count, RECORDS)
        finally:
            consumer.close()

    def name(self, error):
        logged = "; ".join(dict.fromkeys(self.logged.messages))
        return f"{type(error).__name__}: {error} (logged: {logged})"


class Aiokafka(KafkaPython):
    def write(self, way, topic, count):
        self.logged.messages.clear()
        return asyncio.run(self.write_all(way, topic, count))

    def read(self, way, group):
        self.logged.messages.clear()
        return asyncio.run(self.read_all(way, group))

    async def write_all(self, way, topic, count):
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(**logins.aiokafka_way(way))
        try:
            await producer.start()
            sent = [await producer.send(topic, str(number).encode()) for number in range(count)]
            return len(await asyncio.gather(*sent))
        finally:
            await producer.stop()

    async def read_all(self, way, group):
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer("orders", group_id=group, auto_offset_reset="earliest", **logins.aiokafka_way(way))
        try:
            await consumer.start()
            for _ in range(RECORDS):
                await asyncio.wait_for(consumer.getone(), TIMEOUT)
            await consumer.commit()
            return RECORDS
        finally:
            await consumer.stop()


@functools.cache
def client():
    """What the steps of this process are taken by; each of them makes a new client."""
    return {"python": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka}[CLIENT]()


def outcome(method, way, *arguments):
    try:
        return str(getattr(client(), method)(way, *arguments))
    except Exception as error:
        return client().name(error)


def run(plan):
    """Has the steps taken by processes that go on: what clients log of their errors cannot be mixed up in them."""
    at_once = max(way["at_once"] for way in plan)
    with ProcessPoolExecutor(at_once, multiprocessing.get_context("fork")) as processes:

        def take(times, way, step, method, *arguments):
            tried = [processes.submit(outcome, method, way, *arguments) for _ in range(times)]
            for one in tried:
                print(json.dumps({"way": way["name"], "step": step, "outcome": one.result()}), flush=True)

        for way in plan:
            if way["use"]:
                take(1, way, "write", "write", "orders", RECORDS)
                take(1, way, "read", "read", f"readers-{CLIENT}-{way['name']}")
                take(way["times"], way, "denied topic", "write", "secret", 1)
                take(way["times"], way, "denied group", "read", "others")
            else:
                take(way["times"], way, "refused", "write", "orders", 1)


run(json.loads(Path(sys.argv[2].removeprefix("plan=")).read_text(encoding="utf-8")))
