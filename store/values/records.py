"""Rows of SQL functions as dataclasses: the fields are the one list of the columns on Python's side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from duewheel.store.values.instants import to_datetime

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    One = TypeVar("One", bound=DataclassInstance)

#: The column of the properties in a select list, as JSON text: a message without any has none.
PROPERTIES = "coalesce(properties::text, '{}')"


def columns(kind: type[DataclassInstance], **called: str) -> str:
    """The select list for a dataclass: the columns of its fields, in their order.

    Args:
        kind: the dataclass.
        called: for fields that the SQL function calls otherwise, the name of its column.
    """
    return ", ".join(called.get(field.name, field.name) for field in fields(kind))


def records(kind: type[One], rows: Iterable[Sequence[Any]], **readers: Callable[[Any], object]) -> list[One]:
    """The dataclass for each row of its fields, in their order.

    Args:
        kind: the dataclass.
        rows: the values as the driver gives them.
        readers: for fields of another type, the function that converts the value. Null stays None. Without a
            function, an instant is converted to UTC.
    """
    read = [readers.get(field.name, _plain) for field in fields(kind)]
    return [
        kind(*(None if one is None else of(one) for of, one in zip(read, row, strict=True))) for row in rows
    ]


def _plain(value: object) -> object:
    return to_datetime(value) if isinstance(value, datetime) else value
