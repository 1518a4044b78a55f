"""Bulk reschedule: all that match are moved, each once, by portions that may be broken off."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.acting import AT_ONCE, DAY, HOUR, SECOND, taken
from tests.clock import NOW, Clock
from tests.waiting import ask, beside, connected, until_somebody_waits

from duewheel.store.broker import Broker
from duewheel.store.database.connections import OWN_TRANSACTION
from duewheel.store.operations import recalling
from duewheel.store.operations.recalling import reschedule_portion
from duewheel.store.values.errors import DelayOutOfRange, InvalidArgument, UnknownTopic

NOTHING: dict[str, Any] = dict.fromkeys(("tag", "key_prefix", "due_from", "due_until"))


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    timed_broker.create_topic("t", queues=2, max_delay=400 * DAY)
    return timed_broker


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many a portion moves."""
    return lambda number: monkeypatch.setattr(recalling, "_MOVED_AT_ONCE", number)


def portion(
    broker: Broker, to: datetime, *, after: str | None = None, dry_run: bool = False, **criteria: Any
) -> tuple[int, int, str | None]:
    return reschedule_portion(broker, "t", deliver_at=to, after=after, dry_run=dry_run, **NOTHING | criteria)


def move_all(broker: Broker, to: datetime, *, after: str | None = None, **criteria: Any) -> tuple[int, int]:
    """All portions from a place on: how many matched, and how many were moved."""
    matched = moved = 0
    while True:
        found, done, after = portion(broker, to, after=after, **criteria)
        matched += found
        moved += done
        if after is None:
            return matched, moved


def waiting(broker: Broker) -> list[tuple[str | None, datetime]]:
    found = broker.list_messages("t", max_messages=1_000).messages
    return sorted((one.key or "", one.deliver_at) for one in found)


def received(broker: Broker) -> list[str]:
    consumer = broker.consumer("t", "g")
    batch = consumer.receive(max_messages=10_000)
    consumer.ack(batch)
    return [message.body.decode() for message in batch]


def send(broker: Broker, number: int, delay: timedelta = HOUR, step: timedelta = HOUR, **given: Any) -> None:
    broker.send_many(
        "t",
        [
            {"body": f"{n}".encode(), "key": f"k{n}", "delay": delay + n * step, **given}
            for n in range(number)
        ],
    )


@pytest.mark.parametrize(
    ("target", "criteria"),
    [
        (AT_ONCE, {}),
        (HOUR / 2, {"key_prefix": "k"}),
        (5.5 * HOUR, {"tag": "x"}),
        (5.5 * HOUR, {"key_prefix": "k"}),
        (20 * DAY, {}),
        (300 * DAY, {"key_prefix": "k"}),
    ],
    ids=str,
)
def test_x02_all_that_match_are_moved_each_once(
    topic: Broker, clock: Clock, at_once: Callable[[int], None], criteria: dict[str, str], target: timedelta
) -> None:
    # Makes the slots of the next days: near messages are in one table, far ones in another.
    topic.maintain()
    send(topic, 9, tag="x", properties={"shop": "north"})
    send(topic, 3, delay=350 * DAY, tag="x", properties={"shop": "north"})
    at_once(2)
    assert move_all(topic, NOW + target, **criteria) == (12, 12)
    assert {at for _, at in waiting(topic)} == {NOW + target}
    clock.advance(target)
    came = [
        (message.body, message.key, message.tag, message.properties.get("shop"))
        for message in taken(topic.consumer("t", "g"))
    ]
    assert sorted(came) == sorted((b"%d" % n, f"k{n}", "x", "north") for n in (*range(9), *range(3)))
    clock.advance(400 * DAY)
    assert received(topic) == []


def test_every_first_portion_has_a_transaction_of_its_own(topic: Broker) -> None:
    """One number of a sequence in 32 takes a transaction id."""
    for _ in range(40):
        assert portion(topic, NOW + HOUR)[:2] == (0, 0)


def test_x02_what_does_not_match_stays(topic: Broker) -> None:
    send(topic, 5, tag="x")
    topic.send("t", b"", delay=2 * HOUR, key="other", tag="x")
    topic.send("t", b"", delay=2 * HOUR, key="k-y", tag="y")
    given = {"key_prefix": "k", "tag": "x", "due_from": NOW + 2 * HOUR, "due_until": NOW + 4 * HOUR}
    assert move_all(topic, NOW + DAY, **given) == (2, 2)
    stayed = {"k-y": 2, "k0": 1, "k1": 24, "k2": 24, "k3": 4, "k4": 5, "other": 2}
    assert waiting(topic) == [(key, NOW + hours * HOUR) for key, hours in stayed.items()]


