"""Consuming by asking: leases, answers, long polls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.acting import AT_ONCE, HOUR, MINUTE, SECOND, bodies, rows, send
from tests.clock import NOW, Clock
from tests.waiting import PATIENCE_SECONDS, ask, connected

from duewheel.store.broker import Broker
from duewheel.store.consuming import consumer as consumer_module
from duewheel.store.consuming.signals import Signal
from duewheel.store.leases import from_json, to_json
from duewheel.store.values.errors import (
    InvalidArgument,
    InvalidInstant,
    InvalidTagExpression,
    LeaseLost,
    NulInText,
    UnknownTopic,
    UnreadableBody,
)
from duewheel.store.values.messages import Batch

LONG = timedelta(minutes=10)


# --- receiving


def test_d15_received_messages_are_what_was_sent(topic: Broker, clock: Clock) -> None:
    receipt = topic.send("t", b"\0", delay=SECOND, key="k", tag="x", properties={"a": 1}, message_group="g")
    consumer = topic.consumer("t", "g", name="me")
    assert not consumer.receive()
    clock.advance(2 * SECOND)
    (message,) = batch = consumer.receive(invisible=10 * SECOND)
    assert message.message_id == receipt.message_id
    assert (message.topic, message.body, message.key, message.tag) == ("t", b"\0", "k", "x")
    assert (message.properties, message.message_group) == ({"a": 1}, "g")
    assert (message.born_at, message.deliver_at, message.asked_at) == (NOW, NOW + SECOND, None)
    assert (message.attempt, message.reconsume_times) == (1, 0)
    assert message.expires_at == batch.expires_at == NOW + 12 * SECOND
    assert (batch.topic, batch.group, len(batch), bool(batch)) == ("t", "g", 1, True)
    assert batch[0] is message
    assert batch[:1] == [message]
    assert receipt.message_id in repr(message)
    topic.send_many("t", [{"body": str(n), "delay": timedelta(milliseconds=n)} for n in (5, 3, 9)])
    topic.send("t", b"", deliver_at=NOW - HOUR)
    clock.advance(SECOND)
    first, *later = consumer.receive()
    assert (first.key, first.tag, first.properties, first.message_group) == (None, None, {}, None)
    assert (first.deliver_at, first.asked_at) == (NOW + 2 * SECOND, NOW - HOUR)
    assert bodies(later) == [b"3", b"5", b"9"]
    nothing = consumer.receive(wait=timedelta(milliseconds=20))
    assert (len(nothing), list(nothing), nothing.leases, nothing.expires_at) == (0, [], [], None)
    consumer.ack(nothing)


def test_max_messages_bounds_a_receive_over_all_queues(timed_broker: Broker) -> None:
    timed_broker.create_topic("t", queues=4)
    send(timed_broker, *"abcdefghij")
    consumer = timed_broker.consumer("t", "g")
    batches = [consumer.receive(max_messages=4) for _ in range(4)]
    assert [len(batch) for batch in batches] == [4, 4, 2, 0]
    # Messages of several leases are answered in one step.
    everything = [message for batch in batches for message in batch]
    assert len({(message.lease.queue, message.lease.n) for message in everything}) > 3
    chosen = [message for message in everything if message.body in b"abcdefgh"]
    consumer.ack(chosen)
    consumer.nack([message for message in everything if message.body in b"ij"], delay=AT_ONCE)
    assert sorted(bodies(consumer.receive())) == [b"i", b"j"]


def test_where_a_group_begins_counts_when_it_is_made(topic: Broker, clock: Clock) -> None:
    send(topic, "before")
    topic.tick("t")
    consumers = [
        topic.consumer("t", f"g{number}", start=start)
        for number, start in enumerate(("earliest", NOW - HOUR, "latest"))
    ]
    clock.advance(SECOND)
    send(topic, "after")
    both = [b"before", b"after"]
    assert [bodies(consumer.receive()) for consumer in consumers] == [both, both, both[1:]]
    assert bodies(topic.consumer("t", "g2", start="earliest").receive()) == []


def test_what_cannot_be_is_refused_and_changes_nothing(topic: Broker) -> None:
    naive = datetime(2026, 1, 5)  # noqa: DTZ001
    for error, given in (
        (UnknownTopic, ["none", "g"]),
        *((InvalidArgument, ["t", name]) for name in ("", "a b", "x" * 128, 17)),
        (NulInText, ["t", "\0"]),
        (NulInText, ["\0", "g"]),
        (InvalidTagExpression, ["t", "g", "a |"]),
        (InvalidArgument, ["t", "g", "*", "first"]),
        (InvalidInstant, ["t", "g", "*", naive]),
    ):
        with pytest.raises(error):
            topic.consumer(*given)
    assert topic.stats().topics[0].groups == ()
    send(topic, "a")
    consumer, other = topic.consumer("t", "g"), topic.consumer("t", "other")
    bad: dict[str, dict[str, list[Any]]] = {
        "max_messages": {"1 to 10000": [0, 10_001, 1.0]},
        "invisible": {
            "1 second to 12 hours": [timedelta(milliseconds=999), 12 * HOUR + SECOND],
            "give a timedelta": [60],
        },
        "wait": {"must be 0 s to 30 s": [31 * SECOND, -SECOND], "give a timedelta": [5]},
    }
    for name, limits in bad.items():
        for says, values in limits.items():
            for value in values:
                with pytest.raises(InvalidArgument, match=says):
                    consumer.receive(**{name: value})
    batch = consumer.receive()
    for duration in (AT_ONCE, 13 * HOUR):
        with pytest.raises(InvalidArgument, match="1 second to 12 hours"):
            consumer.change_invisible_duration(batch, duration)
    with pytest.raises(InvalidArgument, match="0 to 3660 days"):
        consumer.nack(batch, delay=-SECOND)
    with pytest.raises(InvalidArgument, match="give a timedelta"):
        consumer.nack(batch, delay=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"group number \d+, this consumer to 'other'"):
        other.ack(batch)
    consumer.ack(batch)


# --- answering


def lease_events(broker: Broker) -> list[str]:
    return [kind for (kind,) in rows(broker, "select kind from duewheel.lease_event order by at")]


def test_an_answer_may_be_repeated_but_not_contradicted(topic: Broker, clock: Clock) -> None:
    send(topic, "a", "b")
    consumer = topic.consumer("t", "g")
    batch = consumer.receive(invisible=10 * SECOND)
    for _ in range(3):
        clock.advance(9 * SECOND)
        consumer.change_invisible_duration(batch[:1], 10 * SECOND)
    assert not consumer.receive(), "one of its messages stands for the lease"
    consumer.ack(batch[0])
    consumer.ack(batch[0])
    with pytest.raises(LeaseLost, match="answered before"):
        consumer.nack(batch[0])
    consumer.ack(batch)
    consumer.ack(batch)
    with pytest.raises(LeaseLost, match="answered before"):
        consumer.nack(batch)


def test_r03_a_repeated_nack_makes_one_retry(topic: Broker, clock: Clock) -> None:
    send(topic, "a", "b", "c")
    consumer = topic.consumer("t", "g")
    first, done, last = consumer.receive(invisible=HOUR)
    for _ in range(2):
        consumer.nack(first, SECOND, reason="no")
    consumer.ack(done)
    for _ in range(2):
        consumer.nack(last, SECOND)
    consumer.nack([first, last])
    contradictions: list[Callable[[], None]] = [
        lambda: consumer.ack(first),
        lambda: consumer.nack(done),
        lambda: consumer.nack([first, done]),
        lambda: consumer.dead_letter(last),
        lambda: consumer.give_back(last),
    ]
    for contradict in contradictions:
        with pytest.raises(LeaseLost, match="answered before"):
            contradict()
    clock.advance(SECOND)
    assert bodies(consumer.receive()) == [b"a", b"c"]
    assert [entry.reason for entry in topic.history(first.message_id) if entry.reason] == ["no"]


def test_a_whole_lease_is_one_row_however_it_is_named(topic: Broker) -> None:
    consumer = topic.consumer("t", "g")
    ways: list[Callable[[Batch], Any]] = [
        lambda batch: batch,
        list,
        lambda batch: [*batch[::2], *batch[1::2], batch[0]],
        lambda batch: batch.leases,
        lambda batch: from_json(to_json(batch.leases)),
    ]
    for number, way in enumerate(ways, 1):
        send(topic, *"abcdefgh")
        batch = consumer.receive()
        assert len(batch) == 8
        consumer.ack(way(batch))
        assert lease_events(topic) == ["acked"] * number


def test_x10_the_next_receive_acks_a_batch_or_leases_nothing(topic: Broker, clock: Clock) -> None:
    send(topic, "a", "b", "c")
    consumer = topic.consumer("t", "g")
    first = consumer.receive(max_messages=2)
    second = consumer.receive(max_messages=2, invisible=SECOND, acked=first)
    assert (bodies(first), bodies(second)) == ([b"a", b"b"], [b"c"])
    assert lease_events(topic) == ["acked"]
    send(topic, "d")
    clock.advance(MINUTE)
    with pytest.raises(LeaseLost):
        consumer.receive(acked=second)
    assert lease_events(topic) == ["acked", "expired"]
    third = consumer.receive()
    assert sorted(bodies(third)) == [b"c", b"d"]
    assert not consumer.receive(acked=third)
    assert lease_events(topic)[2:] == ["acked"] * len(third.leases)


def test_a_fifo_group_continues_with_the_receive_that_acks_it(timed_broker: Broker) -> None:
    timed_broker.create_topic("t", message_type="FIFO", queues=1)
    timed_broker.send_many("t", [{"body": name, "message_group": "one"} for name in "ab"])
    consumer = timed_broker.consumer("t", "g")
    first = consumer.receive(max_messages=1)
    assert bodies(consumer.receive(max_messages=1)) == []
    assert bodies(consumer.receive(max_messages=1, acked=first)) == [b"b"]


def test_a_lease_may_be_answered_by_another_process(topic: Broker, dsn: str, clock: Clock) -> None:
    send(topic, "a", "b", "c")
    batch = topic.consumer("t", "g").receive()
    text = to_json([batch[0].lease, batch[1].lease])
    with Broker(dsn, clock=clock) as elsewhere:
        elsewhere.consumer("t", "g").ack(from_json(text))
    assert lease_events(topic) == []
    answers = "select kind, answered_count from duewheel.lease_answer order by answered_count"
    assert rows(topic, answers) == [("acked", 1), ("acked", 2)]


# --- waiting


@pytest.fixture
def sleeping(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a consumer sleeps, which it does for ten minutes if nothing wakes it."""
    sleeping = threading.Event()
    sleep = Signal.wait

    def wait(signal: Signal, seconds: float) -> None:
        sleeping.set()
        sleep(signal, seconds)

    monkeypatch.setattr(Signal, "wait", wait)
    monkeypatch.setattr(consumer_module, "LONGEST_PAUSE_SECONDS", 600.0)
    monkeypatch.setattr(consumer_module, "LONGEST_WAIT", LONG)
    return sleeping


