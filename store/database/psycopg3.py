"""Makes the caller's psycopg 3 connection usable for calls that are written for psycopg2.

It has only what runs on a caller's connection. Parameters are inserted into the text, as psycopg2 does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any, Self

import psycopg
import psycopg2.extensions
from psycopg.rows import tuple_row

from duewheel.store.values.errors import from_database

_BINARY: Any = type(psycopg2.Binary(b""))


class CallerOfPsycopg3:
    """A connection of psycopg 3 with the names of psycopg2's.

    Args:
        connection: the caller's; never committed, rolled back or closed here.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self.info = connection.info

    @property
    def autocommit(self) -> bool:
        """Whether each statement commits separately."""
        return self._connection.autocommit

    @property
    def closed(self) -> bool:
        """Whether the connection is closed or broken."""
        return self._connection.closed

    @property
    def encoding(self) -> str:
        """The client encoding, by Postgres' name."""
        return self.info.parameter_status("client_encoding") or "UTF8"

    def cursor(self, *, cursor_factory: object = None) -> _Cursor:  # noqa: ARG002 -- psycopg2's signature
        """A cursor whose rows are tuples, whatever the caller's cursors make."""
        return _Cursor(psycopg.ClientCursor(self._connection, row_factory=tuple_row))


class _Cursor:
    def __init__(self, cursor: psycopg.ClientCursor[tuple[Any, ...]]) -> None:
        self._cursor = cursor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._cursor.close()

    @property
    def description(self) -> object:
        return self._cursor.description

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._cursor.fetchall()

    def execute(self, statement: str, parameters: Sequence[Any] | None = None) -> None:
        """Run a statement.

        Raises:
            DueWheelError: the database refused, and this package has a class for the error.
            psycopg.Error: any other error.
        """
        given = None if parameters is None else list(map(_plain, parameters))
        try:
            self._cursor.execute(statement.encode(), given)
        except psycopg.Error as error:
            ours = from_database(error)
            if ours is None:
                raise
            raise ours from error

    def copy_expert(self, statement: str, source: IO[bytes], size: int) -> None:
        """Copy the content of ``source`` into a table. Errors as :meth:`execute`."""
        try:
            with self._cursor.copy(statement.encode()) as copy:
                while piece := source.read(size):
                    copy.write(piece)
        except psycopg.Error as error:
            ours = from_database(error)
            if ours is None:
                raise
            raise ours from error


def _plain(value: Any) -> Any:
    """The value, or the values of a list, without psycopg2's wrapper for bytes."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.adapted if isinstance(value, _BINARY) else value
