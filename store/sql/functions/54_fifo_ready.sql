-- The ready messages of a FIFO topic, for a query that does not receive.

-- How many messages of a queue can be leased now, counted up to p_limit, the oldest of them, and whether there are more
-- to look at than were looked at. p_to_at, p_to_seq and p_straggler_to: the group's position; p_hi: how far is
-- released.
create or replace function duewheel.fifo_ready(
    p_group_id integer, p_topic_id integer, p_queue integer, p_to_at timestamptz, p_to_seq bigint,
        p_straggler_to bigint,
    p_hi timestamptz, p_now timestamptz, p_limit bigint,
    out ready bigint, out oldest_deliver_at timestamptz, out has_more boolean
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_ats timestamptz[];
    v_message_groups text[];
    v_count bigint;
    v_oldest timestamptz;
begin
    select count(*), min(b.deliver_at) into ready, oldest_deliver_at
    from duewheel.fifo_backlog_rows(
        p_group_id, p_topic_id, p_queue,
        array(select * from duewheel.fifo_free_groups(p_group_id, p_topic_id, p_queue, null, p_now, p_limit)),
        p_now, p_limit) b;
    select array_agg(f.deliver_at), array_agg(f.message_group) into v_ats, v_message_groups
    from (
        select m.deliver_at, coalesce(m.message_group, '') as message_group
        from (
            (select m.deliver_at, m.seq, m.message_group from duewheel.any_message m
             where m.topic_id = p_topic_id and m.queue = p_queue::smallint
               and (m.deliver_at, m.seq) > (p_to_at, p_to_seq) and m.deliver_at >= p_to_at and m.deliver_at <= p_hi
             order by m.deliver_at, m.seq limit 10000)
            union
            (select m.deliver_at, m.seq, m.message_group
             from (select s.* from duewheel.straggler s
                   where s.topic_id = p_topic_id and s.queue = p_queue::smallint and s.straggler_id > p_straggler_to
                   order by s.straggler_id limit 10000) s
             cross join lateral duewheel.message_at(p_topic_id, p_queue::smallint, s.deliver_at, s.seq) m)
        ) m
        where (select true from duewheel.recall r
               where r.topic_id = p_topic_id and r.queue = p_queue::smallint and r.deliver_at = m.deliver_at
                 and r.seq = m.seq limit 1) is null
    ) f;
    has_more := coalesce(cardinality(v_ats) >= 10000, false);
    select count(*), min(f.deliver_at) into v_count, v_oldest
    from unnest(v_ats, v_message_groups) f (deliver_at, message_group)
    join (
        select distinct g.message_group from unnest(v_message_groups) g (message_group)
    ) g on g.message_group = f.message_group
    where case
        when (select true from duewheel.fifo_backlog b
              where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
                and b.message_group = g.message_group limit 1)
            then duewheel.fifo_is_free(p_group_id, p_topic_id, p_queue, g.message_group, null, p_now)
        else duewheel.fifo_holder(p_group_id, p_topic_id, p_queue, g.message_group) is null
    end;
    ready := least(ready + v_count, p_limit);
    oldest_deliver_at := least(oldest_deliver_at, v_oldest);
end
$$;
