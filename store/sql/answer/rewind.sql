-- Rewinding: a group reads the messages released since an instant again. A lease row of no messages with the token -1
-- sets the position; no earlier row changes.

-- The position of a group in a topic that has read all messages released before an instant: messages of a late tick
-- count by when they were released. Without an instant: after all released messages. The caller has waited for a
-- running tick.
create or replace function duewheel.released_before(
    p_topic_id integer, p_at timestamptz, out hi timestamptz, out straggler_id bigint
)
language plpgsql stable as $$
begin
    select t.hi into hi from duewheel.tick t
    where t.topic_id = p_topic_id and (p_at is null or t.ticked_at < p_at) order by t.hi desc, t.tick_id desc limit 1;
    hi := coalesce(
        greatest(hi, (select t.kept_from - interval '1 microsecond' from duewheel.topic t
                      where t.topic_id = p_topic_id)),
        '-infinity');
    -- The tick of an old straggler may have been forgotten.
    select coalesce(max(s.straggler_id), 0) into straggler_id
    from duewheel.straggler s
    left join duewheel.tick t on t.topic_id = s.topic_id and t.tick_id = s.tick_id
    where s.topic_id = p_topic_id and (p_at is null or t.tick_id is null or t.ticked_at < p_at);
end
$$;

-- Whether a group at (p_hi, p_straggler_id) would still receive the message.
create or replace function duewheel.comes_after(
    p_topic_id integer, p_queue smallint, p_deliver_at timestamptz, p_seq bigint, p_hi timestamptz,
    p_straggler_id bigint
) returns boolean
language sql stable
return coalesce(
    (select s.straggler_id > p_straggler_id from duewheel.straggler s
     where s.topic_id = p_topic_id and s.queue = p_queue and s.deliver_at = p_deliver_at and s.seq = p_seq),
    p_deliver_at > p_hi);

-- Whether a group at (p_hi, p_straggler_id) would still receive a message, or the first message of a retry. If the
-- group no longer chooses it, only the retry, or the lease, still delivers it.
create or replace function duewheel.comes_again(
    p_message duewheel.any_message, p_subscription duewheel.subscription, p_hi timestamptz, p_straggler_id bigint
) returns boolean
language sql stable
return duewheel.comes_after(
    coalesce((p_message).origin_topic_id, (p_message).topic_id), coalesce((p_message).origin_queue, (p_message).queue),
    coalesce((p_message).origin_deliver_at, (p_message).deliver_at),
    coalesce((p_message).origin_seq, (p_message).seq), p_hi, p_straggler_id)
    and duewheel.is_chosen((p_message).tag, (p_message).content_type, (p_message).properties,
                           (p_subscription).tags, (p_subscription).filter);

-- The leases of a subscription that have no final answer, at most p_limit. With p_now: only leases that have not ended.
create or replace function duewheel.open_leases(
    p_group_id integer, p_topic_id integer, p_now timestamptz default null, p_limit integer default null
) returns setof duewheel.lease
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_position record;
    v_count integer;
begin
    for v_position in select * from duewheel.positions(p_group_id, p_topic_id) p order by p.ordinal loop
        return query
        select l.* from duewheel.lease l
        where l.topic_id = v_position.topic_id and l.group_id = p_group_id and l.queue = v_position.queue
          and l.n = any (array(
            select * from duewheel.unanswered_leases(p_group_id, v_position.topic_id, v_position.queue,
                                                     coalesce(p_now, v_position.revived_to)) limit p_limit));
        get diagnostics v_count = row_count;
        p_limit := p_limit - v_count;
    end loop;
end
$$;

