-- Answers to leases: ack, skip, nack, dead letter, give back, extend, fence. An answer counts only while the lease is
-- current. After its end, or after a final answer of another kind, it raises LeaseLost.
--
-- An answer to all that is left of a lease is one row of lease_event, which is final. Answers to single messages are in
-- lease_answer, found by their message: an answer costs the same however many the lease has already.

-- The answers to single messages of a lease.
create or replace function duewheel.message_answers(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint
) returns table (seq bigint, kind text, at timestamptz, reason text, xid xid8)
language sql stable
begin atomic
    select a.seq, a.kind, a.at, a.reason, a.xid from duewheel.lease_answer a
    where a.topic_id = p_topic_id and a.group_id = p_group_id and a.queue = p_queue and a.n = p_n;
end;

-- The answer to one message of a lease. A range and an order, so that no plan uses the index by count.
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

-- The newest answer to a single message of a lease. Its answered_count is that of the lease.
create or replace function duewheel.newest_answer(p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint)
returns setof duewheel.lease_answer
language sql stable rows 1
begin atomic
    select * from duewheel.lease_answer a
    where a.topic_id = p_topic_id and a.group_id = p_group_id and a.queue = p_queue and a.n = p_n
    order by a.answered_count desc limit 1;
end;

-- How many messages of a lease were answered singly. Postgres inlines duewheel.newest_answer and does not inline this
-- function: for each of many leases a call costs four times as much as the lookup.
create or replace function duewheel.answered_count(p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint)
returns integer
language sql stable
begin atomic
    select coalesce((
        select a.answered_count from duewheel.newest_answer(p_group_id, p_topic_id, p_queue, p_n) a), 0);
end;

