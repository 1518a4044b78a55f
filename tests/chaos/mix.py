"""Mixes: faults one after the other in one run, some with another beside them, on a server with odd settings;
drawn from a seed, and shrunk.

A mix that breaks a promise is played again without one of its parts, without the fault beside one, without
one of its settings, or for half as long, as long as that still breaks one.
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
#: Whose promises are weaker, so that less would be checked; and two that leave others no connection or no
#: prepared transaction.
ALONE = (
    *("failover", "power-lost", "disk-full", "clock-steps", "a-month-later", "no-connections"),
    "notify-queue-full",
)
#: Settings of the server, of which some are drawn. None of them makes a promise weaker.
SETTINGS = (
    ("autovacuum", "off"),
    ("deadlock_timeout", "10ms"),
    ("enable_nestloop", "off"),
    ("fsync", "on"),
    ("max_locks_per_transaction", "64"),
    ("plan_cache_mode", "force_generic_plan"),
    ("random_page_cost", "100"),
    ("shared_buffers", "1MB"),
    ("timezone", "Pacific/Chatham"),
    ("work_mem", "64kB"),
)
_MOST_PARTS = 4
_MOST_SETTINGS = 3
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


@dataclass(frozen=True)
class Mix:
    """A mix.

    Attributes:
        parts: in the order in which they are played.
        settings: of the server, by name; those that a fault asks for come first.
    """

    parts: tuple[Part, ...]
    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return ",".join([*map(str, self.parts), *(f"{name}={value}" for name, value in self.settings)])


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
    return Mix(tuple(parts), tuple(chance.sample(SETTINGS, chance.randint(0, _MOST_SETTINGS))))


def read(text: str) -> Mix:
    """A mix as it is written.

    Example:
        >>> read("two-phase+wheels-killed:2,savepoints:1,fsync=on").parts[0]
        Part(fault='two-phase', seconds=2.0, beside='wheels-killed')
    """
    parts, settings = [], []
    for piece in text.split(","):
        setting, is_one, value = piece.partition("=")
        if is_one:
            settings.append((setting, value))
            continue
        names, _, seconds = piece.partition(":")
        name, _, other = names.partition("+")
        parts.append(Part(name, float(seconds), other or None))
    return Mix(tuple(parts), tuple(settings))


def shorter(mix: Mix) -> Iterator[Mix]:
    """Every mix that is one step shorter."""
    parts, settings = mix.parts, mix.settings
    if len(parts) > 1:
        for number in range(len(parts)):
            yield replace(mix, parts=parts[:number] + parts[number + 1 :])
    for number in range(len(settings)):
        yield replace(mix, settings=settings[:number] + settings[number + 1 :])
    for number, part in enumerate(parts):
        less = []
        if part.beside is not None:
            less.append(replace(part, beside=None))
        if part.seconds / 2 >= _SHORTEST_SECONDS:
            less.append(replace(part, seconds=part.seconds / 2))
        for one in less:
            yield replace(mix, parts=(*parts[:number], one, *parts[number + 1 :]))


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
    faults = [FAULTS[name] for part in mix.parts for name in (part.fault, part.beside) if name is not None]
    settings: dict[str, object] = dict(mix.settings)
    for one in faults:
        settings.update(one.settings)
    return Fault(
        "mix",
        str(mix),
        lambda arena: _happen(arena, mix.parts),
        commits_may_be_lost=any(one.commits_may_be_lost for one in faults),
        leases_may_be_lost=any(one.leases_may_be_lost for one in faults),
        clock_moves=any(one.clock_moves for one in faults),
        needs=tuple(need for one in faults for need in one.needs),
        disk_mib=max((one.disk_mib for one in faults if one.disk_mib is not None), default=None),
        settings=MappingProxyType(settings),
    )


def _happen(arena: Arena, parts: Sequence[Part]) -> str:
    done = []
    for part in parts:
        stage = replace(arena, seconds=part.seconds)
        with beside() as start:
            other = start(partial(FAULTS[part.beside].happen, stage)) if part.beside else None
            done.append(FAULTS[part.fault].happen(stage))
            if other is not None:
                done.append(other.result())
    return "; ".join(done)
