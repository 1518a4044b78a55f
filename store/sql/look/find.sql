-- Looking up messages, and what became of them.

-- The message of an id, at its present position.
-- role: consumer
create or replace function duewheel.find(message_id text)
returns setof duewheel.described_message
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_id constant record := duewheel.parse_message_id(find.message_id);
    v_place duewheel.message_position;
begin
    perform duewheel.require_home();
    select * into v_place from duewheel.present_place(v_id.topic_id, v_id.seq);
    if not found then
        v_place := (v_id.queue, v_id.deliver_at, v_id.seq);
    end if;
    return query
    select * from duewheel.describe_messages(v_id.topic_id, v_place.queue, v_place.deliver_at, v_place.seq, null);
end
$$;

-- role: consumer
create or replace function duewheel.find_key(topic text, key text)
returns setof duewheel.described_message
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic := duewheel.topic_by_name(find_key.topic);
begin
    return query select * from duewheel.describe_messages(v_topic.topic_id, null, null, null, find_key.key);
end
$$;

-- One message by its position, or all of a key.
create or replace function duewheel.describe_messages(
    p_topic_id integer, p_queue integer, p_deliver_at timestamptz, p_seq bigint, p_key text
) returns setof duewheel.described_message
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_hi constant timestamptz := duewheel.released_to(p_topic_id);
begin
    return query
    select d.*
    from (
        select m as message from duewheel.any_message m
        where p_key is not null and m.topic_id = p_topic_id and m.key = p_key collate "C"
        union all
        select m from duewheel.message_of(p_topic_id, p_queue, p_deliver_at, p_seq) m
        where p_key is null and m.seq is not null
    ) f
    cross join lateral (select (f.message).*) m
    join duewheel.topic t on t.topic_id = p_topic_id
    left join lateral duewheel.recall_of(m.topic_id, m.queue, m.deliver_at, m.seq) r on true
    left join lateral (
        select duewheel.message_id(o.topic_id, o.queue, o.deliver_at, o.seq) as id from duewheel.moved_id v
        join duewheel.moved_id o on o.topic_id = v.topic_id and o.first_seq = v.first_seq and o.seq = v.first_seq
        where v.topic_id = m.topic_id and v.seq = m.seq and v.first_seq <> v.seq limit 1
    ) origin on true
    left join lateral (
        select duewheel.message_id(m.topic_id, p.queue, p.deliver_at, p.seq) as id
        from duewheel.present_place(m.topic_id, m.seq) p where p.seq <> m.seq
    ) present on true
    cross join lateral duewheel.as_described(
        f.message, t.name, r.seq is not null and present.id is null,
        m.deliver_at <= v_hi and r.seq is null
        and duewheel.release_of(m.topic_id, m.queue, m.deliver_at, m.seq, m.xid) is not null,
        origin.id, present.id, r.replaced_by) d
    where t.message_type not in ('RETRY', 'DEAD_LETTER')
      and not duewheel.is_forgotten(m.topic_id, m.queue, m.deliver_at, m.seq, m.xid)
    order by m.deliver_at, m.seq;
end
$$;
