"""Dead letters: what is kept, and sending them again, each once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from tests.acting import AT_ONCE, HOUR, SECOND, rows
from tests.clock import NOW, Clock
from tests.waiting import ask, beside, connected

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
        topic, [{"body": name.encode(), "key": name, "delay": AT_ONCE, **given} for name in names]
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
    consumer.nack(batch, reason="again")
    (again,) = topic.dead_letters("g", redriven=False)
    assert (again.message_id, again.attempt, again.reason) == (identity, 3, "again")
    assert topic.dead_letters("g", redriven=True) == [letter]
    assert topic.dead_letters("g") == [letter, again]
    (numbers,) = topic.stats().topics
    assert [group.dead for group in numbers.groups] == [1]
    entries = topic.history(identity)
    reasons = [one.reason for one in entries if one.state == "WaitingRetry"]
    assert reasons[1:] == ["redriven: ValueError: try 1\nline two"]
    assert [(one.state, one.attempt, one.at) for one in entries[-6:]] == [
        ("Inflight", 2, NOW),
        ("DLQ", 2, NOW),
        ("WaitingRetry", 3, NOW + HOUR),
        ("Ready", 3, NOW + HOUR + SECOND),
        ("Inflight", 3, NOW + HOUR + SECOND),
        ("DLQ", 3, NOW + HOUR + SECOND),
    ]


def test_x12_what_dies_during_a_redrive_is_left_alone(topic: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything fails again at once, by the clock in the same instant: no endless loop."""
    monkeypatch.setattr(dead_letters, "CHUNK", 2)
    kill(topic, "abcde")
    consumer = consumer_of(topic)
    pauses: list[float] = []

    def fail_again(seconds: float) -> None:
        pauses.append(seconds)
        assert len(pauses) < 10, "the redrive does not end"
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
BAD: dict[type[Exception], list[dict[str, Any]]] = {
    UnknownGroup: [{"group": "none"}],
    UnknownTopic: [{"topic": "none"}],
    NulInText: [{"tag": "\0"}],
    InvalidInstant: [{"dead_from": datetime(2026, 1, 5)}],  # noqa: DTZ001
    InvalidArgument: [
        *({"message_ids": ids} for ids in ("0" * 44, ["xyz"], [None])),
        {"reason_contains": 5},
        {"reason_lacks": 5},
        {"dead_from": NOW, "dead_until": NOW},
        *({"max_messages": most} for most in (0, 1.5)),
        *({"per_second": rate} for rate in (0, float("nan"), "5")),
    ],
}


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
    in_sql = "select matched from duewheel.redrive('g', reason_lacks => 'time', dry_run => true)"
    assert rows(topic, in_sql) == [(4,)]
    for error, refused in BAD.items():
        for given in refused:
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


def test_x12_x24_a_redrive_of_one_topic_or_all_of_a_group(topic: Broker) -> None:
    topic.create_topic("u")
    kill(topic, ["t1", "t2"])
    kill(topic, ["u1", "u2"], topic="u")
    other = topic.consumer("t", "other", retry=NO_RETRIES)
    other.nack(other.receive())
    assert topic.redrive("g", topic="u", max_messages=1) == Redriven(1, 1)
    assert topic.redrive("g") == Redriven(3, 3)
    assert (received(topic), received(topic, "u")) == (["t1", "t2"], ["u1", "u2"])
    assert len(topic.dead_letters("other", redriven=False)) == 2
    assert not other.receive()
    # Those of a deleted topic are neither listed nor redriven.
    kill(topic, ["u3"], topic="u")
    kill(topic, ["t3"])
    topic.delete_topic("u")
    assert [letter.key for letter in topic.dead_letters("g", redriven=False)] == ["t3"]
    assert topic.redrive("g", dry_run=True).matched == 1


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


@pytest.mark.owner
@pytest.mark.parametrize("message_type", ["NORMAL", "FIFO"])
def test_x25_a_redrive_in_sql_sends_a_portion(timed_broker: Broker, clock: Clock, message_type: str) -> None:
    timed_broker.create_topic("t", message_type=message_type, queues=1)
    ordered = RetryPolicy.ordered(SECOND, max_retries=0)
    consumer = timed_broker.consumer("t", "g", retry=ordered if message_type == "FIFO" else NO_RETRIES)
    for name in "abcdefgh":
        timed_broker.send("t", name, message_group=name)
    clock.advance(SECOND)
    consumer.nack(consumer.receive())
    redrive = (
        "select matched, redriven, place from duewheel.redrive('g', dry_run => %s, after => %s, now => %s)"
    )
    with connected(timed_broker.dsn) as session:
        ask(session, "create or replace function duewheel.portion() returns integer language sql return 3")
        for dry_run in (True, False):
            sent, place = [], None
            while place is not None or not sent:
                ((matched, redriven, place),) = ask(
                    session, redrive, dry_run, json.dumps(place) if place else None, clock()
                )
                sent.append((matched, redriven))
            assert sent == [(3, 0 if dry_run else 3)] * 2 + [(2, 0 if dry_run else 2)]
    clock.advance(SECOND)
    timed_broker.tick("t")
    again = consumer.receive()
    assert sorted(message.body for message in again) == [b"%c" % letter for letter in b"abcdefgh"]
