"""Dead letters, the messages whose retries are used up, and redriving them: sending them again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from duewheel.store.database.connections import Database, Rows, fetch
from duewheel.store.operations.lookups import properties_of
from duewheel.store.values.bodies import check_text
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import Instant, to_datetime
from duewheel.store.values.limits import FASTEST_REDRIVE, SLOWEST_REDRIVE

if TYPE_CHECKING:
    from duewheel.store.broker import Broker

_PAGE = """
select topic_name, message_id, key, tag, properties::text, body, born_at, dead_at, attempt, reason,
       redriven_at, place::text
from duewheel.dead_letter_page(%s, %s, %s, %s::jsonb, %s)
"""
#: So many at most are asked for at once.
_PAGE_MESSAGES = 1_000
_REDRIVE = """
select matched, redriven, next::text
from duewheel.redrive_chunk(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s)
"""

#: How many dead letters are sent again in one transaction; fewer where they go at a rate.
CHUNK = 1_000
_CHUNKS_PER_SECOND = 10


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message whose last retry failed, kept for its group.

    Attributes:
        topic, message_id, key, tag, properties, body: of the message that was sent.
        born_at: when it was sent, in UTC.
        dead_at: when it became a dead letter, in UTC.
        attempt: how often it had been delivered.
        reason: why the last delivery failed: the text of the error, or that no answer came.
        redriven_at: when it was sent again, in UTC; None where it was not. If it failed again, there is
            another dead letter of the same message.
    """

    topic: str
    message_id: str
    key: str | None
    tag: str | None
    properties: dict[str, Any]
    body: bytes
    born_at: datetime
    dead_at: datetime
    attempt: int
    reason: str | None
    redriven_at: datetime | None


def dead_letters(
    database: Database, group: str, topic: str | None, max_messages: int, redriven: bool | None
) -> list[DeadLetter]:
    """The dead letters of a group; see :meth:`duewheel.store.broker.Broker.dead_letters`."""
    check_text(group, "group")
    check_text(topic, "topic", optional=True)
    if type(max_messages) is not int or not 1 <= max_messages <= 10_000:
        raise InvalidArgument(f"max_messages is {max_messages!r}, the limit is 1 to 10000")
    found: list[DeadLetter] = []
    after: str | None = None
    while len(found) < max_messages:
        room = min(_PAGE_MESSAGES, max_messages - len(found))
        rows = database.read(_PAGE, (group, topic, redriven, after, room))
        if not rows:
            break
        found += [letter_of(columns) for *columns, _ in rows if columns[0] is not None]
        after = rows[-1][-1]
    return found


def letter_of(row: Sequence[Any]) -> DeadLetter:
    """A dead letter of the columns that :class:`DeadLetter` has, in their order; the properties as text."""
    topic, identity, key, tag, properties, body, born_at, dead_at, attempt, reason, redriven_at = row
    return DeadLetter(
        topic,
        identity,
        key,
        tag,
        properties_of(properties),
        bytes(body),
        to_datetime(born_at),
        to_datetime(dead_at),
        attempt,
        reason,
        None if redriven_at is None else to_datetime(redriven_at),
    )


@dataclass(frozen=True, slots=True)
class Redriven:
    """The result of a redrive.

    Attributes:
        matched: the dead letters that the criteria chose and that had not been sent again.
        redriven: those of them that this call sent again; 0 in a dry run, fewer than ``matched`` where
            another redrive ran at the same time.
    """

    matched: int
    redriven: int


def redrive(database: Database, group: str, topic: str | None, **asked: Any) -> Redriven:
    """Send dead letters again; see :meth:`duewheel.store.broker.Broker.redrive`."""
    matched = redriven = 0
    for portion in _portions(database.rows, database.now, group, topic, **asked):
        matched += portion.matched
        redriven += portion.redriven
    return Redriven(matched, redriven)


def redrive_portions(
    broker: Broker, group: str, topic: str | None = None, **asked: Any
) -> Iterator[Redriven]:
    """Send dead letters again, one transaction after the other, for who tells how far it is.

    Args:
        broker: the broker.
        group, topic, asked: as for :meth:`duewheel.store.broker.Broker.redrive`, all of them.

    Yields:
        The result of each transaction; their sum is the result of the redrive.

    Raises:
        As :meth:`duewheel.store.broker.Broker.redrive`.
    """

    def ask(statement: str, parameters: Sequence[Any]) -> Rows:
        with broker.connection() as connection:
            return fetch(connection, statement, parameters)

    return _portions(ask, broker.now, group, topic, **asked)


def _portions(
    ask: Callable[[str, Sequence[Any]], Rows],
    now: Callable[[], datetime | None],
    group: str,
    topic: str | None,
    *,
    message_ids: Sequence[str] | None,
    tag: str | None,
    key_prefix: str | None,
    reason_contains: str | None,
    dead_from: Instant | None,
    dead_until: Instant | None,
    max_messages: int | None,
    per_second: float | None,
    dry_run: bool,
) -> Iterator[Redriven]:
    check_text(group, "group")
    check_text(topic, "topic", optional=True)
    check_text(tag, "tag", optional=True)
    check_text(key_prefix, "key_prefix", optional=True)
    check_text(reason_contains, "reason_contains", optional=True)
    criteria = (
        group,
        topic,
        _ids(message_ids),
        tag,
        key_prefix,
        reason_contains,
        None if dead_from is None else to_datetime(dead_from, "dead_from"),
        None if dead_until is None else to_datetime(dead_until, "dead_until"),
    )
    most = _whole(max_messages)
    pace = _rate(per_second)
    chunk = CHUNK if pace is None else max(1, min(CHUNK, int(pace / _CHUNKS_PER_SECOND)))
    began = time.monotonic()
    matched = redriven = 0
    after: str | None = None
    while True:
        room = chunk if most is None else min(chunk, most - matched)
        found, sent, after = ask(_REDRIVE, (*criteria, room, dry_run, after, now()))[0]
        matched += found
        redriven += sent
        yield Redriven(found, sent)
        if after is None or matched == most:
            return
        if pace is not None and not dry_run:
            time.sleep(max(0.0, began + redriven / pace - time.monotonic()))


def _ids(message_ids: Sequence[str] | None) -> list[str] | None:
    if message_ids is None:
        return None
    given: object = message_ids
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise InvalidArgument(f"message_ids is a {type(given).__name__}: give a list of message ids")
    for message_id in message_ids:
        check_text(message_id, "message_ids")
    return list(message_ids)


def _whole(max_messages: int | None) -> int | None:
    if max_messages is not None and (type(max_messages) is not int or max_messages < 1):
        raise InvalidArgument(f"max_messages is {max_messages!r}: give 1 or more, or None for all")
    return max_messages


def _rate(per_second: float | None) -> float | None:
    if per_second is None:
        return None
    if type(per_second) not in (int, float) or not SLOWEST_REDRIVE <= per_second <= FASTEST_REDRIVE:
        raise InvalidArgument(
            f"per_second is {per_second!r}, the limit is {SLOWEST_REDRIVE} to {FASTEST_REDRIVE} messages in "
            "a second: give a number within the limit, or None to send without a pause"
        )
    return float(per_second)
