"""What is wrong with groups and with upkeep, each as its alert rule has it."""

from __future__ import annotations

import pytest
from tests.acting import AT_ONCE, HOUR, MINUTE
from tests.clock import Clock

from duewheel.plugin.faults import faults_of
from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker
from duewheel.store.operations import statistics

pytestmark = [
    pytest.mark.airflow,
    # Importing Airflow's API warns of a library's future.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


def faults(broker: Broker, clock: Clock) -> dict[str, tuple[str | None, int | None, int]]:
    """The worst fault of each kind: group, number and how many others."""
    groups, _ = statistics.all_group_numbers(broker, 10_000)
    worst_last = reversed(faults_of(broker, groups, clock()))
    return {one.kind: (one.group, one.number, one.others) for one in worst_last}


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
    groups, _ = statistics.all_group_numbers(timed_broker, 10_000)
    assert [(one.group, one.others) for one in faults_of(timed_broker, groups, clock())] == [
        ("push", 1),
        ("mail", 0),
    ]
    # mail has three messages of push to read; push received one of mail a minute ago.
    clock.advance(15 * MINUTE)
    timed_broker.tick("t")
    assert "takes_nothing" not in faults(timed_broker, clock)
    clock.advance(MINUTE)
    assert faults(timed_broker, clock)["takes_nothing"] == ("mail", 3, 0)
    timed_broker.pause_group("mail")
    assert "takes_nothing" not in faults(timed_broker, clock)


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
