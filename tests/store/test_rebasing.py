"""A broker that was dumped and restored into another cluster: refused until rebased, whole afterwards."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import psycopg2
import pytest
from tests.acting import AT_ONCE, HOUR, MILLISECOND, SECOND, rows
from tests.clock import NOW, Clock, believe
from tests.conftest import execute
from tests.restoring import dump, restore
from tests.upkeeping import portions
from tests.waiting import ask, beside, connected, until

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store import BrokerMoved, LeaseLost, RecallOutcome
from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.database import schema_state
from duewheel.store.database.connections import DriverConnection

NUMBERS = count(1)


@pytest.fixture
def restored_dsn(other_postgres: EmbeddedPostgres) -> str:
    """An empty database there."""
    return other_postgres.ensure_database(f"restored_{next(NUMBERS)}")


def move(dsn: str) -> None:
    """Let a database look as if it had been restored into this cluster."""
    execute(dsn, "update duewheel.broker set system_identifier = system_identifier - 1")


def open_sender(broker: Broker, dsn: str, topic: str, body: bytes) -> DriverConnection:
    """A transaction that has sent a message due at once and not committed yet."""
    connection = psycopg2.connect(dsn)
    broker.send(topic, body, delay=AT_ONCE, connection=connection)
    return connection


def drained(consumer: Consumer, count: int) -> Counter[bytes]:
    """What comes until it is so many and nothing more is there, acked as it comes."""
    came: Counter[bytes] = Counter()

    def is_all() -> bool:
        batch = consumer.receive(100)
        came.update(message.body for message in batch)
        consumer.ack(batch)
        return not batch and came.total() >= count

    until(is_all, f"{count} messages")
    return came


#: What any program calls, with what it calls it in plain SQL; X is a message id, H a receipt handle.
CALLS = {
    "send": "duewheel.send('t', 'x', delay => '1 s')",
    "send_bytes": "duewheel.send('t', '\\x00'::bytea, delay => '1 s')",
    "begin_copy": "duewheel.begin_copy('t', 1)",
    "recall": "duewheel.recall('{X}')",
    "recall_key": "duewheel.recall_key('t', 'k')",
    "reschedule": "duewheel.reschedule('{X}', delay => '2 s')",
    "receive": "duewheel.receive('t', 'g')",
    "ack": "duewheel.ack(array['{H}'])",
    "nack": "duewheel.nack(array['{H}'])",
    "change_invisible_duration": "duewheel.change_invisible_duration(array['{H}'], '1 min')",
    "tick": "duewheel.tick('t')",
    "upkeep_step": "duewheel.upkeep_step()",
    "create_topic": "duewheel.create_topic('u')",
    "update_topic": "duewheel.update_topic('t', retention => '1 day')",
    "delete_topic": "duewheel.delete_topic('t')",
    "find": "duewheel.find('{X}')",
    "find_key": "duewheel.find_key('t', 'k')",
    "history": "duewheel.history('{X}')",
    "dead_letter_page": "duewheel.dead_letter_page('g')",
    "topic_stats": "duewheel.topic_stats()",
    "group_stats": "duewheel.group_stats()",
    "group_doorbells": "duewheel.group_doorbells(array['t'], array['g'])",
    "due_soon": "duewheel.due_soon(now(), now())",
    "due_topics": "duewheel.due_topics(0, 1, null, now())",
}


def test_every_caller_is_refused_after_a_move(broker: Broker, dsn: str) -> None:
    broker.create_topic("t")
    consumer = broker.consumer("t", "g")
    receipt = broker.send("t", b"1", delay=AT_ONCE, key="k")
    lease = consumer.receive()[0].lease
    handle = f"{lease.group_id}.{lease.topic_id}.{lease.queue}.{lease.n}.{lease.token}.1"
    move(dsn)
    for name, call in CALLS.items():
        statement = call.format(X=receipt.message_id, H=handle)
        # Each session finds out by itself.
        with connected(dsn) as connection:
            with pytest.raises(psycopg2.Error, match="restored into another cluster") as refused:
                ask(connection, f"{'call' if name == 'tick' else 'select'} {statement}")
        assert refused.value.pgcode == "DW016"
        assert "duewheel db rebase" in str(refused.value.diag.message_hint)
    with Broker(dsn) as later, pytest.raises(BrokerMoved, match="duewheel db rebase"):
        later.topics()


def test_a_session_asks_once_where_it_is(dsn: str, broker: Broker) -> None:
    broker.create_topic("t")
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("select duewheel.send('t', 'x', delay => '1 s')")
        connection.rollback()
        # What a transaction found out that was rolled back is forgotten with it.
        cursor.execute("select coalesce(current_setting('duewheel.home', true), '')")
        assert cursor.fetchall() == [("",)]
        cursor.execute("select duewheel.send('t', 'x', delay => '1 s')")
        connection.commit()
        cursor.execute("select current_setting('duewheel.home') = 'duewheel.broker'::regclass::oid::text")
        assert cursor.fetchall() == [(True,)]


def test_rebase_does_nothing_where_nothing_moved(broker: Broker, dsn: str) -> None:
    broker.create_topic("t")
    broker.send("t", b"1", delay=AT_ONCE)
    standing = (
        "select xid::text, ctid::text from duewheel.message"
        " union all select xid::text, ctid::text from duewheel.far_message"
    )
    before = execute(dsn, standing)
    assert len(before) == 1
    done = broker.rebase()
    assert (done.rebased, done.messages, done.ticks, done.released_late) == (False, 0, 0, 0)
    assert execute(dsn, standing) == before
    assert execute(dsn, "select rebased_at from duewheel.broker") == [(None,)]
    move(dsn)
    with connected(dsn) as connection:
        ask(connection, "begin isolation level repeatable read")
        with pytest.raises(psycopg2.Error, match="READ COMMITTED") as refused:
            ask(connection, "select duewheel.rebase()")
    assert refused.value.pgcode == "DW015"


def test_rebase_knows_every_column_that_holds_transaction_ids(dsn: str) -> None:
    rows = execute(
        dsn,
        """
        select c.relname || '.' || a.attname
        from pg_attribute a join pg_class c on c.oid = a.attrelid
        where c.relnamespace = 'duewheel'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
          and a.attnum > 0 and a.atttypid in ('xid'::regtype, 'xid8'::regtype, 'pg_snapshot'::regtype,
              'txid_snapshot'::regtype, 'xid8[]'::regtype)
        order by 1
        """,
    )
    assert [name for (name,) in rows] == [
        "far_message.xid",
        "key_mark.but_xids",
        "key_mark.snapshot",
        "lease_answer.xid",
        "lease_event.xid",
        "lease_extension.xid",
        "message.xid",
        "recall.answer_xid",
        "slot.open_below",
        "tick.late_xids",
        "tick.snapshot",
        "tick.tick_xid",
    ]


def test_a_transaction_older_than_the_rebase_sends_exactly_once(broker: Broker, dsn: str) -> None:
    """Its id is below the rebase's own; what it sends afterwards must not be taken for what was there."""
    broker.create_topic("t", queues=1, granularity=MILLISECOND)
    broker.send("t", b"before", delay=AT_ONCE)
    broker.tick("t")
    move(dsn)
    with closing(psycopg2.connect(dsn)) as old:
        with old.cursor() as cursor:
            cursor.execute("select pg_current_xact_id()")
        assert broker.rebase().rebased
        broker.send("t", b"old", delay=AT_ONCE, connection=old)
        broker.send("t", b"new", delay=AT_ONCE)
        broker.tick("t")
        old.commit()
    assert drained(broker.consumer("t", "g"), 3) == {b"before": 1, b"old": 1, b"new": 1}


