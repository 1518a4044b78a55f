"""A paused group gets nothing until it is resumed, and everything else goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.acting import AT_ONCE, rows
from tests.clock import NOW
from tests.waiting import ask, beside, connected, until

from duewheel.store import UnknownGroup, UnknownTopic
from duewheel.store.broker import Broker

#: A type of topics, and what a message of it needs that is due at once.
TYPES: dict[str, dict[str, Any]] = {"DELAY": {"delay": AT_ONCE}, "NORMAL": {}, "FIFO": {"message_group": "m"}}


@pytest.mark.parametrize("message_type", TYPES)
def test_a_paused_group_gets_nothing_and_others_do(timed_broker: Broker, message_type: str) -> None:
    timed_broker.create_topic("t", message_type=message_type)
    consumers = {group: timed_broker.consumer("t", group) for group in ("paused", "other")}
    timed_broker.send("t", b"", **TYPES[message_type])
    assert timed_broker.pause_group("paused") == 1
    assert len(consumers["paused"].receive()) == 0
    assert len(consumers["other"].receive()) == 1
    assert timed_broker.pause_group("paused") == 0
    assert timed_broker.resume_group("paused") == 1
    assert timed_broker.resume_group("paused", topic="t") == 0
    assert len(consumers["paused"].receive()) == 1


def test_x08_a_pause_is_in_the_numbers_and_rings_no_doorbell(timed_broker: Broker) -> None:
    for topic in ("a", "b"):
        timed_broker.create_topic(topic, message_type="NORMAL")
        timed_broker.consumer(topic, "g")
        timed_broker.send(topic, b"")
        timed_broker.tick(topic)

    def seen() -> dict[str, list[object]]:
        stats = {one.topic: one.groups[0] for one in timed_broker.stats().topics}
        groups = {one.topic: one.paused_at for one in timed_broker.groups()}
        bells = timed_broker.doorbells(["a", "b"], ["g", "g"])
        return {
            bell.topic: [groups[bell.topic], stats[bell.topic].paused_at, stats[bell.topic].ready, bell.ready]
            for bell in bells
        }

    assert seen() == {"a": [None, None, 1, 1], "b": [None, None, 1, 1]}
    assert timed_broker.pause_group("g", topic="a") == 1
    assert seen() == {"a": [NOW, NOW, 1, 0], "b": [None, None, 1, 1]}
    assert timed_broker.pause_group("g") == 1
    assert seen() == {"a": [NOW, NOW, 1, 0], "b": [NOW, NOW, 1, 0]}
    assert timed_broker.resume_group("g") == 2
    assert seen() == {"a": [None, None, 1, 1], "b": [None, None, 1, 1]}
    # Nor does the stream of a paused group go on.
    stream = (
        "select bool_or(l.at is not null) from duewheel.subscription s, duewheel.stream_latest("
        "array[s.group_id], array[s.topic_id], array['mine'], '{}', '{}', '{}', '{}', '{}') l"
    )
    assert rows(timed_broker, stream) == [(True,)]
    timed_broker.pause_group("g")
    assert rows(timed_broker, stream) == [(False,)]
    timed_broker.create_topic("other")
    for act in (timed_broker.pause_group, timed_broker.resume_group):
        with pytest.raises(UnknownGroup):
            act("nope")
        with pytest.raises(UnknownTopic):
            act("g", topic="nope")
        with pytest.raises(UnknownGroup):
            act("g", topic="other")


def test_a_waiting_consumer_continues_when_its_group_is_resumed(broker: Broker) -> None:
    broker.create_topic("t", message_type="NORMAL")
    consumer = broker.consumer("t", "g")
    broker.pause_group("g")
    broker.send("t", b"")
    with connected(broker.dsn) as watcher, beside() as begin:
        received = begin(lambda: consumer.receive(wait=timedelta(seconds=30)))
        until(lambda: ask(watcher, "select 1 from duewheel.tick limit 1"), "the look that finds nothing")
        assert not received.done()
        broker.resume_group("g")
        assert len(received.result()) == 1


def test_all_instances_of_a_broadcasting_group_pause_or_one(timed_broker: Broker) -> None:
    timed_broker.create_topic("t", message_type="NORMAL")
    instances = [timed_broker.consumer("t", "g", mode="broadcasting", name=name) for name in ("one", "two")]
    timed_broker.send("t", b"")
    assert timed_broker.pause_group("g/one") == 1
    (group,) = timed_broker.groups()
    assert group.paused_at is None
    assert [len(one.receive()) for one in instances] == [0, 1]
    assert timed_broker.pause_group("g") == 1
    (group,) = timed_broker.groups()
    assert group.paused_at == NOW
    assert timed_broker.resume_group("g") == 2
    assert [len(one.receive()) for one in instances] == [1, 0]
