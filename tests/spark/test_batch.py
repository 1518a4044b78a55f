"""A leased batch in a driver's hands: answered as a whole, kept alive, and answered in a transaction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg2
import pytest
from sqlalchemy import create_engine
from tests.clock import Clock
from tests.spark.reading import reader, rows, send, take
from tests.waiting import ask

from duewheel.spark.batch import Batch
from duewheel.spark.lease_states import BatchOutcome, handle_prefix
from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.consuming.lease_states import LeaseState, lost_error
from duewheel.store.database.connections import DriverConnection
from duewheel.store.values.errors import InvalidArgument, LeaseLost
from duewheel.store.values.leases import Lease

TOPIC = "orders"
GROUP = "canceller"
AT_ONCE = timedelta(0)


@pytest.fixture
def batch(broker: Broker) -> Batch:
    """A lease on ten messages."""
    broker.create_topic(TOPIC)
    broker.send_many(TOPIC, [{"body": str(number), "delay": AT_ONCE} for number in range(10)])
    return Batch.take(broker, TOPIC, GROUP, invisible=timedelta(minutes=10))


@pytest.fixture
def consumer(broker: Broker, batch: Batch) -> Consumer:
    """Another consumer of the same group."""
    assert batch.count == 10
    return broker.consumer(TOPIC, GROUP)


@pytest.fixture
def connection(broker: Broker) -> Iterator[DriverConnection]:
    """A connection of the caller, with its transactions."""
    with closing(psycopg2.connect(broker.dsn)) as connection:
        yield connection


def test_messages_answered_one_by_one_are_counted(batch: Batch, connection: DriverConnection) -> None:
    """Also while their leases are held."""
    handles = [
        f"{handle_prefix(lease)}.{seq}"
        for lease in batch.leases
        for (seq,) in ask(connection, "select seq from duewheel.lease_rows(%s, %s, %s, %s)", *place(lease))
    ]
    ask(connection, "select duewheel.ack(%s)", handles[:4])
    ask(connection, "select duewheel.nack(%s)", handles[4:5])
    connection.commit()

    assert batch.outcome() == BatchOutcome(acked=4, given_back=1, unanswered=5)
    assert batch.ack_unanswered() == 5
    assert batch.outcome() == BatchOutcome(acked=9, given_back=1)
    assert batch.ack_unanswered() == 0


def place(lease: Lease) -> tuple[int, ...]:
    return lease.group_id, lease.topic_id, lease.queue, lease.n


def test_the_number_of_lost_leases_agrees_with_its_noun(batch: Batch) -> None:
    lost = [LeaseState(lease, "over") for lease in batch.leases]
    lease = batch.leases[0]
    said = f"^1 lease lost, with {lease.count} messages? that others may have: lease {lease.n} on queue"
    assert re.match(said, str(lost_error(lost[:1])))
    assert len(lost) > 1
    assert re.match(f"^{len(lost)} leases lost, with 10 messages that", str(lost_error(lost)))


def attempts(consumer: Consumer) -> list[int]:
    return sorted(message.attempt for message in consumer.receive())


def test_x09_acked_messages_do_not_come_again(batch: Batch, consumer: Consumer) -> None:
    batch.ack()

    assert batch.answered
    assert attempts(consumer) == []
    with pytest.raises(LeaseLost, match="acked"):
        batch.nack()


def test_r03_nacked_messages_come_again(batch: Batch, consumer: Consumer) -> None:
    batch.nack(AT_ONCE, reason="no database")

    assert batch.answered
    assert attempts(consumer) == [2] * 10


@pytest.mark.parametrize("commits", [True, False])
def test_x09_ack_in_a_transaction_counts_when_it_commits(
    batch: Batch, consumer: Consumer, connection: DriverConnection, commits: bool
) -> None:
    batch.ack(connection)
    assert batch.in_open_transaction()
    (connection.commit if commits else connection.rollback)()

    assert not batch.in_open_transaction()
    if commits:
        with pytest.raises(LeaseLost):
            batch.nack(AT_ONCE)
        assert attempts(consumer) == []
    else:
        batch.nack(AT_ONCE)
        assert attempts(consumer) == [2] * 10


def test_ack_in_a_transaction_of_sqlalchemy(broker: Broker, batch: Batch, consumer: Consumer) -> None:
    engine = create_engine("postgresql+psycopg2://", creator=lambda: psycopg2.connect(broker.dsn))

    with engine.begin() as connection:
        batch.ack(connection)
        assert batch.in_open_transaction()
    assert not batch.in_open_transaction()
    engine.dispose()
    assert attempts(consumer) == []


def test_ack_without_a_connection_of_a_known_driver_is_refused(batch: Batch) -> None:
    no_connection: Any = object()
    with pytest.raises(InvalidArgument, match="connection"):
        batch.ack(no_connection)
    assert not batch.answered


def test_x10_ack_after_the_lease_ended_is_refused(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic(TOPIC)
    timed_broker.send(TOPIC, b"1", delay=AT_ONCE)
    batch = Batch.take(timed_broker, TOPIC, GROUP, invisible=timedelta(minutes=1), now=clock())
    clock.advance(timedelta(minutes=2))

    with pytest.raises(LeaseLost, match="ended"):
        batch.ack()
    assert not batch.answered


def test_x11_keeper_stops_with_the_answer(batch: Batch, connection: DriverConnection) -> None:
    with batch.kept_alive() as keeper:
        batch.ack(connection)
        connection.commit()

    assert not keeper.lost.is_set()


def test_a_batch_is_limited_after_its_tags(broker: Broker) -> None:
    broker.create_topic("tagged", queues=1)
    send(broker, range(50), topic="tagged", tag="other")
    send(broker, range(50, 60), topic="tagged", tag="wanted")
    batch = take(broker, "tagged", tags="wanted", max_messages=4)
    assert [row["tag"] for row in rows(reader(batch))] == ["wanted"] * 4


def test_messages_per_lease_follow_from_what_is_ready(broker: Broker) -> None:
    broker.create_topic(TOPIC, queues=1)
    broker.send_many(TOPIC, [{"body": b"", "delay": AT_ONCE} for _ in range(5_000)])

    batch = Batch.take(broker, TOPIC, GROUP, max_messages=8_000_000, partitions=4)

    assert [lease.count for lease in batch.leases] == [313] * 15 + [305]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_messages": 0},
        {"max_messages": -1},
        {"invisible": AT_ONCE},
        {"invisible": timedelta(hours=13)},
        {"partitions": "4"},
        {"partitions": 10_001},
        {"min_partitions": "4"},
        {"partitions": 4, "min_partitions": 5},
        {"max_bytes_per_partition": "1048576"},
    ],
    ids=str,
)
def test_number_out_of_its_limits_is_an_error(broker: Broker, wrong: dict[str, Any]) -> None:
    broker.create_topic(TOPIC)

    with pytest.raises(InvalidArgument):
        Batch.take(broker, TOPIC, GROUP, **wrong)
