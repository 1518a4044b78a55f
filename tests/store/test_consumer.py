"""Consuming by asking: leases, answers, long polls."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import psycopg2
import pytest
from sqlalchemy import NullPool, create_engine
from tests.acting import bodies, send
from tests.clock import NOW, Clock
from tests.waiting import ask, connected

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
from duewheel.store.values.messages import Message

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


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


def test_l05_a_message_without_extras_comes_without_them(topic: Broker) -> None:
    topic.send("t", b"", deliver_at=NOW - HOUR)
    (message,) = topic.consumer("t", "g").receive()
    assert (message.key, message.tag, message.properties, message.message_group) == (None, None, {}, None)
    assert (message.deliver_at, message.asked_at) == (NOW, NOW - HOUR)


def test_an_empty_batch_has_nothing(topic: Broker) -> None:
    batch = topic.consumer("t", "g").receive()
    assert (len(batch), list(batch), batch.leases, batch.expires_at) == (0, [], [], None)
    topic.consumer("t", "g").ack(batch)


def test_messages_come_in_the_order_of_their_instants(topic: Broker, clock: Clock) -> None:
    topic.send_many("t", [{"body": str(n), "delay": timedelta(milliseconds=n)} for n in (5, 3, 9, 1)])
    clock.advance(SECOND)
    assert bodies(topic.consumer("t", "g").receive()) == [b"1", b"3", b"5", b"9"]


def test_max_messages_bounds_a_receive_over_all_queues(timed_broker: Broker) -> None:
    timed_broker.create_topic("t", queues=4)
    send(timed_broker, *"abcdefghij")
    consumer = timed_broker.consumer("t", "g")
    sizes = [len(consumer.receive(max_messages=4)) for _ in range(4)]
    assert sizes == [4, 4, 2, 0]


def test_d12_tags_choose(topic: Broker) -> None:
    for tag in ("a", "b", None):
        send(topic, str(tag), tag=tag)
    assert bodies(topic.consumer("t", "both", tags="a || b").receive()) == [b"a", b"b"]
    assert bodies(topic.consumer("t", "one", "b").receive()) == [b"b"]
    assert bodies(topic.consumer("t", "all").receive()) == [b"a", b"b", b"None"]


@pytest.mark.parametrize(
    ("start", "seen"),
    [("earliest", [b"before", b"after"]), ("latest", [b"after"]), (NOW - HOUR, [b"before", b"after"])],
)
def test_a_group_begins_where_it_is_told(
    topic: Broker, clock: Clock, start: str | datetime, seen: list[bytes]
) -> None:
    send(topic, "before")
    topic.consumer("t", "reader").receive()
    consumer = topic.consumer("t", "g", start=start)
    clock.advance(SECOND)
    send(topic, "after")
    assert bodies(consumer.receive()) == seen
    assert bodies(topic.consumer("t", "g", start="earliest").receive()) == []


def test_an_instant_to_begin_with_is_exclusive_of_what_was_due_before(topic: Broker, clock: Clock) -> None:
    send(topic, "before")
    clock.advance(MINUTE)
    send(topic, "after")
    assert bodies(topic.consumer("t", "g", start=NOW + SECOND).receive()) == [b"after"]


BAD_CONSUMERS: list[tuple[type[Exception], tuple[Any, ...]]] = [
    (UnknownTopic, ("none", "g")),
    (InvalidArgument, ("t", "")),
    (InvalidArgument, ("t", "a b")),
    (InvalidArgument, ("t", "x" * 128)),
    (InvalidArgument, ("t", 17)),
    (NulInText, ("t", "\0")),
    (NulInText, ("\0", "g")),
    (InvalidTagExpression, ("t", "g", "a |")),
    (InvalidArgument, ("t", "g", "*", "first")),
    (InvalidInstant, ("t", "g", "*", datetime(2026, 1, 5))),  # noqa: DTZ001 -- the naive one is the point
]


@pytest.mark.parametrize(("error", "given"), BAD_CONSUMERS)
def test_a_bad_consumer_is_refused(topic: Broker, error: type[Exception], given: tuple[Any, ...]) -> None:
    with pytest.raises(error):
        topic.consumer(*given)
    assert topic.stats().topics[0].groups == ()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_messages": 0}, "1 to 10000"),
        ({"max_messages": 10_001}, "1 to 10000"),
        ({"max_messages": 1.0}, "1 to 10000"),
        ({"invisible": timedelta(milliseconds=999)}, "1 second to 12 hours"),
        ({"invisible": 12 * HOUR + SECOND}, "1 second to 12 hours"),
        ({"invisible": 60}, "give a timedelta"),
        ({"wait": 31 * SECOND}, "the limit is 0 s to 30 s"),
        ({"wait": -SECOND}, "the limit is 0 s to 30 s"),
        ({"wait": 5}, "give a timedelta"),
    ],
)
def test_a_bad_receive_is_refused_and_leases_nothing(topic: Broker, given: dict[str, Any], says: str) -> None:
    send(topic, "a")
    consumer = topic.consumer("t", "g")
    with pytest.raises(InvalidArgument, match=says):
        consumer.receive(**given)
    assert bodies(consumer.receive()) == [b"a"]


# --- answering


def test_x09_what_was_acked_does_not_come_again(topic: Broker, clock: Clock) -> None:
    send(topic, "a", "b")
    consumer = topic.consumer("t", "g")
    consumer.ack(consumer.receive())
    clock.advance(HOUR)
    assert not consumer.receive()


def test_d08_an_acked_message_is_there_for_other_groups(topic: Broker) -> None:
    send(topic, "a")
    consumer = topic.consumer("t", "g")
    consumer.ack(consumer.receive())
    assert bodies(topic.consumer("t", "other").receive()) == [b"a"]


def test_d07_what_was_not_answered_comes_again(topic: Broker, clock: Clock) -> None:
    send(topic, "a", "b", "c")
    consumer = topic.consumer("t", "g")
    first = consumer.receive(invisible=10 * SECOND)
    consumer.ack(first[1])
    clock.advance(timedelta(seconds=10, microseconds=-1))
    assert not consumer.receive()
    clock.advance(timedelta(microseconds=1))
    again = consumer.receive()
    assert bodies(again) == [b"a", b"c"]
    assert [message.attempt for message in again] == [2, 2]
    assert [message.message_id for message in again] == [first[0].message_id, first[2].message_id]


def test_r01_r13_a_retry_keeps_its_id_and_counts(topic: Broker) -> None:
    receipt = topic.send("t", b"a", delay=timedelta(0), key="k", tag="x", properties={"p": 1})
    consumer = topic.consumer("t", "g")
    for attempt in range(1, 5):
        (message,) = consumer.receive()
        assert (message.attempt, message.reconsume_times) == (attempt, attempt - 1)
        assert message.message_id == receipt.message_id
        assert (message.topic, message.key, message.tag, message.properties) == ("t", "k", "x", {"p": 1})
        consumer.nack(message, delay=timedelta(0))


def test_r05_retries_come_after_their_intervals(topic: Broker, clock: Clock) -> None:
    send(topic, "a")
    consumer = topic.consumer("t", "g")
    batch = consumer.receive()
    for seconds in (10, 30, 60, 120):
        consumer.nack(batch)
        clock.advance(timedelta(seconds=seconds, microseconds=-1))
        assert not consumer.receive()
        clock.advance(timedelta(microseconds=1))
        (message,) = batch = consumer.receive()
        assert message.deliver_at == clock()


def test_r03_the_last_failure_makes_a_dead_letter(topic: Broker) -> None:
    receipt = topic.send("t", b"a", delay=timedelta(0), key="k", tag="x", properties={"p": 1})
    consumer = topic.consumer("t", "g")
    for attempt in range(17):
        consumer.nack(consumer.receive(), delay=timedelta(0), reason=f"failure {attempt}")
    assert not consumer.receive()
    (dead,) = topic.dead_letters("g")
    assert (dead.topic, dead.message_id, dead.body) == ("t", receipt.message_id, b"a")
    assert (dead.key, dead.tag, dead.properties) == ("k", "x", {"p": 1})
    assert "failure 16" in str(dead.reason)
    assert topic.dead_letters("g", "t") == [dead]


def test_x10_a_late_answer_is_refused_and_changes_nothing(topic: Broker, clock: Clock) -> None:
    send(topic, "a")
    consumer = topic.consumer("t", "g")
    late = consumer.receive(invisible=10 * SECOND)
    send(topic, "b")
    current = consumer.receive(invisible=60 * SECOND)
    clock.advance(10 * SECOND)
    for answer in (
        consumer.ack,
        consumer.nack,
        lambda batch: consumer.change_invisible_duration(batch, MINUTE),
    ):
        with pytest.raises(LeaseLost):
            answer([*current, *late])
    consumer.ack(current)


def test_an_ack_may_be_repeated_but_not_contradicted(topic: Broker) -> None:
    send(topic, "a", "b")
    consumer = topic.consumer("t", "g")
    batch = consumer.receive()
    consumer.ack(batch[0])
    consumer.ack(batch[0])
    with pytest.raises(LeaseLost, match="answered before"):
        consumer.nack(batch[0])
    consumer.ack(batch)
    consumer.ack(batch)
    with pytest.raises(LeaseLost, match="answered before"):
        consumer.nack(batch)


def test_x11_a_lease_can_be_extended(topic: Broker, clock: Clock) -> None:
    send(topic, "a", "b")
    consumer = topic.consumer("t", "g")
    batch = consumer.receive(invisible=10 * SECOND)
    for _ in range(3):
        clock.advance(9 * SECOND)
        consumer.change_invisible_duration(batch[:1], 10 * SECOND)
    assert not consumer.receive()
    consumer.ack(batch)


@pytest.mark.parametrize("duration", [timedelta(0), 13 * HOUR])
def test_an_extension_has_limits(topic: Broker, duration: timedelta) -> None:
    send(topic, "a")
    consumer = topic.consumer("t", "g")
    batch = consumer.receive()
    with pytest.raises(InvalidArgument, match="1 second to 12 hours"):
        consumer.change_invisible_duration(batch, duration)
    consumer.ack(batch)


def test_a_retry_has_limits(topic: Broker) -> None:
    send(topic, "a")
    consumer = topic.consumer("t", "g")
    batch = consumer.receive()
    with pytest.raises(InvalidArgument, match="0 to 3660 days"):
        consumer.nack(batch, delay=-SECOND)
    with pytest.raises(NulInText):
        consumer.nack(batch, reason="\0")
    with pytest.raises(InvalidArgument, match="give a timedelta"):
        consumer.nack(batch, delay=5)  # type: ignore[arg-type]
    consumer.ack(batch)


def test_messages_of_several_leases_are_answered_in_one_step(timed_broker: Broker) -> None:
    timed_broker.create_topic("t", queues=4)
    send(timed_broker, *"abcdefgh")
    consumer = timed_broker.consumer("t", "g")
    batch = consumer.receive()
    assert len(batch.leases) == 4
    chosen = [message for message in batch if message.body in b"abcdef"]
    consumer.ack(chosen)
    consumer.nack([message for message in batch if message.body in b"gh"], delay=timedelta(0))
    assert sorted(bodies(consumer.receive())) == [b"g", b"h"]


def lease_events(broker: Broker) -> list[str]:
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select kind from duewheel.lease_event order by at")
        return [kind for (kind,) in cursor.fetchall()]


@pytest.mark.parametrize("how", ["the batch", "its messages", "its messages, shuffled", "its leases", "JSON"])
def test_a_whole_lease_is_one_row_however_it_is_named(topic: Broker, how: str) -> None:
    send(topic, *"abcdefgh")
    consumer = topic.consumer("t", "g")
    batch = consumer.receive()
    consumer.ack(
        {
            "the batch": batch,
            "its messages": list(batch),
            "its messages, shuffled": [*batch[::2], *batch[1::2], batch[0]],
            "its leases": batch.leases,
            "JSON": from_json(to_json(batch.leases)),
        }[how]
    )
    assert lease_events(topic) == ["acked"]


def test_a_batch_is_acked_by_the_receive_of_the_next(topic: Broker) -> None:
    send(topic, "a", "b", "c")
    consumer = topic.consumer("t", "g")
    first = consumer.receive(max_messages=2)
    second = consumer.receive(max_messages=2, acked=first)
    assert (bodies(first), bodies(second)) == ([b"a", b"b"], [b"c"])
    assert lease_events(topic) == ["acked"]
    assert bodies(consumer.receive(acked=second)) == []
    assert lease_events(topic) == ["acked", "acked"]


def test_x10_a_receive_whose_ack_comes_too_late_leases_nothing(topic: Broker, clock: Clock) -> None:
    send(topic, "a", "b")
    consumer = topic.consumer("t", "g")
    late = consumer.receive(max_messages=1, invisible=SECOND)
    clock.advance(MINUTE)
    with pytest.raises(LeaseLost):
        consumer.receive(acked=late)
    assert lease_events(topic) == ["expired"]
    assert sorted(bodies(consumer.receive())) == [b"a", b"b"]


def test_a_fifo_group_goes_on_with_the_receive_that_acks_it(timed_broker: Broker) -> None:
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
    with topic.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select kind, answered_count from duewheel.lease_answer order by answered_count")
        assert cursor.fetchall() == [("acked", 1), ("acked", 2)]


def test_leases_of_another_group_are_refused(topic: Broker) -> None:
    send(topic, "a")
    batch = topic.consumer("t", "g").receive()
    with pytest.raises(InvalidArgument, match=r"group number \d+, this consumer to 'other'"):
        topic.consumer("t", "other").ack(batch)


@pytest.mark.parametrize("sqlalchemy", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_work_and_ack_stand_or_fall_together(
    topic: Broker, clock: Clock, sqlalchemy: bool, commits: bool
) -> None:
    send(topic, "a")
    consumer = topic.consumer("t", "g")
    batch = consumer.receive(invisible=10 * SECOND)
    with closing(psycopg2.connect(topic.dsn)) as driver:
        engine = create_engine("postgresql+psycopg2://", creator=lambda: driver, poolclass=NullPool)
        connection = engine.connect() if sqlalchemy else driver
        consumer.ack(batch, connection=connection)
        assert lease_events(topic) == []
        connection.commit() if commits else connection.rollback()
    clock.advance(HOUR)
    assert bodies(consumer.receive()) == ([] if commits else [b"a"])


# --- waiting


class Waiting:
    """Says whether a consumer has begun to sleep."""

    def __init__(self) -> None:
        self.sleeping = threading.Event()

    def __call__(self) -> None:
        """Return once one sleeps."""
        self.sleeping.wait()
        self.sleeping.clear()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    """Tells of a consumer's sleep; it sleeps for ten minutes if nothing wakes it."""
    waiting = Waiting()
    sleep = Signal.wait

    def wait(signal: Signal, seconds: float) -> None:
        waiting.sleeping.set()
        sleep(signal, seconds)

    monkeypatch.setattr(Signal, "wait", wait)
    monkeypatch.setattr(consumer_module, "LONGEST_PAUSE_SECONDS", 600.0)
    monkeypatch.setattr(consumer_module, "LONGEST_WAIT", timedelta(minutes=10))
    return waiting


