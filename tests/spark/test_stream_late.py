"""Messages that were committed late, behind what a stream has read: each limit holds for them, too."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg2
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.test_stream import AT_ONCE, TOPIC, between, reader, send

from duewheel.spark.stream_reader import MessageStreamReader
from duewheel.store.broker import Broker

# A release waits for open transactions, though not for ever.
pytestmark = pytest.mark.slow

EVERY = ReadAllAvailable()


def send_late(broker: Broker, topic: str, count: int, stream: MessageStreamReader) -> dict[str, Any]:
    """Send messages of 1 000 bytes that are committed when a stream has read behind them: its offset then."""
    late = [{"body": b"x" * 1000, "key": str(number), "delay": AT_ONCE} for number in range(count)]
    with closing(psycopg2.connect(broker.dsn)) as connection:
        broker.send_many(topic, late, connection=connection)
        broker.send(topic, b"", key="1000", delay=AT_ONCE)
        begun = stream.latestOffset(stream.initialOffset(), EVERY)
        connection.commit()
    return begun


def test_parts_have_their_limit_of_bytes(orders: Broker) -> None:
    stream = reader(orders, maxBytesPerPartition="2500")
    start = send_late(orders, TOPIC, 30, stream)
    end = stream.latestOffset(start, EVERY)
    parts = stream.partitions(start, end)
    sizes = [sum(batch.num_rows for batch in stream.read(part)) for part in parts]
    assert max(sizes) == 3
    assert between(stream, start, end) == list(range(30))


@pytest.mark.long
def test_parts_are_as_many_as_asked_for(orders: Broker) -> None:
    stream = reader(orders, minPartitions="1000")
    start = send_late(orders, TOPIC, 30, stream)
    send(orders, range(30, 50))
    end = stream.latestOffset(start, EVERY)
    assert len(stream.partitions(start, end)) == 50
    assert between(stream, start, end) == list(range(50))


@pytest.mark.parametrize(
    ("most_bytes", "most_messages"), [("4000", 8), pytest.param("1", 1, marks=pytest.mark.long)]
)
def test_micro_batch_has_its_limit_of_bytes(orders: Broker, most_bytes: str, most_messages: int) -> None:
    stream = reader(orders, maxBytesPerTrigger=most_bytes)
    offset = send_late(orders, TOPIC, 20, stream)
    read: list[int] = []
    while (end := stream.latestOffset(offset, EVERY)) != offset:
        keys = between(stream, offset, end)
        assert len(keys) <= most_messages
        assert between(stream, offset, end) == keys
        read += keys
        offset = end
    assert sorted(read) == list(range(20))


def test_micro_batch_waits_for_the_messages_of_its_own_topic(orders: Broker) -> None:
    """However many were committed late in others: they are numbered together."""
    orders.create_topic("other")
    other = reader(orders, topic="other")
    other.latestOffset(send_late(orders, "other", 60, other), EVERY)

    stream = reader(orders, minMessagesPerTrigger="50", maxTriggerDelay="1h")
    start = send_late(orders, TOPIC, 1, stream)
    assert stream.latestOffset(start, EVERY) == start
    send(orders, range(1, 50))
    end = stream.latestOffset(start, EVERY)
    assert between(stream, start, end) == list(range(50))
