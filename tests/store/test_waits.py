"""A call that waits for what an open transaction changes ends after ten seconds, and says for what."""

from __future__ import annotations

import psycopg2
import pytest
from tests.acting import MINUTE, rows
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
RESUME = "select duewheel.resume_schedule(schedule_id, 0, null) from duewheel.schedule where name = 'paused'"
OCCURRENCE = "select duewheel.recall(message_id) from duewheel.schedule_ahead"


@pytest.mark.parametrize(
    ("holds", "call", "told"),
    [
        (TOPIC, "select duewheel.subscribe('t', 'another')", 'topic "t"'),
        (TOPIC, TOPIC, 'topic "t"'),
        (TOPIC, "select duewheel.delete_topic('t')", 'topic "t"'),
        (
            "select duewheel.pause_group('g', 't')",
            "select duewheel.resume_group('g')",
            'group "g"',
        ),
        (
            "select * from duewheel.consumer_group for update",
            "select duewheel.set_retry_policy('t', 'g', 1, array[interval '1 s'])",
            'group "g"',
        ),
        (SCHEDULE, SCHEDULE, 'schedule "s"'),
        (RESUME, RESUME, 'schedule "paused"'),
        (OCCURRENCE, SCHEDULE, 'an occurrence of schedule "s"'),
        (OCCURRENCE, "select duewheel.delete_schedule('s')", 'an occurrence of schedule "s"'),
    ],
)
def test_x18_a_wait_for_an_open_transaction_ends(broker: Broker, holds: str, call: str, told: str) -> None:
    broker.create_topic("t", queues=1)
    consumer = broker.consumer("t", "g")
    for schedule in "s", "paused":
        broker.create_schedule(schedule, "t", b"", every=MINUTE)
    broker.pause_schedule("paused")
    broker.advance_schedules()
    rows(broker, f"{SOONER}; select 1")
    with connected(broker.dsn, autocommit=False) as holder:
        ask(holder, holds)
        with connected(broker.dsn) as waiter, pytest.raises(psycopg2.Error) as caught:
            ask(waiter, call)
        busy = from_database(caught.value)
        assert isinstance(busy, GroupBusy)
        assert f"{told} is being changed" in str(busy)
        assert not consumer.receive()
