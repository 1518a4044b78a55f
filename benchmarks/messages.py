"""The rows both sides work on: the same bodies and the same due instants, from one seed.

Bodies are 100 random bytes, so that neither side profits from compression. Due instants have milliseconds, as
the interface promises, and are in random order, as an application sends.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

BODY_BYTES = 100


@dataclass(frozen=True)
class Order:
    """One message as an application has it, before a client library has converted it."""

    number: int
    due_at: datetime
    body: bytes
    key: str


def orders(count: int, *, start: datetime, within: timedelta, seed: int = 1) -> list[Order]:
    """`count` messages due at random whole milliseconds in [start, start + within).

    `start` is an aware datetime. The same arguments give the same messages.
    """
    chance = random.Random(seed)
    base = start.replace(microsecond=0)
    milliseconds = int(within.total_seconds() * 1000)
    return [
        Order(
            number,
            base + timedelta(milliseconds=chance.randrange(milliseconds)),
            chance.randbytes(BODY_BYTES),
            f"order-{seed}-{number}",
        )
        for number in range(count)
    ]


def handle(bodies: Iterable[bytes]) -> int:
    """The handler of both sides: it looks at every body, which is the least any handler does."""
    return sum(map(len, bodies))


def chunks(items: list[Order], size: int) -> list[list[Order]]:
    """`items` cut into lists of `size`, the last one perhaps shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]
