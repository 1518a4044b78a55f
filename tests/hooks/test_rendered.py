"""Rendered templates become spans, instants and levels, or a clear error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pendulum
import pytest

from duewheel.hooks.arguments.rendered import as_instant, as_level, as_span
from duewheel.store.values.errors import InvalidArgument, InvalidDelayLevel, InvalidInstant
from duewheel.store.values.instants import to_datetime


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("PT15M", timedelta(minutes=15)),
        ("pt1m30.5s", timedelta(seconds=90.5)),
        ("P1DT2H", timedelta(days=1, hours=2)),
        ("P2W", timedelta(weeks=2)),
        ("0:15:00", timedelta(minutes=15)),
        ("0:00:00.250000", timedelta(milliseconds=250)),
        ("1 day, 2:00:00", timedelta(days=1, hours=2)),
        ("3 days, 0:00:01", timedelta(days=3, seconds=1)),
        ("-1 day, 23:59:59", timedelta(seconds=-1)),
        ("  PT5S ", timedelta(seconds=5)),
    ],
)
def test_d02_text_with_units_is_a_span(text: str, span: timedelta) -> None:
    assert as_span(text) == span


@pytest.mark.parametrize(
    "span", [timedelta(0), timedelta(days=2, hours=3, microseconds=7), timedelta(milliseconds=-1)]
)
def test_d02_the_text_of_a_timedelta_is_that_timedelta(span: timedelta) -> None:
    assert as_span(str(span)) == span


@pytest.mark.parametrize("value", [None, "", "  ", "None"])
def test_nothing_rendered_is_nothing_given(value: str | None) -> None:
    assert as_span(value) is None
    assert as_instant(value) is None
    assert as_level(value) is None


@pytest.mark.parametrize("text", ["30", "1.5", "soon", "P", "PT", "2026-01-01", "15:00", "1h"])
def test_a_span_without_units_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"retention .* is not a span of time: give a timedelta"):
        as_span(text, "retention")


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2022-06-09T19:20:00+08:00", datetime(2022, 6, 9, 11, 20, tzinfo=UTC)),
        ("2022-06-09 11:20:00.125Z", datetime(2022, 6, 9, 11, 20, 0, 125000, tzinfo=UTC)),
        ("1654773600000", datetime(2022, 6, 9, 11, 20, tzinfo=UTC)),
        ("-100000000000", datetime(1966, 10, 31, 14, 13, 20, tzinfo=UTC)),
    ],
)
def test_d01_text_with_an_offset_or_unix_millis_is_an_instant(text: str, instant: datetime) -> None:
    value = as_instant(text)
    assert value is not None
    assert to_datetime(value) == instant


def test_d01_an_instant_passes_through_unchanged() -> None:
    eastern = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=8)))
    pendulum_instant = pendulum.datetime(2026, 1, 1)
    assert as_instant(eastern) is eastern
    assert as_instant(pendulum_instant) is pendulum_instant
    assert as_instant(1654773600000) == datetime(2022, 6, 9, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2022-06-09T19:20:00", "tomorrow", "17:30", "1654773600.5"])
def test_d01_an_instant_without_an_offset_is_refused_with_a_cure(text: str) -> None:
    with pytest.raises(InvalidInstant, match="is not an instant: give ISO 8601 with an offset"):
        as_instant(text)


@pytest.mark.parametrize("value", [1_654_773_600, "1654773600", 0, "-1000", 99_999_999_999])
def test_d01_seconds_are_not_taken_for_milliseconds(value: int | str) -> None:
    with pytest.raises(
        InvalidInstant, match=r"^start -?\d+ is 19(69|70|73)-.* as Unix milliseconds: give -?\d+ if"
    ):
        as_instant(value, "start")


def test_l01_a_level_may_be_text() -> None:
    assert (as_level("3"), as_level(" 18 "), as_level(0), as_level("-1")) == (3, 18, 0, -1)


@pytest.mark.parametrize("text", ["three", "1.5", "1s"])
def test_l03_a_level_of_other_text_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(InvalidDelayLevel, match="is not a whole number: give 0"):
        as_level(text)
