"""Values with a meaning: durations, instants, sizes, properties. Each is a function for click's `type=`."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timedelta
from typing import Literal

import click

from duewheel.cli.readable import DURATION_UNITS, SIZE_UNITS
from duewheel.store.values.errors import InvalidInstant
from duewheel.store.values.instants import to_datetime

_UNITS = dict(DURATION_UNITS)
_SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?)(B|KiB|MiB|GiB|TiB)?")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def duration(text: str) -> timedelta:
    """Read a duration such as `250ms`, `45s`, `1h30m` or `7d`."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise click.BadParameter(
            f"{text!r} is not a duration. Write numbers with units: 250ms, 45s, 1h30m, 7d."
        )
    try:
        return sum((float(number) * _UNITS[unit] for number, unit in parts), timedelta())
    except OverflowError as error:
        raise click.BadParameter(f"{text!r} is too long.") from error


def instant(text: str) -> datetime:
    """Read an instant: ISO 8601 with its zone, or an integer of Unix milliseconds."""
    try:
        if text.isdecimal():
            return to_datetime(int(text), "the instant")
        read = datetime.fromisoformat(text)
    except InvalidInstant as error:
        raise click.BadParameter(str(error)) from error
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{text!r} is not an instant. Write 2030-01-31T17:30:00+08:00, or Unix milliseconds."
        ) from error
    if read.tzinfo is None:
        whole = read.isoformat()
        raise click.BadParameter(f"{text!r} has no time zone. Add one: {whole}+00:00 or {whole}Z.")
    return read


def start(text: str) -> datetime | Literal["earliest", "latest"]:
    """Read the start of a group: `earliest`, `latest` or an instant."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    try:
        return instant(text)
    except click.BadParameter as error:
        raise click.BadParameter(f"{error.message} Or write earliest or latest.") from error


def size(text: str) -> int:
    """Read a number of bytes such as `20GiB`, `512MiB` or `1048576`."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise click.BadParameter(
            f"{text!r} is not a size. Write a number with a unit: 512MiB, 20GiB, 1.5TiB."
        )
    return int(float(match[1]) * 1024 ** SIZE_UNITS.index(match[2] or "B"))


def name_and_value(text: str) -> tuple[str, str]:
    """Read one property, `name=value`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not a property. Write name=value.")
    return name, value


def given_body(body: str | None) -> str | bytes | None:
    """Return the body that an argument means: `-` reads it from standard input."""
    return sys.stdin.buffer.read() if body == "-" else body
