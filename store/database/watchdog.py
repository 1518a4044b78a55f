"""Every wait for the server's answer ends: a watchdog shuts the connection of a call that lasts too long.

psycopg2 has no time limit for an answer. TCP notices lost packets, but a server that has stopped, or a proxy
that has lost its server, still acknowledges packets. So each connection of the broker is a
:class:`WatchedConnection`, whose calls have an end. One thread in each process watches all of them. It starts
with the first call, and wakes when the first of the running calls reaches its end.

A connection of the caller (``connection=``) is not watched: its wait callback, timeouts and transaction are
the caller's.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Final, TypeVar

import psycopg2
from psycopg2.extensions import connection as DriverConnection  # noqa: N812 -- as all of the store names it
from psycopg2.extensions import cursor as DriverCursor  # noqa: N812

from duewheel.store.database.forking import begin_in_each_process, no_fork_meanwhile
from duewheel.store.values.errors import said

log = logging.getLogger(__name__)

#: How long a call of a program's broker may wait for its answer.
CALL_SECONDS: Final = 120.0
#: How long LISTEN, BEGIN and the answer to a request for a sign of life may take.
SIGN_SECONDS: Final = 10.0
#: How long an upgrade and a rebase may wait for the answer to a statement, which may rewrite every message.
REWRITE_SECONDS: Final = 86_400.0
#: A COPY has a second more for so many bytes.
COPY_BYTES_PER_SECOND: Final = 1024 * 1024
#: How long a thread waits until the server has taken its request to cancel.
CANCEL_SECONDS: Final = 2.0

# The longest time to open a connection, libpq's own connect_timeout included.
_OPEN_SECONDS: Final = 60.0
# A connection that is being opened has no socket to shut before the server has let it in.
_RETRY_SECONDS: Final = 0.5
# So many requests to cancel may wait for their server at a time.
_CANCELS: Final = 8

T = TypeVar("T")


class Watchdog:
    """Shuts the connections of calls that have reached their end; one thread for all calls of a process."""

    def __init__(self) -> None:
        begin_in_each_process(self, Watchdog._begin)

    def _begin(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._calls: dict[object, tuple[float, WatchedConnection]] = {}
        self._thread: threading.Thread | None = None
        # When the thread looks next, on the monotonic clock.
        self._looks_at = math.inf
        self.cancels = threading.BoundedSemaphore(_CANCELS)

    def begin(self, call: object, connection: WatchedConnection, seconds: float) -> None:
        """Watch a call until :meth:`end`, which has to follow."""
        ends_at = time.monotonic() + seconds
        with self._changed:
            self._calls[call] = ends_at, connection
            if ends_at < self._looks_at:
                self._looks_at = ends_at
                self._wake()

    def end(self, call: object) -> None:
        """Note that the call has ended."""
        with self._changed:
            self._calls.pop(call, None)

    def has_shut(self, call: object) -> bool:
        """Whether a call that is not over has lost its connection here."""
        with self._changed:
            return call not in self._calls

    def _wake(self) -> None:
        if self._thread is not None:
            self._changed.notify()
            return
        thread = threading.Thread(target=self._watch, name="duewheel watchdog", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # An interpreter that ends starts no thread. Its last calls are made without a watchdog.
            log.info("calls are made without an end: %s", error)
        else:
            self._thread = thread

    def _watch(self) -> None:
        with self._changed:
            while True:
                self._shut_overdue()
                self._looks_at = min((ends_at for ends_at, _ in self._calls.values()), default=math.inf)
                left_seconds = self._looks_at - time.monotonic()
                self._changed.wait(None if math.isinf(left_seconds) else max(0.0, left_seconds))

    def _shut_overdue(self) -> None:
        now = time.monotonic()
        for call, (ends_at, connection) in tuple(self._calls.items()):
            if ends_at > now:
                continue
            if connection.shut():
                del self._calls[call]
            else:
                self._calls[call] = now + _RETRY_SECONDS, connection


_watchdog = Watchdog()


class WatchedConnection(DriverConnection):
    """A connection whose calls end, whatever the server does.

    Attributes:
        answer_seconds: the longest wait for the answer of a call.
        owns_session: whether the session is known to belong to the connection, and is not shared by a pooler.
    """

    answer_seconds = SIGN_SECONDS
    owns_session = False

    def __init__(self, dsn: str, **options: Any) -> None:
        self._address = dsn
        # libpq limits the connecting itself. After it psycopg2 may run a statement about the format of dates.
        _watchdog.begin(self, self, _OPEN_SECONDS)
        try:
            super().__init__(dsn, **options)
        finally:
            _watchdog.end(self)
        self.cursor_factory = WatchedCursor

    def commit(self) -> None:
        """As in psycopg2, with an end."""
        self.watched(self, self.answer_seconds, super().commit)

    def rollback(self) -> None:
        """As in psycopg2, with an end."""
        self.watched(self, self.answer_seconds, super().rollback)

    def watched(self, call: object, seconds: float, act: Callable[..., T], *given: Any) -> T:
        """Do something that waits for an answer.

        Args:
            call: identifies the call; no other call has it at the time.
            seconds: the longest time for it.
            act: the function to run.
            given: the arguments of `act`.

        Raises:
            psycopg2.OperationalError: it took longer. The connection is closed.
        """
        _watchdog.begin(call, self, seconds)
        try:
            return act(*given)
        except psycopg2.Error as error:
            if _watchdog.has_shut(call):
                raise psycopg2.OperationalError(
                    f"the server did not answer within {seconds:g} s, the limit of this call, so the "
                    "connection was shut; the server, or the way to it, is silent, or needs longer than that"
                ) from error
            raise
        finally:
            _watchdog.end(call)

    def cancel(self) -> None:
        """Ask the server to end the running statement; from another thread.

        psycopg2's own request waits without an end and holds the interpreter's lock, so it stops all threads.
        This request is a call on another connection, in a thread, and is waited for :data:`CANCEL_SECONDS`.
        It is left out if a pooler shares the session, because the server process is then unknown, and if
        several requests already wait for their server.
        """
        cancels = _watchdog.cancels
        if not self.owns_session or not cancels.acquire(blocking=False):
            return

        def ask() -> None:
            try:
                _cancel(self._address, self.info.backend_pid)
            except psycopg2.Error as error:
                log.info("a statement could not be cancelled: %s", said(error))
            finally:
                cancels.release()

        asking = threading.Thread(target=ask, name="duewheel cancel", daemon=True)
        asking.start()
        asking.join(CANCEL_SECONDS)

    def shut(self) -> bool:
        """End the conversation, from any thread: a call that waits for an answer fails at once.

        Returns:
            Whether there was one.
        """
        # It may be lost already, and its descriptor closed.
        with suppress(OSError, psycopg2.InterfaceError):
            with socket.socket(fileno=os.dup(self.fileno())) as conversation:
                conversation.shutdown(socket.SHUT_RDWR)
            return True
        return bool(self.closed)


def _cancel(address: str, pid: int) -> None:
    with no_fork_meanwhile():
        connection = psycopg2.connect(address, connection_factory=WatchedConnection)
    with closing(connection), connection.cursor() as cursor:
        cursor.execute("select pg_catalog.pg_cancel_backend(%s)", (pid,))


class WatchedCursor(DriverCursor):
    """A cursor of a :class:`WatchedConnection`."""

    connection: WatchedConnection

    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002 -- the driver's name
        """As in psycopg2, with an end."""
        connection = self.connection
        connection.watched(self, connection.answer_seconds, super().execute, query, vars)

    def copy_expert(self, sql: Any, file: Any, size: int = 8192) -> None:
        """As in psycopg2, with an end. ``size`` is the number of bytes of the file."""
        connection = self.connection
        seconds = connection.answer_seconds + size / COPY_BYTES_PER_SECOND
        connection.watched(self, seconds, super().copy_expert, sql, file, size)
