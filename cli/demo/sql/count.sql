-- Parameters: first (orders up to this number are of an earlier run), topic, group.
select
    count(*)::integer as placed,
    count(paid_at)::integer as paid,
    (select count(*)::integer from duewheel.waiting where waiting.topic = %(topic)s) as waiting,
    coalesce((
        select (stats.ready + stats.inflight)::integer
        from duewheel.group_stats() as stats
        where stats.topic = %(topic)s and stats.consumer_group = %(group)s
    ), 0) as due,
    count(cancelled_at)::integer as cancelled,
    min(pay_by) > clock_timestamp() as none_due,
    max(pay_by) < clock_timestamp() as all_due,
    count(*) filter (where paid_at is null and cancelled_at is null) = 0 as all_handled
from orders
where number > %(first)s;
