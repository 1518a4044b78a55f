"""What the benchmarks of Spark share: a session, messages, pairs with Spark's JDBC source and sink."""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, SparkSession

from benchmarks import ours, tables
from benchmarks.bench import Bench, rate
from benchmarks.measure import Goal, Row, interleave
from benchmarks.messages import HOUR, now
from benchmarks.report import number
from benchmarks.server import connect, query
from duewheel.spark import Batch
from duewheel.spark.session import spark_session
from duewheel.store import Broker

JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")
PARTITIONS = 4
FETCH_SIZE = "10000"
#: Java's compilers and Spark's Python workers take some runs to settle.
WARM_UP = 3
DRIVER = "org.postgresql.Driver"
COLUMNS = "topic_id, queue, deliver_at, seq, born_at, asked_at, tag, key, properties, message_group, body"


def missing() -> str:
    """The package to install if the JDBC driver is missing."""
    if JDBC_DRIVER.exists():
        return ""
    return f"Postgres's JDBC driver is not at {JDBC_DRIVER}: install libpostgresql-jdbc-java (Debian, Ubuntu)"


@contextmanager
def session() -> Iterator[SparkSession]:
    """A local session with two cores that knows the driver."""
    with spark_session("benchmark", master="local[2]", conf={"spark.jars": str(JDBC_DRIVER)}) as spark:
        yield spark


def jvm_of(spark: SparkSession) -> psutil.Process:
    """The process of the driver's JVM."""
    assert spark._jvm is not None, "a classic session has one"
    return psutil.Process(int(spark._jvm.java.lang.ProcessHandle.current().pid()))


def cpu_seconds(processes: Iterable[psutil.Process]) -> dict[int, float]:
    """Processor time of each process that runs, by its id."""
    found = {}
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found[process.pid] = float(sum(process.cpu_times()[:2]))
    return found


def pair_row(
    bench: Bench,
    spark: SparkSession,
    name: str,
    what: str,
    count: int,
    ours: Callable[[int], object],
    jdbc: Callable[[int], object],
    baseline: str,
    goal: float,
) -> Row:
    """Messages per second of both sides, and the processor seconds of each part of the machine for them.

    Args:
        count: how many messages a side moves.
        ours, jdbc: move them; they get the number of the pair.
        goal: the least ratio.
    """
    jvm = jvm_of(spark)
    used: dict[str, tuple[list[float], list[float]]] = {
        part: ([], []) for part in ("JVM", "Python", "Postgres")
    }

    def so_far() -> list[dict[int, float]]:
        """By process; the server has no other clients."""
        python = (psutil.Process(), *jvm.children(recursive=True))
        return [*map(cpu_seconds, ((jvm,), python)), {0: bench.server.cpu_seconds()}]

    def reading(side: int, move: Callable[[int], object], pair: int) -> float:
        before = so_far()
        messages_per_second = rate(count, partial(move, pair))
        for seconds, start, end in zip(used.values(), before, so_far(), strict=True):
            # A worker that was idle may have ended.
            seconds[side].append(sum(end[process] - start.get(process, 0) for process in end))
        return messages_per_second

    sides = (partial(reading, side, move) for side, move in enumerate((ours, jdbc)))
    row = Row(name, what, "messages/s", *interleave(*sides, pairs=bench.pairs, warm_up=WARM_UP), baseline)
    row.goals.append(Goal(goal, "at least"))
    # The pairs that warm up are left out, as they are of the rates.
    spent = (
        f"{part} {' and '.join(number(statistics.median(side[-bench.pairs :])) for side in seconds)}"
        for part, seconds in used.items()
    )
    row.notes.append(f"processor seconds, ours and JDBC's: {', '.join(spent)}")
    return row


@contextmanager
def filled(bench: Bench, count: int, body_bytes: int = 100) -> Iterator[str]:
    """A database whose topic has `count` messages that are due, with keys."""
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        at = now() - 2 * HOUR
        ours.fill(dsn, count, start=at, within=HOUR, at=at, body_bytes=body_bytes, with_key=True)
        yield dsn


def taken(broker: Broker, count: int, group: str) -> Batch:
    """`count` messages, leased."""
    return Batch.take(broker, ours.TOPIC, group, max_messages=count, invisible=HOUR, partitions=PARTITIONS)


def jdbc_url(dsn: str) -> str:
    """The address for JDBC, with a separate login: the driver wants passwords of 4096 iterations."""
    name, password = f"jdbc_{secrets.token_hex(4)}", secrets.token_hex(16)
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SET scram_iterations = 4096")
        cursor.execute(f"CREATE ROLE {name} LOGIN SUPERUSER PASSWORD %s", (password,))
        where = connection.info
        return f"jdbc:postgresql://{where.host}:{where.port}/{where.dbname}?user={name}&password={password}"


def read_all(frame: DataFrame) -> None:
    """Read all rows and throw them away."""
    frame.write.format("noop").mode("overwrite").save()


def copy_over(dsn: str) -> None:
    """The messages into a plain table of their database."""
    query(dsn, tables.PLAIN)
    query(dsn, f"INSERT INTO plain ({COLUMNS}) SELECT {COLUMNS} FROM duewheel.any_message")
