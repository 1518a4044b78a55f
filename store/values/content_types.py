"""The type of a message's body, and the value that was sent.

The property ``content-type`` has the type, under the name that Kafka's headers and the Kafka binding of
CloudEvents use. A sender in Python sets it for a ``str`` and for a value that is written as JSON, unless the
properties have a type already. Programs in other languages set the property themselves. Bytes have no type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from duewheel.store.values.errors import UnreadableBody

#: The property with the media type of the body.
CONTENT_TYPE: Final = "content-type"
#: The type of a body that was sent as neither bytes nor a str.
JSON: Final = "application/json"
#: The type of a body that was sent as a str.
TEXT: Final = "text/plain; charset=utf-8"

#: The properties of a message that has no others, and their JSON as Postgres writes it.
ONLY_JSON: Final = {CONTENT_TYPE: JSON}
ONLY_TEXT: Final = {CONTENT_TYPE: TEXT}
JSON_ALONE: Final = json.dumps(ONLY_JSON)
TEXT_ALONE: Final = json.dumps(ONLY_TEXT)

_decoded = json.JSONDecoder().raw_decode


def with_content_type(body: object, properties: Any) -> Any:
    """The properties of a message with the type of its body.

    Args:
        body: as the sender gave it.
        properties: as the sender gave them; another type than a mapping is returned unchanged, to be refused.

    Example:
        >>> with_content_type({"order": 17}, None)
        {'content-type': 'application/json'}
        >>> with_content_type(b"17", {"region": "north"})
        {'region': 'north'}
    """
    if isinstance(body, (bytes, bytearray, memoryview)):
        return properties
    is_text = isinstance(body, str)
    if properties is None:
        return ONLY_TEXT if is_text else ONLY_JSON
    if not isinstance(properties, Mapping) or CONTENT_TYPE in properties:
        return properties
    return {**properties, CONTENT_TYPE: TEXT if is_text else JSON}


def value_of(body: bytes, content_type: object, message_id: Callable[[], str]) -> Any:
    """The value that a body was sent as.

    Args:
        body: as stored.
        content_type: the property of that name; None if the message has none.
        message_id: returns the id of the message, for the error.

    Returns:
        The parsed JSON for ``application/json`` and types that end in ``+json``; a str for ``text/...``;
        else the bytes.

    Raises:
        UnreadableBody: the body is not what its type says.

    Example:
        >>> value_of(b'{"order":17}', "application/json", lambda: "00")
        {'order': 17}
    """
    if content_type is None:
        return body
    if content_type == JSON:
        return json_of(body, message_id)
    kind, charset = _kind_and_charset(content_type)
    if kind == JSON or kind.endswith("+json"):
        return json_of(body, message_id)
    if not kind.startswith("text/"):
        return body
    try:
        return body.decode(charset)
    except (ValueError, LookupError) as error:
        raise UnreadableBody(
            f"the body of message {message_id()} is not the text that its content-type {content_type!r} "
            f"says ({error}): read message.body, or dead-letter the message"
        ) from error


def json_of(body: bytes, message_id: Callable[[], str]) -> Any:
    """The body read as JSON; ``message_id`` returns the id of its message.

    Raises:
        UnreadableBody: it is not JSON in UTF-8.
    """
    try:
        try:
            # json.loads takes three times as long, to find out the encoding and to skip white space.
            value, end = _decoded(text := body.decode())
        except ValueError:
            return json.loads(body)
        return value if end == len(text) else json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableBody(
            f"the body of message {message_id()} is not JSON ({error}): read message.body, or dead-letter "
            "the message"
        ) from error


def _kind_and_charset(content_type: object) -> tuple[str, str]:
    """The media type in lower case, and the name of the encoding of a text."""
    kind, *parameters = (part.strip() for part in str(content_type).split(";"))
    for parameter in parameters:
        name, _, charset = parameter.partition("=")
        if name.strip().lower() == "charset":
            return kind.lower(), charset.strip().strip('"')
    return kind.lower(), "utf-8"
