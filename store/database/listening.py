"""Hearing of events instead of polling: LISTEN and NOTIFY on a separate connection.

A notification is a hint and never the truth. PostgreSQL drops the notifications of a lost connection. So a
program that listens reads the tables once after it begins to listen, and again after each `GAP`. Between
these, notifications save it from polling in vain. If LISTEN does not work (a pooler in transaction mode),
everything still works, by polling.

The same `NotificationListener` serves threads (`wait`) and an asyncio loop (`notifications`), one of the two
at a time. When its connection is lost, it connects again, with growing pauses, and reports it with a `GAP`.
On a connection that has been silent for a while it runs a statement, because a silent connection may be lost.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

import psycopg2
from psycopg2 import extensions, sql

from duewheel.store.database.connections import with_ends
from duewheel.store.database.forking import no_fork_meanwhile
from duewheel.store.database.watchdog import SIGN_SECONDS, WatchedConnection
from duewheel.store.values.backoff import Backoff
from duewheel.store.values.errors import said

log = logging.getLogger(__name__)


class Notification(NamedTuple):
    """The channel and text of a NOTIFY."""

    channel: str
    payload: str


#: Means that notifications may have been missed while the connection was lost: read the tables.
GAP: Final = Notification("", "")

#: After so much silence on a connection, it runs a statement to see that the server answers.
SILENCE_SECONDS: Final = 15.0


C = TypeVar("C", bound=WatchedConnection)


def connect(dsn: str, application_name: str, factory: type[C]) -> C:
    """Open an autocommit connection that notices when the server is gone; settings of `dsn` have priority.

    Args:
        dsn: the database.
        application_name: the name that the server shows.
        factory: the class of the connection.

    Raises:
        psycopg2.OperationalError: the database cannot be reached within 10 seconds.
    """
    named = {"application_name": application_name}
    settings = {**named, **extensions.parse_dsn(with_ends(dsn))}
    with no_fork_meanwhile():
        connection: C = psycopg2.connect(connection_factory=factory, **settings)
    connection.autocommit = True
    return connection


class NotificationListener:
    """Listens on channels of a database, and continues after a lost connection.

    It listens once the constructor returns: look at the tables after that and nothing is missed.

    Args:
        dsn: the database.
        channels: names of the channels.
        application_name: the name that the server shows.
        greeting: a statement that each of its connections begins with.
        silence_seconds: the longest silence on a connection before a statement tests it.
        answer_seconds: how long the answer to each statement may take; then the connection is lost.

    Raises:
        psycopg2.OperationalError: the database cannot be reached at first; later the listener tries again.

    Example::

        with NotificationListener(dsn, ["duewheel_released"]) as listener:
            while nothing_ready():
                listener.wait(timeout_seconds=30)

    `interrupt` may be called from any thread; everything else belongs to one thread or one event loop.
    """

    def __init__(
        self,
        dsn: str,
        channels: Sequence[str],
        *,
        application_name: str = "duewheel listener",
        greeting: str | None = None,
        silence_seconds: float = SILENCE_SECONDS,
        answer_seconds: float = SIGN_SECONDS,
    ) -> None:
        self._dsn = dsn
        self._channels = tuple(channels)
        self._application_name = application_name
        self._greeting = greeting
        self._silence_seconds = silence_seconds
        self._answer_seconds = answer_seconds
        self._heard_at = 0.0
        # Whether a thread waits for the answer to a test statement now.
        self._asks = False
        self._backoff = Backoff()
        self._retry_at = 0.0
        self._closed = False
        self._connection: WatchedConnection | None = self._listen()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End listening and close the connection; may be called twice."""
        self._closed = True
        if self._connection is not None:
            if self._asks:
                # Closing would wait for the thread that tests the connection.
                self._connection.shut()
            self._connection.close()
            self._connection = None
        self._wake_reader.close()
        self._wake_writer.close()

    def rename(self, application_name: str) -> None:
        """Show another name at the server."""
        if application_name == self._application_name:
            return
        self._application_name = application_name
        if self._connection is not None:
            # The next `wait` notices the loss of the connection, and connects again under the new name.
            with contextlib.suppress(psycopg2.OperationalError), self._connection.cursor() as cursor:
                cursor.execute("select set_config('application_name', %s, false)", (application_name,))

    def fileno(self) -> int:
        """The connection's file descriptor, which changes with a reconnect; -1 while it is lost."""
        return -1 if self._connection is None else self._connection.fileno()

    def interrupt(self) -> None:
        """End the present `wait`, or the next one if there is none; from any thread."""
        if self._closed:
            return
        # A full socket holds a wake-up already.
        with contextlib.suppress(BlockingIOError):
            self._wake_writer.send(b"\0")

    def wait(self, timeout_seconds: float) -> list[Notification]:
        """Wait for notifications and return them, oldest first.

        An empty list means that the time is over or that `interrupt` was called. After a lost connection it
        tries to connect again; once that worked it returns ``[GAP]``. If the server's machine does not answer
        at all, connecting may outlast the timeout by up to 10 seconds, and so may the test of a connection.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            if notifications := self.arrived():
                return notifications
            next_at = self._retry_at if self._connection is None else self._heard_at + self._silence_seconds
            if self._interrupted_before(min(next_at, deadline)):
                return []
            if self._connection is not None and time.monotonic() >= next_at:
                self._ask_for_a_sign()
            if self._connection is None and time.monotonic() >= self._retry_at and self._reconnect():
                return [GAP]
            if time.monotonic() >= deadline:
                return self.arrived()

    async def notifications(self) -> AsyncGenerator[Notification, None]:
        """Yield notifications as they arrive, on the running event loop, until it is closed; `GAP` after each
        reconnect.

        Nothing blocks the loop: it watches the file descriptor, and connecting happens in a worker thread.
        """
        # Programs that wait in threads need not load it.
        import asyncio

        while True:
            for notification in self.arrived():
                yield notification
            if self._connection is None:
                await asyncio.sleep(self._retry_at - time.monotonic())
                if await asyncio.to_thread(self._reconnect):
                    yield GAP
                continue
            left_seconds = self._heard_at + self._silence_seconds - time.monotonic()
            if left_seconds > 0:
                await _readable(self._connection.fileno(), left_seconds)
            else:
                await asyncio.to_thread(self._ask_for_a_sign)

    def _listen(self) -> WatchedConnection:
        connection = connect(self._dsn, self._application_name, WatchedConnection)
        connection.answer_seconds = self._answer_seconds
        with connection.cursor() as cursor:
            # This connection is idle on purpose.
            cursor.execute("SET idle_session_timeout = 0")
            if self._greeting is not None:
                cursor.execute(self._greeting)
            for channel in self._channels:
                cursor.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        self._heard_at = time.monotonic()
        return connection

    def _ask_for_a_sign(self) -> None:
        """Test a silent connection with a statement; it is lost if it does not answer."""
        connection = self._connection
        if connection is None:
            return
        self._asks = True
        try:
            # Notifications that have arrived are read with the answer.
            with connection.cursor() as cursor:
                cursor.execute("select")
            self._heard_at = time.monotonic()
        except psycopg2.Error as error:
            self._lose(connection, error)
        finally:
            self._asks = False

    def arrived(self) -> list[Notification]:
        """Return the notifications that have arrived, without waiting and without connecting again.

        A lost connection is noticed when it is read; the next `wait` connects again.
        """
        connection = self._connection
        if connection is None:
            return []
        try:
            connection.poll()
        except psycopg2.Error as error:
            self._lose(connection, error)
        notifications = [Notification(notify.channel, notify.payload or "") for notify in connection.notifies]
        connection.notifies.clear()
        if notifications:
            self._heard_at = time.monotonic()
        return notifications

    def _lose(self, connection: WatchedConnection, error: psycopg2.Error) -> None:
        if not self._closed:
            log.warning("Listening lost its connection and connects again: %s", said(error))
        connection.close()
        self._connection = None
        self._retry_at = time.monotonic()

    def _reconnect(self) -> bool:
        try:
            connection = self._listen()
        except psycopg2.Error as error:
            pause_seconds = self._backoff.next_seconds()
            self._retry_at = time.monotonic() + pause_seconds
            log.warning("Cannot listen; next attempt in %.1f s: %s", pause_seconds, said(error))
            return False
        self._backoff.reset()
        if self._closed:
            # The event loop went away while a worker thread was connecting.
            connection.close()
            return False
        self._connection = connection
        return True

    def _interrupted_before(self, wake_at: float) -> bool:
        """Sleep until the instant (monotonic), until there is something to read, or until interrupted."""
        # poll() and not select(), which cannot watch descriptors above 1023.
        poller = select.poll()
        poller.register(self._wake_reader, select.POLLIN)
        if self._connection is not None:
            poller.register(self._connection, select.POLLIN)
        ready = poller.poll(max(0.0, wake_at - time.monotonic()) * 1_000)
        if self._wake_reader.fileno() not in (descriptor for descriptor, _ in ready):
            return False
        # Empty it: many calls of `interrupt` end one wait.
        with contextlib.suppress(BlockingIOError):
            while self._wake_reader.recv(65_536):
                pass
        return True


async def _readable(descriptor: int, timeout_seconds: float) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        async with asyncio.timeout(timeout_seconds):
            await ready.wait()
    except TimeoutError:
        return
    finally:
        loop.remove_reader(descriptor)
