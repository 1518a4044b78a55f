"""The cost of computing the overview decides how long it is shared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from duewheel.plugin.models import Overview

pytestmark = [
    pytest.mark.airflow,
    # Importing Airflow's API warns of a library's future.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


@pytest.mark.parametrize(
    ("costs", "shared_seconds"),
    [
        ((0.001, 0.001, 0.001), 2),
        # The first ones say nothing: what is cold is slow.
        ((5.0,), 2),
        ((5.0, 5.0), 2),
        ((5.0, 0.4, 0.2), 25),
        ((0.001, 0.4, 0.3, 0.2), 25),
        ((5.0, 5.0, 5.0), 60),
    ],
)
def test_x08_an_overview_that_costs_more_is_worked_out_more_seldom(
    costs: tuple[float, ...], shared_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duewheel.plugin import seeing

    now = [1_000.0]
    monkeypatch.setattr(seeing.time, "monotonic", lambda: now[0])
    shared = seeing._Shared()
    key = ("broker", "hour", None)
    answer = cast("Overview", SimpleNamespace(shared_seconds=0.0))
    for cost in costs:
        assert shared.get(key) is None
        shared.put(key, answer, cost)
        now[0] += 60
    # The page tells of which instant it is, and when it looks again.
    assert answer.shared_seconds == pytest.approx(shared_seconds)
    now[0] += shared_seconds - 60.1
    assert shared.get(key) is answer
    assert shared.get(("another", "hour", None)) is None
    now[0] += 0.2
    assert shared.get(key) is None
