"""Upgrading: from nothing, again, by many at once, and what an old or a missing schema says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg2
import pytest
from tests.conftest import execute
from tests.next_version import NextVersion, with_more
from tests.servers import programs
from tests.waiting import PATIENCE_SECONDS, ask, beside, connected, until

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store import sql
from duewheel.store.broker import Broker
from duewheel.store.database import migration, schema, schema_state
from duewheel.store.database.schema_script import schema_script
from duewheel.store.values.errors import BrokerMoved, BrokerNotUpgraded

NUMBERS = count(1)


@pytest.fixture
def empty_dsn(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The address of a database with nothing in it."""
    name = f"empty_{next(NUMBERS)}"
    yield postgres.ensure_database(name)
    execute(postgres.dsn(), f"drop database {name} with (force)")


def described(dsn: str) -> list[tuple[object, ...]]:
    """All relations and functions of the schema; one slot stands for all."""
    return execute(
        dsn,
        """
        select distinct 'relation', case when c.relispartition then 'a slot' else c.relname end,
            c.relkind::text, a.columns
        from pg_class c cross join lateral (
            select array_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) order by a.attnum)::text
            from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) a (columns)
        where c.relnamespace = 'duewheel'::regnamespace
        union all
        select 'function', p.oid::regprocedure::text, '', pg_get_functiondef(p.oid)
        from pg_proc p where p.pronamespace = 'duewheel'::regnamespace
        order by 1, 2, 3, 4
        """,
    )


def slots(dsn: str) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """The slots on record, and those that are attached."""
    attached = (
        "select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid"
        " where i.inhparent = 'duewheel.message'::regclass order by 1"
    )
    return execute(dsn, "select table_name from duewheel.slot order by 1"), execute(dsn, attached)


def test_the_script_makes_what_an_upgrade_makes(empty_dsn: str, dsn: str, tmp_path: Path) -> None:
    (tmp_path / "schema.sql").write_text(schema_script())
    psql = [str(programs() / "psql"), "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet"]
    once = [*psql, f"--file={tmp_path / 'schema.sql'}", empty_dsn]
    subprocess.run(once, check=True, capture_output=True)
    assert described(empty_dsn) == described(dsn)
    with Broker(empty_dsn) as broker:
        state = broker.check()
        assert broker.upgrade() == state
    again = subprocess.run(once, check=False, capture_output=True, text=True)
    assert 'schema "duewheel" already exists' in again.stderr
    assert again.returncode == 3


def test_a_missing_schema_is_made_and_used(empty_dsn: str) -> None:
    with Broker(empty_dsn) as broker:
        with pytest.raises(BrokerNotUpgraded, match=r"no duewheel schema.*`duewheel db upgrade`"):
            broker.topics()
        with pytest.raises(BrokerNotUpgraded, match=r"no duewheel schema.*`duewheel db upgrade`"):
            broker.check()
        state = broker.upgrade()
        assert state.revision == schema.newest_revision()
        assert state.functions_checksum == schema_state.functions_checksum()
        assert broker.check() == state
        # The same object works once the schema is there.
        assert broker.topics() == []


@pytest.mark.slow
def test_timeouts_of_the_database_do_not_end_an_upgrade(empty_dsn: str) -> None:
    """A whole upgrade is one transaction, and may have to wait for another one."""
    with connected(empty_dsn) as connection:
        ((name,),) = ask(connection, "select quote_ident(current_database())")
        timeouts = "select name from pg_settings where name ~ '^(statement|transaction|idle_in.*)_timeout$'"
        for (setting,) in ask(connection, timeouts):
            ask(connection, f"alter database {name} set {setting} = '500ms'")
    with Broker(empty_dsn) as broker, connected(empty_dsn) as other, beside() as start:
        ask(other, "select set_config(name, '0', false) from pg_settings where name = 'transaction_timeout'")
        ask(other, "select pg_advisory_lock(%s)", migration.UPGRADE_LOCK)
        upgraded = start(broker.upgrade)
        waits = (
            "select 1 from pg_locks l join pg_stat_activity a using (pid) where l.locktype = 'advisory'"
            " and not l.granted and clock_timestamp() > a.xact_start + interval '0.7 s'"
        )
        until(lambda: ask(other, waits), "the upgrade to have waited for longer than it might")
        ask(other, "select pg_advisory_unlock(%s)", migration.UPGRADE_LOCK)
        upgraded.result()
    with connected(empty_dsn) as connection:
        assert ask(connection, "select count(*) from duewheel.topic") == [(0,)]


