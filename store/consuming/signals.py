"""Waiting until a topic releases something, without polling.

A tick that releases messages notifies the channel ``duewheel_released`` with its topic's number, followed by
a 1 if the tick is a wheel's. All waiting consumers of one broker share one listener, a connection that sleeps
in the kernel until it is notified. One of the waiting threads, the leader, reads the listener. A release
wakes one consumer of each group, the leader before the one that has waited longest. When the leader leaves to
receive messages, another waiting thread leads. A consumer whose batch was full wakes the next one. So a
release that is little work for one consumer does not wake them all.

The listener's name at the server says who waits: `WAITING`, the numbers of the first few topics and groups,
and the name of the first consumer. ``duewheel.waiting_consumers`` reads it.

Through a pooler that shares sessions (PgBouncer by transaction) no session can listen: there only time bounds
the waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import psycopg2

from duewheel.store.database import notices
from duewheel.store.database.forking import begin_in_each_process
from duewheel.store.database.listening import GAP, Notification, NotificationListener
from duewheel.store.database.notices import RELEASED_CHANNEL
from duewheel.store.values.errors import BrokerUnreachable, said

#: How the name of a listener begins.
WAITING: Final = "duewheel consumer"
#: So many of a program's groups are named; the server cuts a name at 63 bytes.
_NAMED: Final = 3

#: How long a listener without a reader stays open; it is closed after at most twice as long.
IDLE_SECONDS: Final = 15.0


class Signal:
    """Waits for releases of topics to groups, from its creation on; for one thread.

    Args:
        signals: the object with the listener.
        keys: the numbers of each topic and of its group. Releases of other topics do not wake it. Each
            release wakes one of the signals of a group.
    """

    def __init__(self, signals: Signals, *keys: tuple[int, int]) -> None:
        self.keys = keys
        self._signals = signals
        # Guarded by the lock of the signals: whether there is a release to look for, whether its thread knows
        # that and has not begun to look, whether the wait is to end anyway, and whether the thread sleeps on
        # `wakes`.
        self.is_woken = False
        self.is_to_look = False
        self.is_interrupted = False
        self.sleeps = False
        self.wakes = threading.Event()

    def catch_up(self) -> None:
        """Forget the releases so far, because a receive now sees them."""
        self._signals.catch_up(self)

    def wait(self, seconds: float) -> bool:
        """Sleep until a topic releases something, or may have done so unheard (True), or the time is over.

        Raises:
            BrokerUnreachable: there is no listener yet, and the server does not answer.
        """
        return self._signals.wait(self, seconds)

    def interrupt(self) -> None:
        """End the present wait, or the next one if there is none; from any thread."""
        self._signals.interrupt(self)


class Stop(threading.Event):
    """An event that, when it is set, also ends the wait for a signal."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._signal: Signal | None = None

    def set(self) -> None:
        """Set it, and end the present wait."""
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
            with self._guard:
                self._signal = None


