"""Leases: the right of one consumer to work on some messages until an instant, and that right as JSON.

A lease covers a range of one queue. One :meth:`~duewheel.store.consuming.consumer.Consumer.receive` may make
several. Each answer (ack, nack, longer invisible duration) names the lease by its position and the token that
was drawn for it. So the answer of a consumer that has lost its lease is refused. An answer needs nothing
else: a task or a Spark driver may hand a lease on as JSON, and another process may answer it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import from_microseconds, to_microseconds


@dataclass(frozen=True, slots=True)
class Lease:
    """A handle to leased messages: all messages of one lease, or some of them.

    Treat it as opaque; :func:`to_json` and :func:`from_json` carry it between processes.

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
    """One handle for each lease, of all the messages named; None for ``seqs`` where that is all of it."""
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


def to_json(leases: Lease | Iterable[Lease]) -> str:
    """Leases as JSON text, to be kept or handed to another process.

    Args:
        leases: one lease, several, or ``batch.leases``.

    Example::

        text = to_json(batch.leases)
        consumer.ack(from_json(text))
    """
    if isinstance(leases, Lease):
        leases = [leases]
    rows = [
        [
            lease.group_id,
            lease.topic_id,
            lease.queue,
            lease.n,
            lease.token,
            to_microseconds(lease.expires_at),
            lease.count,
            lease.seqs,
        ]
        for lease in joined(leases)
    ]
    return json.dumps({"v": 1, "leases": rows}, separators=(",", ":"))


def from_json(text: str) -> list[Lease]:
    """The leases that :func:`to_json` wrote.

    Raises:
        InvalidArgument: the text is not such a JSON.
    """
    try:
        written = json.loads(text)
        if written["v"] != 1:
            raise InvalidArgument(f"leases of version {written['v']!r} are not known here: upgrade duewheel")
        return [_from_row(row) for row in written["leases"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"this is not JSON of leases ({error}): give the text that leases.to_json wrote"
        ) from error


def _from_row(row: Sequence[Any]) -> Lease:
    group_id, topic_id, queue, n, token, expires_at, count, seqs = row
    return Lease(
        int(group_id),
        int(topic_id),
        int(queue),
        int(n),
        int(token),
        from_microseconds(int(expires_at)),
        int(count),
        None if seqs is None else tuple(int(seq) for seq in seqs),
    )
