-- As lease_evenly.sql, but returns the leases taken under this consumer's name before, where there are any.
select l.topic_id, l.queue, l.lease_n, l.lease_token, l.expires_at, l.lease_count
from duewheel.lease_once(
    p_group_id => %s, p_topic_id => %s, p_tags => %s, p_max => %s, p_parts => %s, p_invisible => %s, p_consumer => %s,
    p_now => %s, p_filter => %s::jsonpath, p_since => %s) l
