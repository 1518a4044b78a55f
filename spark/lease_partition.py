"""The parts of a read that a driver hands to its tasks, and their sizes.

Spark plans each read in a new Python process. It imports this module, and none that only executors need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyspark.sql.datasource import InputPartition

Range = TypeVar("Range")

DEFAULT_BATCH_BYTES = 4 * 1024 * 1024
"""About how large one Arrow batch becomes; a single message may be larger."""

MESSAGES_PER_PARTITION = 1_000_000
"""A read without a lease cuts each queue into parts of this many messages. A part costs a task, and a read
that ends early begins all of them, as that of ``isEmpty()`` does."""

BYTES_PER_PARTITION = 128 * 1024 * 1024
"""And into parts whose bodies have about this many bytes at most."""

MESSAGES_WORTH_A_PARTITION = 100
"""A partition costs a task, a Python worker and a connection. Fewer messages than this do not justify one,
unless they are large."""


@dataclass(frozen=True)
class LeaseToRead:
    """One lease as an executor needs it.

    Attributes:
        topic_id: the topic it is on. A lease of retries is on the retry topic of its group.
        queue: its queue there.
        n: its number in the queue, for error messages.
        count: how many of its messages had no answer of their own when the read was planned.
        handle: the beginning of its messages' receipt handles: group, topic, queue, number and token.
        topic: name of the topic the messages were sent to.
        answered: the numbers of its messages that are left out.
    """

    topic_id: int
    queue: int
    n: int
    count: int
    handle: str
    topic: str
    answered: tuple[int, ...]


class LeasePartition(InputPartition):
    """The leases that one Spark task reads."""

    def __init__(self, leases: tuple[LeaseToRead, ...]) -> None:
        super().__init__(leases)
        self.leases = leases

    @property
    def count(self) -> int:
        """How many messages the task reads."""
        return sum(lease.count for lease in self.leases)


def cut_into(
    cut: Callable[[int], Sequence[tuple[Range, int]]], least: int, most_messages: int = MESSAGES_PER_PARTITION
) -> list[Range]:
    """Cut messages into ranges of a limited size, or into more ranges if they are too few.

    Args:
        cut: cuts into ranges of at most so many messages, and tells how many each has.
        least: how many ranges are wanted at least; there are never more than messages.
        most_messages: how many messages a range has at most.

    Example:
        >>> halves = lambda size: [(range(at, min(at + size, 10)), size) for at in range(0, 10, size)]
        >>> cut_into(halves, 1)
        [range(0, 10)]
    """
    ranges = cut(most_messages)
    if 0 < len(ranges) < least:
        # Rounded down: a larger share would make fewer ranges.
        ranges = cut(max(1, sum(count for _, count in ranges) // least))
    return [part for part, _ in ranges]
