"""Runs that wait for an answer: one statement for all of them, on Airflow's shared streams."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.airflow_runs import connection_json
from tests.clock import Clock
from tests.conftest import execute
from tests.logins import login
from tests.triggers.conftest import Triggerer
from tests.waiting import ask, connected, until_on_loop

from duewheel.store import Broker, NewMessage, Wait, WaitOutcome
from duewheel.store.database.connections import fetch
from duewheel.store.operations import answering
from duewheel.triggers import waits
from duewheel.triggers.answer import AnswerTrigger
from duewheel.triggers.timing_wheel import TimingWheelTrigger
from duewheel.triggers.waits import WAITS, WaitPoller

if TYPE_CHECKING:
    from duewheel.store import EmbeddedPostgres

HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=300)


def sent(broker: Broker, count: int, delay: timedelta = HOUR) -> list[str]:
    """The ids of messages that wait under the keys 0, 1, ..."""
    messages = [NewMessage(body=b"", delay=delay, key=str(number)) for number in range(count)]
    return [receipt.message_id for receipt in broker.send_many("t", messages)]


async def test_x26_an_answer_a_recall_and_a_timeout_wake_the_run(broker: Broker, airflow: Triggerer) -> None:
    broker.create_topic("t")
    answered, recalled, moved = sent(broker, 3)
    (timed_out,) = sent(broker, 1, SOON)
    events = {each: airflow.run(AnswerTrigger(each, "t")) for each in (answered, recalled, moved, timed_out)}
    assert (await events[timed_out].get()).payload == {"message_id": timed_out}
    broker.reschedule(moved, delay=2 * HOUR)
    broker.answer_key("t", "1", "yes")
    broker.recall(answered)
    assert (await events[recalled].get()).payload == {"message_id": recalled}
    assert (await events[answered].get()).payload == {"message_id": answered}
    broker.answer_key("t", "2", "yes")
    assert (await events[moved].get()).payload == {"message_id": moved}
    await until_on_loop(lambda: not WAITS.over("duewheel_default"), "the triggers to end")


async def test_x26_an_answer_before_the_trigger_runs_wakes_it(broker: Broker, airflow: Triggerer) -> None:
    broker.create_topic("t")
    (waiting,) = sent(broker, 1)
    # The stream has been running for a while.
    airflow.run(TimingWheelTrigger("t", "g"))
    await airflow.looks(3)
    broker.answer_key("t", "0")
    assert (await airflow.run(AnswerTrigger(waiting, "t")).get()).payload["message_id"] == waiting
    # Another trigger of the same wait, as after a triggerer's restart.
    assert (await airflow.run(AnswerTrigger(waiting, "t")).get()).payload["message_id"] == waiting


async def test_x14_an_answer_during_an_outage_wakes_the_run(
    broker: Broker, airflow: Triggerer, postgres: EmbeddedPostgres
) -> None:
    broker.create_topic("t")
    (waiting,) = sent(broker, 1)
    events = airflow.run(AnswerTrigger(waiting, "t"))
    await airflow.looks(2)
    broker.answer_key("t", "0")
    execute(
        postgres.dsn(),
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'duewheel%%'",
    )
    assert (await events.get()).payload["message_id"] == waiting


@pytest.mark.owner
async def test_a_login_without_the_wheel_times_out_all_the_same(
    broker: Broker, airflow: Triggerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    consumer = login(broker.dsn, "duewheel_consumer")
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(consumer))
    (waiting,) = sent(broker, 1, SOON)
    assert (await airflow.run(AnswerTrigger(waiting, "t")).get()).payload["message_id"] == waiting


def polled(poller: WaitPoller, waiting: Sequence[str]) -> frozenset[str]:
    return poller.poll(dict.fromkeys(waiting, "t")).ended


def test_x26_a_wait_that_is_overdue_at_its_first_look_times_out(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t")
    waiting = sent(timed_broker, 1, SOON)
    clock.advance(HOUR)
    poller = WaitPoller(timed_broker, releases=True, clock=lambda: clock().timestamp())
    # Polls that follow closely, as in a stream with many waits.
    for _ in range(30):
        if polled(poller, waiting):
            return
        clock.advance(timedelta(milliseconds=50))
    pytest.fail("it is not released")


def test_a_poll_looks_up_a_portion_and_gets_round_to_all(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "PORTION", 2)
    broker.create_topic("t")
    waiting = sent(broker, 5)
    poller = WaitPoller(broker, releases=False)
    for more in (True, True, False, False):
        assert polled(poller, waiting) == frozenset()
        assert poller.has_more is more
    broker.recall(waiting[4])
    found = [polled(poller, waiting) for _ in range(3)]
    assert frozenset({waiting[4]}) in found
    # An answer is found by the next poll, whichever waits it looks up.
    broker.answer_key("t", "0")
    assert polled(poller, waiting) == {waiting[0], waiting[4]}
    assert polled(poller, waiting[1:]) == {waiting[4]}
    assert polled(poller, []) == frozenset()


def test_a_statement_that_fails_is_logged_once_and_tried_again(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    poller = WaitPoller(broker, releases=False)
    for _ in range(2):
        assert polled(poller, ["no id"]) == frozenset()
    (record,) = caplog.records
    assert '"no id" is not a message id' in record.getMessage()
    assert record.getMessage().endswith("It is tried again each second")
    (waiting,) = sent(broker, 1)
    broker.answer_key("t", "0")
    assert polled(poller, [waiting]) == {waiting}


@pytest.mark.slow
def test_x26_a_thousand_waiting_runs_cost_at_most_two_hundred(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements, and processor time of the server, of as many polls."""
    statements: list[str] = []

    def counted(connection: Any, statement: str, parameters: Any) -> Any:
        statements.append(statement)
        return fetch(connection, statement, parameters)

    monkeypatch.setattr(answering, "fetch", counted)
    broker.create_topic("t")
    waiting = sent(broker, 1_000)

    def cost_of(count: int) -> float:
        poller = WaitPoller(broker, releases=False)
        polled(poller, waiting[:count])
        # Each has been looked up, as after the first second.
        while poller.has_more:
            polled(poller, waiting[:count])
        with broker.connection() as connection:
            backend = psutil.Process(connection.info.backend_pid)
        statements.clear()
        before = backend.cpu_times()
        for _ in range(200):
            polled(poller, waiting[:count])
        assert len(statements) == 200
        after = backend.cpu_times()
        return after.user + after.system - before.user - before.system

    seconds = {count: cost_of(count) for count in (10, 100, 1_000)}
    assert seconds[1_000] <= 2 * seconds[100], seconds


