"""A lease of enough messages or of none.

It receives in a transaction that commits only if the batch is large enough. A rollback leaves the messages as
they were: ready, and without the further attempt that a nack would count.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from duewheel.store.consuming.consumer import RECEIVED_COLUMNS, without_cut
from duewheel.store.consuming.subscription import batch_of
from duewheel.store.consuming.ticking import TICK_GROUP
from duewheel.store.database.connections import fetch, transaction
from duewheel.store.values.instants import to_span

if TYPE_CHECKING:
    from datetime import timedelta

    from duewheel.store.consuming.consumer import Consumer
    from duewheel.store.database.connected import Connected
    from duewheel.store.database.connections import DriverConnection
    from duewheel.store.values.messages import Batch

# It passes as many messages as the SQL function receive, because a rollback also undoes that.
_RECEIVE = f"""
select {RECEIVED_COLUMNS}
from duewheel.receive_batch(
    %s, %s, %s, %s, %s, %s, true, %s, false, p_passes => 50000)
"""


def lease_enough(
    broker: Connected, consumer: Consumer, at_least: int, at_most: int, invisible: timedelta
) -> Batch:
    """Lease the messages that are ready, if there are enough.

    Args:
        broker: the broker.
        consumer: the consumer that receives.
        at_least: fewer are not leased.
        at_most: at most so many.
        invisible: the length of the lease.

    Returns:
        The messages; empty if there were too few, because other consumers were faster.

    Raises:
        BrokerUnreachable: the connection broke; messages leased then are the consumer's, see
            :meth:`duewheel.store.broker.Broker.take_over`.

    Example::

        batch = lease_enough(broker, consumer, 10, 100, timedelta(minutes=10))
    """
    parameters = (
        consumer.group_id,
        consumer.topic_id,
        at_most,
        to_span(invisible, "invisible"),
        consumer.name,
        # Consumers start with different queues.
        random.randrange(64),
        broker.now(),
    )

    def lease(connection: DriverConnection) -> Batch:
        fetch(connection, TICK_GROUP, (consumer.group_id, consumer.topic_id, broker.now()))
        with transaction(connection):
            rows, _ = without_cut(fetch(connection, _RECEIVE, parameters))
            batch = batch_of(consumer, rows)
            if len(batch) < at_least:
                raise _TooFew
            return batch

    try:
        return broker._database.run(lease)
    except _TooFew:
        return batch_of(consumer, [])


class _TooFew(Exception):
    """There are too few messages, so none is leased."""
