"""The rows both sides work on: the same bodies and the same due instants, from one seed.

Bodies are 100 random bytes, so that neither side profits from compression, or JSON of that size. Due instants
have milliseconds, as the interface promises, and are in random order, as an application sends.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

BODY_BYTES = 100
#: The body of a message, whatever its content.
BODY = bytes(range(BODY_BYTES))
HOUR = timedelta(hours=1)
#: Makes the body of an order from its number.
Body = Callable[[random.Random, int], bytes]


@dataclass(frozen=True)
class Order:
    """One message as an application has it, before a client library has converted it."""

    number: int
    due_at: datetime
    body: bytes
    key: str


def random_body(chance: random.Random, _number: int) -> bytes:
    """100 random bytes."""
    return chance.randbytes(BODY_BYTES)


def json_body(chance: random.Random, number: int) -> bytes:
    """JSON of about 100 bytes."""
    note = chance.randbytes(18).hex()
    return json.dumps({"order": number, "customer": f"c{number}", "state": "unpaid", "note": note}).encode()


def now() -> datetime:
    """The present instant; the server runs on this machine and reads the same clock."""
    return datetime.now(UTC)


def orders(
    count: int, *, start: datetime, within: timedelta, seed: int = 1, body: Body = random_body
) -> list[Order]:
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
            body(chance, number),
            f"order-{seed}-{number}",
        )
        for number in range(count)
    ]


def coming(count: int, *, seed: int, body: Body = random_body) -> list[Order]:
    """`count` messages due over the next hour."""
    return orders(count, start=now() + timedelta(minutes=1), within=HOUR, seed=seed, body=body)


def due(count: int, *, seed: int, body: Body = random_body) -> list[list[Order]]:
    """Chunks of `count` messages that were due within an hour that ended an hour ago."""
    return chunks(orders(count, start=now() - 2 * HOUR, within=HOUR, seed=seed, body=body), 10_000)


def chunks(items: list[Order], size: int) -> list[list[Order]]:
    """`items` cut into lists of `size`, the last one perhaps shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]
