"""Recalling: taking back waiting messages, with a true answer, or moving them to another instant.

The answer is decided at the commit. On the broker's own connection a recall that is too late by then runs
again, to get the true answer. In a transaction of the caller it makes the commit fail with SQLSTATE DW012. So
a message whose recall was answered with ``recalled`` and committed is never delivered. Until the commit the
topic's wheel does not wait for the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from duewheel.store.database.connected import Connected
from duewheel.store.database.connections import OWN_TRANSACTION, Database, Rows
from duewheel.store.values.bodies import check_text
from duewheel.store.values.delivery_time import when
from duewheel.store.values.errors import AlreadyReleased
from duewheel.store.values.instants import Instant, to_datetime
from duewheel.store.values.messages import (
    KeyRecall,
    RecallOutcome,
    RecallReceipt,
    SendOutcome,
    SendReceipt,
)

if TYPE_CHECKING:
    from duewheel.store.database.connections import CallerConnection
    from duewheel.store.values.bulk_results import BulkRecall

#: How many messages a bulk recall reads in one transaction, for which the topic's wheel may have to wait.
CHUNK = 10_000
#: How many messages a bulk reschedule reads in one transaction.
_MOVED_AT_ONCE = 5_000

# How many times a call is run again if its messages are released one after the other.
_PASSED: Final = 9

T = TypeVar("T")

_RECALL = "select outcome, message_id from duewheel.recall(%s, %s)"
_CHECK = "select duewheel.check_bulk_recall(%s, %s, %s, %s, %s)"
_CHUNK = f"""
{OWN_TRANSACTION}
select matched, recalled, already_released, next::text
from duewheel.recall_chunk(%s, %s, %s, %s, %s, %s, false, %s, %s::jsonb, %s)
"""
_MOVE_CHUNK = f"""
{OWN_TRANSACTION}
select matched, moved, next::text
from duewheel.reschedule_chunk(%s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s)
"""
_RESCHEDULE = "select message_id, deliver_at, outcome from duewheel.reschedule(%s, %s, %s, %s, %s)"
_MANY = """
select matched, recalled, already_released
from duewheel.recall_many(%s, tag => %s, key_prefix => %s, due_from => %s, due_until => %s, everything => %s,
    dry_run => %s, now => %s)
