"""A fault: what it is called, what it does to an arena, and what it changes of the terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tests.chaos.arena import Arena


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: as ``CHAOS`` names it.
        title: as the table names it.
        happen: does it until the arena's time is over, and returns what was done, in numbers.
        commits_may_be_lost, leases_may_be_lost: see :class:`~tests.chaos.checker.Terms`.
        clock_moves: whether it moves the server's clock.
        needs: packages of Debian, as ``.ci/system_packages`` names them, or ``root``.
        disk_mib: the size of a file system of the cluster's own; None is the machine's.
        full_seconds: from so many seconds on it is played in its full size; None of one that has none.
        settings: of the server.
    """

    name: str
    title: str
    happen: Callable[[Arena], str]
    commits_may_be_lost: bool = False
    leases_may_be_lost: bool = False
    clock_moves: bool = False
    needs: tuple[str, ...] = ()
    disk_mib: int | None = None
    full_seconds: float | None = None
    settings: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


#: By name, in the order in which they are played.
FAULTS: dict[str, Fault] = {}


def fault(
    name: str,
    title: str,
    *,
    commits_may_be_lost: bool = False,
    leases_may_be_lost: bool = False,
    clock_moves: bool = False,
    needs: tuple[str, ...] = (),
    disk_mib: int | None = None,
    full_seconds: float | None = None,
    **settings: object,
) -> Callable[[Callable[[Arena], str]], Callable[[Arena], str]]:
    """Makes a function a fault; the arguments are the attributes of :class:`Fault`."""

    def enter(happen: Callable[[Arena], str]) -> Callable[[Arena], str]:
        FAULTS[name] = Fault(
            *(name, title, happen, commits_may_be_lost, leases_may_be_lost, clock_moves, needs, disk_mib),
            full_seconds=full_seconds,
            settings=MappingProxyType(settings),
        )
        return happen

    return enter
