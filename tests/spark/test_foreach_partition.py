"""Work and ack by partition: each message's effect is committed once, whatever runs twice or dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.taskcontext import TaskContext
from tests.conftest import execute
from tests.leasing import LEASE
from tests.waiting import PATIENCE_SECONDS, until

from duewheel.spark import partition_work
from duewheel.spark.batch import Batch
from duewheel.spark.lease_plan import deal_out, plan_leases
from duewheel.spark.leasing import Partitioning
from duewheel.spark.partition_work import PartitionsFailed
from duewheel.store.broker import Broker
from duewheel.store.database.connections import DriverConnection
from duewheel.store.values.errors import InvalidArgument, LeaseLost

TOPIC = "orders"
GROUP = "canceller"
AT_ONCE = timedelta(0)
COUNT = 800
EFFECTS = "create table effect (key text, attempt integer)"


@pytest.fixture
def shop(broker: Broker) -> Broker:
    """A broker with messages, and beside them a table of what was done."""
    broker.create_topic(TOPIC)
    broker.send_many(TOPIC, [{"body": b"", "key": str(number), "delay": AT_ONCE} for number in range(COUNT)])
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute(EFFECTS)
    return broker


def record(connection: DriverConnection, batches: Iterator[pa.RecordBatch]) -> None:
    """The work: a row for each message."""
    with connection.cursor() as cursor:
        for batch in batches:
            cursor.execute(
                "insert into effect select unnest(%s::text[]), unnest(%s::integer[])",
                (batch["key"].to_pylist(), batch["attempt"].to_pylist()),
            )


def take(broker: Broker, **options: object) -> Batch:
    return Batch.take(broker, TOPIC, GROUP, max_messages=COUNT, **options)  # type: ignore[arg-type]


def verdict(broker: Broker) -> tuple[int, int]:
    """How many rows there are, and of how many messages."""
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select count(*), count(distinct key) from effect")
        (row,) = cursor.fetchall()
        return row[0], row[1]


def test_x16_every_part_is_worked_on_and_acked(shop: Broker, spark: SparkSession) -> None:
    batch = take(shop, partitions=8)

    def look_and_record(connection: DriverConnection, batches: Iterator[pa.RecordBatch]) -> None:
        for part in batches:
            assert part.schema.names == ["key", "attempt"], part.schema.names
            record(connection, iter([part]))

    with pytest.raises(InvalidArgument, match="no columns"):
        batch.on(spark, ["number"]).foreach_partition(record)
    assert batch.on(spark, ["key", "attempt"]).foreach_partition(look_and_record) == COUNT
    assert batch.answered
    assert batch.outcome().acked == COUNT
    assert verdict(shop) == (COUNT, COUNT)
    assert not shop.consumer(TOPIC, GROUP).receive()


def test_few_messages_spread_over_all_partitions(shop: Broker, spark: SparkSession) -> None:
    """For work that is slow for each message."""
    shop.create_topic("few", queues=2)
    shop.send_many("few", [{"body": b"", "key": str(n), "delay": timedelta(0)} for n in range(20)])

    def note_task(connection: DriverConnection, batches: Iterator[pa.RecordBatch]) -> None:
        from pyspark.taskcontext import TaskContext

        task = TaskContext.get()
        keys = [key for batch in batches for key in batch["key"].to_pylist()]
        with connection.cursor() as cursor:
            cursor.execute(
                "insert into effect select unnest(%s::text[]), %s", (keys, task and task.partitionId())
            )

    batch = Batch.take(shop, "few", "callers", partitions=8, min_partitions=8)
    assert batch.on(spark).messages.rdd.getNumPartitions() == 8
    assert batch.on(spark, ["key"]).foreach_partition(note_task) == 20
    with shop.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select count(*), count(distinct key), count(distinct attempt) from effect")
        assert cursor.fetchall() == [(20, 20, 8)]
    with pytest.raises(InvalidArgument, match="min_partitions must be 1 to 8; got 9"):
        Batch.take(shop, "few", "callers", partitions=8, min_partitions=9)


def test_large_messages_spread_over_all_partitions(shop: Broker) -> None:
    """A hundred small ones are worth a partition, and so are a few large ones; a try that takes them over
    has as many. There are more than ``partitions`` where the bodies need it."""

    def counts(batch: Batch) -> list[int]:
        with shop.connection() as connection:
            planned = plan_leases(connection, batch.leases)
        return [part.count for part in deal_out(planned, batch.partitions, batch.min_partitions)]

    for topic, body, parts in (("large", os.urandom(100_000), 16), ("small", b"1", 1)):
        shop.create_topic(topic)
        shop.send_many(topic, [{"body": body, "delay": timedelta(0)}] * 40)
        found = counts(Batch.take(shop, topic, "callers", partitions=16, name="try"))
        assert (len(found), sum(found)) == (parts, 40)
        consumer = shop.consumer(topic, "callers", name="try")
        leases = shop.take_over_leases(consumer, timedelta(minutes=1))
        batch = Batch.taken_over(shop, consumer, leases, timedelta(minutes=1), Partitioning(16))
        assert (batch.count, batch.min_partitions) == (40, parts)
        wanted = Partitioning(2, 1, 500_000)
        batch = Batch.taken_over(shop, consumer, leases, timedelta(minutes=1), wanted)
        assert batch.partitions == (8 if topic == "large" else 2)
    limited = Batch.take(shop, "large", "others", partitions=2, max_bytes_per_partition=500_000)
    assert counts(limited) == [5] * 8
    single = Batch.take(shop, "small", "others", max_messages=7, partitions=32, min_partitions=32)
    assert [lease.count for lease in single.leases] == [1] * 7
    with pytest.raises(InvalidArgument, match="max_bytes_per_partition must be 1"):
        Batch.take(shop, "large", "callers", max_bytes_per_partition=0)


def test_bytes_of_a_partition_limit_the_number_of_leases(shop: Broker) -> None:
    """However few bytes a partition may have, or however many."""
    shop.create_topic("small")
    shop.send_many("small", [{"body": b"1234567890", "delay": timedelta(0)}] * 5_000)
    batch = Batch.take(shop, "small", "callers", max_bytes_per_partition=1)
    assert batch.count == 5_000
    assert 1_000 < len(batch.leases) <= 2_000
    batch.give_back()
    assert Batch.take(shop, "small", "callers", max_bytes_per_partition=sys.maxsize).count == 5_000


def test_x16_task_that_died_after_its_commit_is_not_done_twice(
    shop: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    """The worker is killed when its transaction is committed and nobody knows of it."""
    marks = str(tmp_path)

    def record_and_die(connection: DriverConnection, batches: Iterator[pa.RecordBatch]) -> None:
        record(connection, batches)
        task = TaskContext.get()
        assert task is not None
        mark = f"{marks}/{task.partitionId()}"
        if not os.path.exists(mark):
            open(mark, "w").close()
            # Asked for when the transaction is committed, to tell Spark.
            kill = property(lambda _: os.kill(os.getpid(), signal.SIGKILL))
            partition_work.Part.count = kill  # type: ignore[method-assign,assignment]

    batch = take(shop, partitions=2)
    done = batch.on(spark).foreach_partition(record_and_die)

    assert done == COUNT
    assert len(os.listdir(marks)) == 2
    assert verdict(shop) == (COUNT, COUNT)


def test_x16_task_that_died_before_its_commit_is_done_again(
    shop: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    marks = str(tmp_path)

    def die_at_first(connection: DriverConnection, batches: Iterator[pa.RecordBatch]) -> None:
        record(connection, batches)
        task = TaskContext.get()
        assert task is not None
        mark = f"{marks}/{task.partitionId()}"
        if not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

    assert take(shop, partitions=2).on(spark).foreach_partition(die_at_first) == COUNT
    assert verdict(shop) == (COUNT, COUNT)


def test_x16_two_runs_of_the_whole_work_at_once_do_it_once(shop: Broker, spark: SparkSession) -> None:
    batch = take(shop, partitions=4)
    done: list[int] = []

    def run() -> None:
        done.append(batch.on(spark).foreach_partition(record))

    twins = [threading.Thread(target=run) for _ in range(3)]
    for twin in twins:
        twin.start()
    for twin in twins:
        twin.join()

    assert done == [COUNT] * 3
    assert verdict(shop) == (COUNT, COUNT)


def test_x15_failed_part_stops_no_other(shop: Broker, spark: SparkSession) -> None:
    def fail_on_17(connection: DriverConnection, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            record(connection, iter([batch]))
            if "17" in batch["key"].to_pylist():
                raise ZeroDivisionError("no order 17")

    batch = take(shop, partitions=4)
    with pytest.raises(
        PartitionsFailed, match=r"1 of 4 partitions.*ZeroDivisionError: no order 17"
    ) as raised:
        batch.on(spark).foreach_partition(fail_on_17)
    (failure,) = raised.value.failures
    assert raised.value.acked == COUNT - failure.messages
    assert verdict(shop) == (raised.value.acked, raised.value.acked)
    assert batch.outcome().unanswered == failure.messages

    batch.nack(AT_ONCE, reason="not this one")
    assert (batch.outcome().acked, batch.outcome().given_back) == (raised.value.acked, failure.messages)
    again = take(shop)
    assert again.count == failure.messages
    (found, *_) = shop.find_key(TOPIC, "17")
    assert [entry.reason for entry in shop.history(found.message_id) if entry.reason] == [
        "ZeroDivisionError: no order 17"
    ]
    assert again.on(spark).foreach_partition(record) == failure.messages
    assert verdict(shop) == (COUNT, COUNT)


def test_x16_part_is_tried_five_times_after_deadlocks(shop: Broker, spark: SparkSession) -> None:
    """A part that never succeeds fails; its messages are not acked."""

    def work_that_fails(times: int) -> Callable[[DriverConnection, Iterator[pa.RecordBatch]], None]:
        def work(connection: DriverConnection, batches: Iterator[pa.RecordBatch]) -> None:
            record(connection, batches)
            with connection.cursor() as cursor:
                # A sequence counts rolled back tries, too.
                cursor.execute("select nextval('try')")
                if cursor.fetchall()[0][0] <= times:
                    cursor.execute("do $$ begin raise sqlstate '40P01' using message = 'met'; end $$")

        return work

    execute(shop.dsn, "create sequence try")
    batch = take(shop, partitions=1)
    with pytest.raises(PartitionsFailed, match=r"1 of 1 partitions.*DeadlockDetected: met"):
        batch.on(spark).foreach_partition(work_that_fails(5))
    assert execute(shop.dsn, "select nextval('try')") == [(6,)]
    assert (batch.outcome().unanswered, verdict(shop)) == (COUNT, (0, 0))

    assert batch.on(spark).foreach_partition(work_that_fails(10)) == COUNT
    assert execute(shop.dsn, "select nextval('try')") == [(12,)]
    assert verdict(shop) == (COUNT, COUNT)


def test_function_that_commits_is_refused(shop: Broker, spark: SparkSession) -> None:
    def commit(connection: DriverConnection, _batches: Iterator[pa.RecordBatch]) -> None:
        connection.commit()

    batch = take(shop)
    with pytest.raises(PartitionsFailed, match="ended its transaction"):
        batch.on(spark).foreach_partition(commit)
    assert batch.outcome().unanswered == COUNT


def test_function_may_reject_single_messages(shop: Broker, spark: SparkSession) -> None:
    def reject_every_tenth(connection: DriverConnection, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            handles = [
                handle
                for key, handle in zip(
                    batch["key"].to_pylist(), batch["receipt_handle"].to_pylist(), strict=True
                )
                if int(key) % 10 == 0
            ]
            with connection.cursor() as cursor:
                cursor.execute("select duewheel.nack(%s, interval '0', 'every tenth')", (handles,))

    batch = take(shop)
    batch.on(spark).foreach_partition(reject_every_tenth)

    assert (batch.outcome().acked, batch.outcome().given_back) == (COUNT * 9 // 10, COUNT // 10)
    assert take(shop).count == COUNT // 10


def test_x10_part_whose_lease_has_ended_is_not_worked_on(shop: Broker, spark: SparkSession) -> None:
    batch = take(shop)
    shop.rewind(TOPIC, GROUP, "earliest")

    with pytest.raises(LeaseLost, match="rewound"):
        batch.on(spark).foreach_partition(record)
    assert verdict(shop) == (0, 0)


KILLED_DRIVER = """
import os, sys
from datetime import timedelta
from duewheel.spark import Batch, spark_session
from duewheel.store import Broker

