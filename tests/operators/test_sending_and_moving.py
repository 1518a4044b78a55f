"""Sending many, moving and redriving, each in a task; tests/operators/test_in_airflow.py runs them inside
Airflow."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.callback import CallbackTrigger
from tests.operators.tasks import a_try

from duewheel.operators.decorators import due_messages_task, spark_due_messages_task
from duewheel.operators.notifier import SendDelayMessageNotifier
from duewheel.operators.redrive import RedriveDeadLettersOperator
from duewheel.operators.reschedule import RescheduleMessageOperator
from duewheel.operators.send_many import SendDelayMessagesOperator
from duewheel.store import RetryPolicy
from duewheel.store.values.errors import DueWheelError, InvalidArgument

if TYPE_CHECKING:
    from duewheel.store import Broker

CONTEXT = a_try(task_id="send")
HOUR = timedelta(hours=1)


pytestmark = pytest.mark.usefixtures("orders")


def send_many(messages: Any, **arguments: Any) -> list[str]:
    """Send them as a task does."""
    sending = SendDelayMessagesOperator(task_id="send", topic="orders", messages=messages, **arguments)
    return sending.execute(CONTEXT)


def test_x07_many_messages_are_sent_once_over_two_tries(broker: Broker) -> None:
    messages = [{"body": number, "key": f"k{number}"} for number in range(500)]
    first = send_many(messages, delay=HOUR)
    assert send_many(messages, delay=HOUR) == first
    assert broker.stats().topics[0].waiting == 500


def test_x07_a_second_run_with_another_list_sends_new_messages(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    first = send_many([{"body": 1}, {"body": 2, "idempotency_key": None}], delay=HOUR)
    again = send_many([{"body": 0}, {"body": 2}, {"body": 1, "key": "k"}, {"body": 1}], delay=HOUR)
    assert again[1::2] == [first[1], first[0]]
    assert broker.stats().topics[0].waiting == 4
    assert "Sent 2 messages to topic orders; 2 of the list had been sent before" in capsys.readouterr().out


def test_x07_equal_messages_are_all_sent(broker: Broker) -> None:
    ladder = [{"body": b"pay", "delay": hours * HOUR} for hours in (1, 2, 2)]
    assert len(set(send_many(ladder))) == 3
    assert len({*send_many(ladder), *send_many([*ladder, ladder[1]])}) == 4


def test_many_messages_say_each_when_they_are_due(broker: Broker) -> None:
    ids = send_many(
        [{"body": b"1", "delay": "PT2H"}, {"body": b"2"}, {"body": b"3", "delay_level": "3"}], delay=HOUR
    )
    due = [found.deliver_at - found.born_at for each in ids if (found := broker.find(each)) is not None]
    assert due[:2] == [2 * HOUR, HOUR]
    assert due[2] == timedelta(seconds=10)


def test_without_idempotency_they_are_sent_again(broker: Broker) -> None:
    for _ in range(2):
        send_many([{"body": b"1"}], delay=HOUR, idempotent=False)
    assert len(send_many(({"body": n} for n in range(3)), delay=HOUR)) == 3
    assert broker.stats().topics[0].waiting == 5


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("text", "message 1: is a str: give a mapping"),
        ({"bdy": 1}, "message 1: has the unknown name 'bdy': choose from body"),
        ({"key": "k"}, "message 1: has no body"),
        ({"body": 1, "delay": 30}, "message 1: delay is an int, not a span of time"),
        ({"body": 1, "on_conflict": "replce"}, "message 1: on_conflict 'replce' is not known"),
    ],
)
def test_a_mistake_in_one_of_many_is_said_with_its_place(message: Any, said: str) -> None:
    with pytest.raises(DueWheelError, match=re.escape(said)):
        SendDelayMessagesOperator(task_id="send", topic="orders", messages=[{"body": 1}, message], delay=HOUR)


def test_x03_a_message_is_moved_by_its_id_or_its_key(broker: Broker) -> None:
    sent = broker.send("orders", b"1", delay=HOUR, key="4711")
    moved = RescheduleMessageOperator(task_id="move", message_id=sent.message_id, delay="PT2H").execute(
        CONTEXT
    )
    assert isinstance(moved, str)
    (again,) = RescheduleMessageOperator(task_id="move", topic="orders", key="4711", delay=3 * HOUR).execute(
        CONTEXT
    )
    found = broker.find(again)
    assert found is not None
    assert found.deliver_at > sent.deliver_at + HOUR


def test_x03_x07_the_next_try_finds_the_moved_message(broker: Broker) -> None:
    sent = broker.send("orders", b"1", delay=HOUR)

    def move(delay: str) -> str | list[str]:
        return RescheduleMessageOperator(task_id="move", message_id=sent.message_id, delay=delay).execute(
            CONTEXT
        )

    moved = move("PT2H")
    assert move("PT2H") == moved
    assert [each.message_id for each in broker.list_messages("orders", state="waiting").messages] == [moved]
    # Cleared and run again with another delay, the task moves it on from where it is.
    again = move("PT3H")
    assert again != moved
    assert [each.message_id for each in broker.list_messages("orders", state="waiting").messages] == [again]


def test_x03_x07_the_next_try_finds_messages_moved_by_key(broker: Broker) -> None:
    for _ in range(3):
        broker.send("orders", b"1", delay=HOUR, key="4711")

    def move(delay: str) -> list[str]:
        moving = RescheduleMessageOperator(task_id="move", topic="orders", key="4711", delay=delay)
        moved = moving.execute(CONTEXT)
        assert isinstance(moved, list)
        return moved

    moved = move("PT2H")
    # Sent between the two tries, which mean one move.
    late = broker.send("orders", b"1", delay=HOUR, key="4711").message_id
    assert move("PT2H") == moved
    waiting = [each.message_id for each in broker.list_messages("orders", state="waiting").messages]
    assert sorted(waiting) == sorted([*moved, late])
    # With another instant it is another move.
    assert len(move("PT3H")) == 4


def test_x07_a_late_move_uses_up_no_idempotency_key(broker: Broker) -> None:
    with pytest.raises(AirflowFailException, match="4711"):
        RescheduleMessageOperator(task_id="move", topic="orders", key="4711", delay=HOUR).execute(CONTEXT)
    sent = broker.send("orders", b"1", delay=HOUR, key="4711")
    moved = RescheduleMessageOperator(task_id="move", topic="orders", key="4711", delay=HOUR).execute(CONTEXT)
    assert moved != [sent.message_id]


@pytest.mark.parametrize(
    "arguments",
    [
        {"topic": "t", "key": "k"},
        {"topic": "t", "key": "k", "delay": HOUR, "deliver_at": 0},
        {"topic": "t", "delay": HOUR},
        {"topic": "a b", "key": "k", "delay": HOUR},
        {"topic": "t", "key": "k", "delay": 30},
    ],
)
def test_a_mistake_in_a_move_is_refused_when_the_dag_is_read(arguments: dict[str, Any]) -> None:
    with pytest.raises(DueWheelError):
        RescheduleMessageOperator(task_id="move", **arguments)


def test_r14_x12_dead_letters_are_given_back_once(broker: Broker) -> None:
    broker.send("orders", b"1", delay_level=0, key="4711")
    once = broker.consumer("orders", "g", retry=RetryPolicy.unordered(max_retries=0))
    once.nack(once.receive(), reason="no such order")
    redrive = {"task_id": "again", "group": "g", "reason_contains": "no such", "max_messages": "10"}
    assert RedriveDeadLettersOperator(**redrive, dry_run=True).execute(CONTEXT) == {
        "matched": 1,
        "redriven": 0,
    }
    lacking = {"reason_lacks": "order", "dry_run": True}
    assert RedriveDeadLettersOperator(**redrive, **lacking).execute(CONTEXT)["matched"] == 0
    assert RedriveDeadLettersOperator(**redrive).execute(CONTEXT) == {"matched": 1, "redriven": 1}
    assert RedriveDeadLettersOperator(**redrive).execute(CONTEXT) == {"matched": 0, "redriven": 0}
    with pytest.raises(DueWheelError):
        RedriveDeadLettersOperator(**{**redrive, "dead_from": "yesterday"})


def test_a_decorated_function_needs_room_for_what_it_is_given() -> None:
    def nothing() -> None:
        """Take nothing."""

    for decorate in (due_messages_task, spark_due_messages_task):
        with pytest.raises(InvalidArgument, match="has no first parameter for the messages"):
            decorate(topic="orders", group="g")(nothing)


def test_a_method_is_no_task() -> None:
    class Shop:
        def cancel(self) -> None:
            """Take no messages."""

    with pytest.raises(InvalidArgument, match=r"cancel\(self\).* is a method.*: decorate a function"):
        due_messages_task(topic="orders", group="g")(Shop.cancel)


def test_a_decorated_function_is_looked_at_with_what_it_is_given() -> None:
    def by_region(messages: object, region: str, ds: str) -> None:
        """Take what the call in the DAG gives."""

    def with_consumer(batch: object, consumer: object) -> None:
        """Ask for what Spark's operator has not."""

    due_messages_task(topic="orders", group="g")(by_region)("north")
    with pytest.raises(
        InvalidArgument, match=r"start must be .earliest., .latest. or an instant; got .earlyest."
    ):
        due_messages_task(topic="orders", group="g", start="earlyest")(by_region)("north")
    with pytest.raises(InvalidArgument, match=r"with_consumer.* missing a required argument: 'consumer'"):
        spark_due_messages_task(topic="orders", group="g")(with_consumer)()


