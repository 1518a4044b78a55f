"""What the reads of executors cost the server, counted by what it does for them."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.reading import TOPIC, between, rows, send, stream, take
from tests.waiting import ask, connected, until

from duewheel.spark.data_source import DueWheelDataSource
from duewheel.spark.lease_plan import plan_leases
from duewheel.store.broker import Broker

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


@pytest.mark.parametrize("message_type", ["DELAY", "FIFO"])
def test_only_leases_of_fifo_topics_are_read_in_order(broker: Broker, message_type: str) -> None:
    """Sorting, or an index in that order, costs half as much as the read."""
    broker.create_topic(TOPIC, message_type=message_type, queues=1)
    fields = {"message_group": "m", "delay": None} if message_type == "FIFO" else {}
    send(broker, range(50), **fields)
    batch = take(broker)
    with broker.connection() as connection:
        plan = plan_leases(connection, batch.leases, with_answered=False)
    assert {"order by" in lease.query for lease in plan} == {message_type == "FIFO"}
