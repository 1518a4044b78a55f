"""Settings of a login or a database, each under a short round of everything.

An administrator may give every session of a login other defaults than those of Postgres. The broker's own
connections work all the same, also where a pooler shares sessions (``listen=False``) and nothing that is set
for a session stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from threading import Event

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn
from tests.acting import AT_ONCE, HOUR, SECOND, bodies, taken
from tests.conftest import execute
from tests.logins import SUPERUSER, as_user
from tests.waiting import PATIENCE_SECONDS, ask, beside, connected, until

from duewheel.store.broker import Broker
from duewheel.store.consuming.ready_messages import ready_messages
from duewheel.store.database.connections import DriverConnection
from duewheel.store.database.listening import Notification, NotificationListener
from duewheel.store.metrics.reporting import claim_report
from duewheel.store.values.errors import NotAllowed, WrongIsolationLevel
from duewheel.store.values.messages import RecallOutcome, SendOutcome
from duewheel.store.values.retry_policy import RetryPolicy

WAIT = timedelta(seconds=20)
FAR = datetime.now(UTC).replace(microsecond=678_901) + timedelta(days=3_000)


def set_for_all(dsn: str, *settings: str) -> None:
    """Gives all sessions of the database that begin from now on other defaults, as far as the server has
    them."""
    name = parse_dsn(dsn)["dbname"]
    with connected(as_user(dsn, SUPERUSER)) as connection:
        values = dict(ask(connection, "select name, enumvals from pg_settings"))
        for setting in settings:
            known, value = setting.split(" = ")
            if "." in known or (known in values and value.strip("'") in (values[known] or value)):
                ask(connection, f"alter database {name} set {setting}")


def play(broker: Broker) -> None:
    """A short round of everything, without a wheel."""
    broker.create_topic("t", max_delay=timedelta(days=3_650))
    group = broker.consumer("t", "g", retry=RetryPolicy.unordered(max_retries=1))

    # Sent, each with what is to be read again.
    sent = broker.send("t", {"n": 1}, deliver_at=FAR, key="k", tag="a", properties={"p": "ü\\'\""})
    assert sent.deliver_at == FAR
    ((page,),) = [broker.list_messages("t").messages]
    assert (page.message_id, page.deliver_at, page.key, page.tag) == (sent.message_id, FAR, "k", "a")
    (found,) = broker.find_key("t", "k")
    assert (found.message_id, found.deliver_at) == (sent.message_id, FAR)
    again = broker.send("t", b"x", delay=HOUR, key="k", on_conflict="keep")
    assert (again.message_id, again.outcome) == (sent.message_id, SendOutcome.KEPT)
    many = broker.send_many("t", [{"body": b"%d" % n, "delay": HOUR, "key": f"m{n}"} for n in range(3)])
    assert len({receipt.message_id for receipt in many}) == 3

    # Moved and taken back.
    moved = broker.reschedule(many[0].message_id, deliver_at=FAR)
    assert moved.deliver_at == FAR
    assert broker.recall(moved.message_id).outcome is RecallOutcome.RECALLED
    assert broker.recall_key("t", "m1").outcome is RecallOutcome.RECALLED
    assert broker.recall_many("t", key_prefix="m", dry_run=True).matched == 1
    assert broker.recall_many("t", key_prefix="m").recalled == 1
    assert broker.history(moved.message_id)[-1].state == "Deleted"

    # Received and answered.
    body = bytes(range(256))
    broker.send("t", body, delay=AT_ONCE, tag="a", properties={"p": [1, None, {"q": "1e400"}]})
    broker.tick("t")
    assert [ready.tag for ready in ready_messages(broker, "t", "g", 10)] == ["a"]
    batch = group.receive()
    assert bodies(batch) == [body]
    assert batch[0].properties == {"p": [1, None, {"q": "1e400"}]}
    group.change_invisible_duration(batch, HOUR)
    group.nack(batch, AT_ONCE, reason="ü")
    (message,) = again = group.receive(wait=WAIT)
    assert message.attempt == 2
    group.nack(again, reason="dead")
    (dead,) = broker.dead_letters("g")
    assert (dead.reason, dead.attempt) == ("dead", 2)
    assert broker.redrive("g").redriven == 1
    redriven = group.receive(wait=WAIT)
    assert bodies(redriven) == [body]
    group.ack(redriven)
    assert taken(group) == []

    # Looked after.
    broker.create_schedule("s", "t", b"s", cron="0 0 1 1 *", timezone="Europe/Vienna", tag="s")
    (schedule,) = broker.schedules()
    assert schedule.cron == "0 0 1 1 *"
    broker.pause_schedule("s")
    broker.resume_schedule("s")
    broker.delete_schedule("s")
    broker.update_topic("t", retention=2 * HOUR)
    broker.update_settings(retention_bytes=2**40)
    broker.maintain()
    (topic,) = broker.stats().topics
    assert (topic.topic, len(broker.list_messages("t").messages)) == ("t", 1)
    assert claim_report(broker, AT_ONCE) is not None
    assert broker.check() == broker.upgrade()
    assert not broker.rebase().rebased
    broker.delete_group("g")
    broker.delete_topic("t")
    assert broker.topics() == []


def play_with_a_wheel(broker: Broker, listen: bool) -> None:
    """A message that a wheel releases, and one of a schedule."""
    broker.create_topic("w")
    group = broker.consumer("w", "g")
    stop = Event()
    with beside() as start:
        turning = start(lambda: broker.wheel(listen=listen).run(stop))
        broker.send("w", b"by the wheel", delay=SECOND / 10)
        try:
            batch = group.receive(wait=WAIT)
        finally:
            stop.set()
        turning.result(PATIENCE_SECONDS)
    assert bodies(batch) == [b"by the wheel"]
    group.ack(batch)


TRANSACTIONS = [
    ("default_transaction_isolation = 'repeatable read'",),
    ("default_transaction_isolation = 'serializable'", "default_transaction_deferrable = on"),
    ("default_transaction_read_only = on",),
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", TRANSACTIONS, ids="; ".join)
def test_the_brokers_own_connections_do_not_go_by_the_defaults(dsn: str, settings: tuple[str, ...]) -> None:
    set_for_all(dsn, *settings)
    for listen in (True, False):
        with Broker(dsn, listen=listen) as broker:
            play(broker)
            play_with_a_wheel(broker, listen)
            broker.delete_topic("w")


PLANS = ("bitmapscan", "gathermerge", "hashagg", "hashjoin", "incremental_sort", "indexonlyscan")
PLANS += ("material", "memoize", "mergejoin", "nestloop", "partition_pruning", "sort", "tidscan")

#: Each group has settings of different names.
SETTINGS = [
    # Times.
    *(
        (
            "statement_timeout = '30s'",
            "lock_timeout = '10s'",
            "idle_in_transaction_session_timeout = '500ms'",
        ),
        ("lock_timeout = '1ms'", "transaction_timeout = '30s'", "idle_session_timeout = '250ms'"),
    ),
    # Dates, numbers and texts.
    (
        *("datestyle = 'SQL, DMY'", "timezone = 'Asia/Kolkata'", "intervalstyle = 'sql_standard'"),
        *("client_encoding = 'LATIN1'", "standard_conforming_strings = off", "escape_string_warning = on"),
        *(
            "backslash_quote = off",
            "bytea_output = 'escape'",
            "extra_float_digits = -15",
            "array_nulls = off",
        ),
    ),
    (
        *("datestyle = 'German'", "timezone = 'America/St_Johns'", "intervalstyle = 'postgres_verbose'"),
        *("quote_all_identifiers = on", "xmloption = 'document'", "xmlbinary = 'hex'", "lc_messages = 'C'"),
        *("lc_monetary = 'C'", "lc_numeric = 'C'", "lc_time = 'C'", "transform_null_equals = on"),
    ),
    (
        *("datestyle = 'Postgres, MDY'", "timezone = '<+1337>-13:37'", "intervalstyle = 'iso_8601'"),
        *("gin_fuzzy_search_limit = 1", "deadlock_timeout = '10ms'", "log_lock_waits = on"),
    ),
    # Plans.
    (*(f"enable_{plan} = off" for plan in PLANS), "plan_cache_mode = 'force_custom_plan'"),
    (
        *("enable_indexscan = off", "enable_bitmapscan = off", "plan_cache_mode = 'force_generic_plan'"),
        *("from_collapse_limit = 1", "join_collapse_limit = 1", "geqo_threshold = 2"),
        *("constraint_exclusion = on", "work_mem = '64kB'", "temp_buffers = '800kB'"),
        *("maintenance_work_mem = '1MB'", "temp_file_limit = '1MB'", "cursor_tuple_fraction = 1"),
        *("enable_partitionwise_join = on", "enable_partitionwise_aggregate = on"),
    ),
    (
        *("max_parallel_workers_per_gather = 4", "parallel_setup_cost = 0", "parallel_tuple_cost = 0"),
        *("min_parallel_table_scan_size = 0", "min_parallel_index_scan_size = 0"),
        *("force_parallel_mode = 'regress'", "debug_parallel_query = 'regress'"),
        *("default_statistics_target = 1", "random_page_cost = 0.1", "effective_cache_size = '8kB'"),
    ),
    ("jit = on", "jit_above_cost = 0", "jit_inline_above_cost = 0", "jit_optimize_above_cost = 0"),
    # Rights, names and places.
    (
        *("row_security = off", "search_path = ''", "default_tablespace = 'nowhere'"),
        *("temp_tablespaces = 'nowhere'", "default_toast_compression = 'lz4'", "check_function_bodies = off"),
    ),
    ("search_path = pg_temp, hostile", "session_replication_role = 'replica'", "max_stack_depth = '100kB'"),
    (
        *("search_path = hostile, pg_temp, pg_catalog", "plpgsql.extra_errors = 'all'"),
        *("plpgsql.extra_warnings = 'all'", "plpgsql.variable_conflict = 'use_variable'"),
    ),
    # Logs and writing.
    ("client_min_messages = 'debug5'", "log_statement = 'all'", "track_functions = 'all'"),
    (
        *("client_min_messages = 'error'", "synchronous_commit = 'remote_apply'", "commit_delay = 1000"),
        *("vacuum_cost_delay = 100", "vacuum_cost_limit = 1", "vacuum_freeze_min_age = 0"),
    ),
]

#: Objects with names that the broker's statements have.
HOSTILE = """
create schema hostile;
create table hostile.topic (name text);
create table hostile.message (body text);
create table hostile.broker (only_row text);
create function hostile.now() returns timestamptz language sql return timestamptz '1999-01-01 00:00:00+00';
create function hostile.clock_timestamp() returns timestamptz language sql
    return timestamptz '1999-01-01 00:00:00+00';
