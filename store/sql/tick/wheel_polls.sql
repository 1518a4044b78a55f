-- Polls of the wheel: when something is due next on a topic, and which leases end.
--
-- A poll returns only the first instant of a topic. The tick that finds nothing left to release returns the next one,
-- so a poll costs the same however many messages are due. The plans walk the keys, whatever the tables held when they
-- were made. Each statement bounds deliver_at, so the slots it does not need are pruned when it runs.

-- When the first message of a topic is due, in (p_from, p_to], that no tick has reached: p_hi is how far the topic is
-- released. Messages that are held back count however long ago they were due. On a FIFO topic all messages are due at
-- p_to at the latest: a later instant means that the clock was ahead. Inlined if it is used in FROM.
create or replace function duewheel.first_due(
    p_topic_id integer, p_queues integer, p_message_type text, p_hi timestamptz, p_from timestamptz, p_to timestamptz
) returns table (due_at timestamptz)
language sql stable
begin atomic
    select least(min(least(m.deliver_at, p_to)), (
        select least(b.deliver_at, p_to) from duewheel.held_back b
        where b.topic_id = p_topic_id and (b.deliver_at <= p_to or p_message_type = 'FIFO')
        order by b.deliver_at limit 1))
    from generate_series(0, p_queues - 1) q
    cross join lateral (
        select m.deliver_at from duewheel.any_message m
        where m.topic_id = p_topic_id and m.queue = q::smallint
          and m.deliver_at > greatest(p_from, p_hi, '-infinity')
          and m.deliver_at <= case when p_message_type = 'FIFO' then 'infinity' else p_to end
        order by m.deliver_at limit 1) m;
end;

-- A page of all topics: p_limit topics above p_after_topic_id. For each the first instant in (p_from, p_to] that no
-- tick has reached yet; without p_from, however old it is. A topic whose newest tick is ahead of the clock is to be
-- ticked if anything was sent that is due before that tick. A full page ends with a row that has its last topic and no
-- instant.
-- role: admin
create or replace function duewheel.due_topics(
    p_after_topic_id integer, p_limit integer, p_from timestamptz, p_to timestamptz
) returns table (topic_id integer, due_at timestamptz, granularity interval)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    perform duewheel.require_home();
    return query
    with page as materialized (
        select t.topic_id, coalesce(d.due_at, case
                   when k.hi > clock_timestamp() and duewheel.sent_behind(t.topic_id, k.tick_xid, k.hi)
                   then clock_timestamp() end) as due_at, t.granularity
        from (
            select t.topic_id, t.queues, t.granularity, t.message_type from duewheel.topic t
            where t.topic_id > p_after_topic_id and t.deleted_at is null and t.message_type <> 'DEAD_LETTER'
            order by t.topic_id limit p_limit
        ) t
        left join lateral duewheel.newest_tick(t.topic_id) k on true
        cross join lateral duewheel.first_due(t.topic_id, t.queues, t.message_type, k.hi, p_from, p_to) d
    )
    select p.topic_id, p.due_at, p.granularity from page p where p.due_at is not null
    union all
    select max(p.topic_id), null, null from page p having count(*) = p_limit;
end
$$;

-- The first instants in (p_from, p_to] of topics with far messages that no tick has reached yet. A far message is
-- hardly ever due, because upkeep moves it: up to 1 000 of the last seconds are read, and due_topics finds the others.
-- If there are more, as while an open transaction keeps slots closed, it skips from queue to queue with a far message.
create or replace function duewheel.far_due_soon(p_from timestamptz, p_to timestamptz)
returns table (topic_id integer, due_at timestamptz)
language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = on
set jit = off as $$
#variable_conflict use_column
declare
    v_from constant timestamptz := greatest(p_from, greatest(p_to, duewheel.first_instant()) - interval '10 seconds');
    v_most constant integer := 1000;
