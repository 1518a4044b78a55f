"""Open transactions of the caller hold up nobody, and lose nothing (X01, X03, X04, X06)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from tests.acting import AT_ONCE, DAY, HOUR, SECOND, rows, taken
from tests.clock import Clock, believe
from tests.logins import login
from tests.upkeeping import only, portion
from tests.waiting import ask, beside, connected, until_blocked, until_somebody_waits

from duewheel.store.broker import Broker
from duewheel.store.database.connections import OWN_TRANSACTION, DriverConnection

#: Others are played beside a wheel, in tests/proof/test_races.py.
OPENED: dict[str, Callable[[Broker, DriverConnection], object]] = {
    "send now": lambda b, mine: b.send("t", b"", delay=AT_ONCE, connection=mine),
    "send many": lambda b, mine: b.send_many(
        "t", [{"body": b"", "delay": AT_ONCE, "key": "waits"}] * 10, mine
    ),
    "keep": lambda b, mine: b.send("t", b"", delay=HOUR, key="waits", on_conflict="keep", connection=mine),
    "recall many": lambda b, mine: b.recall_many("t", everything=True, connection=mine),
    "reschedule key": lambda b, mine: b.reschedule_key("t", "waits", delay=AT_ONCE, connection=mine),
}


@pytest.mark.owner
@pytest.mark.parametrize(
    ("opened", "commits"), [*((opened, True) for opened in OPENED), ("send many", False)]
)
def test_x06_an_open_transaction_holds_up_no_session(broker: Broker, opened: str, commits: bool) -> None:
    """Others send, also under the key, release, consume, retry, recall, and keep the broker in order.

    Whoever would have to wait fails instead: the database gives no lock that is not to be had at once.
    """
    broker.create_topic("t", queues=1)
    consumer = broker.consumer("t", "g")
    broker.send("t", b"waits", delay=HOUR, key="waits")
    other = broker.send("t", b"other", delay=HOUR, key="other")
    with connected(broker.dsn) as admin:
        ask(admin, "alter database " + admin.info.dbname + " set lock_timeout = '1s'")
    with connected(broker.dsn, autocommit=False) as connection, Broker(broker.dsn) as others:
        OPENED[opened](others, connection)
        others.send("t", b"on", delay=AT_ONCE, key="waits")
        others.send("t", b"more", delay=AT_ONCE, key="more", on_conflict="replace")
        others.send_many("t", [{"body": b"many", "delay": AT_ONCE, "key": "waits"}] * 3)
        if opened != "recall many":
            # What is being recalled in bulk is the one thing another recall has to wait for.
            others.reschedule(other.message_id, delay=3 * HOUR)
        consumer = others.consumer("t", "g")
        batch = consumer.receive()
        assert sorted(message.body for message in batch) == [b"many", b"many", b"many", b"more", b"on"]
        consumer.nack(batch, delay=AT_ONCE)
        consumer.ack(consumer.receive())
        others.send("t", b"later", delay=AT_ONCE)
        assert others.tick("t")
        others.maintain()
        connection.commit() if commits else connection.rollback()
    bodies = [message.body for message in broker.consumer("t", "g").receive()]
    due = {"send now": [b""], "send many": [b""] * 10, "reschedule key": [b"waits"]}.get(opened, []) * commits
    assert sorted(bodies) == sorted([*due, b"later"])


@pytest.mark.owner
def test_x06_only_who_sees_an_unreleased_message_reads_ticks(topic: Broker, clock: Clock) -> None:
    """A queue is read by places alone as long as no message of it is both visible and unreleased."""
    whole = (
        "select duewheel.released_whole(t.topic_id, 0::smallint, '-infinity', t.hi)"
        " from duewheel.newest_tick(%s) t"
    )
    topic_id = topic.consumer("t", "g").topic_id
    with connected(topic.dsn, autocommit=False) as sender, connected(topic.dsn) as other:
        topic.send("t", b"not released", delay=AT_ONCE, connection=sender)
        clock.advance(SECOND)
        topic.send("t", b"released", delay=AT_ONCE)
        topic.tick("t")
        assert ask(sender, whole, topic_id) == [(False,)]
        assert ask(other, whole, topic_id) == [(True,)]
        sender.commit()
        assert ask(other, whole, topic_id) == [(False,)]


def test_x06_senders_that_stay_open_over_ticks_lose_nothing(topic: Broker, clock: Clock) -> None:
    """They commit between the same two ticks, and began before different ones."""
    with (
        connected(topic.dsn, autocommit=False) as older,
        connected(topic.dsn, autocommit=False) as newer,
    ):
        for sender in (older, newer):
            topic.send("t", b"slow", delay=AT_ONCE, connection=sender)
            topic.send("t", b"seen", delay=AT_ONCE)
            clock.advance(SECOND)
            assert topic.tick("t")
        older.commit()
        newer.commit()
    found = [message.body for message in taken(topic.consumer("t", "g"))]
    assert sorted(found) == [b"seen", b"seen", b"slow", b"slow"]


def test_x06_a_receive_after_a_write_loses_nothing(broker: Broker) -> None:
    """Its id is older than those of senders that came between."""
    broker.create_topic("t", queues=1)
    broker.consumer("t", "g")
    broker.send("t", b"before", delay=AT_ONCE)
    broker.tick("t")
    with (
        connected(broker.dsn, autocommit=False) as connection,
        connected(broker.dsn, autocommit=False) as slow,
    ):
        ask(connection, "create temp table order_lines (id integer)")
        ask(connection, "insert into order_lines values (1)")
        broker.send("t", b"seen", delay=AT_ONCE)
        broker.send("t", b"straggler", delay=AT_ONCE, connection=slow)
        broker.send("t", b"seen", delay=AT_ONCE)
        broker.tick("t")
        ask(connection, "select * from duewheel.receive('t', 'other')")
        connection.commit()
        slow.commit()
    broker.send("t", b"after", delay=AT_ONCE)
    broker.tick("t")
    bodies = [message.body for message in broker.consumer("t", "g").receive()]
    assert sorted(bodies) == [b"after", b"before", b"seen", b"seen", b"straggler"]


def test_x10_answers_in_another_order_do_not_deadlock(broker: Broker) -> None:
    """The second answer waits for the first lease, holding none, though it names the second one first."""
    broker.create_topic("t", queues=2)
    broker.send_many("t", [{"body": b"", "delay": AT_ONCE} for _ in range(40)])
    consumer = broker.consumer("t", "g")
    batch = sorted(consumer.receive(max_messages=40), key=lambda message: message.message_id)
    first, last = batch[0], batch[-1]
    assert first.message_id[:12] != last.message_id[:12], "one queue only"
    with connected(broker.dsn, autocommit=False) as mine, connected(broker.dsn, autocommit=False) as theirs:
        consumer.ack([first], connection=mine)
        with beside() as begin:
            second = begin(lambda: consumer.ack(batch[:0:-1], connection=theirs))
            until_blocked(broker.dsn, theirs.info.backend_pid)
            consumer.ack([last], connection=mine)
            mine.rollback()
            second.result()
        theirs.commit()
    consumer.ack([first])


@pytest.fixture
def swept(timed_broker: Broker, clock: Clock) -> Broker:
    """Two topics whose slot is over and not yet looked through; on each another message waits."""
    with connected(timed_broker.dsn) as connection:
        ask(connection, "select duewheel.make_slot(%s)", clock() + DAY)
    # Messages may go to it once all have been told of it.
    for _ in range(3):
        timed_broker.maintain()
    with connected(timed_broker.dsn) as connection:
        assert ask(connection, "select from duewheel.closed_slot") == []
    with connected(timed_broker.dsn, autocommit=False) as late:
        for topic in ("a", "b"):
            timed_broker.create_topic(topic, max_delay=100 * DAY, retention=10 * DAY)
            timed_broker.send(topic, b"", delay=DAY)
            timed_broker.send(topic, b"", delay=50 * DAY, key="waits")
            timed_broker.send(topic, b"late", delay=DAY, connection=late)
        clock.advance(5 * DAY)
        for topic in ("a", "b"):
            timed_broker.tick(topic)
        late.commit()
    for topic in ("a", "b"):
        timed_broker.tick(topic)
    with connected(timed_broker.dsn) as upkeeping:
        # Its first step notes what the slot has to wait for.
        portion(upkeeping, only("note_over"), 1_000, clock())
    return timed_broker


@pytest.fixture
def uncovered(swept: Broker) -> Broker:
    """A planted fault: each of the topics has lost its word that the late message was released."""
    with connected(swept.dsn) as connection:
        assert (
            ask(connection, "with lost as (delete from duewheel.straggler returning 1) table lost")
            == [(1,)] * 2
        )
    return swept


TICK_LOCK = (
    "select pg_advisory_xact_lock(duewheel.tick_lock_class(), topic_id) from duewheel.topic where name = %s"
)
TICK_LOCKS = """
select count(*) from pg_locks l join duewheel.topic t on t.topic_id = l.objid::bigint
where l.locktype = 'advisory' and l.classid::bigint = duewheel.tick_lock_class() and l.granted and l.pid <> %s
"""
SEALED = "select count(sealed_at) from duewheel.slot where table_name = 'message_2026010600'"


@pytest.mark.owner
@pytest.mark.parametrize("recalls", [("a", "b"), ("b", "a")])
def test_x01_upkeep_and_a_recall_on_two_topics_do_not_deadlock(
    uncovered: Broker, recalls: tuple[str, str]
) -> None:
    """A recall that commits takes the tick locks of its topics in the order it recalled."""
    with (
        beside() as start,
        connected(uncovered.dsn, autocommit=False) as recalling,
        connected(uncovered.dsn, autocommit=False) as ticking,
        connected(uncovered.dsn) as console,
    ):
        for topic in recalls:
            assert uncovered.recall_key(topic, "waits", connection=recalling).outcome == "recalled"
        ask(ticking, TICK_LOCK, "a")
        upkeep = start(uncovered.maintain)
        until_somebody_waits(uncovered.dsn)
        commit = start(recalling.commit)
        until_blocked(uncovered.dsn, recalling.info.backend_pid)
        ticking.commit()
        commit.result()
        assert upkeep.result().swept == 2
        assert ask(console, SEALED) == [(1,)]


@pytest.mark.owner
def test_w02_upkeep_waiting_for_a_topic_blocks_no_other_tick(uncovered: Broker) -> None:
    with (
        beside() as start,
        connected(uncovered.dsn, autocommit=False) as ticking,
        connected(uncovered.dsn) as console,
    ):
        ask(ticking, TICK_LOCK, "b")
        upkeep = start(uncovered.maintain)
        until_somebody_waits(uncovered.dsn)
        assert ask(console, TICK_LOCKS, ticking.info.backend_pid) == [(0,)]
        ticking.commit()
        assert upkeep.result().swept == 2
        assert ask(console, SEALED) == [(1,)]


@pytest.mark.owner
def test_w02_upkeep_reads_a_slot_while_its_topics_are_locked(swept: Broker) -> None:
    with connected(swept.dsn, autocommit=False) as ticking, connected(swept.dsn) as console:
        for topic in ("a", "b"):
            ask(ticking, TICK_LOCK, topic)
        assert swept.maintain().swept == 0
        assert ask(console, SEALED) == [(1,)]


@pytest.mark.owner
@pytest.mark.parametrize("ticked", [True, False])
def test_d09_an_admin_does_upkeep_of_a_quiet_unsettled_topic(
    timed_broker: Broker, clock: Clock, ticked: bool
) -> None:
    """The sweep ticks by the database's clock: only an owner of the schema may give another instant."""
    with connected(timed_broker.dsn) as connection:
        ask(connection, "select duewheel.make_slot(%s)", clock() + DAY)
    timed_broker.create_topic("t", max_delay=100 * DAY, retention=10 * DAY)
    timed_broker.send("t", b"", delay=DAY)
    clock.advance(5 * DAY if ticked else DAY)
    with connected(timed_broker.dsn, autocommit=False) as writing:
        ask(writing, "select pg_current_xact_id()")
        timed_broker.tick("t")
        writing.rollback()
    believe(timed_broker.dsn, datetime.now(UTC))
    with Broker(login(timed_broker.dsn, "duewheel_admin")) as admin:
        done = admin.maintain()
    assert (done.swept, done.dropped) == (0, ("message_2026010600",))


