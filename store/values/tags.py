"""Tag expressions: which messages of a topic a consumer group wants.

``*`` is every message, with or without a tag; ``A`` is messages tagged A; ``A || B`` messages tagged A or B.
A tag with a comma is written in double quotes, ``"A,B"``. Without quotes a comma usually means a list, and
the group would skip messages for good.
"""

from __future__ import annotations

import re

from duewheel.store.values.bodies import check_text
from duewheel.store.values.errors import InvalidTag, InvalidTagExpression
from duewheel.store.values.kinds import a_kind

#: The longest tag, in characters.
MAX_TAG_LENGTH = 127
#: The expression that takes every message.
EVERY = "*"

_TAG = re.compile(r"(?!\*)[^|\s\x00-\x1f\x7f]{1,127}", re.ASCII)
_QUOTED = re.compile(r'".+"')
_FORM = "write `*` for every message, or tags joined by `||`, such as `paid || cancelled`"


def parse(expression: str) -> list[str] | None:
    """The tags an expression names, each once and in alphabetical order, or None for every message.

    Args:
        expression: ``*``, or tags of 1 to 127 characters without spaces and ``|``, joined by ``||``; a tag
            with a comma in double quotes.

    Raises:
        InvalidTagExpression: anything else.
        InvalidArgument: half a surrogate pair.
        NulInText: a NUL character.

    Example:
        >>> parse("paid || cancelled")
        ['cancelled', 'paid']
        >>> parse('"eu,north"')
        ['eu,north']
    """
    if not isinstance(expression, str):
        raise InvalidTagExpression(f"the tag expression is {a_kind(expression)}, not a str: {_FORM}")
    check_text(expression, "the tag expression")
    tags = [part.strip() for part in expression.split("||")]
    if tags == [EVERY]:
        return None
    for place, tag in enumerate(tags):
        if "," in tag and not _QUOTED.fullmatch(tag):
            meant = " || ".join(part.strip() for part in tag.split(","))
            raise InvalidTagExpression(
                f"{expression!r} is not a tag expression: {tag!r} has a comma. Join tags by `||`, as in "
                f"`{meant}`; a tag that has a comma is written in double quotes, as in "
                f'`"{tag}"`'
            )
        if _QUOTED.fullmatch(tag):
            tag = tags[place] = tag[1:-1]
        if not tag or tag == EVERY or "|" in tag or any(character.isspace() for character in tag):
            raise InvalidTagExpression(
                f"{expression!r} is not a tag expression ({tag!r} is not a tag): {_FORM}"
            )
        if len(tag) > MAX_TAG_LENGTH:
            raise InvalidTagExpression(
                f"the tag {tag[:20]!r}... has {len(tag)} characters, the limit is {MAX_TAG_LENGTH}"
            )
    return sorted(set(tags))


def check_tag(tag: object) -> None:
    """Refuse a value that cannot be the tag of a message, in the words of the database.

    Raises:
        InvalidArgument: not a str.
        InvalidTag: empty, too long, with a space or ``|``, or with a ``*`` at its beginning.
        NulInText: a NUL character.

    Example:
        >>> check_tag("paid")
    """
    check_text(tag, "tag")
    if not _TAG.fullmatch(str(tag)):
        raise InvalidTag(
            f'"{str(tag)[:200]}" is not a tag: a tag has 1 to {MAX_TAG_LENGTH} characters without spaces or '
            '"|", and does not begin with "*". Leave the tag out, or give one within these limits.'
        )
