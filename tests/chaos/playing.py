"""Plays a fault and holds its run against the promises."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.arena import arena, finish, upkeep_is_done
from tests.chaos.checker import Terms, Violation, check, longest_wait_seconds, recovery_seconds
from tests.chaos.fault import Fault
from tests.chaos.traffic import EFFECTS_GROUP, GROUPS, ORDERED_GROUP
from tests.waiting import ask, connected, until

#: After the fault the workers go on for so many receives.
CALM_RECEIVES = 20


@dataclass(frozen=True)
class Outcome:
    """A row of the table.

    Attributes:
        fault: what was played.
        done: what it did, in numbers.
        sent: how many messages were accepted.
        received: how many deliveries there were.
        upkeep_seconds: how long after the fault a whole round of upkeep was done.
        longest_wait_seconds: from when a message could first come to when it first came; None where the
            clock that says it moved.
        recovery_seconds: from the fault's end to when the last message had come that could have come by then;
            None where the clock moved.
        violations: the broken promises.
        server_version: of Postgres.
    """

    fault: Fault
    done: str
    sent: int
    received: int
    upkeep_seconds: float | None
    longest_wait_seconds: float | None
    recovery_seconds: float | None
    violations: tuple[Violation, ...]
    server_version: str

    def count(self, kind: str) -> int:
        """How many messages broke a promise."""
        return sum(violation.count for violation in self.violations if violation.kind == kind)


def play(fault: Fault, directory: Path, seed: int, seconds: float) -> Outcome:
    """Play a fault.

    Args:
        fault: which.
        directory: an empty folder.
        seed: of every choice.
        seconds: how long it goes on.
    """
    with arena(directory, seed, seconds, fault) as stage:
        done = fault.happen(stage)
        calm_from = time.time()
        upkeep_seconds = upkeep_is_done(stage.dsn)
        before = stage.crew.receives()
        until(
            lambda: stage.crew.receives() > before + CALM_RECEIVES, "receives afterwards", pause_seconds=0.1
        )
        records = finish(stage)
        records.upkeep_seconds = upkeep_seconds
        with connected(stage.dsn) as connection:
            ((version,),) = ask(connection, "select split_part(current_setting('server_version'), ' ', 1)")
    terms = Terms(
        groups=(*GROUPS, EFFECTS_GROUP),
        commits_may_be_lost=fault.commits_may_be_lost,
        leases_may_be_lost=fault.leases_may_be_lost,
        clock_moves=fault.clock_moves,
        calm_from=None if fault.clock_moves else calm_from,
        effects_group=EFFECTS_GROUP,
        ordered_group=ORDERED_GROUP,
    )
    return Outcome(
        fault,
        done,
        len(records.sent),
        len(records.deliveries),
        upkeep_seconds,
        None if fault.clock_moves else longest_wait_seconds(records),
        None if fault.clock_moves else recovery_seconds(records, calm_from),
        tuple(check(records, terms)),
        version,
    )
