"""Reading rows of the schema's functions, for the modules whose operations only read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from duewheel.store.database.connections import Rows, fetch, transaction
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.records import columns, records

if TYPE_CHECKING:
    from duewheel.store.database.connected import Connected
    from duewheel.store.values.records import One


#: The longest time of each statement of the block; None for the limit of the session.
_MOST_MS: Final[ContextVar[int | None]] = ContextVar("_MOST_MS", default=None)


@contextmanager
def limited(most_ms: int) -> Iterator[None]:
    """Limit each statement that a block reads with to so many milliseconds.

    Raises:
        psycopg2.errors.QueryCanceled: a statement took longer.
    """
    before = _MOST_MS.set(most_ms)
    try:
        yield
    finally:
        _MOST_MS.reset(before)


def read(broker: Connected, statement: str, parameters: tuple[object, ...]) -> Rows:
    """The rows of a statement, within the time of :func:`limited`."""
    most_ms = _MOST_MS.get()
    with broker.connection() as connection:
        if most_ms is None:
            return fetch(connection, statement, parameters)
        with transaction(connection) as cursor:
            cursor.execute("select set_config('statement_timeout', %s, true)", (str(most_ms),))
            cursor.execute(statement, parameters)
            return cursor.fetchall()


def read_records(
    broker: Connected, kind: type[One], source: str, parameters: tuple[object, ...], **called: str
) -> list[One]:
    """A dataclass for each row of a function of the schema; ``called``: see :func:`columns`."""
    rows = read(broker, f"select {columns(kind, **called)} from duewheel.{source}", parameters)
    return records(kind, rows)


def checked_limit(count: int) -> int:
    """The number of rows that a caller asks for.

    Raises:
        InvalidArgument: it is not 1 to 1 000.
    """
    if type(count) is not int or not 1 <= count <= 1_000:
        raise InvalidArgument(
            f"the number of rows must be 1 to 1000; got {count!r}: give a number within these limits"
        )
    return count
