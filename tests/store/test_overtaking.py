"""A tick lock that an open transaction keeps holds up others for a second at most (X18)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg2
import pytest
from tests.waiting import STOP, ask, beside, connected, until, until_somebody_waits

from duewheel.store import Overtaken, RecallOutcome
from duewheel.store.broker import Broker
from duewheel.store.database.connections import DriverConnection
from duewheel.store.values.errors import from_database

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


#: A commit with a recall stops until it gets lock 1, before anything is checked.
STOP_AT_THE_COMMIT = f"""{STOP}
create constraint trigger a_stop after insert on duewheel.recall deferrable initially deferred
for each row execute function stop()
"""


@pytest.mark.parametrize("how", ["recall", "recall_key", "recall_many"])
def test_x01_a_recall_that_was_passed_over_its_own_commit_answers_that_it_is_too_late(
    topic: Broker, how: str
) -> None:
    """A stop of over a second lets the wheel go on; a recall of its own transaction is asked again."""
    sent = topic.send("t", b"due", delay=HOUR, key="k")

    def recall() -> object:
        if how == "recall_many":
            done = topic.recall_many("t", key_prefix="k")
            return (done.matched, done.recalled, done.already_released)
        return topic.recall(sent.message_id) if how == "recall" else topic.recall_key("t", "k")

    with connected(topic.dsn) as console, connected(topic.dsn, autocommit=False) as blocker:
        ask(console, STOP_AT_THE_COMMIT)
        ask(blocker, "select pg_advisory_xact_lock(1)")
        with beside() as start:
            answer = start(recall)
            until_stopped(topic.dsn)
            ask(console, "select duewheel.tick('t', clock_timestamp() + interval '2 hours')")
            blocker.rollback()
            expected = (1, 0, 1) if how == "recall_many" else RecallOutcome.ALREADY_RELEASED
            assert answer.result() == expected
    assert [message.body for message in topic.consumer("t", "g").receive()] == [b"due"]


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


def test_x18_those_who_pass_at_once_do_not_refuse_each_other(topic: Broker) -> None:
    def tick() -> object:
        with connected(topic.dsn) as connection:
            return ask(connection, "select duewheel.tick('t')")

    with open_receive(topic), connected(topic.dsn, autocommit=False) as second, beside() as start:
        for number in range(20):
            topic.send("t", f"{number}", delay=NOTHING)
        ask(second, "select duewheel.tick('t')")
        for ticks in [[start(tick) for _ in range(8)] for _ in range(3)]:
            assert {str(one.result()) for one in ticks} <= {"[(True,)]", "[(False,)]"}


def test_x18_an_open_look_that_found_nothing_is_passed_quickly_after_the_first_time(topic: Broker) -> None:
    """It has the lock and no transaction id."""
    with connected(topic.dsn, autocommit=False) as looking:
        assert ask(looking, "select duewheel.tick('t')") == [(False,)]
        began = time.monotonic()
        for number in range(20):
            topic.send("t", f"{number}", delay=NOTHING)
            assert topic.tick("t")
        assert time.monotonic() - began < BOUND_SECONDS


def test_x18_what_was_held_back_and_is_taken_by_an_open_receive_holds_up_nothing_else(topic: Broker) -> None:
    with connected(topic.dsn) as console, connected(topic.dsn, autocommit=False) as connection:
        topic.send("t", b"first", delay=NOTHING)
        ask(console, "select duewheel.tick('t', clock_timestamp() + interval '2 seconds')")
        topic.send("t", b"held back", delay=NOTHING)
        assert ask(connection, "select receipt_handle from duewheel.receive('t', 'g')")
        topic.send("t", b"late", delay=timedelta(seconds=2.5))
        until(lambda: topic.tick("t"), "what is not held back")
        assert isinstance(refusal(connection), Overtaken)
    topic.tick("t")
    bodies = [message.body for message in topic.consumer("t", "other").receive()]
    assert sorted(bodies) == [b"first", b"held back", b"late"]


#: Whoever passes a tick lock stops there until it gets lock 1.
STOP_WHO_PASSES = f"""{STOP}
create trigger a_stop after insert on duewheel.overtaken for each row execute function stop()
"""


def test_d16_who_passes_knows_of_all_who_sent_before_its_clock_was_read(topic: Broker) -> None:
    """The one who passes has written before it reads the clock; senders may come in between."""
    with open_receive(topic) as connection, connected(topic.dsn) as console, beside() as start:
        topic.send("t", b"before", delay=NOTHING)
        with connected(topic.dsn, autocommit=False) as blocker:
            ask(console, STOP_WHO_PASSES)
            ask(blocker, "select pg_advisory_xact_lock(1)")
            tick = start(lambda: topic.tick("t"))
            until_stopped(topic.dsn)
            for number in range(5):
                topic.send("t", f"{number}", delay=NOTHING)
            blocker.rollback()
            assert tick.result()
        connection.rollback()
    topic.tick("t")
    bodies = [message.body for message in topic.consumer("t", "other").receive()]
    assert sorted(bodies) == sorted([b"first", b"before", *(f"{number}".encode() for number in range(5))])


#: A session with the setting test.stop has read the newest tick, and goes on when it gets lock 1.
STOP_BEHIND_THE_NEWEST_TICK = """
alter function duewheel.newest_tick(integer) rename to newest_tick_at_once;
create function duewheel.newest_tick(p_topic_id integer) returns setof duewheel.tick language plpgsql as $$
begin
    return query select * from duewheel.newest_tick_at_once(p_topic_id);
    if current_setting('test.stop', true) = 'on' then
        perform pg_advisory_lock(1);
        perform pg_advisory_unlock(1);
    end if;
