"""Commands that run until they are told to stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType


def stopped_by_signal() -> threading.Event:
    """Return an event that Ctrl-C and SIGTERM set instead of ending the program; a second signal ends it.

    A command that waits for an unresponsive database sees the event late.
    """
    stopping = threading.Event()

    def stop(number: int, _frame: FrameType | None) -> None:
        stopping.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return stopping