create function hostile.format(text, text) returns text language sql return 'hostile';
create function hostile.array_remove(integer[], integer) returns integer[] language sql
    return '{}'::integer[];
create function hostile.set_config(text, text, boolean) returns text language sql return 'hostile';
create function hostile.pg_advisory_xact_lock(bigint) returns void language sql as '';
create function hostile.to_timestamp(double precision) returns timestamptz language sql
    return timestamptz '1999-01-01 00:00:00+00';
"""


@pytest.mark.parametrize("settings", SETTINGS)
def test_everything_works_under_settings_of_the_database(dsn: str, settings: tuple[str, ...]) -> None:
    execute(dsn, HOSTILE)
    set_for_all(dsn, *settings)
    with Broker(dsn) as broker:
        play(broker)
        play_with_a_wheel(broker, listen=True)


@pytest.fixture
def in_india(dsn: str) -> Iterator[DriverConnection]:
    """A session that writes instants with IST, which it reads as Israel's time."""
    with connected(dsn) as connection:
        ask(connection, "set datestyle = 'SQL, DMY'")
        ask(connection, "set timezone = 'Asia/Kolkata'")
        yield connection


def test_a_slot_has_its_bounds_in_any_format_of_instants(in_india: DriverConnection) -> None:
    ask(in_india, "select duewheel.make_slot(now() + interval '40 days')")
    ask(in_india, "set datestyle = 'ISO'")
    ask(in_india, "set timezone = 'UTC'")
    bounds = ask(
        in_india,
        """select pg_get_expr(c.relpartbound, c.oid),
               format('FOR VALUES FROM (%L) TO (%L)', s.starts_at, s.ends_at)
           from duewheel.slot s join pg_class c on c.relname = s.table_name""",
    )
    assert bounds
    for attached, noted in bounds:
        assert attached == noted


