"""Tag expressions."""

from __future__ import annotations

from datetime import timedelta

import psycopg2
import pytest
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.values.errors import InvalidArgument, InvalidTagExpression, NulInText
from duewheel.store.values.tags import parse

#: Those with quotes and joins are read by Python and SQL.
EXPRESSIONS: dict[str, list[str] | None] = {
    "*": None,
    " * ": None,
    "paid": ["paid"],
    "paid || cancelled": ["paid", "cancelled"],
    "a||b||a": ["a", "b"],
    "größe || a:b/c": ["größe", "a:b/c"],
    "x" * 127: ["x" * 127],
    '"eu,north" || b': ["eu,north", "b"],
    '"a"||""b""': ["a", '"b"'],
    '"': ['"'],
}
BAD = ("", " ", "||", "a ||", "a | b", "a b", "a || *", "x" * 128, "a\tb", "a || b c")
#: It would be a tag that no message has, and a group that passes over them all.
WITH_COMMAS = ("a,b", "a, b", "a || b,c", ",", '"a,b', '"a, b"')


def test_d12_both_parsers_find_the_same_tags(dsn: str) -> None:
    with connected(dsn) as program:
        for expression, tags in EXPRESSIONS.items():
            assert parse(expression) == (tags and sorted(tags))
            ((found,),) = ask(program, "select duewheel.parse_tags(%s)", expression)
            assert found == parse(expression)
        for expression in (*BAD, *WITH_COMMAS):
            says = "the tag '|is not a tag expression"
            with pytest.raises(InvalidTagExpression, match=says):
                parse(expression)
            with pytest.raises(psycopg2.Error, match=says):
                ask(program, "select duewheel.parse_tags(%s)", expression)
    with pytest.raises(InvalidTagExpression):
        parse(None)  # type: ignore[arg-type]
    with pytest.raises(NulInText):
        parse("a\0b")
    with pytest.raises(InvalidArgument, match="not valid Unicode"):
        parse("a || \ud800")


def test_what_a_comma_between_tags_is_told() -> None:
    with pytest.raises(InvalidTagExpression) as refused:
        parse("paid,cancelled")
    assert str(refused.value) == (
        "'paid,cancelled' is not a tag expression: 'paid,cancelled' has a comma. Join tags by `||`, as in "
        '`paid || cancelled`; a tag that has a comma is written in double quotes, as in `"paid,cancelled"`'
    )


def test_w03_a_tag_with_a_comma_is_chosen_in_quotes(topic: Broker) -> None:
    topic.send("t", b"1", delay=timedelta(0), tag="eu,north")
    topic.send("t", b"2", delay=timedelta(0), tag="eu")
    assert [message.body for message in topic.consumer("t", "g", '"eu,north"').receive()] == [b"1"]
