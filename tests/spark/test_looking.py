"""A look: what is stored, and nothing is leased."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from tests.logins import login
from tests.waiting import ask, connected

from duewheel.spark.data_source import DueWheelDataSource
from duewheel.spark.look_reader import LookReader
from duewheel.spark.message_columns import SPARK_SCHEMA
from duewheel.spark.read_options import LookRead
from duewheel.store.broker import Broker
from duewheel.store.values.errors import InvalidArgument, UnknownTopic

TOPIC = "orders"
NOON = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
def orders(broker: Broker) -> Broker:
    """A broker with a hundred messages a second apart, from noon on."""
    broker.create_topic(TOPIC, queues=3, max_delay=timedelta(days=2000))
    broker.send_many(
        TOPIC,
        [
            {"body": b"", "key": str(n), "deliver_at": NOON + timedelta(seconds=n), "tag": "ab"[n % 2]}
            for n in range(100)
        ],
    )
    return broker


def reader(broker: Broker, dsn: str | None = None, **options: str) -> LookReader:
    given = {"dsn": dsn or broker.dsn, "topic": TOPIC, **options}
    return LookReader(LookRead.of(given), ("key",))


def keys(look: LookReader) -> list[int]:
    return sorted(
        int(key)
        for partition in look.partitions()
        for batch in look.read(partition)
        for key in batch["key"].to_pylist()
    )


def test_all_that_is_stored_is_read_and_nothing_is_leased(orders: Broker, spark: SparkSession) -> None:
    far = orders.send(TOPIC, b"", key="100", deliver_at=NOON + timedelta(days=1000))
    recalled = orders.send(TOPIC, b"", key="101", deliver_at=NOON)
    orders.recall(recalled.message_id)
    orders.send(TOPIC, b"", key="102", delay=timedelta(0))
    assert [message.key for message in orders.consumer(TOPIC, "g").receive()] == ["102"]

    frame = spark.read.format("duewheel").options(dsn=orders.dsn, topic=TOPIC).load()
    found = frame.select("key", "message_id", "topic").collect()
    assert sorted(int(row.key) for row in found) == [*range(101), 102]
    assert [row.message_id for row in found if row.key == "100"] == [far.message_id]
    assert {row.topic for row in found} == {TOPIC}
    assert [group.group for group in orders.groups()] == ["g"]


@pytest.mark.slow
def test_range_is_cut_into_parts_that_meet(orders: Broker) -> None:
    look = reader(
        orders,
        maxMessagesPerPartition="7",
        dueFrom=(NOON + timedelta(seconds=10)).isoformat(),
        dueUntil=(NOON + timedelta(seconds=90)).isoformat(),
    )
    assert 80 / 7 < len(look.partitions()) <= 80 / 7 + 3
    assert keys(look) == list(range(10, 90))
    assert keys(reader(orders)) == list(range(100))
    assert keys(reader(orders, tags="b", dueUntil=NOON.isoformat())) == []
    assert keys(reader(orders, tags="b")) == list(range(1, 100, 2))


def test_a_queue_of_small_messages_is_one_part(orders: Broker) -> None:
    orders.send_many(TOPIC, [{"body": b"", "key": "1", "deliver_at": NOON}] * 45_000)
    assert len(reader(orders).partitions()) == 3
    assert [fetched_by_cuts(orders, is_exact=is_exact) < 4_000 for is_exact in (False, True)] == [True, False]


def fetched_by_cuts(orders: Broker, *, is_exact: bool) -> int:
    """How many messages are fetched to cut three queues into parts."""
    with connected(orders.dsn, autocommit=False) as connection:
        cuts = "select from duewheel.peek_cuts(%s, null, null, 1000000, 134217728, %s)"
        ask(connection, cuts, TOPIC, is_exact)
        counted = (
            "select sum(idx_tup_fetch)::bigint from pg_stat_xact_user_tables where relname like 'message%%'"
        )
        ((fetched,),) = ask(connection, counted)
        return int(fetched)


def test_parts_may_be_smaller_down_to_one_message(orders: Broker) -> None:
    for wanted in (2, 10):
        look = reader(orders, minPartitions=str(wanted))
        assert wanted <= len(look.partitions()) <= 2 * wanted
        assert keys(look) == list(range(100))
    assert len(reader(orders, minPartitions="1000").partitions()) == 100


def test_parts_have_a_limit_of_bytes(orders: Broker) -> None:
    """Which messages without a body do not reach."""
    assert len(reader(orders, maxBytesPerPartition="100").partitions()) == 3
    orders.send_many(TOPIC, [{"body": b"x" * 100, "key": "1", "deliver_at": NOON}] * 50)
    assert 50 <= len(reader(orders, maxBytesPerPartition="100").partitions()) <= 53


def test_consumer_may_look_and_producer_may_not(orders: Broker) -> None:
    assert len(keys(reader(orders, login(orders.dsn, "duewheel_consumer")))) == 100
    with pytest.raises(Exception, match="duewheel_consumer"):
        reader(orders, login(orders.dsn, "duewheel_producer")).partitions()


def test_options_are_checked(orders: Broker) -> None:
    refused = r"a look, which leases nothing, does not take the options \['group', 'maxMess\w+'\]: leave"
    with pytest.raises(InvalidArgument, match=refused):
        reader(orders, group="g", maxMessagesPerTrigger="5")
    with pytest.raises(InvalidArgument, match="'dueFrom' is 'noon': give an instant such as"):
        reader(orders, dueFrom="noon")
    of_topic = {"dsn": orders.dsn, "topic": TOPIC}
    with pytest.raises(InvalidArgument, match=r"a stream does not take the options \['dueUntil'\]"):
        DueWheelDataSource({**of_topic, "group": "g", "dueUntil": "5"}).schema()
    with pytest.raises(UnknownTopic):
        DueWheelDataSource({**of_topic, "topic": "nowhere"}).schema()
    with pytest.raises(InvalidArgument, match=r"a stream does not take the options \['dueFrom'\]"):
        DueWheelDataSource({**of_topic, "dueFrom": "5"}).streamReader(SPARK_SCHEMA)


def test_a_view_is_made_in_sql_and_a_table_says_how(orders: Broker, spark: SparkSession) -> None:
    """PySpark 4.3 reads a table of a Python source without its options."""
    options = f"using duewheel options (dsn '{orders.dsn}', topic '{TOPIC}')"
    with pytest.raises(AnalysisException, match="make a view, by create temporary view"):
        spark.sql(f"create table looked_at {options}")
    spark.sql(f"create temporary view looked_at {options}")
    try:
        assert spark.sql("select count(key) from looked_at where tag = 'a'").collect() == [(50,)]
    finally:
        spark.sql("drop view looked_at")
