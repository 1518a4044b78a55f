-- Parameters: first (orders up to this number are of an earlier run), topic.
-- One row for each order, with what the broker has on record of its timeout.
select
    found.message_id is not null as is_on_record,
    found.recalled as is_recalled,
    released.at - found.deliver_at as late,
    orders.timeout_came_at is not null as came
from orders
left join lateral duewheel.find_key(%(topic)s, orders.number::text) as found on true
left join lateral (
    select history.at
    from duewheel.history(found.message_id) as history
    where history.state = 'Ready' and history.consumer_group is null
) as released on true
where orders.number > %(first)s;
