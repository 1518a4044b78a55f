"""Ending the work on messages whose lease is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WATCH_SECONDS = 1.0
"""How often to check whether the lease is lost."""


@contextmanager
def ended_with_the_lease(is_lost: Callable[[], bool], end: Callable[[], object]) -> Iterator[None]:
    """End the work of the block once its lease is lost, again each second until the block is left.

    Args:
        is_lost: asked in a thread of its own until it says yes.
        end: ends what runs at that moment, such as the jobs of a session; the block may begin others.

    Example::

        with ended_with_the_lease(keeper.lost.is_set, partial(cancel_jobs, spark)):
            messages.count()
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(WATCH_SECONDS):
            if is_lost():
                end()

    watcher = threading.Thread(target=watch, name="duewheel-lease-watcher", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
