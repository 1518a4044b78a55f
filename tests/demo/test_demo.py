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
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.waiting import until

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(1800),
]

ORDERS = 200
#: Nothing waits for them unless something is broken.
DOWN_SECONDS = 600


def command(directory: Path) -> list[str]:
    demo = [sys.executable, "-m", "duewheel.cli", "demo", "--orders", str(ORDERS), "--json"]
    return [*demo, "--directory", str(directory)]


@contextmanager
def started(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the whole demo; its end is the test's business, but it never outlives the test."""
    with subprocess.Popen(
        command(directory),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
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


def living(directory: Path) -> dict[int, str]:
    """Return the living processes of the demo in `directory`, by their command lines and environments.

    A process that a demo starts has the folder in one of the two: Postgres and what it starts in the command
    line, Airflow and what it starts in the environment.
    """
    found = {}
    for process in psutil.process_iter():
        try:
            title = " ".join(process.cmdline())
            told = f"{title} {process.environ()}"
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if str(directory) in told and process.pid != os.getpid():
            found[process.pid] = title
    return found


def listening(process: psutil.Process) -> list[str]:
    """Return the addresses at which a process takes connections."""
    try:
        found = process.net_connections("tcp")
    except psutil.NoSuchProcess:
        return []
    addresses = [one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN]
    return [address.removeprefix("::ffff:") for address in addresses]


def pid_of(directory: Path, part: str) -> int | None:
    """Return the process of a part of Airflow that `airflow standalone` started."""
    ending = f"airflow {part} --skip-serve-logs"
    return next((pid for pid, title in living(directory).items() if title.endswith(ending)), None)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A folder outside pytest's own, whose permissions every starting pytest sets anew."""
    folder = Path(tempfile.mkdtemp(prefix="duewheel-test-demo-"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("time", ["first", "second"])
def test_d19_unpaid_orders_are_cancelled_and_nothing_is_left(time: str, directory: Path) -> None:
    done = subprocess.run(command(directory), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{time}: {done.stderr}{done.stdout}"
    assert living(directory) == {}
    verdict = json.loads(done.stdout)
    assert verdict["problems"] == []
    assert verdict["is_good"]
    counts = verdict["counts"]
    assert counts["placed"] == ORDERS
    assert counts["paid"] == counts["cancelled"] == ORDERS / 2
    assert counts["recalled"] == ORDERS * 2 / 5
    assert 0 <= counts["late_p50_ms"] <= counts["late_p99_ms"] <= counts["late_max_ms"]
    assert list(verdict["seconds"]) == ["up", "place", "pay", "watch", "verify"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing_behind(number: signal.Signals, directory: Path) -> None:
    with started(directory) as process:
        wait_for(process, "starting Airflow")
        until(lambda: pid_of(directory, "triggerer"), "a triggerer")
        again = subprocess.run(command(directory), capture_output=True, text=True, check=False)
        assert again.returncode == 1
        assert "a demo is running" in again.stderr
        process.send_signal(number)
        assert process.wait(DOWN_SECONDS) == 1
    assert living(directory) == {}


def test_failed_part_ends_the_demo_and_is_named(directory: Path) -> None:
    with started(directory) as process:
        wait_for(process, "Airflow is up")
        scheduler = pid_of(directory, "scheduler")
        assert scheduler is not None
        psutil.Process(scheduler).kill()
        wait_for(process, "Error: Airflow's scheduler ended")
        assert process.wait(DOWN_SECONDS) == 1
    assert living(directory) == {}


def test_killed_demo_leaves_nothing_behind(directory: Path) -> None:
    with started(directory) as process:
        # Any DAG: progress is a sample, and a short DAG can run between two lines of it.
        wait_for(process, "  DAG ")
        left = [psutil.Process(pid) for pid in living(directory) if pid != process.pid]
        assert len(left) > 5
        assert {address for one in left for address in listening(one)} == {"127.0.0.1"}
        process.kill()
        _, alive = psutil.wait_procs(left, DOWN_SECONDS)
        assert alive == []
    until(lambda: living(directory) == {}, "what they started meanwhile to end")
