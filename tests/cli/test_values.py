"""Values of the command line: how options are read, and how people read them in tables."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import click
import pytest

from duewheel.cli.parameters import duration, instant, name_and_value, size, start
from duewheel.cli.readable import duration_text, instant_text, size_text, text_of
from duewheel.store import MessageType
from duewheel.store.values.numbers import counted

AT = datetime(2022, 6, 8, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (duration, "250ms", timedelta(milliseconds=250)),
        (duration, "1.5m", timedelta(seconds=90)),
        (duration, "1h30m", timedelta(minutes=90)),
        (duration, "7d", timedelta(days=7)),
        (duration, "0s", timedelta(0)),
        (instant, "2022-06-08T19:20:00+08:00", AT),
        (instant, "2022-06-08T11:20:00Z", AT),
        (instant, "1654687200000", AT),
        (start, "earliest", "earliest"),
        (start, "latest", "latest"),
        (start, "2022-06-08T11:20:00Z", AT),
        (size, "0", 0),
        (size, "512", 512),
        (size, "1.5MiB", 1536 * 1024),
        (size, "20GiB", 20 * 1024**3),
        (name_and_value, "colour=red=ish", ("colour", "red=ish")),
    ],
)
def test_d01_a_value_is_read(read: Callable[[str], object], text: str, expected: object) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("read", "texts", "words"),
    [
        (duration, ["", "30", "-5s", "5 s", "1w", "s", "1h30", "1e3s"], "is not a duration"),
        (duration, ["9" * 400 + "d"], "is too long"),
        (instant, ["tomorrow", "", "-5"], "is not an instant"),
        (instant, ["9" * 30], "years 1 to 9999"),
        (instant, ["1654687200"], "is 1970-01-20 as Unix milliseconds: give 1654687200000 if"),
        (instant, ["2022-06-08T19:20:00"], "has no time zone"),
        (start, ["yesterday"], "is not an instant.* Or write earliest or latest"),
        (size, ["", "20GB", "-1", "GiB", "1 GiB", "9" * 30], "is not a size"),
        (name_and_value, ["colour", "=red", ""], "is not a property"),
    ],
)
def test_anything_else_is_refused(read: Callable[[str], object], texts: list[str], words: str) -> None:
    for text in texts:
        with pytest.raises(click.BadParameter, match=words):
            read(text)


@pytest.mark.parametrize("text", ["2030-01-31", "2030-01-31T07", "2030-01-31 07:00", "2030-W05"])
def test_the_advice_for_a_time_without_zone_is_accepted(text: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        instant(text)
    advised = refused.value.message.removesuffix(".").partition("Add one: ")[2].split(" or ")
    assert len({instant(one) for one in advised}) == 1


def test_a_value_is_written_as_it_is_read() -> None:
    for text in ("0s", "250ms", "1.5ms", "45s", "30m", "1h30m", "7d", "2d1h1m1s1ms"):
        assert duration_text(duration(text)) == text
    assert duration_text(timedelta(seconds=-90)) == "-1m30s"
    for text in ("2026-01-05T07:00:00Z", "2026-01-05T07:00:00.250Z", "2026-01-05T07:00:00.001Z"):
        assert instant_text(instant(text)) == text
    # Cut to the millisecond, in UTC.
    assert instant_text(instant("2026-01-05T07:00:00.001999Z")) == "2026-01-05T07:00:00.001Z"
    assert instant_text(instant("2026-01-05T07:00:00.000999Z")) == "2026-01-05T07:00:00Z"
    assert instant_text(AT.astimezone(timezone(timedelta(hours=8)))) == "2022-06-08T11:20:00Z"
    sizes = {0: "0B", 1023: "1023B", 1024: "1KiB", 1536: "1.5KiB", 20 << 30: "20GiB", 5 << 50: "5120TiB"}
    assert [size_text(value) for value in sizes] == list(sizes.values())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (42, "42"),
        (0.25, "0.25"),
        (MessageType.DELAY, "DELAY"),
        ({"a": "é"}, '{"a": "é"}'),
        ({}, "-"),
        ((timedelta(seconds=1), timedelta(seconds=5)), "1s 5s"),
        ((), "-"),
        (AT, "2022-06-08T11:20:00Z"),
        (b"caf\xc3\xa9", "café"),
        (b"\xff\x00", "\\xff00"),
        # Text cannot steer a terminal.
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202ex", "\\u202ex"),
        (b"\x1b[31m", "\\x1b[31m"),
    ],
)
def test_value_is_one_line(value: Any, expected: str) -> None:
    assert text_of(value) == expected


def test_things_are_counted() -> None:
    counts = [counted(number, "message") for number in (0, 1, 1000)]
    assert counts == ["0 messages", "1 message", "1 000 messages"]
    assert counted(2, "retry", "retries") == "2 retries"
