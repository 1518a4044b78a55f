"""Bulk recall: what it chooses, what it counts, and that it holds up nobody."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import psycopg2
import pytest
from tests.acting import HOUR
from tests.clock import NOW, Clock
from tests.logins import login
from tests.waiting import ask, beside, connected, until, until_somebody_waits

from duewheel.store.broker import Broker
from duewheel.store.database.connections import OWN_TRANSACTION
from duewheel.store.operations import recalling
from duewheel.store.values.bulk_results import BulkRecall
from duewheel.store.values.errors import (
    AlreadyReleased,
    InvalidArgument,
    InvalidInstant,
    InvalidKey,
    InvalidTag,
    NulInText,
    UnknownMessage,
    UnknownTopic,
)


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    timed_broker.create_topic("t", queues=2, max_delay=100 * HOUR)
    return timed_broker


def send(broker: Broker, names: Iterable[str], delay: timedelta = HOUR, **given: Any) -> None:
    """Messages whose key and body are their names."""
    broker.send_many("t", [{"body": name.encode(), "key": name, "delay": delay, **given} for name in names])


def received(broker: Broker) -> list[str]:
    consumer = broker.consumer("t", "g")
    batch = consumer.receive(max_messages=10_000)
    consumer.ack(batch)
    return sorted(message.body.decode() for message in batch)


def test_x05_a_key_prefix_is_taken_literally(topic: Broker) -> None:
    keys = ["a", "a%", "a_b", "ab", "aé", "a\U0010ffff", "A", "b", "é", "éa", "\\"]
    send(topic, keys)
    topic.send("t", b"no key", delay=HOUR)
    waiting = {*keys, None}
    for prefix, gone in {
        "A": {"A"},
        "a%": {"a%"},
        "a_": {"a_b"},
        "é": {"é", "éa"},
        "a\U0010ffff": {"a\U0010ffff"},
        "\\": {"\\"},
        "none": set(),
        "' or true --": set(),
        "a": {"a", "ab", "aé"},
    }.items():
        assert topic.recall_many("t", key_prefix=prefix) == BulkRecall(len(gone), len(gone), 0)
        waiting -= gone
        assert {one.key for one in topic.list_messages("t").messages} == waiting


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, InvalidArgument, "no criterion"),
    ({"tag": "x", "everything": True}, InvalidArgument, "everything"),
    ({"tag": "a b"}, InvalidTag, ""),
    ({"tag": "\0"}, NulInText, ""),
    ({"key_prefix": ""}, InvalidKey, ""),
    ({"key_prefix": "x" * 256}, InvalidKey, ""),
    ({"key_prefix": "'; drop table duewheel.message; --" + "\0"}, NulInText, ""),
    ({"due_from": datetime(2026, 1, 5)}, InvalidInstant, ""),  # noqa: DTZ001
    ({"due_from": NOW, "due_until": NOW}, InvalidArgument, ""),
    ({"due_from": "now"}, InvalidInstant, ""),
]


def test_x24_criteria_that_cannot_be_are_refused(topic: Broker) -> None:
    send(topic, ["a"])
    for criteria, error, says in BAD:
        with pytest.raises(error, match=says or "."):
            topic.recall_many("t", **criteria)
    with pytest.raises(UnknownTopic):
        topic.recall_many("none", tag="x")
    assert topic.recall_many("t", everything=True, dry_run=True) == BulkRecall(1, 0, 0)


def test_x05_what_was_released_is_counted_and_delivered(topic: Broker, clock: Clock) -> None:
    send(topic, ["a1", "a2"], tag="x")
    send(topic, ["a3"], delay=HOUR + timedelta(seconds=1), tag="x")
    send(topic, ["a4"], delay=90 * HOUR, tag="x")
    topic.recall_key("t", "a2")
    clock.advance(HOUR)
    topic.tick("t")
    assert topic.recall_many("t", key_prefix="a", dry_run=True) == BulkRecall(3, 0, 1)
    assert topic.recall_many("t", tag="x", due_until=NOW + 80 * HOUR) == BulkRecall(2, 1, 1)
    assert topic.recall_many("t", key_prefix="a") == BulkRecall(2, 1, 1)
    clock.advance(100 * HOUR)
    assert received(topic) == ["a1"]


@pytest.mark.parametrize("criteria", [{"key_prefix": "k"}, {"tag": "x"}])
def test_x05_it_goes_in_chunks(
    topic: Broker, clock: Clock, monkeypatch: pytest.MonkeyPatch, criteria: dict[str, Any]
) -> None:
    monkeypatch.setattr(recalling, "CHUNK", 7)
    # The same key, instant and slot many times over, and others.
    topic.send_many("t", [{"body": b"", "key": "k", "tag": "x", "delay": HOUR}] * 20)
    for hours in (1, 2, 3):
        send(topic, [f"k{n}" for n in range(15)], delay=hours * HOUR, tag="x")
    assert topic.recall_many("t", dry_run=True, **criteria) == BulkRecall(65, 0, 0)
    assert topic.recall_many("t", **criteria) == BulkRecall(65, 65, 0)
    assert topic.recall_many("t", **criteria) == BulkRecall(0, 0, 0)
    clock.advance(10 * HOUR)
    assert received(topic) == []


@pytest.mark.parametrize("criteria", [{"key_prefix": "a"}, {"everything": True}])
def test_x05_a_late_bulk_recall_fails_at_the_commit(
    topic: Broker, clock: Clock, criteria: dict[str, Any]
) -> None:
    send(topic, ["a1"])
    send(topic, ["a2"], delay=2 * HOUR)
    with connected(topic.dsn, autocommit=False) as connection:
        assert topic.recall_many("t", connection=connection, **criteria) == BulkRecall(2, 2, 0)
        connection.rollback()
        assert topic.recall_many("t", connection=connection, **criteria) == BulkRecall(2, 2, 0)
        clock.advance(HOUR)
        assert topic.tick("t")
        with pytest.raises(psycopg2.Error, match="were released up to") as caught:
            connection.commit()
        assert caught.value.pgcode == AlreadyReleased.sqlstate
    clock.advance(HOUR)
    assert received(topic) == ["a1", "a2"]


def test_x05_two_bulk_recalls_share_what_there_is(broker: Broker) -> None:
    """The second waits for the first's open transaction and counts what that leaves."""
    broker.create_topic("t")
    broker.send_many("t", [{"body": b"", "key": f"k{n}", "delay": HOUR} for n in range(100)])
    with (
        connected(broker.dsn, autocommit=False) as first,
        connected(broker.dsn) as watcher,
        connected(broker.dsn, autocommit=False) as second,
    ):
        assert broker.recall_many("t", key_prefix="k1", connection=first) == BulkRecall(11, 11, 0)
        ask(second, "set local lock_timeout = '100ms'")
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            broker.recall_many("t", key_prefix="k", connection=second)
        second.rollback()
        first.commit()
        assert broker.recall_many("t", key_prefix="k", connection=second) == BulkRecall(89, 89, 0)
        second.commit()
        ((recalls,),) = ask(watcher, "select count(*) from duewheel.recall")
    assert recalls == 100


