"""Ten million waiting messages: their cost for messages sent and due at the same time, and the wheel's
memory.

The ten million are due at random in the twenty hours that begin three hours from now: none of them is due
during the run. They are written once. Both sides of every pair then do the same work, one in the full
database, one in the empty one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from functools import partial

import psutil

from benchmarks import ours, workers
from benchmarks.bench import Bench, Step, Subject, rates_row
from benchmarks.measure import Goal, Row, interleave, thousands
from benchmarks.messages import BODY, HOUR, chunks, now, orders
from benchmarks.processes import crew
from benchmarks.server import connect, settle
from benchmarks.stand import BATCHES_A_STEP, orders_of_steps, sending
from duewheel.store import Broker

MEBIBYTE = 1024 * 1024
TICKS_A_STEP = 10


@contextmanager
def _sending(rounds: int, dsn: str, pair: int) -> Iterator[Step]:
    """`send_many` of 1 000 due over the next hour."""
    with Broker(dsn) as broker:
        yield sending(broker, orders_of_steps(1_000, rounds, pair), 1_000)


@contextmanager
def _releasing(dsn: str, _pair: int) -> Iterator[Step]:
    """One message sent without delay and released by a tick, over and over."""
    with Broker(dsn) as broker, closing(connect(dsn)) as connection, connection.cursor() as cursor:

        def step() -> int:
            for _ in range(TICKS_A_STEP):
                broker.send(ours.TOPIC, BODY, delay=timedelta(0))
                cursor.execute("CALL duewheel.tick(%s)", (ours.TOPIC,))
                if not (cursor.fetchone() or (0,))[0]:
                    raise RuntimeError("the tick released nothing, though something is due")
            return TICKS_A_STEP

        yield step


@contextmanager
def _receiving(rounds: int, dsn: str, pair: int) -> Iterator[Step]:
    """Receive + ack in batches of 100, of messages that were due just before."""
    batches = BATCHES_A_STEP[100]
    with Broker(dsn) as broker:
        consumer = broker.consumer(ours.TOPIC, ours.GROUP)
        ours.drain(consumer)
        count = (rounds + 1) * batches * 100
        for chunk in chunks(orders(count, start=now() - HOUR, within=HOUR, seed=pair), 1_000):
            ours.send(broker, chunk)
        yield lambda: ours.work(consumer, 100, batches)


def rates(bench: Bench) -> Iterator[Row]:
    """Rates of sending, releasing and receiving with ten million waiting, against none."""
    count = bench.size(10_000_000, 300_000)
    rounds = bench.size(40, 8)
    waiting = f"with {thousands(count)} waiting"
    with ExitStack() as stack:
        full, empty = (stack.enter_context(bench.server.duewheel()) for _ in range(2))
        for dsn in (full, empty):
            ours.create_topic(dsn)
        at = now()
        ours.fill(full, count, start=at + 3 * HOUR, within=20 * HOUR, at=at)
        for dsn in (full, empty):
            settle(dsn)
        for name, what, unit, side in (
            ("send", "`send_many` of 1 000", "messages/s", partial(_sending, rounds)),
            ("release", "`send` + tick", "ticks/s", _releasing),
            ("receive", "receive + ack, batches of 100", "messages/s", partial(_receiving, rounds)),
        ):
            yield rates_row(
                bench,
                f"waiting-{name}",
                f"{what}, {waiting}",
                partial(side, full),
                partial(side, empty),
                "none waiting",
                [Goal(0.9, "at least")],
                rounds=rounds,
                unit=unit,
            )
        yield _memory(bench, full, empty, waiting)


def _memory(bench: Bench, full: str, empty: str, waiting: str) -> Row:
    """Resident memory of a wheel that has turned for some seconds in each of the two databases."""
    turning_seconds = bench.size(8, 3)

    def reading(dsn: str, _pair: int) -> float:
        with crew(1, workers.turn_wheel, dsn) as crew_:
            crew_.wait_until_ready()
            threading.Event().wait(turning_seconds)
            return float(psutil.Process(crew_.workers[0].pid).memory_info().rss / MEBIBYTE)

    return Row(
        "wheel-memory",
        f"resident memory of the wheel {waiting}",
        "MB",
        *interleave(partial(reading, full), partial(reading, empty), pairs=bench.pairs),
        "none waiting",
        [Goal(20, "at most", "difference")],
    )


SUBJECTS = [Subject("waiting", "rates and the wheel's memory with 10 000 000 waiting, against none", rates)]
