"""What others do in the same database and cluster."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack, closing, suppress
from datetime import timedelta

import psycopg2
import pytest
from psycopg2.errors import FeatureNotSupported, ProgramLimitExceeded
from tests.chaos.arena import Arena
from tests.chaos.fault import fault
from tests.chaos.traffic import GROUPS, TOPIC, Log
from tests.waiting import ask, beside, connected

from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.messages import Message, RecallOutcome

_AT_ONCE = timedelta(0)
_SOON = timedelta(milliseconds=300)
_CHANNELS = ("duewheel_due", "duewheel_released")
_END_SESSIONS = (
    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
    " and pid <> pg_backend_pid() and backend_type = 'client backend'"
)
_END_LISTENERS = (
    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
    " and pid <> pg_backend_pid() and query ~* '^ *listen'"
)
_SCANNERS = 4
_RECEIVES = 5
_PATIENCE = timedelta(seconds=30)
#: Each transaction that writes takes one.
_BURN_IDS = """
do $$ begin for i in 1 .. 5000 loop perform pg_current_xact_id(); commit; end loop; end $$
"""
_GARBAGE = ("", "x", "1", "1 " + "9" * 400, "-1 -1", "1 2 3 4", "999999 0", "\t", "é")


@fault(
    "idle-transactions",
    "Transactions idle for the whole run, in this and in another database, beside scans at REPEATABLE READ"
    " and many transaction ids",
)
def idle_transactions(arena: Arena) -> str:
    """Two have written, of which one is another database's, and one only reads."""
    other = arena.server.ensure_database("neighbour")
    rounds = 0
    ended = threading.Event()

    def scan() -> int:
        scans = 0
        with connected(arena.dsn, autocommit=False) as connection:
            ask(connection, "set session characteristics as transaction isolation level repeatable read")
            connection.commit()
            while not ended.is_set():
                for table in ("message", "lease", "tick"):
                    ask(connection, f"select count(*) from duewheel.{table}")
                ended.wait(0.2)
                connection.commit()
                scans += 1
        return scans

    with ExitStack() as held:
        for dsn, isolation in (
            (arena.dsn, "read committed"),
            (arena.dsn, "repeatable read"),
            (other, "serializable"),
        ):
            connection = held.enter_context(closing(psycopg2.connect(dsn)))
            ask(connection, f"set transaction isolation level {isolation}")
            ask(
                connection,
                "create table written as select 1 as one" if isolation != "repeatable read" else "select 1",
            )
        with Broker(arena.dsn) as broker, connected(arena.dsn) as burning, beside() as start:
            scanning = [start(scan) for _ in range(_SCANNERS)]
            try:
                for _ in arena.rounds():
                    broker.maintain()
                    ask(burning, _BURN_IDS)
                    rounds += 1
                ((age,),) = ask(burning, "select max(age(backend_xid)) from pg_stat_activity")
            finally:
                ended.set()
        scans = sum(one.result() for one in scanning)
    return f"3 transactions, the oldest {age} ids old; {scans} scans, {rounds} rounds of upkeep beside them"


@fault("two-phase", "Sends and recalls in PREPARE TRANSACTION, ticks meanwhile, then commit or rollback")
def two_phase(arena: Arena) -> str:
    """The messages of a committed one come late, those of a rolled back one never; a recall is refused."""
    log = Log(arena.crew.directory / "fault.log")
    prepared = 0
    with Broker(arena.dsn) as broker:
        for number in arena.rounds():
            name = f"prepared-{number}"
            with closing(psycopg2.connect(arena.dsn)) as connection:
                log("sending", bodies=[name])
                broker.send(TOPIC, name, delay=_AT_ONCE, connection=connection)
                ask(connection, f"prepare transaction '{name}'")
            waiting = broker.send(TOPIC, "", delay=timedelta(hours=1)).message_id
            with closing(psycopg2.connect(arena.dsn)) as connection:
                connection.set_session(isolation_level="READ COMMITTED")
                broker.recall(waiting, connection=connection)
                with pytest.raises(FeatureNotSupported):
                    ask(connection, "prepare transaction 'recall'")
            assert broker.recall(waiting).outcome is RecallOutcome.RECALLED
            broker.tick(TOPIC)
            with connected(arena.dsn) as connection:
                if arena.chance.random() < 0.5:
                    ask(connection, f"rollback prepared '{name}'")
                    log("rolled back", bodies=[name])
                else:
                    ask(connection, f"commit prepared '{name}'")
                    log("sent", bodies=[name], ids=[])
            prepared += 1
    return f"{prepared} prepared transactions"


