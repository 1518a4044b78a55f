"""Each fault, in short: ``make chaos`` takes longer, and ``DUEWHEEL_SOAK_SECONDS`` does for the first two."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.__main__ import FULL, FULL_MARK, MARK, PAGE, PROVEN_MARK, rows_of
from tests.chaos.fault import FAULTS
from tests.chaos.playing import play
from tests.chaos.proven import PROVEN, ROOT, Proven

SECONDS = 3.0
SOAK_SECONDS = float(os.environ.get("DUEWHEEL_SOAK_SECONDS", "4"))
SEED = 20260105
#: Those that the tests of their own play.
SOAKED = ("everything-at-once", "server-killed")
#: The marks of faults by what they need.
NEEDS: dict[tuple[str, ...], Any] = {
    (): (),
    ("pgbouncer",): pytest.mark.needs("pgbouncer"),
    ("libfaketime",): pytest.mark.needs("libfaketime"),
    ("root",): pytest.mark.needs("root"),
}


def assert_held(name: str, folder: Path, seconds: float) -> None:
    """Play a fault; every promise holds."""
    outcome = play(FAULTS[name], folder, SEED, seconds)
    assert not outcome.violations, [violation.sentence for violation in outcome.violations]


@pytest.mark.slow
@pytest.mark.tenfold
def test_nothing_is_lost_doubled_or_early_with_everything_at_once(tmp_path: Path) -> None:
    """Message groups stay in order, too."""
    assert_held("everything-at-once", tmp_path, SOAK_SECONDS)


@pytest.mark.slow
@pytest.mark.tenfold
def test_d16_nothing_accepted_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    """With fsync on, as in production: what a sender was answered survives."""
    assert_held("server-killed", tmp_path, SOAK_SECONDS)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=NEEDS[one.needs]) for name, one in FAULTS.items() if name not in SOAKED],
)
def test_every_promise_holds(name: str, tmp_path: Path) -> None:
    assert_held(name, tmp_path, SECONDS)


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


def test_a_fault_that_tests_play_holds_if_all_of_its_tests_passed() -> None:
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
