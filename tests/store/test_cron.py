"""When schedules fire, held against a look at every minute on the wall clocks of many zones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.acting import AT_ONCE, MINUTE

from duewheel.store.values.cron import Cron, Every
from duewheel.store.values.errors import InvalidSchedule

#: Zones and days around a change of their clocks: by an hour, by half an hour, at midnight, by a whole day,
#: of a zone's standard time, and backwards in summer.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, tzinfo=UTC)),
    ("Asia/Beirut", datetime(2026, 3, 28, 22, tzinfo=UTC)),
    ("Asia/Beirut", datetime(2026, 10, 24, 21, tzinfo=UTC)),
    ("America/Havana", datetime(2026, 11, 1, 5, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
    ("Asia/Pyongyang", datetime(2018, 5, 4, 15, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2026, 2, 15, 2, tzinfo=UTC)),
    ("Europe/Dublin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("UTC", datetime(2028, 2, 29, tzinfo=UTC)),
]

INSTANTS = st.integers(631_152_000_000_000, 3_786_912_000_000_000).map(
    lambda microseconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
)


@st.composite
def fields(draw: st.DrawFn, low: int, high: int) -> tuple[str, frozenset[int]]:
    """A field of an expression and the values it stands for."""
    every = frozenset(range(low, high + 1))
    match draw(st.sampled_from(["any", "one", "list", "range", "step"])):
        case "any":
            return "*", every
        case "one":
            value = draw(st.integers(low, high))
            return str(value), frozenset({value})
        case "list":
            values = draw(st.sets(st.integers(low, high), min_size=2, max_size=4))
            return ",".join(map(str, sorted(values))), frozenset(values)
        case "range":
            first = draw(st.integers(low, high - 1))
            last = draw(st.integers(first + 1, high))
            return f"{first}-{last}", frozenset(range(first, last + 1))
        case _:
            step = draw(st.integers(2, high - low))
            return f"*/{step}", frozenset(range(low, high + 1, step))


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, list[frozenset[int]], bool, bool]:
    """An expression, the values of its fields, and whether each of its days is left open."""
    minute, hour = draw(fields(0, 59)), draw(fields(0, 23))
    anything = ("*", frozenset(range(32)))
    day = draw(st.one_of(st.just(anything), fields(1, 31)))
    weekday = draw(st.one_of(st.just(anything), fields(0, 6)))
    text = f"{minute[0]} {hour[0]} {day[0]} * {weekday[0]}"
    return text, [minute[1], hour[1], day[1], weekday[1]], day[0] == "*", weekday[0] == "*"


def all_between(
    values: list[frozenset[int]], any_day: bool, any_weekday: bool, zone: str, begin: datetime, end: datetime
) -> list[datetime]:
    """Every minute in [begin, end] whose local time matches."""
    found = []
    at = begin
    while at <= end:
        local = at.astimezone(ZoneInfo(zone))
        by_day, by_weekday = local.day in values[2], local.isoweekday() % 7 in values[3]
        days = by_day and by_weekday if any_day or any_weekday else by_day or by_weekday
        if local.minute in values[0] and local.hour in values[1] and days:
            found.append(at)
        at += MINUTE
    return found


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(expressions(), st.sampled_from(CHANGES), st.integers(1, 40 * 60), st.integers(0, 59_999_999))
def test_d18_cron_fires_whenever_the_local_time_matches(
    expression: tuple[str, list[frozenset[int]], bool, bool],
    change: tuple[str, datetime],
    minutes_before: int,
    microseconds: int,
) -> None:
    text, values, any_day, any_weekday = expression
    zone, around = change
    begin = around - minutes_before * MINUTE
    end = around + timedelta(hours=30)
    expected = all_between(values, any_day, any_weekday, zone, begin, end)
    cron = Cron(text, zone)
    found = []
    at = cron.first_from(begin)
    while at is not None and at <= end:
        found.append(at)
        at = cron.next_after(at)
    assert found == expected
    # From within a minute, what comes next is the same.
    between = begin + timedelta(microseconds=microseconds)
    after = next((at for at in expected if at > between), None)
    assert after is None or cron.next_after(between) == after
    if expected:
        assert cron.last_until(end, since=expected[0]) == expected[-1]
        assert cron.last_until(expected[-1] - timedelta(microseconds=1), since=begin) == (
            expected[-2] if len(expected) > 1 else begin
        )


def test_expressions() -> None:
    for expression, first in {
        "@hourly": datetime(2026, 1, 5, 10, tzinfo=UTC),
        "@daily": datetime(2026, 1, 6, tzinfo=UTC),
        "@WEEKLY": datetime(2026, 1, 11, tzinfo=UTC),
        "@yearly": datetime(2027, 1, 1, tzinfo=UTC),
        "0 0 29 2 *": datetime(2028, 2, 29, tzinfo=UTC),
        "0 0 L * *": datetime(2026, 1, 31, tzinfo=UTC),
        "0 0 * * fri#2": datetime(2026, 1, 9, tzinfo=UTC),
        "0 0 13 * fri": datetime(2026, 1, 9, tzinfo=UTC),
        "0 0 * * 7": datetime(2026, 1, 11, tzinfo=UTC),
        "*/2  *\t* * *": datetime(2026, 1, 5, 9, 32, tzinfo=UTC),
    }.items():
        assert Cron(expression, "UTC").next_after(datetime(2026, 1, 5, 9, 30, tzinfo=UTC)) == first


def test_wrong_expressions_and_time_zones_are_refused() -> None:
    for expression, said in {
        "": "0 fields",
        "* * * *": "4 fields",
        "*/10 * * * * *": "6 fields",
        "@reboot": "@daily",
        "60 * * * *": "not a cron expression",
        "* * * * 8": "not a cron expression",
        "*/0 * * * *": "not a cron expression",
        "5- * * * *": "not a cron expression",
        "H * * * *": "field 'H'",
        "* r/2 * * *": "field 'r/2'",
        "H(0-5) * * * *": "field 'H(0-5)'",
        "٣ * * * *": "field",
        "0 0 30 2 *": "never occurs",
        "1," * 200 + "1 * * * *": "the limit is 255",
    }.items():
        with pytest.raises(InvalidSchedule) as caught:
            Cron(expression, "UTC")
        assert said in str(caught.value)
    for zone in ("Mars/Olympus", "", "../etc/passwd", "/etc/passwd", "America", "UTC\0", "x" * 999):
        with pytest.raises(InvalidSchedule, match="Europe/Berlin"):
            Cron("* * * * *", zone)
    for every in (AT_ONCE, timedelta(milliseconds=999), timedelta(days=3661)):
        with pytest.raises(InvalidSchedule, match="1 second to 3660 days"):
            Every(every, datetime(2026, 1, 1, tzinfo=UTC))


@given(st.timedeltas(timedelta(seconds=1), timedelta(days=3660)), INSTANTS, INSTANTS)
def test_d18_an_interval_fires_whole_intervals_from_its_anchor(
    every: timedelta, anchor: datetime, instant: datetime
) -> None:
    rule = Every(every, anchor)
    first, after = rule.first_from(instant), rule.next_after(instant)
    assert first is not None
    assert after is not None
    assert (first - anchor) % every == timedelta(0) == (after - anchor) % every
    assert instant <= first < instant + every
    assert instant < after <= instant + every
    since = first - 99_999 * every if every < timedelta(hours=1) else first
    assert rule.last_until(first, since=since) == first