@fault("savepoints", "Savepoints rolled back around sends, acks and recalls")
def savepoints(arena: Arena) -> str:
    """What is rolled back never was; the rest of its transaction counts."""
    log = Log(arena.crew.directory / "fault.log")
    count = 0
    with Broker(arena.dsn) as broker:
        broker.create_topic("saved")
        consumer = broker.consumer("saved", "saved")
        for number in arena.rounds():
            kept, gone = f"kept-{number}", f"gone-{number}"
            with closing(psycopg2.connect(arena.dsn)) as connection:
                log("sending", bodies=[kept, gone])
                receipt = broker.send(TOPIC, kept, delay=_SOON, connection=connection)
                ask(connection, "savepoint a")
                broker.send(TOPIC, gone, delay=_AT_ONCE, connection=connection)
                broker.recall(receipt.message_id, connection=connection)
                ask(connection, "rollback to savepoint a")
                connection.commit()
            log("sent", bodies=[kept], ids=[])
            log("rolled back", bodies=[gone])
            _roll_back_an_ack(broker, consumer)
            count += 1
    return f"{count} savepoints with a send and a recall, and as many with an ack"


def _roll_back_an_ack(broker: Broker, consumer: Consumer) -> None:
    """The message comes again, as nobody has acked it; the other one does not."""
    for body in ("acked", "unacked"):
        broker.send("saved", body, delay=_AT_ONCE)
    came: dict[bytes, Message] = {}
    while len(came) < 2:
        came |= {message.body: message for message in consumer.receive(wait=_PATIENCE)}
    with closing(psycopg2.connect(broker.dsn)) as connection:
        connection.set_session(isolation_level="READ COMMITTED")
        ask(connection, "savepoint a")
        consumer.ack([came[b"unacked"]], connection=connection)
        ask(connection, "rollback to savepoint a")
        consumer.ack([came[b"acked"]], connection=connection)
        connection.commit()
    consumer.nack([came[b"unacked"]], _AT_ONCE)
    (again,) = consumer.receive(wait=_PATIENCE)
    assert (again.body, again.attempt) == (b"unacked", 2)
    consumer.ack([again])


@fault(
    "notify-queue-full",
    "A stranger of another database keeps the server's queue of notifications full",
    max_prepared_transactions=0,
)
def notify_queue_full(arena: Arena) -> str:
    """It listens, and stays in a transaction. Where transactions may be prepared, recalls fail meanwhile."""
    with connected(arena.dsn) as connection:
        if not ask(connection, "select 1 from pg_settings where name = 'max_notify_queue_pages'"):
            return "left out: before Postgres 17 the queue is 8 GiB"
        ask(connection, "alter system set max_notify_queue_pages = 64")
    arena.server.stop(signal.SIGINT)
    arena.server.start_again()
    other = arena.server.ensure_database("neighbour")
    times = 0
    for _ in arena.rounds():
        with closing(psycopg2.connect(other)) as stranger, connected(other) as connection:
            ask(stranger, "listen strange")
            stranger.commit()
            ask(stranger, "select 1")
            for _ in range(_RECEIVES):
                # Again and again, as listeners that were behind make a little room.
                with suppress(ProgramLimitExceeded):
                    while True:
                        ask(connection, "select pg_notify('strange', repeat('x', 7000))")
                arena.receive_more()
            with Broker(arena.dsn) as broker:
                waiting = broker.send(TOPIC, "", delay=timedelta(hours=1)).message_id
                assert broker.recall(waiting).outcome is RecallOutcome.RECALLED
                assert broker.pause_group(GROUPS[0], topic=TOPIC) == 1
                assert broker.resume_group(GROUPS[0], topic=TOPIC) == 1
            times += 1
    return f"{times} times, through {_RECEIVES} receives each"


