"""The timing wheel: which timer is due next.

Pure by design, without a clock, a lock, a thread or I/O. The present instant is an argument, so a test plays
a day in microseconds, forwards and backwards.
`duewheel.store.wheel.runner` gives it a clock and a database.
"""

from __future__ import annotations

from collections.abc import Hashable
from operator import attrgetter
from typing import Final, Generic, NamedTuple, TypeVar

PayloadT = TypeVar("PayloadT", bound=Hashable)

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
OVERFLOW_SLOTS: Final = 1_000


class Timer(NamedTuple, Generic[PayloadT]):
    """A timer that has fired: its payload, and the instant it was set to (Unix milliseconds)."""

    due_at_ms: int
    payload: PayloadT


class TimingWheel(Generic[PayloadT]):
    """A hierarchical timing wheel that is never early.

    Definition
        The wheel has a position: the instant that it was last advanced to. Read that instant like an odometer
        with the wheels hour, minute, second and millisecond. A timer is on the level of the *highest* wheel
        in which its instant differs from the position, in the slot of that wheel's figure. So the
        level ``ms`` holds the timers due within the current second, ``s`` those due later in the current
        minute, ``min`` later in the hour, ``h`` later in the day. Timers due on a later day are on an
        overflow level of 1 000 days, which is made when it is first needed, and if that is not enough on one
        of 1 000 times as many.

        It follows that every timer of a level is due before every timer of the levels above it, that all
        occupied slots are ahead, and that the first occupied slot of the lowest occupied level holds the
        timers due next. When the position reaches the beginning of a slot above ``ms``, the timers in it fall
        to the levels below, because they now differ in a lower figure only.

    An example, times of one day, written slot:timers
        ==================  ========  ======  ======  =====  ==========
        position            ms        s       min     h      has fired
        ==================  ========  ======  ======  =====  ==========
        12:00:58.000        250:A     59:B    7:C     15:D
        12:00:58.249        250:A     59:B    7:C     15:D
        12:00:58.250                  59:B    7:C     15:D   A
        12:00:59.000        100:B             7:C     15:D
        12:07:29.999                  30:C            15:D   B
        12:07:30.500                                  15:D   C
        15:00:00.000                                         D
        ==================  ========  ======  ======  =====  ==========
        with A due at 12:00:58.250, B at 12:00:59.100, C at 12:07:30.500 and D at 15:00:00.000.

    Never early
        Timers fire at their instant, to the millisecond, in the order of their instants; timers of the same
        instant fire in the order in which they were added.

    Cost, with n timers in the wheel
        ========================  ==========================================================================
        `add`, `cancel`           O(1): a hash entry and a bit
        `advance`                 O(1) for each timer that fires and each slot that falls, whatever the time
                                  between: empty slots are skipped with a bitmap per level, so a jump over
                                  days costs as much as its timers; a timer falls at most once per level
        `next_due_at_ms`          O(1) when something is due within the current second, otherwise a look at
                                  the timers of one slot
        the clock stepping back   O(n), and only when a timer is set for an instant between now and the
                                  position
        memory                    O(n), and a bit per slot up to the highest occupied one
        ========================  ==========================================================================

    The waste it accepts
        A timer 2 ms ahead may be on an overflow level, when those 2 ms contain midnight, and is placed twice
        for them. A timer that is cancelled early has cost only its first placing. Figures are those of UTC
        days counted from the Unix epoch; nothing depends on a calendar.

    Clocks that jump
        `advance` may be given any instant. Forward: every timer due on the way fires, in order. Back: a timer
        that has fired does not fire again, and all others fire at their instants, not sooner.

    A payload has one timer. Adding it again for an earlier instant replaces the timer; for the same or a
    later instant nothing changes (`cancel` first to postpone).

    Args:
        now_ms: the first position, Unix milliseconds from 0.

    Raises:
        ValueError: it is below 0.

    >>> wheel = TimingWheel[str](now_ms=0)
    >>> wheel.add("cancel unpaid order", due_at_ms=90_061_001)
    True
    >>> wheel.next_due_at_ms()
    90061001
    >>> wheel.advance(90_061_000)
    []
    >>> wheel.advance(90_061_001)
    [Timer(due_at_ms=90061001, payload='cancel unpaid order')]
    """

    __slots__ = ("_due_at_ms", "_late", "_levels", "_stands_at_ms")

    def __init__(self, now_ms: int) -> None:
        _refuse_negative("now_ms", now_ms)
        self._stands_at_ms = now_ms
        self._due_at_ms: dict[PayloadT, int] = {}
        self._late: dict[PayloadT, int] = {}
        self._levels: list[_Level[PayloadT]] = [
            _Level("ms", 1, SECOND_MS),
            _Level("s", SECOND_MS, MINUTE_MS),
            _Level("min", MINUTE_MS, HOUR_MS),
            _Level("h", HOUR_MS, DAY_MS),
        ]

    def __len__(self) -> int:
        return len(self._due_at_ms)

    def __contains__(self, payload: object) -> bool:
        return payload in self._due_at_ms

    def __repr__(self) -> str:
        """The position and the number of timers in each occupied slot."""
        levels = "".join(f", {level.name}={level.counts()}" for level in self._levels if level.slots)
        late = f", late={len(self._late)}" if self._late else ""
        return f"TimingWheel(stands_at_ms={self._stands_at_ms}{late}{levels})"

    def add(self, payload: PayloadT, due_at_ms: int) -> bool:
        """Set a timer for `payload` at `due_at_ms` (Unix milliseconds); an instant that has passed fires at
        the next `advance`.

        Returns:
            Whether this set the timer: False if the payload already has a timer that is due no later.

        Raises:
            ValueError: an instant before 1970.
        """
        _refuse_negative("due_at_ms", due_at_ms)
        known_ms = self._due_at_ms.get(payload)
        if known_ms is not None:
            if known_ms <= due_at_ms:
                return False
            self.cancel(payload)
        self._due_at_ms[payload] = due_at_ms
        self._place(payload, due_at_ms)
        return True

    def cancel(self, payload: PayloadT) -> bool:
        """Remove the timer of `payload`; returns whether there was one."""
        due_at_ms = self._due_at_ms.pop(payload, None)
        if due_at_ms is None:
            return False
        if self._late.pop(payload, None) is None:
            self._level_of(due_at_ms).remove(payload, due_at_ms)
        return True

    def advance(self, now_ms: int) -> list[Timer[PayloadT]]:
        """Move the wheel to `now_ms` (Unix milliseconds) and take out the timers due by then, in order."""
        _refuse_negative("now_ms", now_ms)
        behind = now_ms < self._stands_at_ms
        if behind and any(due_at_ms > now_ms for due_at_ms in self._late.values()):
            self._rewind(now_ms)
        fired = self._take_late()
        while (first := self._first_level()) is not None:
            starts_at_ms = first.first_slot_starts_at_ms(self._stands_at_ms)
            if starts_at_ms > now_ms:
                break
            self._stands_at_ms = starts_at_ms
            for payload, due_at_ms in first.take_first_slot().items():
                self._place(payload, due_at_ms)
            fired += self._take_late()
        self._stands_at_ms = max(self._stands_at_ms, now_ms)
        for timer in fired:
            del self._due_at_ms[timer.payload]
        return fired

    def next_due_at_ms(self) -> int | None:
        """The earliest instant at which `advance` returns a timer (Unix milliseconds), or None without a
        timer."""
        soonest = self._late
        if not soonest:
            first = self._first_level()
            if first is None:
                return None
            soonest = first.first_slot()
        return min(soonest.values())

    def _place(self, payload: PayloadT, due_at_ms: int) -> None:
        """Put a timer on its level, given the position."""
        if due_at_ms <= self._stands_at_ms:
            self._late[payload] = due_at_ms
        else:
            self._level_of(due_at_ms).put(payload, due_at_ms)

    def _level_of(self, due_at_ms: int) -> _Level[PayloadT]:
        """The lowest level whose whole present turn contains the instant; made when it is missing."""
        for level in self._levels:
            if due_at_ms // level.turn_ms == self._stands_at_ms // level.turn_ms:
                return level
        while True:
            tick_ms = self._levels[-1].turn_ms
            level = _Level(f"overflow_{tick_ms // DAY_MS}d", tick_ms, tick_ms * OVERFLOW_SLOTS)
            self._levels.append(level)
            if due_at_ms // level.turn_ms == self._stands_at_ms // level.turn_ms:
                return level

    def _first_level(self) -> _Level[PayloadT] | None:
        for level in self._levels:
            if level.occupied:
                return level
        return None

    def _take_late(self) -> list[Timer[PayloadT]]:
        """Take out the timers due at the position; a stable sort, so equal instants keep their order."""
        fired = sorted(
            (Timer(due, payload) for payload, due in self._late.items()), key=attrgetter("due_at_ms")
        )
        self._late.clear()
        return fired

    def _rewind(self, now_ms: int) -> None:
        """Move the position back; every timer is placed again."""
        self._stands_at_ms = now_ms
        self._late.clear()
        for level in self._levels:
            level.clear()
        for payload, due_at_ms in self._due_at_ms.items():
            self._place(payload, due_at_ms)


