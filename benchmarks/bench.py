"""The common tools of every subject: the server, the size of the measurement, and a clock."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from benchmarks.measure import Row
from benchmarks.server import Server


@dataclass(frozen=True)
class Bench:
    """One run. `pairs` readings are taken of everything; `quick` shrinks the work for development."""

    server: Server
    pairs: int = 5
    quick: bool = False

    def size(self, full: int, quick: int) -> int:
        """`quick` in a quick run, else `full`."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Subject:
    """A subject to measure: its name for `--only`, a line about it, its function, and its requirements of the
    machine.

    `missing` names a missing requirement and how to get it; it is empty when nothing is missing.
    """

    name: str
    what: str
    run: Callable[[Bench], Iterable[Row]]
    missing: Callable[[], str] = str


Step = Callable[[], int]
Side = Callable[[int], AbstractContextManager[Step]]


def side_by_side(ours: Side, baseline: Side, *, pairs: int, rounds: int) -> tuple[list[float], list[float]]:
    """Rates of both sides, `pairs` readings each, taken in small alternating steps.

    A side gets the number of the pair and makes its fresh, loaded database at rest. It yields a function that
    does a small block of the work and returns its number of messages. In each pair both sides do one step
    unmeasured and then `rounds` steps in turn, the order changing every round, so that other load of the
    machine falls on both. The reading is the number of messages over the sum of the steps' seconds.
    """
    ours_readings: list[float] = []
    baseline_readings: list[float] = []
    for pair in range(pairs):
        with ours(pair) as our_step, baseline(pair) as baseline_step:
            our_step()
            baseline_step()
            # The rows to be sent belong to the benchmark: Python's garbage collector must not search them at
            # the cost of a side.
            gc.collect()
            gc.freeze()
            totals = {our_step: [0.0, 0.0], baseline_step: [0.0, 0.0]}
            for number in range(rounds):
                steps = (our_step, baseline_step) if number % 2 else (baseline_step, our_step)
                for step in steps:
                    started = time.perf_counter()
                    totals[step][0] += step()
                    totals[step][1] += time.perf_counter() - started
            gc.unfreeze()
        for step, readings in ((our_step, ours_readings), (baseline_step, baseline_readings)):
            readings.append(totals[step][0] / totals[step][1])
    return ours_readings, baseline_readings


def rate(count: int, work: Callable[[], object]) -> float:
    """The rate per second when `work` does `count` things."""
    return count / seconds(work)


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
