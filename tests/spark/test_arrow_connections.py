"""Connections of executors: each process reads the catalogue of the user's database once."""

from __future__ import annotations

import os

import pytest
from adbc_driver_manager import AdbcConnection, AdbcStatement
from pyarrow import RecordBatchReader
from tests.spark.reading import TOPIC, rows, send
from tests.waiting import ask, connected, until

from duewheel.spark.data_source import DueWheelDataSource
from duewheel.spark.message_reader import arrow_connection
from duewheel.store.broker import Broker

#: 3 000 tables of 20 columns, 500 in a transaction, for whose locks there is room.
SHOP = """
do $$ begin
    for number in {first} .. {first} + 499 loop
        execute format('create table shop_%s (' || (
            select string_agg('c' || c || ' int', ', ') from generate_series(1, 20) c) || ')', number);
    end loop;
end $$
"""
OTHERS = (
    "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
)
COLUMNS_READ = """
select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_sys_tables
where relid = 'pg_attribute'::regclass
"""


@pytest.mark.slow
def test_parts_of_a_process_read_the_columns_of_3000_tables_once(broker: Broker) -> None:
    broker.create_topic(TOPIC)
    send(broker, range(80))
    broker.close()
    with connected(broker.dsn) as shop:
        for first in range(0, 3_000, 500):
            ask(shop, SHOP.format(first=first))

    def columns_read() -> int:
        """How many columns of tables were read by sessions, which report it when they end."""
        with connected(broker.dsn) as watcher:
            until(lambda: ask(watcher, OTHERS) == [(0,)], "the sessions have ended")
            ((count,),) = ask(watcher, COLUMNS_READ)
            return int(count)

    before = columns_read()
    source = DueWheelDataSource({"dsn": broker.dsn, "topic": TOPIC, "minPartitions": "8"})
    reader = source.reader(source.schema())
    assert len(reader.partitions()) >= 8
    assert len(rows(reader)) == 80
    assert 60_000 <= columns_read() - before < 120_000


def text(connection: AdbcConnection, query: str) -> str:
    """The only value that a query returns."""
    with AdbcStatement(connection) as statement:
        statement.set_sql_query(query)
        stream, _ = statement.execute_query()
        with RecordBatchReader.from_stream(stream) as read:
            ((value,),) = (row.values() for row in read.read_all().to_pylist())
    return str(value)


def test_another_address_is_another_database(dsn: str) -> None:
    for name in ("one", "other", "one"):
        with arrow_connection(f"{dsn}?application_name={name}") as connection:
            assert text(connection, "select current_setting('application_name')") == name


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_has_connections_of_its_own(dsn: str) -> None:
    session = "select pg_backend_pid()::text"
    with arrow_connection(dsn) as connection:
        mine = text(connection, session)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with arrow_connection(dsn) as own:
                    status = 0 if text(own, session) != mine else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert text(connection, session) == mine
