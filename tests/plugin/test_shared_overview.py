"""The cost of computing the overview decides how long it is shared."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

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
        # A single slow one is an accident; a single quick one found what another answer had read.
        ((5.0, 0.16, 0.1), 80),
        ((0.001, 0.2, 0.01, 0.1), 50),
        ((5.0, 5.0, 5.0), 90),
    ],
)
def test_x08_an_overview_that_costs_more_is_worked_out_more_seldom(
    costs: tuple[float, ...], shared_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duewheel.plugin import models, shared_answers

    now = [1_000.0]
    monkeypatch.setattr(shared_answers.time, "monotonic", lambda: now[0])
    shared = shared_answers.SharedAnswers()
    key = ("broker", "hour", None)
    answer = models.Names(topics=["t"], groups=[])
    for cost in costs:
        assert shared.get(key) is None
        shared.put(key, answer, cost)
        now[0] += 60
    # The page tells of which instant it is, and when it looks again.
    assert answer.shared_seconds == pytest.approx(shared_seconds)
    now[0] += shared_seconds - 60.1
    kept = shared.get(key)
    assert isinstance(kept, models.Names)
    assert kept.topics == ["t"]
    # The page asks again when there is something new.
    assert kept.next_in_seconds == pytest.approx(0.1)
    assert shared.get(("another", "hour", None)) is None
    now[0] += 0.2
    assert shared.get(key) is None


def test_x08_what_is_asked_after_an_act_is_worked_out_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    from duewheel.plugin import models, shared_answers

    monkeypatch.setattr(shared_answers.time, "monotonic", lambda: 1_000.0)
    shared = shared_answers.SharedAnswers()
    for broker in ("one", "another"):
        shared.put((models.Names, broker), models.Names(topics=["t"], groups=[]), 5.0)
    shared.forget("one")
    assert shared.get((models.Names, "one")) is None
    assert shared.get((models.Names, "another")) is not None
    # No act changes how late releases were.
    day = models.DayLateness(from_at=datetime.now(UTC), hours=24, looked_at_hours=24, topics=[])
    shared.put((models.DayLateness, "one"), day, 5.0)
    shared.forget("one")
    assert shared.get((models.DayLateness, "one")) is not None
