"""A demo that is up, seen from the command line: start its supervisor, reach its parts, take it down."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import psutil

from duewheel.cli.demo.airflow_api import AirflowApi
from duewheel.cli.demo.orders import Orders
from duewheel.cli.demo.processes import end_sessions
from duewheel.cli.demo.run import Run
from duewheel.cli.demo.workplace import Note, Workplace, supervisor_of

POLL_SECONDS = 0.25
# Longer than the time that Airflow's parts and Postgres get to end by themselves.
_DOWN_SECONDS = 240.0


class DemoFailedError(Exception):
    """The demo cannot go on; the message says why and where to look."""


class RunningDemo:
    """A demo whose Airflow is healthy.

    Raises:
        DemoFailedError: the demo is not up, or no longer.
    """

    def __init__(self, workplace: Workplace) -> None:
        self.workplace = workplace
        note = workplace.read_note()
        if note is None or supervisor_of(note) is None or not note.is_up:
            raise DemoFailedError(
                f"no demo is up in {workplace.directory}. Start one with `duewheel demo up`."
            )
        self.note = note
        self.airflow = AirflowApi(note.url, note.user, note.password)

    @property
    def dsn(self) -> str:
        """The database of the broker and the orders."""
        return self.note.dsn

    def orders_of(self, run: Run) -> Orders:
        return Orders(self.dsn, run.first_order)

    def check(self) -> None:
        """Raise DemoFailedError if the supervisor is gone or has given up."""
        note = self.workplace.read_note()
        if note is None or supervisor_of(note) is None or note.failure:
            reason = (note and note.failure) or "it was taken down"
            raise DemoFailedError(f"the demo in {self.workplace.directory} is not up any more: {reason}")


def start_supervisor(workplace: Workplace, *, attached: bool) -> subprocess.Popen[bytes]:
    """Start the supervisor of a demo in `workplace`.

    Args:
        workplace: the folder; made if missing.
        attached: whether the demo ends with this process. If not, it stays up until `take_down`.

    Raises:
        DemoFailedError: a demo is up there already.
    """
    note = workplace.read_note()
    if note is not None and supervisor_of(note) is not None:
        raise DemoFailedError(
            f"a demo is up in {workplace.directory} already (process {note.supervisor_pid}). "
            "Take it down with `duewheel demo down`, or give another --directory."
        )
    if note is not None:
        _clear_after_crash(note)
        workplace.remove_note()
    workplace.make()
    command = [sys.executable, "-m", "duewheel.cli.demo.supervisor", str(workplace.directory)]
    with workplace.supervisor_log.open("ab") as output:
        return subprocess.Popen(
            [*command, "--attached"] if attached else command,
            stdin=subprocess.PIPE if attached else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_until_up(
    workplace: Workplace, supervisor: subprocess.Popen[bytes], tell: Callable[[str], None]
) -> RunningDemo:
    """Wait until Airflow is healthy, and report each new step.

    Raises:
        DemoFailedError: the supervisor gave up; the message has its reason, or names its log.
    """
    step = ""
    while True:
        ended = supervisor.poll() is not None
        note = workplace.read_note()
        if note is not None and note.failure:
            supervisor.wait()
            raise DemoFailedError(note.failure)
        if ended:
            raise DemoFailedError(
                f"the demo's supervisor ended with status {supervisor.returncode}; "
                f"see {workplace.supervisor_log}"
            )
        if note is not None and note.step != step:
            step = note.step
            tell(step)
        if note is not None and note.is_up:
            return RunningDemo(workplace)
        time.sleep(POLL_SECONDS)


def take_down(workplace: Workplace) -> bool:
    """Take the demo in `workplace` down and wait until its processes are gone; False when none was up.

    Also clears what a supervisor that was killed may have left.
    """
    note = workplace.read_note()
    if note is None:
        return False
    supervisor = supervisor_of(note)
    if supervisor is not None:
        supervisor.terminate()
        try:
            supervisor.wait(timeout=_DOWN_SECONDS)
        except psutil.TimeoutExpired:
            supervisor.kill()
            supervisor.wait()
    _clear_after_crash(workplace.read_note() or note)
    workplace.remove_note()
    return True


def _clear_after_crash(note: Note) -> None:
    end_sessions(pid for pid, started_at in note.sessions.values() if _is_or_was(pid, started_at))


def _is_or_was(pid: int, started_at: float) -> bool:
    """Whether no other process has `pid` by now: an id is used again once its session is empty."""
    try:
        return psutil.Process(pid).create_time() == started_at
    except psutil.NoSuchProcess:
        return True
