"""A full queue of notifications, which a stranger of the same server can bring about, stops nothing (X23)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from pathlib import Path

import psycopg2
import pytest
from psycopg2.errors import ProgramLimitExceeded
from tests.servers import InstalledPostgres
from tests.waiting import ask, beside, connected

from duewheel.embedded.machine import binaries
from duewheel.store.broker import Broker
from duewheel.store.values.messages import RecallOutcome

AT_ONCE = timedelta(0)
PATIENCE = timedelta(seconds=30)

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InstalledPostgres]:
    """One whose queue is as small as it gets; older ones always have 8 GiB."""
    with InstalledPostgres(binaries(), tmp_path / "data", max_notify_queue_pages=64) as server:
        yield server


def fill(dsn: str) -> None:
    """Notify until there is no room."""
    with connected(dsn) as connection, suppress(ProgramLimitExceeded):
        while True:
            ask(connection, "select pg_notify('strange', repeat('x', 7000))")


def test_x23_a_full_queue_of_notifications_stops_nothing(server: InstalledPostgres) -> None:
    stop = threading.Event()
    with (
        Broker(server.ensure_database("shop")) as broker,
        closing(psycopg2.connect(server.dsn())) as stranger,
        beside() as start,
        ExitStack() as at_the_end,
    ):
        at_the_end.callback(stop.set)
        broker.upgrade()
        broker.create_topic("t")
        consumer = broker.consumer("t", "g")
        turning = start(broker.wheel().run, stop)
        with stranger.cursor() as cursor:
            cursor.execute("listen strange")
            stranger.commit()
            # It is in a transaction from now on, so it hears nothing.
            cursor.execute("select 1")
        fill(server.dsn())

        broker.send("t", b"at once", delay=AT_ONCE)
        (first,) = consumer.receive(wait=PATIENCE)
        consumer.ack([first])
        broker.send("t", b"soon", delay=timedelta(seconds=1))
        (second,) = consumer.receive(wait=PATIENCE)
        consumer.nack([second], AT_ONCE)
        (again,) = consumer.receive(wait=PATIENCE)
        assert (again.message_id, again.attempt) == (second.message_id, 2)
        waiting = broker.send("t", b"later", delay=PATIENCE).message_id
        assert broker.recall(waiting).outcome is RecallOutcome.RECALLED
        assert broker.pause_group("g") == 1
        assert broker.resume_group("g") == 1
        with connected(server.dsn()) as connection:
            ((usage,),) = ask(connection, "select pg_notification_queue_usage()")
        assert usage >= 0.9
        assert not turning.done()
