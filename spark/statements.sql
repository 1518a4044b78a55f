-- The statements of Spark's side, each after the line with its name.

-- name: ack_leases
-- Acks the leases of a part in the transaction that has done its work.
select duewheel.answer('ack_once', %s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s::jsonb)

-- name: answered_messages
-- The messages of a lease that have an answer of their own.
select o.answered from duewheel.open_messages(%s, %s, %s, %s) o

-- name: check_leases
-- The first lease that a task is about to read whose messages may be with others, and its state.
select h.n, h.queue, s.state
from (values {leases}) h (place, group_id, topic_id, queue, n, token)
cross join lateral duewheel.lease_states(
    h.group_id, array[h.topic_id], array[h.queue], array[h.n], array[h.token]) s
where s.state not in ('held', 'acked')
order by h.place
limit 1

-- name: discard_staged
-- Discards a portion of the messages staged under this name, and returns whether more is left.
select duewheel.discard_staged(%s)

-- name: fence_leases
-- Takes the leases of a part for this transaction, and returns the transaction's id. The keepalives end the session of
-- a machine that vanished, so its task holds the leases for two minutes at most.
select set_config('tcp_keepalives_idle', '60', true), set_config('tcp_keepalives_interval', '10', true),
       set_config('tcp_keepalives_count', '6', true),
       duewheel.answer('fence', %s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s::jsonb),
       pg_current_xact_id()::text

-- name: fifo_topics
-- Those of these topics that no stream can read.
select t.topic from duewheel.topics t where t.topic = any (%s) and t.message_type = 'FIFO' order by t.topic

-- name: lease_evenly
-- Leases messages of a topic for a group without returning them, in leases that can be dealt out evenly to p_parts
-- parts; one row for each lease, and one of nulls if it passed a portion and there is more behind it.
select l.topic_id, l.queue, l.lease_n, l.lease_token, l.expires_at, l.lease_count
from duewheel.lease_evenly(
    p_group_id => %s, p_topic_id => %s, p_max => %s, p_parts => %s, p_invisible => %s, p_consumer => %s,
    p_now => %s, p_min_parts => %s, p_largest => %s) l

-- name: lease_runs
-- Runs of leases that one SELECT reads: where each lease ends, and the SELECT. A login that may read the tables gets a
-- SELECT that streams from them; any other gets a call of the function that every consumer may call.
select r.end_micros, r.end_seqs,
       case when has_table_privilege('duewheel.any_message', 'select')
            and has_table_privilege('duewheel.tick', 'select')
            and has_table_privilege('duewheel.straggler', 'select')
            and has_table_privilege('duewheel.recall', 'select')
       then duewheel.lease_query({group_id}, r.topic_id, r.queue, r.first_n, false, r.last_n)
       else format('select * from duewheel.lease_rows(%s, %s, %s, %s, %s)',
                   {group_id}, r.topic_id, r.queue, r.first_n, r.last_n)
       end as query
from duewheel.lease_runs(
    {group_id}, array[{topic_ids}]::integer[], array[{queues}]::integer[], array[{ns}]::bigint[]) r
order by r.place

-- name: leased_body_bytes
-- About how many bytes the body of a message of these leases has.
select coalesce(avg(octet_length(m.body)), 0)::integer
from unnest(%s::integer[], %s::integer[], %s::integer[], %s::bigint[]) l (group_id, topic_id, queue, n)
cross join lateral (
    select r.body from duewheel.lease_rows(l.group_id, l.topic_id, l.queue, l.n) r limit 25) m

-- name: peek_cuts
-- Ranges of the messages that are due from one instant on and before another.
select c.topic_id, c.queue, c.from_at, c.from_seq, c.to_at, c.to_seq, c.messages
from duewheel.peek_cuts(%s, %s, %s, %s, %s, %s) c

-- name: plan_for_many
-- How a session plans that reads many messages. The first columns of the primary key are the same in all rows of the
-- read, so Postgres takes the key's order for the table's. Where random_page_cost is near 1, it then visits a page of the
-- table for each message, although a bitmap visits each page once. To compile a plan takes longer than it saves.
select set_config('random_page_cost', '4', false), set_config('jit', 'off', false)

