"""A tick lock that an open transaction keeps holds up others for a second at most (X18)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg2
import pytest
from tests.proof.waiting import ask, beside, connected, until_somebody_waits

from duewheel.store import Overtaken, RecallOutcome
from duewheel.store.broker import Broker
from duewheel.store.connections import DriverConnection
from duewheel.store.errors import from_database

HOUR = timedelta(hours=1)
NOTHING = timedelta(0)
#: The second that others wait, and what a busy machine adds.
BOUND_SECONDS = 10.0


@pytest.fixture
def topic(broker: Broker) -> Broker:
    broker.create_topic("t", queues=1)
    broker.consumer("t", "g")
    broker.consumer("t", "other")
    return broker


@contextmanager
def open_receive(broker: Broker) -> Iterator[DriverConnection]:
    """A transaction that has released and leased a message, and stays open."""
    broker.send("t", b"first", delay=NOTHING)
    with connected(broker.dsn, autocommit=False) as connection:
        (handle,) = ask(connection, "select receipt_handle from duewheel.receive('t', 'g')")
        assert handle
        yield connection


def refusal(connection: DriverConnection) -> object:
    with pytest.raises(psycopg2.Error) as caught:
        connection.commit()
    return from_database(caught.value)


def test_x18_an_open_receive_holds_up_no_other_group(topic: Broker) -> None:
    with open_receive(topic) as connection:
        topic.send("t", b"second", delay=NOTHING)
        began = time.monotonic()
        assert topic.tick("t")
        assert time.monotonic() - began < BOUND_SECONDS
        batch = topic.consumer("t", "other").receive()
        assert sorted(message.body for message in batch) == [b"first", b"second"]
        assert isinstance(refusal(connection), Overtaken)
    # What the transaction had leased comes to its group again.
    bodies = [message.body for message in topic.consumer("t", "g").receive()]
    assert sorted(bodies) == [b"first", b"second"]


def test_x18_an_open_receive_that_nobody_had_to_pass_is_committed(topic: Broker) -> None:
    with open_receive(topic) as connection:
        connection.commit()
    assert [message.body for message in topic.consumer("t", "other").receive()] == [b"first"]
    assert not topic.consumer("t", "g").receive()


def test_x18_an_open_receive_holds_up_no_commit_with_a_recall(topic: Broker) -> None:
    waits = topic.send("t", b"waits", delay=HOUR)
    with open_receive(topic) as connection, connected(topic.dsn, autocommit=False) as recalling:
        assert topic.recall(waits.message_id, connection=recalling) is RecallOutcome.RECALLED
        began = time.monotonic()
        recalling.commit()
        assert time.monotonic() - began < BOUND_SECONDS
        assert isinstance(refusal(connection), Overtaken)


def test_x18_who_comes_after_the_first_waits_a_tenth_of_it(topic: Broker) -> None:
    with open_receive(topic):
        for number in range(10):
            topic.send("t", f"{number}", delay=NOTHING)
            assert topic.tick("t")
        assert len(topic.consumer("t", "other").receive()) == 11


def test_x01_a_recall_that_passed_a_release_is_never_delivered_by_it(topic: Broker) -> None:
    """The transaction has the message in its hands when another recalls it; one of them has to fail."""
    with connected(topic.dsn, autocommit=False) as connection:
        sent = topic.send("t", b"soon", delay=timedelta(milliseconds=300))
        while not ask(connection, "select receipt_handle from duewheel.receive('t', 'g')"):
            connection.rollback()
        outcome = topic.recall(sent.message_id)
        assert outcome is RecallOutcome.RECALLED, "nothing that others can see has released it"
        assert isinstance(refusal(connection), Overtaken)
    assert topic.tick("t") in (True, False)
    assert not topic.consumer("t", "other").receive()


def test_x18_two_who_pass_at_once_release_everything_once(topic: Broker) -> None:
    with open_receive(topic) as connection, beside() as start:
        for number in range(20):
            topic.send("t", f"{number}", delay=NOTHING)
        ticks = [start(lambda: topic.tick("t")) for _ in range(4)]
        assert any(tick.result() for tick in ticks)
        assert isinstance(refusal(connection), Overtaken)
    bodies = [message.body for message in topic.consumer("t", "other").receive()]
    assert sorted(bodies) == sorted([b"first", *(f"{number}".encode() for number in range(20))])


def test_what_was_passed_is_forgotten_by_upkeep(topic: Broker) -> None:
    with open_receive(topic), connected(topic.dsn) as console:
        topic.send("t", b"second", delay=NOTHING)
        topic.tick("t")
        topic.maintain()
        assert ask(console, "select count(*) from duewheel.overtaken") == [(1,)], "it is open still"
    topic.maintain()
    with connected(topic.dsn) as console:
        assert ask(console, "select count(*) from duewheel.overtaken") == [(0,)]


#: Stops a tick behind its work and before its COMMIT, the first time, until it gets lock 1.
STOP_BEFORE_THE_CHECK = """
create sequence stops;
create or replace function stop_once() returns trigger language plpgsql as $$
begin
    if nextval('stops') = 1 then
        perform pg_advisory_xact_lock(1);
    end if;
    return null;
end
$$;
create constraint trigger a_stop after insert on duewheel.tick
deferrable initially deferred for each row execute function stop_once()
"""


def test_x18_a_call_that_was_passed_is_made_again(topic: Broker) -> None:
    """Its server process was held up in the midst of it; the caller hears nothing of that."""
    topic.send("t", b"first", delay=NOTHING)
    with (
        connected(topic.dsn) as console,
        connected(topic.dsn, autocommit=False) as blocker,
        beside() as start,
    ):
        ask(console, STOP_BEFORE_THE_CHECK)
        ask(blocker, "select pg_advisory_xact_lock(1)")
        receive = start(lambda: topic.consumer("t", "g").receive())
        until_somebody_waits(topic.dsn)
        topic.send("t", b"second", delay=NOTHING)
        assert topic.tick("t")
        blocker.rollback()
        assert sorted(message.body for message in receive.result()) == [b"first", b"second"]
