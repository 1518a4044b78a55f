-- The places behind which retention has dropped something.
select p.topic_id, p.queue
from unnest(%s::integer[], %s::integer[], %s::bigint[]) p (topic_id, queue, at)
where p.at is not null and duewheel.stream_has_lost(p.topic_id, p.at)
