-- Answers to leases: ack, nack, extend. Guarded by the lease being current: after its end, or a final answer, LeaseLost.

create or replace function duewheel.answer(
    p_action text,
    p_group_id integer,
    p_topic_ids integer[],
    p_queues integer[],
    p_ns bigint[],
    p_tokens bigint[],
    -- For each lease an array of message numbers, or null for the whole lease.
    p_seqs jsonb,
    p_delay interval default null,
    p_reason text default null,
    p_duration interval default null,
    p_now timestamptz default null
) returns void
-- One plan for all, by the keys, though tables were small when it was made.
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set jit = off
as $$
declare
    v_now timestamptz;
    v_lease duewheel.lease;
    v_kind constant text := case p_action when 'ack' then 'acked' when 'nack' then 'failed' when 'extend' then 'extended' end;
    v_seqs bigint[];
    v_end timestamptz;
    v_final text;
    v_answered bigint[];
    v_returned bigint[];
begin
    if p_now is not null then
        perform duewheel.require_clock_right(p_now);
    end if;
    if (current_setting('transaction_isolation') = 'read committed'
        and current_setting('duewheel.home', true) = 'duewheel.broker'::regclass::oid::text) is not true
    then
        perform duewheel.require_read_committed();
    end if;
    if v_kind is null then
        raise exception using
            errcode = 'DW010', message = format('the answer is "%s"; it is "ack", "nack" or "extend"', p_action),
            hint = 'Give one of the three.';
    end if;
    -- It is kept with each message of the lease.
    p_reason := left(p_reason, 10000);
    if p_action = 'extend' then
        perform duewheel.check_invisible(p_duration);
    end if;
    if p_delay < interval '0' or p_delay > interval '3660 days' then
        raise exception using
            errcode = 'DW010', message = format('the delay of the retry is %s; the limit is 0 to 3660 days', p_delay),
            hint = 'Give a delay within the limit, or none for the group''s retry intervals.';
    end if;
    for i in 1 .. coalesce(array_length(p_ns, 1), 0) loop
        v_seqs := null;
        if p_seqs is not null and jsonb_typeof(p_seqs -> (i - 1)) <> 'null' then
            v_seqs := array(select jsonb_array_elements_text(p_seqs -> (i - 1))::bigint);
        end if;
        if not pg_try_advisory_xact_lock(duewheel.lease_lock_key(p_group_id, p_topic_ids[i], p_queues[i], p_ns[i])) then
            perform pg_advisory_xact_lock(duewheel.lease_lock_key(p_group_id, p_topic_ids[i], p_queues[i], p_ns[i]));
        end if;
        v_now := coalesce(p_now, clock_timestamp());
        if p_action = 'ack' and v_seqs is null then
            -- As most leases end: all of it is acked in time, and this is the first that is heard of it.
            insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at, reason)
            select l.topic_id, l.group_id, l.queue, l.n, v_kind, v_now, p_reason
            from duewheel.lease l
            where l.topic_id = p_topic_ids[i] and l.group_id = p_group_id and l.queue = p_queues[i] and l.n = p_ns[i]
              and l.token = p_tokens[i] and l.expires_at > v_now and not l.listed
              and not exists (
                select from duewheel.lease_event e
                where e.topic_id = l.topic_id and e.group_id = l.group_id and e.queue = l.queue and e.n = l.n);
            continue when found;
        end if;
        select * into v_lease from duewheel.lease l
        where l.topic_id = p_topic_ids[i] and l.group_id = p_group_id and l.queue = p_queues[i] and l.n = p_ns[i]
          and l.token = p_tokens[i];
        if not found then
            raise exception using
                errcode = 'DW011',
                message = 'the lease is unknown to the broker: its messages are delivered again',
                hint = 'A database crash may have lost it, or its group was rewound or deleted. Do not take the work '
                       'as acknowledged.';
        end if;
        v_end := v_lease.expires_at;
        v_final := null;
        v_answered := null;
        if exists (
            select from duewheel.lease_event e
            where e.topic_id = v_lease.topic_id and e.group_id = p_group_id and e.queue = v_lease.queue
              and e.n = v_lease.n
        ) then
            v_end := duewheel.lease_end(p_group_id, v_lease.topic_id, v_lease.queue, v_lease.n);
            select max(e.kind) filter (where e.kind in ('expired', 'rewound')
                                       or (e.kind in ('acked', 'failed', 'returned') and e.seqs is null)),
                   array(select distinct seq
                         from duewheel.lease_event a, unnest(a.seqs) seq
                         where a.topic_id = v_lease.topic_id and a.group_id = p_group_id and a.queue = v_lease.queue
                           and a.n = v_lease.n and a.kind in ('acked', 'failed', 'returned')
                           and (p_action <> 'ack' or a.kind <> 'acked'))
            into v_final, v_answered
            from duewheel.lease_event e
            where e.topic_id = v_lease.topic_id and e.group_id = p_group_id and e.queue = v_lease.queue
              and e.n = v_lease.n;
        end if;
        -- The same final answer again changes nothing.
        continue when v_final = 'acked' and p_action = 'ack';
        if v_final is not null or v_end <= v_now then
            raise exception using
                errcode = 'DW011',
                message = case
                    when v_final = 'rewound'
                        then 'the consumer group was rewound, which ended the lease'
                    when v_final in ('acked', 'failed', 'returned')
                        then format('the lease was answered before (%s)', v_final)
                    else format('the lease ended at %s, before this answer at %s', v_end, v_now)
                end,
                hint = 'Its messages may be delivered to others. Ack sooner, take a longer invisible duration, or extend '
                       'the lease while working.';
        end if;
        if v_seqs && v_answered then
            raise exception using
                errcode = 'DW011',
                message = format('%s of the messages were answered before',
                                 (select count(*) from unnest(v_seqs) seq where seq = any (v_answered))),
                hint = 'Answer each message of a lease once.';
        end if;
        if p_action = 'extend' then
            insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at, expires_at)
            values (v_lease.topic_id, p_group_id, v_lease.queue, v_lease.n, v_kind, v_now, v_now + p_duration);
            continue;
        end if;
        if v_lease.listed and p_action = 'nack' then
            v_returned := (duewheel.fifo_fail(v_lease, v_seqs, p_reason, v_now + duewheel.span(p_delay), p_now)).returned;
            if cardinality(v_returned) > 0 then
                insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at, seqs)
                values (v_lease.topic_id, p_group_id, v_lease.queue, v_lease.n, 'returned', v_now, v_returned);
            end if;
        end if;
        if v_seqs is not null and v_lease.message_count = (
            select count(*) from (
                select seq from unnest(v_seqs) seq
                union
                select seq from duewheel.lease_event e, unnest(e.seqs) seq
                where e.topic_id = v_lease.topic_id and e.group_id = p_group_id and e.queue = v_lease.queue
                  and e.n = v_lease.n) answered
        ) then
            -- The last ones: the lease is answered as a whole.
            v_seqs := null;
        end if;
        if p_action = 'nack' and not v_lease.listed then
            perform duewheel.retry_messages(v_lease, v_seqs, p_reason, v_now + duewheel.span(p_delay), p_now);
        end if;
        insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at, seqs, reason)
        values (v_lease.topic_id, p_group_id, v_lease.queue, v_lease.n, v_kind, v_now, v_seqs, p_reason);
        if v_lease.listed and p_action = 'ack' and exists (
            select from duewheel.fifo_backlog b
            where b.topic_id = v_lease.topic_id and b.group_id = p_group_id and b.queue = v_lease.queue
              and b.blocked_n = v_lease.n
        ) then
            -- What was behind these messages may be free now.
            perform duewheel.announce('duewheel_released', v_lease.topic_id::text);
        end if;
    end loop;
end
$$;
