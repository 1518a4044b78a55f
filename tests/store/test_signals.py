"""The listeners of consumers that wait: kept for the next receive, and closed when nobody uses them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.waiting import ask, connected, until

from duewheel.store.broker import Broker
from duewheel.store.database.connections import DriverConnection

SHORT = timedelta(milliseconds=10)
LISTENERS = """
select pid, backend_xmin from pg_stat_activity
where datname = current_database() and application_name = 'duewheel consumer'
"""
#: More than the sockets between a server and a program hold.
FLOOD = "select count(pg_notify('duewheel_released', n || ' 1')) from generate_series(1, 300000) n"


@pytest.fixture
def console(broker: Broker) -> Iterator[DriverConnection]:
    broker.create_topic("t")
    with connected(broker.dsn) as connection:
        yield connection


def test_the_next_receive_waits_with_the_same_listener(broker: Broker, console: DriverConnection) -> None:
    consumer = broker.consumer("t", "g")
    consumer.receive(wait=SHORT)
    ((first, _),) = ask(console, LISTENERS)
    consumer.receive(wait=SHORT)
    ((second, _),) = ask(console, LISTENERS)
    assert first == second


def test_a_listener_that_nobody_reads_is_closed(
    broker: Broker, console: DriverConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duewheel.store.consuming.signals.IDLE_SECONDS", 0.05)
    consumer = broker.consumer("t", "g")
    for _ in range(2):
        # Also the one that is made after that.
        consumer.receive(wait=SHORT)
        until(lambda: not ask(console, LISTENERS), "the listener to be closed")
    broker.send("t", b"1", delay=timedelta(milliseconds=100))
    assert len(consumer.receive(wait=timedelta(seconds=30))) == 1


def test_a_consumer_that_stopped_receiving_does_not_hold_up_the_notifications_of_all(
    broker: Broker, console: DriverConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that cannot write to a listener keeps what comes after, and lets no dead row be cleared."""
    monkeypatch.setattr("duewheel.store.consuming.signals.IDLE_SECONDS", 1.0)
    broker.consumer("t", "g").receive(wait=SHORT)
    ask(console, FLOOD)
    until(lambda: ask(console, "select pg_notification_queue_usage()") == [(0.0,)], "the queue to be empty")
    until(lambda: not any(xmin for _, xmin in ask(console, LISTENERS)), "nobody to hold a snapshot")


def test_a_broker_that_is_closed_leaves_neither_listener_nor_thread(
    broker: Broker, console: DriverConnection
) -> None:
    before = set(threading.enumerate())
    with Broker(broker.dsn) as other:
        other.consumer("t", "g").receive(wait=SHORT)
    until(lambda: not ask(console, LISTENERS), "the listener to be closed")
    until(lambda: set(threading.enumerate()) <= before, "the thread to end")