@pytest.mark.parametrize(
    ("target", "criteria"),
    [(AT_ONCE, {}), (5.5 * HOUR, {}), (5.5 * HOUR, {"key_prefix": "k"}), (300 * DAY, {"key_prefix": "k"})],
    ids=str,
)
def test_x02_an_interrupted_move_continues(
    topic: Broker, at_once: Callable[[int], None], target: timedelta, criteria: dict[str, str]
) -> None:
    send(topic, 10)
    at_once(4)
    found, moved, place = portion(topic, NOW + target, **criteria)
    assert (found, moved) == (4, 4)
    assert portion(topic, NOW + target, after=place, dry_run=True, **criteria)[0] == 6
    # Done again without its place, it does the rest, too.
    assert portion(topic, NOW + target, dry_run=True, **criteria)[0] == 6
    # A message that is sent meanwhile is not among those it began with.
    topic.send("t", b"", delay=400 * DAY, key="k-late")
    assert move_all(topic, NOW + target, after=place, **criteria) == (6, 6)
    assert [at for _, at in waiting(topic)].count(NOW + target) == 10
    assert topic.list_messages("t", state="moved").messages[0].moved_to is not None
    assert len(topic.list_messages("t", state="moved").messages) == 10


def test_x21_every_id_finds_what_was_moved_in_bulk(topic: Broker) -> None:
    first = topic.send("t", b"", delay=HOUR, key="k").message_id
    second = topic.reschedule(first, delay=2 * HOUR).message_id
    assert move_all(topic, NOW + 3 * HOUR) == (1, 1)
    found = topic.find(first)
    assert found is not None
    assert (found.deliver_at, found.moved_from) == (NOW + 3 * HOUR, first)
    assert topic.find(second) == found
    assert [entry.state for entry in topic.history(found.message_id)].count("Moved") == 2


def test_x02_what_was_sent_behind_the_newest_tick_is_moved_too(topic: Broker, clock: Clock) -> None:
    clock.advance(DAY)
    topic.tick("t")
    clock.advance(-DAY)
    topic.send("t", b"behind", delay=HOUR)
    assert portion(topic, NOW + 2 * DAY, dry_run=True)[0] == 1
    assert move_all(topic, NOW + 2 * DAY) == (1, 1)
    clock.advance(DAY + HOUR)
    assert received(topic) == []
    clock.advance(DAY)
    assert received(topic) == ["behind"]


def test_x02_bodies_of_megabytes_go_in_small_portions(topic: Broker) -> None:
    topic.send_many("t", [{"body": bytes(4 * 1024 * 1024), "delay": HOUR}] * 12)
    found, moved, place = portion(topic, NOW + DAY)
    assert (found, moved) == (8, 8)
    assert move_all(topic, NOW + DAY, after=place) == (4, 4)
    assert [at for _, at in waiting(topic)] == [NOW + DAY] * 12


@pytest.mark.owner
def test_x03_a_message_released_meanwhile_is_not_moved(topic: Broker, clock: Clock) -> None:
    """A tick between the rows of a portion and its check, which waits for the tick's lock."""
    with connected(topic.dsn, autocommit=False) as wheel, connected(topic.dsn) as other:
        first, soon, later = (topic.send("t", b"", delay=delay) for delay in (HOUR, SECOND, HOUR))
        # One that was moved before, and one that was not.
        first = topic.reschedule(first.message_id, deliver_at=soon.deliver_at)
        ask(wheel, "select pg_advisory_xact_lock(duewheel.tick_lock_class(), topic_id) from duewheel.topic")
        with beside() as begin:
            answer = begin(lambda: portion(topic, later.deliver_at + HOUR))
            until_somebody_waits(topic.dsn)
            ticking = f"{OWN_TRANSACTION}select duewheel.tick_topic(topic_id, %s) from duewheel.topic"
            ask(wheel, ticking, NOW + 2 * SECOND)
            wheel.commit()
            assert answer.result()[:2] == (3, 1)
        ((noted, stored),) = ask(
            other,
            "select (select count(*) from duewheel.moved_id), (select count(*) from duewheel.any_message)",
        )
        # Two ids of the first and two of the last; each where it was sent, and where it was moved to.
        assert (noted, stored) == (4, 5)
    clock.advance(2 * SECOND)
    received_ids = {one.message_id for one in topic.consumer("t", "g").receive(max_messages=10)}
    assert received_ids == {soon.message_id, first.message_id}
    moved = topic.find(later.message_id)
    assert moved is not None
    assert moved.deliver_at == later.deliver_at + HOUR


def test_what_makes_no_sense_is_refused(topic: Broker) -> None:
    send(topic, 1)
    with pytest.raises(DelayOutOfRange):
        portion(topic, NOW + 401 * DAY)
    with pytest.raises(InvalidArgument):
        portion(topic, NOW + DAY, due_from=NOW, due_until=NOW)
    with pytest.raises(UnknownTopic):
        reschedule_portion(topic, "none", deliver_at=NOW, after=None, dry_run=False, **NOTHING)
