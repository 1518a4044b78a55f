"""Four consumers against one, each in a process of its own, on the same due messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial

from benchmarks import ours, workers
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row, interleave, thousands
from benchmarks.processes import crew
from benchmarks.receiving import due
from benchmarks.server import settle

TIMEOUT_SECONDS = 300.0


def _reading(bench: Bench, consumers: int, size: int, count: int, seed: int) -> float:
    """Messages per second of `consumers` processes together, from the start to the last ack."""
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        ours.load(dsn, due(count, seed=seed), at=ours.now() - timedelta(hours=2))
        settle(dsn)
        with crew(consumers, workers.consume, dsn, size, count) as crew_:
            started = crew_.go()
            done: list[workers.Work] = crew_.collect(timeout_seconds=TIMEOUT_SECONDS)
        if sum(work.messages for work in done) != count:
            raise RuntimeError(f"{count} messages were sent, {sum(work.messages for work in done)} handled")
        return count / (max(work.last_at for work in done) - started)


def more_consumers(bench: Bench) -> Iterator[Row]:
    """4 consumers against 1, in batches of 1 000 and of 100."""
    for size, count in ((1_000, bench.size(300_000, 60_000)), (100, bench.size(100_000, 15_000))):
        readings, baseline = interleave(
            partial(_reading, bench, 4, size, count),
            partial(_reading, bench, 1, size, count),
            pairs=bench.pairs,
        )
        yield Row(
            f"consumers-{size}",
            f"4 consumers, batches of {thousands(size)}",
            "messages/s",
            readings,
            baseline,
            "1 consumer",
            [Goal(1.3, "at least")],
        )


SUBJECTS = [Subject("consumers", "4 consumers against 1", more_consumers)]
