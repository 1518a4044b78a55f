"""Schedules with real wheels on the real clock: one message per occurrence, with two wheels and SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from tests.acting import HOUR, SECOND
from tests.waiting import ask, connected, until

from duewheel.store.broker import Broker
from duewheel.store.operations import occurrences
from duewheel.store.wheel.runner import WheelRunner

TOPIC = "pulses"

TURN_A_WHEEL = """
import sys, threading
from datetime import timedelta
from duewheel.store.operations import occurrences
occurrences.HORIZON = timedelta(seconds=2)
from duewheel.store.wheel.runner import WheelRunner
WheelRunner(sys.argv[1]).run(threading.Event())
"""


@pytest.fixture
def short_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Occurrences are sent 2 s ahead, so that a few seconds show many rounds."""
    monkeypatch.setattr(occurrences, "HORIZON", 2 * SECOND)


@contextmanager
def turning(dsn: str) -> Iterator[None]:
    """A wheel in a thread for the length of the block."""
    stop = threading.Event()
    thread = threading.Thread(target=WheelRunner(dsn).run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def sent(broker: Broker, name: str) -> list[datetime]:
    """The occurrences of which there are messages, sent ahead or not."""
    with connected(broker.dsn) as connection:
        rows = ask(
            connection,
            "select properties ->> 'occurrence' from duewheel.any_message"
            " where properties ->> 'schedule' = %s",
            name,
        )
    return sorted(datetime.fromisoformat(text) for (text,) in rows)


@pytest.mark.slow
def test_d18_two_wheels_send_each_occurrence_once_and_on_time(broker: Broker, short_horizon: None) -> None:
    broker.create_topic(TOPIC, granularity=timedelta(milliseconds=5))
    names = [f"pulse-{n}" for n in range(5)]
    consumer = broker.consumer(TOPIC, "g")
    late: list[float] = []
    with ExitStack() as wheels:
        for _ in range(2):
            wheels.enter_context(turning(broker.dsn))
        for name in names:
            broker.add_schedule(name, TOPIC, b"", every=SECOND)
        received: Counter[object] = Counter()
        while any(received[name] < 5 for name in names):
            for message in consumer.receive(100, wait=30 * SECOND):
                late.append(time.time() - message.deliver_at.timestamp())
                received[message.properties["schedule"]] += 1
                consumer.ack(message)
    for name in names:
        found = sent(broker, name)
        assert len(found) >= 5
        assert found == [found[0] + n * SECOND for n in range(len(found))]
    assert min(late) >= 0


@pytest.mark.slow
def test_d18_a_wheel_that_is_killed_anywhere_leaves_each_occurrence_one_message(
    broker: Broker, short_horizon: None
) -> None:
    broker.create_topic(TOPIC)
    start = datetime.now(UTC) - HOUR
    names = [f"pulse-{n}" for n in range(10)]
    # So much is missed that a kill falls into the sending of it.
    with Broker(broker.dsn, clock=lambda: start) as earlier:
        for name in names:
            earlier.add_schedule(name, TOPIC, b"x" * 1_000, every=SECOND, misfire="all")
    with connected(broker.dsn) as connection:

        def count() -> int:
            number: int = ask(connection, "select count(*) from duewheel.any_message")[0][0]
            return number

        unfinished = 0
        for _ in range(4):
            more = count() + 1
            wheel = subprocess.Popen([sys.executable, "-c", TURN_A_WHEEL, broker.dsn])
            try:
                until(lambda more=more: count() >= more, "the wheel to send")
            finally:
                os.kill(wheel.pid, signal.SIGKILL)
                wheel.wait()
            unfinished += count() < len(names) * 3_600
        assert unfinished, "the wheel was done before it was killed"
    broker.advance_schedules()
    for name in names:
        found = sent(broker, name)
        assert len(found) >= 3_600
        assert found == [start + n * SECOND for n in range(1, len(found) + 1)]


@pytest.mark.owner
def test_d18_a_wheel_looks_after_the_schedules_of_its_topics_alone(broker: Broker) -> None:
    for topic in ("mine", "theirs"):
        broker.create_topic(topic)
        broker.add_schedule(topic, topic, b"", every=HOUR, misfire="all")
    with connected(broker.dsn) as connection:
        ask(connection, "update duewheel.schedule set next_at = next_at - interval '2 hours'")
        stop = threading.Event()
        thread = threading.Thread(target=WheelRunner(broker.dsn, topics=["mine"]).run, args=(stop,))
        thread.start()
        try:
            until(lambda: sent(broker, "mine"), "the wheel to send")
        finally:
            stop.set()
            thread.join()
    assert sent(broker, "theirs") == []