def test_a_lease_is_read_in_any_format_of_instants(dsn: str, in_india: DriverConnection) -> None:
    with Broker(dsn) as broker, connected(dsn) as elsewhere:
        broker.create_topic("t", queues=1)
        group = broker.consumer("t", "g")
        for _ in range(2):
            broker.send("t", b"x", delay=AT_ONCE)
            batch = group.receive(wait=WAIT)
            for lease in batch.leases:
                named = (group.group_id, lease.topic_id, lease.queue, lease.n)
                ((query,),) = ask(in_india, "select duewheel.lease_query(%s, %s, %s, %s)", *named)
                for session in (in_india, elsewhere):
                    assert ask(session, f"select count(*) from ({query}) m") == [(1,)]
            # The second time it is read as the retry's, whose messages are listed.
            group.nack(batch, AT_ONCE)


def test_due_messages_are_estimated_with_any_datestyle(broker: Broker, in_india: DriverConnection) -> None:
    broker.create_topic("t")
    broker.send_many("t", [{"body": b"x", "delay": HOUR} for _ in range(1_000)])
    ask(in_india, "analyze duewheel.message, duewheel.far_message")
    estimate = "select duewheel.estimate_due(topic_id, now(), now() + interval '2 hours') from duewheel.topic"
    ((found,),) = ask(in_india, estimate)
    assert found > 100


