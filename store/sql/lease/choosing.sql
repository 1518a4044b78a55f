-- Choosing: which messages of a topic a group receives, by their tags and properties. The choice is part of the group's
-- subscription, so no consumer skips messages for which another consumer of its group waits.

-- The tags of an expression, each once and in alphabetical order: "*" for all, which is null, else tags separated by
-- "||"; a tag with a comma in double quotes.
create or replace function duewheel.parse_tags(p_tags text) returns text[]
language plpgsql immutable as $$
declare
    v_tags text[];
begin
    if p_tags is null or btrim(p_tags) = '*' then
        return null;
    end if;
    v_tags := array(select btrim(tag) from unnest(string_to_array(p_tags, '||')) tag);
    if exists (select from unnest(v_tags) tag where tag ~ ',' and tag !~ '^".+"$') then
        raise exception using
            errcode = 'DW009',
            message = format('"%s" is not a tag expression: a tag has a comma', left(p_tags, 200)),
            hint = 'Separate tags by "||", such as A || B; a tag that has a comma is written in double quotes.';
    end if;
    v_tags := array(
        select case when tag ~ '^".+"$' then substr(tag, 2, length(tag) - 2) else tag end from unnest(v_tags) tag);
    if cardinality(v_tags) = 0 or exists (
        select from unnest(v_tags) tag where not duewheel.is_tag(tag)
    ) then
        raise exception using
            errcode = 'DW009',
            message = format('"%s" is not a tag expression', left(p_tags, 200)),
            hint = 'Write "*" for all messages, or tags separated by "||", such as "A || B".';
    end if;
    return array(select distinct tag collate "C" from unnest(v_tags) tag order by 1);
end
$$;

-- The expression of tags, null for all.
-- role: everyone
create or replace function duewheel.tag_expression(p_tags text[]) returns text
language sql immutable
return coalesce((
    select string_agg(case when tag ~ ',|^".+"$' then '"' || tag || '"' else tag end, ' || ' order by place)
    from unnest(p_tags) with ordinality t (tag, place)), '*');

-- Refuses a filter that is not a predicate, or that fails for some properties: it would end every receive of the group.
-- Postgres prints names of properties and text in double quotes, so the text outside of them is exact.
-- role: everyone
create or replace function duewheel.check_filter(p_filter jsonpath) returns void
language plpgsql immutable strict as $$
declare
    c_example constant text := '$.amount > 100 && $.country == "DE"';
    v_bare constant text := regexp_replace(p_filter::text, '"([^"\\]|\\.)*"', '""', 'g');
    v_failing constant text :=
        substring(v_bare from '\.(datetime|date|time|time_tz|timestamp|timestamp_tz|decimal)\(');
    v_problem text;
    v_cure text;
begin
    if v_bare !~ '\$' then
        v_problem := 'names no property';
        v_cure := format('Write $.NAME for each, as in %s.', c_example);
    elsif v_bare ~ '\$""' then
        v_problem := 'has a variable, which a filter cannot have';
        v_cure := 'Write $.NAME for a property.';
    elsif v_failing is not null then
        v_problem := format('calls %s(), which fails for some properties', v_failing);
        v_cure := 'Compare instants as numbers or as text of one form, and numbers in text by .double().';
    else
        perform jsonb_path_match('{}', p_filter);
        return;
    end if;
    raise exception using
        errcode = 'DW024', message = format('the filter ''%s'' %s', left(p_filter::text, 80), v_problem), hint = v_cure;
exception when data_exception then
    raise exception using
        errcode = 'DW024',
        message = format('the filter ''%s'' yields a value instead of true or false', left(p_filter::text, 80)),
        hint = format('Compare it, as in %s; write exists(PATH) for a path with a condition.', c_example);
end
$$;

-- Refuses a consumer that names other tags or another filter than its group has. Null names none.
create or replace function duewheel.refuse_other_choice(
    p_topic text, p_group text, p_old_tags text, p_old_filter jsonpath, p_tags text, p_filter jsonpath
) returns void
language plpgsql immutable as $$
declare
    v_tags constant text := duewheel.tag_expression(duewheel.parse_tags(p_tags));
begin
    if (p_tags is not null and v_tags <> p_old_tags)
       or (p_filter is not null and p_filter::text is distinct from p_old_filter::text) then
        raise exception using
            errcode = 'DW010',
            message = format('group "%s" receives tags "%s" and filter "%s" of topic "%s"; this consumer names %s',
                             p_group, left(p_old_tags, 200), coalesce(left(p_old_filter::text, 200), 'none'), p_topic,
                             concat_ws(' and ',
                                       'tags "' || case when p_tags is not null then left(v_tags, 200) end || '"',
                                       'filter "' || left(p_filter::text, 200) || '"')),
            hint = 'All consumers of a group have one subscription. Give the consumer the same tags and filter, or '
                   'another group, or change the subscription: duewheel group set-subscription, or '
                   'set_subscription in SQL and Python.';
    end if;
