"""Connections: the address, the pool, broken ones, forks, and the broker's own lifecycle."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from socket import IPPROTO_TCP, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_USER_TIMEOUT
from threading import Event
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, parse_dsn
from tests.acting import AT_ONCE, HOUR
from tests.logins import SUPERUSER, as_user
from tests.waiting import PATIENCE_SECONDS, ask, beside, connected, until, until_somebody_waits

from duewheel.store.broker import Broker
from duewheel.store.database.connections import IDLE_CONNECTIONS, Database, fetch, libpq_dsn, with_ends
from duewheel.store.database.listening import connect
from duewheel.store.database.watchdog import WatchedConnection
from duewheel.store.operations.recalling import recall_portion, reschedule_portion
from duewheel.store.values.errors import BrokerUnreachable, InvalidArgument, InvalidInstant


def backend(connection: psycopg2.extensions.connection) -> int:
    return connection.info.backend_pid


def end_sessions(dsn: str) -> None:
    """Ends all other sessions of the database, as a restart of the server would."""
    with connected(dsn) as connection:
        ask(
            connection,
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()",
        )


def test_a_connection_notices_a_silent_server(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the pool and those that listen; Linux does the rest."""
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "7")
    with Database(dsn).lend() as pooled, closing(connect(dsn, "listens", WatchedConnection)) as listening:
        for connection in (pooled, listening):
            assert connection.info.dsn_parameters["connect_timeout"] == "7"
            with socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as opened:
                options = (TCP_USER_TIMEOUT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT)
                assert [opened.getsockopt(IPPROTO_TCP, option) for option in options] == [30_000, 20, 5, 3]
    given = parse_dsn(with_ends("postgresql://u@h/d?tcp_user_timeout=1"))
    assert (given["tcp_user_timeout"], given["keepalives_count"]) == ("1", "3")


def test_an_idle_connection_holds_on_to_no_long_result(dsn: str) -> None:
    with closing(Database(dsn)) as database:
        assert database.rows("select generate_series(1, 3)", ()) == [(1,), (2,), (3,)]
        with database.lend() as idle:
            assert idle.kept.rowcount == -1


def fetched(database: Database, statement: str) -> Any:
    """A statement on a lent connection, as leasing for Spark and its writer run theirs."""
    with database.lend() as lent:
        return fetch(lent, statement, ())


@pytest.mark.owner
@pytest.mark.parametrize("made", [lambda database, call: database.rows(call, ()), fetched])
def test_a_call_that_meets_a_deadlock_is_made_again(dsn: str, made: Callable[[Database, str], Any]) -> None:
    call = "select duewheel.update_topic(name, granularity => '1 s') from unnest(array['b', 'a']) name"
    with (
        Broker(dsn) as broker,
        connected(as_user(dsn, SUPERUSER), autocommit=False) as other,
        beside() as start,
    ):
        for name in ("a", "b"):
            broker.create_topic(name)
        # The call looks for a deadlock after a second, which this is the default for.
        ask(other, "set local deadlock_timeout = '30s'")
        ask(other, "select duewheel.update_topic('a', granularity => '2 s')")
        answer = start(lambda: made(broker._database, call))
        until_somebody_waits(dsn)
        ask(other, "select duewheel.update_topic('b', granularity => '2 s')")
        other.commit()
        answer.result()
        assert {topic.granularity for topic in broker.topics()} == {timedelta(seconds=1)}


@pytest.mark.owner
def test_a_call_of_several_statements_is_made_again_whole(dsn: str) -> None:
    """Two messages for one key, each replaced in the other order by another transaction."""
    replacing = [{"body": b"new", "key": key, "on_conflict": "replace"} for key in ("b", "a")]
    with (
        Broker(dsn) as broker,
        connected(as_user(dsn, SUPERUSER), autocommit=False) as other,
        beside() as start,
    ):
        broker.create_topic("orders")
        for key in ("a", "b"):
            broker.send("orders", b"old", key=key, delay=HOUR)
        ask(other, "set local deadlock_timeout = '30s'")
        broker.send("orders", b"other", key="a", delay=HOUR, on_conflict="replace", connection=other)
        answer = start(lambda: broker.send_many("orders", [{**one, "delay": HOUR} for one in replacing]))
        until_somebody_waits(dsn)
        broker.send("orders", b"other", key="b", delay=HOUR, on_conflict="replace", connection=other)
        other.commit()
        assert [receipt.outcome for receipt in answer.result()] == ["replaced", "replaced"]


