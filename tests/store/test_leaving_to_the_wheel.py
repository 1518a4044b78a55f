"""Consumers that wait leave releasing to a wheel, and let others go first where they come in vain."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import psycopg2
import pytest
from psycopg2.extensions import connection as Connection  # noqa: N812 - it is a class

from duewheel.store import consumer as consumer_module
from duewheel.store.backoff import Restraint
from duewheel.store.broker import Broker
from duewheel.store.runner import WheelRunner

LONG = timedelta(seconds=30)
SOON = timedelta(milliseconds=300)


@pytest.fixture
def session(dsn: str) -> Iterator[Connection]:
    """An autocommit connection of an owner of the schema."""
    with closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        yield connection


def value(session: Connection, statement: str) -> object:
    with session.cursor() as cursor:
        cursor.execute(statement)
        ((answer,),) = cursor.fetchall()
        return answer


def is_turning(session: Connection) -> object:
    return value(session, "select duewheel.is_turning()")


@contextmanager
def turning(dsn: str, topics: list[str] | None = None) -> Iterator[None]:
    stop = threading.Event()
    wheel = threading.Thread(target=WheelRunner(dsn, topics=topics).run, args=(stop,))
    wheel.start()
    try:
        yield
    finally:
        stop.set()
        wheel.join()


def test_a_wheel_is_known_to_turn_as_long_as_it_listens(dsn: str, session: Connection) -> None:
    assert is_turning(session) is False
    with turning(dsn):
        while not is_turning(session):
            pass
    assert is_turning(session) is False


def test_a_wheel_for_some_topics_promises_nothing_to_the_others(dsn: str, broker: Broker) -> None:
    broker.create_topic("mine")
    broker.create_topic("other")
    with turning(dsn, topics=["mine"]):
        for topic in ("mine", "other"):
            broker.send(topic, b"", delay=SOON)
            assert len(broker.consumer(topic, "g").receive(wait=LONG)) == 1


def test_a_consumer_leaves_releasing_to_the_wheel(
    dsn: str, broker: Broker, session: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the wheel takes on a busy machine.
    monkeypatch.setattr(consumer_module, "_GRACE_SECONDS", 30.0)
    monkeypatch.setattr(consumer_module, "_WHEEL_SECONDS", 30.0)
    broker.create_topic("t")
    consumer = broker.consumer("t", "g")
    with turning(dsn):
        while not is_turning(session):
            pass
        for _ in range(5):
            broker.send("t", b"", delay=SOON)
            batch = consumer.receive(wait=LONG)
            assert len(batch) == 1
            consumer.ack(batch)
    assert value(session, "select bool_and(by_wheel) from duewheel.tick") is True


def test_w01_what_a_wheel_that_hangs_leaves_overdue_is_released_by_the_consumer(
    broker: Broker, session: Connection
) -> None:
    broker.create_topic("t")
    consumer = broker.consumer("t", "g")
    # The session stands for a wheel whose process is stopped.
    value(session, "select duewheel.begin_turning()::text")
    with broker.connection() as elsewhere:
        assert is_turning(elsewhere) is True
    for _ in range(3):
        broker.send("t", b"", delay=SOON)
        batch = consumer.receive(wait=LONG)
        assert len(batch) == 1
        consumer.ack(batch)
    assert value(session, "select bool_or(by_wheel) from duewheel.tick") is False


def test_who_comes_in_vain_pauses_for_longer_each_time_and_whoever_finds_something_does_not() -> None:
    restraint = Restraint(0.004, 0.064)
    for _ in range(2):
        assert restraint.pause_seconds() == 0
        for longest in (0.004, 0.008, 0.016, 0.032, 0.064, 0.064, 0.064):
            assert 0 <= restraint.pause_seconds() <= longest
        restraint.reset()


def test_two_who_come_in_vain_do_not_come_at_once() -> None:
    both = [Restraint(0.004, 0.064) for _ in range(2)]
    pauses = [[one.pause_seconds() for _ in range(20)] for one in both]
    assert pauses[0] != pauses[1]
