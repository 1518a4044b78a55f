"""Wheels that turn for the length of a block: in a thread, or in a process, which can be killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.waiting import beside

if TYPE_CHECKING:
    from duewheel.store.broker import Broker

_TURN_A_WHEEL = """
import sys, threading
from duewheel.store.broker import Broker
Broker(sys.argv[1]).wheel().run(threading.Event())
"""


@contextmanager
def turning(broker: Broker) -> Iterator[None]:
    """A wheel in a thread, which goes on until the end of the block."""
    stop = threading.Event()
    with beside() as start:
        wheel = start(lambda: broker.wheel().run(stop))
        try:
            yield
            assert not wheel.done(), "the wheel ended by itself"
        finally:
            stop.set()
        wheel.result()


@contextmanager
def wheel_process(dsn: str) -> Iterator[None]:
    """A wheel in a process of its own, which is killed at the end of the block."""
    wheel = subprocess.Popen([sys.executable, "-c", _TURN_A_WHEEL, dsn], stdin=subprocess.DEVNULL)
    try:
        yield
        assert wheel.poll() is None, "the wheel ended by itself"
    finally:
        wheel.kill()
        wheel.wait()
