"""A receive of few messages from the queue of the last one brings what a walk over the queues brings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg2
import pytest
from tests.acting import AT_ONCE, HOUR, MINUTE, SECOND
from tests.clock import Clock
from tests.conftest import execute
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.database.connections import DriverConnection
from duewheel.store.values.leases import Lease

ROWS = (
    "select deliver_at, seq, body, attempt, (lease).topic_id, (lease).queue, (lease).n, (lease).expires_at,"
    " (lease).message_count, (lease).token > 0"
    " from duewheel.{}(%s, %s, %s, '1 minute', 'me', 1, true, %s, true)"
)
WALKS = (
    "select coalesce(sum(calls), 0) from pg_stat_xact_user_functions"
    " where schemaname = 'duewheel' and funcname = 'receive_batch'"
)
POSITIONS = "select queue, to_at, to_seq, straggler_to, message_count from duewheel.lease order by queue, n"


@contextmanager
def received(consumer: Consumer, clock: Clock, function: str, count: int) -> Iterator[tuple[Any, ...]]:
    """What a receive with `function` brings, the leases after it, and whether it walked; rolled back."""
    dsn = consumer._database.dsn
    with connected(dsn, autocommit=False) as connection:
        ask(connection, "set track_functions = 'all'; select 1")
        # As in a session that has received before.
        ask(connection, "select duewheel.next_due(%s, %s)", consumer.group_id, consumer.topic_id)
        parameters = (consumer.group_id, consumer.topic_id, count, clock())
        rows = ask(connection, ROWS.format(function), *parameters)
        ((walks,),) = ask(connection, WALKS)
        yield rows, ask(connection, POSITIONS), walks


def compare(consumer: Consumer, clock: Clock, *, walks: bool) -> None:
    """Both receive the same, whatever number is asked for; `walks`: so does a receive of one message."""
    for count in (1, 2, 5, 32):
        with received(consumer, clock, "receive_few", count) as (few, few_leases, few_walks):
            pass
        with received(consumer, clock, "receive_batch", count) as (batch, batch_leases, _):
            pass
        assert few == batch
        assert few_leases == batch_leases
        if count == 1:
            assert bool(few_walks) is walks


def due(topic: Broker, clock: Clock, bodies: int = 4, **settings: Any) -> None:
    """Release messages, and receive one of them, so that ended leases were just looked for."""
    for number in range(bodies):
        topic.send("t", str(number), delay=timedelta(milliseconds=number), **settings)
    clock.advance(SECOND)
    topic.consumer("t", "g").receive(1)


def test_d15_a_full_queue_needs_no_walk(topic: Broker, clock: Clock) -> None:
    due(topic, clock)
    compare(topic.consumer("t", "g"), clock, walks=False)


def test_d02_a_message_that_the_tick_does_not_see_is_not_received(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g")
    with connected(topic.dsn, autocommit=False) as slow:
        topic.send("t", "unseen", delay=timedelta(milliseconds=1), connection=slow)
        topic.send("t", "received", delay=AT_ONCE)
        topic.send("t", "seen", delay=timedelta(milliseconds=2))
        clock.advance(SECOND)
        assert [message.body for message in consumer.receive(1)] == [b"received"]
        slow.commit()
    with received(consumer, clock, "receive_few", 1) as (((_, _, body, *_), _), _, _):
        assert bytes(body) == b"seen"
    compare(consumer, clock, walks=False)


def test_d15_the_rest_comes_from_the_other_queues(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=3)
    due(timed_broker, clock, 9)
    consumer = timed_broker.consumer("t", "g")
    while {lease.queue for lease in consumer.receive(1).leases} != {0}:
        pass
    compare(consumer, clock, walks=False)


def test_d07_ended_leases_are_looked_for_ten_times_a_second(topic: Broker, clock: Clock) -> None:
    due(topic, clock)
    clock.advance(timedelta(milliseconds=200))
    compare(topic.consumer("t", "g"), clock, walks=True)


def _recalled(topic: Broker, clock: Clock) -> None:
    due(topic, clock)
    receipt = topic.send("t", "recalled", delay=SECOND)
    topic.recall(receipt.message_id)
    topic.send("t", "behind it", delay=2 * SECOND)
    clock.advance(3 * SECOND)
    topic.tick("t")


def _late(topic: Broker, clock: Clock) -> None:
    due(topic, clock)
    with connected(topic.dsn, autocommit=False) as slow:
        topic.send("t", "late", delay=AT_ONCE, connection=slow)
        topic.send("t", "seen", delay=AT_ONCE)
        clock.advance(SECOND)
        topic.tick("t")
        slow.commit()
    clock.advance(SECOND)
    topic.tick("t")


def _paused(topic: Broker, clock: Clock) -> None:
    due(topic, clock)
    topic.pause_group("g", topic="t")


def _tagged(topic: Broker, clock: Clock) -> None:
    due(topic, clock, tag="a")
    topic.set_subscription("t", "g", "b")


def _ahead(topic: Broker, clock: Clock) -> None:
    due(topic, clock)
    clock.set(clock() - HOUR)


def _read(topic: Broker, clock: Clock) -> None:
    due(topic, clock)
    topic.consumer("t", "g").receive(100)


@pytest.mark.parametrize("arrange", [_recalled, _late, _paused, _tagged, _ahead, _read])
def test_d15_a_queue_in_an_unusual_state_is_walked(
    topic: Broker, clock: Clock, arrange: Callable[[Broker, Clock], None]
) -> None:
    arrange(topic, clock)
    compare(topic.consumer("t", "g"), clock, walks=True)


@pytest.mark.parametrize("arrange", [due, _recalled, _late, _tagged, _read])
def test_d07_the_rows_of_a_lease_are_those_of_its_query(
    topic: Broker, clock: Clock, arrange: Callable[[Broker, Clock], None]
) -> None:
    arrange(topic, clock)
    topic.consumer("t", "g").receive(100)
    leases = execute(
        topic.dsn, "select group_id, topic_id, queue, n from duewheel.lease where message_count > 0"
    )
    for lease in leases:
        ((query,),) = execute(topic.dsn, "select duewheel.lease_query(%s, %s, %s, %s)", *lease)
        found = execute(topic.dsn, "select * from duewheel.lease_rows(%s, %s, %s, %s)", *lease)
        assert found
        assert found == execute(topic.dsn, query.replace("%", "%%"))


def test_d15_a_fifo_topic_is_walked(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", message_type="FIFO", queues=1)
    consumer = timed_broker.consumer("t", "g")
    for number in range(4):
        timed_broker.send("t", str(number), message_group=str(number))
    timed_broker.tick("t")
    compare(consumer, clock, walks=True)


def test_d15_a_queue_that_another_consumer_reads_is_left_to_it(topic: Broker, clock: Clock) -> None:
    due(topic, clock)
    consumer = topic.consumer("t", "g")
    with received(consumer, clock, "receive_few", 1) as (first, _, _):
        assert first
        compare(consumer, clock, walks=True)
        with received(consumer, clock, "receive_few", 1) as (second, _, _):
            assert not second


@pytest.mark.parametrize("function", ["receive_few", "receive_batch"])
@pytest.mark.parametrize("count", [None, 0, -1])
def test_d15_a_number_that_receives_nothing_is_refused(
    topic: Broker, clock: Clock, function: str, count: int | None
) -> None:
    due(topic, clock)
    with pytest.raises(psycopg2.Error, match="max must be 1 to") as refused:
        execute(topic.dsn, ROWS.format(function), 1, 1, count, clock())
    assert refused.value.pgcode == "DW010"


@pytest.mark.parametrize("function", ["receive_few", "receive_batch"])
def test_d15_the_largest_number_receives_everything(topic: Broker, clock: Clock, function: str) -> None:
    due(topic, clock)
    consumer = topic.consumer("t", "g")
    with received(consumer, clock, function, 2**63 - 1) as (rows, _, _):
        # And the lease, in a row that has no body.
        assert [row[2] and bytes(row[2]) for row in rows] == [b"1", b"2", b"3", None]


def test_d15_a_consumer_of_full_batches_stays_the_short_way(broker: Broker) -> None:
    broker.create_topic("t", queues=2, message_type="NORMAL")
    consumer = broker.consumer("t", "g")
    broker.send_many("t", [{"body": str(number)} for number in range(40)])
    got: list[bytes] = []
    batch: Any = ()
    for _ in range(20):
        batch = consumer.receive(2, acked=batch, invisible=MINUTE)
        got += [message.body for message in batch]
    consumer.ack(batch)
    assert sorted(got, key=int) == [str(number).encode() for number in range(40)]
    assert not consumer.receive()
    ((unanswered,),) = execute(
        broker.dsn,
        "select count(*) from duewheel.lease l where message_count > 0 and not exists"
        " (select from duewheel.lease_event e where e.topic_id = l.topic_id and e.n = l.n"
        "  and e.queue = l.queue and e.kind = 'acked')",
    )
    assert unanswered == 0


ACK_FIRST = ROWS.removesuffix(")").format("receive_few") + ", %s, %s, %s, %s)"
EVENTS = "select n, kind, at, reason from duewheel.lease_event"


def acking(connection: DriverConnection, consumer: Consumer, clock: Clock, lease: Lease) -> list[Any]:
    place = consumer.group_id, consumer.topic_id, 1, clock()
    return ask(connection, ACK_FIRST, *place, *lease.place, lease.token)


def test_d15_a_receive_the_short_way_acks_the_lease_before(topic: Broker, clock: Clock) -> None:
    due(topic, clock)
    consumer = topic.consumer("t", "g")
    (lease,) = consumer.receive(1).leases
    with connected(topic.dsn) as connection:
        rows = acking(connection, consumer, clock, lease)
        assert [row[2] and bytes(row[2]) for row in rows] == [b"2", None]
        assert ask(connection, EVENTS) == [(lease.n, "acked", clock(), None)]
        # An ack may be repeated, as duewheel.answer says.
        assert acking(connection, consumer, clock, lease)
        assert len(ask(connection, EVENTS)) == 1


def test_d15_a_receive_the_short_way_whose_ack_is_refused_receives_nothing(
    topic: Broker, clock: Clock
) -> None:
    due(topic, clock)
    consumer = topic.consumer("t", "g")
    (lease,) = consumer.receive(1, SECOND).leases
    leases = execute(topic.dsn, POSITIONS)
    clock.advance(SECOND)
    with (
        connected(topic.dsn) as connection,
        pytest.raises(psycopg2.Error, match="the lease ended") as refused,
    ):
        acking(connection, consumer, clock, lease)
    assert refused.value.pgcode == "DW011"
    assert execute(topic.dsn, POSITIONS) == leases
    assert not execute(topic.dsn, EVENTS)
