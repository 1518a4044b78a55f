"""The rest of a stream to which nothing comes: a release ends it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from psycopg2.extensions import make_dsn
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.test_stream import AT_ONCE, GROUP, TOPIC, between, reader, send
from tests.waiting import beside

from duewheel.spark import stream_rest
from duewheel.spark.stream_reader import MessageStreamReader
from duewheel.spark.stream_rest import StreamRest
from duewheel.store.broker import Broker
from duewheel.store.consuming.signals import Signal
from duewheel.store.operations.overview import waiting_consumers


def test_idle_stream_rests_longer_until_a_message_comes(
    orders: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    monkeypatch.setattr(Signal, "wait", lambda signal, seconds: rests.append(seconds))
    stream = reader(orders, listen="false")
    start = stream.initialOffset()
    for _ in range(8):
        assert stream.latestOffset(start, ReadAllAvailable()) == start
    assert rests == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]

    send(orders, range(3))
    end = stream.latestOffset(start, ReadAllAvailable())
    assert between(stream, start, end) == [0, 1, 2]
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    assert len(rests) == 8


@pytest.fixture
def hour_of_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rest that a release can end is an hour long."""
    monkeypatch.setattr(stream_rest, "FIRST_REST_SECONDS", 3600)
    monkeypatch.setattr(stream_rest, "MOST_REST_SECONDS", 3600)
    monkeypatch.setattr(stream_rest, "pause", lambda seconds: None)


def begin_to_listen(stream: MessageStreamReader, start: dict[str, Any], looks: int = 3) -> None:
    """Look in vain until the next rest ends with a release only."""
    # What begins to listen looks once more, as it may have missed a release, and the rest after that is deaf.
    for _ in range(looks):
        assert stream.latestOffset(start, ReadAllAvailable()) == start


def found_by(stream: MessageStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    while (end := stream.latestOffset(start, ReadAllAvailable())) == start:
        pass
    return end


@pytest.mark.usefixtures("hour_of_rest")
def test_release_ends_the_rest_of_a_stream(orders: Broker) -> None:
    stream = reader(orders)
    start = stream.initialOffset()
    begin_to_listen(stream, start)
    assert [(one.group, one.consumer[:13]) for one in waiting_consumers(orders)[0]] == [
        (GROUP, "spark-stream/")
    ]
    with beside() as begin:
        found = begin(lambda: found_by(stream, start))
        send(orders, range(3))
        orders.tick(TOPIC)
        assert between(stream, start, found.result()) == [0, 1, 2]
    stream.stop()


@pytest.mark.usefixtures("hour_of_rest")
def test_a_release_of_any_topic_ends_the_rest_of_a_stream(orders: Broker) -> None:
    orders.create_topic("returns")
    stream = reader(orders, topic=f"returns, {TOPIC}")
    start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    begin_to_listen(stream, start, looks=2)
    for topic in (TOPIC, "returns"):
        with beside() as begin:
            found = begin(partial(found_by, stream, start))
            orders.send(topic, b"", key="7", delay=AT_ONCE)
            orders.tick(topic)
            end = found.result()
        assert between(stream, start, end) == [7]
        start = stream.latestOffset(end, ReadAllAvailable())
        assert start == end
    stream.stop()


def test_rest_goes_on_where_nobody_can_listen(orders: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(stream_rest, "pause", pauses.append)
    rest = StreamRest(make_dsn(orders.dsn, dbname="duewheel_nowhere"), listen=True)
    rest.begin_look([(1, 1)], "a stream")
    rest.lengthen()
    rest.take()
    assert pauses == [0.02]
    rest.close()


@pytest.mark.usefixtures("hour_of_rest")
def test_stream_woken_in_vain_rests_whatever_is_released(
    orders: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the releases of a paused group would have it look all the time."""
    stream = reader(orders)
    start = stream.initialOffset()
    begin_to_listen(stream, start)
    orders.pause_group(GROUP, topic=TOPIC)
    send(orders, range(3))
    orders.tick(TOPIC)
    pauses: list[float] = []
    monkeypatch.setattr(stream_rest, "pause", pauses.append)
    for expected in ([], [3600]):
        assert stream.latestOffset(start, ReadAllAvailable()) == start
        assert pauses == expected
    stream.stop()
