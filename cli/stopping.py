"""Commands that run until a signal stops them."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


def stopped_by_signal(*, second_ends: bool = True) -> threading.Event:
    """Return an event that Ctrl-C and SIGTERM set instead of ending the program.

    A command that waits for an unresponsive database sees the event late.

    A thread sets the event. A handler runs in the main thread between any two steps of it, also while that
    thread holds the event's own lock in ``wait()``, and would wait for this lock for ever.

    Args:
        second_ends: whether a second signal ends the program.
    """
    stopping = threading.Event()
    told, telling = os.pipe()

    def stop(number: int, _frame: FrameType | None) -> None:
        if second_ends:
            signal.signal(number, signal.SIG_DFL)
        os.write(telling, b"\0")

    def listen() -> None:
        os.read(told, 1)
        stopping.set()

    threading.Thread(target=listen, name="duewheel-stopping", daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return stopping
