"""Messages that a DataFrame names are rejected on the executors, each with a reason and once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.leasing import extend_often, wait_for_extensions

from duewheel.spark import rejecting
from duewheel.spark.batch import Batch
from duewheel.spark.rejecting import reject, reject_leased
from duewheel.spark.submitted import _loss
from duewheel.store.broker import Broker
from duewheel.store.values.errors import GroupBusy, InvalidArgument, LeaseLost, UnknownMessage
from duewheel.store.values.retry_policy import RetryPolicy

TOPIC = "orders"
GROUP = "canceller"
AT_ONCE = timedelta(0)
COUNT = 200


@pytest.fixture
def orders(broker: Broker) -> Broker:
    """A broker with messages, keys counted from 0."""
    broker.create_topic(TOPIC)
    broker.send_many(TOPIC, [{"body": b"", "key": str(number), "delay": AT_ONCE} for number in range(COUNT)])
    return broker


def take(broker: Broker) -> Batch:
    return Batch.take(broker, TOPIC, GROUP, max_messages=COUNT, partitions=4)


def reasons(broker: Broker, key: str) -> list[str]:
    (found, *_) = broker.find_key(TOPIC, key)
    return [entry.reason for entry in broker.history(found.message_id) if entry.reason]


def test_r03_r14_only_rejected_messages_come_again(
    orders: Broker, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a whole lease of them, which its keeper does not take for lost."""
    extend_often(monkeypatch)
    batch = take(orders)
    first = batch.leases[0]
    handles = f"{first.group_id}.{first.topic_id}.{first.queue}.{first.n}.{first.token}."
    with batch.kept_alive() as keeper:
        frame = batch.on(spark, ["receipt_handle"]).messages
        bad = frame.where(f.col("receipt_handle").startswith(handles))
        assert batch.reject(bad, "all of a lease", delay=AT_ONCE) == first.count
        # By id, with a reason each, and some of them twice.
        fives = batch.on(spark, ["key", "message_id"]).messages.where("key like '%5'").collect()
        rows = [(row.message_id, None if row.key == "5" else f"no {row.key}") for row in fives]
        named = spark.createDataFrame(rows + rows[:3], "Message_ID string, REASON string")
        for _ in range(2):
            assert batch.reject(named, "said for all", delay=AT_ONCE) == len(fives)
        wait_for_extensions(keeper, 1)
        assert not keeper.lost.is_set()
    batch.ack()

    key = next(row.key for row in fives if row.key != "5")
    assert reasons(orders, key) == [f"no {key}"]
    again = first.count + len(fives)
    assert (batch.outcome().acked, batch.outcome().given_back) == (COUNT - again, again)
    orders.consumer(TOPIC, GROUP, retry=RetryPolicy(1, (timedelta(seconds=1),)))
    rest = take(orders)
    assert rest.count == again
    assert rest.reject(rest.on(spark, ["receipt_handle"]).messages.limit(2), "bad order") == 2
    rest.ack()
    assert [letter.reason for letter in orders.dead_letters(GROUP)] == ["bad order"] * 2


