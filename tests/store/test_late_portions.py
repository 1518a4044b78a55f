"""A transaction may leave a million messages behind a tick; a tick releases a portion of them."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.acting import AT_ONCE, DAY, MILLISECOND, MINUTE, SECOND, rows, taken
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.database.connections import OWN_TRANSACTION

pytestmark = pytest.mark.owner
LIMIT = 3


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    timed_broker.create_topic("t", queues=2)
    # The function is a constant, so that it can be another one here.
    rows(timed_broker, f"create or replace function duewheel.late_limit() returns integer return {LIMIT}")
    return timed_broker


def ticked(broker: Broker, clock: Clock) -> tuple[int, bool]:
    """One tick: how many stragglers it made, and whether there are more."""
    ((topic_id,),) = rows(broker, "select topic_id from duewheel.topic where name = 't'")
    ((more,),) = rows(
        broker, f"{OWN_TRANSACTION}select more from duewheel.tick_topic(%s, %s)", topic_id, clock()
    )
    ((stragglers,),) = rows(
        broker, "select stragglers from duewheel.tick order by hi desc, tick_id desc limit 1"
    )
    return stragglers, more


def test_x18_a_large_late_transaction_is_released_in_portions(topic: Broker, clock: Clock) -> None:
    group = topic.consumer("t", "g")
    with connected(topic.dsn, autocommit=False) as large, connected(topic.dsn, autocommit=False) as other:
        # Of one instant more than a portion, and a queue's share of it; and several instants in one portion.
        for number, count in enumerate((1, 9, 1, 2)):
            messages = [{"body": b"%d %d" % (number, one), "delay": AT_ONCE} for one in range(count)]
            topic.send_many("t", messages, connection=large)
            topic.send("t", b"other %d" % number, delay=AT_ONCE, connection=other)
            clock.advance(MILLISECOND)
        topic.send_many("t", [{"body": b"not due yet", "delay": 4 * SECOND}], connection=large)
        topic.send("t", b"punctual", delay=AT_ONCE)
        clock.advance(SECOND)
        assert ticked(topic, clock) == (0, False)
        assert [message.body for message in taken(group)] == [b"punctual"]
        large.commit()
        clock.advance(MILLISECOND)
        topic.send("t", b"during", delay=AT_ONCE)
        clock.advance(SECOND)
        assert ticked(topic, clock) == (3, True)
        # Nobody else's message waits for them.
        assert b"during" in [message.body for message in group.receive(1_000)]
        other.commit()
        assert topic.maintain().swept == 0
    topic.rewind("t", "g", "earliest")
    clock.advance(5 * SECOND)
    came = taken(group)
    counts = [count for (count,) in rows(topic, "select stragglers from duewheel.tick order by tick_id")]
    # What is due meanwhile of a transaction that has messages left is late, too.
    assert (max(counts), sum(counts)) == (LIMIT, 13 + 1 + 4)
    assert rows(topic, "select open_count, late_xids from duewheel.newest_tick(1)") == [(0, None)]
    numbers = [b"%d %d" % (number, one) for number, count in enumerate((1, 9, 1, 2)) for one in range(count)]
    others = [b"other %d" % number for number in range(4)]
    assert Counter(message.body for message in came) == Counter(
        [b"punctual", b"during", b"not due yet", *numbers, *others]
    )
    for queue in range(2):
        late = [
            message.body[:1] for message in came if message.lease.queue == queue and message.body in numbers
        ]
        assert late == sorted(late)


def test_x12_later_fifo_messages_wait_for_all_portions(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", message_type="FIFO", queues=1)
    rows(timed_broker, "create or replace function duewheel.late_limit() returns integer return 1")
    group = timed_broker.consumer("t", "g")
    with connected(timed_broker.dsn, autocommit=False) as large:
        for number in range(4):
            timed_broker.send("t", b"%d" % number, message_group="a", connection=large)
            clock.advance(MILLISECOND)
        timed_broker.send("t", b"punctual", message_group="b")
        clock.advance(SECOND)
        assert len(taken(group)) == 1
        large.commit()
    timed_broker.send("t", b"4", message_group="a")
    clock.advance(SECOND)
    assert [message.body for message in taken(group)] == [b"0", b"1", b"2", b"3", b"4"]


def test_x18_a_tick_reads_a_portion_of_the_rest_of_its_minute(topic: Broker, clock: Clock) -> None:
    group = topic.consumer("t", "g")
    fetched = (
        f"{OWN_TRANSACTION}select duewheel.tick_topic(%s, %s);"
        "select sum(idx_tup_fetch) from pg_stat_xact_user_tables where relname ~ '^(far_)?message'"
    )
    with connected(topic.dsn, autocommit=False) as large:
        topic.send("t", b"late", delay=AT_ONCE, connection=large)
        topic.send_many("t", [{"body": b"soon", "delay": 50 * SECOND}] * 1000, connection=large)
        clock.advance(SECOND)
        topic.send("t", b"punctual", delay=AT_ONCE)
        assert len(taken(group)) == 1
        large.commit()
    clock.advance(SECOND)
    ((read,),) = rows(topic, fetched, group.topic_id, clock())
    assert read < 20 * LIMIT
    assert [message.body for message in taken(group)] == [b"late"]
    clock.advance(MINUTE)
    assert [message.body for message in taken(group)] == [b"soon"] * 1000


def test_x13_messages_that_were_held_back_come_in_portions(topic: Broker, clock: Clock) -> None:
    """The clock was ahead, and is put right: they come as it reaches their instants, many at one."""
    group = topic.consumer("t", "g")
    right = clock()
    topic.send("t", b"ahead", delay=DAY)
    clock.set(right + DAY)
    assert len(taken(group)) == 1
    clock.set(right + SECOND)
    topic.send_many("t", [{"body": b"%d" % number, "delay": SECOND} for number in range(7)])
    clock.advance(2 * SECOND)
    assert [ticked(topic, clock) for _ in range(3)] == [(3, True), (3, True), (1, False)]
    assert len(taken(group)) == 7


def test_x18_calling_tick_releases_all_portions(topic: Broker, clock: Clock) -> None:
    group = topic.consumer("t", "g")
    with connected(topic.dsn, autocommit=False) as large:
        topic.send_many("t", [{"body": b"", "delay": AT_ONCE}] * 10, connection=large)
        clock.advance(SECOND)
        topic.send("t", b"", delay=AT_ONCE)
        clock.advance(SECOND)
        topic.tick("t")
        large.commit()
    topic.tick("t")
    with connected(topic.dsn) as console:
        assert ask(console, "select count(*) from duewheel.straggler") == [(10,)]
    assert len(taken(group)) == 11
