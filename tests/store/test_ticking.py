"""A tick is a transaction of its own, so nobody's open transaction keeps others from releasing."""

from __future__ import annotations

import os
import signal
from typing import Any

import psycopg2
import pytest
from tests.acting import AT_ONCE, DAY, HOUR, rows
from tests.clock import Clock
from tests.waiting import STOP, ask, beside, connected, until

from duewheel.store import ClockSetBack, RecallOutcome, SendOutcome, SendReceipt, TickInTransaction
from duewheel.store.broker import Broker
from duewheel.store.database.connections import OWN_TRANSACTION
from duewheel.store.values.errors import from_database

#: The advisory locks that a session holds.
LOCKS = "select count(*) from pg_locks where locktype = 'advisory' and pid = %s"


@pytest.fixture
def topic(broker: Broker) -> Broker:
    broker.create_topic("t", queues=1)
    broker.consumer("t", "g")
    broker.consumer("t", "other")
    return broker


def until_stopped(dsn: str) -> None:
    """Return once a backend waits for lock 1."""
    with connected(dsn) as console:
        until(
            lambda: ask(
                console,
                "select 1 from pg_locks where locktype = 'advisory' and not granted"
                " and (classid, objid, objsubid) = (0, 1, 1)",
            ),
            "a backend to be stopped",
        )


def test_x18_a_tick_in_a_transaction_block_locks_nothing(topic: Broker) -> None:
    topic.send("t", b"first", delay=AT_ONCE)
    with connected(topic.dsn, autocommit=False) as holder, connected(topic.dsn) as console:
        for call in ("tick('t')", "tick_group(1, 1)", "tick_groups(array['t'], array['g'])"):
            with pytest.raises(psycopg2.errors.InvalidTransactionTermination):
                ask(holder, f"call duewheel.{call}")
            assert ask(console, LOCKS, holder.info.backend_pid) == [(0,)]
            holder.rollback()
    assert topic.tick("t")


def test_x18_a_tick_inside_a_transaction_of_others_is_refused(topic: Broker) -> None:
    topic.send("t", b"first", delay=AT_ONCE)
    writes = "create temp table order_lines (id integer)"
    with connected(topic.dsn, autocommit=False) as holder:
        for before, begun in (("select 1", ""), (writes, ""), (writes, OWN_TRANSACTION)):
            ask(holder, before)
            with pytest.raises(psycopg2.Error) as caught:
                ask(holder, f"{begun}select duewheel.tick_topic(1)")
            assert isinstance(from_database(caught.value), TickInTransaction)
            holder.rollback()
    assert topic.tick("t")


def test_x18_each_tick_of_a_procedure_is_committed_by_itself(topic: Broker) -> None:
    """In a loop of statements its locks end with each, though the loop goes on."""
    topic.send("t", b"first", delay=AT_ONCE)
    with connected(topic.dsn) as ticker, connected(topic.dsn, autocommit=False) as blocker, beside() as start:
        ask(blocker, "select pg_advisory_xact_lock(1)")
        loop = start(
            lambda: ask(
                ticker, "do $$ begin call duewheel.tick_group(1, 1); perform pg_advisory_xact_lock(1); end $$"
            )
        )
        until_stopped(topic.dsn)
        topic.send("t", b"second", delay=AT_ONCE)
        assert topic.tick("t")
        assert len(topic.consumer("t", "other").receive()) == 2
        blocker.rollback()
        loop.result()


#: A commit with a recall stops until it gets lock 1, before anything is checked.
STOP_AT_THE_COMMIT = f"""{STOP}
create constraint trigger a_stop after insert on duewheel.recall deferrable initially deferred
for each row execute function stop()
"""


@pytest.mark.owner
@pytest.mark.parametrize("how", ["recall", "recall_key"])
def test_x01_a_recall_passed_before_its_commit_is_too_late(topic: Broker, how: str) -> None:
    sent = topic.send("t", b"due", delay=HOUR, key="k")

    def recall() -> RecallOutcome:
        return (
            topic.recall(sent.message_id).outcome if how == "recall" else topic.recall_key("t", "k").outcome
        )

    with connected(topic.dsn) as console, connected(topic.dsn, autocommit=False) as blocker:
        ask(console, STOP_AT_THE_COMMIT)
        ask(blocker, "select pg_advisory_xact_lock(1)")
        with beside() as start:
            answer = start(recall)
            until_stopped(topic.dsn)
            ask(console, "call duewheel.tick('t', clock_timestamp() + interval '2 hours')")
            blocker.rollback()
            assert answer.result() is RecallOutcome.ALREADY_RELEASED
    assert [message.body for message in topic.consumer("t", "g").receive()] == [b"due"]


@pytest.mark.owner
@pytest.mark.parametrize("how", ["send", "send_many"])
def test_x01_a_send_that_replaces_a_released_message_is_sent(topic: Broker, how: str) -> None:
    topic.send("t", b"due", delay=HOUR, key="k")
    new: dict[str, Any] = {"body": b"next", "delay": DAY, "key": "k", "on_conflict": "replace"}

    def replace() -> SendReceipt:
        return topic.send("t", **new) if how == "send" else topic.send_many("t", [new])[0]

    with connected(topic.dsn) as console, connected(topic.dsn, autocommit=False) as blocker:
        ask(console, STOP_AT_THE_COMMIT)
        ask(blocker, "select pg_advisory_xact_lock(1)")
        with beside() as start:
            receipt = start(replace)
            until_stopped(topic.dsn)
            ask(console, "call duewheel.tick('t', clock_timestamp() + interval '2 hours')")
            blocker.rollback()
            assert receipt.result().outcome is SendOutcome.SENT
    assert [message.body for message in topic.consumer("t", "g").receive()] == [b"due"]
    assert topic.find_key("t", "k") != []