@pytest.mark.slow
@pytest.mark.long
async def test_x26_a_thousand_runs_continue_with_their_answers(broker: Broker, airflow: Triggerer) -> None:
    """Half of them are answered within the last 25 ms before their timeout, in one triggerer."""
    count, answerers = 1_000, 5
    broker.create_topic("t", granularity=timedelta(milliseconds=1))
    ((now,),) = execute(broker.dsn, "select clock_timestamp()")
    begin_at = now + timedelta(seconds=5)
    due_at = [begin_at + timedelta(milliseconds=15 * number) for number in range(count)]
    messages = [NewMessage(b"", deliver_at=at, key=str(number)) for number, at in enumerate(due_at)]
    waiting = [receipt.message_id for receipt in broker.send_many("t", messages)]
    told: dict[int, str] = {}

    def answer(who: int) -> None:
        chance = random.Random(who)
        with Broker(broker.dsn) as mine, connected(broker.dsn) as clock:
            for number in range(2 * who, count, 2 * answerers):
                early = timedelta(milliseconds=chance.uniform(0, 25))
                ask(clock, "select pg_sleep_until(%s)", due_at[number] - early)
                told[number] = mine.answer_key("t", str(number), number).outcome.value

    async def run(number: int) -> Wait:
        """What a task does: it waits for the trigger's event, and reads the outcome."""
        event = await airflow.run(AnswerTrigger(waiting[number], "t")).get()
        return await asyncio.to_thread(broker.find_wait, event.payload["message_id"])

    runs = [asyncio.create_task(run(number)) for number in range(count)]
    await asyncio.gather(*(asyncio.to_thread(answer, who) for who in range(answerers)))
    branches = await asyncio.gather(*runs)
    assert len(told) == count // 2
    for number, branch in enumerate(branches):
        if told.get(number) == "answered":
            assert branch == Wait(WaitOutcome.ANSWERED, number)
        else:
            assert told.get(number, "too_late") == "too_late"
            assert branch == Wait(WaitOutcome.TIMED_OUT)
    # The race was real.
    assert set(told.values()) == {"answered", "too_late"}
