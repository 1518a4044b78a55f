"""Give dead letters to their group again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from duewheel.hooks.arguments.declared import (
    as_count,
    check,
    check_count,
    check_flags,
    check_group,
    check_instant,
    check_not_given_later,
    check_topic,
)
from duewheel.hooks.arguments.mapped import CheckedWhenMapped
from duewheel.hooks.arguments.rendered import as_instant
from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.links import DeadLettersLink
from duewheel.store.values.bodies import check_text
from duewheel.store.values.numbers import as_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from duewheel.store.values.instants import Instant


class RedriveDeadLettersOperator(CheckedWhenMapped, BaseOperator):
    """Send the dead letters of a group again that meet every criterion, each once.

    A try after an interrupted one continues where that stopped.

    Args:
        group: the group.
        topic: only dead letters of this topic; None is all topics of the group.
        tag: only dead letters with this tag.
        key_prefix: only dead letters whose key begins with exactly this text.
        reason_contains, reason_lacks: only dead letters whose reason contains the first text, and not
            the second, literally.
        dead_from, dead_until: only messages that became dead letters at or after the first instant and before
            the second: aware datetimes, or text with an offset.
        max_messages: how many to send at most, the oldest first.
        per_second: how many to send in a second; the task lasts accordingly. None is no limit.
        dry_run: whether to count only.
        duewheel_conn_id: the connection to the broker; its login needs the role duewheel_admin.

    Returns:
        ``{"matched": ..., "redriven": ...}``, as the task's XCom.

    Raises:
        UnknownGroup, UnknownTopic: the group or the topic does not exist.
        InvalidArgument, InvalidInstant: a criterion cannot be understood.

    Example::

        RedriveDeadLettersOperator(
            task_id="again", group="canceller", reason_contains="timeout", per_second=50
        )
    """

    template_fields: Sequence[str] = (
        "group",
        "topic",
        "tag",
        "key_prefix",
        "reason_contains",
        "reason_lacks",
        "dead_from",
        "dead_until",
        "max_messages",
        "duewheel_conn_id",
    )
    ui_color = "#dfe9f5"
    operator_extra_links = (DeadLettersLink(),)

    def __init__(
        self,
        *,
        group: str,
        topic: str | None = None,
        tag: str | None = None,
        key_prefix: str | None = None,
        reason_contains: str | None = None,
        reason_lacks: str | None = None,
        dead_from: Instant | str | None = None,
        dead_until: Instant | str | None = None,
        max_messages: int | str | None = None,
        per_second: float | None = None,
        dry_run: bool = False,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_group(group)
        if topic is not None:
            check_topic(topic)
        for text, name in (
            (tag, "tag"),
            (key_prefix, "key_prefix"),
            (reason_contains, "reason_contains"),
            (reason_lacks, "reason_lacks"),
        ):
            check(text, partial(check_text, name=name))
        for instant, name in ((dead_from, "dead_from"), (dead_until, "dead_until")):
            check_instant(instant, name)
        check_count(max_messages, "max_messages")
        check_not_given_later(self, per_second=per_second, dry_run=dry_run)
        as_rate(per_second)
        check_flags(dry_run=dry_run)
        self.group = group
        self.topic = topic
        self.tag = tag
        self.key_prefix = key_prefix
        self.reason_contains = reason_contains
        self.reason_lacks = reason_lacks
        self.dead_from = dead_from
        self.dead_until = dead_until
        self.max_messages = max_messages
        self.per_second = per_second
        self.only_count = dry_run
        self.duewheel_conn_id = duewheel_conn_id

    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002 - Airflow's signature
        """Send them again, or count them."""
        with DueWheelHook(self.duewheel_conn_id).connected() as broker:
            done = broker.redrive(
                self.group,
                topic=self.topic,
                tag=self.tag,
                key_prefix=self.key_prefix,
                reason_contains=self.reason_contains,
                reason_lacks=self.reason_lacks,
                dead_from=as_instant(self.dead_from, "dead_from"),
                dead_until=as_instant(self.dead_until, "dead_until"),
                max_messages=None
                if self.max_messages is None
                else as_count(self.max_messages, "max_messages"),
                per_second=self.per_second,
                dry_run=self.only_count,
            )
        self.log.info(
            "Of group %s %d dead letters matched; %d were sent again", self.group, done.matched, done.redriven
        )
        return {"matched": done.matched, "redriven": done.redriven}