-- name: plan_leases
-- For each lease of a group: the topic its messages were sent to (a lease of retries is on the group's retry topic), the
-- number of messages to read, and the messages to leave out: messages with a separate answer, unless all are wanted.
select duewheel.lease_topic(lease.topic_id),
       open.messages + case when wanted.answered then cardinality(open.answered) else 0 end,
       case when wanted.answered then '{}' else open.answered end
from (select %s::boolean as answered, %s::integer as group_id) wanted
cross join unnest(%s::integer[], %s::integer[], %s::bigint[]) with ordinality lease (topic_id, queue, n, place)
cross join lateral duewheel.open_messages(wanted.group_id, lease.topic_id, lease.queue, lease.n) open
order by lease.place

-- name: publish_batch
-- Sends the messages of these parts, unless they were sent before.
select b.sent, b.sent_before
from duewheel.publish_batch(%s, %s, %s, %s::bigint[], %s::bigint[], p_keep => %s, p_are_texts => %s) b

-- name: read_lease
-- The messages of leases for an executor, read through COPY. The innermost SELECT comes from duewheel.lease_query.
-- Only the columns wanted are selected, because each costs the transfer of its bytes. The reader makes the id of a
-- message from its deliver_at and seq; only a retry brings along the id of the first message of its chain.
select {columns}
from (
    select case when m.origin_seq is not null
               then duewheel.message_id(m.origin_topic_id, m.origin_queue, m.origin_deliver_at, m.origin_seq)
           end as origin_id,
           -- As duewheel.store.values.content_types has it, for texts in UTF-8. The usual types have a mark.
           case when m.content_type is not null then true
                else m.properties ->> 'content-type' ~* '^\s*(text/|([^;]*\+|application/)json\s*(;|$))(?!.*charset\s*=\s*"?(?!utf-?8|us-ascii))'
           end as is_text,
           m.*
    from ({lease_query}) m
) m

-- name: reject_messages
-- Rejects messages of a lease, each with its reason.
select duewheel.answer(
    'nack', %s, array[%s], array[%s], array[%s::bigint], array[%s::bigint], %s::jsonb, p_delay => %s::interval,
    p_now => %s::timestamptz, p_reasons => %s::jsonb)

-- name: stage_part
-- Notes the parts of a task, in the transaction that has staged their messages.
select duewheel.stage_part('{staging}', p.part_id) from unnest(array[{part_ids}]::bigint[]) p (part_id)

-- name: stream_commit
-- Sets the position of a stream's group to the places that the stream has read.
select duewheel.stream_commit(%s, %s, %s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[])

-- name: stream_cut
-- How far streams read that may read from some places to others, with limits of messages and of bytes.
select c.topic_id, c.queue, c.at, c.seq, c.straggler
from duewheel.stream_cut(
    %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s, %s) c

-- name: stream_cuts
-- The places at which to cut the messages between two places of a queue.
select c.at, c.seq, c.straggler, c.messages
from duewheel.stream_cuts(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) c

-- name: stream_lag
-- How many messages, and how many seconds, a stream that stands at these places is behind.
select l.messages, extract(epoch from l.behind)::double precision
from duewheel.stream_lag(
    %s, %s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[]) l

-- name: stream_latest
-- How far streams that stand at these places may read, and whether a topic is deleted (a deleted topic is renamed, and
-- later its row goes). If a topic or its group has no places, the answer is one row without a place.
select r.topic_id, s.topic_id, s.queue, s.at, s.seq, s.straggler,
       r.name is null or r.name like '%%~deleted~%%' as is_deleted
from (select t as topic_id, duewheel.lease_topic(t) as name from unnest(%s::integer[]) t) r
left join duewheel.stream_latest(
    %s::integer[], %s::integer[], %s::text[], %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::integer[], %s::integer[], %s::bigint[], %s::bigint[]) s on s.subscribed = r.topic_id

-- name: stream_lost
-- The losses of a stream that stands at these places: in how many queues retention has dropped messages that it had not
-- read, and up to how many messages, null if that is not known.
select l.queues, l.messages
from duewheel.stream_lost(%s, %s, %s::integer[], %s::integer[], %s::bigint[]) l

-- name: stream_reject
-- Rejects messages that a stream has read, each with its reason.
select duewheel.stream_reject(%s::text[], %s::text[], p_delay => %s::interval)

-- name: stream_query
-- The SELECT that yields the messages released between two places of a queue; without stragglers, those stored there. A
-- login that may read the tables gets a SELECT that streams from them; any other gets a call of the function.
select case when has_table_privilege('duewheel.any_message', 'select')
            and has_table_privilege('duewheel.tick', 'select')
            and has_table_privilege('duewheel.straggler', 'select')
            and has_table_privilege('duewheel.recall', 'select')
       then duewheel.stream_query({arguments}) else {call} end as query

-- name: stream_start
-- Where a new stream begins.
select s.stream, s.topic_id, s.queue, s.at, s.seq, s.straggler from duewheel.stream_start(%s, %s, %s, %s, %s, %s) s

-- name: stream_subscription
-- The numbers of a group and of a topic that it reads; no row where it does not.
select s.group_id, s.topic_id from duewheel.subscriptions_named(array[%s], array[%s], null) s

-- name: stream_topics
-- The topics that a stream can read.
select t.topic from duewheel.topics t where t.message_type <> 'FIFO' order by t.topic

-- name: topics
-- The names of all topics.
select t.topic from duewheel.topics t order by t.topic

-- name: unread_body_bytes
-- About how many bytes the body of a message has that a group reads next.
select duewheel.unread_body_bytes(%s, %s)

-- name: write_topic
-- The type of a topic, null without one, and whether this login may send.
select t.message_type, has_table_privilege('duewheel.staged_message', 'insert')
from (select %s::text) named (topic) left join duewheel.topics t using (topic)
