"""The whole demo: start Postgres and Airflow, place orders, pay half of them, watch, verify, end everything.

Each step starts a DAG by Airflow's REST API, or watches what the timing wheel's doorbell starts.
"""

from __future__ import annotations

import fcntl
import json
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree

import click
import psycopg2

import duewheel.dags
from duewheel.cli.consoles import console
from duewheel.cli.demo.airflow_api import AirflowFailedError
from duewheel.cli.demo.airflow_standalone import USER, AirflowStandalone, Settings
from duewheel.cli.demo.progress import Progress
from duewheel.cli.demo.verify import Verdict, ask, judge
from duewheel.dags.shop import statement
from duewheel.store import Broker, EmbeddedPostgres

PLACE_DAG, PAY_DAG, CANCEL_DAG = "place_orders", "pay_orders", "cancel_unpaid_orders"

_UNFINISHED = ("queued", "running")
# Airflow gives no sign of a change, so its API is polled.
_POLL_SECONDS = 0.25
_SHORTEST_TIMEOUT_SECONDS = 15.0
# The last order has this much longer to pay than the first.
_SPREAD_SECONDS = 20.0
# Nothing is waited for as long unless something is broken.
_PATIENCE_SECONDS = 900.0
# On a slow machine.
_RECALLS_PER_SECOND = 200
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Demo:
    """A run of the main job in an Airflow that is up.

    Args:
        airflow: the Airflow.
        dsn: the database of the shop and the broker.
        progress: shows the progress.
        up_seconds: the start time of Airflow, a measure of how slow the machine is.
    """

    def __init__(self, airflow: AirflowStandalone, dsn: str, progress: Progress, up_seconds: float) -> None:
        self.seconds = {"up": up_seconds}
        self.first = 0
        self._airflow, self._dsn, self._progress = airflow, dsn, progress
        self._began_at = datetime.now(UTC).isoformat()

    def place_and_pay(self, orders: int) -> None:
        """Place orders, and pay half of them before the first is due.

        A machine can become slower after the time to pay was chosen. Such orders prove nothing: they are
        cancelled, and other orders are placed with twice the time.
        """
        shortest = max(_SHORTEST_TIMEOUT_SECONDS, self.seconds["up"] / 3)
        seconds = round(shortest + orders / _RECALLS_PER_SECOND)
        while True:
            self.first = self._last_order()
            times = {"timeout_seconds": seconds, "spread_seconds": _SPREAD_SECONDS}
            with self._timed("place"):
                self.run_dag(PLACE_DAG, {"orders": orders, **times})
            with self._timed("pay"):
                self.run_dag(PAY_DAG, {})
            if ask(self._dsn, "count", self.first)["none_due"]:
                return
            self._progress.say(f"paying took over {seconds} s; placing other orders, with twice the time")
            seconds *= 2

    def run_dag(self, dag_id: str, parameters: Mapping[str, object]) -> None:
        """Run a DAG to its end; an AirflowFailedError names the logs of a run that failed."""
        api = self._airflow.api
        run_id = api.start_run(dag_id, parameters)
        state = "queued"
        while state in _UNFINISHED:
            self._show(f"DAG {dag_id}: {state}")
            time.sleep(_POLL_SECONDS)
            state = api.run_state(dag_id, run_id)
        self._show(f"DAG {dag_id}: {state}")
        if state != "success":
            logs = self._airflow.settings.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}"
            raise AirflowFailedError(f"run {run_id} of DAG {dag_id} ended as {state}; see {logs}")

    def watch(self) -> None:
        """Wait until all timeouts are due and handled, and no run of the cancelling DAG is left.

        Also returns a while after the last timeout was due; the verdict then reports the unhandled ones.
        """
        due_since: float | None = None
        with self._timed("watch"):
            while True:
                runs = self._cancelling()
                active = sum(runs.get(state, 0) for state in _UNFINISHED)
                counts = self._show(f"DAG {CANCEL_DAG}: {active} running, {runs.get('success', 0)} done")
                if counts["all_due"]:
                    due_since = due_since or time.monotonic()
                    if counts["all_handled"] and counts["waiting"] == counts["due"] == active == 0:
                        return
                    if time.monotonic() - due_since > _PATIENCE_SECONDS:
                        self._progress.say(f"gave up {_PATIENCE_SECONDS:.0f} s after the last was due")
                        return
                time.sleep(_POLL_SECONDS)

    def verify(self, orders: int) -> Verdict:
        """Judge the run, in which so many orders were to be placed."""
        with self._timed("verify"):
            return judge(self._dsn, self.first, orders, self._cancelling().get("failed", 0), self.seconds)

    def keep(self) -> None:
        """Leave Airflow up until Ctrl-C, or until a part of it ends."""
        url, password = self._airflow.settings.url, self._airflow.settings.password
        self._progress.say(f"Airflow stays up at {url} (user {USER}, password {password}). Ctrl-C ends it.")
        try:
            while True:
                self._airflow.check()
                # The end of a part, which is a child of another process, gives no sign here.
                time.sleep(1.0)
        except KeyboardInterrupt:
            self._progress.say("stopping")

    def _show(self, doing: str) -> dict[str, int]:
        self._airflow.check()
        counts = ask(self._dsn, "count", self.first)
        shown = ("placed", "paid", "waiting", "due", "cancelled")
        self._progress.show({name: counts[name] for name in shown}, doing)
        return counts

    def _cancelling(self) -> dict[str, int]:
        return self._airflow.api.run_states(CANCEL_DAG, since=self._began_at)

    def _last_order(self) -> int:
        with closing(psycopg2.connect(self._dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(statement("create_orders"))
            cursor.execute("select coalesce(max(number), 0) from orders")
            ((number,),) = cursor.fetchall()
        return int(number)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        started_at = time.monotonic()
        yield
        self.seconds[step] = round(time.monotonic() - started_at, 3)


def everything(*, directory: Path | None, orders: int, keep: bool, as_json: bool) -> Verdict:
    """Do the whole demo and leave no process running, however it ends.

    Without `directory` it happens in a temporary folder, which is removed unless something went wrong.
    """
    folder = (directory or Path(tempfile.mkdtemp(prefix="duewheel-demo-"))).absolute()
    progress, worth_keeping = Progress(), True
    for number in _SIGNALS:
        # SIGTERM ends the demo as Ctrl-C does, through its `finally` clauses.
        signal.signal(number, signal.default_int_handler)
    with ExitStack() as parts:
        try:
            demo = _bring_up(folder, progress, parts)
            demo.place_and_pay(orders)
            demo.watch()
            verdict = demo.verify(orders)
            worth_keeping = directory is not None or not verdict.is_good
            progress.stop()
            if as_json:
                click.echo(json.dumps(asdict(verdict) | {"is_good": verdict.is_good}, indent=2))
            else:
                verdict.print(console())
            if keep:
                demo.keep()
            return verdict
        except KeyboardInterrupt:
            worth_keeping = directory is not None
            raise
        finally:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            progress.stop()
            parts.close()
            if worth_keeping:
                progress.say(f"everything that was stored and logged is in {folder}")
            else:
                rmtree(folder)


def _bring_up(folder: Path, progress: Progress, parts: ExitStack) -> Demo:
    started_at = time.monotonic()
    home = folder / "airflow"
    home.mkdir(parents=True, exist_ok=True)
    _lock(parts, folder)
    progress.say("starting Postgres and the broker")
    postgres = parts.enter_context(EmbeddedPostgres(folder / "postgres"))
    dsn = postgres.ensure_database("duewheel")
    with Broker(dsn) as broker:
        broker.upgrade()
    dags = Path(duewheel.dags.__path__[0]).resolve()
    airflow = AirflowStandalone(Settings(home, postgres.ensure_database("airflow"), dags, dsn))
    parts.enter_context(airflow)
    progress.say(f"starting Airflow; its log is {airflow.log}")
    airflow.bring_up([PLACE_DAG, PAY_DAG, CANCEL_DAG])
    progress.say("Airflow is up")
    return Demo(airflow, dsn, progress, round(time.monotonic() - started_at, 3))


def _lock(parts: ExitStack, folder: Path) -> None:
    file = parts.enter_context((folder / "demo.lock").open("w"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise click.ClickException(
            f"a demo is running in {folder} already. End it with Ctrl-C, or give another --directory."
        ) from error
