"""Retry policies: what they are, who sets them, what they do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg2
import pytest
from tests.acting import AT_ONCE, HOUR, MICROSECOND, MINUTE, SECOND, rows
from tests.clock import NOW, Clock
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.reasons import LONGEST_REASON, as_reason
from duewheel.store.values.retry_policy import NO_LIMIT, RetryPolicy


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    timed_broker.create_topic("t", message_type="NORMAL", queues=1, retention=timedelta(days=400))
    return timed_broker


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (RetryPolicy.intervals([SECOND, MINUTE], max_retries=4), [SECOND, MINUTE, MINUTE, MINUTE]),
        (RetryPolicy.intervals([SECOND, MINUTE]), [SECOND, MINUTE]),
        (RetryPolicy.unordered(0), []),
    ],
    ids=["the last one for the rest", "one for each", "none"],
)
def test_intervals_serve_in_order_and_then_it_is_dead(
    topic: Broker, clock: Clock, policy: RetryPolicy, waits: list[timedelta]
) -> None:
    topic.send("t", "x")
    consumer = topic.consumer("t", "g", retry=policy)
    for attempt, wait in enumerate(waits, 1):
        (message,) = consumer.receive()
        assert message.attempt == attempt
        consumer.nack(message)
        assert topic.history(message.message_id)[-1].until_at == clock() + wait
        clock.advance(wait - MICROSECOND)
        assert not consumer.receive()
        clock.advance(MICROSECOND)
    consumer.nack(consumer.receive(), reason="no")
    assert [(dead.reason, dead.attempt) for dead in topic.dead_letters("g")] == [("no", len(waits) + 1)]


def test_exponential_waits_grow_to_the_longest() -> None:
    policy = RetryPolicy.exponential(SECOND, factor=3, longest=10 * SECOND)
    assert policy.waits == (SECOND, 3 * SECOND, 9 * SECOND, 10 * SECOND)
    assert RetryPolicy.exponential(SECOND, factor=1, longest=SECOND).waits == (SECOND,)
    assert len(RetryPolicy.exponential(MICROSECOND, factor=1.0001, longest=SECOND / 2000).waits) == 500


# --- the consumer started last decides


def test_r12_who_overrides_a_policy_says_which(
    topic: Broker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for group in ("g", "other"):
        topic.consumer("t", group)
    topic.push_consumer("t", "g", lambda _: "success", name="pusher", retry=RetryPolicy.intervals([SECOND]))
    # The same, and none, override nothing.
    topic.consumer("t", "g", name="same", retry=RetryPolicy.intervals([SECOND]))
    topic.consumer("t", "g", name="none")
    assert topic.groups()[0].retry_set_by in ("pusher", "same")
    clock.advance(MINUTE)
    second = RetryPolicy.intervals([MINUTE], max_retries=3)
    topic.consumer("t", "g", name="second", retry=second)
    first, last = (record.getMessage() for record in caplog.records)
    assert "before: 16 retries, after 10 s" in first
    assert first.endswith(", the default")
    assert last == (
        "consumer second set the retries of group g: 3 retries, after 1 min; "
        f"before: 1 retries, after 1 s, set by consumer same at {NOW}"
    )
    group, other = topic.groups()
    assert (group.retry, group.retry_set_by, group.retry_set_at) == (second, "second", NOW + MINUTE)
    assert other.retry == RetryPolicy.unordered()
    with pytest.raises(InvalidArgument, match="whose retries are unordered; the policy is for ordered ones"):
        topic.consumer("t", "g", retry=RetryPolicy.ordered())


BAD_POLICIES: list[tuple[Callable[[], RetryPolicy], str]] = [
    (lambda: RetryPolicy.unordered(NO_LIMIT + 1), "must be 0 to 2147483647"),
    (lambda: RetryPolicy.unordered(2.5), "max_retries must be 0 to 2147483647; got 2.5"),  # type: ignore[arg-type]
    (lambda: RetryPolicy(None, (SECOND,)), "only ordered retries"),
    (lambda: RetryPolicy.ordered(5), "give a timedelta"),  # type: ignore[arg-type]
    (lambda: RetryPolicy.intervals([]), "must have 1 to 1000 intervals; got 0"),
    (lambda: RetryPolicy.intervals([-MICROSECOND]), "0 to 3660 days"),
    (
        lambda: RetryPolicy.exponential(SECOND, longest=MINUTE, jitter=1.1),
        "jitter must be 0 to 1; got 1.1",
    ),
    (lambda: RetryPolicy.exponential(SECOND, longest=MINUTE, factor=0.5), r"factor must be 1 to .*; got 0.5"),
    (lambda: RetryPolicy.exponential(MINUTE, longest=SECOND), "first must be more than 0"),
    (lambda: RetryPolicy.exponential(AT_ONCE, longest=SECOND), "first must be more than 0"),
    (lambda: RetryPolicy.exponential(SECOND, longest=HOUR, factor=1.001), "must have 1 to 1000 intervals"),
]


def test_r07_a_policy_out_of_its_limits_is_refused() -> None:
    for make, says in BAD_POLICIES:
        with pytest.raises(InvalidArgument, match=says):
            make()


def test_sql_refuses_the_same(topic: Broker) -> None:
    topic.consumer("t", "g")
    with connected(topic.dsn) as connection:
        for arguments, says in (
            ("'t', 'g', -1, array['1 s']::interval[]", "max_retries must be 0 to 2147483647; got -1"),
            ("'t', 'g', 1, null", "must have 1 to 1000 intervals; got 0"),
            ("'t', 'g', 1, array[null]::interval[]", "0 to 3660 days"),
            ("'t', 'g', 1, array['-1 s']::interval[]", "0 to 3660 days"),
            ("'t', 'g', 1, array['1 s']::interval[], 2", "jitter must be 0 to 1; got 2"),
            ("'t', 'g', 1, array['1 s']::interval[], null", "jitter must be 0 to 1; got"),
            ("'t', 'none', 1, array['1 s']::interval[]", "no consumer group"),
            ("'none', 'g', 1, array['1 s']::interval[]", "no topic"),
        ):
            with pytest.raises(psycopg2.Error, match=says):
                ask(connection, f"select duewheel.set_retry_policy({arguments})")


def test_sql_sets_and_answers_what_was_before(topic: Broker) -> None:
    topic.consumer("t", "g")
    sets = "select * from duewheel.set_retry_policy('t', 'g', %s, %s, set_by => %s)"
    assert rows(topic, sets, None, [SECOND, MINUTE], "me")[0][:2] == (True, 16)
    assert rows(topic, sets, 2, [SECOND, MINUTE], "you")[0][:5] == (False, 2, [SECOND, MINUTE], 0.0, "me")
    assert topic.groups()[0].retry == RetryPolicy.intervals([SECOND, MINUTE])


def test_jitter_draws_each_wait_from_its_span(topic: Broker, clock: Clock) -> None:
    policy = RetryPolicy.exponential(
        100 * SECOND, longest=100 * SECOND, factor=1, jitter=0.2, max_retries=100
    )
    topic.send_many("t", [{"body": "x"}] * 40)
    consumer = topic.consumer("t", "g", retry=policy)
    batch = consumer.receive(max_messages=40)
    consumer.nack(batch)
    waits = [
        entry.until_at - NOW
        for message in batch
        for entry in topic.history(message.message_id)
        if entry.state == "WaitingRetry" and entry.until_at is not None
    ]
    assert len(set(waits)) > 30
    assert 80 * SECOND <= min(waits) < 95 * SECOND
    assert 105 * SECOND < max(waits) <= 120 * SECOND


def test_x08_any_text_is_kept_as_the_reason_of_any_answer(topic: Broker) -> None:
    consumer = topic.consumer("t", "g")
    for text in ("plain", "a NUL \0 within", "half a pair \ud800", "x" * 50_000, "'; drop --"):
        for answer in ("nack", "dead_letter", "skip", "give_back", "release"):
            receipt = topic.send("t", b"")
            batch = consumer.receive()
            if answer == "release":
                (lease,) = topic.leases(group="g")
                topic.release_lease(lease.lease_id, text)
            else:
                getattr(consumer, answer)(batch, reason=text)
            (kept,) = {e.reason for e in topic.history(receipt.message_id) if e.reason is not None}
            added = {"give_back": "given back: ", "release": "its lease was released: "}.get(answer, "")
            whole = len(added) + len(text)
            assert len(kept) in (whole, LONGEST_REASON, len(added) + LONGEST_REASON)
            consumer.skip(consumer.receive())


def test_an_error_without_a_text_is_a_reason_all_the_same() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert as_reason(Unprintable()) == "Unprintable: its text could not be had (ValueError)"
    assert as_reason(SystemExit(3)) == "SystemExit: 3"
