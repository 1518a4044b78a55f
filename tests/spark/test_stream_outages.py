"""A stream whose broker is away for a while: its driver waits, and goes on."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from psycopg2.extensions import make_dsn, parse_dsn
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.conftest import execute
from tests.logged import logged
from tests.outages import outage
from tests.servers import base_backup, copied_server
from tests.spark.test_stream import TOPIC, Lake, between, reader, send
from tests.waiting import beside, until

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.spark.stream_reader import MessageStreamReader
from duewheel.store.broker import Broker
from duewheel.store.values.errors import BrokerUnreachable

LOG = "duewheel.spark.outages"

Offset = dict[str, Any]
QUESTIONS: dict[str, Callable[[MessageStreamReader, Offset, Offset], object]] = {
    "initialOffset": lambda stream, start, end: stream.initialOffset(),
    "latestOffset": lambda stream, start, end: stream.latestOffset(start, ReadAllAvailable()),
    "partitions": lambda stream, start, end: stream.partitions(start, end),
    "commit": lambda stream, start, end: stream.commit(end),
}


@pytest.mark.parametrize(
    "is_new",
    [pytest.param(False, id="connected"), pytest.param(True, id="new", marks=pytest.mark.long)],
)
def test_x14_driver_of_a_stream_waits_for_its_broker(
    orders: Broker, postgres: EmbeddedPostgres, is_new: bool
) -> None:
    """Also one that has just begun, as that of a query which starts again from its checkpoint."""
    send(orders, range(50))
    streams, offsets, expected = {}, {}, {}
    for name, question in QUESTIONS.items():
        stream = streams[name] = reader(orders, group=name)
        start = stream.initialOffset()
        offsets[name] = start, stream.latestOffset(start, ReadAllAvailable())
        if is_new:
            streams[name] = reader(orders, group=name)
        expected[name] = question(stream, *offsets[name])

    with logged(LOG, "next attempt in") as failed, beside() as begin:
        with outage(postgres, orders.dsn):
            answers = {
                name: begin(partial(question, streams[name], *offsets[name]))
                for name, question in QUESTIONS.items()
            }
            until(lambda: failed.count >= len(QUESTIONS), "each to have failed")
            assert not any(answer.done() for answer in answers.values())
        assert {name: answer.result() for name, answer in answers.items()} == expected
    for name, stream in streams.items():
        assert between(stream, *offsets[name]) == list(range(50))
        stream.commit(offsets[name][1])
        stream.stop()


@pytest.mark.long
def test_driver_of_a_stream_gives_up_in_the_end(orders: Broker, postgres: EmbeddedPostgres) -> None:
    send(orders, range(50))
    asked = []
    for name, question in QUESTIONS.items():
        stream = reader(orders, group=name, reconnectSeconds="1")
        start = stream.initialOffset()
        asked.append(partial(question, stream, start, stream.latestOffset(start, ReadAllAvailable())))

    with outage(postgres, orders.dsn), logged(LOG, "next attempt in") as failed, beside() as begin:
        for answer in [begin(question) for question in asked]:
            with pytest.raises(BrokerUnreachable):
                answer.result()
    assert failed.count > len(QUESTIONS)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for servers."""
    folder = Path(tempfile.mkdtemp(prefix="duewheel-copies-"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.long
def test_x14_a_stream_fails_over_to_a_standby(folder: Path, spark: SparkSession, tmp_path: Path) -> None:
    """A query that runs meanwhile: it reads on where it was."""
    settings = {
        "wal_level": "replica",
        "max_wal_senders": 4,
        "hot_standby": "on",
        # Shared memory goes with the folder of a server that is killed and never started again.
        "dynamic_shared_memory_type": "mmap",
    }
    primary = EmbeddedPostgres(folder / "primary", settings=settings)
    with primary:
        dsn = primary.ensure_database("duewheel")
        base_backup(primary, folder / "standby", "--write-recovery-conf", "--wal-method=stream")
        with copied_server(folder / "standby", primary, dsn) as standby:
            standby.wait_until_ready(promoted=False)
            hosts = [parse_dsn(dsn), parse_dsn(standby.dsn)]
            both = make_dsn(
                dsn,
                host=",".join(host["host"] for host in hosts),
                port=",".join(host["port"] for host in hosts),
                target_session_attrs="read-write",
            )
            with Broker(both) as broker:
                broker.upgrade()
                broker.create_topic(TOPIC)
                send(broker, range(50))
                lake = Lake(spark, broker, tmp_path)
                query = lake.start()
                try:
                    until(lambda: lake.keys() == list(range(50)), "the first messages")
                    ((reached,),) = execute(dsn, "select pg_current_wal_insert_lsn()::text")
                    until(
                        lambda: (
                            execute(standby.dsn, "select pg_last_wal_replay_lsn() >= %s::pg_lsn", reached)
                            == [(True,)]
                        ),
                        "the standby",
                    )
                    assert primary.pid is not None
                    os.kill(primary.pid, signal.SIGKILL)
                    execute(standby.dsn, "select pg_promote()")
                    standby.wait_until_ready(promoted=True)
                    send(broker, range(50, 80))
                    until(lambda: lake.keys() == list(range(80)), "the messages after the failover")
                finally:
                    query.stop()


@pytest.mark.long
@pytest.mark.slow
def test_a_query_can_be_stopped_while_its_broker_is_away(
    orders: Broker, postgres: EmbeddedPostgres, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, orders, tmp_path)
    send(orders, range(10))
    query = lake.start()
    until(lambda: lake.keys() == list(range(10)), "the first messages")
    with outage(postgres, orders.dsn):
        query.stop()
        assert not query.isActive
        assert query.exception() is None
    lake.run()
    assert lake.keys() == list(range(10))
