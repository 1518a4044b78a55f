"""Finding messages, their history, dead letters, numbers, doorbells, topics."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any

import pytest
from tests.acting import AT_ONCE, HOUR, SECOND, rows
from tests.clock import NOW, Clock
from tests.waiting import connected

from duewheel.store.broker import Broker
from duewheel.store.operations import overview
from duewheel.store.operations.statistics import GroupNumbers
from duewheel.store.values.doorbells import Doorbell
from duewheel.store.values.errors import InvalidArgument, NulInText, TopicExists, UnknownGroup, UnknownTopic
from duewheel.store.values.messages import MessageType, OutOfRange
from duewheel.store.values.topics import Topic

# --- messages


def test_x02_messages_are_found_by_key_and_id(topic: Broker, clock: Clock) -> None:
    second = topic.send("t", b"2", delay=2 * HOUR, key="k")
    first = topic.send("t", b"1", delay=HOUR, key="k")
    assert [one.message_id for one in topic.find_key("t", "k")] == [first.message_id, second.message_id]
    assert topic.find_key("t", "other") == []
    clock.advance(HOUR)
    topic.tick("t")
    topic.recall(second.message_id)
    found = [topic.find(receipt.message_id) for receipt in (first, second)]
    assert [(one.released, one.recalled) for one in found if one] == [(True, False), (False, True)]
    assert topic.find("0" * 44) is None
    assert topic.history("0" * 44) == []
    with pytest.raises(UnknownGroup):
        topic.dead_letters("g")
    topic.consumer("t", "g")
    assert topic.dead_letters("g") == []
    for bad in (0, 10_001, "5"):
        with pytest.raises(InvalidArgument, match="1 to 10000"):
            topic.dead_letters("g", max_messages=bad)  # type: ignore[arg-type]


# --- numbers


def test_numbers_of_topics_and_groups(topic: Broker, clock: Clock) -> None:
    topic.create_topic("empty", message_type="NORMAL")
    topic.send_many("t", [{"body": b"", "delay": n * SECOND} for n in range(1, 11)])
    consumer = topic.consumer("t", "g")
    clock.advance(4 * SECOND)
    consumer.nack(consumer.receive(max_messages=1), delay=HOUR)
    consumer.receive(max_messages=2)
    empty, found = topic.stats().topics
    assert (empty.topic, empty.message_type) == ("empty", MessageType.NORMAL)
    assert (empty.waiting, empty.groups) == (0, ())
    assert (found.topic, found.message_type) == ("t", MessageType.DELAY)
    assert (found.waiting, found.waiting_is_exact) == (6, True)
    assert (found.next_due_at, found.released_to) == (NOW + 5 * SECOND, NOW + 4 * SECOND)
    assert found.groups == (
        GroupNumbers(
            "g", "t", ready=1, oldest_deliver_at=NOW + 4 * SECOND, inflight=2, inflight_is_exact=True,
            waiting_retry=1, dead=0, dropped_soon=0, paused_at=None, idle_since=None, abandoned_since=None,
            kept_messages=0, kept_bytes=0,
        ),
    )  # fmt: skip


def test_x08_doorbells_count_ready_messages_and_name_holders(topic: Broker, clock: Clock) -> None:
    first, second = (topic.consumer("t", "g", name=name) for name in "ab")
    topic.send_many("t", [{"body": b"", "delay": 10 * SECOND}] * 3)
    (before,) = topic.doorbells(["t"], ["g"])
    assert before == Doorbell("t", "g", 0, None, NOW + 10 * SECOND, inflight=False)
    clock.advance(10 * SECOND)
    (ready,) = topic.doorbells(["t", "t"], ["g", "unknown"])
    assert (ready.ready, ready.oldest_deliver_at, ready.inflight) == (3, NOW + 10 * SECOND, False)
    held = first.receive(max_messages=1)
    second.receive(max_messages=1)
    (bell,) = topic.doorbells(["t"], ["g"])
    assert (bell.ready, bell.inflight, bell.holders) == (1, True, ("a", "b"))
    first.ack(held)
    second.receive()
    (bell,) = topic.doorbells(["t"], ["g"])
    assert (bell.ready, bell.inflight, bell.holders) == (0, True, ("b",))
    assert topic.doorbells([], []) == []
    with pytest.raises(InvalidArgument, match="pairs"):
        topic.doorbells(["t"], [])
    with pytest.raises(NulInText):
        topic.doorbells(["t"], ["\0"])


@pytest.mark.owner
@pytest.mark.parametrize("message_type", ["DELAY", "FIFO"])
def test_x08_a_message_that_came_late_is_ready_once(
    timed_broker: Broker, clock: Clock, dsn: str, message_type: str
) -> None:
    timed_broker.create_topic("t", message_type=message_type, queues=1)
    consumer = timed_broker.consumer("t", "g")
    delay = SECOND if message_type == "DELAY" else None
    with connected(dsn, autocommit=False) as slow:
        late = [
            timed_broker.send("t", b"late", delay=delay, message_group=str(n), connection=slow)
            for n in range(2)
        ]
        timed_broker.send_many(
            "t", [{"body": b"", "delay": delay, "message_group": f"in time {n}"} for n in "12"]
        )
        clock.advance(SECOND)
        timed_broker.tick("t")
        slow.commit()
    # Committed, and no tick has seen it yet.
    ((group_id, topic_id),) = rows(timed_broker, "select group_id, topic_id from duewheel.subscription")
    count = "select ready from duewheel.count_ready(%s, %s, 0::smallint, %s, 10000)"
    assert rows(timed_broker, count, group_id, topic_id, clock()) == [(2,)]
    clock.advance(SECOND)
    timed_broker.tick("t")
    (bell,) = timed_broker.doorbells(["t"], ["g"])
    timed_broker.set_subscription("t", "g", filter="!exists($.amount) || $.amount > 1")
    (chosen,) = timed_broker.doorbells(["t"], ["g"])
    ((numbers,),) = [one.groups for one in timed_broker.stats().topics]
    assert {bell.ready, chosen.ready, numbers.ready} == {4}
    assert bell.oldest_deliver_at == late[0].deliver_at
    assert len(consumer.receive()) == 4
    (bell,) = timed_broker.doorbells(["t"], ["g"])
    assert bell.ready == 0


def test_x08_a_message_that_is_held_back_waits(topic: Broker, clock: Clock) -> None:
    """The clock was ahead when the topic was released."""
    topic.consumer("t", "g")
    topic.send("t", b"", delay=HOUR)
    clock.advance(HOUR)
    topic.tick("t")
    clock.advance(-HOUR)
    held = [topic.send("t", b"behind", delay=SECOND * n, key=f"k{n}").message_id for n in (1, 2)]
    ahead = topic.send("t", b"ahead", delay=2 * HOUR, key="k3").message_id

    def listed(state: str, **where: Any) -> list[str]:
        found, after = [], None
        while True:
            page = topic.list_messages(state=state, after=after, max_messages=1, **where)
            found += [one.message_id for one in page.messages]
            if (after := page.next) is None:
                return found

    for where in ({}, {"topic": "t"}, {"key_prefix": "k"}, {"due_until": NOW + 3 * HOUR}):
        assert listed("waiting", **where) == [*held, ahead]
    assert listed("waiting", due_from=NOW + 2 * SECOND) == [held[1], ahead]
    assert set(listed("released")).isdisjoint(held)
    (numbers,) = topic.stats().topics
    assert (numbers.waiting, numbers.waiting_is_exact) == (3, True)
    assert numbers.next_due_at == NOW + SECOND
    assert [one.topic for one in overview.overdue_topics(topic, NOW + SECOND)[0]] == ["t"]
    assert overview.overdue_topics(topic, NOW) == ([], False)
    topic.recall(held[0])
    assert overview.overdue_topics(topic, NOW + SECOND) == ([], False)
    assert listed("waiting") == [held[1], ahead]
    clock.advance(2 * SECOND)
    topic.tick("t")
    assert listed("waiting") == [ahead]
    (numbers,) = topic.stats().topics
    assert (numbers.waiting, numbers.next_due_at) == (1, NOW + 2 * HOUR)


def test_d12_doorbells_count_only_what_tags_and_filter_choose(topic: Broker, clock: Clock) -> None:
    for group, tags, chosen in (
        ("paid", "paid", None),
        ("open", "open", None),
        ("dear", "*", "$.amount > 150"),
        ("none", "nothing", None),
    ):
        topic.consumer("t", group, tags, filter=chosen)
    for n, tag in enumerate(["paid", "open", "open"]):
        topic.send("t", b"", delay=(n + 1) * SECOND, tag=tag, properties={"amount": 100 * n})
    clock.advance(10 * SECOND)
    paid, open_, dear, none = topic.doorbells(["t"] * 4, ["paid", "open", "dear", "none"])
    assert (paid.ready, paid.oldest_deliver_at) == (1, NOW + SECOND)
    assert (open_.ready, open_.oldest_deliver_at) == (2, NOW + 2 * SECOND)
    assert (dear.ready, dear.oldest_deliver_at) == (1, NOW + 3 * SECOND)
    assert (none.ready, none.oldest_deliver_at, none.next_at) == (0, None, None)
    # But a retry whatever its tag.
    consumer = topic.consumer("t", "paid")
    consumer.nack(consumer.receive(), delay=AT_ONCE)
    topic.set_subscription("t", "paid", "open")
    (bell,) = topic.doorbells(["t"], ["paid"])
    assert bell.ready == 1


# --- topics


def test_d11_a_topic_has_the_settings_it_was_made_with(broker: Broker) -> None:
    broker.create_topic("plain")
    broker.create_topic(
        "special",
        message_type=MessageType.NORMAL,
        queues=2,
        max_delay=timedelta(days=30, microseconds=1),
        out_of_range="deliver",
        granularity=timedelta(milliseconds=1),
        retention=timedelta(hours=1),
    )
    plain, special = broker.topics()
    day = timedelta(days=1)
    assert plain == Topic(
        "plain", MessageType.DELAY, 4, day, OutOfRange.REJECT, timedelta(milliseconds=15), 3 * day,
        plain.created_at, plain.delay_levels, 30 * day,
    )  # fmt: skip
    assert plain.created_at.tzinfo is UTC
    assert (special.message_type, special.queues, special.out_of_range) == ("NORMAL", 2, OutOfRange.DELIVER)
    assert special.max_delay == timedelta(days=30, microseconds=1)
    assert (special.granularity, special.retention) == (timedelta(milliseconds=1), HOUR)
    # Made again with the same settings, or without some, it stays; and it can be changed.
    broker.create_topic(
        "special",
        message_type="normal",
        queues=2,
        max_delay=special.max_delay,
        out_of_range="deliver",
        retention=HOUR,
    )
    for other in ({"max_delay": 2 * HOUR}, {"granularity": timedelta(milliseconds=100)}):
        with pytest.raises(TopicExists, match=next(iter(other))):
            broker.create_topic("plain", **other)
    assert broker.topics() == [plain, special]
    broker.update_topic("plain", max_delay=HOUR, out_of_range="DELIVER")
    changed, _ = broker.topics()
    assert (changed.max_delay, changed.out_of_range, changed.retention) == (HOUR, OutOfRange.DELIVER, 3 * day)
    with pytest.raises(UnknownTopic):
        broker.update_topic("none", max_delay=HOUR)


def test_d11_a_topic_can_be_deleted_and_made_anew(broker: Broker) -> None:
    broker.create_topic("t")
    broker.send("t", b"old", delay=AT_ONCE)
    old = broker.consumer("t", "g")
    broker.delete_topic("t")
    assert broker.topics() == []
    with pytest.raises(UnknownTopic):
        broker.send("t", b"", delay=HOUR)
    with pytest.raises(UnknownTopic):
        old.receive()
    with pytest.raises(UnknownTopic):
        broker.delete_topic("t")
    broker.create_topic("t", queues=1)
    broker.send("t", b"new", delay=AT_ONCE)
    assert [message.body for message in broker.consumer("t", "g").receive()] == [b"new"]


def test_bad_settings_are_refused(broker: Broker) -> None:
    bad: dict[str, list[Any]] = {
        "name": ["", "a b", "x" * 128, "%RETRY%", None],
        "message_type": ["LATER"],
        "queues": [0, 65, 2.0, 2**40],
        "max_delay": [AT_ONCE, timedelta(days=3661), 60],
        "out_of_range": ["drop"],
        "granularity": [timedelta(microseconds=999), 2 * HOUR],
        "retention": [AT_ONCE],
        "dead_letter_retention": [AT_ONCE],
        "delay_levels": [
            *([], [AT_ONCE] * 65, [AT_ONCE, timedelta(microseconds=-1)]),
            *([timedelta(days=3661)], [60], "1s 5s", SECOND),
        ],
    }
    for setting, values in bad.items():
        for value in values:
            with pytest.raises(InvalidArgument):
                broker.create_topic(**{"name": "t", setting: value})
    assert broker.topics() == []
