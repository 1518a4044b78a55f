"""Backends that stop wherever they are and go on later: what a busy machine does to them, at any instruction.

A race between two statements is a matter of microseconds on a quiet machine, and of luck. A process that is
stopped between them keeps it open for as long as one likes.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.waiting import ask, beside, connected

#: In the midst of a statement, and not just waiting in it.
_AT_WORK = """
select pid from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
  and state = 'active' and wait_event is null
"""


@contextmanager
def stalls(
    dsn: str, seed: int = 0, longest_pause: float = 0.05, seconds: Sequence[float] = (0.01, 0.05, 0.3)
) -> Iterator[None]:
    """While the block runs, now and then stops up to three of the database's backends for a while.

    Args:
        dsn: the database, on a server of this machine and user.
        seed: of the choice.
        longest_pause: between two stops, in seconds.
        seconds: how long a stop takes, one of these.
    """
    ended = threading.Event()

    def run() -> None:
        chance = random.Random(seed)
        with connected(dsn) as connection:
            while not ended.wait(chance.uniform(0, longest_pause)):
                pids = [pid for (pid,) in ask(connection, _AT_WORK)]
                stop_for(
                    chance.sample(pids, min(len(pids), chance.randint(1, 3))), chance.choice(seconds), ended
                )

    with beside() as start:
        stalling = start(run)
        try:
            yield
        finally:
            ended.set()
        stalling.result()


def stop_for(pids: Sequence[int], seconds: float, ended: threading.Event) -> None:
    """Stops processes, and lets them go on after a time or when the event is set; one may end meanwhile."""
    stopped = [pid for pid in pids if signalled(pid, signal.SIGSTOP)]
    try:
        ended.wait(seconds)
    finally:
        for pid in stopped:
            signalled(pid, signal.SIGCONT)


def signalled(pid: int, number: int) -> bool:
    """Whether there was such a process to be signalled."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