@pytest.mark.owner
def test_x05_a_message_released_meanwhile_is_not_counted(broker: Broker) -> None:
    """A tick between the rows of a chunk and its check: the broker's own path waits for the tick's lock."""
    broker.create_topic("t")
    with (
        connected(broker.dsn, autocommit=False) as wheel,
        connected(broker.dsn) as other,
        connected(broker.dsn) as watcher,
    ):
        soon, later = ask(
            other,
            "select (duewheel.send('t', 'x'::text, delay => d, key => 'k')).deliver_at"
            " from unnest(array['300 ms', '1 hour']::interval[]) d",
        )
        ask(wheel, "select pg_advisory_xact_lock(duewheel.tick_lock_class(), topic_id) from duewheel.topic")
        with beside() as begin:
            answer = begin(lambda: broker.recall_many("t", key_prefix="k"))
            until_somebody_waits(broker.dsn)
            until(lambda: ask(watcher, "select 1 where clock_timestamp() > %s", soon[0]), "the instant")
            ask(wheel, f"{OWN_TRANSACTION}select duewheel.tick_topic(topic_id) from duewheel.topic")
            wheel.commit()
            assert answer.result() == BulkRecall(2, 1, 1)
        assert [row[0] for row in ask(other, "select deliver_at from duewheel.recall")] == [later[0]]
    (message,) = broker.consumer("t", "g").receive()
    assert message.deliver_at == soon[0]


# --- by key


