"""A run of the tests leaves neither processes nor folders, also when it is killed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.conftest import RUN_FOLDER, leftovers
from tests.leftovers import SUPERVISOR_LOCK
from tests.waiting import PATIENCE_SECONDS, until

from duewheel.embedded.postgres import EmbeddedPostgres

#: Starts a program whose only trace of the run is its environment, says which, and is never done.
RUN = """
import os, subprocess, sys
from pathlib import Path

script, folder, server = sys.argv[1:]
cleaner = subprocess.Popen([sys.executable, "-I", "-S", script, folder], env={}, stdin=subprocess.PIPE)
cleaner.stdin.write(f"{server}\\n".encode())
cleaner.stdin.flush()
program = subprocess.Popen(["sleep", "1000"], env={**os.environ, "TMPDIR": folder}, start_new_session=True)
print(program.pid, cleaner.pid, flush=True)
sys.stdin.read()
"""


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie has ended, though its parent has not asked how."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_a_killed_run_leaves_is_ended_and_removed(tmp_path: Path) -> None:
    folder, server = tmp_path / "run", tmp_path / "server"
    for made in (folder, server):
        made.mkdir()
        (made / "file").touch()
    arguments = [str(Path(__file__).with_name("leftovers.py")), str(folder), str(server)]
    run = subprocess.Popen(
        # Of this run it has neither the folder in its environment nor the cleaner's input.
        [sys.executable, "-c", RUN, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with run:
        assert run.stdout is not None
        program, cleaner = map(int, run.stdout.readline().split())
        run.kill()
    until(lambda: not is_alive(cleaner), "the cleaner to end")
    assert not is_alive(program)
    assert not folder.exists()
    assert not server.exists()


def test_programs_of_this_run_are_known_by_its_folder() -> None:
    program = [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"]
    told = subprocess.run(program, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert Path(told.stdout.strip()) == RUN_FOLDER
    assert leftovers.poll() is None
    assert os.environ["PYTEST_DEBUG_TEMPROOT"] == str(RUN_FOLDER)


def test_the_cleaner_waits_for_the_lock_of_a_running_server(postgres: EmbeddedPostgres) -> None:
    with (postgres.directory / SUPERVISOR_LOCK).open() as supervisor, pytest.raises(BlockingIOError):
        fcntl.flock(supervisor, fcntl.LOCK_EX | fcntl.LOCK_NB)
