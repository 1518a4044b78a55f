"""Acks of many threads in one call, and one of them that is refused."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from tests.acting import AT_ONCE, HOUR, MILLISECOND, MINUTE, rows
from tests.waiting import PATIENCE_SECONDS, until

from duewheel.store.broker import Broker
from duewheel.store.consuming.joint_acks import JointAcks
from duewheel.store.values.errors import BrokerUnreachable, LeaseLost
from duewheel.store.values.messages import Message

ANSWERS = "select kind, count(*) from duewheel.lease_event group by kind order by kind"


class HeldUp:
    """A consumer's joint acks, whose first call waits until other messages wait for the next."""

    def __init__(self, broker: Broker, *, messages: int) -> None:
        broker.create_topic("t", granularity=MILLISECOND)
        broker.send_many("t", [{"body": b"", "delay": AT_ONCE}] * messages)
        self.consumer = broker.consumer("t", "g")
        self.messages = [self.consumer.receive(1, MINUTE)[0] for _ in range(messages)]
        self.calls: list[int] = []
        self.acks = JointAcks(self.consumer)
        self._ack = self.consumer.ack
        self.consumer.ack = self._noted  # type: ignore[method-assign]

    def _noted(self, messages: Any) -> None:
        self.calls.append(len(messages))
        if len(self.calls) == 1:
            until(lambda: len(self.acks._next) == len(self.messages) - 1, "the others to come")
        self._ack(messages)

    def outcomes(self) -> list[BaseException | None]:
        """What the thread of each message was answered; the first one calls alone."""
        with ThreadPoolExecutor(len(self.messages)) as threads:
            first = threads.submit(self.acks.ack, self.messages[0])
            until(lambda: bool(self.calls), "the first call")
            runs = [first, *(threads.submit(self.acks.ack, message) for message in self.messages[1:])]
            return [run.exception(PATIENCE_SECONDS) for run in runs]


def test_messages_finished_during_an_ack_are_acked_together(broker: Broker) -> None:
    held_up = HeldUp(broker, messages=6)
    assert held_up.outcomes() == [None] * 6
    assert held_up.calls == [1, 5]
    assert rows(broker, ANSWERS) == [("acked", 6)]


def test_x10_one_lost_lease_of_a_joint_ack_spares_the_others(broker: Broker) -> None:
    held_up = HeldUp(broker, messages=6)
    held_up.consumer.nack(held_up.messages[3], HOUR)
    outcomes = held_up.outcomes()
    assert [type(outcome) for outcome in outcomes] == [type(None)] * 3 + [LeaseLost] + [type(None)] * 2
    assert held_up.calls == [1, 5, 1, 1, 1, 1, 1]
    assert rows(broker, ANSWERS) == [("acked", 5), ("failed", 1)]


def test_a_joint_ack_without_a_broker_is_not_tried_for_each(broker: Broker) -> None:
    held_up = HeldUp(broker, messages=3)
    ack = held_up._ack

    def unreachable(messages: list[Message]) -> None:
        if len(messages) > 1:
            raise BrokerUnreachable("no answer")
        ack(messages)

    held_up._ack = unreachable  # type: ignore[assignment]
    assert [type(outcome) for outcome in held_up.outcomes()] == [type(None)] + [BrokerUnreachable] * 2
    assert held_up.calls == [1, 2]


@pytest.mark.slow
def test_x10_a_push_consumer_survives_failed_joint_acks(broker: Broker) -> None:
    broker.create_topic("t", granularity=MILLISECOND)
    broker.send_many("t", [{"body": b"", "key": str(key), "delay": AT_ONCE} for key in range(60)])
    worked, done = Counter[str](), threading.Event()

    def listener(message: Message) -> str:
        key = str(message.key)
        worked[key] += 1
        if int(key) % 5 == 0 and message.attempt == 1:
            # Its ack is refused, together with the acks of the threads that finish now.
            push.consumer.nack(message, timedelta(0))
        if sum(worked.values()) == 72:
            done.set()
        return "success"

    push = broker.push_consumer("t", "g", listener, threads=8)
    with push:
        assert done.wait(PATIENCE_SECONDS)
    assert worked == {str(key): 2 if key % 5 == 0 else 1 for key in range(60)}
    assert not broker.leases(topic="t", group="g")
    assert not broker.consumer("t", "g").receive()
