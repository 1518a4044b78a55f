"""A group's stream without Spark: what its driver asks of the broker."""

from __future__ import annotations

from tests.waiting import ask, connected

READ_ON = """
select duewheel.stream_commit(s.group_id, s.topic_id, 'mine', array_agg(l.topic_id), array_agg(l.queue),
                              array_agg(l.at), array_agg(l.seq), array_agg(l.straggler))
from duewheel.subscription s
cross join lateral (
    select array_agg(b.topic_id) as topic_ids, array_agg(b.queue) as queues, array_agg(b.at) as ats,
           array_agg(b.seq) as seqs, array_agg(b.straggler) as stragglers
    from duewheel.stream_start(s.group_id, s.topic_id, 'mine', 'earliest') b
) b
cross join lateral (
    select array_agg(l.at order by number) as ats, array_agg(l.seq order by number) as seqs,
           array_agg(l.straggler order by number) as stragglers
    from unnest(b.topic_ids, b.queues) with ordinality place (topic_id, queue, number)
    join duewheel.stream_latest(
        array[s.group_id], array[s.topic_id], array['mine'], b.topic_ids, b.queues, b.ats, b.seqs,
        b.stragglers) l
        using (topic_id, queue)
) e
cross join lateral duewheel.stream_cut(
    b.topic_ids, b.queues, b.ats, b.seqs, b.stragglers, e.ats, e.seqs, e.stragglers, %s, null) l
where s.group_id = %s
group by s.group_id, s.topic_id
"""


def read_as_a_stream(dsn: str, group_id: int, limit: int | None = None) -> None:
    """Begin a stream of the group, and finish its first part: so many messages at most, or all."""
    with connected(dsn) as connection:
        ask(connection, READ_ON, limit, group_id)
