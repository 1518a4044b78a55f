-- The orders that a timeout can be about: those whose time to pay is over.
select number, paid_at is not null as is_paid
from orders
where pay_by <= clock_timestamp() and cancelled_at is null;
