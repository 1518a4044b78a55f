"""Tags and filter belong to a group's subscription of a topic, not to one of its consumers."""

from __future__ import annotations

import pytest
from tests.acting import HOUR, bodies, rows, send, taken
from tests.clock import Clock

from duewheel.store import InvalidArgument, InvalidFilter, InvalidTagExpression, UnknownGroup, UnknownTopic
from duewheel.store.broker import Broker

NORTH = '$.region == "north"'


def test_x28_another_expression_of_a_group_is_refused(topic: Broker) -> None:
    """Two consumers of one group had five of ten messages, and none: what one passed over the other lost."""
    first = topic.consumer("t", "g", "a")
    with pytest.raises(InvalidArgument, match=r'group "g" receives tags "a" .* names tags "b"'):
        topic.consumer("t", "g", "b")
    with pytest.raises(InvalidArgument, match=r'names filter "\(\$\."region" == "north"\)"'):
        topic.consumer("t", "g", filter=NORTH)
    with pytest.raises(InvalidArgument, match=r'names tags "\*"'):
        topic.consumer("t", "g", "*")
    other = topic.consumer("t", "other", "b")
    for number in range(10):
        send(topic, f"{number}", tag="ab"[number % 2])
    assert bodies(taken(first)) == [b"0", b"2", b"4", b"6", b"8"]
    assert bodies(taken(other)) == [b"1", b"3", b"5", b"7", b"9"]


def test_x28_a_consumer_without_an_expression_takes_the_groups(topic: Broker) -> None:
    topic.consumer("t", "g", "b || a", filter=NORTH)
    for tags in (None, "b||a", "a || b", "a||b||a"):
        consumer = topic.consumer("t", "g", tags)
        assert (consumer.tags, consumer.filter) == ("a || b", '($."region" == "north")')
    send(topic, "chosen", tag="b", properties={"region": "north"})
    send(topic, "south", tag="b", properties={"region": "south"})
    send(topic, "untagged", properties={"region": "north"})
    (bell,) = topic.doorbells(["t"], ["g"])
    assert bell.ready == 1
    assert topic.stats().topics[0].groups[0].ready == 1
    receive = "select convert_from(body, 'UTF8') from duewheel.receive('t', 'g', now => %s)"
    received = rows(topic, receive, topic.now())
    assert received == [("chosen",)]


def test_x28_a_tag_with_a_comma_stays_one_tag(topic: Broker) -> None:
    for group, tags in (("comma", '"a,b"'), ("quotes", '""c""')):
        assert [topic.consumer("t", group, tags).tags for _ in range(2)] == [tags, tags]


def test_x28_a_group_has_a_subscription_of_each_topic(topic: Broker) -> None:
    topic.create_topic("u")
    assert topic.consumer("t", "g", "a").tags == "a"
    assert topic.consumer("u", "g", "b").tags == "b"


def test_x28_a_change_tells_what_it_passes_over(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g", "a")
    send(topic, "a1", "a2", tag="a")
    send(topic, "b1", tag="b")
    send(topic, "c1", tag="c")
    consumer.ack(consumer.receive(1))
    assert bodies(taken(consumer)) == [b"a2"]
    send(topic, "a3", "a4", "a5", tag="a")
    send(topic, "b2", tag="b")
    topic.tick("t")
    changed = topic.set_subscription("t", "g", "b || c")
    assert (changed.old_tags, changed.old_filter) == ("a", None)
    assert (changed.missed, changed.passed_over) == (2, 3)
    # From now on, also of a consumer that was made before.
    assert bodies(taken(consumer)) == [b"b2"]
    assert topic.consumer("t", "g").tags == "b || c"
    topic.rewind("t", "g", "earliest")
    assert sorted(bodies(taken(consumer))) == [b"b1", b"b2", b"c1"]


def test_x28_a_change_leaves_leases_and_retries_as_they_are(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g", "a")
    send(topic, "leased", "failed", tag="a")
    leased, failed = consumer.receive()
    consumer.nack([failed])
    topic.set_subscription("t", "g", "b", NORTH)
    consumer.ack([leased])
    clock.advance(3 * HOUR)
    assert bodies(taken(consumer)) == [b"failed"]


def test_x28_every_instance_of_a_broadcasting_group_changes(topic: Broker) -> None:
    for name in ("one", "two"):
        topic.consumer("t", "g", "a", mode="broadcasting", name=name)
    topic.set_subscription("t", "g", "b")
    for name in ("one", "two"):
        assert topic.consumer("t", "g", mode="broadcasting", name=name).tags == "b"


def test_x28_the_list_of_groups_shows_tags_and_filter(topic: Broker) -> None:
    topic.consumer("t", "all")
    topic.consumer("t", "chosen", "b || a", filter=NORTH)
    for name in ("one", "two"):
        topic.consumer("t", "everywhere", "a", mode="broadcasting", name=name)
    stored = '($."region" == "north")'
    assert [(group.tags, group.filter) for group in topic.groups()] == [
        ("*", None),
        ("a || b", stored),
        ("a", None),
    ]
    topic.set_subscription("t", "everywhere/two", "b", NORTH)
    differs = topic.groups()[-1]
    assert (differs.tags, differs.filter) == (None, None)


def test_x28_what_cannot_be_a_subscription_changes_nothing(topic: Broker) -> None:
    topic.consumer("t", "g", "a")
    with pytest.raises(UnknownTopic):
        topic.set_subscription("u", "g", "b")
    with pytest.raises(UnknownGroup):
        topic.set_subscription("t", "h", "b")
    with pytest.raises(InvalidTagExpression):
        topic.set_subscription("t", "g", "a, b")
    with pytest.raises(InvalidFilter):
        topic.set_subscription("t", "g", filter="$.amount")
    assert topic.consumer("t", "g").tags == "a"


@pytest.mark.parametrize("message_type", ["DELAY", "FIFO"])
@pytest.mark.parametrize("is_held", [False, True], ids=["retry", "lease"])
def test_x28_a_rewind_after_a_change_loses_no_retry(
    timed_broker: Broker, clock: Clock, message_type: str, is_held: bool
) -> None:
    """The message does not come again by the position, as the group does not choose it any more."""
    timed_broker.create_topic("t", message_type=message_type, queues=1)
    consumer = timed_broker.consumer("t", "g", "a")
    ordered = message_type == "FIFO"
    for tag in "ab":
        timed_broker.send(
            "t", tag, tag=tag, delay=None if ordered else 0 * HOUR, message_group=tag if ordered else None
        )
    timed_broker.tick("t")
    failed = consumer.receive()
    assert bodies(failed) == [b"a"]
    if not is_held:
        consumer.nack(failed, delay=HOUR)
    timed_broker.set_subscription("t", "g", "b")
    timed_broker.rewind("t", "g", "earliest")
    clock.advance(2 * HOUR)
    timed_broker.tick("t")
    assert sorted(bodies(taken(consumer))) == [b"a", b"b"]
