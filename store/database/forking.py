"""Locks and pools that each process has for itself, also a child of ``fork``.

A child inherits the memory of its parent and only the thread that forked. A lock that another thread held is
then held for ever. A connection leads to a session of the parent. So the child makes its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakMethod

_begins: set[WeakMethod[Callable[[], None]]] = set()


def begin_in_each_process(begin: Callable[[], None]) -> None:
    """Call a method now, and in each child of ``fork`` before anything else, for as long as its object lives.

    Args:
        begin: a bound method that sets the object's locks and pools to new ones. It may not touch the old
            ones: to close a connection would end the parent's session.
    """
    begin()
    _begins.add(WeakMethod(begin, _begins.discard))


def _begin_all() -> None:
    for reference in tuple(_begins):
        begin = reference()
        if begin is not None:
            begin()


os.register_at_fork(after_in_child=_begin_all)
