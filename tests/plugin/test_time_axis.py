"""The steps of the time axis: a grid with now in the middle, or a part that is zoomed into."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.acting import AT_ONCE, MINUTE
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store.broker import Broker

pytestmark = [
    pytest.mark.airflow,
    # Importing Airflow's API warns of a library's future.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]

NOW = datetime(2030, 1, 5, 10, 7, 33, tzinfo=UTC)


@pytest.mark.parametrize("span", ["15min", "1h", "24h", "3d", "30d"])
def test_x08_now_is_in_the_middle_of_the_axis(span: str) -> None:
    from duewheel.plugin.time_axis import axis_steps

    from_at, step, steps = axis_steps(NOW, span, None, None)
    assert from_at + step * (steps // 2) <= NOW < from_at + step * (steps // 2 + 1)
    # A moment later the bars are in the same place.
    assert axis_steps(NOW + timedelta(seconds=5), span, None, None)[0] == from_at


@pytest.mark.parametrize(
    ("minutes", "step_seconds", "steps"),
    [(2, 1, 120), (21, 15, 84), (75, 60, 75), (60 * 24 * 400, 230_400, 150)],
)
def test_x08_a_part_of_the_axis_has_finer_steps(minutes: int, step_seconds: int, steps: int) -> None:
    from duewheel.plugin.time_axis import axis_steps

    found = axis_steps(NOW, "1h", NOW, NOW + timedelta(minutes=minutes))
    assert found == (NOW, timedelta(seconds=step_seconds), steps)
    # An end before the beginning is none.
    assert axis_steps(NOW, "1h", NOW, NOW)[1:] == (timedelta(minutes=1), 60)


def test_x08_the_axis_has_released_and_due_messages_of_topics(timed_broker: Broker, clock: Clock) -> None:
    from duewheel.plugin.time_axis import axis_of, axis_steps

    for topic in ("a", "b"):
        timed_broker.create_topic(topic)
        timed_broker.send(topic, b"", delay=AT_ONCE)
        timed_broker.tick(topic)
    timed_broker.send("b", b"", delay=timedelta(minutes=30))
    clock.advance(timedelta(minutes=2))
    for delay in (AT_ONCE, timedelta(seconds=1)):
        timed_broker.send("a", b"", delay=delay)
    place = axis_steps(clock(), "1h", None, None)
    axis = axis_of(timed_broker, clock(), place, None, 1_000, 1_000)
    assert (axis.steps, axis.past_steps, axis.complete) == (120, 60, True)
    assert [(one.topic, one.step - axis.past_steps, one.messages) for one in axis.due] == [
        ("a", -2, 1),
        ("b", -2, 1),
        ("a", 0, 2),
        ("b", 28, 1),
    ]
    # Of the step that it is in, a part is before now.
    later = axis_of(timed_broker, clock() + timedelta(seconds=0.5), place, None, 1_000, 1_000)
    assert (later.past_messages, later.past_messages_is_exact) == (1, True)


def test_x08_a_burst_has_its_number(timed_broker: Broker, clock: Clock) -> None:
    from duewheel.plugin.time_axis import axis_of, axis_steps

    timed_broker.create_topic("a")
    due_at = clock() + timedelta(minutes=34)
    for minutes, number in ((20, 600), (34, 3_000), (50, 700)):
        messages = [{"body": b"", "deliver_at": clock() + timedelta(minutes=minutes)}] * number
        timed_broker.send_many("a", messages)
    place = axis_steps(clock(), "1h", None, None)
    axis = axis_of(timed_broker, clock(), place, None, 1_000, 1_000)
    largest = max(axis.due, key=lambda one: one.messages)
    assert (largest.messages, largest.exact) == (3_000, True)
    assert axis.from_at + largest.step * place[1] <= due_at
    # The others stay estimates, above 500.
    assert [one.exact for one in sorted(axis.due, key=lambda one: one.step)] == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("span", ["1h", "24h"])
def test_x08_bursts_are_about_as_high_as_they_are(
    timed_broker: Broker, clock: Clock, turning_dsn: str, span: str
) -> None:
    """One before now and one after it, of which the planner's statistics know nothing yet."""
    from duewheel.plugin.time_axis import axis_of, axis_steps

    for topic in "abcdefghij":
        timed_broker.create_topic(topic)
        instants = [clock() + n * timedelta(seconds=1) for n in range(12_000)]
        timed_broker.send_many(topic, [{"body": b"", "deliver_at": at} for at in instants])
    with connected(turning_dsn) as connection:
        ask(connection, "analyze duewheel.message, duewheel.far_message")
    sent_at = clock()
    for topic, minutes, number in (("b", 10, 50_000), ("c", 100, 55_000)):
        burst = [sent_at + minutes * MINUTE + n % 60 * timedelta(milliseconds=100) for n in range(number)]
        timed_broker.send_many(topic, [{"body": b"", "deliver_at": at} for at in burst])
    clock.advance(60 * MINUTE)
    place = axis_steps(clock(), span, None, None)
    axis = axis_of(timed_broker, clock(), place, None, 1_000, 1_000)
    for topic, minutes, number in (("b", 10, 50_000), ("c", 100, 55_000)):
        highest = max((one for one in axis.due if one.topic == topic), key=lambda one: one.messages)
        assert highest.step == (sent_at + minutes * MINUTE - axis.from_at) // place[1]
        assert highest.messages == pytest.approx(number, rel=0.3)


def test_x31_topics_beyond_the_largest_are_one_sum_of_each_step(timed_broker: Broker, clock: Clock) -> None:
    from duewheel.plugin.time_axis import axis_of, axis_steps

    for number in range(23):
        topic = f"t{number:02}"
        timed_broker.create_topic(topic)
        messages = 1 if number in (0, 7, 9) else 2
        timed_broker.send_many(topic, [{"body": b"", "delay": timedelta(minutes=30)}] * messages)
    axis = axis_of(timed_broker, clock(), axis_steps(clock(), "1h", None, None), None, 1_000, 1_000)
    assert (axis.topics, axis.counted_topics, len(axis.due)) == (23, 23, 21)
    assert [(one.topic, one.messages, one.exact) for one in axis.due if one.messages != 2] == [("", 3, True)]
