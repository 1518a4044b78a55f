"""Taking over the work of a dead consumer: the next consumer of its name gets its leases.

A worker that dies silently holds its messages until their lease ends. A successor of the same name, such as
the next try of a task, need not wait for that. The leases get new tokens, so later answers of the predecessor
are refused: it may be alive, and only cut off from the program that started its successor.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from duewheel.store.database.connected import Connected
from duewheel.store.database.connections import Database, Rows
from duewheel.store.values.instants import to_span
from duewheel.store.values.leases import Lease
from duewheel.store.values.messages import Batch, whole_lease

if TYPE_CHECKING:
    from duewheel.store.consuming.consumer import Consumer

# So many leases are taken over in one transaction.
_PORTION = 200


class TakingOver(Connected):
    """Taking over the work of a consumer that may be gone."""

    def take_over(self, consumer: Consumer, invisible: timedelta = timedelta(seconds=60)) -> Batch:
        """Take the leases of another consumer with the same name and group, to continue its work.

        For the successor of a consumer that may be dead, such as the next try of a task. The same messages
        are delivered to it, without counting a further attempt. Later answers of the predecessor are refused.

        Args:
            consumer: the successor; all other consumers of its name lose their leases.
            invisible: the time from now to the end of the leases, 1 s to 12 h.

        Returns:
            The messages that have no answer yet; empty when no live lease has that name.

        Example::

            consumer = broker.consumer("order-timeout", "canceller", name="worker-7")
            batch = broker.take_over(consumer) or consumer.receive()
        """
        from duewheel.store.consuming.subscription import batch_of

        return batch_of(consumer, _taken(self._database, consumer, invisible, with_messages=True))

    def take_over_leases(
        self, consumer: Consumer, invisible: timedelta = timedelta(seconds=60)
    ) -> list[Lease]:
        """Like :meth:`take_over`, without the messages: for jobs that read their leases themselves."""
        rows = _taken(self._database, consumer, invisible, with_messages=False)
        return [whole_lease(consumer.group_id, row[-1]) for row in rows]


def _taken(database: Database, consumer: Consumer, invisible: timedelta, *, with_messages: bool) -> Rows:
    from duewheel.store.consuming.consumer import RECEIVED_COLUMNS

    rows: Rows = []
    after = None
    while True:
        portion = database.rows(
            f"select {RECEIVED_COLUMNS} from duewheel.take_over(%s, %s, %s, %s, %s, %s, %s, %s)",
            (
                consumer.group_id,
                consumer.topic_id,
                consumer.name,
                to_span(invisible, "invisible"),
                database.now(),
                with_messages,
                after,
                _PORTION,
            ),
        )
        rows += portion
        handles = [row[-1] for row in portion if row[-1] is not None]
        if len(handles) < _PORTION:
            return rows
        topic_id, queue, n = handles[-1].split()[:3]
        after = f"({topic_id},{queue},{n},,,)"