@fault("notifications", "Garbage and floods on every NOTIFY channel")
def notifications(arena: Arena) -> str:
    """What comes by NOTIFY is text of a stranger."""
    count = 0
    with connected(arena.dsn) as connection:
        for _ in arena.rounds():
            for channel in _CHANNELS:
                for text in _GARBAGE:
                    ask(connection, "select pg_notify(%s, %s)", channel, text)
                ask(
                    connection,
                    "select pg_notify(%s, (i + 100000)::text || ' ' || i) from generate_series(1, 5000) i",
                    channel,
                )
                count += len(_GARBAGE) + 5000
    return f"{count} notifications"


@fault("replication", "A publication for all tables, and a logical slot that nobody reads")
def replication(arena: Arena) -> str:
    """As a change data capture has them; upkeep drops and moves on."""
    rounds = 0
    with connected(arena.dsn) as connection, Broker(arena.dsn) as broker:
        ask(connection, "alter table effect replica identity full")
        ask(connection, "create publication everything for all tables")
        ask(connection, "select pg_create_logical_replication_slot('unread', 'pgoutput')")
        for _ in arena.rounds():
            broker.maintain()
            rounds += 1
        ask(connection, "select pg_drop_replication_slot('unread')")
    return f"{rounds} rounds of upkeep"


@fault("advisory-locks", "A stranger takes the broker's advisory locks, and lets go")
def advisory_locks(arena: Arena) -> str:
    """Every login may: releases wait, and nothing is lost."""
    taken = 0
    with connected(arena.dsn) as connection:
        for _ in arena.rounds():
            ask(connection, "begin")
            ask(
                connection,
                "select pg_advisory_xact_lock(duewheel.tick_lock_class(), topic_id) from duewheel.topic",
            )
            ask(connection, "select pg_sleep(%s)", arena.seconds / 4)
            ask(connection, "commit")
            taken += 1
    return f"{taken} times the locks of all topics, for {arena.seconds / 4:.1f} s"


@fault("odd-settings", "Logins with odd settings: isolation, timeouts, JIT, dates, search path")
def odd_settings(arena: Arena) -> str:
    """Of the whole database, so of every worker that connects from now on."""
    settings = {
        "default_transaction_isolation": "serializable",
        "jit": "on",
        "jit_above_cost": "0",
        "datestyle": "'SQL, DMY'",
        "intervalstyle": "sql_standard",
        "timezone": "'Asia/Kolkata'",
        "search_path": "pg_temp, public",
        "row_security": "off",
        "plan_cache_mode": "force_custom_plan",
        "lock_timeout": "'2s'",
        "bytea_output": "escape",
        "extra_float_digits": "-15",
        "standard_conforming_strings": "on",
    }
    with connected(arena.dsn) as connection:
        for name, value in settings.items():
            ask(connection, f"alter database chaos set {name} = {value}")
        # A session has what its database had when it began.
        ask(connection, _END_SESSIONS)
        for _ in arena.rounds():
            pass
        ask(connection, "alter database chaos reset all")
        ask(connection, _END_SESSIONS)
    return f"{len(settings)} settings"


@fault("slots-blocked", "A long lock keeps upkeep from making and dropping slots")
def slots_blocked(arena: Arena) -> str:
    """As a dump takes it: everybody reads and writes on, and upkeep says that it could not."""
    rounds = 0
    with connected(arena.dsn, autocommit=False) as reading, Broker(arena.dsn) as broker:
        for number in arena.rounds():
            ask(reading, "lock table duewheel.message in access share mode")
            broker.create_topic(f"further-{number}", max_delay=timedelta(days=20 * number))
            broker.maintain()
            arena.receive_more()
            reading.rollback()
            rounds += 1
        broker.maintain()
    return f"{rounds} rounds of upkeep"


@fault("notify-lost", "Messages moved to now while the wheels' listening sessions end")
def notify_lost(arena: Arena) -> str:
    """No wheel hears of it, and each comes all the same."""
    log = Log(arena.crew.directory / "fault.log")
    moved = 0
    with Broker(arena.dsn) as broker, connected(arena.dsn) as connection:
        for number in arena.rounds():
            name = f"moved-{number}"
            log("sending", bodies=[name])
            receipt = broker.send(TOPIC, name, delay=timedelta(hours=1))
            log("sent", bodies=[name], ids=[])
            ask(connection, _END_LISTENERS)
            broker.reschedule(receipt.message_id, delay=_AT_ONCE)
            moved += 1
    return f"{moved} messages"
