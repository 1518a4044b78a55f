"""Where a stream may put its group: not behind what has been released."""

from __future__ import annotations

from datetime import timedelta

import psycopg2
import pytest
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store import InvalidArgument
from duewheel.store.broker import Broker
from duewheel.store.values.errors import from_database

COMMIT = """
select duewheel.stream_commit(s.group_id, s.topic_id, b.stream, array[b.topic_id], array[b.queue],
                              array[%s::bigint], array[b.seq], array[%s::bigint])
from duewheel.subscription s
cross join lateral duewheel.stream_start(s.group_id, s.topic_id, 'mine', 'earliest') b
where b.topic_id = s.topic_id
"""


@pytest.mark.parametrize(
    ("at", "straggler"), [(4102444800000000, 0), (None, 7)], ids=["in the year 2100", "a straggler"]
)
def test_a_stream_that_is_put_behind_what_is_released_is_refused(
    broker: Broker, at: int | None, straggler: int
) -> None:
    broker.create_topic("t", queues=1)
    broker.consumer("t", "g")
    with connected(broker.dsn) as connection:
        with pytest.raises(psycopg2.Error, match="has been released") as caught:
            ask(connection, COMMIT, at, straggler)
        assert isinstance(from_database(caught.value), InvalidArgument)


LATEST = """
select l.topic_id, l.queue, l.at, l.seq, l.straggler
from duewheel.subscription s
cross join lateral (
    select array_agg(b.topic_id) as topic_ids, array_agg(b.queue) as queues, array_agg(b.at) as ats,
           array_agg(b.seq) as seqs, array_agg(b.straggler) as stragglers
    from duewheel.stream_start(s.group_id, s.topic_id, 'mine', 'earliest') b
) b
cross join lateral duewheel.stream_latest(
    s.group_id, s.topic_id, 'mine', b.topic_ids, b.queues, b.ats, b.seqs, b.stragglers, %s) l
"""
FINISH = """
select duewheel.stream_commit(s.group_id, s.topic_id, 'mine', %s::integer[], %s::integer[], %s::bigint[],
                              %s::bigint[], %s::bigint[])
from duewheel.subscription s
"""


def test_a_queue_whose_last_part_is_as_large_as_can_be_does_not_lag(
    timed_broker: Broker, clock: Clock
) -> None:
    timed_broker.create_topic("t", queues=2, message_type="NORMAL")
    timed_broker.consumer("t", "g")
    with connected(timed_broker.dsn) as connection:
        filled = "select count(distinct queue) from duewheel.any_message"
        while ask(connection, filled) != [(2,)]:
            clock.advance(timedelta(minutes=1))
            timed_broker.send("t", b"")
        timed_broker.tick("t")
        ((messages,),) = ask(connection, "select count(*) from duewheel.any_message")
        ask(connection, FINISH, *map(list, zip(*ask(connection, LATEST, messages), strict=True)))
    (group,) = timed_broker.groups()
    assert group.lag == timedelta(0)
