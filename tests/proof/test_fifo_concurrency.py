"""FIFO order under everything at once: several consumers, failures, ended leases, killed consumers (R07).

Three senders, each with message groups of its own, send one by one, many at once and in transactions that
stay open for a while. Threads consume by asking and by being called, fail now and then, forget what they
hold, and take longer than their lease; processes are killed with messages in their hands, and the server's
backends stop and go on wherever they happen to be. Whoever works on a message looks whether it is the next
one of its message group: the one after the last that was acked.

``DUEWHEEL_SOAK_SECONDS=600`` goes on for at least as long.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import closing
from datetime import timedelta
from functools import partial

import psycopg2
import pytest
from tests.conftest import execute
from tests.proof.stalling import stalls
from tests.waiting import beside, until

from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.errors import LeaseLost
from duewheel.store.values.messages import Message

SENDERS = 3
GROUPS_PER_SENDER = 4
SECONDS = float(os.environ.get("DUEWHEEL_SOAK_SECONDS", "4"))
#: It goes on until there were so many, however slow the machine is.
MESSAGES = 200
KILLED = 2
INVISIBLE = timedelta(seconds=1)

#: Takes messages and is killed before it answers; ends by itself when the others leave nothing to take.
VICTIM = """
import sys, time
from datetime import timedelta
from duewheel.store.broker import Broker
broker = Broker(sys.argv[1])
consumer = broker.consumer("steps", "g")
ends = time.monotonic() + 2
while time.monotonic() < ends:
    if consumer.receive(8, timedelta(seconds=1), wait=timedelta(seconds=1)):
        print("took", flush=True)
        time.sleep(60)
"""


class Ledger:
    """The messages sent and acked of each message group, and the errors."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = defaultdict(int)
        self.acked: dict[str, int] = defaultdict(int)
        self.attempts: dict[str, int] = {}
        self.wrong: list[str] = []
        self.failures = 0
        self.locks: dict[str, threading.Lock] = defaultdict(threading.Lock)

    def check(self, message: Message) -> None:
        """It must be the next one of its message group; the caller holds the group's lock."""
        name, number = message.body.decode().split("-")
        if int(number) != self.acked[name] + 1:
            self.wrong.append(f"{name}-{number} came after {self.acked[name]} was acked")
        if message.attempt < self.attempts.get(message.message_id, 0):
            self.wrong.append(f"{name}-{number} came as attempt {message.attempt} again")
        self.attempts[message.message_id] = message.attempt

    def done(self, message: Message) -> None:
        """It was acked; the caller holds the group's lock."""
        name, number = message.body.decode().split("-")
        self.acked[name] = int(number)

    def is_complete(self) -> bool:
        """Whether all that was sent is acked."""
        return dict(self.sent) == dict(self.acked)


def send_on(broker: Broker, ledger: Ledger, sender: int, enough: threading.Event) -> None:
    """Messages of this sender's own message groups, numbered."""
    chance = random.Random(sender)
    names = [f"{sender}.{n}" for n in range(GROUPS_PER_SENDER)]

    def message(name: str) -> dict[str, str]:
        ledger.sent[name] += 1
        return {"body": f"{name}-{ledger.sent[name]}", "message_group": name}

    while not enough.is_set():
        kind = chance.random()
        if kind < 0.6:
            broker.send("steps", **message(chance.choice(names)))
        elif kind < 0.8:
            broker.send_many("steps", [message(chance.choice(names)) for _ in range(chance.randint(2, 10))])
        else:
            with closing(psycopg2.connect(broker.dsn)) as connection, connection:
                for _ in range(chance.randint(1, 3)):
                    broker.send("steps", **message(chance.choice(names)), connection=connection)
                    time.sleep(chance.uniform(0, 0.15))
        time.sleep(chance.uniform(0, 0.02))


def consume_on(consumer: Consumer, ledger: Ledger, seed: int, stop: threading.Event) -> None:
    """Receives, works, and answers, mostly."""
    chance = random.Random(1000 + seed)
    while not stop.is_set():
        batch = consumer.receive(chance.choice([1, 2, 5, 20]), INVISIBLE, timedelta(milliseconds=100))
        failed: set[str | None] = set()
        for message in batch:
            if message.message_group in failed:
                continue
            if chance.random() < 0.004:
                # Forgets all it has, as a crash would.
                break
            with ledger.locks[str(message.message_group)]:
                try:
                    if chance.random() < 0.004:
                        time.sleep(1.2)
                    # Extended first: whoever holds the lease is the only one who may look.
                    consumer.change_invisible_duration(message, INVISIBLE)
                    ledger.check(message)
                    if chance.random() < 0.05:
                        delay = chance.choice([None, timedelta(0), timedelta(milliseconds=50)])
                        consumer.nack(message, delay)
                        ledger.failures += 1
                        failed.add(message.message_group)
                        continue
                    consumer.ack(message)
                    ledger.done(message)
                except LeaseLost:
                    break


@pytest.mark.slow
@pytest.mark.tenfold
def test_message_groups_stay_in_order_whatever_happens(broker: Broker) -> None:
    broker.create_topic("steps", message_type="FIFO", queues=2, granularity=timedelta(milliseconds=5))
    broker.consumer("steps", "g")
    execute(broker.dsn, "update duewheel.consumer_group set ordered_interval = '30 milliseconds'")
    ledger = Ledger()
    enough = threading.Event()
    stop = threading.Event()
    chance = random.Random(7)

    def listen(message: Message) -> str:
        with ledger.locks[str(message.message_group)]:
            pushed.consumer.change_invisible_duration(message, INVISIBLE)
            ledger.check(message)
            if chance.random() < 0.05:
                return "reconsume_later"
            # Acked here, so that it is noted before the next one can come; the second ack changes nothing.
            pushed.consumer.ack(message)
            ledger.done(message)
            return "success"

    pushed = broker.push_consumer("steps", "g", listen, threads=3, invisible=INVISIBLE)
    ends = time.monotonic() + SECONDS
    with beside() as start, pushed, stalls(broker.dsn):
        try:
            senders = [start(partial(send_on, broker, ledger, n, enough)) for n in range(SENDERS)]
            consumers = [
                start(partial(consume_on, broker.consumer("steps", "g"), ledger, n, stop)) for n in range(3)
            ]
            killed = 0
            while killed < KILLED or sum(ledger.sent.values()) < MESSAGES or time.monotonic() < ends:
                killed += is_killed_at_work(broker.dsn)
                assert ledger.wrong == []
            enough.set()
            for sender in senders:
                sender.result()
            until(lambda: ledger.is_complete() or ledger.wrong, "all messages to be acked")
        finally:
            enough.set()
            stop.set()
        for consumer in consumers:
            consumer.result()
    assert ledger.wrong == []
    assert dict(ledger.acked) == dict(ledger.sent)
    assert ledger.failures
    assert not broker.dead_letters("g")


def is_killed_at_work(dsn: str) -> bool:
    """Whether a consumer that was started and killed had messages in its hands."""
    with subprocess.Popen([sys.executable, "-c", VICTIM, dsn], stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        took = victim.stdout.readline() == b"took\n"
        victim.kill()
    return took
