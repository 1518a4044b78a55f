"""Taking a lease for a Spark job: the messages stay in Postgres and only the leases come back.

A consumer's ``receive`` returns its messages and is therefore limited to 10 000. A job reads its messages in
parallel on the executors, so it leases ranges: as many messages as it wants, in leases of at most
:data:`MESSAGES_PER_LEASE`, each of which is read as a whole by one task.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from duewheel.store import filters
from duewheel.store import tags as tag_expressions
from duewheel.store.broker import Broker
from duewheel.store.connections import fetch
from duewheel.store.consumer import Consumer
from duewheel.store.errors import InvalidArgument
from duewheel.store.instants import to_span
from duewheel.store.leases import Lease

MESSAGES_PER_LEASE = 60_000
"""How many messages one lease covers at most: what one task reads at least, when there are enough."""

_LEASE_RANGE = (Path(__file__).parent / "lease_range.sql").read_text()


def lease_messages(
    broker: Broker,
    consumer: Consumer,
    *,
    max_messages: int = 10_000,
    invisible: timedelta = timedelta(minutes=10),
    messages_per_lease: int = MESSAGES_PER_LEASE,
    now: datetime | None = None,
) -> list[Lease]:
    """Lease what is ready for a consumer, without reading it.

    Args:
        broker: the broker that made the consumer.
        consumer: says the topic, the group, the tags and the filter; the leases are answered with it.
        max_messages: how many messages to lease at most; no upper limit.
        invisible: how long the leases last unless extended, 1 s to 12 h (D07).
        messages_per_lease: how many messages one lease covers at most, 1 to 60 000.
        now: the instant to take for now; None is the database's clock (X13).

    Returns:
        The leases, retries first; none when nothing is ready or other consumers of the group are at it.

    Raises:
        InvalidArgument: a number or a duration is out of its limits.

    Example::

        consumer = broker.consumer("order-timeout", "canceller")
        leases = lease_messages(broker, consumer, max_messages=1_000_000)
        consumer.ack(leases)
    """
    if type(max_messages) is not int or max_messages < 1:
        raise InvalidArgument(f"max_messages is {max_messages!r}: give a whole number of 1 or more")
    parameters = (
        consumer.group_id,
        consumer.topic_id,
        tag_expressions.parse(consumer.tags),
        max_messages,
        min(messages_per_lease, max_messages),
        to_span(invisible, "invisible"),
        consumer.name,
        now,
        None if consumer.filter is None else filters.to_jsonpath(consumer.filter),
    )
    with broker.connection() as connection:
        rows = fetch(connection, _LEASE_RANGE, parameters)
    return [
        Lease(consumer.group_id, topic_id, queue, n, token, expires_at, count)
        for topic_id, queue, n, token, expires_at, count in rows
    ]
