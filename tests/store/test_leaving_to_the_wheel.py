"""Consumers that wait leave releasing to a wheel, and let others go first where they come in vain."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from psycopg2.extensions import connection as Connection  # noqa: N812 - it is a class
from tests.acting import AT_ONCE, MILLISECOND, SECOND
from tests.clock import Clock
from tests.waiting import ask, connected, until

from duewheel.store.broker import Broker
from duewheel.store.consuming import consumer as consumer_module
from duewheel.store.database.connections import OWN_TRANSACTION, Database
from duewheel.store.values.backoff import Restraint
from duewheel.store.wheel.runner import WheelRunner

LONG = timedelta(seconds=30)
SOON = timedelta(milliseconds=100)


@pytest.fixture
def session(dsn: str) -> Iterator[Connection]:
    """An autocommit connection of an owner of the schema."""
    with connected(dsn) as connection:
        yield connection


def value(session: Connection, statement: str, *parameters: object) -> object:
    ((answer,),) = ask(session, statement, *parameters)
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
        until(lambda: is_turning(session), "the wheel to turn")
    # The server frees the lock when it has seen the end of the connection.
    until(lambda: not is_turning(session), "the server to free the wheel's lock")


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
        until(lambda: is_turning(session), "the wheel to turn")
        for _ in range(3):
            broker.send("t", b"", delay=SOON)
            batch = consumer.receive(wait=LONG)
            assert len(batch) == 1
            consumer.ack(batch)
    assert value(session, "select bool_and(by_wheel) from duewheel.tick") is True


def test_w01_a_consumer_releases_overdue_messages(broker: Broker, session: Connection) -> None:
    broker.create_topic("t")
    consumer = broker.consumer("t", "g")
    # The session stands for a wheel whose process is stopped.
    value(session, "select duewheel.begin_turning()::text")
    with broker.connection() as elsewhere:
        assert is_turning(elsewhere) is True
    for _ in range(2):
        broker.send("t", b"", delay=SOON)
        batch = consumer.receive(wait=LONG)
        assert len(batch) == 1
        consumer.ack(batch)
    assert value(session, "select bool_or(by_wheel) from duewheel.tick") is False


@pytest.mark.parametrize(("turns", "ticks"), [(True, 1), (False, 5)])
def test_a_consumer_with_a_backlog_leaves_releasing_to_a_wheel(
    broker: Broker, session: Connection, monkeypatch: pytest.MonkeyPatch, turns: bool, ticks: int
) -> None:
    monkeypatch.setattr(consumer_module, "_TURN_SECONDS", 1e-9)
    monkeypatch.setattr(consumer_module, "_WHEEL_SECONDS", 600.0)
    ticked = []

    def tick_group(database: Database, group_id: int, topic_id: int) -> None:
        ticked.append(topic_id)
        tick(database, group_id, topic_id)

    tick = consumer_module.tick_group
    monkeypatch.setattr(consumer_module, "tick_group", tick_group)
    broker.create_topic("t", message_type="NORMAL")
    broker.send_many("t", [{"body": b""} for _ in range(5)])
    consumer = broker.consumer("t", "g")
    if turns:
        value(session, "select duewheel.begin_turning()::text")
    for _ in range(5):
        assert len(consumer.receive(max_messages=1)) == 1
    assert len(ticked) == ticks


@pytest.mark.parametrize(
    ("granularity", "comes_by"), [(MILLISECOND * 15, MILLISECOND * 30), (SECOND * 20, SECOND * 21)]
)
def test_messages_in_a_wheels_rest_are_left_to_it_for_a_second(
    timed_broker: Broker, clock: Clock, session: Connection, granularity: timedelta, comes_by: timedelta
) -> None:
    timed_broker.create_topic("t", granularity=granularity)
    consumer = timed_broker.consumer("t", "g")
    timed_broker.send("t", b"", delay=SECOND)
    ticked_at = clock.advance(SECOND)
    ask(session, f"{OWN_TRANSACTION}select duewheel.tick_topic(%s, %s, true)", consumer.topic_id, ticked_at)
    consumer.ack(consumer.receive())
    clock.advance(MILLISECOND)
    timed_broker.send("t", b"", delay=MILLISECOND)
    now = clock.advance(MILLISECOND * 2)
    next_due = "select duewheel.next_due(%s, %s, %s)"
    assert value(session, next_due, consumer.group_id, consumer.topic_id, now) == ticked_at + comes_by


def test_the_ends_of_answered_leases_wake_no_consumer(
    timed_broker: Broker, clock: Clock, session: Connection
) -> None:
    timed_broker.create_topic("t", queues=1)
    timed_broker.send_many("t", [{"body": b"", "delay": AT_ONCE} for _ in range(21)])
    consumer = timed_broker.consumer("t", "g")

    def next_lease_end() -> object:
        asked = "select duewheel.next_lease_end(%s, %s, 0, %s, %s)"
        return value(session, asked, consumer.group_id, consumer.topic_id, clock(), clock() + LONG)

    for _ in range(20):
        clock.advance(MILLISECOND)
        consumer.ack(consumer.receive(max_messages=1, invisible=SECOND * 10))
    clock.advance(SECOND * 10 - MILLISECOND * 20)
    assert next_lease_end() == clock() + SECOND
    consumer.receive(max_messages=1, invisible=SECOND * 2)
    clock.advance(MILLISECOND * 15)
    assert next_lease_end() == clock() + SECOND * 2 - MILLISECOND * 15


def test_a_consumer_that_finds_nothing_pauses_longer_each_time() -> None:
    restraint = Restraint(0.004, 0.064)
    for _ in range(2):
        assert restraint.pause_seconds() == 0
        for longest in (0.004, 0.008, 0.016, 0.032, 0.064, 0.064, 0.064):
            assert 0 <= restraint.pause_seconds() <= longest
        restraint.reset()
    # Two do not come at once.
    both = [Restraint(0.004, 0.064) for _ in range(2)]
    pauses = [[one.pause_seconds() for _ in range(20)] for one in both]
    assert pauses[0] != pauses[1]
