"""Broadcasting groups: every instance sees everything, and nothing is retried."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg2
import pytest
from tests.acting import HOUR, MINUTE, SECOND, rows
from tests.clock import NOW, Clock
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.errors import InvalidArgument, UnknownGroup
from duewheel.store.values.messages import ConsumeMode
from duewheel.store.values.retry_policy import RetryPolicy


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    timed_broker.create_topic("t", message_type="NORMAL", queues=2)
    return timed_broker


def instance(broker: Broker, name: str, **given: Any) -> Consumer:
    return broker.consumer("t", "g", name=name, mode="broadcasting", **given)


def send(broker: Broker, *bodies: str) -> None:
    broker.send_many("t", [{"body": body} for body in bodies])


def bodies(consumer: Consumer, *, ack: bool = True) -> list[str]:
    batch = consumer.receive(max_messages=100)
    if ack:
        consumer.ack(batch)
    return sorted(message.body.decode() for message in batch)


def test_an_instance_begins_at_its_start_and_resumes_there(topic: Broker, clock: Clock) -> None:
    send(topic, "before")
    topic.tick("t")
    clock.advance(MINUTE)
    starts = {"one": "earliest", "two": "latest", "three": NOW + SECOND, "four": NOW - HOUR}
    instances = {name: instance(topic, name, start=start) for name, start in starts.items()}
    topic.send("t", "after", tag="x", properties={"n": 1})
    topic.send("t", "chosen", tag="x", properties={"n": 2})
    topic.send("t", "untagged", properties={"n": 2})
    late, everything = ["after", "chosen", "untagged"], ["after", "before", "chosen", "untagged"]
    assert bodies(instances["one"]) == bodies(instances["four"]) == everything
    assert bodies(instances["two"]) == bodies(instances["three"]) == late
    assert bodies(instances["one"]) == []
    assert bodies(instance(topic, "five", tags="x", filter="$.n > 1")) == ["chosen"]
    clock.advance(SECOND)
    send(topic, "next")
    assert bodies(instance(topic, "one", start="latest")) == ["next"]


def test_a_group_has_one_mode(topic: Broker) -> None:
    instance(topic, "one")
    with pytest.raises(InvalidArgument, match='group "g" is broadcasting; this consumer is clustering'):
        topic.consumer("t", "g")
    topic.consumer("t", "shared")
    with pytest.raises(InvalidArgument, match='group "shared" is clustering; this consumer is broadcasting'):
        topic.consumer("t", "shared", mode="broadcasting")
    # An instance without a name is not the group of that name.
    subscribed = "select created from duewheel.subscribe('t', 'shared', mode => 'broadcasting')"
    with pytest.raises(psycopg2.Error, match="cannot name a broadcasting"):
        rows(topic, subscribed)
    for given, says in (
        ({"mode": "both"}, "give one of 'clustering', 'broadcasting'"),
        ({"mode": "broadcasting", "retry": RetryPolicy.http()}, "does not retry"),
        ({"mode": "broadcasting", "name": "x" * 128}, "1 to 127 characters"),
        ({"mode": "broadcasting", "name": "a\nb"}, "no control characters"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            topic.consumer("t", "bad", **given)
    # Also on another topic, where the group has no consumer yet.
    topic.create_topic("u")
    with pytest.raises(InvalidArgument, match="is broadcasting"):
        topic.consumer("u", "g")
    assert {(group.group, group.mode.value) for group in topic.groups()} == {
        ("g", "broadcasting"),
        ("shared", "clustering"),
    }


def test_of_consumers_that_start_at_once_one_decides_the_mode(dsn: str) -> None:
    with Broker(dsn) as broker:
        broker.create_topic("t")
        for number in range(20):

            def start(mode: str, number: int = number) -> bool:
                try:
                    broker.consumer("t", f"g{number}", name="i", mode=mode)
                except InvalidArgument:
                    return False
                return True

            with ThreadPoolExecutor(4) as pool:
                started = list(pool.map(start, ["clustering", "broadcasting"] * 2))
            assert started in ([True, False] * 2, [False, True] * 2)


def test_instances_are_listed_with_their_group(topic: Broker, clock: Clock) -> None:
    instance(topic, "two")
    one = instance(topic, "one")
    assert topic.groups()[0].lag == timedelta(0)
    send(topic, "a", "b")
    topic.tick("t")
    assert topic.groups()[0].lag is None
    bodies(one)
    clock.advance(MINUTE)
    send(topic, "c", "d")
    topic.tick("t")
    bodies(instance(topic, "two"))
    (group,) = topic.groups()
    assert (group.group, group.topic, group.mode) == ("g", "t", ConsumeMode.BROADCASTING)
    assert (group.instances, group.retry, group.read_to, group.lag) == (("one", "two"), None, NOW, MINUTE)


def test_an_instance_that_receives_is_kept_and_keeps_nothing(topic: Broker, clock: Clock) -> None:
    idle, stopped = instance(topic, "idle"), instance(topic, "stopped")
    send(topic, "a")
    topic.tick("t")
    receipt_of_b = topic.send("t", "b")
    assert bodies(idle) == ["a", "b"]
    for _ in range(10):
        clock.advance(10 * HOUR)
        assert bodies(idle) == []
    # Their slot is made, as nobody has kept up until now; then it is dropped.
    topic.maintain()
    topic.maintain()
    assert topic.find(receipt_of_b.message_id) is None
    assert topic.groups()[0].instances == ("idle",)
    with pytest.raises(UnknownGroup, match="broadcasting instance that had not received"):
        stopped.receive()
    send(topic, "c")
    # It begins anew.
    assert bodies(idle) == bodies(instance(topic, "stopped")) == ["c"]


def test_an_instance_works_from_sql(topic: Broker, dsn: str) -> None:
    send(topic, "a")
    with connected(dsn) as connection:
        subscribe = (
            "select created from duewheel.subscribe("
            "'t', 'g', mode => 'broadcasting', instance => 'one', now => %s)"
        )
        assert ask(connection, subscribe, NOW) == [(True,)]
        topic.tick("t")
        receive = "select convert_from(body, 'UTF8') from duewheel.receive('t', 'g/one', now => %s)"
        assert ask(connection, receive, NOW) == [("a",)]
        groups = "select consumer_group, instance, mode from duewheel.groups"
        assert ask(connection, groups) == [("g", "one", "broadcasting")]


def test_what_waits_in_order_for_an_instance_is_not_kept(
    timed_broker: Broker, clock: Clock, dsn: str
) -> None:
    timed_broker.create_topic("steps", message_type="FIFO", queues=1)
    stopped = timed_broker.consumer("steps", "g", name="stopped", mode="broadcasting")
    receipts = [timed_broker.send("steps", name, message_group="a") for name in ("a1", "a2")]
    clock.advance(SECOND)
    assert len(stopped.receive(1)) == 1
    assert not stopped.receive(1)
    clock.advance(timedelta(hours=100))
    timed_broker.maintain()
    timed_broker.maintain()
    with connected(dsn) as connection:
        for log in ("fifo_backlog", "lease_message"):
            assert ask(connection, f"select count(*) from duewheel.{log}") == [(0,)]
    assert [timed_broker.find(receipt.message_id) for receipt in receipts] == [None, None]
