"""The common parts of the subjects of sending, receiving and waiting: both sides, loaded and at work.

A *side* makes a fresh, loaded database and yields the step that `side_by_side` measures. Our side and the
table's work on the same orders in the same portions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import psycopg2

from benchmarks import ours, tables, workers
from benchmarks.bench import Bench, Step
from benchmarks.messages import HOUR, Body, Order, chunks, coming, due, now, random_body
from benchmarks.processes import crew
from benchmarks.server import connect, query, settle
from benchmarks.tables import Table
from duewheel.store import Broker

CONSUMERS = 4
#: Batches of one measured step, by the size of the batch.
BATCHES_A_STEP = {1_000: 5, 100: 10, 1: 50}
TIMEOUT_SECONDS = 300.0


@contextmanager
def _snapshot(dsn: str) -> Iterator[None]:
    """A session with an open repeatable-read transaction that has taken its snapshot."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.set_session(isolation_level="REPEATABLE READ")
        cursor.execute("SELECT pg_current_snapshot()")
        yield


def _steps(orders: list[Order], size: int, send: Callable[[list[Order]], object]) -> Step:
    """Each step sends some batches of `size`."""
    batches = iter(chunks(orders, size))

    def step() -> int:
        for _ in range(BATCHES_A_STEP[size]):
            send(next(batches))
        return BATCHES_A_STEP[size] * size

    return step


def orders_of_steps(size: int, rounds: int, seed: int, body: Body = random_body) -> list[Order]:
    """What `rounds` steps and the warm-up send."""
    return coming((rounds + 1) * BATCHES_A_STEP[size] * size, seed=seed, body=body)


def sending(broker: Broker, orders: list[Order], size: int, *, with_key: bool = False) -> Step:
    """`send_many` of `size`, or single sends, each its own transaction."""
    if size == 1:
        return _steps(
            orders, 1, lambda batch: broker.send(ours.TOPIC, batch[0].body, deliver_at=batch[0].due_at)
        )
    return _steps(orders, size, partial(ours.send, broker, with_key=with_key))


@dataclass(frozen=True)
class Stand:
    """Our side and one table's.

    Attributes:
        bench: the run.
        table: the table that is compared with ours.
        is_settled: whether both sides are vacuumed and analyzed by hand before the clock starts.
    """

    bench: Bench
    table: Table
    is_settled: bool = True

    @contextmanager
    def ours_due(self, count: int, seed: int) -> Iterator[str]:
        """A fresh database with `count` messages due."""
        with self.bench.server.duewheel() as dsn:
            ours.create_topic(dsn)
            ours.load(dsn, due(count, seed=seed, body=self.table.body), at=now() - 2 * HOUR)
            if self.is_settled:
                settle(dsn)
            yield dsn

    @contextmanager
    def empty_table(self) -> Iterator[str]:
        """A fresh table."""
        with self.bench.server.empty() as dsn:
            query(dsn, self.table.create)
            yield dsn

    @contextmanager
    def table_due(self, count: int, seed: int) -> Iterator[str]:
        """A fresh table with `count` rows due."""
        with self.empty_table() as dsn:
            with closing(connect(dsn)) as connection:
                for chunk in due(count, seed=seed, body=self.table.body):
                    self.table.insert_many(connection, chunk)
            if self.is_settled:
                settle(dsn)
            yield dsn

    @contextmanager
    def ours_receiving(
        self, size: int, rounds: int, pair: int, *, is_durable: bool = True, is_held: bool = False
    ) -> Iterator[Step]:
        """Receive + ack in batches of `size`, perhaps while another session holds a snapshot open."""
        batches = BATCHES_A_STEP[size]
        with (
            self.ours_due((rounds + 1) * batches * size, pair) as dsn,
            _snapshot(dsn) if is_held else nullcontext(),
            Broker(dsn) as broker,
        ):
            consumer = broker.consumer(ours.TOPIC, ours.GROUP, durable_acks=is_durable)
            yield lambda: ours.work(consumer, size, batches, self.table.look)

    @contextmanager
    def table_receiving(self, size: int, rounds: int, pair: int) -> Iterator[Step]:
        """Claim + complete in batches of `size`."""
        batches = BATCHES_A_STEP[size]
        with self.table_due((rounds + 1) * batches * size, pair) as dsn, closing(connect(dsn)) as connection:
            yield lambda: self.table.work(connection, size, batches)

    @contextmanager
    def ours_sending(self, size: int, rounds: int, pair: int, *, with_key: bool = False) -> Iterator[Step]:
        """Sends of `size` into a fresh database."""
        with self.bench.server.duewheel() as dsn:
            ours.create_topic(dsn)
            with Broker(dsn) as broker:
                orders = orders_of_steps(size, rounds, pair, self.table.body)
                yield sending(broker, orders, size, with_key=with_key)

    @contextmanager
    def table_sending(self, size: int, rounds: int, pair: int) -> Iterator[Step]:
        """Inserts of `size` rows, each its own transaction."""
        with self.empty_table() as dsn, closing(connect(dsn)) as connection:
            orders = orders_of_steps(size, rounds, pair, self.table.body)
            yield _steps(orders, size, partial(self.table.insert_many, connection))

    def ours_together(
        self, consumers: int, size: int, count: int, pair: int, *, is_durable: bool = True
    ) -> float:
        """Messages per second of `consumers` processes together, from the start to the last ack."""
        with self.ours_due(count, pair) as dsn:
            return self._together(
                dsn, partial(workers.consume, is_durable=is_durable), consumers, size, count
            )

    def table_together(self, consumers: int, size: int, count: int, pair: int) -> float:
        """The same of the table's pollers."""
        with self.table_due(count, pair) as dsn:
            return self._together(dsn, workers.poll, consumers, size, count)

    def _together(
        self, dsn: str, worker: Callable[..., None], consumers: int, size: int, count: int
    ) -> float:
        with crew(consumers, worker, dsn, self.table, size, count) as crew_:
            started = crew_.go()
            return count / (last_at(count, crew_.collect(timeout_seconds=TIMEOUT_SECONDS)) - started)


@contextmanager
def plain_sending(bench: Bench, size: int, rounds: int, with_key: bool, pair: int) -> Iterator[Step]:
    """COPY into a fresh plain table, or one-row INSERTs."""
    with bench.server.empty() as dsn, closing(connect(dsn)) as connection:
        tables.execute(connection, tables.PLAIN)
        orders = orders_of_steps(size, rounds, pair)
        if size == 1:
            yield _steps(orders, 1, lambda batch: tables.plain_insert(connection, batch[0]))
        else:
            yield _steps(orders, size, partial(tables.plain_copy, connection, with_key=with_key))


def last_at(count: int, works: list[workers.Work]) -> float:
    """When the last of `count` messages was done, in Unix seconds; all must be done, each once."""
    handled = sum(work.messages for work in works)
    if handled != count:
        raise RuntimeError(f"{count} messages were sent, {handled} handled")
    return max(work.last_at for work in works)
