"""The verdict: whether each order of a run was paid or cancelled as promised."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.extras import RealDictCursor
from rich.console import Console
from rich.table import Table

from duewheel.dags.shop import GROUP, TOPIC

_SQL = Path(__file__).parent / "sql"
#: What must not happen to any order or timeout, by the column of `sql/verify.sql` that counts it.
_WRONG = {
    "without_timeout": "{} orders were placed without a timeout",
    "paid_and_cancelled": "{} paid orders were cancelled",
    "cancelled_early": "{} orders were cancelled before their time was over",
    "never_cancelled": "{} unpaid orders were never cancelled",
    "never_came": "{} timeouts were never delivered",
    "released_early": "{} timeouts were released early",
    "recalled_but_came": "{} recalled timeouts were delivered nevertheless",
}


def ask(dsn: str, statement: str, first: int) -> dict[str, Any]:
    """Return the row of `sql/STATEMENT.sql` for the orders with a number above `first`."""
    with closing(psycopg2.connect(dsn, cursor_factory=RealDictCursor)) as shop, shop.cursor() as cursor:
        query = (_SQL / f"{statement}.sql").read_text(encoding="utf-8")
        cursor.execute(query, {"first": first, "topic": TOPIC, "group": GROUP})
        return dict(cursor.fetchone() or {})


@dataclass(frozen=True)
class Verdict:
    """The outcome of a run.

    Attributes:
        counts: the columns of `sql/verify.sql`: numbers of orders, and how late timeouts were released.
        seconds: the duration of each step.
        problems: a sentence for everything that is wrong; empty when the demo succeeded.
    """

    counts: Mapping[str, Any]
    seconds: Mapping[str, float]
    problems: list[str]

    @property
    def is_good(self) -> bool:
        return not self.problems

    def print(self, console: Console) -> None:
        """Print the closing table, without what did not happen."""
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column()
        table.add_column(justify="right")
        for name, number in self.counts.items():
            if name.endswith("_ms") and number is not None:
                statistic = name.removeprefix("late_").removesuffix("_ms")
                table.add_row(f"lateness of release, {statistic}", f"{number:.0f} ms")
            elif number or name not in _WRONG:
                table.add_row(name.replace("_", " "), str(number))
        for step, seconds in self.seconds.items():
            table.add_row(f"{step}, seconds", f"{seconds:.1f}")
        console.print(table)
        for problem in self.problems:
            console.print(f"WRONG: {problem}")


def judge(dsn: str, first: int, orders: int, failed_runs: int, seconds: Mapping[str, float]) -> Verdict:
    """Judge a run that has been watched to its end.

    Args:
        dsn: the database of the shop and the broker.
        first: the highest number of an order that is not of this run.
        orders: how many were to be placed.
        failed_runs: how many runs of the cancelling DAG failed.
        seconds: the duration of each step.
    """
    counts = ask(dsn, "verify", first)
    checks = [
        (counts["placed"] != orders, f"{counts['placed']} orders were placed instead of {orders}"),
        (counts["paid"] == 0, "no order was paid"),
        (counts["cancelled"] == 0, "no order was cancelled"),
        *((counts[name] > 0, problem.format(counts[name])) for name, problem in _WRONG.items()),
        (failed_runs > 0, f"{failed_runs} runs of the cancelling DAG failed"),
    ]
    return Verdict(counts, seconds, [problem for is_wrong, problem in checks if is_wrong])
