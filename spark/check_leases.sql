-- Which of the leases that a task is about to read have messages that may be with others, and why.
select h.n, h.queue, s.state
from (values {leases}) h (place, group_id, topic_id, queue, n, token)
cross join lateral duewheel.lease_states(
    h.group_id, array[h.topic_id], array[h.queue], array[h.n], array[h.token]) s
where s.state not in ('held', 'acked')
order by h.place
limit 1
