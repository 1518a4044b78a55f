-- Parameters: due (orders whose timeout came). A message may come twice, and an order may have been paid since: neither
-- changes a thing. The index on the number finds the orders, however many the shop has.
update orders
set timeout_came_at = coalesce(timeout_came_at, clock_timestamp()),
    cancelled_at = case when paid_at is null then coalesce(cancelled_at, clock_timestamp()) else cancelled_at end
where number = any(%(due)s::bigint[]);