def test_two_callbacks_of_a_task_send_a_message_each(broker: Broker) -> None:
    for delay in ("PT1H", "PT20H"):
        SendDelayMessageNotifier(topic="orders", body="look again", delay=delay, key="alert").notify(CONTEXT)
    hours = [(found.deliver_at - found.born_at) / HOUR for found in broker.find_key("orders", "alert")]
    assert sorted(hours) == [1, 20]


@pytest.mark.parametrize("given", [5, None, "abc", {"body": b"1"}])
def test_a_wrong_list_of_messages_is_an_import_error(given: object) -> None:
    with pytest.raises(InvalidArgument, match="give a list of mappings"):
        send_many(given, delay=HOUR)


@pytest.mark.parametrize(
    ("rendered", "said"),
    [
        ("[{'body': 1}]", "messages was rendered to text: give the other task's result itself, as in"),
        (None, "messages is None: give a list of mappings"),
        ({"body": 1}, "messages is a dict: give a list of mappings"),
    ],
)
def test_messages_that_are_not_a_list_fail_when_the_task_runs(rendered: object, said: str) -> None:
    sending = SendDelayMessagesOperator(
        task_id="send", topic="orders", messages="{{ ti.xcom_pull(task_ids='listed') }}"
    )
    sending.messages = rendered
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        sending.execute(CONTEXT)


