"""The base of the broker and of its parts: an object that has a database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Final

from duewheel.store.database import schema
from duewheel.store.database.connections import Database, DriverConnection
from duewheel.store.database.watchdog import CALL_SECONDS
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import to_span

#: How long a call may wait for the server's answer.
CALL_TIMEOUT: Final = timedelta(seconds=CALL_SECONDS)


class Connected:
    """An object that has a database.

    Args:
        dsn, clock, listen, call_timeout: see :class:`duewheel.store.broker.Broker`.

    Raises:
        InvalidArgument: the dsn cannot be read, or ``call_timeout`` is not a span above zero.
    """

    def __init__(
        self,
        dsn: str,
        *,
        clock: Callable[[], datetime] | None = None,
        listen: bool = True,
        call_timeout: timedelta = CALL_TIMEOUT,
    ) -> None:
        answer_seconds = to_span(call_timeout, "call_timeout").total_seconds()
        if answer_seconds <= 0:
            raise InvalidArgument(f"call_timeout is {call_timeout}: choose more than 0")
        self._database = Database(
            dsn,
            clock=clock,
            on_first_connection=schema.verify,
            prepare=listen,
            answer_seconds=answer_seconds,
        )
        self._listen = listen

    @property
    def dsn(self) -> str:
        """The database's address as libpq takes it, password included."""
        return self._database.dsn

    def now(self) -> datetime | None:
        """The instant of the injected clock in UTC, or None if the database's own clock counts."""
        return self._database.now()

    def connection(self) -> AbstractContextManager[DriverConnection]:
        """An autocommit psycopg2 connection of the broker's pool, for the length of a ``with`` block.

        A transaction that is open at its end is rolled back.
        """
        return self._database.lend()
