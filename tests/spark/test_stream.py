"""``spark.readStream.format("duewheel")``: every message once, from checkpoint to checkpoint."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.clock import Clock
from tests.spark.reading import AT_ONCE, TOPIC, between, send
from tests.spark.reading import stream as reader

from duewheel.spark.stream_place import StreamOffset
from duewheel.spark.stream_reader import MessageStreamReader
from duewheel.spark.topic_stream import StreamDataLost
from duewheel.store.broker import Broker
from duewheel.store.values.errors import GroupBusy, InvalidArgument, UnknownGroup, UnknownTopic

GROUP = "lake"


class Lake:
    """A stream into files, which Spark writes once."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path, **options: str) -> None:
        self._spark = spark
        self._options = {"dsn": broker.dsn, "topic": TOPIC, "group": GROUP, **options}
        self.folder = folder

    def run(self) -> None:
        """Reads what is released now, and ends."""
        self.start(availableNow=True).awaitTermination()

    def start(self, **trigger: Any) -> StreamingQuery:
        """Begins to read, at the interval or the occasion of a trigger."""
        writing = (
            self._spark.readStream.format("duewheel")
            .options(**self._options)
            .load()
            .select("key", "message_id", "attempt")
            .writeStream.format("json")
            .option("path", str(self.folder / "files"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
        )
        return (writing.trigger(**trigger) if trigger else writing).start()

    def keys(self) -> list[int]:
        """The keys that were written, sorted, each as often as it was."""
        if not (self.folder / "files").exists():
            return []
        frame = self._spark.read.schema("key string").json(str(self.folder / "files"))
        return sorted(int(row.key) for row in frame.collect())


def test_stream_reads_on_from_its_checkpoint(orders: Broker, spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, orders, tmp_path)
    send(orders, range(100))
    lake.run()
    assert lake.keys() == list(range(100))
    lake.run()
    send(orders, range(100, 250))
    lake.run()
    assert lake.keys() == list(range(250))


def test_parts_of_a_micro_batch_may_have_one_message(orders: Broker) -> None:
    stream = reader(orders, minPartitions="1000")
    start = stream.initialOffset()
    send(orders, range(20))
    end = stream.latestOffset(start, ReadAllAvailable())
    assert len(stream.partitions(start, end)) == 20
    assert between(stream, start, end) == list(range(20))


def test_large_and_small_parts_are_cut_in_one_session(orders: Broker) -> None:
    """The first micro-batch is estimated in each queue, the second is counted."""
    read = reader(orders)
    start = read.initialOffset()
    for keys in (range(4_400), range(40), range(4_400)):
        send(orders, keys)
        end = read.latestOffset(start, ReadAllAvailable())
        assert between(read, start, end) == list(keys)
        start = end


def test_parts_of_a_micro_batch_have_a_limit_of_bytes(orders: Broker) -> None:
    stream = reader(orders, maxBytesPerPartition="2500")
    start = stream.initialOffset()
    orders.send_many(TOPIC, [{"body": b"x" * 1000, "key": str(n), "delay": timedelta(0)} for n in range(30)])
    end = stream.latestOffset(start, ReadAllAvailable())
    parts = stream.partitions(start, end)
    sizes = [sum(batch.num_rows for batch in stream.read(part)) for part in parts]
    assert max(sizes) == 3
    assert sum(sizes) == 30
    assert between(stream, start, end) == list(range(30))


def test_micro_batch_waits_for_messages_but_not_for_ever(orders: Broker) -> None:
    every = ReadAllAvailable()
    stream = reader(orders, minMessagesPerTrigger="50", maxTriggerDelay="1h")
    offset = stream.initialOffset()
    send(orders, range(10))
    # The first of a query comes at once, as that of Kafka's source.
    begun = stream.latestOffset(offset, every)
    assert between(stream, offset, begun) == list(range(10))
    send(orders, range(10, 30))
    assert stream.latestOffset(begun, every) == begun
    send(orders, range(30, 60))
    end = stream.latestOffset(begun, every)
    assert between(stream, begun, end) == list(range(10, 60))

    patient = reader(orders, minMessagesPerTrigger="50", maxTriggerDelay="0s")
    for keys in (range(60, 70), range(70, 80)):
        send(orders, keys)
        offset, end = end, patient.latestOffset(end, every)
        assert between(patient, offset, end) == list(keys)
    with pytest.raises(InvalidArgument, match="'maxTriggerDelay' is 'soon': give a duration such as 15m"):
        reader(orders, maxTriggerDelay="soon")


def test_micro_batch_has_a_limit_of_bytes(orders: Broker) -> None:
    every = ReadAllAvailable()
    stream = reader(orders, maxBytesPerTrigger="4000")
    offset = stream.initialOffset()
    orders.send_many(TOPIC, [{"body": b"x" * 1000, "key": str(n), "delay": timedelta(0)} for n in range(16)])
    read = []
    while (end := stream.latestOffset(offset, every)) != offset:
        read.append(between(stream, offset, end))
        offset = end
    assert sorted(key for keys in read for key in keys) == list(range(16))
    # Each queue has a share, and one body more where the share ends within it.
    assert all(len(keys) <= 8 for keys in read)

    greedy = reader(orders, maxBytesPerTrigger="1")
    orders.send_many(TOPIC, [{"body": b"x" * 1000, "key": str(n), "delay": timedelta(0)} for n in range(3)])
    read = []
    while (end := greedy.latestOffset(offset, every)) != offset:
        read.append(between(greedy, offset, end))
        offset = end
    assert sorted(keys for keys in read if keys) == [[0], [1], [2]]


def test_progress_tells_how_far_the_stream_is_behind(
    orders: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, orders, tmp_path, maxMessagesPerTrigger="10")
    send(orders, range(25))
    query = lake.start(availableNow=True)
    query.awaitTermination()
    behind = [json.loads(progress["sources"][0]["latestOffset"]) for progress in query.recentProgress]
    assert [lag[TOPIC]["messagesBehind"] for lag in behind] == [15, 5, 0]
    assert [lag[TOPIC]["secondsBehind"] > 0 for lag in behind] == [True, True, False]


def test_lag_of_a_stream_counts_stragglers(orders: Broker) -> None:
    stream = reader(orders)
    assert stream.reportLatestOffset() is None
    start = stream.initialOffset()
    with closing(psycopg2.connect(orders.dsn)) as late:
        send(orders, range(2), connection=late)
        send(orders, range(2, 5))
        seen = stream.latestOffset(start, ReadAllAvailable())
        assert behind(stream) == 0
        late.commit()
    orders.tick(TOPIC)
    assert behind(stream) == 2
    stream.latestOffset(seen, ReadAllAvailable())
    assert behind(stream) == 0


def behind(stream: MessageStreamReader) -> int:
    reported = stream.reportLatestOffset()
    assert reported is not None
    messages: int = reported[TOPIC]["messagesBehind"]
    return messages


@pytest.mark.slow
def test_read_limit_counts_stragglers_too(orders: Broker) -> None:
    stream = reader(orders, maxMessagesPerTrigger="30")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    start = stream.initialOffset()
    with closing(psycopg2.connect(orders.dsn)) as late:
        send(orders, range(100), connection=late)
        send(orders, range(100, 200))
        # The tick that the late ones miss.
        start_seen = stream.latestOffset(start, ReadAllAvailable())
        late.commit()

    assert between(stream, start, start_seen) == list(range(100, 200))
    read: list[int] = []
    offset = start
    while (end := stream.latestOffset(offset, limit)) != offset:
        keys = between(stream, offset, end)
        assert len(keys) <= 30
        # The same again, as a task that is run again or a query that starts anew reads it.
        assert between(stream, offset, end) == keys
        read += keys
        offset = end
    assert sorted(read) == list(range(200))
    stream.stop()


@pytest.mark.parametrize(
    ("given", "expected"), [("earliest", range(20)), ("latest", range(20, 30)), ("instant", range(10, 30))]
)
def test_stream_begins_where_it_is_told(orders: Broker, given: str, expected: range) -> None:
    send(orders, range(10))
    consumer = orders.consumer(TOPIC, "other")
    assert consumer.receive()
    time.sleep(0.005)
    between_both = datetime.now(UTC)
    time.sleep(0.005)
    send(orders, range(10, 20))
    assert consumer.receive()

    stream = reader(orders, startingOffsets=between_both.isoformat() if given == "instant" else given)
    start = stream.initialOffset()
    if given != "earliest":
        send(orders, range(20, 30))
    assert between(stream, start, stream.latestOffset(start, ReadAllAvailable())) == list(expected)


def test_tags_and_filter_choose(orders: Broker) -> None:
    for number in range(40):
        orders.send(
            TOPIC, b"", key=str(number), tag="ab"[number % 2], properties={"n": number}, delay=AT_ONCE
        )
    stream = reader(orders, tags="a", filter="$.n >= 20")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert between(stream, start, end) == list(range(20, 40, 2))


def test_position_of_the_group_follows(orders: Broker) -> None:
    send(orders, range(50))
    stream = reader(orders)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert lag(orders) == 50
    stream.commit(end)
    assert lag(orders) == 0
    # Once more, and what is behind, changes nothing.
    stream.commit(end)
    stream.commit(start)
    assert lag(orders) == 0


def lag(broker: Broker) -> int:
    (topic,) = [topic for topic in broker.stats().topics if topic.topic == TOPIC]
    (group,) = [group for group in topic.groups if group.group == GROUP]
    return group.ready


def test_receive_on_the_group_of_a_stream_ends_the_stream(orders: Broker) -> None:
    send(orders, range(50))
    stream = reader(orders)
    start = stream.initialOffset()
    other = orders.consumer(TOPIC, GROUP, name="somebody")
    assert other.receive()

    with pytest.raises(GroupBusy, match='read by "somebody"'):
        stream.latestOffset(start, ReadAllAvailable())
    with pytest.raises(GroupBusy, match="its own group"):
        stream.commit(start)


def test_second_stream_on_a_group_is_refused(orders: Broker) -> None:
    first = reader(orders)
    start = first.initialOffset()
    # Where it began stands in no checkpoint: a query that starts anew asks again.
    assert reader(orders).initialOffset() == start
    send(orders, range(10))
    first.commit(first.latestOffset(start, ReadAllAvailable()))
    with pytest.raises(GroupBusy, match="another stream"):
        reader(orders).initialOffset()
    first.latestOffset(start, ReadAllAvailable())

    orders.rewind(TOPIC, GROUP, "earliest")
    second = reader(orders)
    begin = second.initialOffset()
    second.latestOffset(begin, ReadAllAvailable())
    with pytest.raises(GroupBusy):
        first.latestOffset(start, ReadAllAvailable())


def test_checkpoint_of_another_topic_is_refused(orders: Broker) -> None:
    start = reader(orders).initialOffset()
    orders.create_topic("other")
    other = reader(orders, topic="other")

    for foreign in (other, reader(orders, group="other")):
        with pytest.raises(InvalidArgument, match=r"another topic than '\w+' or another group"):
            foreign.latestOffset(start, ReadAllAvailable())
    with pytest.raises(InvalidArgument, match="not one of duewheel"):
        StreamOffset.of({"offset": 5})
    with pytest.raises(InvalidArgument, match="upgrade"):
        StreamOffset.of({"v": 2})


def test_recalled_and_waiting_messages_do_not_come(timed_orders: Broker) -> None:
    hours = [timedelta(hours=number) for number in range(4)]
    recalled = timed_orders.send(TOPIC, b"", key="2", delay=hours[1])
    later = timed_orders.send(TOPIC, b"", key="1", delay=hours[3])
    assert timed_orders.recall(recalled.message_id).outcome == "recalled"
    send(timed_orders, range(10, 20))
    stream = reader(timed_orders)
    start = stream.initialOffset()

    end = stream.latestOffset(start, ReadAllAvailable())
    assert between(stream, start, end) == list(range(10, 20))
    timed_orders.reschedule(later.message_id, delay=hours[1])
    assert between(stream, end, stream.latestOffset(end, ReadAllAvailable())) == [1]


def test_stream_behind_retention_reports_its_loss(timed_broker: Broker, clock: Clock) -> None:
    """It ends, or goes on if so asked."""
    broker = timed_broker
    broker.create_topic(TOPIC, queues=1, max_delay=timedelta(days=100), retention=timedelta(days=10))
    for day in (1, 2, 3):
        messages = [{"body": os.urandom(100_000), "key": str(day), "delay": timedelta(days=day)}] * 5
        broker.send_many(TOPIC, messages)
    clock.advance(timedelta(days=5))
    broker.tick(TOPIC)
    broker.maintain()
    broker.maintain()
    stream = reader(broker)
    start = stream.initialOffset()
    seen = stream.latestOffset(start, ReadMaxRows(2))
    assert between(stream, start, seen) == [1, 1]
    stream.commit(seen)
    end = stream.latestOffset(seen, ReadAllAvailable())
    limit = broker.settings().message_bytes - 900_000
    broker.update_settings(retention_bytes=limit, when_full="drop_unread")
    assert len(broker.maintain().dropped_when_full) == 2

    said = "retention has dropped up to 8 messages of topic 'orders' that the stream had not read, in 1 of 1"
    with pytest.raises(StreamDataLost, match=f"{said} queues: set failOnDataLoss to false"):
        stream.partitions(seen, end)
    assert between(reader(broker, failOnDataLoss="false"), seen, end) == [3] * 5


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_stream_ends_when_its_topic_is_deleted(orders: Broker, is_forgotten: bool) -> None:
    """Also where upkeep has forgotten it, and where it is made again: it would wait for ever."""
    stream = reader(orders)
    start = stream.initialOffset()
    orders.delete_topic(TOPIC)
    if is_forgotten:
        with orders.connection() as connection, connection.cursor() as cursor:
            cursor.execute("update duewheel.topic set deleted_at = now() - interval '2 days'")
            for _ in range(4):
                cursor.execute("select duewheel.trim_leases(topic_id, 'infinity', 1000) from duewheel.topic")
                cursor.execute("select duewheel.forget_topics(now() + interval '1 minute', now())")
            cursor.execute("select from duewheel.topic where name like 'orders%'")
            assert cursor.rowcount == 0

    for look in (
        lambda: stream.latestOffset(start, ReadAllAvailable()),
        stream.prepareForTriggerAvailableNow,
    ):
        with pytest.raises(UnknownTopic, match="was deleted while the stream read it"):
            look()
    orders.create_topic(TOPIC)
    send(orders, range(5))
    with pytest.raises(UnknownTopic, match="with a new checkpoint"):
        stream.latestOffset(start, ReadAllAvailable())
    assert len(orders.consumer(TOPIC, GROUP).receive()) == 5


@pytest.mark.parametrize("made_again", [False, True])
def test_stream_ends_when_its_group_is_deleted(orders: Broker, made_again: bool) -> None:
    """Its checkpoint is the right one: the group that it belongs to is gone."""
    stream = reader(orders)
    start = stream.initialOffset()
    send(orders, range(5))
    orders.delete_group(GROUP)
    if made_again:
        orders.consumer(TOPIC, GROUP)

    for look in (
        lambda: stream.latestOffset(start, ReadAllAvailable()),
        stream.prepareForTriggerAvailableNow,
    ):
        with pytest.raises(
            UnknownGroup, match="group 'lake' of topic 'orders' was deleted while the stream read it"
        ):
            look()


def test_fifo_topic_is_refused(broker: Broker) -> None:
    broker.create_topic(TOPIC, message_type="FIFO")
    with pytest.raises(InvalidArgument, match="FIFO"):
        reader(broker).initialOffset()


class SlowSenders:
    """Send numbered messages in transactions that stay open for a while, until told to stop."""

    def __init__(self, dsn: str, count: int) -> None:
        self._dsn = dsn
        self._stop = threading.Event()
        self.sent: list[int] = []
        self._threads = [threading.Thread(target=self._send, args=[number]) for number in range(count)]

    def __enter__(self) -> SlowSenders:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self, sender: int) -> None:
        from duewheel.store.broker import Broker

        number = sender * 1_000_000
        with Broker(self._dsn) as broker, closing(psycopg2.connect(self._dsn)) as connection:
            while not self._stop.is_set():
                keys = range(number, number + 5)
                number += 5
                send(broker, keys, connection=connection)
                # A slow commit is what makes stragglers.
                self._stop.wait(0.2 * (sender + 1))
                if keys[0] % 4 == 3:
                    connection.rollback()
                    continue
                connection.commit()
                self.sent.extend(keys)


@pytest.mark.long
def test_x14_stream_is_exact_with_slow_senders(orders: Broker, spark: SparkSession, tmp_path: Path) -> None:
    """Stopped and started from its checkpoint all the time."""
    lake = Lake(spark, orders, tmp_path, maxMessagesPerTrigger="300")
    with SlowSenders(orders.dsn, 4) as senders:
        for _ in range(3):
            lake.run()
    lake.run()

    with orders.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from duewheel.straggler")
        assert cursor.fetchone() != (0,)
    assert len(senders.sent) > 50
    assert lake.keys() == sorted(senders.sent)
