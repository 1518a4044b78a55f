-- Histograms of the page: messages due over time, lateness, answers. Every function reads by an index, in steps that
-- are bounded by a number of rows and a time. So a call costs the same however many messages wait, and returns the
-- point at which it stopped early.

-- The steps of a histogram.
create or replace function duewheel.check_steps(p_from timestamptz, p_step interval, p_steps integer) returns void
language plpgsql immutable as $$
begin
    perform duewheel.check_limit('steps', p_steps, 1, 400);
    if (p_step > interval '0' and p_step <= interval '3660 days') is not true then
        raise exception using
            errcode = 'DW010',
            message = format('step must be more than 0 and at most 3660 days; got %s',
                             coalesce(p_step::text, 'null')),
            hint = 'Give a step within these limits.';
    end if;
    if p_from not between duewheel.first_instant() and timestamptz '9999-12-31 00:00:00+00' then
        raise exception using
            errcode = 'DW010',
            message = format('from_at must be in the years 1 to 9999; got %s', p_from),
            hint = 'Give an instant in these years.';
    end if;
end
$$;

-- How many messages are due in each of a row of equal steps of time: of each topic from p_first to p_last, by name.
-- Recalled messages are left out. A topic with more than p_most due messages has one row without a step, and is not
-- counted. One statement reads many topics, because for one topic the statement is most of the cost.
create or replace function duewheel.due_steps(
    p_first text, p_last text, p_from timestamptz, p_step interval, p_steps integer, p_most integer
) returns table (topic_name text, step_number integer, messages bigint)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
declare
    v_end constant timestamptz := p_from + p_step * p_steps;
    -- A step in seconds: only that can be counted from an instant on.
    v_step constant interval := make_interval(secs => extract(epoch from p_step)::double precision);
begin
    return query
    select s.name, case when not s.is_large
               then round(extract(epoch from s.starts_at - p_from) / extract(epoch from v_step))::integer end,
           sum(s.messages)::bigint
    from (
        select d.name, d.is_large, date_bin(v_step, d.deliver_at, p_from) as starts_at,
               count(*) filter (where d.is_recalled is null) as messages
        from (
            select t.name, count(*) over (partition by t.topic_id) > p_most as is_large, m.deliver_at, m.is_recalled
            from (
                select t.topic_id, t.name, t.queues from duewheel.topic t
                where t.deleted_at is null and t.message_type not in ('RETRY', 'DEAD_LETTER')
                  and t.name >= p_first and t.name <= p_last
            ) t
            cross join lateral (
                select m.deliver_at, case when q.has_recalls then (
                           select true from duewheel.recall_of(t.topic_id, q.queue, m.deliver_at, m.seq)
                       ) end as is_recalled
                from (
                    select q::smallint as queue, (
                               select true from duewheel.recall r
                               where r.topic_id = t.topic_id and r.queue = q::smallint
                                 and r.deliver_at >= p_from and r.deliver_at < v_end limit 1) as has_recalls
                    from generate_series(0, t.queues - 1) q offset 0
                ) q
                cross join lateral (
                    select m.deliver_at, m.seq from duewheel.any_message m
                    where m.topic_id = t.topic_id and m.queue = q.queue
                      and m.deliver_at >= p_from and m.deliver_at < v_end
                    order by m.deliver_at limit p_most + 1) m
                limit p_most + 1) m
        ) d
        group by d.name, d.is_large, starts_at
    ) s
    where s.is_large or s.messages > 0
    group by 1, 2;
end
$$;

-- The steps of one topic of which many messages are due, one by one, until p_stop_at. p_sampled has the messages of
-- steps by their numbers, from a sample: the planner takes topic and instant for independent, and would miss a burst.
create or replace function duewheel.many_due_steps(
    p_name text, p_from timestamptz, p_step interval, p_steps integer, p_most integer, p_sampled jsonb,
    p_stop_at timestamptz
) returns table (topic_name text, step_number integer, messages bigint, exact boolean)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_topic record;
    v_end constant timestamptz := p_from + p_step * p_steps;
    v_at timestamptz := p_from;
    v_step_end timestamptz;
    v_recalled bigint;
