"""The time axis of the first view: messages by topic, released before now and due after it."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from duewheel.plugin import models
from duewheel.store import Broker
from duewheel.store.operations import overview

#: The length of a step, and the number of steps on each side of now.
SPANS: Final = {
    "15min": (timedelta(seconds=15), 60),
    "1h": (timedelta(minutes=1), 60),
    "24h": (timedelta(minutes=30), 48),
    "3d": (timedelta(hours=1), 72),
    "30d": (timedelta(hours=12), 60),
}
#: The steps of a part that is zoomed into, in seconds.
_STEPS_SECONDS: Final = (1, 5, 15, 60, 300, 1_800, 3_600, 43_200, 86_400)
_MOST_STEPS: Final = 150
#: How long to count the messages of the present step that are due before now.
_SPLIT_MS: Final = 20
#: The largest estimate is counted up to this: a burst is named by its number.
_MOST_IN_BURST: Final = 100_000
_BURST_MS: Final = 50
#: So many topics are distinguished; the axis draws fewer.
_MOST_TOPICS: Final = 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def axis_steps(
    now_at: datetime, span: str, from_at: datetime | None, until_at: datetime | None
) -> tuple[datetime, timedelta, int]:
    """The beginning of the axis, the length of a step, and the number of steps.

    Args:
        now_at: the database's instant.
        span: a key of :data:`SPANS`.
        from_at: the beginning of the axis; None puts now into its middle.
        until_at: its end; None, or an instant that is not after ``from_at``, ends it after one span.
    """
    step, steps = SPANS[span]
    if from_at is None:
        # On a fixed grid, so that bars stay in their place from one answer to the next.
        return _EPOCH + step * ((now_at - _EPOCH) // step - steps), step, 2 * steps
    if until_at is None or until_at <= from_at:
        return from_at, step, steps
    length_seconds = (until_at - from_at).total_seconds()
    seconds = next((one for one in _STEPS_SECONDS if length_seconds <= one * _MOST_STEPS), None)
    if seconds is None:
        return from_at, (until_at - from_at) / _MOST_STEPS, _MOST_STEPS
    return from_at, timedelta(seconds=seconds), math.ceil(length_seconds / seconds)


def axis_of(
    broker: Broker,
    now_at: datetime,
    place: tuple[datetime, timedelta, int],
    topic: str | None,
    past_ms: int,
    due_ms: int,
) -> models.Axis:
    """The numbers of messages on the axis.

    Args:
        broker: the broker.
        now_at: the database's instant.
        place: from :func:`axis_steps`.
        topic: one topic; None for all of them.
        past_ms, due_ms: how long counting may take before now and after it. The rest is an estimate from a
            sample of the tables.
    """
    from_at, step, steps = place
    past_steps = min(steps, max(0, (now_at - from_at) // step))
    due: list[overview.DueStep] = []
    complete = True
    for first, many, max_ms in ((0, past_steps, past_ms), (past_steps, steps - past_steps, due_ms)):
        if many:
            found = overview.due_histogram(broker, from_at + first * step, step, many, topic, max_ms)
            # Thousands of steps: replace() takes several times as long as the class itself.
            due += [
                overview.DueStep(one.topic, one.step + first, one.messages, one.exact) for one in found.due
            ]
            complete = complete and found.counted_steps == many
    due = _with_counted_burst(broker, from_at, step, due)
    topics = {one.topic for one in due}
    estimated = {one.topic for one in due if not one.exact}
    begun_at = from_at + past_steps * step
    past: tuple[overview.DueStep, ...] = ()
    if past_steps < steps and begun_at < now_at:
        past = overview.due_histogram(broker, begun_at, now_at - begun_at, 1, topic, _SPLIT_MS).due
    return models.Axis(
        from_at=from_at,
        step_seconds=step.total_seconds(),
        steps=steps,
        past_steps=past_steps,
        past_messages=sum(one.messages for one in past),
        past_messages_is_exact=all(one.exact for one in past),
        due=_with_others_together(due),
        topics=len(topics),
        counted_topics=len(topics - estimated),
        complete=complete,
    )


def _with_others_together(due: list[overview.DueStep]) -> list[overview.DueStep]:
    """The largest topics, and in each step the sum of all others as the topic ""."""
    sums: defaultdict[str, int] = defaultdict(int)
    for one in due:
        sums[one.topic] += one.messages
    largest = {*sorted(sums, key=lambda topic: sums[topic], reverse=True)[:_MOST_TOPICS]}
    others: defaultdict[int, int] = defaultdict(int)
    estimated: set[int] = set()
    for one in due:
        if one.topic not in largest:
            others[one.step] += one.messages
            if not one.exact:
                estimated.add(one.step)
    return [one for one in due if one.topic in largest] + [
        overview.DueStep("", step, messages, step not in estimated) for step, messages in others.items()
    ]


def _with_counted_burst(
    broker: Broker, from_at: datetime, step: timedelta, due: list[overview.DueStep]
) -> list[overview.DueStep]:
    """Count the largest estimate: the planner takes a burst for a part of it."""
    largest = max((one for one in due if not one.exact), key=lambda one: one.messages, default=None)
    if largest is None:
        return due
    counted = overview.due_histogram(
        broker, from_at + largest.step * step, step, 1, largest.topic, _BURST_MS, _MOST_IN_BURST
    )
    found = [replace(one, step=largest.step) for one in counted.due]
    return [other for one in due for other in (found if one is largest else [one])]
