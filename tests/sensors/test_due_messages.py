"""The sensor looks in the database, each time it runs; tests/operators runs it inside Airflow."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from tests.airflow_runs import connection_json
from tests.waiting import ask, connected

from duewheel.hooks.task_name import task_key
from duewheel.sensors import due_messages
from duewheel.sensors.due_messages import DueMessagesSensor
from duewheel.store import Broker
from duewheel.store.consuming import watching
from duewheel.store.leases import from_json
from duewheel.store.values.errors import BrokerUnreachable, DueWheelError, InvalidArgument, UnknownTopic

CONTEXT = Context()


@pytest.fixture(autouse=True)
def connection(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that the sensor uses by default, and a topic."""
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(broker.dsn))
    broker.create_topic("orders")


def sensor(**arguments: object) -> DueMessagesSensor:
    """A sensor of the topic."""
    given = {"topic": "orders", "group": "g", "deferrable": True, **arguments}
    return DueMessagesSensor(task_id="wait", **given)  # type: ignore[arg-type]


def test_it_succeeds_at_once_when_enough_is_ready(broker: Broker) -> None:
    for _ in range(2):
        broker.send("orders", b"x", delay_level=0)
    assert sensor(min_messages=2).execute(CONTEXT)["ready"] == 2


@pytest.mark.parametrize("arguments", [{}, {"hand_on": 300, "invisible": "PT10M"}])
def test_enough_unpaid_orders_among_paid_ones_are_found(broker: Broker, arguments: dict[str, object]) -> None:
    broker.create_topic("one-queue", queues=1)
    began = datetime.now(UTC) - timedelta(hours=2)
    due = {"body": b"", "delay": timedelta(hours=1)}
    with Broker(broker.dsn, clock=lambda: began) as before:
        for _ in range(20):
            before.send_many("one-queue", [due | {"tag": "paid"}] * 990 + [due] * 10)
        before.recall_many("one-queue", tag="paid")
    found = sensor(topic="one-queue", min_messages=300, **arguments).execute(in_a_task())
    assert found["ready"] == (200 if arguments else pytest.approx(100, abs=60))


@pytest.mark.parametrize("arguments", [{}, {"hand_on": 3, "invisible": "PT10M"}])
@pytest.mark.parametrize("tags", ["*", "due"])
def test_it_finds_a_message_behind_any_number_of_others(
    broker: Broker, arguments: dict[str, object], tags: str
) -> None:
    """More than a look reads: recalled ones, or ones with another tag."""
    broker.create_topic("one-queue", queues=1)
    began = datetime.now(UTC) - timedelta(hours=2)
    with Broker(broker.dsn, clock=lambda: began) as before:
        paid = {"body": b"", "delay": timedelta(hours=1), "tag": "paid"}
        before.send_many("one-queue", [paid] * 21_000)
        if tags == "*":
            before.recall_many("one-queue", tag="paid")
        before.send("one-queue", b"due", delay=timedelta(minutes=70), tag="due")
    waiting = sensor(topic="one-queue", tags=tags, **arguments)
    assert waiting.execute(in_a_task())["ready"] == 1
    if not arguments:
        (message,) = broker.consumer("one-queue", "g", tags=tags).receive()
        assert (message.body, message.attempt) == (b"due", 1)


def test_it_defers_behind_any_number_that_it_does_not_choose(broker: Broker) -> None:
    broker.create_topic("one-queue", queues=1)
    broker.send_many("one-queue", [{"body": b"", "delay_level": 0, "tag": "paid"}] * 10_100)
    with pytest.raises(TaskDeferred):
        sensor(topic="one-queue", tags="due").execute(in_a_task())
    (doorbell,) = broker.doorbells(["one-queue"], ["g"])
    assert (doorbell.ready, doorbell.more) == (0, False), "so that nothing wakes it in vain"


def test_the_group_that_it_makes_begins_where_it_is_told_to(broker: Broker) -> None:
    broker.send("orders", b"old", delay_level=0)
    broker.tick("orders")
    with pytest.raises(TaskDeferred):
        sensor(start="latest").execute(CONTEXT)
    broker.send("orders", b"new", delay_level=0)
    assert sensor(start="latest").execute(CONTEXT)["ready"] == 1


def test_its_trigger_makes_a_deleted_group_at_the_sensors_start() -> None:
    with pytest.raises(TaskDeferred) as deferred:
        sensor(start=datetime(2030, 1, 5, tzinfo=UTC)).execute(CONTEXT)
    assert deferred.value.trigger.serialize()[1]["start"] == "2030-01-05T00:00:00+00:00"


def test_an_instant_from_which_a_group_begins_may_be_templated(broker: Broker) -> None:
    broker.send("orders", b"old", delay_level=0)
    waiting = sensor(start="{{ begin }}")
    waiting.render_template_fields(cast("Context", {"begin": "2030-01-05T01:00:00+01:00"}))
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(CONTEXT)
    assert deferred.value.trigger.serialize()[1]["start"] == "2030-01-05T00:00:00+00:00"
    assert broker.doorbells(["orders"], ["g"])[0].ready == 0, "the message is older"
    waiting.start = "tomorrow"
    with pytest.raises(InvalidArgument, match="start must be"):
        waiting.execute(CONTEXT)


