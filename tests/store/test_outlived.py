"""Messages that are kept for longer than their slot move out of it, and the slot goes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable

import pytest
from tests.acting import AT_ONCE, DAY, HOUR, SECOND
from tests.clock import NOW as FIRST
from tests.clock import Clock
from tests.proof.test_horizon import KILLED
from tests.upkeeping import only, portion, portions
from tests.waiting import ask, beside, connected

from duewheel.store.broker import Broker
from duewheel.store.values.errors import LeaseLost
from duewheel.store.values.messages import RecallOutcome

pytestmark = pytest.mark.owner

#: More than half of the slot.
MANY = 10


@pytest.fixture
def shop(timed_broker: Broker) -> Broker:
    """Two topics of different retention, both with messages that are due now."""
    timed_broker.create_topic("short", retention=3 * DAY)
    timed_broker.create_topic("long", retention=30 * DAY, max_delay=90 * DAY)
    timed_broker.consumer("short", "g")
    timed_broker.consumer("long", "g")
    send(timed_broker, "short", range(MANY))
    send(timed_broker, "long", range(3))
    return timed_broker


def send(broker: Broker, topic: str, numbers: Iterable[int]) -> list[str]:
    receipts = broker.send_many(
        topic, [{"body": b"%d" % n, "delay": AT_ONCE, "key": f"{n}"} for n in numbers]
    )
    broker.tick(topic)
    return [receipt.message_id for receipt in receipts]


def work_off(broker: Broker, topic: str, group: str = "g") -> list[bytes]:
    consumer, found = broker.consumer(topic, group), []
    while batch := consumer.receive(max_messages=100):
        consumer.ack(batch)
        found += [message.body for message in batch]
    return sorted(found)


def later(broker: Broker, clock: Clock, days: int) -> None:
    clock.advance(days * DAY)
    broker.maintain()
    broker.maintain()


def first_slot_is_there(broker: Broker) -> bool:
    with connected(broker.dsn) as connection:
        ((name,),) = ask(connection, "select (duewheel.slot_at(%s)).table_name", FIRST)
        return name is not None


def outlived(broker: Broker) -> list[object]:
    with connected(broker.dsn) as connection:
        return [row for (row,) in ask(connection, "select starts_at from duewheel.outlived_slot")]


def test_what_moved_out_counts_for_the_size_of_a_partition(shop: Broker, clock: Clock) -> None:
    work_off(shop, "short")
    look = (
        "select duewheel.unread_body_bytes(s.group_id, s.topic_id)"
        " from duewheel.subscription s join duewheel.topic t using (topic_id) where t.name = 'long'"
    )
    with connected(shop.dsn) as connection:
        assert ask(connection, look) == [(1,)]
        later(shop, clock, 5)
        assert outlived(shop) != []
        assert ask(connection, look) == [(1,)]


def test_d09_a_topic_has_its_own_retention_and_no_other_topic(shop: Broker, clock: Clock) -> None:
    shop.create_topic("empty", retention=3000 * DAY)
    waits = shop.send("long", b"waits", delay=90 * DAY)
    work_off(shop, "short")
    work_off(shop, "long")
    (short,) = shop.find_key("short", "1")
    (long,) = shop.find_key("long", "1")
    later(shop, clock, 5)
    assert not first_slot_is_there(shop)
    assert shop.find(short.message_id) is None
    assert "its slot was dropped" in str(shop.history(short.message_id))
    found = shop.find(long.message_id)
    assert found is not None
    assert found.body == b"1"
    states = [entry.state for entry in shop.history(long.message_id)]
    assert "Acked" in states
    assert "Deleted" not in states
    assert shop.recall(long.message_id).outcome is RecallOutcome.ALREADY_RELEASED
    # Upkeep leaves them where they are, until their own time is over.
    later(shop, clock, 24)
    assert len(outlived(shop)) == 1
    shop.rewind("long", "g", to=found.deliver_at)
    assert work_off(shop, "long") == [b"0", b"1", b"2"]
    later(shop, clock, 5)
    assert shop.find(long.message_id) is None
    assert shop.find(waits.message_id) is not None
    assert outlived(shop) == []


def test_d09_an_absent_group_keeps_its_own_messages_only(shop: Broker, clock: Clock) -> None:
    work_off(shop, "short")
    later(shop, clock, 40)
    assert not first_slot_is_there(shop)
    assert shop.find_key("short", "1") == []
    assert work_off(shop, "long") == [b"0", b"1", b"2"]
    later(shop, clock, 1)
    assert shop.find_key("long", "1") == []
    assert outlived(shop) == []
    # Nor does a deleted topic leave anything.
    send(shop, "short", range(MANY))
    send(shop, "long", range(3))
    work_off(shop, "short")
    later(shop, clock, 5)
    assert len(outlived(shop)) == 1
    shop.delete_topic("long")
    later(shop, clock, 1)
    assert outlived(shop) == []
    with connected(shop.dsn) as connection:
        assert ask(connection, "select count(*) from duewheel.far_message") == [(0,)]


def test_d09_a_slot_of_which_more_than_half_is_needed_waits(shop: Broker, clock: Clock) -> None:
    send(shop, "long", range(3, 2 * MANY))
    work_off(shop, "short")
    work_off(shop, "long")
    later(shop, clock, 5)
    assert first_slot_is_there(shop)
    assert outlived(shop) == []
    # Not for ever: every statement plans with each slot.
    later(shop, clock, 13)
    assert not first_slot_is_there(shop)
    assert len(shop.find_key("long", "1")) == 1


@pytest.mark.parametrize("answer", ["ack", "nack", "expire"])
def test_d09_a_lease_outlasts_the_move_of_its_messages(shop: Broker, clock: Clock, answer: str) -> None:
    work_off(shop, "short")
    consumer = shop.consumer("long", "g")
    clock.advance(4 * DAY + 13 * HOUR)
    held = consumer.receive(max_messages=2, invisible=12 * HOUR)
    assert len(held) == 2
    later(shop, clock, 0)
    assert not first_slot_is_there(shop)
    if answer == "ack":
        consumer.ack(held)
    elif answer == "nack":
        consumer.nack(held, AT_ONCE)
    clock.advance(DAY)
    again = work_off(shop, "long")
    assert len(again) == (1 if answer == "ack" else 3)
    if answer == "expire":
        with pytest.raises(LeaseLost):
            consumer.ack(held)


def test_d10_a_message_group_keeps_its_order_when_it_moves_out(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("short", retention=3 * DAY)
    timed_broker.create_topic("fifo", message_type="FIFO", queues=1, retention=3 * DAY)
    timed_broker.consumer("short", "g")
    consumer = timed_broker.consumer("fifo", "g")
    send(timed_broker, "short", range(MANY))
    for number in range(4):
        timed_broker.send("fifo", b"%d" % number, message_group="a")
    clock.advance(SECOND)
    consumer.receive(max_messages=1, invisible=SECOND)
    work_off(timed_broker, "short")
    later(timed_broker, clock, 5)
    assert not first_slot_is_there(timed_broker)
    found = []
    while batch := consumer.receive(max_messages=1):
        found += [message.body for message in batch]
        consumer.ack(batch)
        clock.advance(SECOND)
    assert found == [b"0", b"1", b"2", b"3"]


def test_d09_messages_move_out_in_portions(shop: Broker, clock: Clock) -> None:
    work_off(shop, "short")
    clock.advance(2 * DAY + HOUR)
    # Seals the slot, whose time is not over.
    shop.maintain()
    clock.advance(3 * DAY)
    with connected(shop.dsn) as connection:
        # It notes what every group has finished.
        for _ in portions(connection, "forget", 1_000, clock()):
            pass
        state = portion(connection, only("move_out"), 1, clock())
        assert (state["done"], state["finished"]) == (1, False)
        state = portion(connection, state, 1_000, clock())
        assert (state["done"], state["finished"]) == (2, False)
        assert portion(connection, state, 1_000, clock())["finished"]
    assert first_slot_is_there(shop)
    assert work_off(shop, "long") == [b"0", b"1", b"2"]
    clock.advance(25 * DAY)
    shop.maintain()
    assert not first_slot_is_there(shop)
    with connected(shop.dsn) as connection:
        clock.advance(10 * DAY)
        for _ in portions(connection, "forget", 1_000, clock()):
            pass
        assert [state["done"] for state in portions(connection, "forget_outlived", 2, clock())] == [2, 1, 0]
    assert outlived(shop) == []


def test_d09_consumers_notice_nothing_of_messages_that_move_out(shop: Broker, clock: Clock) -> None:
    sent = send(shop, "long", range(3, 200))
    work_off(shop, "short")
    clock.advance(2 * DAY + HOUR)
    shop.maintain()
    clock.advance(17 * DAY)
    consumer = shop.consumer("long", "g")
    got: list[str] = []

    def consume() -> None:
        while batch := consumer.receive(max_messages=3):
            got.extend(message.message_id for message in batch)
            consumer.ack(batch)

    with beside() as begin, connected(shop.dsn) as connection:
        consuming = begin(consume)
        for _ in portions(connection, "move_out", 2, clock()):
            pass
        consuming.result()
    assert len(got) == len(set(got)) == 200
    assert set(sent) <= set(got)


@pytest.mark.slow
@pytest.mark.long
def test_d09_killed_upkeep_keeps_and_forgets_the_same(shop: Broker, clock: Clock) -> None:
    sent = set(send(shop, "long", range(3, 9)))
    work_off(shop, "short")
    kept = {message.message_id for n in range(9) for message in shop.find_key("long", f"{n}")}
    assert sent < kept
    clock.advance(2 * DAY + HOUR)
    shop.maintain()
    for days in (3, 9, 9, 12):
        clock.advance(days * DAY)
        statement, status = 0, -signal.SIGKILL
        while status == -signal.SIGKILL:
            statement += 1
            command = [sys.executable, "-c", KILLED, shop.dsn, clock().isoformat(), str(statement), "after"]
            status = subprocess.run(command, check=False).returncode
        assert status == 0
        assert statement > 5, "it was never killed"
        assert not first_slot_is_there(shop)
        assert {m.message_id for n in range(9) for m in shop.find_key("long", f"{n}")} == kept
        if days == 3:
            work_off(shop, "long", "another")
    work_off(shop, "long")
    later(shop, clock, 1)
    assert outlived(shop) == []


def test_d09_a_retention_that_was_raised_meanwhile_counts(shop: Broker, clock: Clock) -> None:
    work_off(shop, "short")
    work_off(shop, "long")
    shop.update_topic("long", retention=3 * DAY)
    clock.advance(DAY + HOUR)
    shop.maintain()
    shop.update_topic("long", retention=300 * DAY)
    later(shop, clock, 40)
    assert [message.body for message in shop.find_key("long", "2")] == [b"2"]
    shop.update_topic("long", retention=2 * DAY)
    later(shop, clock, 0)
    assert shop.find_key("long", "2") == []
    assert outlived(shop) == []


def test_d09_dead_letters_outlive_their_slot(shop: Broker, clock: Clock) -> None:
    consumer = shop.consumer("long", "g")
    (message,) = consumer.receive(max_messages=1)
    consumer.dead_letter([message], reason="broken")
    work_off(shop, "short")
    work_off(shop, "long")
    later(shop, clock, 6)
    assert not first_slot_is_there(shop)
    (letter,) = shop.dead_letters("g", topic="long")
    assert letter.reason == "broken"
    assert shop.redrive("g", topic="long").redriven == 1
    assert work_off(shop, "long") == [message.body]
    assert shop.redrive("g", topic="long").redriven == 0


def test_d09_what_outlived_its_slot_goes_where_there_is_no_room(shop: Broker, clock: Clock) -> None:
    work_off(shop, "short")
    later(shop, clock, 40)
    size = shop.settings().message_bytes
    shop.update_settings(retention_bytes=size - 1)
    done = shop.maintain()
    assert (done.dropped_when_full, len(done.kept_when_full)) == ((), 1)
    shop.update_settings(when_full="drop_unread")
    done = shop.maintain()
    assert len(done.dropped_when_full) == 1
    assert "group g has lost 3 messages of topic long" in done.warnings[0]
    assert shop.settings().message_bytes < size
    assert work_off(shop, "long") == []
    assert outlived(shop) == []