@pytest.mark.owner
@pytest.mark.parametrize("act", ["recall", "reschedule"])
def test_x29_a_portion_that_meets_a_deadlock_is_made_again(dsn: str, act: str) -> None:
    """Another transaction recalls its messages in the other order."""
    criteria: dict[str, Any] = dict.fromkeys(("tag", "key_prefix", "due_from", "due_until"))
    with (
        Broker(dsn) as broker,
        connected(as_user(dsn, SUPERUSER), autocommit=False) as other,
        beside() as start,
    ):
        broker.create_topic("t", queues=1)
        first, second = (broker.send("t", b"x", delay=hours * HOUR).message_id for hours in (1, 2))
        ask(other, "set local deadlock_timeout = '30s'")
        broker.recall(second, connection=other)
        portion = partial(recall_portion if act == "recall" else reschedule_portion, broker, "t", **criteria)
        instant = {} if act == "recall" else {"deliver_at": datetime.now(UTC) + 3 * HOUR}
        answer = start(lambda: portion(**instant, dry_run=False, after=None))
        until_somebody_waits(dsn)
        broker.recall(first, connection=other)
        other.commit()
        # It may have found both again, if the other one was not committed yet.
        result: Any = answer.result()
        assert (result[0].recalled if act == "recall" else result[1]) == 0


def test_an_address_is_a_libpq_string_or_a_url() -> None:
    for given, taken in {
        "host=a dbname=b": "host=a dbname=b",
        "postgresql://u@h/d": "postgresql://u@h/d",
        "postgresql+psycopg2://u@h/d?host=/tmp": "postgresql://u@h/d?host=/tmp",
        "postgres+psycopg://u@h/d": "postgresql://u@h/d",
    }.items():
        assert libpq_dsn(given) == Broker(given).dsn == taken
    without_password = ("postgresql://app:SECRET%ZZ@db/shop", "app:SECRET@db/shop")
    for bad in ("nonsense", "mysql://h/d", "host=a nosuchoption=b", *without_password):
        with pytest.raises(InvalidArgument, match="dsn cannot be read") as caught:
            Broker(bad)
        assert "SECRET" not in str(caught.value)


def test_a_server_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    with Broker(f"host={tmp_path} dbname=d") as broker:
        with pytest.raises(BrokerUnreachable, match="check the address"):
            broker.topics()
        with pytest.raises(BrokerUnreachable):
            broker.check()
        with pytest.raises(BrokerUnreachable):
            broker.upgrade()


def test_a_connection_is_reused_with_its_transaction_rolled_back(broker: Broker) -> None:
    with broker.connection() as connection, connection.cursor() as cursor:
        assert connection.autocommit
        assert connection.info.parameter_status("application_name") == "duewheel"
        assert connection.encoding == "UTF8"
        cursor.execute("begin; create table left_open ()")
        number = backend(connection)
    with broker.connection() as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("create table left_open ()")
    with broker.connection() as connection, connection.cursor() as cursor:
        assert (backend(connection), connection.autocommit) == (number, True)
        assert connection.info.transaction_status == TRANSACTION_STATUS_IDLE
        cursor.execute("select to_regclass('left_open')")
        assert cursor.fetchone() == (None,)
    named = psycopg2.extensions.make_dsn(broker.dsn, application_name="shop")
    with Broker(named) as shop, shop.connection() as connection:
        assert connection.info.parameter_status("application_name") == "shop"
    # Only a few are kept.
    with ExitStack() as lent:
        connections = [lent.enter_context(broker.connection()) for _ in range(IDLE_CONNECTIONS + 3)]
    assert sum(not connection.closed for connection in connections) == IDLE_CONNECTIONS


def test_calls_and_a_waiting_consumer_go_on_after_a_restart(broker: Broker) -> None:
    broker.create_topic("t")
    consumer = broker.consumer("t", "g")
    consumer.receive(wait=timedelta(milliseconds=1))
    end_sessions(broker.dsn)
    assert [topic.name for topic in broker.topics()] == ["t"]
    end_sessions(broker.dsn)
    broker.send("t", b"", delay=HOUR)
    end_sessions(broker.dsn)
    broker.send_many("t", [{"body": b"", "delay": HOUR}])
    assert broker.stats().topics[0].waiting == 2
    end_sessions(broker.dsn)
    broker.send("t", b"a", delay=AT_ONCE)
    assert len(consumer.receive(wait=timedelta(seconds=30))) == 1