@pytest.mark.parametrize(
    "start", ["2030-01-05T01:00:00+01:00", datetime(2030, 1, 5, tzinfo=UTC), 1_893_801_600_000]
)
def test_an_instant_from_which_a_group_begins_may_be_text(start: Any) -> None:
    assert sensor(start=start).start == datetime(2030, 1, 5, tzinfo=UTC)
    with pytest.raises(
        InvalidArgument, match="an instant is an aware datetime, ISO 8601 with an offset such"
    ):
        sensor(start="2030-01-05T01:00:00")


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
            "tags": None,
            "filter": None,
            "start": "earliest",
        },
    )
    assert deferred.value.method_name == "execute_complete"
    assert timedelta(0) < deferred.value.timeout <= timedelta(seconds=100)


def test_it_polls_after_a_wake_up_and_defers_again_if_too_late(broker: Broker) -> None:
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
    with pytest.raises(AirflowSensorTimeout, match="at most 0 messages were ready for group g at any poll"):
        sensor().execute_complete(CONTEXT, woken, deadline=time.time())


@pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
def test_a_timeout_at_the_first_poll_is_a_skip_if_asked(option: str) -> None:
    with pytest.raises(AirflowSensorTimeout):
        sensor(timeout=0).execute(CONTEXT)
    with pytest.raises(AirflowSkipException, match="at most 0 messages were ready"):
        sensor(timeout=0, **{option: True}).execute(CONTEXT)


def test_poking_returns_ready_messages(broker: Broker) -> None:
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
    assert not sensor(deferrable=False, group="paid", tags="paid").poke(CONTEXT)
    assert not sensor(deferrable=False, group="dear", filter="$.amount > 5").poke(CONTEXT)
    both: dict[str, object] = {"group": "both", "tags": "paid || open", "filter": "$.amount < 10"}
    assert sensor(**both).execute(CONTEXT)["ready"] == 1
    with pytest.raises(InvalidArgument, match="this consumer names"):
        sensor(group="both", tags="paid").execute(CONTEXT)
    with pytest.raises(TaskDeferred) as deferred:
        sensor(group="paid", tags="paid", min_messages="1").execute(CONTEXT)
    assert deferred.value.trigger.tags == "paid"


