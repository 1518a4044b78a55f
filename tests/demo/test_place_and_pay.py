"""How the demo deals with a machine that became slower."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.acting import SECOND
from tests.waiting import connected

from duewheel.cli.demo.airflow_standalone import AirflowStandalone, Settings
from duewheel.cli.demo.flow import PLACE_DAG, Demo
from duewheel.cli.demo.progress import Progress
from duewheel.cli.demo.verify import ask
from duewheel.dags.shop import statement


class SlowDemo(Demo):
    """A demo without Airflow: the statements of its DAGs are run here.

    Args:
        dsn: the database of the shop.
        slow: how many times paying takes until the first order is due.
    """

    def __init__(self, dsn: str, slow: int) -> None:
        settings = Settings(Path(), "", Path(), dsn)
        super().__init__(AirflowStandalone(settings), dsn, Progress(), up_seconds=3_060.0)
        self.timeouts: list[object] = []
        self._slow = slow

    def run_dag(self, dag_id: str, parameters: Mapping[str, Any]) -> None:
        if dag_id == PLACE_DAG:
            self.timeouts.append(parameters["timeout_seconds"])
            spans = {name: parameters[f"{name}_seconds"] * SECOND for name in ("timeout", "spread")}
            self._execute(statement("place_orders"), orders=parameters["orders"], **spans)
            return
        if len(self.timeouts) <= self._slow:
            self._execute(
                "update orders set pay_by = clock_timestamp() where number = %(n)s + 1", n=self.first
            )
        self._execute(statement("pay_orders"))

    def _execute(self, query: str, **parameters: Any) -> None:
        with connected(self._dsn) as connection, connection.cursor() as cursor:
            cursor.execute(query, parameters or None)


@pytest.mark.parametrize(("slow", "timeouts"), [(0, [1020]), (2, [1020, 2040, 4080])])
def test_orders_due_before_they_are_paid_are_placed_again(dsn: str, slow: int, timeouts: list[float]) -> None:
    demo = SlowDemo(dsn, slow)
    demo.place_and_pay(10)
    assert demo.timeouts == timeouts
    assert demo.first == 10 * slow
    counts = ask(dsn, "count", demo.first)
    assert (counts["placed"], counts["paid"], counts["none_due"]) == (10, 5, True)
