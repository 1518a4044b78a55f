"""The verdict: the outcome of every order of a run, by the shop's table and by the broker's own records.

The two are compared order by order: the shop's table shows which orders were paid or cancelled; the broker's
records show which timeouts were recalled, and when each of the others was released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from rich.console import Console
from rich.table import Table

from duewheel.cli.demo.orders import OrderCounts, Timeout
from duewheel.cli.demo.run import Run


@dataclass(frozen=True)
class Lateness:
    """How long after its instant a timeout was released, in milliseconds, over all that were released."""

    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True)
class Verdict:
    """The closing table.

    Attributes:
        placed: orders placed.
        paid: orders paid.
        recalled: timeouts recalled; they never come.
        cancelled: orders cancelled.
        wrongly_cancelled: orders cancelled although they were paid, or before their time to pay was over.
        never_cancelled: orders neither paid nor cancelled, although their time to pay is over.
        lateness: of the release of the timeouts; None if none was released.
        seconds: how long each step took.
        problems: a sentence for everything that is wrong; empty when the demo succeeded.
    """

    placed: int
    paid: int
    recalled: int
    cancelled: int
    wrongly_cancelled: int
    never_cancelled: int
    lateness: Lateness | None
    seconds: dict[str, float]
    problems: list[str]

    @property
    def is_good(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, object]:
        """Return the verdict in types that JSON knows."""
        return asdict(self) | {"is_good": self.is_good}


def judge(run: Run, counts: OrderCounts, timeouts: Sequence[Timeout], failed_runs: int) -> Verdict:
    """Judge a run that has been watched to its end."""
    missing = sum(not timeout.is_on_record for timeout in timeouts)
    recalled = [timeout for timeout in timeouts if timeout.is_recalled]
    recalled_but_came = sum(timeout.came for timeout in recalled)
    never_came = sum(not timeout.came for timeout in timeouts) - len(recalled) + recalled_but_came
    late = [timeout.late for timeout in timeouts if timeout.late is not None and not timeout.is_recalled]
    early = sum(value < timedelta(0) for value in late)
    checks = [
        (counts.placed != run.orders, f"{counts.placed} orders were placed instead of {run.orders}"),
        (missing > 0, f"{missing} orders were placed without a timeout"),
        (counts.paid == 0, "no order was paid"),
        (counts.cancelled == 0, "no order was cancelled"),
        (counts.wrongly_cancelled > 0, f"{counts.wrongly_cancelled} paid orders were cancelled"),
        (
            counts.cancelled_early > 0,
            f"{counts.cancelled_early} orders were cancelled before their time was over",
        ),
        (counts.open > 0, f"{counts.open} unpaid orders were never cancelled"),
        (never_came > 0, f"{never_came} timeouts never came"),
        (early > 0, f"{early} timeouts were released early"),
        (recalled_but_came > 0, f"{recalled_but_came} recalled timeouts came all the same"),
        (failed_runs > 0, f"{failed_runs} runs of the cancelling DAG failed"),
    ]
    return Verdict(
        placed=counts.placed,
        paid=counts.paid,
        recalled=len(recalled),
        cancelled=counts.cancelled,
        wrongly_cancelled=counts.wrongly_cancelled + counts.cancelled_early,
        never_cancelled=counts.open,
        lateness=_lateness(late),
        seconds=run.seconds,
        problems=[problem for is_wrong, problem in checks if is_wrong],
    )


def show(verdict: Verdict, console: Console) -> None:
    """Print the closing table."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for name in ("placed", "paid", "recalled", "cancelled", "wrongly_cancelled", "never_cancelled"):
        table.add_row(name.replace("_", " "), str(getattr(verdict, name)))
    if verdict.lateness is not None:
        for name, value in asdict(verdict.lateness).items():
            table.add_row(f"lateness of release, {name.removesuffix('_ms')}", f"{value:.0f} ms")
    for step, seconds in verdict.seconds.items():
        table.add_row(f"{step}, seconds", f"{seconds:.1f}")
    console.print(table)
    for problem in verdict.problems:
        console.print(f"WRONG: {problem}")


def _lateness(late: list[timedelta]) -> Lateness | None:
    if not late:
        return None
    ordered = sorted(round(value.total_seconds() * 1000, 3) for value in late)
    return Lateness(_percentile(ordered, 50), _percentile(ordered, 99), ordered[-1])


def _percentile(ordered: list[float], percent: int) -> float:
    """Return the nearest-rank percentile of an ascending list."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
