"""A lease is kept alive while the work goes on, and a lost one is said."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from tests.acting import AT_ONCE, HOUR
from tests.clock import Clock
from tests.leasing import wait_for_extensions
from tests.logged import logged
from tests.outages import outage
from tests.standing_time import StandingTime
from tests.waiting import PATIENCE_SECONDS, until

from duewheel.store.consuming import lease_keeper
from duewheel.store.consuming.lease_keeper import LeaseKeeper
from duewheel.store.values.errors import LeaseLost

if TYPE_CHECKING:
    from duewheel.embedded.postgres import EmbeddedPostgres
    from duewheel.store.broker import Broker
    from duewheel.store.consuming.consumer import Consumer

#: The shortest there is.
SHORT = timedelta(seconds=1)


@pytest.fixture
def consumer(timed_broker: Broker) -> Consumer:
    """A consumer with three ready messages, by whose broker's clock no lease ends before it is moved."""
    timed_broker.create_topic("orders", message_type="NORMAL")
    for number in range(3):
        timed_broker.send("orders", str(number))
    return timed_broker.consumer("orders", "worker")


@pytest.fixture
def wide(timed_broker: Broker) -> Consumer:
    """A consumer with four ready messages in two queues, of which one receive makes two leases."""
    timed_broker.create_topic("wide", message_type="NORMAL", queues=2)
    for number in range(4):
        timed_broker.send("wide", str(number))
    return timed_broker.consumer("wide", "worker")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper extends a lease of an hour every hundredth of a second."""
    monkeypatch.setattr(lease_keeper, "EXTENSIONS_PER_LEASE", 360_000)
    monkeypatch.setattr(lease_keeper, "RETRIES_PER_LEASE", 360_000)


@pytest.mark.slow
def test_a_lease_is_extended_each_time_a_third_of_it_has_passed(consumer: Consumer) -> None:
    batch = consumer.receive(invisible=SHORT)
    with LeaseKeeper(consumer, batch, SHORT) as keeper:
        wait_for_extensions(keeper, 2)
    consumer.ack(batch)


@pytest.mark.usefixtures("eager")
def test_x10_a_lost_lease_is_said_and_its_ack_refused(consumer: Consumer) -> None:
    batch = consumer.receive(invisible=HOUR)
    with LeaseKeeper(consumer, batch, HOUR) as keeper:
        consumer.nack(batch, delay=AT_ONCE)
        assert keeper.lost.wait(PATIENCE_SECONDS)
        with pytest.raises(LeaseLost):
            keeper.raise_if_lost()
    with pytest.raises(LeaseLost):
        consumer.ack(batch)


@pytest.mark.usefixtures("eager")
def test_x11_work_that_acks_one_lease_by_itself_keeps_the_others(wide: Consumer, clock: Clock) -> None:
    batch = wide.receive(invisible=HOUR)
    first = [message for message in batch if message.lease.queue == batch[0].lease.queue]
    rest = [message for message in batch if message not in first]
    assert first
    assert rest
    with LeaseKeeper(wide, batch, HOUR) as keeper:
        wide.ack(first)
        for _ in range(2):
            clock.advance(0.9 * HOUR)
            # The first of two extensions may have been under way when the clock moved.
            wait_for_extensions(keeper, 2)
        keeper.raise_if_lost()
    wide.ack(rest)


@pytest.mark.usefixtures("eager")
def test_x10_a_lost_lease_is_said_though_another_was_acked(wide: Consumer) -> None:
    batch = wide.receive(invisible=HOUR)
    with LeaseKeeper(wide, batch, HOUR) as keeper:
        wide.ack(batch.leases[0])
        wide.nack(batch.leases[1])
        assert keeper.lost.wait(PATIENCE_SECONDS)


@pytest.mark.slow
def test_x10_a_lease_without_extension_for_its_duration_is_lost(
    consumer: Consumer, postgres: EmbeddedPostgres, dsn: str
) -> None:
    batch = consumer.receive(invisible=SHORT)
    with outage(postgres, dsn), LeaseKeeper(consumer, batch, SHORT) as keeper:
        assert keeper.lost.wait(PATIENCE_SECONDS)
    assert "could not be extended for its whole duration of 1 s" in str(keeper.error)


@pytest.mark.usefixtures("eager")
def test_x11_a_short_outage_does_not_lose_the_lease(
    consumer: Consumer, postgres: EmbeddedPostgres, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length counts from the last extension, not from the beginning of the work."""
    passing = StandingTime()
    monkeypatch.setattr(lease_keeper, "time", passing)
    batch = consumer.receive(invisible=HOUR)
    with LeaseKeeper(consumer, batch, HOUR) as keeper:
        passing.pass_by(HOUR.total_seconds() + 1)
        # The first of two extensions may have been under way when the time passed.
        wait_for_extensions(keeper, 2)
        with logged("duewheel.store.consuming.lease_keeper", "trying again") as failed, outage(postgres, dsn):
            until(lambda: failed.count or keeper.lost.is_set(), "an extension to fail")
        keeper.raise_if_lost()
        wait_for_extensions(keeper, 1)
    consumer.ack(batch)


@pytest.mark.usefixtures("eager")
def test_leaving_the_block_ends_the_extending(consumer: Consumer) -> None:
    batch = consumer.receive(invisible=HOUR)
    with LeaseKeeper(consumer, batch, HOUR) as keeper:
        assert keeper.extended.wait(PATIENCE_SECONDS)
    with LeaseKeeper(consumer, [], HOUR) as keeper:
        keeper.raise_if_lost()
    assert not keeper.extended.is_set()
    assert "duewheel-lease-keeper" not in {thread.name for thread in threading.enumerate()}
