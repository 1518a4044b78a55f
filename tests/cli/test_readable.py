"""Values as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from duewheel.cli.parameters import duration, instant
from duewheel.cli.readable import duration_text, instant_text, size_text, text_of
from duewheel.store import MessageType


@pytest.mark.parametrize("text", ["0s", "250ms", "1.5ms", "45s", "30m", "1h30m", "7d", "2d1h1m1s1ms"])
def test_duration_is_written_as_it_is_read(text: str) -> None:
    assert duration_text(duration(text)) == text


def test_negative_duration_has_a_sign() -> None:
    assert duration_text(timedelta(seconds=-90)) == "-1m30s"


@pytest.mark.parametrize(
    "text", ["2026-01-05T07:00:00Z", "2026-01-05T07:00:00.250Z", "2026-01-05T07:00:00.001Z"]
)
def test_instant_is_written_as_it_is_read(text: str) -> None:
    assert instant_text(instant(text)) == text


def test_instant_is_cut_to_the_millisecond() -> None:
    assert instant_text(instant("2026-01-05T07:00:00.001999Z")) == "2026-01-05T07:00:00.001Z"
    assert instant_text(instant("2026-01-05T07:00:00.000999Z")) == "2026-01-05T07:00:00Z"


def test_instant_is_in_utc() -> None:
    at = datetime(2026, 1, 5, 15, tzinfo=timezone(timedelta(hours=8)))
    assert instant_text(at) == "2026-01-05T07:00:00Z"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1KiB"),
        (1536, "1.5KiB"),
        (20 * 1024**3, "20GiB"),
        (5 * 1024**5, "5120TiB"),
    ],
)
def test_size_has_a_unit(value: int, expected: str) -> None:
    assert size_text(value) == expected


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
        (datetime(2026, 1, 5, tzinfo=UTC), "2026-01-05T00:00:00Z"),
        ("café", "café"),
        (b"caf\xc3\xa9", "café"),
        (b"\xff\x00", "\\xff00"),
    ],
)
def test_value_is_one_line(value: Any, expected: str) -> None:
    assert text_of(value) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("a\nb", "a\\nb"), ("\x1b[31m", "\\x1b[31m"), ("\u202ex", "\\u202ex")]
)
def test_text_cannot_steer_a_terminal(text: str, expected: str) -> None:
    assert text_of(text) == expected
    assert text_of(text.encode()) == expected
