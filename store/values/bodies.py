"""The load of a message: its body as bytes, its properties as JSON text.

A body is bytes to the broker and to every consumer. For convenience a ``str`` is taken as its UTF-8 and any
other JSON-able value as its JSON text; consumers always receive the bytes. Properties are a JSON object whose
size counts as Postgres writes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from duewheel.store.values.content_types import JSON_ALONE, ONLY_JSON, ONLY_TEXT, TEXT_ALONE
from duewheel.store.values.errors import BodyTooLarge, InvalidArgument, NulInText, PropertiesTooLarge
from duewheel.store.values.kinds import a_kind

#: The longest body, in bytes.
MAX_BODY_BYTES = 4 * 1024 * 1024
#: The largest properties, in bytes of JSON text.
MAX_PROPERTIES_BYTES = 16 * 1024
MAX_PROPERTIES_DEPTH = 100

_write_body = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
# The separators are those with which Postgres writes jsonb, so that the size is the one it would count.
_write_properties = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(", ", ": ")).encode


def to_bytes(body: object) -> bytes:
    """The body as the bytes that are stored.

    Args:
        body: bytes (or a bytearray or memoryview), a str, or a value that ``json.dumps`` takes; None is
        JSON's null. index: the place of the message in a call that takes several, for the error.

    Raises:
        InvalidArgument: the value is not JSON-able, or a str with half a surrogate pair.
        BodyTooLarge: longer than 4 MiB.

    Example:
        >>> to_bytes({"order": 17})
        b'{"order":17}'
    """
    if type(body) is bytes:
        content = body
    elif isinstance(body, (bytes, bytearray, memoryview)):
        content = bytes(body)
    else:
        content = _utf8(body if isinstance(body, str) else _json(body, "body", _write_body), "body")
    if len(content) > MAX_BODY_BYTES:
        raise BodyTooLarge(
            f"the body has {len(content)} bytes, the limit is {MAX_BODY_BYTES} (4 MiB): "
            "store it elsewhere and send its address"
        )
    return content


def properties_to_json(properties: Mapping[str, Any] | None) -> str | None:
    """The properties as JSON text, or None when there are none.

    Raises:
        InvalidArgument: not a mapping of str to JSON-able values.
        NulInText: a name or a value holds a NUL character.
        PropertiesTooLarge: more than 16 KiB as JSON text.
    """
    if properties is None:
        return None
    if properties is ONLY_JSON:
        return JSON_ALONE
    if properties is ONLY_TEXT:
        return TEXT_ALONE
    if not isinstance(properties, Mapping):
        raise InvalidArgument(f"properties is {a_kind(properties)}: give a mapping of names to values")
    for name in properties:
        if not isinstance(name, str):
            raise InvalidArgument(f"the property name {name!r} is not a str: names of properties are text")
    text = _json(dict(properties), "properties", _write_properties)
    if "\\u0000" in text and _has_nul(properties):
        raise NulInText(
            "properties hold a NUL character, which Postgres cannot store: remove it, or use the body"
        )
    size = len(_utf8(text, "properties"))
    if size > MAX_PROPERTIES_BYTES:
        raise PropertiesTooLarge(
            f"the properties have {size} bytes as JSON, the limit is {MAX_PROPERTIES_BYTES} (16 KiB): "
            "put large values into the body"
        )
    # Short ones are neither deep nor large.
    if len(text) > 200:
        _check_readable(properties)
    return text


def answer_to_json(body: object) -> str:
    """The body of an answer as JSON text. The broker checks its size.

    Raises:
        InvalidArgument: the value cannot be written as JSON.
        NulInText: it holds a NUL character.
    """
    text = _json(body, "answer", _write_body)
    if "\\u0000" in text and _has_nul(body):
        raise NulInText("the answer holds a NUL character, which Postgres cannot store: remove it")
    return text


def _check_readable(value: object, depth: int = 0) -> None:
    """Refuse what readers of other languages do not take, as SQL's ``send`` does."""
    if depth > MAX_PROPERTIES_DEPTH:
        raise InvalidArgument(
            f"the properties are nested more than {MAX_PROPERTIES_DEPTH} deep: "
            "put such a structure into the body"
        )
    if isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            _check_readable(part, depth + 1)
    elif isinstance(value, int) and abs(value) > 10**308:
        raise InvalidArgument("a number in the properties is beyond 1e308 or below -1e308: give it as text")


def check_text(value: object, name: str, *, optional: bool = False) -> None:
    """Refuse a value that Postgres cannot store in a text column.

    Args:
        value: a str.
        name: the parameter's name, for the error.
        optional: whether None is taken too, as not given.

    Raises:
        InvalidArgument: not a str, or half a surrogate pair.
        NulInText: a NUL character.
    """
    if value is None and optional:
        return
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {a_kind(value)}: give a str")
    if "\0" in value:
        raise NulInText(
            f"{name} {value[:40]!r} holds a NUL character, which Postgres cannot store in text: remove it"
        )
    if not value.isascii():
        _utf8(value, name)


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{name} is not valid Unicode ({error.reason} at {error.start}): correct it"
        ) from None


def _json(value: object, name: str, write: Callable[[object], str]) -> str:
    try:
        return write(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"the {name} cannot be written as JSON ({error}): give bytes, a str or a JSON-able value"
        ) from error


def _has_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, Mapping):
        return any(_has_nul(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple)):
        return any(_has_nul(part) for part in value)
    return False
