-- Parameters: amount. The order and its timeout message are written by one statement.
with placed as (
    insert into orders (amount, placed_at, pay_by)
    values (%(amount)s, now(), now() + interval '30 minutes')
    returning number, pay_by
)
select number, (duewheel.send(
    'order-timeout', jsonb_build_object('order', number), deliver_at => pay_by, key => number::text)).message_id
from placed;
