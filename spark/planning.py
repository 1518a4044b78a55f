"""A connection to the broker for planning a read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from duewheel.store.database import schema
from duewheel.store.database.connections import Database

if TYPE_CHECKING:
    from duewheel.store.database.connections import DriverConnection


@contextmanager
def planning(dsn: str) -> Iterator[DriverConnection]:
    """An autocommit connection of its own, checked as a broker's is.

    Importing a whole ``Broker`` would take a new process longer than the planning itself.
    """
    with closing(Database(dsn, on_first_connection=schema.verify)) as database, database.lend() as connection:
        yield connection
