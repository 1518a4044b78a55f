"""Jobs that lease very many messages at once, beside senders with slow transactions, recalls and releases.

A job finds what it leases by the primary key where nothing but released messages lies in its range, and walks
as a receive does elsewhere. Chance decides which of the two it is, many times over.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import psycopg2
import pytest
from tests.proof.waiting import ask, connected

from duewheel.store import Broker, RecallOutcome

SENDERS = 4
LEASES_OF_A_JOB = 12
#: Fewer than these are walked through one by one.
MANY = 1_000
LEASE = """
select topic_id, queue, lease_n, lease_count from duewheel.lease_evenly(%s, %s, null, %s, 4, '1 hour', 'job')
"""
ROWS = "select body from duewheel.lease_rows(%s, %s, %s, %s)"


class Traffic:
    """What was sent and recalled, by threads that go on until it is enough."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.sent: dict[bytes, str] = {}
        self.recalled: set[bytes] = set()
        self._dsn = dsn
        self._seed = seed
        self._enough = threading.Event()
        self._pool = ThreadPoolExecutor(SENDERS + 2)
        self._work = [self._pool.submit(self._send, number) for number in range(SENDERS)]
        self._work += [self._pool.submit(self._recall), self._pool.submit(self._release)]

    def stop(self) -> None:
        """End it; what failed in a thread fails the test."""
        self._enough.set()
        for work in self._work:
            work.result()
        self._pool.shutdown()

    def _send(self, sender: int) -> None:
        chance = random.Random(self._seed * SENDERS + sender)
        number = 0
        with Broker(self._dsn) as broker:
            while not self._enough.is_set():
                with closing(psycopg2.connect(self._dsn)) as connection:
                    count = chance.choice([1, 50, 400, 1500])
                    bodies = [b"%d-%d" % (sender, number + place) for place in range(count)]
                    number += count
                    receipts = broker.send_many(
                        "t",
                        [
                            {
                                "body": body,
                                "delay": timedelta(seconds=chance.choice([0, 0, 0.05, chance.uniform(0, 2)])),
                            }
                            for body in bodies
                        ],
                        connection=connection,
                    )
                    self._enough.wait(chance.choice([0, 0, 0.02, 0.3, 0.8]))
                    if chance.random() < 0.15:
                        connection.rollback()
                    else:
                        connection.commit()
                        self.sent |= dict(zip(bodies, (one.message_id for one in receipts), strict=True))

    def _recall(self) -> None:
        chance = random.Random(self._seed)
        asked: set[bytes] = set()
        with Broker(self._dsn) as broker:
            # Seldom, so that there are stretches without a recall.
            while not self._enough.wait(0.05 if chance.random() < 0.9 else 1.5):
                if waiting := [body for body in list(self.sent)[-300:] if body not in asked]:
                    body = chance.choice(waiting)
                    asked.add(body)
                    if broker.recall(self.sent[body]) is RecallOutcome.RECALLED:
                        self.recalled.add(body)

    def _release(self) -> None:
        with Broker(self._dsn) as broker:
            while not self._enough.wait(0.005):
                broker.tick("t")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_x06_what_jobs_lease_is_leased_once(broker: Broker, seed: int) -> None:
    broker.create_topic("t", queues=3, granularity=timedelta(milliseconds=1))
    consumer = broker.consumer("t", "g")
    chance = random.Random(seed)
    came: Counter[bytes] = Counter()
    large = 0

    def lease(connection: psycopg2.extensions.connection, most: int) -> int:
        leased = 0
        for *lease, count in ask(connection, LEASE, consumer.group_id, consumer.topic_id, most):
            bodies = [bytes(body) for (body,) in ask(connection, ROWS, consumer.group_id, *lease)]
            assert len(bodies) == count
            came.update(bodies)
            leased += count
        return leased

    with connected(broker.dsn) as connection:
        traffic = Traffic(broker.dsn, seed)
        try:
            while large < LEASES_OF_A_JOB:
                large += lease(connection, chance.choice([100_000, 100_000, 3_000, 700])) >= MANY
                time.sleep(chance.choice([0, 0.1, 0.5]))
        finally:
            traffic.stop()
        while lease(connection, 100_000) or broker.stats().topics[0].waiting:
            pass
    assert came.keys() == traffic.sent.keys() - traffic.recalled
    assert set(came.values()) == {1}
