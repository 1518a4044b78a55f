"""The demo's queries: the state of the shop's orders, and of the broker's messages about them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2 import errors
from psycopg2.extras import RealDictCursor

from duewheel.dags.shop import GROUP, TOPIC

_SQL = Path(__file__).parent / "sql"


@dataclass(frozen=True)
class MessageCounts:
    """How many timeouts are not due yet, and how many are released and not handled."""

    waiting: int = 0
    due: int = 0


@dataclass(frozen=True)
class Timeout:
    """The facts about one order's timeout.

    Attributes:
        is_on_record: whether the broker has a message for the order.
        is_recalled: whether it was recalled.
        late: how long after its instant it was released; None if it was not.
        came: whether the shop has handled it.
    """

    is_on_record: bool
    is_recalled: bool | None
    late: timedelta | None
    came: bool


@dataclass(frozen=True)
class OrderCounts:
    """The numbers of orders in each state. `open` ones are neither paid nor cancelled."""

    placed: int = 0
    paid: int = 0
    cancelled: int = 0
    open: int = 0
    wrongly_cancelled: int = 0
    cancelled_early: int = 0
    none_due: bool | None = None
    all_due: bool | None = None


class Orders:
    """The orders of one run: those with a number above `first`.

    Args:
        dsn: the database of the shop and the broker.
        first: the highest number that is not of this run.
    """

    def __init__(self, dsn: str, first: int = 0) -> None:
        self._dsn = dsn
        self._first = first

    def count(self) -> OrderCounts:
        """Count the orders; all zero while there is no table yet."""
        rows = self._read("count_orders")
        return OrderCounts(**rows[0]) if rows else OrderCounts()

    def count_messages(self) -> MessageCounts:
        """Count the messages of the topic, earlier runs' included."""
        return MessageCounts(**self._read("count_messages")[0])

    def timeouts(self) -> list[Timeout]:
        """Return the facts about each order's timeout."""
        return [Timeout(**row) for row in self._read("timeouts")]

    def last_number(self) -> int:
        """Return the highest order number so far, 0 when there is none."""
        rows = self._read("last_order")
        return int(rows[0]["number"]) if rows else 0

    def _read(self, statement: str) -> list[dict[str, Any]]:
        with (
            closing(psycopg2.connect(self._dsn)) as connection,
            connection.cursor(cursor_factory=RealDictCursor) as cursor,
        ):
            try:
                cursor.execute(
                    (_SQL / f"{statement}.sql").read_text(encoding="utf-8"),
                    {"first": self._first, "topic": TOPIC, "group": GROUP},
                )
            except errors.UndefinedTable:
                return []
            return list(cursor.fetchall())
