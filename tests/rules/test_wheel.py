"""The wheel (W01 to W05): the readable specification, a rule each."""

from __future__ import annotations

import pytest
from tests.acting import AT_ONCE, HOUR, MICROSECOND, MILLISECOND, MINUTE, bodies, state, taken
from tests.clock import Clock
from tests.turning import turning
from tests.waiting import ask, connected, until

from duewheel.store.broker import Broker
from duewheel.store.wheel.timing_wheel import TimingWheel


def test_w01_levels_from_milliseconds_to_hours_and_entries_fall() -> None:
    """12:00:58, with timers in this second, this minute, this hour and this day."""
    at = ((12 * 60 + 0) * 60 + 58) * 1_000
    wheel: TimingWheel[str] = TimingWheel(at)
    due = {
        "ms": at + 250,
        "s": at + 1_100,
        "min": at + 392_500,
        "h": at + 10_742_007,
        "days": at + 200_000_000,
    }
    for name, due_at_ms in due.items():
        assert wheel.add(name, due_at_ms=due_at_ms)
    for name, due_at_ms in due.items():
        assert wheel.next_due_at_ms() is not None
        assert wheel.advance(due_at_ms - 1) == [], f"{name} fired early"
        assert [tuple(timer) for timer in wheel.advance(due_at_ms)] == [(due_at_ms, name)]


def test_w01_the_wheel_releases_without_a_receiver(broker: Broker) -> None:
    broker.create_topic("t", granularity=MILLISECOND)
    with turning(broker):
        receipts = [broker.send("t", b"x", delay=n * 100 * MILLISECOND) for n in range(5)]
        for receipt in receipts:
            until(lambda: state(broker, receipt.message_id) == "Ready", "the release")  # noqa: B023


def test_w02_a_flood_on_one_topic_does_not_make_another_late(broker: Broker, dsn: str) -> None:
    """The flooded topic's release is held up for good; the other topic's does not wait for it."""
    for name in ("flood", "other"):
        broker.create_topic(name, granularity=MILLISECOND)
    broker.maintain()
    broker.send_many("flood", [{"body": b"x", "delay": AT_ONCE}] * 10_000)
    with connected(dsn, autocommit=False) as ticker:
        # As long as this transaction is open nobody can release anything of the topic.
        ask(
            ticker,
            "select pg_advisory_xact_lock(duewheel.tick_lock_class(), topic_id)::text"
            " from duewheel.topic where name = 'flood'",
        )
        with turning(broker):
            flood = broker.send("flood", b"x", delay=AT_ONCE)
            for _ in range(5):
                other = broker.send("other", b"x", delay=20 * MILLISECOND)
                until(lambda: state(broker, other.message_id) == "Ready", "the other topic")  # noqa: B023
            assert state(broker, flood.message_id) == "Timing"
            ticker.commit()
            until(lambda: state(broker, flood.message_id) == "Ready", "the flooded topic")


def test_w03_tag_filters_work_on_delayed_messages(topic: Broker, clock: Clock) -> None:
    instant = clock() + HOUR
    for tag in ("A", "B", "C", None):
        topic.send("t", str(tag), deliver_at=instant, tag=tag)
    consumers = {tags: topic.consumer("t", tags.replace(" || ", "-or-"), tags) for tags in ("A", "A || B")}
    everything = topic.consumer("t", "everything")
    clock.set(instant)
    assert bodies(taken(consumers["A"])) == [b"A"]
    assert bodies(taken(consumers["A || B"])) == [b"A", b"B"]
    assert bodies(taken(everything)) == [b"A", b"B", b"C", b"None"]


def test_w04_levels_and_free_instants_side_by_side(topic: Broker, clock: Clock) -> None:
    topic.send("t", b"level 5: 60 s", delay_level=5)
    topic.send("t", b"59.999 s", delay=MINUTE - MILLISECOND)
    topic.send("t", b"instant: 60.001 s", deliver_at=clock() + MINUTE + MILLISECOND)
    topic.send("t", b"level 0", delay_level=0)
    consumer = topic.consumer("t", "g")
    assert bodies(taken(consumer)) == [b"level 0"]
    for step, body in (
        (MINUTE - MILLISECOND, b"59.999 s"),
        (MILLISECOND, b"level 5: 60 s"),
        (MILLISECOND, b"instant: 60.001 s"),
    ):
        clock.advance(step - MICROSECOND)
        assert taken(consumer) == []
        clock.advance(MICROSECOND)
        assert bodies(taken(consumer)) == [body]


@pytest.mark.long
def test_w05_millions_wait_and_each_comes_at_its_millisecond(timed_broker: Broker, clock: Clock) -> None:
    """Two million messages, one for each of the next two million milliseconds."""
    timed_broker.create_topic("t", queues=2)
    start = clock() + HOUR
    half = 1_000_000
    for first in (0, half):
        timed_broker.send_many(
            "t", [{"body": b"x", "deliver_at": start + n * MILLISECOND} for n in range(first, first + half)]
        )
    consumer = timed_broker.consumer("t", "g", start=start + 995_000 * MILLISECOND - MICROSECOND)
    clock.set(start - MICROSECOND)
    assert not timed_broker.tick("t")
    # Nothing is paid for the million before: the group starts five seconds before the middle.
    clock.set(start + 999_999 * MILLISECOND)
    assert timed_broker.tick("t")
    seen = {message.deliver_at for message in taken(consumer)}
    assert len(seen) == 5_000
    for n in range(half, half + 50):
        clock.set(start + n * MILLISECOND - MICROSECOND)
        assert taken(consumer) == []
        clock.set(start + n * MILLISECOND)
        assert [message.deliver_at for message in taken(consumer)] == [clock()]


def test_w05_the_clock_of_the_wheel_has_milliseconds(topic: Broker, clock: Clock) -> None:
    start = clock() + HOUR
    consumer = topic.consumer("t", "g")
    topic.send_many("t", [{"body": b"%d" % n, "deliver_at": start + n * MILLISECOND} for n in range(20)])
    for n in range(20):
        clock.set(start + n * MILLISECOND)
        assert bodies(taken(consumer)) == [b"%d" % n]