def test_a_listener_may_be_idle_for_as_long_as_nothing_is_said(dsn: str) -> None:
    set_for_all(dsn, "idle_session_timeout = '200ms'")
    with NotificationListener(dsn, ["said"]) as listener, connected(dsn) as speaker:
        # The server ends this session, and so the listener would have been ended before.
        until(lambda: not is_there(dsn, speaker), "an idle session to be ended")
        execute(dsn, "notify said")
        assert listener.wait(PATIENCE_SECONDS) == [Notification("said", "")]


def is_there(dsn: str, connection: DriverConnection) -> bool:
    pid = connection.info.backend_pid
    return bool(execute(dsn, "select pid from pg_stat_activity where pid = %s", pid))


def test_a_transaction_of_the_caller_is_told_which_one_is_needed(dsn: str) -> None:
    set_for_all(dsn, "default_transaction_isolation = 'repeatable read'")
    with Broker(dsn) as broker, connected(dsn, autocommit=False) as own:
        broker.create_topic("t")
        group = broker.consumer("t", "g")
        broker.send("t", b"x", delay=AT_ONCE, connection=own)
        own.commit()
        batch = group.receive(wait=WAIT)
        with pytest.raises(WrongIsolationLevel, match="BEGIN ISOLATION LEVEL READ COMMITTED"):
            group.ack(batch, connection=own)
        own.rollback()
        own.isolation_level = "read committed"
        group.ack(batch, connection=own)
        own.commit()
        with pytest.raises(psycopg2.Error, match="BEGIN ISOLATION LEVEL READ COMMITTED") as refused:
            execute(dsn, "select outcome from duewheel.recall_key('t', 'k')")
        assert refused.value.pgcode == WrongIsolationLevel.sqlstate
        # The procedure begins its own.
        execute(dsn, "call duewheel.tick('t')")


def test_a_transaction_of_the_caller_that_only_reads_stays_so(dsn: str) -> None:
    with Broker(dsn) as broker, connected(dsn) as own:
        broker.create_topic("t")
        ask(own, "set default_transaction_read_only = on")
        with pytest.raises(NotAllowed, match="read-only"):
            broker.send_many("t", [{"body": b"x", "delay": AT_ONCE}], connection=own)
        with pytest.raises(NotAllowed, match="read-only"):
            broker.send("t", b"x", delay=AT_ONCE, connection=own)
        assert broker.list_messages("t", state="all").messages == ()
