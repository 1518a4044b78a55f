"""A leased batch in a driver's hands: answered as a whole, kept alive, and answered in a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest
from sqlalchemy import create_engine
from tests.leasing import LEASE, consumer_at, extend_often, later_consumer, received, wait_for_extensions

from duewheel.spark.leased_batch import LeasedBatch
from duewheel.store.leases import from_json, to_json
from duewheel.store.values.errors import InvalidArgument, InvalidTagExpression, LeaseLost, UnknownTopic

if TYPE_CHECKING:
    from tests.clock import Clock

    from duewheel.store.broker import Broker
    from duewheel.store.consuming.consumer import Consumer
    from duewheel.store.database.connections import DriverConnection

TOPIC = "orders"
GROUP = "canceller"
AT_ONCE = timedelta(0)


@pytest.fixture
def batch(broker: Broker) -> LeasedBatch:
    """A lease on ten messages."""
    broker.create_topic(TOPIC)
    broker.send_many(TOPIC, [{"body": str(number), "delay": AT_ONCE} for number in range(10)])
    return LeasedBatch.take(broker, TOPIC, GROUP, invisible=timedelta(minutes=10))


@pytest.fixture
def consumer(broker: Broker, batch: LeasedBatch) -> Consumer:
    """Another consumer of the same group."""
    assert batch.count == 10
    return broker.consumer(TOPIC, GROUP)


@pytest.fixture
def connection(broker: Broker) -> Iterator[DriverConnection]:
    """A connection of the caller, with its transactions."""
    with closing(psycopg2.connect(broker.dsn)) as connection:
        yield connection


def attempts(consumer: Consumer) -> list[int]:
    return sorted(message.attempt for message in consumer.receive())


def test_x09_acked_messages_do_not_come_again(batch: LeasedBatch, consumer: Consumer) -> None:
    batch.ack()

    assert batch.answered
    assert attempts(consumer) == []
    with pytest.raises(LeaseLost, match="acked"):
        batch.nack()


def test_r03_nacked_messages_come_again(batch: LeasedBatch, consumer: Consumer) -> None:
    batch.nack(AT_ONCE, reason="no database")

    assert batch.answered
    assert attempts(consumer) == [2] * 10


def test_x09_ack_in_a_transaction_counts_when_it_commits(
    batch: LeasedBatch, consumer: Consumer, connection: DriverConnection
) -> None:
    batch.ack(connection)
    assert batch.in_open_transaction()
    connection.commit()

    assert not batch.in_open_transaction()
    with pytest.raises(LeaseLost):
        batch.nack(AT_ONCE)
    assert attempts(consumer) == []


def test_x09_ack_in_a_transaction_that_rolls_back_never_was(
    batch: LeasedBatch, consumer: Consumer, connection: DriverConnection
) -> None:
    batch.ack(connection)
    connection.rollback()

    assert not batch.in_open_transaction()
    batch.nack(AT_ONCE)
    assert attempts(consumer) == [2] * 10


def test_ack_in_a_transaction_of_sqlalchemy(broker: Broker, batch: LeasedBatch, consumer: Consumer) -> None:
    engine = create_engine("postgresql+psycopg2://", creator=lambda: psycopg2.connect(broker.dsn))

    with engine.begin() as connection:
        batch.ack(connection)
        assert batch.in_open_transaction()
    assert not batch.in_open_transaction()
    engine.dispose()
    assert attempts(consumer) == []


def test_x10_ack_after_the_lease_ended_is_refused(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic(TOPIC)
    timed_broker.send(TOPIC, b"1", delay=AT_ONCE)
    batch = LeasedBatch.take(timed_broker, TOPIC, GROUP, invisible=timedelta(minutes=1), now=clock())
    clock.advance(timedelta(minutes=2))

    with pytest.raises(LeaseLost, match="ended"):
        batch.ack()
    assert not batch.answered


def test_x11_lease_lives_as_long_as_its_keeper(
    broker: Broker, consumer: Consumer, batch: LeasedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend_often(monkeypatch)
    batch.nack(AT_ONCE)
    again = LeasedBatch.take(broker, TOPIC, GROUP, invisible=LEASE)
    first_end = max(lease.expires_at for lease in again.leases)

    with again.kept_alive() as keeper:
        wait_for_extensions(keeper, 5)
        with consumer_at(broker, consumer, first_end + timedelta(milliseconds=1)) as late:
            assert not late.receive()
    again.ack()


def test_x11_keeper_stops_with_the_answer(batch: LeasedBatch, connection: DriverConnection) -> None:
    with batch.kept_alive() as keeper:
        batch.ack(connection)
        connection.commit()

    assert not keeper.lost.is_set()


def test_d07_lease_that_nobody_keeps_comes_again(
    broker: Broker, consumer: Consumer, batch: LeasedBatch
) -> None:
    batch.nack(AT_ONCE)
    LeasedBatch.take(broker, TOPIC, GROUP, invisible=LEASE)

    with later_consumer(broker, consumer) as late:
        assert {message.attempt for message in received(late)} == {3}


def test_lease_can_be_answered_elsewhere_from_its_json(batch: LeasedBatch, consumer: Consumer) -> None:
    consumer.ack(from_json(to_json(batch.leases)))

    assert attempts(consumer) == []


def test_messages_per_lease_follow_from_what_is_ready(broker: Broker) -> None:
    broker.create_topic(TOPIC, queues=1)
    broker.send_many(TOPIC, [{"body": b"", "delay": AT_ONCE} for _ in range(5_000)])

    batch = LeasedBatch.take(broker, TOPIC, GROUP, max_messages=8_000_000, partitions=4)

    assert [lease.count for lease in batch.leases] == [313] * 15 + [305]
    assert batch.expires_at == min(lease.expires_at for lease in batch.leases)


def test_more_than_a_receive_may_take_is_leased_at_once(broker: Broker) -> None:
    broker.create_topic(TOPIC)
    broker.send_many(TOPIC, [{"body": b"", "delay": AT_ONCE} for _ in range(12_000)])

    batch = LeasedBatch.take(broker, TOPIC, GROUP, max_messages=1_000_000)

    assert batch.count == 12_000


def test_unknown_topic_is_an_error(broker: Broker) -> None:
    with pytest.raises(UnknownTopic):
        LeasedBatch.take(broker, "no-such-topic", GROUP)


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
        LeasedBatch.take(broker, TOPIC, GROUP, **wrong)


def test_bad_tag_expression_is_an_error(broker: Broker) -> None:
    broker.create_topic(TOPIC)

    with pytest.raises(InvalidTagExpression):
        LeasedBatch.take(broker, TOPIC, GROUP, tags="a | b")
