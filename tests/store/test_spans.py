"""Spans of time in errors, logs and tests."""

from __future__ import annotations

from datetime import timedelta

import pytest

from duewheel.store.values.instants import said_span


@pytest.mark.parametrize(
    ("span", "said"),
    [
        (timedelta(0), "0 s"),
        (timedelta(seconds=-1), "-1 s"),
        (timedelta(minutes=4), "4 min"),
        (timedelta(hours=720), "30 days"),
        (timedelta(days=1, seconds=3661), "1 day 1 h 1 min 1 s"),
        (timedelta(microseconds=1_500), "1 ms 500 us"),
    ],
)
def test_a_span_is_said_in_the_units_that_people_use(span: timedelta, said: str) -> None:
    assert said_span(span) == said
