"""Our side, used as an application uses it: through `Broker`, `Consumer` and the wheel's runner.

`fill` alone goes below the interface: it writes millions of rows for a set-up quickly, with the same steps as
`send_many` (take a transaction id and numbers, make the slots, write the rows).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from benchmarks.messages import Order, handle
from benchmarks.server import connect
from duewheel.store import Batch, Broker, Consumer

TOPIC = "bench"
GROUP = "workers"
INVISIBLE = timedelta(seconds=60)

FILL = """
INSERT INTO duewheel.message (topic_id, queue, deliver_at, seq, born_at, key, body)
SELECT %(topic_id)s, n %% %(queues)s,
       %(start)s::timestamptz + floor(%(milliseconds)s * random()) * interval '1 ms',
       %(first_block)s::bigint * 65536 + n, %(born_at)s, CASE WHEN %(with_key)s THEN (n + 1)::text END,
       decode(left(repeat(md5(n::text), %(repeats)s), 2 * %(body_bytes)s), 'hex')
  FROM generate_series(0, %(count)s - 1) AS n
"""


def now() -> datetime:
    """The present instant; the server runs on this machine and reads the same clock."""
    return datetime.now(UTC)


def create_topic(
    dsn: str,
    *,
    granularity: timedelta = timedelta(milliseconds=100),
    max_delay: timedelta = timedelta(hours=24),
) -> None:
    """Make the topic."""
    with Broker(dsn) as broker:
        broker.create_topic(TOPIC, message_type="DELAY", granularity=granularity, max_delay=max_delay)


def send(broker: Broker, orders: Iterable[Order], *, with_key: bool = False) -> None:
    """Send `orders` in one `send_many`."""
    if with_key:
        broker.send_many(
            TOPIC, [{"body": order.body, "deliver_at": order.due_at, "key": order.key} for order in orders]
        )
    else:
        broker.send_many(TOPIC, [{"body": order.body, "deliver_at": order.due_at} for order in orders])


def load(dsn: str, orders: Iterable[list[Order]], *, at: datetime) -> None:
    """Send chunks of `orders` as if it were `at`, so that they are due with instants of their own."""
    with Broker(dsn, clock=lambda: at) as broker:
        for chunk in orders:
            send(broker, chunk)


def fill(
    dsn: str,
    count: int,
    *,
    start: datetime,
    within: timedelta,
    at: datetime,
    body_bytes: int = 100,
    with_key: bool = False,
) -> None:
    """Write `count` messages due at random in [start, start + within), sent as if it were `at`.

    Keys, if wanted, count from 1.
    """
    connection = connect(dsn)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET max_parallel_workers_per_gather = 0")
            cursor.execute("BEGIN")
            cursor.execute(
                "SELECT topic_id, queues, first_block FROM duewheel.begin_copy(%s, %s, %s)",
                (TOPIC, -(-count // 65536), at),
            )
            topic_id, queues, first_block = cursor.fetchone() or (None, None, None)
            hours = int(within / timedelta(hours=1)) + 1
            cursor.execute(
                "SELECT duewheel.make_slot(i) FROM unnest(%s::timestamptz[]) i",
                ([start + timedelta(hours=hour) for hour in range(hours)] + [start + within],),
            )
            cursor.execute(
                FILL,
                {
                    "topic_id": topic_id,
                    "queues": queues,
                    "first_block": first_block,
                    "start": start,
                    "milliseconds": within / timedelta(milliseconds=1),
                    "born_at": at,
                    "count": count,
                    "with_key": with_key,
                    "body_bytes": body_bytes,
                    "repeats": -(-body_bytes // 16),
                },
            )
            cursor.execute("COMMIT")
    finally:
        connection.close()


def work(consumer: Consumer, *, size: int, batches: int) -> int:
    """Receive, look at every body, and ack `batches` batches of up to `size`; returns how many messages."""
    done = 0
    batch: Batch | tuple[()] = ()
    for _ in range(batches):
        batch = consumer.receive(size, INVISIBLE, acked=batch)
        handle(message.body for message in batch)
        done += len(batch)
    consumer.ack(batch)
    return done
