"""Windows over event time: a micro-batch holds what was due up to one instant, in whatever queue or topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.clock import Clock
from tests.spark.reading import LAKE, TOPIC, between, send
from tests.spark.reading import stream as reader
from tests.waiting import ask, connected

from duewheel.spark.stream_reader import MessageStreamReader
from duewheel.store.broker import Broker
from duewheel.store.database.connections import OWN_TRANSACTION

EVERY = ReadAllAvailable()
OTHER = "returns"


@pytest.fixture
def backlog(timed_broker: Broker, clock: Clock) -> Broker:
    """Two topics with messages of ten minutes of the past, nine of ten in one of four queues."""
    clock.set(datetime.now(UTC) - timedelta(hours=2))
    for topic, seconds in ((TOPIC, 1.0), (OTHER, 4.0)):
        timed_broker.create_topic(topic)
        timed_broker.send_many(topic, [
            {
                "body": b"x" * 100,
                "key": str(n),
                "message_group": "large" if n % 10 else str(n),
                "deliver_at": clock() + timedelta(seconds=n * seconds),
            }
            for n in range(int(600 / seconds))
        ])  # fmt: skip
    return timed_broker


def micro_batches(stream: MessageStreamReader) -> Iterator[list[datetime]]:
    """The instants of the messages of each micro-batch, until all are read."""
    offset = stream.initialOffset()
    limit = stream.getDefaultReadLimit()
    while (end := stream.latestOffset(offset, limit)) != offset:
        yield sorted(
            instant
            for part in stream.partitions(offset, end)
            for batch in stream.read(part)
            for instant in batch["deliver_at"].to_pylist()
        )
        offset = end


def is_in_order(batches: list[list[datetime]]) -> bool:
    """Whether no micro-batch has a message that was due before one of the micro-batch before."""
    return all(earlier[-1] <= later[0] for earlier, later in pairwise(batches))


@pytest.mark.parametrize("topics", [TOPIC, f"{TOPIC}, {OTHER}"], ids=["one topic", "two topics"])
@pytest.mark.parametrize(
    "limits",
    [
        {"maxMessagesPerTrigger": "100"},
        {"maxBytesPerTrigger": "10000"},
        {"maxMessagesPerTrigger": "100", "minMessagesPerTrigger": "200", "maxTriggerDelay": "0s"},
        {"maxMessagesPerTrigger": "100", "maxBytesPerTrigger": "9001"},
    ],
    ids=["messages", "bytes", "at least", "both"],
)
def test_x30_no_micro_batch_reaches_behind_the_one_before(
    backlog: Broker, topics: str, limits: dict[str, str]
) -> None:
    batches = list(micro_batches(reader(backlog, "deliver_at", topic=topics, **limits)))
    assert sum(map(len, batches)) == (600 if topics == TOPIC else 750)
    assert is_in_order(batches)
    full = 91 if "9001" in limits.values() else 100
    assert {len(batch) for batch in batches[:-1]} == {full}


def test_x30_messages_of_one_instant_may_be_cut(broker: Broker) -> None:
    broker.create_topic(TOPIC, message_type="NORMAL")
    at = broker.send_many(TOPIC, [{"body": b"", "key": str(n)} for n in range(50)])[0].deliver_at
    batches = list(micro_batches(reader(broker, "deliver_at", maxMessagesPerTrigger="20")))
    assert batches == [[at] * 20, [at] * 20, [at] * 10]


def test_x30_a_topic_that_was_not_released_is_waited_for(orders: Broker) -> None:
    """Where a wheel ticks it once an hour."""
    orders.create_topic(OTHER, granularity=timedelta(hours=1))
    stream = reader(orders, "topic", topic=f"{TOPIC}, {OTHER}")
    offset = stream.latestOffset(stream.initialOffset(), EVERY)
    by_wheel = (
        f"{OWN_TRANSACTION}select duewheel.tick_topic(topic_id, null, true, true, true) from duewheel.topic"
    )
    with connected(orders.dsn) as wheel:
        ask(wheel, f"{by_wheel} where name = %s", OTHER)
    send(orders, range(1))
    send(orders, range(1, 2), topic=OTHER)
    send(orders, range(2, 3))

    def read(offset: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        end = stream.latestOffset(offset, EVERY)
        parts = stream.partitions(offset, end)
        return end, [t for part in parts for batch in stream.read(part) for t in batch["topic"].to_pylist()]

    end, topics = read(offset)
    assert topics == [TOPIC]
    available = reader(orders, "topic", topic=f"{TOPIC}, {OTHER}")
    available.prepareForTriggerAvailableNow()
    assert available.latestOffset(offset, EVERY) == end
    with connected(orders.dsn) as wheel:
        ask(wheel, f"{by_wheel} where name = %s", OTHER)
    _, topics = read(end)
    assert sorted(topics) == [TOPIC, OTHER]


def test_x30_a_straggler_is_no_earlier_than_its_instant(backlog: Broker, clock: Clock) -> None:
    """One that a slow sender leaves must not make late what waits in the backlog."""
    clock.advance(timedelta(minutes=5))
    with closing(psycopg2.connect(backlog.dsn)) as slow:
        send(backlog, [1000], connection=slow)
        # The tick that it misses.
        clock.advance(timedelta(seconds=1))
        backlog.tick(TOPIC)
        slow.commit()
    backlog.tick(TOPIC)
    batches = list(micro_batches(reader(backlog, "deliver_at", maxMessagesPerTrigger="100")))
    assert sum(map(len, batches)) == 601
    assert is_in_order(batches)


def test_a_clock_that_was_ahead_makes_no_empty_batches(timed_broker: Broker, clock: Clock) -> None:
    clock.set(datetime.now(UTC) + timedelta(hours=1))
    for topic in (TOPIC, OTHER):
        timed_broker.create_topic(topic)
    send(timed_broker, range(5))
    timed_broker.tick(TOPIC)
    stream = reader(timed_broker, topic=f"{TOPIC}, {OTHER}")
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, EVERY)
    assert between(stream, begin, end) == list(range(5))
    assert stream.latestOffset(end, EVERY) == end


@pytest.mark.parametrize("topics", [TOPIC, f"{TOPIC}, {OTHER}"], ids=["one topic", "two topics"])
def test_x30_windows_over_a_backlog_count_every_message(
    backlog: Broker, spark: SparkSession, tmp_path: Path, topics: str
) -> None:
    """In Spark itself, which drops what comes after the watermark."""
    options = {"dsn": backlog.dsn, "topic": topics, "group": LAKE, "columns": "deliver_at"}
    counts = (
        spark.readStream.format("duewheel")
        .options(maxMessagesPerTrigger="100", **options)
        .load()
        .withWatermark("deliver_at", "1 second")
        .groupBy(f.window("deliver_at", "10 seconds"))
        .count()
    )
    query = (
        counts.writeStream.format("memory")
        .queryName("windows")
        .outputMode("append")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    # The window of the last messages is still open, and may be two.
    (counted,) = spark.table("windows").selectExpr("sum(count)").first() or (0,)
    assert counted >= (600 if topics == TOPIC else 750) - 2 * 13
    assert (
        sum(progress["stateOperators"][0]["numRowsDroppedByWatermark"] for progress in query.recentProgress)
        == 0
    )
