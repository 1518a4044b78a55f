"""Make sure that a topic exists, as the first task of a DAG or in a separate DAG."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from duewheel.hooks.arguments.declared import (
    as_count,
    check_choice,
    check_count,
    check_levels,
    check_not_given_later,
    check_span,
    check_topic,
)
from duewheel.hooks.arguments.mapped import CheckedWhenMapped
from duewheel.hooks.arguments.rendered import as_span
from duewheel.hooks.broker import DueWheelHook
from duewheel.store.values.limits import (
    LONGEST_GRANULARITY,
    LONGEST_SETTING,
    MOST_QUEUES,
    SHORTEST_GRANULARITY,
)
from duewheel.store.values.messages import MessageType, OutOfRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class CreateTopicOperator(CheckedWhenMapped, BaseOperator):
    """Create a topic unless it exists with the same settings.

    Settings that are not given take the broker's defaults.

    Args:
        topic: its name, 1 to 127 letters, digits, ``.``, ``_`` or ``-``.
        message_type: ``DELAY``, ``NORMAL`` or ``FIFO``.
        queues: how many consumers of one group may work in parallel.
        max_delay: the longest delay that is accepted.
        out_of_range: whether to ``reject`` a message with a longer delay or to ``deliver`` it at once.
        granularity: the shortest time between two ticks of a busy topic, 1 ms or more.
        retention: how long messages are kept after their delivery time.
        delay_levels: the delay of level 1, of level 2 and so on; 18 from 1 s to 2 h when left out.
        dead_letter_retention: how long dead letters are kept; 30 days when left out.
        duewheel_conn_id: the connection to the broker.

    Raises:
        InvalidArgument: a setting that the broker would refuse; raised when the DAG is read.
        TopicExists: a topic of this name has other settings; nothing is changed.

    Example::

        CreateTopicOperator(task_id="make_topic", topic="order-timeout", max_delay=timedelta(days=7))
    """

    template_fields: Sequence[str] = ("topic", "duewheel_conn_id")
    ui_color = "#dfe9f5"

    def __init__(
        self,
        *,
        topic: str,
        message_type: str = "DELAY",
        queues: int | None = None,
        max_delay: timedelta | str | None = None,
        out_of_range: str | None = None,
        granularity: timedelta | str | None = None,
        retention: timedelta | str | None = None,
        delay_levels: Sequence[timedelta | str] | None = None,
        dead_letter_retention: timedelta | str | None = None,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_topic(topic)
        settings = {
            "message_type": message_type,
            "queues": queues,
            "max_delay": max_delay,
            "out_of_range": out_of_range,
            "granularity": granularity,
            "retention": retention,
            "delay_levels": delay_levels,
            "dead_letter_retention": dead_letter_retention,
        }
        check_not_given_later(self, **settings)
        check_choice(message_type, "message_type", MessageType)
        check_count(queues, "queues", at_most=MOST_QUEUES)
        check_choice(out_of_range, "out_of_range", OutOfRange)
        for name, span in (
            ("max_delay", max_delay),
            ("retention", retention),
            ("dead_letter_retention", dead_letter_retention),
        ):
            check_span(span, name, more_than=timedelta(0), at_most=LONGEST_SETTING)
        check_span(granularity, "granularity", at_least=SHORTEST_GRANULARITY, at_most=LONGEST_GRANULARITY)
        check_levels(delay_levels)
        self.topic = topic
        self.message_type = message_type
        self.queues = queues
        self.max_delay = max_delay
        self.out_of_range = out_of_range
        self.granularity = granularity
        self.retention = retention
        self.delay_levels = delay_levels
        self.dead_letter_retention = dead_letter_retention
        self.duewheel_conn_id = duewheel_conn_id

    def execute(self, context: Context) -> None:  # noqa: ARG002 - Airflow's signature
        """Create the topic."""
        settings = {
            "queues": None if self.queues is None else as_count(self.queues, "queues", at_most=MOST_QUEUES),
            "max_delay": as_span(self.max_delay, "max_delay"),
            "out_of_range": self.out_of_range,
            "granularity": as_span(self.granularity, "granularity"),
            "retention": as_span(self.retention, "retention"),
            "delay_levels": self.delay_levels
            and [span for level in self.delay_levels if (span := as_span(level, "delay_levels")) is not None],
            "dead_letter_retention": as_span(self.dead_letter_retention, "dead_letter_retention"),
        }
        given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
        with DueWheelHook(self.duewheel_conn_id).get_conn() as broker:
            broker.create_topic(self.topic, message_type=self.message_type, **given)
        self.log.info("Topic %s exists with these settings", self.topic)
