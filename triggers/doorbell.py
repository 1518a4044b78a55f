"""The common base of the triggers: the doorbell of one group, on the stream of its connection.

Airflow shares streams between event triggers only, so the trigger of a deferred task is an event trigger,
too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.declared import (
    NAMED_STARTS,
    as_count,
    check_not_given_later,
    check_reading,
    check_start,
)
from duewheel.hooks.rendered import as_instant, as_span
from duewheel.store.values.errors import InvalidArgument, InvalidInstant
from duewheel.store.values.instants import to_datetime
from duewheel.triggers.wheel_stream import DoorbellSnapshot, Watched, doorbell_stream

if TYPE_CHECKING:
    from collections.abc import Hashable

    from duewheel.store.values.instants import Instant


class DoorbellTrigger(BaseEventTrigger):
    """Base of the triggers: waits for the doorbell of a group on the stream of its connection.

    Args:
        topic: the topic to watch.
        group: the consumer group to watch for; made when it does not exist yet, from the earliest message on.
        min_messages: how many messages have to be ready.
        duewheel_conn_id: the connection to the broker.
        tags: only messages with one of these tags count, as ``"a || b"``; ``*`` means all.
        filter: only messages with such properties count, as ``"amount > 100"``.

    Raises:
        InvalidArgument, InvalidTagExpression, InvalidFilter: an argument that the broker would refuse.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        min_messages: int = 1,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        tags: str = "*",
        filter: str | None = None,  # noqa: A002 -- as the consumer's parameter
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
        check_not_given_later(
            self,
            topic=topic,
            group=group,
            min_messages=min_messages,
            duewheel_conn_id=duewheel_conn_id,
            tags=tags,
            filter=filter,
        )
        check_reading(topic, group, tags, filter)
        self.topic = topic
        self.group = group
        self.min_messages = as_count(min_messages, "min_messages")
        self.duewheel_conn_id = duewheel_conn_id
        self.tags = tags
        self.filter = filter

    @property
    def watched(self) -> Watched:
        """The group that the stream watches for this trigger."""
        return Watched(self.topic, self.group, self.tags, self.filter)

    @property
    def watcher(self) -> str:
        """The name of this trigger in the log: its task, or, for an asset's watcher, its number."""
        task = self.task_instance
        if task is None:
            return f"trigger {self.trigger_id}"
        return f"task {task.task_id} of DAG {task.dag_id} in run {task.run_id}, trigger {self.trigger_id}"

    def shared_stream_key(self) -> Hashable:
        """One stream, and so one wheel, for each connection."""
        return ("duewheel", self.duewheel_conn_id)

    @classmethod
    def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncGenerator[DoorbellSnapshot, None]:
        """Run the wheel of the connection and yield the doorbells of all watched groups. Never ends."""
        return doorbell_stream(kwargs["duewheel_conn_id"])

    def filter_shared_stream(
        self, shared_stream: AsyncIterator[DoorbellSnapshot]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Yield this trigger's events from the stream's news of all groups."""
        raise NotImplementedError

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Yield the same events from a wheel of its own, for an Airflow that does not share streams."""
        async with aclosing(self.open_shared_stream(self.serialize()[1])) as stream:
            async with aclosing(self.filter_shared_stream(stream)) as events:
                async for event in events:
                    yield event


def as_start(start: str | Instant) -> str:
    """Where a new group begins, in the form in which the arguments of triggers are stored.

    Args:
        start: ``earliest``, ``latest``, or an instant, which may be text in ISO 8601 with its offset.

    Raises:
        InvalidArgument, InvalidInstant: it is none of these.

    Example:
        >>> as_start("2030-01-31T18:30:00+01:00")
        '2030-01-31T17:30:00+00:00'
    """
    at = start
    if isinstance(start, str) and start not in NAMED_STARTS:
        # What is no instant may be a name that is mistyped: the check says what is known.
        with suppress(InvalidInstant):
            at = as_instant(start, "start") or start
    check_start(at)
    return at if isinstance(at, str) else to_datetime(at, "start").isoformat()


def as_seconds(span: timedelta | str | float, name: str) -> float:
    """A span of time in seconds, the form in which the arguments of triggers are stored.

    Args:
        span: a timedelta, text with units such as ``PT1M``, or seconds, as Airflow has stored them.
        name: the parameter's name, for the error.

    Raises:
        InvalidArgument: it is none of these, or not more than 0.
    """
    given = as_span(span, name) if isinstance(span, str) else span
    if isinstance(given, timedelta):
        seconds = given.total_seconds()
    elif isinstance(given, (int, float)) and not isinstance(given, bool):
        seconds = float(given)
    else:
        raise InvalidArgument(
            f"{name} is {span!r}: give a timedelta, an ISO 8601 duration such as PT1M, or seconds"
        )
    if not 0 < seconds < float("inf"):
        raise InvalidArgument(f"{name} is {span!r}, the limit is more than 0")
    return seconds
