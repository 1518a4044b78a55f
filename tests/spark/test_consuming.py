"""``consume``: acked at the end of the block, nacked after an error, and any frame is worked on once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.conftest import execute
from tests.leasing import extend_often
from tests.spark.reading import AT_ONCE, GROUP, TOPIC, send, take

from duewheel.spark import session
from duewheel.spark.consuming import consume
from duewheel.spark.partition_work import PartitionsFailed
from duewheel.store.broker import Broker
from duewheel.store.database.connections import DriverConnection
from duewheel.store.values.errors import InvalidArgument, LeaseLost

COUNT = 40


@pytest.fixture
def shop(orders: Broker) -> Broker:
    """A broker with forty messages, and a table that takes a row for each time that one has its effect."""
    send(orders, range(COUNT))
    execute(orders.dsn, "create table effect (key text, said text)")
    return orders


def states(broker: Broker) -> dict[str, int]:
    """How many messages have each state."""
    found: dict[str, int] = {}
    for number in range(COUNT):
        (message,) = broker.find_key(TOPIC, str(number))
        state = broker.history(message.message_id)[-1].state
        found[state] = found.get(state, 0) + 1
    return found


def effects(broker: Broker) -> tuple[int, int]:
    """How many effects there are, and of how many messages."""
    ((rows, keys),) = execute(broker.dsn, "select count(*), count(distinct key) from effect")
    return rows, keys


def record(connection: DriverConnection, batches: Iterator[pa.RecordBatch]) -> None:
    with connection.cursor() as cursor:
        for batch in batches:
            keys = batch["key"].to_pylist()
            cursor.execute("insert into effect (key) select distinct unnest(%s::text[])", (keys,))


def joined(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """Two rows for each message with an even key, as of an order with two lines."""
    lines = spark.range(COUNT).selectExpr("cast(id as string) as key", "explode(array(1, 2)) as line")
    return frame.join(lines.where("cast(key as int) % 2 = 0"), "key").select("line", "key", "receipt_handle")


def test_the_end_of_the_block_acks_what_it_has_not_answered(shop: Broker, spark: SparkSession) -> None:
    with consume(spark, shop.dsn, TOPIC, GROUP, columns=["key", "message_id"]) as batch:
        assert batch
        assert batch.messages.columns == ["key", "message_id"]
        assert batch.reject(batch.messages.where("key = '7'"), "no seventh") == 1
        assert batch.messages.count() == COUNT - 1
    assert states(shop) == {"Acked": COUNT - 1, "WaitingRetry": 1}
    with consume(spark, shop.dsn, TOPIC, GROUP) as nothing:
        assert not nothing
        assert nothing.messages.collect() == []
        assert nothing.foreach_partition(record) == 0


def test_r03_an_error_nacks_with_its_reason(shop: Broker, spark: SparkSession) -> None:
    with pytest.raises(ZeroDivisionError), consume(spark, shop.dsn, TOPIC, GROUP):
        raise ZeroDivisionError("no orders")
    assert states(shop) == {"WaitingRetry": COUNT}
    (found,) = shop.find_key(TOPIC, "1")
    assert shop.history(found.message_id)[-1].reason == "ZeroDivisionError: no orders"


def test_an_interrupt_gives_back_and_counts_no_attempt(shop: Broker, spark: SparkSession) -> None:
    with pytest.raises(KeyboardInterrupt), consume(spark, shop.dsn, TOPIC, GROUP):
        raise KeyboardInterrupt
    assert [message.attempt for message in shop.consumer(TOPIC, GROUP).receive(max_messages=COUNT)] == [
        1
    ] * COUNT


@pytest.mark.parametrize("fails", [False, True])
def test_x16_work_and_ack_in_a_transaction_of_the_block(
    shop: Broker, spark: SparkSession, fails: bool
) -> None:
    with closing(psycopg2.connect(shop.dsn)) as connection:
        try:
            with consume(spark, shop.dsn, TOPIC, GROUP) as batch, connection:
                batch.ack(connection)
                if fails:
                    raise ZeroDivisionError("after the ack, before the commit")
        except ZeroDivisionError:
            assert fails
    assert states(shop) == {"WaitingRetry" if fails else "Acked": COUNT}


def test_x10_only_jobs_of_the_block_end_with_the_lease(
    shop: Broker, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend_often(monkeypatch)
    monkeypatch.setattr(session, "WATCH_SECONDS", 0.05)
    paths = {name: str(tmp_path / name) for name in ("block", "other", "end")}
    for path in paths.values():
        os.mkfifo(path)

    def begin_and_stay(row: Any) -> None:
        with open(paths[row.name], "w") as begun:
            begun.write("begun")
        if row.name == "block":
            threading.Event().wait()
        with open(paths["end"]) as end:
            end.read(1)

    def run(name: str) -> None:
        spark.createDataFrame([(name,)], "name string").coalesce(1).foreach(begin_and_stay)

    def wait_for(name: str) -> None:
        # If the reader closed before the word is written, the task failed, and its next try waited for ever.
        with open(paths[name]) as begun:
            begun.read(1)

    other = threading.Thread(target=run, args=["other"])
    other.start()
    wait_for("other")

    def lose() -> None:
        wait_for("block")
        shop.rewind(TOPIC, GROUP, "earliest")

    losing = threading.Thread(target=lose)
    losing.start()
    with pytest.raises(LeaseLost, match="rewound"), consume(spark, shop.dsn, TOPIC, GROUP):
        run("block")
    losing.join()
    assert other.is_alive()
    with open(paths["end"], "w") as end:
        end.write("end")
    other.join()


def test_arguments_are_all_or_none(spark: SparkSession) -> None:
    with pytest.raises(InvalidArgument, match="give spark, dsn, topic and group"), consume(spark, "dbname=x"):
        pass
    with pytest.raises(InvalidArgument, match="this program has no batch"), consume():
        pass


def test_x16_only_messages_of_a_joined_frame_are_acked_once(shop: Broker, spark: SparkSession) -> None:
    """Both rows of a message come to one part; a second run, at once or later, does nothing."""

    def record_rows(connection: DriverConnection, batches: Iterator[pa.RecordBatch]) -> None:
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert sorted({row["line"] for row in rows}) == [1, 2]
        with connection.cursor() as cursor:
            for row in rows:
                cursor.execute("insert into effect values (%s, %s)", (row["key"], str(row["line"])))

    batch = take(shop).on(spark)
    frame = joined(batch.messages, spark)
    done: list[int] = []
    twins = [
        threading.Thread(target=lambda: done.append(batch.foreach_partition(record_rows, frame)))
        for _ in range(2)
    ]
    for twin in twins:
        twin.start()
    for twin in twins:
        twin.join()
    assert done == [COUNT // 2] * 2
    assert effects(shop) == (COUNT, COUNT // 2)
    assert (batch.outcome().acked, batch.outcome().unanswered) == (COUNT // 2, COUNT // 2)
    # A frame that has some of them again, and others.
    assert batch.foreach_partition(record, batch.messages.where("key < 5 or key % 2 = 1")) > COUNT // 2
    assert effects(shop) == (COUNT + COUNT // 2, COUNT)
    assert batch.outcome().acked == COUNT


def test_x15_a_failed_part_of_a_frame_stops_no_other(shop: Broker, spark: SparkSession) -> None:
    def fail_on_8(connection: DriverConnection, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            record(connection, iter([batch]))
            if "8" in batch["key"].to_pylist():
                raise ZeroDivisionError("no order 8")

    with (
        pytest.raises(PartitionsFailed, match="ZeroDivisionError: no order 8") as raised,
        consume(spark, shop.dsn, TOPIC, GROUP) as batch,
    ):
        batch.foreach_partition(fail_on_8, joined(batch.messages, spark))
    (failure,) = raised.value.failures
    assert raised.value.acked == COUNT // 2 - failure.messages
    assert effects(shop) == (raised.value.acked, raised.value.acked)
    assert states(shop) == {"Acked": raised.value.acked, "WaitingRetry": COUNT - raised.value.acked}


def test_a_frame_may_reject_in_its_transaction(shop: Broker, spark: SparkSession) -> None:
    def reject_eights(connection: DriverConnection, batches: Iterator[pa.RecordBatch]) -> None:
        handles = [
            row["receipt_handle"]
            for batch in batches
            for row in batch.to_pylist()
            if row["key"].endswith("8")
        ]
        with connection.cursor() as cursor:
            cursor.execute("select duewheel.nack(%s, interval '1 hour', 'an eight')", (handles,))

    with consume(spark, shop.dsn, TOPIC, GROUP) as batch:
        frame = batch.messages.withColumnRenamed("receipt_handle", "Receipt_Handle")
        assert batch.foreach_partition(reject_eights, frame) == COUNT
    assert states(shop) == {"Acked": COUNT - 4, "WaitingRetry": 4}


def test_rows_that_name_no_message_of_the_batch_are_refused(shop: Broker, spark: SparkSession) -> None:
    batch = take(shop).on(spark)
    with pytest.raises(InvalidArgument, match="the frame has no column receipt_handle"):
        batch.foreach_partition(record, batch.messages.select("key"))
    foreign = batch.messages.withColumn("receipt_handle", f.lit(None).cast("string"))
    with pytest.raises(PartitionsFailed, match=f"{COUNT} rows of the frame name no message of this batch"):
        batch.foreach_partition(record, foreign)


def test_x10_a_frame_of_a_returned_lease_is_not_worked_on(shop: Broker, spark: SparkSession) -> None:
    batch = take(shop).on(spark)
    frame = batch.messages.cache()
    assert frame.count() == COUNT
    batch.nack(AT_ONCE)
    with pytest.raises(PartitionsFailed, match="given back"):
        batch.foreach_partition(record, frame)
    frame.unpersist()
    assert effects(shop) == (0, 0)
