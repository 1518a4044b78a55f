"""Our side, used as an application uses it: through `Broker`, `Consumer` and the wheel's runner.

`fill` and `make_topics` alone go below the interface, to set much up quickly: `fill` with the same steps as
`send_many` (take a transaction id and numbers, make the slots, write the rows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

from benchmarks.messages import Order
from benchmarks.server import connect, query
from duewheel.store import Batch, Broker, Consumer

TOPIC = "bench"
GROUP = "workers"
INVISIBLE = timedelta(seconds=60)

#: Topics made in one transaction: a subscription takes a lock, and locks are few.
TOPICS_AT_ONCE = 500
MAKE_TOPICS = """
SELECT duewheel.create_topic(format('topic-%s', n){options}),
       duewheel.subscribe(format('topic-%s', n), {group})
  FROM generate_series({first}, {last}) n
"""
#: So many messages are made in a transaction.
FILL_CHUNK = 1_000_000
FILL = """
INSERT INTO duewheel.message (topic_id, queue, deliver_at, seq, born_at, key, body)
SELECT %(topic_id)s, n %% %(queues)s,
       %(start)s::timestamptz + floor(%(milliseconds)s * random()) * interval '1 ms',
       %(first_block)s::bigint * 65536 + n, %(born_at)s, CASE WHEN %(with_key)s THEN (n + 1)::text END,
       decode(left(repeat(md5(n::text), %(repeats)s), 2 * %(body_bytes)s), 'hex')
  FROM generate_series(0, %(count)s - 1) AS n
"""


def create_topic(
    dsn: str, *, granularity: timedelta | None = timedelta(milliseconds=100), **settings: Any
) -> None:
    """Make the topic, of type DELAY unless `settings` of `Broker.create_topic` say otherwise."""
    with Broker(dsn) as broker:
        broker.create_topic(TOPIC, granularity=granularity, **{"message_type": "DELAY", **settings})


def make_topics(dsn: str, first: int, last: int, *, group: str = "'workers'", options: str = "") -> None:
    """Make topics `topic-FIRST` to `topic-LAST` with a group each, by SQL."""
    for start in range(first, last + 1, TOPICS_AT_ONCE):
        end = min(start + TOPICS_AT_ONCE - 1, last)
        query(dsn, MAKE_TOPICS.format(options=options, group=group, first=start, last=end))
        if start == first:
            # Autovacuum does this within a minute; before that, making topics is several times slower.
            query(dsn, "ANALYZE")


def send(broker: Broker, orders: Iterable[Order], *, with_key: bool = False) -> None:
    """Send `orders` in one `send_many`."""
    if with_key:
        broker.send_many(
            TOPIC, [{"body": order.body, "deliver_at": order.due_at, "key": order.key} for order in orders]
        )
    else:
        broker.send_many(TOPIC, [{"body": order.body, "deliver_at": order.due_at} for order in orders])


def load(dsn: str, orders: Iterable[list[Order]], *, at: datetime) -> None:
    """Send chunks of `orders` as if it were `at`, so that each is due at its own instant."""
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

    Keys, if wanted, count from 1 in each million.
    """
    hours = int(within / timedelta(hours=1)) + 1
    slots = [start + timedelta(hours=hour) for hour in range(hours)] + [start + within]
    for done in range(0, count, FILL_CHUNK):
        size = min(FILL_CHUNK, count - done)
        with closing(connect(dsn)) as connection, connection.cursor() as cursor:
            cursor.execute("SET max_parallel_workers_per_gather = 0; BEGIN")
            cursor.execute(
                "SELECT topic_id, queues, first_block FROM duewheel.begin_copy(%s, %s, %s)",
                (TOPIC, -(-size // 65536), at),
            )
            ((topic_id, queues, first_block),) = cursor.fetchall()
            cursor.execute("SELECT duewheel.make_slot(i) FROM unnest(%s::timestamptz[]) i", (slots,))
            cursor.execute(
                FILL,
                {
                    "topic_id": topic_id,
                    "queues": queues,
                    "first_block": first_block,
                    "start": start,
                    "milliseconds": within / timedelta(milliseconds=1),
                    "born_at": at,
                    "count": size,
                    "with_key": with_key,
                    "body_bytes": body_bytes,
                    "repeats": -(-body_bytes // 16),
                },
            )
            cursor.execute("COMMIT")


def work(consumer: Consumer, size: int, batches: int, look: Callable[[bytes], object] = len) -> int:
    """Receive, `look` at every body, and ack `batches` batches of up to `size`; returns how many messages."""
    done = 0
    batch: Batch | tuple[()] = ()
    for _ in range(batches):
        batch = consumer.receive(size, INVISIBLE, acked=batch)
        list(map(look, [message.body for message in batch]))
        done += len(batch)
    consumer.ack(batch)
    return done


def drain(consumer: Consumer) -> None:
    """Receive and ack everything that is due."""
    while batch := consumer.receive(1_000, INVISIBLE):
        consumer.ack(batch)
