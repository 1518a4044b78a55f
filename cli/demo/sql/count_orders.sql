-- Parameter: first (orders up to this number are of an earlier run).
select
    count(*) as placed,
    count(paid_at) as paid,
    count(cancelled_at) as cancelled,
    count(*) filter (where paid_at is null and cancelled_at is null) as open,
    count(*) filter (where paid_at is not null and cancelled_at is not null) as wrongly_cancelled,
    count(*) filter (where cancelled_at < pay_by) as cancelled_early,
    min(pay_by) > clock_timestamp() as none_due,
    max(pay_by) < clock_timestamp() as all_due
from orders
where number > %(first)s;
