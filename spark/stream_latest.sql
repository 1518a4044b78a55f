-- How far a stream that stands at these places may read, and whether its topic is deleted (a deleted topic is renamed,
-- and later its row goes). If the topic or the group has no places, the answer is one row without a place.
select s.topic_id, s.queue, s.at, s.seq, s.straggler, t.name is null or t.name like '%%~deleted~%%' as is_deleted
from (select duewheel.lease_topic(%s) as name) t
left join duewheel.stream_latest(
    %s, %s, %s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[], p_limit => %s,
    p_to_topic_ids => %s::integer[], p_to_queues => %s::integer[], p_to_ats => %s::bigint[],
    p_to_stragglers => %s::bigint[]) s on true
