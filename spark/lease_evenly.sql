-- Leases messages of a topic for a group without returning them, in leases that can be dealt out evenly to p_parts
-- parts; one row for each lease.
select l.topic_id, l.queue, l.lease_n, l.lease_token, l.expires_at, l.lease_count
from duewheel.lease_evenly(
    p_group_id => %s, p_topic_id => %s, p_tags => %s, p_max => %s, p_parts => %s, p_invisible => %s, p_consumer => %s,
    p_now => %s, p_filter => %s::jsonpath) l
