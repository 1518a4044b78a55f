"""Filters: what they choose, against an evaluator of three-valued logic, and what is refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from duewheel.store.broker import Broker
from duewheel.store.values.errors import DueWheelError, InvalidFilter, NulInText
from duewheel.store.values.filters import MAX_DEPTH, MAX_LENGTH, to_jsonpath

Connection = psycopg2.extensions.connection

# --- the model: an expression is a tuple, its value is True, False or None for unknown

Expression = tuple[Any, ...]
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def as_number(value: object) -> Decimal | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return Decimal(repr(value))
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        # As Postgres reads a number of 15 digits from text; what is too large for it is none.
        return Decimal(f"{float(value):.15g}") if math.isfinite(float(value)) else None
    return None


def as_truth(value: object) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return value if isinstance(value, bool) else None


def compare(value: object, operator: str, literal: object) -> bool | None:
    left: Any
    if isinstance(literal, bool):
        left = as_truth(value)
    elif isinstance(literal, str):
        left = value if isinstance(value, str) else None
    else:
        left, literal = as_number(value), Decimal(str(literal))
    if left is None:
        return None
    right: Any = literal
    return {
        "=": lambda: left == right,
        "<>": lambda: left != right,
        ">": lambda: left > right,
        ">=": lambda: left >= right,
        "<": lambda: left < right,
        "<=": lambda: left <= right,
    }[operator]()


def every(values: list[bool | None]) -> bool | None:
    return False if False in values else None if None in values else True


def negation(value: bool | None) -> bool | None:
    return None if value is None else not value


def evaluate(expression: Expression, properties: dict[str, Any]) -> bool | None:
    match expression:
        case ("compare", name, operator, literal):
            return compare(properties.get(name), operator, literal)
        case ("between", name, low, high):
            value = properties.get(name)
            return every([compare(value, ">=", low), compare(value, "<=", high)])
        case ("in", name, literals):
            return negation(every([compare(properties.get(name), "<>", literal) for literal in literals]))
        case ("null", name):
            return properties.get(name) is None
        case ("not", inner):
            return negation(evaluate(inner, properties))
        case ("and", *parts):
            return every([evaluate(part, properties) for part in parts])
        case ("or", *parts):
            return negation(every([negation(evaluate(part, properties)) for part in parts]))
    raise AssertionError(expression)


def written_literal(literal: object) -> str:
    if isinstance(literal, bool):
        return str(literal).upper()
    return "'" + literal.replace("'", "''") + "'" if isinstance(literal, str) else str(literal)


def written(expression: Expression) -> str:
    """The text of an expression; negated conditions in either form."""

    def name(text: str) -> str:
        plain = re.fullmatch(r"[a-z_$][\w$]*", text, re.ASCII) and text.upper() not in ("IN", "NOT")
        return text if plain else '"' + text.replace('"', '""') + '"'

    match expression:
        case ("compare", subject, operator, literal):
            return f"{name(subject)} {operator} {written_literal(literal)}"
        case ("not", ("between", subject, low, high)):
            return f"{name(subject)} not between {low} AND {high}"
        case ("between", subject, low, high):
            return f"{name(subject)} BETWEEN {low} and {high}"
        case ("not", ("in", subject, literals)):
            return f"{name(subject)} NOT IN ({', '.join(map(written_literal, literals))})"
        case ("in", subject, literals):
            return f"{name(subject)} in ({','.join(map(written_literal, literals))})"
        case ("not", ("null", subject)):
            return f"{name(subject)} IS NOT NULL"
        case ("null", subject):
            return f"{name(subject)} is null"
        case ("not", inner):
            return f"NOT ({written(inner)})"
        case (sign, *parts):
            return "(" + f" {sign} ".join(written(part) for part in parts) + ")"
    raise AssertionError(expression)


NAMES = st.sampled_from(["a", "b", "in", 'x"y', "ä b", "$._"])
NUMBERS = st.one_of(
    st.integers(-9, 9), st.sampled_from([2.5, -0.5, 1e300, 123456789012345678, "1e2", ".5", "-7.", "+3"])
)
# Literals of text that hold numbers stay text.
TEXTS = st.sampled_from(["", "x", "5", "TRUE", "false", "2.50", "it's", '\\"', "é", "😀", "a\nb", "$.a"])
LITERALS = st.one_of(NUMBERS.map(lambda n: Decimal(str(n))), TEXTS, st.booleans())
DECIMALS = NUMBERS.map(lambda n: Decimal(str(n)))
CONDITIONS = st.one_of(
    st.tuples(st.just("compare"), NAMES, st.sampled_from(["=", "<>"]), LITERALS),
    st.tuples(st.just("compare"), NAMES, st.sampled_from([">", ">=", "<", "<="]), DECIMALS),
    st.tuples(st.just("between"), NAMES, DECIMALS, DECIMALS),
    st.tuples(st.just("in"), NAMES, st.lists(LITERALS, min_size=1, max_size=4)),
    st.tuples(st.just("null"), NAMES),
)
EXPRESSIONS = st.recursive(
    CONDITIONS,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), inner, inner),
        st.tuples(st.sampled_from(["AND", "OR"]).map(str.lower), inner, inner, inner),
    ),
    max_leaves=8,
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.floats(-10, 10).map(lambda f: round(f, 1)),
    TEXTS,
    st.sampled_from(
        ["2.5", " 2.5", "1e2", "1e400", "0x10", "nan", "inf", "-", "5\n", "+3", "-7.", "123456789012345678"]
    ),
    st.sampled_from([[], [5], {"a": 5}, ["x"], 123456789012345678]),
)
PROPERTIES = st.lists(st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=6)


def chosen(connection: Connection, filter_text: str, properties: list[dict[str, Any]]) -> list[bool]:
    """What Postgres says of each, as receiving asks it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select coalesce(p::jsonb @@ %s::jsonpath, false)"
            " from unnest(%s::text[]) with ordinality p (p, n) order by n",
            (to_jsonpath(filter_text), [json.dumps(one) for one in properties]),
        )
        return [row[0] for row in cursor.fetchall()]


