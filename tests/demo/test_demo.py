"""The demo itself, with fewer orders: its verdict, and that it leaves nothing behind however it ends.

All demos of this module happen in one folder, one after the other: what a first start has to make is made
once. The one that is killed in the middle of its DAGs is the last.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pytest

from duewheel.cli.demo.orders import Orders
from duewheel.cli.demo.processes import session_members
from duewheel.cli.demo.supervisor import BROKER_DATABASE
from duewheel.cli.demo.workplace import Note, Workplace
from duewheel.dags.shop import statement
from duewheel.embedded.postgres import EmbeddedPostgres

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]

ORDERS = 200
#: Nothing waits for them unless something is broken.
DOWN_SECONDS = 600
PATIENCE = ("--patience", "900")


def command(*arguments: str, directory: Path) -> list[str]:
    return [sys.executable, "-m", "duewheel.cli", "demo", *arguments, "--directory", str(directory)]


def run(*arguments: str, directory: Path) -> Any:
    """Run a step of the demo with `--json` and return its document; fails if the step fails."""
    done = subprocess.run(
        command(*arguments, "--json", directory=directory), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


@contextmanager
def started(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the whole demo; its end is the test's business, but it never outlives the test."""
    with subprocess.Popen(
        command("--orders", str(ORDERS), directory=directory),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background lets them ignore Ctrl-C, and so would their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    """Read the demo's progress until a line has these words."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if words in line:
            return
    raise AssertionError(f"the demo never said {words!r}:\n{''.join(seen)}")


def note_of(directory: Path) -> Note:
    note = Workplace(directory).read_note()
    assert note is not None
    return note


def left_behind(directory: Path, note: Note | None = None) -> list[str]:
    """Return the living processes of the demo in `directory`: by session, command line and environment."""
    sessions = (
        [] if note is None else [note.supervisor_pid, *(session for session, _ in note.sessions.values())]
    )
    left = {process.pid: process for process in session_members(sessions)}
    for process in psutil.process_iter():
        try:
            told = " ".join([*process.cmdline(), *process.environ().values()])
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if str(directory) in told and process.pid != os.getpid():
            left[process.pid] = process
    return [str(process) for process in left.values()]


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A folder outside pytest's own, whose permissions every starting pytest sets anew."""
    folder = Path(tempfile.mkdtemp(prefix="duewheel-test-demo-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def verdict(directory: Path) -> Any:
    """The verdict of the whole demo, in one command."""
    return run("--orders", str(ORDERS), "--spread", "5", *PATIENCE, directory=directory)


def place_and_pay(directory: Path) -> None:
    """Do these two steps, until the orders were paid before any was due: how long that takes depends."""
    seconds = 20
    while True:
        before = Orders(note_of(directory).dsn).last_number()
        arguments = ("--orders", str(ORDERS), "--spread", "5", "--timeout", str(seconds))
        assert run("place", *arguments, directory=directory)["first_order"] == before
        run("pay", directory=directory)
        if Orders(note_of(directory).dsn, before).count().none_due:
            return
        seconds *= 2


def check(verdict: Any) -> None:
    assert verdict["problems"] == []
    assert verdict["is_good"]
    assert verdict["placed"] == ORDERS
    assert verdict["paid"] == verdict["cancelled"] == ORDERS / 2
    assert verdict["recalled"] == ORDERS * 2 / 5
    assert verdict["wrongly_cancelled"] == verdict["never_cancelled"] == 0
    assert (
        0 <= verdict["lateness"]["p50_ms"] <= verdict["lateness"]["p99_ms"] <= verdict["lateness"]["max_ms"]
    )


@pytest.mark.long
def test_d19_unpaid_orders_are_cancelled_and_nothing_is_left_behind(verdict: Any, directory: Path) -> None:
    check(verdict)
    assert list(verdict["seconds"]) == ["up", "place", "pay", "watch", "verify"]
    assert left_behind(directory) == []


@pytest.fixture
def earlier(directory: Path) -> int:
    """What an earlier demo leaves in the folder: the number of its last order."""
    with EmbeddedPostgres(Workplace(directory).postgres) as postgres:
        dsn = postgres.ensure_database(BROKER_DATABASE)
        with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(statement("create_orders"))
            cursor.execute(
                "insert into orders (amount, placed_at, pay_by, paid_at)"
                " select 1, now(), now(), now() from generate_series(1, %s)",
                (ORDERS,),
            )
        return Orders(dsn).last_number()


@pytest.mark.long
def test_second_demo_in_the_same_folder_step_by_step(earlier: int, directory: Path) -> None:
    assert earlier >= ORDERS
    up = run("up", directory=directory)
    note = note_of(directory)
    try:
        assert up["url"].startswith("http://127.0.0.1:")
        again = subprocess.run(
            command("up", directory=directory), capture_output=True, text=True, check=False
        )
        assert again.returncode == 1
        assert "a demo is up" in again.stderr
        assert Orders(note.dsn).last_number() == earlier
        place_and_pay(directory)
        run("watch", *PATIENCE, directory=directory)
        check(run("verify", directory=directory))
    finally:
        assert run("down", directory=directory) == {"was_up": True}
    assert left_behind(directory, note) == []
    assert run("down", directory=directory) == {"was_up": False}
    after = subprocess.run(command("pay", directory=directory), capture_output=True, text=True, check=False)
    assert (after.returncode, after.stderr.count("\n")) == (1, 1)
    assert "duewheel demo up" in after.stderr


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing_behind(number: signal.Signals, directory: Path) -> None:
    with started(directory) as process:
        wait_for(process, "waiting for Airflow")
        note = note_of(directory)
        process.send_signal(number)
        assert process.wait(DOWN_SECONDS) == 1
    assert left_behind(directory, note) == []


@pytest.mark.long
def test_failed_part_ends_the_demo_and_is_named(directory: Path) -> None:
    with started(directory) as process:
        wait_for(process, "waiting for Airflow")
        note = note_of(directory)
        psutil.Process(note.sessions["scheduler"][0]).kill()
        wait_for(process, "Error: Airflow's scheduler ended")
        assert process.wait(DOWN_SECONDS) == 1
    assert left_behind(directory, note) == []


@pytest.mark.long
def test_killed_demo_leaves_nothing_behind(directory: Path) -> None:
    with started(directory) as process:
        # Any DAG: progress is a sample, and a short DAG can run between two lines of it.
        wait_for(process, "  DAG ")
        note = note_of(directory)
        supervisor = psutil.Process(note.supervisor_pid)
        assert len(left_behind(directory, note)) > len(note.sessions)
        process.kill()
        supervisor.wait(DOWN_SECONDS)
    assert left_behind(directory, note) == []
