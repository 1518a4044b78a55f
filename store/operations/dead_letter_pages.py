"""The dead letters of a group page by page, and their reasons."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from duewheel.store.database.connections import Rows
from duewheel.store.operations.reading import checked_limit, read
from duewheel.store.values.bodies import check_text
from duewheel.store.values.dead_letters import LETTER_COLUMNS, DeadLetter, DeadLetterFilter, letters_of
from duewheel.store.values.records import columns, records

if TYPE_CHECKING:
    from duewheel.store.database.connected import Connected

_DEAD_LETTER_REASONS = """
select {}, complete from duewheel.dead_letter_reasons(%s, %s, dead_from => %s, dead_until => %s)
"""
_DEAD_LETTER_PAGE = """
select {}, place::text
from duewheel.dead_letter_page(
    %s, %s, %s, %s::jsonb, %s, key_prefix => %s, reason_contains => %s, reason_lacks => %s,
    dead_from => %s, dead_until => %s, with_bodies => {})
"""


@dataclass(frozen=True, slots=True)
class ListedDeadLetter:
    """A dead letter without its body; see :class:`duewheel.store.operations.dead_letters.DeadLetter`."""

    topic: str
    message_id: str
    key: str | None
    tag: str | None
    born_at: datetime
    dead_at: datetime
    attempt: int
    reason: str | None
    redriven_at: datetime | None
    kept_until: datetime


@dataclass(frozen=True, slots=True)
class DeadLetterReason:
    """The open dead letters of a group that have one reason; instants in UTC.

    Attributes:
        reason: why their last attempt failed.
        messages: how many there are.
        first_dead_at, last_dead_at: when the first and the last of them became dead letters.
    """

    reason: str | None
    messages: int
    first_dead_at: datetime
    last_dead_at: datetime


def listed_dead_letters(
    broker: Connected, which: DeadLetterFilter, after: str | None = None, max_messages: int = 100
) -> tuple[list[ListedDeadLetter], str | None]:
    """A page of a group's dead letters without their bodies; else like :func:`dead_letter_page`."""
    shown = columns(ListedDeadLetter, topic="topic_name")
    rows = _dead_letters(broker, _DEAD_LETTER_PAGE.format(shown, False), which, after, max_messages)
    found = records(ListedDeadLetter, (row for *row, _ in rows if row[0] is not None))
    there_may_be_more = len(found) == max_messages or len(found) < len(rows)
    return found, rows[-1][-1] if there_may_be_more else None


def dead_letter_reasons(
    broker: Connected,
    group: str,
    topic: str | None = None,
    dead_from: datetime | None = None,
    dead_until: datetime | None = None,
) -> tuple[list[DeadLetterReason], bool]:
    """The 50 most frequent reasons of a group's open dead letters that died between two instants.

    Returns:
        The reasons, and whether all open dead letters were counted. At most 20 000 of each topic are counted:
        among the oldest 50 000 dead letters and, if too few of these are open, the newest 50 000.

    Raises:
        UnknownGroup, UnknownTopic: no such topic or group.
    """
    check_text(group, "group")
    check_text(topic, "topic", optional=True)
    statement = _DEAD_LETTER_REASONS.format(columns(DeadLetterReason))
    rows = read(broker, statement, (group, topic, dead_from, dead_until))
    # If none was found but there may be some, there is one row with a count of 0.
    found = records(DeadLetterReason, (row for *row, _ in rows if row[1] > 0))
    return found, all(complete for *_, complete in rows)


def dead_letter_page(
    broker: Connected, which: DeadLetterFilter, after: str | None = None, max_messages: int = 500
) -> tuple[list[DeadLetter], str | None]:
    """A page of a group's dead letters with their bodies, by topic and the oldest first.

    Args:
        broker: the broker.
        which: the group, and the criteria.
        after: the end of the previous page; None is the first.
        max_messages: how many at most, 1 to 1 000. A page also ends before its bodies exceed 4 MiB, and after
            it has read 10 000 dead letters.

    Returns:
        The dead letters, and the ``after`` of the next page, which is None at the end. A page may have fewer
        than ``max_messages``, or none, before the end.

    Raises:
        UnknownGroup: no group has this name.
    """
    rows = _dead_letters(broker, _DEAD_LETTER_PAGE.format(LETTER_COLUMNS, True), which, after, max_messages)
    return letters_of(row for *row, _ in rows if row[0] is not None), rows[-1][-1] if rows else None


def _dead_letters(
    broker: Connected, statement: str, which: DeadLetterFilter, after: str | None, max_messages: int
) -> Rows:
    check_text(which.group, "group")
    for name in ("topic", "key_prefix", "reason_contains", "reason_lacks"):
        check_text(getattr(which, name), name, optional=True)
    group, topic, redriven, *criteria = astuple(which)
    return read(broker, statement, (group, topic, redriven, after, checked_limit(max_messages), *criteria))
