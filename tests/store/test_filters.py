"""Filters: what they choose, what is refused, and that none that is taken fails at a message."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from duewheel.store.broker import Broker
from duewheel.store.consuming.filtering import check_filters
from duewheel.store.database.connections import fetch
from duewheel.store.values.errors import InvalidFilter, NulInText
from duewheel.store.values.filters import MAX_LENGTH, check_filter

Connection = psycopg2.extensions.connection
PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "sql.md").read_text(encoding="utf-8")
PAGE = PAGE.partition("\n## Filters\n")[2].partition("\n## ")[0]
ROW = re.compile(r"^\| [^|]+ \| `(.*?)` \| (.*?) \| (.*?) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def connection(fresh_database: Callable[[], tuple[str, str]]) -> Iterator[Connection]:
    _, dsn = fresh_database()
    with closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        yield connection


def chosen(connection: Connection, filter_text: str, properties: list[dict[str, Any]]) -> list[bool]:
    """What Postgres says of each, as receiving asks it, of a filter that it takes."""
    check_filters(partial(fetch, connection), filter_text)
    asked = (
        "select coalesce(p::jsonb @@ %s::jsonpath, false)"
        " from unnest(%s::text[]) with ordinality p (p, n) order by n"
    )
    rows = fetch(connection, asked, (filter_text, [json.dumps(one) for one in properties]))
    return [is_chosen for (is_chosen,) in rows]


def objects(cell: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in re.findall("`(.*?)`", cell)]


def test_d12_the_examples_of_the_page_choose_what_it_says(connection: Connection) -> None:
    rows = ROW.findall(PAGE)
    assert len(rows) == 10
    for written, chooses, leaves_out in rows:
        text = written.replace(r"\|", "|")
        found = chosen(connection, text, [*objects(chooses), *objects(leaves_out)])
        assert found == [True] * len(objects(chooses)) + [False] * len(objects(leaves_out)), text


def test_d12_only_a_true_predicate_chooses(connection: Connection) -> None:
    properties = [{"a": 5}, {"a": "x"}, {"a": None}, {}]
    assert chosen(connection, "$.a > 1", properties) == [True, False, False, False]
    assert chosen(connection, "!($.a > 1)", properties) == [False, False, True, True]
    assert chosen(connection, "($.a > 1) is unknown", properties) == [False, True, False, False]


WITHOUT_A_DATABASE: list[tuple[Any, str]] = [
    ("region = 'north' AND amount > 100", r'in SQL.* write it as \$\.amount > 100 && \$\.country == "DE"'),
    ("$.a == 5 and $.b == 5", "in SQL"),
    ("$.a = 5", "in SQL"),
    ("$.a == 'x'", "in SQL"),
    ("a IS NOT NULL", "in SQL"),
    ("a BETWEEN 1 AND 5", "in SQL"),
    ("amount > 100", r"names no property: write \$\.NAME"),
    ("", "names no property"),
    ('"$.a" == "$.b"', "names no property"),
    (f"$.a == {'1' * MAX_LENGTH}", "has 8199 characters, the limit is 8192"),
    ('$.a == "\ud800"', "half of a surrogate pair at position 8"),
    (5, "is an int, not a str"),
]
#: Paths that Postgres reads.
NOT_PREDICATES: list[tuple[str, str]] = [
    ("$.a", r"yields a value instead of true or false\. Compare it, as in \$\.amount"),
    ("strict $.a", "yields a value"),
    ("$ ? (@.a > 5)", r"; write exists\(PATH\)"),
    ("null", r"names no property\. Write \$\.NAME"),
    ("$.a == $limit", "has a variable"),
    ('$.a == $"limit"', "has a variable"),
    ('$.a.datetime() < "2026-01-01T00:00:00Z".datetime()', r"calls datetime\(\), which fails"),
    (r'$."\\" == "x" || $.a . datetime ("HH24") > $.b', r"calls datetime\(\), which fails"),
]
BY_POSTGRES: list[tuple[str, str]] = [
    ("$.a ==", "not a predicate of jsonpath .*end of jsonpath input"),
    ("$.a == 1; drop table duewheel.message", "not a predicate of jsonpath"),
    ('$.a like_regex "("', "parentheses .* not balanced"),
    ('$.a like_regex "x" flag "x"', "not a predicate of jsonpath"),
    *(one for one in NOT_PREDICATES if "$" in one[0]),
]


def test_d12_an_invalid_filter_is_refused_without_a_database() -> None:
    for text, says in WITHOUT_A_DATABASE:
        with pytest.raises(InvalidFilter, match=says):
            check_filter(text)
    with pytest.raises(NulInText):
        check_filter('$.a == "\0"')


def test_d12_what_postgres_takes_for_no_predicate_is_refused(connection: Connection) -> None:
    for text, says in BY_POSTGRES:
        check_filter(text)
        with pytest.raises(InvalidFilter, match=says):
            chosen(connection, text, [])


def test_words_of_sql_may_be_names_and_values(connection: Connection) -> None:
    for text in (
        '$.and == "a = b"',
        r'$."\u0061" == "\\"',
        "$.in == 1 /* not $x.date() */ && $.a >= 1",
        '$."$x" != 5',
        '$."x.datetime()" == ".datetime()"',
        r"$.\u0061 == 1",
    ):
        chosen(connection, text, [{}])


def test_the_largest_filters_work(connection: Connection) -> None:
    for text in (
        " || ".join(["$.a == 1"] * (MAX_LENGTH // 12)),
        "(" * 4000 + "$.a == 1" + ")" * 4000,
        "!(!(" * 1300 + "$.a == 1" + "))" * 1300,
    ):
        assert len(text) <= MAX_LENGTH
        assert chosen(connection, text, [{"a": 1}, {"a": 2}, {}]) == [True, False, False]


PARTS = st.sampled_from(
    [
        *("$", ".a", '."b c"', "[0]", "[*]", "[$.a]", ".*", ".**", ".**{1 to 3}", "@", "? (", "$x", "last"),
        *(".double()", ".datetime()", ".date()", ".decimal(3, 99999)", ".time_tz(9)", ".size()", ".type()"),
        *(".keyvalue()", ".abs()", "==", "!=", "<", "+", "/ 0", "* 1e300", "&&", "||", "!", "(", ")"),
        *("exists(", "is unknown", "starts with", 'like_regex "^x+$"', "strict", "1", "-5", "null", "true"),
        *('"x"', '"2026-01-01T00:00:00Z"', "/*", "*/", '"', "AND", "=", "'"),
    ]
)
PATHS = st.one_of(
    st.lists(PARTS, max_size=12).map(" ".join),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30),
)
MESSAGES: list[dict[str, Any]] = [
    {},
    *({"a": value} for value in (None, True, 5, 1e300, "x", "5", "2026-01-01", "2026-01-01T00:00:00")),
    *({"a": value, "b c": 5} for value in ([], [5, "x"], {"a": 5}, [[{"a": None}]])),
]


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=PATHS)
@example('$.a.datetime() < "2026-01-01T00:00:00Z".datetime()')
@example('$.a == 5 && $ /* " */ .a == $x || $.a == 5 /* " */')
def test_x15_a_filter_that_is_taken_fails_at_no_message(connection: Connection, text: str) -> None:
    try:
        check_filters(partial(fetch, connection), text)
    except InvalidFilter:
        return
    chosen(connection, text, MESSAGES)


@pytest.mark.slow
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30))
@example("x' OR '1'='1")
@example('x\\" || $ == $ || \\"')
@example("%s %(a)s {} $1 */ -- \\u0041")
def test_any_text_may_be_a_value_and_a_name(connection: Connection, text: str) -> None:
    quoted = json.dumps(text, ensure_ascii=False)
    properties = [{text: text}, {text: text + "x"}, {}]
    assert chosen(connection, f"$.{quoted} == {quoted}", properties) == [True, False, False]


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
    assert received(timed_broker, "dear", filter="$.amount > 100") == [b"dear"]
    assert received(timed_broker, "number", filter="$.amount.double() > 100") == [b"dear", b"text"]
    assert received(timed_broker, "null", filter="!exists($.amount)") == [b"none"]
    assert received(timed_broker, "both", tags="x", filter="$.amount > 100") == [b"dear"]
    # What was not chosen counts as read.
    assert received(timed_broker, "dear") == []
    # Nor is a retry chosen again.
    consumer = timed_broker.consumer("t", "retried", filter="$.amount == 5")
    consumer.nack(consumer.receive(), timedelta(0))
    timed_broker.set_subscription("t", "retried", filter="$.amount == 6")
    (again,) = consumer.receive()
    assert (again.body, again.attempt) == (b"cheap", 2)


def test_d12_sql_refuses_a_text_that_is_not_a_predicate(topic: Broker) -> None:
    """A program in SQL made a group that chose nothing, or failed at some properties."""
    topic.consumer("t", "g", filter="$.a == 1")
    subscribe = "select duewheel.subscribe('t', 'new', filter => %s::jsonpath)"
    change = "select duewheel.set_subscription('t', 'g', filter => %s::jsonpath)"
    for text, says in NOT_PREDICATES:
        for call in (subscribe, change):
            with topic.connection() as connection, pytest.raises(InvalidFilter, match=says):
                fetch(connection, call, (text,))
    (group,) = topic.groups()
    assert (group.group, group.filter) == ("g", '($."a" == 1)')


def test_d12_a_filter_that_is_none_makes_no_group(timed_broker: Broker) -> None:
    timed_broker.create_topic("t")
    for text in ("amount > 5", "$.amount >"):
        with pytest.raises(InvalidFilter):
            timed_broker.consumer("t", "g", filter=text)
    assert timed_broker.groups() == []
