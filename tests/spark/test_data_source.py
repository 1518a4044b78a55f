"""``spark.read.format("duewheel")``: exactly the leased rows, however often they are read."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType
from pyspark.taskcontext import TaskContext
from tests.clock import Clock
from tests.conftest import execute
from tests.logins import login
from tests.spark.reading import AT_ONCE, EVERY, GROUP, TOPIC, reader, rows, send, take

from duewheel.spark.batch import Batch
from duewheel.spark.data_source import DueWheelDataSource
from duewheel.spark.lease_partition import LeasePartition
from duewheel.spark.message_columns import ALL_COLUMNS, SPARK_SCHEMA, spark_schema
from duewheel.spark.message_reader import arrow_connection, selected
from duewheel.spark.read_options import StreamRead
from duewheel.store.broker import Broker
from duewheel.store.leases import to_json
from duewheel.store.values.errors import DueWheelError, InvalidArgument, LeaseLost, NotAllowed
from duewheel.store.values.instants import from_microseconds
from duewheel.store.values.leases import Lease

HOUR = timedelta(hours=1)


def ids(frame: DataFrame) -> list[str]:
    """The message ids of a DataFrame, sorted, each as often as it occurs."""
    return sorted(row.message_id for row in frame.select("message_id").collect())


def read_ids(batch: Batch) -> list[str]:
    """The same of a batch, without Spark."""
    return sorted(row["message_id"] for row in rows(reader(batch)))


def lease_reader(dsn: str, leases: Sequence[Lease]) -> DataSourceReader:
    return DueWheelDataSource({"dsn": dsn, "lease": to_json(leases)}).reader(SPARK_SCHEMA)


def sizes(batch: Batch, **options: str) -> list[int]:
    """How many messages each partition of a batch has."""
    partitions = reader(batch, partitions=str(batch.partitions), **options).partitions()
    return [partition.count for partition in partitions if isinstance(partition, LeasePartition)]


def test_every_column_is_what_was_sent(orders: Broker, spark: SparkSession) -> None:
    full = orders.send(
        TOPIC,
        b"\x00\xff body",
        delay=AT_ONCE,
        key="order-1",
        tag="unpaid",
        properties={"customer": "Zoë", "items": 3, "gift": None},
    )
    bare = orders.send(TOPIC, b"", delay=AT_ONCE, message_group="parcel-1")
    # Larger than a batch of Arrow's.
    large = orders.send(TOPIC, bytes(range(256)) * 4 * 4096, delay=AT_ONCE)

    frame = take(orders).on(spark).messages
    instants = ("unix_micros(deliver_at) deliver_microseconds", "unix_micros(born_at) born_microseconds")
    found = {row.message_id: row for row in frame.selectExpr("*", *instants).collect()}

    assert frame.schema == SPARK_SCHEMA
    assert found.keys() == {full.message_id, bare.message_id, large.message_id}
    row, stored = found[full.message_id], orders.find(full.message_id)
    assert (row.topic, row.key, row.tag, row.message_group, row.attempt) == (
        *(TOPIC, "order-1", "unpaid", None, 1),
    )
    assert json.loads(row.properties) == {"customer": "Zoë", "items": 3, "gift": None}
    assert bytes(row.body) == b"\x00\xff body"
    assert from_microseconds(row.deliver_microseconds) == full.deliver_at
    assert stored is not None
    assert from_microseconds(row.born_microseconds) == stored.born_at
    row = found[bare.message_id]
    assert (row.key, row.tag, row.properties, row.message_group) == (None, None, None, "parcel-1")
    assert bytes(row.body) == b""
    assert bytes(found[large.message_id].body) == bytes(range(256)) * 4 * 4096


def test_text_and_json_are_strings_beside_their_bytes(orders: Broker) -> None:
    """By content type; bytes without one, or that are no UTF-8, are null."""
    bodies: list[tuple[object, str | None]] = [
        *[
            ("Zoë", None),
            ({"order": 17}, None),
            (b"17", None),
            (b"", "text/plain"),
            (b"[1]", "application/json"),
        ],
        *[
            (b"{}", "application/cloudevents+JSON; charset=UTF-8"),
            (b"\xff", "text/plain"),
            (b"\xff", "text/csv"),
        ],
        *[(b"x", "text/plain; charset=latin-1"), (b"x", "image/png"), (b"x", "application/jsonl")],
    ]
    for number, (body, kind) in enumerate(bodies):
        properties = None if kind is None else {"content-type": kind}
        orders.send(TOPIC, body, delay=AT_ONCE, key=str(number), properties=properties)
    batch = take(orders)
    expected = ["Zoë", '{"order":17}', None, "", "[1]", "{}", None, None, None, None, None]
    for read in (reader(batch), reader(batch, columns="key, value")):
        found = {int(row["key"]): row["value"] for row in rows(read)}
        assert [found[number] for number in range(len(bodies))] == expected


def test_a_schema_of_two_columns_reads_these_alone(orders: Broker, spark: SparkSession) -> None:
    orders.send(TOPIC, "a text", key="1", delay=AT_ONCE)
    frame = spark.read.format("duewheel").option("dsn", orders.dsn).schema("key string, value string")
    assert frame.load(TOPIC).collect() == [("1", "a text")]


@pytest.mark.parametrize("role", [None, "duewheel_consumer"])
@pytest.mark.parametrize("kind", ["look", "lease", "stream"])
@pytest.mark.parametrize(
    ("names", "selected"), [("key", "m.key"), ("key, value", "m.key, m.body, m.is_text")]
)
def test_no_other_column_leaves_the_database(
    orders: Broker, kind: str, role: str | None, names: str, selected: str
) -> None:
    """Whether the login may read the tables or only call functions: as the server sees the statement."""
    orders.send(TOPIC, "a text", key="1", tag="unpaid", properties={"a": 1}, delay=AT_ONCE)
    options = {"dsn": orders.dsn if role is None else login(orders.dsn, role)}
    options |= {"lease": to_json(take(orders).leases)} if kind == "lease" else {"topic": TOPIC}
    source = DueWheelDataSource(CaseInsensitiveDict(options))
    schema = StructType([StructField(name, StringType()) for name in names.split(", ")])
    if kind == "stream":
        follow = source.streamReader(schema)
        begin = follow.initialOffset()
        read: Any = follow
        parts = read.partitions(begin, read.latestOffset(begin, EVERY))
    else:
        read = source.reader(schema)
        parts = read.partitions()
    (part,) = parts
    batches = read.read(part)
    assert next(batches).schema.names == schema.names
    running = (
        "select query from pg_stat_activity where datname = current_database() and query like '%is_text%'"
    )
    ((query,),) = execute(orders.dsn, f"{running} and pid <> pg_backend_pid()")
    assert re.findall("^select (.+)$", query, re.MULTILINE) == [selected]
    assert list(batches) == []


def test_a_frame_is_its_lease_however_often_it_is_read(orders: Broker, spark: SparkSession) -> None:
    """Also when its messages are acked."""
    sent = send(orders, range(40))
    first = take(orders, max_messages=15)
    second = take(orders, max_messages=100)
    assert (first.count, second.count) == (15, 25)

    frame = first.on(spark).messages
    assert frame.count() == 15
    assert frame.join(frame.select("message_id"), "message_id").count() == 15
    first.ack()
    assert sorted(ids(frame) + read_ids(second)) == sorted(sent)
    rest = take(orders)
    assert not rest
    assert rest.on(spark).messages.collect() == []
    with pytest.raises(InvalidArgument, match=r"the text 'key': give a list of names, as \['key'\]"):
        first.on(spark, "key")


def test_rows_are_exactly_those_of_the_lease(timed_orders: Broker, clock: Clock) -> None:
    """Of the tag and the properties that were asked for, due, and not recalled."""
    chosen = {"delay": HOUR, "tag": "unpaid", "properties": {"amount": 500}}
    due = send(timed_orders, range(20), **chosen)
    for other in ({"tag": "paid"}, {"properties": {"amount": 5}}, {"delay": 3 * HOUR}):
        send(timed_orders, range(5), **(chosen | other))
    recalled = due[::4]
    for message_id in recalled:
        assert timed_orders.recall(message_id).outcome == "recalled"
    clock.advance(2 * HOUR)

    batch = take(timed_orders, tags="unpaid", filter="$.amount > 100", now=clock())

    assert read_ids(batch) == sorted(set(due) - set(recalled))
    assert batch.count == 15


def test_straggler_is_read_by_the_lease_that_follows_its_commit(orders: Broker) -> None:
    prompt = send(orders, [1])
    with closing(psycopg2.connect(orders.dsn)) as connection:
        late = send(orders, [2], connection=connection)
        first = take(orders)
        connection.commit()
    second = take(orders)

    assert read_ids(first) == prompt
    assert read_ids(second) == late


def test_r01_r13_retries_keep_their_ids_and_count_their_attempts(timed_orders: Broker, clock: Clock) -> None:
    """In one frame with first deliveries."""
    old = send(timed_orders, range(3), delay=HOUR)
    clock.advance(2 * HOUR)
    take(timed_orders, now=clock()).nack(delay=timedelta(seconds=10))
    new = send(timed_orders, range(4))
    clock.advance(timedelta(seconds=11))

    read = rows(reader(take(timed_orders, now=clock())))

    assert {row["message_id"]: row["attempt"] for row in read} == dict.fromkeys(old, 2) | dict.fromkeys(
        new, 1
    )
    assert {row["topic"] for row in read} == {TOPIC}


@pytest.mark.slow
def test_a_new_worker_loads_only_what_reads(orders: Broker) -> None:
    send(orders, range(3))
    source = DueWheelDataSource({"dsn": orders.dsn, "lease": to_json(take(orders).leases)})
    planned = source.reader(SPARK_SCHEMA)
    # What Spark sends to a task.
    task = pickle.dumps((source, planned, planned.partitions()[0]))
    heavy = ["psycopg2", "pyarrow.compute", "pandas", "duewheel.store.broker", "duewheel.spark.lease_plan"]
    program = (
        "import pickle, sys; _, reader, partition = pickle.load(sys.stdin.buffer);"
        "rows = sum(batch.num_rows for batch in reader.read(partition));"
        f"print(rows, [name for name in {heavy} if name in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], input=task, capture_output=True, check=True
    ).stdout
    assert printed.strip() == b"3 []"


def test_pickled_copy_of_a_reader_does_not_plan(orders: Broker) -> None:
    """It has no leases, and nothing to read would look like an empty batch."""
    planned = lease_reader(orders.dsn, [])
    with pytest.raises(InvalidArgument, match="pickled copy of a reader has no leases"):
        pickle.loads(pickle.dumps(planned)).partitions()
    assert planned.partitions() == []


def test_columns_of_another_query_are_refused(dsn: str) -> None:
    """What a pooler by transaction makes of two sessions' queries."""
    with arrow_connection(dsn) as connection:
        query = "select 'a' as key, 'b' as tag"
        with selected(connection, query, ["key", "tag"]) as found:
            assert found.read_all().to_pylist() == [{"key": "a", "tag": "b"}]
        with (
            pytest.raises(
                InvalidArgument,
                match=r"key, tag of another session's query, instead of tag, key.*own address",
            ),
            selected(connection, query, ["tag", "key"]),
        ):
            pytest.fail("it was not refused")


