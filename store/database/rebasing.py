"""Carrying a broker over to another database cluster, after a logical dump and restore.

Transaction ids and snapshots mean something only inside one cluster, so a restored broker refuses every call
(BrokerMoved) until its logs are stamped again. A physical copy (a promoted standby, a base backup with
archived WAL) is the same cluster and needs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from duewheel.store.database.connections import Database, fetch
from duewheel.store.database.schema import check_revision
from duewheel.store.database.watchdog import REWRITE_SECONDS


@dataclass(frozen=True, slots=True)
class Rebased:
    """The result of a rebase.

    Attributes:
        rebased: whether there was anything to do: false if the broker had not been moved.
        messages: how many messages were stamped again.
        ticks: how many ticks were.
        released_late: how many messages the rebase released, because no tick had found them yet. They were
            committed after their instant had been released.
    """

    rebased: bool
    messages: int
    ticks: int
    released_late: int


def rebase(dsn: str) -> Rebased:
    """Stamp the logs again; see :meth:`duewheel.store.broker.Broker.rebase`."""
    connection = Database(dsn, answer_seconds=REWRITE_SECONDS).connect()
    try:
        check_revision(connection)
        statement = "select rebased, messages, ticks, released_late from duewheel.rebase()"
        return Rebased(*fetch(connection, statement, ())[0])
    finally:
        connection.close()