-- The leases that a portion of a rewind ends: the open leases among the next p_limit ends and messages after the place
-- that the rewind has reached. place: the start of the next portion; null at the end.
create or replace function duewheel.leases_to_rewind(
    p_rest jsonb, p_limit integer, out leases duewheel.lease[], out looked_at integer, out place jsonb
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_group_id constant integer := p_rest ->> 'group_id';
    v_ordinal constant integer := p_rest ->> 'ordinal';
    v_position record;
    v_end record;
    v_lease duewheel.lease;
begin
    leases := '{}';
    looked_at := 0;
    for v_position in
        select p.topic_id, p.queue, p.ordinal, p_rest -> 'ns' ->> p.ordinal::text as n,
               case when p.ordinal = v_ordinal then (p_rest ->> 'ends_at')::timestamptz
                    else p.revived_to end as ends_at,
               case when p.ordinal = v_ordinal then (p_rest ->> 'n')::bigint else 9223372036854775807 end as end_n
        from duewheel.positions(v_group_id, (p_rest ->> 'topic_id')::integer) p
        where p.ordinal >= v_ordinal
        order by p.ordinal
    loop
        for v_end in
            select distinct e.ends_at, e.n
            from duewheel.ends_in(v_group_id, v_position.topic_id, v_position.queue, v_position.ends_at, 'infinity',
                                  v_position.end_n, p_limit) e
            order by e.ends_at, e.n limit p_limit
        loop
            looked_at := looked_at + 1;
            -- At its last end. Leases that were taken since the rewind began stay.
            if v_end.n <= v_position.n::bigint and duewheel.lease_has_ended(
                v_group_id, v_position.topic_id, v_position.queue, v_end.n, v_end.ends_at)
            then
                select * into v_lease from duewheel.lease l
                where l.topic_id = v_position.topic_id and l.group_id = v_group_id and l.queue = v_position.queue
                  and l.n = v_end.n;
                leases := leases || v_lease;
                looked_at := looked_at + v_lease.message_count;
            end if;
            -- Each lease is locked, and all transactions share one table of locks.
            if looked_at >= p_limit or cardinality(leases) >= 200 then
                place := jsonb_build_object('ordinal', v_position.ordinal, 'ends_at', v_end.ends_at, 'n', v_end.n);
                return;
            end if;
        end loop;
    end loop;
end
$$;

-- Locks leases, so that no consumer answers until this transaction ends. It waits up to 10 seconds for an answer in an
-- open transaction.
create or replace function duewheel.lock_leases(p_leases duewheel.lease[]) returns void
language plpgsql as $$
declare
    v_until constant timestamptz := clock_timestamp() + interval '10 seconds';
    v_round_until timestamptz;
begin
    loop
        v_round_until := clock_timestamp() + interval '1 second';
        begin
            -- Locks that were got are kept while the rest is tried again: consumers that answer all the time are
            -- between two answers at different moments.
            while (
                select count(*) from unnest(p_leases) l
                where not exists (select from duewheel.final_event(l.group_id, l.topic_id, l.queue, l.n))
                  and not pg_try_advisory_xact_lock(
                      duewheel.lease_lock_key(l.group_id, l.topic_id, l.queue, l.n))
            ) > 0 loop
                if clock_timestamp() > v_round_until then
                    raise exception using
                        errcode = 'DW017',
                        message = 'a lease of the group is being answered in a transaction, still open after 10 s',
                        hint = 'Run the call again when that transaction has ended.';
                end if;
                perform pg_sleep(0.01);
            end loop;
            return;
        exception when sqlstate 'DW017' then
            -- The locks of the round are free again, for a transaction that answers several leases and waits for one of
            -- them.
            if clock_timestamp() > v_until then
                raise;
            end if;
        end;
    end loop;
end
$$;

-- Ends a locked lease, if it is open. Unanswered messages that the new position does not deliver again are ready at
-- once, with their attempt: as retries, or on FIFO topics in their place. Returns how many they are.
create or replace function duewheel.end_rewound_lease(
    p_lease duewheel.lease, p_hi timestamptz, p_straggler_id bigint, p_now timestamptz
) returns integer
language plpgsql as $$
declare
    v_subscription constant duewheel.subscription := (
        select s from duewheel.subscription s where s.group_id = (p_lease).group_id);
    v_answered bigint[];
    v_message_groups text[];
    v_count integer;
    v_rows refcursor;
begin
    if exists (
        select from duewheel.final_event((p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n)
    ) then
        return null;
    end if;
    select coalesce(array_agg(a.seq), '{}') into v_answered
    from duewheel.message_answers((p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n) a;
    insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at)
    values ((p_lease).topic_id, (p_lease).group_id, (p_lease).queue, (p_lease).n, 'rewound',
            coalesce(p_now, clock_timestamp()));
    if v_subscription.retry_topic_id is null then
        -- Broadcasting: messages that the position does not deliver again are skipped.
        return 0;
    end if;
    if (p_lease).listed then
        with put_back as (
            insert into duewheel.fifo_backlog
                (topic_id, group_id, queue, message_group, place, deliver_at, seq, source_topic_id, source_queue,
                 attempt)
            select h.topic_id, h.group_id, h.queue, h.message_group, h.place, h.deliver_at, h.seq, h.source_topic_id,
                   h.source_queue, h.attempt
            from duewheel.lease_message h
            cross join lateral duewheel.message_at(h.source_topic_id, h.source_queue, h.deliver_at, h.seq) m
            where h.topic_id = (p_lease).topic_id and h.group_id = (p_lease).group_id and h.queue = (p_lease).queue
              and h.n = (p_lease).n and h.seq <> all (v_answered)
              and not duewheel.comes_again(m, v_subscription, p_hi, p_straggler_id)
            returning message_group
        )
        select array_agg(distinct b.message_group), count(*) into v_message_groups, v_count from put_back b;
        perform duewheel.fifo_mark_first((p_lease).group_id, (p_lease).topic_id, (p_lease).queue, v_message_groups, 0);
        return v_count;
    end if;
    open v_rows no scroll for
        select m as message, duewheel.rewound_reason() as why
        from duewheel.lease_rows((p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n) m
        where m.seq <> all (v_answered)
          and not duewheel.comes_again(m, v_subscription, p_hi, p_straggler_id);
    return duewheel.resend(v_subscription, v_rows, 'again', null, p_now, (p_lease).n);
end
$$;

-- The reason stored for a message that is ready again because its group was rewound while a consumer had it.
create or replace function duewheel.rewound_reason() returns text
language sql immutable
return 'in flight when the group was rewound';

-- Refuses a rest that no rewind has returned.
create or replace function duewheel.check_rest(p_rest jsonb) returns void
language plpgsql stable as $$
begin
    if not p_rest ?& array['group_id', 'topic_id', 'snapshot', 'ordinal', 'ns', 'before', 'queue', 'message_group',
                           'place', 'late', 'straggler', 'at', 'seq', 'hi', 'straggler_id'] then
        raise data_exception;
    end if;
    perform (p_rest ->> 'group_id')::integer, (p_rest ->> 'topic_id')::integer, (p_rest ->> 'snapshot')::pg_snapshot,
            (p_rest ->> 'ordinal')::integer, (p_rest ->> 'before')::bigint, (p_rest ->> 'queue')::smallint,
            (p_rest ->> 'place')::bigint, (p_rest ->> 'straggler')::bigint, (p_rest ->> 'at')::timestamptz,
            (p_rest ->> 'seq')::bigint, (p_rest ->> 'hi')::timestamptz, (p_rest ->> 'straggler_id')::bigint,
            (p_rest ->> 'ends_at')::timestamptz, (p_rest ->> 'n')::bigint, n.value::bigint,
            jsonb_populate_record(null::duewheel.message_position, nullif(p_rest -> 'late', 'null'))
    from jsonb_each_text(p_rest -> 'ns') n;
exception when data_exception then
    raise exception using
        errcode = 'DW010',
        message = format('rest must be what rewind or rewind_chunk returned; got %s', left(p_rest::text, 80)),
        hint = 'Pass the rest that the previous call returned unchanged, until it is null.';
end
$$;

-- Does a portion of a rewind: ends leases that were open when it began, then recalls waiting messages that the new
-- position delivers again: parked messages of a FIFO topic, and retries. Returns how many leases ended, how many of
-- their messages are ready again, and how many retries were recalled. rest: how far the rewind is, as the rewind or its
-- last chunk returned it; null at the end. Until then the group may get these messages as well, and answer these
-- leases.
-- role: admin
create or replace function duewheel.rewind_chunk(
    inout rest jsonb, now timestamptz default null,
    out leases_ended bigint, out messages_returned bigint, out retries_recalled bigint
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_rest constant jsonb := rewind_chunk.rest;
    v_now constant timestamptz := duewheel.clock_at(rewind_chunk.now);
    v_limit integer := duewheel.portion();
    v_leases record;
    v_backlog record;
    v_retries record;
begin
    perform duewheel.require_read_committed();
    perform duewheel.check_rest(v_rest);
    perform duewheel.lock_queues((v_rest ->> 'group_id')::integer, (v_rest ->> 'topic_id')::integer);
    leases_ended := 0;
    messages_returned := 0;
    retries_recalled := 0;
    if exists (
        select from duewheel.positions((v_rest ->> 'group_id')::integer, (v_rest ->> 'topic_id')::integer) p
        where (select true from duewheel.lease l
               where l.topic_id = p.topic_id and l.group_id = (v_rest ->> 'group_id')::integer and l.queue = p.queue
                 and l.n > (v_rest -> 'ns' ->> p.ordinal::text)::bigint + 1 and l.token = -1
               order by l.topic_id, l.group_id, l.queue, l.n limit 1)
    ) then
        -- A rewind that began later does the rest, by the position that it has set.
        rest := null;
        return;
    end if;
    v_leases := duewheel.leases_to_rewind(v_rest, v_limit);
    perform duewheel.lock_leases(v_leases.leases);
    select count(e.messages), coalesce(sum(e.messages), 0) into leases_ended, messages_returned
    from unnest(v_leases.leases) l
    cross join lateral duewheel.end_rewound_lease(
        l, (v_rest ->> 'hi')::timestamptz, (v_rest ->> 'straggler_id')::bigint, rewind_chunk.now) e (messages);
    rest := v_rest || coalesce(v_leases.place, '{"ordinal": 65}');
    v_limit := v_limit - v_leases.looked_at;
    if v_leases.place is not null or v_limit <= 0 then
        return;
    end if;
    v_backlog := duewheel.fifo_rewind(v_rest, v_limit);
    retries_recalled := v_backlog.recalled;
    rest := rest || coalesce(v_backlog.place, '{}');
    v_limit := v_limit - v_backlog.looked_at;
    while v_limit > 0 and rest is not null loop
        v_retries := duewheel.recall_retries(rest, v_limit, v_now);
        retries_recalled := retries_recalled + v_retries.recalled;
        rest := rest || v_retries.place;
        v_limit := v_limit - v_retries.looked_at;
    end loop;
end
$$;

-- Recalls retries of messages that the new position delivers again. Reads p_limit retries: first late retries that no
-- tick has found, then retries that were released late, then the rest. place: the start of the next portion; null at
-- the end.
create or replace function duewheel.recall_retries(
    p_rest jsonb, p_limit integer, p_now timestamptz, out looked_at integer, out recalled bigint, out place jsonb
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_snapshot constant pg_snapshot := p_rest ->> 'snapshot';
    v_subscription constant duewheel.subscription := (
        select s from duewheel.subscription s where s.group_id = (p_rest ->> 'group_id')::integer);
    v_late record;
    v_retries duewheel.message_position[];
    v_position record;
    v_tick duewheel.tick;
    v_ended xid8[];
begin
    -- A consumer has had retries before the position.
    select p.topic_id, p.to_at, p.to_seq, p.straggler_to into v_position
    from duewheel.positions((p_rest ->> 'group_id')::integer, (p_rest ->> 'topic_id')::integer) p where p.ordinal = 0;
    if p_rest -> 'late' <> 'null' then
        select * into v_tick from duewheel.newest_tick(v_position.topic_id);
        if v_tick.tick_id is not null then
            v_ended := duewheel.ended_since_tick(v_tick, v_snapshot);
        end if;
        if v_ended <> '{}' then
            v_late := duewheel.late_portion(
                v_position.topic_id, v_ended, v_tick.hi,
                jsonb_populate_record(null::duewheel.message_position, p_rest -> 'late'));
            v_retries := v_late.portion;
            place := jsonb_build_object('late', v_late.place);
        else
            place := '{"late": null}';
        end if;
    elsif p_rest -> 'straggler' <> 'null' then
        select array_agg(row(s.queue, s.deliver_at, s.seq)::duewheel.message_position),
               jsonb_build_object('straggler', case when count(*) = p_limit then max(s.straggler_id) end)
        into v_retries, place
        from (
            select * from duewheel.straggler s
            where s.topic_id = v_position.topic_id and s.queue = 0
              and s.straggler_id > greatest(v_position.straggler_to, (p_rest ->> 'straggler')::bigint)
            order by s.straggler_id limit p_limit) s;
    else
        select array_agg(row(m.queue, m.deliver_at, m.seq)::duewheel.message_position order by m.deliver_at, m.seq)
        into v_retries
        from (
            select m.queue, m.deliver_at, m.seq
            from (
                values (v_position.to_at, v_position.to_seq),
                       ((p_rest ->> 'at')::timestamptz, (p_rest ->> 'seq')::bigint)
                order by 1 desc, 2 desc limit 1) w (at, seq)
            cross join lateral (
                select m.queue, m.deliver_at, m.seq from duewheel.any_message m
                where m.topic_id = v_position.topic_id and m.queue = 0
                  and (m.deliver_at, m.seq) > (w.at, w.seq) and m.deliver_at >= w.at
                order by m.deliver_at, m.seq limit p_limit) m) m;
        place := case when cardinality(v_retries) = p_limit then jsonb_build_object(
            'at', v_retries[p_limit].deliver_at, 'seq', v_retries[p_limit].seq) end;
    end if;
    insert into duewheel.recall (topic_id, queue, deliver_at, seq, recalled_at)
    select m.topic_id, m.queue, m.deliver_at, m.seq, p_now
    from unnest(v_retries) r
    cross join lateral duewheel.message_at(v_position.topic_id, r.queue, r.deliver_at, r.seq) m
    where pg_visible_in_snapshot(m.xid, v_snapshot)
      -- Only the second step takes back retries that were released late.
      and (p_rest -> 'late' = 'null' and p_rest -> 'straggler' <> 'null' or not exists (
        select from duewheel.straggler s
        where s.topic_id = m.topic_id and s.queue = m.queue and s.deliver_at = m.deliver_at and s.seq = m.seq))
      and duewheel.comes_again(m, v_subscription, (p_rest ->> 'hi')::timestamptz,
                               (p_rest ->> 'straggler_id')::bigint)
    on conflict do nothing;
    get diagnostics recalled = row_count;
    looked_at := coalesce(cardinality(v_retries), 0);
end
$$;

-- Sets a group's position in a topic: it reads the messages released since an instant again, or with p_start "earliest"
-- all kept messages, or with "latest" only messages released from now on. Its leases end: a late answer is refused. A
-- message in flight that the new position does not deliver again is ready at once. Retries of messages that it does
-- deliver again are recalled; other retries and dead letters stay. This call deals with one portion of leases and
-- retries. Pass rest to rewind_chunk until it is null. Of a broadcasting group all instances are rewound, or the one
-- named group/instance. One row for each group row: how many leases ended, messages are ready again, and retries were
-- recalled.
-- role: admin
create or replace function duewheel.rewind(
    topic text, consumer_group text, to_at timestamptz default null, start text default null,
    now timestamptz default null
) returns table (
    rewound_group text, leases_ended bigint, messages_returned bigint, retries_recalled bigint, rest jsonb
)
-- By the keys, though tables were small when the plans were made.
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic := duewheel.topic_by_name(rewind.topic);
    v_now constant timestamptz := duewheel.clock_at(rewind.now);
    v_group record;
    v_to record;
    v_chunk record;
    v_any boolean := false;
begin
    perform duewheel.require_read_committed();
    if (rewind.to_at is null) = (rewind.start is null)
       or (rewind.start is not null and rewind.start not in ('earliest', 'latest')) then
        raise exception using
            errcode = 'DW010',
            message = format('exactly one of to_at and start must be given; got to_at %s and start %s',
                             coalesce(rewind.to_at::text, 'null'), coalesce(left(rewind.start, 80), 'null')),
            hint = 'Give to_at, or start as "earliest" or "latest".';
    end if;
    if rewind.to_at > v_now then
        raise exception using
            errcode = 'DW010',
            message = format('to_at must not be in the future; got %s', rewind.to_at),
            hint = 'Give an instant up to now, or start => ''latest'' to skip all released messages.';
    end if;
    for v_group in
        select g.name, s as subscription
        from duewheel.consumer_group g join duewheel.subscription s on s.group_name = g.name
        where s.topic_id = v_topic.topic_id
          and (g.name = rewind.consumer_group or g.broadcast_group = rewind.consumer_group)
        order by s.group_id
    loop
        v_any := true;
        rewound_group := v_group.name;
        perform duewheel.lock_queues((v_group.subscription).group_id, v_topic.topic_id);
        perform duewheel.await_tick(v_topic.topic_id);
        v_to := duewheel.released_before(v_topic.topic_id, rewind.to_at);
        if rewind.start = 'earliest' then
            v_to.hi := coalesce(v_topic.kept_from - interval '1 microsecond', '-infinity');
            v_to.straggler_id := 0;
        end if;
        v_chunk := duewheel.rewind_chunk(jsonb_build_object(
            'group_id', (v_group.subscription).group_id, 'topic_id', v_topic.topic_id,
            'snapshot', pg_current_snapshot()::text, 'ordinal', -1, 'ns', (
                select jsonb_object_agg(p.ordinal, p.n)
                from duewheel.positions((v_group.subscription).group_id, v_topic.topic_id) p),
            'before', nextval('duewheel.message_block') * 65536, 'queue', -1, 'message_group', '', 'place', 0,
            'late', row(-1, '-infinity', 0)::duewheel.message_position, 'straggler', 0, 'at', '-infinity', 'seq', 0)
            -- Broadcasting: the new position delivers a message that waits for its message group again, or skips it.
            || case when (v_group.subscription).retry_topic_id is null then '{"hi": "-infinity", "straggler_id": 0}'
                    else to_jsonb(v_to) end, rewind.now);
        leases_ended := v_chunk.leases_ended;
        messages_returned := v_chunk.messages_returned;
        retries_recalled := v_chunk.retries_recalled;
        rest := v_chunk.rest;
        insert into duewheel.lease
            (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
             message_count, leased_at, expires_at, revived_to)
        select p.topic_id, (v_group.subscription).group_id, p.queue, p.n + 1, -1, v_to.hi, duewheel.last_seq(), v_to.hi,
               duewheel.last_seq(), v_to.straggler_id, v_to.straggler_id, 0, v_now, v_now, least(p.revived_to, v_now)
        from duewheel.positions((v_group.subscription).group_id, v_topic.topic_id) p where p.ordinal > 0;
        return next;
    end loop;
    if not v_any then
        perform duewheel.group_by_name(rewind.consumer_group);
        perform duewheel.raise_unread(
            rewind.consumer_group, v_topic.name,
            'A group reads a topic from when its first consumer has been made: broker.consumer(topic, group).');
    end if;
    -- Waiting consumers poll again.
    perform duewheel.announce('duewheel_released', v_topic.topic_id::text);
end
$$;
