"""Slots, and the messages that have none yet: where a message stands is the store's own business (X17).

A message that is due in weeks or years waits in `duewheel.far_message`; upkeep moves it into its slot when
that is made. Whatever happens meanwhile, it is there once, with all it had, and comes once.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg2
import psycopg2.extras
import pytest
from tests.acting import AT_ONCE, DAY, HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND, bodies, rows, taken
from tests.clock import Clock
from tests.upkeeping import only, portion
from tests.waiting import ask, beside, connected

from duewheel.store import RecallOutcome
from duewheel.store.broker import Broker
from duewheel.store.database.connections import OWN_TRANSACTION

ALL = "select * from duewheel.any_message order by topic_id, queue, deliver_at, seq"
SLOTS = "select starts_at, ends_at from duewheel.slot order by starts_at"
SETTLE = "select settled, more from duewheel.settle_far(%s, %s)"


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    """A topic `t` of two queues, with the slots of the next days."""
    timed_broker.create_topic("t", queues=2, max_delay=3660 * DAY)
    timed_broker.maintain()
    return timed_broker


def counts(broker: Broker) -> tuple[int, int]:
    """How many messages stand in slots, and how many have none."""
    ((near, far),) = rows(
        broker, "select (select count(*) from duewheel.message), (select count(*) from duewheel.far_message)"
    )
    return near, far


def send_spread(broker: Broker, count: int, delay: timedelta) -> list[bytes]:
    """Messages that are due a millisecond apart; their bodies."""
    given = [b"%d" % n for n in range(count)]
    broker.send_many("t", [{"body": body, "delay": delay + n * MILLISECOND} for n, body in enumerate(given)])
    return given


def settle(broker: Broker, clock: Clock, limit: int) -> tuple[int, bool]:
    """One chunk."""
    ((settled, more),) = rows(broker, SETTLE, limit, clock())
    return settled, more


def come_near(broker: Broker, clock: Clock, delay: timedelta) -> None:
    """It is an hour before they are due, and their slot is made; nothing is moved yet."""
    clock.advance(delay - HOUR)
    rows(broker, "select duewheel.make_slots_ahead(%s)", clock())
    told(broker)


def told(broker: Broker) -> None:
    """All sessions know of the slots that are there; the next to ask opens them."""
    rows(broker, "select duewheel.open_slots()")


# --- moving


@pytest.mark.owner
def test_settling_keeps_position_transaction_and_every_column(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g")
    topic.send("t", b"retried", delay=AT_ONCE, key="r")
    consumer.nack(consumer.receive(), 30 * DAY, reason="no stock")
    properties = {"a": [1, "ü"], "content-type": "application/json"}
    given: dict[str, Any] = {"key": "k", "tag": "red", "properties": properties, "message_group": "m"}
    topic.send("t", b"\x00one", delay=30 * DAY, **given)
    topic.send_many("t", [{"body": b"many", "delay": 30 * DAY, **given}])
    rows(
        topic,
        "update duewheel.far_message set asked_at = deliver_at - interval '1 day' where tag is not null",
    )
    far = rows(topic, "select * from duewheel.far_message order by topic_id, queue, deliver_at, seq")
    assert len(far) == 3
    assert all(any(value is not None for value in column) for column in zip(*far, strict=True))
    before = rows(topic, ALL)
    come_near(topic, clock, 30 * DAY)
    assert settle(topic, clock, 1_000) == (3, False)
    assert counts(topic) == (4, 0)
    assert rows(topic, ALL) == before


@pytest.mark.owner
def test_far_messages_move_in_chunks_by_one_upkeep_at_a_time(topic: Broker, clock: Clock) -> None:
    sent = send_spread(topic, 25, 30 * DAY) + send_spread(topic, 5, 31 * DAY)
    come_near(topic, clock, 30 * DAY)
    with connected(topic.dsn, autocommit=False) as other, connected(topic.dsn) as upkeeping:
        assert ask(other, SETTLE, 10, clock()) == [(10, True)]
        ask(other, "select pg_advisory_xact_lock(duewheel.tick_lock_class(), -2)")
        state = portion(upkeeping, only("settle"), 10, clock())
        assert state["busy"], "it does not wait"
        other.commit()
    assert counts(topic) == (10, 20)
    assert [settle(topic, clock, 10) for _ in range(3)] == [(10, True), (10, True), (0, False)]
    assert counts(topic) == (30, 0)
    clock.advance(2 * DAY)
    assert sorted(bodies(taken(topic.consumer("t", "g")))) == sorted(sent)


@pytest.mark.owner
def test_overdue_messages_get_a_slot_far_ones_stay(topic: Broker, clock: Clock) -> None:
    topic.consumer("t", "g")
    send_spread(topic, 3, 30 * DAY)
    send_spread(topic, 4, 300 * DAY)
    topic.create_topic("gone", max_delay=3660 * DAY)
    topic.send_many("gone", [{"body": b"", "delay": 300 * DAY}] * 25)
    assert settle(topic, clock, 1_000) == (0, False)
    assert counts(topic) == (0, 32)
    # What a deleted topic leaves is removed, in chunks too.
    topic.delete_topic("gone")
    assert settle(topic, clock, 10) == (0, True)
    assert counts(topic) == (0, 22)
    topic.maintain()
    assert counts(topic) == (0, 7)
    clock.advance(40 * DAY)
    # Nobody has made the slot that is over: it is made now, and all are told of it before it is used.
    moved = [settle(topic, clock, 1_000) for _ in range(3)]
    assert moved == [(0, True), (0, True), (3, False)]
    topic.maintain()
    assert counts(topic) == (3, 4)


@pytest.mark.owner
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_far_message_is_leased_answered_and_retried(topic: Broker, clock: Clock, when: str) -> None:
    """It is received from where it waits and moved while it is leased; or moved before."""
    consumer = topic.consumer("t", "g")
    send_spread(topic, 3, 30 * DAY)
    clock.advance(31 * DAY)
    rows(topic, "select duewheel.make_slot(%s)", clock() - DAY)
    told(topic)
    if when == "before":
        assert settle(topic, clock, 100) == (3, False)
    batch = consumer.receive(invisible=MINUTE)
    assert len(batch) == 3
    if when == "after":
        assert settle(topic, clock, 100) == (3, False)
    acked, nacked, expires = batch
    consumer.ack([acked])
    consumer.nack([nacked], delay=SECOND)
    assert topic.find(expires.message_id) is not None
    clock.advance(MINUTE)
    again = {(message.message_id, message.attempt) for message in taken(consumer)}
    assert again == {(nacked.message_id, 2), (expires.message_id, 2)}
    assert topic.recall(acked.message_id).outcome is RecallOutcome.ALREADY_RELEASED
    clock.advance(DAY)
    assert taken(consumer) == []


# --- late commits, deleted topics, recalls


@pytest.mark.slow
@pytest.mark.parametrize(("ticks", "settles"), [(True, True), (False, False)])
def test_x06_a_late_commit_of_a_far_message_is_delivered_once(
    topic: Broker, clock: Clock, ticks: bool, settles: bool
) -> None:
    """Its slot was made and dropped while its sender was open, or never made."""
    consumer = topic.consumer("t", "g")
    with connected(topic.dsn, autocommit=False) as sender:
        late = topic.send("t", b"late", delay=30 * DAY, connection=sender)
        send_spread(topic, 1, 30 * DAY)
        for _ in range(20):
            clock.advance(10 * DAY)
            topic.maintain()
            taken(consumer)
        sender.commit()
    if ticks:
        topic.tick("t")
    if settles:
        for _ in range(3):
            assert topic.maintain().swept == 0
    (message,) = taken(consumer)
    assert (message.message_id, message.body) == (late.message_id, b"late")
    for _ in range(4):
        clock.advance(DAY)
        topic.maintain()
        assert taken(consumer) == []
    assert counts(topic) == (0, 0), "what is read and past retention is dropped"
    assert topic.find(late.message_id) is None


@pytest.mark.owner
@pytest.mark.parametrize(
    ("criteria", "chunks_before"),
    [({"tag": "x"}, 1), ({"key_prefix": "k"}, 2), ({"everything": True}, 0), ({"everything": True}, 3)],
)
def test_x05_a_bulk_recall_gets_messages_moved_meanwhile(
    topic: Broker, clock: Clock, criteria: dict[str, object], chunks_before: int
) -> None:
    """Some are moved that it has recalled already, and some that it has still to come to."""
    topic.send_many(
        "t", [{"body": b"", "delay": 30 * DAY + n * HOUR, "tag": "x", "key": f"k{n % 7}"} for n in range(40)]
    )
    topic.send_many(
        "t", [{"body": b"", "delay": 300 * DAY + n * HOUR, "tag": "x", "key": f"k{n % 7}"} for n in range(10)]
    )
    topic.send("t", b"near", delay=DAY, tag="x", key="k")
    come_near(topic, clock, DAY)
    chunk = (
        f"{OWN_TRANSACTION}select recalled, next"
        " from duewheel.recall_chunk('t', %s, %s, null, null, false, false, 7, %s, %s)"
    )
    recalled, number, position = 0, 0, None
    while True:
        if number == chunks_before:
            clock.advance(29 * DAY - HOUR)
            rows(topic, "select duewheel.make_slots_ahead(%s)", clock())
            told(topic)
            topic.tick("t")
            assert settle(topic, clock, 15) == (15, True)
        ((some, position),) = rows(
            topic, chunk, criteria.get("tag"), criteria.get("key_prefix"), position, clock()
        )
        recalled += some
        number += 1
        if position is None:
            break
        position = psycopg2.extras.Json(position)
    assert number > chunks_before
    came = taken(topic.consumer("t", "g"))
    assert recalled + len(came) == 51
    assert bodies(came) in ([], [b"near"])
    clock.advance(400 * DAY)
    assert taken(topic.consumer("t", "g")) == []


# --- slots beside others


@pytest.mark.owner
def test_a_slot_takes_the_room_that_its_neighbours_leave(topic: Broker, clock: Clock) -> None:
    """Whatever their widths are, and wherever they stand."""
    midnight = datetime(2026, 3, 1, tzinfo=UTC)
    hourly = [midnight + hours * HOUR for hours in (0, 7, 8, 23)]
    for start in hourly:
        name = f"message_{start:%Y%m%d%H}"
        made = f"create table duewheel.{name} partition of duewheel.message for values from (%s) to (%s)"
        rows(topic, made, start, start + HOUR)
        rows(topic, "insert into duewheel.slot values (%s, %s, %s)", start, start + HOUR, name)
    at = [midnight + hours * HOUR for hours in (-1, 1, 9, 6.99, 23.5, 24)]
    rows(topic, "select duewheel.make_slot(i) from unnest(%s) i", at)
    slots = rows(
        topic, SLOTS + " offset (select count(*) from duewheel.slot where starts_at < '2026-02-28') limit 8"
    )
    assert [((a - midnight) / HOUR, (b - midnight) / HOUR) for a, b in slots] == [
        (-24, 0), (0, 1), (1, 7), (7, 8), (8, 9), (9, 23), (23, 24), (24, 48),
    ]  # fmt: skip
    # A message just before and just at each border finds its table.
    told(topic)
    rows(topic, "select duewheel.open_slots()")
    borders = [start for start, _ in slots]
    for border in borders:
        for off in (AT_ONCE, MICROSECOND):
            topic.send("t", b"", deliver_at=border - off)
    assert counts(topic) == (2 * len(borders) - 1, 1)


@pytest.mark.owner
def test_slots_never_overlap_and_contain_their_instant(topic: Broker) -> None:
    """While retention, and with it the width of new slots, goes up and down."""
    chance = random.Random(1)
    begin = datetime(2027, 1, 1, tzinfo=UTC)
    with topic.connection() as connection:
        for _ in range(60):
            retention = chance.choice([1, 3, 17, 30, 100, 3660]) * DAY
            topic.update_topic("t", retention=retention)
            width = max(1, -(-retention // (16 * DAY))) * DAY
            at = begin + chance.random() * 3000 * DAY
            ((start, end),) = ask(connection, "select starts_at, ends_at from duewheel.make_slot(%s)", at)
            assert start <= at < end
            assert ask(connection, "select starts_at, ends_at from duewheel.make_slot(%s)", at) == [
                (start, end)
            ]
            assert ask(connection, "select duewheel.slot_width()") == [(width,)]
        slots = ask(connection, SLOTS)
    assert all(one[1] <= other[0] for one, other in pairwise(slots))
    assert max(end - start for start, end in slots) <= 229 * DAY


# --- old transactions, and both tables in one


@pytest.mark.owner
@pytest.mark.parametrize(
    ("how", "has_sent"),
    [("send", True), ("send", False), ("send_many", True), ("reschedule", False), ("nack", True)],
)
def test_x06_a_transaction_sends_into_a_slot_made_since_it_began(
    topic: Broker, clock: Clock, how: str, has_sent: bool
) -> None:
    """Its session goes by the slots of when it last looked."""
    consumer = topic.consumer("t", "g")
    topic.send("t", b"held", delay=AT_ONCE)
    held = consumer.receive(invisible=12 * HOUR)
    topic.send("t", b"moved", delay=DAY, key="m")
    # The first day without a slot.
    far = 9 * DAY
    actions = {
        "send": lambda mine: topic.send("t", b"far", delay=far, connection=mine),
        "send_many": lambda mine: topic.send_many("t", [{"body": b"far", "delay": far}], mine),
        "reschedule": lambda mine: topic.reschedule_key("t", "m", delay=far, connection=mine),
        "nack": lambda mine: consumer.nack(held, far, connection=mine),
    }
    with connected(topic.dsn, autocommit=False) as mine:
        if has_sent:
            topic.send("t", b"open", delay=AT_ONCE, connection=mine)
            topic.send("t", b"open", delay=far, connection=mine)
            topic.send_many("t", [{"body": b"open", "delay": AT_ONCE}, {"body": b"open", "delay": far}], mine)
        else:
            ask(mine, "select * from duewheel.find_key('t', 'm')")
        before = counts(topic)
        with beside() as start:
            # Nor does whoever makes it wait for the transaction.
            start(lambda: rows(topic, "select duewheel.make_slot(%s)", clock() + far)).result()
            start(topic.maintain).result()
        actions[how](mine)
        mine.commit()
    assert counts(topic)[1] - before[1] == 1 + 2 * has_sent, "it did not see the slot"
    topic.maintain()
    assert counts(topic)[1] == before[1]
    clock.advance(HOUR)
    assert len(taken(consumer)) == 2 * has_sent
    clock.advance(far)
    topic.maintain()
    came = sorted(bodies(taken(consumer)))
    expected = {"send": [b"far"], "send_many": [b"far"], "reschedule": [b"moved"], "nack": [b"held"]}[how]
    expected += [b"moved"] * (how != "reschedule") + [b"held"] * (how != "nack") + [b"open"] * 2 * has_sent
    assert came == sorted(expected)


@pytest.mark.slow
@pytest.mark.parametrize(("commits", "has_sent"), [(True, False), (True, True), (False, True)])
def test_x06_one_call_writes_both_tables_in_the_transaction(
    topic: Broker, clock: Clock, commits: bool, has_sent: bool
) -> None:
    delays = [n % 7 * 20 * DAY + HOUR for n in range(70)]
    with connected(topic.dsn, autocommit=False) as mine:
        if has_sent:
            topic.send("t", b"", delay=50 * DAY, connection=mine)
        receipts = topic.send_many("t", [{"body": b"%d" % n, "delay": d} for n, d in enumerate(delays)], mine)
        assert [receipt.deliver_at - clock() for receipt in receipts] == delays
        assert counts(topic) == (0, 0)
        mine.commit() if commits else mine.rollback()
    assert counts(topic) == ((10, 60 + has_sent) if commits else (0, 0))
    for number, receipt in enumerate(receipts):
        found = topic.find(receipt.message_id)
        assert (found.body if found else None) == (b"%d" % number if commits else None)
    consumer = topic.consumer("t", "g")
    ids = []
    for _ in range(8):
        ids += [message.message_id for message in taken(consumer) if message.body]
        clock.advance(20 * DAY)
        topic.maintain()
    assert sorted(ids) == sorted(receipt.message_id for receipt in receipts if commits)


#: What a function of anybody's asks, with a plan that it keeps.
SEES = """
create function pg_temp.sees() returns bigint language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_count bigint;
begin
    select count(*) into v_count from duewheel.any_message m;
    return v_count;
