"""A call that waits for what an open transaction changes ends after ten seconds, and says for what."""

from __future__ import annotations

import psycopg2
import pytest
from tests.acting import DAY, rows
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.values.errors import GroupBusy, from_database

pytestmark = pytest.mark.owner

#: Ten seconds would be long for a test.
SOONER = """
do $$
declare
    v_call regprocedure;
begin
    for v_call in
        select p.oid from pg_proc p
        where p.pronamespace = 'duewheel'::regnamespace and p.proconfig @> array['lock_timeout=10s']
    loop
        execute format('alter function %s set lock_timeout = ''50ms''', v_call);
    end loop;
end
$$
"""


TOPIC = "select duewheel.update_topic('t', retention => interval '2 days')"
SCHEDULE = "select duewheel.pause_schedule('s')"


@pytest.mark.parametrize(
    ("holds", "call", "told"),
    [
        (TOPIC, "select duewheel.subscribe('t', 'another')", "the topic"),
        (TOPIC, TOPIC, "the topic"),
        (TOPIC, "select duewheel.delete_topic('t')", "the topic"),
        (
            "select duewheel.pause_group('g', 't')",
            "select duewheel.resume_group('g')",
            "a subscription of the group",
        ),
        (
            "select * from duewheel.consumer_group for update",
            "select duewheel.set_retry_policy('t', 'g', 1, array[interval '1 s'])",
            "the group",
        ),
        (SCHEDULE, SCHEDULE, "the schedule"),
    ],
)
def test_x18_a_wait_for_an_open_transaction_ends(broker: Broker, holds: str, call: str, told: str) -> None:
    broker.create_topic("t", queues=1)
    consumer = broker.consumer("t", "g")
    broker.create_schedule("s", "t", b"", every=DAY)
    rows(broker, f"{SOONER}; select 1")
    with connected(broker.dsn, autocommit=False) as holder:
        ask(holder, holds)
        with connected(broker.dsn) as waiter, pytest.raises(psycopg2.Error) as caught:
            ask(waiter, call)
        busy = from_database(caught.value)
        assert isinstance(busy, GroupBusy)
        assert f"{told} is being changed" in str(busy)
        assert not consumer.receive()
