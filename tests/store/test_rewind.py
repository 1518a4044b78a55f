"""Rewinding: a group consumes again exactly what was released since an instant."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import psycopg2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.acting import AT_ONCE, HOUR, MICROSECOND, MINUTE, SECOND, bodies, send, taken
from tests.clock import NOW, Clock
from tests.waiting import ask, beside, connected, until

from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.operations.statistics import count_rewound
from duewheel.store.values.bulk_results import Rewound
from duewheel.store.values.errors import (
    InvalidArgument,
    InvalidInstant,
    LeaseLost,
    NulInText,
    UnknownGroup,
    UnknownTopic,
)
from duewheel.store.values.messages import Message
from duewheel.store.values.retry_policy import RetryPolicy


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


def test_d08_a_group_gets_again_what_was_released_since(topic: Broker, history: Consumer) -> None:
    for to, seen in (
        ("earliest", "abc"),
        ("latest", ""),
        (NOW - HOUR, "abc"),
        (NOW, "abc"),
        (NOW + MICROSECOND, "bc"),
        (NOW + MINUTE, "bc"),
        (NOW + 3 * MINUTE, ""),
    ):
        assert count_rewound(topic, "g", "t", to) == (len(seen), True)
        assert topic.rewind("t", "g", to) == Rewound(0, 0, 0)
        assert consume(history) == list(seen)
        assert consume(history) == []


def test_d08_a_rewind_keeps_waiting_messages_and_skips_unread(
    topic: Broker, history: Consumer, clock: Clock
) -> None:
    topic.send("t", "later", delay=MINUTE)
    topic.recall(topic.send("t", "recalled", delay=SECOND).message_id)
    topic.rewind("t", "g", NOW + 2 * MINUTE)
    assert consume(history) == ["c"]
    clock.advance(2 * MINUTE)
    assert consume(history) == ["later"]
    assert count_rewound(topic, "g", "t", NOW) == (4, True)
    topic.rewind("t", "g", NOW)
    assert consume(history) == ["a", "b", "c", "later"], "nor does what was recalled"
    topic.send("t", "unread", delay=AT_ONCE, tag="x")
    topic.tick("t")
    topic.rewind("t", "g", "latest")
    clock.advance(SECOND)
    send(topic, "new")
    assert consume(history) == ["new"]
    # With other tags the messages are chosen again.
    topic.set_subscription("t", "g", "x")
    topic.rewind("t", "g", "earliest")
    assert consume(history) == ["unread"]


def test_d08_leases_end_and_a_late_answer_says_why(topic: Broker, history: Consumer, clock: Clock) -> None:
    send(topic, "d", "e")
    batch = history.receive(invisible=HOUR)
    history.ack(batch[0])
    # Another group of the topic, and the group on another topic, notice nothing.
    topic.create_topic("u")
    send(topic, "elsewhere", topic="u")
    others = [topic.consumer("t", "other"), topic.consumer("u", "g")]
    held = [other.receive(invisible=HOUR) for other in others]
    topic.rewind("t", "g", NOW)
    for answer in (
        lambda: history.ack(batch[1]),
        lambda: history.nack(batch[1]),
        lambda: history.change_invisible_duration(batch, HOUR),
    ):
        with pytest.raises(LeaseLost, match="the consumer group was rewound"):
            answer()
    for other, its_batch in zip(others, held, strict=True):
        other.ack(its_batch)
    # In flight since the instant: it comes once, by the position.
    assert consume(history) == list("abcde")
    clock.advance(2 * HOUR)
    assert [consume(one) for one in (history, *others)] == [[], [], []]


def test_d08_what_was_in_flight_before_the_instant_is_not_lost(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g")
    send(topic, "a", "b", "c", key="k", properties={"n": 1})
    batch = consumer.receive(invisible=HOUR)
    consumer.ack(batch[0])
    clock.advance(MINUTE)
    send(topic, "d")
    consume(consumer)
    assert topic.rewind("t", "g", NOW + SECOND) == Rewound(1, 2, 0)
    again = consumer.receive(max_messages=10)
    assert texts(again) == ["b", "c", "d"]
    # Not their fault: the attempt is not counted.
    assert {message.attempt for message in again} == {1}
    assert {m.message_id for m in again} >= {m.message_id for m in batch[1:]}
    consumer.ack(again)
    clock.advance(2 * HOUR)
    assert consume(consumer) == []


def test_d08_retries_stay_or_are_recalled_and_dead_letters_stay(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g", retry=RetryPolicy.intervals([10 * MINUTE], max_retries=5))
    for body in ("old-waiting", "new-waiting"):
        send(topic, body)
        consumer.nack(consumer.receive())
        clock.advance(MINUTE)
    send(topic, "dead")
    consumer.dead_letter(consumer.receive())
    assert topic.rewind("t", "g", NOW + SECOND) == Rewound(0, 0, 1)
    assert consume(consumer) == ["dead", "new-waiting"]
    assert len(topic.dead_letters("g")) == 1
    (stats,) = topic.stats().topics[0].groups
    assert stats.waiting_retry == 1
    clock.advance(10 * MINUTE)
    (message,) = consumer.receive()
    assert (message.body, message.attempt) == (b"old-waiting", 2)


def test_d08_ready_or_held_retries_stay_or_are_recalled(topic: Broker, clock: Clock) -> None:
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
            consumer.nack(message, AT_ONCE)
    clock.advance(MINUTE)
    topic.tick("t")
    assert topic.rewind("t", "g", NOW + SECOND) == Rewound(1, 2, 1)
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


def test_d08_a_message_counts_by_its_release(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g", start=NOW + MICROSECOND)
    # The hour's slot is there before anybody sends in a transaction that stays open.
    send(topic, "first")
    topic.tick("t")
    with connected(topic.dsn, autocommit=False) as slow, connected(topic.dsn, autocommit=False) as slower:
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
        topic.rewind("t", "g", to)
        assert consume(consumer) == ["prompt", "slow", "slower"][3 - seen :]
    # The same for a group that starts there.
    assert consume(topic.consumer("t", "new", start=NOW + MINUTE + SECOND)) == ["slow", "slower"]
    assert consume(topic.consumer("t", "newer", start=NOW + 3 * MINUTE)) == ["slower"]


def test_d08_a_rewound_group_keeps_what_it_has_to_read(
    topic: Broker, history: Consumer, clock: Clock
) -> None:
    topic.rewind("t", "g", "earliest")
    clock.advance(timedelta(hours=80))
    topic.maintain()
    assert consume(history) == ["a", "b", "c"]


def test_d08_broadcasting_is_rewound_by_instance_or_whole(topic: Broker, clock: Clock) -> None:
    one = topic.consumer("t", "g", name="one", mode="broadcasting")
    two = topic.consumer("t", "g", name="two", mode="broadcasting")
    send(topic, "a")
    held = one.receive(invisible=HOUR)
    consume(two)
    assert topic.rewind("t", "g", "earliest") == Rewound(1, 0, 0)
    with pytest.raises(LeaseLost, match="rewound"):
        one.ack(held)
    assert consume(one) == consume(two) == ["a"]
    topic.rewind("t", "g/two", "earliest")
    assert (consume(one), consume(two)) == ([], ["a"])


BAD: list[tuple[type[Exception], tuple[Any, ...], str]] = [
    (UnknownTopic, ("none", "g", "latest"), "there is no topic"),
    (UnknownGroup, ("t", "none", "latest"), "there is no consumer group"),
    (UnknownGroup, ("t", "elsewhere", "latest"), "does not read topic"),
    (InvalidArgument, ("t", "g", "first"), '"earliest" or "latest"'),
    (InvalidArgument, ("t", "g", NOW + 4 * MINUTE), "in the future"),
    (InvalidInstant, ("t", "g", datetime(2026, 1, 5)), "no time zone"),  # noqa: DTZ001 -- on purpose
    (InvalidInstant, ("t", "g", None), "not an instant"),
    (NulInText, ("t", "\0", "latest"), "NUL"),
    (InvalidArgument, ("t", 5, "latest"), "group"),
]


def test_a_bad_rewind_is_refused(topic: Broker, history: Consumer) -> None:
    topic.create_topic("u")
    topic.consumer("u", "elsewhere")
    for error, arguments, says in BAD:
        with pytest.raises(error, match=says):
            topic.rewind(*arguments)
    assert consume(history) == []


def test_an_answer_in_an_open_transaction_is_waited_for(topic: Broker, history: Consumer) -> None:
    send(topic, "d")
    batch = history.receive(invisible=HOUR)
    with connected(topic.dsn, autocommit=False) as answering, beside() as start:
        history.ack(batch, connection=answering)
        rewound = start(lambda: topic.rewind("t", "g", NOW + MINUTE))
        with pytest.raises(TimeoutError):
            rewound.result(timeout=0.3)
        answering.commit()
        assert rewound.result() == Rewound(0, 0, 0)
    assert consume(history) == ["b", "c", "d"]


@pytest.mark.slow
def test_d08_a_rewind_under_consumers_loses_and_doubles_nothing(broker: Broker) -> None:
    broker.create_topic("t", message_type="NORMAL", queues=3)
    count, rewinds = 200, 5
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
                        own.nack(message, AT_ONCE)
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
                broker.rewind("t", "g", "earliest")
                stop.wait(0.05)
            until(lambda: len(acked) == count, "each to be acked")
        finally:
            stop.set()
        for worker in workers:
            worker.result()
    acked.update(message.body for message in consumer.receive(max_messages=1000))
    assert set(acked) == {str(number).encode() for number in range(count)}
    assert max(acked.values()) <= rewinds + 1
    # After the last rewind, each exactly once.
    broker.rewind("t", "g", "earliest")
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
@example(steps=[("send", 0), ("tick", 0), ("advance", 1)], back=0)
@example(steps=[("send", 0), ("tick", 0), ("advance", 1)], back=1)
def test_d08_a_rewind_delivers_exactly_what_was_released_since(
    topic: Broker, clock: Clock, steps: list[tuple[str, Any]], back: int
) -> None:
    """What was received before and not acked comes too, and nothing twice, whatever happened before. What was
    released before and not received is left out.
    """
    name = f"t{clock().timestamp():.0f}"
    topic.create_topic(name, queues=2)
    consumer = topic.consumer(name, "g", retry=RetryPolicy.intervals([3 * SECOND], max_retries=1000))
    ids: dict[str, str] = {}
    received: set[str] = set()
    for step, value in steps:
        match step:
            case "send":
                ids[str(len(ids) + 1)] = topic.send(name, str(len(ids) + 1), delay=value * SECOND).message_id
            case "advance":
                clock.advance(value * SECOND)
            case "tick":
                topic.tick(name)
            case "rewind":
                topic.rewind(name, "g", clock() - value * SECOND)
            case "receive":
                batch = consumer.receive(max_messages=3, invisible=5 * SECOND)
                received.update(texts(batch))
                if value == "ack":
                    consumer.ack(batch)
                elif value == "nack":
                    consumer.nack(batch)
                elif value == "half" and batch:
                    consumer.ack(batch[0])
    topic.tick(name)
    instant = clock() - back * SECOND
    released = {body: released_at(topic, identity) for body, identity in ids.items()}
    acked = {body for body, identity in ids.items() if is_done(topic, identity)}
    topic.rewind(name, "g", instant)
    open_before = received - acked
    expected = [body for body, at in released.items() if at is None or at >= instant or body in open_before]
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
    rewound = timed_broker.rewind("f", "g", NOW + SECOND)
    assert (rewound.leases_ended, rewound.messages_returned) == (1, 2)
    with pytest.raises(LeaseLost, match="rewound"):
        consumer.ack([message for message in batch if message.body != b"a1"])

    def in_turn() -> dict[str, list[tuple[str, int]]]:
        """Body and attempt of all that comes, for each message group."""
        got: dict[str, list[tuple[str, int]]] = {"a": [], "b": []}
        while batch := consumer.receive(max_messages=10):
            for message in batch:
                got[message.body.decode()[0]].append((message.body.decode(), message.attempt))
            consumer.ack(batch)
        return got

    assert in_turn() == {"a": [("a2", 1), ("a3", 1)], "b": [("b1", 1), ("b2", 1)]}
    timed_broker.rewind("f", "g", "earliest")
    assert in_turn() == {"a": [("a1", 1), ("a2", 1), ("a3", 1)], "b": [("b1", 1), ("b2", 1)]}


def of_eight(topic: Broker, clock: Clock) -> Consumer:
    """A consumer that may receive eight messages."""
    consumer = topic.consumer("t", "g")
    send(topic, *"abcdefgh")
    clock.advance(SECOND)
    return consumer


#: The portion, made small.
OF_THREE = "create or replace function duewheel.portion() returns integer language sql immutable return 3"


@pytest.mark.owner
def test_x25_a_rewind_takes_waiting_retries_back_in_portions(topic: Broker, clock: Clock) -> None:
    """A retry that is sent after the rewind stays, though the rewind is not finished yet."""
    consumer = of_eight(topic, clock)
    consumer.nack(consumer.receive(), delay=HOUR)
    with connected(topic.dsn) as session:
        ask(session, OF_THREE)
        ((recalled, rest),) = ask(
            session,
            "select retries_recalled, rest from duewheel.rewind('t', 'g', start => 'earliest', now => %s)",
            clock(),
        )
        # The end of the answered lease is looked at, too.
        assert recalled == 2
        again = consumer.receive()
        assert texts(again) == list("abcdefgh")
        consumer.nack(again[:1], delay=HOUR)
        consumer.ack(again[1:])
        portions = []
        while rest is not None:
            ((count, rest),) = ask(
                session,
                "select retries_recalled, rest from duewheel.rewind_chunk(%s, %s)",
                json.dumps(rest),
                clock(),
            )
            portions.append(count)
    assert sum(portions) == 6
    assert max(portions) <= 3
    clock.advance(2 * HOUR)
    assert texts(consumer.receive()) == texts(again[:1])


@pytest.mark.owner
def test_x25_a_rewind_ends_leases_in_portions(topic: Broker, clock: Clock) -> None:
    """A lease can be answered until its portion; one that is taken meanwhile stays."""
    consumer = of_eight(topic, clock)
    held = [consumer.receive(2, invisible=HOUR) for _ in range(4)]
    with connected(topic.dsn) as session:
        ask(session, OF_THREE)
        ((ended, returned, rest),) = ask(
            session,
            "select leases_ended, messages_returned, rest"
            " from duewheel.rewind('t', 'g', start => 'latest', now => %s)",
            clock(),
        )
        assert (ended, returned) == (1, 2)
        with pytest.raises(LeaseLost, match="rewound"):
            consumer.ack(held[0])
        consumer.ack(held[3])
        again = consumer.receive(1, invisible=HOUR)
        while rest is not None:
            ((some, more, rest),) = ask(
                session,
                "select leases_ended, messages_returned, rest from duewheel.rewind_chunk(%s, %s)",
                json.dumps(rest),
                clock(),
            )
            assert some <= 1
            ended, returned = ended + some, returned + more
    assert (ended, returned) == (3, 6)
    consumer.ack(again)
    assert texts([*again, *taken(consumer)]) == list("abcdef")


@pytest.mark.owner
def test_x25_a_rewind_by_the_program_recalls_all_waiting_retries(topic: Broker, clock: Clock) -> None:
    consumer = of_eight(topic, clock)
    consumer.nack(consumer.receive(), delay=HOUR)
    with connected(topic.dsn) as session:
        ask(session, OF_THREE)
    assert topic.rewind("t", "g", "earliest") == Rewound(0, 0, 8)
    assert consume(consumer) == list("abcdefgh")
    clock.advance(2 * HOUR)
    assert consume(consumer) == []


@pytest.mark.owner
@pytest.mark.parametrize("is_killed", [False, True])
def test_x25_a_rewind_takes_a_fifo_backlog_back_in_portions(
    timed_broker: Broker, clock: Clock, is_killed: bool
) -> None:
    """A consumer receives and fails between the portions, and a rewind that ends there loses nothing."""
    timed_broker.create_topic("steps", message_type="FIFO", queues=1)
    consumer = timed_broker.consumer("steps", "g")
    for name in [f"{group}{n}" for n in range(5) for group in "abcd"]:
        timed_broker.send("steps", name, message_group=name[0])
    clock.advance(SECOND)
    timed_broker.tick("steps")
    first = consumer.receive(4)
    assert not consumer.receive(1)
    consumer.nack(first[:2], delay=HOUR)
    consumer.ack(first[2:3])
    got: list[bytes] = []
    removed: list[int] = []
    with connected(timed_broker.dsn) as session:
        ask(session, OF_THREE)

        def remove(statement: str, *arguments: object) -> Any:
            ((before,),) = ask(session, "select count(*) from duewheel.fifo_backlog")
            ((rest,),) = ask(session, statement, *arguments, clock())
            ((after,),) = ask(session, "select count(*) from duewheel.fifo_backlog")
            removed.append(before - after)
            return rest

        rest = remove("select rest from duewheel.rewind('steps', 'g', start => 'earliest', now => %s)")
        while rest is not None and not (is_killed and len(removed) == 2):
            batch = consumer.receive(2)
            got += bodies(batch)
            consumer.nack(batch[-1:], delay=AT_ONCE)
            rest = remove("select rest from duewheel.rewind_chunk(%s, %s)", json.dumps(rest))
    assert 0 < max(removed) <= 3
    assert is_killed or sum(removed) > 10
    clock.advance(2 * HOUR)
    timed_broker.tick("steps")
    got += bodies(taken(consumer))
    for group in (b"a", b"b", b"c", b"d"):
        # Messages that were set aside may come before the group begins again.
        of_group = [body for body in got if body.startswith(group)]
        assert of_group[-5:] == [b"%s%d" % (group, n) for n in range(5)]


@pytest.mark.owner
def test_x20_a_rewind_whose_group_is_deleted_ends_with_an_error(topic: Broker, clock: Clock) -> None:
    consumer = of_eight(topic, clock)
    consumer.nack(consumer.receive(), delay=HOUR)
    with connected(topic.dsn) as session:
        ask(session, OF_THREE)
        ((rest,),) = ask(
            session, "select rest from duewheel.rewind('t', 'g', start => 'earliest', now => %s)", clock()
        )
        topic.delete_group("g")
        again = topic.consumer("t", "g")
        with pytest.raises(psycopg2.Error, match="no longer reads topic") as refused:
            ask(session, "select duewheel.rewind_chunk(%s, %s)", json.dumps(rest), clock())
    assert refused.value.pgcode == "DW014"
    assert consume(again) == list("abcdefgh")


@pytest.mark.owner
def test_x25_a_rewind_leaves_the_rest_to_a_later_one(topic: Broker, clock: Clock) -> None:
    """What the first one returned by its own position came twice: by that of the second one, too."""
    consumer = of_eight(topic, clock)
    for _ in range(4):
        assert consumer.receive(2, invisible=HOUR)
    begin = "select rest from duewheel.rewind('t', 'g', start => %s, now => %s)"
    with connected(topic.dsn) as session:
        ask(session, OF_THREE)
        rests = [ask(session, begin, start, clock())[0][0] for start in ("latest", "earliest")]
        for rest in rests:
            while rest is not None:
                ((rest,),) = ask(
                    session, "select rest from duewheel.rewind_chunk(%s, %s)", json.dumps(rest), clock()
                )
    # The first portion of the first one was done before the second one began, which takes it back.
    assert texts(taken(consumer)) == list("abcdefgh")
