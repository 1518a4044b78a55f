"""A triggerer as small as it gets: Airflow's own shared streams on an event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import SharedStreamManager
from tests.airflow_runs import connection_json
from tests.waiting import PATIENCE_SECONDS

from duewheel.triggers import polling, wheel_stream
from duewheel.triggers.timing_wheel import TimingWheelTrigger


class Triggerer:
    """Runs triggers as ``TriggerRunner.run_trigger`` does, and hands out their events as they come."""

    def __init__(self) -> None:
        self.streams = SharedStreamManager()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._looks: AsyncIterator[Any] | None = None

    def run(self, trigger: BaseEventTrigger) -> asyncio.Queue[TriggerEvent]:
        """Start the trigger; its events come in the queue."""
        events: asyncio.Queue[TriggerEvent] = asyncio.Queue()
        self.start(trigger, events)
        return events

    def start(
        self, trigger: BaseEventTrigger, events: asyncio.Queue[TriggerEvent] | None = None
    ) -> asyncio.Task[None]:
        """Start the trigger and return its task, which ends, or fails, with the trigger."""
        number = len(self._tasks) + 1
        task = asyncio.create_task(self._run(number, trigger, asyncio.Queue() if events is None else events))
        self._tasks[number] = task
        return task

    async def _run(self, number: int, trigger: BaseEventTrigger, events: asyncio.Queue[TriggerEvent]) -> None:
        key = trigger.shared_stream_key()
        try:
            stream = self.streams.subscribe(trigger_id=number, trigger=trigger, key=key)
            async for event in trigger.filter_shared_stream(stream):
                events.put_nowait(event)
        finally:
            await self.streams.unsubscribe(number, key)

    async def looks(self, count: int) -> None:
        """Wait until the stream has told that often what the logs say, and the triggers have heard it."""
        trigger = TimingWheelTrigger("any", "any")
        key = trigger.shared_stream_key()
        looks = self.streams.subscribe(trigger_id=0, trigger=trigger, key=key)
        try:
            # The last one has been put into every queue by then, and been taken out of the others.
            for _ in range(count + 1):
                await anext(looks)
        finally:
            await self.streams.unsubscribe(0, key)

    async def stop(self) -> None:
        """Cancel every trigger, as Airflow does when it ends."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


@pytest.fixture
def airflow(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Triggerer:
    """A triggerer for a test that is a coroutine; ``duewheel_default`` leads to the test's database."""
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(dsn))
    # Tests wait for looks, not for seconds.
    for pause in ("POLL_SECONDS", "POLL_READY_SECONDS", "FIRST_PAUSE_SECONDS"):
        monkeypatch.setattr(wheel_stream, pause, 0.05)
    monkeypatch.setattr(wheel_stream, "SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(polling, "TRY_AGAIN_SECONDS", 0.05)
    return Triggerer()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on an event loop, and stop its triggerer at the end."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def play() -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await pyfuncitem.obj(**given)
        finally:
            if "airflow" in given:
                await given["airflow"].stop()

    asyncio.run(play())
    return True
