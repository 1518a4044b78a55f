"""Memory of Spark's driver and Python workers over time, for a write, a read and a stream of all messages.

Ten million messages of 100 bytes beside one million with --long, 1 000 000 beside 100 000 without. A reading
is the most that was held in a quarter of the job's time, so a job that gathers what it moves shows four that
rise. The driver is the JVM with its usual heap of 1 GB and the Python process beside it; the workers are all
of Spark's Python processes together. Pages that processes share count in parts (PSS), as workers are forked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import psutil
from pyspark.sql import DataFrame, SparkSession

from benchmarks.bench import Bench, Subject
from benchmarks.measure import Row, thousands
from benchmarks.program import main
from benchmarks.spark_jdbc import filled, jvm_of, read_all, taken
from benchmarks.spark_pairs import made_rows, send
from benchmarks.spark_pairs import stream as read_stream
from duewheel.spark.session import spark_session
from duewheel.store import Broker

MEGABYTE = 1_000_000
#: A process that ends between two looks is not seen at its end.
LOOK_SECONDS = 0.25
QUARTERS = 4
#: What every session does once, such as the first start of a worker, is done before.
WARM_UP_MESSAGES = 10_000


def proportional_bytes(*processes: psutil.Process) -> int:
    """Resident memory of processes, of pages that others have too their part; 0 of one that has ended."""
    found = 0
    for process in processes:
        with suppress(psutil.Error):
            found += process.memory_full_info().pss
    return found


class Watch:
    """Looks at the processes of a session until it is stopped: the driver's bytes, and the workers'."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = jvm_of(spark)
        self.looks: list[tuple[int, int]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            workers = proportional_bytes(*self._jvm.children(recursive=True))
            self.looks.append((proportional_bytes(self._jvm, psutil.Process()), workers))

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
    """Send messages that Spark makes."""
    send(made_rows(spark, count), dsn)


def read(spark: SparkSession, dsn: str, count: int) -> None:
    """Lease messages and read them."""
    with Broker(dsn) as broker:
        batch = taken(broker, count, f"read-{count}")
        assert batch.count == count
        read_all(batch.on(spark).messages)


def stream(spark: SparkSession, dsn: str, count: int) -> None:
    """Read all that is released, in micro-batches of the usual size."""
    seen = 0

    def look(frame: DataFrame, _number: int) -> None:
        nonlocal seen
        seen += frame.count()

    read_stream(spark, dsn, look)
    assert seen == count


def spark_memory(job: Callable[[SparkSession, str, int], None], bench: Bench) -> Iterator[Row]:
    """The quarters' megabytes of driver and workers, at both sizes."""
    name = job.__name__
    few = bench.size(1_000_000, 100_000)
    with spark_session("benchmark", master="local[2]") as spark:
        for count in (WARM_UP_MESSAGES, few, 10 * few):
            with filled(bench, 0 if job is write else count) as dsn, Watch(spark) as watch:
                job(spark, dsn, count)
            if count != WARM_UP_MESSAGES:
                for side, part in enumerate(("driver", "workers")):
                    yield Row(
                        f"{name}-{part}-{count}",
                        f"Spark's {part} in the quarters of a {name} of {thousands(count)}",
                        "MB",
                        watch.peaks(side),
                    )


SUBJECTS = [
    Subject(job.__name__, f"memory of a {job.__name__}", partial(spark_memory, job))
    for job in (write, read, stream)
]

if __name__ == "__main__":
    main("spark_memory", __doc__, SUBJECTS)
