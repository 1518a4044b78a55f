"""One run of the main job, from placing orders to the verdict, and how its steps pass it on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Run:
    """The facts about a run.

    Attributes:
        began_at: when it began, ISO 8601.
        first_order: the orders with a higher number are this run's.
        orders: how many it places.
        timeout_seconds: how long the first order has to be paid.
        spread_seconds: how much longer the last one has.
        seconds: how long each step took, in the order they were done.
    """

    began_at: str
    first_order: int
    orders: int
    timeout_seconds: float
    spread_seconds: float
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Measure the block as this step."""
        started_at = time.monotonic()
        yield
        self.seconds[step] = round(time.monotonic() - started_at, 3)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json(), indent=2) + "\n", encoding="utf-8")

    def as_json(self) -> dict[str, Any]:
        """Return the run in types that JSON knows."""
        return asdict(self)

    @classmethod
    def load(cls, path: Path) -> Run | None:
        """Return the run saved in `path`, or None when there is none."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