@pytest.fixture(scope="module")
def connection(template_dsn: str, postgres: Any) -> Iterator[Connection]:
    with closing(psycopg2.connect(postgres.dsn("postgres"))) as connection:
        connection.autocommit = True
        yield connection


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(expression=EXPRESSIONS, properties=PROPERTIES)
def test_d12_a_filter_chooses_by_three_valued_logic(
    connection: Connection, expression: Expression, properties: list[dict[str, Any]]
) -> None:
    for asked in (expression, ("not", expression)):
        expected = [evaluate(asked, one) is True for one in properties]
        assert chosen(connection, written(asked), properties) == expected


SHOP = {"region": "north", "amount": 120, "weight": "2.5", "urgent": "TRUE", "note": None}


CHOOSES: list[tuple[str, bool]] = [
    ("region = 'north'", True),
    ("'south' <> region", True),
    ("100 < amount", True),
    ("weight = '2.5' AND weight = 2.50", True),
    ("NOT amount = '120'", False),
    ("urgent = TRUE", True),
    ("region = TRUE OR NOT region = TRUE", False),
    ("note <> 'x' OR missing <> 'x' OR NOT (note = 'x' OR missing = 'x')", False),
    ("region NOT IN ('south', 5)", False),
    ("amount BETWEEN 120 AND 120", True),
    ("TRUE", True),
    ("FALSE OR NOT FALSE", True),
    ("Region = 'north'", False),
    ("\"region\"='north'", True),
    ("amount=1.2e2", True),
    ("amount>-.5", True),
    # AND binds more than OR, NOT more than both.
    ("TRUE OR TRUE AND FALSE", True),
    ("NOT FALSE AND FALSE", False),
]


def test_d12_a_filter_reads_as_sql_does(connection: Connection) -> None:
    for text, is_chosen in CHOOSES:
        assert chosen(connection, text, [SHOP]) == [is_chosen], text