begin
    if exists (
        select from duewheel.far_message f
        where timezone('UTC', f.deliver_at) > timezone('UTC', v_from)
          and timezone('UTC', f.deliver_at) <= timezone('UTC', p_to)
        order by timezone('UTC', f.deliver_at) offset v_most limit 1)
    then
        return query
        with recursive filled as (
            (select f.topic_id, f.queue from duewheel.far_message f order by f.topic_id, f.queue limit 1)
            union all
            select n.topic_id, n.queue
            from filled p
            cross join lateral (
                select f.topic_id, f.queue from duewheel.far_message f
                where (f.topic_id, f.queue) > (p.topic_id, p.queue)
                order by f.topic_id, f.queue limit 1) n
        )
        select p.topic_id, d.deliver_at
        from filled p
        cross join lateral (
            select f.deliver_at from duewheel.far_message f
            where f.topic_id = p.topic_id and f.queue = p.queue
              and f.deliver_at > greatest(p_from, duewheel.released_to(p.topic_id)) and f.deliver_at <= p_to
            order by f.deliver_at limit 1) d;
        return;
    end if;
    return query
    select f.topic_id, min(f.deliver_at)
    from (
        select f.topic_id, f.deliver_at from duewheel.far_message f
        where timezone('UTC', f.deliver_at) > timezone('UTC', v_from)
          and timezone('UTC', f.deliver_at) <= timezone('UTC', p_to)
        order by timezone('UTC', f.deliver_at) limit v_most
    ) f
    group by f.topic_id;
end
$$;

-- The first instant in (p_from, p_to] that no tick has reached yet, of every queue that has one. A loose scan: it skips
-- from queue to queue with a message in the slots of that time, so topics without one cost nothing.
-- role: admin
create or replace function duewheel.due_soon(p_from timestamptz, p_to timestamptz)
returns table (topic_id integer, due_at timestamptz, granularity interval)
language plpgsql stable
-- Postgres 15 would sort all due messages by another index.
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_incremental_sort = off set jit = off as $$
#variable_conflict use_column
declare
    v_slot record;
begin
    perform duewheel.require_home();
    for v_slot in select * from duewheel.slot s where s.ends_at > p_from and s.starts_at <= p_to
    order by s.starts_at loop
        -- With each offset, a column is computed once, and only for the rows that are left.
        return query
        with recursive filled as (
            (select m.topic_id, m.queue, m.deliver_at from duewheel.message m
             where m.deliver_at >= v_slot.starts_at and m.deliver_at < v_slot.ends_at
             order by m.topic_id, m.queue, m.deliver_at limit 1)
            union all
            select n.topic_id, n.queue, n.deliver_at
            from filled f
            cross join lateral (
                select m.topic_id, m.queue, m.deliver_at from duewheel.message m
                where (m.topic_id, m.queue) > (f.topic_id, f.queue)
                  and m.deliver_at >= v_slot.starts_at and m.deliver_at < v_slot.ends_at
                order by m.topic_id, m.queue, m.deliver_at limit 1) n
        )
        select d.topic_id, d.due_at, d.granularity
        from (
            select t.topic_id, t.granularity, case when t.recent_at > t.hi then t.recent_at else (
                       select m.deliver_at from duewheel.message m
                       where m.topic_id = t.topic_id and m.queue = t.queue
                         and m.deliver_at > t.hi and m.deliver_at >= v_slot.starts_at
                         and m.deliver_at <= p_to and m.deliver_at < v_slot.ends_at
                       order by m.deliver_at limit 1) end as due_at
            from (
                select r.topic_id, r.queue, r.recent_at,
                       coalesce((select k.hi from duewheel.newest_tick(r.topic_id) k), '-infinity') as hi,
                       (select t.granularity from duewheel.topic t
                        where t.topic_id = r.topic_id and t.deleted_at is null
                          and t.message_type <> 'DEAD_LETTER') as granularity
                from (
                    -- Without the tick at first: most queues have nothing in this time.
                    select f.topic_id, f.queue, case when f.deliver_at > p_from then f.deliver_at else (
                               select m.deliver_at from duewheel.message m
                               where m.topic_id = f.topic_id and m.queue = f.queue
                                 and m.deliver_at > p_from and m.deliver_at >= v_slot.starts_at
                                 and m.deliver_at <= p_to and m.deliver_at < v_slot.ends_at
                               order by m.deliver_at limit 1) end as recent_at
                    from filled f where f.deliver_at <= p_to offset 0
                ) r
                where r.recent_at is not null offset 0
            ) t
            where t.granularity is not null offset 0
        ) d
        where d.due_at is not null;
    end loop;
    return query
    select t.topic_id, d.due_at, t.granularity
    from (
        select f.topic_id, f.due_at, false as held from duewheel.far_due_soon(p_from, p_to) f
        union all
        select b.topic_id, min(b.deliver_at), true from duewheel.held_back b
        where b.deliver_at <= p_to group by b.topic_id
    ) d
    -- A lookup for each of these few; as a join all topics might be read.
    cross join lateral (
        select t.topic_id, t.granularity from duewheel.topic t
        where t.topic_id = d.topic_id and t.deleted_at is null and t.message_type <> 'DEAD_LETTER' limit 1) t
    where d.held or d.due_at > coalesce((select k.hi from duewheel.newest_tick(t.topic_id) k), '-infinity');
