"""Every kind of connection that a caller may have carries the broker's calls in its own transaction (X06)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import psycopg2
import pytest
from psycopg.rows import dict_row
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session
from tests.logins import login

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.values.errors import BrokerNotUpgraded, InvalidArgument, InvalidDelayLevel, UnknownTopic
from duewheel.store.values.messages import RecallOutcome

HOUR = timedelta(hours=1)
NOTHING = timedelta(0)

Open = Callable[[str], Any]


@contextmanager
def engine_of(driver: Any, dsn: str, orm: bool) -> Iterator[Any]:
    engine = create_engine(
        f"postgresql+{driver.__name__}://", creator=lambda: driver.connect(dsn), poolclass=NullPool
    )
    with Session(engine) if orm else engine.connect() as connection:
        yield connection


@contextmanager
def by_psycopg2(dsn: str) -> Iterator[Any]:
    connection = psycopg2.connect(dsn)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def by_psycopg3(dsn: str, **options: Any) -> Iterator[Any]:
    connection = psycopg.connect(dsn, **options)
    try:
        yield connection
    finally:
        connection.close()


KINDS: dict[str, Open] = {
    "psycopg2": by_psycopg2,
    "psycopg 3": by_psycopg3,
    "psycopg 3 with rows as dictionaries": lambda dsn: by_psycopg3(dsn, row_factory=dict_row),
    "Connection on psycopg2": lambda dsn: engine_of(psycopg2, dsn, orm=False),
    "Session on psycopg2": lambda dsn: engine_of(psycopg2, dsn, orm=True),
    "Connection on psycopg 3": lambda dsn: engine_of(psycopg, dsn, orm=False),
    "Session on psycopg 3": lambda dsn: engine_of(psycopg, dsn, orm=True),
}


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest) -> Open:
    return KINDS[request.param]


@pytest.fixture
def shop(broker: Broker) -> Broker:
    broker.create_topic("t")
    broker.create_topic("work", message_type="NORMAL")
    return broker


def waiting(shop: Broker, key: str) -> int:
    return len(list(shop.find_key("t", key)))


def test_x06_a_send_of_any_connection_commits_and_rolls_back_with_it(shop: Broker, opened: Open) -> None:
    with opened(shop.dsn) as mine:
        shop.send("t", "ü\0".encode(), delay=HOUR, key="k", properties={"a": [1]}, connection=mine)
        mine.rollback()
        assert waiting(shop, "k") == 0
        sent = shop.send("t", "ü\0".encode(), delay=HOUR, key="k", properties={"a": [1]}, connection=mine)
        assert waiting(shop, "k") == 0
        mine.commit()
    (found,) = shop.find_key("t", "k")
    assert (found.message_id, found.body) == (sent.message_id, "ü\0".encode())
    assert found.deliver_at == sent.deliver_at


def test_x06_the_first_call_of_a_broker_may_be_on_any_connection(shop: Broker, opened: Open) -> None:
    with Broker(shop.dsn) as fresh, opened(shop.dsn) as mine:
        fresh.send("t", b"", delay=HOUR, key="k", connection=mine)
        mine.commit()
    assert waiting(shop, "k") == 1


def test_the_first_call_on_any_connection_says_that_the_schema_is_missing(
    postgres: EmbeddedPostgres, opened: Open
) -> None:
    dsn = postgres.ensure_database("nothing_here")
    with Broker(dsn) as fresh, opened(dsn) as mine, pytest.raises(BrokerNotUpgraded, match="db upgrade"):
        fresh.send("t", b"", delay=HOUR, connection=mine)


@pytest.mark.parametrize("more", [{}, {"tag": "a"}, {"on_conflict": "replace"}])
def test_x06_many_of_any_connection(shop: Broker, opened: Open, more: dict[str, Any]) -> None:
    messages = [{"body": b"b", "delay": HOUR, "key": f"k{number}", **more} for number in range(20)]
    with opened(shop.dsn) as mine:
        receipts = shop.send_many("t", messages, connection=mine)
        assert waiting(shop, "k7") == 0
        mine.commit()
    (found,) = shop.find_key("t", "k7")
    assert found.message_id == receipts[7].message_id


def test_x06_many_of_a_producer_who_may_not_copy(shop: Broker, opened: Open) -> None:
    messages = [{"body": b"b", "delay": HOUR, "key": f"k{number}"} for number in range(20)]
    with opened(login(shop.dsn, "duewheel_producer")) as mine:
        receipts = shop.send_many("t", messages, connection=mine)
        mine.commit()
    (found,) = shop.find_key("t", "k7")
    assert (found.message_id, found.body) == (receipts[7].message_id, b"b")


def test_x06_recall_and_reschedule_of_any_connection(shop: Broker, opened: Open) -> None:
    sent = [shop.send("t", b"", delay=HOUR, key=key) for key in "ab"]
    with opened(shop.dsn) as mine:
        answer = shop.recall(sent[0].message_id, connection=mine)
        moved = shop.reschedule(sent[1].message_id, delay=2 * HOUR, connection=mine)
        mine.commit()
    assert answer.outcome is RecallOutcome.RECALLED
    assert shop.recall(moved.message_id).outcome is RecallOutcome.RECALLED


def test_x16_fence_and_ack_of_any_connection(shop: Broker, opened: Open) -> None:
    shop.send_many("work", [{"body": b""}] * 5)
    consumer = shop.consumer("work", "g")
    batch = consumer.receive(max_messages=5, wait=timedelta(seconds=30))
    with opened(shop.dsn) as mine:
        consumer.fence(batch, connection=mine)
        consumer.ack(batch, connection=mine)
        mine.commit()
    assert not consumer.receive(wait=NOTHING)


def test_an_error_of_the_broker_is_the_same_on_any_connection(shop: Broker, opened: Open) -> None:
    with opened(shop.dsn) as mine:
        with pytest.raises(UnknownTopic, match="nowhere"):
            shop.send("nowhere", b"", delay=HOUR, connection=mine)
        mine.rollback()
        with pytest.raises(InvalidDelayLevel):
            shop.send_many("t", [{"body": b"", "delay_level": -1}], mine)


def test_autocommit_of_psycopg3_sends_all_or_none_and_takes_no_fence(shop: Broker) -> None:
    with by_psycopg3(shop.dsn, autocommit=True) as mine:
        with pytest.raises(InvalidDelayLevel):
            shop.send_many(
                "t", [{"body": b"", "delay": HOUR, "key": "k"}, {"body": b"", "delay_level": -1}], mine
            )
        assert waiting(shop, "k") == 0
        shop.send_many("t", [{"body": b"", "delay": HOUR, "key": "k"}], mine)
        assert waiting(shop, "k") == 1
        shop.send("work", b"")
        batch = shop.consumer("work", "g").receive(wait=timedelta(seconds=30))
        with pytest.raises(InvalidArgument, match="begin a transaction first"):
            shop.consumer("work", "g").fence(batch, connection=mine)


def test_a_statement_of_the_caller_commits_with_the_message(shop: Broker) -> None:
    with engine_of(psycopg, shop.dsn, orm=True) as session:
        session.execute(text("create table orders (number integer)"))
        shop.send("t", b"", delay=HOUR, key="k", connection=session)
        session.rollback()
        assert waiting(shop, "k") == 0


def test_no_driver_is_imported_for_the_callers_of_another() -> None:
    program = (
        "import sys, duewheel.store.broker as b; b.Broker;print({'psycopg', 'sqlalchemy'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "set()"
