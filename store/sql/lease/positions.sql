-- Positions: how far a group has read each queue.

-- The newest lease of a queue; one of no messages only moved the position.
create or replace function duewheel.newest_lease(p_group_id integer, p_topic_id integer, p_queue integer)
returns setof duewheel.lease
language sql stable rows 1
begin atomic
    select * from duewheel.lease l
    where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue order by l.n desc limit 1;
end;

-- A group's positions in all queues that a subscription reads, retries first, and how far each queue is released.
-- Messages due before kept_from of the topic are finished, and the logs of late ones are deleted: the group counts as
-- past all of them.
create or replace function duewheel.positions(p_group_id integer, p_topic_id integer)
returns table (
    ordinal integer, topic_id integer, queue smallint, n bigint, to_at timestamptz, to_seq bigint, straggler_to bigint,
    revived_to timestamptz, hi timestamptz, queue_hi timestamptz, leased_at timestamptz
)
language sql stable
begin atomic
    select source.ordinal + q, source.topic_id, q::smallint, l.n,
           case when k.kept_from > l.to_at then k.kept_from - interval '1 microsecond' else l.to_at end,
           case when k.kept_from > l.to_at then duewheel.last_seq() else l.to_seq end,
           l.straggler_to, l.revived_to, t.hi, t.queue_hi[q + 1], l.leased_at
    from duewheel.subscription s
    cross join lateral (values (0, s.retry_topic_id), (1, s.topic_id)) source (ordinal, topic_id)
    -- Topic and tick once for all queues; the topic by its key, whatever the tables held when the plan was made.
    cross join lateral (
        select k.queues, k.kept_from from duewheel.topic k where k.topic_id = source.topic_id limit 1) k
    left join lateral duewheel.newest_tick(source.topic_id) t on true
    cross join lateral generate_series(0, k.queues - 1) q
    cross join lateral duewheel.newest_lease(s.group_id, source.topic_id, q) l
    where s.group_id = p_group_id and s.topic_id = p_topic_id;
end;

-- How far a group has read a topic, by its slowest queue, and how far the topic is released. stalled_since: the oldest
-- change of its position among queues with a message that has been ready and unread for longer than the topic's
-- retention; null if no queue has one. Unread messages stay on disk. A separate function, because a view calls
-- functions with the rights of its reader.
-- role: consumer
create or replace function duewheel.progress(
    p_group_id integer, p_topic_id integer, p_now timestamptz default null,
    out read_to timestamptz, out released_to timestamptz, out stalled_since timestamptz
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_before timestamptz;
begin
    select duewheel.clock_at(p_now) - t.retention into v_before
    from duewheel.topic t where t.topic_id = p_topic_id;
    -- If no message has been due since, a queue is read as far as its topic is released.
    select nullif(min(case when (p.queue_hi, duewheel.last_seq()) > (p.to_at, p.to_seq) then p.to_at
                           else greatest(p.to_at, p.hi) end) filter (where p.ordinal > 0), '-infinity'),
           max(p.hi) filter (where p.ordinal > 0),
           min(case when p.leased_at < v_before then (
               select p.leased_at where (
                    -- By the last tick before then: queue_hi has the newest due instant of each queue.
                    select t.queue_hi[p.queue + 1] from duewheel.tick t
                    where t.topic_id = p.topic_id and t.hi < v_before order by t.hi desc, t.tick_id desc limit 1
               ) > p.to_at or exists (
                    select from duewheel.fifo_backlog b
                    where b.topic_id = p.topic_id and b.group_id = p_group_id and b.queue = p.queue)) end)
    into read_to, released_to, stalled_since
    from duewheel.positions(p_group_id, p_topic_id) p;
end
$$;
