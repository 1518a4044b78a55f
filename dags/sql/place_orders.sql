-- Parameters: orders (how many), timeout (interval to pay in), spread (the last order has this much longer than the
-- first). Returns what the timeout messages need.
insert into orders (amount, placed_at, pay_by)
select
    round((5 + 95 * random())::numeric, 2),
    now(),
    now() + %(timeout)s + %(spread)s * i / %(orders)s
from generate_series(1, %(orders)s) as i
returning number, pay_by;
