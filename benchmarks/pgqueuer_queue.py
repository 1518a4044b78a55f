"""Baseline (c): pgqueuer, used as its documentation shows, over its own driver (asyncpg).

Jobs are enqueued in one statement per batch and drained in batches; completions are buffered and written in
batches as well, which by its documentation costs exactness after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType

import asyncpg  # type: ignore[import-untyped]
from pgqueuer import AsyncpgDriver, Job, Queries, QueueManager
from pgqueuer.types import QueueExecutionMode
from psycopg2.extensions import parse_dsn

from benchmarks.messages import Order

ENTRYPOINT = "handle"


async def _connect(dsn: str) -> asyncpg.Connection:
    parts = parse_dsn(dsn)
    return await asyncpg.connect(
        host=parts["host"],
        port=int(parts.get("port", 5432)),
        user=parts["user"],
        password=parts.get("password"),
        database=parts["dbname"],
    )


class Sender:
    """Sends over one connection from an event loop of its own; a context manager."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._runner = asyncio.Runner()

    def __enter__(self) -> Sender:
        self._runner.__enter__()
        self._connection = self._runner.run(_connect(self._dsn))
        self._queries = Queries(AsyncpgDriver(self._connection))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._connection.close())
        self._runner.__exit__(kind, error, trace)

    def create(self) -> None:
        """Make pgqueuer's tables."""
        self._runner.run(self._queries.install())

    def send(self, orders: Sequence[Order]) -> None:
        """Enqueue one job per order, in one statement and one transaction."""
        count = len(orders)
        present = datetime.now(UTC)
        self._runner.run(
            self._queries.enqueue(
                [ENTRYPOINT] * count,
                [order.body for order in orders],
                [0] * count,
                execute_after=[order.due_at - present for order in orders],
            )
        )


def drain(dsn: str, *, batch_size: int) -> None:
    """Work off all due jobs, then return."""

    async def work() -> None:
        connection = await _connect(dsn)
        queues = QueueManager(Queries(AsyncpgDriver(connection)))

        @queues.entrypoint(ENTRYPOINT)
        async def handle(job: Job) -> None:
            del job

        await queues.run(
            mode=QueueExecutionMode.drain, batch_size=batch_size, dequeue_timeout=timedelta(seconds=1)
        )
        await connection.close()

    asyncio.run(work())
