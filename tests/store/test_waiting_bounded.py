"""A transaction that stays open holds up nobody beyond a stated time: 10 s, then an error says so (X18)."""

from __future__ import annotations

from contextlib import ExitStack

import psycopg2
import pytest
from tests.acting import AT_ONCE, HOUR, SECOND, rows, wait_briefly
from tests.waiting import ask, beside, connected, until

from duewheel.store import GroupBusy
from duewheel.store.broker import Broker
from duewheel.store.values.errors import from_database

#: Locks that functions wait for are waited for as briefly.
LOCK_BRIEFLY = """
do $$ begin
    execute (
        select string_agg(format('alter function %s set lock_timeout = %L', p.oid::regprocedure, '1s'), ';')
        from pg_proc p
        where p.pronamespace = 'duewheel'::regnamespace and 'lock_timeout=10s' = any (p.proconfig));
end $$
"""


@pytest.fixture
def topic(broker: Broker) -> Broker:
    broker.create_topic("t", queues=1)
    broker.consumer("t", "g")
    return broker


@pytest.mark.slow
def test_x11_a_lease_shortened_in_a_slow_transaction_ends_soon(topic: Broker) -> None:
    """Others have looked at the leases that end by now before they can see the new end."""
    topic.send("t", b"first", delay=AT_ONCE)
    consumer = topic.consumer("t", "g")
    batch = consumer.receive(1, HOUR)
    with connected(topic.dsn, autocommit=False) as slow:
        consumer.change_invisible_duration(batch, SECOND, connection=slow)
        ((ends_at,),) = ask(slow, "select clock_timestamp() + interval '1 second'")
        with connected(topic.dsn) as console:
            until(lambda: ask(console, "select clock_timestamp() > %s", ends_at)[0][0], "the new end to pass")
        topic.send("t", b"second", delay=AT_ONCE)
        assert [message.body for message in consumer.receive(1, HOUR)] == [b"second"]
        slow.commit()
    (again,) = until(lambda: consumer.receive(1, HOUR), "the lease to end")
    assert (again.body, again.attempt) == (b"first", 2)


@pytest.mark.slow
@pytest.mark.owner
def test_x18_a_call_behind_an_open_transaction_fails_after_10_s(topic: Broker) -> None:
    """Which here is one."""
    wait_briefly(topic)
    rows(topic, LOCK_BRIEFLY)
    consumers = {name: topic.consumer("t", name, name="me") for name in ("read", "nacked", "acked")}
    topic.send("t", b"first", delay=AT_ONCE)
    topic.tick("t")
    held = {name: one.receive(1, HOUR) for name, one in consumers.items() if name != "read"}
    (lease,) = topic.leases(topic="t", group="acked")
    with ExitStack() as stack, beside() as start:
        making, reading, nacking, acking, creating, releasing = (
            stack.enter_context(connected(topic.dsn, autocommit=False)) for _ in range(6)
        )
        assert ask(making, "select receipt_handle from duewheel.receive('t', 'new')")
        assert ask(reading, "select receipt_handle from duewheel.receive('t', 'read')")
        consumers["nacked"].nack(held["nacked"], connection=nacking)
        consumers["acked"].ack(held["acked"], connection=acking)
        ask(creating, "select duewheel.create_topic('new')")
        topic.create_topic("released")
        topic.consumer("released", "g")
        ask(
            releasing,
            "select pg_advisory_xact_lock(duewheel.tick_lock_class(), topic_id)"
            " from duewheel.topic where name = 'released'",
        )
        kept_waiting = [
            start(lambda: topic.consumer("t", "new")),
            start(lambda: topic.delete_group("read")),
            start(lambda: topic.rewind("t", "read", "earliest")),
            start(lambda: topic.rewind("t", "nacked", "earliest")),
            start(lambda: topic.release_lease(lease.lease_id)),
            start(lambda: topic.create_topic("new")),
            start(lambda: topic.rewind("released", "g", "earliest")),
        ]
        for call in kept_waiting:
            assert isinstance(call.exception(), GroupBusy)
        acking.commit()
    assert topic.release_lease(lease.lease_id) is None


def test_d04_an_endless_delay_is_refused_with_the_limit(topic: Broker) -> None:
    with connected(topic.dsn) as console:
        # Servers before version 17 have no endless interval.
        delay = "infinity" if console.server_version >= 170_000 else "170000 years"
        with pytest.raises(psycopg2.Error) as caught:
            ask(console, "select duewheel.send('t', 'x'::text, %s::interval)", delay)
    assert getattr(from_database(caught.value), "sqlstate", None) == "DW004"
