-- Numbers that stay cheap with any number of waiting messages: counts up to a limit are exact, above it an estimate.
-- Pages list topics and groups in the order of their names.

-- How many messages of a topic wait that is released up to p_after, recalled ones included: counted up to 10 000, else
-- estimated from the tables' sizes.
create or replace function duewheel.count_waiting(
    p_topic_id integer, p_after timestamptz, out waiting bigint, out exact boolean
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    select count(*) into waiting from (
        select from duewheel.topic t
        cross join lateral generate_series(0, t.queues - 1) q
        cross join lateral duewheel.waiting_rows(p_topic_id, q::smallint, p_after, '-infinity', 0, 'infinity', 10001) m
        where t.topic_id = p_topic_id limit 10001) m;
    exact := waiting <= 10000;
    if not exact then
        waiting := greatest(waiting, duewheel.estimate_due(p_topic_id, p_after, 'infinity'));
    end if;
end
$$;

-- How many messages wait on all topics, recalled ones included: counted up to 10 000 and for so long, else estimated
-- from the tables' sizes, with retries. p_since: when the first of them is due. A topic is read only while counting
-- continues, so the cost is the same however many topics there are.
-- role: consumer
create or replace function duewheel.waiting_messages(
    p_since timestamptz, p_max_ms integer, out waiting bigint, out exact boolean
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_stop_at constant timestamptz := clock_timestamp() + p_max_ms * interval '1 millisecond';
begin
    perform duewheel.require_home();
    select count(*) into waiting from (
        select from (
            select t.topic_id, t.queues, coalesce((
                       select k.hi from duewheel.newest_tick(t.topic_id) k), '-infinity') as hi
            from duewheel.topic t
            where t.deleted_at is null and t.message_type not in ('RETRY', 'DEAD_LETTER')
              and clock_timestamp() <= v_stop_at
              -- One lookup instead of one for each queue tells that a topic has no messages.
              and (select true from duewheel.any_message m where m.topic_id = t.topic_id order by m.queue limit 1)
            offset 0
        ) t
        cross join lateral generate_series(
            0, case when clock_timestamp() <= v_stop_at then t.queues - 1 else -1 end) q
        cross join lateral duewheel.waiting_rows(
            t.topic_id, q::smallint, t.hi, '-infinity', 0, 'infinity', 10001) m
        limit 10001) m;
    exact := waiting <= 10000 and clock_timestamp() <= v_stop_at;
    if not exact then
        waiting := greatest(waiting, duewheel.estimate_due(null, p_since, 'infinity'));
    end if;
end
$$;

-- role: consumer
create or replace function duewheel.topic_stats(
    now timestamptz default null,
    -- So many of the topics whose names follow after_topic; null for all.
    after_topic text default null, max_topics integer default null
) returns table (
    topic text, message_type text, waiting bigint, waiting_is_exact boolean, next_due_at timestamptz,
    released_to timestamptz, stragglers bigint
)
language plpgsql set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
begin
    perform duewheel.clock_at(topic_stats.now);
    perform duewheel.require_home();
    perform duewheel.check_limit('max_topics', coalesce(max_topics, 1), 1, 2147483647);
    return query
    select t.name, t.message_type, w.waiting, w.exact, due.next_due_at, k.hi, (
            select count(*) from duewheel.straggler s where s.topic_id = t.topic_id)
    from (
        select * from duewheel.topic t
        where t.deleted_at is null and t.message_type not in ('RETRY', 'DEAD_LETTER')
          and t.name > coalesce(topic_stats.after_topic, '')
        order by t.name limit topic_stats.max_topics
    ) t
    left join lateral duewheel.newest_tick(t.topic_id) k on true
    cross join lateral (
        select min(m.deliver_at) as next_due_at
        from generate_series(0, t.queues - 1) q
        cross join lateral duewheel.waiting_rows(
            t.topic_id, q::smallint, coalesce(k.hi, '-infinity'), '-infinity', 0, 'infinity', 1) m
    ) due
    cross join lateral (
        select w.waiting, w.exact from duewheel.count_waiting(t.topic_id, coalesce(k.hi, '-infinity')) w
        where due.next_due_at is not null
        union all
        select 0, true where due.next_due_at is null
    ) w
    order by t.name;
end
$$;

-- How many dead letters of a topic were not sent again or discarded, counted from the first one as count_waiting does.
create or replace function duewheel.count_dead(p_topic_id integer) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_from constant timestamptz := duewheel.redrive_from(p_topic_id);
    -- A redrive may be kept for longer than its dead letter.
    v_kept_from constant timestamptz := least((select min(s.starts_at) from duewheel.slot s), (
        select min(f.deliver_at) from duewheel.far_message f where f.topic_id = p_topic_id and f.queue = 0));
begin
    return greatest(
        0, (duewheel.count_waiting(p_topic_id, v_from - interval '1 microsecond')).waiting - (
            select count(*) from duewheel.redrive r
            where r.topic_id = p_topic_id and r.deliver_at >= greatest(v_from, v_kept_from)));
end
$$;

-- role: consumer
create or replace function duewheel.group_stats(
    now timestamptz default null,
    -- On these topics; null for all.
    topics text[] default null,
    -- Messages in flight are counted in so many leases of each queue, the next to end first.
    max_leases integer default 1000
) returns table (
    consumer_group text, topic text, ready bigint, oldest_deliver_at timestamptz, inflight bigint,
    inflight_is_exact boolean, waiting_retry bigint, dead bigint,
    dropped_soon bigint, paused_at timestamptz, idle_since timestamptz, abandoned_since timestamptz,
    kept_messages bigint, kept_bytes bigint
)
language plpgsql set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := duewheel.clock_at(group_stats.now);
begin
    perform duewheel.require_home();
    perform duewheel.check_limit('max_leases', max_leases, 0, 100000);
    -- One statement for all: a group without messages, as most of a thousand are, costs a few lookups.
    return query
    select s.group_name, s.topic_name, p.ready, p.oldest_deliver_at, p.inflight, p.inflight_is_exact, r.waiting_retry,
           d.dead, d.dropped_soon, s.paused_at, i.idle_since, a.abandoned_since, coalesce(a.messages, 0),
           coalesce(a.bytes, 0)
    from (
        select s.*, t.name as topic_name, t.message_type = 'FIFO' as is_fifo, t.retention, t.dead_letter_retention
        from (
            select t.* from duewheel.topic t
            where group_stats.topics is null and t.deleted_at is null and t.parent_topic_id is null
            union all
            select t.* from (select distinct unnest(group_stats.topics) as name) k
            join duewheel.topic t on t.name = k.name and t.deleted_at is null and t.parent_topic_id is null
        ) t
        -- A lookup for each topic: a join might compare all groups with all topics.
        cross join lateral (select * from duewheel.subscription s where s.topic_id = t.topic_id offset 0) s
    ) s
    cross join lateral (
        select coalesce(sum(c.ready), 0)::bigint as ready, min(c.oldest_deliver_at) as oldest_deliver_at,
               max(p.leased_at) as leased_at,
               coalesce(sum(i.inflight), 0)::bigint as inflight,
               coalesce(bool_and(i.is_exact), group_stats.max_leases > 0) as inflight_is_exact
        from duewheel.positions(s.group_id, s.topic_id) p
        left join lateral (
            -- Counted if there is something: with the offset, the condition is evaluated before the count.
            select c.ready, c.oldest_deliver_at
            from duewheel.count_ready(
                s.group_id, p.topic_id, p.queue, v_now, 10000,
                case when p.ordinal > 0 and not s.is_fifo then s.tags end,
                case when p.ordinal > 0 and not s.is_fifo then s.filter end) c
            where s.is_fifo or (p.queue_hi, duewheel.last_seq()) > (p.to_at, p.to_seq) or (
                -- No EXISTS, which drops the order: all stragglers of the queue would be read by another index.
                select true from duewheel.straggler g
                where g.topic_id = p.topic_id and g.queue = p.queue and g.straggler_id > p.straggler_to
                order by g.straggler_id limit 1)
            offset 0
        ) c on true
        left join lateral (
            with held as materialized (
                (select l.n, l.message_count from duewheel.lease l
                 where l.message_count > 0
                   and l.topic_id = p.topic_id and l.group_id = s.group_id and l.queue = p.queue
                   and l.expires_at > v_now
                 order by l.topic_id, l.group_id, l.queue, l.expires_at, l.n limit group_stats.max_leases + 1)
                union all
                -- Extended leases, of which those above are known already.
                (select e.n, (
                     select l.message_count from duewheel.lease l
                     where l.topic_id = p.topic_id and l.group_id = s.group_id and l.queue = p.queue and l.n = e.n
                       and l.expires_at <= v_now)
                 from (
                     select distinct e.n from (
                         select e.n from duewheel.lease_extension e
                         where e.expires_at > '-infinity'
                           and e.topic_id = p.topic_id and e.group_id = s.group_id and e.queue = p.queue
                           and e.expires_at > v_now
                         order by e.topic_id, e.group_id, e.queue, e.expires_at, e.n
                         limit group_stats.max_leases + 1) e
                 ) e)
            ), answered as materialized (
                -- One scan of the index finds the answered leases of a queue: a lookup for each costs more.
                select f.n from duewheel.lease_event f
                where f.topic_id = p.topic_id and f.group_id = s.group_id and f.queue = p.queue
                  and f.n = any (array(select h.n from held h))
            )
            -- A lookup in a hash: to sort the leases with their answers would cost more.
            select sum(h.message_count - case
                       -- Most groups answer whole leases: one lookup tells, instead of one for each lease.
                       when exists (
                           select from duewheel.lease_answer a
                           where a.topic_id = p.topic_id and a.group_id = s.group_id and a.queue = p.queue)
                       then coalesce((
                           select a.answered_count
                           from duewheel.newest_answer(s.group_id, p.topic_id, p.queue, h.n) a), 0)
                       else 0 end
                   ) filter (where h.message_count is not null and h.n not in (select d.n from answered d)) as inflight,
                   count(*) <= group_stats.max_leases as is_exact
            from held h
            -- Without leases to read, a queue costs no lookup.
            having group_stats.max_leases > 0 offset 0
        ) i on true
    ) p
    cross join lateral (
        -- Counted if there is one; calling a function for each group without one would cost more than all lookups.
        select case when (
                select true from duewheel.any_message m
                where m.topic_id = s.retry_topic_id and m.queue = 0 order by m.deliver_at limit 1
            ) then (duewheel.count_waiting(s.retry_topic_id, k.retries_to)).waiting - (
                -- A rewind recalled them.
                select count(*) from duewheel.recall r
                where r.topic_id = s.retry_topic_id and r.queue = 0 and r.deliver_at > k.retries_to)
            else 0 end + (
                select count(*) from (
                    select from duewheel.fifo_backlog b
                    where s.is_fifo and b.topic_id = s.topic_id and b.group_id = s.group_id and b.due_at > v_now
                    order by b.queue, b.due_at limit 10000) b
            ) as waiting_retry
        from (
            select coalesce((select t.hi from duewheel.newest_tick(s.retry_topic_id) t), '-infinity') as retries_to
            offset 0
        ) k
    ) r
    cross join lateral (
        -- Counted if there is one, as retries are.
        select case when k.has_dead then duewheel.count_dead(s.dead_letter_topic_id) else 0 end as dead,
               case when k.has_dead then (
                   -- At most the 10 000 oldest. Dead letters before redrive_from were sent again or discarded.
                   select count(*) from (
                       select m.deliver_at, m.seq from duewheel.any_message m
                       where m.topic_id = s.dead_letter_topic_id and m.queue = 0
                         and m.deliver_at >= duewheel.redrive_from(s.dead_letter_topic_id)
                         and m.deliver_at < v_now + interval '1 day' - s.dead_letter_retention
                       order by m.deliver_at, m.seq limit 10000
                   ) m
                   where not exists (
                       select from duewheel.redrive r
                       where r.topic_id = s.dead_letter_topic_id and r.deliver_at = m.deliver_at and r.seq = m.seq)
               ) else 0 end as dropped_soon
        from (
            select (select true from duewheel.any_message m
                    where m.topic_id = s.dead_letter_topic_id and m.queue = 0 order by m.deliver_at limit 1) as has_dead
            offset 0
        ) k
    ) d
    cross join lateral (
        -- As the alert GroupTakesNothing. With the CASE, leases are read if none was taken for so long.
        select case when p.ready > 0 and s.paused_at is null and k.since_at <= v_now - interval '15 minutes' then
                   case when not exists (
                       select from duewheel.open_leases(s.group_id, s.topic_id, v_now, 1)) then k.since_at end
               end as idle_since
        from (select greatest(p.leased_at, s.resumed_at, p.oldest_deliver_at) as since_at) k
    ) i
    left join lateral (
        -- Read if something has been ready for so long.
        select case when not b.is_paused then b.since_at end as abandoned_since, k.messages, k.bytes
        from duewheel.standstill(s.group_id, s.topic_id, v_now) b
        cross join lateral duewheel.kept_for(s.group_id, s.topic_id, '-infinity', b.kept_before) k
        where p.oldest_deliver_at < v_now - s.retention and b.since_at is not null offset 0
    ) a on true
    order by s.group_name, s.topic_name;
end
$$;

-- How many messages a rewind would deliver again: messages that the group has read on the topic, from an instant on or
-- all that are kept. Recalled messages do not count. Counts up to max_counted; above that exact is false.
-- role: consumer
create or replace function duewheel.count_rewound(
    consumer_group text, topic text, to_at timestamptz default null, start text default null,
    max_counted integer default 100000, out messages bigint, out exact boolean
)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
declare
    v_topic constant duewheel.topic := duewheel.topic_by_name(count_rewound.topic);
    v_to record;
begin
    perform duewheel.require_home();
    perform duewheel.require_known(count_rewound.consumer_group, count_rewound.topic);
    perform duewheel.check_limit('max_counted', max_counted, 1, 1000000);
    v_to := duewheel.released_before(v_topic.topic_id, count_rewound.to_at);
    if count_rewound.start = 'earliest' then
        v_to.hi := coalesce(v_topic.kept_from - interval '1 microsecond', '-infinity');
        v_to.straggler_id := 0;
    end if;
    select count(*) into messages from (
        select from (
            select p.* from duewheel.consumer_group g
            join duewheel.subscription s on s.group_name = g.name and s.topic_id = v_topic.topic_id
            cross join lateral duewheel.positions(s.group_id, s.topic_id) p
            where (g.name = count_rewound.consumer_group or g.broadcast_group = count_rewound.consumer_group)
              and p.ordinal > 0
        ) p
        cross join lateral (
            (select m.deliver_at, m.seq from duewheel.any_message m
             where m.topic_id = p.topic_id and m.queue = p.queue
               and m.deliver_at > v_to.hi and m.deliver_at <= p.to_at and (m.deliver_at, m.seq) <= (p.to_at, p.to_seq)
               and not exists (
                   select from duewheel.straggler s
                   where s.topic_id = p.topic_id and s.queue = p.queue and s.deliver_at = m.deliver_at
                     and s.seq = m.seq)
             order by m.deliver_at limit max_counted + 1)
            union all
            (select s.deliver_at, s.seq from duewheel.straggler s
             where s.topic_id = p.topic_id and s.queue = p.queue
               and s.straggler_id > v_to.straggler_id and s.straggler_id <= p.straggler_to
             order by s.straggler_id limit max_counted + 1)
        ) m
        where not exists (select from duewheel.recall_of(p.topic_id, p.queue, m.deliver_at, m.seq))
        limit max_counted + 1
    ) m;
    exact := messages <= max_counted;
    messages := least(messages, max_counted);
end
$$;
