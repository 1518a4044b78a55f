"""Taking a lease for a Spark job: the messages stay in Postgres, and only the leases are returned.

A consumer's ``receive`` returns its messages and is therefore limited to 10 000. A job reads its messages in
parallel on the executors, so it leases ranges: as many messages as it wants, in several leases, each of which
is read as a whole by one task. The number of messages in one lease depends on how many are ready, so that the
leases can be dealt out evenly, however full each queue is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from duewheel.spark.lease_partition import MESSAGES_WORTH_A_PARTITION
from duewheel.spark.statements import statement
from duewheel.store.consuming.ticking import TICK_GROUP
from duewheel.store.database.connections import fetch
from duewheel.store.values.instants import to_span
from duewheel.store.values.leases import Lease
from duewheel.store.values.numbers import whole_number

if TYPE_CHECKING:
    from duewheel.store.broker import Broker
    from duewheel.store.consuming.consumer import Consumer

MOST_PARTITIONS = 10_000
"""The largest number of partitions that a batch may be dealt out to."""

_LEASE_EVENLY = statement("lease_evenly")
_UNREAD_BODY_BYTES = statement("unread_body_bytes")
_LEASED_BODY_BYTES = statement("leased_body_bytes")

LEASES_LOOKED_AT = 4
"""How many leases, the largest, are measured to estimate the body sizes of all."""
LEASES_FOR_A_PARTITION = 4
"""So many leases have the bytes of a partition, so that partitions are even."""

BYTES_WORTH_A_PARTITION = 1024 * 1024
"""Bodies of so many bytes are worth a partition, however few messages they are."""


@dataclass(frozen=True)
class Partitioning:
    """Into how many partitions a batch is to be dealt out.

    Attributes:
        most: at most so many.
        least: at least so many, however few messages each then has.
        most_bytes: about how many bytes the bodies of each have at most, of whichever number they are then;
            None means unlimited.

    Raises:
        InvalidArgument: a number is out of its limits.
    """

    most: int
    least: int = 1
    most_bytes: int | None = None

    def __post_init__(self) -> None:
        whole_number(self.most, "partitions", MOST_PARTITIONS)
        whole_number(self.least, "min_partitions", self.most)
        if self.most_bytes is not None:
            whole_number(self.most_bytes, "max_bytes_per_partition")

    def for_bodies(self, body_bytes: int, messages: int = 0) -> tuple[int, int]:
        """The largest and the smallest number of partitions of so many messages.

        Each partition gets work where bodies are large: where 100 messages, which are worth a partition by
        their number, have bodies of more than 1 MiB.
        """
        needed = 1
        if self.most_bytes is not None:
            needed = min(-(-messages * body_bytes // self.most_bytes), MOST_PARTITIONS)
        most, least = max(self.most, needed), max(self.least, needed)
        is_large = body_bytes * MESSAGES_WORTH_A_PARTITION > BYTES_WORTH_A_PARTITION
        return most, max(most, least) if is_large else least

    def largest_lease(self, body_bytes: int) -> int | None:
        """How many messages a lease may have, which is never split; None means unlimited."""
        if self.most_bytes is None or not body_bytes:
            return None
        return max(1, self.most_bytes // (LEASES_FOR_A_PARTITION * body_bytes))


def leased_body_bytes(broker: Broker, leases: Sequence[Lease]) -> int:
    """About how many bytes a body has of leases that are held."""
    largest = sorted(leases, key=lambda lease: -lease.count)[:LEASES_LOOKED_AT]
    handles = zip(*((each.group_id, each.topic_id, each.queue, each.n) for each in largest), strict=True)
    with broker.connection() as connection:
        ((mean,),) = fetch(connection, _LEASED_BODY_BYTES, tuple(map(list, handles)))
    return int(mean)


def lease_messages(
    broker: Broker,
    consumer: Consumer,
    wanted: Partitioning,
    *,
    max_messages: int,
    invisible: timedelta,
    now: datetime | None,
) -> tuple[list[Lease], int]:
    """Lease the messages that are ready for a consumer, without reading them.

    Args:
        consumer: made by the broker; gives the topic and the group.
        wanted: among how many partitions the leases are to be dealt out.
        max_messages: how many messages to lease at most; no upper limit.
        invisible: how long the leases last unless extended, 1 s to 12 h.

    Returns:
        The leases, retries first; none when no message is ready or other consumers of the group are just
        receiving. And about how many bytes a body has.

    Raises:
        InvalidArgument: a number or a duration is out of its limits.
    """
    whole_number(max_messages, "max_messages")
    span = to_span(invisible, "invisible")
    place = (consumer.group_id, consumer.topic_id)
    with broker.connection() as connection:
        fetch(connection, TICK_GROUP, (*place, now))
        ((mean,),) = fetch(connection, _UNREAD_BODY_BYTES, place)
        body_bytes = int(mean)
        parameters: tuple[object, ...] = (
            *place,
            max_messages,
            wanted.most,
            span,
            consumer.name,
            now,
            wanted.for_bodies(body_bytes)[1],
            wanted.largest_lease(body_bytes),
        )
        while True:
            rows = fetch(connection, _LEASE_EVENLY, parameters)
            leases = [
                Lease(consumer.group_id, topic_id, queue, n, token, expires_at, count)
                for topic_id, queue, n, token, expires_at, count in rows
                if topic_id is not None
            ]
            # Else it has only passed a portion of messages that are not for the group.
            if leases or not rows:
                return leases, body_bytes
