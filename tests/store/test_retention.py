"""Retention by size, the broker's settings, and what maintenance says of it."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest
from tests.acting import AT_ONCE, DAY, HOUR, SECOND
from tests.clock import NOW, Clock
from tests.logged import logged
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.retry_policy import RetryPolicy
from duewheel.store.values.settings import WhenFull
from duewheel.store.wheel.upkeep import Maintenance

EACH = 5
SLOTS = ("message_2026010600", "message_2026010700", "message_2026010800")


@pytest.fixture
def topic(timed_broker: Broker, clock: Clock) -> Broker:
    """Half a megabyte in each of three slots, which are past, and one message that waits."""
    timed_broker.create_topic("t", queues=1, max_delay=100 * DAY, retention=10 * DAY)
    for days in (1, 2, 3):
        timed_broker.send_many(
            "t",
            [
                {"body": os.urandom(100_000), "delay": days * DAY, "key": f"{days}", "tag": "x"}
                for _ in range(EACH)
            ],
        )
    timed_broker.send("t", os.urandom(500_000), delay=50 * DAY, key="waits")
    return timed_broker


def pass_by(broker: Broker, clock: Clock) -> None:
    """The three slots are over, released and sealed."""
    clock.advance(5 * DAY)
    broker.tick("t")
    broker.maintain()
    broker.maintain()


def read(broker: Broker, most: int = 10_000, group: str = "g", **given: Any) -> int:
    consumer = broker.consumer("t", group, **given)
    batch = consumer.receive(max_messages=most)
    consumer.ack(batch)
    return len(batch)


def full(broker: Broker, by: int = 1, when_full: str = "drop_unread") -> Maintenance:
    """A round of maintenance with a limit this many bytes below what there is."""
    broker.update_settings(retention_bytes=broker.settings().message_bytes - by, when_full=when_full)
    return broker.maintain()


def test_d09_the_settings_of_a_broker(broker: Broker) -> None:
    found = broker.settings()
    assert (found.retention_bytes, found.when_full) == (None, WhenFull.KEEP_UNREAD)
    assert found.message_bytes > 0
    broker.update_settings(retention_bytes=2**40)
    broker.update_settings(when_full="DROP_UNREAD")
    found = broker.settings()
    assert (found.retention_bytes, found.when_full) == (2**40, WhenFull.DROP_UNREAD)
    broker.update_settings(retention_bytes=0)
    assert broker.settings().retention_bytes is None
    assert broker.settings().abandoned_after is None
    broker.update_settings(abandoned_after=40 * DAY)
    broker.update_settings(when_full="keep_unread")
    assert broker.settings().abandoned_after == 40 * DAY
    broker.update_settings(abandoned_after=AT_ONCE)
    assert broker.settings().abandoned_after is None
    for name, wrong in (
        *(("retention_bytes", value) for value in (-1, 1.5, 2**63, "1 GB")),
        ("when_full", "explode"),
        *(("abandoned_after", value) for value in (-DAY, 3661 * DAY, 30)),
    ):
        with pytest.raises(InvalidArgument):
            broker.update_settings(**{name: wrong})


def test_d09_over_the_limit_the_oldest_slots_go_first(topic: Broker, clock: Clock) -> None:
    topic.consumer("t", "late")
    # A recalled message is not unread, and an idle topic keeps no slot of others.
    assert topic.recall_many("t", key_prefix="1").recalled == EACH
    topic.create_topic("idle", retention=10 * DAY)
    pass_by(topic, clock)
    done = topic.maintain()
    assert (done.dropped, done.dropped_when_full, done.warnings) == ((), (), ()), "there is no limit"
    done = full(topic)
    assert (done.dropped_when_full, done.warnings) == (SLOTS[:1], ())
    assert read(topic) == read(topic, group="late") == 2 * EACH
    assert done.message_bytes < 2**30
    assert topic.maintain().dropped_when_full == ()
    done = full(topic, by=900_000)
    assert (done.dropped_when_full, done.dropped) == (SLOTS[1:], ())
    assert topic.find_key("t", "waits")


def test_d09_waiting_messages_and_todays_are_never_dropped(topic: Broker, clock: Clock) -> None:
    pass_by(topic, clock)
    topic.send("t", os.urandom(100_000), delay=AT_ONCE, key="now")
    topic.tick("t")
    topic.update_settings(retention_bytes=1)
    done = topic.maintain()
    assert done.dropped_when_full == SLOTS
    (warning,) = done.warnings
    assert "nothing more can be dropped" in warning
    assert [len(topic.find_key("t", key)) for key in ("1", "2", "3", "now", "waits")] == [0, 0, 0, 1, 1]
    clock.advance(50 * DAY)
    assert read(topic) == 2


def test_d09_unread_messages_go_with_a_warning(topic: Broker, clock: Clock) -> None:
    topic.consumer("t", "late")
    pass_by(topic, clock)
    assert read(topic, most=EACH + 2) == EACH + 2
    with logged("duewheel.store.wheel.turning", "Maintenance: dropped slot") as warned:
        done = full(topic, by=900_000)
        warned.wait()
    assert done.dropped_when_full == SLOTS[:2]
    limit = topic.settings().retention_bytes
    assert done.warnings == (
        f"dropped slot {SLOTS[0]} over the limit of {limit} bytes: group late has lost 5 messages of topic t",
        f"dropped slot {SLOTS[1]} over the limit of {limit} bytes: group g has lost 3 messages of topic t",
        f"dropped slot {SLOTS[1]} over the limit of {limit} bytes: group late has lost 5 messages of topic t",
    )
    # Both groups go on with what there is.
    assert (read(topic), read(topic, group="late")) == (EACH, EACH)


def test_d09_unread_messages_can_be_kept(topic: Broker, clock: Clock) -> None:
    topic.consumer("t", "late")
    pass_by(topic, clock)
    read(topic)
    done = full(topic, when_full="keep_unread")
    assert (done.dropped_when_full, done.kept_when_full) == ((), SLOTS)
    assert "kept slot message_2026010600" in done.warnings[0]
    assert "group late has not finished 5 messages of topic t" in done.warnings[0]
    assert read(topic, most=EACH, group="late") == EACH
    done = topic.maintain()
    assert (done.dropped_when_full, done.kept_when_full) == (SLOTS[:1], ())
    assert read(topic, group="late") == 2 * EACH


def test_d09_finished_slots_go_before_older_unread_ones(topic: Broker, clock: Clock) -> None:
    pass_by(topic, clock)
    read(topic, most=1)
    late = topic.consumer("t", "g")
    # The newest two slots are finished, and of the oldest the group still holds one message.
    (held,) = late.receive(max_messages=1)
    assert read(topic) == 3 * EACH - 2
    done = full(topic, by=900_000)
    assert (done.dropped_when_full, done.kept_when_full) == (SLOTS[1:], ())
    assert topic.find(held.message_id)


def test_d09_unread_messages_are_kept_if_dropping_is_not_enough(topic: Broker, clock: Clock) -> None:
    topic.consumer("t", "late")
    pass_by(topic, clock)
    read(topic)
    topic.update_settings(retention_bytes=1, when_full="drop_unread")
    done = topic.maintain()
    assert (done.dropped_when_full, done.kept_when_full) == ((), SLOTS)
    assert read(topic, group="late") == 3 * EACH


@pytest.mark.slow
@pytest.mark.owner
def test_d09_far_messages_take_no_room_from_unread_ones(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", max_delay=100 * DAY)
    timed_broker.consumer("t", "late")
    for _ in range(20):
        timed_broker.send_many("t", [{"body": bytes(1_000), "delay": 20 * DAY}] * 1_000)
    # They move into their slot, and the file that they came in through stays as large as it was.
    clock.advance(21 * DAY)
    timed_broker.maintain()
    timed_broker.tick("t")
    pages = "select sum(pg_total_relation_size(s)) from unnest(%s::regclass[]) s"
    with connected(timed_broker.dsn) as connection:
        while ask(connection, "select settled from duewheel.settle_far(1000, %s)", clock()) != [(0,)]:
            pass
        names = [name for (name,) in ask(connection, "select 'duewheel.' || table_name from duewheel.slot")]
        ((slots,),) = ask(connection, pages, names)
    timed_broker.update_settings(retention_bytes=int(slots) * 6 // 5, when_full="drop_unread")
    clock.advance(DAY)
    for _ in range(3):
        done = timed_broker.maintain()
        assert (done.dropped_when_full, done.kept_when_full, done.warnings) == ((), (), ())
    assert read(timed_broker, group="late") + read(timed_broker, group="late") == 20_000


def test_d09_broadcasting_instances_keep_nothing(topic: Broker, clock: Clock) -> None:
    topic.consumer("t", "b", mode="broadcasting", name="one")
    pass_by(topic, clock)
    done = full(topic, by=900_000, when_full="keep_unread")
    assert (done.dropped_when_full, done.warnings) == (SLOTS[:2], ())
    clock.advance(20 * DAY)
    topic.tick("t")
    assert SLOTS[2] in topic.maintain().dropped


def test_d06_the_history_says_why_a_message_is_gone(topic: Broker, clock: Clock) -> None:
    ids = [topic.find_key("t", key)[0].message_id for key in ("1", "2")]
    topic.consumer("t", "late")
    pass_by(topic, clock)
    full(topic)
    (entry,) = topic.history(ids[0])
    assert (entry.state, entry.at) == ("Deleted", NOW + 5 * DAY)
    assert "retention_bytes, though not every group had finished it" in str(entry.reason)
    assert topic.find(ids[0]) is None
    read(topic, group="late")
    clock.advance(20 * DAY)
    topic.tick("t")
    topic.maintain()
    (entry,) = topic.history(ids[1])
    assert (entry.state, entry.reason) == ("Deleted", "its slot was dropped when its retention ended")


@pytest.mark.parametrize("answer", ["ack", "nack", "expire"])
def test_d09_a_lease_over_a_dropped_slot_ends_in_order(topic: Broker, clock: Clock, answer: str) -> None:
    """Its messages cannot come again; whatever the answer, the group goes on and loses nothing else."""
    consumer = topic.consumer("t", "g")
    pass_by(topic, clock)
    batch = consumer.receive(max_messages=EACH + 2, invisible=HOUR)
    done = full(topic)
    assert done.dropped_when_full == SLOTS[:1]
    assert "group g has lost 5 messages" in done.warnings[0]
    if answer == "ack":
        consumer.ack(batch)
    elif answer == "nack":
        consumer.nack(batch, delay=AT_ONCE)
    else:
        clock.advance(HOUR)
    again = 0 if answer == "ack" else 2
    assert read(topic) == 2 * EACH - 2 + again
    clock.advance(HOUR)
    assert read(topic) == 0


def test_d09_retries_and_dead_letters_of_a_dropped_message_go_on(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g", retry=RetryPolicy.unordered(max_retries=1))
    pass_by(topic, clock)
    consumer.nack(consumer.receive(max_messages=EACH), delay=AT_ONCE)
    consumer.ack(consumer.receive(max_messages=2 * EACH + EACH)[EACH:])
    full(topic)
    assert topic.find_key("t", "1") == []
    clock.advance(timedelta(minutes=2))
    consumer.nack(consumer.receive(max_messages=EACH))
    assert len(topic.dead_letters("g")) == EACH
    assert topic.redrive("g").redriven == EACH
    assert read(topic) == EACH


@pytest.mark.parametrize("answer", ["ack", "nack", "expire"])
def test_d09_a_message_group_continues_after_a_dropped_slot(
    timed_broker: Broker, clock: Clock, answer: str
) -> None:
    """One message of a FIFO topic is held and more of its message group wait behind it when the slot goes."""
    timed_broker.create_topic("f", message_type="FIFO", queues=1, retention=10 * DAY)
    consumer = timed_broker.consumer("f", "g")
    for number in range(4):
        timed_broker.send("f", os.urandom(100_000), message_group="a", key=f"{number}")
    clock.advance(SECOND)
    consumer.receive(max_messages=1, invisible=SECOND)
    clock.advance(2 * DAY)
    held = consumer.receive(max_messages=1, invisible=5 * HOUR)
    timed_broker.send("f", b"new", message_group="a")
    timed_broker.maintain()
    timed_broker.maintain()
    done = full(timed_broker, by=300_000)
    assert done.dropped_when_full == ("message_2026010500",)
    assert "group g has lost 4 messages of topic f" in done.warnings[0]
    if answer == "ack":
        consumer.ack(held)
    elif answer == "nack":
        consumer.nack(held)
    clock.advance(6 * HOUR)
    found = []
    while batch := consumer.receive(max_messages=1):
        found += [message.body for message in batch]
        consumer.ack(batch)
        clock.advance(SECOND)
    assert found == [b"new"]


def test_d09_a_queue_released_late_as_a_whole_keeps_no_slot(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=2, retention=DAY)
    consumer = timed_broker.consumer("t", "g")
    # The first tick has passed the instant of the others.
    for _ in range(4):
        timed_broker.send_many("t", [{"body": b"x", "delay": AT_ONCE}])
        timed_broker.tick("t")
    for _ in range(4):
        consumer.ack(consumer.receive(max_messages=10))
    clock.advance(3 * DAY)
    timed_broker.maintain()
    done = timed_broker.maintain()
    assert done.kept_unread == ()
    with connected(timed_broker.dsn) as connection:
        assert ask(connection, "select count(*) from duewheel.any_message") == [(0,)]


@pytest.mark.owner
def test_d09_a_slot_in_use_is_dropped_later(topic: Broker, clock: Clock) -> None:
    pass_by(topic, clock)
    with connected(topic.dsn, autocommit=False) as reader:
        ask(reader, f"select count(*) from duewheel.{SLOTS[0]}")
        done = full(topic)
        assert (done.dropped_when_full, done.kept_in_use) == ((), SLOTS[:1])
    assert topic.maintain().dropped_when_full == SLOTS[:1]


def test_d09_late_messages_that_are_done_are_not_ready_again(timed_broker: Broker, clock: Clock) -> None:
    """Their rows stay until their slot goes, when no log says any more who read them."""
    broker = timed_broker
    broker.create_topic("t", retention=timedelta(hours=5))
    consumer = broker.consumer("t", "g")
    for hours in (30, 7):
        # The last look released up to this very instant: these messages come late.
        broker.send_many("t", [{"body": b"", "delay": AT_ONCE}] * 9)
        clock.advance(HOUR)
        consumer.ack(consumer.receive(max_messages=10))
        clock.advance(timedelta(hours=hours))
        broker.maintain()
        (bell,) = broker.doorbells(["t"], ["g"])
        assert bell.ready == 0
    assert not consumer.receive()