@pytest.mark.slow
def test_threads_upgrade_databases_of_their_own_at_once(postgres: EmbeddedPostgres) -> None:
    names = [f"threads_{number}" for number in range(4)]
    try:
        with beside() as start:
            upgrading = [start(migration.upgrade, postgres.ensure_database(name)) for name in names]
            assert len({one.result().revision for one in upgrading}) == 1
        for name in names:
            with connected(postgres.ensure_database(name)) as connection:
                assert ask(connection, "select count(*) from duewheel.topic") == [(0,)]
    finally:
        for name in names:
            execute(postgres.dsn(), f"drop database if exists {name} with (force)")


@pytest.mark.long
def test_twenty_processes_upgrade_at_once(empty_dsn: str, dsn: str) -> None:
    # Forked by a program that has done nothing but its imports, which would take each of them a second.
    program = """
import os, sys
from duewheel.store.database import migration
go, let_go = os.pipe()
children = []
for _ in range(20):
    child = os.fork()
    if not child:
        os.close(let_go)
        os.read(go, 1)
        migration.upgrade(sys.argv[1])
        sys.exit()
    children.append(child)
# Closing the pipe lets all of them go.
os.close(let_go)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, empty_dsn],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (done.stdout.strip(), done.stderr) == (str([0] * 20), "")
    assert described(empty_dsn) == described(dsn)
    recorded, attached = slots(empty_dsn)
    assert recorded == attached != []


@pytest.mark.slow
def test_an_upgrade_makes_the_same_as_a_first_installation(dsn: str, empty_dsn: str, tmp_path: Path) -> None:
    next_version = NextVersion(tmp_path)
    for each in (dsn, empty_dsn):
        next_version.upgrade(each)
    assert described(dsn) == described(empty_dsn)


def applied(dsn: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    """Upgrades to a program that has these files of functions beside the others."""
    shutil.rmtree(folder, ignore_errors=True)
    with monkeypatch.context() as patch:
        patch.setattr(sql, "FOLDER", with_more(folder, files))
        migration.upgrade(dsn)


EXAMPLE = """
create or replace function duewheel.example(p_count integer, p_text text default null) returns integer
language sql begin atomic select p_count; end;
create or replace function duewheel.example(p_counts integer[]) returns integer
language sql begin atomic select p_counts[1]; end;
create or replace function duewheel.going(p_count integer) returns integer
language sql begin atomic select duewheel.example(p_count); end;
"""
USED = """
create or replace function duewheel.uses_example() returns integer
language sql begin atomic select e from duewheel.example(3) e; end;
create or replace view duewheel.example_view as select duewheel.example(4) as n;
"""
#: One has another result and another name of a parameter, one has another parameter, and one has gone.
CHANGED = """
create or replace function duewheel.example(p_number integer, p_text text default null)
returns table (e integer, more text)
language sql begin atomic select p_number + 1, 'more'; end;
create or replace function duewheel.example(p_counts integer[], p_place integer default 1) returns integer
language sql begin atomic select p_counts[p_place]; end;
"""
CHANGED_USED = """
create or replace function duewheel.uses_example() returns integer
language sql begin atomic select x.e from duewheel.example(3) x; end;
create or replace view duewheel.example_view as select x.e as n from duewheel.example(4) x;
"""


@pytest.mark.slow
def test_functions_with_another_signature_are_replaced(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where others and views use them; a session that knows the old ones goes on."""
    before = described(dsn)
    applied(dsn, tmp_path / "old", monkeypatch, _1_example=EXAMPLE, _2_used=USED)
    old = (
        "select duewheel.going(1), duewheel.example(array[2]), duewheel.uses_example(), n"
        " from duewheel.example_view"
    )
    new = "select e, more, duewheel.uses_example(), n from duewheel.example(1), duewheel.example_view"
    with connected(dsn, autocommit=False) as session:
        assert ask(session, old) == [(1, 2, 3, 4)]
        session.commit()
        applied(dsn, tmp_path / "new", monkeypatch, _1_example=CHANGED, _2_used=CHANGED_USED)
        assert ask(session, new) == [(2, "more", 4, 5)]
        assert ask(session, "select duewheel.example(array[2])") == [(2,)]
        made = (
            "select oid::regprocedure::text from pg_proc where proname ~ 'example|going|replaced' order by 1"
        )
        assert ask(session, made) == [
            ("duewheel.example(integer,text)",),
            ("duewheel.example(integer[],integer)",),
            ("duewheel.uses_example()",),
        ]
        ask(session, "drop view duewheel.example_view")
        session.commit()
    migration.upgrade(dsn)
    assert described(dsn) == before


