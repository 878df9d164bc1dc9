"""What confluent-kafka (librdkafka) shows its user when things go wrong.

Each line of standard input is a step, each line of standard output what came of it; both are described in
tests/interop/README.md. An error is named as librdkafka names it.
"""

import json
import os
import sys
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

DEADLINE_S = 60


class Errors:
    def __init__(self, bootstrap):
        self.common = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 200}
        # Kept, since a client that is not referred to is destroyed with its calls under way.
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.producers = {}
        self.throttled_ms = 0
        self.consumers = {}

    def answer(self, step):
        try:
            return getattr(self, step["do"])(step) or {}
        except KafkaException as e:
            return {"error": e.args[0].name(), "message": e.args[0].str()}

    def configure(self, step):
        """Settings of a client, which says when the broker has it wait for a quota's sake."""

        def throttled(event):
            self.throttled_ms = max(self.throttled_ms, round(event.throttle_time * 1000))

        return self.common | step.get("config", {}) | {"throttle_cb": throttled}

    def wait(self, futures):
        for future in futures.values():
            future.result(30)

    def create(self, step):
        topic = NewTopic(step["topic"], 1, 1, config=step.get("config", {}))
        self.wait(self.admin.create_topics([topic]))

    def delete(self, step):
        self.wait(self.admin.delete_topics([step["topic"]]))

    def alter(self, step):
        entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in step["config"].items()]
        resource = ConfigResource(ConfigResource.Type.TOPIC, step["topic"], incremental_configs=entries)
        self.wait(self.admin.incremental_alter_configs([resource]))

    def producer(self, step):
        self.producers[step["name"]] = Producer(self.configure(step))

    def send(self, step):
        """Sends a record of each size, all at once, and tells of each its offset or its error."""
        producer = self.producers[step["name"]]
        outcomes = {}

        def delivered(number):
            def note(error, message):
                outcomes[number] = error.name() if error else str(message.offset())

            return note

        for number, size in enumerate(step["sizes"]):
            try:
                producer.produce(step["topic"], partition=0, value="x" * size, on_delivery=delivered(number))
            except KafkaException as e:
                outcomes[number] = e.args[0].name()
        producer.flush(DEADLINE_S)
        outcomes = [outcomes[number] for number in range(len(step["sizes"]))]
        return {"outcomes": outcomes, "throttled_ms": self.throttled_ms}

    def consumer(self, step):
        settings = {"auto.offset.reset": "earliest", "group.id": step["name"], "enable.auto.commit": False}
        consumer = Consumer(settings | self.configure(step))
        consumer.subscribe([step["topic"]])
        self.consumers[step["name"]] = consumer

    def poll(self, step):
        """Polls until so many records are read, an error comes, or the time is over; tells their offsets.

        They are committed, since a member that joins again continues from there.
        """
        consumer = self.consumers[step["name"]]
        deadline = time.monotonic() + step["ms"] / 1000
        read = []
        while len(read) < step["count"] and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error():
                return {"read": read, "error": message.error().name(), "message": message.error().str()}
            last = message
            read.append(message.offset())
        if read:
            position = TopicPartition(last.topic(), last.partition(), last.offset() + 1)
            consumer.commit(offsets=[position], asynchronous=False)
        return {"read": read, "throttled_ms": self.throttled_ms}


if __name__ == "__main__":
    errors = Errors(sys.argv[1].split("=", 1)[1])
    for line in sys.stdin:
        print(json.dumps(errors.answer(json.loads(line))), flush=True)
    # Clients that wait for a broker which is gone would keep the process.
    os._exit(0)
