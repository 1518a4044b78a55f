"""Dead letters: what is kept, and sending them again, each once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from tests.acting import AT_ONCE, HOUR, SECOND
from tests.clock import NOW, Clock
from tests.waiting import ask, beside, connected, until

from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.operations import dead_letters
from duewheel.store.values.bulk_results import Redriven
from duewheel.store.values.errors import (
    InvalidArgument,
    InvalidInstant,
    NulInText,
    UnknownGroup,
    UnknownTopic,
)
from duewheel.store.values.retry_policy import RetryPolicy

NO_RETRIES = RetryPolicy.unordered(max_retries=0)


def with_sleep(sleep: Callable[[float], None]) -> SimpleNamespace:
    """The module ``time`` as a redrive uses it; other threads of the tests go on with theirs."""
    return SimpleNamespace(monotonic=time.monotonic, sleep=sleep)


def consumer_of(broker: Broker, name: str = "t", group: str = "g") -> Consumer:
    return broker.consumer(name, group, retry=NO_RETRIES)


def kill(
    broker: Broker, names: Iterable[str], reason: str = "no stock", topic: str = "t", **given: Any
) -> list[str]:
    """Send messages with these keys and bodies, and let them fail for good; their ids."""
    receipts = broker.send_many(
        topic, [{"body": name.encode(), "key": name, "delay": timedelta(0), **given} for name in names]
    )
    consumer = consumer_of(broker, topic)
    while batch := consumer.receive(max_messages=1_000):
        consumer.nack(batch, reason=reason)
    return [receipt.message_id for receipt in receipts]


def received(broker: Broker, topic: str = "t") -> list[str]:
    consumer = consumer_of(broker, topic)
    found = []
    while batch := consumer.receive(max_messages=1_000):
        found += [message.body.decode() for message in batch]
        consumer.ack(batch)
    return sorted(found)


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    timed_broker.create_topic("t", queues=1)
    consumer_of(timed_broker)
    return timed_broker


def test_x12_a_dead_letter_and_its_history_say_what_became_of_it(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g", retry=RetryPolicy.unordered(max_retries=1))
    identity = topic.send("t", b"a", delay=AT_ONCE, key="k", tag="x", properties={"p": 1}).message_id
    for number in range(2):
        consumer.nack(consumer.receive(), delay=AT_ONCE, reason=f"ValueError: try {number}\nline two")
    (letter,) = topic.dead_letters("g")
    assert (letter.message_id, letter.attempt, letter.reason) == (identity, 2, "ValueError: try 1\nline two")
    assert (letter.born_at, letter.redriven_at) == (NOW, None)
    assert NOW <= letter.dead_at < NOW + SECOND
    clock.advance(HOUR)
    assert topic.redrive("g") == Redriven(1, 1)
    assert topic.redrive("g") == Redriven(0, 0)
    (letter,) = topic.dead_letters("g")
    assert letter.redriven_at == NOW + HOUR
    clock.advance(SECOND)
    (message,) = batch = consumer.receive()
    assert (message.message_id, message.body, message.key, message.tag) == (identity, b"a", "k", "x")
    assert (message.properties, message.attempt, message.born_at) == ({"p": 1}, 3, NOW)
    consumer.ack(batch)
    entries = topic.history(identity)
    reasons = [one.reason for one in entries if one.state == "WaitingRetry"]
    assert reasons[1:] == ["redriven: ValueError: try 1\nline two"]
    assert [(one.state, one.attempt, one.at) for one in entries[-6:]] == [
        ("Inflight", 2, NOW),
        ("DLQ", 2, NOW),
        ("WaitingRetry", 3, NOW + HOUR),
        ("Ready", 3, NOW + HOUR + SECOND),
        ("Inflight", 3, NOW + HOUR + SECOND),
        ("Acked", 3, NOW + HOUR + SECOND),
    ]


def test_x12_a_redriven_message_that_fails_is_a_dead_letter_again(topic: Broker, clock: Clock) -> None:
    (identity,) = kill(topic, ["a"])
    for number in (2, 3):
        clock.advance(HOUR)
        assert topic.redrive("g") == Redriven(1, 1)
        consumer = consumer_of(topic)
        consumer.nack(consumer.receive(), reason=f"failed {number}")
    letters = topic.dead_letters("g")
    assert [(letter.message_id, letter.attempt, letter.reason) for letter in letters] == [
        (identity, 1, "no stock"),
        (identity, 2, "failed 2"),
        (identity, 3, "failed 3"),
    ]
    assert topic.dead_letters("g", redriven=False) == letters[2:]
    assert topic.dead_letters("g", redriven=True) == letters[:2]
    (numbers,) = topic.stats().topics
    assert [group.dead for group in numbers.groups] == [1]


def test_x12_what_dies_during_a_redrive_is_left_alone(topic: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything fails again at once, by the clock in the same instant: no endless loop."""
    monkeypatch.setattr(dead_letters, "CHUNK", 2)
    kill(topic, "abcde")
    consumer = consumer_of(topic)

    def fail_again(seconds: float) -> None:
        consumer.nack(consumer.receive(), reason="again")

    monkeypatch.setattr(dead_letters, "time", with_sleep(fail_again))
    assert topic.redrive("g", per_second=1_000) == Redriven(5, 5)
    assert len(topic.dead_letters("g", redriven=False)) == 4


