"""A server that takes what it is sent and answers nothing ends no wait by itself: each has an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing
from datetime import timedelta

import psycopg2
import pytest
from tests.acting import HOUR
from tests.silence import Way, way
from tests.turning import turning
from tests.waiting import PATIENCE_SECONDS, beside, until

from duewheel.store.broker import Broker
from duewheel.store.consuming.lease_keeper import LeaseKeeper
from duewheel.store.database import watchdog
from duewheel.store.database.listening import GAP, NotificationListener
from duewheel.store.values.errors import BrokerUnreachable, InvalidArgument, LeaseLost
from duewheel.store.wheel import job_connection
from duewheel.store.wheel import runner as runner_module
from duewheel.store.wheel.wheel_schedule import Job

#: Ends a wait soon, and no answer of the busiest machine.
SOON = timedelta(seconds=2)
POOLED, LISTENING = "duewheel", "duewheel consumer"
LANE, HEARING = "duewheel wheel on", "duewheel wheel listening"


@pytest.fixture
def silent(dsn: str) -> Iterator[Way]:
    """A way to the test's database."""
    with way(dsn) as one:
        yield one


@pytest.fixture
def hurried(silent: Way) -> Iterator[Broker]:
    """A broker with one message, whose calls end soon, by a way that can fall silent."""
    with Broker(silent.dsn, call_timeout=SOON) as broker:
        broker.create_topic("orders", message_type="NORMAL")
        broker.send("orders", b"")
        yield broker


def test_a_write_without_an_answer_ends_and_says_why(silent: Way, hurried: Broker) -> None:
    silent.silence(POOLED)
    with pytest.raises(BrokerUnreachable, match=r"did not answer within 2 s, .* is unknown"):
        hurried.send("orders", b"")
    assert hurried.topics(), "the next call takes another connection"


def test_a_read_without_an_answer_is_asked_again(silent: Way, hurried: Broker) -> None:
    silent.silence(POOLED)
    assert [topic.name for topic in hurried.topics()] == ["orders"]
    assert silent.unanswered.is_set()


def test_copying_rows_and_a_transaction_end(silent: Way, hurried: Broker) -> None:
    silent.silence(POOLED)
    with pytest.raises(BrokerUnreachable, match="did not answer"):
        hurried.send_many("orders", [{"body": b""}] * 3)


def test_a_connection_that_is_lent_ends_its_waits(silent: Way, hurried: Broker) -> None:
    with hurried.connection() as connection:
        connection.autocommit = False
        connection.cursor().execute("select 1")
        silent.silence(POOLED)
        with pytest.raises(psycopg2.OperationalError, match="did not answer within 2 s"):
            connection.commit()


def test_a_request_to_cancel_ends(silent: Way, hurried: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "CANCEL_SECONDS", 0.1)
    with hurried.connection() as connection:
        silent.silence(POOLED, later_ones=True)
        for _ in range(2 * watchdog._CANCELS):
            connection.cancel()
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("duewheel cancel") <= watchdog._CANCELS


def test_one_silent_call_keeps_no_other_waiting(silent: Way, hurried: Broker) -> None:
    with Broker(silent.dsn) as patient, beside() as start:
        patient.topics()
        with patient.connection():
            silent.silence(POOLED)
            silent.unanswered.clear()
        waiting = start(lambda: patient.send("orders", b""))
        assert silent.unanswered.wait(PATIENCE_SECONDS)
        others = [start(patient.topics) for _ in range(4)]
        assert all(other.result() for other in others)
        assert not waiting.done()
        silent.close()
        with pytest.raises(BrokerUnreachable):
            waiting.result()


def test_a_long_call_is_not_cut(hurried: Broker) -> None:
    """What it waits for are many answers, and each comes in time."""
    with hurried.connection() as connection:
        for _ in range(3):
            with connection.cursor() as cursor:
                cursor.execute("select pg_sleep(0.8)")


def test_a_call_timeout_is_above_zero(dsn: str) -> None:
    with pytest.raises(InvalidArgument, match="call_timeout is 0:00:00: choose more than 0"):
        Broker(dsn, call_timeout=timedelta(0))