end
$$;

-- Whether tags and a filter choose a message.
create or replace function duewheel.is_chosen(
    p_tag text, p_content_type "char", p_properties jsonb, p_tags text[], p_filter jsonpath
) returns boolean
language sql immutable
return coalesce(p_tags is null or p_tag = any (p_tags), false)
   and (p_filter is null or coalesce(
        coalesce(duewheel.all_properties(p_content_type, p_properties), '{}') @@ p_filter, false));

-- Sets which messages a group receives of a topic from now on: messages with one of the tags, for which the filter is
-- true. For a broadcasting group it sets this for all instances, or for the instance named group/instance. Messages
-- that the group has passed are not delivered again, and leases stay. old_tags, old_filter: the previous subscription.
-- missed: how many of the newest 10 000 passed messages of each queue the new subscription chooses and the old one did
-- not; a rewind brings them back. passed_over: how many of the next 10 000 unread messages of each queue the old
-- subscription chose and the new one does not. Recalled messages are not counted as unread. No queue is locked: a
-- receive by the old subscription at the same time makes missed too low and passed_over too high.
-- role: admin
create or replace function duewheel.set_subscription(
    topic text, consumer_group text, tags text default '*', filter jsonpath default null,
    now timestamptz default null,
    out old_tags text, out old_filter jsonpath, out missed bigint, out passed_over bigint
)
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    c_most constant bigint := 10000;
    v_topic constant duewheel.topic := duewheel.named_topic(set_subscription.topic);
    v_tags constant text[] := duewheel.parse_tags(set_subscription.tags);
    v_filter constant jsonpath := set_subscription.filter;
    v_has duewheel.subscription;
begin
    perform duewheel.clock_at(set_subscription.now);
    perform duewheel.require_read_committed();
    perform duewheel.check_filter(v_filter);
    missed := 0;
    passed_over := 0;
    for v_has in
        select s.* from duewheel.consumer_group g join duewheel.subscription s on s.group_name = g.name
        where s.topic_id = v_topic.topic_id
          and set_subscription.consumer_group in (g.name, g.broadcast_group)
        order by s.group_id for update of s
    loop
        old_tags := duewheel.tag_expression(v_has.tags);
        old_filter := v_has.filter;
        update duewheel.subscription s set tags = v_tags, filter = v_filter
        where s.group_id = v_has.group_id and s.topic_id = v_has.topic_id;
        select set_subscription.missed + coalesce(sum(read.newly), 0),
               set_subscription.passed_over + coalesce(sum(unread.no_more), 0)
        into missed, passed_over
        from duewheel.positions(v_has.group_id, v_has.topic_id) p
        cross join lateral (
            select count(*) filter (
                where duewheel.is_chosen(m.tag, m.content_type, m.properties, v_tags, v_filter)
                  and not duewheel.is_chosen(m.tag, m.content_type, m.properties, v_has.tags, v_has.filter)
            ) as newly
            from (
                select m.* from duewheel.any_message m
                where m.topic_id = p.topic_id and m.queue = p.queue
                  and m.deliver_at >= coalesce(v_topic.kept_from, '-infinity')
                  and m.deliver_at <= p.to_at and (m.deliver_at, m.seq) <= (p.to_at, p.to_seq)
                  and (m.deliver_at, m.seq) not in (
                      select s.deliver_at, s.seq from duewheel.straggler s
                      where s.topic_id = p.topic_id and s.queue = p.queue and s.straggler_id > p.straggler_to)
                order by m.deliver_at desc, m.seq desc limit c_most) m
        ) read
        cross join lateral (
            select count(*) filter (where o.is_wanted and not n.is_wanted) as no_more
            from duewheel.unread_rows(v_has.group_id, p.topic_id, p.queue, c_most, v_has.tags, v_has.filter) o
            join duewheel.unread_rows(v_has.group_id, p.topic_id, p.queue, c_most, v_tags, v_filter) n
              using (deliver_at, place)
        ) unread
        where p.topic_id = v_has.topic_id;
    end loop;
    if old_tags is null then
        perform duewheel.group_by_name(set_subscription.consumer_group);
        perform duewheel.raise_unread(
            set_subscription.consumer_group, set_subscription.topic, 'Look at the view duewheel.groups.');
    end if;
    -- Waiting consumers poll again.
    perform duewheel.notify('duewheel_released', v_topic.topic_id::text);
exception when lock_not_available then
    perform duewheel.raise_busy(format('group "%s"', left(set_subscription.consumer_group, 127)));
end
$$;
