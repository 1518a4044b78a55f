"""Three queries at once on a real standalone cluster, whose executors and drivers are killed again and again.

One query takes batches and works on them by partition, one is a stream, one writes. Each has a driver of its
own, which is started anew when it has died. Nothing is timed: a query is killed when it has got on since it
was killed last, so each kill meets work.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.spark.cluster import CONF, SPARK_HOME
from tests.waiting import ask, until

from duewheel.spark.runtimes import spark_environment
from duewheel.store.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

#: How often each driver and an executor of each query is killed.
ROUNDS = int(os.environ.get("DUEWHEEL_KILL_ROUNDS", "1"))
SENT_AT_A_TIME = 150
ROWS_OF_A_PIECE = 200
#: The leases of a killed driver end after this.
INVISIBLE_SECONDS = 4

TABLES = """
create table delivery (key text, receipt_handle text);
create table effect (key text, due_at timestamptz, at timestamptz default clock_timestamp());
create table micro_batch (number bigint primary key);
create table streamed (number bigint, key text, due_at timestamptz, at timestamptz);
create table replayed (like streamed);
create table piece (number integer);
create table wanted (pieces integer);
insert into wanted values (0);
"""

BEGINNING = """
import sys, time
from contextlib import closing
from datetime import timedelta
import psycopg2
from duewheel.spark import consume, register
from duewheel.store import Broker
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

dsn, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)

def asked(statement, *parameters):
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchone() if cursor.description else None
"""

BATCHES = (
    BEGINNING
    + """
def work(connection, batches):
    for batch in batches:
        keys, due = batch["key"].to_pylist(), batch["deliver_at"].to_pylist()
        with closing(psycopg2.connect(dsn)) as apart, apart, apart.cursor() as cursor:
            cursor.execute(
                "insert into delivery select * from unnest(%s::text[], %s::text[])",
                (keys, batch["receipt_handle"].to_pylist()))
        with connection.cursor() as cursor:
            cursor.execute(
                "insert into effect select * from unnest(%s::text[], %s::timestamptz[])", (keys, due))
            # So that others are in the middle of their work as well.
            cursor.execute("select pg_sleep(0.3)")

while True:
    with consume(
        spark, dsn, "orders", "canceller", max_messages=400, partitions=4, min_partitions=4,
        columns=["key", "deliver_at", "receipt_handle"], invisible=timedelta(seconds=INVISIBLE)) as batch:
        if batch:
            batch.foreach_partition(work)
        else:
            # Until the next look for messages.
            time.sleep(0.1)
""".replace("INVISIBLE", str(INVISIBLE_SECONDS))
)

STREAM = (
    BEGINNING
    + """
clock = udf(lambda key: time.time(), "double").asNondeterministic()

def keep(messages, number):
    rows = messages.select("key", "deliver_at", clock("key")).collect()
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("insert into micro_batch values (%s) on conflict do nothing returning 1", (number,))
        table = "streamed" if cursor.fetchone() else "replayed"
        for key, due, at in rows:
            cursor.execute(
                f"insert into {table} values (%s, %s, %s::timestamp at time zone 'UTC', to_timestamp(%s))",
                (number, key, due, at))

spark.conf.set("spark.sql.session.timeZone", "UTC")
(
    spark.readStream.format("duewheel")
    .options(dsn=dsn, topic="orders", group="lake", maxMessagesPerTrigger="100", minPartitions="2")
    .load().writeStream.foreachBatch(keep).option("checkpointLocation", folder + "/checkpoint")
    .start().awaitTermination()
)
"""
)

WRITES = (
    BEGINNING
    + """
# The last one was sent, or was about to be: it is sent again in any case.
(number,) = asked("select coalesce(max(number), 0) from piece")
while True:
    if number >= asked("select pieces from wanted")[0]:
        # Until the next look for a piece that is wanted.
        time.sleep(0.1)
        continue
    rows = spark.range(0, ROWS, 1, 3).selectExpr(
        "cast(id as string) as body", f"concat('{number}-', id) as key")
    rows.write.format("duewheel").options(
        dsn=dsn, topic="written", idempotencyKey=f"piece {number}").mode("append").save()
    asked("insert into piece values (%s)", number)
    number += 1
