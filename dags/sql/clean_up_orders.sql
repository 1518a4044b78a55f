-- Parameters: keep_days (how long a cancelled order is kept). A clean-up that runs twice finds nothing more to delete.
delete from orders
where cancelled_at < now() - make_interval(days => %(keep_days)s);
