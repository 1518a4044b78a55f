-- The wheel's questions: which leases end, which groups to ring for.

-- The next end of an unanswered lease of each subscription in (p_from, p_to]: at the cost of the leases that were to
-- end in that time.
create or replace function duewheel.lease_ends(p_from timestamptz, p_to timestamptz)
returns table (group_id integer, topic_id integer, expires_at timestamptz)
language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
begin
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
        where not exists (select from duewheel.final_event(l.group_id, l.topic_id, l.queue, l.n))
    ) e
    join duewheel.topic t on t.topic_id = l.topic_id
    join duewheel.subscription s on s.group_id = l.group_id and s.topic_id = coalesce(t.parent_topic_id, t.topic_id)
    join duewheel.topic parent on parent.topic_id = s.topic_id and parent.deleted_at is null
    where e.expires_at > p_from and e.expires_at <= p_to
    group by s.group_id, s.topic_id;
end
$$;

-- For each pair of a topic and a group, after ticking what is due and reviving what ended: how many messages are ready
-- and not leased (counted up to 10 000; other tags may be among them), the oldest of them, whether some are being
-- consumed, and when there could next be one.
create or replace function duewheel.doorbells(p_topics text[], p_groups text[], p_now timestamptz default null)
returns table (
    topic text, consumer_group text, ready bigint, oldest_deliver_at timestamptz, inflight boolean, next_at timestamptz
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_pair record;
    v_subscription duewheel.subscription;
    v_position record;
    v_count bigint;
    v_oldest timestamptz;
    v_fifo boolean;
begin
    if p_now is not null then
        perform duewheel.require_clock_right(p_now);
    end if;
    for v_pair in select * from unnest(p_topics, p_groups) pair (topic, consumer_group) loop
        select s.* into v_subscription
        from duewheel.subscription s
        join duewheel.topic t on t.topic_id = s.topic_id
        join duewheel.consumer_group g on g.group_id = s.group_id
        where t.name = v_pair.topic and t.deleted_at is null and g.name = v_pair.consumer_group;
        continue when not found;
        v_now := coalesce(p_now, clock_timestamp());
        topic := v_pair.topic;
        consumer_group := v_pair.consumer_group;
        ready := 0;
        oldest_deliver_at := null;
        inflight := false;
        v_fifo := duewheel.is_fifo(v_subscription.topic_id);
        for v_position in
            select * from duewheel.positions(v_subscription.group_id, v_subscription.topic_id)
        loop
            if v_fifo and v_position.topic_id = v_subscription.topic_id then
                select r.ready, r.oldest_deliver_at into v_count, v_oldest
                from duewheel.fifo_ready(v_subscription.group_id, v_position.topic_id, v_position.queue,
                                         v_position.to_at, v_position.to_seq, v_position.straggler_to, v_position.hi,
                                         v_now, 10000 - ready) r;
            else
                select r.ready, r.oldest_deliver_at into v_count, v_oldest
                from duewheel.count_ready(v_position.topic_id, v_position.queue, v_position.to_at, v_position.to_seq,
                                          v_position.straggler_to, v_position.hi, v_position.queue_hi, 10000 - ready) r;
            end if;
            ready := ready + v_count;
            oldest_deliver_at := least(oldest_deliver_at, v_oldest);
            inflight := inflight or exists (
                select from duewheel.ended_leases(v_subscription.group_id, v_position.topic_id, v_position.queue,
                                                  v_now, v_now + interval '13 hours'));
        end loop;
        next_at := duewheel.next_due(v_subscription.group_id, v_subscription.topic_id, p_now);
        return next;
    end loop;
end
$$;
