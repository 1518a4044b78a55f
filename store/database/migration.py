"""Bringing a database to the schema of this program.

The tables are made by Alembic's revisions in ``migrations/versions``, each a number and a folder of frozen
``.sql`` files. The functions in ``sql`` are not frozen: all of them are applied again when their checksum
differs from the one stored in the database. Then the schema has exactly the functions of the files: a
function with another result is replaced, and a function that is in no file is dropped. All this happens
in one transaction under an advisory lock, so any number of processes may upgrade at once. One process does
the work, the others wait and find it done, and a failure leaves everything as it was.

A broker is upgraded while it is in use. An open transaction may hold a table that the upgrade changes. Other
sessions then wait for the upgrade, which waits for that transaction. So the upgrade waits only for a moment,
lets the sessions pass, and begins again.
A database that is newer than this program is left alone: migrations keep what older programs use.
"""

from __future__ import annotations

import logging
import re
import threading
import time

import psycopg2
from alembic import command
from alembic.config import Config
from psycopg2.extensions import ISOLATION_LEVEL_READ_COMMITTED
from sqlalchemy import Connection, Engine, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from duewheel.store import sql
from duewheel.store.database.connections import (
    Database,
    DriverConnection,
    DriverCursor,
    cursor_of,
    driver_connection,
    fetch,
)
from duewheel.store.database.schema import MIGRATIONS, SCHEMA, VERSION_TABLE, newest_revision
from duewheel.store.database.schema_state import SchemaState, functions_checksum, state_of
from duewheel.store.database.watchdog import REWRITE_SECONDS
from duewheel.store.values.errors import NotAllowed, from_database, is_read_only

log = logging.getLogger(__name__)

# Held while a database is upgraded; the letters "duewheel" as a number.
UPGRADE_LOCK = 0x6475657768656C

# Alembic keeps its state for the whole process, so threads upgrade one after another.
_ALEMBIC_LOCK = threading.Lock()

# How long other sessions wait for an upgrade that waits for an open transaction: at first, and at most. It
# waits longer each time, because on a busy machine a moment may be too short for all open transactions.
_LOCK_TIMEOUT_MS = 300
_LONGEST_LOCK_TIMEOUT_MS = 900
# A server whose ``deadlock_timeout`` is shorter than that may choose the upgrade as a deadlock's victim.
_HELD_UP = (psycopg2.errors.LockNotAvailable, psycopg2.errors.DeadlockDetected)
# Between two attempts: twice as long each time, and this at most.
_LONGEST_PAUSE_SECONDS = 5.0

# Postgres's hint if `create or replace` would change a function's result.
_DROP_FIRST = re.compile(r"DROP (?:FUNCTION|PROCEDURE) (\S+\(.*\))")

# Whatever the settings of the login or the database, an upgrade has no time limit, and no other schema's
# objects become part of the functions; servers before version 17 have no transaction_timeout.
_OWN_SETTINGS = """
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
select set_config(name, '0', true) from pg_settings
where name in ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')
"""

_OLDEST_TRANSACTION = """
select pid, application_name, xact_start from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null
order by xact_start limit 1
"""


def upgrade(dsn: str) -> SchemaState:
    """Make the schema, or bring it to this revision; see :meth:`duewheel.store.broker.Broker.upgrade`."""
    database = Database(dsn, answer_seconds=REWRITE_SECONDS)

    def connect() -> DriverConnection:
        connection = database.connect()
        connection.autocommit = False
        # Each statement must see what the process that held the lock before has just committed.
        connection.isolation_level = ISOLATION_LEVEL_READ_COMMITTED
        connection.readonly = connection.deferrable = False
        return connection

    engine = create_engine("postgresql+psycopg2://", creator=connect, poolclass=NullPool)
    try:
        return _upgrade_when_possible(engine)
    except DBAPIError as error:
        if isinstance(error.orig, psycopg2.errors.InsufficientPrivilege):
            raise _not_owner(error.orig) from error
        if isinstance(error.orig, psycopg2.Error):
            # Whichever statement failed, the caller gets the driver's error.
            ours = from_database(error.orig) if is_read_only(error.orig) else None
            raise ours or error.orig from error
        raise
    except psycopg2.errors.InsufficientPrivilege as error:
        raise _not_owner(error) from error


def _not_owner(error: psycopg2.Error) -> NotAllowed:
    return NotAllowed(
        f"this user may not upgrade the broker ({error.diag.message_primary}): upgrade as the user who made "
        f"the schema {SCHEMA}; the first time, as one with the right CREATE on the database"
    )


