-- The first lease that a task is about to read whose messages may be with others, and its state.
select h.n, h.queue, s.state
from (values {leases}) h (place, group_id, topic_id, queue, n, token)
cross join lateral duewheel.lease_states(
    h.group_id, array[h.topic_id], array[h.queue], array[h.n], array[h.token]) s
where s.state not in ('held', 'acked')
order by h.place
limit 1
