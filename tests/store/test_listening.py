"""LISTEN on a real Postgres, from a thread and on an event loop, through the loss of the connection."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterator
from contextlib import aclosing

import psycopg2
import pytest
from tests.waiting import PATIENCE_SECONDS, ask, beside, connected

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.database.listening import GAP, Notification, NotificationListener
from duewheel.store.values.backoff import Backoff

Execute = Callable[[str], object]


@pytest.fixture
def address(postgres: EmbeddedPostgres) -> str:
    return postgres.dsn()


@pytest.fixture
def execute(address: str) -> Iterator[Execute]:
    with connected(address) as connection:
        yield lambda statement: ask(connection, statement)


def terminate(execute: Execute, application_name: str) -> None:
    """Ends the server's side of the connections of this name, and returns when they are gone."""
    execute(
        "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity "
        f"WHERE application_name = '{application_name}'"
    )


def test_wait_returns_what_was_notified_in_order(address: str, execute: Execute) -> None:
    with NotificationListener(address, ["duewheel_due", "duewheel_released"]) as listener:
        execute("SELECT pg_notify('duewheel_due', '7 1654773600000000'); SELECT pg_notify('other', 'x')")
        execute("NOTIFY duewheel_released")
        heard: list[Notification] = []
        while len(heard) < 2:
            heard += listener.wait(PATIENCE_SECONDS)
        assert heard == [
            Notification("duewheel_due", "7 1654773600000000"),
            Notification("duewheel_released", ""),
        ]


def test_interrupt_ends_the_wait_going_on_or_the_next_one(address: str, execute: Execute) -> None:
    with NotificationListener(address, ["duewheel_due"]) as listener:
        assert listener.wait(0) == []
        assert listener.wait(0.01) == []
        with beside() as start:
            waiting = start(lambda: listener.wait(PATIENCE_SECONDS))
            listener.interrupt()
            assert waiting.result() == []
        for _ in range(100_000):
            listener.interrupt()
        assert listener.wait(PATIENCE_SECONDS) == []
        # And only that.
        execute("NOTIFY duewheel_due, 'x'")
        assert listener.wait(PATIENCE_SECONDS) == [Notification("duewheel_due", "x")]


def test_a_lost_connection_is_made_again_and_reported_in_order(address: str, execute: Execute) -> None:
    with NotificationListener(address, ["duewheel_due"], application_name="lost listener") as listener:
        execute("NOTIFY duewheel_due, 'before'")
        select.select([listener], [], [], PATIENCE_SECONDS)
        terminate(execute, "lost listener")
        heard: list[Notification] = []
        while GAP not in heard:
            heard += listener.wait(PATIENCE_SECONDS)
        assert heard == [Notification("duewheel_due", "before"), GAP]
        execute("NOTIFY duewheel_due, 'after'")
        assert listener.wait(PATIENCE_SECONDS) == [Notification("duewheel_due", "after")]


def test_waiting_continues_while_the_database_is_away(
    address: str, execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NotificationListener(address, ["duewheel_due"], application_name="lost listener") as listener:
        with monkeypatch.context() as patched:
            patched.setattr(listener, "_dsn", "host=127.0.0.1 port=1")
            terminate(execute, "lost listener")
            assert listener.wait(0.05) == []
            assert listener.fileno() == -1
            assert listener.wait(0.05) == []
        assert listener.wait(PATIENCE_SECONDS) == [GAP]
        assert listener.fileno() >= 0
    # The first connection has to work.
    with pytest.raises(psycopg2.OperationalError):
        NotificationListener("host=127.0.0.1 port=1", ["duewheel_due"])


def test_the_event_loop_hears_the_same(address: str, execute: Execute) -> None:
    async def hear() -> list[Notification]:
        heard: list[Notification] = []
        with NotificationListener(address, ["duewheel_due"], application_name="lost listener") as listener:
            async with aclosing(listener.notifications()) as notifications:
                execute("NOTIFY duewheel_due, 'first'")
                heard.append(await anext(notifications))
                await asyncio.to_thread(terminate, execute, "lost listener")
                heard.append(await anext(notifications))
                execute("NOTIFY duewheel_due, 'second'")
                heard.append(await anext(notifications))
        return heard

    heard = asyncio.run(hear())
    assert heard == [Notification("duewheel_due", "first"), GAP, Notification("duewheel_due", "second")]


def test_a_cancelled_wait_leaves_the_event_loop_clean(address: str, execute: Execute) -> None:
    async def hear() -> Notification:
        with NotificationListener(address, ["duewheel_due"]) as listener:
            async with aclosing(listener.notifications()) as notifications:
                waiting = asyncio.ensure_future(anext(notifications))
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            async with aclosing(listener.notifications()) as notifications:
                execute("NOTIFY duewheel_due, 'x'")
                return await anext(notifications)

    assert asyncio.run(hear()) == Notification("duewheel_due", "x")


def test_pauses_grow_to_a_limit_and_start_over() -> None:
    backoff = Backoff(0.1, 1.0)
    assert [backoff.next_seconds() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.next_seconds() == 0.1
