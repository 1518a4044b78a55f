"""Nothing holds up the triggerer's event loop, which all triggers of an Airflow share."""

from __future__ import annotations

import sys
import threading
import time
from asyncio.events import Handle
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest
from psycopg2.extensions import connection, cursor

from duewheel.triggers.timing_wheel import TimingWheelTrigger

if TYPE_CHECKING:
    from tests.triggers.conftest import Triggerer

    from duewheel.store import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long]

TOPICS = 1_000

#: Calls of functions in one step, which on a busy machine deals out what was heard of all topics: some
#: milliseconds.
LONGEST_STEP_CALLS = 100 * TOPICS

#: Calls of the database that wait for its answer.
WAITING = {"execute", "executemany", "callproc", "copy_expert", "commit", "rollback"}

MAKE = """
select duewheel.create_topic('t' || n, message_type => 'NORMAL', queues => 1),
       duewheel.subscribe('t' || n, 'g')
from generate_series(%s, %s) n
"""
SEND = "select duewheel.send('t' || n, 'x'::text) from generate_series(1, %s) n"


class LoopWatch:
    """What the event loop's thread does: how much each step does, and which calls wait for a database.

    Attributes:
        longest: the step with the most calls of functions: how many, and what it was.
        waited: the calls that waited, and where.
    """

    def __init__(self) -> None:
        self.longest = (0, "")
        self.waited: set[str] = set()
        self._calls = 0
        self._thread = threading.get_ident()

    def count_steps(self, patch: pytest.MonkeyPatch) -> None:
        """Count the calls of each step of the loop from now on."""
        run = Handle._run

        def counted(handle: Handle) -> None:
            before = self._calls
            run(handle)
            if threading.get_ident() == self._thread and self._calls - before > self.longest[0]:
                self.longest = self._calls - before, repr(handle)

        patch.setattr(Handle, "_run", counted)

    def hear(self, frame: FrameType, event: str, function: Any) -> None:
        """Told by the interpreter of each call in the loop's thread."""
        self._calls += event in ("call", "c_call")
        if event != "c_call":
            return
        of = getattr(function, "__self__", None)
        on = of.connection if isinstance(of, cursor) else of
        waits = isinstance(on, connection) and not on.async_ and function.__name__ in WAITING
        if waits or function is time.sleep:
            self.waited.add(f"{function.__qualname__} in {frame.f_code.co_qualname}")


async def test_a_thousand_ready_topics_hold_up_no_other_trigger(
    broker: Broker, airflow: Triggerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker.connection() as session, session.cursor() as statements:
        for first in range(1, TOPICS, 100):
            statements.execute(MAKE, (first, first + 99))
        statements.execute(SEND, (TOPICS,))

    watch = LoopWatch()
    watch.count_steps(monkeypatch)
    sys.setprofile(watch.hear)
    try:
        events = [airflow.run(TimingWheelTrigger(f"t{n}", "g")) for n in range(1, TOPICS + 1)]
        for rang in events:
            await rang.get()
        # All are ready, and asked about again.
        await airflow.looks(1)
    finally:
        sys.setprofile(None)
    assert watch.longest[0] < LONGEST_STEP_CALLS, watch.longest
    assert not watch.waited
