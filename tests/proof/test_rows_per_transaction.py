"""No transaction's work grows with what waits.

Each entry point of the SQL API, and each step of upkeep, is called where ten and where a hundred portions
wait. Postgres counts the rows that a transaction reads in tables and indexes and writes. That count may not
grow. Nothing here measures time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg2
import pytest
from tests.acting import AT_ONCE, DAY, HOUR, MINUTE, SECOND, TICKS_ANYWHERE
from tests.clock import Clock, believe
from tests.conftest import drop_database
from tests.upkeeping import only
from tests.waiting import ask, connected

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.wheel.upkeep import STEP

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.owner]

PORTION = 2_000
FEW, MANY = 10 * PORTION, 100 * PORTION
#: Of a tree that is a level higher, and of what a plan looks up.
MORE_ROWS = 500

#: The portions that are not parameters, made as small as the others.
SMALL_PORTIONS = f"""
create or replace function duewheel.late_limit() returns integer language sql immutable
return {PORTION};
create or replace function duewheel.portion() returns integer language sql immutable
return {PORTION};
"""
READ_AND_WRITTEN = """
select sum(pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid)
           + pg_stat_get_xact_tuples_deleted(c.oid) + pg_stat_get_xact_tuples_fetched(c.oid)
           + pg_stat_get_xact_tuples_returned(c.oid))::bigint
