"""A stream, or a look, of several topics, and a stream without a group of its own."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.spark.test_stream import Lake

from duewheel.spark.read_options import LookRead, StreamRead
from duewheel.spark.stream_reader import MessageStreamReader
from duewheel.spark.topic_stream import DRAWN_GROUP_REST
from duewheel.store import Broker
from duewheel.store.values.errors import GroupBusy, InvalidArgument, UnknownGroup, UnknownTopic

EVERY = ReadAllAvailable()
BOTH = "orders-north, orders-south"
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "spark.md"

Offset = dict[str, Any]


@pytest.fixture
def orders(broker: Broker) -> Broker:
    """A broker with two topics, and one of another name."""
    for topic in ("orders-north", "orders-south", "returns"):
        broker.create_topic(topic)
    return broker


def send(broker: Broker, topic: str, keys: range, **fields: Any) -> None:
    broker.send_many(topic, [{"body": b"", "key": str(n), "delay": timedelta(0), **fields} for n in keys])


def reader(broker: Broker, **options: str) -> MessageStreamReader:
    return MessageStreamReader(StreamRead.of({"dsn": broker.dsn, **options}), ("topic", "key"))


def between(stream: MessageStreamReader, start: Offset, end: Offset) -> list[tuple[str, int]]:
    """Topics and keys between two offsets, sorted."""
    return sorted(
        (row["topic"], int(row["key"]))
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    )


def groups(broker: Broker) -> tuple[str, ...]:
    """Those of the first topic."""
    (found,) = (topic.groups for topic in broker.stats().topics if topic.topic == "orders-north")
    return tuple(group.group for group in found)


def of(topic: str, keys: range) -> list[tuple[str, int]]:
    return [(topic, key) for key in keys]


def test_stream_reads_several_topics(orders: Broker) -> None:
    stream = reader(orders, topic=BOTH, group="lake")
    start = stream.latestOffset(stream.initialOffset(), EVERY)
    assert stream.latestOffset(start, EVERY) == start
    send(orders, "orders-north", range(3))
    first = stream.latestOffset(start, EVERY)
    assert between(stream, start, first) == of("orders-north", range(3))
    # As where a query ends before it has finished its first micro-batch, and begins again.
    assert between(reader(orders, topic=BOTH, group="lake"), start, first) == of("orders-north", range(3))
    stream.commit(first)

    send(orders, "orders-south", range(10, 12))
    send(orders, "orders-north", range(3, 4))
    send(orders, "returns", range(5))
    second = stream.latestOffset(first, EVERY)
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(first, EVERY) == second
    assert between(stream, first, second) == of("orders-north", range(3, 4)) + of(
        "orders-south", range(10, 12)
    )
    stream.commit(second)
    assert stream.reportLatestOffset() == {
        topic: {"messagesBehind": 0, "secondsBehind": 0.0} for topic in ("orders-north", "orders-south")
    }
    assert stream.latestOffset(second, EVERY) == second


def test_topics_share_a_limit(orders: Broker) -> None:
    stream = reader(orders, topic=BOTH, group="lake", maxMessagesPerTrigger="40")
    start = stream.initialOffset()
    send(orders, "orders-north", range(90))
    send(orders, "orders-south", range(30))
    offset, found = start, []
    sizes = []
    while (end := stream.latestOffset(offset, ReadMaxRows(40))) != offset:
        part = between(stream, offset, end)
        sizes.append(len(part))
        found += part
        offset = end
    assert sizes[0] == 40
    assert max(sizes) == 40
    assert sorted(found) == of("orders-north", range(90)) + of("orders-south", range(30))


@pytest.mark.parametrize("stands", ["paused", "at its target"])
def test_topic_that_stands_still_takes_no_share_of_a_limit(orders: Broker, stands: str) -> None:
    stream = reader(orders, topic=BOTH, group="lake", maxMessagesPerTrigger="40")
    start = stream.latestOffset(stream.initialOffset(), ReadMaxRows(40))
    send(orders, "orders-south", range(100))
    if stands == "paused":
        orders.pause_group("lake", topic="orders-north")
    else:
        stream.prepareForTriggerAvailableNow()
    send(orders, "orders-north", range(300))
    orders.tick("orders-north")
    end = stream.latestOffset(start, ReadMaxRows(40))
    assert [topic for topic, _ in between(stream, start, end)] == ["orders-south"] * 40


def test_limit_of_bytes_is_that_of_all_topics(orders: Broker) -> None:
    stream = reader(orders, topic=BOTH, group="lake", maxBytesPerTrigger="1")
    start = stream.initialOffset()
    for topic in ("orders-north", "orders-south"):
        orders.send_many(topic, [{"body": b"x" * 100, "delay": timedelta(0)} for _ in range(50)])
    end = stream.latestOffset(start, EVERY)
    assert (
        1 <= sum(batch.num_rows for part in stream.partitions(start, end) for batch in stream.read(part)) < 9
    )


def test_pattern_meets_topics_that_are_made_later(orders: Broker) -> None:
    """All of what they have, though the stream began with the latest."""
    send(orders, "orders-north", range(9))
    orders.create_topic("orders-fifo", message_type="FIFO")
    stream = reader(orders, topicPattern="orders-.*", group="lake", startingOffsets="latest")
    start = stream.latestOffset(stream.initialOffset(), EVERY)
    assert stream.latestOffset(start, EVERY) == start
    send(orders, "orders-north", range(9, 11))
    first = stream.latestOffset(start, EVERY)
    assert between(stream, start, first) == of("orders-north", range(9, 11))

    orders.create_topic("orders-east")
    send(orders, "orders-east", range(4))
    second = stream.latestOffset(first, EVERY)
    assert between(reader(orders, topicPattern="orders-.*", group="lake"), first, second) == of(
        "orders-east", range(4)
    )
    orders.delete_topic("orders-east")
    with pytest.raises(UnknownTopic, match="topic 'orders-east' was deleted while the stream read it"):
        stream.latestOffset(second, EVERY)


@pytest.mark.parametrize("pattern", ["orders-.*", "later-.*"], ids=["idle", "none"])
def test_pattern_reads_all_of_a_topic_made_before_its_first_read(orders: Broker, pattern: str) -> None:
    """Also where the pattern has found no topic before, and where the micro-batch runs again."""
    options = {"topicPattern": pattern, "group": "lake", "startingOffsets": "latest"}
    send(orders, "orders-north", range(9))
    stream = reader(orders, **options)
    start = stream.latestOffset(stream.initialOffset(), EVERY)
    assert stream.partitions(stream.initialOffset(), start) == []
    topic = pattern.replace(".*", "east")
    orders.create_topic(topic)
    send(orders, topic, range(5))
    end = stream.latestOffset(start, EVERY)
    assert between(stream, start, end) == of(topic, range(5))
    assert between(reader(orders, **options), start, end) == of(topic, range(5))
    # As where the query starts again before it has found the topic.
    assert reader(orders, **options).latestOffset(start, EVERY) == end
    assert stream.latestOffset(end, EVERY) == end


def test_a_stream_of_one_topic_takes_in_more(orders: Broker) -> None:
    send(orders, "orders-north", range(3))
    one = reader(orders, topic="orders-north", group="lake")
    start = one.latestOffset(one.initialOffset(), EVERY)
    one.commit(start)
    send(orders, "orders-south", range(2))
    both = reader(orders, topic=BOTH, group="lake")
    end = both.latestOffset(start, EVERY)
    assert between(both, start, end) == of("orders-south", range(2))
    # And leaves one again.
    send(orders, "orders-north", range(3, 5))
    last = one.latestOffset(end, EVERY)
    assert between(one, end, last) == of("orders-north", range(3, 5))
    with pytest.raises(InvalidArgument, match="the checkpoint is of one topic and group, which are not"):
        reader(orders, topic="orders-south, returns", group="lake").latestOffset(start, EVERY)


@pytest.mark.long
def test_stream_without_a_group_keeps_its_own_in_the_checkpoint(
    orders: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, orders, tmp_path, topic="orders-north", group="")
    send(orders, "orders-north", range(5))
    lake.run()
    (group,) = groups(orders)
    assert group.startswith("stream-")
    send(orders, "orders-north", range(5, 8))
    lake.run()
    assert lake.keys() == list(range(8))
    # Another checkpoint is another stream.
    other = Lake(spark, orders, tmp_path / "other", topic="orders-north", group="")
    other.run()
    assert other.keys() == list(range(8))
    assert len(groups(orders)) == 2
    orders.delete_group(group)


def test_stream_without_its_group_fails_and_makes_no_group(orders: Broker) -> None:
    """As when it comes back after the time in which upkeep deletes such a group."""
    stream = reader(orders, topic="orders-north")
    begun = stream.latestOffset(stream.initialOffset(), EVERY)
    (group,) = groups(orders)
    with orders.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select removed_after from duewheel.subscription")
        assert cursor.fetchall() == [(DRAWN_GROUP_REST,)]
    words = " ".join(REFERENCE.read_text().split())
    assert f"for {DRAWN_GROUP_REST.days} days of what is kept" in words
    orders.delete_group(group)
    with pytest.raises(UnknownGroup, match=f"group '{group}' of topic 'orders-north' was deleted"):
        reader(orders, topic="orders-north").latestOffset(begun, EVERY)
    assert groups(orders) == ()
    orders.delete_topic("orders-north")
    with pytest.raises(UnknownTopic, match="topic 'orders-north' was deleted"):
        reader(orders, topic="orders-north").latestOffset(begun, EVERY)


def test_x28_stream_without_a_group_keeps_tags_and_filter(orders: Broker) -> None:
    """Its next micro-batch, or the same one again, would have had other messages than the group's."""
    given = {"topic": "orders-north", "tags": "b || a", "filter": "$.n > 1"}
    stream = reader(orders, **given)
    begun = stream.latestOffset(stream.initialOffset(), EVERY)
    send(orders, "orders-north", range(3), tag="a", properties={"n": 2})
    end = stream.latestOffset(begun, EVERY)
    (group,) = groups(orders)
    refused = f"{group}.*set-subscription.* A new checkpoint gives the stream another group"
    for changed in ({"tags": "a"}, {"tags": "*"}, {"filter": "$.n > 2"}, {"filter": ""}):
        with pytest.raises(InvalidArgument, match=refused):
            reader(orders, **given | changed).latestOffset(begun, EVERY)
        with pytest.raises(InvalidArgument, match=refused):
            reader(orders, **given | changed).partitions(begun, end)
    same = reader(orders, **given | {"tags": "a||b"})
    assert between(same, begun, end) == of("orders-north", range(3))
    orders.set_subscription("orders-north", group, "a")
    changed_with_the_group = reader(orders, topic="orders-north", tags="a")
    assert changed_with_the_group.latestOffset(end, EVERY) == end


