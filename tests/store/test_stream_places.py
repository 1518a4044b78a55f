"""Where a stream may put its group: not behind what has been released."""

from __future__ import annotations

import psycopg2
import pytest
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
