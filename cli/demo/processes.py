"""Processes by their session.

Whatever a process forks stays in its session, even when it makes process groups (Airflow's task supervisor
does, and Spark's JVM is started by a task). So the session names the whole family, also after its leader is
gone. Nothing is ever looked up by name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import psutil

_POLL_SECONDS = 0.05


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


def end_sessions(session_ids: Iterable[int]) -> None:
    """Kill every process of the sessions except the calling one, until none is left: one may have forked."""
    wanted = list(session_ids)
    while members := [member for member in session_members(wanted) if member.pid != os.getpid()]:
        for process in members:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue  # it ended by itself
        # psutil would wait for a child by reaping it, and the parent's Popen would then report status 0.
        time.sleep(_POLL_SECONDS)
