"""Another session that holds a snapshot open: vacuum cannot clean behind it, in any design.

The snapshot is taken before the messages are received and held to the end of the pair, as a long report or a
forgotten transaction would. The same is done to the status table, to show the cost of a snapshot where rows
are updated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import psycopg2

from benchmarks import ours, status_table
from benchmarks.bench import Bench, Step, Subject, side_by_side
from benchmarks.measure import Goal, Row
from benchmarks.receiving import BATCHES_A_STEP, ours_due, status_due
from benchmarks.server import connect
from duewheel.store import Broker

SIZE = 100


@contextmanager
def held_snapshot(dsn: str) -> Iterator[None]:
    """A session with an open repeatable-read transaction that has taken its snapshot."""
    with closing(psycopg2.connect(dsn)) as connection:
        connection.set_session(isolation_level="REPEATABLE READ")
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_snapshot()")
        yield


@contextmanager
def _ours(bench: Bench, held: bool, rounds: int, pair: int) -> Iterator[Step]:
    with ExitStack() as stack:
        dsn = stack.enter_context(ours_due(bench, (rounds + 1) * BATCHES_A_STEP[SIZE] * SIZE, pair))
        if held:
            stack.enter_context(held_snapshot(dsn))
        consumer = stack.enter_context(Broker(dsn)).consumer(ours.TOPIC, ours.GROUP)
        yield lambda: ours.work(consumer, size=SIZE, batches=BATCHES_A_STEP[SIZE])


@contextmanager
def _status(bench: Bench, held: bool, rounds: int, pair: int) -> Iterator[Step]:
    with ExitStack() as stack:
        dsn = stack.enter_context(status_due(bench, (rounds + 1) * BATCHES_A_STEP[SIZE] * SIZE, pair))
        if held:
            stack.enter_context(held_snapshot(dsn))
        connection = stack.enter_context(closing(connect(dsn)))
        yield lambda: status_table.work(connection, size=SIZE, batches=BATCHES_A_STEP[SIZE])


def snapshot(bench: Bench) -> Iterator[Row]:
    """Receive + ack with a snapshot held open, against without; then the same of the status table."""
    rounds = bench.size(60, 15)
    for name, what, side, goals in (
        (
            "snapshot",
            "receive + ack, batches of 100, while another session holds a snapshot open",
            _ours,
            [Goal(0.9, "at least")],
        ),
        (
            "snapshot-status-table",
            "for comparison: the SKIP LOCKED table, while another session holds a snapshot open",
            _status,
            [],
        ),
    ):
        yield Row(
            name,
            what,
            "messages/s",
            *side_by_side(
                partial(side, bench, True, rounds),
                partial(side, bench, False, rounds),
                pairs=bench.pairs,
                rounds=rounds,
            ),
            "the same without",
            goals,
        )


SUBJECTS = [Subject("snapshot", "receive + ack while a snapshot is held open", snapshot)]
