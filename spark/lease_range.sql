-- Leases messages of a topic for a group without returning them; one row for each lease made.
select l.topic_id, l.queue, l.lease_n, l.lease_token, l.expires_at, l.lease_count
from duewheel.lease_range(
    p_group_id => %s, p_topic_id => %s, p_tags => %s, p_max => %s, p_chunk => %s, p_invisible => %s, p_consumer => %s,
    p_now => %s, p_filter => %s::jsonpath) l
