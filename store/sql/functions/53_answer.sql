-- Answers to leases: ack, nack, extend. Guarded by the lease being current: after its end, or a final answer,
-- LeaseLost.
--
-- An answer to all that is left of a lease is one row of lease_event, which is final. Answers to single messages stand
-- in lease_answer, where each is found by its message: an answer costs the same however many the lease has already.

-- Answers that single messages of a lease have.
create or replace function duewheel.message_answers(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint
) returns table (seq bigint, kind text, at timestamptz, reason text, xid xid8)
language sql stable
begin atomic
    select a.seq, a.kind, a.at, a.reason, a.xid from duewheel.lease_answer a
    where a.topic_id = p_topic_id and a.group_id = p_group_id and a.queue = p_queue and a.n = p_n;
end;

-- The answer that one message of a lease has. A range and an order, so that no plan takes the index by count.
create or replace function duewheel.message_answer(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint, p_seq bigint
) returns table (kind text, at timestamptz, reason text, xid xid8)
language sql stable
begin atomic
    select a.kind, a.at, a.reason, a.xid from duewheel.lease_answer a
    where a.topic_id = p_topic_id and a.group_id = p_group_id and a.queue = p_queue and a.n = p_n
      and a.seq >= p_seq and a.seq <= p_seq
    order by a.seq limit 1;
end;

-- How many messages of a lease have an answer of their own.
create or replace function duewheel.answered_count(p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint)
returns integer
language sql stable
begin atomic
    select coalesce((
        select a.answered_count from duewheel.lease_answer a
        where a.topic_id = p_topic_id and a.group_id = p_group_id and a.queue = p_queue and a.n = p_n
        order by a.answered_count desc limit 1), 0);
end;

