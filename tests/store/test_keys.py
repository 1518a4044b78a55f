"""A look at the messages of a key costs the same whatever the key once had, and misses none."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.acting import HOUR, bodies, rows, taken
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store import Broker, RecallOutcome, SendOutcome
from duewheel.store.database.connections import DriverConnection
from duewheel.store.values.errors import AlreadyReleased, UnknownMessage

#: Rows that one call reads by any way, in all tables together; a key had fifty times as many.
ROWS_OF_ONE_CALL = 200

REPLACED = """
with sent as (
    insert into duewheel.far_message (topic_id, queue, deliver_at, seq, born_at, key, body)
    select t.topic_id, 0, %s + n * interval '1 millisecond', n * 65536, %s, 'k', 'x'
    from duewheel.topic t, generate_series(1, 10000) n where t.name = 't'
    returning topic_id, queue, deliver_at, seq
)
insert into duewheel.recall (topic_id, queue, deliver_at, seq, bulk, recalled_at)
select topic_id, queue, deliver_at, seq, true, %s from sent
"""
ROWS_READ = """
select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint
from pg_stat_xact_user_tables where schemaname = 'duewheel'
"""
SEND = """
select outcome from duewheel.send('t', 'x'::text, delay => '1 hour', key => 'k', on_conflict => %s, now => %s)
"""


@pytest.fixture
def marking(topic: Broker) -> Broker:
    """The broker ``topic``, where each look at a key marks what is over."""
    rows(topic, "create or replace function duewheel.key_mark_after() returns integer return 0")
    return topic


def rows_read(connection: DriverConnection, statement: str, *parameters: object) -> tuple[Any, int]:
    """The answer, and how many rows it took."""
    ((before,),) = ask(connection, ROWS_READ)
    ((answer,),) = ask(connection, statement, *parameters)
    ((after,),) = ask(connection, ROWS_READ)
    connection.commit()
    return answer, after - before


def send(broker: Broker, body: str, on_conflict: str = "replace", **more: object) -> SendOutcome:
    return broker.send("t", body, delay=HOUR, key="k", on_conflict=on_conflict, **more).outcome  # type: ignore[arg-type]


def waiting(broker: Broker) -> list[bytes]:
    return [message.body for message in broker.find_key("t", "k") if not message.recalled]


@pytest.mark.owner
def test_a_call_by_key_costs_the_same_after_10_000_replaces(topic: Broker, clock: Clock) -> None:
    now = clock()
    with connected(topic.dsn, autocommit=False) as connection:
        ask(connection, REPLACED, now + HOUR, now, now)
        connection.commit()
        assert rows_read(connection, SEND, "replace", now)[0] == "sent"
        for on_conflict, outcome in [("replace", "replaced")] * 100 + [("keep", "kept")] * 3:
            found, count = rows_read(connection, SEND, on_conflict, now)
            assert found == outcome
            assert count < ROWS_OF_ONE_CALL
        moved = "select outcome from duewheel.reschedule_key('t', 'k', delay => '1 hour', now => %s)"
        assert rows_read(connection, moved, now) < ("sent", ROWS_OF_ONE_CALL)
        recall = "select outcome from duewheel.recall_key('t', 'k', now => %s)"
        for _ in range(3):
            found, count = rows_read(connection, recall, now)
            assert found == "recalled"
            assert count < ROWS_OF_ONE_CALL
        assert rows_read(connection, SEND, "keep", now) < ("sent", ROWS_OF_ONE_CALL)


@pytest.mark.owner
def test_x04_a_message_sent_during_a_mark_is_replaced(marking: Broker) -> None:
    with (
        connected(marking.dsn, autocommit=False) as open_one,
        connected(marking.dsn, autocommit=False) as another,
    ):
        send(marking, "late", "allow", connection=open_one)
        send(marking, "never", "allow", connection=another)
        for number in range(3):
            send(marking, f"{number}")
        open_one.commit()
        another.rollback()
    assert waiting(marking) == [b"late", b"2"]
    assert send(marking, "last") is SendOutcome.REPLACED
    assert waiting(marking) == [b"last"]


@pytest.mark.owner
def test_x04_a_mark_goes_with_the_recalls_of_its_transaction(marking: Broker) -> None:
    send(marking, "1")
    send(marking, "2")
    with connected(marking.dsn, autocommit=False) as connection:
        marking.recall_key("t", "k", connection=connection)
        ask(connection, "savepoint a")
        marking.recall_key("t", "k", connection=connection)
        send(marking, "3", connection=connection)
        ask(connection, "rollback to savepoint a")
        assert send(marking, "4", connection=connection) is SendOutcome.SENT
        assert send(marking, "5", connection=connection) is SendOutcome.REPLACED
        connection.rollback()
    assert waiting(marking) == [b"2"]
    assert marking.recall_key("t", "k").outcome is RecallOutcome.RECALLED


@pytest.mark.owner
def test_x02_a_key_finds_marked_messages_until_they_are_dropped(marking: Broker, clock: Clock) -> None:
    marking.update_topic("t", retention=timedelta(hours=2))
    consumer = marking.consumer("t", "g")
    send(marking, "0")
    send(marking, "1")
    clock.advance(2 * HOUR)
    assert bodies(taken(consumer)) == [b"1"]
    for _ in range(3):
        assert marking.recall_key("t", "k").outcome is RecallOutcome.ALREADY_RELEASED
        with pytest.raises(AlreadyReleased):
            marking.reschedule_key("t", "k", delay=HOUR)
    clock.advance(timedelta(days=4))
    marking.tick("t")
    for _ in range(5):
        marking.maintain()
    assert marking.find_key("t", "k") == []
    assert marking.recall_key("t", "k").outcome is RecallOutcome.NOT_FOUND
    with pytest.raises(UnknownMessage):
        marking.reschedule_key("t", "k", delay=HOUR)


@pytest.mark.owner
def test_marks_are_forgotten_and_what_they_were_for_stays_true(marking: Broker, clock: Clock) -> None:
    marking.update_topic("t", max_delay=timedelta(days=30))
    for number in range(3):
        marking.send("t", f"{number}", delay=timedelta(days=20), key="k", on_conflict="replace")
    with connected(marking.dsn) as connection:
        assert ask(connection, "select count(*) > 0 from duewheel.key_mark") == [(True,)]
        ask(connection, "update duewheel.key_mark set marked_at = %s", clock())
        clock.advance(timedelta(days=8))
        marking.maintain()
        assert ask(connection, "select count(*) from duewheel.key_mark") == [(0,)]
    assert send(marking, "new") is SendOutcome.REPLACED
    assert waiting(marking) == [b"new"]


@pytest.mark.owner
def test_x14_a_key_is_looked_at_anew_when_the_broker_has_moved(marking: Broker) -> None:
    send(marking, "0")
    send(marking, "1")
    rows(marking, "update duewheel.broker set system_identifier = 1")
    assert marking.rebase().rebased
    assert send(marking, "2") is SendOutcome.REPLACED
    assert waiting(marking) == [b"2"]
