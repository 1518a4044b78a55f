"""Mixes: faults one after the other in one run, some with another beside them; drawn from a seed, and shrunk.

A mix that breaks a promise is played again without one of its parts, without the fault beside one, or for
half as long, as long as that still breaks one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from tests.chaos.arena import Arena
from tests.chaos.fault import FAULTS, Fault
from tests.waiting import beside

#: They only start, stop and kill workers, so any other fault may go on meanwhile.
BESIDE = ("wheels-killed", "wheel-stopped", "consumers-killed")
#: Whose promises are weaker, so that less would be checked; and one that leaves little to others.
ALONE = ("failover", "power-lost", "disk-full", "clock-steps", "a-month-later", "no-connections")
_MOST_PARTS = 4
_SHORTEST_SECONDS = 1.0


@dataclass(frozen=True)
class Part:
    """A part of a mix.

    Attributes:
        fault: its name.
        seconds: how long it goes on.
        beside: the name of one that goes on meanwhile.
    """

    fault: str
    seconds: float
    beside: str | None = None

    def __str__(self) -> str:
        more = f"+{self.beside}" if self.beside else ""
        return f"{self.fault}{more}:{self.seconds:g}"


Mix = tuple[Part, ...]


def drawn(seed: int) -> Mix:
    """The mix of a seed.

    Example:
        >>> drawn(1) == drawn(1)
        True
    """
    chance = random.Random(seed)
    faults = [name for name in FAULTS if name not in ALONE]
    parts = []
    for name in chance.sample(faults, chance.randint(2, _MOST_PARTS)):
        others = [other for other in BESIDE if other != name]
        seconds = chance.choice([1.0, 2.0, 4.0])
        parts.append(Part(name, seconds, chance.choice([None, *others])))
    return tuple(parts)


def read(text: str) -> Mix:
    """A mix as it is written.

    Example:
        >>> read("two-phase+wheels-killed:2,savepoints:1")[0]
        Part(fault='two-phase', seconds=2.0, beside='wheels-killed')
    """
    parts = []
    for part in text.split(","):
        names, _, seconds = part.partition(":")
        name, _, other = names.partition("+")
        parts.append(Part(name, float(seconds), other or None))
    return tuple(parts)


def written(mix: Mix) -> str:
    """The mix as :func:`read` takes it."""
    return ",".join(map(str, mix))


def shorter(mix: Mix) -> Iterator[Mix]:
    """Every mix that is one step shorter."""
    if len(mix) > 1:
        for number in range(len(mix)):
            yield mix[:number] + mix[number + 1 :]
    for number, part in enumerate(mix):
        less = []
        if part.beside is not None:
            less.append(replace(part, beside=None))
        if part.seconds / 2 >= _SHORTEST_SECONDS:
            less.append(replace(part, seconds=part.seconds / 2))
        for one in less:
            yield (*mix[:number], one, *mix[number + 1 :])


def shortest(mix: Mix, breaks: Callable[[Mix], bool]) -> Mix:
    """The shortest mix, step by step, that still breaks a promise.

    Args:
        mix: one that does.
        breaks: plays a mix.
    """
    while (less := next((one for one in shorter(mix) if breaks(one)), None)) is not None:
        mix = less
    return mix


def as_fault(mix: Mix) -> Fault:
    """A fault that plays the parts of a mix one after the other."""
    faults = [FAULTS[name] for part in mix for name in (part.fault, part.beside) if name is not None]
    settings: dict[str, object] = {}
    for one in faults:
        settings.update(one.settings)
    return Fault(
        "mix",
        written(mix),
        lambda arena: _happen(arena, mix),
        commits_may_be_lost=any(one.commits_may_be_lost for one in faults),
        leases_may_be_lost=any(one.leases_may_be_lost for one in faults),
        clock_moves=any(one.clock_moves for one in faults),
        needs=tuple(need for one in faults for need in one.needs),
        disk_mib=max((one.disk_mib for one in faults if one.disk_mib is not None), default=None),
        settings=MappingProxyType(settings),
    )


def _happen(arena: Arena, mix: Sequence[Part]) -> str:
    done = []
    for part in mix:
        stage = replace(arena, seconds=part.seconds)
        with beside() as start:
            other = start(partial(FAULTS[part.beside].happen, stage)) if part.beside else None
            done.append(FAULTS[part.fault].happen(stage))
            if other is not None:
                done.append(other.result())
    return "; ".join(done)