def end_what_waits(dsn: str) -> None:
    """Ends the session that waits for a lock, as soon as there is one."""
    ending = (
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
        " where datname = current_database() and wait_event_type = 'Lock'"
    )
    with connected(dsn) as connection:
        until(lambda: ask(connection, ending), "a session that waits for a lock")


@pytest.mark.owner
def test_a_write_cut_off_is_unknown_and_a_read_is_tried_again(broker: Broker) -> None:
    broker.create_topic("t")
    sends: list[Callable[[], object]] = [
        lambda: broker.send("t", b"", delay=HOUR),
        lambda: broker.send_many("t", [{"body": b"", "delay": HOUR}]),
    ]
    unknown = r"whether the statement was carried out is unknown.*idempotency"
    with beside() as start, connected(broker.dsn, autocommit=False) as blocker:
        for waiting, send in enumerate(sends, 1):
            ask(blocker, "lock table duewheel.message in access exclusive mode")
            cut_off = start(send)
            end_what_waits(broker.dsn)
            with pytest.raises(BrokerUnreachable, match=unknown):
                cut_off.result()
            blocker.rollback()
            send()
            assert broker.stats().topics[0].waiting == waiting
        ask(blocker, "lock table duewheel.topic in access exclusive mode")
        read = start(broker.topics)
        end_what_waits(broker.dsn)
        blocker.rollback()
        assert [topic.name for topic in read.result()] == ["t"]


def in_a_child(act: Callable[[], str]) -> str:
    """The answer of a child of fork, empty where it failed; a child that hangs is killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # Nothing of the test runner may run in here.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(PATIENCE_SECONDS))
        try:
            os.write(writer, act().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        answer = said.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, "the child hung"
    return answer


def test_a_forked_process_opens_its_own_connections(broker: Broker) -> None:
    broker.create_topic("t")
    with ExitStack() as block:
        connection = block.enter_context(broker.connection())
        inherited = backend(connection)

        def act() -> str:
            block.close()
            broker.send("t", b"", delay=HOUR)
            with broker.connection() as own:
                session = backend(own)
            broker.close()
            return str(session)

        assert int(in_a_child(act)) != inherited
        # The server's process is any of a pooler's: the connection is the parent's as long as it answers.
        assert ask(connection, "select 'the parent'") == [("the parent",)]
    assert broker.stats().topics[0].waiting == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_does_not_wait_for_a_lock_of_its_parents_thread(broker: Broker) -> None:
    broker.create_topic("t", message_type="NORMAL")
    consumer = broker.consumer("t", "g")
    # Leaves an idle listener behind, and the thread that closes it.
    consumer.receive(wait=timedelta(milliseconds=1))
    held, done = Event(), Event()

    def hold() -> None:
        with ExitStack() as locks:
            for part in (broker._database, broker._signals):
                locks.enter_context(part._lock)
            held.set()
            done.wait(PATIENCE_SECONDS)

    def act() -> str:
        broker.send("t", b"from the child")
        batch = consumer.receive(wait=timedelta(seconds=30))
        consumer.ack(batch)
        broker.close()
        return batch[0].body.decode()

    with ThreadPoolExecutor(1) as thread:
        holding = thread.submit(hold)
        assert held.wait(PATIENCE_SECONDS)
        try:
            assert in_a_child(act) == "from the child"
        finally:
            done.set()
        holding.result()
    # And the parent goes on with its own connections.
    broker.send("t", b"from the parent")
    assert [message.body for message in consumer.receive(wait=timedelta(seconds=30))] == [b"from the parent"]


def test_a_closed_broker_says_so(broker: Broker) -> None:
    broker.topics()
    with broker.connection() as connection:
        broker.close()
        broker.close()
    assert connection.closed
    with pytest.raises(InvalidArgument, match="this broker is closed"):
        broker.topics()
    database = Database(broker.dsn, clock=lambda: datetime(2026, 1, 5))  # noqa: DTZ001 -- the naive one is the point
    with pytest.raises(InvalidInstant, match="no time zone"):
        database.now()


@pytest.mark.slow
def test_an_embedded_broker_is_upgraded_and_can_be_opened_again(tmp_path: Path) -> None:
    for number in range(2):
        with Broker.embedded(tmp_path) as broker:
            broker.create_topic("t")
            broker.send("t", b"", delay=HOUR)
            assert broker.stats().topics[0].waiting == number + 1
