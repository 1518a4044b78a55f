"""A schedule, as it is listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any


class Misfire(StrEnum):
    """The treatment of occurrences that no wheel sent in time: more than a minute late."""

    SKIP = "skip"
    """They are skipped; occurrences at most a minute late are sent."""
    ONCE = "once"
    """Only the last of them is sent."""
    ALL = "all"
    """Each of them is sent, in order."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule and its progress.

    Attributes:
        name: its name, unique in the broker.
        topic: the topic it sends to.
        cron: the cron expression, or None.
        every: the interval, or None.
        timezone: the zone of the cron expression's wall clock.
        misfire: the treatment of occurrences that were not sent in time.
        paused: whether it is paused.
        next_at: the next occurrence, in UTC; None while it is paused.
        last_at: the newest occurrence that was sent and is due, in UTC; None before the first.
        last_message_id: the id of that occurrence's message.
        start_at: no occurrence is before it; None if it was not given.
        paused_at: since when it is paused.
        body, key, tag, properties: the fields of its messages.
        created_at: when it was created, in UTC.
    """

    name: str
    topic: str
    cron: str | None
    every: timedelta | None
    timezone: str
    misfire: Misfire
    paused: bool
    next_at: datetime | None
    last_at: datetime | None
    last_message_id: str | None
    start_at: datetime | None
    paused_at: datetime | None
    body: bytes
    key: str | None
    tag: str | None
    properties: Mapping[str, Any] | None
    created_at: datetime
