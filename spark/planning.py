"""Planning a read: its connection to the broker, and the number of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeVar

from duewheel.spark.lease_partition import MESSAGES_PER_PARTITION
from duewheel.store.database import schema
from duewheel.store.database.connections import Database

if TYPE_CHECKING:
    from duewheel.store.database.connections import DriverConnection

Range = TypeVar("Range")


@contextmanager
def planning(dsn: str) -> Iterator[DriverConnection]:
    """A separate autocommit connection, checked like a broker's.

    Importing a whole ``Broker`` would take a new process longer than the planning itself.
    """
    with closing(Database(dsn, on_first_connection=schema.verify)) as database, database.lend() as connection:
        yield connection


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
