"""The steps of the main job: place, pay, and watch until every timeout has been handled.

Each starts a DAG by Airflow's REST API, or watches what the timing wheel's doorbell starts, and shows how
it goes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from duewheel.cli.demo.airflow_api import is_finished
from duewheel.cli.demo.orders import Orders
from duewheel.cli.demo.progress import Progress, View
from duewheel.cli.demo.run import Run
from duewheel.cli.demo.running import POLL_SECONDS, DemoFailedError, RunningDemo

PLACE_DAG = "place_orders"
PAY_DAG = "pay_orders"
CANCEL_DAG = "cancel_unpaid_orders"

# How long a DAG file may take to be parsed and stored after Airflow is healthy.
_DAG_APPEARS_SECONDS = 300.0


def begin(demo: RunningDemo, *, orders: int, timeout_seconds: float, spread_seconds: float) -> Run:
    """Begin a run: its orders are those after the present last one."""
    return Run(
        began_at=datetime.now(UTC).isoformat(),
        first_order=Orders(demo.dsn).last_number(),
        orders=orders,
        timeout_seconds=timeout_seconds,
        spread_seconds=spread_seconds,
    )


def place(demo: RunningDemo, run: Run, progress: Progress) -> None:
    """Run the DAG that places the orders."""
    parameters = {
        "orders": run.orders,
        "timeout_seconds": run.timeout_seconds,
        "spread_seconds": run.spread_seconds,
    }
    with run.timed("place"):
        _run_dag(demo, run, PLACE_DAG, parameters, progress)


def pay(demo: RunningDemo, run: Run, progress: Progress) -> None:
    """Run the DAG that pays half of the orders."""
    with run.timed("pay"):
        _run_dag(demo, run, PAY_DAG, {}, progress)


def watch(demo: RunningDemo, run: Run, progress: Progress, *, patience_seconds: float) -> None:
    """Wait until all timeouts are due and handled, and no run of the cancelling DAG is left.

    Also returns when `patience_seconds` have passed since the last timeout came due; the verdict then reports
    the unhandled ones.
    """
    orders = demo.orders_of(run)
    due_since: float | None = None
    with run.timed("watch"):
        while True:
            demo.check()
            counts = orders.count()
            runs = demo.airflow.run_states(CANCEL_DAG, since=run.began_at)
            active = sum(number for state, number in runs.items() if not is_finished(state))
            view = _view(orders, f"DAG {CANCEL_DAG}: {active} running, {runs.get('success', 0)} done")
            progress.show(view)
            if counts.all_due:
                due_since = due_since or time.monotonic()
                if counts.open == 0 and view.waiting == 0 and view.due == 0 and active == 0:
                    return
                if time.monotonic() - due_since > patience_seconds:
                    progress.say(f"gave up waiting {patience_seconds:.0f} s after the last timeout came due")
                    return
            time.sleep(POLL_SECONDS)


def _run_dag(
    demo: RunningDemo, run: Run, dag_id: str, parameters: Mapping[str, object], progress: Progress
) -> None:
    _wait_for_dag(demo, dag_id, progress)
    run_id = demo.airflow.start_run(dag_id, parameters)
    while not is_finished(state := demo.airflow.run_state(dag_id, run_id)):
        demo.check()
        progress.show(_view(demo.orders_of(run), f"DAG {dag_id}: {state}"))
        time.sleep(POLL_SECONDS)
    progress.show(_view(demo.orders_of(run), f"DAG {dag_id}: {state}"))
    if state != "success":
        logs = demo.workplace.airflow_home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}"
        raise DemoFailedError(f"run {run_id} of DAG {dag_id} ended as {state}; see {logs}")


def _wait_for_dag(demo: RunningDemo, dag_id: str, progress: Progress) -> None:
    deadline = time.monotonic() + _DAG_APPEARS_SECONDS
    while not demo.airflow.knows_dag(dag_id):
        demo.check()
        if errors := demo.airflow.import_errors():
            raise DemoFailedError(
                "\n".join(f"DAG file {name} does not import:\n{trace}" for name, trace in errors.items())
            )
        if time.monotonic() > deadline:
            raise DemoFailedError(f"Airflow did not parse DAG {dag_id} within {_DAG_APPEARS_SECONDS:.0f} s")
        progress.show(View(f"waiting for DAG {dag_id}"))
        time.sleep(POLL_SECONDS)


def _view(orders: Orders, doing: str) -> View:
    counts = orders.count()
    messages = orders.count_messages()
    return View(
        doing,
        placed=counts.placed,
        paid=counts.paid,
        waiting=messages.waiting,
        due=messages.due,
        cancelled=counts.cancelled,
    )
