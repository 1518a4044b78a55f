"""Each row of docs/reference/limits.md holds: the limit itself is taken, one step beyond it is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from inspect import signature
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from duewheel.store import Broker, Consumer, RetryPolicy
from duewheel.store.values.errors import DueWheelError

#: The table of what is given; tests/proof/test_broker_limits.py has that of what a broker bears.
PAGE, _, _ = (
    (Path(__file__).parent.parent / "docs" / "reference" / "limits.md").read_text().partition("## What")
)
MICROSECOND, MILLISECOND = timedelta(microseconds=1), timedelta(milliseconds=1)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
EMPTY = timedelta(0)
NUMBERS = count()

Call = Callable[[Broker], object]


@dataclass
class Row:
    """What a row of the page says, and the calls that prove it."""

    default: str
    limits: str
    taken: list[Call]
    refused: list[Call]


def send(*, body: object = b"", **given: Any) -> Call:
    return lambda broker: broker.send("t", body, **{"delay": HOUR, **given})


def topic(**given: Any) -> Call:
    return lambda broker: broker.create_topic(**{"name": f"topic-{next(NUMBERS)}", **given})


def receive(**given: Any) -> Call:
    return lambda broker: broker.consumer("full", f"group-{next(NUMBERS)}").receive(**given)


def group(topic: str = "t", **given: Any) -> Call:
    return lambda broker: broker.consumer(topic, **{"group": "g", **given})


def redrive(**given: Any) -> Call:
    return lambda broker: (broker.consumer("t", "g"), broker.redrive("g", **given))


def schedule(**given: Any) -> Call:
    return lambda broker: broker.create_schedule(f"schedule-{next(NUMBERS)}", "t", "", **given)


def policy(call: Callable[[], object]) -> Call:
    return lambda _: call()


def nested(depth: int) -> Any:
    """Lists in each other, and a number in the innermost."""
    return [nested(depth - 1)] if depth else 1


LEVELS = "1 s, 5 s, 10 s, 30 s, each minute from 1 to 10, 20 min, 30 min, 1 h, 2 h"
WAITS = "10 s, 30 s, each minute from 1 to 10, 20 min, 30 min, 1 h, 2 h"

ROWS = {
    "body": Row("", "4 MiB", [send(body=bytes(4 << 20))], [send(body=bytes((4 << 20) + 1))]),
    "properties, the type of the body included": Row(
        "none",
        "16 KiB as JSON text, 100 deep, numbers to ±1e308",
        [
            send(properties={"a": "x" * (16384 - 9)}),
            send(properties={"a": nested(99)}),
            send(properties={"a": -(10**308)}),
        ],
        [
            send(properties={"a": "x" * (16384 - 8)}),
            send(properties={"a": nested(100)}),
            send(properties={"a": -(10**308) - 1}),
        ],
    ),
    "key": Row("none", "1 to 255 characters", [send(key="é" * 255)], [send(key=""), send(key="x" * 256)]),
    "tag": Row(
        "none",
        r"1 to 127 characters, no spaces, no `\|`",
        [send(tag="é" * 127)],
        [send(tag=""), send(tag="x" * 128), send(tag="a b"), send(tag="a|b")],
    ),
    "message group": Row(
        "none; FIFO topics need one",
        "1 to 255 characters",
        [send(message_group="é" * 255)],
        [
            send(message_group=""),
            send(message_group="x" * 256),
            lambda broker: broker.send("fifo", "", message_group=None),
        ],
    ),
    "idempotency key": Row(
        "none",
        "1 to 512 characters",
        [send(idempotency_key="é" * 512)],
        [send(idempotency_key=""), send(idempotency_key="x" * 513)],
    ),
    "topic or group name": Row(
        "",
        "1 to 127 of `A-Z a-z 0-9 _ . -`",
        [topic(name="aZ0_.-" + "x" * 121), group(group="aZ0_.-" + "x" * 121)],
        [
            topic(name=""),
            topic(name="x" * 128),
            topic(name="a/b"),
            group(group="x" * 128),
            group(group="a/b"),
        ],
    ),
    "queues of a topic": Row(
        "4", "1 to 64", [topic(queues=1), topic(queues=64)], [topic(queues=0), topic(queues=65)]
    ),
    "longest delay of a topic (`max_delay`)": Row(
        "24 h",
        "more than 0, to 3660 days",
        [topic(max_delay=MICROSECOND), topic(max_delay=3660 * DAY)],
        [topic(max_delay=EMPTY), topic(max_delay=3660 * DAY + MILLISECOND)],
    ),
    "what a longer delay does (`out_of_range`)": Row(
        "`reject`",
        "`reject`, `deliver`",
        [topic(out_of_range="reject"), topic(out_of_range="deliver")],
        [topic(out_of_range="drop")],
    ),
    "granularity": Row(
        "15 ms",
        "1 ms to 1 h",
        [topic(granularity=MILLISECOND), topic(granularity=HOUR)],
        [topic(granularity=EMPTY), topic(granularity=HOUR + MILLISECOND)],
    ),
    "retention, from the delivery instant": Row(
        "72 h",
        "more than 0, to 3660 days",
        [topic(retention=MICROSECOND), topic(retention=3660 * DAY)],
        [topic(retention=EMPTY), topic(retention=3660 * DAY + MILLISECOND)],
    ),
    "retention of dead letters": Row(
        "30 days",
        "more than 0, to 3660 days",
        [topic(dead_letter_retention=MICROSECOND), topic(dead_letter_retention=3660 * DAY)],
        [topic(dead_letter_retention=EMPTY), topic(dead_letter_retention=3660 * DAY + MILLISECOND)],
    ),
    "`receive`: messages at most": Row(
        "32",
        "1 to 10 000",
        [receive(max_messages=1), receive(max_messages=10_000)],
        [receive(max_messages=0), receive(max_messages=10_001)],
    ),
    "`receive`: invisible duration": Row(
        "60 s",
        "1 s to 12 h",
        [receive(invisible=SECOND), receive(invisible=12 * HOUR)],
        [receive(invisible=SECOND - MILLISECOND), receive(invisible=12 * HOUR + MILLISECOND)],
    ),
    "`receive`: wait for the first message": Row(
        "0 s",
        "0 to 30 s",
        [receive(wait=EMPTY, max_messages=1), receive(wait=30 * SECOND, max_messages=1)],
        [receive(wait=-MILLISECOND), receive(wait=30 * SECOND + MILLISECOND)],
    ),
    "retries before the dead letter": Row(
        "16",
        "0 to 2147483647",
        [group(retry=RetryPolicy.unordered(0)), group(retry=RetryPolicy.unordered(2147483647))],
        [policy(lambda: RetryPolicy.unordered(-1)), policy(lambda: RetryPolicy.unordered(2147483648))],
    ),
    "retry intervals": Row(
        WAITS,
        "1 to 1000 intervals of 0 to 3660 days",
        [
            group(retry=RetryPolicy.intervals([EMPTY])),
            group(retry=RetryPolicy.intervals([3660 * DAY] * 1000)),
        ],
        [
            policy(lambda: RetryPolicy.intervals([])),
            policy(lambda: RetryPolicy.intervals([SECOND] * 1001)),
            policy(lambda: RetryPolicy.intervals([-MILLISECOND])),
            policy(lambda: RetryPolicy.intervals([3660 * DAY + MILLISECOND])),
        ],
    ),
    "ordered retries (FIFO)": Row(
        "without a limit, after 1 s",
        "after 10 ms to 30 s, or 1 min",
        [
            group("fifo", retry=RetryPolicy.ordered(10 * MILLISECOND)),
            group("fifo", retry=RetryPolicy.ordered(30 * SECOND)),
            group("fifo", retry=RetryPolicy.http_ordered()),
        ],
        [
            policy(lambda: RetryPolicy.ordered(9 * MILLISECOND)),
            policy(lambda: RetryPolicy.ordered(30 * SECOND + MILLISECOND)),
        ],
    ),
    "jitter of retry intervals": Row(
        "0",
        "0 to 1",
        [group(retry=RetryPolicy.exponential(SECOND, longest=MINUTE, jitter=1))],
        [
            policy(lambda: RetryPolicy.exponential(SECOND, longest=MINUTE, jitter=1.01)),
            policy(lambda: RetryPolicy.exponential(SECOND, longest=MINUTE, jitter=-0.01)),
        ],
    ),
    "filter": Row(
        "none",
        "8192 characters",
        [group(group="filtered", filter="$.a == 1".ljust(8192))],
        [group(filter="$.a == 1".ljust(8193))],
    ),
    "delay levels of a topic": Row(
        LEVELS,
        "1 to 64 levels of 0 to 3660 days",
        [topic(delay_levels=[EMPTY]), topic(delay_levels=[3660 * DAY] * 64)],
        [
            topic(delay_levels=[]),
            topic(delay_levels=[SECOND] * 65),
            topic(delay_levels=[-MILLISECOND]),
            topic(delay_levels=[3660 * DAY + MILLISECOND]),
        ],
    ),
    "delay level of a message": Row(
        "",
        "0 and more; above the last means the last",
        [send(delay=None, delay_level=0), send(delay=None, delay_level=2**31)],
        [send(delay=None, delay_level=-1)],
    ),
    "`send_many`: messages in one call": Row(
        "",
        "1 000 000",
        [lambda broker: broker.send_many("t", [])],
        [lambda broker: broker.send_many("t", [{"body": "", "delay": HOUR}] * 1_000_001)],
    ),
    "interval of a schedule (`every`)": Row(
        "",
        "1 s to 3660 days",
        [schedule(every=SECOND), schedule(every=3660 * DAY)],
        [schedule(every=SECOND - MILLISECOND), schedule(every=3660 * DAY + MILLISECOND)],
    ),
    "cron expression of a schedule": Row(
        "",
        "255 characters",
        [schedule(cron="0," * 123 + "0 5 * * *")],
        [schedule(cron="00," + "0," * 122 + "0 5 * * *"), schedule(cron="0 0 5 * * *")],
    ),
    "messages per second of a redrive": Row(
        "without a limit",
        "0.001 to 1 000 000",
        [redrive(per_second=0.001), redrive(per_second=1_000_000)],
        [redrive(per_second=0.0009), redrive(per_second=1_000_001)],
    ),
    "listener threads of a push consumer": Row(
        "8",
        "1 to 256",
        [
            lambda broker: broker.push_consumer("t", "g", print, threads=1),
            lambda broker: broker.push_consumer("t", "g", print, threads=256),
        ],
        [
            lambda broker: broker.push_consumer("t", "g", print, threads=0),
            lambda broker: broker.push_consumer("t", "g", print, threads=257),
        ],
    ),
}

#: Where the page's default is that of a parameter.
DEFAULTS: dict[str, tuple[Callable[..., object], str]] = {
    "key": (Broker.send, "key"),
    "tag": (Broker.send, "tag"),
    "properties, the type of the body included": (Broker.send, "properties"),
    "queues of a topic": (Broker.create_topic, "queues"),
    "longest delay of a topic (`max_delay`)": (Broker.create_topic, "max_delay"),
    "what a longer delay does (`out_of_range`)": (Broker.create_topic, "out_of_range"),
    "retention, from the delivery instant": (Broker.create_topic, "retention"),
    "retention of dead letters": (Broker.create_topic, "dead_letter_retention"),
    "`receive`: messages at most": (Consumer.receive, "max_messages"),
    "`receive`: invisible duration": (Consumer.receive, "invisible"),
    "`receive`: wait for the first message": (Consumer.receive, "wait"),
    "retries before the dead letter": (RetryPolicy.unordered, "max_retries"),
    "jitter of retry intervals": (RetryPolicy.exponential, "jitter"),
    "filter": (Broker.consumer, "filter"),
    "listener threads of a push consumer": (Broker.push_consumer, "threads"),
}


def span(text: str) -> timedelta:
    """A duration as the page writes it."""
    number, unit = text.split()
    return int(number) * {"ms": MILLISECOND, "s": SECOND, "min": MINUTE, "h": HOUR, "days": DAY}[unit]


def spans(text: str) -> list[timedelta]:
    """A list of durations as the page writes it."""
    found: list[timedelta] = []
    for part in text.split(", "):
        found += [n * MINUTE for n in range(1, 11)] if part == "each minute from 1 to 10" else [span(part)]
    return found


@pytest.fixture
def prepared(broker: Broker) -> Broker:
    """A broker with the topics `t`, `fifo`, and `full`, which has more ready than a test receives."""
    broker.create_topic("t", max_delay=2 * DAY)
    broker.create_topic("fifo", message_type="FIFO")
    broker.create_topic("full")
    for _ in range(4):
        broker.send("full", "", delay=EMPTY)
    return broker


def test_page_and_proofs_are_about_the_same_limits() -> None:
    listed = re.findall(r"^\| (.+?) \| (.*?) ?\| (.+?) \|$", PAGE, re.MULTILINE)[1:]
    assert [row for row in listed if row[0] != "---"] == [
        (what, row.default, row.limits) for what, row in ROWS.items()
    ]


def is_refused(call: Call, broker: Broker) -> bool:
    try:
        call(broker)
    except DueWheelError:
        return True
    return False


def test_limits_are_taken_and_no_more(prepared: Broker) -> None:
    for what, row in ROWS.items():
        assert not [n for n, call in enumerate(row.taken) if is_refused(call, prepared)], what
        assert not [n for n, call in enumerate(row.refused) if not is_refused(call, prepared)], what


def test_defaults_are_those_of_the_calls() -> None:
    for what, (call, name) in DEFAULTS.items():
        default = signature(call).parameters[name].default
        written = ROWS[what].default.strip("`")
        if isinstance(default, timedelta):
            assert span(written) == default, what
        else:
            shown = f"{default:g}" if isinstance(default, float) else str(default)
            assert written == ("none" if default is None else shown), what


def test_default_intervals_and_levels_are_those_listed(prepared: Broker) -> None:
    assert spans(WAITS) == list(RetryPolicy.unordered().waits)
    (topic,) = (topic for topic in prepared.topics() if topic.name == "t")
    assert spans(LEVELS) == list(topic.delay_levels)
    assert span(ROWS["granularity"].default) == topic.granularity
    (wait,) = RetryPolicy.ordered().waits
    assert (wait, RetryPolicy.ordered().max_retries) == (SECOND, None)
    prepared.consumer("t", "g")
    prepared.consumer("fifo", "g")
    on_fifo, on_t = prepared.groups()
    assert (on_t.retry, on_fifo.retry) == (RetryPolicy.unordered(), RetryPolicy.ordered())
