"""Schedules with real wheels on the real clock: one message per occurrence, also after SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime

import pytest
from tests.acting import HOUR, SECOND, rows
from tests.waiting import ask, beside, connected, until

from duewheel.store.broker import Broker
from duewheel.store.operations import occurrences

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


def sent(broker: Broker, name: str) -> list[datetime]:
    """The occurrences of which there are messages, sent ahead or not."""
    asked = (
        "select properties ->> 'occurrence' from duewheel.any_message where properties ->> 'schedule' = %s"
    )
    return sorted(datetime.fromisoformat(text) for (text,) in rows(broker, asked, name))


@pytest.mark.slow
def test_d18_a_killed_wheel_sends_each_occurrence_once(broker: Broker, short_horizon: None) -> None:
    broker.create_topic(TOPIC)
    start = datetime.now(UTC) - HOUR
    names = [f"pulse-{n}" for n in range(10)]
    # So much is missed that a kill falls into the sending of it.
    with Broker(broker.dsn, clock=lambda: start) as earlier:
        for name in names:
            earlier.create_schedule(name, TOPIC, b"x" * 1_000, every=SECOND, misfire="all")
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
def test_d18_a_wheel_handles_only_schedules_of_its_topics(broker: Broker) -> None:
    for topic in ("mine", "theirs"):
        broker.create_topic(topic)
        broker.create_schedule(topic, topic, b"", every=HOUR, misfire="all")
    rows(broker, "update duewheel.schedule set next_at = next_at - interval '2 hours'")
    stop = threading.Event()
    with beside() as start:
        start(lambda: broker.wheel(topics=["mine"]).run(stop))
        try:
            until(lambda: sent(broker, "mine"), "the wheel to send")
        finally:
            stop.set()
    assert sent(broker, "theirs") == []