@pytest.mark.parametrize("queues", [1, 4])
def test_partitions_are_even_whatever_was_asked(broker: Broker, queues: int) -> None:
    """Those of retries, too."""
    broker.create_topic(TOPIC, queues=queues)
    send(broker, range(5_000))
    for partitions in (8, 4):
        batch = take(broker, max_messages=1_000_000, partitions=partitions)
        counts = sizes(batch)
        assert (len(counts), sum(counts)) == (partitions, 5_000)
        assert max(counts) < 1.25 * min(counts)
        batch.nack(AT_ONCE)


def test_partitions_are_even_however_full_the_queues_are(orders: Broker) -> None:
    send(orders, range(5_000), message_group="one")
    send(orders, range(50))

    counts = sizes(take(orders, max_messages=100_000, partitions=4))

    assert sum(counts) == 5_050
    assert max(counts) < 1.25 * min(counts)


def test_retried_task_reads_the_same_rows(orders: Broker, spark: SparkSession) -> None:
    sent = send(orders, range(400))

    def fail_first(read: Iterable[Row]) -> Iterable[str]:
        yield from [row.message_id for row in read]
        task = TaskContext.get()
        if task is not None and task.attemptNumber() == 0:
            raise RuntimeError("the first attempt of every task fails after it has read everything")

    frame = take(orders, partitions=3).on(spark).messages

    assert frame.rdd.getNumPartitions() == 3
    assert sorted(frame.select("message_id").rdd.mapPartitions(fail_first).collect()) == sorted(sent)