"""

_RESCHEDULE_KEY = """
select message_id, deliver_at, outcome from duewheel.reschedule_key(%s, %s, %s, %s, %s, %s)
"""


class Recalling(Connected):
    """Taking messages back, and moving them to another instant."""

    def recall(self, message_id: str, *, connection: CallerConnection | None = None) -> RecallReceipt:
        """Take a waiting message back, at whatever instant it is now.

        Args:
            message_id: the id from a receipt: of the send, or of any reschedule since.
            connection: a transaction of the caller. The recall counts when it commits; if the message has
                been released by then, the commit fails with SQLSTATE DW012.

        Returns:
            The outcome, and the id that the message has now. ``recalled``: it is never delivered.
            ``already_released``: too late. ``replaced``: it is never delivered, and the id is that of the
            new message. ``not_found``: no such message exists.

        Raises:
            InvalidArgument: not a message id.

        Example::

            if broker.recall(receipt.message_id).outcome is RecallOutcome.ALREADY_RELEASED: ...
        """
        check_text(message_id, "message_id")
        parameters = (message_id, self._database.now())
        ((outcome, present_id),) = _answer(self._database, _RECALL, parameters, connection)
        return RecallReceipt(RecallOutcome(outcome), present_id)

    def recall_key(self, topic: str, key: str, *, connection: CallerConnection | None = None) -> KeyRecall:
        """Recall all messages that wait under a key.

        Args:
            topic: the topic it was sent to.
            key: the key it was sent with.
            connection: a transaction of the caller; see :meth:`recall`.

        Returns:
            The outcome, and how many messages were recalled and had been released before.
                ``already_released``: at least one had been, even if others were recalled. ``recalled``: none
            is delivered. ``not_found``: no message was sent under this key, or none is kept.

        Raises:
            UnknownTopic: no topic has this name.
        """
        check_text(topic, "topic")
        check_text(key, "key")
        statement = "select outcome, recalled, already_released from duewheel.recall_key(%s, %s, %s)"
        parameters = (topic, key, self._database.now())
        ((outcome, recalled, too_late),) = _answer(self._database, statement, parameters, connection)
        return KeyRecall(RecallOutcome(outcome), recalled, too_late)

    def reschedule(
        self,
        message_id: str,
        *,
        delay: timedelta | None = None,
        deliver_at: Instant | None = None,
        connection: CallerConnection | None = None,
        idempotency_key: str | None = None,
    ) -> SendReceipt:
        """Move a waiting message to another instant, in one step.

        Args:
            message_id: the id from a receipt: of the send, or of any reschedule since.
            delay: the time from now to the new instant.
            deliver_at: or the new instant.
            connection: a transaction of the caller; see :meth:`recall`.
            idempotency_key: a second call with the same key returns the receipt of the first move, for as
                long as the moved message is kept.

        Returns:
            The receipt of the message at its new instant, with a new id.

        Raises:
            AlreadyReleased: too late.
            UnknownMessage: the message is not known, or it was recalled or replaced.
            DelayOutOfRange, InvalidInstant: see :meth:`send`.
        """
        check_text(message_id, "message_id")
        check_text(idempotency_key, "idempotency_key", optional=True)
        delay, at, _ = when(delay, deliver_at, None)
        asked = (message_id, at, delay, idempotency_key, self._database.now())
        ((identity, new_at, outcome),) = self._database.rows(_RESCHEDULE, asked, connection)
        return SendReceipt(identity, new_at, SendOutcome(outcome))

    def reschedule_key(
        self,
        topic: str,
        key: str,
        *,
        delay: timedelta | None = None,
        deliver_at: Instant | None = None,
        connection: CallerConnection | None = None,
        idempotency_key: str | None = None,
    ) -> list[SendReceipt]:
        """Move all messages that wait under a key to another instant, in one step.

        Args:
            topic: the topic it was sent to.
            key: the key it was sent with.
            delay: the time from now to the new instant.
            deliver_at: or the new instant.
            connection: a transaction of the caller; see :meth:`recall`.
            idempotency_key: a second call with the same key returns the receipts of the first move, for as
                long as the moved messages are kept.

        Returns:
            A receipt for each message that was moved, in the order in which they had been due; usually one.

        Raises:
            AlreadyReleased: all were released, or one was during the call; none is moved.
            UnknownMessage: no message has the key, or all were recalled.
            UnknownTopic: no topic has this name.
            DelayOutOfRange, InvalidInstant: see :meth:`send`.

        Example::

            broker.reschedule_key("orders.timeout", "4711", delay=timedelta(hours=1))
        """
        check_text(topic, "topic")
        check_text(key, "key")
        check_text(idempotency_key, "idempotency_key", optional=True)
        delay, at, _ = when(delay, deliver_at, None)
        asked = (topic, key, at, delay, idempotency_key, self._database.now())
        rows = self._database.rows(_RESCHEDULE_KEY, asked, connection)
        return [SendReceipt(identity, new_at, SendOutcome(outcome)) for identity, new_at, outcome in rows]

    def recall_many(
        self,
        topic: str,
        *,
        tag: str | None = None,
        key_prefix: str | None = None,
        due_from: Instant | None = None,
        due_until: Instant | None = None,
        everything: bool = False,
        dry_run: bool = False,
        connection: CallerConnection | None = None,
    ) -> BulkRecall:
        """Recall all waiting messages that meet every criterion given, or count them.

        Without ``connection`` this works in transactions of 10 000 messages, whether these match or not. So
        the topic's wheel waits for one transaction at most, about a tenth of a second. After an interruption
        the finished transactions count; run it again for the rest. A message that is sent during the call
        may be recalled or not.

        Args:
            topic: the topic they were sent to.
            tag: the tag.
            key_prefix: the beginning of the key, literally; ``%`` and ``_`` are ordinary characters.
            due_from, due_until: a delivery instant from the first and before the second. Without
                ``due_from``, released messages are counted as far back as they are kept.
            everything: all waiting messages; instead of criteria.
            dry_run: only count.
            connection: a transaction of the caller, which then does all of it; no wheel waits for it. If one
                of the messages has been released by the commit, the commit fails with SQLSTATE DW012.

        Returns:
            How many matched, how many of them were recalled and are never delivered, and for how many it
            was too late.

        Raises:
            UnknownTopic: no topic has this name.
            InvalidArgument: no criterion, an empty window, or criteria together with ``everything``.
            InvalidTag, InvalidKey, InvalidInstant: a value that cannot be a tag, key or instant.

        Example::

            broker.recall_many("orders.timeout", key_prefix="shop-7/", dry_run=True)
        """
        from duewheel.store.values.bulk_results import BulkRecall

        check_text(topic, "topic")
        criteria = _criteria(tag, key_prefix, due_from, due_until)
        if connection is not None:
            asked = (topic, *criteria, everything, dry_run, self._database.now())
            return BulkRecall(*self._database.rows(_MANY, asked, connection)[0])
        self._database.read(_CHECK, (*criteria, everything))
        matched = recalled = already_released = 0
        after: str | None = None
        while True:
            parameters = (topic, *criteria, dry_run, CHUNK, after, self._database.now())
            ((found, taken_back, too_late, after),) = decided(
                partial(self._database.rows, _CHUNK, parameters)
            )
            matched += found
            recalled += taken_back
            already_released += too_late
            if after is None:
                return BulkRecall(matched, recalled, already_released)


def recall_portion(
    broker: Connected,
    topic: str,
    *,
    tag: str | None,
    key_prefix: str | None,
    due_from: Instant | None,
    due_until: Instant | None,
    dry_run: bool,
    after: str | None,
) -> tuple[BulkRecall, str | None]:
    """One transaction of a bulk recall, which reads 10 000 messages, for callers that show progress.

    Args:
        broker: the broker.
        topic, tag, key_prefix, due_from, due_until, dry_run: see
            :meth:`duewheel.store.broker.Broker.recall_many`; without a criterion, everything.
        after: the end of the previous portion; None is the first.

    Returns:
        The result of this portion, and the ``after`` of the next one, which is None at the end.

    Raises:
        UnknownTopic: no topic has this name.
        InvalidArgument: an empty window.
    """
    from duewheel.store.values.bulk_results import BulkRecall

    check_text(topic, "topic")
    criteria = _criteria(tag, key_prefix, due_from, due_until)
    database = broker._database
    database.rows(_CHECK, (*criteria, all(one is None for one in criteria)))
    asked = (topic, *criteria, dry_run, CHUNK, after, database.now())
    *numbers, following = decided(lambda: database.rows(_CHUNK, asked))[0]
    return BulkRecall(*numbers), following


def reschedule_portion(
    broker: Connected,
    topic: str,
    *,
    tag: str | None,
    key_prefix: str | None,
    due_from: Instant | None,
    due_until: Instant | None,
    deliver_at: Instant,
    dry_run: bool,
    after: str | None,
) -> tuple[int, int, str | None]:
    """One transaction of a bulk reschedule, which reads 5 000 messages, for callers that show progress.

    Only messages that were sent before the first portion are moved, and each once. A second run to the same
    instant moves the messages that are left.

    Args:
        broker: the broker.
        topic, tag, key_prefix, due_from, due_until: see :func:`recall_portion`.
        deliver_at: the new instant of all; a past instant delivers them now.
        dry_run: only count.
        after: the end of the previous portion; None is the first.

    Returns:
        How many messages waited and matched, how many of them were moved, and the ``after`` of the next
        portion, which is None at the end. The others were released, recalled or moved during the call.

    Raises:
        UnknownTopic: no topic has this name.
        DelayOutOfRange, InvalidInstant: see :meth:`duewheel.store.broker.Broker.send`.
        InvalidArgument: an empty window.
    """
    check_text(topic, "topic")
    criteria = _criteria(tag, key_prefix, due_from, due_until)
    at = to_datetime(deliver_at, "deliver_at")
    database = broker._database
    database.rows(_CHECK, (*criteria, all(one is None for one in criteria)))
    asked = (topic, *criteria, at, dry_run, CHUNK if dry_run else _MOVED_AT_ONCE, after, database.now())
    matched, moved, following = decided(lambda: database.rows(_MOVE_CHUNK, asked))[0]
    return matched, moved, following


def _answer(
    database: Database, statement: str, parameters: Sequence[Any], connection: CallerConnection | None
) -> Rows:
    ask = partial(database.rows, statement, parameters, connection)
    return ask() if connection is not None else decided(ask)


def decided(ask: Callable[[], T]) -> T:
    """The answer of a recall, or of a send that replaces, in its own transaction; asked again if a release
    passed a message before the commit."""
    for _ in range(_PASSED):
        try:
            return ask()
        except AlreadyReleased:
            pass
    return ask()


def _criteria(
    tag: str | None, key_prefix: str | None, due_from: Instant | None, due_until: Instant | None
) -> tuple[str | None, str | None, datetime | None, datetime | None]:
    check_text(tag, "tag", optional=True)
    check_text(key_prefix, "key_prefix", optional=True)
    return (
        tag,
        key_prefix,
        None if due_from is None else to_datetime(due_from, "due_from"),
        None if due_until is None else to_datetime(due_until, "due_until"),
    )
