"""What is wrong with groups and with upkeep, each as its alert rule has it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from tests.acting import AT_ONCE, HOUR, MINUTE, SECOND
from tests.clock import Clock

from duewheel.plugin import models
from duewheel.plugin.faults import faults_of
from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker
from duewheel.store.operations import statistics

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = [
    pytest.mark.airflow,
    # Importing Airflow's API warns of a library's future.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


def found_by(broker: Broker, clock: Clock) -> list[models.Fault]:
    """The faults of a broker at the instant of its clock."""
    groups, _ = statistics.all_group_numbers(broker, 10_000)
    return faults_of(broker, groups, clock())


def faults(broker: Broker, clock: Clock) -> dict[str, tuple[str | None, int | None, int]]:
    """The worst fault of each kind: group, number and how many others."""
    return {one.kind: (one.group, one.number, one.others) for one in reversed(found_by(broker, clock))}


def test_x08_a_quiet_broker_has_no_fault(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t")
    timed_broker.consumer("t", "g")
    timed_broker.maintain()
    timed_broker.send("t", b"", delay=HOUR)
    assert faults(timed_broker, clock) == {}


def test_x08_groups_that_stall_or_have_dead_letters_are_named(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=1)
    for group, messages in (("push", 3), ("mail", 1)):
        consumer = timed_broker.consumer("t", group, retry=RetryPolicy(0, (HOUR,)))
        timed_broker.send_many("t", [{"body": b"", "delay": AT_ONCE}] * messages)
        consumer.nack(consumer.receive(max_messages=messages), reason="HTTP 503")
    timed_broker.maintain()
    assert faults(timed_broker, clock) == {"dead_letters": ("push", 3, 1)}
    assert [(one.group, one.others) for one in found_by(timed_broker, clock)] == [("push", 1), ("mail", 0)]


def test_x08_a_group_that_takes_nothing_for_15_minutes_is_named(timed_broker: Broker, clock: Clock) -> None:
    # At the present instant: the clock of the database must not matter.
    began_at = clock.set(datetime.now(UTC))
    timed_broker.create_topic("t", queues=1)
    consumer = timed_broker.consumer("t", "g")
    timed_broker.consumer("t", "late")
    clock.advance(HOUR)
    timed_broker.send_many("t", [{"body": b"", "delay": 5 * MINUTE}] * 4)
    clock.advance(6 * MINUTE)
    taken = consumer.receive(1, invisible=HOUR)
    ready_at, taken_at = began_at + HOUR + 5 * MINUTE, clock()

    def idle() -> dict[str, datetime | None]:
        found, _ = statistics.all_group_numbers(timed_broker, 10_000)
        return {one.group: one.idle_since for one in found}

    clock.advance(13 * MINUTE)
    assert idle() == {"g": None, "late": None}
    clock.advance(MINUTE)
    # It never took any: since the oldest message is ready. The other group works.
    assert idle() == {"g": None, "late": ready_at}
    assert faults(timed_broker, clock)["takes_nothing"] == ("late", 4, 0)
    consumer.ack(taken)
    assert idle() == {"g": None, "late": ready_at}
    clock.advance(MINUTE)
    assert idle() == {"g": taken_at, "late": ready_at}
    timed_broker.maintain()
    assert found_by(timed_broker, clock) == [
        models.Fault(
            kind="takes_nothing", group=group, topic="t", number=number, since_at=since_at, others=others
        )
        for group, number, since_at, others in (("late", 4, ready_at, 1), ("g", 3, taken_at, 0))
    ]
    timed_broker.pause_group("late")
    assert idle() == {"g": taken_at, "late": None}
    clock.advance(HOUR)
    resumed_at = clock()
    timed_broker.resume_group("late")
    clock.advance(14 * MINUTE)
    assert idle()["late"] is None
    clock.advance(MINUTE)
    assert idle()["late"] == resumed_at


def test_x08_the_page_waits_as_long_as_the_alert(timed_broker: Broker, clock: Clock) -> None:
    groups = yaml.safe_load((DOCS / "how-to" / "alert-rules.yml").read_text())["groups"]
    (rule,) = (rule for group in groups for rule in group["rules"] if rule["alert"] == "GroupTakesNothing")
    minutes = int(rule["for"].removesuffix("m"))
    timed_broker.create_topic("t", queues=1, message_type="NORMAL")
    timed_broker.consumer("t", "g")
    timed_broker.send("t", b"")
    clock.advance(minutes * MINUTE - SECOND)
    timed_broker.tick("t")
    timed_broker.maintain()
    assert faults(timed_broker, clock) == {}
    clock.advance(SECOND)
    assert faults(timed_broker, clock) == {"takes_nothing": ("g", 1, 0)}


def test_x08_expired_leases_and_late_upkeep_are_named(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=1)
    consumer = timed_broker.consumer("t", "g")
    timed_broker.send("t", b"", delay=AT_ONCE)
    consumer.receive(invisible=MINUTE)
    timed_broker.maintain()
    clock.advance(2 * MINUTE)
    consumer.receive()
    assert faults(timed_broker, clock) == {"leases_expire": ("g", 1, 0)}
    clock.advance(2 * HOUR)
    assert faults(timed_broker, clock).keys() == {"upkeep_overdue"}
