"""What the reads of executors cost the server, counted by what it does for them."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.clock import Clock
from tests.conftest import execute
from tests.logins import login
from tests.spark.reading import TOPIC, between, reader, rows, send, stream, take
from tests.waiting import ask, connected, until

from duewheel.spark.batch import Batch
from duewheel.spark.data_source import DueWheelDataSource
from duewheel.spark.lease_partition import LeaseToRead
from duewheel.spark.lease_plan import plan_leases
from duewheel.spark.lease_states import handle_prefix
from duewheel.spark.message_batches import LeaseHandles
from duewheel.spark.message_columns import spark_schema
from duewheel.spark.message_reader import arrow_connection, lease_runs
from duewheel.store.broker import Broker
from duewheel.store.leases import to_json

OTHERS = """
select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
"""
RECALLS_LOOKED_UP = """
select seq_scan + idx_scan from pg_stat_user_tables where relid = 'duewheel.recall'::regclass
"""
PAGES_VISITED = """
select sum(heap_blks_hit + heap_blks_read) from pg_statio_user_tables
where relid in (select relid from pg_partition_tree('duewheel.message'))
"""


def told_at_the_end(dsn: str, query: str) -> int:
    """A number that sessions report when they end."""
    with connected(dsn) as watcher:
        until(lambda: ask(watcher, OTHERS) == [(0,)], "the sessions have ended")
        ((count,),) = ask(watcher, query)
        return int(count)


@pytest.mark.parametrize("kind", ["look", "stream"])
def test_a_part_asks_once_whether_it_has_recalls(orders: Broker, kind: str) -> None:
    send(orders, range(400))
    read = stream(orders)
    begin = read.initialOffset()
    end = read.latestOffset(begin, ReadAllAvailable())
    read.partitions(begin, end)
    source = DueWheelDataSource({"dsn": orders.dsn, "topic": TOPIC})
    look = source.reader(source.schema())
    read.stop()
    orders.close()
    before = told_at_the_end(orders.dsn, RECALLS_LOOKED_UP)

    if kind == "look":
        assert len(rows(look)) == 400
    else:
        assert between(read, begin, end) == list(range(400))
        read.stop()
    assert told_at_the_end(orders.dsn, RECALLS_LOOKED_UP) - before <= 8


@pytest.mark.parametrize("kind", ["lease", "stream"])
def test_a_page_is_not_visited_for_each_message(timed_orders: Broker, clock: Clock, kind: str) -> None:
    """Also if the server takes any page for as near as the next one."""
    count, dsn = 8_000, timed_orders.dsn
    for second in range(100):
        delays = range(second, count, 100)
        # Of one call they are stored in the order in which they are due.
        sent = [{"body": bytes(500), "key": "1", "delay": timedelta(seconds=delay)} for delay in delays]
        timed_orders.send_many(TOPIC, sent)
    clock.advance(timedelta(hours=3))
    read: Any = reader(take(timed_orders, max_messages=count, now=clock()), columns="key")
    if kind == "stream":
        read = stream(timed_orders)
        begin = read.initialOffset()
        parts = read.partitions(begin, read.latestOffset(begin, ReadAllAvailable()))
        read.stop()
    else:
        parts = read.partitions()
    timed_orders.close()
    execute(dsn, f"alter database {parse_dsn(dsn)['dbname']} set random_page_cost = 1.1")
    execute(dsn, "vacuum analyze")
    before = told_at_the_end(dsn, PAGES_VISITED)

    assert sum(len(batch) for part in parts for batch in read.read(part)) == count
    assert told_at_the_end(dsn, PAGES_VISITED) - before < count / 2


def planned_runs(broker: Broker, batch: Batch) -> list[tuple[list[LeaseToRead], LeaseHandles, str]]:
    """What one task would read of a batch."""
    with broker.connection() as connection:
        plan = plan_leases(connection, batch.leases, with_answered=False)
    with arrow_connection(broker.dsn) as connection:
        return lease_runs(connection, plan)


@pytest.mark.parametrize("message_type", ["DELAY", "FIFO"])
def test_only_leases_of_fifo_topics_are_read_in_order(broker: Broker, message_type: str) -> None:
    """Sorting, or an index in that order, costs half as much as the read."""
    broker.create_topic(TOPIC, message_type=message_type, queues=1)
    fields = {"message_group": "m", "delay": None} if message_type == "FIFO" else {}
    send(broker, range(50), **fields)
    queries = {query for _, _, query in planned_runs(broker, take(broker))}
    assert {"order by" in query for query in queries} == {message_type == "FIFO"}


@pytest.mark.parametrize("role", [None, "duewheel_consumer"])
def test_adjacent_leases_are_read_by_one_query(orders: Broker, role: str | None) -> None:
    """Each message has the handle of its own lease, also if several leases end at one instant."""
    send(orders, range(2_000))
    send(orders, range(2_000))
    with closing(psycopg2.connect(orders.dsn)) as late:
        send(orders, range(200), connection=late)
        batch = take(orders, partitions=8)
        late.commit()
    batch.leases += take(orders).leases
    assert sum(lease.count for lease in batch.leases) == 4_200
    del batch.leases[3]
    of_lease = "select seq from duewheel.lease_rows(%s, %s, %s, %s)"
    expected = {
        f"{handle_prefix(lease)}.{seq}"
        for lease in batch.leases
        for (seq,) in execute(orders.dsn, of_lease, lease.group_id, *lease.place)
    }
    execute(orders.dsn, "select duewheel.ack(%s)", [expected.pop()])

    # Four queues, one of which lacks a lease, and the late messages of each.
    assert len(planned_runs(orders, batch)) == 4 + 1 + 4
    dsn = orders.dsn if role is None else login(orders.dsn, role)
    options = {"dsn": dsn, "lease": to_json(batch.leases), "partitions": "1"}
    read = DueWheelDataSource(options).reader(spark_schema(["receipt_handle"]))
    handles = [row["receipt_handle"] for row in rows(read)]
    assert (len(handles), set(handles)) == (len(expected), expected)
