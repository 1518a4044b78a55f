"""The clock of the database's server steps. No program reads its own, as a test says."""

from __future__ import annotations

import signal

from tests.chaos.arena import Arena
from tests.chaos.fault import fault
from tests.faked_time import PACKAGE

_HOUR_SECONDS = 3600
#: The server's clock, in seconds ahead of the right one; back at times.
_STEPS_SECONDS = (_HOUR_SECONDS, _HOUR_SECONDS // 2, 0, 2 * _HOUR_SECONDS)
_MONTH_SECONDS = 30 * 24 * _HOUR_SECONDS


@fault(
    "clock-steps",
    "The server's clock steps ahead and back, by up to two hours",
    clock_moves=True,
    needs=(PACKAGE,),
)
def clock_steps(arena: Arena) -> str:
    """In the end it is ahead, so that everything is due."""
    steps = 0
    for _ in arena.rounds():
        for ahead in _STEPS_SECONDS:
            arena.set_clock(ahead)
            arena.receive_more()
            steps += 1
    return f"{steps} steps"


@fault("a-month-later", "The server and all wheels away for 30 days", clock_moves=True, needs=(PACKAGE,))
def a_month_later(arena: Arena) -> str:
    """Everything is due at once, and leases have ended."""
    months = 0
    for number in arena.rounds():
        arena.server.stop(signal.SIGINT)
        arena.set_clock(number * _MONTH_SECONDS)
        arena.server.start_again()
        months += 1
    return f"{months} times"
