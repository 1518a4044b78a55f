"""The common base of the triggers that wait for the doorbell of a group."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from duewheel.hooks.arguments.declared import (
    MOST_COUNTED,
    as_count,
    as_start,
    check_not_given_later,
    check_reading,
)
from duewheel.hooks.arguments.rendered import as_span
from duewheel.hooks.broker import DueWheelHook
from duewheel.store.values.errors import InvalidArgument
from duewheel.triggers.polling import Watched
from duewheel.triggers.stream_trigger import StreamTrigger

if TYPE_CHECKING:
    from duewheel.store.values.instants import Instant


class DoorbellTrigger(StreamTrigger):
    """Base of the triggers: waits for the doorbell of a group on the stream of its connection.

    Args:
        topic: the topic to watch.
        group: the consumer group to watch for; made when it does not exist yet.
        min_messages: how many messages have to be ready, up to 10 000.
        duewheel_conn_id: the connection to the broker.
        tags: only messages with one of these tags, as ``"a || b"``; ``*`` is all. Set if the group is new;
            None takes the tags of its subscription.
        filter: only messages with such properties count, as ``$.amount > 100``.
        start: where the group begins if it does not exist yet: ``earliest``, ``latest``, or an instant, as
            text in ISO 8601, too. The trigger or the consuming task makes the group, so give both the same.

    Raises:
        InvalidArgument, InvalidTagExpression, InvalidFilter: an argument that the broker would refuse.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        min_messages: int = 1,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        tags: str | None = None,
        filter: str | None = None,  # noqa: A002 -- as the consumer's parameter
        start: str | Instant = "earliest",
    ) -> None:
        super().__init__(duewheel_conn_id)
        check_not_given_later(
            self,
            topic=topic,
            group=group,
            min_messages=min_messages,
            duewheel_conn_id=duewheel_conn_id,
            tags=tags,
            filter=filter,
            start=start,
        )
        check_reading(topic, group, tags, filter)
        self.topic = topic
        self.group = group
        self.min_messages = as_count(min_messages, "min_messages", at_most=MOST_COUNTED)
        self.tags = tags
        self.filter = filter
        begins = as_start(start)
        # Arguments of triggers are stored as text.
        self.start = begins if isinstance(begins, str) else begins.isoformat()

    @property
    def watched(self) -> Watched:
        """The group that the stream watches for this trigger, and its start."""
        return Watched(self.topic, self.group, self.tags, self.filter, self.start)

    @property
    def watcher(self) -> str:
        """The name of this trigger in the log: its task, or, for an asset's watcher, its number."""
        task = self.task_instance
        if task is None:
            return f"trigger {self.trigger_id}"
        return f"task {task.task_id} of DAG {task.dag_id} in run {task.run_id}, trigger {self.trigger_id}"


def as_seconds(span: timedelta | str | float, name: str) -> float:
    """A span of time in seconds, the form in which the arguments of triggers are stored.

    Args:
        span: a timedelta, text with units such as ``PT1M``, or seconds, as Airflow has stored them.
        name: the parameter's name, for the error.

    Raises:
        InvalidArgument: another value, or not more than 0.
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
        raise InvalidArgument(f"{name} must be more than 0; got {span!r}: give a longer span of time")
    return seconds
