"""What others do in the same database and cluster."""

from __future__ import annotations

from contextlib import ExitStack, closing
from datetime import timedelta

import psycopg2
from tests.chaos.arena import Arena
from tests.chaos.fault import fault
from tests.chaos.traffic import TOPIC, Log
from tests.waiting import ask, connected

from duewheel.store.broker import Broker

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
_GARBAGE = ("", "x", "1", "1 " + "9" * 400, "-1 -1", "1 2 3 4", "999999 0", "\t", "é")


@fault("idle-transactions", "Transactions idle for the whole run, in this and in another database")
def idle_transactions(arena: Arena) -> str:
    """Two have written, of which one is another database's, and one only reads."""
    other = arena.server.ensure_database("neighbour")
    rounds = 0
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
        with Broker(arena.dsn) as broker:
            for _ in arena.rounds():
                broker.maintain()
                rounds += 1
    return f"3 transactions, {rounds} rounds of upkeep beside them"


@fault("two-phase", "Sends and recalls in PREPARE TRANSACTION, ticks meanwhile, then commit or rollback")
def two_phase(arena: Arena) -> str:
    """The messages of a committed one come late, those of a rolled back one never."""
    log = Log(arena.crew.directory / "fault.log")
    prepared = 0
    with Broker(arena.dsn) as broker:
        for number in arena.rounds():
            name = f"prepared-{number}"
            with closing(psycopg2.connect(arena.dsn)) as connection:
                log("sending", bodies=[name])
                broker.send(TOPIC, name, delay=_AT_ONCE, connection=connection)
                ask(connection, f"prepare transaction '{name}'")
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


@fault("savepoints", "Savepoints rolled back around sends and recalls")
def savepoints(arena: Arena) -> str:
    """What is rolled back never was; the rest of its transaction counts."""
    log = Log(arena.crew.directory / "fault.log")
    count = 0
    with Broker(arena.dsn) as broker:
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
            count += 1
    return f"{count} savepoints with a send and a recall"


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
