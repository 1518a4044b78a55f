"""How the demo deals with a machine that is slower than it was."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from io import StringIO
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest
from rich.console import Console

from duewheel.cli.demo import flow, steps
from duewheel.cli.demo.orders import Orders
from duewheel.cli.demo.progress import Progress
from duewheel.cli.demo.run import Run
from duewheel.dags.shop import statement


class Shop:
    """A demo without Airflow: its steps are what the DAGs do to the orders.

    Args:
        dsn: an empty database.
        slow: how many times paying takes until the first order is due.
    """

    def __init__(self, dsn: str, slow: int) -> None:
        self.note = SimpleNamespace(seconds={"Airflow": 3_060.0})
        self.timeouts: list[float] = []
        self._dsn = dsn
        self._slow = slow
        self._execute(statement("create_orders"))

    def orders_of(self, run: Run) -> Orders:
        return Orders(self._dsn, run.first_order)

    @property
    def dsn(self) -> str:
        return self._dsn

    def place(self, _demo: object, run: Run, _progress: Progress) -> None:
        self.timeouts.append(run.timeout_seconds)
        timeout = timedelta(seconds=run.timeout_seconds)
        self._execute(
            statement("place_orders"), orders=run.orders, timeout=timeout, spread=timedelta(seconds=5)
        )

    def pay(self, _demo: object, run: Run, _progress: Progress) -> None:
        if len(self.timeouts) <= self._slow:
            self._execute(
                "update orders set pay_by = clock_timestamp() where number = %(n)s + 1", n=run.first_order
            )
        self._execute(statement("pay_orders"))

    def _execute(self, query: str, **parameters: Any) -> None:
        with closing(psycopg2.connect(self._dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(query, parameters or None)


def run_of(shop: Shop, monkeypatch: pytest.MonkeyPatch, timeout_seconds: float | None) -> Run:
    monkeypatch.setattr(steps, "place", shop.place)
    monkeypatch.setattr(steps, "pay", shop.pay)
    with Progress(Console(file=StringIO())) as progress:
        return flow.place_and_pay(
            # All that is asked of a RunningDemo here.
            shop,  # type: ignore[arg-type]
            progress,
            orders=10,
            timeout_seconds=timeout_seconds,
            spread_seconds=5,
        )


@pytest.mark.parametrize(("slow", "timeouts"), [(0, [1020]), (2, [1020, 2040, 4080])])
def test_orders_that_come_due_before_they_are_paid_are_placed_anew_with_twice_the_time(
    dsn: str, monkeypatch: pytest.MonkeyPatch, slow: int, timeouts: list[float]
) -> None:
    shop = Shop(dsn, slow)
    run = run_of(shop, monkeypatch, None)
    assert shop.timeouts == timeouts
    assert (run.first_order, run.timeout_seconds) == (10 * slow, timeouts[-1])
    counts = shop.orders_of(run).count()
    assert (counts.placed, counts.paid, counts.none_due) == (10, 5, True)


def test_a_timeout_that_was_asked_for_is_kept(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(dsn, slow=1)
    assert run_of(shop, monkeypatch, 500).timeout_seconds == 500
    assert shop.timeouts == [500]
