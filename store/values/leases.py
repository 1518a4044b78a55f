"""Leases: the right of one consumer to work on some messages until an instant.

A lease covers a range of one queue. One :meth:`~duewheel.store.consuming.consumer.Consumer.receive` may make
several. Each answer (ack, nack, longer invisible duration) names the lease by its position and the token that
was drawn for it. So the answer of a consumer that has lost its lease is refused. An answer needs nothing
else: a task or a Spark driver may hand a lease on as JSON, and another process may answer it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Lease:
    """A handle to leased messages: all messages of one lease, or some of them.

    Treat it as opaque; :mod:`duewheel.store.leases` carries it between processes.

    Attributes:
        group_id, topic_id, queue, n: the lease, by its number in its queue.
        token: drawn when the lease was made; an answer with another token is refused.
        expires_at: when the lease ends unless it is extended, as known when it was received.
        count: how many messages the lease covers.
        seqs: the messages meant, None for all of them.
    """

    group_id: int
    topic_id: int
    queue: int
    n: int
    token: int
    expires_at: datetime
    count: int
    seqs: tuple[int, ...] | None = None

    @property
    def place(self) -> tuple[int, int, int]:
        """The topic's number, the queue and the lease's number: the same for all handles of one lease."""
        return self.topic_id, self.queue, self.n


def joined(leases: Iterable[Lease]) -> list[Lease]:
    """One handle for each lease, of all the messages named; None for ``seqs`` if that is the whole lease."""
    first: dict[tuple[int, int, int, int, int], Lease] = {}
    chosen: dict[tuple[int, int, int, int, int], dict[int, None] | None] = {}
    for lease in leases:
        place = (lease.group_id, lease.topic_id, lease.queue, lease.n, lease.token)
        first.setdefault(place, lease)
        if lease.seqs is None:
            chosen[place] = None
            continue
        seqs = chosen.setdefault(place, {})
        if seqs is not None:
            seqs.update(dict.fromkeys(lease.seqs))
    answer = []
    for place, lease in first.items():
        seqs = chosen[place]
        whole = seqs is None or len(seqs) == lease.count
        answer.append(Lease(*place, lease.expires_at, lease.count, None if whole else tuple(seqs or ())))
    return answer
