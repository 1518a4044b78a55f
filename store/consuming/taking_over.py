"""Taking over the work of a consumer that is gone: the next consumer of its name gets its leases.

A worker that dies without a word holds its messages until their lease ends. A successor of the same name,
such as the next try of a task, need not wait for that. The leases get new tokens, so later answers of the
predecessor are refused: it may be alive, and only cut off from the program that started its successor.
"""

from __future__ import annotations

from datetime import timedelta

from duewheel.store.consuming.consumer import RECEIVED_COLUMNS, Consumer
from duewheel.store.database.connections import Database, Rows
from duewheel.store.values.instants import to_span
from duewheel.store.values.leases import Lease
from duewheel.store.values.messages import Batch, whole_lease

_TAKE_OVER = f"""
select {RECEIVED_COLUMNS}
from duewheel.take_over(%s, %s, %s, %s, %s, %s)
"""


def take_over(database: Database, consumer: Consumer, invisible: timedelta) -> Batch:
    """Take the live leases of the consumer's name; see :meth:`duewheel.store.broker.Broker.take_over`."""
    rows = _taken(database, consumer, invisible, with_messages=True)
    return Batch(rows, topic=consumer.topic, group=consumer.group, group_id=consumer.group_id)


def take_over_leases(database: Database, consumer: Consumer, invisible: timedelta) -> list[Lease]:
    """The same without the messages; see :meth:`duewheel.store.broker.Broker.take_over_leases`."""
    rows = _taken(database, consumer, invisible, with_messages=False)
    return [whole_lease(consumer.group_id, row[-1]) for row in rows]


def _taken(database: Database, consumer: Consumer, invisible: timedelta, *, with_messages: bool) -> Rows:
    return database.rows(
        _TAKE_OVER,
        (
            consumer.group_id,
            consumer.topic_id,
            consumer.name,
            to_span(invisible, "invisible"),
            database.now(),
            with_messages,
        ),
    )
