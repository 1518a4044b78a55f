"""Every kind of connection that a caller may have carries the broker's calls in its own transaction (X06)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import psycopg2
import pytest
from psycopg.rows import dict_row
from sqlalchemy import NullPool, create_engine
from sqlalchemy.orm import Session
from tests.acting import HOUR, SECOND
from tests.logins import login

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.values.errors import BrokerNotUpgraded, InvalidArgument, InvalidDelayLevel, UnknownTopic
from duewheel.store.values.messages import RecallOutcome

Open = Callable[[str], Any]


@contextmanager
def engine_of(driver: Any, dsn: str, orm: bool) -> Iterator[Any]:
    engine = create_engine(
        f"postgresql+{driver.__name__}://", creator=lambda: driver.connect(dsn), poolclass=NullPool
    )
    with Session(engine) if orm else engine.connect() as connection:
        yield connection


def by_psycopg2(dsn: str) -> Any:
    return closing(psycopg2.connect(dsn))


def by_psycopg3(dsn: str, **options: Any) -> Any:
    return closing(psycopg.connect(dsn, **options))


KINDS: dict[str, Open] = {
    "psycopg2": by_psycopg2,
    "psycopg 3": by_psycopg3,
    "psycopg 3 with rows as dictionaries": lambda dsn: by_psycopg3(dsn, row_factory=dict_row),
    "Connection on psycopg2": lambda dsn: engine_of(psycopg2, dsn, orm=False),
    "Session on psycopg2": lambda dsn: engine_of(psycopg2, dsn, orm=True),
    "Connection on psycopg 3": lambda dsn: engine_of(psycopg, dsn, orm=False),
    "Session on psycopg 3": lambda dsn: engine_of(psycopg, dsn, orm=True),
}


@pytest.fixture
def shop(broker: Broker) -> Broker:
    broker.create_topic("t")
    broker.create_topic("work", message_type="NORMAL")
    return broker


def waiting(shop: Broker, key: str) -> int:
    return len(list(shop.find_key("t", key)))


@pytest.mark.parametrize("kind", KINDS)
def test_x06_x16_any_connection_carries_calls_in_its_transaction(shop: Broker, kind: str) -> None:
    opened = KINDS[kind]
    given: dict[str, Any] = {"delay": HOUR, "key": "k", "properties": {"a": [1]}}
    with Broker(shop.dsn) as fresh, opened(shop.dsn) as mine:
        # The first call of a broker may be on any connection.
        fresh.send("t", "ü\0".encode(), **given, connection=mine)
        mine.rollback()
        assert waiting(shop, "k") == 0
        sent = shop.send("t", "ü\0".encode(), **given, connection=mine)
        assert waiting(shop, "k") == 0
        mine.commit()
        (found,) = shop.find_key("t", "k")
        assert (found.message_id, found.body) == (sent.message_id, "ü\0".encode())
        assert found.deliver_at == sent.deliver_at
        # By COPY, one by one, and one by one under locks of their keys.
        for name, more in (("c", {}), ("o", {"tag": "a"}), ("r", {"on_conflict": "replace"})):
            messages = [{"body": b"b", "delay": HOUR, "key": f"{name}{n}", **more} for n in range(9)]
            receipts = shop.send_many("t", messages, connection=mine)
            assert waiting(shop, f"{name}7") == 0
            mine.commit()
            (found,) = shop.find_key("t", f"{name}7")
            assert found.message_id == receipts[7].message_id
        answer = shop.recall(sent.message_id, connection=mine)
        moved = shop.reschedule(receipts[1].message_id, delay=2 * HOUR, connection=mine)
        mine.commit()
        assert answer.outcome is RecallOutcome.RECALLED
        assert shop.recall(moved.message_id).outcome is RecallOutcome.RECALLED
        shop.send_many("work", [{"body": b""}] * 5)
        consumer = shop.consumer("work", "g")
        batch = consumer.receive(max_messages=5, wait=30 * SECOND)
        consumer.fence(batch, connection=mine)
        consumer.ack(batch, connection=mine)
        mine.commit()
        assert not consumer.receive()
        with pytest.raises(UnknownTopic, match="nowhere"):
            shop.send("nowhere", b"", delay=HOUR, connection=mine)
        mine.rollback()
        with pytest.raises(InvalidDelayLevel):
            shop.send_many("t", [{"body": b"", "delay_level": -1}], mine)
    with opened(login(shop.dsn, "duewheel_producer")) as mine:
        # A producer may not copy.
        messages = [{"body": b"p", "delay": HOUR, "key": f"p{number}"} for number in range(9)]
        receipts = shop.send_many("t", messages, connection=mine)
        mine.commit()
    (found,) = shop.find_key("t", "p7")
    assert (found.message_id, found.body) == (receipts[7].message_id, b"p")


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_call_on_any_connection_reports_a_lost_schema(
    postgres: EmbeddedPostgres, kind: str
) -> None:
    dsn = postgres.ensure_database("nothing_here")
    with Broker(dsn) as fresh, KINDS[kind](dsn) as mine, pytest.raises(BrokerNotUpgraded, match="db upgrade"):
        fresh.send("t", b"", delay=HOUR, connection=mine)


def test_psycopg3_autocommit_sends_all_or_none_and_has_no_fence(shop: Broker) -> None:
    with by_psycopg3(shop.dsn, autocommit=True) as mine:
        with pytest.raises(InvalidDelayLevel):
            shop.send_many(
                "t", [{"body": b"", "delay": HOUR, "key": "k"}, {"body": b"", "delay_level": -1}], mine
            )
        assert waiting(shop, "k") == 0
        shop.send_many("t", [{"body": b"", "delay": HOUR, "key": "k"}], mine)
        assert waiting(shop, "k") == 1
        shop.send("work", b"")
        batch = shop.consumer("work", "g").receive(wait=30 * SECOND)
        with pytest.raises(InvalidArgument, match="begin a transaction first"):
            shop.consumer("work", "g").fence(batch, connection=mine)


def test_no_driver_is_imported_for_the_callers_of_another() -> None:
    late = {"psycopg", "sqlalchemy", "alembic"}
    program = f"import sys, duewheel.store.broker as b; b.Broker; print({late} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "set()"
