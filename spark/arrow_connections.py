"""Connections of executors to the broker, which carry rows as Arrow.

The driver reads all types and columns of the database when it is set up, those of the user's tables too. So a
process does that once, and not for each part that it reads or writes. What it has read stays right: the
messages have columns of Postgres's own types only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import adbc_driver_manager
import adbc_driver_postgresql


@contextmanager
def arrow_connection(dsn: str) -> Iterator[adbc_driver_manager.AdbcConnection]:
    """A connection that is closed when the block ends.

    Args:
        dsn: libpq string or URL.

    Raises:
        adbc_driver_manager.Error: the database cannot be reached.

    Example::

        with arrow_connection(dsn) as connection, AdbcStatement(connection) as statement:
            statement.set_sql_query("select 1")
    """
    # A process that was forked sets up its own connections: the driver does not say what it shares.
    with adbc_driver_manager.AdbcConnection(_database(dsn, os.getpid())) as connection:
        yield connection


@lru_cache(maxsize=1)
def _database(dsn: str, _process_id: int) -> adbc_driver_manager.AdbcDatabase:
    database: adbc_driver_manager.AdbcDatabase = adbc_driver_postgresql.connect(dsn)
    return database
