"""A FIFO receive costs what it takes out, however much stands in the backlog (design: measured).

A message group with tens of thousands of messages behind one that somebody holds, and thousands of message
groups that wait for a retry. What counts is the pages a call touches, as in ``test_plans``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.conftest import execute
from tests.proof.test_plans import NEXT_DUE, RECEIVE, Grown, sequential
from tests.waiting import ask, connected

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker

pytestmark = pytest.mark.slow

BEHIND_ONE = 50_000
WAITING_GROUPS = 5_000
SECOND = timedelta(seconds=1)
PAGES_OF_ONE_CALL = 1_500
DOORBELLS = "select * from duewheel.group_doorbells(array['steps'], array['g'], p_now => %s)"


@pytest.fixture(scope="module")
def blocked(postgres: EmbeddedPostgres, template_dsn: str) -> Iterator[Grown]:
    """The backlog; plans were made before there was one."""
    assert template_dsn
    execute(postgres.dsn(), "CREATE DATABASE fifo_plans TEMPLATE template_duewheel STRATEGY wal_log")
    dsn = postgres.dsn("fifo_plans")
    now = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
    try:
        with Broker(dsn, clock=lambda: found.now) as broker, connected(dsn) as connection:
            found = Grown(broker, connection, 0, 0, now)
            broker.create_topic("steps", message_type="FIFO", queues=1)
            consumer = broker.consumer("steps", "g")
            found.group_id, found.topic_id = consumer.group_id, consumer.topic_id
            # First, as new slots make a session plan anew.
            broker.maintain()
            for n in range(7):
                found.now += SECOND
                broker.send("steps", "x", message_group=f"warm{n}")
                ask(connection, RECEIVE, found.group_id, found.topic_id, 10, found.now)
                ask(connection, NEXT_DUE, found.group_id, found.topic_id, found.now)
                ask(connection, DOORBELLS, found.now)
            found.now += timedelta(hours=1)
            held = consumer.receive(invisible=timedelta(hours=1))
            consumer.ack(held)
            # What is sent at the very instant of a tick is held back.
            found.now += SECOND
            broker.send_many(
                "steps", [{"body": "x", "message_group": f"w{n}"} for n in range(WAITING_GROUPS)]
            )
            broker.send_many("steps", [{"body": "x", "message_group": "hot"} for _ in range(BEHIND_ONE)])
            found.now += SECOND
            consumer.nack(consumer.receive(WAITING_GROUPS), timedelta(hours=1))
            assert len(consumer.receive(1, timedelta(hours=2))) == 1
            for _ in range(BEHIND_ONE // 10_000 + 1):
                assert not consumer.receive(1)
            assert ask(connection, "select count(*) from duewheel.fifo_backlog") == [
                (BEHIND_ONE - 1 + WAITING_GROUPS,)
            ]
            found.now += SECOND
            broker.send_many("steps", [{"body": "x", "message_group": f"new{n}"} for n in range(1_000)])
            found.now += SECOND
            yield found
    finally:
        execute(postgres.dsn(), "DROP DATABASE fifo_plans WITH (FORCE)")


def test_receiving_past_a_long_backlog(blocked: Grown) -> None:
    arguments = (blocked.group_id, blocked.topic_id)
    for most in (1, 32, 500):
        with blocked.undone():
            scans = blocked.scans(RECEIVE, *arguments, most, blocked.now)
            assert sequential(scans) == {}
            assert scans["fifo_backlog"][1] <= most + 200, scans
        with blocked.undone():
            pages = blocked.pages(RECEIVE, *arguments, most, blocked.now)
            assert pages <= PAGES_OF_ONE_CALL + 60 * most, pages


def test_receiving_from_a_long_backlog(blocked: Grown) -> None:
    """All the retries are due, and the message group that was held is free."""
    later = blocked.now + timedelta(hours=3)
    arguments = (blocked.group_id, blocked.topic_id)
    for most in (1, 32, 500):
        with blocked.undone():
            scans = blocked.scans(RECEIVE, *arguments, most, later)
            assert sequential(scans) == {}
            assert scans["fifo_backlog"][1] <= 20 * most + 200, scans
        with blocked.undone():
            pages = blocked.pages(RECEIVE, *arguments, most, later)
            assert pages <= PAGES_OF_ONE_CALL + 100 * most, pages


def test_asking_when_there_is_more(blocked: Grown) -> None:
    for statement, parameters in (
        (NEXT_DUE, (blocked.group_id, blocked.topic_id, blocked.now)),
        (DOORBELLS, (blocked.now,)),
    ):
        with blocked.undone():
            assert sequential(blocked.scans(statement, *parameters)) == {}
        with blocked.undone():
            pages = blocked.pages(statement, *parameters)
            # One look for each of the thousand new message groups.
            assert pages <= PAGES_OF_ONE_CALL + 20 * 1_000, pages
