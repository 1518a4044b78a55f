"""``df.write.format("duewheel")``: the messages of a DataFrame, all of them or none."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg2
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.conftest import execute
from tests.logins import login
from tests.waiting import PATIENCE_SECONDS, until, until_somebody_waits

from duewheel.spark.message_writer import MessageWriter
from duewheel.spark.write_options import WriteOptions
from duewheel.spark.written_columns import StagedParts, check_written_columns, staged_batches
from duewheel.store import Broker
from duewheel.store.values.errors import InvalidArgument, NotAllowed, StagingFailed, UnknownTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(1200)

TOPIC = "orders"
WRITTEN = StructType([StructField("body", StringType()), StructField("delay", LongType())])


def staged(dsn: str) -> tuple[Any, ...]:
    """How many messages and parts are staged."""
    return execute(
        dsn,
        "select (select count(*) from duewheel.staged_message), (select count(*) from duewheel.staged_part)",
    )[0]


def write(frame: DataFrame, broker: Broker, topic: str = TOPIC, **options: str) -> None:
    frame.write.format("duewheel").options(dsn=broker.dsn, topic=topic, **options).mode("append").save()


def numbered(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(
        sf.col("id").cast("string").alias("body"),
        sf.col("id").cast("string").alias("key"),
        sf.lit(60).alias("delay"),
    )


def test_every_column_arrives(broker: Broker, spark: SparkSession) -> None:
    broker.create_topic(TOPIC, queues=3)
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC) + timedelta(days=365)
    broker.create_topic("far", max_delay=timedelta(days=3660))
    frame = spark.createDataFrame(
        [
            (bytearray(b"\0\xff"), "1", "paid", {"a": "x", 'b"': "ü\\"}, "g", at, None, None),
            (bytearray(b""), None, None, None, None, None, timedelta(seconds=90.5), None),
            (bytearray(b"3"), "3", None, {}, None, None, None, 2),
        ],
        "body binary, key string, tag string, properties map<string,string>, message_group string,"
        " deliver_at timestamp, delay interval day to second, delay_level int",
    )
    before = datetime.now(UTC)
    write(frame, broker, "far")
    after = datetime.now(UTC)

    found = {
        body: rest
        for body, *rest in execute(
            broker.dsn,
            "select encode(body, 'escape'), key, tag, properties, message_group, asked_at, deliver_at,"
            " born_at from duewheel.any_message",
        )
    }
    key, tag, properties, group, asked, deliver_at, born_at = found["\\000\\377"]
    assert (key, tag, properties, group, asked) == ("1", "paid", {"a": "x", 'b"': "ü\\"}, "g", None)
    assert deliver_at == at
    assert before < born_at < after
    *others, deliver_at, born_at = found[""]
    assert others == [None] * 5
    assert deliver_at - born_at == timedelta(seconds=90.5)
    _, _, properties, _, _, deliver_at, born_at = found["3"]
    assert properties == {}
    assert deliver_at - born_at == timedelta(seconds=5)
    assert staged(broker.dsn) == (0, 0)


def test_delay_is_in_seconds_or_an_interval() -> None:
    for seconds in (
        pa.array([7, None, 0], pa.int16()),
        pa.array([7.0, None, -0.0], pa.float64()),
        pa.array([Decimal("7.00"), None, Decimal("0.00")], pa.decimal128(5, 2)),
        pa.array([timedelta(seconds=7), None, timedelta(0)], pa.duration("us")),
    ):
        batch = pa.RecordBatch.from_arrays([seconds], ["delay"])
        parts = StagedParts(TOPIC)
        (staged_batch,) = staged_batches([batch], ("delay",), parts)
        part = parts.by_topic[TOPIC]
        assert part.count == 3
        assert staged_batch.to_pydict() == {
            "part_id": [part.part_id] * 3,
            "place": [0, 1, 2],
            "delay_microseconds": [7_000_000, None, 0],
        }
    # Beyond what can be added to an instant it is out of range all the same.
    for far in (pa.array([2**62]), pa.array([1e300]), pa.array([2**62], pa.duration("us"))):
        rows = pa.RecordBatch.from_arrays([far], ["delay"])
        (staged_batch,) = staged_batches([rows], ("delay",), StagedParts(TOPIC))
        assert staged_batch["delay_microseconds"].to_pylist() == [4000 * 86400 * 1_000_000]


def test_written_messages_are_received(broker: Broker, spark: SparkSession) -> None:
    """By consumers that wait for them: the wheel is told."""
    broker.create_topic(TOPIC, queues=4)
    write(numbered(spark, 10_000).drop("delay").withColumn("delay_level", sf.lit(0)), broker)
    consumer = broker.consumer(TOPIC, "g")
    received: list[str] = []
    while messages := consumer.receive(10_000):
        received += [message.key or "" for message in messages]
        consumer.ack(messages)
    assert sorted(received, key=int) == [str(number) for number in range(10_000)]
    assert len({queue for (queue,) in execute(broker.dsn, "select queue from duewheel.any_message")}) == 4


def test_order_of_a_message_group_is_that_of_partitions_and_rows(broker: Broker, spark: SparkSession) -> None:
    broker.create_topic(TOPIC, message_type="FIFO", queues=2)
    frame = numbered(spark, 600).select(
        "body", sf.concat(sf.lit("g"), sf.col("key") % 3).alias("message_group")
    )
    write(frame, broker)
    consumer = broker.consumer(TOPIC, "g")
    received: dict[str | None, list[int]] = {}
    while messages := consumer.receive(1000):
        for message in messages:
            received.setdefault(message.message_group, []).append(int(message.body))
        consumer.ack(messages)
    assert sorted(len(numbers) for numbers in received.values()) == [200, 200, 200]
    assert all(numbers == sorted(numbers) for numbers in received.values())


def test_far_and_near_messages_are_sent_together(broker: Broker, spark: SparkSession) -> None:
    broker.create_topic(TOPIC, max_delay=timedelta(days=3660))
    frame = numbered(spark, 1000).withColumn("delay", sf.when(sf.col("key") % 2 == 0, 1e8).otherwise(60.0))
    write(frame, broker)
    assert execute(broker.dsn, "select count(*), count(distinct seq) from duewheel.far_message") == [
        (500, 500)
    ]
    assert execute(broker.dsn, "select count(*), count(distinct seq) from duewheel.any_message") == [
        (1000, 1000)
    ]


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [
        ("body string, delay int, colour int", "a message has no 'colour'"),
        ("delay int", "the column body is missing"),
        ("body string, body string, delay int", "a column is named twice"),
        ("body string", "no column gives the delivery time: add one of deliver_at, delay, delay_level"),
        ("body int, delay int", "the column body is int: it has to be string or binary"),
        ("body string, delay string", "delay is string: it has to be interval day to second, or a number of"),
        ("body string, delay int, properties map<string,int>", "it has to be map<string,string>"),
        ("body string, deliver_at timestamp_ntz", "deliver_at is timestamp_ntz: it has to be timestamp"),
    ],
)
def test_wrong_columns_are_refused_before_anything_is_sent(
    spark: SparkSession, columns: str, wrong: str
) -> None:
    schema = spark.createDataFrame([], columns).schema
    with pytest.raises(InvalidArgument, match=wrong) as refused:
        check_written_columns(schema, TOPIC, "DELAY")
    assert "\n" not in str(refused.value)


def test_topic_and_options_are_checked_before_anything_is_sent(broker: Broker, spark: SparkSession) -> None:
    broker.create_topic("fifo", message_type="FIFO")
    broker.create_topic("plain", message_type="NORMAL")
    timed = spark.sql("select 'b' as body, 5 as delay").schema
    plain_schema = spark.sql("select 'b' as body").schema
    options = {"dsn": broker.dsn}

    def made(schema: Any, *, is_stream: bool = False, **given: str) -> None:
        MessageWriter(WriteOptions.of({**options, **given}, is_stream=is_stream), schema)

    with pytest.raises(UnknownTopic, match="make it with create_topic"):
        made(timed, topic="nowhere")
    with pytest.raises(InvalidArgument, match="type NORMAL, which has no delays: drop delay"):
        made(timed, topic="plain")
    with pytest.raises(InvalidArgument, match="the column message_group is missing: add it"):
        made(plain_schema, topic="fifo")
    made(plain_schema, topic="plain")
    with pytest.raises(NotAllowed, match="grant it the role duewheel_producer"):
        made(plain_schema, topic="plain", dsn=login(broker.dsn, "duewheel_consumer"))
    with pytest.raises(InvalidArgument, match=r"unknown options \['group'\]: choose from"):
        made(timed, topic="plain", group="g")
    with pytest.raises(InvalidArgument, match="'topic' is missing"):
        made(timed)
    with pytest.raises(InvalidArgument, match="sent once by the checkpoint"):
        made(timed, topic="plain", idempotency_key="k", is_stream=True)
    with pytest.raises(PySparkException, match=r'never overwritten: write with mode\("append"\)'):
        spark.sql("select 'b' as body").write.format("duewheel").options(**options, topic="plain").mode(
            "overwrite"
        ).save()


@pytest.mark.parametrize(
    ("column", "value", "wrong"),
    [
        ("tag", "'no tag'", r"row 50 of partition 1 with the key \"450\": \"no tag\" is not a tag"),
        ("delay", "double('nan')", r"row 50 of partition 1 with the key \"450\": a delay is NaN"),
        ("properties", "'{'", "row 50 of partition 1: ERROR: invalid input syntax for type json"),
        ("tag", r"'a\u0000'", "row 50 of partition 1: ERROR: invalid byte sequence .* column tag"),
    ],
)
def test_one_wrong_row_and_nothing_is_sent(
    broker: Broker, spark: SparkSession, column: str, value: str, wrong: str
) -> None:
    broker.create_topic(TOPIC)
    frame = numbered(spark, 800, 2).withColumn("delay", sf.lit(60.0))
    other = sf.col(column) if column in frame.columns else sf.lit(None)
    frame = frame.withColumn(column, sf.when(sf.col("key") == "450", sf.expr(value)).otherwise(other))
    with pytest.raises(PySparkException, match=wrong):
        write(frame, broker)
    assert execute(broker.dsn, "select count(*) from duewheel.any_message") == [(0,)]
    assert staged(broker.dsn) == (0, 0)


def test_wrong_row_is_named_by_the_partition_of_the_dataframe(broker: Broker, spark: SparkSession) -> None:
    """Empty partitions before it count."""
    broker.create_topic(TOPIC)
    frame = spark.range(0, 800, 1, 4).where("id >= 500").selectExpr("'' body", "60 delay", "'no tag' tag")
    with pytest.raises(PySparkException, match="row 0 of partition 2: "):
        write(frame, broker)


def test_topic_is_also_the_path(broker: Broker, spark: SparkSession) -> None:
    broker.create_topic(TOPIC)
    numbered(spark, 10).write.format("duewheel").option("dsn", broker.dsn).mode("append").save(TOPIC)
    read = spark.read.format("duewheel").options(dsn=broker.dsn, mode="peek")
    assert read.load(TOPIC).count() == 10
    with pytest.raises(
        PySparkException, match="topic is 'orders' as an option and 'other' as the path: give"
    ):
        read.option("topic", TOPIC).load("other")


def test_job_with_the_same_idempotency_key_sends_once(broker: Broker, spark: SparkSession) -> None:
    broker.create_topic(TOPIC)
    broker.create_topic("other")
    for _ in range(2):
        write(numbered(spark, 100), broker, idempotency_key="2026-01-31")
    write(numbered(spark, 100), broker, "other", idempotency_key="2026-01-31")
    assert execute(broker.dsn, "select count(*) from duewheel.any_message group by topic_id") == [
        (100,),
        (100,),
    ]
    assert staged(broker.dsn) == (0, 0)


def test_repeated_key_says_how_many_messages_are_not_sent(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning where the numbers agree, and an error where the key was used for other rows."""
    broker.create_topic(TOPIC)

    def job(count: int) -> None:
        options = {"dsn": broker.dsn, "topic": TOPIC, "idempotency_key": "nightly"}
        writer = MessageWriter(WriteOptions.of(options, is_stream=False), WRITTEN)
        rows = pa.RecordBatch.from_pydict({"body": [b""] * count, "delay": [60] * count})
        try:
            writer.commit([writer.write(iter([rows]))])
        except InvalidArgument:
            # As Spark does.
            writer.abort([])
            raise

    job(3)
    assert caplog.messages == []
    job(3)
    (said,) = caplog.messages
    assert said == (
        "the job with the idempotency_key 'nightly' sent 3 messages to topic 'orders' before: "
        "its 3 messages are not sent again"
    )
    for other in (2, 0):
        with pytest.raises(InvalidArgument) as refused:
            job(other)
        assert str(refused.value) == (
            "the idempotency_key 'nightly' sent 3 messages to topic 'orders' before, "
            f"and this job has {other}: nothing was sent. Give a job with other rows a key of its own"
        )
    assert execute(broker.dsn, "select count(*) from duewheel.any_message") == [(3,)]
    assert staged(broker.dsn) == (0, 0)


