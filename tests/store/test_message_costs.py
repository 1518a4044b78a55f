"""What a message costs is what docs/measuring.md says."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import execute
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duewheel.embedded.postgres import EmbeddedPostgres
    from duewheel.store.broker import Broker

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "measuring.md").read_text()
COUNT = 10_000
BODY = b"x" * 100

SIZE = """
select sum(pg_total_relation_size(oid)) from pg_class
where relnamespace = 'duewheel'::regnamespace and relkind = 'r'
"""
LOGS = """
select sum(pg_total_relation_size(('duewheel.' || name)::regclass))
from unnest(array['tick', 'straggler', 'lease', 'lease_event', 'lease_extension', 'lease_answer']) name
"""
WAL = "select pg_current_wal_insert_lsn() - '0/0'"

#: How far a figure may be off: a page that is counted whole, a vacuum that runs beside, another machine.
BYTES_OFF = 0.1
#: Files that grow by a page: the logs that single messages leave, and their indexes.
FILES_OF_LOGS = 7


def row(what: str) -> list[float]:
    """The figures of a table's row."""
    (cells,) = re.findall(rf"^\| {re.escape(what)} \|(.+)\|$", PAGE, re.MULTILINE)
    return [float(cell) for cell in cells.split("|")]


def ask(broker: Broker, question: str) -> Any:
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute(question)
        ((answer,),) = cursor.fetchall()
        return answer


@pytest.fixture
def no_autovacuum(postgres: EmbeddedPostgres) -> Iterator[None]:
    """What it writes would count as the messages' WAL; the embedded server has it off, others have it on."""
    execute(postgres.dsn(), "alter system set autovacuum = off")
    execute(postgres.dsn(), "select pg_reload_conf()")
    at_work = "select from pg_stat_activity where backend_type like 'autovacuum %'"
    until(lambda: not execute(postgres.dsn(), at_work), "autovacuum to end")
    yield
    execute(postgres.dsn(), "alter system reset autovacuum")
    execute(postgres.dsn(), "select pg_reload_conf()")


def send(broker: Broker, topic: str, first: int, count: int, *, keyed: bool) -> None:
    broker.send_many(
        topic,
        [
            {"body": BODY, "delay": timedelta(0), "key": f"order-{number}" if keyed else None}
            for number in range(first, first + count)
        ],
    )


@pytest.mark.slow
@pytest.mark.owner
@pytest.mark.usefixtures("no_autovacuum")
@pytest.mark.parametrize("keyed", [False, True])
def test_bytes_per_message(broker: Broker, keyed: bool) -> None:
    broker.create_topic("t")
    # The first pages, and what a first call makes.
    send(broker, "t", 0, 1000, keyed=keyed)
    size = ask(broker, SIZE)
    # The server's WAL is that of all its databases; other tests write into few of these portions.
    sent: list[float] = []
    handled: list[float] = []
    done = 0
    for first in range(1000, 1000 + COUNT, 1000):
        wal = ask(broker, WAL)
        send(broker, "t", first, 1000, keyed=keyed)
        sent.append(float(ask(broker, WAL) - wal) / 1000)
    stored = float(ask(broker, SIZE) - size) / COUNT
    consumer = broker.consumer("t", "g")
    while True:
        wal = ask(broker, WAL)
        batch = consumer.receive(1000)
        if not batch:
            break
        consumer.ack(batch)
        handled.append(float(ask(broker, WAL) - wal) / len(batch))
        done += len(batch)

    assert done == 1000 + COUNT
    assert stored == pytest.approx(row("stored on disk, indexes included")[keyed], rel=BYTES_OFF)
    assert median(sent) == pytest.approx(row("WAL of `send_many`")[keyed], rel=BYTES_OFF)
    assert median(handled) < 2 * row("WAL of receive and ack, in batches of 1 000")[keyed]


@pytest.mark.long
@pytest.mark.owner
@pytest.mark.usefixtures("no_autovacuum")
@pytest.mark.parametrize(("at_a_time", "times"), [(1, 1000), (2, 500), (10, 100), (100, 15)])
def test_bytes_of_logs_and_wal_by_messages_received_at_a_time(
    broker: Broker, at_a_time: int, times: int
) -> None:
    broker.create_topic("t", queues=1)
    consumer = broker.consumer("t", "g")

    def handle(count: int) -> float:
        """The WAL per message; the median, as some write a whole page."""
        written: list[float] = []
        for _ in range(count):
            wal = ask(broker, WAL)
            for _ in range(at_a_time):
                broker.send("t", BODY, delay=timedelta(0))
            batch = consumer.receive(at_a_time)
            assert len(batch) == at_a_time
            consumer.ack(batch)
            assert not consumer.receive(1)
            written.append(float(ask(broker, WAL) - wal) / at_a_time)
        return median(written)

    # The first pages.
    handle(times // 5)
    logs = ask(broker, LOGS)
    wal = handle(times)
    (cells,) = re.findall(rf"^\| {at_a_time}(?:,[^|]*)? \| ([\d ]+) \| ([\d ]+) \|$", PAGE, re.MULTILINE)
    said_logs, said_wal = (float(cell.replace(" ", "")) for cell in cells)
    assert wal == pytest.approx(said_wal, rel=BYTES_OFF)
    assert float(ask(broker, LOGS) - logs) / (times * at_a_time) == pytest.approx(
        said_logs, rel=BYTES_OFF, abs=FILES_OF_LOGS * 8192 / (times * at_a_time)
    )
    # A lease without messages would only move the position.
    assert ask(broker, "select count(*) from duewheel.lease where n > 0 and message_count = 0") == 0
