-- Rewinding: a group reads again what was released since an instant. The position is set by a lease row of no messages
-- with the token -1; nothing that was written before is changed.

-- Where a group that has read everything released before an instant stands in a topic: a late tick's messages count by
-- when they were released. Without an instant: behind everything that is released. The caller has waited for a tick
-- that was on its way.
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

-- Whether a message comes to a group that stands at p_hi and p_straggler_id.
create or replace function duewheel.comes_after(
    p_topic_id integer, p_queue smallint, p_deliver_at timestamptz, p_seq bigint, p_hi timestamptz,
    p_straggler_id bigint
) returns boolean
language sql stable
return coalesce(
    (select s.straggler_id > p_straggler_id from duewheel.straggler s
     where s.topic_id = p_topic_id and s.queue = p_queue and s.deliver_at = p_deliver_at and s.seq = p_seq),
    p_deliver_at > p_hi);

-- The leases of a subscription that have no final answer; of those that have ended, for p_now none.
create or replace function duewheel.open_leases(
    p_group_id integer, p_topic_id integer, p_now timestamptz default null
) returns setof duewheel.lease
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_position record;
    v_n bigint;
begin
    -- In loops: a join would read all leases and all events again for each of them.
    for v_position in select * from duewheel.positions(p_group_id, p_topic_id) p order by p.ordinal loop
        for v_n in
            select * from duewheel.ended_leases(p_group_id, v_position.topic_id, v_position.queue,
                                                coalesce(p_now, v_position.revived_to), 'infinity')
        loop
            return query
            select l.* from duewheel.lease l
            where l.topic_id = v_position.topic_id and l.group_id = p_group_id and l.queue = v_position.queue
              and l.n = v_n order by l.n limit 1;
        end loop;
    end loop;
end
$$;

-- Locks a subscription's queues and its open leases, so that no consumer receives or answers until this transaction
-- ends. An answer that stands in an open transaction is waited for, up to 10 seconds.
create or replace function duewheel.lock_subscription(p_group_id integer, p_topic_id integer) returns void
language plpgsql as $$
declare
    v_until constant timestamptz := clock_timestamp() + interval '10 seconds';
    v_round_until timestamptz;
begin
    perform duewheel.lock_queues(p_group_id, p_topic_id, v_until);
    loop
        v_round_until := clock_timestamp() + interval '1 second';
        begin
            -- Locks that were got stay while the rest is tried again: consumers that answer all the time are between
            -- two answers at different moments.
            while (
                select count(*) from duewheel.open_leases(p_group_id, p_topic_id) l
                where not pg_try_advisory_xact_lock(duewheel.lease_lock_key(p_group_id, l.topic_id, l.queue, l.n))
            ) > 0 loop
                if clock_timestamp() > v_round_until then
                    raise exception using
                        errcode = 'DW017',
                        message = 'a message of the group is being answered in a transaction that is still open',
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

-- Ends an open lease. Messages without an answer that do not come by the new position are ready again at once, with
-- their attempt: a retry, or on FIFO topics in its place. Returns how many messages that is.
create or replace function duewheel.end_rewound_lease(
    p_lease duewheel.lease, p_subscription duewheel.subscription, p_hi timestamptz, p_straggler_id bigint,
    p_now timestamptz
) returns integer
language plpgsql as $$
declare
    v_answered bigint[];
    v_message_groups text[];
    v_count integer;
    v_rows refcursor;
begin
    select coalesce(array_agg(a.seq), '{}') into v_answered
    from duewheel.message_answers((p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n) a;
    insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at)
    values ((p_lease).topic_id, (p_lease).group_id, (p_lease).queue, (p_lease).n, 'rewound',
            coalesce(p_now, clock_timestamp()));
    if (p_subscription).retry_topic_id is null then
        -- Broadcasting: what does not come by the position is passed over.
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
              and not duewheel.comes_after(
                coalesce(m.origin_topic_id, m.topic_id), coalesce(m.origin_queue, m.queue),
                coalesce(m.origin_deliver_at, m.deliver_at), coalesce(m.origin_seq, m.seq), p_hi, p_straggler_id)
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
          and not duewheel.comes_after(
            coalesce(m.origin_topic_id, m.topic_id), coalesce(m.origin_queue, m.queue),
            coalesce(m.origin_deliver_at, m.deliver_at), coalesce(m.origin_seq, m.seq), p_hi, p_straggler_id);
    return duewheel.resend(p_subscription, v_rows, 'again', null, p_now, (p_lease).n);
end
$$;

-- The reason noted for a message that is ready again, as its group was rewound while a consumer had it.
create or replace function duewheel.rewound_reason() returns text
language sql immutable
return 'in flight when the group was rewound';

