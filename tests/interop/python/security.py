"""One user over SASL_SSL: what it may do, what it may not, and a wrong password.

Arguments: client, bootstrap, CA file, user, password, mechanism. Prints one line of JSON for each step."""

import asyncio
import json
import logging
import sys
import time

import logins

CLIENT, BOOTSTRAP, CA, USER, PASSWORD, MECHANISM = sys.argv[1:7]
TOPIC, DENIED_TOPIC = "orders", "secret"
GROUP, DENIED_GROUP = f"readers-{CLIENT}-{MECHANISM}", "others"
RECORDS = 500
PATIENCE = 30.0


def tell(step, outcome):
    print(json.dumps({"step": step, "outcome": outcome}), flush=True)


def confluent():
    from confluent_kafka import Consumer, KafkaException, Producer

    def conf(password, **more):
        return logins.confluent(BOOTSTRAP, CA, USER, password, MECHANISM) | more

    errors = []
    producer = Producer(conf(PASSWORD))
    for number in range(RECORDS):
        producer.produce(TOPIC, str(number), callback=lambda error, _: errors.append(error))
    producer.flush(PATIENCE)
    tell("write", sum(error is None for error in errors))

    refused = []
    try:
        producer.produce(DENIED_TOPIC, b"x", callback=lambda error, _: refused.append(error.name()))
        producer.flush(PATIENCE)
    except KafkaException as error:
        # What it knows of the topic already it says at once.
        refused.append(error.args[0].name())
    tell("denied topic", refused[0])

    def read(group, wanted):
        consumer = Consumer(conf(PASSWORD, **{"group.id": group, "auto.offset.reset": "earliest"}))
        consumer.subscribe([TOPIC])
        count, end = 0, time.monotonic() + PATIENCE
        try:
            while count < wanted and time.monotonic() < end:
                message = consumer.poll(0.5)
                if message and message.error():
                    return message.error().name()
                count += message is not None
            consumer.commit(asynchronous=False)
            return count
        finally:
            consumer.close()

    tell("read", read(GROUP, RECORDS))
    tell("denied group", read(DENIED_GROUP, RECORDS))

    shown = []
    stranger = Producer(conf("wrong", error_cb=lambda error: shown.append(error.name())))
    stranger.produce(TOPIC, b"x")
    end = time.monotonic() + PATIENCE
    while not shown and time.monotonic() < end:
        stranger.poll(0.1)
    tell("wrong password", shown[0])


def kafka_python():
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.errors import KafkaError

    def conf(password):
        return logins.kafka_python(BOOTSTRAP, CA, USER, password, MECHANISM)

    producer = KafkaProducer(**conf(PASSWORD))
    sent = [producer.send(TOPIC, str(number).encode()) for number in range(RECORDS)]
    tell("write", sum(one.get(PATIENCE) is not None for one in sent))
    try:
        producer.send(DENIED_TOPIC, b"x").get(PATIENCE)
        tell("denied topic", None)
    except KafkaError as error:
        tell("denied topic", type(error).__name__)

    def read(group):
        consumer = KafkaConsumer(
            TOPIC, group_id=group, auto_offset_reset="earliest", consumer_timeout_ms=10_000, **conf(PASSWORD)
        )
        try:
            count = 0
            for _ in consumer:
                count += 1
                if count == RECORDS:
                    break
            consumer.commit()
            return count
        except KafkaError as error:
            return type(error).__name__
        finally:
            consumer.close()

    tell("read", read(GROUP))
    tell("denied group", read(DENIED_GROUP))


async def aiokafka():
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.errors import KafkaError

    conf = logins.aiokafka(BOOTSTRAP, CA, USER, PASSWORD, MECHANISM)
    producer = AIOKafkaProducer(**conf)
    await producer.start()
    sent = [await producer.send(TOPIC, str(number).encode()) for number in range(RECORDS)]
    tell("write", sum(one is not None for one in await asyncio.gather(*sent)))
    try:
        await producer.send_and_wait(DENIED_TOPIC, b"x")
        tell("denied topic", None)
    except KafkaError as error:
        tell("denied topic", type(error).__name__)
    await producer.stop()

    async def read(group):
        consumer = AIOKafkaConsumer(TOPIC, group_id=group, auto_offset_reset="earliest", **conf)
        try:
            await consumer.start()
            for _ in range(RECORDS):
                await asyncio.wait_for(consumer.getone(), PATIENCE)
            await consumer.commit()
            return RECORDS
        except KafkaError as error:
            return type(error).__name__
        finally:
            await consumer.stop()

    tell("read", await read(GROUP))
    tell("denied group", await read(DENIED_GROUP))


logging.disable(logging.CRITICAL)
if CLIENT == "aiokafka":
    asyncio.run(aiokafka())
else:
    {"python": confluent, "kafka-python": kafka_python}[CLIENT]()
