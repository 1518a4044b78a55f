-- Parameters: due (orders whose timeout came), unpaid (those of them that Spark found unpaid).
-- A message may come twice, and an order may have been paid since Spark looked: neither changes a thing.
update orders
set timeout_came_at = coalesce(timeout_came_at, clock_timestamp()),
    cancelled_at = case
        when number = any(%(unpaid)s) and paid_at is null then coalesce(cancelled_at, clock_timestamp())
        else cancelled_at
    end
where number = any(%(due)s);
