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
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
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


def connect(dsn: str) -> Connection:
    """A connection in autocommit mode."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    return connection


def query(dsn: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """The rows of one statement on a new connection; an empty list if it returns none."""
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


def settle(dsn: str) -> None:
    """Let a loaded database settle: vacuumed, analyzed, everything written back.

    Done to both sides alike before the clock starts, so that neither pays for setting hint bits or for the
    other's dirty pages.
    """
    query(dsn, "VACUUM ANALYZE")
    query(dsn, "CHECKPOINT")


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
        query(self._postgres.dsn(), f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield self._postgres.dsn(name)
        finally:
            query(self._postgres.dsn(), f"DROP DATABASE {name} WITH (FORCE)")

    def cpu_seconds(self) -> float:
        """Processor time of the server and all its processes so far, with the processes that have ended."""
        postmaster = psutil.Process(self._postgres.pid)
        # The postmaster's own time, and that of the processes it has waited for.
        used = sum(postmaster.cpu_times()[:4])
        for child in postmaster.children():
            # A session may have ended since; then the postmaster's next reading has it.
            with suppress(psutil.NoSuchProcess):
                used += sum(child.cpu_times()[:2])
        return float(used)

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

    def facts(self) -> dict[str, str]:
        """The version and the settings that matter, as the server itself reports them."""
        ((version,),) = query(self._postgres.dsn(), "SHOW server_version")
        settings = query(
            self._postgres.dsn(),
            "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%s) ORDER BY name",
            list(self._settings),
        )
        return {"server_version": version, **dict(settings)}
