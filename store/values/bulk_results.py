"""The results of calls about many messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BulkRecall:
    """The result of a bulk recall.

    Attributes:
        matched: the messages that the criteria chose and that had not been recalled before.
        recalled: how many of them were recalled and are never delivered; 0 in a dry run.
        already_released: how many of them were released before the call or during it: too late to recall.
    """

    matched: int
    recalled: int
    already_released: int


@dataclass(frozen=True, slots=True)
class Redriven:
    """The result of a redrive.

    Attributes:
        matched: the dead letters that the criteria chose and that had not been sent again.
        redriven: how many of them this call sent again; 0 in a dry run, fewer than ``matched`` if another
            redrive ran at the same time.
    """

    matched: int
    redriven: int


@dataclass(frozen=True, slots=True)
class Discarded:
    """The result of discarding dead letters.

    Attributes:
        matched: the dead letters that the criteria chose, and that had not been sent again or discarded.
        discarded: how many of them this call discarded; 0 in a dry run, fewer than ``matched`` if another
            call took some at the same time.
    """

    matched: int
    discarded: int


@dataclass(frozen=True, slots=True)
class Rewound:
    """The result of a rewind.

    Attributes:
        leases_ended: leases that were not answered; a later answer is refused.
        messages_returned: messages of these leases that were released before the instant: they are ready
            again.
        retries_recalled: retries of messages that the new position delivers again.
    """

    leases_ended: int
    messages_returned: int
    retries_recalled: int


@dataclass(frozen=True, slots=True)
class SubscriptionChange:
    """The result of a change of what a group receives of a topic.

    Attributes:
        old_tags, old_filter: what was set before; None for no filter.
        missed: at least so many messages that the group has passed are chosen only now: a rewind delivers
            them. Counted among the newest 10 000 of each queue. A consumer that receives at the same time
            passes more.
        passed_over: unread messages that were chosen before and are not now. Counted among the next 10 000
            of each queue.
    """

    old_tags: str
    old_filter: str | None
    missed: int
    passed_over: int
