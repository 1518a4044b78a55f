"""Recalling: taking back waiting messages, with a true answer, or moving them to another instant.

The answer is decided at the commit. On the broker's own connection a recall that is too late by then runs
again, to get the answer that is true. In a transaction of the caller it makes the commit fail with SQLSTATE
DW012. So a message whose recall was answered with ``recalled`` and committed is
never delivered. Until the commit the topic's wheel does not wait for the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from duewheel.store.database.connections import OWN_TRANSACTION, Database, Rows, fetch
from duewheel.store.values.bodies import check_text
from duewheel.store.values.delivery_time import when
from duewheel.store.values.errors import AlreadyReleased
from duewheel.store.values.instants import Instant, to_datetime
from duewheel.store.values.messages import RecallOutcome, SendOutcome, SendReceipt

if TYPE_CHECKING:
    from duewheel.store.broker import Broker
    from duewheel.store.database.connections import CallerConnection

#: How many messages a bulk recall takes back in one transaction: so long the topic's wheel may have to wait.
CHUNK = 10_000

_CHECK = "select duewheel.check_bulk_recall(%s, %s, %s, %s, %s)"
_CHUNK = f"""
{OWN_TRANSACTION}
select matched, recalled, already_released, next::text
from duewheel.recall_chunk(%s, %s, %s, %s, %s, %s, false, %s, %s::jsonb, %s)
"""
_RESCHEDULE = "select message_id, deliver_at, outcome from duewheel.reschedule(%s, %s, %s, %s)"
_RESCHEDULE_ONCE = "select message_id, deliver_at, outcome from duewheel.reschedule_once(%s, %s, %s, %s, %s)"
_MANY = """
select matched, recalled, already_released
from duewheel.recall_many(%s, tag => %s, key_prefix => %s, due_from => %s, due_until => %s, everything => %s,
    dry_run => %s, now => %s)
