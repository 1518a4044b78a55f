-- Messages that should have been released and are not: the sign that neither a wheel nor a consumer releases.

-- The topics with waiting messages that were due by an instant, the longest wait first. Reads all topics, each by its
-- keys. For each queue it reads at most 1 000 due messages to find one that was not recalled; if all of them are
-- recalled, the topic counts.
-- role: consumer
create or replace function duewheel.overdue_topics(
    due_until timestamptz, max_topics integer default 200
) returns table (topic_name text, due_at timestamptz)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
begin
    perform duewheel.require_home();
    perform duewheel.check_limit('max_topics', max_topics, 1, 10000);
    return query
    select d.name, d.due_at
    from (
        select t.*, d.due_at
        from (
            select t.topic_id, t.name, t.queues, coalesce((
                       select k.hi from duewheel.newest_tick(t.topic_id) k), '-infinity') as hi
            from duewheel.topic t
            where t.deleted_at is null and t.message_type not in ('RETRY', 'DEAD_LETTER')
            offset 0
        ) t
        -- On a FIFO topic, too, only messages that were due by then.
        cross join lateral duewheel.first_due(t.topic_id, t.queues, null, t.hi, null, overdue_topics.due_until) d
        where d.due_at is not null
        order by d.due_at, t.name offset 0
    ) d
    -- Only for the returned topics, in their order: most have no recalled message.
    where exists (
        select from generate_series(0, d.queues - 1) q cross join lateral (
            select row_number() over () as place, (
                       select true from duewheel.recall_of(d.topic_id, m.queue, m.deliver_at, m.seq)) as is_recalled
            from duewheel.waiting_rows(
                d.topic_id, q::smallint, d.hi, '-infinity', 0,
                least(due_until, duewheel.last_instant()) + interval '1 microsecond', 1000) m) m
        where m.is_recalled is null or m.place = 1000)
    order by d.due_at, d.name limit overdue_topics.max_topics;
end
$$;
