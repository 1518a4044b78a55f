"""Receive + ack: against a keyset SELECT, the SKIP LOCKED table, and itself under a snapshot held open.

All messages are due already, each at a different instant in an hour that has passed. Each pair takes fresh
databases, loads them and lets them settle before it begins.

The snapshot is taken before the messages are received and held to the end of the pair, as a long report or a
forgotten transaction would: vacuum cannot remove newer dead rows, in any design.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

from benchmarks import tables
from benchmarks.bench import Bench, Step, Subject, rates_row
from benchmarks.measure import Goal, Row, interleave, thousands
from benchmarks.messages import due
from benchmarks.server import connect, settle
from benchmarks.stand import BATCHES_A_STEP, CONSUMERS, Stand
from benchmarks.tables import LEASED


@contextmanager
def _keyset(bench: Bench, size: int, rounds: int, pair: int) -> Iterator[Step]:
    """The plain table's rows in key order by pages of `size`."""
    with bench.server.empty() as dsn, closing(connect(dsn)) as connection:
        tables.execute(connection, tables.PLAIN)
        for chunk in due((rounds + 1) * BATCHES_A_STEP[size] * size, seed=pair):
            tables.plain_copy(connection, chunk)
        settle(dsn)
        pages = tables.plain_pages(connection, size)

        def step() -> int:
            done = 0
            for _ in range(BATCHES_A_STEP[size]):
                rows = next(pages)
                list(map(len, [row[-1] for row in rows]))
                done += len(rows)
            return done

        yield step


def what(size: int) -> str:
    """The name of a row for batches of `size`."""
    return f"receive + ack, batches of {thousands(size)}" if size > 1 else "receive + ack of single messages"


def receive_keyset(bench: Bench) -> Iterator[Row]:
    """Batches of 1 000 against keyset pages of 1 000."""
    rounds = bench.size(20, 6)
    yield rates_row(
        bench,
        "receive-keyset",
        what(1_000),
        partial(Stand(bench, LEASED).ours_receiving, 1_000, rounds),
        partial(_keyset, bench, 1_000, rounds),
        "keyset SELECT, pages of 1 000",
        [Goal(0.8, "at least")],
        rounds=rounds,
    )


def receive_table(stand: Stand, size: int, rounds: int, at_least: float, suffix: str = "") -> Row:
    """Batches of `size` against a table."""
    return rates_row(
        stand.bench,
        f"receive-{size}",
        f"{what(size)}{suffix}",
        partial(stand.ours_receiving, size, rounds),
        partial(stand.table_receiving, size, rounds),
        stand.table.name,
        [Goal(at_least, "at least")],
        rounds=rounds,
    )


def _receive_leased(size: int, at_least: float, bench: Bench) -> Iterator[Row]:
    rounds = bench.size(20, 6) if size == 1_000 else bench.size(40, 8)
    yield receive_table(Stand(bench, LEASED), size, rounds, at_least)


def more_consumers(bench: Bench) -> Iterator[Row]:
    """4 consumers against 1, each in a separate process, on the same due messages."""
    together = Stand(bench, LEASED).ours_together
    count = bench.size(300_000, 60_000)
    yield Row(
        "consumers-1000",
        f"{CONSUMERS} consumers, batches of 1 000",
        "messages/s",
        *interleave(
            partial(together, CONSUMERS, 1_000, count), partial(together, 1, 1_000, count), pairs=bench.pairs
        ),
        "1 consumer",
        [Goal(1.3, "at least")],
    )


def snapshot(bench: Bench) -> Iterator[Row]:
    """Receive + ack with a snapshot held open, against without."""
    rounds = bench.size(60, 15)
    side = partial(Stand(bench, LEASED).ours_receiving, 100, rounds)
    yield rates_row(
        bench,
        "snapshot",
        f"{what(100)}, while another session holds a snapshot open",
        partial(side, is_held=True),
        side,
        "the same without",
        [Goal(0.9, "at least")],
        rounds=rounds,
    )


SUBJECTS = [
    Subject("receive-keyset", "receive + ack against the keyset SELECT", receive_keyset),
    *(
        Subject(
            f"receive-{size}", f"{what(size)}, against SKIP LOCKED", partial(_receive_leased, size, at_least)
        )
        for size, at_least in ((1_000, 2.5), (100, 1.5), (1, 1.0))
    ),
    Subject("consumers", "4 consumers against 1", more_consumers),
    Subject("snapshot", "receive + ack while a snapshot is held open", snapshot),
]
