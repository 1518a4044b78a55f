"""Durations, instants and properties on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import click
import pytest

from duewheel.cli.parameters import duration, instant, name_and_value, size, start


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("45s", timedelta(seconds=45)),
        ("1.5m", timedelta(seconds=90)),
        ("1h30m", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
        ("0s", timedelta(0)),
    ],
)
def test_duration_is_numbers_with_units(text: str, expected: timedelta) -> None:
    assert duration(text) == expected


@pytest.mark.parametrize("text", ["", "30", "-5s", "5 s", "1w", "s", "1h30", "1e3s", "9" * 400 + "d"])
def test_anything_else_is_not_a_duration(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is not a duration|is too long"):
        duration(text)


def test_d01_instant_is_iso_8601_or_unix_milliseconds() -> None:
    expected = datetime(2022, 6, 8, 19, 20, tzinfo=timezone(timedelta(hours=8)))
    assert instant("2022-06-08T19:20:00+08:00") == expected
    assert instant("2022-06-08T11:20:00Z") == expected
    assert instant("1654687200000") == datetime(2022, 6, 8, 11, 20, tzinfo=UTC)


def test_naive_instant_is_refused_and_told_how_to_be_right() -> None:
    with pytest.raises(click.BadParameter, match="has no time zone"):
        instant("2022-06-08T19:20:00")


@pytest.mark.parametrize("text", ["tomorrow", "", "9" * 30, "-5"])
def test_nonsense_is_not_an_instant(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not an instant"):
        instant(text)


def test_property_is_split_at_the_first_equals_sign() -> None:
    assert name_and_value("colour=red=ish") == ("colour", "red=ish")


@pytest.mark.parametrize("text", ["colour", "=red", ""])
def test_property_needs_a_name_and_an_equals_sign(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a property"):
        name_and_value(text)


def test_a_group_starts_at_a_word_or_an_instant() -> None:
    assert start("earliest") == "earliest"
    assert start("latest") == "latest"
    assert start("2022-06-08T11:20:00Z") == datetime(2022, 6, 8, 11, 20, tzinfo=UTC)
    with pytest.raises(click.BadParameter, match=r"is not an instant.* Or write earliest or latest"):
        start("yesterday")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("512", 512), ("1KiB", 1024), ("1.5MiB", 1536 * 1024), ("20GiB", 20 * 1024**3)],
)
def test_size_is_a_number_of_bytes(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "20GB", "-1", "GiB", "1 GiB", "9" * 30])
def test_anything_else_is_not_a_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size"):
        size(text)
