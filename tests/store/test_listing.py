"""Listing messages by pages: every message once, in order, whatever waits (X08)."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.acting import DAY, HOUR, MINUTE
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store import InvalidArgument, MessagePage, UnknownMessage, UnknownTopic
from duewheel.store.broker import Broker


def everything(broker: Broker, *topic: str, **given: Any) -> list[Any]:
    """All pages, one after another."""
    page = broker.list_messages(*topic, **given)
    found = list(page.messages)
    while page.next is not None:
        page = broker.list_messages(*topic, after=page.next, **given)
        found += page.messages
    return found


@pytest.fixture
def topic(timed_broker: Broker, clock: Clock) -> Broker:
    """240 messages from an hour to ten years ahead, in slots and far, some of them released or recalled."""
    timed_broker.create_topic("t", queues=3, max_delay=3_660 * DAY)
    draw = random.Random(1)
    timed_broker.send_many(
        "t",
        [
            {
                "body": b"",
                "delay": HOUR + draw.choice([DAY, 60 * DAY, 3_650 * DAY]) * draw.random(),
                "key": f"{number % 7}/{number}",
                "tag": f"tag{number % 5}",
            }
            for number in range(240)
        ],
    )
    timed_broker.maintain()
    clock.advance(2 * HOUR)
    timed_broker.tick("t")
    assert timed_broker.recall_many("t", key_prefix="3/").recalled > 10
    return timed_broker


def test_x08_the_pages_together_are_all_messages_in_order(topic: Broker, clock: Clock) -> None:
    found = everything(topic, "t", state="all")
    for size in (1, 7):
        assert everything(topic, "t", state="all", max_messages=size) == found
    assert len({one.message_id for one in found}) == len(found) == 240
    assert [one.deliver_at for one in found] == sorted(one.deliver_at for one in found)
    for one in found:
        stored = topic.find(one.message_id)
        assert stored is not None
        for name in ("key", "tag", "born_at", "released", "recalled"):
            assert getattr(one, name) == getattr(stored, name), name
    # Each is in one state.
    for state, released, recalled in (
        ("waiting", False, False),
        ("released", True, False),
        ("recalled", None, True),
    ):
        expected = [one for one in found if one.recalled is recalled and released in (None, one.released)]
        assert everything(topic, "t", state=state) == expected != []
    # By a key prefix they are in the order of the keys.
    keys = sorted(f"5/{number}" for number in range(240) if number % 7 == 5)
    for size in (3, 1_000):
        of_key = everything(topic, "t", state="all", key_prefix="5/", max_messages=size)
        assert [one.key for one in of_key] == keys
    due_from, due_until = clock() + 10 * DAY, clock() + 1_000 * DAY
    expected = [
        one for one in everything(topic, "t") if one.tag == "tag2" and due_from <= one.deliver_at < due_until
    ]
    assert everything(topic, "t", tag="tag2", due_from=due_from, due_until=due_until) == expected != []


def test_x08_topics_and_recalled_messages_are_listed_in_order(topic: Broker, clock: Clock) -> None:
    topic.create_topic("empty")
    topic.create_topic("a", max_delay=DAY)
    topic.create_topic("u", queues=2)
    for _ in range(5):
        topic.send("a", b"", delay=HOUR)
    for minutes in (90, 70, 80):
        topic.recall(topic.send("u", b"", delay=minutes * MINUTE, tag="late").message_id)
    found = everything(topic, max_messages=2)
    assert [one.topic for one in found][:6] == ["a"] * 5 + ["t"]
    assert found[5:] == everything(topic, "t")
    recalled = [one for one in everything(topic, state="all", max_messages=1_000) if one.recalled]
    assert {one.topic for one in recalled} == {"t", "u"}
    window = {"due_from": clock(), "due_until": clock() + 80 * MINUTE}
    within = [one for one in recalled if window["due_from"] <= one.deliver_at < window["due_until"]]
    late = [one for one in recalled if one.tag == "late"]
    for size in (1, 7, 1_000):
        assert everything(topic, state="recalled", max_messages=size) == recalled
        assert everything(topic, state="recalled", max_messages=size, **window) == within != []
        assert everything(topic, state="recalled", max_messages=size, tag="late") == late


def test_x08_a_page_of_a_rare_tag_ends_before_it_has_read_all(timed_broker: Broker) -> None:
    timed_broker.create_topic("t", queues=2)
    messages = [{"body": b"", "delay": HOUR + timedelta(seconds=n), "tag": "often"} for n in range(12_000)]
    timed_broker.send_many("t", messages)
    timed_broker.send("t", b"", delay=12 * HOUR, tag="rare")
    page = timed_broker.list_messages("t", tag="rare")
    assert page.messages == ()
    assert page.next is not None
    assert [one.tag for one in everything(timed_broker, "t", tag="rare")] == ["rare"]


@pytest.mark.parametrize("key_prefix", [None, "k"])
def test_x08_a_moved_message_is_listed_at_both_instants(timed_broker: Broker, key_prefix: str | None) -> None:
    timed_broker.create_topic("t", max_delay=DAY)
    first = timed_broker.send("t", b"", delay=HOUR, key="k").message_id
    second = timed_broker.reschedule(first, delay=2 * HOUR).message_id
    third = timed_broker.reschedule(second, delay=3 * HOUR).message_id

    def listed(state: str) -> list[tuple[str, str | None, bool]]:
        found = everything(timed_broker, "t", state=state, key_prefix=key_prefix, max_messages=1)
        return [(one.message_id, one.moved_to, one.recalled) for one in found]

    left = [(first, third, False), (second, third, False)]
    assert listed("moved") == left
    assert listed("recalled") == []
    assert listed("waiting") == [(third, None, False)]
    timed_broker.recall(first)
    assert listed("all") == [*left, (third, None, True)]
    assert listed("recalled") == [(third, None, True)]


def test_what_makes_no_sense_is_refused(broker: Broker) -> None:
    assert broker.list_messages() == MessagePage((), None)
    broker.create_topic("t")
    refused: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"topic": "nowhere"}, UnknownTopic),
        ({"state": "gone"}, InvalidArgument),
        ({"max_messages": 0}, InvalidArgument),
        ({"max_messages": 1_001}, InvalidArgument),
        ({"after": "x"}, InvalidArgument),
        ({"after": "0" * 44}, UnknownMessage),
    ]
    for given, error in refused:
        with pytest.raises(error):
            broker.list_messages(**{"topic": "t", **given})


@pytest.mark.slow
@pytest.mark.parametrize("state", ["waiting", "recalled"])
def test_x08_a_page_costs_the_same_beside_a_hundred_thousand(broker: Broker, state: str) -> None:
    """By the keys, on tables that were never analyzed: what a page touches does not grow with what waits."""
    broker.create_topic("t", max_delay=3_660 * DAY)
    start = datetime.now(UTC)

    def touched() -> int:
        with connected(broker.dsn) as connection:
            listed = "select * from duewheel.list_messages('t', %s)"
            ask(connection, listed, state)
            ((plan,),) = ask(connection, f"explain (analyze, buffers, format json) {listed}", state)
        return int(plan[0]["Plan"]["Shared Hit Blocks"]) + int(plan[0]["Plan"]["Shared Read Blocks"])

    broker.send_many(
        "t", [{"body": b"", "deliver_at": start + HOUR + timedelta(minutes=n)} for n in range(1_000)]
    )
    broker.recall_many("t", due_from=start + 10 * HOUR)
    few = touched()
    broker.send_many(
        "t", [{"body": b"", "deliver_at": start + HOUR + timedelta(seconds=n)} for n in range(100_000)]
    )
    assert touched() < 3 * few