LONG = timedelta(minutes=10)


def test_d15_a_release_wakes_a_waiting_consumer(
    topic: Broker, dsn: str, clock: Clock, waiting: Waiting
) -> None:
    consumer = topic.consumer("t", "g")
    topic.create_topic("other")
    with ThreadPoolExecutor() as threads, Broker(dsn, clock=clock) as elsewhere:
        received = threads.submit(consumer.receive, wait=LONG)
        waiting()
        elsewhere.send("other", b"", delay=timedelta(0))
        assert elsewhere.tick("other")
        elsewhere.send("t", b"a", delay=HOUR)
        clock.advance(HOUR)
        assert elsewhere.tick("t")
        assert bodies(received.result()) == [b"a"]


def test_a_waiting_consumer_knows_when_the_next_message_is_due(broker: Broker, waiting: Waiting) -> None:
    broker.create_topic("t")
    consumer = broker.consumer("t", "g")
    while not waiting.sleeping.is_set():
        # It need not wait for what is due before it asks.
        receipt = broker.send("t", b"a", delay=timedelta(milliseconds=300))
        (message,) = consumer.receive(wait=LONG)
        consumer.ack(message)
        assert message.message_id == receipt.message_id


def test_without_listening_a_consumer_is_punctual_too(dsn: str, waiting: Waiting) -> None:
    with Broker(dsn, listen=False) as broker:
        broker.create_topic("t")
        consumer = broker.consumer("t", "g")
        while not waiting.sleeping.is_set():
            # It need not wait for what is due before it asks.
            broker.send("t", b"a", delay=timedelta(milliseconds=300))
            batch = consumer.receive(wait=LONG)
            assert bodies(batch) == [b"a"]
            consumer.ack(batch)
        listening = broker.send("t", b"b", delay=timedelta(0))
        assert [one.message_id for one in broker.consumer("t", "g").receive(wait=LONG)] == [
            listening.message_id
        ]


