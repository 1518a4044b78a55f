"""Checking filters by the one that evaluates them: Postgres."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg2
from psycopg2 import errors

from duewheel.store.database.connections import Rows
from duewheel.store.values.errors import InvalidFilter
from duewheel.store.values.filters import EXAMPLE, check_filter, named

# A predicate is true, false or unknown of an object without properties; any other path has no such value.
_CHECK = "select pg_catalog.jsonb_path_match('{}', %s::pg_catalog.jsonpath)"


def check_filters(ask: Callable[[str, Sequence[Any]], Rows], *filters: str | None) -> None:
    """Refuse what Postgres does not take for a filter.

    Args:
        ask: runs a statement with its parameters on the broker's database.
        filters: the filters; None stands for none.

    Raises:
        InvalidFilter: one of them is no predicate of jsonpath.
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
        except (errors.SingletonSqlJsonItemRequired, errors.SqlJsonMemberNotFound) as error:
            raise InvalidFilter(
                f"{named(text)} has a value, and is not true or false: compare it, as in {EXAMPLE}; write "
                "exists(PATH) for a path with a condition"
            ) from error
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
