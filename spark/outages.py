"""Bearing an outage of the broker on the driver: a call that changes nothing when it is made again waits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from duewheel.store.values.backoff import Backoff
from duewheel.store.values.errors import BrokerUnreachable

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


def through_outage(call: Callable[[], Answer], longest: timedelta) -> Answer:
    """Make a call again and again until the broker can be reached.

    Args:
        call: what to ask; it may be carried out twice, as a connection may break after its commit.
        longest: how long to go on after the first failure.

    Raises:
        BrokerUnreachable: the broker could not be reached for that long.

    Example::

        through_outage(lambda: broker.stats(), timedelta(minutes=10))
    """
    backoff = Backoff()
    end = None
    while True:
        try:
            return call()
        except BrokerUnreachable as error:
            now = time.monotonic()
            end = now + longest.total_seconds() if end is None else end
            if now >= end:
                raise
            pause_seconds = min(backoff.next_seconds(), end - now)
            log.warning("%s; next attempt in %.1f s, the last one in %.0f s", error, pause_seconds, end - now)
            time.sleep(pause_seconds)
