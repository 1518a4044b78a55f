-- The messages of one lease for an executor, read through COPY. The innermost SELECT comes from duewheel.lease_query.
-- Only the columns wanted are selected, because each costs the transfer of its bytes. The reader makes the id of a
-- message from its deliver_at and seq; only a retry brings along the id of the first message of its chain.
select {columns}
from (
    select case when m.origin_seq is not null
               then duewheel.message_id(m.origin_topic_id, m.origin_queue, m.origin_deliver_at, m.origin_seq)
           end as origin_id, m.*
    from ({lease_query}) m
) m