end
$$;

-- The next end of an unanswered lease of each subscription in (p_from, p_to]. It costs as much as the leases that were
-- to end in that time.
-- role: admin
create or replace function duewheel.lease_ends(p_from timestamptz, p_to timestamptz)
returns table (group_id integer, topic_id integer, expires_at timestamptz)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
begin
    return query
    select s.group_id, s.topic_id, min(e.expires_at)
    from (
        select l.topic_id, l.group_id, l.queue, l.n from duewheel.lease l
        where l.message_count > 0 and l.expires_at > p_from and l.expires_at <= p_to
          and date_bin('100 ms', timezone('UTC', l.expires_at), '2000-01-01')
              between date_bin('100 ms', timezone('UTC', p_from), '2000-01-01') and timezone('UTC', p_to)
        union
        select e.topic_id, e.group_id, e.queue, e.n from duewheel.lease_extension e
        where timezone('UTC', e.expires_at) > timezone('UTC', p_from)
          and timezone('UTC', e.expires_at) <= timezone('UTC', p_to)
    ) l
    cross join lateral (
        select duewheel.lease_end(l.group_id, l.topic_id, l.queue, l.n) as expires_at
        where not exists (select from duewheel.final_event(l.group_id, l.topic_id, l.queue, l.n))
    ) e
    join duewheel.topic t on t.topic_id = l.topic_id
    join duewheel.subscription s on s.group_id = l.group_id and s.topic_id = coalesce(t.parent_topic_id, t.topic_id)
    join duewheel.topic parent on parent.topic_id = s.topic_id and parent.deleted_at is null
    where e.expires_at > p_from and e.expires_at <= p_to
    group by s.group_id, s.topic_id;
end
$$;

-- The next end of an unanswered lease of each subscription of the topics in (p_after_topic_id, p_last_topic_id], up to
-- p_to, however old it is. A queue that shows that the clock was ahead has one at p_to.
-- role: admin
create or replace function duewheel.lease_ends_of_topics(
    p_after_topic_id integer, p_last_topic_id integer, p_to timestamptz
) returns table (group_id integer, topic_id integer, expires_at timestamptz)
-- In the order of the index of ends: a sort would read all ends of a queue for a hundred of them.
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = off set jit = off as $$
#variable_conflict use_column
begin
    return query
    select s.group_id, s.topic_id, min(e.expires_at)
    from duewheel.subscription s
    join duewheel.topic t on t.topic_id = s.topic_id and t.deleted_at is null
    cross join lateral duewheel.positions(s.group_id, s.topic_id) p
    -- Only the first one: any number may have ended. If 100 are answered, the last of them: reviving passes them.
    cross join lateral (
        (select e.ends_at as expires_at
         from (
             select e.n, e.ends_at, row_number() over (order by e.ends_at) as place
             from duewheel.ends_in(s.group_id, p.topic_id, p.queue, p.revived_to, p_to, p_limit => 100) e
         ) e
         where e.place = 100
            or e.place < 100 and duewheel.lease_has_ended(s.group_id, p.topic_id, p.queue, e.n, e.ends_at)
         order by e.ends_at limit 1)
        union all
        select p_to where duewheel.was_ahead(s.group_id, p.topic_id, p.queue, p_to)) e
    where s.topic_id > p_after_topic_id and s.topic_id <= p_last_topic_id
    group by s.group_id, s.topic_id;
end
$$;

-- Notes for the length of the session that a wheel looks after all topics. Returns whether it could take the lock:
-- is_turning has it for a moment, which is waited for. If a stranger keeps it, is_turning is true anyway.
-- role: admin
create or replace function duewheel.begin_turning() returns boolean
language plpgsql set lock_timeout = '1s' as $$
begin
    perform pg_advisory_lock_shared(duewheel.wheel_lock_key());
    return true;
exception when lock_not_available then
    return false;
end
$$;

-- Whether a wheel looks after all topics: consumers then leave releasing to it. The answer may be wrong for a moment
-- while several sessions ask, and if the wheel's process is stopped.
-- role: consumer
create or replace function duewheel.is_turning() returns boolean
language plpgsql as $$
declare
    v_is_free boolean;
begin
    begin
        v_is_free := pg_try_advisory_xact_lock(duewheel.wheel_lock_key());
        raise exception using errcode = 'FENCE';
    exception when sqlstate 'FENCE' then
        -- The lock ends with the subtransaction, wherever the statement is cancelled.
        null;
    end;
    return not v_is_free;
end
$$;
