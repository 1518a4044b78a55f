"""Waiting for what gives no sign of its own, above all for the database to be in a state.

Where there is a sign, such as an event, a notification, a log line, a pipe or the end of a thread, a test
waits for that instead, with ``PATIENCE_SECONDS`` as the limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duewheel.store.database.connections import DriverConnection

#: The limit of every wait. Only a broken program reaches it, however busy the machine.
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


def until(condition: Callable[[], Answer], what: str, *, pause_seconds: float = _PAUSE_SECONDS) -> Answer:
    """Return the condition's answer once it is true.

    Args:
        condition: asked again and again; what it raises ends the wait.
        what: what is waited for, for the error.
        pause_seconds: from one question to the next; longer where a question is expensive.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s for {what}"
        time.sleep(pause_seconds)
    return answer


async def until_on_loop(condition: Callable[[], object], what: str) -> None:
    """Return once the condition is true, and let the tasks of the event loop go on until then."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s for {what}"
        await asyncio.sleep(_PAUSE_SECONDS)


#: The port of each pooler that runs, and that of its server.
BEHIND: dict[str, str] = {}


def without_pooler(dsn: str) -> str:
    """The address of the server itself."""
    port = parse_dsn(dsn).get("port", "")
    return make_dsn(dsn, port=BEHIND[port]) if port in BEHIND else dsn


@contextmanager
def connected(dsn: str, *, autocommit: bool = True) -> Iterator[DriverConnection]:
    """A connection for the length of the block; at its end what is open is rolled back, and no lock is held.

    Its session is its own, also where ``dsn`` is that of a pooler.
    """
    with closing(psycopg2.connect(without_pooler(dsn))) as connection:
        connection.autocommit = autocommit
        yield connection
        # A server notices later that a connection was closed: its locks would outlive the block.
        if not connection.closed:
            connection.rollback()


def ask(connection: DriverConnection, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


def wheels_listening(dsn: str) -> int:
    """How many wheels listen to a database."""
    with connected(dsn) as connection:
        ((count,),) = ask(
            connection,
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and application_name = 'duewheel wheel listening'",
        )
    return int(count)


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