-- Stores an answer to some messages of a lease, which have none yet. The caller holds the lease's lock. p_reasons: one
-- for each of p_seqs, or one for all.
create or replace function duewheel.add_message_answers(
    p_lease duewheel.lease, p_seqs bigint[], p_kind text, p_at timestamptz, p_reasons text[]
) returns void
language plpgsql as $$
declare
    v_count constant integer := duewheel.answered_count(
        (p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n);
begin
    insert into duewheel.lease_answer (topic_id, group_id, queue, n, seq, answered_count, kind, at, reason)
    select (p_lease).topic_id, (p_lease).group_id, (p_lease).queue, (p_lease).n, s.seq, v_count + s.place, p_kind, p_at,
           case when cardinality(p_reasons) = 1 then p_reasons[1] else s.reason end
    from unnest(p_seqs, p_reasons) with ordinality s (seq, reason, place)
    where s.seq is not null;
end
$$;

-- Whether this transaction has fenced the lease with this lock. A setting has it, which ends with the transaction or
-- returns with its savepoint, like the lock.
create or replace function duewheel.is_fenced(p_key bigint) returns boolean
language sql stable
return position(format(',%s,', p_key) in coalesce(current_setting('duewheel.fenced', true), '')) > 0;

-- True if this transaction fenced, extended or answered a part of the lease before it expired: it cannot have been
-- revived.
create or replace function duewheel.has_lease(p_lease duewheel.lease, p_key bigint) returns boolean
language sql stable
begin atomic
    select duewheel.is_fenced(p_key)
        or (select a.xid
            from duewheel.newest_answer(
                (p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n) a
            ) = pg_current_xact_id_if_assigned()
        or exists (
            select from duewheel.lease_event e
            where e.topic_id = (p_lease).topic_id and e.group_id = (p_lease).group_id
              and e.queue = (p_lease).queue and e.n = (p_lease).n and e.xid = pg_current_xact_id_if_assigned())
        or exists (
            select from duewheel.lease_extension e
            where e.topic_id = (p_lease).topic_id and e.group_id = (p_lease).group_id
              and e.queue = (p_lease).queue and e.n = (p_lease).n and e.xid = pg_current_xact_id_if_assigned());
end;

-- The kind of event that an action makes, if its parameters are right.
create or replace function duewheel.check_answer(p_action text, p_delay interval, p_invisible interval) returns text
language plpgsql as $$
declare
    v_kind constant text := case
        when p_action in ('ack', 'ack_once', 'skip') then 'acked'
        when p_action in ('nack', 'dead_letter') then 'failed'
        when p_action = 'give_back' then 'returned' when p_action = 'extend' then 'extended'
        when p_action = 'fence' then 'fenced' end;
begin
    if v_kind is null then
        raise exception using
            errcode = 'DW010',
            message = format('the answer must be "ack", "ack_once", "skip", "nack", "dead_letter", "give_back", '
                             '"extend" or "fence"; got "%s"', p_action),
            hint = 'Give one of these words.';
    end if;
    if p_action = 'extend' then
        perform duewheel.check_invisible(p_invisible);
    end if;
    if p_delay < interval '0' or p_delay > interval '3660 days' then
        raise exception using
            errcode = 'DW010', message = format('the delay of the retry must be 0 to 3660 days; got %s', p_delay),
            hint = 'Give a delay within these limits, or null for the group''s retry intervals.';
    end if;
    return v_kind;
end
$$;

-- Takes a lease's lock, which an open transaction may have: waits for it until p_until, or without end for null. An
-- extension waits for a second, or not at all with p_until, and then continues without the lock: while that transaction
-- is open no session revives the lease, and after it the extension counts. Returns whether to continue.
create or replace function duewheel.lock_lease(p_key bigint, p_action text, p_until timestamptz) returns boolean
language plpgsql as $$
declare
    v_until constant timestamptz := case when p_action <> 'extend' then p_until
        when p_until is null then clock_timestamp() + interval '1 second' else '-infinity' end;
begin
    if v_until is null then
        perform pg_advisory_xact_lock(p_key);
        return true;
    end if;
    while not pg_try_advisory_xact_lock(p_key) loop
        if clock_timestamp() >= v_until then
            return p_action = 'extend';
        end if;
        perform pg_sleep(0.01);
    end loop;
    return true;
end
$$;

-- Raises the error of an answer that is too late: p_final is what ended the lease, null if it expired.
create or replace function duewheel.refuse_late(
    p_final text, p_once boolean, p_ended_at timestamptz, p_now timestamptz
) returns void
language plpgsql as $$
declare
    v_answered constant boolean := coalesce(p_final in ('acked', 'failed', 'returned'), false);
begin
    raise exception using
        errcode = case when p_once and v_answered then 'DW020' else 'DW011' end,
        message = case
            when p_final = 'rewound' then 'the consumer group was rewound, which ended the lease'
            when v_answered then format('the lease was answered before (%s)', p_final)
            else format('the lease ended at %s, before this answer at %s', p_ended_at, p_now)
        end,
        hint = case when p_once and v_answered
            then 'Roll back: this work has been done, or given back, in another transaction.'
            else 'Its messages may be delivered to others. Ack sooner, take a longer invisible duration, or '
                 'extend the lease while working.' end;
end
$$;

-- Raises the error of an answer to messages that were answered before.
create or replace function duewheel.refuse_answered(p_answered bigint, p_once boolean) returns void
language plpgsql as $$
begin
    raise exception using
        errcode = case when p_once then 'DW020' else 'DW011' end,
        message = format('%s of the messages were answered before', p_answered),
        hint = case when p_once
            then 'Roll back: their work has been done, or given back, in another transaction. Name only the '
                 'messages that this transaction works on.'
            else 'Answer each message of a lease once.' end;
end
$$;

-- Whether an answer to a lease is new, or repeats one, which changes nothing; raises if it must not count.
-- open_seqs: the numbers of p_seqs that have no answer yet; null if p_seqs is.
create or replace function duewheel.judge_answer(
    p_action text, p_kind text, p_lease duewheel.lease, p_seqs bigint[], p_key bigint, p_now timestamptz,
    out is_new boolean, out open_seqs bigint[]
)
language plpgsql as $$
declare
    v_once constant boolean := p_action in ('ack_once', 'fence');
    -- The kind of an earlier answer that this one repeats.
    v_same constant text :=
        case when v_once then 'acked' when p_action in ('ack', 'skip', 'nack') then p_kind else '' end;
    v_own_xid constant xid8 := pg_current_xact_id_if_assigned();
    v_final text;
    v_final_is_own boolean;
    v_end timestamptz;
    -- How many messages have an answer that this one does not repeat.
    v_answered bigint := 0;
begin
    is_new := false;
    select e.kind, e.xid = v_own_xid, case when e.kind = 'expired' then e.at end into v_final, v_final_is_own, v_end
    from duewheel.final_event((p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n) e;
    if p_seqs is not null then
        select coalesce(array_agg(s.seq order by s.place) filter (where a.kind is null), '{}'),
               count(*) filter (where case
                   when v_once then a.kind is not null and (a.xid = v_own_xid and a.kind = 'acked') is not true
                   else coalesce(a.kind, v_final) <> v_same end)
        into open_seqs, v_answered
        from (select u.seq, min(u.place) as place from unnest(p_seqs) with ordinality u (seq, place) group by u.seq) s
        left join lateral duewheel.message_answer(
            (p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n, s.seq) a on true;
    elsif v_once then
        select count(*) into v_answered
        from duewheel.message_answers((p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n) a
        where (a.xid = v_own_xid) is not true;
    end if;
    if v_final = v_same and v_answered = 0 and (v_final_is_own or not v_once) then
        return;
    end if;
    if v_final is null or v_final = 'expired' then
        -- A lease that an operator released had expired before its end.
        v_end := least(v_end, duewheel.lease_end(
            (p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n));
    end if;
    if v_final <> v_same or (v_final is not null and v_once)
       or (v_end <= p_now and duewheel.has_lease(p_lease, p_key) is not true)
    then
        perform duewheel.refuse_late(v_final, v_once, coalesce(v_end, (p_lease).expires_at), p_now);
    elsif v_answered > 0 then
        perform duewheel.refuse_answered(v_answered, v_once);
    end if;
    is_new := p_action in ('fence', 'extend') or open_seqs is null or cardinality(open_seqs) > 0;
end
$$;

-- Refuses to end a lease of a broadcasting instance early: its messages would not be delivered again.
create or replace function duewheel.require_retries(p_group_id integer) returns void
language plpgsql as $$
begin
    if exists (select from duewheel.subscription s where s.group_id = p_group_id and s.retry_topic_id is null) then
        raise exception using
            errcode = 'DW010', message = 'a broadcasting consumer cannot give messages back: none is delivered again',
            hint = 'Let the lease end: messages that are not acked by then are skipped.';
    end if;
end
$$;

-- Stores an ack, a nack or a giving back that counts, and sends messages again that need it. p_open_seqs: messages
-- without an answer yet; null: all that are left. p_reasons: one for each of p_open_seqs, or one for all.
create or replace function duewheel.add_answer(
    p_action text, p_kind text, p_lease duewheel.lease, p_open_seqs bigint[], p_reasons text[], p_delay interval,
    p_at timestamptz, p_now timestamptz
) returns void
language plpgsql as $$
declare
    v_step text;
    v_due_at constant timestamptz := p_at + duewheel.span(p_delay);
    v_seqs bigint[] := p_open_seqs;
    v_is_last boolean;
begin
    if p_kind = 'returned' then
        perform duewheel.require_retries((p_lease).group_id);
    end if;
    if p_kind <> 'acked' then
        -- Raises for any other action.
        case p_action
            when 'nack' then v_step := 'retry';
            when 'give_back' then v_step := 'again';
            when 'dead_letter' then v_step := 'dead_letter';
        end case;
        -- First: on a FIFO topic other messages may be put back with these, which answers them.
        perform duewheel.resend_lease(
            p_lease, v_seqs, case p_action when 'give_back' then array[duewheel.given_back_reason()] else p_reasons end,
            v_step, v_due_at, p_now);
    end if;
    v_is_last := v_seqs is null or (p_lease).message_count = cardinality(v_seqs) + duewheel.answered_count(
        (p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n);
    if v_is_last and cardinality(p_reasons) = 1 then
        -- The lease is answered as a whole.
        v_seqs := null;
    end if;
    if v_seqs is not null then
        perform duewheel.add_message_answers(p_lease, v_seqs, p_kind, p_at, p_reasons);
    end if;
    if v_is_last then
        insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at, reason)
        values ((p_lease).topic_id, (p_lease).group_id, (p_lease).queue, (p_lease).n, p_kind, p_at,
                case when v_seqs is null then p_reasons[1] end);
    end if;
    if (p_lease).listed and p_kind = 'acked' and exists (
        select from duewheel.fifo_backlog b
        where b.topic_id = (p_lease).topic_id and b.group_id = (p_lease).group_id and b.queue = (p_lease).queue
          and b.blocked_n = (p_lease).n
    ) then
        -- Later messages of their groups may be free now.
        perform duewheel.announce('duewheel_released', (p_lease).topic_id::text);
    end if;
end
$$;

-- Acks a whole lease in the usual case: in time, and as the first answer. Returns whether it was that case.
create or replace function duewheel.ack_whole(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint, p_token bigint, p_reason text, p_once boolean,
    p_now timestamptz
) returns boolean
language plpgsql as $$
begin
    if p_once then
        if exists (
            select from duewheel.lease_answer a
            where a.topic_id = p_topic_id and a.group_id = p_group_id and a.queue = p_queue and a.n = p_n
        ) then
            return false;
        end if;
    end if;
    insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at, reason)
    select l.topic_id, l.group_id, l.queue, l.n, 'acked', p_now, p_reason
    from duewheel.lease l
    where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue and l.n = p_n
      and l.token = p_token and l.expires_at > p_now and not l.listed
      and exists (select from duewheel.subscription s where s.group_id = p_group_id)
      and not exists (
        select from duewheel.lease_event e
        where e.topic_id = p_topic_id and e.group_id = p_group_id and e.queue = p_queue and e.n = p_n)
      -- After a clock was set back it may end earlier than its row says.
      and not exists (
        select from duewheel.lease_extension e
        where e.topic_id = p_topic_id and e.group_id = p_group_id and e.queue = p_queue and e.n = p_n);
    return found;
end
$$;

-- Gives one answer to one lease, whose lock the caller has. See duewheel.answer.
create or replace function duewheel.answer_lease(
    p_action text, p_kind text, p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint, p_token bigint,
    p_seqs bigint[], p_reasons text[], p_delay interval, p_invisible interval, p_key bigint, p_at timestamptz,
    p_now timestamptz
) returns void
language plpgsql as $$
declare
    v_lease duewheel.lease;
    v_judged record;
    v_reasons text[] := p_reasons;
begin
    select * into v_lease from duewheel.lease l
    where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue and l.n = p_n
      and l.token = p_token and exists (select from duewheel.subscription s where s.group_id = p_group_id);
    if not found then
        raise exception using
            errcode = 'DW011',
            message = format('the broker does not know lease %s in queue %s of topic %s; its messages are delivered '
                             'again', p_n, p_queue, coalesce((select t.name from duewheel.topic t
                                                     where t.topic_id = p_topic_id), p_topic_id::text)),
            hint = 'The database lost it in a crash, or its group was rewound or deleted. The work is not '
                   'acknowledged.';
    end if;
    v_judged := duewheel.judge_answer(p_action, p_kind, v_lease, p_seqs, p_key, p_at);
    if not v_judged.is_new then
        return;
    end if;
    if p_action = 'fence' then
        if not duewheel.is_fenced(p_key) then
            perform set_config(
                'duewheel.fenced',
                format('%s%s,', coalesce(nullif(current_setting('duewheel.fenced', true), ''), ','), p_key), true);
        end if;
    elsif p_action = 'extend' then
        perform duewheel.add_extension(p_group_id, p_topic_id, p_queue, p_n, p_at, p_at + p_invisible);
    else
        if cardinality(p_reasons) > 1 then
            v_reasons := array(
                select r.reason
                from unnest(v_judged.open_seqs) with ordinality o (seq, place)
                join (select distinct on (u.seq) u.seq, u.reason from unnest(p_seqs, p_reasons) u (seq, reason)
                      order by u.seq, u.reason) r using (seq)
                order by o.place);
        end if;
        perform duewheel.add_answer(p_action, p_kind, v_lease, v_judged.open_seqs, v_reasons, p_delay, p_at, p_now);
    end if;
end
$$;

-- "ack", "skip" and "nack" may be repeated, which changes nothing, whatever the reason. "give_back": there was no work.
-- The messages are ready again at once, and no attempt is counted. "skip": the ack, with a reason, of a message whose
-- work was left undone on purpose. "dead_letter": a nack without a further retry, however many the group has left.
-- "ack_once" and "fence" are refused if another transaction has answered; they wait for one that is open. "fence"
-- answers nothing: it takes the lease's lock and checks the lease. The transaction then has the lease until it commits
-- or rolls back. It may answer the lease after its end, because no session can revive it meanwhile.
--
-- A lease that cannot be answered raises. With p_wait, only leases that are held are answered, and the rest stay as
-- they are. The result is the former state of each, as in duewheel.lease_states, or "open": an open transaction has
-- it and did not end within p_wait, which is for all leases together.
-- role: consumer
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
    p_invisible interval default null,
    p_now timestamptz default null,
    -- In the form of p_seqs, for each message its reason.
    p_reasons jsonb default null,
    p_wait interval default null
) returns text[]
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_kind text;
    v_until timestamptz;
    v_states text[] := '{}';
    v_state text;
    v_now timestamptz;
    v_key bigint;
    v_seqs bigint[];
    v_reasons text[];
begin
    -- One expression answers the usual case: an ack of one whole lease, in time.
    if p_action = 'ack' and cardinality(p_ns) = 1
       and num_nonnulls(p_seqs, p_delay, p_reason, p_invisible, p_now, p_reasons, p_wait) = 0
       and current_setting('transaction_isolation') = 'read committed'
       and current_setting('duewheel.home', true) = 'duewheel.broker'::regclass::oid::text
       and pg_try_advisory_xact_lock(
           duewheel.lease_lock_key(p_group_id, p_topic_ids[1], p_queues[1], p_ns[1]))
       and duewheel.ack_whole(p_group_id, p_topic_ids[1], p_queues[1], p_ns[1], p_tokens[1], null, false,
                              clock_timestamp())
    then
        return v_states;
    end if;
    if p_now is not null then
        perform duewheel.require_clock_right(p_now);
    end if;
    perform duewheel.require_read_committed();
    v_until := clock_timestamp() + duewheel.span(p_wait);
    v_kind := case when p_action = 'ack' and p_delay is null then 'acked'
        else duewheel.check_answer(p_action, p_delay, p_invisible) end;
    -- A reason is kept with each message of the lease.
    v_reasons := array[left(case p_action when 'skip' then coalesce(p_reason, 'skipped') else p_reason end, 10000)];
    for i in 1 .. coalesce(array_length(p_ns, 1), 0) loop
        v_key := duewheel.lease_lock_key(p_group_id, p_topic_ids[i], p_queues[i], p_ns[i]);
        v_state := case
            when pg_try_advisory_xact_lock(v_key) or duewheel.lock_lease(v_key, p_action, v_until) then 'held'
            else 'open' end;
        v_now := coalesce(p_now, clock_timestamp());
        v_seqs := null;
        if num_nonnulls(p_seqs, p_reasons) > 0 then
            begin
                -- Without its list, a lease would be answered as a whole.
                if jsonb_typeof(p_seqs) <> 'array' or (p_seqs is not null and p_seqs -> (i - 1) is null) then
                    raise data_exception;
                end if;
                if jsonb_typeof(p_seqs -> (i - 1)) <> 'null' then
                    v_seqs := array(select jsonb_array_elements_text(p_seqs -> (i - 1))::bigint);
                end if;
                if p_reasons is not null then
                    v_reasons := array(select left(r, 10000) from jsonb_array_elements_text(p_reasons -> (i - 1)) r);
                end if;
            exception when data_exception then
                raise exception using
                    errcode = 'DW010',
                    message = format('seqs and reasons must be lists with one list for each lease; seqs is %s, '
                                     'reasons is %s', coalesce(left(p_seqs::text, 80), 'null'),
                                     coalesce(left(p_reasons::text, 80), 'null')),
                    hint = 'Give whole numbers in seqs, or null for all messages of a lease, and text in reasons.';
            end;
        end if;
        continue when v_kind = 'acked' and v_seqs is null and p_wait is null and duewheel.ack_whole(
            p_group_id, p_topic_ids[i], p_queues[i], p_ns[i], p_tokens[i], v_reasons[1], p_action = 'ack_once', v_now);
        if p_wait is not null then
            if v_state = 'held' then
                v_state := (duewheel.lease_states(p_group_id, array[p_topic_ids[i]], array[p_queues[i]],
                                                  array[p_ns[i]], array[p_tokens[i]], p_now)).state;
            end if;
            v_states := v_states || v_state;
            continue when v_state <> 'held';
        end if;
        perform duewheel.answer_lease(
            p_action, v_kind, p_group_id, p_topic_ids[i], p_queues[i], p_ns[i], p_tokens[i], v_seqs, v_reasons, p_delay,
            p_invisible, v_key, v_now, p_now);
    end loop;
    return v_states;
end
$$;