-- Notes an answer to some messages of a lease, which have none yet. The caller holds the lease's lock.
create or replace function duewheel.add_message_answers(
    p_lease duewheel.lease, p_seqs bigint[], p_kind text, p_at timestamptz, p_reason text
) returns void
language plpgsql as $$
declare
    v_count constant integer := duewheel.answered_count(
        (p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n);
begin
    insert into duewheel.lease_answer (topic_id, group_id, queue, n, seq, answered_count, kind, at, reason)
    select (p_lease).topic_id, (p_lease).group_id, (p_lease).queue, (p_lease).n, s.seq, v_count + s.place, p_kind, p_at,
           p_reason
    from unnest(p_seqs) with ordinality s (seq, place);
end
$$;

-- Takes a lease's lock for an extension, but does not wait for a transaction that stays open. While it is open nobody
-- revives the lease, and after it the extension counts.
create or replace function duewheel.try_lease_lock(p_key bigint) returns void
language plpgsql as $$
declare
    v_until constant timestamptz := clock_timestamp() + interval '1 second';
begin
    while not pg_try_advisory_xact_lock(p_key) and clock_timestamp() < v_until loop
        perform pg_sleep(0.01);
    end loop;
end
$$;

-- The transaction of the newest answer to a message of a lease.
create or replace function duewheel.last_answer_xid(p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint)
returns xid8
language sql stable
begin atomic
    select coalesce((
        select a.xid from duewheel.lease_answer a
        where a.topic_id = p_topic_id and a.group_id = p_group_id and a.queue = p_queue and a.n = p_n
        order by a.answered_count desc limit 1), '0');
end;

-- Whether this transaction has fenced the lease with this lock. It stands in a setting, which ends with the transaction
-- or goes back with its savepoint, as the lock does.
create or replace function duewheel.is_fenced(p_key bigint) returns boolean
language sql stable
return position(format(',%s,', p_key) in coalesce(current_setting('duewheel.fenced', true), '')) > 0;

-- "ack" may be repeated. "ack_once" and "fence" are refused where another transaction has answered; they wait for one
-- that is open. "fence" answers nothing: it takes the lease's lock and looks. The transaction then has the lease until
-- it commits or rolls back, and may answer it after the end of the lease, as nobody can revive it meanwhile.
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
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz;
    v_lease duewheel.lease;
    v_kind constant text := case p_action when 'ack' then 'acked' when 'ack_once' then 'acked' when 'nack' then 'failed'
                                          when 'extend' then 'extended' when 'fence' then 'fenced' end;
    v_once constant boolean := p_action in ('ack_once', 'fence');
    v_key bigint;
    v_own_xid xid8;
    v_seqs bigint[];
    v_open bigint[];
    v_end timestamptz;
    v_events record;
    v_answered bigint;
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
            errcode = 'DW010',
            message = format('the answer is "%s"; it is "ack", "ack_once", "nack", "extend" or "fence"', p_action),
            hint = 'Give one of these.';
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
        v_key := duewheel.lease_lock_key(p_group_id, p_topic_ids[i], p_queues[i], p_ns[i]);
        if not pg_try_advisory_xact_lock(v_key) then
            if p_action = 'extend' then
                perform duewheel.try_lease_lock(v_key);
            else
                perform pg_advisory_xact_lock(v_key);
            end if;
        end if;
        v_now := coalesce(p_now, clock_timestamp());
        if v_kind = 'acked' and v_seqs is null then
            -- As most leases end: all of it is acked in time, and this is the first that is heard of it.
            insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at, reason)
            select l.topic_id, l.group_id, l.queue, l.n, v_kind, v_now, p_reason
            from duewheel.lease l
            where l.topic_id = p_topic_ids[i] and l.group_id = p_group_id and l.queue = p_queues[i] and l.n = p_ns[i]
              and l.token = p_tokens[i] and l.expires_at > v_now and not l.listed
              and not exists (
                select from duewheel.lease_event e
                where e.topic_id = l.topic_id and e.group_id = l.group_id and e.queue = l.queue and e.n = l.n)
              and (not v_once or not exists (
                select from duewheel.lease_answer a
                where a.topic_id = l.topic_id and a.group_id = l.group_id and a.queue = l.queue and a.n = l.n));
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
        v_own_xid := pg_current_xact_id_if_assigned();
        select max(e.kind) filter (where e.is_final) as final,
               bool_or(e.is_own) filter (where e.is_final) as final_is_own,
               bool_or(e.is_own) is true as is_held, count(e.expires_at) > 0 as is_moved
        into v_events
        from (
            select e.kind, e.expires_at, e.xid = v_own_xid as is_own, duewheel.is_final(e.kind) as is_final
            from duewheel.lease_event e
            where e.topic_id = v_lease.topic_id and e.group_id = p_group_id and e.queue = v_lease.queue
              and e.n = v_lease.n
        ) e;
        -- The same final answer again changes nothing.
        continue when v_events.final = 'acked' and p_action = 'ack';
        v_open := null;
        v_answered := 0;
        if v_seqs is not null then
            select coalesce(array_agg(s.seq) filter (where a.kind is null), '{}'),
                   count(a.kind) filter (where case
                       when p_action = 'ack' then a.kind <> 'acked'
                       when v_once then (a.xid = v_own_xid and a.kind = 'acked') is not true
                       else true end)
            into v_open, v_answered
            from (select distinct unnest(v_seqs) as seq) s
            left join lateral duewheel.message_answer(
                p_group_id, v_lease.topic_id, v_lease.queue, v_lease.n, s.seq) a on true;
        elsif v_once then
            select count(*) into v_answered
            from duewheel.message_answers(p_group_id, v_lease.topic_id, v_lease.queue, v_lease.n) a
            where (a.xid = v_own_xid) is not true;
        end if;
        continue when v_events.final = 'acked' and v_once and v_events.final_is_own and v_answered = 0;
        v_end := case when v_events.is_moved
            then duewheel.lease_end(p_group_id, v_lease.topic_id, v_lease.queue, v_lease.n) else v_lease.expires_at end;
        if v_events.final is not null or (
            v_end <= v_now and not v_events.is_held and not duewheel.is_fenced(v_key)
            and duewheel.last_answer_xid(p_group_id, v_lease.topic_id, v_lease.queue, v_lease.n)
                is distinct from v_own_xid
        ) then
            raise exception using
                errcode = case when v_once and v_events.final in ('acked', 'failed', 'returned') then 'DW020'
                               else 'DW011' end,
                message = case
                    when v_events.final = 'rewound'
                        then 'the consumer group was rewound, which ended the lease'
                    when v_events.final in ('acked', 'failed', 'returned')
                        then format('the lease was answered before (%s)', v_events.final)
                    else format('the lease ended at %s, before this answer at %s', v_end, v_now)
                end,
                hint = case when v_once and v_events.final in ('acked', 'failed', 'returned')
                    then 'Roll back: this work has been done, or given back, in another transaction.'
                    else 'Its messages may be delivered to others. Ack sooner, take a longer invisible duration, or '
                         'extend the lease while working.' end;
        end if;
        if v_answered > 0 then
            raise exception using
                errcode = case when v_once then 'DW020' else 'DW011' end,
                message = format('%s of the messages were answered before', v_answered),
                hint = case when v_once
                    then 'Roll back: their work has been done, or given back, in another transaction. Name only those '
                         'messages that this transaction works on.'
                    else 'Answer each message of a lease once.' end;
        end if;
        if p_action = 'fence' then
            if not duewheel.is_fenced(v_key) then
                perform set_config(
                    'duewheel.fenced',
                    format('%s%s,', coalesce(nullif(current_setting('duewheel.fenced', true), ''), ','), v_key), true);
            end if;
            continue;
        end if;
        if p_action = 'extend' then
            insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at, expires_at)
            values (v_lease.topic_id, p_group_id, v_lease.queue, v_lease.n, v_kind, v_now, v_now + p_duration);
            continue;
        end if;
        -- Acked before, all of them.
        continue when cardinality(v_open) = 0;
        if v_lease.listed and p_action = 'nack' then
            v_returned := (duewheel.fifo_fail(v_lease, v_seqs, p_reason, v_now + duewheel.span(p_delay),
                                              p_now)).returned;
            perform duewheel.add_message_answers(v_lease, v_returned, 'returned', v_now, null);
        end if;
        if v_lease.message_count = cardinality(v_open)
                + duewheel.answered_count(p_group_id, v_lease.topic_id, v_lease.queue, v_lease.n) then
            -- The last ones: the lease is answered as a whole.
            v_open := null;
        end if;
        if p_action = 'nack' and not v_lease.listed then
            perform duewheel.retry_messages(v_lease, v_open, p_reason, v_now + duewheel.span(p_delay), p_now);
        end if;
        if v_open is null then
            insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at, reason)
            values (v_lease.topic_id, p_group_id, v_lease.queue, v_lease.n, v_kind, v_now, p_reason);
        else
            perform duewheel.add_message_answers(v_lease, v_open, v_kind, v_now, p_reason);
        end if;
        if v_lease.listed and v_kind = 'acked' and exists (
            select from duewheel.fifo_backlog b
            where b.topic_id = v_lease.topic_id and b.group_id = p_group_id and b.queue = v_lease.queue
              and b.blocked_n = v_lease.n
        ) then
            -- Messages behind these may be free now.
            perform duewheel.announce('duewheel_released', v_lease.topic_id::text);
        end if;
    end loop;
end
$$;
