"""The messages that a consumer group could receive from a topic now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Doorbell:
    """The ready messages of a topic for a group; instants in UTC.

    Attributes:
        topic: the topic's name.
        group: the group's name.
        ready: how many messages are ready and not leased, counted up to 10 000. Messages that the tags or the
            filter of the group's subscription do not choose count on a FIFO topic only.
        oldest_deliver_at: the delivery instant of the oldest of them, None if there is none.
        next_at: when a message could next become ready, None if none is known for the next minute.
        inflight: whether messages of the group are being consumed.
        holders: the names of the consumers that have them, in order; of the first 5 000 leases.
        more: whether unread messages follow the messages that were read: 10 000 of a queue, on a FIFO topic
            about 10 000 of all queues.
    """

    topic: str
    group: str
    ready: int
    oldest_deliver_at: datetime | None
    next_at: datetime | None
    inflight: bool
    holders: tuple[str, ...] = ()
    more: bool = False

    def has(self, number: int) -> bool:
        """Whether so many messages are ready, as far as one poll can tell.

        A poll also reads recalled messages and messages that the group does not choose. If unread messages
        follow them, any ready message counts as enough, because only a consumer moves past the rest.

        Example:
            >>> due_at = datetime(2030, 1, 5)
            >>> Doorbell("orders", "ship", 7, due_at, None, inflight=False, more=True).has(200)
            True
        """
        return self.ready >= number or (self.more and self.oldest_deliver_at is not None)