def test_stragglers_of_all_kinds_come_once_after_a_rebase(broker: Broker, dsn: str) -> None:
    broker.create_topic("t", queues=2, granularity=MILLISECOND)
    early = broker.consumer("t", "early")
    found = open_sender(broker, dsn, "t", b"found")
    missed = open_sender(broker, dsn, "t", b"missed")
    broker.send("t", b"punctual", delay=AT_ONCE)
    broker.tick("t")
    found.commit()
    broker.tick("t")
    assert drained(early, 2) == {b"punctual": 1, b"found": 1}
    # No tick looks again after this one is committed.
    missed.commit()
    move(dsn)
    done = broker.rebase()
    assert (done.rebased, done.messages, done.released_late) == (True, 3, 1)
    assert drained(early, 1) == {b"missed": 1}
    assert drained(broker.consumer("t", "late"), 3) == {b"punctual": 1, b"found": 1, b"missed": 1}
    # Nor does a second move release anything again.
    move(dsn)
    assert broker.rebase().released_late == 0
    assert not early.receive()
    # The sweep of the sealed slots finds nothing either.
    believe(dsn, datetime.now(UTC) + timedelta(hours=26))
    with connected(dsn) as connection:
        for step in ("note_over", "sweep"):
            for state in portions(connection, step, 1_000, datetime.now(UTC) + timedelta(hours=27)):
                assert "swept" not in state["report"]
    sealed = "select count(sealed_at) > 0 from duewheel.slot"
    assert execute(dsn, sealed) == [(True,)]
    found.close()
    missed.close()


