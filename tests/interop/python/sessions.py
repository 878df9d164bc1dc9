"""One user whose session ends every few seconds and is renewed, under load: what it writes is read once, all of it.
Then it waits until it may not read any more.

Arguments: client, bootstrap, CA file, user, password, mechanism, topic. Prints one line of JSON for each step: `begun`
when a record has been read, `records` after the end of the standard input, and `rule removed` with the client's own
error."""

import asyncio
import json
import logging
import sys
import threading
import time

import logins

CLIENT, BOOTSTRAP, CA, USER, PASSWORD, MECHANISM, TOPIC = sys.argv[1:8]
GROUP = f"readers-sessions-{CLIENT}"
PACE = 0.02
TIMEOUT = 30.0


def tell(step, outcome):
    print(json.dumps({"step": step, "outcome": outcome}), flush=True)


class Confluent:
    def __init__(self):
        from confluent_kafka import Consumer, KafkaException, Producer

        conf = logins.confluent(BOOTSTRAP, CA, USER, PASSWORD, MECHANISM)
        self.error = KafkaException
        self.producer = Producer(conf | {"enable.idempotence": True, "linger.ms": 5})
        self.consumer = Consumer(conf | {"group.id": GROUP, "auto.offset.reset": "earliest"})
        self.consumer.subscribe([TOPIC])

    def send(self, value):
        self.producer.produce(TOPIC, value)
        self.producer.poll(0)

    def flush(self):
        self.producer.flush(TIMEOUT)

    def poll(self, seconds):
        values = []
        for message in self.consumer.consume(500, seconds):
            if message.error():
                raise self.error(message.error())
            values.append(message.value())
        return values

    def name(self, error):
        return error.args[0].name()


class KafkaPython:
    def __init__(self):
        from kafka import KafkaConsumer, KafkaProducer
        from kafka.errors import KafkaError

        conf = logins.kafka_python(BOOTSTRAP, CA, USER, PASSWORD, MECHANISM)
        self.error = KafkaError
        self.producer = KafkaProducer(enable_idempotence=True, **conf)
        self.consumer = KafkaConsumer(TOPIC, group_id=GROUP, auto_offset_reset="earliest", **conf)

    def send(self, value):
        self.producer.send(TOPIC, value)

    def flush(self):
        self.producer.flush(TIMEOUT)

    def poll(self, seconds):
        polled = self.consumer.poll(timeout_ms=int(seconds * 1000))
        return [record.value for records in polled.values() for record in records]

    def name(self, error):
        return type(error).__name__


class Aiokafka:
    def __init__(self):
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
        from aiokafka.errors import KafkaError

        conf = logins.aiokafka(BOOTSTRAP, CA, USER, PASSWORD, MECHANISM)
        self.error = KafkaError
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

        async def start():
            self.producer = AIOKafkaProducer(enable_idempotence=True, **conf)
            self.consumer = AIOKafkaConsumer(TOPIC, group_id=GROUP, auto_offset_reset="earliest", **conf)
            await self.producer.start()
            await self.consumer.start()

        self.loop.run_until_complete(start())

    def send(self, value):
        self.loop.run_until_complete(self.producer.send(TOPIC, value))

    def flush(self):
        self.loop.run_until_complete(asyncio.wait_for(self.producer.flush(), TIMEOUT))

    def poll(self, seconds):
        polled = self.loop.run_until_complete(self.consumer.getmany(timeout_ms=int(seconds * 1000)))
        return [record.value for records in polled.values() for record in records]

    def name(self, error):
        return type(error).__name__


def run(client):
    stopping = threading.Event()

    def watch():
        sys.stdin.buffer.read()
        stopping.set()

    threading.Thread(target=watch, daemon=True).start()
    written, read = 0, []
    while not stopping.is_set():
        client.send(str(written).encode())
        written += 1
        begins = not read
        read += client.poll(PACE)
        if begins and read:
            tell("begun", None)
    client.flush()
    end = time.monotonic() + TIMEOUT
    while len(set(read)) < written and time.monotonic() < end:
        read += client.poll(0.2)
    once = set(read)
    tell("records", {"written": written, "read": len(once), "repeated": len(read) - len(once)})
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        try:
            client.poll(0.2)
        except client.error as error:
            return tell("rule removed", client.name(error))
    tell("rule removed", None)


logging.disable(logging.CRITICAL)
run({"python": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka}[CLIENT]())
