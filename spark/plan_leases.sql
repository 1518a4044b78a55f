-- For each lease, the topic its messages were sent to (a retry's lease is on the group's retry topic), how many of its
-- messages have no answer of their own, or how many it has where all are wanted, and the SELECT that yields exactly
-- these: from the table where the login may read it, which streams them, else from the function that every consumer
-- may call. Leases are given as parallel arrays.
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
