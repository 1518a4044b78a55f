"""What a child of ``fork`` must not inherit half done: locks, pools, connections and modules.

A child inherits the memory of its parent and only the thread that forked. A lock that another thread held is
then held for ever. A connection leads to a session of the parent. So the child makes its own.

Two kinds of locks cannot be replaced in the child: libpq and its Kerberos library hold some while they begin
to connect, and Python holds one for each module while it is loaded. So a fork waits for the threads that
connect, for a second at most, and threads that want to connect wait for the fork just as long. In a process
that has a broker, the fork first loads those modules of the store that are loaded late.
"""

from __future__ import annotations

# Its own handlers have to be registered before a fork begins.
import concurrent.futures.thread  # noqa: F401
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

#: A connect that takes longer waits for a server's answer and holds no lock of the libraries.
LONGEST_WAIT_SECONDS = 1.0
#: Modules of ``duewheel.store`` that functions import, without those of an upgrade and the embedded server.
LATE = (
    *("consuming.consumer", "consuming.filtering", "consuming.push_consumer", "consuming.subscription"),
    "database.schema_state",
    *("operations.copying", "operations.dead_letters", "operations.occurrences", "operations.overview"),
    "operations.statistics",
    *(
        "operations.recalling",
        "values.bulk_results",
        "values.cron",
        "values.dead_letters",
        "values.doorbells",
    ),
    *("values.groups", "values.retry_policy", "values.schedules", "values.settings"),
    *("values.stored_messages", "values.topics", "wheel.runner", "wheel.upkeep"),
)

#: By the object, which it does not keep alive. A `WeakMethod` writes a traceback if an object outlives it, as
#: at the end of the interpreter.
_begins: WeakKeyDictionary[object, Callable[[Any], None]] = WeakKeyDictionary()


class _Gate:
    """Keeps forks and connects apart, for a second at most.

    No lock is held during a fork: the fork waits for other modules' handlers, such as that of logging, whose
    lock may belong to a thread that connects.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start with no thread connecting or forking; a child of fork calls it again."""
        self._changed = threading.Condition()
        self._connecting: set[int] = set()
        self._forks = 0

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """A block that begins to connect when no thread forks, and that a fork waits for."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._forks == 0, LONGEST_WAIT_SECONDS)
            self._connecting.add(me)
        try:
            yield
        finally:
            with self._changed:
                self._connecting.discard(me)
                self._changed.notify_all()

    def close(self) -> None:
        """Keep other threads from beginning to connect, and wait for those that are connecting."""
        me = threading.get_ident()
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: self._connecting <= {me}, LONGEST_WAIT_SECONDS)

    def open(self) -> None:
        """The fork is done."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()


_gate = _Gate()
#: A block that connects: another thread does not fork meanwhile, for a second at most.
no_fork_meanwhile = _gate.connecting


def begin_in_each_process(one: T, begin: Callable[[T], None]) -> None:
    """Call a method now, and first of all in each child of ``fork``, for as long as its object lives.

    Args:
        one: the object, known by its identity.
        begin: its method that sets its locks and pools to new ones. It may not touch the old ones: to close a
            connection would end the parent's session.
    """
    begin(one)
    _begins[one] = begin


def _before() -> None:
    try:
        if _begins:
            for name in LATE:
                import_module(f"duewheel.store.{name}")
    finally:
        _gate.close()


def _in_child() -> None:
    _gate.begin()
    for one, begin in tuple(_begins.items()):
        begin(one)


os.register_at_fork(before=_before, after_in_parent=_gate.open, after_in_child=_in_child)
