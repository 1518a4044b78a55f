"""The base of the broker and of its parts: an object that has a database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime

from duewheel.store.database import schema
from duewheel.store.database.connections import Database, DriverConnection


class Connected:
    """An object that has a database.

    Args:
        dsn, clock, listen: as for :class:`duewheel.store.broker.Broker`.
    """

    def __init__(self, dsn: str, *, clock: Callable[[], datetime] | None = None, listen: bool = True) -> None:
        self._database = Database(dsn, clock=clock, on_first_connection=schema.verify, prepare=listen)
        self._listen = listen

    @property
    def dsn(self) -> str:
        """The database's address as libpq takes it, password included."""
        return self._database.dsn

    def now(self) -> datetime | None:
        """The instant of the injected clock in UTC, or None where the database's own clock counts."""
        return self._database.now()

    def connection(self) -> AbstractContextManager[DriverConnection]:
        """An autocommit psycopg2 connection of the broker's pool, for the length of a ``with`` block.

        A transaction that is open at its end is rolled back.
        """
        return self._database.lend()