def _upgrade_when_possible(engine: Engine) -> SchemaState:
    pause_seconds = 0.1
    lock_timeout_ms = _LOCK_TIMEOUT_MS
    while True:
        try:
            state = _upgrade(engine, lock_timeout_ms)
            break
        except (DBAPIError, *_HELD_UP) as error:
            if not isinstance(getattr(error, "orig", error), _HELD_UP):
                raise
        with engine.begin() as connection:
            found = fetch(driver_connection(connection), _OLDEST_TRANSACTION, ())
        log.warning(
            "the upgrade waits for open transactions, and tries again until they have ended: %s",
            "; ".join(
                f"the oldest is that of process {pid} ({name or 'no application name'}) since {since}"
                for pid, name, since in found
            )
            or "none is open any more",
        )
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
        lock_timeout_ms = min(2 * lock_timeout_ms, _LONGEST_LOCK_TIMEOUT_MS)
    if state.functions_checksum == functions_checksum():
        # Once when all sessions see the slots, and again once all were notified of them.
        for _ in range(2):
            with engine.begin() as connection:
                _run(connection, _OWN_SETTINGS)
                _run(connection, f"select {SCHEMA}.open_slots()")
    return state


def _upgrade(engine: Engine, lock_timeout_ms: int) -> SchemaState:
    with engine.begin() as connection:
        _run(connection, _OWN_SETTINGS)
        _run(connection, f"select pg_advisory_xact_lock({UPGRADE_LOCK})")
        _run(connection, f"set local lock_timeout = {lock_timeout_ms}")
        _run(connection, f"create schema if not exists {SCHEMA}")
        found = _revision(connection)
        if found is not None and found > newest_revision():
            log.warning(
                "the schema is at revision %s, newer than this program's %s: left alone",
                found,
                newest_revision(),
            )
        else:
            with _ALEMBIC_LOCK:
                command.upgrade(_alembic(connection), "head")
            applied = _apply_functions(connection)
            _grant_rights(connection, again=applied)
            _run(connection, f"select {SCHEMA}.make_slots_ahead(clock_timestamp())")
        return state_of(driver_connection(connection))


def _apply_functions(connection: Connection) -> bool:
    """Apply the functions if their checksum differs; returns whether it did."""
    driver = driver_connection(connection)
    wanted = functions_checksum()
    if state_of(driver).functions_checksum == wanted:
        return False
    before = _functions(driver)
    with cursor_of(driver) as cursor:
        moved = [oid for name in sql.files() for oid in _apply(cursor, name)]
        cursor.execute(sql.entry_points())
        after = _functions(driver)
        gone = [oid for oid, version in before.items() if after.get(oid) == version]
        _drop_functions(driver, [*gone, *moved])
        cursor.execute(f"update {SCHEMA}.broker set functions_checksum = %s", (wanted,))
    return True


def _apply(cursor: DriverCursor, name: str) -> list[int]:
    """Apply a file; functions that ``create or replace`` cannot replace are renamed first, and returned.

    A function with another result keeps its name free for the new one this way. It cannot be dropped before
    later files have made the views and functions that use it again.
    """
    moved: list[int] = []
    while True:
        cursor.execute("savepoint before_file")
        try:
            cursor.execute(sql.text_of(name))
        except psycopg2.Error as error:
            old = _DROP_FIRST.search(error.diag.message_hint or "")
            if old is None or not isinstance(error, psycopg2.errors.InvalidFunctionDefinition):
                error.add_note(f"while applying {name}.sql")
                raise
            cursor.execute("rollback to savepoint before_file")
            cursor.execute("select %s::regprocedure::oid", (old[1],))
            moved += [oid for (oid,) in cursor.fetchall()]
            cursor.execute(f"alter routine {old[1]} rename to replaced_{moved[-1]}")
        else:
            cursor.execute("release savepoint before_file")
            return moved


def _functions(driver: DriverConnection) -> dict[int, str]:
    """The functions of the schema, each with a mark that changes when it is made again."""
    return dict(
        fetch(
            driver, f"select oid, xmin::text from pg_proc where pronamespace = '{SCHEMA}'::regnamespace", ()
        )
    )


def _drop_functions(driver: DriverConnection, oids: list[int]) -> None:
    """Drop functions in one statement, because they may use each other; fails if anything else uses one."""
    names = "select string_agg(oid::regprocedure::text, ', ') from pg_proc where oid = any (%s::oid[])"
    ((listed,),) = fetch(driver, names, (oids,))
    if listed:
        with cursor_of(driver) as cursor:
            cursor.execute(f"drop routine {listed}")


def _grant_rights(connection: Connection, *, again: bool) -> None:
    driver = driver_connection(connection)
    # A replaced function no longer runs with its owner's rights.
    if not again and fetch(driver, f"select {SCHEMA}.rights_are_granted()", ())[0][0]:
        return
    left = [statement for (statement,) in fetch(driver, f"select {SCHEMA}.grant_rights()", ())]
    if left:
        log.warning(
            "only the schema's owner can use the broker: let one with CREATEROLE run %s; then upgrade again",
            "; ".join(left),
        )


def _revision(connection: Connection) -> str | None:
    driver = driver_connection(connection)
    if fetch(driver, f"select to_regclass('{SCHEMA}.{VERSION_TABLE}')", ())[0][0] is None:
        return None
    rows = fetch(driver, f"select version_num from {SCHEMA}.{VERSION_TABLE}", ())
    return rows[0][0] if rows else None


def _alembic(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _run(connection: Connection, statement: str) -> None:
    connection.exec_driver_sql(statement)
