-- For each lease: the topic its messages were sent to (a lease of retries is on the group's retry topic), the number of
-- messages to read, and the SELECT that yields exactly these. Only messages without an answer of their own are read,
-- unless all are wanted. A login that may read the table gets a SELECT that streams from it; any other gets a call of
-- the function that every consumer may call. Leases are given as parallel arrays.
select duewheel.lease_topic(lease.topic_id),
       open.messages + case when wanted.answered then cardinality(open.answered) else 0 end,
       case when wanted.answered or open.answered = '{}' then whole.query
            else format('select * from (%%s) m where m.seq <> all (%%L::bigint[])', whole.query, open.answered) end
from unnest(%s::integer[], %s::integer[], %s::integer[], %s::bigint[])
         with ordinality lease (group_id, topic_id, queue, n, place)
cross join (select %s::boolean) wanted (answered)
cross join lateral duewheel.open_messages(lease.group_id, lease.topic_id, lease.queue, lease.n) open
cross join lateral (
    select case when has_table_privilege('duewheel.any_message', 'select')
                and has_table_privilege('duewheel.tick', 'select')
                and has_table_privilege('duewheel.straggler', 'select')
                and has_table_privilege('duewheel.recall', 'select')
           then duewheel.lease_query(lease.group_id, lease.topic_id, lease.queue, lease.n)
           else format('select * from duewheel.lease_rows(%%s, %%s, %%s, %%s)',
                       lease.group_id, lease.topic_id, lease.queue, lease.n)
           end as query
) whole
order by lease.place
