"""Children are ended with everything they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from duewheel.cli.demo.processes import Child, end, end_sessions, session_members, start

# A leader that ignores SIGTERM; its child makes a process group of its own and then says that both are there.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setpgid(0, 0)
    open(sys.argv[1], "w").close()
time.sleep(1000)
"""
POLITE = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
open(sys.argv[1], "w").close()
signal.sigwait([signal.SIGTERM])
"""


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A named pipe: a child opens it to say that it is ready."""
    path = tmp_path / "ready"
    os.mkfifo(path)
    return path


def started(program: str, fifo: Path) -> Child:
    child = start(
        "child", [sys.executable, "-c", program, str(fifo)], environment=os.environ, log=fifo.with_name("log")
    )
    fifo.read_bytes()  # returns once the child has opened and closed its end
    return child


@pytest.fixture
def stubborn(fifo: Path) -> Iterator[Child]:
    child = started(STUBBORN, fifo)
    yield child
    child.process.kill()
    child.process.wait()


def test_end_kills_the_whole_session_of_a_child_that_ignores_sigterm(stubborn: Child) -> None:
    assert len(session_members([stubborn.process.pid])) == 2
    end([stubborn], grace_seconds=0)
    assert session_members([stubborn.process.pid]) == []
    assert stubborn.process.returncode == -signal.SIGKILL


def test_members_are_found_after_their_leader_is_gone(stubborn: Child) -> None:
    stubborn.process.kill()
    stubborn.process.wait()
    assert len(session_members([stubborn.process.pid])) == 1
    end_sessions([stubborn.process.pid])
    assert session_members([stubborn.process.pid]) == []


def test_end_lets_a_child_finish_by_itself(fifo: Path) -> None:
    child = started(POLITE, fifo)
    end([child], grace_seconds=30)
    assert child.process.returncode == 0


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = start("child", [sys.executable, "-c", "print('hello')"], environment=os.environ, log=log)
    child.process.wait()
    assert log.read_text() == "hello\n"


def test_other_sessions_are_left_alone(stubborn: Child) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as other:
        end([stubborn], grace_seconds=0)
        assert psutil.pid_exists(other.pid)
        assert other.poll() is None
        assert other.stdin is not None
        other.stdin.close()
