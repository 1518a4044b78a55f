"""Ends and removes what a run of the tests leaves, once the run is over, however it ended.

``conftest.py`` starts this script with the run's folder and holds its input open. An empty line says that the
run ends in order. The end of the input says so too, and the kernel sees to that when the run is killed.

Each program of the run has the folder in its environment (as ``TMPDIR``) or among its arguments. That is how
they are found. An embedded Postgres has it in neither where its own folder lies in memory: its supervisor
ends it with its last user, and its folder, which is named in a line of the input, is removed after that.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from pathlib import Path

#: The file in a server's folder that its supervisor holds locked as long as the server runs.
SUPERVISOR_LOCK = "supervisor.lock"
#: Given to programs to end in order, before they are killed.
GRACE_SECONDS = 10.0
_PAUSE_SECONDS = 0.02


def programs_of(folder: str, spared: set[int]) -> list[int]:
    """The processes that have the folder in their environment or among their arguments."""
    needle, found = os.fsencode(folder), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_of_run = any(needle in (process / told).read_bytes() for told in ("environ", "cmdline"))
        except OSError:
            # Gone in between, or another user's and so not one of ours.
            continue
        if is_of_run and int(process.name) not in spared:
            found.append(int(process.name))
    return found


def send_signal(pid: int, number: signal.Signals) -> None:
    """Sends a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def end_programs(folder: str, spared: set[int]) -> None:
    """Ends the programs of the run: in order, else by force. Returns when none is left."""
    for pid in programs_of(folder, spared):
        send_signal(pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while left := programs_of(folder, spared):
        if time.monotonic() > deadline:
            for pid in left:
                send_signal(pid, signal.SIGKILL)
        # They are no children of this process, which hears nothing of their ends.
        time.sleep(_PAUSE_SECONDS)


def remove(folder: Path) -> None:
    """Removes a folder, after the end of a server that lies in it."""
    lock = folder / SUPERVISOR_LOCK
    if lock.exists():
        with lock.open() as supervisor:
            fcntl.flock(supervisor, fcntl.LOCK_EX)
    shutil.rmtree(folder, ignore_errors=True)


def main(run_folder: str) -> None:
    """Waits for the end of the run that has started this, and cleans up after it."""
    spared = {os.getpid(), os.getppid()}
    folders = []
    while (line := sys.stdin.readline()) not in ("", "\n"):
        folders.append(Path(line.rstrip("\n")))
    end_programs(run_folder, spared)
    for folder in (*folders, Path(run_folder)):
        remove(folder)


if __name__ == "__main__":
    main(sys.argv[1])
