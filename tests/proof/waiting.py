"""Waiting for the database to be in a state, and threads that hand on what they raise."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duewheel.store.database.connections import DriverConnection

#: Nothing waits for it unless something is broken.
PATIENCE_SECONDS = 240.0
_PAUSE_SECONDS = 0.005

#: What a trigger calls at which a session stops until it gets lock 1.
STOP = """
create function stop() returns trigger language plpgsql as $$
begin
    perform pg_advisory_xact_lock(1);
    return null;
end
$$;
"""

Answer = TypeVar("Answer")


def until(condition: Callable[[], Answer], what: str) -> Answer:
    """Return the condition's answer once it is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s for {what}"
        time.sleep(_PAUSE_SECONDS)
    return answer


@contextmanager
def connected(dsn: str, *, autocommit: bool = True) -> Iterator[DriverConnection]:
    """A connection for the length of the block; what is open at its end is rolled back."""
    with closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = autocommit
        yield connection


def ask(connection: DriverConnection, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def until_blocked(dsn: str, pid: int) -> None:
    """Return once that backend waits for a lock."""
    with connected(dsn) as connection:
        until(
            lambda: ask(
                connection, "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'", pid
            ),
            f"backend {pid} to be kept waiting",
        )


def until_somebody_waits(dsn: str) -> None:
    """Return once a backend of this database waits for a lock."""
    with connected(dsn) as connection:
        until(
            lambda: ask(
                connection,
                "select 1 from pg_stat_activity"
                " where datname = current_database() and wait_event_type = 'Lock'",
            ),
            "a backend to be kept waiting",
        )


@contextmanager
def beside() -> Iterator[Callable[[Callable[[], Answer]], Future[Answer]]]:
    """Start calls in threads of their own; leaving the block waits for them."""
    with ThreadPoolExecutor(32) as threads:
        yield threads.submit
