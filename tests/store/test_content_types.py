"""The value that a message was sent as, and the property that says its type."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.acting import AT_ONCE, rows, taken

from duewheel.store import Broker, NewMessage
from duewheel.store.values.content_types import value_of
from duewheel.store.values.errors import UnreadableBody

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

GIVEN: list[tuple[object, str | None]] = [
    ({"order": 4711, "name": "grüße"}, JSON),
    ([1, None, {"a": []}], JSON),
    (17, JSON),
    (None, JSON),
    (True, JSON),
    ("4711", TEXT),
    ("", TEXT),
    (b'{"order":4711}', None),
    (b"\xff", None),
]


def received(broker: Broker) -> list[Any]:
    return taken(broker.consumer("t", "g"))


def told(broker: Broker) -> list[tuple[object, type, object]]:
    return [(one.value, type(one.value), one.properties.get("content-type")) for one in received(broker)]


EXPECTED = [(body, type(body), content_type) for body, content_type in GIVEN]


def test_d12_a_sent_value_comes_back(topic: Broker) -> None:
    named: list[dict[str, Any]] = [{}, {"tag": "a"}, {"key": "k"}]
    for more in named:
        for body, _ in GIVEN:
            topic.send("t", body, delay=AT_ONCE, **more)  # type: ignore[arg-type]
        assert told(topic) == EXPECTED
    # An idempotency key has messages of one call sent one by one.
    keys = [f"{number}" for number in range(2 * len(GIVEN))]
    for kind in (dict, NewMessage):
        for keyed in (False, True):
            topic.send_many(
                "t",
                [
                    kind(body=body, delay=AT_ONCE, idempotency_key=keys.pop() if keyed else None)
                    for body, _ in GIVEN
                ],
            )
            assert told(topic) == EXPECTED


def test_d12_a_schedules_value_comes_back(topic: Broker, clock: Any) -> None:
    topic.create_schedule("every", "t", {"keep_days": 30}, every=timedelta(seconds=10))
    clock.advance(timedelta(seconds=10))
    assert [one.value for one in received(topic)] == [{"keep_days": 30}]


def test_a_given_type_and_other_properties_are_kept(topic: Broker) -> None:
    other = {"content-type": "application/vnd.order+json", "region": "north"}
    topic.send("t", {"order": 1}, delay=AT_ONCE, properties={"region": "north"})
    topic.send_many(
        "t",
        [
            {"body": '{"order":2}', "delay": AT_ONCE, "properties": other},
            {"body": b'{"order":3}', "delay": AT_ONCE, "properties": {"content-type": JSON}},
        ],
    )
    got = received(topic)
    assert [one.value for one in got] == [{"order": 1}, {"order": 2}, {"order": 3}]
    assert [one.properties for one in got] == [
        {"region": "north", "content-type": JSON},
        other,
        {"content-type": JSON},
    ]


def test_a_send_by_sql_has_the_type_of_its_argument(topic: Broker) -> None:
    send = "select duewheel.send('t', {}, delay => '0', properties => %s::jsonb, now => %s)"
    body = """'{"order": 1}'"""
    for argument, properties in (
        (f"{body}::jsonb", None),
        (f"{body}::jsonb", '{"content-type": "application/octet-stream"}'),
        (body, '{"a": "b"}'),
        (body, '{"content-type": "application/json"}'),
        (f"convert_to({body}, 'UTF8')", None),
    ):
        rows(topic, send.format(argument), properties, topic.now())
    value, raw = {"order": 1}, b'{"order": 1}'
    assert [one.value for one in received(topic)] == [value, raw, raw.decode(), value, raw]


def test_a_usual_type_takes_one_byte_and_a_filter_sees_it(topic: Broker) -> None:
    columns = "select pg_column_size(m.*), content_type, properties from duewheel.any_message m order by seq"
    topic.send_many("t", [{"body": b, "delay": AT_ONCE} for b in (b'"4711"', '"4711"')])
    topic.send("t", '"4711"', delay=AT_ONCE)
    topic.send_many("t", [{"body": 4711, "delay": AT_ONCE, "properties": {"a": 1}}])
    topic.send("t", 4711, delay=AT_ONCE, properties={"a": 1})
    bare, *texts, many, one = rows(topic, columns)
    assert texts == [(bare[0] + 1, "t", None)] * 2
    assert many == one == (one[0], "j", {"a": 1})
    assert len(taken(topic.consumer("t", "texts", filter='$."content-type" starts with "text"'))) == 2
    assert len(taken(topic.consumer("t", "json", filter='$."content-type" == "application/json"'))) == 2
    assert len(taken(topic.consumer("t", "bytes", filter='!exists($."content-type")'))) == 1


def test_a_body_that_is_not_what_its_type_says_is_named(topic: Broker) -> None:
    for body, content_type, said in (
        (b"\xff", TEXT, "is not the text that its content-type 'text/plain; charset=utf-8' says"),
        (b"x", "text/plain; charset=klingon", "unknown encoding: klingon"),
        (b"{", JSON, "is not JSON"),
        (b"\xff\xff\xff", "application/vnd.order+json", "is not JSON"),
    ):
        sent = topic.send("t", body, delay=AT_ONCE, properties={"content-type": content_type})
        (got,) = received(topic)
        with pytest.raises(UnreadableBody) as caught:
            _ = got.value
        assert sent.message_id in str(caught.value)
        assert said in str(caught.value)
        assert got.body == body


def test_the_type_is_read_as_a_media_type() -> None:
    given: list[tuple[bytes, object, object]] = [
        (b"\xfc", "text/plain; charset=latin-1", "ü"),
        (b"\xfc", 'TEXT/csv; header=present; Charset="ISO-8859-1"', "ü"),
        (b"[1]", "Application/JSON; charset=utf-8", [1]),
        (b" [1]\n", JSON, [1]),
        (b"\xef\xbb\xbf[1]", JSON, [1]),
        (b"\x89PNG", "image/png", b"\x89PNG"),
        (b"x", "", b"x"),
        (b"x", "nonsense", b"x"),
        (b"x", 5, b"x"),
        (b"x", None, b"x"),
    ]
    for body, content_type, value in given:
        assert value_of(body, content_type, lambda: "00") == value