def test_an_expired_lease_wakes_a_waiting_consumer(broker: Broker, waiting: Waiting) -> None:
    broker.create_topic("t")
    broker.send("t", b"a", delay=timedelta(0))
    consumer = broker.consumer("t", "g")
    (message,) = consumer.receive(wait=LONG)
    consumer.nack(message, delay=timedelta(milliseconds=300))
    (again,) = consumer.receive(wait=LONG)
    assert (again.message_id, again.attempt) == (message.message_id, 2)


def test_a_wait_ends_with_nothing(topic: Broker) -> None:
    assert not topic.consumer("t", "g").receive(wait=timedelta(milliseconds=20))


def test_a_consumer_serves_many_threads(broker: Broker) -> None:
    broker.create_topic("t")
    broker.send_many("t", [{"body": str(n), "delay": timedelta(0)} for n in range(400)])
    consumer = broker.consumer("t", "g")

    def drain() -> list[Message]:
        found: list[Message] = []
        while batch := consumer.receive(max_messages=7, wait=timedelta(milliseconds=200)):
            consumer.ack(batch)
            found += batch
        return found

    with ThreadPoolExecutor(4) as threads:
        drained = [future.result() for future in [threads.submit(drain) for _ in range(4)]]
    received = sorted(int(message.body) for messages in drained for message in messages)
    assert received == list(range(400))


