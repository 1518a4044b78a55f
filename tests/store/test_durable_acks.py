"""Acks that are on disk when they return, and acks that need not be: what a crash of the server repeats."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import psycopg2
import pytest
from tests.acting import AT_ONCE, HOUR, MILLISECOND
from tests.conftest import execute
from tests.waiting import until

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.messages import Message

#: The server writes a commit to its file before the answer, or else only in 10 s.
DURABLE = {"fsync": "off", "synchronous_commit": "on", "wal_writer_delay": "10s", "autovacuum": "off"}
MESSAGES = 40


def ack_singly(consumer: Consumer, done: Callable[[Message], None]) -> None:
    for _ in range(MESSAGES):
        (message,) = consumer.receive(1, HOUR)
        done(message)
        consumer.ack(message)


def ack_with_the_next_receive(consumer: Consumer, done: Callable[[Message], None]) -> None:
    acked: tuple[Message, ...] = ()
    for _ in range(MESSAGES):
        acked = tuple(consumer.receive(1, HOUR, acked=acked))
        done(acked[0])
    # Also the last one: a single ack would put the acks before it on disk with its own.
    assert not consumer.receive(1, HOUR, acked=acked)


@pytest.mark.slow
@pytest.mark.parametrize("ack_all", [ack_singly, ack_with_the_next_receive])
@pytest.mark.parametrize("durable_acks", [True, False])
def test_d16_a_crash_repeals_only_acks_that_are_not_durable(
    durable_acks: bool, ack_all: Callable[[Consumer, Callable[[Message], None]], None]
) -> None:
    handled: Counter[str] = Counter()

    def done(message: Message) -> None:
        handled[message.message_id] += 1

    with tempfile.TemporaryDirectory(prefix="duewheel-test-") as name:
        with EmbeddedPostgres(Path(name) / "broker", settings=DURABLE) as server:
            with Broker(server.dsn(), listen=False) as broker:
                broker.upgrade()
                broker.create_topic("t", queues=1, granularity=MILLISECOND)
                sent = broker.send_many("t", [{"body": b"", "delay": AT_ONCE}] * MESSAGES)
                ack_all(broker.consumer("t", "g", durable_acks=durable_acks), done)
            assert server.pid is not None
            killed = psutil.Process(server.pid)
            supervisor = killed.parent()
            assert supervisor is not None
            killed.kill()
            until(lambda: not supervisor.is_running(), "the server to end with its supervisor")
        assert handled == Counter(receipt.message_id for receipt in sent)
        with EmbeddedPostgres(Path(name) / "broker", settings=DURABLE) as server:
            with Broker(server.dsn(), listen=False) as broker:
                assert execute(server.dsn(), "select count(*) from duewheel.message") == [(MESSAGES,)]
                # Leases that outlived their acks end; the others were lost with them.
                for lease in broker.leases():
                    broker.release_lease(lease.lease_id)
                again = broker.consumer("t", "g").receive(MESSAGES, HOUR)
        assert {message.message_id for message in again} <= set(handled)
        assert bool(again) is not durable_acks


def test_x16_acks_of_a_callers_transaction_are_as_durable_as_it(topic: Broker, dsn: str) -> None:
    topic.send("t", b"", delay=AT_ONCE)
    consumer = topic.consumer("t", "g", durable_acks=False)
    batch = consumer.receive(1, HOUR)
    with closing(psycopg2.connect(dsn)) as connection, connection:
        for answer in (consumer.ack, consumer.fence):
            with pytest.raises(InvalidArgument, match="durable_acks=False"):
                answer(batch, connection=connection)
        consumer.nack(batch, connection=connection)
        with connection.cursor() as cursor:
            cursor.execute("show synchronous_commit")
            assert cursor.fetchone() == execute(dsn, "show synchronous_commit")[0]