@pytest.mark.owner
def test_x25_an_open_transaction_stops_no_other_upkeep(timed_broker: Broker, clock: Clock) -> None:
    """Of a topic, the settings, a subscription that is to go, and a key that is used again."""
    for name in ("a", "held", "left", "z"):
        timed_broker.create_topic(name, queues=1)
        timed_broker.send(name, b"", delay=AT_ONCE, idempotency_key=name)
        timed_broker.tick(name)
    timed_broker.consumer("left", "gone")
    # So a day without upkeep is no rest.
    timed_broker.update_settings(abandoned_after=10 * DAY)
    with connected(timed_broker.dsn) as console:

        def behind() -> list[str]:
            """Topics whose logs speak of what is past retention."""
            return [
                name
                for (name,) in ask(
                    console,
                    "select name from duewheel.topic where parent_topic_id is null"
                    " and coalesce(kept_from, '-infinity') < %s order by 1",
                    clock() - timedelta(hours=73),
                )
            ]

        for _ in range(4):
            clock.advance(DAY)
            for name in ("a", "held", "left", "z"):
                timed_broker.send(name, b"", delay=AT_ONCE)
                timed_broker.tick(name)
            timed_broker.maintain()
        clock.advance(DAY)
        assert behind() == ["a", "held", "left", "z"]
        ask(console, "update duewheel.subscription set removed_after = '1 day'")
        ask(console, f"alter database {console.info.dbname} set statement_timeout = '5s'")
        with connected(timed_broker.dsn, autocommit=False) as connection:
            ask(connection, "select duewheel.update_topic('held', granularity => '1 s')")
            ask(connection, "select duewheel.update_settings(retention_bytes => 1000000000)")
            ask(connection, "select duewheel.pause_group('gone')")
            timed_broker.send("held", b"", delay=AT_ONCE, idempotency_key="held", connection=connection)
            with Broker(timed_broker.dsn, clock=clock) as another:
                another.maintain()
            assert behind() == ["held", "left"]
            connection.rollback()
        with Broker(timed_broker.dsn, clock=clock) as another:
            another.maintain()
        assert behind() == []


