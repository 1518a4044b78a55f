"""Rewinding: a group consumes again exactly what was released since an instant."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import psycopg2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.acting import send, wait_briefly
from tests.clock import NOW, Clock
from tests.waiting import until

from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.bulk_results import Rewound
from duewheel.store.values.errors import (
    GroupBusy,
    InvalidArgument,
    InvalidInstant,
    LeaseLost,
    NulInText,
    UnknownGroup,
    UnknownTopic,
)
from duewheel.store.values.messages import Message
from duewheel.store.values.retry_policy import RetryPolicy

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def texts(messages: Iterable[Message]) -> list[str]:
    return sorted(message.body.decode() for message in messages)


def consume(consumer: Consumer) -> list[str]:
    batch = consumer.receive(max_messages=1000)
    consumer.ack(batch)
    return texts(batch)


@pytest.fixture
def history(topic: Broker, clock: Clock) -> Consumer:
    """A consumer that has read a, b and c, released a minute apart from NOW on; it is NOW + 3 minutes."""
    consumer = topic.consumer("t", "g", name="me")
    for body in "abc":
        send(topic, body)
        assert consume(consumer) == [body]
        clock.advance(MINUTE)
    return consumer


@pytest.mark.parametrize(
    ("to", "seen"),
    [
        ("earliest", "abc"),
        ("latest", ""),
        (NOW - HOUR, "abc"),
        (NOW, "abc"),
        (NOW + timedelta(microseconds=1), "bc"),
        (NOW + MINUTE, "bc"),
        (NOW + 3 * MINUTE, ""),
    ],
)
def test_d08_a_group_gets_again_what_was_released_since(
    topic: Broker, history: Consumer, to: str | datetime, seen: str
) -> None:
    assert topic.rewind("g", "t", to) == Rewound(0, 0, 0)
    assert consume(history) == list(seen)
    assert consume(history) == []


def test_d08_a_group_can_be_rewound_again_and_again(topic: Broker, history: Consumer, clock: Clock) -> None:
    for _ in range(3):
        topic.rewind("g", "t", NOW + MINUTE)
        assert consume(history) == ["b", "c"]
        clock.advance(MINUTE)
    topic.rewind("g", "t", "earliest")
    topic.rewind("g", "t", NOW + 2 * MINUTE)
    assert consume(history) == ["c"]


def test_d08_what_is_due_later_comes_as_ever(topic: Broker, history: Consumer, clock: Clock) -> None:
    topic.send("t", "later", delay=MINUTE)
    topic.rewind("g", "t", NOW + 2 * MINUTE)
    assert consume(history) == ["c"]
    clock.advance(2 * MINUTE)
    assert consume(history) == ["later"]


def test_d08_latest_leaves_out_what_is_released_and_unread(
    topic: Broker, history: Consumer, clock: Clock
) -> None:
    send(topic, "unread")
    topic.tick("t")
    topic.rewind("g", "t", "latest")
    clock.advance(SECOND)
    send(topic, "new")
    assert consume(history) == ["new"]


def test_d08_other_groups_notice_nothing(topic: Broker, history: Consumer, clock: Clock) -> None:
    other = topic.consumer("t", "other")
    held = other.receive(max_messages=2, invisible=HOUR)
    other.nack(held[0])
    topic.create_topic("u")
    send(topic, "elsewhere", topic="u")
    elsewhere = topic.consumer("u", "g")
    batch = elsewhere.receive(invisible=HOUR)
    topic.rewind("g", "t", "earliest")
    other.ack(held[1])
    elsewhere.ack(batch)
    clock.advance(MINUTE)
    assert consume(other) == ["a", "c"]
    assert consume(elsewhere) == []


def test_d08_leases_end_and_a_late_answer_says_why(topic: Broker, history: Consumer, clock: Clock) -> None:
    send(topic, "d", "e")
    batch = history.receive(invisible=HOUR)
    history.ack(batch[0])
    topic.rewind("g", "t", NOW)
    for answer in (
        lambda: history.ack(batch[1]),
        lambda: history.nack(batch[1]),
        lambda: history.change_invisible_duration(batch, HOUR),
    ):
        with pytest.raises(LeaseLost, match="the consumer group was rewound"):
            answer()
    # In flight since the instant: it comes once, by the position.
    assert consume(history) == list("abcde")
    clock.advance(2 * HOUR)
    assert consume(history) == []


def test_d08_what_was_in_flight_before_the_instant_is_not_lost(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g")
    send(topic, "a", "b", "c", key="k", properties={"n": 1})
    batch = consumer.receive(invisible=HOUR)
    consumer.ack(batch[0])
    clock.advance(MINUTE)
    send(topic, "d")
    consume(consumer)
    assert topic.rewind("g", "t", NOW + SECOND) == Rewound(1, 2, 0)
    again = consumer.receive(max_messages=10)
    assert texts(again) == ["b", "c", "d"]
    # Not their fault: the attempt is not counted.
    assert {message.attempt for message in again} == {1}
    assert {m.message_id for m in again} >= {m.message_id for m in batch[1:]}
    consumer.ack(again)
    clock.advance(2 * HOUR)
    assert consume(consumer) == []


def test_d08_retries_stay_or_are_taken_back(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g", retry=RetryPolicy.intervals([10 * MINUTE], max_retries=5))
    for body in ("old-waiting", "new-waiting"):
        send(topic, body)
        consumer.nack(consumer.receive())
        clock.advance(MINUTE)
    for body in ("old", "new"):
        # One is ready again, one in somebody's hands, of each.
        send(topic, f"{body}-ready", f"{body}-held")
    rewind_to = NOW + SECOND
    result = topic.rewind("g", "t", rewind_to)
    assert result == Rewound(0, 0, 1)
    assert consume(consumer) == ["new-held", "new-ready", "new-waiting", "old-held", "old-ready"]
    (stats,) = topic.stats().topics[0].groups
    assert stats.waiting_retry == 1
    clock.advance(10 * MINUTE)
    (message,) = consumer.receive()
    assert (message.body, message.attempt) == (b"old-waiting", 2)


def test_d08_retries_that_are_ready_or_held_stay_or_are_taken_back(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g", retry=RetryPolicy.intervals([MINUTE], max_retries=5))
    send(topic, "old-ready", "old-held", "old-late")
    consumer.nack(consumer.receive())
    clock.advance(SECOND)
    send(topic, "new-ready", "new-held")
    consumer.nack(consumer.receive())
    clock.advance(2 * MINUTE)
    held = consumer.receive(max_messages=5, invisible=HOUR)
    assert {message.attempt for message in held} == {2}
    for message in held:
        if message.body.endswith(b"ready"):
            consumer.nack(message, timedelta(0))
    clock.advance(MINUTE)
    topic.tick("t")
    assert topic.rewind("g", "t", NOW + SECOND) == Rewound(1, 2, 1)
    again = consumer.receive(max_messages=10)
    assert {(m.body.decode(), m.attempt) for m in again} == {
        ("old-ready", 3),
        ("old-held", 2),
        ("old-late", 2),
        ("new-ready", 1),
        ("new-held", 1),
    }
    assert len(again) == 5
    consumer.ack(again)
    clock.advance(HOUR)
    assert consume(consumer) == []


def test_d08_dead_letters_stay(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g", retry=RetryPolicy.unordered(0))
    send(topic, "a")
    consumer.nack(consumer.receive())
    topic.rewind("g", "t", "earliest")
    assert consume(consumer) == ["a"]
    assert len(topic.dead_letters("g")) == 1


def test_d08_what_was_recalled_does_not_come_again(topic: Broker, history: Consumer, clock: Clock) -> None:
    receipt = topic.send("t", "recalled", delay=SECOND)
    topic.recall(receipt.message_id)
    clock.advance(MINUTE)
    topic.rewind("g", "t", NOW)
    assert consume(history) == ["a", "b", "c"]


def test_d08_a_message_counts_by_its_release(topic: Broker, clock: Clock, dsn: str) -> None:
    consumer = topic.consumer("t", "g", start=NOW + timedelta(microseconds=1))
    # The hour's slot is there before anybody sends in a transaction that stays open.
    send(topic, "first")
    topic.tick("t")
    with closing(psycopg2.connect(dsn)) as slow, closing(psycopg2.connect(dsn)) as slower:
        topic.send("t", "slow", delay=SECOND, connection=slow)
        topic.send("t", "slower", delay=SECOND, connection=slower)
        topic.send("t", "prompt", delay=SECOND)
        clock.advance(MINUTE)
        assert consume(consumer) == ["prompt"]
        slow.commit()
        clock.advance(MINUTE)
        assert consume(consumer) == ["slow"]
        slower.commit()
        clock.advance(MINUTE)
        assert consume(consumer) == ["slower"]
    for to, seen in [
        (NOW + MINUTE, 3),
        (NOW + MINUTE + SECOND, 2),
        (NOW + 2 * MINUTE + SECOND, 1),
        ("latest", 0),
    ]:
        topic.rewind("g", "t", to)
        assert consume(consumer) == ["prompt", "slow", "slower"][3 - seen :]
    # The same for a group that starts there.
    assert consume(topic.consumer("t", "new", start=NOW + MINUTE + SECOND)) == ["slow", "slower"]
    assert consume(topic.consumer("t", "newer", start=NOW + 3 * MINUTE)) == ["slower"]


def test_d08_what_is_past_retention_does_not_come(topic: Broker, history: Consumer, clock: Clock) -> None:
    clock.advance(timedelta(hours=100))
    send(topic, "new")
    consume(history)
    # Its slot is made, as nobody has kept up until now; then it is dropped.
    topic.maintain()
    topic.maintain()
    topic.rewind("g", "t", NOW)
    assert consume(history) == ["new"]


def test_d08_a_rewound_group_keeps_what_it_has_to_read(
    topic: Broker, history: Consumer, clock: Clock
) -> None:
    topic.rewind("g", "t", "earliest")
    clock.advance(timedelta(hours=80))
    topic.maintain()
    assert consume(history) == ["a", "b", "c"]


def test_d08_a_broadcasting_group_is_rewound_whole_or_by_instance(topic: Broker, clock: Clock) -> None:
    one = topic.consumer("t", "g", name="one", mode="broadcasting")
    two = topic.consumer("t", "g", name="two", mode="broadcasting")
    send(topic, "a")
    held = one.receive(invisible=HOUR)
    consume(two)
    assert topic.rewind("g", "t", "earliest") == Rewound(1, 0, 0)
    with pytest.raises(LeaseLost, match="rewound"):
        one.ack(held)
    assert consume(one) == consume(two) == ["a"]
    topic.rewind("g/two", "t", "earliest")
    assert (consume(one), consume(two)) == ([], ["a"])


def test_d08_with_tags_the_messages_are_chosen_anew(topic: Broker, clock: Clock) -> None:
    topic.send("t", "x", delay=timedelta(0), tag="x")
    topic.send("t", "y", delay=timedelta(0), tag="y")
    assert consume(topic.consumer("t", "g", "x")) == ["x"]
    topic.rewind("g", "t", "earliest")
    assert consume(topic.consumer("t", "g")) == ["x", "y"]


BAD: list[tuple[type[Exception], tuple[Any, ...], str]] = [
    (UnknownTopic, ("g", "none", "latest"), "there is no topic"),
    (UnknownGroup, ("none", "t", "latest"), "there is no consumer group"),
    (UnknownGroup, ("elsewhere", "t", "latest"), "does not read topic"),
    (InvalidArgument, ("g", "t", "first"), '"earliest" and "latest"'),
    (InvalidArgument, ("g", "t", NOW + 4 * MINUTE), "in the future"),
    (InvalidInstant, ("g", "t", datetime(2026, 1, 5)), "no time zone"),  # noqa: DTZ001 -- the naive one is the point
    (InvalidInstant, ("g", "t", None), "not an instant"),
    (NulInText, ("\0", "t", "latest"), "NUL"),
    (InvalidArgument, (5, "t", "latest"), "group"),
]


@pytest.mark.parametrize(("error", "given", "says"), BAD)
def test_a_bad_rewind_is_refused(
    topic: Broker, history: Consumer, error: type[Exception], given: tuple[Any, ...], says: str
) -> None:
    topic.create_topic("u")
    topic.consumer("u", "elsewhere")
    with pytest.raises(error, match=says):
        topic.rewind(*given)
    assert consume(history) == []


def test_an_answer_in_an_open_transaction_is_waited_for(topic: Broker, history: Consumer, dsn: str) -> None:
    send(topic, "d")
    batch = history.receive(invisible=HOUR)
    with closing(psycopg2.connect(dsn)) as connection:
        history.ack(batch, connection=connection)
        with ThreadPoolExecutor(1) as pool:
            rewound = pool.submit(topic.rewind, "g", "t", NOW + MINUTE)
            with pytest.raises(TimeoutError):
                rewound.result(timeout=0.3)
            connection.commit()
            assert rewound.result() == Rewound(0, 0, 0)
    assert consume(history) == ["b", "c", "d"]


@pytest.mark.owner
def test_an_answer_that_stays_open_ends_the_wait(topic: Broker, history: Consumer, dsn: str) -> None:
    wait_briefly(topic)
    send(topic, "d")
    batch = history.receive(invisible=HOUR)
    with closing(psycopg2.connect(dsn)) as connection:
        history.nack(batch, connection=connection)
        with pytest.raises(GroupBusy, match="Try again"):
            topic.rewind("g", "t", "earliest")
        connection.rollback()
    history.ack(batch)
    assert consume(history) == []


@pytest.mark.slow
def test_d08_under_consumers_nothing_is_lost_and_nothing_comes_too_often(broker: Broker) -> None:
    broker.create_topic("t", message_type="NORMAL", queues=3)
    count, rewinds = 400, 12
    broker.send_many("t", [{"body": str(number)} for number in range(count)])
    acked: Counter[bytes] = Counter()
    lock = threading.Lock()
    stop = threading.Event()
    # The first rewind may come before any worker has begun.
    consumer = broker.consumer("t", "g", name="last")

    def work(number: int) -> None:
        own = broker.consumer("t", "g", name=str(number))
        while not stop.is_set():
            batch = own.receive(max_messages=7)
            for message in batch:
                try:
                    if message.body.endswith(b"7") and message.attempt == 1:
                        own.nack(message, timedelta(0))
                    else:
                        own.ack(message)
                        with lock:
                            acked[message.body] += 1
                except LeaseLost:
                    continue

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(work, number) for number in range(4)]
        try:
            for _ in range(rewinds):
                broker.rewind("g", "t", "earliest")
                stop.wait(0.2)
            until(lambda: len(acked) == count, "each to be acked")
        finally:
            stop.set()
        for worker in workers:
            worker.result()
    acked.update(message.body for message in consumer.receive(max_messages=1000))
    assert set(acked) == {str(number).encode() for number in range(count)}
    assert max(acked.values()) <= rewinds + 1
    # After the last rewind, each exactly once.
    broker.rewind("g", "t", "earliest")
    final: list[Message] = []
    while batch := consumer.receive(max_messages=1000):
        final.extend(batch)
    assert texts(final) == sorted(str(number) for number in range(count))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 3)),
        st.tuples(st.just("advance"), st.integers(1, 5)),
        st.tuples(st.just("receive"), st.sampled_from(["ack", "nack", "hold", "half"])),
        st.tuples(st.just("rewind"), st.integers(0, 20)),
        st.tuples(st.just("tick"), st.just(0)),
    ),
    min_size=3,
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, back=st.integers(0, 20))
def test_d08_after_any_course_exactly_what_was_released_since_comes(
    topic: Broker, clock: Clock, steps: list[tuple[str, Any]], back: int
) -> None:
    """What was released before and not acked comes too, and nothing twice, whatever happened before."""
    name = f"t{clock().timestamp():.0f}"
    topic.create_topic(name, queues=2)
    consumer = topic.consumer(name, "g", retry=RetryPolicy.intervals([3 * SECOND], max_retries=1000))
    sent = 0
    for step, value in steps:
        match step:
            case "send":
                sent += 1
                topic.send(name, str(sent), delay=value * SECOND)
            case "advance":
                clock.advance(value * SECOND)
            case "tick":
                topic.tick(name)
            case "rewind":
                topic.rewind("g", name, clock() - value * SECOND)
            case "receive":
                batch = consumer.receive(max_messages=3, invisible=5 * SECOND)
                if value == "ack":
                    consumer.ack(batch)
                elif value == "nack":
                    consumer.nack(batch)
                elif value == "half" and batch:
                    consumer.ack(batch[0])
    topic.tick(name)
    instant = clock() - back * SECOND
    ids = {str(n): topic_message_id(topic, name, str(n)) for n in range(1, sent + 1)}
    released = {body: released_at(topic, identity) for body, identity in ids.items()}
    acked = {body for body, identity in ids.items() if is_done(topic, identity)}
    topic.rewind("g", name, instant)
    expected = [body for body, at in released.items() if at is None or at >= instant or body not in acked]
    clock.advance(HOUR)
    seen: list[str] = []
    while batch := consumer.receive(max_messages=100):
        seen.extend(texts(batch))
        consumer.ack(batch)
    if any(step == "rewind" for step, _ in steps):
        # A rewind forward has left some out before.
        assert len(seen) == len(set(seen))
        assert {body for body, at in released.items() if at is None or at >= instant} <= set(seen)
    else:
        assert sorted(seen) == sorted(expected)
    clock.advance(HOUR)


def topic_message_id(broker: Broker, topic: str, body: str) -> str:
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute(
            "select duewheel.message_id(m.topic_id, m.queue, m.deliver_at, m.seq) from duewheel.any_message m"
            " join duewheel.topic t on t.topic_id = m.topic_id"
            " where t.name = %s and convert_from(m.body, 'UTF8') = %s",
            (topic, body),
        )
        ((identity,),) = cursor.fetchall()
        return str(identity)


def released_at(broker: Broker, message_id: str) -> datetime | None:
    ready = [e.at for e in broker.history(message_id) if e.state == "Ready" and e.consumer_group is None]
    return ready[0] if ready else None


def is_done(broker: Broker, message_id: str) -> bool:
    return any(entry.state == "Acked" for entry in broker.history(message_id))


def test_d08_a_fifo_topic_keeps_its_order(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("f", message_type="FIFO", queues=1)
    consumer = timed_broker.consumer("f", "g")

    def push(*bodies: str) -> None:
        timed_broker.send_many("f", [{"body": body, "message_group": body[0]} for body in bodies])

    push("a1", "a2", "b1")
    batch = consumer.receive(max_messages=10, invisible=HOUR)
    consumer.ack([message for message in batch if message.body == b"a1"])
    clock.advance(MINUTE)
    push("a3", "b2")
    assert texts(consumer.receive(max_messages=10)) == []
    # a2 and b1 are in flight since before the instant, a3 and b2 wait behind them.
    rewound = timed_broker.rewind("g", "f", NOW + SECOND)
    assert (rewound.leases_ended, rewound.messages_returned) == (1, 2)
    with pytest.raises(LeaseLost, match="rewound"):
        consumer.ack([message for message in batch if message.body != b"a1"])
    got: list[tuple[str, int]] = []
    while batch := consumer.receive(max_messages=10):
        got.extend((message.body.decode(), message.attempt) for message in batch)
        consumer.ack(batch)
    assert [one for one in got if one[0].startswith("a")] == [("a2", 1), ("a3", 1)]
    assert [one for one in got if one[0].startswith("b")] == [("b1", 1), ("b2", 1)]
    timed_broker.rewind("g", "f", "earliest")
    again: list[str] = []
    while batch := consumer.receive(max_messages=10):
        again.extend(message.body.decode() for message in batch)
        consumer.ack(batch)
    assert [body for body in again if body.startswith("a")] == ["a1", "a2", "a3"]
    assert [body for body in again if body.startswith("b")] == ["b1", "b2"]
