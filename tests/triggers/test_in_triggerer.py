"""The triggers in the triggerer's own runner."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from airflow.jobs.triggerer_job_runner import TriggerRunner
from tests.airflow_runs import connection_json
from tests.waiting import until_on_loop

from duewheel.triggers.answer import AnswerTrigger
from duewheel.triggers.due_messages import DueMessagesTrigger
from duewheel.triggers.timing_wheel import TimingWheelTrigger

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

    from duewheel.store import Broker

pytestmark = pytest.mark.airflow


def start(runner: TriggerRunner, number: int, trigger: BaseTrigger) -> None:
    """Start a trigger as the runner does with what it finds in Airflow's database."""
    trigger.trigger_id = number
    runner.triggers[number] = {"name": f"trigger {number}", "events": 0, "is_watcher": True}  # type: ignore[typeddict-item]
    runner.triggers[number]["task"] = asyncio.create_task(runner.run_trigger(number, trigger))


def test_watchers_and_deferred_tasks_share_a_wheel(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        runner = TriggerRunner()
        start(runner, 1, TimingWheelTrigger("orders", "watcher"))
        start(runner, 2, DueMessagesTrigger("orders", "sensor"))
        await until_on_loop(lambda: len(runner._shared_streams._groups) == 1, "one stream")
        broker.send("orders", b"x", delay=timedelta(milliseconds=300))
        await until_on_loop(lambda: len(runner.events) == 2, "two events")
        assert {entry.trigger_id for entry in runner.events} == {1, 2}
        assert {entry.event.payload["group"] for entry in runner.events} == {"watcher", "sensor"}
        await until_on_loop(runner.triggers[2]["task"].done, "the second trigger to end")
        assert not runner.triggers[1]["task"].done()
        runner.to_cancel.append(1)
        await runner.cancel_triggers()
        await until_on_loop(runner.triggers[1]["task"].done, "the first trigger to end")
        assert await runner.cleanup_finished_triggers() == [1, 2]
        assert not runner.failed_triggers
        assert not runner._shared_streams._groups

    broker.create_topic("orders")
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(broker.dsn))
    asyncio.run(play())


def test_x26_a_waiting_run_and_a_watcher_share_a_wheel(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        runner = TriggerRunner()
        answered, timed_out = (
            broker.send("orders", b"", delay=delay, key=key).message_id
            for key, delay in (("k", timedelta(hours=1)), ("other", timedelta(milliseconds=300)))
        )
        start(runner, 1, TimingWheelTrigger("orders", "watcher"))
        start(runner, 2, AnswerTrigger(answered, "orders"))
        start(runner, 3, AnswerTrigger(timed_out, "orders"))
        await until_on_loop(lambda: len(runner._shared_streams._groups) == 1, "one stream")
        broker.answer_key("orders", "k")
        await until_on_loop(lambda: runner.triggers[2]["task"].done(), "the answer")
        await until_on_loop(lambda: runner.triggers[3]["task"].done(), "the timeout")
        payloads = {entry.trigger_id: entry.event.payload for entry in runner.events}
        assert payloads[2] == {"message_id": answered}
        assert payloads[3] == {"message_id": timed_out}
        runner.to_cancel.append(1)
        await runner.cancel_triggers()
        await until_on_loop(runner.triggers[1]["task"].done, "the watcher to end")
        await runner.cleanup_finished_triggers()
        assert not runner.failed_triggers

    broker.create_topic("orders")
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(broker.dsn))
    asyncio.run(play())