from pg_class c where c.relnamespace = 'duewheel'::regnamespace and c.relkind in ('r', 'i')
"""


@dataclass
class Shop:
    """A database in which so much waits, of each kind on a topic of its own."""

    dsn: str
    now: datetime
    #: Names in the statements below.
    names: dict[str, Any]

    def rows_of(self, statement: str) -> int:
        """The rows that a transaction reads and writes which runs this alone; it is rolled back."""
        with closing(psycopg2.connect(self.dsn)) as connection, connection.cursor() as cursor:
            cursor.execute(statement.format(**self.names), {"now": self.now})
            ((count,),) = ask(connection, READ_AND_WRITTEN)
            connection.rollback()
        return int(count)


def fill(broker: Broker, clock: Clock, count: int) -> dict[str, Any]:
    """So much waits of each kind; returns names of some."""
    chunk = 10_000

    def send(topic: str, **fields: Any) -> None:
        for first in range(0, count, chunk):
            broker.send_many(
                topic, [{"body": b"", "key": f"{topic}-{first + n}", **fields} for n in range(chunk)]
            )

    for topic in ("unread", "recalled", "waiting", "retried", "dead", "late", "past"):
        broker.create_topic(topic, queues=1, max_delay=30 * DAY)
    broker.create_topic("ordered", message_type="FIFO", queues=1)
    consumers = {topic: broker.consumer(topic, "g") for topic in ("unread", "recalled", "retried", "dead")}
    ordered = broker.consumer("ordered", "g")
    broker.maintain()
    send("unread", delay=AT_ONCE)
    send("recalled", delay=HOUR)
    broker.recall_many("recalled", everything=True)
    last = broker.send("recalled", b"last", delay=HOUR + MINUTE)
    send("waiting", delay=2 * DAY)
    waiting = broker.send("waiting", b"one", delay=2 * DAY, key="one")
    for topic, delay in (("retried", 10 * DAY), ("dead", None)):
        send(topic, delay=AT_ONCE)
        clock.advance(SECOND)
        while batch := consumers[topic].receive(chunk, invisible=HOUR):
            if delay:
                consumers[topic].nack(batch, delay=delay)
            else:
                consumers[topic].dead_letter(batch, reason="why")
    with connected(broker.dsn, autocommit=False) as sending:
        for _ in range(0, count, chunk):
            broker.send_many("late", [{"body": b"", "delay": SECOND}] * chunk, connection=sending)
        broker.send("late", b"", delay=SECOND)
        clock.advance(MINUTE)
        broker.tick("late")
        sending.commit()
    for first in range(0, count, chunk):
        broker.send_many("ordered", [{"body": b"", "message_group": f"{first + n}"} for n in range(chunk)])
    clock.advance(2 * HOUR)
    for topic in ("unread", "recalled", "retried", "ordered"):
        broker.tick(topic)
    ordered.nack(ordered.receive(10), delay=DAY)
    with connected(broker.dsn) as owner:
        ask(owner, "analyze")
        ((late_id,),) = ask(owner, "select topic_id from duewheel.topic where name = 'late'")
        receive = "select receipt_handle from duewheel.receive('unread', 'g', '*', 1, '2 h', now => %s)"
        ((handle,),) = ask(owner, receive, clock())
    return {
        "waiting": waiting.message_id,
        "last": last.message_id,
        "handle": handle,
        "late": late_id,
    }


@pytest.fixture(scope="module")
def shops(
    postgres: EmbeddedPostgres, fresh_database: Callable[[], tuple[str, str]]
) -> Iterator[tuple[Shop, Shop]]:
    """One with ten portions of each kind, and one with a hundred."""
    made, names = [], []
    for count in (FEW, MANY):
        name, dsn = fresh_database()
        names.append(name)
        clock = Clock(datetime.fromisoformat("2026-01-05T10:30:00+00:00"))
        believe(dsn, clock())
        clock.upkeep_dsn = dsn
        with Broker(dsn, clock=clock) as broker:
            found = fill(broker, clock, count)
        with connected(dsn) as owner:
            ask(owner, TICKS_ANYWHERE)
            ask(owner, SMALL_PORTIONS)
        made.append(Shop(dsn, clock(), found))
    yield made[0], made[1]
    for name in names:
        drop_database(postgres, name)


#: What any program may call. {waiting} is a message id, {handle} a receipt handle.
CALLS = {
    "ack": "select duewheel.ack(array['{handle}'], now => %(now)s)",
    "change_invisible_duration": (
        "select duewheel.change_invisible_duration(array['{handle}'], '1 min', now => %(now)s)"
    ),
    "nack": "select duewheel.nack(array['{handle}'], now => %(now)s)",
    "dead_letter": "select duewheel.dead_letter(array['{handle}'], now => %(now)s)",
    "receive": "select * from duewheel.receive('unread', 'g', now => %(now)s)",
    "receive of recalled": "select * from duewheel.receive('recalled', 'g', now => %(now)s)",
    "receive of retried": "select * from duewheel.receive('retried', 'g', now => %(now)s)",
    "receive of ordered": "select * from duewheel.receive('ordered', 'g', now => %(now)s)",
    "send": "select duewheel.send('waiting', 'x'::text, delay => '1 day', key => 'one', now => %(now)s)",
    "send, replacing": (
        "select duewheel.send('waiting', 'x'::text, delay => '1 day', key => 'one', on_conflict => 'replace',"
        " now => %(now)s)"
    ),
    "find": "select * from duewheel.find('{waiting}')",
    "find_key": "select * from duewheel.find_key('waiting', 'one')",
    "history": "select * from duewheel.history('{waiting}', now => %(now)s)",
    "recall": "select duewheel.recall('{waiting}', %(now)s)",
    "recall_key": "select duewheel.recall_key('waiting', 'one', %(now)s)",
    "reschedule": "select duewheel.reschedule('{waiting}', delay => '1 day', now => %(now)s)",
    "reschedule_key": "select duewheel.reschedule_key('waiting', 'one', delay => '1 day', now => %(now)s)",
    "dead_letter_page": "select * from duewheel.dead_letter_page('g')",
    "list_messages": "select * from duewheel.list_messages('waiting')",
    "topic_stats": "select * from duewheel.topic_stats(now => %(now)s)",
    "group_stats": "select * from duewheel.group_stats(now => %(now)s)",
    "group_doorbells": (
        "select * from duewheel.group_doorbells(array['unread', 'recalled', 'retried', 'ordered'],"
        " array['g', 'g', 'g', 'g'], p_now => %(now)s)"
    ),
    "tick of late": "select duewheel.tick_topic({late}, %(now)s)",
    "rewind": "select * from duewheel.rewind('g', 'unread', start => 'earliest', now => %(now)s)",
    "rewind of retried": "select * from duewheel.rewind('g', 'retried', start => 'earliest', now => %(now)s)",
    "rewind of ordered": "select * from duewheel.rewind('g', 'ordered', start => 'earliest', now => %(now)s)",
    "pause_group": "select duewheel.pause_group('g', 'unread', now => %(now)s)",
    "delete_group": "select duewheel.delete_group('g', 'retried')",
    "delete_topic": "select duewheel.delete_topic('retried')",
    "update_topic": "select duewheel.update_topic('unread', retention => '2 days')",
    "subscribe": "select duewheel.subscribe('unread', 'new', p_now => %(now)s)",
    "settings": "select duewheel.settings(%(now)s)",
    "upkeep_holders": "select duewheel.upkeep_holders(%(now)s)",
    "upkeep_state": "select duewheel.upkeep_state(%(now)s)",
}


def grows(few: int, many: int) -> bool:
    return many > 2 * few + MORE_ROWS


def test_x25_no_call_reads_or_writes_more_where_more_waits(shops: tuple[Shop, Shop]) -> None:
    few, many = shops
    counted = {name: (few.rows_of(statement), many.rows_of(statement)) for name, statement in CALLS.items()}
    growing = {name for name, rows in counted.items() if grows(*rows)}
    assert growing == set(), "\n".join(f"{name}: {rows}" for name, rows in counted.items())


STEPS = (
    *("prepare", "settle", "note_over", "sweep", "watch", "forget"),
    *("move_out", "drop", "drop_over_limit", "forget_outlived", "report"),
)


def test_x25_no_step_of_upkeep_does_more_where_more_is_over(shops: tuple[Shop, Shop]) -> None:
    """Its first portion, and each further one, after forty days."""
    most: dict[str, list[int]] = {}
    for shop in shops:
        now = shop.now + 40 * DAY
        believe(shop.dsn, now)
        for step in STEPS:
            state, largest = only(step), 0
            with closing(psycopg2.connect(shop.dsn)) as connection:
                while not state.get("finished"):
                    # The session may not have handed over the rows of the last transaction yet.
                    ((before,),) = ask(connection, READ_AND_WRITTEN)
                    ((state,),) = ask(connection, STEP, json.dumps(state), PORTION, now)
                    ((count,),) = ask(connection, READ_AND_WRITTEN)
                    largest = max(largest, int(count - before))
                    connection.commit()
            assert state["failed"] == []
            with connected(shop.dsn) as autovacuum, autovacuum.cursor() as cursor:
                # Else the next scan would visit the index entries of all rows that the step has moved.
                cursor.execute("vacuum")
            most.setdefault(step, []).append(largest)
    growing = {step for step, (few, many) in most.items() if grows(few, many)}
    assert growing == set(), "\n".join(f"{step}: {rows}" for step, rows in most.items())
