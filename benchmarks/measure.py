"""Pairs, medians and goals: the arithmetic of the benchmark, without any I/O.

A `Row` is one line of the table. It holds the readings of both sides, pair by pair, and computes from them
the ratio that is compared with the goal. Rows without a baseline hold one-sided readings and are compared
as they are.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Of = Literal["ratio", "ours", "difference"]


@dataclass(frozen=True)
class Goal:
    """The value that a row has to reach.

    `of` selects the value that is compared with `bound`: the median of the pairs' ratios (ours / baseline),
    the median of our readings alone, or the median of the pairs' differences (ours - baseline).
    """

    bound: float
    direction: Literal["at least", "at most"]
    of: Of = "ratio"

    def reached(self, value: float) -> bool:
        """Whether `value` is on the right side of the bound."""
        return value >= self.bound if self.direction == "at least" else value <= self.bound


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of a set of readings."""

    median: float
    smallest: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass
class Row:
    """One line of the table.

    `ours` and `baseline` are parallel: reading i of both was taken in pair i. `baseline` is empty if the goal
    is an absolute figure. `goals` is empty for a line that only informs.
    """

    name: str
    what: str
    unit: str
    ours: list[float]
    baseline: list[float] = field(default_factory=list)
    baseline_name: str = ""
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    load_average: float = 0.0
    flush_ms: float = 0.0
    measured_at: str = ""

    def spread(self, of: Of) -> Spread | None:
        """The readings that `of` selects, or None without a baseline to compare with."""
        if of == "ours":
            return Spread.of(self.ours)
        if not self.baseline:
            return None
        pairs = list(zip(self.ours, self.baseline, strict=True))
        if of == "difference":
            return Spread.of([ours - baseline for ours, baseline in pairs])
        if any(baseline == 0 for _, baseline in pairs):
            return None
        return Spread.of([ours / baseline for ours, baseline in pairs])

    def reached(self) -> bool | None:
        """Whether every goal is reached; None without a goal."""
        if not self.goals:
            return None
        for goal in self.goals:
            spread = self.spread(goal.of)
            if spread is None or not goal.reached(spread.median):
                return False
        return True


def interleave(
    ours: Callable[[int], float], baseline: Callable[[int], float], *, pairs: int, warm_up: int = 1
) -> tuple[list[float], list[float]]:
    """Take `pairs` readings of both sides alternately; the first side changes from pair to pair.

    Both callables get the number of the pair, negative for the `warm_up` pairs that are discarded (caches,
    just-in-time compilers, the server's catalogs), and return their reading.
    """
    readings: tuple[list[float], list[float]] = ([], [])
    for number in range(-warm_up, pairs):
        for side in (1, 0) if number % 2 else (0, 1):
            reading = (ours, baseline)[side](number)
            if number >= 0:
                readings[side].append(reading)
    return readings


def thousands(count: int) -> str:
    """`count` with spaces between groups of thousands: 100 000."""
    return f"{count:,}".replace(",", " ")


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` per cent of `values` do not exceed."""
    ordered = sorted(values)
    position = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(position) - 1)]


def task_of(state: str | None, rows: int) -> str:
    """The step of upkeep and the place that a call begins at."""
    task = json.loads(state)["todo"][0] if state else "a new round"
    return f"{task}, {rows} rows"
