"""Ten million waiting messages: their cost for messages sent and due at the same time, and the wheel's
memory.

The ten million are due at random in the twenty hours that begin three hours from now: none of them comes due
during the run. They are written once; both sides of every pair then do the same work, one in the full
database, one in the empty.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from functools import partial

from benchmarks import ours, workers
from benchmarks.bench import Bench, Step, Subject, side_by_side
from benchmarks.measure import Goal, Row, interleave, thousands
from benchmarks.messages import chunks, orders
from benchmarks.process_memory import resident_bytes
from benchmarks.processes import crew
from benchmarks.sending import BATCH, coming
from benchmarks.server import connect, settle
from benchmarks.ticking import BODY, tick_seconds
from duewheel.store import Broker

HOUR = timedelta(hours=1)
FILL_CHUNK = 1_000_000
MEBIBYTE = 1024 * 1024
TICKS_A_STEP = 10
BATCHES_A_STEP = 5
RECEIVE_SIZE = 100


def fill(dsn: str, count: int) -> None:
    """Write `count` waiting messages."""
    at = ours.now()
    for written in range(0, count, FILL_CHUNK):
        ours.fill(dsn, min(FILL_CHUNK, count - written), start=at + 3 * HOUR, within=20 * HOUR, at=at)


@contextmanager
def _sending(rounds: int, dsn: str, pair: int) -> Iterator[Step]:
    """`send_many` of 1 000 due over the next hour."""
    batches = iter(chunks(coming((rounds + 1) * BATCHES_A_STEP * BATCH, seed=pair), BATCH))
    with Broker(dsn) as broker:

        def step() -> int:
            for _ in range(BATCHES_A_STEP):
                ours.send(broker, next(batches))
            return BATCHES_A_STEP * BATCH

        yield step


@contextmanager
def _releasing(dsn: str, _pair: int) -> Iterator[Step]:
    """One message sent without delay and released by a tick, over and over."""
    with Broker(dsn) as broker, closing(connect(dsn)) as connection:

        def step() -> int:
            for _ in range(TICKS_A_STEP):
                broker.send(ours.TOPIC, BODY, delay=timedelta(0))
                tick_seconds(connection, ours.TOPIC)
            return TICKS_A_STEP

        yield step


@contextmanager
def _receiving(rounds: int, dsn: str, pair: int) -> Iterator[Step]:
    """Receive + ack in batches of 100, of messages that came due just before."""
    with Broker(dsn) as broker:
        consumer = broker.consumer(ours.TOPIC, ours.GROUP)
        while batch := consumer.receive(1_000, ours.INVISIBLE):
            consumer.ack(batch)
        count = (rounds + 1) * BATCHES_A_STEP * RECEIVE_SIZE
        for chunk in chunks(orders(count, start=ours.now() - HOUR, within=HOUR, seed=pair), 1_000):
            ours.send(broker, chunk)
        yield lambda: ours.work(consumer, size=RECEIVE_SIZE, batches=BATCHES_A_STEP)


def rates(bench: Bench) -> Iterator[Row]:
    """Rates of sending, releasing and receiving with ten million waiting, against none."""
    count = bench.size(10_000_000, 300_000)
    rounds = bench.size(40, 8)
    waiting = f"with {thousands(count)} waiting"
    with ExitStack() as stack:
        full, empty = (stack.enter_context(bench.server.duewheel()) for _ in range(2))
        for dsn in (full, empty):
            ours.create_topic(dsn)
        fill(full, count)
        for dsn in (full, empty):
            settle(dsn)
        for name, what, unit, side in (
            ("waiting-send", f"`send_many` of 1 000, {waiting}", "messages/s", partial(_sending, rounds)),
            ("waiting-release", f"`send` + tick, {waiting}", "ticks/s", _releasing),
            (
                "waiting-receive",
                f"receive + ack, batches of 100, {waiting}",
                "messages/s",
                partial(_receiving, rounds),
            ),
        ):
            yield Row(
                name,
                what,
                unit,
                *side_by_side(partial(side, full), partial(side, empty), pairs=bench.pairs, rounds=rounds),
                "none waiting",
                [Goal(0.9, "at least")],
            )
        yield _memory(bench, full, empty, waiting)


def _memory(bench: Bench, full: str, empty: str, waiting: str) -> Row:
    """Resident memory of a wheel that has turned for some seconds in each of the two databases."""
    turning_seconds = bench.size(8, 3)

    def reading(dsn: str, _pair: int) -> float:
        with crew(1, workers.turn_wheel, dsn) as crew_:
            crew_.wait_until_ready()
            threading.Event().wait(turning_seconds)
            return resident_bytes(crew_.workers[0].pid or 0) / MEBIBYTE

    return Row(
        "wheel-memory",
        f"resident memory of the wheel {waiting}",
        "MB",
        *interleave(partial(reading, full), partial(reading, empty), pairs=bench.pairs),
        "none waiting",
        [Goal(20, "at most", "difference")],
    )


SUBJECTS = [Subject("waiting", "rates and the wheel's memory with 10 000 000 waiting, against none", rates)]