@pytest.fixture
def gone(connection: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server at the address of the connection."""
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json("host=/nowhere dbname=gone"))


@pytest.mark.usefixtures("gone")
def test_x14_an_outage_makes_a_sensor_keep_waiting() -> None:
    assert not sensor(deferrable=False).poke(CONTEXT)
    woken = {"topic": "orders", "group": "g", "ready": 1, "oldest_deliver_at": None}
    with pytest.raises(TaskDeferred):
        sensor().execute_complete(CONTEXT, woken, time.time() + 100)
    with pytest.raises(BrokerUnreachable):
        sensor().execute(CONTEXT)


@pytest.mark.slow
def test_x18_a_poll_of_a_locked_group_has_no_result(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_messages, "POLL_SECONDS", 0.5)
    broker.send("orders", b"x", delay_level=0)
    with connected(broker.dsn, autocommit=False) as open_:
        ask(open_, "select duewheel.update_topic('orders', retention => '80 hours')")
        assert not sensor(deferrable=False).poke(CONTEXT)
        with pytest.raises(TaskDeferred):
            sensor().execute(CONTEXT)
    assert sensor(deferrable=False).poke(CONTEXT)


@pytest.mark.parametrize(
    "arguments",
    [{"group": "my group"}, {"tags": "a b"}, {"filter": "amount > 5"}, {"min_messages": 0}, {"topic": "a b"}],
)
def test_a_mistake_is_refused_when_the_dag_is_read(arguments: dict[str, object]) -> None:
    with pytest.raises(DueWheelError):
        sensor(**arguments)


def test_it_names_what_it_found_and_takes_nothing(broker: Broker) -> None:
    sent = broker.send("orders", b"x", delay_level=0, key="4711", tag="late", properties={"amount": 5})
    broker.send("orders", b"x", delay_level=0, key="4712", tag="late")
    found = sensor(group="few", hand_on=10, tags="late", filter="$.amount == 5").execute(CONTEXT)
    assert found["messages"] == [{"message_id": sent.message_id, "key": "4711", "tag": "late"}]
    assert len(sensor(hand_on=1).execute(CONTEXT)["messages"]) == 1
    assert len(broker.consumer("orders", "g").receive()) == 2


@pytest.mark.parametrize("invisible", [None, "PT10M"])
def test_it_hands_on_what_the_messages_say(broker: Broker, invisible: str | None) -> None:
    bodies = {"json": {"order": [4711, None]}, "text": "ü\\u0000", "bytes": b"x", "nul": "\0", "null": None}
    broker.send_many(
        "orders", [{"body": body, "delay": timedelta(0), "key": key} for key, body in bodies.items()]
    )
    typed = {"content-type": "application/json"}
    for key, body in (("broken", b"{"), ("nan", b"NaN")):
        broker.send("orders", body, delay_level=0, key=key, properties=typed)
    found = sensor(hand_on=10, invisible=invisible, hand_on_values=True).execute(CONTEXT)
    values = {message["key"]: message["value"] for message in found["messages"]}
    none = dict.fromkeys(("bytes", "nul", "null", "broken", "nan"))
    assert values == {"json": {"order": [4711, None]}, "text": "ü\\u0000", **none}
    assert json.loads(json.dumps(found)) == found


def test_x09_what_it_found_is_leased_to_the_task_behind_it(broker: Broker) -> None:
    broker.send("orders", b"x", delay_level=0, key="4711")
    found = json.loads(json.dumps(sensor(hand_on=10, invisible="PT10M").execute(CONTEXT)))
    assert [message["key"] for message in found["messages"]] == ["4711"]
    consumer = broker.consumer("orders", "g")
    assert not consumer.receive()
    consumer.ack(from_json(found["leases"]))
    assert broker.history(found["messages"][0]["message_id"])[-1].state == "Acked"


def test_x09_the_next_try_hands_on_the_leases_of_the_one_before(broker: Broker) -> None:
    sent = broker.send("orders", b"x", delay_level=0)
    for try_number in (1, 2):
        found = sensor(hand_on=10, invisible="PT10M", deferrable=False).execute(in_a_task(try_number))
        assert found["messages"][0]["message_id"] == sent.message_id
    broker.consumer("orders", "g").ack(from_json(found["leases"]))


def in_a_task(try_number: int = 1) -> Context:
    """What Airflow tells a task instance."""
    names = {"dag_id": "dag", "run_id": "run", "task_id": "wait", "map_index": -1}
    return cast("Context", {"ti": SimpleNamespace(**names, try_number=try_number)})


def test_x14_a_lease_whose_answer_was_lost_is_handed_on_next(broker: Broker) -> None:
    sent = broker.send("orders", b"x", delay_level=0)
    # What the database does with a receive that it carries out and whose answer the worker never gets.
    broker.consumer("orders", "g", name=task_key(in_a_task())).receive(invisible=timedelta(hours=12))
    told = sensor(hand_on=10, invisible="PT10M", deferrable=False).poke(in_a_task())
    assert told.is_done
    found = told.xcom_value
    assert [message["message_id"] for message in found["messages"]] == [sent.message_id]
    assert (found["ready"], found["oldest_deliver_at"]) == (1, sent.deliver_at.isoformat())
    broker.consumer("orders", "g").ack(from_json(found["leases"]))


@pytest.mark.parametrize(("wanted", "hand_on", "is_enough"), [(3, 10, False), (3, 2, True), (2, 10, True)])
def test_x09_it_leases_enough_or_nothing_among_other_consumers(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, wanted: int, hand_on: int, is_enough: bool
) -> None:
    broker.send_many("orders", [{"body": b"x", "delay_level": 0}] * 3)
    other = broker.consumer("orders", "g")
    look = watching.poll

    def and_then_somebody_comes(*arguments: Any, **options: Any) -> Any:
        seen = look(*arguments, **options)
        assert len(other.receive(max_messages=1)) == 1
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(watching, "poll", and_then_somebody_comes)
        asked = sensor(min_messages=wanted, hand_on=hand_on, invisible="PT10M", deferrable=False)
        told = asked.poke(in_a_task())
    assert told.is_done is is_enough
    left = other.receive()
    if is_enough:
        assert told.xcom_value["ready"] == len(told.xcom_value["messages"]) == 2
        assert not left
    else:
        assert [message.attempt for message in left] == [1, 1]


@pytest.mark.parametrize(
    "arguments",
    [
        {"invisible": "PT10M"},
        {"hand_on_values": True},
        {"hand_on": 1001},
        {"hand_on": 1, "invisible": 30},
        {"hand_on": "{{ 1 }}"},
    ],
)
def test_a_mistake_in_handing_on_is_refused_when_the_dag_is_read(arguments: dict[str, object]) -> None:
    with pytest.raises(DueWheelError):
        sensor(**arguments)


@pytest.mark.parametrize("deferrable", [True, False])
def test_it_defers_as_airflow_is_told_to(monkeypatch: pytest.MonkeyPatch, deferrable: bool) -> None:
    assert sensor(deferrable=None).deferrable is False
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", str(deferrable))
    assert sensor(deferrable=None).deferrable is deferrable
    assert sensor(deferrable=not deferrable).deferrable is not deferrable


def test_it_links_to_the_messages_of_its_topic() -> None:
    sensor = DueMessagesSensor(task_id="wait", topic="orders", group="g")
    (link,) = sensor.operator_extra_links
    assert "view=messages&topic=orders" in link.get_link(sensor, ti_key=cast("Any", None))