@pytest.mark.long
def test_x10_only_a_lease_that_others_give_back_is_a_loss(
    orders: Broker, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = take(orders)
    first, second, *_ = batch.leases
    losses: list[LeaseLost | None] = []

    def reject_and_look(*arguments: Any) -> int:
        rejected = reject_leased(*arguments)
        losses.append(_loss(orders, batch))
        return rejected

    monkeypatch.setattr(rejecting, "reject_leased", reject_and_look)
    handles = f"{first.group_id}.{first.topic_id}.{first.queue}.{first.n}.{first.token}."
    frame = batch.on(spark, ["receipt_handle"]).messages
    rejected = [row.receipt_handle for row in frame.collect() if row.receipt_handle.startswith(handles)]
    assert (
        batch.reject(frame.where(f.col("receipt_handle").startswith(handles)), "all of a lease")
        == first.count
    )
    losses.append(_loss(orders, batch))
    assert losses == [None, None]
    again = spark.createDataFrame([(handle,) for handle in [*rejected, rejected[0]]], "receipt_handle string")
    assert batch.reject(again, "once more") == first.count
    with pytest.raises(InvalidArgument, match="1 of the"):
        batch.reject(again.union(again.select(f.lit(None).cast("string")).limit(1)), "foreign")
    orders.consumer(TOPIC, GROUP).nack([second])
    assert isinstance(_loss(orders, batch), LeaseLost)


@pytest.mark.long
def test_x10_lease_given_back_during_a_reject_is_a_loss(
    orders: Broker, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = take(orders)
    first, second, *_ = batch.leases
    row = batch.on(spark, ["receipt_handle"]).messages.first()
    assert row is not None

    def give_back_another(*arguments: Any) -> int:
        orders.consumer(TOPIC, GROUP).answer_held("give_back", [first, second])
        return reject_leased(*arguments)

    monkeypatch.setattr(rejecting, "reject_leased", give_back_another)
    with pytest.raises(LeaseLost, match="returned"):
        batch.reject(spark.createDataFrame([tuple(row)], "receipt_handle string"), "no order")
    with pytest.raises(LeaseLost, match="returned"):
        batch.ack()


def test_message_of_another_batch_rejects_none(orders: Broker, spark: SparkSession) -> None:
    batch = take(orders)
    frame = batch.on(spark, ["message_id", "receipt_handle"]).messages
    foreign = orders.send(TOPIC, b"", delay=AT_ONCE).message_id
    ids = frame.select("message_id")
    named = ids.limit(5).union(spark.createDataFrame([(foreign,), (None,)], "message_id string"))
    with pytest.raises(
        InvalidArgument, match=r"^2 of the 7 messages are not of this batch[^\n]*none is rejected[^\n]*$"
    ):
        batch.reject(named, "foreign")
    other = frame.select(f.concat("receipt_handle", f.lit("9")).alias("receipt_handle"))
    with pytest.raises(InvalidArgument, match="not of this batch"):
        batch.reject(other, "no such number")
    for wrong, why, said in (
        (frame.select(f.lit(1).alias("key")), "x", "select the column receipt_handle or message_id"),
        (frame.select(f.lit(1).alias("message_id")), "x", "message_id is int: it has to be string"),
        (ids, None, "give a reason, or a column 'reason'"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            batch.reject(wrong, why)
    assert batch.outcome().unanswered == COUNT
    batch.ack()
    assert batch.outcome().acked == COUNT
    with pytest.raises(InvalidArgument, match="answered before"):
        batch.reject(ids.limit(1), "too late")


def test_r07_no_single_message_of_a_fifo_topic_is_rejected(broker: Broker) -> None:
    """What comes behind it in its message group would be worked on before it."""
    broker.create_topic("steps", message_type="FIFO")
    for key in "12":
        broker.send("steps", b"", key=key, message_group="order-1")
    batch = Batch.take(broker, "steps", GROUP)
    with pytest.raises(InvalidArgument, match=r"^topic 'steps' is of type FIFO[^\n]*Nack the batch$"):
        batch.reject(cast("DataFrame", None), "bad")
    assert batch.outcome().unanswered == 2


@pytest.mark.long
def test_r03_rejects_of_a_stream_come_again_once(orders: Broker, spark: SparkSession, tmp_path: Path) -> None:
    """However often a micro-batch runs."""
    dsn = orders.dsn
    seen: list[tuple[int, int, int]] = []
    handles: list[str] = []
    failures = [True]

    def work(frame: DataFrame, number: int) -> None:
        frame.persist()
        bad = frame.where("cast(key as int) < 50 and attempt = 1")
        rejected = reject(bad.withColumn("reason", f.concat(f.lit("bad "), "key")), dsn=dsn, delay=AT_ONCE)
        seen.append((frame.count(), rejected, frame.where("attempt = 2").count()))
        handles.extend(row.receipt_handle for row in frame.limit(1).collect())
        frame.unpersist()
        if failures:
            failures.pop()
            raise RuntimeError("the sink is away")

    def run() -> None:
        query = (
            spark.readStream.format("duewheel")
            .options(dsn=dsn, topic=TOPIC, group=GROUP)
            .load()
            .writeStream.foreachBatch(work)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(Exception, match="the sink is away"):
        run()
    run()
    run()
    assert seen[:2] == [(COUNT, 50, 0), (COUNT, 50, 0)]
    assert sum(again for *_, again in seen) == 50
    assert reasons(orders, "17") == ["bad 17"]

    def rejected(handle: str) -> None:
        reject(spark.createDataFrame([(handle,)], "receipt_handle string"), "x", dsn=dsn)

    with pytest.raises(
        InvalidArgument, match=r'^"5\.1\.1\.1\.1\.1" is not a receipt handle of a stream[^\n]*$'
    ):
        rejected("5.1.1.1.1.1")
    zero, topic, queue, at, stream, _seq, group = handles[0].split(".")
    with pytest.raises(UnknownMessage, match="1 of 1 messages to reject do not exist"):
        rejected(".".join([zero, topic, queue, at, stream, "7", group]))
    orders.rewind(TOPIC, GROUP, "earliest")
    with pytest.raises(GroupBusy, match="rewound"):
        rejected(handles[0])
