-- Parameters: number. An order that was paid or cancelled before stays as it is.
update orders
set paid_at = now()
where number = %(number)s::bigint and paid_at is null and cancelled_at is null;