def test_two_copies_of_a_task_read_the_same_rows(orders: Broker) -> None:
    send(orders, range(3_000))
    read = reader(take(orders, max_messages=3_000), partitions="2", batchBytes="50000")
    partition, _ = read.partitions()

    def read_ids(_: int) -> list[str]:
        return [
            message_id for batch in read.read(partition) for message_id in batch["message_id"].to_pylist()
        ]

    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(read_ids, range(4))

    assert len(first) > 1_000
    assert others == [first] * 3


def test_memory_follows_from_the_batch_size_and_the_columns(orders: Broker) -> None:
    """And not from the lease: columns that are not wanted stay in the database."""
    send(orders, range(500), body=b"x" * 10_000)
    batch = take(orders)

    def batches(**options: str) -> list[int]:
        read = reader(batch, partitions="1", **options)
        (partition,) = read.partitions()
        return [part.nbytes for part in read.read(partition)]

    assert sum(batches(batchBytes="100000")) > 5_000_000
    assert max(batches(batchBytes="100000")) < 200_000
    assert sum(batches(columns="key")) < 50_000


def test_receipt_handle_answers_for_one_message(orders: Broker) -> None:
    send(orders, range(3))
    handles = {row["key"]: row["receipt_handle"] for row in rows(reader(take(orders)))}

    execute(orders.dsn, "select duewheel.ack(%s)", [handles["0"], handles["2"]])
    execute(orders.dsn, "select duewheel.nack(%s, interval '0')", [handles["1"]])

    received = orders.consumer(TOPIC, GROUP).receive()
    assert [(message.key, message.attempt) for message in received] == [("1", 2)]


