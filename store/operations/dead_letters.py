"""Dead letters, the messages whose retries are used up, and redriving them: sending them again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from duewheel.store.database.connected import Connected
from duewheel.store.values.bodies import check_text
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import Instant, to_datetime
from duewheel.store.values.kinds import a_kind
from duewheel.store.values.numbers import as_rate, whole_number

if TYPE_CHECKING:
    from duewheel.store.values.bulk_results import Discarded, Redriven
    from duewheel.store.values.dead_letters import DeadLetter

#: So many at most are asked for at once.
_PAGE_MESSAGES = 1_000
_REDRIVE = """
select matched, redriven, next::text
from duewheel.redrive_chunk(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s)
"""

#: How many dead letters are sent again in one transaction; fewer with ``per_second``.
CHUNK = 1_000
_CHUNKS_PER_SECOND = 10


class DeadLetters(Connected):
    """The dead letters of groups."""

    def dead_letters(
        self,
        group: str,
        *,
        topic: str | None = None,
        max_messages: int = 100,
        redriven: bool | None = None,
    ) -> list[DeadLetter]:
        """The dead letters of a consumer group that are kept, oldest first.

        Args:
            group: the group.
            topic: dead letters of this topic only; None is all topics that the group reads.
            max_messages: at most so many, 1 to 10 000.
            redriven: False for dead letters that were not sent again, True for those that were; None is both.

        Raises:
            UnknownGroup: no group has this name.
        """
        from duewheel.store.values.dead_letters import LETTER_COLUMNS, letters_of

        check_text(group, "group")
        check_text(topic, "topic", optional=True)
        most = whole_number(max_messages, "max_messages", 10_000)
        statement = (
            f"select {LETTER_COLUMNS}, place::text from duewheel.dead_letter_page(%s, %s, %s, %s::jsonb, %s)"
        )
        found: list[DeadLetter] = []
        after: str | None = None
        while len(found) < most:
            room = min(_PAGE_MESSAGES, most - len(found))
            rows = self._database.read(statement, (group, topic, redriven, after, room))
            if not rows:
                break
            found += letters_of(row for *row, _ in rows if row[0] is not None)
            after = rows[-1][-1]
        return found

    def redrive(
        self,
        group: str,
        *,
        topic: str | None = None,
        message_ids: Sequence[str] | None = None,
        tag: str | None = None,
        key_prefix: str | None = None,
        reason_contains: str | None = None,
        reason_lacks: str | None = None,
        reason: str | None = None,
        dead_from: Instant | None = None,
        dead_until: Instant | None = None,
        max_messages: int | None = None,
        per_second: float | None = None,
        dry_run: bool = False,
    ) -> Redriven:
        """Send dead letters of a group again, each once, whatever the number of calls and callers.

        The group receives the message at once, with its id, its last error and one attempt more. If it fails
        again, it is a new dead letter. The call works in chunks; each chunk is a transaction that sends
        messages and records which. After an interruption the finished chunks count, and the next call sends
        the rest. Messages that become dead letters during the call are left alone.

        Args:
            group: the group.
            topic: dead letters of this topic only; None is all topics that the group reads.
            message_ids: these messages only, by the ids that the senders were given.
            tag: the tag.
            key_prefix: the beginning of the key, literally.
            reason_contains, reason_lacks: a literal text that the reason contains or does not contain.
            reason: the whole reason.
            dead_from, dead_until: they became dead letters at or after the first instant and before the
                second.
            max_messages: at most so many, the oldest.
            per_second: messages per second, 0.001 to 1 000 000; the call lasts accordingly. None is no pause.
            dry_run: only count.

        Returns:
            How many matched, and how many of them this call has sent again.

        Raises:
            UnknownGroup, UnknownTopic: no such topic or group.
            InvalidArgument: not a message id, an empty window, or a number out of its limits.
            InvalidInstant: a value that cannot be an instant.

        Example::

            broker.redrive("cancel-unpaid-orders", reason_contains="timeout", per_second=50)
        """
        from duewheel.store.values.bulk_results import Redriven

        portions = redrive_portions(
            self,
            group,
            topic,
            message_ids=message_ids,
            tag=tag,
            key_prefix=key_prefix,
            reason_contains=reason_contains,
            reason_lacks=reason_lacks,
            reason=reason,
            dead_from=dead_from,
            dead_until=dead_until,
            max_messages=max_messages,
            per_second=per_second,
            dry_run=dry_run,
        )
        return Redriven(*_sums(portions))

    def discard_dead_letters(
        self,
        group: str,
        *,
        topic: str | None = None,
        message_ids: Sequence[str] | None = None,
        tag: str | None = None,
        key_prefix: str | None = None,
        reason_contains: str | None = None,
        reason_lacks: str | None = None,
        reason: str | None = None,
        dead_from: Instant | None = None,
        dead_until: Instant | None = None,
        max_messages: int | None = None,
        dry_run: bool = False,
    ) -> Discarded:
        """Discard dead letters of a group: they are not listed or counted any more, and never sent again.

        The messages keep their history until their retention ends. The call works in chunks, like a redrive.

        Args:
            group, topic, message_ids, tag, key_prefix, reason_contains, reason_lacks, reason, dead_from,
                dead_until, max_messages: the criteria of :meth:`redrive`.
            dry_run: only count.

        Returns:
            How many matched, and how many of them this call has discarded.

        Raises:
            UnknownGroup, UnknownTopic: no such topic or group.
            InvalidArgument: not a message id, an empty window, or a number out of its limits.
            InvalidInstant: a value that cannot be an instant.

        Example::

            broker.discard_dead_letters("cancel-unpaid-orders", reason="no such order")
        """
        from duewheel.store.values.bulk_results import Discarded

        portions = redrive_portions(
            self,
            group,
            topic,
            message_ids=message_ids,
            tag=tag,
            key_prefix=key_prefix,
            reason_contains=reason_contains,
            reason_lacks=reason_lacks,
            reason=reason,
            dead_from=dead_from,
            dead_until=dead_until,
            max_messages=max_messages,
            per_second=None,
            dry_run=dry_run,
            discard=True,
        )
        return Discarded(*_sums(portions))


def _sums(portions: Iterator[tuple[Redriven, str | None]]) -> Iterator[int]:
    """The number of matching dead letters in all portions, and the number that was sent or discarded."""
    return map(sum, zip(*((portion.matched, portion.redriven) for portion, _ in portions), strict=True))


def redrive_portions(
    broker: Connected,
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
    reason_lacks: str | None = None,
    reason: str | None = None,
    discard: bool = False,
    after: str | None = None,
) -> Iterator[tuple[Redriven, str | None]]:
    """Send dead letters again, one transaction after the other, for callers that show progress.

    Args:
        broker: the broker.
        group, topic, message_ids, tag, key_prefix, reason_contains, dead_from, dead_until, max_messages,
            per_second, dry_run, reason_lacks, reason: see :meth:`duewheel.store.broker.Broker.redrive`.
        discard: discard them instead.
        after: the end of an earlier call, to continue from there; None is the oldest dead letter.

    Yields:
        The result of each transaction, and its end for ``after``, which is None after the last. The sum of
        the results is the result of the redrive.

    Raises:
        See :meth:`duewheel.store.broker.Broker.redrive`.
    """
    from duewheel.store.values.bulk_results import Redriven

    database = broker._database
    check_text(group, "group")
    check_text(topic, "topic", optional=True)
    check_text(tag, "tag", optional=True)
    check_text(key_prefix, "key_prefix", optional=True)
    check_text(reason_contains, "reason_contains", optional=True)
    check_text(reason_lacks, "reason_lacks", optional=True)
    check_text(reason, "reason", optional=True)
    criteria = (
        group,
        topic,
        None if message_ids is None else ids_of(message_ids),
        tag,
        key_prefix,
        reason_contains,
        None if dead_from is None else to_datetime(dead_from, "dead_from"),
        None if dead_until is None else to_datetime(dead_until, "dead_until"),
    )
    most = None if max_messages is None else whole_number(max_messages, "max_messages")
    pace = as_rate(per_second)
    chunk = CHUNK if pace is None else max(1, min(CHUNK, int(pace / _CHUNKS_PER_SECOND)))
    began = time.monotonic()
    matched = redriven = 0
    while True:
        room = chunk if most is None else min(chunk, most - matched)
        chunk_of = (*criteria, room, dry_run, after, database.now(), reason, discard, reason_lacks)
        found, sent, after = database.rows(_REDRIVE, chunk_of)[0]
        matched += found
        redriven += sent
        yield Redriven(found, sent), after
        if after is None or matched == most:
            return
        if pace is not None and not dry_run:
            time.sleep(max(0.0, began + redriven / pace - time.monotonic()))


def ids_of(message_ids: Sequence[str]) -> list[str]:
    """Message ids that were given as a list.

    Raises:
        InvalidArgument: another kind of value.
    """
    given: object = message_ids
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise InvalidArgument(f"message_ids is {a_kind(given)}: give a list of message ids")
    for message_id in message_ids:
        check_text(message_id, "message_ids")
    return list(message_ids)