def test_x13_messages_held_back_are_not_early_after_a_rebase(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g")
    with connected(topic.dsn, autocommit=False) as late:
        topic.send("t", b"late", delay=2 * HOUR, connection=late)
        clock.advance(8 * HOUR)
        topic.send("t", b"ahead", delay=AT_ONCE)
        topic.tick("t")
        clock.set(NOW)
        late.commit()
    recalled = topic.send("t", b"recalled", delay=HOUR)
    topic.send("t", b"held back", delay=HOUR)
    move(topic.dsn)
    assert rows(topic, "select rebased, released_late from duewheel.rebase(%s)", clock()) == [(True, 0)]
    assert drained(consumer, 1) == {b"ahead": 1}
    assert topic.recall(recalled.message_id).outcome is RecallOutcome.RECALLED
    for body in (b"held back", b"late"):
        clock.advance(HOUR)
        assert drained(consumer, 1) == {body: 1}


def test_the_order_of_message_groups_survives_a_rebase(broker: Broker, dsn: str) -> None:
    broker.create_topic("t", message_type="FIFO", queues=1)
    consumer = broker.consumer("t", "g")
    for number in range(6):
        broker.send("t", f"{number}", message_group="ab"[number % 2])
    late = psycopg2.connect(dsn)
    broker.send("t", b"6", message_group="a", connection=late)
    # One message of group a is in somebody's hands; the rest of it has to wait.
    held = consumer.receive(1, HOUR)
    assert [message.body for message in held] == [b"0"]
    broker.send("t", b"7", message_group="b")
    broker.tick("t")
    late.commit()
    late.close()
    move(dsn)
    assert broker.rebase().rebased
    consumer.nack(held, AT_ONCE)
    came: list[str] = []

    def have_come() -> bool:
        batch = consumer.receive(1)
        came.extend(message.body.decode() for message in batch)
        consumer.ack(batch)
        return len(came) >= 8

    until(have_come, "all of both message groups")
    assert [body for body in came if body in "0246"] == ["0", "2", "4", "6"]
    assert [body for body in came if body in "1357"] == ["1", "3", "5", "7"]
    assert not consumer.receive()


def test_two_rebases_at_once_are_one(broker: Broker, dsn: str) -> None:
    broker.create_topic("t")
    broker.send_many("t", [{"body": b"x", "delay": SECOND} for _ in range(1000)])
    move(dsn)
    with beside() as start:
        rebases = [start(broker.rebase) for _ in range(4)]
    assert sorted(done.result().rebased for done in rebases) == [False, False, False, True]


@pytest.mark.slow
def test_x14_a_restored_dump_delivers_waiting_messages_once(
    broker: Broker, dsn: str, restored_dsn: str, tmp_path: Path
) -> None:
    """Everything a live broker has at the moment of its dump: open senders, stragglers, recalls, leases."""
    broker.create_topic("t", granularity=MILLISECOND)
    consumer = broker.consumer("t", "g")
    ids = {}

    def send(body: str, delay: timedelta, **more: object) -> None:
        ids[body] = broker.send("t", body.encode(), delay=delay, **more).message_id  # type: ignore[arg-type]

    send("acked", AT_ONCE)
    send("nacked", AT_ONCE)
    batch = consumer.receive()
    consumer.ack([m for m in batch if m.body == b"acked"])
    consumer.nack([m for m in batch if m.body == b"nacked"], SECOND)
    send("held", AT_ONCE)
    held = consumer.receive(invisible=HOUR)
    assert [m.body for m in held] == [b"held"]
    send("expiring", AT_ONCE)
    assert [m.body for m in consumer.receive(invisible=SECOND)] == [b"expiring"]
    found = open_sender(broker, dsn, "t", b"straggler")
    missed = open_sender(broker, dsn, "t", b"committed after the last tick")
    rolled_back = open_sender(broker, dsn, "t", b"never committed")
    send("released", AT_ONCE)
    broker.tick("t")
    found.commit()
    broker.tick("t")
    send("soon", SECOND)
    send("later", HOUR, key="later")
    send("recalled", SECOND)
    assert broker.recall(ids["recalled"]).outcome is RecallOutcome.RECALLED
    send("once", SECOND, idempotency_key="once")

    # Senders go on while the dump is taken; what of theirs is in it, comes.
    stop, going = threading.Event(), threading.Event()

    def go_on_sending() -> None:
        number = 0
        while not stop.is_set():
            with closing(psycopg2.connect(dsn)) as connection:
                for _ in range(5):
                    broker.send("t", f"live {number}".encode(), delay=AT_ONCE, connection=connection)
                    number += 1
                time.sleep(0.005)
                broker.tick("t")
                connection.commit()
                going.set()

    senders = [threading.Thread(target=go_on_sending) for _ in range(2)]
    for sender in senders:
        sender.start()
    going.wait()
    missed.commit()
    dump(dsn, tmp_path / "dump")
    stop.set()
    for sender in senders:
        sender.join()
    rolled_back.rollback()
    restore(tmp_path / "dump", restored_dsn)

    with Broker(restored_dsn) as restored:
        with pytest.raises(BrokerMoved, match="duewheel db rebase"):
            restored.send("t", b"", delay=SECOND)
        # The roles are the cluster's: an upgrade makes them there, and gives them their rights.
        restored.upgrade()
        assert execute(restored_dsn, "select duewheel.rights_are_granted()") == [(True,)]
        done = restored.rebase()
        assert done.rebased
        assert schema_state.check(restored_dsn)
        # A lease of before the dump is answered after it; a handle is as good as it was.
        at_hand = restored.consumer("t", "g")
        at_hand.ack(held)
        with pytest.raises(LeaseLost):
            at_hand.nack(held)
        live = execute(
            restored_dsn,
            "select body from duewheel.any_message m where body like 'live %' and not exists ("
            " select from duewheel.topic t where t.topic_id = m.topic_id and t.message_type = 'RETRY')",
        )
        expected: Counter[bytes] = Counter(bytes(body) for (body,) in live)  # type: ignore[call-overload]
        assert len(live) > 0
        expected.update(
            name.encode()
            for name in (
                *("nacked", "expiring", "straggler", "committed after the last tick"),
                *("released", "soon", "once"),
            )
        )
        # The last one sent is due after the one that was recalled.
        assert drained(at_hand, expected.total()) == expected
        # The rest of the state has come along too.
        again = restored.send("t", b"once", delay=SECOND, idempotency_key="once")
        assert (again.message_id, again.outcome) == (ids["once"], "duplicate")
        assert restored.recall_key("t", "later").outcome is RecallOutcome.RECALLED
        assert restored.history(ids["acked"])[-1].state == "Acked"
        states = [entry.state for entry in restored.history(ids["nacked"])]
        assert states[-1] == "Acked"
    for connection in (found, missed, rolled_back):
        connection.close()
