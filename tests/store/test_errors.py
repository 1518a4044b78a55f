"""Errors: one class for each state of the world, the same from SQL and from Python."""

from __future__ import annotations

import inspect
import re

import psycopg2
import pytest

from duewheel.store import sql
from duewheel.store.broker import Broker
from duewheel.store.database.connections import fetch
from duewheel.store.values import errors
from duewheel.store.values.errors import BY_SQLSTATE, BrokerNotUpgraded, DueWheelError, UnknownTopic

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, DueWheelError) and kind is not DueWheelError
]


def test_sqlstates_are_the_classes_own() -> None:
    assert all(re.fullmatch(r"DW\d{3}", code) for code in BY_SQLSTATE)
    assert len(set(BY_SQLSTATE.values())) == len(BY_SQLSTATE)
    coded = [kind for kind in CLASSES if kind.sqlstate is not None and kind.sqlstate.startswith("DW")]
    assert len({kind.sqlstate for kind in coded}) == len(coded) == len(BY_SQLSTATE)
    raised = set()
    for name in sql.files():
        raised |= set(re.findall(r"'(DW\d+)'", sql.text_of(name)))
    assert raised
    assert raised <= set(BY_SQLSTATE)


def test_an_sqlstate_becomes_its_class_with_message_and_hint(broker: Broker) -> None:
    with broker.connection() as connection:
        for code, kind in BY_SQLSTATE.items():
            statement = f"""do $$ begin
                raise exception using errcode = '{code}', message = 'what and the limit', hint = 'what to do';
            end $$"""
            with pytest.raises(kind, match=r"^what and the limit\. what to do$") as caught:
                fetch(connection, statement, ())
            assert isinstance(caught.value.__cause__, psycopg2.Error)
            assert caught.value.index is None
        with pytest.raises(psycopg2.errors.DivisionByZero):
            fetch(connection, "select 1 / 0", ())
        with pytest.raises(BrokerNotUpgraded, match="duewheel db upgrade"):
            fetch(connection, "select duewheel.no_such_function()", ())


def test_an_error_can_say_which_message_it_means() -> None:
    error = UnknownTopic("there is no topic").at(7)
    assert isinstance(error, UnknownTopic)
    assert error.index == 7
    assert str(error) == "message 7: there is no topic"
