"""Messages that are staged in parts and published by one call, all or nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from itertools import count
from typing import Any

import psycopg2
import pytest
from tests.waiting import until_somebody_waits

from duewheel.store import Broker
from duewheel.store.database.connections import DriverConnection, fetch
from duewheel.store.values.errors import DueWheelError, StagingFailed

TOPIC = "orders"
PART_IDS = count(1)


@pytest.fixture
def connection(broker: Broker) -> Iterator[DriverConnection]:
    broker.create_topic(TOPIC, queues=2)
    with broker.connection() as connection:
        yield connection


def stage(connection: DriverConnection, messages: list[dict[str, Any]], staging: str = "s") -> int:
    """Stages a part; its number."""
    part_id = next(PART_IDS)
    fetch(connection, "select duewheel.stage_part(%s, %s)", (staging, part_id))
    with connection.cursor() as cursor:
        for place, message in enumerate(messages):
            given = {"body": b"", **message}
            cursor.execute(
                f"insert into duewheel.staged_message (part_id, place, {', '.join(given)})"
                f" values (%s, %s{', %s' * len(given)})",
                (part_id, place, *given.values()),
            )
    return part_id


def publish(
    connection: DriverConnection,
    parts: dict[int, int],
    *,
    topic: str = TOPIC,
    writer: str = "w",
    batch: int = 0,
) -> int | None:
    parameters = (topic, writer, batch, list(parts), list(parts.values()))
    sent: int | None = fetch(
        connection,
        "select sent from duewheel.publish_batch(%s, %s, %s, %s::bigint[], %s::bigint[])",
        parameters,
    )[0][0]
    return sent


def keys(connection: DriverConnection) -> list[str]:
    return [
        key
        for (key,) in fetch(connection, "select key from duewheel.any_message order by deliver_at, seq", ())
    ]


MINUTE = 60_000_000


@pytest.mark.owner
def test_parts_that_are_named_are_sent_once_and_no_others(connection: DriverConnection) -> None:
    first = stage(connection, [{"key": f"a{n}", "delay_microseconds": MINUTE} for n in range(3)])
    stage(connection, [{"key": "in vain", "delay_microseconds": MINUTE}])
    second = stage(connection, [{"key": f"b{n}", "delay_microseconds": MINUTE} for n in range(2)])
    drawn = "select last_value from duewheel.message_block"
    before = fetch(connection, drawn, ())
    with pytest.raises(StagingFailed, match="2 of the 3 staged messages are there, and nothing was sent"):
        publish(connection, {second: 3})
    # A count that is not true reserves no numbers.
    for wrong in (-1, 2**40, 2**63 - 1):
        with pytest.raises(StagingFailed):
            publish(connection, {first: wrong, second: wrong})
    assert (keys(connection), fetch(connection, drawn, ())) == ([], before)
    parts = {first: 3, second: 2}
    assert publish(connection, parts, batch=3) == 5
    assert keys(connection) == ["a0", "a1", "a2", "b0", "b1"]
    # Of a writer, a batch and those before it are sent once.
    assert publish(connection, parts, batch=3) is None
    assert publish(connection, parts, batch=2) is None
    assert publish(connection, {}, batch=4) == 0
    assert publish(connection, {first: 3}, writer="another") == 3
    assert len(keys(connection)) == 8


def test_two_calls_at_once_send_once(broker: Broker, connection: DriverConnection) -> None:
    parts = {stage(connection, [{"key": "a", "delay_level": 1}]): 1}
    with closing(psycopg2.connect(broker.dsn)) as first, broker.connection() as second:
        assert publish(first, parts) == 1
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(publish, second, parts)
            until_somebody_waits(broker.dsn)
            first.commit()
            assert answer.result() is None
    assert keys(connection) == ["a"]


@pytest.mark.owner
def test_parts_that_go_while_they_are_sent_send_nothing(broker: Broker, connection: DriverConnection) -> None:
    part_id = stage(connection, [{"key": "a", "delay_level": 1}])
    with closing(psycopg2.connect(broker.dsn)) as first, broker.connection() as second:
        fetch(first, "lock table duewheel.message in share mode; select 1", ())
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(publish, second, {part_id: 1})
            # They are counted, and the insert waits.
            until_somebody_waits(broker.dsn)
            fetch(connection, "select duewheel.discard_staged('s')", ())
            first.commit()
            with pytest.raises(StagingFailed, match="0 of the 1 staged messages are there"):
                answer.result()
    assert keys(connection) == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"key": "k" * 300}, "InvalidKey.*row 1 of partition 0 .*the key must have 1 to 255 characters; got 300"),
    ({"key": ""}, "InvalidKey.*row 1 of partition 0: the key must have 1 to 255 characters; got 0"),
    ({"tag": "no tag"}, 'InvalidTag.*row 1 of partition 0: "no tag" is not a tag'),
    ({"body": None}, "InvalidArgument.*the body is null"),
    ({"body": bytes(4194305)}, "BodyTooLarge.*the body has 4194305 bytes"),
    ({"properties": "[]"}, "InvalidArgument.*properties must be a JSON object; got a JSON array"),
    ({"properties": '{"a": "%s"}' % ("x" * 17_000)}, "PropertiesTooLarge"),
    ({"message_group": ""}, "InvalidArgument.*the message group must have 1 to 255 characters"),
    ({"delay_level": 1}, "InvalidArgument.*more than one of delay"),
    ({"delay_microseconds": None}, "WrongMessageType.*has no delivery time"),
    ({"delay_microseconds": None, "delay_level": -1}, "InvalidDelayLevel.*the delay level must be 0"),
    ({"delay_microseconds": None, "deliver_at": "infinity"}, "DelayOutOfRange"),
    ({"delay_microseconds": 4000 * 86400 * 1_000_000}, "DelayOutOfRange.*the limit of topic"),
]


def test_wrong_message_is_named_and_nothing_is_sent(connection: DriverConnection) -> None:
    """As strict as send, in the same words."""
    good = {"delay_microseconds": MINUTE}
    for message, wrong in WRONG:
        parts = {stage(connection, [good, {**good, **message}, good]): 3}
        with pytest.raises(DueWheelError) as refused:
            publish(connection, parts)
        assert re.search(wrong, f"{type(refused.value).__name__}: {refused.value}")
    assert keys(connection) == []


def test_times_are_judged_like_those_of_send(broker: Broker, connection: DriverConnection) -> None:
    broker.create_topic("lenient", max_delay=timedelta(hours=1), out_of_range="deliver")
    parts = {
        stage(
            connection,
            [
                {"key": "level", "delay_level": 99},
                {"key": "now", "delay_level": 0},
                {"key": "past", "deliver_at": "2020-01-01T00:00:00Z"},
                {"key": "far", "delay_microseconds": 2 * 3600 * 1_000_000},
                {"key": "soon", "delay_microseconds": MINUTE},
            ],
        ): 5
    }
    assert publish(connection, parts, topic="lenient") == 5
    found = fetch(
        connection, "select key, deliver_at - born_at, asked_at from duewheel.any_message order by key", ()
    )
    delays = {key: delay for key, delay, _ in found}
    # The last level is two hours, which is beyond the maximum, too.
    assert delays["soon"] == timedelta(minutes=1)
    assert {key for key, delay in delays.items() if delay < timedelta(seconds=1)} == {
        "level",
        "now",
        "past",
        "far",
    }
    assert [asked.year for key, _, asked in found if key == "past"] == [2020]


def test_messages_without_a_time_come_at_once_and_in_order(
    broker: Broker, connection: DriverConnection
) -> None:
    broker.create_topic("plain", message_type="NORMAL", queues=1)
    broker.create_topic("fifo", message_type="FIFO", queues=2)
    messages = [{"key": str(place), "message_group": "g"} for place in range(20)]
    for topic in ("plain", "fifo"):
        publish(connection, {stage(connection, messages): 20}, topic=topic)
        received = broker.consumer(topic, "g").receive(100)
        assert [message.key for message in received] == [message["key"] for message in messages]


@pytest.mark.owner
def test_large_batch_has_a_number_for_each_message(connection: DriverConnection) -> None:
    """Each value of the sequence of numbers stands for 1 048 576."""
    part_id = stage(connection, [{"delay_level": 1}] * 3)
    numbers = fetch(
        connection,
        "select seq from duewheel.staged_rows(%s, 'DELAY', 4, '1 day', 'reject', array[interval '1 s'],"
        " now(), now(), array[%s]::bigint[], array[1048574]::bigint[], array[16, 64]::bigint[], false)"
        " order by seq",
        (TOPIC, part_id),
    )
    assert numbers == [(16 * 65536 + 1048574,), (16 * 65536 + 1048575,), (64 * 65536,)]


@pytest.mark.owner
def test_discarded_rows_are_gone_and_upkeep_forgets_the_rest(
    broker: Broker, connection: DriverConnection
) -> None:
    left = (
        "select (select count(*) from duewheel.staged_part), (select count(*) from duewheel.staged_message)"
    )
    stage(connection, [{}], "old")
    stage(connection, [{}] * 2, "young")
    with connection.cursor() as cursor:
        cursor.execute(
            "update duewheel.staged_part set began_at = began_at - interval '8 days' where staging = 'old'"
        )
    publish(connection, {}, writer="forgotten")
    fetch(
        connection, "update duewheel.published_batch set until_at = now() - interval '1 day' returning 1", ()
    )
    publish(connection, {}, writer="remembered")
    broker.maintain()
    assert fetch(connection, left, ()) == [(1, 2)]
    assert fetch(connection, "select writer from duewheel.published_batch", ()) == [("remembered",)]
    fetch(connection, "select duewheel.discard_staged('young')", ())
    assert fetch(connection, left, ()) == [(0, 0)]


def test_a_message_before_the_newest_tick_is_due_at_its_instant(
    broker: Broker, connection: DriverConnection
) -> None:
    """The clock was ahead when the topic was released."""
    broker.send(TOPIC, b"", delay=timedelta(minutes=30))
    fetch(connection, "call duewheel.tick(%s, now() + interval '1 hour')", (TOPIC,))
    parts = {stage(connection, [{"key": "a", "delay_microseconds": MINUTE}]): 1}
    publish(connection, parts)
    assert fetch(connection, "select count(*) from duewheel.held_back", ()) == [(1,)]
    assert [message.key for message in broker.consumer(TOPIC, "g").receive()] == [None]


@pytest.mark.owner
def test_x25_a_discard_forgets_a_portion(connection: DriverConnection) -> None:
    stage(connection, [{}] * 5)
    portion = "create or replace function duewheel.portion() returns integer immutable return 2"
    fetch(connection, f"{portion}; select 1", ())
    left = []
    for _ in range(4):
        ((more,),) = fetch(connection, "select duewheel.discard_staged('s')", ())
        ((messages,),) = fetch(connection, "select count(*) from duewheel.staged_message", ())
        left.append((more, messages))
    assert left == [(True, 3), (True, 1), (True, 0), (False, 0)]