def test_d15_a_release_wakes_a_waiting_consumer(
    topic: Broker, dsn: str, clock: Clock, sleeping: threading.Event
) -> None:
    consumer = topic.consumer("t", "g")
    topic.create_topic("other")
    with ThreadPoolExecutor() as threads, Broker(dsn, clock=clock) as elsewhere:
        received = threads.submit(consumer.receive, wait=LONG)
        assert sleeping.wait(PATIENCE_SECONDS)
        elsewhere.send("other", b"", delay=AT_ONCE)
        assert elsewhere.tick("other")
        elsewhere.send("t", b"a", delay=HOUR)
        clock.advance(HOUR)
        assert elsewhere.tick("t")
        assert bodies(received.result()) == [b"a"]


@pytest.mark.parametrize("listens", [True, False])
def test_a_waiting_consumer_knows_when_the_next_message_is_due(
    dsn: str, sleeping: threading.Event, listens: bool
) -> None:
    soon = timedelta(milliseconds=100)
    with Broker(dsn, listen=listens) as broker:
        broker.create_topic("t")
        consumer = broker.consumer("t", "g")
        while not sleeping.is_set():
            # It need not wait for what is due before it asks.
            receipt = broker.send("t", b"a", delay=soon)
            (message,) = consumer.receive(wait=LONG)
            assert message.message_id == receipt.message_id
            consumer.nack(message, delay=soon)
            (again,) = consumer.receive(wait=LONG)
            assert (again.message_id, again.attempt) == (receipt.message_id, 2)
            consumer.ack(again)


