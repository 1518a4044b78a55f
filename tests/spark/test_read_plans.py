"""What the reads of executors cost the server, counted by what it does for them."""

from __future__ import annotations

from contextlib import closing

import psycopg2
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.conftest import execute
from tests.logins import login
from tests.spark.reading import TOPIC, between, rows, send, stream, take
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
LOOKED_UP = """
select seq_scan + idx_scan from pg_stat_user_tables where relid = 'duewheel.recall'::regclass
"""


def recalls_looked_up(dsn: str) -> int:
    """How often recalls were looked up by sessions, which report it when they end."""
    with connected(dsn) as watcher:
        until(lambda: ask(watcher, OTHERS) == [(0,)], "the sessions have ended")
        ((count,),) = ask(watcher, LOOKED_UP)
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
    before = recalls_looked_up(orders.dsn)

    if kind == "look":
        assert len(rows(look)) == 400
    else:
        assert between(read, begin, end) == list(range(400))
        read.stop()
    assert recalls_looked_up(orders.dsn) - before <= 8


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
