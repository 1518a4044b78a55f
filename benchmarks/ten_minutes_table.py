"""duewheel against a table written in ten minutes, on stock settings.

A claim is one UPDATE with SKIP LOCKED, done is another, and each commits separately in one round trip. Bodies
are JSON of 100 bytes, decoded on both sides. Neither side is vacuumed or analyzed by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from benchmarks import ours, tables
from benchmarks.bench import Bench, Subject, rates_row
from benchmarks.latency import ours_late
from benchmarks.measure import Goal, Row, percentile, thousands
from benchmarks.messages import HOUR, Order, chunks, coming, json_body, orders
from benchmarks.program import main
from benchmarks.receiving import receive_table
from benchmarks.server import connect, query
from benchmarks.stand import Stand
from benchmarks.tables import TEN_MINUTES
from duewheel.store import Broker

MANY = "`send_many` of 1 000, each due at a different instant"
SCHEMA_BYTES = """
SELECT sum(pg_total_relation_size(c.oid))::bigint
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'duewheel' AND c.relkind = 'r'
"""


def _stand(bench: Bench) -> Stand:
    return Stand(bench, TEN_MINUTES, is_settled=False)


def receive(bench: Bench) -> Iterator[Row]:
    """Receive + ack in batches of 1 000, 100 and 1, with one consumer and with four."""
    return receive_table(_stand(bench), {1_000: (2.5, 2.5), 100: (1.6, 1.5), 1: (1.1, 1.0)})


def send(bench: Bench) -> Iterator[Row]:
    """`send_many` of 1 000 against one INSERT of as many rows, and single sends against single INSERTs."""
    stand = _stand(bench)
    for size, text, rounds, baseline, goal in (
        (1_000, MANY, bench.size(30, 6), "one INSERT of 1 000 rows", 1.7),
        (1, "single `send`", bench.size(30, 10), "INSERT + commit", 0.95),
    ):
        ours_side = partial(stand.ours_sending, size, rounds)
        table_side = partial(stand.table_sending, size, rounds)
        baseline, goals = f"{TEN_MINUTES.name}, {baseline}", [Goal(goal, "at least")]
        yield rates_row(bench, f"send-{size}", text, ours_side, table_side, baseline, goals, rounds=rounds)


def _bytes_each(dsn: str, size_of: str, orders: list[Order], write: Callable[[list[Order]], object]) -> float:
    """By how many bytes the answer of `size_of` grows for each of the orders."""
    ((before,),) = query(dsn, size_of)
    for batch in chunks(orders, 1_000):
        write(batch)
    ((after,),) = query(dsn, size_of)
    return float(after - before) / len(orders)


def disk(bench: Bench) -> Iterator[Row]:
    """Bytes on disk of a waiting message, indexes included, against a plain table with a primary key."""
    ours_bytes, plain_bytes = [], []
    for pair in range(bench.pairs):
        sent = coming(bench.size(200_000, 50_000), seed=pair)
        with bench.server.duewheel() as dsn, Broker(dsn) as broker:
            ours.create_topic(dsn)
            ours_bytes.append(_bytes_each(dsn, SCHEMA_BYTES, sent, partial(ours.send, broker)))
        with bench.server.empty() as dsn, closing(connect(dsn)) as connection:
            tables.execute(connection, tables.PLAIN)
            size_of, write = "SELECT pg_total_relation_size('plain')", partial(tables.plain_copy, connection)
            plain_bytes.append(_bytes_each(dsn, size_of, sent, write))
    yield Row(
        "disk",
        "a waiting message of 100 bytes on disk, indexes included",
        "bytes",
        ours_bytes,
        plain_bytes,
        "plain table with the same columns and primary key",
        [Goal(1.25, "at most")],
    )


def _percentiles(
    bench: Bench,
    name: str,
    text: str,
    orders_from: Callable[[datetime], list[Order]],
    goals: dict[int, float],
) -> Iterator[Row]:
    lateness_ms = [late * 1000 for late in ours_late(_stand(bench), orders_from, None).lateness]
    p50, p90, p99, largest = (percentile(lateness_ms, percent) for percent in (50, 90, 99, 100))
    note = f"p50 {p50:.1f} ms, p90 {p90:.1f} ms, p99 {p99:.1f} ms, largest {largest:.1f} ms"
    for percent, bound in goals.items():
        yield Row(
            f"{name}-p{percent}",
            f"due instant to handler start, p{percent}, {text}, default settings",
            "ms",
            [percentile(lateness_ms, percent)],
            goals=[Goal(bound, "at most", "ours")],
            notes=[note],
        )


def latency(bench: Bench) -> Iterator[Row]:
    """p99 at 200/s, with a topic's default settings."""
    rate, seconds = 200, bench.size(20, 4)

    def steady(start: datetime) -> list[Order]:
        return orders(rate * seconds, start=start, within=timedelta(seconds=seconds), body=json_body)

    yield from _percentiles(bench, f"latency-default-{rate}", f"{thousands(rate)}/s", steady, {99: 25.0})


def lone(bench: Bench) -> Iterator[Row]:
    """Messages so far apart that the topic is idle before each."""

    def far_apart(start: datetime) -> list[Order]:
        sent = orders(bench.size(60, 10), start=start, within=HOUR, body=json_body)
        return [
            replace(order, due_at=start + number * timedelta(milliseconds=1_310))
            for number, order in enumerate(sent)
        ]

    yield from _percentiles(bench, "lone", "a lone message on an idle topic", far_apart, {50: 2.5, 99: 6.0})


SUBJECTS = [
    Subject("receive", "receive + ack, batches of 1 000, 100 and 1, 1 and 4 consumers", receive),
    Subject("send", "send_many of 1 000 and single sends", send),
    Subject("disk", "bytes on disk of a waiting message", disk),
    Subject("latency", "due instant to handler start at 200/s", latency),
    Subject("lone", "due instant to handler start of a lone message", lone),
]

if __name__ == "__main__":
    main("ten_minutes_table", __doc__, SUBJECTS)