"""

_RESCHEDULE_KEY = "select message_id, deliver_at, outcome from duewheel.reschedule_key(%s, %s, %s, %s, %s)"
_RESCHEDULE_KEY_ONCE = """
select message_id, deliver_at, outcome from duewheel.reschedule_key_once(%s, %s, %s, %s, %s, %s)
"""


@dataclass(frozen=True, slots=True)
class BulkRecall:
    """The result of a bulk recall.

    Attributes:
        matched: the messages that the criteria chose and that had not been recalled before.
        recalled: those of them that were taken back and are never delivered; 0 in a dry run.
        already_released: those for which it is too late: released before the call or during it.
    """

    matched: int
    recalled: int
    already_released: int


def recall(database: Database, message_id: str, connection: CallerConnection | None = None) -> RecallOutcome:
    """Take one message back; see :meth:`duewheel.store.broker.Broker.recall`."""
    check_text(message_id, "message_id")
    statement = "select duewheel.recall(%s, %s, %s)"
    parameters = (message_id, connection is not None, database.now())
    return _outcome(database, statement, parameters, connection)


def recall_key(
    database: Database, topic: str, key: str, connection: CallerConnection | None = None
) -> RecallOutcome:
    """Take back the messages that wait under a key; see :meth:`duewheel.store.broker.Broker.recall_key`."""
    check_text(topic, "topic")
    check_text(key, "key")
    statement = "select duewheel.recall_key(%s, %s, %s, %s)"
    parameters = (topic, key, connection is not None, database.now())
    return _outcome(database, statement, parameters, connection)


def reschedule(
    database: Database,
    message_id: str,
    delay: timedelta | None,
    deliver_at: Instant | None,
    connection: CallerConnection | None = None,
    idempotency_key: str | None = None,
) -> SendReceipt:
    """Move a message to another instant; see :meth:`duewheel.store.broker.Broker.reschedule`."""
    check_text(message_id, "message_id")
    check_text(idempotency_key, "idempotency_key", optional=True)
    delay, at, _ = when(delay, deliver_at, None)
    if idempotency_key is None:
        rows = database.rows(_RESCHEDULE, (message_id, at, delay, database.now()), connection)
    else:
        once = (message_id, idempotency_key, at, delay, database.now())
        rows = database.rows(_RESCHEDULE_ONCE, once, connection)
    ((identity, new_at, outcome),) = rows
    return SendReceipt(identity, new_at, SendOutcome(outcome))


def reschedule_key(
    database: Database,
    topic: str,
    key: str,
    delay: timedelta | None,
    deliver_at: Instant | None,
    connection: CallerConnection | None = None,
    idempotency_key: str | None = None,
) -> list[SendReceipt]:
    """Move the messages that wait under a key; see :meth:`duewheel.store.broker.Broker.reschedule_key`."""
    check_text(topic, "topic")
    check_text(key, "key")
    check_text(idempotency_key, "idempotency_key", optional=True)
    delay, at, _ = when(delay, deliver_at, None)
    if idempotency_key is None:
        rows = database.rows(_RESCHEDULE_KEY, (topic, key, at, delay, database.now()), connection)
    else:
        once = (topic, key, idempotency_key, at, delay, database.now())
        rows = database.rows(_RESCHEDULE_KEY_ONCE, once, connection)
    return [SendReceipt(identity, new_at, SendOutcome(outcome)) for identity, new_at, outcome in rows]


def recall_many(
    database: Database,
    topic: str,
    *,
    tag: str | None,
    key_prefix: str | None,
    due_from: Instant | None,
    due_until: Instant | None,
    everything: bool,
    dry_run: bool,
    connection: CallerConnection | None = None,
) -> BulkRecall:
    """Take many messages back; see :meth:`duewheel.store.broker.Broker.recall_many`."""
    check_text(topic, "topic")
    criteria = _criteria(tag, key_prefix, due_from, due_until)
    if connection is not None:
        asked = (topic, *criteria, everything, dry_run, database.now())
        return BulkRecall(*database.rows(_MANY, asked, connection)[0])
    database.read(_CHECK, (*criteria, everything))
    matched = recalled = already_released = 0
    after: str | None = None
    while True:
        parameters = (topic, *criteria, dry_run, CHUNK, after, database.now())
        ((found, taken_back, too_late, after),) = _final(partial(database.rows, _CHUNK, parameters))
        matched += found
        recalled += taken_back
        already_released += too_late
        if after is None:
            return BulkRecall(matched, recalled, already_released)


def recall_portion(
    broker: Broker,
    topic: str,
    *,
    tag: str | None,
    key_prefix: str | None,
    due_from: Instant | None,
    due_until: Instant | None,
    dry_run: bool,
    after: str | None,
) -> tuple[BulkRecall, str | None]:
    """One transaction of a bulk recall, of at most 10 000 waiting messages, for callers that show progress.

    Args:
        broker: the broker.
        topic, tag, key_prefix, due_from, due_until, dry_run: as for
            :meth:`duewheel.store.broker.Broker.recall_many`; without a criterion, everything.
        after: where the previous portion ended; None is the first.

    Returns:
        The result of this portion, and the ``after`` of the next one, which is None at the end.

    Raises:
        UnknownTopic: there is none of this name.
        InvalidArgument: an empty window.
    """
    check_text(topic, "topic")
    criteria = _criteria(tag, key_prefix, due_from, due_until)
    with broker.connection() as connection:
        fetch(connection, _CHECK, (*criteria, all(one is None for one in criteria)))
        asked = (topic, *criteria, dry_run, CHUNK, after, broker.now())
        *numbers, following = _final(lambda: fetch(connection, _CHUNK, asked))[0]
    return BulkRecall(*numbers), following


def _outcome(
    database: Database, statement: str, parameters: Sequence[Any], connection: CallerConnection | None
) -> RecallOutcome:
    ask = partial(database.rows, statement, parameters, connection)
    return RecallOutcome((ask() if connection is not None else _final(ask))[0][0])


def _final(ask: Callable[[], Rows]) -> Rows:
    """The answer of a recall in its own transaction; asked again if a release passed it before its commit."""
    try:
        return ask()
    except AlreadyReleased:
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
