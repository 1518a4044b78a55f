"""Dead tuples after a million full lifecycles: sent, released, received, acked.

Autovacuum is off during the run, so that no dead tuple is cleaned away before it is counted. Updates and
deletes are counted, too, because pruning can hide a dead tuple but not the update or delete that made it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from benchmarks import ours
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row, thousands
from benchmarks.messages import chunks
from benchmarks.receiving import due
from benchmarks.server import connect
from duewheel.store import Broker

FLUSH = "SELECT pg_stat_force_next_flush()"
COUNT = """
SELECT relname, n_dead_tup, n_tup_upd, n_tup_del
  FROM pg_stat_user_tables
 WHERE schemaname = 'duewheel' AND n_dead_tup + n_tup_upd + n_tup_del > 0
 ORDER BY n_dead_tup DESC, relname
"""


def lifecycles(bench: Bench) -> Iterator[Row]:
    """Dead tuples in all of duewheel's tables after a million messages were sent, received and acked."""
    count = bench.size(1_000_000, 50_000)
    with bench.server.without_autovacuum(), bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        with Broker(dsn) as broker:
            consumer = broker.consumer(ours.TOPIC, ours.GROUP)
            for seed in range(count // 10_000):
                for batch in chunks(due(10_000, seed=seed)[0], 1_000):
                    ours.send(broker, batch)
                ours.work(consumer, size=1_000, batches=10)
        with closing(connect(dsn)) as connection, connection.cursor() as cursor:
            cursor.execute(FLUSH)
            cursor.execute(COUNT)
            counted = cursor.fetchall()
    row = Row(
        "dead-tuples",
        f"dead tuples in all tables of the schema after {thousands(count)} full lifecycles",
        "",
        [float(sum(dead for _, dead, _, _ in counted))],
        goals=[Goal(0, "at most", "ours")],
    )
    row.notes += [
        f"`{table}`: {dead} dead, {updated} updated, {deleted} deleted"
        for table, dead, updated, deleted in counted
    ]
    yield row


SUBJECTS = [Subject("dead-tuples", "dead tuples after 1 000 000 full lifecycles", lifecycles)]
