-- Parameters: number (of an order). A cancelled order's timeout was released before: the answer says so.
select outcome from duewheel.recall_key('order-timeout', %(number)s::text);
