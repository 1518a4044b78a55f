-- How far a stream that stands at these places may read, and whether its topic is deleted, which gives it such a name.
select s.topic_id, s.queue, s.at, s.seq, s.straggler, duewheel.lease_topic(%s) like '%%~deleted~%%' as is_deleted
from duewheel.stream_latest(
    %s, %s, %s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[], p_limit => %s, p_release => %s,
    p_to_topic_ids => %s::integer[], p_to_queues => %s::integer[], p_to_ats => %s::bigint[],
    p_to_stragglers => %s::bigint[]) s