begin
    select t.topic_id, t.queues into v_topic from duewheel.topic t where t.name = p_name and t.deleted_at is null;
    topic_name := p_name;
    while clock_timestamp() <= p_stop_at loop
        -- Only steps that hold something cost anything.
        select min(m.deliver_at) into v_at
        from generate_series(0, v_topic.queues - 1) q cross join lateral (
            select m.deliver_at from duewheel.any_message m
            where m.topic_id = v_topic.topic_id and m.queue = q::smallint
              and m.deliver_at >= v_at and m.deliver_at < v_end
            order by m.deliver_at limit 1) m;
        exit when v_at is null;
        step_number := floor(extract(epoch from v_at - p_from) / extract(epoch from p_step))::integer;
        v_step_end := p_from + p_step * (step_number + 1);
        select count(*) into messages from (
            select from generate_series(0, v_topic.queues - 1) q cross join lateral (
                select from duewheel.any_message m
                where m.topic_id = v_topic.topic_id and m.queue = q::smallint
                  and m.deliver_at >= v_at and m.deliver_at < v_step_end
                order by m.deliver_at limit p_most + 1) m
            limit p_most + 1) m;
        exact := messages <= p_most;
        select count(*) into v_recalled from (
            select from generate_series(0, v_topic.queues - 1) q cross join lateral (
                select from duewheel.recall r
                where r.topic_id = v_topic.topic_id and r.queue = q::smallint
                  and r.deliver_at >= v_at and r.deliver_at < v_step_end
                limit p_most + 1) r
            limit p_most + 1) r;
        messages := messages - v_recalled;
        if not exact then
            messages := greatest(messages, (p_sampled ->> step_number::text)::bigint);
        end if;
        if messages > 0 then
            return next;
        end if;
        v_at := v_step_end;
    end loop;
end
$$;

-- How many messages are due in each of a row of equal steps of time, for each topic that has some. A step is counted up
-- to max_counted messages for each topic; above that it is estimated from a sample of the tables, and exact is false.
-- So are the steps that were not counted within max_ms. Recalled messages are left out. The last row has no topic if a
-- topic may be missing: one with few messages for which the time was too short.
-- role: consumer
create or replace function duewheel.due_histogram(
    from_at timestamptz, step interval, steps integer,
    -- Null for all topics.
    topic text default null,
    max_counted integer default 500, max_ms integer default 250
) returns table (topic_name text, step_number integer, messages bigint, exact boolean)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_stop_at constant timestamptz := clock_timestamp() + max_ms * interval '1 millisecond';
    -- So many topics in one statement, and which they are.
    c_topics constant integer := 100;
    v_first text := due_histogram.topic;
    v_last text := due_histogram.topic;
    v_sampled_after text;
    v_large text[] := '{}';
    v_coarse jsonb;
    v_counted record;
    v_counted_to integer;
    v_may_miss boolean := false;
begin
    perform duewheel.require_home();
    perform duewheel.check_steps(from_at, step, steps);
    perform duewheel.check_limit('max_counted', max_counted, 1, 100000);
    perform duewheel.check_limit('max_ms', max_ms, 1, 10000);
    perform duewheel.require_known(null, due_histogram.topic);
    loop
        v_sampled_after := coalesce(v_last, '');
        if due_histogram.topic is null then
            select min(t.name), max(t.name) into v_first, v_last from (
                select t.name from duewheel.topic t
                where t.deleted_at is null and t.message_type not in ('RETRY', 'DEAD_LETTER')
                  and t.name > coalesce(v_last, '')
                order by t.name limit c_topics) t;
        end if;
        v_may_miss := v_last is not null and due_histogram.topic is null and clock_timestamp() > v_stop_at;
        exit when v_last is null or v_may_miss;
        for v_counted in
            select d.topic_name, d.step_number, d.messages
            from duewheel.due_steps(v_first, v_last, from_at, step, steps, max_counted) d
            order by d.topic_name, d.step_number
        loop
            if v_counted.step_number is null then
                v_large := v_large || v_counted.topic_name;
            else
                return query select v_counted.topic_name, v_counted.step_number, v_counted.messages, true;
            end if;
        end loop;
        exit when due_histogram.topic is not null;
    end loop;
    if v_may_miss or v_large <> '{}' then
        select coalesce(jsonb_object_agg(s.name, s.steps), '{}') into v_coarse from (
            select t.name, jsonb_object_agg(s.step_number, s.messages) as steps
            from (
                select s.topic_id, s.step_number, sum(s.messages) as messages
                from duewheel.sampled_steps(from_at, step, steps) s group by 1, 2
            ) s
            join duewheel.topic t on t.topic_id = s.topic_id
            where t.deleted_at is null and (
                t.name = any (v_large)
                or v_may_miss and t.message_type not in ('RETRY', 'DEAD_LETTER') and t.name > v_sampled_after)
            group by t.name) s;
    end if;
    -- One by one as long as there is time; the rest from the sample.
    for v_last in
        select l.name from unnest(v_large) l (name)
        union
        select k.name from jsonb_object_keys(v_coarse) k (name)
        order by 1
    loop
        v_counted_to := -1;
        if v_last = any (v_large) then
            for v_counted in
                select * from duewheel.many_due_steps(
                    v_last, from_at, step, steps, max_counted, v_coarse -> v_last, v_stop_at)
            loop
                v_counted_to := v_counted.step_number;
                return query select v_last, v_counted.step_number, v_counted.messages, v_counted.exact;
            end loop;
            continue when clock_timestamp() <= v_stop_at;
        end if;
        v_may_miss := v_may_miss or v_coarse -> v_last is null;
        return query
        select v_last, c.key::integer, c.value::bigint, false
        from jsonb_each_text(v_coarse -> v_last) c
        where c.key::integer > v_counted_to order by 2;
    end loop;
    if v_may_miss then
        return query select null::text, null::integer, null::bigint, false;
    end if;
