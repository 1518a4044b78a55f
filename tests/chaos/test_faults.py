"""Each fault, in short: ``make chaos`` takes longer, and ``DUEWHEEL_SOAK_SECONDS`` does for the first two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.chaos.__main__ import MARK, PAGE
from tests.chaos.fault import FAULTS
from tests.chaos.playing import play

SECONDS = 3.0
SOAK_SECONDS = float(os.environ.get("DUEWHEEL_SOAK_SECONDS", "10"))
SEED = 20260105
#: Those that the tests of their own play.
SOAKED = ("everything-at-once", "server-killed")


def assert_held(name: str, folder: Path, seconds: float) -> None:
    """Play a fault; every promise holds."""
    outcome = play(FAULTS[name], folder, SEED, seconds)
    assert not outcome.violations, [violation.sentence for violation in outcome.violations]


@pytest.mark.slow
@pytest.mark.tenfold
def test_nothing_is_lost_doubled_or_early_with_everything_at_once(tmp_path: Path) -> None:
    assert_held("everything-at-once", tmp_path, SOAK_SECONDS)


@pytest.mark.slow
@pytest.mark.tenfold
def test_d16_nothing_accepted_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    """With fsync on, as in production: what a sender was answered survives."""
    assert_held("server-killed", tmp_path, SOAK_SECONDS)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in SOAKED])
def test_every_promise_holds(name: str, tmp_path: Path) -> None:
    assert_held(name, tmp_path, SECONDS)


def test_the_page_has_a_row_for_each_fault_and_all_held() -> None:
    written = PAGE.read_text().partition(MARK)[2]
    rows = [line for line in written.splitlines() if line.startswith("| ")][1:]
    assert [line.partition("(`")[2].partition("`)")[0] for line in rows] == list(FAULTS)
    assert {line.split(" | ")[-1].rstrip(" |") for line in rows} == {"held"}
