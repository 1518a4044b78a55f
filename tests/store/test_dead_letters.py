"""Dead letters: what is kept, and sending them again, each once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
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

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
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


def test_r14_a_dead_letter_says_what_failed_and_how_often(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g", retry=RetryPolicy.unordered(max_retries=2))
    receipt = topic.send("t", b"a", delay=timedelta(0), key="k", tag="x", properties={"p": 1})
    for number in range(3):
        consumer.nack(consumer.receive(), delay=timedelta(0), reason=f"ValueError: try {number}\nline two")
    (letter,) = topic.dead_letters("g")
    assert letter.message_id == receipt.message_id
    assert (letter.attempt, letter.reason) == (3, "ValueError: try 2\nline two")
    assert (letter.born_at, letter.redriven_at) == (NOW, None)
    assert NOW <= letter.dead_at < NOW + SECOND


def test_x12_a_redriven_message_keeps_id_attempts_and_error(topic: Broker, clock: Clock) -> None:
    (identity,) = kill(topic, ["a"], tag="x", properties={"p": 1})
    clock.advance(HOUR)
    assert topic.redrive("g") == Redriven(1, 1)
    (letter,) = topic.dead_letters("g")
    assert letter.redriven_at == NOW + HOUR
    consumer = consumer_of(topic)
    (message,) = batch = consumer.receive()
    assert (message.message_id, message.body, message.key, message.tag) == (identity, b"a", "a", "x")
    assert (message.properties, message.attempt, message.born_at) == ({"p": 1}, 2, NOW)
    with connected(topic.dsn) as connection:
        assert ask(connection, "select reason from duewheel.any_message where attempt = 2") == [("no stock",)]
    consumer.ack(batch)
    assert topic.redrive("g") == Redriven(0, 0)


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


@pytest.mark.parametrize(
    ("criteria", "found"),
    [
        ({}, "abcdef"),
        ({"tag": "x"}, "cd"),
        ({"tag": "none"}, ""),
        ({"key_prefix": "a"}, "a"),
        ({"key_prefix": "%"}, ""),
        ({"reason_contains": "time"}, "ef"),
        ({"reason_contains": "TIME"}, ""),
        ({"reason_lacks": "time"}, "abcd"),
        ({"reason_contains": "%"}, "ef"),
        ({"dead_from": NOW + HOUR}, "cdef"),
        ({"dead_until": NOW + HOUR}, "ab"),
        ({"dead_from": NOW + HOUR, "dead_until": NOW + 2 * HOUR}, "cd"),
        ({"max_messages": 3}, "abc"),
        ({"tag": "x", "max_messages": 1}, "c"),
        ({"tag": "x", "reason_contains": "time"}, ""),
    ],
)
def test_x12_a_redrive_chooses(
    topic: Broker, clock: Clock, monkeypatch: pytest.MonkeyPatch, criteria: dict[str, Any], found: str
) -> None:
    monkeypatch.setattr(dead_letters, "CHUNK", 2)
    for name in "ab":
        kill(topic, [name])
    clock.advance(HOUR)
    for name in "cd":
        kill(topic, [name], tag="x")
    clock.advance(HOUR)
    for name in "ef":
        kill(topic, [name], reason="100 % time out")
    assert topic.redrive("g", dry_run=True, **criteria) == Redriven(len(found), 0)
    assert received(topic) == []
    assert topic.redrive("g", **criteria) == Redriven(len(found), len(found))
    assert received(topic) == list(found)
    assert len(topic.dead_letters("g", redriven=False)) == 6 - len(found)


def test_x12_a_redrive_of_some_messages_by_their_ids(topic: Broker) -> None:
    first, second, *_ = kill(topic, "abc")
    assert topic.redrive("g", message_ids=[first, second, "0" * 44]) == Redriven(2, 2)
    assert topic.redrive("g", message_ids=[first]) == Redriven(0, 0)
    assert topic.redrive("g", message_ids=[]) == Redriven(0, 0)
    assert received(topic) == ["a", "b"]


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


@pytest.mark.parametrize("after", [0, 1, 3])
def test_x12_an_interrupted_redrive_is_taken_up_by_the_next(
    topic: Broker, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(dead_letters, "CHUNK", 2)
    names = [f"{number:02}" for number in range(20)]
    kill(topic, names)
    left = after

    def interrupt(seconds: float) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1

    monkeypatch.setattr(dead_letters, "time", with_sleep(interrupt))
    with pytest.raises(KeyboardInterrupt):
        topic.redrive("g", per_second=1_000)
    gone = 2 * (after + 1)
    assert received(topic) == names[:gone]
    monkeypatch.undo()
    assert topic.redrive("g") == Redriven(20 - gone, 20 - gone)
    assert received(topic) == names[gone:]


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


def test_x12_a_redrive_in_sql_leaves_out_what_the_reason_has(broker: Broker) -> None:
    broker.create_topic("t")
    consumer_of(broker)
    kill(broker, "a", reason="timed out")
    kill(broker, "bc", reason="not found")
    with connected(broker.dsn) as caller:
        count = "select matched from duewheel.redrive('g', reason_lacks => 'timed', dry_run => true)"
        assert ask(caller, count) == [(2,)]


def test_x12_a_redrive_in_an_open_transaction_holds_up_only_the_same_letters(broker: Broker) -> None:
    broker.create_topic("t")
    consumer_of(broker)
    kill(broker, "ab")
    with connected(broker.dsn, autocommit=False) as first, connected(broker.dsn) as watcher:
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


def test_x12_the_history_tells_of_a_redrive(topic: Broker, clock: Clock) -> None:
    (identity,) = kill(topic, ["a"])
    clock.advance(HOUR)
    topic.redrive("g")
    clock.advance(SECOND)
    consumer = consumer_of(topic)
    consumer.ack(consumer.receive())
    states = [(entry.state, entry.attempt, entry.at) for entry in topic.history(identity)]
    (reason,) = (entry.reason for entry in topic.history(identity) if entry.state == "WaitingRetry")
    assert reason == "redriven: no stock"
    assert states[3:] == [
        ("Inflight", 1, NOW),
        ("DLQ", 1, NOW),
        ("WaitingRetry", 2, NOW + HOUR),
        ("Ready", 2, NOW + HOUR + SECOND),
        ("Inflight", 2, NOW + HOUR + SECOND),
        ("Acked", 2, NOW + HOUR + SECOND),
    ]


def test_x12_on_a_fifo_topic_a_redriven_message_comes_behind_what_its_message_group_has_seen(
    timed_broker: Broker, clock: Clock
) -> None:
    timed_broker.create_topic("f", message_type="FIFO", queues=2)
    policy = RetryPolicy.ordered(interval=SECOND, max_retries=0)
    consumer = timed_broker.consumer("f", "g", retry=policy)

    def drain() -> list[str]:
        found = []
        clock.advance(SECOND)
        while batch := consumer.receive(max_messages=1):
            found += [message.body.decode() for message in batch]
            consumer.ack(batch)
            clock.advance(SECOND)
        return found

    receipts = [timed_broker.send("f", name, message_group=name[0]) for name in ("a0", "a1", "b0", "b1")]
    clock.advance(SECOND)
    batch = consumer.receive()
    consumer.nack([message for message in batch if message.body == b"a0"], reason="no stock")
    consumer.ack([message for message in batch if message.body == b"b0"])
    (letter,) = timed_broker.dead_letters("g")
    assert (letter.message_id, letter.reason) == (receipts[0].message_id, "no stock")
    drain()
    timed_broker.send("f", "a2", message_group="a")
    assert timed_broker.redrive("g") == Redriven(1, 1)
    assert timed_broker.redrive("g") == Redriven(0, 0)
    found = drain()
    assert sorted(found) == ["a0", "a2"]
    assert drain() == []


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


@pytest.mark.parametrize(("given", "error"), BAD)
def test_what_cannot_be_redriven_is_refused(
    topic: Broker, given: dict[str, Any], error: type[Exception]
) -> None:
    kill(topic, ["a"])
    with pytest.raises(error):
        topic.redrive(**{"group": "g", **given})
    assert topic.redrive("g", dry_run=True) == Redriven(1, 0)
