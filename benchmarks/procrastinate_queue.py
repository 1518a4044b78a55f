"""Baseline (c): procrastinate, used as its documentation shows, over its own driver (psycopg 3).

Jobs are deferred in one statement per batch, each with its own instant, and worked by an asyncio worker that
runs tasks concurrently. It fetches one job at a time and has no batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import procrastinate
from procrastinate.jobs import Job

from benchmarks.messages import Order

TASK = "handle"
CONCURRENCY = 10


def _app(connector: procrastinate.SyncPsycopgConnector | procrastinate.PsycopgConnector) -> procrastinate.App:
    app = procrastinate.App(connector=connector)

    @app.task(name=TASK)
    async def handle(body: str) -> None:
        del body

    return app


class Sender:
    """Sends over one connection; a context manager."""

    def __init__(self, dsn: str) -> None:
        self._app = _app(procrastinate.SyncPsycopgConnector(conninfo=dsn, min_size=1, max_size=1))

    def __enter__(self) -> Sender:
        self._app.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._app.close()

    def create(self) -> None:
        """Make procrastinate's tables."""
        self._app.schema_manager.apply_schema()

    def send(self, orders: Iterable[Order]) -> None:
        """Defer one job per order, in one statement and one transaction."""
        self._app.job_manager.batch_defer_jobs(
            [
                Job(
                    queue="default",
                    lock=None,
                    queueing_lock=None,
                    task_name=TASK,
                    task_kwargs={"body": order.body.hex()},
                    scheduled_at=order.due_at,
                )
                for order in orders
            ]
        )


def drain(dsn: str) -> None:
    """Work off all due jobs, then return."""

    async def work() -> None:
        app = _app(procrastinate.PsycopgConnector(conninfo=dsn, min_size=2, max_size=CONCURRENCY))
        async with app.open_async():
            await app.run_worker_async(
                wait=False, concurrency=CONCURRENCY, listen_notify=False, install_signal_handlers=False
            )

    asyncio.run(work())
