"""Where a stream may put its group: not behind what has been released."""

from __future__ import annotations

from datetime import timedelta

import psycopg2
import pytest
from tests.clock import Clock
from tests.streaming import read_as_a_stream
from tests.waiting import ask, beside, connected, until_blocked

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
def test_a_stream_placed_after_the_newest_release_is_refused(
    broker: Broker, at: int | None, straggler: int
) -> None:
    broker.create_topic("t", queues=1)
    broker.consumer("t", "g")
    with connected(broker.dsn) as connection:
        with pytest.raises(psycopg2.Error, match="after the newest released message") as caught:
            ask(connection, COMMIT, at, straggler)
        assert isinstance(from_database(caught.value), InvalidArgument)


def test_a_queue_with_the_largest_last_part_does_not_lag(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=2, message_type="NORMAL")
    group_id = timed_broker.consumer("t", "g").group_id
    with connected(timed_broker.dsn) as connection:
        filled = "select count(distinct queue) from duewheel.any_message"
        while ask(connection, filled) != [(2,)]:
            clock.advance(timedelta(minutes=1))
            timed_broker.send("t", b"")
        timed_broker.tick("t")
        ((messages,),) = ask(connection, "select count(*) from duewheel.any_message")
    read_as_a_stream(timed_broker.dsn, group_id, messages)
    (group,) = timed_broker.groups()
    assert group.lag == timedelta(0)


def test_r03_two_runs_of_a_task_reject_a_message_once(broker: Broker) -> None:
    """The second waits for the first, which is still open. A new stream of the group rejects for itself."""
    broker.create_topic("t", queues=1, message_type="NORMAL")
    broker.consumer("t", "g")
    broker.send("t", b"")
    broker.tick("t")
    start = (
        "select max(s.group_id), max(s.topic_id) from duewheel.subscription s"
        " cross join lateral duewheel.stream_start(s.group_id, s.topic_id, %s, 'earliest') b"
    )
    handle = (
        "select concat_ws('.', 0, topic_id, queue, duewheel.unix_micros(deliver_at), %s, seq, %s)"
        " from duewheel.any_message where topic_id = %s"
    )
    reject = "select duewheel.stream_reject(array[%s], array['no order'])"
    retries = "select reason, attempt from duewheel.any_message where previous_seq is not null"
    with connected(broker.dsn) as first, connected(broker.dsn) as second, beside() as start_call:
        ((group_id, topic_id),) = ask(first, start, f"{7:016x}")
        ((named,),) = ask(first, handle, 7, group_id, topic_id)
        ask(first, "begin")
        ask(first, reject, named)
        again = start_call(lambda: ask(second, reject, named))
        until_blocked(broker.dsn, second.info.backend_pid)
        ask(first, "commit")
        again.result()
        assert ask(first, retries) == [("no order", 2)]
        broker.rewind("t", "g", "earliest")
        ask(first, start, f"{8:016x}")
        ((named,),) = ask(first, handle, 8, group_id, topic_id)
        ask(first, reject, named)
        assert ask(first, retries) == [("no order", 2)] * 2
