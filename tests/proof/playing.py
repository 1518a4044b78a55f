"""How the plays of a state machine are drawn: the same ones in each run unless told how many others."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from tests.conftest import drop_database

from duewheel.embedded.postgres import EmbeddedPostgres

#: Makes the machine of one play from what makes and what drops its database.
Machine = Callable[[Callable[[], tuple[str, str]], Callable[[str], None]], RuleBasedStateMachine]


def play(
    machine: Machine, postgres: EmbeddedPostgres, fresh_database: Callable[[], tuple[str, str]], *, steps: int
) -> None:
    """Let a machine play 25 fixed times, or so many times more, or ``DUEWHEEL_MODEL_EXAMPLES`` random ones.

    ``DUEWHEEL_MODEL_TIMES=10`` plays 250 fixed times. Each play has ``steps`` steps.
    """
    examples = os.environ.get("DUEWHEEL_MODEL_EXAMPLES")
    fixed = 25 * int(os.environ.get("DUEWHEEL_MODEL_TIMES", "1"))
    run_state_machine_as_test(
        lambda: machine(fresh_database, partial(drop_database, postgres)),
        settings=settings(
            max_examples=int(examples or fixed),
            stateful_step_count=steps,
            derandomize=examples is None,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
