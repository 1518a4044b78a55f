"""Each fault, in short: ``make chaos`` takes longer, and ``DUEWHEEL_SOAK_SECONDS`` does for the first two.

The others are played one after the other in a few arenas. Each leaves the same workers at work, and they
recover before the next begins.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.__main__ import FULL, FULL_MARK, MARK, PAGE, PROVEN_MARK, rows_of
from tests.chaos.arena import Arena, upkeep_is_done
from tests.chaos.checker import LATEST_UPKEEP_SECONDS
from tests.chaos.fault import FAULTS, Fault
from tests.chaos.mix import Mix, Part, as_fault
from tests.chaos.playing import CALM_RECEIVES, Outcome, play
from tests.chaos.proven import PROVEN, ROOT, Proven
from tests.waiting import until

SECONDS = 2.0
SOAK_SECONDS = float(os.environ.get("DUEWHEEL_SOAK_SECONDS", "4"))
SEED = 20260105
#: Those that the tests of their own play.
SOAKED = ("everything-at-once", "server-killed")
#: Faults of one arena, in order. A fault that starts all wheels or sessions anew comes early: what it would
#: repair is broken by the later ones. A fault that leaves workers or many messages comes late. Faults whose
#: promises are weaker, or whose settings or needs differ, have an arena of their own.
SERIES = {
    "processes": (
        *("server-restarted", "wheels-killed", "stopped-gracefully", "consumers-killed", "wheel-stopped"),
        *("backends-stalled", "sent-to-a-standby", "restored-beside", "forked"),
    ),
    "administration": (
        *("notify-lost", "groups-deleted", "redriven-twice", "groups-paused", "savepoints", "two-phase"),
        *("slots-blocked", "advisory-locks", "upkeep-killed"),
    ),
    "neighbours": (
        *("odd-settings", "notifications", "replication", "answers-lost", "idle-transactions", "upgraded"),
    ),
    "backends": ("backends-terminated", "backends-cancelled", "pooled"),
    "crowds": ("poison", "burst", "stale-statistics"),
    "no room": ("notify-queue-full", "no-connections"),
    "no disk": ("disk-full",),
    "leases lost": ("server-away", "failover-in-step"),
    "commits lost": ("power-lost", "failover"),
    "clocks": ("clock-steps", "a-month-later"),
}


def held(outcome: Outcome) -> list[str]:
    """The broken promises, in words."""
    return [violation.sentence for violation in outcome.violations]


def play_soaked(name: str, folder: Path) -> None:
    """Play a fault for long; every promise holds."""
    assert held(play(FAULTS[name], folder, SEED, SOAK_SECONDS)) == []


@pytest.mark.slow
@pytest.mark.tenfold
def test_nothing_is_lost_doubled_or_early_under_all_faults(tmp_path: Path) -> None:
    """Message groups stay in order, too."""
    play_soaked("everything-at-once", tmp_path)


@pytest.mark.slow
@pytest.mark.tenfold
def test_d16_nothing_accepted_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    """With fsync on, as in production: what a sender was answered survives."""
    play_soaked("server-killed", tmp_path)


def happen_in_turn(arena: Arena, names: Sequence[str]) -> str:
    """Let faults happen one after the other; after each upkeep is done, and the workers receive."""
    done = []
    for name in names:
        try:
            done.append(f"{name}: {FAULTS[name].happen(replace(arena, seconds=SECONDS))}")
            assert upkeep_is_done(arena.dsn) <= LATEST_UPKEEP_SECONDS
            before = arena.crew.receives()
            until(
                lambda before=before: arena.crew.receives() > before + CALM_RECEIVES,
                f"receives after {name}",
                pause_seconds=0.2,
            )
        except BaseException as error:
            error.add_note(f"in {name}, after {done}")
            raise
    return "; ".join(done)


def series_of(names: Sequence[str]) -> Any:
    """A parameter with the marks of what its faults need."""
    needs = sorted({need for name in names for need in FAULTS[name].needs})
    return pytest.param(names, marks=[pytest.mark.needs(*needs)] if needs else [])


def broken(fault: Fault, folder: Path) -> list[str]:
    """What a play breaks; an error after the faults, too. One within a fault names it, and is raised."""
    folder.mkdir()
    try:
        return held(play(fault, folder, SEED, SECONDS))
    except Exception as error:
        if hasattr(error, "__notes__"):
            raise
        traceback.print_exc()
        return [repr(error)]


@pytest.mark.long
@pytest.mark.parametrize("names", [series_of(names) for names in SERIES.values()], ids=SERIES)
def test_every_promise_holds(names: Sequence[str], tmp_path: Path) -> None:
    terms = as_fault(Mix(tuple(Part(name, SECONDS) for name in names)))
    series = replace(terms, happen=lambda arena: happen_in_turn(arena, names))
    if together := broken(series, tmp_path / "together"):
        alone = {name: said for name in names if (said := broken(FAULTS[name], tmp_path / name))}
        pytest.fail(f"{together}; alone: {alone}")


def test_each_fault_is_played_on_its_own_terms() -> None:
    assert sorted(chain(SOAKED, *SERIES.values())) == sorted(FAULTS)
    for names in SERIES.values():
        faults = [FAULTS[name] for name in names]
        assert len({(f.commits_may_be_lost, f.leases_may_be_lost, f.clock_moves) for f in faults}) == 1, names


def test_the_tests_that_play_faults_exist() -> None:
    for one in PROVEN.values():
        for test in one.tests:
            path, _, name = test.partition("::")
            assert not name or f"def {name}(" in (ROOT / "tests" / path).read_text(), test
            assert (ROOT / "tests" / path).exists(), test


@pytest.mark.parametrize(
    ("mark", "names"),
    [
        (MARK, list(FAULTS)),
        (FULL_MARK, FULL),
        (PROVEN_MARK, list(PROVEN)),
    ],
)
def test_the_page_has_a_row_for_each_fault_and_all_held(mark: str, names: list[str]) -> None:
    rows = rows_of(mark)
    assert list(rows) == names
    assert {one.split(" | ")[-1].rstrip(" |") for one in rows.values()} == {"held"}


def test_each_row_has_an_anchor_of_its_own() -> None:
    anchors = re.findall(r'<a id="([^"]+)">', PAGE.read_text())
    assert sorted(anchors) == sorted([*FAULTS, *PROVEN, *(f"{name}-in-full" for name in FULL)])
    assert len(set(anchors)) == len(anchors)


def test_a_fault_holds_if_all_of_its_tests_passed() -> None:
    one = Proven("x", "x", ("store/test_cron.py", "operators/test_live.py::test_a"))
    passed = {
        "tests.store.test_cron::test_one": True,
        "tests.operators.test_live::test_a[1]": True,
        "tests.operators.test_live::test_ab": False,
    }
    assert one.holds(passed)
    assert not one.holds(passed | {"tests.operators.test_live::test_a[2]": False})
    assert not one.holds(passed | {"tests.store.test_cron::test_two": False})
    assert not one.holds({"tests.store.test_cron::test_one": True})
