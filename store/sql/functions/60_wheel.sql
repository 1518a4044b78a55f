-- The wheel's questions: when to come next, and which leases have ended.

-- Distinct due instants per topic in (p_from, p_to] that no tick has reached yet, thinned to the topic's granularity: a
-- loose index scan, one look-up per instant and queue. Without p_from, everything since each topic's last tick.
create or replace function duewheel.due_instants(p_from timestamptz, p_to timestamptz)
returns table (topic_id integer, due_at timestamptz, granularity interval)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    perform duewheel.require_home();
    return query
    with recursive source as (
        select t.topic_id, q::smallint as queue, t.granularity, a.after_at
        from duewheel.topic t
        cross join lateral (
            select greatest(p_from, coalesce((
                select k.hi from duewheel.newest_tick(t.topic_id) k), '-infinity'))) a (after_at)
        cross join generate_series(0, t.queues - 1) q
        where t.deleted_at is null and t.message_type <> 'DEAD_LETTER'
    ), walk as (
        select s.topic_id, s.queue, s.granularity, (
            select m.deliver_at from duewheel.any_message m
            where m.topic_id = s.topic_id and m.queue = s.queue and m.deliver_at > s.after_at
              and m.deliver_at <= p_to
            order by m.deliver_at limit 1) as due_at
        from source s
        union all
        select w.topic_id, w.queue, w.granularity, (
            select m.deliver_at from duewheel.any_message m
            where m.topic_id = w.topic_id and m.queue = w.queue
              and m.deliver_at > greatest(w.due_at, clock_timestamp()) + w.granularity - interval '1 microsecond'
              and m.deliver_at <= p_to order by m.deliver_at limit 1)
        from walk w where w.due_at is not null
    )
    select distinct w.topic_id, w.due_at, w.granularity
    from walk w where w.due_at is not null
    union
    select t.topic_id, b.deliver_at, t.granularity
    from duewheel.held_back b join duewheel.topic t on t.topic_id = b.topic_id
    where b.deliver_at <= p_to and t.deleted_at is null and t.message_type <> 'DEAD_LETTER';
end
$$;

-- The next end of an unanswered lease of each subscription in (p_from, p_to]: at the cost of the leases that were to
-- end in that time. Without p_from, however long ago it was: at the cost of all subscriptions, for programs of the
-- version before.
create or replace function duewheel.lease_ends(p_from timestamptz, p_to timestamptz)
returns table (group_id integer, topic_id integer, expires_at timestamptz)
language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
begin
    if p_from is null then
        return query select * from duewheel.lease_ends_of_topics(0, 2147483647, p_to);
        return;
    end if;
    return query
    select s.group_id, s.topic_id, min(e.expires_at)
    from (
        select l.topic_id, l.group_id, l.queue, l.n from duewheel.lease l
        where l.message_count > 0 and l.expires_at > p_from and l.expires_at <= p_to
        union
        select e.topic_id, e.group_id, e.queue, e.n from duewheel.lease_event e
        where e.expires_at is not null and e.expires_at > p_from and e.expires_at <= p_to
    ) l
    cross join lateral (
        select duewheel.lease_end(l.group_id, l.topic_id, l.queue, l.n) as expires_at
        -- A look-up by the key for each lease; as a join the events of all leases would be read.
        where (
            select true from duewheel.lease_event e
            where e.topic_id = l.topic_id and e.group_id = l.group_id and e.queue = l.queue and e.n = l.n
              and (e.kind in ('expired', 'rewound') or (e.kind in ('acked', 'failed', 'returned') and e.seqs is null))
            limit 1) is null
    ) e
    join duewheel.topic t on t.topic_id = l.topic_id
    join duewheel.subscription s on s.group_id = l.group_id and s.topic_id = coalesce(t.parent_topic_id, t.topic_id)
    join duewheel.topic parent on parent.topic_id = s.topic_id and parent.deleted_at is null
    where e.expires_at > p_from and e.expires_at <= p_to
    group by s.group_id, s.topic_id;
end
$$;
