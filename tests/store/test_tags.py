"""Tag expressions."""

from __future__ import annotations

from datetime import timedelta

import psycopg2
import pytest
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.values.errors import InvalidTagExpression, NulInText
from duewheel.store.values.tags import parse


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("*", None),
        (" * ", None),
        ("paid", ["paid"]),
        ("paid || cancelled", ["paid", "cancelled"]),
        ("a||b||a", ["a", "b"]),
        ("größe || a:b/c", ["größe", "a:b/c"]),
        ("x" * 127, ["x" * 127]),
        ('"eu,north" || b', ["eu,north", "b"]),
        ('"a"||""b""', ["a", '"b"']),
        ('"', ['"']),
    ],
)
def test_d12_tag_expressions(expression: str, tags: list[str] | None) -> None:
    assert parse(expression) == tags


@pytest.mark.parametrize(
    "expression", ["", " ", "||", "a ||", "a | b", "a b", "a || *", "x" * 128, "a\tb", "a || b c", None]
)
def test_a_bad_tag_expression_is_refused(expression: object) -> None:
    with pytest.raises(InvalidTagExpression):
        parse(expression)  # type: ignore[arg-type]


@pytest.mark.parametrize("expression", ["a,b", "a, b", "a || b,c", ",", '"a,b', '"a, b"'])
def test_a_comma_between_tags_is_refused(expression: str, dsn: str) -> None:
    """It would be a tag that no message has, and a group that passes over them all."""
    with pytest.raises(InvalidTagExpression, match="is not a tag expression"):
        parse(expression)
    with connected(dsn) as program, pytest.raises(psycopg2.Error, match="is not a tag expression"):
        ask(program, "select duewheel.parse_tags(%s)", expression)


def test_what_a_comma_between_tags_is_told() -> None:
    with pytest.raises(InvalidTagExpression) as refused:
        parse("paid,cancelled")
    assert str(refused.value) == (
        "'paid,cancelled' is not a tag expression: 'paid,cancelled' has a comma. Join tags by `||`, as in "
        '`paid || cancelled`; a tag that has a comma is written in double quotes, as in `"paid,cancelled"`'
    )


@pytest.mark.parametrize("expression", ['"eu,north" || b', '"a"||""b""', '"', "a || b", "*"])
def test_both_parsers_find_the_same_tags(expression: str, dsn: str) -> None:
    with connected(dsn) as program:
        ((tags,),) = ask(program, "select duewheel.parse_tags(%s)", expression)
    assert tags == parse(expression)


def test_w03_a_tag_with_a_comma_is_chosen_in_quotes(topic: Broker) -> None:
    topic.send("t", b"1", delay=timedelta(0), tag="eu,north")
    topic.send("t", b"2", delay=timedelta(0), tag="eu")
    assert [message.body for message in topic.consumer("t", "g", '"eu,north"').receive()] == [b"1"]


def test_a_nul_is_in_no_tag_expression() -> None:
    with pytest.raises(NulInText):
        parse("a\0b")
