"""``spark.read.format("duewheel")``: exactly the leased rows, however often they are read."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import adbc_driver_manager
import adbc_driver_postgresql
import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType
from pyspark.taskcontext import TaskContext

from duewheel.spark.data_source import DueWheelDataSource, LeaseDataReader
from duewheel.spark.lease_partition import LeasePartition
from duewheel.spark.lease_reader import selected
from duewheel.spark.leased_batch import LeasedBatch
from duewheel.spark.message_columns import ALL_COLUMNS, SPARK_SCHEMA, spark_schema
from duewheel.store.broker import Broker
from duewheel.store.leases import to_json
from duewheel.store.values.errors import DueWheelError, InvalidArgument, LeaseLost
from duewheel.store.values.instants import from_microseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from tests.clock import Clock

pytestmark = pytest.mark.timeout(1200)

TOPIC = "orders"
GROUP = "canceller"
HOUR = timedelta(hours=1)


@pytest.fixture
def orders(broker: Broker) -> Broker:
    """A broker with a topic."""
    broker.create_topic(TOPIC)
    return broker


@pytest.fixture
def timed_orders(timed_broker: Broker, clock: Clock) -> Broker:
    """The same at the time of ``clock``, two hours ago: executors read by the database's clock."""
    clock.set(datetime.now(UTC) - 2 * HOUR)
    timed_broker.create_topic(TOPIC)
    return timed_broker


def send(broker: Broker, count: int, **fields: Any) -> list[str]:
    """Send messages, due at once unless said otherwise; their ids."""
    common = {"delay": timedelta(0), **fields}
    messages = [{"body": f"body {number}", "key": f"key-{number}", **common} for number in range(count)]
    return [receipt.message_id for receipt in broker.send_many(TOPIC, messages)]


def take(broker: Broker, **options: Any) -> LeasedBatch:
    # However long Spark takes to start.
    return LeasedBatch.take(broker, TOPIC, GROUP, **{"invisible": timedelta(hours=1), **options})


def ids(frame: DataFrame) -> list[str]:
    """The message ids of a DataFrame, sorted, each as often as it occurs."""
    return sorted(row.message_id for row in frame.select("message_id").collect())


def sizes(reader: LeaseDataReader) -> list[int]:
    """How many messages each partition has."""
    partitions = reader.partitions()
    assert all(isinstance(partition, LeasePartition) for partition in partitions)
    return [partition.count for partition in partitions if isinstance(partition, LeasePartition)]


