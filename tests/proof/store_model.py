"""The promises of the store, as plain Python: lists, sets and an instant.

The model knows nothing of ticks' snapshots, queues or leases as ranges. It says which messages a group may be
given at an instant, what every call has to answer, and what a message's state is. Instants are aware
datetimes; a topic's ``released_to`` is the newest instant up to which it has been released.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

MICROSECOND = timedelta(microseconds=1)
HOUR = timedelta(hours=1)
#: How wide a slot is.
DAY = timedelta(days=1)

#: The retry intervals of a group nobody has set: R05.
RETRY_INTERVALS = tuple(
    timedelta(seconds=seconds)
    for seconds in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)


def slot_of(instant: datetime) -> datetime:
    """The start of the slot an instant lies in."""
    return instant.replace(hour=0, minute=0, second=0, microsecond=0)


class State(Enum):
    """The state of a message for one group."""

    WAITING = "waiting"
    INFLIGHT = "inflight"
    RETRY = "retry"
    ACKED = "acked"
    DEAD = "dead"


@dataclass(eq=False)
class Lease:
    """One group's hold on some messages."""

    ends_at: datetime
    holds: list[str] = field(default_factory=list)
    #: What was said of each message: acked, failed or returned.
    answers: dict[str, str] = field(default_factory=dict)
    final: str | None = None

    def is_live(self, now: datetime) -> bool:
        """Whether an answer at this instant counts."""
        return self.final is None and self.ends_at > now

    def unanswered(self) -> list[str]:
        """The messages without an answer."""
        return [identity for identity in self.holds if identity not in self.answers]

    def takes(self, named: list[str], said: str | None, now: datetime) -> bool:
        """Whether an answer to these counts, or repeats what was said; None repeats nothing."""
        whole = len(named) == len(self.holds)
        others = {self.answers[identity] for identity in named if identity in self.answers} - {said}
        if self.final is not None:
            return self.final == said and (whole or not others)
        return self.is_live(now) and (whole or not others)


@dataclass(eq=False)
class Copy:
    """A message as one group has it."""

    state: State = State.WAITING
    attempt: int = 1
    deliveries: int = 0
    deaths: int = 0
    #: It was acked, and its work left undone on purpose.
    skipped: bool = False
    due_at: datetime | None = None
    #: Its retry was released, and stays so if the clock steps back.
    is_released: bool = False
    lease: Lease | None = None
    slots: set[datetime] = field(default_factory=set)


@dataclass(eq=False)
class Message:
    """A message that was accepted."""

    identity: str
    deliver_at: datetime
    born_at: datetime
    body: bytes
    key: str | None
    tag: str | None
    committed: bool = True
    #: Also a message that was moved away from here, or replaced.
    recalled: bool = False
    #: The same message at its next instant.
    moved_to: Message | None = None
    #: The id of what was sent in its stead.
    replaced_by: str | None = None
    released: bool = False
    dropped: bool = False
    straggler: bool = False
    #: It was sent behind the newest tick, and waits for its instant all the same.
    held_back: bool = False
    copies: dict[str, Copy] = field(default_factory=dict)

    @property
    def queue(self) -> int:
        """Its queue, which its id names."""
        return int(self.identity[8:12], 16)

    @property
    def present(self) -> Message:
        """The message where it is now; every id that it has had stands for this one."""
        return self if self.moved_to is None else self.moved_to.present

    @property
    def seq(self) -> int:
        """Its number, which orders the messages of one instant."""
        return int(self.identity[28:], 16)