def test_a_receive_locks_only_queues_in_which_there_is_something(broker: Broker, dsn: str) -> None:
    broker.create_topic("t", queues=8, message_type="NORMAL")
    consumer = broker.consumer("t", "g")

    def queue_locks() -> set[int]:
        """The queues that a receive of everything leaves locked, while its transaction is open."""
        with connected(dsn, autocommit=False) as connection:
            ask(
                connection,
                "select from duewheel.receive_batch(%s, %s, null, 1000, '1 minute', 'x', 0, false)",
                consumer.group_id,
                consumer.topic_id,
            )
            return {
                queue
                for (queue,) in ask(
                    connection,
                    "select (objid::bigint & 255)::integer from pg_locks"
                    " where locktype = 'advisory' and pid = pg_backend_pid() and objsubid = 1"
                    " and (classid::bigint << 32 | objid::bigint) >> 48 = 17495",
                )
            }

    assert queue_locks() == set()
    receipts = [broker.send("t", "x") for _ in range(2)]
    assert broker.tick("t")
    assert queue_locks() == {int(receipt.message_id[8:12], 16) for receipt in receipts}


def test_d15_what_comes_due_after_a_full_batch_is_there_for_the_next_receive(broker: Broker) -> None:
    """A consumer whose batches come back full releases only now and then, and finds what is due."""
    broker.create_topic("t", queues=1)
    consumer = broker.consumer("t", "g")
    for body in (b"1", b"2", b"3"):
        broker.send("t", body, delay=timedelta(0))
        assert bodies(consumer.receive(max_messages=1)) == [body]


def test_d15_a_consumer_of_full_batches_turns_between_queues_where_a_wheel_turns(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t", queues=4)
    for _ in range(200):
        broker.send("t", b"", delay=timedelta(0))
    assert broker.tick("t")
    consumer = broker.consumer("t", "g")
    monkeypatch.setattr(consumer, "_is_turning", lambda: True)
    monkeypatch.setattr("duewheel.store.consuming.consumer._TURN_SECONDS", 0.0)
    batches = [consumer.receive(max_messages=1, wait=timedelta(seconds=9)) for _ in range(20)]
    assert len({one.message_id[8:12] for batch in batches for one in batch}) > 1


def test_d12_a_body_is_read_as_json(topic: Broker) -> None:
    for body in ({"order": 4711, "name": "grüße"}, [1, None], "4711", b"\xff"):
        topic.send("t", body, delay=timedelta(0))
    order, listed, text, other = topic.consumer("t", "g").receive()
    assert (order.json(), listed.json(), text.json()) == ({"order": 4711, "name": "grüße"}, [1, None], 4711)
    with pytest.raises(UnreadableBody, match=f"the body of message {other.message_id} is no JSON .*decode"):
        other.json()
