"""Values as people read them in a table; a value that an option takes is written in the option's form.

Control characters of a body or a key are shown as escapes, so that no message can steer a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

#: The units in which durations and sizes are written and read.
DURATION_UNITS = (
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
    ("ms", timedelta(milliseconds=1)),
)
SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def text_of(value: Any, *, is_size: bool = False) -> str:
    """Return a value as one line of text.

    Args:
        value: anything a command answers with.
        is_size: whether the value is a number of bytes.

    Example:
        >>> text_of(timedelta(minutes=90)), text_of(None), text_of(20 * 1024**3, is_size=True)
        ('1h30m', '-', '20GiB')
    """
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case Enum():
            return text_of(value.value)
        case int() if is_size:
            return size_text(value)
        case float():
            return f"{value:g}"
        case str():
            return on_one_line(value)
        case bytes() | memoryview():
            return _body_text(bytes(value))
        case datetime():
            return instant_text(value)
        case timedelta():
            return duration_text(value)
        case Mapping():
            return on_one_line(json.dumps(value, ensure_ascii=False, default=str)) if value else "-"
        case list() | tuple():
            return " ".join(text_of(item) for item in value) or "-"
    return on_one_line(str(value))


def instant_text(value: datetime) -> str:
    """Return an instant in UTC, cut to its millisecond, as `--deliver-at` and `--to` take it."""
    at = value.astimezone(UTC)
    precision = "milliseconds" if at.microsecond // 1000 else "seconds"
    return at.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def duration_text(value: timedelta) -> str:
    """Return a duration such as `30m` or `1h30m`, as the options take it."""
    if value < timedelta(0):
        return f"-{duration_text(-value)}"
    parts = []
    for unit, length in DURATION_UNITS[:-1]:
        count, value = divmod(value, length)
        if count:
            parts.append(f"{count}{unit}")
    if value:
        parts.append(f"{value / DURATION_UNITS[-1][1]:g}ms")
    return "".join(parts) or "0s"


def size_text(value: int) -> str:
    """Return a number of bytes such as `20GiB`, to one decimal."""
    size, unit = float(value), SIZE_UNITS[0]
    for larger in SIZE_UNITS[1:]:
        if abs(size) < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f}".removesuffix(".0") + unit


def on_one_line(text: str) -> str:
    """Return the text with everything that is not printable written as an escape."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def _body_text(body: bytes) -> str:
    try:
        return on_one_line(body.decode("utf-8"))
    except UnicodeDecodeError:
        return f"\\x{body.hex()}"
