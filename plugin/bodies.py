"""Bodies as people read them."""

from __future__ import annotations

import json
import re

from duewheel.plugin.models import Body

#: How much of a body the page shows; programs read it whole.
SHOWN_BYTES = 64 * 1024
_BYTES_A_LINE = 16
#: A string, a bracket, a comma, a colon; or a number or a name.
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"\s]+')


def readable(body: bytes) -> Body:
    """The body as JSON, as text, or in hexadecimal: the first of these that fits. JSON gets other white space
    and keeps everything else: each digit of a number, and a repeated name.

    Args:
        body: of any length; of a body over 64 KiB only the beginning is shown, and never as JSON.

    Example:
        >>> readable(b'{"a":1}').kind
        'json'
    """
    shown = body[:SHOWN_BYTES]
    try:
        # The cut may fall inside a character.
        text = shown.decode("utf-8", "strict" if len(shown) == len(body) else "ignore")
    except UnicodeDecodeError:
        return _body("hex", _hex(shown), body)
    if not all(letter.isprintable() or letter in "\r\n\t" for letter in text):
        return _body("hex", _hex(shown), body)
    if len(shown) == len(body):
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            return _body("json", _indented(text), body)
    return _body("text", text, body)


def _indented(text: str) -> str:
    """JSON with a line for each value of an array or object that has any."""
    tokens: list[str] = _JSON_TOKEN.findall(text)
    written: list[str] = []
    depth = 0
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else ""
        opens, closes = before in ("{", "["), token in ("}", "]")
        depth -= closes
        if opens != closes or before == ",":
            written.append("\n" + "  " * depth)
        written.append(": " if token == ":" else token)
        depth += token in ("{", "[")
    return "".join(written)


def _hex(shown: bytes) -> str:
    return "\n".join(
        shown[start : start + _BYTES_A_LINE].hex(" ") for start in range(0, len(shown), _BYTES_A_LINE)
    )


def _body(kind: str, text: str, body: bytes) -> Body:
    return Body.model_validate(
        {"kind": kind, "text": text, "size_bytes": len(body), "shown_bytes": min(len(body), SHOWN_BYTES)}
    )
