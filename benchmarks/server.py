"""One real Postgres with production-like settings, and fresh databases on it.

Durability is on (`fsync`, `synchronous_commit`, `full_page_writes`), memory and checkpoints are set as for
a small production server, and autovacuum runs. Both sides of every pair live on this one server.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg2
from psycopg2.extensions import connection as Connection  # noqa: N812 - it is a class

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store import Broker

SETTINGS = {
    "autovacuum_naptime": "15s",
    "checkpoint_completion_target": "0.9",
    "checkpoint_timeout": "15min",
    "effective_cache_size": "4GB",
    "fsync": "on",
    "full_page_writes": "on",
    "maintenance_work_mem": "256MB",
    "max_wal_size": "4GB",
    "min_wal_size": "1GB",
    "random_page_cost": "1.1",
    "shared_buffers": "512MB",
    "synchronous_commit": "on",
    "wal_buffers": "16MB",
    "work_mem": "16MB",
}

#: Postgres's own defaults: the embedded server gives itself more connections and locks unless told otherwise.
STOCK_SETTINGS = {
    "fsync": "on",
    "max_connections": "100",
    "max_locks_per_transaction": "64",
    "synchronous_commit": "on",
}

TEMPLATE = "duewheel_template"


def connect(dsn: str, options: str = "") -> Connection:
    """A connection in autocommit mode, with server options such as `-c work_mem=1MB`."""
    connection = psycopg2.connect(dsn, options=options)
    connection.autocommit = True
    return connection


def settle(dsn: str) -> None:
    """Bring a loaded database to rest: vacuumed, analyzed, everything written back.

    Done to both sides alike before the clock starts, so that neither pays for setting hint bits or for the
    other's dirty pages.
    """
    connection = connect(dsn)
    try:
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")
            cursor.execute("CHECKPOINT")
    finally:
        connection.close()


def _stat(pid: int) -> list[int]:
    """The numbers of /proc/PID/stat by their index from 0; those before the fourth are 0."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    # The name of the program may hold spaces and parentheses.
    return [0, 0, 0, *map(int, text.rpartition(")")[2].split()[1:])]


class Server:
    """The server of one run; a context manager that removes everything it made."""

    def __init__(self, settings: Mapping[str, str] = SETTINGS) -> None:
        self._settings = settings
        self._directory = Path(tempfile.mkdtemp(prefix="duewheel-bench-"))
        self._numbers = itertools.count(1)
        self._has_template = False

    def __enter__(self) -> Server:
        self._postgres = EmbeddedPostgres(self._directory / "postgres", settings=self._settings).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._postgres.stop()
        shutil.rmtree(self._directory)

    def restart(self) -> None:
        """Stop the server, which is kept on its port, and start it again."""
        self._postgres.stop()
        self._postgres.start()

    @contextmanager
    def empty(self) -> Iterator[str]:
        """A fresh, empty database; yields its connection string and drops it afterwards."""
        with self._database("template1") as dsn:
            yield dsn

    @contextmanager
    def duewheel(self) -> Iterator[str]:
        """A fresh database with duewheel's schema; yields its connection string and drops it afterwards."""
        if not self._has_template:
            with Broker(self._postgres.ensure_database(TEMPLATE)) as broker:
                broker.upgrade()
            self._has_template = True
        with self._database(TEMPLATE) as dsn:
            yield dsn

    @contextmanager
    def _database(self, template: str) -> Iterator[str]:
        name = f"bench_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield self._postgres.dsn(name)
        finally:
            self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def cpu_seconds(self) -> float:
        """Processor time of the server and all its processes so far, those that have ended included."""
        postmaster = self._postgres.pid or 0
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text(encoding="ascii").split()
        # utime and stime of each, and of the postmaster also those of the children it has waited for.
        ticks = sum(_stat(postmaster)[13:17])
        for child in children:
            # A session may have ended since; then the postmaster's next reading has it.
            with suppress(FileNotFoundError, ProcessLookupError):
                ticks += sum(_stat(int(child))[13:15])
        return ticks / os.sysconf("SC_CLK_TCK")

    def flush_milliseconds(self) -> float:
        """How long the disk takes now to make one page durable, the median of 20: most of a small commit."""
        taken = []
        with tempfile.TemporaryFile(dir=self._directory) as file:
            for _ in range(20):
                os.write(file.fileno(), bytes(8192))
                started = time.perf_counter()
                os.fdatasync(file.fileno())
                taken.append(time.perf_counter() - started)
        return statistics.median(taken) * 1000

    @contextmanager
    def without_autovacuum(self) -> Iterator[None]:
        """Autovacuum off, so that no dead tuple is cleaned away before it is counted."""
        self._execute("ALTER SYSTEM SET autovacuum = off")
        self._execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            self._execute("ALTER SYSTEM RESET autovacuum")
            self._execute("SELECT pg_reload_conf()")

    def facts(self) -> dict[str, str]:
        """The version and the settings that matter, as the server itself reports them."""
        connection = connect(self._postgres.dsn())
        try:
            with connection.cursor() as cursor:
                cursor.execute("SHOW server_version")
                (version,) = cursor.fetchone() or ("",)
                cursor.execute(
                    "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%s) ORDER BY name",
                    (list(self._settings),),
                )
                return {"server_version": version, **dict(cursor.fetchall())}
        finally:
            connection.close()

    def _execute(self, statement: str) -> None:
        connection = connect(self._postgres.dsn())
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
        finally:
            connection.close()