def test_x07_an_async_callback_sends_once_for_each_deadline(broker: Broker) -> None:
    late = {"topic": "orders", "body": "late", "delay": "PT1H", "key": "{{ dag_run.run_id }}"}

    async def call_back(deadline: str) -> list[str]:
        context = {"dag_run": {"run_id": "late"}, "deadline": {"id": deadline}}
        trigger = CallbackTrigger(
            "duewheel.operators.notifier.SendDelayMessageNotifier", {**late, "context": context}
        )
        return [event.payload["state"] async for event in trigger.run()]

    for deadline in ("first", "first", "second"):
        assert asyncio.run(call_back(deadline)) == ["running", "success"]
    assert len(broker.find_key("orders", "late")) == 2


def test_x04_a_callback_sends_once_for_each_try(broker: Broker) -> None:
    notifier = SendDelayMessageNotifier(topic="orders", body="look again", delay="PT1H", key="alert")
    for _ in range(2):
        notifier.notify(CONTEXT)
    (found,) = broker.find_key("orders", "alert")
    assert bytes(found.body) == b"look again"
    assert found.properties == {
        "content-type": "text/plain; charset=utf-8",
        "sent_by_task": "airflow:dag/run/send/-1",
    }
    with pytest.raises(DueWheelError):
        SendDelayMessageNotifier(topic="orders", body="x", delay=30)  # type: ignore[arg-type]  # the mistake