@pytest.mark.slow
@pytest.mark.owner
def test_x18_an_early_check_holds_up_no_session_for_long(topic: Broker) -> None:
    """SET CONSTRAINTS has a recall's check run in the midst of a transaction, which then goes to sleep."""
    of_recalls = "select pg_get_functiondef(oid) from pg_proc where prosrc like '%''5 seconds''%'"
    ((function,),) = rows(topic, of_recalls)
    # The server ends it after one second here, instead of five.
    rows(topic, function.replace("'5 seconds'", "'1 second'").replace("'5s'", "'1s'"))
    sent = topic.send("t", b"waits", delay=HOUR)
    with connected(topic.dsn, autocommit=False) as connection:
        assert topic.recall(sent.message_id, connection=connection).outcome is RecallOutcome.RECALLED
        ask(connection, "set constraints all immediate")
        topic.send("t", b"second", delay=AT_ONCE)
        until(lambda: bool(topic.consumer("t", "other").receive()), "the others to go on")
        # The server has ended the session.
        with pytest.raises(psycopg2.Error):
            ask(connection, "select 1")


#: A tick stops behind its row until it gets lock 1.
STOP_BEHIND_THE_ROW = f"""{STOP}
create trigger a_stop after insert on duewheel.tick for each row execute function stop()
"""


@pytest.mark.owner
def test_d16_a_tick_across_a_clock_set_back_does_not_count(topic: Broker) -> None:
    """A sender has read an earlier clock than the tick, and neither sees the other."""
    topic.send("t", b"first", delay=AT_ONCE)
    with (
        connected(topic.dsn) as console,
        connected(topic.dsn) as ticker,
        connected(topic.dsn, autocommit=False) as blocker,
        beside() as start,
    ):
        ask(console, STOP_BEHIND_THE_ROW)
        ask(blocker, "select pg_advisory_xact_lock(1)")
        tick = start(
            lambda: ask(ticker, "call duewheel.tick('t', clock_timestamp() + interval '10 seconds')")
        )
        until_stopped(topic.dsn)
        topic.send("t", b"second", delay=AT_ONCE)
        blocker.rollback()
        refusal = tick.exception()
        assert isinstance(refusal, psycopg2.Error)
        assert isinstance(from_database(refusal), ClockSetBack)
        assert ask(console, "select count(*) from duewheel.tick") == [(0,)]
        ask(console, "call duewheel.tick('t', clock_timestamp() + interval '10 seconds')")
    bodies = [message.body for message in topic.consumer("t", "other").receive()]
    assert sorted(bodies) == [b"first", b"second"]


@pytest.mark.slow
def test_d16_sql_without_a_wheel_calls_tick_before_it_receives(topic: Broker) -> None:
    """What is due, what was not answered in time, and what is to be retried: one call for all."""
    topic.send("t", b"first", delay=AT_ONCE)
    receive = (
        "select convert_from(body, 'UTF8'), attempt from duewheel.receive('t', 'g', invisible => '1 second')"
    )
    with connected(topic.dsn) as program:
        assert ask(program, receive) == []
        assert ask(program, "call duewheel.tick('t')") == [(True,)]
        assert ask(program, receive) == [("first", 1)]
        again = until(
            lambda: ask(program, "call duewheel.tick('t')") == [(True,)] and ask(program, receive),
            "the lease to end",
        )
        assert again == [("first", 2)]


def test_x07_an_idempotency_key_finds_a_late_message(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t")
    timed_broker.send("t", b"first", delay=AT_ONCE)
    send = (
        "select message_id from duewheel.send("
        "'t', 'x'::text, delay => '0', idempotency_key => 'task 1', now => %s)"
    )
    with connected(timed_broker.dsn, autocommit=False) as connection:
        # The tick sees what its own transaction sends, so that is put behind it.
        ask(connection, f"{OWN_TRANSACTION}select duewheel.tick_topic(1, %s)", clock())
        ((sent,),) = ask(connection, send, clock())
        connection.commit()
        ((again,),) = ask(connection, send, clock())
    assert again == sent
    found = timed_broker.find(again)
    assert found is not None
    assert found.body == b"x"


@pytest.mark.owner
@pytest.mark.parametrize(
    "call",
    [
        "select count(*) from duewheel.rewind('t', 'g', start => 'earliest')",
        "select created from duewheel.subscribe('t', 'new', 'latest')",
    ],
)
def test_a_call_cancelled_at_the_lock_of_ticks_leaves_it(topic: Broker, call: str) -> None:
    with connected(topic.dsn) as console, connected(topic.dsn) as caller, connected(topic.dsn) as tick:
        pid = caller.info.backend_pid
        ((topic_id,),) = ask(console, "select topic_id from duewheel.topic where name = 't'")
        tick.autocommit = False
        ask(tick, "select pg_advisory_xact_lock(duewheel.tick_lock_class(), %s)", topic_id)
        with beside() as start:
            answer = start(lambda: ask(caller, call))
            until(
                lambda: ask(console, "select 1 from pg_locks where pid = %s and not granted", pid),
                "the call to wait",
            )
            os.kill(pid, signal.SIGSTOP)
            try:
                # The lock is granted, and the server does not know that it has been.
                tick.commit()
                ask(console, "select pg_cancel_backend(%s)", pid)
            finally:
                os.kill(pid, signal.SIGCONT)
            with pytest.raises(psycopg2.errors.QueryCanceled):
                answer.result()
        assert ask(console, LOCKS, pid) == [(0,)]
