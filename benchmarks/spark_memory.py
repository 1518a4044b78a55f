"""Memory of Spark's driver and Python workers over time, for a write, a read and a stream of all messages.

Ten million messages of 100 bytes beside one million with --long, 1 000 000 beside 100 000 without. A reading
is the most that was held in a quarter of the job's time, so a job that gathers what it moves shows four that
rise. The driver is the JVM with its usual heap of 1 GB and the Python process beside it; the workers are all
of Spark's Python processes together. Pages that processes share count in parts (PSS), as workers are forked.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession

from benchmarks import ours
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Row, thousands
from benchmarks.process_memory import descendants, proportional_bytes
from benchmarks.program import main
from benchmarks.spark_jdbc import PARTITIONS, read_all
from duewheel.spark import LeasedBatch
from duewheel.spark.session import spark_session
from duewheel.store import Broker

HOUR = timedelta(hours=1)
MEGABYTE = 1_000_000
#: A process that ends between two looks is not seen at its end.
LOOK_SECONDS = 0.25
QUARTERS = 4
#: What every session does once, such as the first start of a worker, is done before.
WARM_UP_MESSAGES = 10_000
#: So many messages are made in a transaction.
FILL = 1_000_000


class Watch:
    """Looks at the processes of a session until it is stopped: the driver's bytes, and the workers'."""

    def __init__(self, spark: SparkSession) -> None:
        jvm = spark._jvm
        assert jvm is not None, "a classic session has one"
        self._jvm = int(jvm.java.lang.ProcessHandle.current().pid())
        self.looks: list[tuple[int, int]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            workers = sum(map(proportional_bytes, descendants(self._jvm)))
            driver = proportional_bytes(self._jvm) + proportional_bytes(os.getpid())
            self.looks.append((driver, workers))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def peaks(self, side: int) -> list[float]:
        """The most megabytes in each quarter of the time."""
        size = -(-len(self.looks) // QUARTERS)
        quarters = [self.looks[start : start + size] for start in range(0, len(self.looks), size)]
        return [max(look[side] for look in looks) / MEGABYTE for looks in quarters]


def write(spark: SparkSession, dsn: str, count: int) -> None:
    """Send messages that Spark makes, all or none."""
    frame = spark.range(0, count, 1, PARTITIONS).selectExpr(
        "cast(id as string) as key",
        "timestamp_millis(unix_millis(now()) + 3600000 + id % 600000) as deliver_at",
        "cast(repeat(md5(cast(id as string)), 3) as binary) as body",
    )
    frame.write.format("duewheel").options(dsn=dsn, topic=ours.TOPIC).mode("append").save()


def read(spark: SparkSession, dsn: str, count: int) -> None:
    """Lease messages and read them."""
    with Broker(dsn) as broker:
        batch = LeasedBatch.take(
            broker, ours.TOPIC, f"read-{count}", max_messages=count, invisible=HOUR, partitions=PARTITIONS
        )
        assert batch.count == count
        read_all(batch.dataframe(spark))


def stream(spark: SparkSession, dsn: str, count: int) -> None:
    """Read all that is released, in micro-batches of the usual size."""
    seen = 0

    def look(frame: DataFrame, _number: int) -> None:
        nonlocal seen
        seen += frame.count()

    with tempfile.TemporaryDirectory() as folder:
        messages = spark.readStream.format("duewheel").options(dsn=dsn, topic=ours.TOPIC).load()
        query = messages.writeStream.foreachBatch(look).trigger(availableNow=True)
        query.option("checkpointLocation", str(Path(folder, "checkpoint"))).start().awaitTermination()
    assert seen == count


@contextmanager
def filled(bench: Bench, count: int) -> Iterator[str]:
    """A database whose messages are due."""
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        at = ours.now() - 2 * HOUR
        for done in range(0, count, FILL):
            size = min(FILL, count - done)
            ours.fill(dsn, size, start=at, within=HOUR, at=at, body_bytes=100, with_key=True)
        yield dsn


@contextmanager
def empty(bench: Bench, _count: int) -> Iterator[str]:
    """A database without messages."""
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        yield dsn


Job: TypeAlias = Callable[[SparkSession, str, int], None]
Database: TypeAlias = Callable[[Bench, int], AbstractContextManager[str]]
JOBS: dict[str, tuple[Job, Database]] = {
    "write": (write, empty),
    "read": (read, filled),
    "stream": (stream, filled),
}


def spark_memory(name: str, bench: Bench) -> Iterator[Row]:
    """The quarters' megabytes of driver and workers, at both sizes."""
    job, database = JOBS[name]
    few = bench.size(1_000_000, 100_000)
    with spark_session("benchmark", master="local[2]") as spark:
        with database(bench, WARM_UP_MESSAGES) as dsn:
            job(spark, dsn, WARM_UP_MESSAGES)
        for count in (few, 10 * few):
            with database(bench, count) as dsn, Watch(spark) as watch:
                job(spark, dsn, count)
            for side, part in enumerate(("driver", "workers")):
                yield Row(
                    f"{name}-{part}-{thousands(count).replace(' ', '')}",
                    f"Spark's {part} in the quarters of a {name} of {thousands(count)}",
                    "MB",
                    watch.peaks(side),
                )


SUBJECTS = [
    Subject(name, f"memory of a {name}", partial(spark_memory, name)) for name in ("write", "read", "stream")
]

if __name__ == "__main__":
    main("spark_memory", __doc__, SUBJECTS)
