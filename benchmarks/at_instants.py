"""Triggers that note when they fired: duewheel's, and a trigger that fires at an instant without a broker.

They are in a separate module because Airflow's triggerer imports it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from duewheel.triggers.polling import DoorbellSnapshot
from duewheel.triggers.timing_wheel import TimingWheelTrigger

#: How long before an instant it has to be written to the file, in seconds.
TO_COME = 0.5


class NotingTimingWheel(TimingWheelTrigger):
    """Rings like its base class, and notes when."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of this class."""
        return ("benchmarks.at_instants.NotingTimingWheel", super().serialize()[1])

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[DoorbellSnapshot]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Yield the base class's events."""
        async for event in super().filter_shared_stream(shared_stream):
            yield TriggerEvent({**event.payload, "rang_at": time.time()})


class AtInstants(BaseEventTrigger):
    """Fires at the instant that a file names, in seconds since the epoch, and at each later one."""

    def __init__(self, file: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
        self.file = file

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of this class and the file."""
        return ("benchmarks.at_instants.AtInstants", {"file": self.file})

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Check for a new instant often enough to see it in time, and fire at it."""
        file, last = Path(self.file), 0.0
        while True:
            due_at = float(file.read_text()) if file.exists() else 0.0
            if due_at <= last:
                await asyncio.sleep(TO_COME / 2)
                continue
            last = due_at
            await asyncio.sleep(max(0.0, due_at - time.time()))
            yield TriggerEvent({"due_at": due_at, "rang_at": time.time()})
