"""What the Python clients under test share: arguments, files of records, a member's notes, conditions."""

import json
import logging
import os
import sys
import threading
import time
from pathlib import Path

DEADLINE_S = 90


def run(commands):
    """Runs the command that the process was called with: COMMAND key=value ..."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    named = {command.__name__: command for command in commands}
    named[sys.argv[1]](dict(argument.split("=", 1) for argument in sys.argv[2:]))


def read_records(arguments):
    return [json.loads(line) for line in Path(arguments["input"]).read_text("utf-8").splitlines()]


def jobs(arguments):
    """Pairs of a codec, None for no compression, and a topic."""
    for job in arguments["jobs"].split(","):
        codec, topic = job.split(":")
        yield (None if codec == "none" else codec), topic


def data(text):
    return None if text is None else text.encode("utf-8")


def text(data):
    return None if data is None else data.decode("utf-8")


def as_line(partition, offset, key, value, headers):
    """A record as a line of the file that `consume` writes."""
    headers = [[name, text(value)] for name, value in headers]
    record = {"p": partition, "o": offset, "k": text(key), "v": text(value), "h": headers}
    return json.dumps(record, ensure_ascii=False) + "\n"


def check(holds, what):
    if not holds:
        raise SystemExit(f"does not hold: {what}")


def until(condition, what):
    deadline = time.monotonic() + 15
    while not condition():
        check(time.monotonic() < deadline, what)
        time.sleep(0.02)


def end_of_input():
    """An event that is set when the standard input ends, which tells a member to leave."""
    ended = threading.Event()

    def watch():
        # Not by sys.stdin, whose lock would keep the process from ending.
        while os.read(0, 4096):
            pass
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    return ended


class Notes:
    """What a member of a group writes down: what it read, committed, was assigned and gave up, in that order."""

    def __init__(self, arguments):
        self.out = Path(arguments["out"]).open("w", encoding="utf-8")
        self.commit_every = int(arguments["commit_every"])
        self.uncommitted = 0
        self.positions = {}

    def read(self, partition, offset, value):
        self.out.write(f"r {partition} {offset} {text(value)}\n")
        self.positions[partition] = offset + 1
        self.uncommitted += 1

    def is_commit_due(self):
        return self.uncommitted >= self.commit_every

    def to_commit(self, partitions=None):
        """Positions of these partitions, or of all. What they cover is written down, whatever kills us from here on."""
        self.out.flush()
        wanted = self.positions if partitions is None else partitions
        return {p: self.positions[p] for p in wanted if p in self.positions}

    def committed(self, offsets):
        self.uncommitted = 0
        for partition, offset in offsets.items():
            self.out.write(f"c {partition} {offset}\n")
        self.out.flush()

    def note(self, what, partitions):
        for partition in partitions:
            if what != "assigned":
                self.positions.pop(partition, None)
            self.out.write(f"{what} {partition}\n")
        self.out.flush()
