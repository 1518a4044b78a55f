"""``df.write.format("duewheel")``: the messages of a DataFrame, all of them or none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg2
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType
from tests.conftest import execute
from tests.logins import login
from tests.waiting import PATIENCE_SECONDS, until, until_somebody_waits

from duewheel.spark.message_writer import MessageWriter
from duewheel.spark.write_options import WriteOptions
from duewheel.spark.written_columns import StagedParts, staged_batches, written_columns
from duewheel.store import Broker
from duewheel.store.values.errors import InvalidArgument, NotAllowed, StagingFailed, UnknownTopic

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
        # Column names are not case-sensitive.
        "BODY binary, Key string, tag string, properties map<string,string>, message_group string,"
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


def test_nine_o_clock_in_four_time_zones_is_four_instants(broker: Broker, spark: SparkSession) -> None:
    """In the time zone of the session, which is none of theirs, a look shows the same instants."""
    broker.create_topic(TOPIC, max_delay=timedelta(days=800))
    # Summer time has begun in New York, and not in Berlin.
    year = datetime.now(UTC).year + 1
    zones = ("UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York")
    due = {zone: datetime(year, 3, 20, 9, tzinfo=ZoneInfo(zone)) for zone in zones}
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    try:
        nine = f"make_timestamp({year}, 3, 20, 9, 0, 0, key) as deliver_at"
        write(
            spark.createDataFrame([*zip(zones)], "key string").selectExpr("key", "'' as body", nine), broker
        )
        look = spark.read.format("duewheel").option("dsn", broker.dsn).load(TOPIC)
        seen = look.selectExpr("key", "unix_seconds(deliver_at) as at", "hour(deliver_at) as hour").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
    assert dict(execute(broker.dsn, "select key, deliver_at from duewheel.any_message")) == due
    assert {row.key: row.at for row in seen} == {zone: at.timestamp() for zone, at in due.items()}
    auckland = ZoneInfo("Pacific/Auckland")
    assert {row.key: row.hour for row in seen} == {z: at.astimezone(auckland).hour for z, at in due.items()}


def test_a_string_body_is_text_and_a_binary_one_has_no_type(broker: Broker, spark: SparkSession) -> None:
    """As Broker.send has it: a type that the properties name stays."""
    broker.create_topic(TOPIC, message_type="NORMAL")
    broker.create_topic("bytes", message_type="NORMAL")
    named = ('{"content-type": "application/json"}', '{"content-type": "image/svg+xml"}')
    numbered_properties = list(zip("12345", (None, '{"a": 1}', *named, "{}"), strict=True))
    rows = spark.createDataFrame(numbered_properties, "body string, properties string")
    write(rows, broker)
    write(rows.withColumn("body", sf.col("body").cast("binary")), broker, "bytes")
    text = "text/plain; charset=utf-8"
    kinds = {"1": text, "2": text, "3": "application/json", "4": "image/svg+xml", "5": text}
    given = {body: kind for body, kind in kinds.items() if kind != text}
    for topic, expected in ((TOPIC, kinds), ("bytes", given)):
        messages = broker.consumer(topic, "g").receive(10)
        found = {message.body.decode(): message.properties.get("content-type") for message in messages}
        assert found == {body: expected.get(body) for body in kinds}
    read = spark.read.format("duewheel").option("dsn", broker.dsn).load(f"{TOPIC}, bytes")
    values = sorted(tuple(row) for row in read.where("value is not null").select("topic", "value").collect())
    assert values == [("bytes", "3"), *[(TOPIC, body) for body in ("1", "2", "3", "5")]]


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


def test_places_continue_in_the_next_batch_of_a_task() -> None:
    """A partition of more than 10 000 rows is several batches."""
    batch = pa.RecordBatch.from_pydict({"topic": ["even", "odd", "even"], "delay": [60] * 3})
    for topic, expected in ((TOPIC, [[0, 1, 2], [3, 4, 5]]), (None, [[0, 0, 1], [2, 1, 3]])):
        parts = StagedParts(topic)
        found = staged_batches([batch, batch], ("topic", "delay"), parts)
        assert [rows["place"].to_pylist() for rows in found] == expected
        assert sum(part.count for part in parts.by_topic.values()) == 6


def test_a_producer_writes_near_and_far_messages(broker: Broker, spark: SparkSession) -> None:
    """To the topic that is the path; consumers that wait get them, and the producer reads nothing."""
    broker.create_topic(TOPIC, queues=4, max_delay=timedelta(days=3660))
    frame = numbered(spark, 400).withColumn("delay", sf.when(sf.col("key") % 2 == 0, 1e8).otherwise(0.0))
    with Broker(login(broker.dsn, "duewheel_producer")) as producer:
        frame.write.format("duewheel").option("dsn", producer.dsn).mode("append").save(TOPIC)
        with producer.connection() as connection, connection.cursor() as cursor:
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                cursor.execute("select * from duewheel.staged_message")
    received = sorted(int(message.key or "") for message in broker.consumer(TOPIC, "g").receive(1_000))
    assert received == list(range(1, 400, 2))
    for table, count in (("far_message", 200), ("any_message", 400)):
        numbers = f"select count(*), count(distinct seq) from duewheel.{table}"
        assert execute(broker.dsn, numbers) == [(count, count)]
    assert execute(broker.dsn, "select count(distinct queue) from duewheel.any_message") == [(4,)]
    read = spark.read.format("duewheel").options(dsn=broker.dsn)
    assert read.load(TOPIC).count() == 400
    with pytest.raises(
        PySparkException, match="topic is 'orders' as an option and 'other' as the path: give"
    ):
        read.option("topic", TOPIC).load("other")


def test_one_wrong_row_and_nothing_is_sent(broker: Broker, spark: SparkSession) -> None:
    """It is named by the partition of the DataFrame: empty partitions before it count."""
    broker.create_topic(TOPIC)
    tag = sf.when(sf.col("key") == "450", sf.lit("no tag"))
    frame = numbered(spark, 800, 4).where("cast(key as int) >= 420").withColumn("tag", tag)
    with pytest.raises(
        PySparkException, match=r"row 30 of partition 2 with the key \"450\": \"no tag\" is not"
    ):
        write(frame, broker)
    assert execute(broker.dsn, "select count(*) from duewheel.any_message") == [(0,)]
    assert staged(broker.dsn) == (0, 0)


def test_a_row_that_postgres_cannot_take_is_named(broker: Broker) -> None:
    broker.create_topic(TOPIC)
    for column, value, wrong in (
        ("properties", "{", "row 5 of partition 0: ERROR: invalid input syntax for type json"),
        ("tag", "a\0", "row 5 of partition 0: ERROR: invalid byte sequence .* column tag"),
        ("delay", float("nan"), "row 5 of partition 0: a delay is NaN"),
    ):
        rows: dict[str, list[Any]] = {"body": [b""] * 8, "delay": [60.0] * 8, column: [None] * 8}
        rows[column][5] = value
        schema = StructType([StructField("body", StringType()), StructField("delay", DoubleType())])
        if column not in schema.names:
            schema = schema.add(column, StringType())
        writer = MessageWriter(WriteOptions.of({"dsn": broker.dsn, "topic": TOPIC}, is_stream=False), schema)
        part = writer.write(iter([pa.RecordBatch.from_pydict(rows)]))
        with pytest.raises(InvalidArgument, match=wrong):
            writer.commit([part])
        writer.abort([part])
    assert execute(broker.dsn, "select count(*) from duewheel.any_message") == [(0,)]
    assert staged(broker.dsn) == (0, 0)


def test_staging_that_is_lost_or_fails_says_what_to_do(broker: Broker) -> None:
    broker.create_topic(TOPIC)
    writer = MessageWriter(WriteOptions.of({"dsn": broker.dsn, "topic": TOPIC}, is_stream=False), WRITTEN)
    batch = pa.RecordBatch.from_pydict({"body": [b""], "delay": [1]})
    part = writer.write(iter([batch]))
    # As a crash of the server does.
    execute(broker.dsn, "truncate duewheel.staged_message")
    with pytest.raises(StagingFailed, match="0 of the 1 staged messages are there, and nothing was sent"):
        writer.commit([part])
    assert execute(broker.dsn, "select count(*) from duewheel.any_message") == [(0,)]

    away = replace(writer._writing, dsn="postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(
        StagingFailed, match=r"^the messages of a task were not staged \([^\n]*run the job again$"
    ):
        away.stage("job/x", iter([batch]))


def test_order_of_a_message_group_is_that_of_partitions_and_rows(broker: Broker, spark: SparkSession) -> None:
    broker.create_topic(TOPIC, message_type="FIFO", queues=2)
    frame = numbered(spark, 90).select(
        "body", sf.concat(sf.lit("g"), sf.col("key") % 3).alias("message_group")
    )
    write(frame, broker)
    consumer = broker.consumer(TOPIC, "g")
    received: dict[str | None, list[int]] = {}
    while messages := consumer.receive(1000):
        for message in messages:
            received.setdefault(message.message_group, []).append(int(message.body))
        consumer.ack(messages)
    assert sorted(len(numbers) for numbers in received.values()) == [30, 30, 30]
    assert all(numbers == sorted(numbers) for numbers in received.values())


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [
        ("body string, delay int, xyzzy int", "'xyzzy' cannot be written: choose from topic, body, key, tag"),
        ("Boddy string, delay int", r"the column 'Boddy' cannot be written: did you mean body\?$"),
        ("body string, deliverAt timestamp", r"'deliverAt' cannot be written: did you mean deliver_at\?$"),
        ("value string, delay int", r"the column 'value' cannot be written: did you mean body\?$"),
        ("delay int", "the column body is missing"),
        ("body string, Body string, delay int", "a column is named twice"),
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
        written_columns(schema, TOPIC, "DELAY")
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
        made(timed, topic="plain", idempotencyKey="k", is_stream=True)
    with pytest.raises(PySparkException, match=r'never overwritten: write with mode\("append"\)'):
        spark.sql("select 'b' as body").write.format("duewheel").options(**options, topic="plain").mode(
            "overwrite"
        ).save()


def test_repeated_key_says_how_many_messages_are_not_sent(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning where the numbers agree, and an error where the key was used for other rows."""
    broker.create_topic(TOPIC)

    def job(count: int) -> None:
        options = {"dsn": broker.dsn, "topic": TOPIC, "idempotencyKey": "nightly"}
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
        "the job with the idempotencyKey 'nightly' sent 3 messages to topic 'orders' before: "
        "its 3 messages are not sent again"
    )
    for other in (2, 0):
        with pytest.raises(InvalidArgument) as refused:
            job(other)
        assert str(refused.value) == (
            "the idempotencyKey 'nightly' sent 3 messages to topic 'orders' before, "
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
    ).options(dsn=dsn, topic="orders", idempotencyKey="job").mode("append").save()
"""


@pytest.mark.slow
@pytest.mark.long
def test_x16_killed_driver_sends_all_or_nothing(broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
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
        write(numbered(spark, 1000, 2), broker, idempotencyKey="job")
        assert execute(broker.dsn, sent) == [(1000, 1000)]
