"""Reading rows of the schema's functions, for the modules whose operations only read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duewheel.store.database.connections import Rows, fetch
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.records import columns, records

if TYPE_CHECKING:
    from duewheel.store.database.connected import Connected
    from duewheel.store.values.records import One


def read(broker: Connected, statement: str, parameters: tuple[object, ...]) -> Rows:
    """The rows of a statement."""
    with broker.connection() as connection:
        return fetch(connection, statement, parameters)


def read_records(
    broker: Connected, kind: type[One], source: str, parameters: tuple[object, ...], **called: str
) -> list[One]:
    """A dataclass for each row of a function of the schema; ``called`` as for :func:`columns`."""
    rows = read(broker, f"select {columns(kind, **called)} from duewheel.{source}", parameters)
    return records(kind, rows)


def checked_limit(count: int) -> int:
    """The number of rows that a caller asks for.

    Raises:
        InvalidArgument: it is not 1 to 1 000.
    """
    if type(count) is not int or not 1 <= count <= 1_000:
        raise InvalidArgument(f"{count!r} rows were asked for, the limit is 1 to 1000: ask for fewer")
    return count
