"""Leases as JSON text: another process answers the messages with it.

A task hands a lease on to the next one as an XCom, and an operator to the application that ``spark-submit``
runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import from_microseconds, to_microseconds
from duewheel.store.values.leases import Lease, joined


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
