"""Instants and spans: what callers may give, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pendulum
import pytest

from duewheel.store.values.errors import InvalidArgument, InvalidInstant
from duewheel.store.values.instants import (
    from_microseconds,
    said_span,
    span_to_microseconds,
    to_datetime,
    to_microseconds,
    to_span,
)

BEIJING = timezone(timedelta(hours=8))


def test_d01_an_instant_is_the_same_in_every_zone() -> None:
    for given in (
        datetime(2022, 6, 9, 11, 20, 0, 123456, tzinfo=UTC),
        datetime(2022, 6, 9, 19, 20, 0, 123456, tzinfo=BEIJING),
        datetime(2022, 6, 9, 20, 20, 0, 123456, tzinfo=ZoneInfo("Asia/Tokyo")),
        pendulum.datetime(2022, 6, 9, 20, 20, 0, 123456, tz="Asia/Tokyo"),
    ):
        found = to_datetime(given)
        assert found == datetime(2022, 6, 9, 11, 20, 0, 123456, tzinfo=UTC)
        assert type(found) is datetime
        assert found.tzinfo is UTC
        assert to_microseconds(given) == 1654773600123456


def test_the_two_instants_of_a_repeated_hour_stay_apart() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    first = datetime(2026, 10, 25, 2, 30, tzinfo=berlin)
    second = datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=1)
    assert to_microseconds(second) - to_microseconds(first) == 3_600_000_000


def test_microseconds_before_1970_are_whole() -> None:
    at = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert to_microseconds(at) == -1
    assert from_microseconds(-1) == at


def test_other_values_are_no_instants_and_no_spans() -> None:
    with pytest.raises(InvalidInstant, match=r"deliver_at 2026-01-05 09:30:00 has no time zone.*aware"):
        to_datetime(datetime(2026, 1, 5, 9, 30))  # noqa: DTZ001 -- the naive one is the point
    for other in ("2026-01-05", 1.5, True, None, timedelta(1)):
        with pytest.raises(InvalidInstant, match="not an instant"):
            to_datetime(other)  # type: ignore[arg-type]
    for out_of_range in (10**15, -(10**15)):
        with pytest.raises(InvalidInstant, match="years 1 to 9999"):
            to_datetime(out_of_range)
    for seconds in (1_767_600_000, 0, -(10**11) + 1, 10**11 - 1):
        with pytest.raises(InvalidInstant, match=f"as Unix milliseconds: give {seconds * 1000} if these are"):
            to_datetime(seconds)
    assert to_datetime(10**11) == datetime(1973, 3, 3, 9, 46, 40, tzinfo=UTC)
    for number in (60, 1.5, "60 s", None):
        with pytest.raises(InvalidArgument, match="give a timedelta"):
            to_span(number)  # type: ignore[arg-type]


def test_a_span_is_a_timedelta_whatever_its_class() -> None:
    found = to_span(pendulum.duration(months=1, hours=3, microseconds=7))
    assert type(found) is timedelta
    assert found == timedelta(days=30, hours=3, microseconds=7)
    assert span_to_microseconds(timedelta(days=-1, microseconds=1)) == -86_399_999_999


def test_a_span_is_said_in_the_units_that_people_use() -> None:
    for span, said in (
        (timedelta(0), "0 s"),
        (timedelta(seconds=-1), "-1 s"),
        (timedelta(minutes=4), "4 min"),
        (timedelta(hours=720), "30 days"),
        (timedelta(days=1, seconds=3661), "1 day 1 h 1 min 1 s"),
        (timedelta(microseconds=1_500), "1 ms 500 us"),
    ):
        assert said_span(span) == said
