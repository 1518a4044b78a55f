"""Leases whose length does not matter to a test, on however slow a machine.

A lease that a test wants to be extended lasts a minute and is extended ten times a second. That it was is
asked of the broker, at an instant at which the lease as it was taken would have ended: a receive then ends
it, and its ack is refused. Nothing has to wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from tests.waiting import PATIENCE_SECONDS, until

from duewheel.store import Batch, Broker, Consumer
from duewheel.store.consuming import lease_keeper

LEASE = timedelta(minutes=1)


def extend_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every keeper extend a lease of a minute ten times a second."""
    monkeypatch.setattr(lease_keeper, "EXTENSIONS_PER_LEASE", 600)


def wait_for_extensions(keeper: lease_keeper.LeaseKeeper, count: int) -> None:
    """Return after so many further extensions."""
    for _ in range(count):
        keeper.extended.clear()
        assert keeper.extended.wait(PATIENCE_SECONDS)


@contextmanager
def consumer_at(broker: Broker, consumer: Consumer, instant: datetime) -> Iterator[Consumer]:
    """Another consumer of the group, for whom it is that instant."""
    with Broker(broker.dsn, clock=lambda: instant) as other:
        yield other.consumer(consumer.topic, consumer.group)


@contextmanager
def later_consumer(broker: Broker, consumer: Consumer) -> Iterator[Consumer]:
    """Another consumer of the group, for whom it is after the lease, and a minute later at each call.

    A message that comes again after an unanswered lease waits for its retry first.
    """
    begin = datetime.now(UTC) + LEASE
    minutes = count(1)
    with Broker(broker.dsn, clock=lambda: begin + timedelta(minutes=next(minutes))) as other:
        yield other.consumer(consumer.topic, consumer.group)


def received(consumer: Consumer) -> Batch:
    """Receive until something comes."""
    return until(lambda: consumer.receive(wait=timedelta(seconds=1)), "a message")
