-- Consuming from any language. A receipt handle names a message and the lease it was received under:
-- group_id.topic_id.queue.lease_n.token.seq.

-- role: consumer
create or replace function duewheel.receive(
    topic text, consumer_group text, max_messages integer default 32,
    invisible interval default '60 seconds', consumer text default null, now timestamptz default null,
    -- False: an unknown group is an error, such as a mistyped name.
    create_group boolean default true
) returns setof duewheel.received_message
language plpgsql as $$
#variable_conflict use_column
declare
    v_subscription record;
begin
    if receive.create_group is not false then
        v_subscription := duewheel.subscribe(receive.topic, receive.consumer_group, 'earliest', null, receive.now);
    else
        select s.group_id, s.topic_id into v_subscription
        from duewheel.subscription s
        where s.group_name = receive.consumer_group and s.topic_id = (duewheel.topic_by_name(receive.topic)).topic_id;
        if not found then
            perform duewheel.raise_unread(
                receive.consumer_group, receive.topic,
                'Correct the name, or leave create_group out: then the group is made.');
        end if;
    end if;
    perform duewheel.check_limit('max_messages', receive.max_messages, 1, 10000);
    -- A lease's row follows the rows of its messages.
    return query
    select a.*
    from (
        select r.message, r.place,
               first_value((r.message).lease) over (partition by r.lease_number order by r.place desc) as held
        from (
            select r.message, r.place, count((r.message).lease) over (order by r.place desc) as lease_number
            from (
                select r as message, row_number() over () as place
                from duewheel.receive_batch(
                    v_subscription.group_id, v_subscription.topic_id, receive.max_messages,
                    receive.invisible, receive.consumer, (random() * 64)::integer, true,
                    receive.now,
                    -- More than one portion, because a caller that rolls back would never get past a single one.
                    p_passes => 5 * duewheel.portion()) r
            ) r
        ) r
    ) m
    cross join lateral duewheel.as_received(m.message, m.held, v_subscription.group_id, receive.topic) a
    where (m.message).attempt is not null
    order by m.place;
end
$$;

-- Whether a text has the form of a receipt handle, with numbers that fit their columns.
create or replace function duewheel.is_receipt_handle(p_handle text) returns boolean
language sql immutable strict
return case
    when p_handle !~ '^\d{1,10}\.\d{1,10}\.\d{1,5}(\.\d{1,19}){3}$' then false
    when p_handle !~ '\d{10}|\.\d{5}\.' then true
    else split_part(p_handle, '.', 1)::bigint <= 2147483647 and split_part(p_handle, '.', 2)::bigint <= 2147483647
        and split_part(p_handle, '.', 3)::integer <= 32767 and greatest(
            split_part(p_handle, '.', 4)::numeric, split_part(p_handle, '.', 5)::numeric,
            split_part(p_handle, '.', 6)::numeric) <= 9223372036854775807
    end;

create or replace function duewheel.answer_handles(
    p_action text, p_handles text[], p_delay interval, p_reason text, p_invisible interval, p_now timestamptz
) returns void
language plpgsql as $$
declare
    v_group record;
    v_bad text;
begin
    perform duewheel.clock_at(p_now);
    select h into v_bad from unnest(p_handles) h where duewheel.is_receipt_handle(h) is not true limit 1;
    if found then
        raise exception using
            errcode = 'DW010',
            message = format('"%s" is not a receipt handle', left(v_bad, 120)),
            hint = 'Pass the receipt_handle of a received message unchanged.';
    end if;
    for v_group in
        -- Always in this order: two answers to the same leases wait for each other and never in a circle.
        select l.group_id, array_agg(l.topic_id) as topic_ids, array_agg(l.queue) as queues, array_agg(l.n) as ns,
               array_agg(l.token) as tokens, jsonb_agg(l.seqs) as seqs
        from (
            select h.group_id, h.topic_id, h.queue, h.n, h.token,
                   case when count(distinct h.seq) < coalesce((
                            select l.message_count from duewheel.lease l
                            where l.group_id = h.group_id and l.topic_id = h.topic_id and l.queue = h.queue
                              and l.n = h.n), 0)
                        then jsonb_agg(distinct h.seq) end as seqs
            from (
                select p[1]::integer as group_id, p[2]::integer as topic_id, p[3]::integer as queue,
                       p[4]::bigint as n, p[5]::bigint as token, p[6]::bigint as seq
                from unnest(p_handles) handle, string_to_array(handle, '.') p
            ) h
            group by h.group_id, h.topic_id, h.queue, h.n, h.token
            order by h.group_id, h.topic_id, h.queue, h.n
        ) l
        group by l.group_id order by l.group_id
    loop
        perform duewheel.answer(p_action, v_group.group_id, v_group.topic_ids, v_group.queues, v_group.ns,
                                v_group.tokens, v_group.seqs, p_delay, p_reason, p_invisible, p_now);
    end loop;
end
$$;

-- Strict by default: the ack is part of the caller's transaction, together with the work, and a second transaction that
-- has done the same work must not commit. A client that acks in a separate transaction, and repeats the ack when the
-- answer got lost, passes strict => false.
-- role: consumer
create or replace function duewheel.ack(
    receipt_handles text[], now timestamptz default null, strict boolean default true
) returns void
language sql
begin atomic
    select duewheel.answer_handles(case when strict is false then 'ack' else 'ack_once' end, receipt_handles, null,
                                   null, null, now);
end;

-- Before the work: gives the caller's transaction the leases until it ends, so that only one transaction does the work.
-- role: consumer
create or replace function duewheel.fence(receipt_handles text[], now timestamptz default null) returns void
language sql
begin atomic
    select duewheel.answer_handles('fence', receipt_handles, null, null, null, now);
end;

-- role: consumer
create or replace function duewheel.nack(
    receipt_handles text[], delay interval default null, reason text default null, now timestamptz default null
) returns void
language sql
begin atomic
    select duewheel.answer_handles('nack', receipt_handles, delay, reason, null, now);
end;

-- role: consumer
create or replace function duewheel.skip(
    receipt_handles text[], reason text default null, now timestamptz default null
) returns void
language sql
begin atomic
    select duewheel.answer_handles('skip', receipt_handles, null, reason, null, now);
end;

-- role: consumer
create or replace function duewheel.dead_letter(
    receipt_handles text[], reason text default null, now timestamptz default null
) returns void
language sql
begin atomic
    select duewheel.answer_handles('dead_letter', receipt_handles, null, reason, null, now);
end;

-- role: consumer
create or replace function duewheel.give_back(
    receipt_handles text[], reason text default null, now timestamptz default null
) returns void
language sql
begin atomic
    select duewheel.answer_handles('give_back', receipt_handles, null, reason, null, now);
end;

-- role: consumer
create or replace function duewheel.change_invisible_duration(
    receipt_handles text[], invisible interval, now timestamptz default null
) returns void
language sql
begin atomic
    select duewheel.answer_handles('extend', receipt_handles, null, null, invisible, now);
end;