def loaded(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("duewheel").options(**options).load()


def test_every_column_is_what_was_sent(orders: Broker, spark: SparkSession) -> None:
    receipt = orders.send(
        TOPIC,
        b"\x00\xff body",
        delay=timedelta(0),
        key="order-1",
        tag="unpaid",
        properties={"customer": "Zoë", "items": 3, "gift": None},
    )

    frame = take(orders).dataframe(spark)
    instants = ("unix_micros(deliver_at) deliver_microseconds", "unix_micros(born_at) born_microseconds")
    (row,) = frame.selectExpr("*", *instants).collect()
    found = orders.find(receipt.message_id)

    assert frame.schema == SPARK_SCHEMA
    assert row.message_id == receipt.message_id
    assert row.topic == TOPIC
    assert row.key == "order-1"
    assert row.tag == "unpaid"
    assert json.loads(row.properties) == {"customer": "Zoë", "items": 3, "gift": None}
    assert row.message_group is None
    assert bytes(row.body) == b"\x00\xff body"
    assert row.attempt == 1
    assert from_microseconds(row.deliver_microseconds) == receipt.deliver_at
    assert found is not None
    assert from_microseconds(row.born_microseconds) == found.born_at


def test_what_was_not_given_is_null(orders: Broker, spark: SparkSession) -> None:
    orders.send(TOPIC, b"", delay=timedelta(0))

    (row,) = take(orders).dataframe(spark).collect()

    assert (row.key, row.tag, row.properties, row.message_group) == (None, None, None, None)
    assert bytes(row.body) == b""


def test_message_group_is_told(orders: Broker, spark: SparkSession) -> None:
    orders.send(TOPIC, b"1", delay=timedelta(0), message_group="parcel-1")

    (row,) = take(orders).dataframe(spark).collect()

    assert row.message_group == "parcel-1"


def test_rows_are_exactly_those_of_the_lease(timed_orders: Broker, clock: Clock, spark: SparkSession) -> None:
    due = send(timed_orders, 20, delay=HOUR, tag="unpaid")
    send(timed_orders, 5, delay=HOUR, tag="paid")
    send(timed_orders, 5, delay=3 * HOUR, tag="unpaid")
    recalled = due[::4]
    for message_id in recalled:
        assert timed_orders.recall(message_id).outcome == "recalled"
    clock.advance(2 * HOUR)

    batch = take(timed_orders, tags="unpaid", now=clock())

    assert ids(batch.dataframe(spark)) == sorted(set(due) - set(recalled))
    assert batch.count == len(due) - len(recalled)


def test_d12_a_filter_chooses_rows_by_their_properties(
    timed_orders: Broker, clock: Clock, spark: SparkSession
) -> None:
    dear = send(timed_orders, 3, delay=HOUR, properties={"amount": 500})
    send(timed_orders, 4, delay=HOUR, properties={"amount": 5})
    clock.advance(2 * HOUR)

    batch = take(timed_orders, filter="amount > 100", now=clock())

    assert ids(batch.dataframe(spark)) == sorted(dear)
    assert batch.count == len(dear)


def test_message_of_another_lease_is_left_out(orders: Broker, spark: SparkSession) -> None:
    sent = send(orders, 40)
    first = take(orders, max_messages=15)
    second = take(orders, max_messages=100)

    assert (first.count, second.count) == (15, 25)
    assert sorted(ids(first.dataframe(spark)) + ids(second.dataframe(spark))) == sorted(sent)


def test_straggler_is_read_by_the_lease_that_follows_its_commit(orders: Broker, spark: SparkSession) -> None:
    prompt = orders.send(TOPIC, b"prompt", delay=timedelta(0))
    with closing(psycopg2.connect(orders.dsn)) as connection:
        late = orders.send(TOPIC, b"late", delay=timedelta(0), connection=connection)
        first = take(orders)
        connection.commit()
    second = take(orders)

    assert ids(first.dataframe(spark)) == [prompt.message_id]
    assert ids(second.dataframe(spark)) == [late.message_id]


def test_r01_r13_retry_keeps_its_id_and_counts_its_attempt(
    timed_orders: Broker, clock: Clock, spark: SparkSession
) -> None:
    sent = send(timed_orders, 3, delay=HOUR)
    clock.advance(2 * HOUR)
    take(timed_orders, now=clock()).nack(delay=timedelta(seconds=10))
    clock.advance(timedelta(seconds=11))

    frame = take(timed_orders, now=clock()).dataframe(spark)

    assert ids(frame) == sorted(sent)
    assert {(row.topic, row.attempt) for row in frame.collect()} == {(TOPIC, 2)}


def test_retries_and_first_deliveries_come_in_one_frame(
    timed_orders: Broker, clock: Clock, spark: SparkSession
) -> None:
    old = send(timed_orders, 3, delay=HOUR)
    clock.advance(2 * HOUR)
    take(timed_orders, now=clock()).nack(delay=timedelta(seconds=10))
    new = send(timed_orders, 4)
    clock.advance(timedelta(seconds=11))

    rows = take(timed_orders, now=clock()).dataframe(spark).collect()

    assert {row.message_id: row.attempt for row in rows} == dict.fromkeys(old, 2) | dict.fromkeys(new, 1)


def test_nothing_ready_is_an_empty_frame(orders: Broker, spark: SparkSession) -> None:
    batch = take(orders)

    assert not batch
    assert batch.expires_at is None
    assert batch.dataframe(spark).collect() == []


def test_large_lease_is_dealt_out_to_partitions(orders: Broker, spark: SparkSession) -> None:
    sent = send(orders, 5_000)

    frame = take(orders, max_messages=5_000, partitions=3).dataframe(spark)

    assert frame.rdd.getNumPartitions() == 3
    assert ids(frame) == sorted(sent)


def test_one_queue_gives_work_to_every_partition(broker: Broker, spark: SparkSession) -> None:
    broker.create_topic(TOPIC, queues=1)
    sent = send(broker, 4_000)

    frame = take(broker, max_messages=4_000, partitions=4).dataframe(spark)

    assert frame.rdd.getNumPartitions() == 4
    assert ids(frame) == sorted(sent)


@pytest.mark.slow
def test_a_new_worker_loads_only_what_reads(orders: Broker) -> None:
    send(orders, 3)
    source = DueWheelDataSource({"dsn": orders.dsn, "lease": to_json(take(orders).leases)})
    reader = source.reader(SPARK_SCHEMA)
    # What Spark sends to a task.
    task = pickle.dumps((source, reader, reader.partitions()[0]))
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
    reader = LeaseDataReader(dsn=orders.dsn, leases=(), partitions=1, batch_bytes=1)
    with pytest.raises(InvalidArgument, match="pickled copy of a reader has no leases"):
        pickle.loads(pickle.dumps(reader)).partitions()
    assert reader.partitions() == []


def test_columns_of_another_query_are_refused_before_a_row_is_read(dsn: str) -> None:
    """What a pooler by transaction makes of two sessions' queries."""
    with (
        adbc_driver_postgresql.connect(dsn) as database,
        adbc_driver_manager.AdbcConnection(database) as connection,
    ):
        query = "select 'a' as key, 'b' as tag"
        with selected(connection, query, ["key", "tag"]) as rows:
            assert rows.read_all().to_pylist() == [{"key": "a", "tag": "b"}]
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
    broker.create_topic(TOPIC, queues=queues)
    send(broker, 5_000)

    batch = take(broker, max_messages=1_000_000, partitions=8)
    reader = LeaseDataReader(dsn=broker.dsn, leases=batch.leases, partitions=8, batch_bytes=1)
    counts = sizes(reader)

    assert len(counts) == 8
    assert sum(counts) == 5_000
    assert max(counts) < 1.25 * min(counts)


def test_partitions_are_even_however_full_the_queues_are(broker: Broker) -> None:
    broker.create_topic(TOPIC)
    send(broker, 20_000, message_group="one")
    send(broker, 200)

    batch = take(broker, max_messages=100_000, partitions=4)
    reader = LeaseDataReader(dsn=broker.dsn, leases=batch.leases, partitions=4, batch_bytes=1)
    counts = sizes(reader)

    assert sum(counts) == 20_200
    assert max(counts) < 1.25 * min(counts)


def test_retries_are_dealt_out_too(orders: Broker) -> None:
    send(orders, 5_000)
    take(orders, max_messages=5_000).nack(timedelta(0))

    batch = take(orders, max_messages=1_000_000, partitions=4)
    reader = LeaseDataReader(dsn=orders.dsn, leases=batch.leases, partitions=4, batch_bytes=1)
    counts = sizes(reader)

    assert sum(counts) == 5_000
    assert max(counts) < 1.25 * min(counts)


def test_frame_has_the_same_rows_however_often_it_is_read(orders: Broker, spark: SparkSession) -> None:
    sent = send(orders, 30)

    frame = take(orders, max_messages=20).dataframe(spark)

    assert frame.count() == 20
    assert frame.join(frame.select("message_id"), "message_id").count() == 20
    assert sorted(ids(frame) + ids(take(orders).dataframe(spark))) == sorted(sent)


def test_retried_task_reads_the_same_rows(orders: Broker, spark: SparkSession) -> None:
    sent = send(orders, 2_000)

    def fail_first(rows: Iterable[Row]) -> Iterable[str]:
        yield from [row.message_id for row in rows]
        task = TaskContext.get()
        if task is not None and task.attemptNumber() == 0:
            raise RuntimeError("the first attempt of every task fails after it has read everything")

    frame = take(orders, max_messages=2_000).dataframe(spark)

    assert sorted(frame.select("message_id").rdd.mapPartitions(fail_first).collect()) == sorted(sent)


def test_two_copies_of_a_task_read_the_same_rows(orders: Broker) -> None:
    send(orders, 3_000)
    batch = take(orders, max_messages=3_000)
    reader = LeaseDataReader(dsn=orders.dsn, leases=batch.leases, partitions=2, batch_bytes=50_000)
    partition, _ = reader.partitions()

    def read(_: int) -> list[str]:
        return [
            message_id for rows in reader.read(partition) for message_id in rows["message_id"].to_pylist()
        ]

    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(read, range(4))

    assert len(first) > 1_000
    assert others == [first] * 3


def test_memory_follows_from_the_batch_size_and_not_from_the_lease(orders: Broker) -> None:
    send(orders, 500, body=b"x" * 10_000)
    batch = take(orders)
    reader = LeaseDataReader(dsn=orders.dsn, leases=batch.leases, partitions=1, batch_bytes=100_000)
    (partition,) = reader.partitions()

    sizes = [rows.nbytes for rows in reader.read(partition)]

    assert sum(sizes) > 5_000_000
    assert max(sizes) < 200_000


def test_message_larger_than_a_batch_is_read(orders: Broker, spark: SparkSession) -> None:
    body = bytes(range(256)) * 4 * 4096
    orders.send(TOPIC, body, delay=timedelta(0))

    frame = take(orders).dataframe(spark)

    assert [bytes(row.body) for row in frame.collect()] == [body]


def test_receipt_handle_answers_for_one_message(orders: Broker, spark: SparkSession) -> None:
    send(orders, 3)
    handles = {row.key: row.receipt_handle for row in take(orders).dataframe(spark).collect()}

    with closing(psycopg2.connect(orders.dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("select duewheel.ack(%s)", ([handles["key-0"], handles["key-2"]],))
        cursor.execute("select duewheel.nack(%s, interval '0')", ([handles["key-1"]],))
    consumer = orders.consumer(TOPIC, GROUP)

    assert [(message.key, message.attempt) for message in consumer.receive()] == [("key-1", 2)]


def test_password_shows_in_no_plan(
    orders: Broker, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    send(orders, 1)
    dsn = make_dsn(orders.dsn, options="-c application_name=sesame")

    frame = loaded(spark, dsn=dsn, topic=TOPIC, mode="peek").where("attempt = 1")
    frame.explain(extended=True)
    frame.explain("formatted")
    # Spark shows a plan that is an argument of a command with its options.
    loaded(spark, dsn=orders.dsn, topic=TOPIC, mode="peek").createOrReplaceTempView("shown")

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
    assert "sesame" not in repr(
        LeaseDataReader(dsn=dsn, leases=take(orders).leases, partitions=1, batch_bytes=1).partitions()
    )


def test_lease_whose_messages_are_gone_is_an_error(orders: Broker, spark: SparkSession) -> None:
    send(orders, 10)
    batch = take(orders)
    with orders.connection() as connection, connection.cursor() as cursor:
        cursor.execute(
            "with one as (select min(seq) as seq from duewheel.any_message),"
            " near as (delete from duewheel.message m using one where m.seq = one.seq)"
            " delete from duewheel.far_message m using one where m.seq = one.seq"
        )

    with pytest.raises(PySparkException, match=r"LeaseLost.*retention has dropped"):
        loaded(spark, dsn=orders.dsn, lease=to_json(batch.leases)).collect()


def test_lease_that_the_broker_does_not_know_is_an_error(orders: Broker) -> None:
    send(orders, 10)
    unknown = [replace(lease, n=lease.n + 1000) for lease in take(orders).leases]

    with pytest.raises(LeaseLost, match="no such lease"):
        LeaseDataReader(dsn=orders.dsn, leases=unknown, partitions=1, batch_bytes=1).partitions()


def test_lease_of_single_messages_cannot_be_read(orders: Broker) -> None:
    send(orders, 10)
    (message, *_) = orders.consumer(TOPIC, GROUP).receive()

    with pytest.raises(InvalidArgument, match="whole leases"):
        LeaseDataReader(dsn=orders.dsn, leases=[message.lease], partitions=1, batch_bytes=1).partitions()


def test_unknown_topic_is_an_error_when_loading(orders: Broker, spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="UnknownTopic"):
        loaded(spark, dsn=orders.dsn, topic="no-such-topic", group=GROUP)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "'dsn' is missing"),
        ({"dsn": "here"}, "cannot be read"),
        ({"group": GROUP}, "'topic' is missing"),
        ({"topic": TOPIC, "group": GROUP, "maxMessagesPerTrigger": "many"}, "Trigger' is 'many'"),
        ({"topic": TOPIC, "group": GROUP, "reconnect_seconds": "0"}, "'reconnect_seconds' is '0'"),
        ({"topic": TOPIC, "mode": "lease"}, "'mode' is 'lease': give peek"),
        ({"topic": TOPIC, "group": GROUP, "tag": "unpaid"}, r"unknown options \['tag'\]"),
        ({"topic": TOPIC, "group": GROUP, "tags": "a | b"}, "not a tag expression"),
        ({"topic": TOPIC, "group": GROUP, "filter": "a ~ 5"}, "position 2 of the filter"),
    ],
)
def test_bad_option_is_an_error_that_names_it(orders: Broker, options: dict[str, str], said: str) -> None:
    address = {} if "dsn" in said or "dsn" in options else {"dsn": orders.dsn}

    with pytest.raises(DueWheelError, match=said):
        DueWheelDataSource(address | options).schema()


@pytest.mark.parametrize(
    "columns",
    ["key", "message_id", "topic", "receipt_handle", "body, deliver_at", "tag, message_id, key, topic"],
)
def test_columns_are_chosen_by_option_or_schema(orders: Broker, spark: SparkSession, columns: str) -> None:
    send(orders, 20, tag="unpaid")
    names = columns.split(", ")
    batch = take(orders)
    every = sorted(batch.dataframe(spark).select(names).collect())

    by_name = batch.dataframe(spark, columns=names)
    by_schema = (
        spark.read.format("duewheel")
        .schema(StructType([SPARK_SCHEMA[name] for name in names]))
        .options(dsn=orders.dsn, lease=to_json(batch.leases))
        .load()
    )

    assert by_name.columns == by_schema.columns == names
    assert sorted(by_name.collect()) == sorted(by_schema.collect()) == every


def test_schema_may_differ_in_what_may_be_null(orders: Broker, spark: SparkSession) -> None:
    send(orders, 20)
    orders.send(TOPIC, b"without a key", delay=timedelta(0))
    options = {"dsn": orders.dsn, "lease": to_json(take(orders).leases)}
    read = spark.read.format("duewheel").options(**options)
    peek = spark.read.format("duewheel").options(dsn=orders.dsn, topic=TOPIC, mode="peek")

    for source in (read, peek):
        assert source.schema("key string, body binary").load().select("body").distinct().count() > 1
        with pytest.raises(
            PySparkException, match="the column key is null in a message, and the schema says"
        ):
            source.schema("body binary, key string not null").load().collect()


@pytest.mark.parametrize("schema", ["number string", "key int", "key string, message_id int"])
def test_schema_of_other_columns_is_refused(orders: Broker, spark: SparkSession, schema: str) -> None:
    send(orders, 1)
    options = {"dsn": orders.dsn, "lease": to_json(take(orders).leases)}
    frame = spark.read.format("duewheel").schema(schema).options(**options).load()

    with pytest.raises(PySparkException, match=r"InvalidArgument.*(no columns|is string)"):
        frame.collect()


def test_option_that_a_read_would_pass_over_is_refused(orders: Broker) -> None:
    of_lease = {"dsn": orders.dsn, "lease": to_json(take(orders).leases)}
    of_group = {"dsn": orders.dsn, "topic": TOPIC, "group": GROUP}
    batch = spark_schema(ALL_COLUMNS)

    with pytest.raises(InvalidArgument, match=r"read of a lease does not take the options \['filter'"):
        DueWheelDataSource({**of_lease, "filter": "a > 1"}).reader(batch)
    with pytest.raises(InvalidArgument, match=r"a stream does not take the options \['partitions'\]: leave"):
        DueWheelDataSource({**of_group, "partitions": "8"}).streamReader(batch)
    for foreign in (of_lease, {"dsn": orders.dsn, "topic": TOPIC, "mode": "peek"}):
        with pytest.raises(InvalidArgument, match="a stream does not take"):
            DueWheelDataSource(foreign).streamReader(batch)


def test_columns_in_one_text_are_refused(orders: Broker, spark: SparkSession) -> None:
    with pytest.raises(InvalidArgument, match=r"the text 'key': give a list of names, as \['key'\]"):
        take(orders).dataframe(spark, columns="key")


def test_columns_that_are_not_wanted_stay_in_the_database(orders: Broker) -> None:
    send(orders, 100, body=b"x" * 10_000)
    leases = take(orders).leases
    reader = LeaseDataReader(
        dsn=orders.dsn, leases=leases, partitions=1, batch_bytes=1_000_000, columns=("key",)
    )
    (partition,) = reader.partitions()

    batches = list(reader.read(partition))

    assert [batch.schema.names for batch in batches] == [["key"]] * len(batches)
    assert sum(batch.nbytes for batch in batches) < 10_000


@pytest.mark.parametrize("end", ["nack", "rewind", "expiry"])
def test_x10_lease_that_has_ended_is_not_read(orders: Broker, end: str) -> None:
    send(orders, 10)
    batch = take(orders)
    reader = LeaseDataReader(dsn=orders.dsn, leases=batch.leases, partitions=1, batch_bytes=1_000_000)
    (partition,) = reader.partitions()
    if end == "nack":
        batch.nack(timedelta(0))
    elif end == "rewind":
        orders.rewind(GROUP, TOPIC, "earliest")
    else:
        later = datetime.now(UTC) + HOUR
        with Broker(orders.dsn, clock=lambda: later) as other:
            assert other.consumer(TOPIC, GROUP).receive()

    with pytest.raises(LeaseLost):
        list(reader.read(partition))
    with pytest.raises(LeaseLost):
        reader.partitions()


def test_acked_messages_may_be_read_again(orders: Broker, spark: SparkSession) -> None:
    sent = send(orders, 10)
    batch = take(orders)
    batch.ack()

    assert ids(batch.dataframe(spark)) == sorted(sent)


def test_looking_makes_no_dead_letters(orders: Broker, spark: SparkSession) -> None:
    """A read of a group leases nothing and makes no group: it is refused, and says how to look."""
    sent = send(orders, 10)
    options = {"dsn": orders.dsn, "topic": TOPIC, "group": GROUP}

    spark.readStream.format("duewheel").options(dsn=orders.dsn, topic=TOPIC).load()
    spark.readStream.format("duewheel").options(**options).load()
    frame = loaded(spark, **options)
    for _ in range(3):
        with pytest.raises(PySparkException, match=r'nobody could ack it.*mode="peek".*LeasedBatch\.take'):
            frame.count()
    (topic,) = orders.stats().topics
    assert topic.groups == ()
    assert ids(loaded(spark, dsn=orders.dsn, topic=TOPIC, mode="peek")) == sorted(sent)
    assert {message.attempt for message in orders.consumer(TOPIC, GROUP).receive()} == {1}


def test_instant_of_another_time_zone_is_the_same_instant(orders: Broker, spark: SparkSession) -> None:
    receipts = orders.send_many(
        TOPIC, [{"body": b"", "deliver_at": datetime.fromisoformat("2026-01-01T00:00:00.123+02:00")}]
    )

    (row,) = take(orders).dataframe(spark).selectExpr("unix_micros(deliver_at) at").collect()

    assert from_microseconds(row.at) == receipts[0].deliver_at
