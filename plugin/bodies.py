"""Bodies as people read them."""

from __future__ import annotations

import json

from duewheel.plugin.models import Body

#: How much of a body the page shows; programs read it whole.
SHOWN_BYTES = 64 * 1024
_BYTES_A_LINE = 16


def readable(body: bytes) -> Body:
    """The body as indented JSON, as text, or in hexadecimal: the first of these that fits.

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
            return _body("json", json.dumps(json.loads(text), indent=2, ensure_ascii=False), body)
        except (ValueError, RecursionError):
            pass
    return _body("text", text, body)


def _hex(shown: bytes) -> str:
    return "\n".join(
        shown[start : start + _BYTES_A_LINE].hex(" ") for start in range(0, len(shown), _BYTES_A_LINE)
    )


def _body(kind: str, text: str, body: bytes) -> Body:
    return Body.model_validate(
        {"kind": kind, "text": text, "size_bytes": len(body), "shown_bytes": min(len(body), SHOWN_BYTES)}
    )
