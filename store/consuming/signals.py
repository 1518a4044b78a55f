"""Waiting until a topic releases something, without asking again and again.

A tick that releases messages notifies the channel ``duewheel_released`` with its topic's number, followed by
a 1 if the tick is a wheel's. A waiter borrows a listener, a connection of its own that sleeps in the kernel
until a notification comes or the time is over. A few listeners stay open, one for each consumer that waits at
the same time. Behind a pooler that shares sessions (PgBouncer by transaction) nothing can listen: there the
waiting is bounded by time alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg2

from duewheel.store.database.forking import begin_in_each_process
from duewheel.store.database.listening import GAP, Notification, NotificationListener
from duewheel.store.values.errors import BrokerUnreachable, said

CHANNEL = "duewheel_released"

#: How long a listener that nobody uses stays open; it is closed after at most twice as long.
IDLE_SECONDS: Final = 15.0


class Signal:
    """Waits for one topic.

    Args:
        listener: hears the channel; None where nothing can listen.
        topic_id: the topic's number; releases of other topics do not wake.
        is_new: whether the listener has only just begun to listen.

    Attributes:
        is_new: whether a release before the block may have been unheard.
        wheel_at: when a wheel was last heard to release something of the topic, as monotonic seconds.
    """

    def __init__(self, listener: NotificationListener | None, topic_id: int, *, is_new: bool = False) -> None:
        self.is_new = is_new
        self._listener = listener
        self._payload = str(topic_id)
        self._payload_of_wheel = f"{topic_id} 1"
        # Where there is no listener to interrupt.
        self._interrupted = threading.Event()
        self.wheel_at = float("-inf")

    def catch_up(self) -> bool:
        """Consume the notifications so far, so that they wake no later wait: a look at the tables now sees
        their releases.

        Returns:
            Whether the topic may have released something.
        """
        return self._listener is not None and self._concerns(self._listener.wait(0))

    def wait(self, seconds: float) -> bool:
        """Sleep until the topic releases something, or may have unheard: True; or the time is over: False."""
        if self._listener is None:
            self._interrupted.wait(seconds)
            self._interrupted.clear()
            return False
        until = time.monotonic() + seconds
        while True:
            heard = self._listener.wait(until - time.monotonic())
            if not heard:
                return False
            if self._concerns(heard):
                return True

    def interrupt(self) -> None:
        """End the wait going on, or the next one when none is; from any thread."""
        if self._listener is None:
            self._interrupted.set()
        else:
            self._listener.interrupt()

    def _concerns(self, heard: list[Notification]) -> bool:
        """Whether the topic may have released something."""
        payloads = {one.payload for one in heard}
        if self._payload_of_wheel in payloads:
            self.wheel_at = time.monotonic()
            return True
        return self._payload in payloads or GAP in heard


class Stop(threading.Event):
    """An event that, when it is set, also ends the wait for a signal."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._signal: Signal | None = None

    def set(self) -> None:
        """Set it, and end the wait going on."""
        super().set()
        with self._guard:
            if self._signal is not None:
                self._signal.interrupt()

    @contextmanager
    def ends(self, signal: Signal) -> Iterator[None]:
        """For the length of the block, end the waits for this signal; one thread at a time."""
        with self._guard:
            self._signal = signal
        try:
            yield
        finally:
            # From here on another signal may have the listener.
            with self._guard:
                self._signal = None


class Signals:
    """The listeners of one broker.

    Args:
        dsn: of the database.
        listen: false for poolers that share sessions.
    """

    def __init__(self, dsn: str, *, listen: bool) -> None:
        self._dsn = dsn
        self._listen = listen
        self._closed = False
        begin_in_each_process(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        # With when they came back, as monotonic seconds; the newest is lent first, so spare ones grow old.
        self._idle: list[tuple[float, NotificationListener]] = []
        # Closes those that are idle for too long; there while any are idle.
        self._closer: threading.Thread | None = None
        self._close_now = threading.Event()

    @contextmanager
    def lend(self, topic_id: int) -> Iterator[Signal]:
        """A signal for the length of the block; any release after its beginning wakes it.

        Raises:
            BrokerUnreachable: there is no idle listener, and the server does not answer.
        """
        if not self._listen:
            yield Signal(None, topic_id)
            return
        listener, is_new = self._take()
        try:
            yield Signal(listener, topic_id, is_new=is_new)
        finally:
            self._give_back(listener)

    def close(self) -> None:
        """Close the idle listeners; those in use are closed when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        self._close_now.set()
        for _, listener in idle:
            listener.close()

    def _take(self) -> tuple[NotificationListener, bool]:
        """A listener, and whether it has only just begun to listen."""
        with self._lock:
            if self._idle:
                return self._idle.pop()[1], False
        try:
            return NotificationListener(self._dsn, [CHANNEL], application_name="duewheel consumer"), True
        except psycopg2.OperationalError as error:
            raise BrokerUnreachable(
                f"the database cannot be reached ({said(error)}): check that the server runs, then try again"
            ) from error

    def _give_back(self, listener: NotificationListener) -> None:
        with self._lock:
            keep = not self._closed
            if keep:
                self._idle.append((time.monotonic(), listener))
                if self._closer is None:
                    self._closer = threading.Thread(
                        target=self._close_idle, name="duewheel listeners", daemon=True
                    )
                    self._closer.start()
        if not keep:
            listener.close()

    def _close_idle(self) -> None:
        """Close listeners that have been idle for long, until none is."""
        while not self._close_now.wait(IDLE_SECONDS):
            latest = time.monotonic() - IDLE_SECONDS
            with self._lock:
                old = [listener for since, listener in self._idle if since <= latest]
                self._idle = [(since, listener) for since, listener in self._idle if since > latest]
                none_left = not self._idle
                if none_left:
                    self._closer = None
            for listener in old:
                listener.close()
            if none_left:
                return