@dataclass
class Topic:
    """A topic and all that was ever accepted there, in the order of sending."""

    name: str
    queues: int
    max_delay: timedelta
    retention: timedelta
    rejects: bool
    max_retries: int
    groups: dict[str, frozenset[str] | None]
    messages: dict[str, Message] = field(default_factory=dict)
    idempotency: dict[str, tuple[Message, datetime]] = field(default_factory=dict)
    released_to: datetime | None = None
    #: Since when each group that is paused gets nothing.
    paused_at: dict[str, datetime] = field(default_factory=dict)

    def is_out_of_range(self, asked: datetime, now: datetime) -> bool:
        """Whether the instant is past the topic's maximum delay (D04)."""
        return asked > now + self.max_delay

    def delivery(self, asked: datetime, now: datetime) -> datetime:
        """The instant at which a message is delivered that is sent now."""
        return max(now if self.is_out_of_range(asked, now) else asked, now)

    def accept(self, message: Message) -> None:
        """Take a message up; every group has a copy of it."""
        assert message.identity not in self.messages, "two messages have one id"
        message.copies = {group: Copy() for group in self.groups}
        message.held_back = self.released_to is not None and message.deliver_at <= self.released_to
        self.messages[message.identity] = message

    def forget_uncommitted(self) -> None:
        """The open transaction was rolled back: what it sent does not exist."""
        self.messages = {i: m for i, m in self.messages.items() if m.committed}

    def is_waiting(self, message: Message) -> bool:
        """Whether a recall still helps."""
        in_time = (
            self.released_to is None
            or self.released_to < message.deliver_at
            or (message.held_back and not message.released)
        )
        return message.committed and not message.recalled and not message.dropped and in_time

    def of_key(self, key: str) -> list[Message]:
        """The messages of a key that can be seen."""
        found = [m for m in self.messages.values() if m.key == key and m.committed and not m.dropped]
        return sorted(found, key=lambda m: (m.deliver_at, m.seq))

    def tick(self, now: datetime) -> bool:
        """Release what is due; true if something was."""
        seen = [m for m in self.messages.values() if m.committed and not m.dropped and not m.released]
        due = [m for m in seen if m.deliver_at <= now]
        if not due:
            return False
        stragglers = [m for m in due if self.released_to is not None and m.deliver_at <= self.released_to]
        self.released_to = now if self.released_to is None else max(now, self.released_to)
        for message in stragglers:
            message.straggler = True
        for message in due:
            message.released = True
        return True

    def matches(self, group: str, message: Message) -> bool:
        """Whether a group's tag expression lets a message through."""
        tags = self.groups[group]
        return tags is None or message.tag in tags

    def tick_retries(self, group: str, now: datetime) -> None:
        """Release the retries of a group that are due."""
        for message in self.messages.values():
            copy = message.copies[group]
            if copy.state is State.RETRY:
                assert copy.due_at is not None
                copy.is_released |= copy.due_at <= now

    def ready(self, group: str, now: datetime) -> list[Message]:
        """What a group may be given: new ones, retries that are due or released, and what a lease lost."""
        if group in self.paused_at:
            return []
        return [
            message
            for message in self.messages.values()
            if message.released and not message.recalled and self.matches(group, message)
            if self.is_ready(message.copies[group], now)
        ]

    def is_ready(self, copy: Copy, now: datetime) -> bool:
        """Whether a released message may be given; one whose last attempt was lost is a dead letter."""
        if copy.state is State.WAITING:
            return True
        if copy.state is State.RETRY:
            assert copy.due_at is not None
            return copy.is_released or copy.due_at <= now
        has_ended = copy.lease is not None and copy.lease.ends_at <= now
        return copy.state is State.INFLIGHT and has_ended and copy.attempt <= self.max_retries

    def is_finished(self, group: str, message: Message) -> bool:
        """Whether a group never gets the message again."""
        return (
            message.recalled
            or not self.matches(group, message)
            or message.copies[group].state in (State.ACKED, State.DEAD)
        )

    def next_instants(self, now: datetime) -> Iterable[datetime]:
        """The instants ahead at which something changes."""
        for message in self.messages.values():
            if message.deliver_at > now and not message.dropped:
                yield message.deliver_at
            for copy in message.copies.values():
                if copy.state is State.RETRY and copy.due_at is not None and copy.due_at > now:
                    yield copy.due_at
                if copy.lease is not None and copy.lease.ends_at > now:
                    yield copy.lease.ends_at


def give_back(copies: Sequence[Copy], now: datetime, floor: datetime) -> None:
    """Let copies come again at once, as the same attempt."""
    for copy in copies:
        copy.lease = None
        copy.state, copy.is_released = State.RETRY, False
        copy.due_at = max(floor, now)
        copy.slots.add(slot_of(copy.due_at))


def fail(
    copies: Sequence[Copy], max_retries: int, due_at: datetime | None, now: datetime, floor: datetime
) -> None:
    """Send copies on: to their next attempt at ``due_at``, or after the group's interval; or to the dead."""
    for copy in copies:
        copy.lease = None
        if copy.attempt > max_retries:
            copy.state = State.DEAD
            copy.deaths += 1
            continue
        interval = RETRY_INTERVALS[min(copy.attempt, len(RETRY_INTERVALS)) - 1]
        copy.state, copy.is_released = State.RETRY, False
        copy.due_at = max(floor, now + interval if due_at is None else due_at)
        copy.slots.add(slot_of(copy.due_at))
        copy.attempt += 1
