"""Receive + ack: against a keyset SELECT, the SKIP LOCKED table, and itself under a snapshot held open.

All messages are due already, each at a different instant in an hour that has passed. Each pair takes fresh
databases, loads them and lets them settle before it begins.

The snapshot is taken before the messages are received and held to the end of the pair, as a long report or a
forgotten transaction would: vacuum cannot remove newer dead rows, in any design.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial

from benchmarks import tables
from benchmarks.bench import Bench, Step, Subject, rates_row, side_by_side
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


def _what(size: int) -> str:
    return f"receive + ack, batches of {thousands(size)}" if size > 1 else "receive + ack of single messages"


def receive_keyset(bench: Bench) -> Iterator[Row]:
    """Batches of 1 000 against keyset pages of 1 000."""
    rounds = bench.size(20, 6)
    yield rates_row(
        bench,
        "receive-keyset",
        _what(1_000),
        partial(Stand(bench, LEASED).ours_receiving, 1_000, rounds),
        partial(_keyset, bench, 1_000, rounds),
        "keyset SELECT, pages of 1 000",
        [Goal(0.8, "at least")],
        rounds=rounds,
    )


def _rounds(bench: Bench, size: int) -> int:
    return bench.size(20, 6) if size == 1_000 else bench.size(40, 8)


def _receive_table(
    stand: Stand, size: int, goals: tuple[float, float], *, is_durable: bool = True
) -> Iterator[Row]:
    bench, rounds = stand.bench, _rounds(stand.bench, size)
    name = f"receive-{size}" if is_durable else f"receive-{size}-not-durable"
    text = _what(size) if is_durable else f"{_what(size)}, `durable_acks=False`"
    yield rates_row(
        bench,
        name,
        f"{text}, 1 consumer",
        partial(stand.ours_receiving, size, rounds, is_durable=is_durable),
        partial(stand.table_receiving, size, rounds),
        stand.table.name,
        [Goal(goals[0], "at least")],
        rounds=rounds,
    )
    count = {1_000: bench.size(200_000, 40_000), 100: bench.size(100_000, 16_000)}.get(
        size, bench.size(8_000, 1_000)
    )
    yield Row(
        f"{name}-{CONSUMERS}",
        f"{text}, {CONSUMERS} consumers",
        "messages/s",
        *interleave(
            partial(stand.ours_together, CONSUMERS, size, count, is_durable=is_durable),
            partial(stand.table_together, CONSUMERS, size, count),
            pairs=1 if bench.quick else bench.pairs,
            warm_up=0,
        ),
        f"{stand.table.name}, {CONSUMERS} pollers",
        [Goal(goals[1], "at least")],
    )


def receive_table(stand: Stand, goals: Mapping[int, tuple[float, float]]) -> Iterator[Row]:
    """Receive + ack against a table, with one consumer and with four, and without waiting for the disk.

    `goals` are the least ratios of one consumer and of four, by the size of the batches.
    """
    for size, least in goals.items():
        yield from _receive_table(stand, size, least)
    yield from _receive_table(stand, 1, (2.5, 1.6), is_durable=False)


def processor(stand: Stand) -> Iterator[Row]:
    """The processor time that receive + ack takes in the consumer's process."""
    for size, at_most_us in ((1, 200.0), (100, 8.0), (1_000, 5.0)):
        rounds = _rounds(stand.bench, size)
        ours, table = side_by_side(
            partial(stand.ours_receiving, size, rounds),
            partial(stand.table_receiving, size, rounds),
            pairs=stand.bench.pairs,
            rounds=rounds,
            clock=time.process_time,
        )
        yield Row(
            f"processor-{size}",
            f"{_what(size)}: processor time of the consumer's process, a message",
            "us",
            [1e6 / rate for rate in ours],
            [1e6 / rate for rate in table],
            stand.table.name,
            [Goal(at_most_us, "at most", "ours")],
        )


def snapshot(bench: Bench) -> Iterator[Row]:
    """Receive + ack with a snapshot held open, against without."""
    rounds = bench.size(60, 15)
    side = partial(Stand(bench, LEASED).ours_receiving, 100, rounds)
    yield rates_row(
        bench,
        "snapshot",
        f"{_what(100)}, while another session holds a snapshot open",
        partial(side, is_held=True),
        side,
        "the same without",
        [Goal(0.9, "at least")],
        rounds=rounds,
    )


SUBJECTS = [
    Subject("receive-keyset", "receive + ack against the keyset SELECT", receive_keyset),
    Subject(
        "receive",
        "receive + ack in batches of 1 000, 100 and 1, 1 and 4 consumers, against SKIP LOCKED",
        lambda bench: receive_table(
            Stand(bench, LEASED), {1_000: (2.5, 2.5), 100: (1.5, 1.4), 1: (1.0, 1.1)}
        ),
    ),
    Subject(
        "processor",
        "the consumer's processor time, against SKIP LOCKED",
        lambda bench: processor(Stand(bench, LEASED)),
    ),
    Subject("snapshot", "receive + ack while a snapshot is held open", snapshot),
]