#: How many of six dead letters each of these means.
COUNTS: list[tuple[dict[str, Any], int]] = [
    ({}, 6),
    ({"tag": "x"}, 2),
    ({"tag": "none"}, 0),
    ({"key_prefix": "a"}, 1),
    ({"key_prefix": "%"}, 0),
    ({"reason_contains": "time"}, 2),
    ({"reason_contains": "TIME"}, 0),
    ({"reason_lacks": "time"}, 4),
    ({"reason_contains": "%"}, 2),
    ({"dead_from": NOW + HOUR}, 4),
    ({"dead_until": NOW + HOUR}, 2),
    ({"dead_from": NOW + HOUR, "dead_until": NOW + 2 * HOUR}, 2),
    ({"max_messages": 3}, 3),
    ({"tag": "x", "max_messages": 1}, 1),
    ({"tag": "x", "reason_contains": "time"}, 0),
]
BAD: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"group": "none"}, UnknownGroup),
    ({"topic": "none"}, UnknownTopic),
    ({"message_ids": "0" * 44}, InvalidArgument),
    ({"message_ids": ["xyz"]}, InvalidArgument),
    ({"message_ids": [None]}, InvalidArgument),
    ({"tag": "\0"}, NulInText),
    ({"reason_contains": 5}, InvalidArgument),
    ({"reason_lacks": 5}, InvalidArgument),
    ({"dead_from": NOW, "dead_until": NOW}, InvalidArgument),
    ({"dead_from": datetime(2026, 1, 5)}, InvalidInstant),  # noqa: DTZ001
    ({"max_messages": 0}, InvalidArgument),
    ({"max_messages": 1.5}, InvalidArgument),
    ({"per_second": 0}, InvalidArgument),
    ({"per_second": float("nan")}, InvalidArgument),
    ({"per_second": "5"}, InvalidArgument),
]


def test_x12_a_redrive_chooses(topic: Broker, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "CHUNK", 2)
    a, *_ = (kill(topic, [name])[0] for name in "ab")
    clock.advance(HOUR)
    for name in "cd":
        kill(topic, [name], tag="x")
    clock.advance(HOUR)
    for name in "ef":
        kill(topic, [name], reason="100 % time out")
    for criteria, count in COUNTS:
        assert topic.redrive("g", dry_run=True, **criteria) == Redriven(count, 0), criteria
    for given, error in BAD:
        with pytest.raises(error):
            topic.redrive(**{"group": "g", **given})
    assert received(topic) == []
    ids = [a, "0" * 44]
    for criteria, found in (
        ({"message_ids": ids}, "a"),
        ({"message_ids": ids}, ""),
        ({"message_ids": []}, ""),
        ({"tag": "x", "max_messages": 1}, "c"),
        ({"reason_lacks": "time", "dead_from": NOW + HOUR, "dead_until": NOW + 2 * HOUR}, "d"),
        ({"reason_contains": "%"}, "ef"),
        ({}, "b"),
    ):
        assert topic.redrive("g", **criteria) == Redriven(len(found), len(found)), criteria
        assert received(topic) == list(found), criteria


def test_x12_a_redrive_of_one_topic_or_all_of_a_group(topic: Broker) -> None:
    topic.create_topic("u")
    kill(topic, ["t1", "t2"])
    kill(topic, ["u1", "u2"], topic="u")
    other = topic.consumer("t", "other", retry=NO_RETRIES)
    other.nack(other.receive())
    assert topic.redrive("g", "u", max_messages=1) == Redriven(1, 1)
    assert topic.redrive("g") == Redriven(3, 3)
    assert (received(topic), received(topic, "u")) == (["t1", "t2"], ["u1", "u2"])
    assert len(topic.dead_letters("other", redriven=False)) == 2
    assert not other.receive()


def test_x12_redrives_at_once_send_each_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "CHUNK", 7)
    broker.create_topic("t")
    consumer_of(broker)
    names = [f"{number:03}" for number in range(200)]
    kill(broker, names)
    with beside() as begin:
        runs = [begin(lambda: broker.redrive("g")) for _ in range(4)]
    assert sum(run.result().redriven for run in runs) == 200
    assert received(broker) == names


def test_x24_dead_letters_of_a_deleted_topic_are_neither_listed_nor_redriven(broker: Broker) -> None:
    for name in ("t", "other"):
        broker.create_topic(name)
        consumer_of(broker, name)
    kill(broker, "ab")
    kill(broker, "c", topic="other")
    broker.delete_topic("t")
    assert [letter.key for letter in broker.dead_letters("g")] == ["c"]
    assert broker.redrive("g", dry_run=True).matched == 1


def test_x12_a_redrive_in_an_open_transaction_holds_up_only_the_same_letters(broker: Broker) -> None:
    broker.create_topic("t")
    consumer_of(broker)
    kill(broker, "a", reason="timed out")
    kill(broker, "b")
    with connected(broker.dsn, autocommit=False) as first, connected(broker.dsn) as watcher:
        count = "select matched from duewheel.redrive('g', reason_lacks => 'timed', dry_run => true)"
        assert ask(first, count) == [(1,)]
        assert ask(first, "select * from duewheel.redrive('g', key_prefix => 'a')") == [(1, 1)]
        with beside() as begin:
            second = begin(lambda: broker.redrive("g"))
            until(
                lambda: ask(
                    watcher, "select 1 from pg_locks where locktype = 'transactionid' and not granted"
                ),
                "the second redrive to wait",
            )
            kill(broker, "c")
            first.rollback()
            assert second.result() == Redriven(2, 2)
    assert received(broker) == ["a", "b"]
    assert Counter(letter.redriven_at is None for letter in broker.dead_letters("g")) == {True: 1, False: 2}
