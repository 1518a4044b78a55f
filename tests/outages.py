"""A database that cannot be reached for a while: new connections are refused, and existing ones are
closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg2
from psycopg2.extensions import parse_dsn

from duewheel.store import EmbeddedPostgres


@contextmanager
def outage(postgres: EmbeddedPostgres, dsn: str) -> Iterator[None]:
    """Keep everybody out of the database at ``dsn`` until the block is left."""
    name = parse_dsn(dsn)["dbname"]
    with closing(psycopg2.connect(postgres.dsn())) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f'alter database "{name}" with allow_connections false')
            try:
                cursor.execute(
                    "select pg_terminate_backend(pid, 60000) from pg_stat_activity where datname = %s",
                    (name,),
                )
                yield
            finally:
                cursor.execute(f'alter database "{name}" with allow_connections true')