class Signals:
    """The signals of one broker, and their listener.

    Args:
        dsn: of the database.
        listen: false for poolers that share sessions.
    """

    def __init__(self, dsn: str, *, listen: bool) -> None:
        self._dsn = dsn
        self._listen = listen
        self._closed = False
        begin_in_each_process(self, Signals._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        # With the names of their consumers, in the order in which they last began to wait.
        self._lent: dict[Signal, str] = {}
        # When each topic was last heard to release something, and since when every release is heard.
        self._released_at: dict[int, float] = {}
        self._hears_since = float("-inf")
        self._wheel_at: dict[int, float] = {}
        # The thread of the leader alone reads the listener, without the lock; whether it does so now.
        self._leader: Signal | None = None
        self._reads = False
        self._listener: NotificationListener | None = None
        self._read_at = 0.0
        # Closes the listener when no thread has read it for long; exists while it is open.
        self._closer: threading.Thread | None = None
        self._close_now = threading.Event()

    @contextmanager
    def lend(self, name: str, *keys: tuple[int, int], looked_at: float = float("inf")) -> Iterator[Signal]:
        """A signal for the length of the block; each later release wakes it, or another signal of its group.

        Args:
            name: the consumer's.
            keys: the numbers of each topic and of its group.
            looked_at: releases since that instant (monotonic seconds) wake it, too: its last poll began then.
        """
        signal = Signal(self, *keys)
        with self._lock:
            self._lent[signal] = name
            if self._leader is None and self._listener is not None:
                self._tell(self._listener.arrived(), signal)
            heard_at = [self._released_at[topic_id] for topic_id, _ in keys if topic_id in self._released_at]
            signal.is_woken |= max([self._hears_since, *heard_at]) >= looked_at
        try:
            yield signal
        finally:
            with self._lock:
                self._lent.pop(signal, None)
                if signal.is_woken or signal.is_to_look:
                    # Its thread has not looked for the release that woke it.
                    for key in keys:
                        self._wake_one(key)

    def close(self) -> None:
        """Close the listener, and end the waits."""
        with self._lock:
            self._closed = True
            self._wake_all()
            if self._leader is None:
                self._close_listener()
        self._close_now.set()

    def wheel_at(self, topic_id: int) -> float:
        """When a wheel was last heard to release something of a topic, as monotonic seconds."""
        return self._wheel_at.get(topic_id, float("-inf"))

    def catch_up(self, signal: Signal) -> None:
        """Forget the releases that a signal was notified of, or would be."""
        with self._lock:
            if self._leader is None and self._listener is not None:
                self._tell(self._listener.arrived(), signal)
            signal.is_woken = signal.is_to_look = False

    def pass_on(self, topic_id: int, group_id: int) -> None:
        """Wake another waiting consumer of the group, because there may be more than one took."""
        with self._lock:
            self._wake_one((topic_id, group_id))

    def interrupt(self, signal: Signal) -> None:
        """End the wait of a signal, or its next one."""
        with self._lock:
            signal.is_interrupted = True
            self._rouse(signal)

    def wait(self, signal: Signal, seconds: float) -> bool:
        """Sleep until a signal is woken (True), or until it is interrupted or its time is over (False)."""
        until = time.monotonic() + seconds
        with self._lock:
            # After the signals that have waited for longer.
            self._lent[signal] = self._lent.pop(signal)
        try:
            while not self._is_over(signal, until):
                if self._leader is signal:
                    self._read(signal, until)
                else:
                    signal.wakes.wait(until - time.monotonic())
        finally:
            with self._lock:
                self._leave(signal)
                woken = signal.is_woken
                signal.is_to_look |= woken
                signal.is_woken = signal.is_interrupted = False
        return woken

    def _is_over(self, signal: Signal, until: float) -> bool:
        """Whether a wait has ended; if not, the signal reads the listener or sleeps."""
        with self._lock:
            if signal.is_woken or signal.is_interrupted or time.monotonic() >= until:
                return True
            if self._listen and self._leader is None:
                self._leader = signal
            signal.sleeps = self._leader is not signal
            if not signal.sleeps:
                self._reads = True
            signal.wakes.clear()
            return False

    def _leave(self, signal: Signal) -> None:
        """Note that a signal does not wait any more; without a leader, the one that has waited longest
        leads."""
        signal.sleeps = False
        if self._leader is signal:
            self._leader = None
            self._reads = False
        if self._leader is None:
            if self._closed:
                self._close_listener()
            for other in self._lent:
                if other.sleeps:
                    other.wakes.set()
                    return

    def _read(self, leader: Signal, until: float) -> None:
        if self._listener is None:
            self._listener = self._open()
            # Releases before this are unheard.
            heard = [GAP]
        else:
            self._listener.rename(self._listener_name())
            heard = self._listener.wait(until - time.monotonic())
        with self._lock:
            self._reads = False
            self._tell(heard, leader)

    def _tell(self, heard: Iterable[Notification], leader: Signal) -> None:
        """Wake one signal of each group whose topic may have released something, the leader before others."""
        self._read_at = time.monotonic()
        keys: dict[int, set[tuple[int, int]]] = {}
        for signal in self._lent:
            for key in signal.keys:
                keys.setdefault(key[0], set()).add(key)
        for one in set(heard):
            if one == GAP:
                self._hears_since = self._read_at
                self._wake_all()
                continue
            released = notices.released(one.payload)
            if released is None:
                continue
            topic_id, by_wheel = released
            self._released_at[topic_id] = self._read_at
            if by_wheel:
                self._wheel_at[topic_id] = self._read_at
            for key in keys.get(topic_id, ()):
                self._wake_one(key, first=leader)

    def _wake_all(self) -> None:
        for signal in self._lent:
            signal.is_woken = True
            self._rouse(signal)

    def _wake_one(self, key: tuple[int, int], *, first: Signal | None = None) -> None:
        """Wake one waiting signal of a group; if none waits, one that is receiving will look again."""
        signals = [signal for signal in self._lent if key in signal.keys]
        if not signals or any(signal.is_woken for signal in signals):
            return
        signals.sort(key=lambda signal: (signal is not first, not signal.sleeps, signal is not self._leader))
        signals[0].is_woken = True
        self._rouse(signals[0])

    def _rouse(self, signal: Signal) -> None:
        """Let a signal that waits see that it is woken or interrupted."""
        signal.wakes.set()
        if signal is self._leader and self._reads and self._listener is not None:
            self._listener.interrupt()

    def _open(self) -> NotificationListener:
        try:
            listener = NotificationListener(
                self._dsn, [RELEASED_CHANNEL], application_name=self._listener_name()
            )
        except psycopg2.OperationalError as error:
            raise BrokerUnreachable(
                f"the database cannot be reached ({said(error)}): check that the server runs, then try again"
            ) from error
        with self._lock:
            if self._closer is None:
                self._closer = threading.Thread(
                    target=self._close_idle, name="duewheel listener", daemon=True
                )
                self._closer.start()
        return listener

    def _listener_name(self) -> str:
        """The name of the listener. It is sorted by topic and group, so it changes only when they do."""
        with self._lock:
            lent = sorted((key, name) for signal, name in self._lent.items() for key in signal.keys)
        keys = list(dict.fromkeys(key for key, _ in lent))[:_NAMED]
        groups = ",".join(f"{topic_id}.{group_id}" for topic_id, group_id in keys)
        return f"{WAITING} {groups} {lent[0][1]}"

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _close_idle(self) -> None:
        while not self._close_now.wait(IDLE_SECONDS):
            with self._lock:
                if self._leader is None and self._read_at <= time.monotonic() - IDLE_SECONDS:
                    self._close_listener()
                    self._closer = None
                    return