def test_stream_without_a_group_begins_where_its_first_look_was(orders: Broker) -> None:
    """Also where the query is ended before its first micro-batch, and begins again."""
    options = {"topic": "orders-north", "startingOffsets": "latest"}
    stream = reader(orders, **options)
    start = stream.initialOffset()
    assert groups(orders) == ()
    begun = stream.latestOffset(start, EVERY)
    assert stream.latestOffset(begun, EVERY) == begun
    send(orders, "orders-north", range(5))
    end = stream.latestOffset(begun, EVERY)

    again = reader(orders, **options)
    assert between(again, begun, end) == of("orders-north", range(5))
    assert between(again, again.initialOffset(), end) == of("orders-north", range(5))
    again.commit(end)
    assert len(groups(orders)) == 1
    available = reader(orders, **options)
    available.prepareForTriggerAvailableNow()
    assert available.latestOffset(end, EVERY) == end


def test_stream_of_a_fifo_topic_leaves_no_group_behind(orders: Broker) -> None:
    orders.create_topic("orders-fifo", message_type="FIFO")
    for options in ({}, {"group": "lake"}):
        stream = reader(orders, topic="orders-north, orders-fifo", **options)
        with pytest.raises(InvalidArgument, match="topic 'orders-fifo' is of type FIFO"):
            stream.latestOffset(stream.initialOffset(), EVERY)
    ending = reader(orders, topic="orders-north, orders-fifo", group="lake")
    with pytest.raises(InvalidArgument, match="topic 'orders-fifo' is of type FIFO"):
        ending.prepareForTriggerAvailableNow()
    assert groups(orders) == ()
    before = reader(orders, topic="orders-north, orders-south", group="lake")
    begun = before.latestOffset(before.initialOffset(), EVERY)
    longer = reader(orders, topic="orders-north, orders-south, orders-fifo", group="lake")
    with pytest.raises(InvalidArgument, match="topic 'orders-fifo' is of type FIFO"):
        longer.latestOffset(begun, EVERY)
    assert {one.topic for one in orders.groups()} == {"orders-north", "orders-south"}