def test_a_function_that_a_user_s_view_needs_is_not_dropped(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied(dsn, tmp_path / "old", monkeypatch, _1_example=EXAMPLE, _2_used=USED)
    execute(dsn, "create view public.mine as select duewheel.going(1)")
    before = described(dsn)
    with pytest.raises(psycopg2.errors.DependentObjectsStillExist, match="mine"):
        applied(dsn, tmp_path / "new", monkeypatch, _1_example=CHANGED, _2_used=CHANGED_USED)
    assert described(dsn) == before


def test_what_a_broker_finds_is_checked_once(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(dsn) as broker:
        assert broker.topics() == []
        execute(dsn, "update duewheel.broker set system_identifier = system_identifier - 1")
        assert broker.topics() == []
    with Broker(dsn) as broker, pytest.raises(BrokerMoved, match="another cluster"):
        broker.send("t", b"")
    execute(dsn, "update duewheel.broker set system_identifier = system_identifier + 1")
    with monkeypatch.context() as patch, Broker(dsn) as broker:
        patch.setattr(schema, "newest_revision", lambda: "9999")
        with pytest.raises(BrokerNotUpgraded, match=r"at revision \d{4}.*needs revision 9999"):
            broker.topics()
    # A newer schema is used and left alone.
    execute(dsn, f"update duewheel.{schema.VERSION_TABLE} set version_num = '9999'")
    execute(dsn, "update duewheel.broker set functions_checksum = 'newer'")
    state = migration.upgrade(dsn)
    assert state == schema_state.SchemaState("9999", "newer") == schema_state.check(dsn)
    with Broker(dsn) as broker:
        assert broker.topics() == []


def test_changed_functions_are_applied_again_and_no_others(dsn: str) -> None:
    before = execute(dsn, "select xmin::text from duewheel.broker")
    migration.upgrade(dsn)
    assert execute(dsn, "select xmin::text from duewheel.broker") == before
    execute(dsn, "update duewheel.broker set functions_checksum = 'older'")
    execute(dsn, "drop function duewheel.notify_due")
    with pytest.raises(BrokerNotUpgraded, match="functions in the database"):
        schema_state.check(dsn)
    migration.upgrade(dsn)
    schema_state.check(dsn)
    assert execute(dsn, "select count(*) from pg_proc where proname = 'notify_due'") == [(1,)]


def test_a_failed_upgrade_leaves_nothing(
    empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = "create function duewheel.good() returns integer return 1;"
    monkeypatch.setattr(sql, "FOLDER", with_more(tmp_path / "sql", {"good": good, "bad": "select 1 / 0"}))
    with pytest.raises(psycopg2.errors.DivisionByZero) as caught:
        migration.upgrade(empty_dsn)
    assert caught.value.__notes__ == ["while applying bad.sql"]
    assert execute(empty_dsn, "select count(*) from pg_namespace where nspname = 'duewheel'") == [(0,)]


def test_the_manifest_names_every_file_once() -> None:
    files = [path.relative_to(sql.FOLDER).with_suffix("") for path in sql.FOLDER.rglob("*.sql")]
    assert sorted(sql.files()) == sorted(map(str, files))


def test_every_function_with_one_plan_for_all_plans_by_the_keys(dsn: str) -> None:
    """Whoever forces one plan says how to make it, or leaves it to entry/plans.sql."""
    planned = execute(
        dsn,
        "select p.proname, 'enable_seqscan=off' = any (p.proconfig), 'enable_sort=off' = any (p.proconfig),"
        " 'jit=off' = any (p.proconfig) from pg_proc p where p.pronamespace = 'duewheel'::regnamespace"
        " and 'plan_cache_mode=force_generic_plan' = any (p.proconfig)",
    )
    assert [name for name, by_the_keys, *_ in planned if not by_the_keys] == []
    assert ("receive_batch", True, True, True) in planned
