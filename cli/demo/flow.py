"""The work of the demo's commands, one function each, and `everything`, which is all of them in one."""

from __future__ import annotations

import json
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from types import FrameType
from typing import Any

import click
from rich.console import Console

from duewheel.cli.demo import steps
from duewheel.cli.demo.airflow_api import AirflowRefusedError, AirflowUnreachableError
from duewheel.cli.demo.progress import Progress
from duewheel.cli.demo.run import Run
from duewheel.cli.demo.running import DemoFailedError, RunningDemo, start_supervisor, take_down, wait_until_up
from duewheel.cli.demo.verify import Verdict, judge, show
from duewheel.cli.demo.workplace import Workplace

_SHORTEST_TIMEOUT_SECONDS = 15.0
# On a slow machine.
_RECALLS_PER_SECOND = 200


@contextmanager
def failures_as_errors() -> Iterator[None]:
    """Turn a failure of the demo into an error of the command line: a line on standard error, status 1."""
    try:
        yield
    except (DemoFailedError, AirflowRefusedError, AirflowUnreachableError) as failure:
        raise click.ClickException(str(failure)) from failure


def everything(
    directory: Path | None,
    *,
    orders: int,
    timeout_seconds: float | None,
    spread_seconds: float,
    patience_seconds: float,
    keep: bool,
    as_json: bool,
) -> Verdict:
    """Do the whole demo and leave no process behind, however it ends.

    Without `directory` it happens in a temporary folder, which is removed unless something went wrong.
    """
    folder = (
        directory.expanduser().absolute() if directory else Path(tempfile.mkdtemp(prefix="duewheel-demo-"))
    )
    workplace = Workplace(folder)
    worth_keeping = directory is not None
    with _sigterm_as_interrupt(), Progress() as progress:
        try:
            supervisor = start_supervisor(workplace, attached=True)
            running = wait_until_up(workplace, supervisor, progress.say)
            run = place_and_pay(
                running,
                progress,
                orders=orders,
                timeout_seconds=timeout_seconds,
                spread_seconds=spread_seconds,
            )
            steps.watch(running, run, progress, patience_seconds=patience_seconds)
            verdict = _judge(running, run)
            worth_keeping = worth_keeping or not verdict.is_good
            progress.stop()
            print_verdict(verdict, as_json)
            if keep:
                _keep(running, progress)
            return verdict
        except Exception:
            # The caller reports the error. Its cause is to be found in the logs.
            worth_keeping = True
            raise
        finally:
            progress.stop()
            with _undisturbed():
                take_down(workplace)
                if worth_keeping:
                    progress.say(f"everything that was stored and logged is in {folder}")
                else:
                    rmtree(folder)


def up(directory: Path) -> dict[str, Any]:
    """Bring a demo up that stays; return how to reach it."""
    workplace = Workplace(directory)
    with _sigterm_as_interrupt(), Progress() as progress:
        supervisor = start_supervisor(workplace, attached=False)
        try:
            running = wait_until_up(workplace, supervisor, progress.say)
        except BaseException:
            with _undisturbed():
                take_down(workplace)
            raise
    note = running.note
    return {
        "directory": str(directory),
        "url": note.url,
        "user": note.user,
        "password": note.password,
        "dsn": note.dsn,
        "seconds": _seconds_up(running),
    }


def place(
    directory: Path, orders: int, timeout_seconds: float | None, spread_seconds: float
) -> dict[str, Any]:
    """Begin a run and place its orders."""
    running = RunningDemo(Workplace(directory))
    run = steps.begin(
        running,
        orders=orders,
        timeout_seconds=timeout_seconds or _timeout(running, orders),
        spread_seconds=spread_seconds,
    )
    run.save(running.workplace.run)
    with _saved(running, run), Progress() as progress:
        steps.place(running, run, progress)
    return run.as_json()


def pay(directory: Path) -> dict[str, Any]:
    """Pay half of the orders of the run."""
    running, run = _current(directory)
    with _saved(running, run), Progress() as progress:
        steps.pay(running, run, progress)
    return run.as_json()


def watch(directory: Path, patience_seconds: float) -> dict[str, Any]:
    """Watch the run until all its timeouts are handled."""
    running, run = _current(directory)
    with _saved(running, run), Progress() as progress:
        steps.watch(running, run, progress, patience_seconds=patience_seconds)
    return run.as_json()


def verify(directory: Path) -> Verdict:
    """Judge the run."""
    return _judge(*_current(directory))


def down(directory: Path) -> bool:
    """Take the demo down; False when none was up."""
    with _undisturbed():
        return take_down(Workplace(directory))


def print_verdict(verdict: Verdict, as_json: bool) -> None:
    """Print the verdict to standard output."""
    if as_json:
        click.echo(json.dumps(verdict.as_json(), indent=2))
    else:
        show(verdict, Console(highlight=False, markup=False, emoji=False))


def place_and_pay(
    running: RunningDemo,
    progress: Progress,
    *,
    orders: int,
    timeout_seconds: float | None,
    spread_seconds: float,
) -> Run:
    """Place orders and pay half of them; without `timeout_seconds`, before the first is due.

    A machine can become slower after the time to pay was chosen. Such a run proves nothing: its orders are
    cancelled, and others are placed with twice the time.
    """
    seconds = timeout_seconds or _timeout(running, orders)
    while True:
        run = steps.begin(running, orders=orders, timeout_seconds=seconds, spread_seconds=spread_seconds)
        run.seconds["up"] = _seconds_up(running)
        steps.place(running, run, progress)
        steps.pay(running, run, progress)
        if timeout_seconds is not None or running.orders_of(run).count().none_due:
            return run
        progress.say(f"paying took longer than {seconds:.0f} s; placing other orders, with twice the time")
        seconds *= 2


def _judge(running: RunningDemo, run: Run) -> Verdict:
    runs = running.airflow.run_states(steps.CANCEL_DAG, since=run.began_at)
    orders = running.orders_of(run)
    with run.timed("verify"):
        counts, timeouts = orders.count(), orders.timeouts()
    return judge(run, counts, timeouts, runs.get("failed", 0))


def _current(directory: Path) -> tuple[RunningDemo, Run]:
    running = RunningDemo(Workplace(directory))
    run = Run.load(running.workplace.run)
    if run is None:
        raise DemoFailedError(
            "no orders have been placed in this demo yet. Place some with `duewheel demo place`."
        )
    return running, run


@contextmanager
def _saved(running: RunningDemo, run: Run) -> Iterator[None]:
    try:
        yield
    finally:
        run.save(running.workplace.run)


def _timeout(running: RunningDemo, orders: int) -> float:
    """Choose the time to pay: enough for the paying DAG on a machine that took this long to start Airflow."""
    return round(max(_SHORTEST_TIMEOUT_SECONDS, _seconds_up(running) / 3) + orders / _RECALLS_PER_SECOND)


def _seconds_up(running: RunningDemo) -> float:
    return round(sum(running.note.seconds.values()), 3)


def _keep(running: RunningDemo, progress: Progress) -> None:
    note = running.note
    progress.say(
        f"Airflow stays up at {note.url} (user {note.user}, password {note.password}). Ctrl-C ends it."
    )
    try:
        while True:
            running.check()
            threading.Event().wait(1.0)
    except KeyboardInterrupt:
        progress.say("stopping")


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C does, through its `finally` clauses."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM while processes are being ended."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
