-- The messages that could ring for a group with tags or a filter, and the holders of the others.

-- How many messages of a queue behind a position have such a tag and such properties; as count_ready, which counts all.
-- It looks at 10 000 messages at most: if it finds none among these it answers 1, and the consumer that comes moves
-- past them.
create or replace function duewheel.count_wanted(
    p_topic_id integer, p_queue smallint, p_to_at timestamptz, p_to_seq bigint, p_straggler_to bigint, p_hi timestamptz,
    p_tags text[], p_filter jsonpath,
    out ready bigint, out oldest_deliver_at timestamptz
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    c_most constant bigint := 10000;
    v_seen bigint;
    v_late bigint;
    v_oldest timestamptz;
begin
    select count(*), count(*) filter (where m.wanted), min(m.deliver_at) filter (where m.wanted)
    into v_seen, ready, oldest_deliver_at
    from (
        select m.deliver_at,
               (p_tags is null or m.tag = any (p_tags))
               and (p_filter is null or coalesce(m.properties, '{}') @@ p_filter) as wanted
        from duewheel.any_message m
        where m.topic_id = p_topic_id and m.queue = p_queue and m.deliver_at >= p_to_at
          and (m.deliver_at, m.seq) > (p_to_at, p_to_seq) and m.deliver_at <= p_hi
          and (select true from duewheel.recall r
               where r.topic_id = p_topic_id and r.queue = p_queue and r.deliver_at = m.deliver_at and r.seq = m.seq
               limit 1) is null
        order by m.deliver_at, m.seq limit c_most) m;
    if ready = 0 and v_seen = c_most then
        ready := 1;
        oldest_deliver_at := p_hi;
    end if;
    select count(*), min(s.deliver_at) into v_late, v_oldest
    from (
        select s.deliver_at, s.seq from duewheel.straggler s
        where s.topic_id = p_topic_id and s.queue = p_queue and s.straggler_id > p_straggler_to
        order by s.straggler_id limit c_most) s
    -- A look-up by the key for each; as a join all messages of the queue might be read for each.
    cross join lateral (
        select m.tag, m.properties from duewheel.any_message m
        where m.topic_id = p_topic_id and m.queue = p_queue
          and m.deliver_at >= s.deliver_at and m.deliver_at <= s.deliver_at and m.seq = s.seq
        order by m.deliver_at, m.seq limit 1) m
    where (p_tags is null or m.tag = any (p_tags))
      and (p_filter is null or coalesce(m.properties, '{}') @@ p_filter);
    ready := ready + v_late;
    oldest_deliver_at := least(oldest_deliver_at, v_oldest);
end
$$;

-- As duewheel.doorbells, with tags and a filter for each pair. ready and oldest_deliver_at are of what these choose;
-- retries were chosen before, and on a FIFO topic all messages count. next_at is null where something is ready and none
-- of it chosen: then only a release brings news. holders: the names of the consumers that have messages now.
create or replace function duewheel.group_doorbells(
    p_topics text[], p_groups text[],
    -- For each pair an array of tags, or null for all messages.
    p_tags jsonb,
    -- For each pair a predicate over the properties as text, or null.
    p_filters text[],
    p_now timestamptz default null
) returns table (
    place bigint, ready bigint, oldest_deliver_at timestamptz, inflight boolean, next_at timestamptz, holders text[]
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_pair record;
    v_bell record;
    v_subscription record;
    v_position record;
    v_wanted record;
    v_tags text[];
begin
    for v_pair in
        select * from unnest(p_topics, p_groups, p_filters) with ordinality pair (topic, consumer_group, filter, place)
    loop
        select * into v_bell
        from duewheel.doorbells(array[v_pair.topic], array[v_pair.consumer_group], p_now) d;
        continue when not found;
        v_now := coalesce(p_now, clock_timestamp());
        place := v_pair.place;
        ready := v_bell.ready;
        oldest_deliver_at := v_bell.oldest_deliver_at;
        inflight := v_bell.inflight;
        next_at := v_bell.next_at;
        holders := '{}';
        select s.group_id, s.topic_id, t.message_type into v_subscription
        from duewheel.subscription s
        join duewheel.topic t on t.topic_id = s.topic_id
        join duewheel.consumer_group g on g.group_id = s.group_id
        where t.name = v_pair.topic and t.deleted_at is null and g.name = v_pair.consumer_group;
        if inflight then
            holders := array(
                select distinct l.consumer
                from duewheel.live_leases(v_subscription.group_id, v_subscription.topic_id, v_now) l
                where l.consumer is not null);
        end if;
        v_tags := case jsonb_typeof(p_tags -> (place::integer - 1))
            when 'array' then array(select jsonb_array_elements_text(p_tags -> (place::integer - 1))) end;
        if ready > 0 and (v_tags is not null or v_pair.filter is not null)
           and v_subscription.message_type <> 'FIFO' then
            ready := 0;
            oldest_deliver_at := null;
            for v_position in
                select * from duewheel.positions(v_subscription.group_id, v_subscription.topic_id)
            loop
                select w.ready, w.oldest_deliver_at into v_wanted
                from duewheel.count_wanted(
                    v_position.topic_id, v_position.queue, v_position.to_at, v_position.to_seq,
                    v_position.straggler_to, v_position.hi,
                    case when v_position.topic_id = v_subscription.topic_id then v_tags end,
                    case when v_position.topic_id = v_subscription.topic_id then v_pair.filter::jsonpath end) w;
                ready := ready + v_wanted.ready;
                oldest_deliver_at := least(oldest_deliver_at, v_wanted.oldest_deliver_at);
            end loop;
            ready := least(ready, 10000);
            if ready = 0 then
                next_at := null;
            end if;
        end if;
        return next;
    end loop;
end
$$;
