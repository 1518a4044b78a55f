-- Lists messages by pages, in the order of topic and instant, or with a key prefix of topic and key. A page continues
-- after the message id that ended the previous page, so it costs the same wherever it is and however much waits.

-- The next messages of a topic that may be in a state, after (p_at, p_seq) and before p_until, in the order of their
-- instants: waiting messages, recalled or moved messages, or all. A message that retention has dropped has no born_at.
-- p_hi: how far the topic is released.
create or replace function duewheel.listed_after(
    p_topic duewheel.topic, p_state text, p_hi timestamptz, p_until timestamptz, p_at timestamptz, p_seq bigint,
    p_limit integer
) returns table (
    queue smallint, deliver_at timestamptz, seq bigint, xid xid8, key text, tag text, born_at timestamptz
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    return query
    select m.queue, m.deliver_at, m.seq, m.xid, m.key, m.tag, m.born_at
    from generate_series(0, (p_topic).queues - 1) q
    cross join lateral (
        (select m.queue, m.deliver_at, m.seq, m.xid, m.key, m.tag, m.born_at
         from duewheel.waiting_rows((p_topic).topic_id, q::smallint, p_hi, p_at, p_seq, p_until, p_limit) m
         where p_state = 'waiting')
        union all
        (select m.queue, m.deliver_at, m.seq, m.xid, m.key, m.tag, m.born_at from duewheel.any_message m
         where p_state in ('released', 'all') and m.topic_id = (p_topic).topic_id and m.queue = q::smallint
           and (m.deliver_at, m.seq) > (p_at, p_seq) and m.deliver_at >= p_at and m.deliver_at < p_until
         order by m.deliver_at, m.seq limit p_limit)
        union all
        (select r.queue, r.deliver_at, r.seq, m.xid, m.key, m.tag, m.born_at
         from (
            select r.queue, r.deliver_at, r.seq from duewheel.recall r
            where p_state in ('recalled', 'moved') and r.topic_id = (p_topic).topic_id and r.queue = q::smallint
              and (r.deliver_at, r.seq) > (p_at, p_seq) and r.deliver_at >= p_at and r.deliver_at < p_until
            order by r.deliver_at, r.seq limit p_limit
         ) r
         left join lateral duewheel.message_at((p_topic).topic_id, r.queue, r.deliver_at, r.seq) m on true)
    ) m
    order by m.deliver_at, m.seq limit p_limit;
end
$$;

-- The next messages of a topic whose keys have a prefix, after (p_key, p_at, p_seq), in the order of their keys:
-- messages due in [p_from, p_until). Sorting is off, so that Postgres reads the keys by their index: by another one it
-- would read all messages due in the window.
create or replace function duewheel.keyed_after(
    p_topic duewheel.topic, p_key_prefix text, p_from timestamptz, p_until timestamptz, p_key text, p_at timestamptz,
    p_seq bigint, p_limit integer
) returns table (
    queue smallint, deliver_at timestamptz, seq bigint, xid xid8, key text, tag text, born_at timestamptz
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_last_key constant text := duewheel.last_key_with(p_key_prefix);
begin
    if v_last_key is not null then
        return query
        select m.queue, m.deliver_at, m.seq, m.xid, m.key, m.tag, m.born_at from duewheel.any_message m
        where m.topic_id = (p_topic).topic_id and m.key >= p_key and m.key <= v_last_key
          and starts_with(m.key, p_key_prefix) and (m.key, m.deliver_at, m.seq) > (p_key, p_at, p_seq)
          and m.deliver_at >= p_from and m.deliver_at < p_until
        order by m.key, m.deliver_at, m.seq limit p_limit;
    else
        return query
        select m.queue, m.deliver_at, m.seq, m.xid, m.key, m.tag, m.born_at from duewheel.any_message m
        where m.topic_id = (p_topic).topic_id and m.key >= p_key
          and starts_with(m.key, p_key_prefix) and (m.key, m.deliver_at, m.seq) > (p_key, p_at, p_seq)
          and m.deliver_at >= p_from and m.deliver_at < p_until
        order by m.key, m.deliver_at, m.seq limit p_limit;
    end if;
end
$$;

-- The next messages of a topic for a list, by instant or by key. Each row tells whether the message has the given state
-- and tag.
create or replace function duewheel.looked_at(
    p_topic duewheel.topic, p_state text, p_key_prefix text, p_tag text, p_hi timestamptz, p_from timestamptz,
    p_until timestamptz, p_key text, p_at timestamptz, p_seq bigint, p_limit integer
) returns table (
    message_id text, key text, tag text, born_at timestamptz, deliver_at timestamptz, released boolean,
    recalled boolean, moved_to text, replaced_by text, listed boolean, seq bigint
)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
begin
    return query
    select duewheel.message_id((p_topic).topic_id, m.queue, m.deliver_at, m.seq), m.key, m.tag, m.born_at,
           m.deliver_at, m.released, m.recalled and present.id is null, present.id, case when m.recalled then (
               select r.replaced_by from duewheel.recall_of((p_topic).topic_id, m.queue, m.deliver_at, m.seq) r) end,
           m.born_at is not null and m.forgotten is not true and (p_tag is null or m.tag is not distinct from p_tag)
               and p_state in ('all', case when present.id is not null then 'moved' when m.recalled then 'recalled'
                                           when m.released then 'released' else 'waiting' end), m.seq
    from (
        select m.*,
               coalesce((select true from duewheel.recall_of((p_topic).topic_id, m.queue, m.deliver_at, m.seq)), false)
                   as recalled,
               m.deliver_at <= p_hi and duewheel.is_released((p_topic).topic_id, m.queue, m.deliver_at, m.seq)
                   as released,
               m.deliver_at < (p_topic).kept_from and duewheel.is_forgotten(
                   (p_topic).topic_id, m.queue, m.deliver_at, m.seq, m.xid) as forgotten
        from (
            select * from duewheel.listed_after(p_topic, p_state, p_hi, p_until, p_at, p_seq, p_limit)
            where p_key_prefix is null
            union all
            select * from duewheel.keyed_after(p_topic, p_key_prefix, p_from, p_until, p_key, p_at, p_seq, p_limit)
            where p_key_prefix is not null
        ) m
        offset 0
    ) m
    -- A move takes the message back at its old place, so nothing else is looked up.
    left join lateral (
        select duewheel.message_id((p_topic).topic_id, p.queue, p.deliver_at, p.seq) as id
        from duewheel.present_place((p_topic).topic_id, m.seq) p where m.recalled and p.seq <> m.seq
    ) present on true
    order by case when p_key_prefix is not null then m.key end, m.deliver_at, m.seq;
end
$$;

-- The place at which a list continues: after a message, or without one before all messages.
create or replace function duewheel.list_place(
    p_message_id text, out topic_name text, out key text, out deliver_at timestamptz, out seq bigint
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_id record;
begin
    if p_message_id is null then
        return;
    end if;
    v_id := duewheel.parse_message_id(p_message_id);
    select t.name, m.key, m.deliver_at, m.seq into topic_name, key, deliver_at, seq
    from duewheel.message_at(v_id.topic_id, v_id.queue::smallint, v_id.deliver_at, v_id.seq) m
    join duewheel.topic t on t.topic_id = m.topic_id;
    if not found then
        raise exception using
            errcode = 'DW013',
            message = format('there is no message %s to continue after', p_message_id),
            hint = 'Begin again with the first page. Retention has dropped the message, or this is not its broker.';
    end if;
end
$$;

-- A page of messages. A row that is not listed is the last: so many were looked at that do not match, and the next page
-- continues after it. Bodies are for who receives or finds a message.
-- role: consumer
create or replace function duewheel.list_messages(
    -- Null for all topics, by name.
    topic text default null,
    -- waiting, released, recalled, moved or all.
    state text default 'waiting',
    due_from timestamptz default null,
    due_until timestamptz default null,
    key_prefix text default null,
    tag text default null,
    -- The last message of the page before.
    after_message_id text default null,
    max_messages integer default 100
) returns table (
    topic_name text, message_id text, key text, tag_name text, born_at timestamptz, deliver_at timestamptz,
    released boolean, recalled boolean, moved_to text, replaced_by text, listed boolean
)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
declare
    -- So many are looked at for a page.
    c_looked_at constant integer := 10000;
    -- By the recalls, which are few, and not by the messages.
    c_by_recall constant boolean :=
        list_messages.state in ('recalled', 'moved') and list_messages.key_prefix is null;
    v_topic duewheel.topic;
    v_topic_name text;
    v_key text;
    v_at timestamptz;
    v_seq bigint;
    v_from timestamptz;
    v_until timestamptz;
    v_hi timestamptz;
    v_step integer := least(1000, list_messages.max_messages);
    v_found integer;
    v_looked_at integer := 0;
    v_listed integer := 0;
begin
    perform duewheel.require_home();
    perform duewheel.require_known(null, list_messages.topic);
    if list_messages.state is null
       or list_messages.state not in ('waiting', 'released', 'recalled', 'moved', 'all') then
        raise exception using
            errcode = 'DW010',
            message = format('state must be "waiting", "released", "recalled", "moved" or "all"; got "%s"',
                             left(list_messages.state, 80)),
            hint = 'Give one of these words.';
    end if;
    perform duewheel.check_limit('max_messages', list_messages.max_messages, 1, 1000);
    perform duewheel.check_message('', list_messages.key_prefix, list_messages.tag, null, null, null);
    select * into v_topic_name, v_key, v_at, v_seq from duewheel.list_place(list_messages.after_message_id);
    for v_topic in
        select * from duewheel.topic t
        where t.deleted_at is null and t.message_type not in ('RETRY', 'DEAD_LETTER')
          and (list_messages.topic is null or t.name = list_messages.topic)
          and t.name >= coalesce(v_topic_name, '')
          and (not c_by_recall or (select true from duewheel.recall r where r.topic_id = t.topic_id limit 1))
        order by t.name
    loop
        select coalesce(max(t.hi), '-infinity') into v_hi from duewheel.newest_tick(v_topic.topic_id) t;
        -- Waiting messages are kept. floor_at, because kept_from may be of a time when the clock was ahead.
        v_from := greatest(list_messages.due_from,
                           case when list_messages.state <> 'waiting' then v_topic.floor_at end, '-infinity');
        v_until := least(list_messages.due_until, case list_messages.state when 'released'
                         then v_hi + interval '1 microsecond' else 'infinity' end);
        if list_messages.key_prefix is not null and list_messages.state = 'waiting' then
            v_from := greatest(v_from, least(v_hi, (
                select min(b.deliver_at) from duewheel.held_back b where b.topic_id = v_topic.topic_id)));
        end if;
        if v_topic.name is distinct from v_topic_name or (list_messages.key_prefix is null and v_at < v_from) then
            v_key := list_messages.key_prefix;
            v_at := v_from;
            v_seq := -1;
        end if;
        loop
            v_found := 0;
            for topic_name, message_id, key, tag_name, born_at, deliver_at, released, recalled, moved_to,
                replaced_by, listed, v_seq in
                select v_topic.name, m.*
                from duewheel.looked_at(v_topic, list_messages.state, list_messages.key_prefix, list_messages.tag,
                                        v_hi, v_from, v_until, v_key, v_at, v_seq, v_step) m
            loop
                v_key := key;
                v_at := deliver_at;
                v_found := v_found + 1;
                v_looked_at := v_looked_at + 1;
                v_listed := v_listed + listed::integer;
                if listed or v_looked_at >= c_looked_at then
                    return next;
                end if;
                if v_listed >= list_messages.max_messages or v_looked_at >= c_looked_at then
                    return;
                end if;
            end loop;
            exit when v_found < v_step;
            v_step := 1000;
        end loop;
    end loop;
end
$$;
