"""Many leases that end at once are revived in chunks."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.acting import HOUR, MINUTE, SECOND, send_numbered
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.database.connections import DriverConnection


@pytest.fixture(params=["NORMAL", "FIFO"])
def topic(request: pytest.FixtureRequest, timed_broker: Broker) -> Broker:
    """A topic ``t`` of one queue; the clock stands."""
    timed_broker.create_topic("t", queues=1, message_type=request.param)
    return timed_broker


@pytest.mark.slow
def test_many_leases_that_end_at_once_are_revived_in_chunks(topic: Broker, clock: Clock) -> None:
    """No transaction takes more locks than a stock server has room for, and none is lost."""
    count = 450
    send_numbered(topic, count)
    consumer = topic.consumer("t", "g")
    for _ in range(count):
        assert len(consumer.receive(1, MINUTE)) == 1
    clock.advance(HOUR)
    revived = calls = 0
    with connected(topic.dsn, autocommit=False) as wheel:
        more = True
        while more:
            ((messages, more),) = ask(
                wheel,
                "select * from duewheel.revive_chunk(%s, %s, %s)",
                *(consumer.group_id, consumer.topic_id, clock()),
            )
            assert ask(wheel, "select count(*) <= 210 from pg_locks where locktype = 'advisory'") == [(True,)]
            wheel.commit()
            revived += messages
            calls += 1
    assert (revived, calls) == (count, 3)
    batch = consumer.receive(2 * count)
    assert (len(batch), {message.attempt for message in batch}) == (count, {2})


@pytest.mark.slow
def test_a_receive_revives_no_more_than_a_chunk(topic: Broker, clock: Clock) -> None:
    count = 300
    send_numbered(topic, count)
    consumer = topic.consumer("t", "g")
    for _ in range(count):
        consumer.receive(1, MINUTE)
    clock.advance(HOUR)
    sizes = []
    for _ in range(4):
        batch = consumer.receive(2 * count)
        sizes.append(len(batch))
        consumer.ack(batch)
    assert sizes == [200, 100, 0, 0]


def test_leases_are_revived_in_the_order_of_their_ends(topic: Broker, clock: Clock) -> None:
    """The mark up to which leases were looked at passes none that is left."""
    count = 250
    send_numbered(topic, count)
    consumer = topic.consumer("t", "g")
    for _ in range(count):
        consumer.receive(1, MINUTE)
        clock.advance(timedelta(microseconds=10))
    clock.advance(HOUR)
    with connected(topic.dsn) as wheel:
        revive = "select messages from duewheel.revive_chunk(%s, %s, %s)"
        answers = [ask(wheel, revive, consumer.group_id, consumer.topic_id, clock())[0][0] for _ in range(3)]
        assert answers == [200, 50, 0]
        ((looked_at,),) = ask(
            wheel, "select max(revived_to) from duewheel.lease where topic_id = %s", consumer.topic_id
        )
        assert looked_at == clock()


def test_the_reason_of_a_retry_has_the_extended_end(topic: Broker, clock: Clock) -> None:
    send_numbered(topic, 1)
    consumer = topic.consumer("t", "g")
    (message,) = consumer.receive(invisible=MINUTE)
    clock.advance(MINUTE / 2)
    consumer.change_invisible_duration(message, HOUR)
    ends_at = clock() + HOUR
    clock.advance(2 * HOUR)
    assert len(consumer.receive()) == 1
    (waited,) = (entry for entry in topic.history(message.message_id) if entry.state == "WaitingRetry")
    with connected(topic.dsn) as connection:
        assert ask(connection, "select 'not answered until ' || %s::timestamptz", ends_at) == [
            (waited.reason,)
        ]


def test_x13_a_lease_after_a_clock_correction_is_revived(topic: Broker, clock: Clock) -> None:
    """It ends before an instant up to which consumers have looked at the ends of leases already."""
    send_numbered(topic, 3)
    consumer = topic.consumer("t", "g")
    (first,) = consumer.receive(1, HOUR)
    (second,) = consumer.receive(1, HOUR)
    clock.advance(-MINUTE)
    consumer.change_invisible_duration(second, SECOND)
    consumer.receive(1, SECOND)
    consumer.ack(first)
    clock.advance(HOUR)
    assert sorted(message.attempt for message in consumer.receive()) == [2, 2]


def rows_read(connection: DriverConnection) -> int:
    """Rows and index look-ups of leases that the open transaction has read."""
    ((rows,),) = ask(
        connection,
        "select sum(coalesce(idx_tup_fetch, 0) + coalesce(idx_scan, 0) + seq_tup_read)"
        " from pg_stat_xact_user_tables where relname like 'lease%'",
    )
    return int(rows)


def test_x16_a_long_fence_costs_others_no_more_than_a_short_one(topic: Broker, clock: Clock) -> None:
    """Rows that a second of it costs a wheel, a consumer and an extension."""
    send_numbered(topic, 1)
    consumer = topic.consumer("t", "g")
    batch = consumer.receive(invisible=timedelta(seconds=2))
    read = []
    with connected(topic.dsn, autocommit=False) as mine, connected(topic.dsn, autocommit=False) as others:
        consumer.fence(batch, connection=mine)
        for _ in range(60):
            clock.advance(timedelta(seconds=1, microseconds=1))
            before = rows_read(others)
            for call in ("duewheel.revive_chunk(%s, %s, %s)", "duewheel.next_due(%s, %s, %s)"):
                ask(others, f"select * from {call}", *(consumer.group_id, consumer.topic_id, clock()))
            read.append(rows_read(others) - before)
            others.commit()
        consumer.ack(batch, connection=mine)
        mine.commit()
    assert max(read[-20:]) <= max(read[:20])
    clock.advance(HOUR)
    assert not consumer.receive()