""".replace("ROWS", str(ROWS_OF_A_PIECE))
)


class Query:
    """A program with a driver of its own, started anew when it has died, and its executors on the cluster."""

    def __init__(
        self, name: str, program: str, progress: str, master: str, broker: Broker, folder: Path
    ) -> None:
        self.name = name
        self.progress = progress
        self.seen = 0
        self.kills = {"driver": 0, "executor": 0}
        self.starts = 0
        self._broker = broker
        self._output = folder / f"{name}.log"
        path = folder / f"{name}.py"
        path.write_text(program)
        conf = CONF | {
            "spark.app.name": name,
            "spark.cores.max": "1",
            "spark.executor.cores": "1",
            "spark.speculation": "false",
            "spark.sql.session.timeZone": "UTC",
        }
        settings = [word for setting in conf.items() for word in ("--conf", "=".join(map(str, setting)))]
        self._command = [
            *[str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, "--driver-memory", "600m"],
            *[*settings, str(path), broker.dsn, str(folder)],
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def keep_running(self) -> None:
        """Start the driver where it is dead: killed, or given up after too many executors."""
        if self._process is not None and self._process.poll() is None:
            return
        self.starts += 1
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, **spark_environment()},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def done(self) -> int:
        return int(asked(self._broker, self.progress)[0][0])

    def has_got_on(self) -> bool:
        return self.done() > self.seen

    def kill(self, victim: str) -> None:
        if victim == "driver":
            self.end()
        else:
            # A dead one is replaced by the cluster.
            for process in until(self._executors, f"an executor of {self.name}"):
                process.kill()
        self.kills[victim] += 1
        self.seen = self.done()

    def end(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _executors(self) -> list[psutil.Process]:
        """The executors of this driver, which listens where they were told to look for it."""
        assert self._process is not None
        try:
            ports = {
                str(one.laddr.port)
                for one in psutil.Process(self._process.pid).net_connections("tcp")
                if one.status == psutil.CONN_LISTEN
            }
        except psutil.NoSuchProcess:
            self.keep_running()
            return []
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if (
                any(
                    word.startswith("spark://CoarseGrainedScheduler@") and word.rpartition(":")[2] in ports
                    for word in words
                )
                and process.name() == "java"
            ):
                found.append(process)
        return found


def asked(broker: Broker, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """The rows of a statement, on a connection of the broker."""
    with broker.connection() as connection:
        return ask(connection, statement, *parameters)


@pytest.fixture
def queries(broker: Broker, master: str, tmp_path: Path) -> Iterator[dict[str, Query]]:
    broker.create_topic("orders")
    broker.create_topic("written", message_type="NORMAL")
    asked(broker, TABLES)
    with ExitStack() as stack:
        running = {}
        for name, program, progress in (
            ("batches", BATCHES, "select count(*) from effect"),
            ("stream", STREAM, "select count(*) from streamed"),
            ("writes", WRITES, "select count(distinct number) from piece"),
        ):
            running[name] = Query(name, program, progress, master, broker, tmp_path)
            stack.callback(running[name].end)
        yield running


class Supply:
    """New work for all three queries, a little at a time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._random = random.Random(20)
        self.sent = 0
        self.pieces = 0

    def more(self) -> None:
        self._broker.send_many(
            "orders",
            [
                {"body": b"", "key": str(key), "delay": timedelta(seconds=self._random.uniform(0, 3))}
                for key in range(self.sent, self.sent + SENT_AT_A_TIME)
            ],
        )
        self.sent += SENT_AT_A_TIME
        self.pieces += 3
        asked(self._broker, "update wanted set pieces = %s", self.pieces)


#: Two deliveries of one message by two leases, of which the first had not ended when the second was taken.
HELD_TWICE = """
with handle as (
    select distinct d.key, split_part(d.receipt_handle, '.', 1)::integer as group_id,
           split_part(d.receipt_handle, '.', 2)::integer as topic_id,
           split_part(d.receipt_handle, '.', 3)::smallint as queue,
           split_part(d.receipt_handle, '.', 4)::bigint as n
    from delivery d
), leased as (
    select h.*, l.leased_at, e.at as ended_at from handle h
    join duewheel.lease l using (group_id, topic_id, queue, n)
    left join duewheel.lease_event e using (group_id, topic_id, queue, n)
)
select count(*), count(*) filter (where (b.leased_at >= a.ended_at) is not true),
       (select count(*) from leased), (select count(*) from handle)
from leased a
join leased b on b.key = a.key and (b.leased_at, b.topic_id, b.n) > (a.leased_at, a.topic_id, a.n)
"""


def test_x16_queries_lose_nothing_while_the_cluster_is_killed(
    queries: dict[str, Query], broker: Broker, record_property: Any
) -> None:
    """And double nothing, side by side."""
    supply = Supply(broker)
    running = list(queries.values())

    def keep_all_running() -> None:
        for one in running:
            one.keep_running()

    def gets_on(query: Query) -> bool:
        keep_all_running()
        return query.has_got_on()

    supply.more()
    for _ in range(ROUNDS):
        for victim in ("executor", "driver"):
            for query in running:
                until(partial(gets_on, query), f"{query.name} to get on", pause_seconds=0.1)
                supply.more()
                query.kill(victim)

    def all_done() -> bool:
        keep_all_running()
        done = {name: query.done() for name, query in queries.items()}
        return (
            done["batches"] >= supply.sent
            and done["stream"] >= supply.sent
            and done["writes"] >= supply.pieces
        )

    until(all_done, "all to be done", pause_seconds=0.2)
    for query in running:
        query.end()

    every = [(supply.sent, supply.sent)]
    assert asked(broker, "select count(*), count(distinct key) from effect") == every
    assert asked(broker, "select count(*), count(distinct key) from streamed") == every
    written = supply.pieces * ROWS_OF_A_PIECE
    assert asked(
        broker,
        "select count(*), count(distinct key) from duewheel.any_message m"
        " join duewheel.topic t using (topic_id) where t.name = 'written'",
    ) == [(written, written)]
    for table in ("effect", "streamed"):
        assert asked(broker, f"select count(*) from {table} where at < due_at") == [(0,)]
    # A micro-batch that runs again has the same messages.
    assert (
        asked(broker, "select r.number, r.key from replayed r except select s.number, s.key from streamed s")
        == []
    )
    ((again, held_twice, known, all_leases),) = asked(broker, HELD_TWICE)
    assert known == all_leases
    assert not held_twice
    assert all(query.kills == {"driver": ROUNDS, "executor": ROUNDS} for query in running)
    # The figures of a run by hand, with --junitxml.
    numbers = {
        "messages": supply.sent,
        "written": written,
        "came again by a later lease": again,
        "replayed in a micro-batch": asked(broker, "select count(*) from replayed")[0][0],
        "drivers started": {query.name: query.starts for query in running},
    }
    record_property("numbers", numbers)
