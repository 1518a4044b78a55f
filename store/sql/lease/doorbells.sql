-- Doorbells: which groups have something to receive.

-- For each pair of a topic and a group: how many released messages are ready, counted up to 10 000, and the oldest
-- of them; whether more unread messages follow; whether messages are leased, and which consumers hold the first 5 000
-- leases; and when the next message could be ready. The subscription's tags and filter choose among first deliveries;
-- on a FIFO topic all count. The first 10 000 unread messages of a queue are looked at, among as many that no tick
-- has released yet; on a FIFO topic the first 10 000 of all queues, but at least 100 of each, and ready is an
-- estimate above 100 message groups of a queue. If more messages follow and none of the first is ready, ready is 1,
-- so that a consumer moves past them. If none follow, next_at is when a message could be ready. A paused group has no
-- ready messages. After p_within, a row without ready names the first pair that was not looked at; the pairs after it
-- have no row.
-- role: consumer
create or replace function duewheel.group_doorbells(
    p_topics text[], p_groups text[],
    p_now timestamptz default null,
    p_within interval default null
) returns table (
    place bigint, ready bigint, oldest_deliver_at timestamptz, more boolean, inflight boolean, next_at timestamptz,
    holders text[]
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    c_most constant bigint := 10000;
    v_until constant timestamptz := clock_timestamp() + duewheel.span(p_within);
    v_now timestamptz;
    v_pair record;
    v_source record;
    v_counted record;
    v_limit bigint;
    v_looked_at bigint;
begin
    perform duewheel.clock_at(p_now);
    for v_pair in
        select p.place, s.tags, s.filter, s.group_id, s.topic_id, t.message_type <> 'FIFO' as is_chosen_from,
               s.paused_at is not null as is_paused
        from unnest(p_topics, p_groups) with ordinality p (topic, consumer_group, place)
        join duewheel.topic t on t.name = p.topic and t.deleted_at is null
        join duewheel.subscription s on s.group_name = p.consumer_group and s.topic_id = t.topic_id
        order by p.place
    loop
        v_now := coalesce(p_now, clock_timestamp());
        if clock_timestamp() > v_until and place is not null then
            place := v_pair.place;
            ready := null;
            return next;
            exit;
        end if;
        place := v_pair.place;
        ready := 0;
        oldest_deliver_at := null;
        more := false;
        v_looked_at := 0;
        for v_source in
            select p.topic_id, p.queue, p.ordinal > 0 and v_pair.is_chosen_from as is_chosen_from
            from duewheel.positions(v_pair.group_id, v_pair.topic_id) p
            where not v_pair.is_paused
        loop
            -- A queue may count beyond its limit: latecomers are counted apart.
            v_limit := case when v_pair.is_chosen_from then greatest(c_most - ready, 0)
                            else greatest(c_most - greatest(ready, v_looked_at), 100) end;
            v_counted := duewheel.count_ready(
                v_pair.group_id, v_source.topic_id, v_source.queue, v_now, v_limit,
                case when v_source.is_chosen_from then v_pair.tags end,
                case when v_source.is_chosen_from then v_pair.filter end);
            ready := ready + v_counted.ready;
            oldest_deliver_at := least(oldest_deliver_at, v_counted.oldest_deliver_at);
            v_looked_at := v_looked_at + v_counted.unread;
            more := more or v_counted.unread > v_limit;
        end loop;
        if ready = 0 and more then
            ready := 1;
        end if;
        next_at := duewheel.next_due(v_pair.group_id, v_pair.topic_id, p_now, ready = 0 and v_looked_at > 0);
        ready := least(ready, c_most);
        select count(*) > 0, coalesce(array_agg(distinct l.consumer) filter (where l.consumer is not null), '{}')
        into inflight, holders
        from duewheel.open_leases(v_pair.group_id, v_pair.topic_id, v_now, 5000) l;
        return next;
    end loop;
end
$$;

-- The state of each topic and group for its watcher: whether the topic exists, whether the group is broadcasting, and
-- since when it is paused on the topic. Nothing is subscribed or released.
-- role: consumer
create or replace function duewheel.watched_groups(p_topics text[], p_groups text[]) returns table (
    topic_name text, group_name text, is_there boolean, is_broadcasting boolean, paused_at timestamptz
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    perform duewheel.require_home();
    return query
    select p.topic, p.consumer_group, t.topic_id is not null, exists (
               select from duewheel.consumer_group g where g.broadcast_group = p.consumer_group),
           s.paused_at
    from unnest(p_topics, p_groups) p (topic, consumer_group)
    left join duewheel.topic t on t.name = p.topic and t.deleted_at is null
          and t.message_type not in ('RETRY', 'DEAD_LETTER')
    left join duewheel.subscription s on s.group_name = p.consumer_group and s.topic_id = t.topic_id;
end
$$;
