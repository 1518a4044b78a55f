"""Sending a file of messages, one JSON object on each line.

The file is sent in portions, each in one transaction: all of a portion's lines or none. An error names the
lines that were sent. A name for the whole file gives every line its own idempotency key, so the file can be
sent again until every line is sent. The key is made of the name, the text of the line, and the number of
earlier lines with the same text. So a line keeps its key when other lines are corrected, added or removed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import IO, Any

import click
import psycopg2

from duewheel.cli.parameters import duration, instant
from duewheel.cli.progress import progress
from duewheel.cli.refusals import explained, one_line
from duewheel.store import Broker, BrokerUnreachable, DueWheelError, SendOutcome
from duewheel.store.values.numbers import counted

#: A portion has at most this many lines, and ends earlier after this many bytes.
PORTION_LINES = 1_000
_PORTION_BYTES = 16 * 1024 * 1024
_WHEN = frozenset({"delay", "deliver_at", "delay_level"})


@dataclass(frozen=True)
class Line:
    """A line of the file.

    Attributes:
        number: its number in the file, from 1.
        text: the text of the line.
        idempotency_key: the line's own key, if the file has a name.
    """

    number: int
    text: bytes
    idempotency_key: str | None


@dataclass
class Sent:
    """The result of sending a file: transactions, the last line that was sent, and messages by outcome."""

    transactions: int = 0
    last: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, SendOutcome), 0))

    def ended_by(self, reason: str, *, is_known: bool = True) -> str:
        """Return the reason with the lines that were sent; unless `is_known`, the next portion may have been
        sent, too."""
        before = f"the lines up to {self.last} are sent" if self.last else "no line before is sent"
        perhaps = "" if is_known else ", and perhaps the next portion"
        return one_line(f"{reason}; {before}{perhaps}, in portions of {counted(PORTION_LINES, 'line')}")


def send_file(
    broker: Broker, topic: str, path: str, given: Mapping[str, Any], idempotency_key: str | None
) -> Sent:
    """Send the lines of a file; blank lines are skipped.

    Args:
        broker: the broker to send to.
        topic: the topic to send to.
        path: path of the file; `-` is standard input.
        given: defaults for lines that lack a value, by the names of the parameters of `send`.
        idempotency_key: a name for the whole file.

    Raises:
        click.ClickException: a line is wrong or was refused. The message names the line, and the lines sent
            before.
    """
    sent = Sent()
    with ExitStack() as stack:
        file: IO[bytes] = sys.stdin.buffer if path == "-" else stack.enter_context(open(path, "rb"))
        total = None
        if file.seekable():
            # The beginning of standard input may have been read already.
            start = file.tell()
            total = sum(1 for line in file if not line.isspace())
            file.seek(start)
        advance = stack.enter_context(progress("Sending", total))
        try:
            for portion in _portions(_lines(file, idempotency_key)):
                _send_portion(broker, topic, portion, given, sent)
                advance(len(portion))
        except KeyboardInterrupt:
            click.echo(sent.ended_by("interrupted", is_known=False), err=True)
            raise
    return sent


def _send_portion(
    broker: Broker,
    topic: str,
    portion: list[Line],
    given: Mapping[str, Any],
    sent: Sent,
) -> None:
    first, end = portion[0].number, portion[-1].number
    try:
        receipts = broker.send_many(topic, [_message(line, given) for line in portion])
    except _WrongLine as wrong:
        raise click.ClickException(sent.ended_by(f"line {wrong.number}: {wrong}")) from wrong
    except DueWheelError as error:
        where = f"lines {first} to {end}" if error.index is None else f"line {portion[error.index].number}"
        reason = str(error).removeprefix(f"message {error.index}: ")
        is_known = not isinstance(error, BrokerUnreachable)
        raise click.ClickException(sent.ended_by(f"{where}: {reason}", is_known=is_known)) from error
    except psycopg2.Error as error:
        reason = f"lines {first} to {end}: {explained(error)}"
        raise click.ClickException(sent.ended_by(reason)) from error
    sent.transactions += 1
    sent.last = end
    for receipt in receipts:
        sent.outcomes[receipt.outcome.value] += 1


class _WrongLine(Exception):
    """A line that is not a message."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


def _lines(file: IO[bytes], name: str | None) -> Iterator[Line]:
    # Only a file with a name needs this memory, some 100 bytes a line.
    seen: Counter[bytes] = Counter()
    for number, text in enumerate(file, 1):
        if text.isspace():
            continue
        key = None
        if name is not None:
            digest = hashlib.blake2b(text.strip(), digest_size=16).digest()
            key = f"{name}/{digest.hex()}/{seen[digest]}"
            seen[digest] += 1
        yield Line(number, text, key)


def _portions(lines: Iterator[Line]) -> Iterator[list[Line]]:
    portion: list[Line] = []
    size = 0
    for line in lines:
        portion.append(line)
        size += len(line.text)
        if len(portion) == PORTION_LINES or size >= _PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _message(line: Line, given: Mapping[str, Any]) -> dict[str, Any]:
    number = line.number
    try:
        said = json.loads(line.text)
    except (ValueError, RecursionError) as error:
        raise _WrongLine(number, f"this is not JSON ({error})") from error
    if not isinstance(said, dict) or "body" not in said:
        raise _WrongLine(number, 'this is not a JSON object with "body"')
    message = {name: value for name, value in said.items() if value is not None or name == "body"}
    try:
        _read_values(message)
    except (click.BadParameter, ValueError, OverflowError) as error:
        raise _WrongLine(number, getattr(error, "message", str(error))) from error
    says_when = not _WHEN.isdisjoint(message)
    for name, value in given.items():
        if value is not None and not (says_when and name in _WHEN):
            message.setdefault(name, value)
    if line.idempotency_key is not None:
        message.setdefault("idempotency_key", line.idempotency_key)
    return message


def _read_values(message: dict[str, Any]) -> None:
    """Turn values that JSON lacks, such as durations and instants, from text in the forms of `--json` and of
    the options into arguments of `send_many`."""
    match message.get("delay"):
        case bool():
            raise ValueError("delay is neither a duration such as 45s nor a number of seconds")
        case int() | float() as seconds:
            message["delay"] = timedelta(seconds=seconds)
        case str(text):
            message["delay"] = duration(text)
    match message.get("deliver_at"):
        case str(text):
            message["deliver_at"] = instant(text)
    match message["body"]:
        case {"base64": str(text), **others} if not others:
            message["body"] = base64.b64decode(text, validate=True)
