"""Child processes that can be ended completely, by their ids.

Each child leads a session of its own. Whatever it forks stays in that session, even when it makes process
groups (Airflow's task supervisor does, and Spark's JVM is started by a task), so the session is the one thing
that still names the whole family after the leader is gone. Ending a child means: ask the leader with SIGTERM,
wait, then kill the processes left in the session. Nothing is ever looked up by name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Child:
    """A started child; `started_at` is in seconds since the epoch, `log` is where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    started_at: float
    log: Path


def start(name: str, command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> Child:
    """Start `command` as the leader of a new session, with its output appended to `log`."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Child(name, process, psutil.Process(process.pid).create_time(), log)


def session_members(session_ids: Iterable[int]) -> list[psutil.Process]:
    """Return the living processes whose session is one of `session_ids` (zombies do not count)."""
    wanted = set(session_ids)
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) in wanted and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it has ended since, or belongs to another user
    return members


def end(children: Sequence[Child], *, grace_seconds: float) -> None:
    """End `children` and everything in their sessions.

    Leaders get SIGTERM and `grace_seconds` together to finish; then every process left in any of the
    sessions is killed. Returns when none is alive.
    """
    for child in children:
        if child.process.poll() is None:
            child.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    for child in children:
        try:
            child.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
    end_sessions(child.process.pid for child in children)


def end_sessions(session_ids: Iterable[int]) -> None:
    """Kill every process of the sessions, repeatedly until none is left, as one may fork in the meantime."""
    wanted = list(session_ids)
    while members := session_members(wanted):
        for process in members:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue  # it ended by itself
        psutil.wait_procs(members, timeout=_POLL_SECONDS)