class _Level(Generic[PayloadT]):
    """The slots of one turn, of which only occupied ones exist, and a bitmap of the occupied ones."""

    __slots__ = ("name", "occupied", "slots", "tick_ms", "turn_ms")

    def __init__(self, name: str, tick_ms: int, turn_ms: int) -> None:
        self.name = name
        self.tick_ms = tick_ms
        self.turn_ms = turn_ms
        self.slots: dict[int, dict[PayloadT, int]] = {}
        self.occupied = 0

    def put(self, payload: PayloadT, due_at_ms: int) -> None:
        index = due_at_ms % self.turn_ms // self.tick_ms
        self.slots.setdefault(index, {})[payload] = due_at_ms
        self.occupied |= 1 << index

    def remove(self, payload: PayloadT, due_at_ms: int) -> None:
        index = due_at_ms % self.turn_ms // self.tick_ms
        slot = self.slots[index]
        del slot[payload]
        if not slot:
            self._free(index)

    def first_slot(self) -> dict[PayloadT, int]:
        return self.slots[self._first_index()]

    def first_slot_starts_at_ms(self, stands_at_ms: int) -> int:
        return stands_at_ms - stands_at_ms % self.turn_ms + self._first_index() * self.tick_ms

    def take_first_slot(self) -> dict[PayloadT, int]:
        return self._free(self._first_index())

    def counts(self) -> dict[int, int]:
        return {index: len(self.slots[index]) for index in sorted(self.slots)}

    def clear(self) -> None:
        self.slots.clear()
        self.occupied = 0

    def _first_index(self) -> int:
        return (self.occupied & -self.occupied).bit_length() - 1

    def _free(self, index: int) -> dict[PayloadT, int]:
        self.occupied &= ~(1 << index)
        return self.slots.pop(index)


def _refuse_negative(name: str, instant_ms: int) -> None:
    if instant_ms < 0:
        raise ValueError(f"{name} is {instant_ms}; an instant is milliseconds since 1970-01-01 UTC, from 0")
