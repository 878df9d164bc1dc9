"""A producer of librdkafka against a quota: how long it took, and for how long the broker said it was held back.

usage: quotas.py BOOTSTRAP TOPIC CLIENT_ID RECORDS BYTES
"""

import json
import sys
import time

from confluent_kafka import Producer


def main():
    bootstrap, topic, client_id, records, size = sys.argv[1:]
    throttles = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "linger.ms": 20,
            "batch.size": 16384,
            "throttle_cb": lambda event: throttles.append(event.throttle_time),
        }
    )
    failures = []
    value = b"x" * int(size)
    begin = time.monotonic()
    for _ in range(int(records)):
        while True:
            try:
                producer.produce(topic, value, on_delivery=lambda error, _: error and failures.append(str(error)))
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(60)
    seconds = time.monotonic() - begin
    if failures or left:
        sys.exit(f"{left} records were not sent, {len(failures)} failed: {failures[:3]}")
    print(json.dumps({"seconds": seconds, "throttle_max": max(throttles, default=0)}))


main()
