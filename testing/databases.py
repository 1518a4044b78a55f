"""The databases of tests: copies of one database with the schema, and a clock that only a test moves."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

import psycopg2
from psycopg2.extensions import make_dsn

from duewheel.testing import clock

#: Speed instead of durability: a server of tests may lose its data in a power cut.
TEST_SETTINGS: Final = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "1h",
}

#: Linux's folder in memory: a new database is hundreds of small files.
_IN_MEMORY = Path("/dev/shm")
#: More than a server of tests takes.
_ROOM_BYTES = 4 * 1024**3


def folder_for_a_server() -> str | None:
    """A folder in memory if there is enough, else None for the usual folder of temporary files."""
    import psutil

    has_room = (
        _IN_MEMORY.is_mount()
        and shutil.disk_usage(_IN_MEMORY).free > _ROOM_BYTES
        and psutil.virtual_memory().available > _ROOM_BYTES
    )
    return str(_IN_MEMORY) if has_room else None


@contextmanager
def embedded_server() -> Iterator[str]:
    """The address of a new server that is fast and not durable, and whose files are gone after the block.

    Raises:
        EmbeddedPostgresError: the extra ``testing`` is not installed, or the server does not start.
    """
    from duewheel.embedded.machine import binaries
    from duewheel.embedded.postgres import EmbeddedPostgres

    # Raises the error with the cure if the server is not installed.
    binaries()
    # Not pytest's folder: a later run of the same user would close it to the account of root's server.
    directory = tempfile.mkdtemp(prefix="duewheel-postgres-", dir=folder_for_a_server())
    try:
        with EmbeddedPostgres(directory, settings=TEST_SETTINGS) as server:
            yield server.dsn()
    finally:
        shutil.rmtree(directory)


class Databases:
    """Makes databases with the broker's schema and a stopped clock, and drops them.

    Args:
        server: the address of any database of the server.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._name = f"duewheel_test_{secrets.token_hex(4)}"
        self._numbers = count(1)

    def __enter__(self) -> Self:
        from duewheel.store import Broker

        self._run(f"create database {self._name}")
        dsn = self._address(self._name)
        with Broker(dsn) as broker:
            broker.upgrade()
        clock.install(dsn)
        return self

    def __exit__(self, *_: object) -> None:
        self._drop(self._name)

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The address of a new database, gone after the block, whose clock is stopped at the present."""
        name = f"{self._name}_{next(self._numbers)}"
        self._run(f"create database {name} template {self._name} strategy file_copy")
        try:
            dsn = self._address(name)
            clock.stand_at_present(dsn)
            yield dsn
        finally:
            self._drop(name)

    def _drop(self, name: str) -> None:
        # The drop itself would look for the end of its sessions every tenth of a second.
        self._run("select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = %s", name)
        self._run(f"drop database {name} with (force)")

    def _address(self, name: str) -> str:
        return make_dsn(self._server, dbname=name)

    def _run(self, statement: str, *parameters: Any) -> None:
        with closing(psycopg2.connect(self._server)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement, parameters or None)
