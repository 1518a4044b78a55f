"""A column that a sender gives a message can be written and read in a DataFrame."""

from __future__ import annotations

from dataclasses import fields

from duewheel.spark.message_columns import ALL_COLUMNS
from duewheel.spark.written_columns import TIME_COLUMNS, WRITTEN_COLUMNS
from duewheel.store.values.messages import NewMessage

#: Asked of one message after another, which a batch is not.
NOT_WRITTEN = {"idempotency_key", "on_conflict"}


def test_what_a_message_is_given_is_a_column_of_a_dataframe() -> None:
    given = {field.name for field in fields(NewMessage)} - NOT_WRITTEN
    assert given - set(WRITTEN_COLUMNS) == set(), "spark/written_columns.py leaves these out"
    assert given - set(TIME_COLUMNS) - set(ALL_COLUMNS) == set(), "spark/message_columns.py leaves these out"