end
$$
"""


@pytest.mark.owner
@pytest.mark.parametrize("how", ["moved", "sent", "sent many", "nacked", "overdue"])
def test_x06_a_transaction_sees_messages_of_a_newer_slot(
    timed_broker: Broker, clock: Clock, how: str
) -> None:
    """Its session goes by the slots of when it last looked: no message stands in another before it ends."""
    timed_broker.create_topic("t", queues=1, max_delay=10 * DAY)
    consumer = timed_broker.consumer("t", "g")
    timed_broker.send("t", b"1", delay=AT_ONCE)
    timed_broker.send("t", b"2", delay=HOUR)
    held = consumer.receive(invisible=12 * HOUR)
    with connected(timed_broker.dsn, autocommit=False) as mine, connected(timed_broker.dsn) as upkeep:
        ask(mine, SEES)
        mine.commit()
        for _ in range(10):
            assert ask(mine, "select pg_temp.sees()") == [(2,)]
        if how == "overdue":
            clock.advance(2 * HOUR)
        else:
            ask(upkeep, "select duewheel.make_slot(%s)", clock())
        sees = 2
        for _ in range(3):
            ask(upkeep, SETTLE, 100, clock())
            if how == "sent":
                timed_broker.send("t", b"3", delay=HOUR)
            elif how == "sent many":
                timed_broker.send_many("t", [{"body": b"3", "delay": HOUR}])
            elif how == "nacked" and sees == 2:
                consumer.nack(held, HOUR)
            sees += how in ("sent", "sent many") or (how == "nacked" and sees == 2)
            assert ask(mine, "select pg_temp.sees()") == [(sees,)]
        assert counts(timed_broker) == (0, sees)
        mine.commit()
        ask(upkeep, SETTLE, 100, clock())
        ask(upkeep, SETTLE, 100, clock())
        assert counts(timed_broker) == (sees, 0)
        assert ask(mine, "select pg_temp.sees()") == [(sees,)]


def test_x18_messages_without_a_slot_hide_no_other_topic(timed_broker: Broker, clock: Clock) -> None:
    """As while a transaction that has only read keeps new slots closed."""
    due_at = clock() + 30 * DAY
    for name, count, at in (("many", 1_001, due_at), ("one", 1, due_at + SECOND)):
        timed_broker.create_topic(name, queues=1, max_delay=31 * DAY)
        timed_broker.send_many(name, [{"body": b"", "deliver_at": at}] * count)
    found = "select t.name, d.due_at from duewheel.due_soon(%s, %s) d join duewheel.topic t using (topic_id)"
    due = rows(timed_broker, found, due_at - SECOND, due_at + 2 * SECOND)
    assert sorted(due) == [("many", due_at), ("one", due_at + SECOND)]
