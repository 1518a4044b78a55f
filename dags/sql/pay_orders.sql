-- Every second order is paid, unless it is too late.
update orders
set paid_at = clock_timestamp()
where number % 2 = 0
    and paid_at is null
    and cancelled_at is null
    and pay_by > clock_timestamp()
returning number;
