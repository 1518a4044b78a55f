"""A command that is kept ends with everything it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from duewheel.cli.demo.processes import end_sessions, session_members

#: It ignores both signals; its child makes a process group of its own and then says that both are there.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setpgid(0, 0)
    open(sys.argv[1], "w").close()
time.sleep(1000)
"""


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A keeper of the stubborn program."""
    os.mkfifo(tmp_path / "ready")
    command = [sys.executable, "-m", "duewheel.cli.demo.keeper"]
    kept = [sys.executable, "-c", STUBBORN, str(tmp_path / "ready")]
    with subprocess.Popen([*command, *kept], stdin=subprocess.PIPE, start_new_session=True) as keeper:
        (tmp_path / "ready").read_bytes()  # returns once the child has opened and closed its end
        yield keeper
        end_sessions([keeper.pid])


@pytest.mark.slow
def test_end_of_input_kills_what_ignores_every_signal(keeper: subprocess.Popen[bytes]) -> None:
    assert len(session_members([keeper.pid])) == 3
    keeper.communicate()
    assert session_members([keeper.pid]) == []
    assert keeper.returncode % 256 == -signal.SIGKILL % 256


def test_a_session_is_found_without_its_leader_and_no_other_ends(keeper: subprocess.Popen[bytes]) -> None:
    keeper.kill()
    keeper.wait()
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as other:
        assert len(session_members([keeper.pid])) == 2
        end_sessions([keeper.pid])
        assert session_members([keeper.pid]) == []
        assert psutil.pid_exists(other.pid)
        assert other.poll() is None
        other.communicate(b"\n")


def test_the_parent_learns_that_its_child_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN, os.devnull], start_new_session=True) as child:
        end_sessions([child.pid])
        assert child.wait() == -signal.SIGKILL