end
$$
"""


def test_d16_a_release_that_went_by_an_older_one_does_not_count(topic: Broker) -> None:
    """Two release at once, as one has passed the lock; the later one had read the tick before the other's."""
    with (
        connected(topic.dsn) as console,
        connected(topic.dsn, autocommit=False) as slow_sender,
        connected(topic.dsn, autocommit=False) as blocker,
        connected(topic.dsn, autocommit=False) as passer,
        connected(topic.dsn, autocommit=False) as ticker,
        beside() as start,
    ):
        ask(slow_sender, "select message_id from duewheel.send('t', 'slow'::text, '0')")
        with open_receive(topic) as connection:
            ask(passer, "select duewheel.tick('t')")
            connection.rollback()
        ask(console, STOP_BEHIND_THE_NEWEST_TICK)
        ask(blocker, "select pg_advisory_xact_lock(1)")
        ask(ticker, "set test.stop = on")
        tick = start(lambda: ask(ticker, "select duewheel.tick('t')"))
        until_stopped(topic.dsn)
        passer.commit()
        slow_sender.commit()
        blocker.rollback()
        tick.result()
        refused = refusal(ticker)
        assert isinstance(refused, Overtaken)
    topic.tick("t")
    bodies = [message.body for message in topic.consumer("t", "other").receive()]
    assert sorted(bodies) == [b"first", b"slow"]


def test_x18_a_third_waits_for_neither_of_two_that_stay_open(topic: Broker) -> None:
    with open_receive(topic), connected(topic.dsn, autocommit=False) as second:
        topic.send("t", b"second", delay=NOTHING)
        assert ask(second, "select duewheel.tick('t')") == [(True,)]
        began = time.monotonic()
        topic.send("t", b"third", delay=NOTHING)
        assert topic.tick("t")
        assert time.monotonic() - began < BOUND_SECONDS
        assert isinstance(refusal(second), Overtaken)


def test_x18_a_check_that_was_made_early_holds_up_nobody_for_long(topic: Broker) -> None:
    """SET CONSTRAINTS has the check run in the midst of a transaction, which then goes to sleep."""
    with open_receive(topic) as connection:
        ask(connection, "set constraints all immediate")
        topic.send("t", b"second", delay=NOTHING)
        until(lambda: bool(topic.consumer("t", "other").receive()), "the others to go on")


def test_d16_a_release_from_which_the_clock_was_set_back_does_not_count(topic: Broker) -> None:
    """A sender has read an earlier clock than the release, and neither sees the other."""
    with connected(topic.dsn) as console, connected(topic.dsn, autocommit=False) as ticker:
        topic.send("t", b"first", delay=NOTHING)
        assert ask(ticker, "select duewheel.tick('t', clock_timestamp() + interval '10 seconds')") == [
            (True,)
        ]
        topic.send("t", b"second", delay=NOTHING)
        assert isinstance(refusal(ticker), Overtaken)
        ask(console, "select duewheel.tick('t', clock_timestamp() + interval '10 seconds')")
    bodies = [message.body for message in topic.consumer("t", "other").receive()]
    assert sorted(bodies) == [b"first", b"second"]


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
