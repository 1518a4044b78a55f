"""One step of upkeep at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from tests.waiting import ask

from duewheel.store.wheel.upkeep import STEP

State = dict[str, Any]


def only(step: str) -> State:
    """The state of a round that has this step alone."""
    return {"todo": [{"step": step}], "failed": [], "begun_at": "infinity"}


def portion(connection: Any, state: State, rows: int, now: datetime) -> State:
    """Does the next portion; returns the new state."""
    while True:
        ((after,),) = ask(connection, STEP, json.dumps(state), rows, now)
        if after["todo"] != state["todo"] or after["done"] or after["finished"]:
            return after
        # It has noted the clock, or looked once more.
        state = after


def portions(connection: Any, step: str, rows: int, now: datetime) -> Iterator[State]:
    """Does a step to its end; yields the state after each portion."""
    state = only(step)
    while not state.get("finished"):
        state = portion(connection, state, rows, now)
        yield state
