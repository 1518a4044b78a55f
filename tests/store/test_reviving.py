"""Many leases that end at once are revived in chunks."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.acting import send_numbered
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store.broker import Broker

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


@pytest.fixture(params=["NORMAL", "FIFO"])
def topic(request: pytest.FixtureRequest, timed_broker: Broker) -> Broker:
    """A topic ``t`` of one queue; the clock stands."""
    timed_broker.create_topic("t", queues=1, message_type=request.param)
    return timed_broker


def test_many_leases_that_end_at_once_are_revived_in_chunks(topic: Broker, clock: Clock) -> None:
    """No transaction takes more locks than a stock server has room for, and none is lost."""
    count = 500
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


def test_leases_that_end_one_after_another_are_revived_in_that_order(topic: Broker, clock: Clock) -> None:
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
