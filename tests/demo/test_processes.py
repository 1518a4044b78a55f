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
POLITE = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
open(sys.argv[1], "w").close()
signal.sigwait([signal.SIGINT])
sys.exit(7)
"""


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A named pipe: a program opens it to say that it is ready."""
    path = tmp_path / "ready"
    os.mkfifo(path)
    return path


@pytest.fixture
def keeper(request: pytest.FixtureRequest, fifo: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A keeper of the program that the test names."""
    command = [
        sys.executable,
        "-m",
        "duewheel.cli.demo.keeper",
        sys.executable,
        "-c",
        request.param,
        str(fifo),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as keeper:
        fifo.read_bytes()  # returns once the program has opened and closed its end
        yield keeper
        end_sessions([keeper.pid])


@pytest.mark.slow
@pytest.mark.parametrize("keeper", [STUBBORN], indirect=True)
def test_end_of_input_kills_what_ignores_every_signal(keeper: subprocess.Popen[bytes]) -> None:
    assert len(session_members([keeper.pid])) == 3
    keeper.communicate()
    assert session_members([keeper.pid]) == []
    assert keeper.returncode % 256 == -signal.SIGKILL % 256


@pytest.mark.parametrize("keeper", [POLITE], indirect=True)
def test_a_kept_command_may_end_by_itself(keeper: subprocess.Popen[bytes]) -> None:
    keeper.communicate()
    assert keeper.returncode == 7


@pytest.mark.parametrize("keeper", [STUBBORN], indirect=True)
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