def test_topic_that_is_added_again_waits_for_a_rewind(orders: Broker) -> None:
    both, one = reader(orders, topic=BOTH, group="lake"), reader(orders, topic="orders-north", group="lake")
    begun = both.latestOffset(both.initialOffset(), EVERY)
    send(orders, "orders-south", range(1))
    start = both.latestOffset(begun, EVERY)
    both.commit(start)
    without = one.latestOffset(start, EVERY)
    with pytest.raises(GroupBusy, match="the group is read by another stream"):
        reader(orders, topic=BOTH, group="lake").latestOffset(without, EVERY)
    send(orders, "orders-south", range(1, 3))
    orders.rewind("orders-south", "lake", to="earliest")
    again = reader(orders, topic=BOTH, group="lake")
    assert between(again, without, again.latestOffset(without, EVERY)) == of("orders-south", range(3))


@pytest.mark.parametrize("topics", ["orders-north", BOTH], ids=["one", "several"])
def test_a_checkpoint_keeps_the_kind_of_its_group(orders: Broker, topics: str) -> None:
    """Refused at once, so that the checkpoint goes on with the options that it had."""
    send(orders, "orders-north", range(3))
    for had, has, wrong in (
        ({}, {"group": "lake"}, "the checkpoint has a group of its own: leave the option group out"),
        ({"group": "lake"}, {}, "the options gave this checkpoint its group: leave the option group as it"),
    ):
        stream = reader(orders, topic=topics, **had)
        start = stream.initialOffset()
        end = stream.latestOffset(start, EVERY)
        stream.commit(end)
        send(orders, "orders-north", range(3, 5))
        other = reader(orders, topic=topics, **has)
        for refused in (
            lambda other=other, end=end: other.latestOffset(end, EVERY),
            lambda other=other, end=end: other.partitions(other.initialOffset(), end),
            lambda other=other, end=end: other.commit(end),
        ):
            with pytest.raises(InvalidArgument, match=wrong):
                refused()
        again = reader(orders, topic=topics, **had)
        assert between(again, end, again.latestOffset(end, EVERY)) == of("orders-north", range(3, 5))


def test_look_at_several_topics(orders: Broker, spark: SparkSession) -> None:
    for topic in ("orders-north", "orders-south", "returns"):
        send(orders, topic, range(4))
    look = spark.read.format("duewheel").options(dsn=orders.dsn, columns="topic")
    for frame in (look.load(BOTH), look.option("topicPattern", "orders-.*").load()):
        assert sorted(row.topic for row in frame.collect()) == ["orders-north"] * 4 + ["orders-south"] * 4
    assert look.option("topicPattern", "nothing").load().count() == 0


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"topic": "a", "topicPattern": "b"}, "topic and topicPattern both name topics"),
        ({"topicPattern": "("}, "'topicPattern' is '\\(', which is not a regular expression"),
        ({"topic": " , "}, "'topic' is missing"),
    ],
)
def test_topics_are_named_in_one_way(options: dict[str, str], wrong: str) -> None:
    for kind in (StreamRead, LookRead):
        with pytest.raises(InvalidArgument, match=wrong):
            kind.of({"dsn": "host=here", **options})