def test_x06_subtransactions_of_an_open_transaction_are_unlisted(broker: Broker) -> None:
    """A batch job may have 300 000; its messages come when it commits."""
    broker.create_topic("t", queues=1)
    group = broker.consumer("t", "g")
    broker.send("t", b"punctual", delay=AT_ONCE)
    with connected(broker.dsn, autocommit=False) as job:
        ask(job, "create table lines (line integer)")
        insert = "begin insert into lines values (i); exception when others then null; end"
        ask(job, f"do $$ begin for i in 1..1000 loop {insert}; end loop; end $$")
        broker.send("t", b"late", delay=AT_ONCE, connection=job)
        broker.tick("t")
        listed = "select max((select count(*) from pg_snapshot_xip(t.snapshot))) from duewheel.tick t"
        assert rows(broker, listed) <= [(1,)]
        assert len(taken(group)) == 1
        job.commit()
    assert [message.body for message in taken(group)] == [b"late"]


#: Stops a tick between its question who has ended and its question who is open, until it gets lock 1.
STOP_AFTER_THE_FIRST_QUESTION = """
create or replace function duewheel.ended_since_tick(p_tick duewheel.tick, p_snapshot pg_snapshot)
returns xid8[] language plpgsql as $$
declare
    v_ended xid8[] := array(
        select x from pg_snapshot_xip((p_tick).snapshot) x where pg_visible_in_snapshot(x, p_snapshot));
begin
    perform pg_advisory_xact_lock(1);
    return v_ended;
end
$$
"""


@pytest.mark.owner
def test_a_tick_waits_for_a_sender_that_commits_meanwhile(broker: Broker) -> None:
    """A tick that does not release it says at least that it is unsettled, so that the wheel comes again."""
    broker.create_topic("t", queues=1)
    with (
        beside() as start,
        connected(broker.dsn, autocommit=False) as sender,
        connected(broker.dsn) as wheel,
        connected(broker.dsn, autocommit=False) as blocker,
    ):
        broker.send("t", b"late", delay=AT_ONCE, connection=sender)
        broker.send("t", b"", delay=AT_ONCE)
        assert broker.tick("t")
        ask(wheel, STOP_AFTER_THE_FIRST_QUESTION)
        ask(blocker, "select pg_advisory_xact_lock(1)")
        tick = start(
            lambda: ask(
                wheel,
                OWN_TRANSACTION
                + "select k.released, k.unsettled from duewheel.topic t, duewheel.tick_topic(t.topic_id) k",
            )
        )
        until_somebody_waits(broker.dsn)
        sender.commit()
        blocker.rollback()
        assert tick.result() == [(False, True)]
        assert broker.tick("t")
