"""The sensor looks in the database, each time it runs; tests/operators runs it inside Airflow."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSensorTimeout, TaskDeferred
from tests.airflow_runs import connection_json

from duewheel.sensors.due_messages import DueMessagesSensor
from duewheel.store.errors import BrokerUnreachable, DueWheelError, UnknownTopic

if TYPE_CHECKING:
    from duewheel.store import Broker

CONTEXT = Context()


@pytest.fixture(autouse=True)
def connection(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that the sensor uses by default, and a topic."""
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(broker.dsn))
    broker.create_topic("orders")


def sensor(**arguments: object) -> DueMessagesSensor:
    """A sensor of the topic."""
    return DueMessagesSensor(task_id="wait", **{"topic": "orders", "group": "g", **arguments})  # type: ignore[arg-type]


def test_it_succeeds_at_once_when_enough_is_ready(broker: Broker) -> None:
    for _ in range(2):
        broker.send("orders", b"x", delay_level=0)
    assert sensor(min_messages=2).execute(CONTEXT)["ready"] == 2


def test_it_defers_to_the_shared_wheel_when_too_little_is_ready(broker: Broker) -> None:
    broker.send("orders", b"x", delay_level=0)
    with pytest.raises(TaskDeferred) as deferred:
        sensor(min_messages=2, timeout=100).execute(CONTEXT)
    assert deferred.value.trigger.serialize() == (
        "duewheel.triggers.due_messages.DueMessagesTrigger",
        {
            "topic": "orders",
            "group": "g",
            "min_messages": 2,
            "duewheel_conn_id": "duewheel_default",
            "tags": "*",
            "filter": None,
        },
    )
    assert deferred.value.method_name == "execute_complete"
    assert timedelta(0) < deferred.value.timeout <= timedelta(seconds=100)


def test_it_looks_again_after_a_wake_up_and_defers_again_when_somebody_came_first(broker: Broker) -> None:
    broker.send("orders", b"x", delay_level=0)
    woken = {"topic": "orders", "group": "g", "ready": 1, "oldest_deliver_at": None}
    deadline = time.time() + 100
    assert sensor().execute_complete(CONTEXT, woken, deadline)["ready"] == 1
    broker.consumer("orders", "g").receive()
    with pytest.raises(TaskDeferred) as deferred:
        sensor().execute_complete(CONTEXT, woken, deadline)
    assert deferred.value.kwargs == {"deadline": deadline}


def test_its_timeout_counts_through_all_deferrals(broker: Broker) -> None:
    woken = {"topic": "orders", "group": "g", "ready": 1, "oldest_deliver_at": None}
    with pytest.raises(AirflowSensorTimeout, match="at most 0 messages were ready for group g at any look"):
        sensor().execute_complete(CONTEXT, woken, deadline=time.time())


def test_leased_messages_are_not_ready(broker: Broker) -> None:
    broker.send("orders", b"x", delay_level=0)
    broker.consumer("orders", "g").receive()
    assert not sensor(deferrable=False).poke(CONTEXT)


def test_poking_says_what_is_ready(broker: Broker) -> None:
    sent = broker.send("orders", b"x", delay_level=0)
    assert sensor(deferrable=False).execute(CONTEXT) == {
        "topic": "orders",
        "group": "g",
        "ready": 1,
        "oldest_deliver_at": sent.deliver_at.isoformat(),
    }


def test_an_unknown_topic_fails_at_once() -> None:
    with pytest.raises(UnknownTopic):
        sensor(topic="none").execute(CONTEXT)


def test_d12_only_the_messages_it_was_told_of_are_enough(broker: Broker) -> None:
    broker.send("orders", b"x", delay_level=0, tag="open", properties={"amount": 5})
    assert not sensor(deferrable=False, tags="paid").poke(CONTEXT)
    assert not sensor(deferrable=False, filter="amount > 5").poke(CONTEXT)
    assert sensor(tags="paid || open", filter="amount < 10").execute(CONTEXT)["ready"] == 1
    with pytest.raises(TaskDeferred) as deferred:
        sensor(tags="paid", min_messages="1").execute(CONTEXT)
    assert deferred.value.trigger.tags == "paid"


@pytest.fixture
def gone(connection: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server at the address of the connection."""
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json("host=/nowhere dbname=gone"))


@pytest.mark.usefixtures("gone")
def test_x14_an_outage_makes_a_poke_come_to_nothing_and_a_woken_sensor_wait_on() -> None:
    assert not sensor(deferrable=False).poke(CONTEXT)
    woken = {"topic": "orders", "group": "g", "ready": 1, "oldest_deliver_at": None}
    with pytest.raises(TaskDeferred):
        sensor().execute_complete(CONTEXT, woken, time.time() + 100)
    with pytest.raises(BrokerUnreachable):
        sensor().execute(CONTEXT)


@pytest.mark.parametrize(
    "arguments",
    [{"group": "my group"}, {"tags": "a b"}, {"filter": "amount >"}, {"min_messages": 0}, {"topic": "a b"}],
)
def test_a_mistake_is_refused_when_the_dag_is_read(arguments: dict[str, object]) -> None:
    with pytest.raises(DueWheelError):
        sensor(**arguments)