def test_a_receive_locks_only_queues_in_which_there_is_something(broker: Broker, dsn: str) -> None:
    broker.create_topic("t", queues=8, message_type="NORMAL")
    consumer = broker.consumer("t", "g")

    receiving = "select from duewheel.receive_batch(%s, %s, 1000, '1 minute', 'x', 0, false)"
    locks = (
        "select (objid::bigint & 255)::integer from pg_locks"
        " where locktype = 'advisory' and pid = pg_backend_pid() and objsubid = 1"
        " and (classid::bigint << 32 | objid::bigint) >> 48 = 17495"
    )

    def queue_locks() -> set[int]:
        """The queues that a receive of everything leaves locked, while its transaction is open."""
        with connected(dsn, autocommit=False) as connection:
            ask(connection, receiving, consumer.group_id, consumer.topic_id)
            return {queue for (queue,) in ask(connection, locks)}

    assert queue_locks() == set()
    receipts = [broker.send("t", "x") for _ in range(2)]
    assert broker.tick("t")
    assert queue_locks() == {int(receipt.message_id[8:12], 16) for receipt in receipts}


def test_d15_due_messages_after_a_full_batch_are_received_next(broker: Broker) -> None:
    """A consumer whose batches come back full releases only now and then, and finds what is due."""
    broker.create_topic("t", queues=1)
    consumer = broker.consumer("t", "g")
    for body in (b"1", b"2", b"3"):
        broker.send("t", body, delay=AT_ONCE)
        assert bodies(consumer.receive(max_messages=1)) == [body]


def test_d15_full_batches_alternate_between_queues(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.create_topic("t", queues=4)
    for _ in range(200):
        broker.send("t", b"", delay=AT_ONCE)
    assert broker.tick("t")
    consumer = broker.consumer("t", "g")
    monkeypatch.setattr(consumer, "_is_turning", lambda: True)
    monkeypatch.setattr("duewheel.store.consuming.consumer._TURN_SECONDS", 0.0)
    batches = [consumer.receive(max_messages=1, wait=timedelta(seconds=9)) for _ in range(20)]
    assert len({one.message_id[8:12] for batch in batches for one in batch}) > 1


def test_d12_a_body_is_read_as_json(topic: Broker) -> None:
    for body in ({"order": 4711, "name": "grüße"}, [1, None], "4711", b"\xff"):
        topic.send("t", body, delay=AT_ONCE)
    order, listed, text, other = topic.consumer("t", "g").receive()
    assert (order.json(), listed.json(), text.json()) == ({"order": 4711, "name": "grüße"}, [1, None], 4711)
    with pytest.raises(UnreadableBody, match=f"the body of message {other.message_id} is not JSON .*decode"):
        other.json()
