"""The wheel at work on a real Postgres. Tests wait for what is notified or logged, never for a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import psycopg2
import pytest
from psycopg2 import extensions
from tests.logged import logged
from tests.waiting import PATIENCE_SECONDS, ask, connected, until

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.database import migration
from duewheel.store.database.listening import NotificationListener
from duewheel.store.wheel import job_connection, job_queries
from duewheel.store.wheel.runner import WheelRunner
from duewheel.store.wheel.wheel_schedule import LANES, Tick

WHEEL_CONNECTIONS = "application_name ~ '^duewheel wheel' AND datname = current_database()"

TURN_A_WHEEL = """
import sys, threading
from duewheel.store.wheel.runner import WheelRunner
WheelRunner(sys.argv[1]).run(threading.Event())
"""


class Console:
    """An autocommit connection to look at and change things by hand, and one that hears of releases."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection = psycopg2.connect(dsn)
        self.connection.autocommit = True
        self.releases = NotificationListener(dsn, ["duewheel_released"])

    def close(self) -> None:
        self.releases.close()
        self.connection.close()

    def rows(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        return ask(self.connection, statement, *parameters)

    def value(self, statement: str, *parameters: object) -> Any:
        ((value,),) = self.rows(statement, *parameters)
        return value

    def create_topic(self, name: str, granularity: str = "5 ms") -> int:
        self.rows("SELECT duewheel.create_topic(%s, granularity => %s::interval)", name, granularity)
        # Else a sender whose transaction stays open makes the slot, and others wait for it.
        self.rows("SELECT duewheel.make_slots_ahead(clock_timestamp())")
        topic_id: int = self.value("SELECT topic_id FROM duewheel.topic WHERE name = %s", name)
        return topic_id

    def send(self, topic: str, delay: str) -> None:
        send(self.connection, topic, delay)

    def wait_for_release(self, topic_id: int) -> None:
        """Returns after the next commit of a tick that released something of the topic."""
        while True:
            heard = self.releases.wait(PATIENCE_SECONDS)
            assert heard, "nothing was released"
            if any(notification.payload.split()[0] == str(topic_id) for notification in heard):
                return

    def wait_until_all_released(self, topic_id: int) -> None:
        while self.value(
            "SELECT count(*) FROM duewheel.any_message WHERE topic_id = %s", topic_id
        ) > self.value(
            """
            SELECT count(*) FROM duewheel.any_message m WHERE m.topic_id = %s AND EXISTS (
                SELECT FROM duewheel.tick t WHERE t.topic_id = m.topic_id AND m.deliver_at > t.lo
                    AND m.deliver_at <= t.hi AND pg_visible_in_snapshot(m.xid, t.snapshot))
            """,
            topic_id,
        ):
            assert self.releases.wait(PATIENCE_SECONDS), "some were not released"

    def wait_until(self, statement: str) -> None:
        """Asks until the answer is true."""
        until(lambda: self.value(statement), statement)


def send(connection: extensions.connection, topic: str, delay: str) -> None:
    ask(connection, "SELECT duewheel.send(%s, 'x'::text, delay => %s::interval)", topic, delay)


@pytest.fixture
def console(dsn: str) -> Iterator[Console]:
    with closing(Console(dsn)) as console:
        yield console


@contextmanager
def turning(dsn: str, **settings: Any) -> Iterator[None]:
    """A wheel that turns in a thread for the length of the block, and ends when told."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            WheelRunner(dsn, **settings).run(stop)
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
        assert thread.is_alive(), f"the wheel ended by itself: {errors}"
    finally:
        stop.set()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "the wheel does not stop"


LOG = "duewheel.store.wheel"


def test_d16_messages_due_before_the_start_are_found_by_pages(
    dsn: str, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queries, "LOOKBACK_SECONDS", 0.0)
    monkeypatch.setattr(job_queries, "TOPICS_PER_PAGE", 2)
    topic_ids = [console.create_topic(f"orders{number}") for number in range(5)]
    for number in range(5):
        console.send(f"orders{number}", "1 us")
    with turning(dsn):
        for topic_id in topic_ids:
            console.wait_until_all_released(topic_id)


@pytest.mark.slow
@pytest.mark.parametrize("listen", [True, False])
def test_the_loss_of_its_connections_does_not_stop_the_wheel(
    dsn: str, console: Console, listen: bool
) -> None:
    topic_id = console.create_topic("orders")
    with turning(dsn, listen=listen):
        for loses in (True, False):
            console.send("orders", "20 ms")
            console.wait_for_release(topic_id)
            if loses:
                console.rows(
                    f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE {WHEEL_CONNECTIONS}"
                )


def test_a_wheel_may_start_before_the_database_is_ready(postgres: EmbeddedPostgres) -> None:
    dsn = postgres.ensure_database("wheel_before_schema")
    with logged(LOG, "Polling for due messages failed") as failed, turning(dsn):
        failed.wait()
        migration.upgrade(dsn)
        with closing(Console(dsn)) as console:
            topic_id = console.create_topic("orders")
            console.send("orders", "50 ms")
            console.wait_for_release(topic_id)


def test_two_wheels_release_each_message_once(dsn: str, console: Console) -> None:
    topic_id = console.create_topic("orders")
    with turning(dsn), turning(dsn):
        for number in range(100):
            # None is due before its sender has committed: such a one would come late, and beside the tick.
            console.send("orders", f"{200 + number * 7 % 300} ms")
        console.wait_until_all_released(topic_id)
    released_by = console.rows(
        """
        SELECT count(*) FROM duewheel.any_message m JOIN duewheel.tick t
            ON t.topic_id = m.topic_id AND m.deliver_at > t.lo AND m.deliver_at <= t.hi
            AND pg_visible_in_snapshot(m.xid, t.snapshot)
        GROUP BY m.seq
        """
    )
    assert [count for (count,) in released_by] == [1] * 100


def test_a_sender_that_commits_late_is_waited_for(dsn: str, console: Console) -> None:
    # Without LISTEN, so that nothing but the unsettled tick tells the wheel.
    topic_id = console.create_topic("orders")
    with turning(dsn, listen=False), closing(psycopg2.connect(dsn)) as sender:
        send(sender, "orders", "1 us")
        console.send("orders", "1 ms")
        console.wait_for_release(topic_id)
        assert console.value("SELECT sum(stragglers) FROM duewheel.tick") == 0
        sender.commit()
        console.wait_for_release(topic_id)
        assert console.value("SELECT sum(stragglers) FROM duewheel.tick") == 1
        assert console.value("SELECT bool_and(by_wheel) FROM duewheel.tick")


@pytest.mark.parametrize("commits_first", [True, False])
def test_a_new_wheel_releases_what_the_last_one_waited_for(
    dsn: str, console: Console, commits_first: bool
) -> None:
    topic_id = console.create_topic("orders")
    with closing(psycopg2.connect(dsn)) as sender:
        with turning(dsn, listen=False):
            send(sender, "orders", "1 us")
            console.send("orders", "1 ms")
            console.wait_for_release(topic_id)
        if commits_first:
            sender.commit()
        with turning(dsn, listen=False):
            sender.commit()
            console.wait_for_release(topic_id)
    assert console.value("SELECT sum(stragglers) FROM duewheel.tick") == 1


@pytest.mark.slow
def test_d07_the_wheel_revives_what_was_not_answered(dsn: str, console: Console) -> None:
    topic_id = console.create_topic("orders")
    with turning(dsn):
        console.rows("SELECT duewheel.receive('orders', 'shop')")
        console.send("orders", "10 ms")
        console.wait_for_release(topic_id)
        received = console.rows(
            "SELECT message_id, attempt FROM duewheel.receive('orders', 'shop', invisible => '1 s')"
        )
        console.wait_for_release(topic_id)
        again = console.rows("SELECT message_id, attempt FROM duewheel.receive('orders', 'shop')")
    ((message_id, attempt),) = received
    assert again == [(message_id, attempt + 1)]


@pytest.mark.parametrize("ends_backend", [True, False], ids=["rolled back", "committed after its death"])
def test_d16_a_wheel_killed_during_a_tick_loses_nothing(
    dsn: str, console: Console, ends_backend: bool
) -> None:
    topic_id = console.create_topic("orders")
    for _ in range(10):
        console.send("orders", "1 us")
    with closing(psycopg2.connect(dsn)) as blocker:
        # The tick has its transaction id and its snapshot, and waits to write them down.
        ask(blocker, "LOCK TABLE duewheel.tick IN SHARE MODE")
        wheel = subprocess.Popen([sys.executable, "-c", TURN_A_WHEEL, dsn])
        try:
            console.wait_until(
                "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
                f"WHERE NOT l.granted AND l.relation = 'duewheel.tick'::regclass AND {WHEEL_CONNECTIONS})"
            )
        finally:
            os.kill(wheel.pid, signal.SIGKILL)
            wheel.wait()
        if ends_backend:
            console.rows(
                f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE {WHEEL_CONNECTIONS}"
            )
        blocker.rollback()
    console.send("orders", "10 ms")
    with turning(dsn):
        console.wait_until_all_released(topic_id)
    received = console.rows("SELECT message_id FROM duewheel.receive('orders', 'shop')")
    assert len(received) == len(set(received)) == 11


def test_a_tick_that_takes_too_long_is_cut_off_and_tried_again(
    dsn: str, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = console.create_topic("orders")
    monkeypatch.setitem(job_connection.TIMEOUT_SECONDS, Tick, 0.1)
    with closing(psycopg2.connect(dsn)) as blocker:
        ask(blocker, "SELECT pg_advisory_xact_lock(duewheel.tick_lock_class(), %s)", topic_id)
        with logged(LOG, f"{Tick(topic_id)} failed") as failed, turning(dsn):
            console.send("orders", "1 ms")
            failed.wait()
            monkeypatch.undo()
            blocker.rollback()
            console.wait_for_release(topic_id)


@pytest.mark.parametrize("server_share", [0.9, 1_000.0], ids=["the server's limit", "a cancel"])
def test_x18_ticks_that_wait_for_a_lock_leave_no_process_behind(
    dsn: str, console: Console, monkeypatch: pytest.MonkeyPatch, server_share: float
) -> None:
    topics = {f"orders{number}" for number in range(12)}
    topic_ids = [console.create_topic(name) for name in topics]
    monkeypatch.setitem(job_connection.TIMEOUT_SECONDS, Tick, 0.05)
    monkeypatch.setattr(job_connection, "LOCK_TIMEOUT_MS", 600_000)
    monkeypatch.setattr(job_connection, "SERVER_SHARE", server_share)
    with closing(psycopg2.connect(dsn)) as blocker:
        for topic_id in topic_ids:
            ask(blocker, "SELECT pg_advisory_xact_lock(duewheel.tick_lock_class(), %s)", topic_id)
        with contextlib.ExitStack() as stack:
            failures = [
                stack.enter_context(logged(LOG, f"{Tick(topic_id)} failed")) for topic_id in topic_ids
            ]
            stack.enter_context(turning(dsn))
            for name in topics:
                console.send(name, "1 ms")
            for failed in failures:
                failed.wait()
            assert console.value(f"SELECT count(*) FROM pg_stat_activity WHERE {WHEEL_CONNECTIONS}") <= (
                sum(LANES.values()) + 1
            )
        console.wait_until(f"SELECT count(*) = 0 FROM pg_stat_activity WHERE {WHEEL_CONNECTIONS}")


def test_a_strangers_notification_does_not_stop_the_wheel(dsn: str, console: Console) -> None:
    topic_id = console.create_topic("orders")
    heard = logged(LOG, "that duewheel does not send")
    with heard as warning, turning(dsn, on_released=lambda topic_id: None):
        console.wait_until(
            f"SELECT count(*) >= 1 FROM pg_stat_activity WHERE {WHEEL_CONNECTIONS} AND query ~ 'LISTEN'"
        )
        for payload in ("", "nonsense", "1", "1 2 3", "x y", "1 " + "9" * 400, "9999999 1", "0 1", "١ 1"):
            console.rows("SELECT pg_notify('duewheel_due', %s)", payload)
        console.rows("NOTIFY duewheel_released, 'nonsense'")
        warning.wait()
        console.send("orders", "20 ms")
        console.wait_for_release(topic_id)
    assert warning.count == 1


def test_a_wheel_turns_in_a_program_with_many_descriptors(dsn: str, console: Console) -> None:
    topic_id = console.create_topic("orders")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4_096, hard), hard))
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1_024):
            opened.enter_context(closing(socket.socket()))
        opened.enter_context(turning(dsn))
        console.send("orders", "20 ms")
        console.wait_for_release(topic_id)


def test_a_strangers_lock_keeps_no_wheel_from_turning(dsn: str, console: Console) -> None:
    topic_id = console.create_topic("orders")
    with connected(dsn) as stranger:
        ask(stranger, "select pg_advisory_lock(duewheel.wheel_lock_key())")
        with turning(dsn):
            console.send("orders", "20 ms")
            console.wait_for_release(topic_id)
            console.wait_until(
                f"SELECT count(*) = 1 FROM pg_stat_activity WHERE {WHEEL_CONNECTIONS} AND query ~ 'LISTEN'"
            )


def test_topics_that_are_not_named_are_left_alone(dsn: str, console: Console) -> None:
    console.create_topic("orders")
    mine = console.create_topic("parcels")
    with turning(dsn, topics=["parcels"]):
        console.send("orders", "1 us")
        console.send("parcels", "700 ms")
        console.wait_for_release(mine)
    assert console.rows("SELECT DISTINCT topic_id FROM duewheel.tick") == [(mine,)]


def test_a_stopped_wheel_leaves_no_connection(dsn: str, console: Console) -> None:
    topic_id = console.create_topic("orders")
    # Also one that has just started.
    for releases in (False, False, True):
        with turning(dsn):
            if releases:
                console.send("orders", "20 ms")
                console.wait_for_release(topic_id)
    console.wait_until(f"SELECT count(*) = 0 FROM pg_stat_activity WHERE {WHEEL_CONNECTIONS}")


def test_interrupting_the_process_ends_the_wheel_in_order(dsn: str, console: Console) -> None:
    topic_id = console.create_topic("orders")
    wheel = subprocess.Popen(
        [sys.executable, "-c", TURN_A_WHEEL, dsn],
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background ignores SIGINT, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        console.send("orders", "20 ms")
        console.wait_for_release(topic_id)
        wheel.send_signal(signal.SIGINT)
        _, complaints = wheel.communicate(timeout=PATIENCE_SECONDS)
    finally:
        wheel.kill()
        wheel.wait()
    assert complaints.strip().endswith("KeyboardInterrupt")
    console.wait_until(f"SELECT count(*) = 0 FROM pg_stat_activity WHERE {WHEEL_CONNECTIONS}")


def test_on_the_event_loop_the_wheel_tells_what_it_released(dsn: str, console: Console) -> None:
    topic_id = console.create_topic("orders")

    async def turn() -> None:
        told = asyncio.Event()

        def on_released(released_topic_id: int) -> None:
            assert released_topic_id == topic_id
            told.set()

        turning = asyncio.create_task(WheelRunner(dsn, on_released=on_released).arun())
        await asyncio.to_thread(console.send, "orders", "50 ms")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await told.wait()
        turning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turning

    asyncio.run(turn())
    console.wait_until(f"SELECT count(*) = 0 FROM pg_stat_activity WHERE {WHEEL_CONNECTIONS}")


def test_releases_by_others_reach_callbacks_errors_are_logged(dsn: str, console: Console) -> None:
    theirs = console.create_topic("orders")
    mine = console.create_topic("parcels")
    told = threading.Event()

    def on_released(topic_id: int) -> None:
        if topic_id == theirs:
            told.set()
        raise RuntimeError("not my day")

    with (
        logged(LOG, "on_released failed") as failed,
        turning(dsn, topics=["parcels"], on_released=on_released),
    ):
        console.wait_until(
            f"SELECT count(*) >= 1 FROM pg_stat_activity WHERE {WHEEL_CONNECTIONS} AND query ~ 'LISTEN'"
        )
        console.send("orders", "1 us")
        console.rows("CALL duewheel.tick('orders')")
        assert told.wait(PATIENCE_SECONDS)
        failed.wait()
        console.send("parcels", "20 ms")
        console.wait_for_release(mine)


def test_the_wheel_keeps_the_broker_in_order(dsn: str, console: Console) -> None:
    with connected(dsn) as other, logged(LOG, "A step of upkeep") as failed:
        # Upkeep by another process is no error.
        ask(other, "select pg_advisory_lock(duewheel.tick_lock_class(), -2)")
        with logged(LOG, "Maintained") as maintained, turning(dsn):
            maintained.wait()
    assert not failed.count
    with logged(LOG, "Maintained") as maintained, turning(dsn):
        maintained.wait()
    a_day = "generate_series(now(), now() + '24 hours', '1 hour')"
    assert console.value(f"SELECT bool_and((duewheel.slot_at(at)).starts_at IS NOT NULL) FROM {a_day} at")


def test_times_that_make_no_sense_are_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"poll_seconds": 0}, "poll_seconds is 0"),
        ({"poll_seconds": 2, "lookahead_seconds": 2}, "look further"),
        ({"maintain_seconds": -1}, "maintain_seconds is -1"),
    ]
    for settings, complaint in refused:
        with pytest.raises(ValueError, match=complaint):
            WheelRunner("host=nowhere", **settings)