def test_x02_what_waits_of_a_key_is_rescheduled(topic: Broker, clock: Clock) -> None:
    send(topic, ["k"])
    send(topic, ["k"], delay=2 * HOUR, tag="x")
    send(topic, ["k", "other"], delay=2 * HOUR)
    clock.advance(HOUR)
    topic.tick("t")
    moved = topic.reschedule_key("t", "k", deliver_at=NOW + 5 * HOUR)
    assert [receipt.deliver_at for receipt in moved] == [NOW + 5 * HOUR] * 2
    found = [topic.find(receipt.message_id) for receipt in moved]
    assert sorted((one.key, one.tag or "") for one in found if one) == [("k", ""), ("k", "x")]
    clock.advance(HOUR)
    assert received(topic) == ["k", "other"]
    clock.advance(2 * HOUR)
    assert topic.recall_key("t", "k").recalled == 2
    clock.advance(HOUR)
    assert received(topic) == []
    with pytest.raises(AlreadyReleased):
        topic.reschedule_key("t", "k", delay=HOUR)
    with pytest.raises(UnknownMessage):
        topic.reschedule_key("t", "none", delay=HOUR)


def test_x19_a_chunk_reveals_no_key_to_a_sender(topic: Broker, dsn: str) -> None:
    """Nor anything else that the sender wrote, wherever the chunk ends."""
    names = [f"customer {number}" for number in range(7)]
    send(topic, names, tag="private")
    given: dict[str, tuple[str | None, str | None]] = {"key": (None, "cust"), "tag": ("private", None)}
    with connected(login(dsn, "duewheel_producer")) as producer:
        for tag, prefix in given.values():
            matched, after = 0, None
            while True:
                ((count, after),) = ask(
                    producer,
                    "select matched, next::text from duewheel.recall_chunk("
                    "'t', %s, %s, null, null, true, false, 2, %s::jsonb, null)",
                    *(tag, prefix, after),
                )
                matched += count
                if after is None:
                    break
                assert set(json.loads(after)) == {"slot", "hi", "queue", "at", "seq"}
                assert "customer" not in after
            assert matched == 7
        # Nor is it without a bound: the topic's wheel waits for it.
        for limit in (None, 0, 10_001):
            with pytest.raises(psycopg2.Error) as refusal:
                ask(
                    producer,
                    "select duewheel.recall_chunk('t', 'x', null, null, null, true, false, %s, null, null)",
                    limit,
                )
            assert refusal.value.pgcode == InvalidArgument.sqlstate


@pytest.mark.parametrize(("tag", "prefix"), [("x", None), (None, "x"), ("none", None), ("none", "x")])
def test_x25_a_chunk_looks_at_so_many_messages(
    topic: Broker, clock: Clock, tag: str | None, prefix: str | None
) -> None:
    """Whether they match, and whether they were released."""
    for name in ("x", "y"):
        send(topic, [f"{name}{number}" for number in range(5)], tag=name)
    clock.advance(HOUR)
    topic.tick("t")
    for name in ("x", "y"):
        send(topic, [f"{name}{number}" for number in range(5)], tag=name)
    chunk = (
        "select matched, recalled, already_released, next::text"
        " from duewheel.recall_chunk('t', %s, %s, null, null, false, true, 3, %s::jsonb, %s)"
    )
    chunks, after = [], None
    with connected(topic.dsn) as connection:
        while not chunks or after:
            ((*found, after),) = ask(connection, chunk, tag, prefix, after, clock())
            chunks.append(found)
    assert max(matched for matched, _, _ in chunks) <= 3
    assert len(chunks) > 3 if prefix else len(chunks) > 6
    assert [sum(column) for column in zip(*chunks, strict=True)] == ([0] * 3 if tag == "none" else [10, 5, 5])


def test_x05_a_chunk_behind_a_message_that_is_gone_is_refused(topic: Broker, dsn: str) -> None:
    send(topic, ["a", "aa", "ab"])
    chunk = (
        "select next::text"
        " from duewheel.recall_chunk('t', null, 'a', null, null, true, false, 2, %s::jsonb, null)"
    )
    with connected(dsn) as connection:
        ((after,),) = ask(connection, chunk, None)
        gone = json.dumps(json.loads(after) | {"seq": 7})
        with pytest.raises(psycopg2.Error, match="Begin again"):
            ask(connection, chunk, gone)
