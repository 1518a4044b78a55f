"""Checking filters by Postgres, which evaluates them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg2
from psycopg2 import errors

from duewheel.store.database.connections import Rows
from duewheel.store.values.errors import InvalidFilter
from duewheel.store.values.filters import EXAMPLE, check_filter, named

_CHECK = "select duewheel.check_filter(%s::pg_catalog.jsonpath)"


def check_filters(ask: Callable[[str, Sequence[Any]], Rows], *filters: str | None) -> None:
    """Refuse a text that is not a filter for Postgres.

    Args:
        ask: runs a statement with its parameters on the broker's database.
        filters: the filters; None is no filter.

    Raises:
        InvalidFilter: one of them is not a predicate of jsonpath, or fails for some properties.
        NulInText: a NUL character.

    Example::

        check_filters(database.read, '$.amount > 100 && $.country == "DE"')
    """
    for text in filters:
        if text is None:
            continue
        check_filter(text)
        try:
            ask(_CHECK, (text,))
        except (
            psycopg2.DataError,
            psycopg2.ProgrammingError,
            psycopg2.NotSupportedError,
            errors.StatementTooComplex,
        ) as error:
            raise InvalidFilter(
                f"{named(text)} is not a predicate of jsonpath ({error.diag.message_primary}): write it as "
                f"{EXAMPLE}"
            ) from error
