-- Parameters: first (orders up to this number are of an earlier run), topic.
-- The shop's table shows which orders were paid or cancelled. The broker's records show which timeouts were recalled,
-- and when each of the others was released. The two are compared order by order.
with treated as materialized (
    select
        orders.*,
        found.message_id is not null as has_timeout,
        coalesce(found.recalled, false) as is_recalled,
        1000 * extract(epoch from case when not found.recalled then (
            select history.at
            from duewheel.history(found.message_id) as history
            where history.state = 'Ready' and history.consumer_group is null
        ) end - found.deliver_at) as late_ms
    from orders
    left join lateral duewheel.find_key(%(topic)s, orders.number::text) as found on true
    where orders.number > %(first)s
)
select
    count(*) as placed,
    count(paid_at) as paid,
    count(*) filter (where is_recalled) as recalled,
    count(cancelled_at) as cancelled,
    count(*) filter (where paid_at is not null and cancelled_at is not null) as paid_and_cancelled,
    count(*) filter (where cancelled_at < pay_by) as cancelled_early,
    count(*) filter (where paid_at is null and cancelled_at is null) as never_cancelled,
    count(*) filter (where not has_timeout) as without_timeout,
    count(*) filter (where timeout_came_at is null and not is_recalled) as never_came,
    count(*) filter (where timeout_came_at is not null and is_recalled) as recalled_but_came,
    count(*) filter (where late_ms < 0) as released_early,
    percentile_disc(0.5) within group (order by late_ms)::float as late_p50_ms,
    percentile_disc(0.99) within group (order by late_ms)::float as late_p99_ms,
    max(late_ms)::float as late_max_ms
from treated;
