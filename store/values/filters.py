"""Filters over the properties of messages: predicates of jsonpath, as ``$.amount > 100``.

Postgres evaluates a filter as ``coalesce(properties, '{}') @@ filter``, and ``duewheel.check_filter`` decides
whether a text is a filter (:func:`duewheel.store.consuming.filtering.check_filters`). This module has the
checks that need no database, for places such as a DAG file. A filter is passed to the database as a
parameter: a caller's text is never part of a statement.
"""

from __future__ import annotations

import re

from duewheel.store.values.errors import InvalidFilter, NulInText
from duewheel.store.values.kinds import a_kind

#: The longest filter, in characters.
MAX_LENGTH = 8192

EXAMPLE = '$.amount > 100 && $.country == "DE"'
"""A filter, for errors."""

_TEXT_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|/\*.*?\*/', re.DOTALL)
# A predicate has these only inside text; a word after a point names a property.
_SQL = re.compile(
    r"(?<![.\w])(?:and|or|not|between|in|like|is\s+(?:not\s+)?null)\b|(?<![=!<>])=(?!=)|'", re.IGNORECASE
)


def check_filter(text: str) -> None:
    """Refuse what cannot be a filter, without a database.

    Args:
        text: at most 8192 characters.

    Raises:
        InvalidFilter: it is written as in SQL, or names no property.
        NulInText: a NUL character.

    Example:
        >>> check_filter('$.amount > 100 && $.country == "DE"')
    """
    if not isinstance(text, str):
        raise InvalidFilter(f"the filter is {a_kind(text)}, not a str: write it as {EXAMPLE}")
    if "\0" in text:
        raise NulInText("the filter holds a NUL character, which no property can: remove it")
    if len(text) > MAX_LENGTH:
        raise InvalidFilter(f"the filter has {len(text)} characters, the limit is {MAX_LENGTH}: shorten it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidFilter(
            f"the filter holds half of a surrogate pair at position {error.start}: remove it"
        ) from None
    bare = _TEXT_OR_COMMENT.sub(lambda found: '""' if found[0][0] == '"' else " ", text)
    if _SQL.search(bare):
        raise InvalidFilter(
            f"{named(text)} is written as in SQL, and a filter is a predicate of jsonpath: write it as "
            f"{EXAMPLE}; && is AND, || is OR, ! is NOT, == is =, and text is in double quotes"
        )
    if "$" not in bare:
        raise InvalidFilter(f"{named(text)} names no property: write $.NAME for each, as in {EXAMPLE}")


def named(text: str) -> str:
    """The filter with its first characters, for an error.

    Example:
        >>> named("amount > 100")
        "the filter 'amount > 100'"
    """
    return f"the filter {text[:80]!r}"