end
$$;

-- How late the newest ticks of a topic between two instants were, by the first message that each released: at most
-- p_max_ticks ticks, without ticks that released only stragglers.
create or replace function duewheel.late_ticks(
    p_topic_id integer, p_queues integer, p_since timestamptz, p_until timestamptz, p_max_ticks integer
) returns table (ticked_at timestamptz, by_wheel boolean, late interval)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
begin
    return query
    select k.ticked_at, k.by_wheel, k.late from (
        select k.ticked_at, k.by_wheel, (
            select k.ticked_at - min(m.deliver_at)
            from generate_series(0, p_queues - 1) q cross join lateral (
                select m.deliver_at from duewheel.any_message m
                where m.topic_id = p_topic_id and m.queue = q::smallint
                  and m.deliver_at > k.lo and m.deliver_at <= k.hi
                order by m.deliver_at limit 1) m) as late
        from (
            select * from duewheel.tick k
            where k.topic_id = p_topic_id and k.hi >= p_since and k.hi <= p_until
            order by k.hi desc, k.tick_id desc limit p_max_ticks) k
    ) k where k.late is not null;
end
$$;

-- How late the newest ticks between two instants were, by the first message that each released: at most max_ticks for
-- each topic, for the topics that are read within max_ms. Later messages of the same tick were less late.
-- role: consumer
create or replace function duewheel.release_lateness(
    since_at timestamptz, max_ticks integer default 50, max_ms integer default 200,
    until_at timestamptz default 'infinity'
) returns table (topic_name text, ticks bigint, p50 interval, p99 interval, newest_at timestamptz, by_wheel boolean)
language plpgsql set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
declare
    v_stop_at constant timestamptz := clock_timestamp() + max_ms * interval '1 millisecond';
begin
    perform duewheel.require_home();
    perform duewheel.check_limit('max_ticks', max_ticks, 1, 10000);
    perform duewheel.check_limit('max_ms', max_ms, 1, 10000);
    return query
    select t.name, count(*), percentile_disc(0.5) within group (order by k.late),
           percentile_disc(0.99) within group (order by k.late), max(k.ticked_at), bool_or(k.by_wheel)
    from (
        select t.topic_id, t.name, t.queues from duewheel.topic t
        where t.deleted_at is null and t.message_type not in ('RETRY', 'DEAD_LETTER')
          and (select k.hi from duewheel.newest_tick(t.topic_id) k) >= since_at
        order by t.name offset 0
    ) t
    cross join lateral duewheel.late_ticks(
        t.topic_id, t.queues, since_at, until_at,
        case when clock_timestamp() <= v_stop_at then max_ticks else 0 end) k
    group by t.name
    order by t.name;
end
$$;