-- Takes back a portion of the messages that waited before a rewind and come by the position that it has set: first
-- those that a FIFO topic has set aside, then retries. Returns how many retries that is. p_rest: how far the rewind is,
-- as the rewind or its last chunk returned. rest is null at the end. Until then the group may get them as well.
-- role: admin
create or replace function duewheel.rewind_chunk(
    p_rest jsonb, p_now timestamptz default null, out taken_back bigint, out rest jsonb
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_now constant timestamptz := duewheel.clock_at(p_now);
    v_backlog record;
    v_limit integer;
    v_from record;
    v_chunk record;
begin
    perform duewheel.require_read_committed();
    perform duewheel.lock_queues((p_rest ->> 'group_id')::integer, (p_rest ->> 'topic_id')::integer);
    v_backlog := duewheel.fifo_rewind(p_rest, duewheel.portion());
    v_limit := duewheel.portion() - v_backlog.looked_at;
    -- A consumer has had retries before the position.
    select p.topic_id, w.at, w.seq into v_from
    from duewheel.positions((p_rest ->> 'group_id')::integer, (p_rest ->> 'topic_id')::integer) p
    cross join lateral (
        values (p.to_at, p.to_seq), ((p_rest ->> 'at')::timestamptz, (p_rest ->> 'seq')::bigint)
    ) w (at, seq)
    where p.ordinal = 0 order by w.at desc, w.seq desc limit 1;
    with looked_at as materialized (
        select m.deliver_at, m.seq, m.xid, m.origin_topic_id, m.origin_queue, m.origin_deliver_at, m.origin_seq
        from duewheel.any_message m
        where m.topic_id = v_from.topic_id and m.queue = 0
          and (m.deliver_at, m.seq) > (v_from.at, v_from.seq) and m.deliver_at >= v_from.at
        order by m.deliver_at, m.seq limit v_limit
    ), recalled as (
        insert into duewheel.recall (topic_id, queue, deliver_at, seq, recalled_at)
        select v_from.topic_id, 0, m.deliver_at, m.seq, v_now from looked_at m
        where pg_visible_in_snapshot(m.xid, (p_rest ->> 'snapshot')::pg_snapshot)
          and not exists (
            select from duewheel.straggler s
            where s.topic_id = v_from.topic_id and s.queue = 0 and s.deliver_at = m.deliver_at and s.seq = m.seq)
          and duewheel.comes_after(m.origin_topic_id, m.origin_queue, m.origin_deliver_at, m.origin_seq,
                                   (p_rest ->> 'hi')::timestamptz, (p_rest ->> 'straggler_id')::bigint)
        on conflict do nothing
        returning 1
    )
    select (select count(*) from recalled) as recalled, count(*) as looked_at,
           (array_agg(m.deliver_at order by m.deliver_at desc, m.seq desc))[1] as at,
           (array_agg(m.seq order by m.deliver_at desc, m.seq desc))[1] as seq
    into v_chunk from looked_at m;
    taken_back := v_backlog.taken_back + v_chunk.recalled;
    if v_chunk.looked_at = v_limit then
        rest := p_rest || coalesce(v_backlog.place, '{}') || case when v_chunk.looked_at > 0
            then jsonb_build_object('at', v_chunk.at, 'seq', v_chunk.seq) else '{}' end;
    end if;
end
$$;

-- Takes back retries that were released late, of messages that come by the new position. Returns how many.
create or replace function duewheel.take_back_retries(
    p_subscription duewheel.subscription, p_hi timestamptz, p_straggler_id bigint, p_now timestamptz
) returns bigint
language plpgsql as $$
declare
    v_position record;
    v_count bigint;
begin
    select p.* into v_position
    from duewheel.positions((p_subscription).group_id, (p_subscription).topic_id) p where p.ordinal = 0;
    insert into duewheel.recall (topic_id, queue, deliver_at, seq, recalled_at)
    select m.topic_id, m.queue, m.deliver_at, m.seq, coalesce(p_now, clock_timestamp())
    from (
        select m.* from duewheel.straggler s
        cross join lateral duewheel.message_at(s.topic_id, s.queue, s.deliver_at, s.seq) m
        where s.topic_id = v_position.topic_id and s.queue = 0 and s.straggler_id > v_position.straggler_to
        union all
        -- Committed late, and not found by a tick yet.
        select m.* from duewheel.newest_tick(v_position.topic_id) t
        cross join lateral duewheel.late_messages(t, pg_current_snapshot()) l
        cross join lateral duewheel.message_at(t.topic_id, l.queue, l.deliver_at, l.seq) m
        where (l.deliver_at, l.seq) <= (v_position.to_at, v_position.to_seq)
    ) m
    where duewheel.comes_after(m.origin_topic_id, m.origin_queue, m.origin_deliver_at, m.origin_seq, p_hi,
                               p_straggler_id)
    on conflict do nothing;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- Lets a group go on in a topic with exactly what was released since an instant, or with p_start "earliest" everything
-- that is kept, or with "latest" only what is released from now on. Its leases end: an answer that comes later is
-- refused. A message that was in flight and does not come again by this is ready again at once. Retries of messages
-- that do come again are taken back: a portion of them here, and the rest by rewind_chunk, which is given rest until
-- it is null. The other retries stay, and so do dead letters. Of a broadcasting group all instances are rewound, or
-- the one that is named group/instance. One row per group row: how many leases ended, messages are ready again, and
-- retries were taken back.
-- role: admin
create or replace function duewheel.rewind(
    consumer_group text, topic text, to_at timestamptz default null, start text default null,
    now timestamptz default null
) returns table (
    rewound_group text, leases_ended bigint, messages_returned bigint, retries_taken_back bigint, rest jsonb
)
-- By the keys, though tables were small when the plans were made.
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic := duewheel.topic_by_name(rewind.topic);
    v_now constant timestamptz := duewheel.clock_at(rewind.now);
    v_group record;
    v_lease duewheel.lease;
    v_to record;
    v_chunk record;
    v_any boolean := false;
begin
    perform duewheel.require_read_committed();
    if (rewind.to_at is null) = (rewind.start is null)
       or (rewind.start is not null and rewind.start not in ('earliest', 'latest')) then
        raise exception using
            errcode = 'DW010',
            message = format('to_at is %s and start is %s; exactly one of them is given',
                             coalesce(rewind.to_at::text, 'null'), coalesce(left(rewind.start, 80), 'null')),
            hint = 'Give to_at, or start as "earliest" or "latest".';
    end if;
    if rewind.to_at > v_now then
        raise exception using
            errcode = 'DW010',
            message = format('%s is in the future, where nothing has been released', rewind.to_at),
            hint = 'Give an instant up to now, or "latest" to leave out everything that is released.';
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
        leases_ended := 0;
        messages_returned := 0;
        perform duewheel.lock_subscription((v_group.subscription).group_id, v_topic.topic_id);
        perform duewheel.await_tick(v_topic.topic_id);
        v_to := duewheel.released_before(v_topic.topic_id, rewind.to_at);
        if rewind.start = 'earliest' then
            v_to.hi := coalesce(v_topic.kept_from - interval '1 microsecond', '-infinity');
            v_to.straggler_id := 0;
        end if;
        v_chunk := duewheel.rewind_chunk(jsonb_build_object(
            'group_id', (v_group.subscription).group_id, 'topic_id', v_topic.topic_id,
            'snapshot', pg_current_snapshot()::text, 'at', '-infinity', 'seq', 0,
            'before', nextval('duewheel.message_block') * 65536, 'queue', -1, 'message_group', '', 'place', 0)
            -- Broadcasting: what waits for its message group comes again by the position, or is passed over.
            || case when (v_group.subscription).retry_topic_id is null then '{"hi": "-infinity", "straggler_id": 0}'
                    else to_jsonb(v_to) end, rewind.now);
        retries_taken_back := v_chunk.taken_back + duewheel.take_back_retries(
            v_group.subscription, v_to.hi, v_to.straggler_id, rewind.now);
        rest := v_chunk.rest;
        for v_lease in select * from duewheel.open_leases((v_group.subscription).group_id, v_topic.topic_id) loop
            leases_ended := leases_ended + 1;
            messages_returned := messages_returned + duewheel.end_rewound_lease(
                v_lease, v_group.subscription, v_to.hi, v_to.straggler_id, rewind.now);
        end loop;
        insert into duewheel.lease
            (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
             message_count, leased_at, expires_at, revived_to)
        select p.topic_id, (v_group.subscription).group_id, p.queue, p.n + 1, -1, v_to.hi, duewheel.last_seq(), v_to.hi,
               duewheel.last_seq(), v_to.straggler_id, v_to.straggler_id, 0, v_now, v_now, v_now
        from duewheel.positions((v_group.subscription).group_id, v_topic.topic_id) p where p.ordinal > 0;
        return next;
    end loop;
    if not v_any then
        perform duewheel.group_by_name(rewind.consumer_group);
        perform duewheel.raise_unread(
            rewind.consumer_group, v_topic.name,
            'A group reads a topic from when its first consumer has been made: broker.consumer(topic, group).');
    end if;
    -- Waiting consumers ask again.
    perform duewheel.announce('duewheel_released', v_topic.topic_id::text);
end
$$;
