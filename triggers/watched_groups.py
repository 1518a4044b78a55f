"""The state that the triggers of this process share: the groups that they watch, and the number of rings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from duewheel.triggers.polling import Watched

if TYPE_CHECKING:
    from duewheel.store import Doorbell


class WatchedGroups:
    """The groups that the triggers of this process watch, by connection.

    Only touched from the event loop's thread, so it needs no lock.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[Watched, Counter[str]]] = {}
        self._silent: dict[str, Collection[Watched]] = {}

    @contextmanager
    def watching(self, conn_id: str, group: Watched, watcher: str = "a trigger") -> Iterator[None]:
        """Count ``group`` as watched until the block ends, by the trigger that the log calls ``watcher``."""
        groups = self._groups.setdefault(conn_id, {})
        watchers = groups.setdefault(group, Counter())
        watchers[watcher] += 1
        try:
            yield
        finally:
            watchers[watcher] -= 1
            if watchers[watcher] == 0:
                del watchers[watcher]
            if not watchers:
                groups.pop(group, None)

    def over(self, conn_id: str) -> frozenset[Watched]:
        """Return the groups that are watched over this connection."""
        return frozenset(self._groups.get(conn_id, ()))

    def watchers(self, conn_id: str, group: Watched) -> str:
        """The names of the triggers that watch a group, for the log. May be called from any thread."""
        # Copied in one step, because the event loop's thread may change it at any time.
        names = list(self._groups.get(conn_id, {}).get(group, ()))
        return ", ".join(sorted(names)) or "no trigger any more"

    def note_silent(self, conn_id: str, groups: Collection[Watched]) -> None:
        """Note the groups of a connection whose doorbells cannot ring now."""
        self._silent[conn_id] = groups

    def failing(self, conn_id: str) -> Counter[tuple[str, str]]:
        """How many triggers of each topic and group cannot ring now; 0 if all can."""
        silent = self._silent.get(conn_id, ())
        failing: Counter[tuple[str, str]] = Counter()
        for group, watchers in self._groups.get(conn_id, {}).items():
            failing[group.topic, group.group] += watchers.total() if group in silent else 0
        return failing


WATCHED = WatchedGroups()


class Rings:
    """The rings of doorbells in this process since the last report, by connection, topic and group.

    Counted on the event loop and sent from a thread, because the first metric of a process may look up a
    host's name, which blocks.
    """

    def __init__(self) -> None:
        self._rings: dict[str, Counter[tuple[str, str]]] = {}

    def rang(self, conn_id: str, topic: str, group: str) -> None:
        """Count a ring."""
        self._rings.setdefault(conn_id, Counter())[topic, group] += 1

    def taken(self, conn_id: str) -> Counter[tuple[str, str]]:
        """Return the counts of a connection and set them back to zero."""
        return self._rings.pop(conn_id, Counter())


RINGS = Rings()


def ring_payload(doorbell: Doorbell) -> dict[str, Any]:
    """Return an event's payload for a group, in types that JSON knows.

    Example: ``{"topic": "order-timeout", "group": "canceller", "ready": 3,
    "oldest_deliver_at": "2026-01-05T09:30:00+00:00"}``
    """
    oldest = doorbell.oldest_deliver_at
    return {
        "topic": doorbell.topic,
        "group": doorbell.group,
        "ready": doorbell.ready,
        "oldest_deliver_at": None if oldest is None else oldest.isoformat(),
    }