dsn, begun_path = sys.argv[1:]

def work(connection, batches):
    keys = [key for batch in batches for key in batch["key"].to_pylist()]
    with connection.cursor() as cursor:
        cursor.execute("insert into effect select unnest(%s::text[]), 1", (keys,))
    from pyspark.taskcontext import TaskContext
    if TaskContext.get().partitionId() == 3:
        with open(begun_path, "w") as begun:
            begun.write("begun")
        import threading
        threading.Event().wait()

with Broker(dsn) as broker, spark_session("killed") as spark:
    batch = Batch.take(
        broker, "orders", "canceller", max_messages=800, invisible=timedelta(minutes=1), partitions=4
    )
    batch.on(spark).foreach_partition(work)
"""


@pytest.mark.long
def test_x16_only_unfinished_parts_of_a_killed_driver_return(
    shop: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    begun_path = tmp_path / "begun"
    os.mkfifo(begun_path)
    driver = subprocess.Popen([sys.executable, "-c", KILLED_DRIVER, shop.dsn, str(begun_path)], cwd=tmp_path)
    try:
        with open(begun_path) as begun:
            begun.read(1)
        until(lambda: verdict(shop)[0] > COUNT // 2, "three parts to be committed")
    finally:
        driver.kill()
        driver.wait(PATIENCE_SECONDS)

    rows, keys = verdict(shop)
    assert rows == keys < COUNT
    begin = datetime.now(UTC) + LEASE
    minutes = count(1)
    with Broker(shop.dsn, clock=lambda: begin + timedelta(minutes=next(minutes))) as later:
        while verdict(shop)[0] < COUNT:
            rest = until(lambda: take(later, now=later.now()), "what the driver had")
            assert rest.on(spark).foreach_partition(record) == rest.count
    assert verdict(shop) == (COUNT, COUNT)
