"""The connections of a wheel's jobs: each job has a time, after which it is cancelled and then cut off."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from duewheel.store.database import schema
from duewheel.store.database.connections import OWN_TRANSACTION, fetch, of_the_transaction, take_session
from duewheel.store.database.listening import connect
from duewheel.store.database.prepared import Prepared
from duewheel.store.database.watchdog import WatchedConnection, WatchedCursor
from duewheel.store.wheel.wheel_schedule import (
    Answer,
    FollowUp,
    Job,
    Maintain,
    Poll,
    Revive,
    Scan,
    SendOccurrences,
    Tick,
)

#: How long a job may take.
TIMEOUT_SECONDS: Final[dict[type[Job], float]] = {
    Poll: 15.0,
    Scan: 15.0,
    Tick: 15.0,
    FollowUp: 15.0,
    Revive: 60.0,
    Maintain: 120.0,
    SendOccurrences: 60.0,
}

#: The server ends a job's statements after this share of the job's time. The rest is for its answer. A job
#: without an answer by then asks the server to cancel, several times, since a cancel that meets no statement
#: is lost. After the last it gives up: the server, or the way to it, is gone.
SERVER_SHARE = 0.9
CANCELS: Final = 4
CANCEL_SECONDS: Final = 0.5

#: How long a job waits for a lock. Another session's open transaction holds up a lane for no longer, and
#: other jobs run in between.
LOCK_TIMEOUT_MS: Final = 250

APPLICATION_NAME: Final = "duewheel wheel"


class JobConnection(WatchedConnection):
    """An autocommit connection whose server ends statements that take too long.

    The limits are sent with each statement, in one message and so in its transaction. Through a pooler that
    shares sessions, a session's limit would apply to other programs' statements.

    Attributes:
        ends_at: when the server ends the job that uses it, on the monotonic clock in seconds.
        gives_up_at: when the wheel waits no longer for its answer.
        prepares: whether statements are prepared in its session, which then is its own.
    """

    ends_at = gives_up_at = math.inf
    prepares = False

    def __init__(self, dsn: str, **options: Any) -> None:
        super().__init__(dsn, **options)
        self._prepared: set[str] = set()

    def cursor(self, *_: Any, **__: Any) -> Any:
        """A plain cursor that sends the limits along."""
        return super().cursor(cursor_factory=_Cursor)

    def text_of(self, statement: Prepared) -> str:
        """The text that runs a statement here; prepares it the first time."""
        if statement.name not in self._prepared:
            fetch(self, statement.prepare, ())
            self._prepared.add(statement.name)
        return statement.call

    def limits(self) -> str:
        """The text sent before a statement."""
        # 0 would be no limit at all.
        left_ms = max(1, math.floor((self.ends_at - time.monotonic()) * 1_000))
        return (
            f"{of_the_transaction(self)}{OWN_TRANSACTION}set local statement_timeout = {left_ms}; "
            f"set local lock_timeout = {LOCK_TIMEOUT_MS}; "
        )


class _Cursor(WatchedCursor):
    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002 -- the driver's name
        connection = self.connection
        if isinstance(connection, JobConnection) and math.isfinite(connection.ends_at):
            query = connection.limits() + query
            connection.answer_seconds = connection.gives_up_at - time.monotonic()
        super().execute(query, vars)


class JobSession:
    """A connection for one job at a time, made when it is first needed and again after it was lost."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: JobConnection | None = None
        self._is_verified = False
        self._is_cancelled = False

    def carry_out(self, ask: Callable[[JobConnection, Job], Answer], job: Job) -> Answer:
        """Run a job, in a worker thread. Errors of the database are raised unchanged; the next call may
        connect again."""
        begun_at = time.monotonic()
        seconds = TIMEOUT_SECONDS[type(job)]
        try:
            if self._connection is None:
                name = f"{APPLICATION_NAME} on {socket.gethostname()[:32]}:{os.getpid()}"
                self._connection = connect(self._dsn, name, JobConnection)
                self._connection.prepares = take_session(self._connection)
            self._connection.ends_at = begun_at + SERVER_SHARE * seconds
            self._connection.gives_up_at = begun_at + seconds + CANCELS * CANCEL_SECONDS
            if not self._is_verified:
                schema.verify(self._connection)
                self._is_verified = True
            return ask(self._connection, job)
        finally:
            # A cancel that has not arrived yet must not end the next job.
            if not self._is_verified or self._is_cancelled or (self._connection and self._connection.closed):
                self.close()

    def cancel(self) -> None:
        """Ask the server to end the running statement, from another thread, because the server may let it
        wait."""
        connection = self._connection
        if connection is None:
            return
        self._is_cancelled = True

        threading.Thread(target=connection.cancel, name="duewheel wheel cancel", daemon=True).start()

    def cut_off(self) -> None:
        """Shut the connection from another thread: a call that waits for an answer fails at once."""
        if self._connection is not None:
            self._connection.shut()

    def close(self) -> None:
        """Close the connection; nothing runs on it."""
        self._is_verified = self._is_cancelled = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None