REFUSED: list[tuple[Any, str]] = [
    ("", "position 0.* expected a property"),
    ("a", "position 1.* found its end"),
    ("a =", "position 3.* expected a number, a 'text'"),
    ("a = b", "position 4.* expected a number, a 'text', TRUE or FALSE, found 'b'"),
    ("a > 'x'", "> compares numbers, and 'x' is none"),
    ("a BETWEEN 'a' AND 'b'", "position 10.* expected a number"),
    ("a BETWEEN 1 5", "position 12.* expected AND"),
    ("a = NULL", "write IS NULL"),
    ("a IS 5", "position 5.* expected NULL"),
    ("a NOT 5", "position 6.* expected BETWEEN or IN"),
    ("a IN ()", "position 6.* expected a number"),
    ("a IN (1", r"position 7.* expected \)"),
    ("(a = 1", r"position 6.* expected \)"),
    ("a = 1)", "position 5.* expected AND, OR or the end"),
    ("a = 'x", "position 4.* never closed"),
    ('"a = 1', "position 0.* never closed"),
    ("a-b = 5", "position 1.* cannot be read"),
    ("a = 1..2", "cannot be read"),
    ("a = 12x", "cannot be read"),
    ("5 = 5", "expected the name of a property"),
    ("AND = 5", "expected a property"),
    ("a LIKE 'x%'", "expected =, <>"),
    ("a = 1; drop table duewheel.message", "cannot be read"),
    ("a == 5", "expected a number"),
    ("a = 1e999", "out of range"),
    ("a = 1e-999", "out of range"),
    (f"a = 1{'0' * 100}", "limit is 100 digits"),
    ("a = '\ud800'", "surrogate"),
    (f"{'(' * 101}a = 1{')' * 101}", "more than 100 deep"),
    ("NOT " * 101 + "a = 1", "more than 100 deep"),
    ("a" * (MAX_LENGTH + 1), "the limit is 8192"),
    (5, "is an int, not a str"),
]


def test_d12_what_is_no_filter_is_refused_with_its_place() -> None:
    for text, says in REFUSED:
        with pytest.raises(InvalidFilter, match=says):
            to_jsonpath(text)
    with pytest.raises(NulInText):
        to_jsonpath("a = '\0'")


def test_the_largest_filters_work(connection: Connection) -> None:
    for text in (
        f"a IN ({','.join('1' for _ in range(4090))})",
        " OR ".join(["a=1"] * (MAX_LENGTH // 7)),
        " AND ".join(["a<>'b'"] * (MAX_LENGTH // 12)),
        "NOT " * (MAX_DEPTH - 1) + "a <> 1",
        "(" * (MAX_DEPTH - 1) + "a = 1" + ")" * (MAX_DEPTH - 1),
    ):
        assert len(text) <= MAX_LENGTH
        expected = [False, True] if "'" in text else [True, False]
        assert chosen(connection, text, [{"a": 1}, {"a": "c"}]) == expected


ANY_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=ANY_TEXT)
def test_any_text_is_a_filter_or_refused_as_such(connection: Connection, text: str) -> None:
    try:
        to_jsonpath(text)
    except InvalidFilter:
        return
    chosen(connection, text, [{}])


@pytest.mark.slow
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=ANY_TEXT)
@example("x' OR '1'='1")
@example('x\\" || $ == $ || \\"')
@example("%s %(a)s {} $1 */ -- \\u0041")
def test_any_text_may_be_a_value_and_a_name(connection: Connection, text: str) -> None:
    name = '"' + text.replace('"', '""') + '"'
    literal = "'" + text.replace("'", "''") + "'"
    properties = [{text: text}, {text: text + "x"}, {}]
    assert chosen(connection, f"{name} = {literal}", properties) == [True, False, False]


# --- consuming with a filter


def received(broker: Broker, group: str, **given: Any) -> list[bytes]:
    consumer = broker.consumer("t", group, **given)
    batch = consumer.receive()
    consumer.ack(batch)
    return [message.body for message in batch]


def test_d12_a_consumer_gets_what_its_filter_chooses(timed_broker: Broker) -> None:
    timed_broker.create_topic("t", message_type="NORMAL", queues=1)
    messages: list[tuple[str, dict[str, Any] | None, str | None]] = [
        ("cheap", {"amount": 5}, None),
        ("dear", {"amount": 500}, "x"),
        ("text", {"amount": "500"}, None),
        ("none", None, "x"),
    ]
    for body, properties, tag in messages:
        timed_broker.send("t", body, properties=properties, tag=tag)
    assert received(timed_broker, "dear", filter="amount > 100") == [b"dear", b"text"]
    assert received(timed_broker, "null", filter="amount IS NULL") == [b"none"]
    assert received(timed_broker, "both", tags="x", filter="amount > 100") == [b"dear"]
    # What was not chosen counts as read.
    assert received(timed_broker, "dear") == []
    # Nor is a retry chosen again.
    consumer = timed_broker.consumer("t", "retried", filter="amount = 5")
    consumer.nack(consumer.receive(), timedelta(0))
    (again,) = timed_broker.consumer("t", "retried", filter="amount = 6").receive()
    assert (again.body, again.attempt) == (b"cheap", 2)
    with pytest.raises(DueWheelError, match="position 2"):
        timed_broker.consumer("t", "none", filter="a ~ 5")
    assert "none" not in {group.group for group in timed_broker.groups()}