def test_a_keeper_keeps_its_lease_by_another_connection(silent: Way, hurried: Broker) -> None:
    invisible = timedelta(seconds=12)
    consumer = hurried.consumer("orders", "worker")
    with LeaseKeeper(consumer, consumer.receive(invisible=invisible), invisible) as keeper:
        silent.silence(POOLED)
        assert keeper.extended.wait(PATIENCE_SECONDS)
        assert silent.unanswered.is_set()
        assert keeper.error is None


@pytest.mark.slow
def test_a_keeper_without_any_answer_gives_up(silent: Way, hurried: Broker) -> None:
    consumer = hurried.consumer("orders", "worker")
    invisible = timedelta(seconds=1)
    with LeaseKeeper(consumer, consumer.receive(invisible=invisible), invisible) as keeper:
        silent.silence(POOLED, later_ones=True)
        assert keeper.lost.wait(PATIENCE_SECONDS)
        with pytest.raises(LeaseLost, match="could not be extended for its whole duration"):
            keeper.raise_if_lost()


def listener(silent: Way) -> NotificationListener:
    return NotificationListener(
        silent.dsn, ["told"], application_name=LISTENING, silence_seconds=0.2, answer_seconds=2
    )


def test_a_silent_listener_connects_again(silent: Way) -> None:
    with listener(silent) as listening:
        silent.silence(LISTENING)
        assert listening.wait(PATIENCE_SECONDS) == [GAP]


def test_a_silent_listener_does_not_block_its_loop(silent: Way) -> None:
    async def hears_of_the_gap() -> None:
        with listener(silent) as listening:
            async with aclosing(listening.notifications()) as notifications:
                silent.silence(LISTENING)
                heard = asyncio.ensure_future(anext(notifications))
                await asyncio.to_thread(silent.unanswered.wait, PATIENCE_SECONDS)
                assert not heard.done(), "the loop turns while the listener waits for a sign"
                assert await heard is GAP

    asyncio.run(hears_of_the_gap())


def test_a_healthy_listener_gives_signs_of_life(silent: Way) -> None:
    with listener(silent) as listening:
        assert listening.wait(1.0) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [LANE, HEARING, "duewheel"], ids=["lanes", "listener", "all"])
def test_the_wheel_is_back_after_a_silence(
    dsn: str, silent: Way, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds: dict[type[Job], float] = dict.fromkeys(job_connection.TIMEOUT_SECONDS, 2.0)
    for module in (job_connection, runner_module):
        monkeypatch.setattr(module, "TIMEOUT_SECONDS", seconds)
    monkeypatch.setattr(runner_module, "SILENCE_SECONDS", 0.2)
    with Broker(dsn) as broker:
        broker.create_topic("orders")
        consumer = broker.consumer("orders", "worker")
        with Broker(silent.dsn) as turner, turning(turner):
            until(lambda: any(one.startswith(LANE) for one in silent._open.values()), "a lane")
            until(lambda: HEARING in silent._open.values(), "the wheel to listen")
            silent.silence(name)
            assert silent.unanswered.wait(PATIENCE_SECONDS)
            broker.send("orders", b"", delay=timedelta(milliseconds=1))
            until(
                lambda: broker._database.rows("select 1 from duewheel.tick where by_wheel", ()),
                "the wheel to release",
            )
        assert consumer.receive(invisible=HOUR)


@pytest.mark.slow
def test_a_wheel_without_any_answer_stops(silent: Way) -> None:
    with Broker(silent.dsn) as turner, turning(turner):
        until(lambda: HEARING in silent._open.values(), "the wheel to listen")
        silent.silence("duewheel", later_ones=True)
        assert silent.unanswered.wait(PATIENCE_SECONDS)


def test_a_waiting_consumer_ends_its_wait(silent: Way, hurried: Broker) -> None:
    """Its listener is silent, and its calls are."""
    consumer = hurried.consumer("orders", "worker")
    assert consumer.receive(invisible=HOUR)
    with beside() as start:
        waiting = start(lambda: consumer.receive(wait=timedelta(seconds=30)))
        until(lambda: any(one.startswith(LISTENING) for one in silent._open.values()), "a listener")
        silent.silence("duewheel", later_ones=True)
        hurried._signals.interrupt(next(iter(hurried._signals._lent)))
        with pytest.raises(BrokerUnreachable):
            waiting.result(PATIENCE_SECONDS)
