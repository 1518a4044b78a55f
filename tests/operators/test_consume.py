"""Consuming: the lease, the ack after the work, and what happens when the work fails."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException
from tests.airflow_runs import connection_json
from tests.leasing import LEASE, consumer_at, extend_often, wait_for_extensions

from duewheel.operators.consume import ConsumeMessagesOperator
from duewheel.store.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from duewheel.store import Broker, Consumer, Message

CONTEXT = Context()


@pytest.fixture
def consumer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Consumer:
    """A consumer beside the operator, of the same group, on a topic with three ready messages."""
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(broker.dsn))
    broker.create_topic("orders", queues=1)
    for number in range(3):
        broker.send("orders", str(number), delay_level=0)
    return broker.consumer("orders", "g")


def operator(work: Callable[..., Any], **arguments: Any) -> ConsumeMessagesOperator:
    """An operator that does ``work``."""
    return ConsumeMessagesOperator(
        task_id="consume", **{"topic": "orders", "group": "g", "python_callable": work, **arguments}
    )


def states(broker: Broker, message_id: str) -> list[str]:
    """What became of a message for the group."""
    return [entry.state for entry in broker.history(message_id) if entry.consumer_group == "g"]


def test_x09_the_ack_comes_after_the_work(broker: Broker, consumer: Consumer) -> None:
    seen: list[list[str]] = []

    def work(messages: Sequence[Message], *, factor: int) -> int:
        seen.extend(states(broker, message.message_id) for message in messages)
        return factor * sum(int(message.body) for message in messages)

    assert operator(work, op_kwargs={"factor": 10}).execute(CONTEXT) == 30
    assert [each[-1] for each in seen] == ["Inflight"] * 3
    assert not consumer.receive()


def test_x11_work_may_take_longer_than_the_lease(
    broker: Broker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(messages: Sequence[Message]) -> str:
        first_end = max(message.lease.expires_at for message in messages)
        assert consume._held is not None
        wait_for_extensions(consume._held.keeper, 5)
        with consumer_at(broker, consumer, first_end + timedelta(milliseconds=1)) as late:
            assert not late.receive()
        return messages[0].message_id

    extend_often(monkeypatch)
    consume = operator(work, invisible=LEASE)
    message_id = consume.execute(CONTEXT)
    assert states(broker, message_id)[-1] == "Acked"


def test_r03_what_failed_is_nacked_with_the_reason(broker: Broker, consumer: Consumer) -> None:
    ids: list[str] = []

    def work(messages: Sequence[Message]) -> None:
        ids.extend(message.message_id for message in messages)
        raise ZeroDivisionError("no orders")

    with pytest.raises(ZeroDivisionError):
        operator(work).execute(CONTEXT)
    for message_id in ids:
        (*_, last) = (entry for entry in broker.history(message_id) if entry.consumer_group == "g")
        assert last.state == "WaitingRetry"
        assert last.reason == "ZeroDivisionError: no orders"


def test_x10_a_lease_that_was_lost_during_the_work_fails_the_task(consumer: Consumer) -> None:
    def work(messages: Sequence[Message]) -> None:
        consumer.nack(messages, delay=timedelta(0))

    with pytest.raises(LeaseLost):
        operator(work).execute(CONTEXT)
    assert len(consumer.receive()) == 3


def test_r03_an_error_of_the_work_is_kept_though_the_lease_was_lost(consumer: Consumer) -> None:
    def work(messages: Sequence[Message]) -> None:
        consumer.nack(messages, delay=timedelta(0))
        raise ZeroDivisionError("no orders")

    with pytest.raises(ZeroDivisionError):
        operator(work).execute(CONTEXT)


def test_x09_a_kill_pulls_the_lease_back_and_the_work_cannot_ack_any_more(consumer: Consumer) -> None:
    killed = operator(lambda messages: killed.on_kill())
    with pytest.raises(LeaseLost):
        killed.execute(CONTEXT)
    again = consumer.receive()
    assert [message.attempt for message in again] == [2, 2, 2]


def test_a_kill_before_or_after_the_work_changes_nothing(consumer: Consumer) -> None:
    idle = operator(len)
    idle.on_kill()
    idle = operator(len)
    assert idle.execute(CONTEXT) == 3
    idle.on_kill()
    assert not consumer.receive()


def test_d12_only_the_tags_that_are_asked_for_are_given(broker: Broker, consumer: Consumer) -> None:
    broker.send("orders", b"4", tag="late", delay_level=0)
    assert operator(len, group="tagged", tags="late").execute(CONTEXT) == 1


def test_d12_only_what_the_filter_chooses_is_given(broker: Broker, consumer: Consumer) -> None:
    for amount in (5, 500):
        broker.send("orders", b"", properties={"amount": amount}, delay_level=0)
    assert operator(len, group="dear", filter="amount > 100").execute(CONTEXT) == 1


def test_nothing_ready_returns_none_or_skips(consumer: Consumer) -> None:
    consumer.ack(consumer.receive())
    assert operator(len).execute(CONTEXT) is None
    with pytest.raises(AirflowSkipException):
        operator(len, skip_if_empty=True).execute(CONTEXT)


def test_a_longest_number_of_messages_is_kept(consumer: Consumer) -> None:
    assert operator(len, max_messages=2).execute(CONTEXT) == 2
    assert operator(len, max_messages=2).execute(CONTEXT) == 1