-- The messages that groups received, on one topic or on all, and their outcomes, in each of a row of equal steps of
-- time: of each queue the newest max_leases leases, as far as max_ms suffices. A lease counts in the step it was taken
-- in, its answers in the step they were given in.
-- role: consumer
create or replace function duewheel.flow_histogram(
    from_at timestamptz, step interval, steps integer,
    max_leases integer default 1000, max_ms integer default 200, of_topic text default null
) returns table (step_number integer, received bigint, acked bigint, failed bigint)
language plpgsql set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
declare
    v_stop_at constant timestamptz := clock_timestamp() + max_ms * interval '1 millisecond';
    -- A lease has a from_at too.
    v_from constant timestamptz := flow_histogram.from_at;
    v_end timestamptz;
    v_topic_id constant integer := case when of_topic is not null then (duewheel.topic_by_name(of_topic)).topic_id end;
begin
    perform duewheel.require_home();
    perform duewheel.check_steps(from_at, step, steps);
    v_end := v_from + step * steps;
    perform duewheel.check_limit('max_leases', max_leases, 1, 100000);
    perform duewheel.check_limit('max_ms', max_ms, 1, 10000);
    return query
    -- A loose scan: topics from which no group has ever received cost nothing.
    with recursive source as (
        (select l.topic_id, l.group_id, l.queue from duewheel.lease l where l.message_count > 0
         order by l.topic_id, l.group_id, l.queue limit 1)
        union all
        select n.topic_id, n.group_id, n.queue
        from source s
        cross join lateral (
            select l.topic_id, l.group_id, l.queue from duewheel.lease l
            where (l.topic_id, l.group_id, l.queue) > (s.topic_id, s.group_id, s.queue) and l.message_count > 0
            order by l.topic_id, l.group_id, l.queue limit 1) n
    ), recent as (
        select s.* from source s
        -- A lease may be answered long after it began, and an old one does not count.
        where (select l.leased_at from duewheel.newest_lease(s.group_id, s.topic_id, s.queue) l) >= v_from
          and exists (
              select from duewheel.subscription b
              where b.group_id = s.group_id and (b.topic_id = s.topic_id or b.retry_topic_id = s.topic_id)
                and (v_topic_id is null or b.topic_id = v_topic_id))
    )
    select floor(extract(epoch from a.at - v_from) / extract(epoch from step))::integer as place,
           coalesce(sum(a.messages) filter (where a.kind = 'received'), 0)::bigint,
           coalesce(sum(a.messages) filter (where a.kind = 'acked'), 0)::bigint,
           coalesce(sum(a.messages) filter (where a.kind in ('failed', 'expired')), 0)::bigint
    from recent s
    cross join lateral (
        -- Events and answers of a queue are read by one scan of an index each: a lookup for each lease costs more.
        with newest as materialized (
            select l.n, l.leased_at, l.message_count from (
                select l.n, l.leased_at, l.message_count from duewheel.lease l
                where l.topic_id = s.topic_id and l.group_id = s.group_id and l.queue = s.queue
                order by l.n desc limit case when clock_timestamp() <= v_stop_at then max_leases else 0 end
            ) l
            where l.message_count > 0 and l.leased_at >= v_from
        ), answered as materialized (
            select a.n, a.kind, max(a.at) as at, count(*) as messages, max(a.answered_count) as answered_count
            from duewheel.lease_answer a
            where a.topic_id = s.topic_id and a.group_id = s.group_id and a.queue = s.queue
              and a.n = any (array(select l.n from newest l))
            group by a.n, a.kind
        )
        select l.leased_at, 'received', l.message_count from newest l
        union all
        select max(u.at), max(u.kind), max(u.message_count) - coalesce(max(u.answered_count), 0)
        from (
            select l.n, null::timestamptz as at, null as kind, l.message_count, null::integer as answered_count
            from newest l
            union all
            select e.n, e.at, e.kind, null, null from duewheel.lease_event e
            where e.topic_id = s.topic_id and e.group_id = s.group_id and e.queue = s.queue
              and e.n = any (array(select l.n from newest l))
              and e.kind in ('acked', 'failed', 'expired')
            union all
            select a.n, null, null, null, a.answered_count from answered a
        ) u
        group by u.n having max(u.at) is not null
        union all
        select a.at, a.kind, a.messages from answered a where a.kind <> 'returned'
    ) a (at, kind, messages)
    where a.at >= v_from and a.at < v_end
    group by place
    having sum(a.messages) > 0
    order by place;
end
$$;
