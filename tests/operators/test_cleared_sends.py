"""A task that sends, and was cleared: what waits afterwards."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from tests.operators.tasks import a_try

from duewheel.operators.send import SendDelayMessageOperator
from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    from duewheel.store import Broker

HOUR = timedelta(hours=1)

pytestmark = pytest.mark.usefixtures("orders")


def send(cleared_after: int, resend: str = "if_recalled", **arguments: str) -> str:
    """A try of a task with two retries, which had so many tries when it was last cleared."""
    sending = SendDelayMessageOperator(
        task_id="send", topic="orders", body=b"1", delay=HOUR, retries=2, resend=resend, **arguments
    )
    return sending.execute(a_try(retries=2 + cleared_after, task_id="send"))


def test_x07_a_cleared_send_after_a_recall_sends_again(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    first = send(0)
    assert send(1) == first, "which waits"
    assert f"message {first} was sent before and is waiting until" in capsys.readouterr().out
    broker.recall(first)
    assert send(0) == first, "a retry never sends again"
    assert f"message {first} was sent before and is recalled" in capsys.readouterr().out
    second = send(2)
    assert second != first
    assert send(2) == second
    broker.recall(second)
    assert send(2) == second, "nor does a retry after the clear"
    third = send(5)
    assert third not in {first, second}
    assert send(6) == third, "which waits"
    assert [message.message_id for message in broker.list_messages("orders").messages] == [third]


def test_x07_resend_decides_what_a_cleared_send_does(broker: Broker) -> None:
    first = send(0, "never")
    broker.recall(first)
    assert send(1, "never") == first
    own = send(0, idempotency_key="own")
    broker.recall(own)
    assert send(2, idempotency_key="own") == own
    second = send(3, "on_clear")
    third = send(4, "on_clear")
    assert len({first, second, third}) == 3
    assert send(4, "on_clear") == third


def test_resend_is_one_of_three_words() -> None:
    with pytest.raises(InvalidArgument, match="resend 'always' is not known: give one of 'never'"):
        send(0, "always")
