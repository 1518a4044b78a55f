"""The numbers of one topic, and of the groups that match a filter."""

from __future__ import annotations

from datetime import timedelta

import pytest

from duewheel.store import UnknownTopic
from duewheel.store.broker import Broker
from duewheel.store.operations import statistics
from duewheel.store.values.limits import LONGEST_WAIT


@pytest.fixture
def shop(broker: Broker) -> Broker:
    """Three topics; the group ``ship`` reads two of them, and ``bill`` one."""
    for name in ("a", "b", "c"):
        broker.create_topic(name, message_type="NORMAL")
        broker.send(name, b"")
    for topic, group in (("a", "ship"), ("b", "ship"), ("b", "bill")):
        broker.consumer(topic, group).receive(wait=LONGEST_WAIT)
    broker.consumer("c", "news", mode="broadcasting", name="one").receive(wait=LONGEST_WAIT)
    return broker


def test_the_numbers_of_one_topic(shop: Broker) -> None:
    shop.create_topic("later")
    shop.send("later", b"", delay=timedelta(hours=1))
    found = statistics.topic_numbers(shop, "later")
    assert (found.topic, found.waiting) == ("later", 1)
    with pytest.raises(UnknownTopic, match='there is no topic "bb"'):
        statistics.topic_numbers(shop, "bb")


def test_topics_are_searched_by_a_part_of_their_name(broker: Broker) -> None:
    for name in ("mail.in", "mail.out", "orders", "voicemail"):
        broker.create_topic(name)
    found, following = statistics.topics_named(broker, "mail", None, 2)
    assert ([one.topic for one in found], following) == (["mail.in", "mail.out"], "mail.out")
    found, following = statistics.topics_named(broker, "mail", following, 2)
    assert ([one.topic for one in found], following) == (["voicemail"], None)
    assert statistics.topics_named(broker, "none") == ([], None)


@pytest.mark.parametrize(
    ("group", "topic", "expected"),
    [
        ("ship", None, [("ship", "a"), ("ship", "b")]),
        (None, "b", [("bill", "b"), ("ship", "b")]),
        ("ship", "b", [("ship", "b")]),
        ("ship", "c", []),
        ("news", None, [("news/one", "c")]),
        ("news/one", "c", [("news/one", "c")]),
        ("none", None, []),
    ],
)
def test_groups_match_by_group_and_topic(
    shop: Broker, group: str | None, topic: str | None, expected: list[tuple[str, str]]
) -> None:
    found, groups_to = statistics.matching_groups(shop, group, topic, 5_000)
    assert sorted((one.group, one.topic) for one in found) == expected
    assert groups_to is None


def test_where_time_is_up_the_last_topic_is_named(shop: Broker) -> None:
    assert statistics.matching_groups(shop, "ship", None, -1) == ([], "")


def test_groups_of_an_unknown_topic_are_an_error(shop: Broker) -> None:
    with pytest.raises(UnknownTopic):
        statistics.matching_groups(shop, None, "none", 5_000)