def test_failed_tasks_send_nothing_twice(broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    """A Python worker that is killed when its rows are staged: the task runs again."""
    broker.create_topic(TOPIC)

    def killed_once(key: str) -> str:
        if key == "700":
            try:
                os.close(os.open(tmp_path / "killed", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return key
            os.kill(os.getpid(), signal.SIGKILL)
        return key

    # Plain rows, as Arrow's functions need pandas.
    key = sf.udf(killed_once, "string", useArrow=False).asNondeterministic()("key")
    write(numbered(spark, 1000).withColumn("key", key), broker)
    assert (tmp_path / "killed").exists()
    assert execute(broker.dsn, "select count(*), count(distinct key) from duewheel.any_message") == [
        (1000, 1000)
    ]


def test_producer_may_write_and_reads_nothing(broker: Broker, spark: SparkSession) -> None:
    broker.create_topic(TOPIC)
    with Broker(login(broker.dsn, "duewheel_producer")) as producer:
        write(numbered(spark, 100), producer)
        with producer.connection() as connection, connection.cursor() as cursor:
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                cursor.execute("select * from duewheel.staged_message")
    assert execute(broker.dsn, "select count(*) from duewheel.any_message") == [(100,)]


def test_staging_that_is_lost_or_fails_says_what_to_do(broker: Broker, spark: SparkSession) -> None:
    broker.create_topic(TOPIC)
    with closing(psycopg2.connect(broker.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("lock table duewheel.published_batch in exclusive mode")
        ended = threading.Event()

        def lose() -> None:
            waits = "select 1 from pg_locks where not granted and database is not null"
            until(lambda: ended.is_set() or execute(broker.dsn, waits), "the job to publish")
            # As a crash of the server does.
            cursor.execute("truncate duewheel.staged_message")
            connection.commit()

        with ThreadPoolExecutor() as pool:
            crash = pool.submit(lose)
            try:
                with pytest.raises(PySparkException) as raised:
                    write(numbered(spark, 100), broker)
            finally:
                ended.set()
            crash.result()
    said = str(raised.value)
    assert re.search(
        r"\bStagingFailed: 0 of the 100 staged messages are there, and nothing was sent\. Run the job again",
        said,
    ), said
    assert execute(broker.dsn, "select count(*) from duewheel.any_message") == [(0,)]

    writer = MessageWriter(WriteOptions.of({"dsn": broker.dsn, "topic": TOPIC}, is_stream=False), WRITTEN)
    away = replace(writer._writing, dsn="postgresql://nobody@127.0.0.1:1/none")
    batch = pa.RecordBatch.from_pydict({"body": [b""], "delay": [1]})
    with pytest.raises(
        StagingFailed, match=r"^the messages of a task were not staged \([^\n]*run the job again$"
    ):
        away.stage("job/x", iter([batch]))


KILLED_DRIVER = """
import os, sys, time
from duewheel.spark import spark_session
from pyspark.sql.functions import udf

dsn, hold = sys.argv[1:]

def held(key):
    while key == "700" and os.path.exists(hold):
        time.sleep(0.05)
    return key

with spark_session("killed") as spark:
    rows = spark.range(0, 1000, 1, 2).selectExpr("'' as body", "cast(id as string) as key", "60 as delay")
    rows.withColumn("key", udf(held, "string", useArrow=False).asNondeterministic()("key")).write.format(
        "duewheel"
    ).options(dsn=dsn, topic="orders", idempotency_key="job").mode("append").save()
"""


@pytest.mark.slow
@pytest.mark.long
def test_x16_killed_driver_sends_all_or_nothing_and_its_next_run_the_rest(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    """Killed before it publishes, and when it waits for the answer."""
    broker.create_topic(TOPIC)
    hold = tmp_path / "hold"
    hold.touch()
    sent = "select count(*), count(distinct key) from duewheel.any_message"

    @contextmanager
    def killed() -> Iterator[None]:
        program = [sys.executable, "-c", KILLED_DRIVER, broker.dsn, str(hold)]
        driver = subprocess.Popen(program, cwd=tmp_path)
        try:
            yield
        finally:
            driver.kill()
            driver.wait(PATIENCE_SECONDS)

    with killed():
        until(lambda: staged(broker.dsn)[0] == 500, "one of the two parts is staged")
    assert execute(broker.dsn, sent) == [(0, 0)]

    hold.unlink()
    with closing(psycopg2.connect(broker.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("lock table duewheel.published_batch in exclusive mode")
        with killed():
            until_somebody_waits(broker.dsn)
        assert execute(broker.dsn, sent) == [(0, 0)]
        connection.commit()
    # The server does not hear of the driver's end. It publishes all, or nothing, if Spark's JVM has discarded
    # what was staged; the next run waits for it.
    for _ in range(2):
        write(numbered(spark, 1000, 2), broker, idempotency_key="job")
        assert execute(broker.dsn, sent) == [(1000, 1000)]
