"""The common tools of every subject: the server, the size of the measurement, and a clock."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from benchmarks.measure import Goal, Row
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
    """A subject to measure: its name for `--only`, a line about it, and its function.

    `missing` names what the machine lacks for it and how to get that; empty if it lacks nothing.
    """

    name: str
    what: str
    run: Callable[[Bench], Iterable[Row]]
    missing: Callable[[], str] = str


Step = Callable[[], int]
Side = Callable[[int], AbstractContextManager[Step]]


def side_by_side(
    ours: Side, baseline: Side, *, pairs: int, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[list[float], list[float]]:
    """Rates of both sides, `pairs` readings each, taken in small alternating steps.

    A side gets the number of the pair and makes its fresh, loaded database at rest. It yields a function that
    does a small block of the work and returns its number of messages. In each pair both sides do one step
    unmeasured and then `rounds` steps in turn, the order changing every round, so that other load of the
    machine falls on both. The reading is the number of messages over the sum of the steps' seconds, which
    `clock` tells.
    """
    readings: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs):
        with ours(pair) as our_step, baseline(pair) as baseline_step:
            steps, done, taken = (our_step, baseline_step), [0, 0], [0.0, 0.0]
            for step in steps:
                step()
            # The rows to be sent belong to the benchmark: Python's garbage collector must not search them at
            # the cost of a side.
            gc.collect()
            gc.freeze()
            for number in range(rounds):
                for side in (0, 1) if number % 2 else (1, 0):
                    started = clock()
                    done[side] += steps[side]()
                    taken[side] += clock() - started
            gc.unfreeze()
        for side in (0, 1):
            readings[side].append(done[side] / taken[side])
    return readings


def rates_row(
    bench: Bench,
    name: str,
    what: str,
    ours: Side,
    baseline: Side,
    baseline_name: str,
    goals: list[Goal],
    *,
    rounds: int,
    unit: str = "messages/s",
) -> Row:
    """The row of rates that are taken side by side."""
    readings = side_by_side(ours, baseline, pairs=bench.pairs, rounds=rounds)
    return Row(name, what, unit, *readings, baseline_name, goals)


def rate(count: int, work: Callable[[], object]) -> float:
    """The rate per second when `work` does `count` things."""
    return count / seconds(work)


def seconds(work: Callable[[], object]) -> float:
    """The duration of `work`."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
