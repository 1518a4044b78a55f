"""The promises of a FIFO topic to one consumer group, as plain Python.

The model knows nothing of queues, positions or backlogs. It knows which message was sent before which, who
holds what, and what waits until when, and says of every delivery whether it was allowed and of every receive
with room for all whether it brought what it had to bring.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

#: What a group waits after a failure unless told otherwise: R07.
INTERVAL = timedelta(seconds=1)


class State(Enum):
    """The state of a message for the group."""

    OPEN = "open"
    """Not seen, or waiting for its turn or for a retry."""
    HELD = "held"
    DONE = "done"
    DEAD = "dead"


@dataclass(eq=False)
class Message:
    """A message that was committed."""

    identity: str
    message_group: str
    deliver_at: datetime
    sent: int
    """When the transaction sent it, in steps."""
    committed: int
    place: int
    """Its place in its transaction."""
    state: State = State.OPEN
    attempt: int = 1
    deliveries: int = 0
    due_at: datetime | None = None
    #: When the end of its lease was seen: a clock that is set back behind that need not bring it yet.
    ended_at: datetime | None = None

    def is_before(self, other: Message) -> bool:
        """Whether it was sent before another one of its message group: committed before that was sent."""
        if self.committed == other.committed:
            return (self.sent, self.place) < (other.sent, other.place)
        return self.committed < other.sent


@dataclass(eq=False)
class Lease:
    """A hold on messages, in their order."""

    ends_at: datetime
    messages: list[Message]
    final: bool = False
    answers: dict[str, str] = field(default_factory=dict)
    """What was said of each message: acked, failed or returned."""
    last_said: str | None = None
    """The last answer of all."""

    def unanswered(self) -> list[Message]:
        """The messages that have no answer yet."""
        return [] if self.final else [m for m in self.messages if m.identity not in self.answers]

    def is_live(self, now: datetime) -> bool:
        """Whether an answer counts at this instant."""
        return not self.final and self.ends_at > now

    def takes(self, named: Collection[str], said: str | None, now: datetime) -> bool:
        """Whether an answer to these counts, or repeats what was said; None repeats nothing."""
        others = {self.answers[identity] for identity in named if identity in self.answers} - {said}
        agrees = len(named) == len(self.messages) or not others
        if not self.final and not self.unanswered():
            return self.last_said == said and agrees
        return self.is_live(now) and agrees


@dataclass
class Subscription:
    """One group on one FIFO topic."""

    max_retries: int
    messages: list[Message] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    is_paused: bool = False

    def of_group(self, message_group: str) -> list[Message]:
        """All messages of a message group."""
        return [m for m in self.messages if m.message_group == message_group]

    def holders(self, message_group: str) -> list[Lease]:
        """The leases with unanswered messages of a message group."""
        return [
            lease
            for lease in self.leases
            if any(message.message_group == message_group for message in lease.unanswered())
        ]

    def take(self, messages: list[Message], attempts: list[int], ends_at: datetime, now: datetime) -> Lease:
        """Check a delivery and note who holds it."""
        assert not self.is_paused, f"{messages} came to a group that is paused"
        for message, attempt in zip(messages, attempts, strict=True):
            assert message.state is State.OPEN, f"{message} was delivered again"
            assert attempt == message.attempt, f"{message} came as attempt {attempt}"
            for other in self.of_group(message.message_group):
                if other.is_before(message) or not message.deliveries:
                    assert other.due_at is None or other.due_at <= now, f"{message} came while {other} waits"
            assert not self.holders(message.message_group), f"{message} has two holders"
        ahead: set[Message] = set()
        for message in messages:
            for other in self.of_group(message.message_group):
                if other.state is State.OPEN and other.is_before(message):
                    assert other in ahead, f"{message} came before {other}"
            ahead.add(message)
        for message in messages:
            message.state = State.HELD
            message.deliveries += 1
            message.due_at = None
        lease = Lease(ends_at, messages)
        self.leases.append(lease)
        return lease

    def obtainable(self, now: datetime) -> list[Message]:
        """The messages that a receive with room for everything must bring."""
        found: list[Message] = []
        if self.is_paused:
            return found
        for message_group in {message.message_group for message in self.messages}:
            if self.holders(message_group):
                continue
            members = [m for m in self.of_group(message_group) if m.state is State.OPEN]
            if all(at is None or at <= now for m in members for at in (m.due_at, m.ended_at)):
                found += [m for m in members if m.deliver_at <= now]
        return found

    def ack(self, lease: Lease, messages: Iterable[Message]) -> None:
        """The work on these was done."""
        for message in messages:
            message.state = State.DONE
            lease.answers[message.identity] = "acked"
        lease.last_said = "acked"

    def fail(self, lease: Lease, messages: list[Message], due_at: datetime | None) -> None:
        """These failed, or for None are given back; what is behind them in the lease goes back too."""
        touched: set[str] = set()
        said = lease.last_said = "returned" if due_at is None else "failed"
        for message in lease.unanswered():
            if message in messages:
                lease.answers[message.identity] = said
                if due_at is None:
                    message.state = State.OPEN
                elif message.attempt > self.max_retries:
                    message.state = State.DEAD
                else:
                    message.attempt += 1
                    message.state = State.OPEN
                    message.due_at = None if message.message_group in touched else due_at
                    touched.add(message.message_group)
            elif any(
                m.message_group == message.message_group
                and lease.messages.index(m) < lease.messages.index(message)
                for m in messages
            ):
                message.state = State.OPEN
                lease.answers[message.identity] = "returned"

    def expire(self, lease: Lease, now: datetime) -> None:
        """The lease ended: all its messages failed, and are due at once."""
        for message in lease.unanswered():
            if message.attempt > self.max_retries:
                message.state = State.DEAD
            else:
                message.attempt += 1
                message.state = State.OPEN
                message.ended_at = now
        lease.final = True
