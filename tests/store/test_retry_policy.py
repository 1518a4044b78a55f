"""Retry policies: what they are, who sets them, what they do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.clock import NOW, Clock

from duewheel.store.broker import Broker
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.retry_policy import NO_LIMIT, RetryPolicy

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
TCP = [
    *(n * SECOND for n in (10, 30)),
    *(n * MINUTE for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
]


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    timed_broker.create_topic("t", message_type="NORMAL", queues=1, retention=timedelta(days=400))
    return timed_broker


def waits_of_failures(
    broker: Broker, clock: Clock, policy: RetryPolicy | None, failures: int
) -> list[timedelta]:
    """Fails a message so often; how long each wait was until it came again."""
    broker.send("t", "x")
    consumer = broker.consumer("t", "g", retry=policy)
    waits = []
    (message,) = consumer.receive()
    for _ in range(failures):
        consumer.nack(message, reason="no")
        failed_at = clock()
        entry = [e for e in broker.history(message.message_id) if e.state in ("WaitingRetry", "DLQ")][-1]
        if entry.state == "DLQ":
            return waits
        assert entry.until_at is not None
        waits.append(entry.until_at - failed_at)
        clock.advance(waits[-1] - timedelta(milliseconds=1))
        assert not consumer.receive()
        clock.advance(timedelta(milliseconds=2))
        (message,) = consumer.receive()
        assert message.attempt == len(waits) + 1
    return waits


def test_r05_unordered_retries_come_after_the_sixteen_waits(topic: Broker, clock: Clock) -> None:
    assert waits_of_failures(topic, clock, RetryPolicy.unordered(), 17) == TCP
    assert len(topic.dead_letters("g")) == 1


def test_r05_these_are_the_waits_of_a_group_that_nobody_set(topic: Broker, clock: Clock) -> None:
    assert waits_of_failures(topic, clock, None, 17) == TCP


def test_r06_retries_above_sixteen_come_after_two_hours(topic: Broker, clock: Clock) -> None:
    assert waits_of_failures(topic, clock, RetryPolicy.unordered(18), 19) == [*TCP, 2 * HOUR, 2 * HOUR]
    assert RetryPolicy.unordered(NO_LIMIT).max_retries == NO_LIMIT


def test_r09_the_unordered_http_profile_is_fixed(topic: Broker, clock: Clock) -> None:
    assert waits_of_failures(topic, clock, RetryPolicy.http(), 3) == [5 * MINUTE] * 3
    assert RetryPolicy.http().max_retries == 288


def test_r08_the_ordered_http_profile_is_fixed() -> None:
    policy = RetryPolicy.http_ordered()
    assert (policy.max_retries, policy.waits, policy.is_ordered) == (288, (MINUTE,), True)


def test_r07_ordered_retries_have_no_limit_unless_one_is_set() -> None:
    assert RetryPolicy.ordered() == RetryPolicy(None, (SECOND,), is_ordered=True)
    assert RetryPolicy.ordered(max_retries=NO_LIMIT) == RetryPolicy.ordered()
    assert RetryPolicy.ordered(30 * SECOND, 3).max_retries == 3


def test_explicit_intervals_serve_in_order_and_the_last_for_the_rest(topic: Broker, clock: Clock) -> None:
    policy = RetryPolicy.intervals([SECOND, MINUTE], max_retries=4)
    assert waits_of_failures(topic, clock, policy, 5) == [SECOND, MINUTE, MINUTE, MINUTE]


def test_as_many_retries_as_intervals_unless_said_otherwise(topic: Broker, clock: Clock) -> None:
    assert waits_of_failures(topic, clock, RetryPolicy.intervals([SECOND, MINUTE]), 3) == [SECOND, MINUTE]


def test_no_retries_at_all(topic: Broker, clock: Clock) -> None:
    assert waits_of_failures(topic, clock, RetryPolicy.unordered(0), 1) == []
    assert [letter.reason for letter in topic.dead_letters("g")] == ["no"]


def test_exponential_waits_grow_to_the_longest() -> None:
    policy = RetryPolicy.exponential(SECOND, factor=3, longest=10 * SECOND)
    assert policy.waits == (SECOND, 3 * SECOND, 9 * SECOND, 10 * SECOND)
    assert RetryPolicy.exponential(SECOND, factor=1, longest=SECOND).waits == (SECOND,)
    assert (
        len(RetryPolicy.exponential(timedelta(microseconds=1), factor=1.0001, longest=SECOND / 2000).waits)
        == 500
    )


# --- the consumer started last decides


def test_r12_the_consumer_started_last_decides_and_says_what_it_overrode(
    topic: Broker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "duewheel"):
        topic.consumer("t", "g", name="first", retry=RetryPolicy.intervals([SECOND]))
        assert not caplog.records
        topic.consumer("t", "g", name="same", retry=RetryPolicy.intervals([SECOND]))
        assert not caplog.records
        clock.advance(MINUTE)
        topic.consumer("t", "g", name="second", retry=RetryPolicy.intervals([MINUTE], max_retries=3))
    (record,) = caplog.records
    assert record.name.startswith("duewheel.store")
    assert record.getMessage() == (
        "consumer second set the retries of group g: 3 retries, after 1 min; "
        f"before, consumer same, at {NOW}, had set: 1 retries, after 1 s"
    )
    (group,) = topic.groups()
    assert (group.retry, group.retry_set_by, group.retry_set_at) == (
        RetryPolicy.intervals([MINUTE], max_retries=3),
        "second",
        NOW + MINUTE,
    )


def test_r12_a_consumer_without_a_policy_leaves_it(topic: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic.consumer("t", "g", name="first", retry=RetryPolicy.http())
    topic.consumer("t", "g", name="second")
    assert not caplog.records
    (group,) = topic.groups()
    assert (group.retry, group.retry_set_by) == (RetryPolicy.http(), "first")


def test_r12_to_override_the_default_of_a_group_in_use_is_said(
    topic: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic.consumer("t", "g")
    topic.consumer("t", "g", name="second", retry=RetryPolicy.unordered(3))
    assert "before, nobody had set: 16 retries, after 10 s" in caplog.text


def test_r12_a_push_consumer_sets_it_too(topic: Broker) -> None:
    topic.push_consumer("t", "g", lambda _: "success", name="pusher", retry=RetryPolicy.http())
    assert topic.groups()[0].retry_set_by == "pusher"


def test_r12_other_groups_keep_theirs(topic: Broker) -> None:
    topic.consumer("t", "a", retry=RetryPolicy.http())
    topic.consumer("t", "b")
    assert [group.retry for group in topic.groups()] == [RetryPolicy.http(), RetryPolicy.unordered()]


def test_a_policy_must_fit_the_topic(topic: Broker) -> None:
    with pytest.raises(InvalidArgument, match="whose retries are unordered; the policy is for ordered ones"):
        topic.consumer("t", "g", retry=RetryPolicy.ordered())


BAD_POLICIES: list[tuple[Callable[[], RetryPolicy], str]] = [
    (lambda: RetryPolicy.unordered(-1), "max_retries is -1, the limit is 0 to 2147483647"),
    (lambda: RetryPolicy.unordered(NO_LIMIT + 1), "the limit is 0 to 2147483647"),
    (lambda: RetryPolicy.unordered(2.5), "max_retries is 2.5"),  # type: ignore[arg-type]
    (lambda: RetryPolicy(None, (SECOND,)), "only ordered retries"),
    (lambda: RetryPolicy.ordered(timedelta(milliseconds=9)), "the limit is 10 ms to 30 s"),
    (lambda: RetryPolicy.ordered(timedelta(milliseconds=30_001)), "the limit is 10 ms to 30 s"),
    (lambda: RetryPolicy.ordered(5), "give a timedelta"),  # type: ignore[arg-type]
    (lambda: RetryPolicy.intervals([]), "there are 0 retry intervals, the limit is 1 to 1000"),
    (lambda: RetryPolicy.intervals([SECOND] * 1001), "the limit is 1 to 1000"),
    (lambda: RetryPolicy.intervals([-SECOND]), "0 to 3660 days"),
    (lambda: RetryPolicy.intervals([timedelta(days=3661)]), "0 to 3660 days"),
    (
        lambda: RetryPolicy.exponential(SECOND, longest=MINUTE, jitter=1.1),
        "jitter is 1.1, the limit is 0 to 1",
    ),
    (lambda: RetryPolicy.exponential(SECOND, longest=MINUTE, factor=0.5), "factor is 0.5"),
    (lambda: RetryPolicy.exponential(MINUTE, longest=SECOND), "give a first wait"),
    (lambda: RetryPolicy.exponential(timedelta(0), longest=SECOND), "give a first wait"),
    (lambda: RetryPolicy.exponential(SECOND, longest=HOUR, factor=1.001), "the limit is 1 to 1000"),
]


@pytest.mark.parametrize(("make", "says"), BAD_POLICIES)
def test_r07_a_policy_out_of_its_limits_is_refused(make: Callable[[], RetryPolicy], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        make()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("'t', 'g', -1, array['1 s']::interval[]", "max_retries is -1"),
        ("'t', 'g', 1, '{}'", "there are 0 retry intervals"),
        ("'t', 'g', 1, null", "there are 0 retry intervals"),
        ("'t', 'g', 1, array[null]::interval[]", "0 to 3660 days"),
        ("'t', 'g', 1, array['-1 s']::interval[]", "0 to 3660 days"),
        ("'t', 'g', 1, array['1 s']::interval[], 2", "jitter is 2"),
        ("'t', 'g', 1, array['1 s']::interval[], null", "jitter is"),
        ("'t', 'none', 1, array['1 s']::interval[]", "no consumer group"),
        ("'none', 'g', 1, array['1 s']::interval[]", "no topic"),
    ],
)
def test_sql_refuses_the_same(topic: Broker, arguments: str, says: str) -> None:
    topic.consumer("t", "g")
    with (
        topic.connection() as connection,
        connection.cursor() as cursor,
        pytest.raises(Exception, match=says),
    ):
        cursor.execute(f"select duewheel.set_retry_policy({arguments})")


def test_sql_sets_and_answers_what_was_before(topic: Broker, clock: Clock) -> None:
    topic.consumer("t", "g")
    with topic.connection() as connection, connection.cursor() as cursor:

        def set_policy(*given: Any) -> tuple[Any, ...]:
            cursor.execute("select * from duewheel.set_retry_policy('t', 'g', %s, %s, set_by => %s)", given)
            row: tuple[Any, ...] = cursor.fetchone()
            return row

        assert set_policy(None, [SECOND, MINUTE], "me")[:2] == (True, 16)
        assert set_policy(2, [SECOND, MINUTE], "you")[:5] == (False, 2, [SECOND, MINUTE], 0.0, "me")
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