def test_password_shows_in_no_plan(
    orders: Broker, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    send(orders, range(1))
    dsn = make_dsn(orders.dsn, options="-c application_name=sesame")
    read = spark.read.format("duewheel").options(topic=TOPIC)

    frame = read.option("dsn", dsn).load().where("attempt = 1")
    frame.explain(extended=True)
    frame.explain("formatted")
    # Spark shows a plan that is an argument of a command with its options.
    read.option("dsn", orders.dsn).load().createOrReplaceTempView("shown")

    assert frame.count() == 1
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    shown = spark._jsparkSession.sharedState().statusStore().executionsList()
    plans = [shown.apply(number).physicalPlanDescription() for number in range(shown.size())]
    assert any("CreateViewCommand" in plan and TOPIC in plan for plan in plans)
    password = parse_dsn(orders.dsn)["password"]
    assert not [plan for plan in plans if password in plan]
    said = "".join(capfd.readouterr())
    assert "duewheel" in said
    assert "sesame" not in said
    leases = take(orders).leases
    parts = lease_reader(dsn, leases).partitions()
    assert "sesame" not in repr(parts)


@pytest.mark.parametrize("count", [10, 1_000])
def test_lease_whose_messages_are_gone_is_an_error(orders: Broker, count: int) -> None:
    send(orders, range(count))
    batch = take(orders)
    execute(
        orders.dsn,
        "with one as (select min(seq) as seq from duewheel.any_message),"
        " near as (delete from duewheel.message m using one where m.seq = one.seq)"
        " delete from duewheel.far_message m using one where m.seq = one.seq",
    )

    with pytest.raises(LeaseLost, match="retention has dropped"):
        rows(reader(batch))


def test_leases_that_cannot_be_read(orders: Broker) -> None:
    send(orders, range(20))
    unknown = take(orders, max_messages=10)
    unknown.leases = [replace(lease, n=lease.n + 1000) for lease in unknown.leases]
    with pytest.raises(LeaseLost, match=r"leases? lost, .* is unknown to the broker"):
        reader(unknown).partitions()
    (message, *_) = orders.consumer(TOPIC, GROUP).receive()
    with pytest.raises(InvalidArgument, match="whole leases"):
        lease_reader(orders.dsn, [message.lease]).partitions()


def test_bad_option_is_an_error_that_names_it(orders: Broker) -> None:
    of_group = {"topic": TOPIC, "group": GROUP}
    for options, said in (
        ({"dsn": ""}, "'dsn' is missing"),
        ({"dsn": "here"}, "cannot be read"),
        ({"group": GROUP}, "'topic' is missing"),
        ({"topic": "nowhere"}, "no topic"),
        ({**of_group, "maxMessagesPerTrigger": "many"}, "Trigger' is 'many'"),
        ({**of_group, "reconnectSeconds": "0"}, "'reconnectSeconds' is '0'"),
        ({**of_group, "startingOffsets": "sometime"}, "'startingOffsets' is 'sometime'"),
        ({**of_group, "failOnDataLoss": "sometime"}, "'failOnDataLoss' is 'sometime'"),
        ({"topic": TOPIC, "mode": "peek"}, r"unknown options \['mode'\]: choose from batchBytes, columns,"),
        ({**of_group, "tag": "unpaid"}, r"unknown options \['tag'\]: did you mean tags\?$"),
        ({**of_group, "min_partitions": "2"}, r"\['min_partitions'\]: did you mean minPartitions\?$"),
        ({"topic": TOPIC, "due_from": "5"}, r"\['due_from'\]: did you mean dueFrom\?$"),
        ({"topic": TOPIC, "columns": "keys"}, r"no columns \['keys'\]: did you mean key\?$"),
        ({"topic": TOPIC, "batch_bytes": "5"}, r"\['batch_bytes'\]: did you mean batchBytes\?$"),
        ({**of_group, "xyzzy": "1"}, r"\['xyzzy'\]: choose from batchBytes, columns, (?!.*lease)"),
        ({**of_group, "startingOffsets": "2026-01-31"}, r"no time zone.* as 2026-01-31T00:00:00\+00:00 for"),
        ({**of_group, "tags": "a | b"}, "not a tag expression"),
        ({**of_group, "filter": "a > 5"}, "names no property"),
        ({**of_group, "filter": "$.a >"}, "not a predicate of jsonpath"),
    ):
        with pytest.raises(DueWheelError, match=said):
            DueWheelDataSource({"dsn": orders.dsn, **options}).schema()


def test_columns_are_chosen_by_option_or_schema(orders: Broker) -> None:
    send(orders, range(20), tag="unpaid")
    batch = take(orders)
    every = rows(reader(batch))
    for names in (
        *(["key"], ["message_id"], ["topic"], ["receipt_handle"], ["body", "deliver_at"]),
        ["tag", "message_id", "key", "topic"],
    ):
        expected = [{name: row[name] for name in names} for row in every]
        assert rows(reader(batch, columns=", ".join(names))) == expected
        assert rows(reader(batch, spark_schema(names))) == expected


def test_names_and_words_are_not_case_sensitive(orders: Broker) -> None:
    send(orders, range(3))
    columns = {"columns": "Key, DELIVER_AT"}
    for options in ({"lease": to_json(take(orders).leases)}, {"topic": TOPIC, "DueUntil": "9999999999999"}):
        source = DueWheelDataSource(CaseInsensitiveDict({"dsn": orders.dsn, **options, **columns}))
        assert source.schema().names == ["key", "deliver_at"]
        asked = StructType([StructField("KEY", StringType())])
        assert sorted(row["KEY"] for row in rows(source.reader(asked))) == ["0", "1", "2"]
    of_topic = {"dsn": orders.dsn, "topic": TOPIC}
    stream = StreamRead.of({**of_topic, "startingOffsets": "LATEST", "maxTriggerDelay": "5M"})
    assert (stream.start, stream.max_delay) == ("latest", timedelta(minutes=5))
    with pytest.raises(InvalidArgument, match="a column is named twice"):
        DueWheelDataSource({**of_topic, "columns": "key,Key"}).schema()


def test_schema_may_differ_in_what_may_be_null(orders: Broker) -> None:
    send(orders, range(20))
    orders.send(TOPIC, b"without a key", delay=AT_ONCE)
    lease = {"lease": to_json(take(orders).leases)}
    body, key = StructField("body", BinaryType()), StructField("key", StringType())

    for options in (lease, {"topic": TOPIC}):
        source = DueWheelDataSource({"dsn": orders.dsn, **options})
        assert {row["body"] for row in rows(source.reader(StructType([key, body])))} == {
            b"",
            b"without a key",
        }
        with pytest.raises(InvalidArgument, match="the column key is null in a message, and the schema says"):
            rows(source.reader(StructType([body, StructField("key", StringType(), nullable=False)])))


def test_schema_of_other_columns_is_refused(orders: Broker) -> None:
    send(orders, range(1))
    batch = take(orders)
    for name, kind, said in (("number", StringType(), "no columns"), ("key", IntegerType(), "is string")):
        with pytest.raises(InvalidArgument, match=said):
            reader(batch, StructType([StructField("tag", StringType()), StructField(name, kind)]))


def test_option_that_a_read_would_pass_over_is_refused(orders: Broker) -> None:
    of_lease = {"dsn": orders.dsn, "lease": to_json(take(orders).leases)}
    of_group = {"dsn": orders.dsn, "topic": TOPIC, "group": GROUP}
    batch = spark_schema(ALL_COLUMNS)

    with pytest.raises(InvalidArgument, match=r"read of a lease does not take the options \['filter'"):
        DueWheelDataSource({**of_lease, "filter": "$.a > 1"}).reader(batch)
    with pytest.raises(InvalidArgument, match=r"a stream does not take the options \['partitions'\]: leave"):
        DueWheelDataSource({**of_group, "partitions": "8"}).streamReader(batch)
    for foreign in (of_lease, {"dsn": orders.dsn, "topic": TOPIC, "dueUntil": "5"}):
        with pytest.raises(InvalidArgument, match="a stream does not take"):
            DueWheelDataSource(foreign).streamReader(batch)


@pytest.mark.parametrize("end", ["nack", "rewind", "expiry"])
def test_x10_lease_that_has_ended_is_not_read(orders: Broker, end: str) -> None:
    send(orders, range(10))
    batch = take(orders)
    read = reader(batch, partitions="1")
    (partition,) = read.partitions()
    if end == "nack":
        batch.nack(AT_ONCE)
    elif end == "rewind":
        orders.rewind(TOPIC, GROUP, "earliest")
    else:
        later = datetime.now(UTC) + HOUR
        with Broker(orders.dsn, clock=lambda: later) as other:
            assert other.consumer(TOPIC, GROUP).receive()

    with pytest.raises(LeaseLost):
        list(read.read(partition))
    with pytest.raises(LeaseLost):
        read.partitions()


def test_a_read_of_a_group_is_refused_and_makes_no_group(orders: Broker) -> None:
    """Nobody could ack it: it says how to consume instead."""
    sent = send(orders, range(10))
    of_group = DueWheelDataSource({"dsn": orders.dsn, "topic": TOPIC, "group": GROUP})
    with pytest.raises(
        InvalidArgument, match=r"a look reads for no group: .*consume\(spark, dsn, topic, group\)"
    ):
        of_group.reader(of_group.schema())
    look = DueWheelDataSource({"dsn": orders.dsn, "topic": TOPIC}).reader(SPARK_SCHEMA)
    assert sorted(row["message_id"] for row in rows(look)) == sorted(sent)
    assert orders.groups() == []
    assert {message.attempt for message in orders.consumer(TOPIC, GROUP).receive()} == {1}


@pytest.mark.long
def test_frame_that_was_filtered_is_read_as_a_whole_again(orders: Broker, spark: SparkSession) -> None:
    """PySpark 4.3 keeps a read with filters for the queries without them: taking any would lose rows."""
    for tag in "ab":
        send(orders, range(5), tag=tag)
    batch = take(orders)
    switch = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(switch, "true")
    try:
        for frame in (
            batch.on(spark, ["tag"]).messages,
            spark.read.format("duewheel").options(dsn=orders.dsn, topic=TOPIC).load(),
        ):
            assert [frame.where("tag = 'a'").count(), frame.count()] == [5, 10]
    finally:
        spark.conf.unset(switch)


@pytest.mark.parametrize("role", ["duewheel_consumer", "duewheel_admin"])
def test_a_lease_is_read_without_a_right_to_the_table(orders: Broker, role: str) -> None:
    """By a login that has only this role; a producer reads none."""
    send(orders, range(100), tag="x", properties={"n": 1}, body=b"some")
    with Broker(login(orders.dsn, role)) as consumer:
        for attempt in (1, 2):
            batch = take(consumer, max_messages=1000)
            read = rows(reader(batch, batchBytes="4096"))
            assert sorted(int(row["key"]) for row in read) == list(range(100))
            assert {(row["topic"], row["body"], row["attempt"]) for row in read} == {
                (TOPIC, b"some", attempt)
            }
            batch.nack(AT_ONCE)
    dsn = login(orders.dsn, "duewheel_producer")
    with pytest.raises(NotAllowed, match="duewheel_consumer"):
        lease_reader(dsn, batch.leases).partitions()
