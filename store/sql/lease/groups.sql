-- Consumer groups and subscriptions.

create or replace function duewheel.group_by_name(p_name text) returns duewheel.consumer_group
language plpgsql stable as $$
declare
    v_group duewheel.consumer_group;
begin
    perform duewheel.require_home();
    select * into v_group from duewheel.consumer_group g where g.name = p_name;
    if not found then
        raise exception using
            errcode = 'DW014',
            message = format('there is no consumer group "%s"', left(p_name, 127)),
            hint = 'Its first consumer creates a group: broker.consumer(topic, group), in SQL duewheel.subscribe.';
    end if;
    return v_group;
end
$$;

create or replace function duewheel.raise_unread(p_group text, p_topic text, p_hint text) returns void
language plpgsql immutable as $$
begin
    raise exception using
        errcode = 'DW014',
        message = format('consumer group "%s" does not read topic "%s"', left(p_group, 127), left(p_topic, 127)),
        hint = p_hint;
end
$$;

-- Raises the error of a call for a subscription that was removed.
create or replace function duewheel.raise_gone(p_topic_id integer) returns void
language plpgsql stable as $$
declare
    v_topic duewheel.topic;
begin
    select * into v_topic from duewheel.topic t where t.topic_id = p_topic_id;
    if v_topic.deleted_at is null and v_topic.topic_id is not null then
        raise exception using
            errcode = 'DW014',
            message = format('the group no longer reads topic "%s": it was deleted, or it is a broadcasting instance '
                             'that had not received for longer than the topic''s retention', v_topic.name),
            hint = 'Subscribe the group again: subscribe() of the consumer, or duewheel.subscribe in SQL.';
    end if;
    raise exception using
        errcode = 'DW001',
        message = case when v_topic.topic_id is null
                then format('there is no topic with the id %s: it was deleted, or the id is wrong',
                            coalesce(p_topic_id::text, 'null'))
            else format('topic "%s" was deleted', regexp_replace(v_topic.name, '~deleted~\d+$', '')) end,
        hint = 'Create the topic again, and then subscribe the group again.';
end
$$;

-- The group of a subscription, found in one statement: between two it may be renamed.
create or replace function duewheel.subscribed_group(p_group_id integer, p_topic_id integer)
returns duewheel.consumer_group
language plpgsql stable as $$
declare
    v_group duewheel.consumer_group;
begin
    select g.* into v_group
    from duewheel.subscription s join duewheel.consumer_group g on g.name = s.group_name
    where s.group_id = p_group_id;
    if not found then
        perform duewheel.raise_gone(p_topic_id);
    end if;
    return v_group;
end
$$;

-- Checks the group or topic of a list; null for all. An unknown name is an error and not an empty list.
create or replace function duewheel.require_known(p_group text, p_topic text) returns void
language plpgsql stable as $$
begin
    if p_group is not null then
        perform duewheel.group_by_name(p_group);
    end if;
    if p_topic is not null then
        perform duewheel.topic_by_name(p_topic);
    end if;
end
$$;

-- An id that neither a subscription nor a row of a removed subscription on the topic has. The sequence cycles, so a
-- free id is used again last.
create or replace function duewheel.free_group_id(p_topic_id integer) returns integer
language plpgsql as $$
declare
    v_group_id integer;
begin
    for v_tries in 1 .. 1048575 loop
        v_group_id := nextval('duewheel.subscription_group_id_seq');
        if not exists (select from duewheel.subscription s where s.group_id = v_group_id)
            and not exists (select from duewheel.lease l where l.topic_id = p_topic_id and l.group_id = v_group_id)
            -- An answer that was on its way when the group was deleted has left these.
            and not exists (
                select from duewheel.lease_event e where e.topic_id = p_topic_id and e.group_id = v_group_id)
            and not exists (
                select from duewheel.lease_extension e where e.topic_id = p_topic_id and e.group_id = v_group_id)
            and not exists (
                select from duewheel.lease_answer a where a.topic_id = p_topic_id and a.group_id = v_group_id)
            and not exists (
                select from duewheel.fifo_backlog b where b.topic_id = p_topic_id and b.group_id = v_group_id)
        then
            return v_group_id;
        end if;
    end loop;
    raise exception using
        errcode = 'DW010',
        message = 'all ids of groups are in use; the limit is 1048575 groups and broadcasting instances, which count '
                  'once for each of their topics',
        hint = 'Delete groups that are no longer used.';
end
$$;

-- Takes a subscription away with its retries and dead letters, and the group with its last one. Its leases belong to no
-- subscription then: upkeep forgets them.
create or replace function duewheel.remove_subscription(p_group_id integer) returns void
language plpgsql set lock_timeout = '10s' as $$
declare
    v_gone duewheel.subscription;
begin
    delete from duewheel.subscription s where s.group_id = p_group_id returning * into v_gone;
    if v_gone.retry_topic_id is not null then
        update duewheel.topic t
        set name = format('%s~deleted~%s', t.name, t.topic_id), deleted_at = clock_timestamp()
        where t.topic_id in (v_gone.retry_topic_id, v_gone.dead_letter_topic_id) and t.deleted_at is null;
    end if;
    delete from duewheel.consumer_group g
    where g.name = v_gone.group_name and not exists (select from duewheel.subscription s where s.group_name = g.name);
exception when lock_not_available then
    perform duewheel.raise_busy(format('group "%s"', v_gone.group_name));
end
$$;

-- Refuses an unknown mode or start, and an invalid name of a group or instance.
create or replace function duewheel.check_subscriber(
    p_group text, p_start text, p_mode text, p_instance text, p_start_at timestamptz, p_now timestamptz
) returns void
language plpgsql as $$
declare
    v_problem constant text := case
        when p_mode is null or p_mode not in ('clustering', 'broadcasting')
            then format('mode must be "clustering" or "broadcasting"; got "%s"', left(p_mode, 80))
        when p_group is null or p_group !~ '^[A-Za-z0-9_.-]{1,127}$'
            then format('"%s" is not a group name: a name has 1 to 127 letters, digits, dots, hyphens or underscores',
                        left(p_group, 200))
        when p_mode = 'broadcasting' and (p_instance is null or p_instance !~ '^[^[:cntrl:]]{1,127}$')
            then format('"%s" cannot name a broadcasting instance: a name has 1 to 127 characters, no control '
                        'characters', left(p_instance, 200))
        when p_start is null or p_start not in ('earliest', 'latest')
            then format('start must be "earliest", "latest" or an instant; got "%s"', left(p_start, 80))
        when p_start_at > p_now + interval '3660 days'
            then format('start_at must be at most 3660 days from now; got %s', p_start_at)
    end;
begin
    if v_problem is not null then
        raise exception using
            errcode = 'DW010', message = v_problem,
            hint = case when v_problem like '% is not a group name:%' then 'Choose another name.'
                when v_problem like '% cannot name a broadcasting instance:%'
                    then 'Give a name that stays the same when the instance starts again.'
                when v_problem like 'start_at %' then 'Give an earlier instant.'
                else 'Give one of these values.' end;
    end if;
end
$$;

-- Refuses a group of the other mode, one with the old name of another group, and one group more than a topic may have.
-- The caller holds the group's lock.
create or replace function duewheel.check_new_subscription(p_topic duewheel.topic, p_group text, p_mode text)
returns void
language plpgsql as $$
declare
    v_broadcasting constant boolean := p_mode = 'broadcasting';
    v_most constant integer := case when v_broadcasting then 100000 else 10000 end;
    v_new_name constant text := (
        select coalesce(g.broadcast_group, g.name) from duewheel.consumer_group g
        where g.old_names @> array[p_group] and g.old_names <> '{}' limit 1);
begin
    if v_new_name is not null then
        raise exception using
            errcode = 'DW010',
            message = format('group "%s" was renamed to "%s"', p_group, v_new_name),
            hint = format('Give the name "%s". For another group with the old name, create it with a third name and '
                          'rename it.', v_new_name);
    end if;
    if exists (
        select from duewheel.consumer_group g
        join duewheel.subscription s on s.group_name = g.name
        join duewheel.topic t on t.topic_id = s.topic_id and t.deleted_at is null
        where case when v_broadcasting then g.name = p_group else g.broadcast_group = p_group end
    ) then
        raise exception using
            errcode = 'DW010',
            message = format('group "%s" is %s; this consumer is %s', p_group,
                             case when v_broadcasting then 'clustering' else 'broadcasting' end, p_mode),
            hint = 'All consumers of a group have one mode. Give the consumer the mode of its group, or another group.';
    end if;
    -- A login that may create groups leaves room for the groups of other logins.
    if (select count(*) from (
            select from duewheel.subscription s
            where s.topic_id = p_topic.topic_id and (s.retry_topic_id is null) = v_broadcasting
            limit v_most) s) >= v_most then
        raise exception using
            errcode = 'DW010',
            message = format('topic "%s" has %s %s; the limit is %s', p_topic.name, v_most,
                             case when v_broadcasting then 'broadcasting instances' else 'groups' end, v_most),
            hint = case when v_broadcasting
                then 'Give each instance a name that stays the same when it starts again.'
                else 'Let an administrator delete groups that are no longer used.' end;
    end if;
end
$$;

-- Creates a subscription, with its group if that is missing, and for a clustering group (p_instance null) the topics of
-- its retries and dead letters.
create or replace function duewheel.make_subscription(
    p_topic duewheel.topic, p_group text, p_instance text, p_now timestamptz, p_tags text[], p_filter jsonpath
) returns duewheel.subscription
language plpgsql as $$
declare
    v_name constant text := concat_ws('/', p_group, p_instance);
    v_made duewheel.subscription;
begin
    v_made.topic_id := p_topic.topic_id;
    v_made.group_id := duewheel.free_group_id(p_topic.topic_id);
    v_made.group_name := v_name;
    perform from duewheel.consumer_group g where g.name = v_name for key share;
    if not found then
        insert into duewheel.consumer_group (name, mode, broadcast_group, instance)
        values (v_name, case when p_instance is null then 'clustering' else 'broadcasting' end,
                case when p_instance is not null then p_group end, p_instance);
    end if;
    if p_instance is null then
        -- The group has no subscription, so topics of these names are left over from a subscription that was deleted
        -- with its topic.
        update duewheel.topic t
        set name = format('%s~deleted~%s', t.name, t.topic_id), deleted_at = clock_timestamp()
        where t.name in ('%RETRY%' || p_group || '%' || p_topic.name, '%DLQ%' || p_group || '%' || p_topic.name);
        v_made.retry_topic_id := duewheel.free_topic_id(true);
        v_made.dead_letter_topic_id := duewheel.free_topic_id(true);
        insert into duewheel.topic
            (topic_id, name, message_type, queues, max_delay, out_of_range, granularity, retention, delay_levels,
             parent_topic_id)
        overriding system value
        select own.topic_id, own.prefix || p_group || '%' || p_topic.name, own.message_type, 1, p_topic.max_delay,
               p_topic.out_of_range, p_topic.granularity,
               case own.message_type when 'DEAD_LETTER' then p_topic.dead_letter_retention else p_topic.retention end,
               p_topic.delay_levels, p_topic.topic_id
        from (values (v_made.retry_topic_id, '%RETRY%', 'RETRY'),
                     (v_made.dead_letter_topic_id, '%DLQ%', 'DEAD_LETTER')) own (topic_id, prefix, message_type);
    else
        v_made.seen_at := p_now;
    end if;
    v_made.tags := p_tags;
    v_made.filter := p_filter;
    insert into duewheel.subscription
        (group_id, group_name, topic_id, retry_topic_id, dead_letter_topic_id, seen_at, tags, filter)
    overriding system value
    values (v_made.group_id, v_name, v_made.topic_id, v_made.retry_topic_id, v_made.dead_letter_topic_id,
            v_made.seen_at, p_tags, p_filter);
    return v_made;
end
$$;

-- Creates the group and its subscription if they are missing, with the topics for its retries and dead letters, and
-- sets its position: "earliest" is the oldest message kept; "latest" the messages released from now on; start_at the
-- messages that are due from an instant on, or were released after it although they were due earlier. If the
-- subscription exists, start changes nothing. mode "broadcasting" creates a group row for the instance alone, named
-- group/instance, which reads all messages and has no retries; a name has one mode only.
-- role: consumer
create or replace function duewheel.subscribe(
    topic text, consumer_group text, start text default 'earliest', start_at timestamptz default null,
    now timestamptz default null, mode text default 'clustering', instance text default null,
    -- A tag expression, "*" for all, and a predicate over the properties such as '$.region == "north" && $.amount >
    -- 100'. A new subscription gets them. An existing subscription refuses another expression; null names none. The
    -- results are the tags and filter of the subscription.
    inout tags text default null, inout filter jsonpath default null,
    out group_id integer, out topic_id integer, out retry_topic_id integer, out dead_letter_topic_id integer,
    -- Whether this call created the subscription.
    out created boolean
)
language plpgsql set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    v_tags constant text := subscribe.tags;
    v_filter constant jsonpath := subscribe.filter;
    v_topic duewheel.topic := duewheel.named_topic(subscribe.topic);
    v_instance constant text := case when subscribe.mode = 'broadcasting' then subscribe.instance end;
    v_name constant text := case when subscribe.mode = 'broadcasting'
        then subscribe.consumer_group || '/' || subscribe.instance else subscribe.consumer_group end;
    v_now constant timestamptz := duewheel.clock_at(subscribe.now);
    v_start_at timestamptz;
    v_straggler_id bigint := 0;
begin
    perform duewheel.check_filter(v_filter);
    created := false;
    for v_attempt in 1 .. 2 loop
        select s.group_id, s.topic_id, s.retry_topic_id, s.dead_letter_topic_id, duewheel.tag_expression(s.tags),
               s.filter
        into group_id, topic_id, retry_topic_id, dead_letter_topic_id, tags, filter
        from duewheel.subscription s
        where s.group_name = v_name and s.topic_id = v_topic.topic_id;
        if found then
            perform duewheel.refuse_other_choice(
                subscribe.topic, subscribe.consumer_group, tags, filter, v_tags, v_filter);
            -- A broadcasting instance is back: upkeep does not forget it now.
            if v_instance is not null then
                update duewheel.subscription s set seen_at = v_now
                where s.group_id = subscribe.group_id and s.topic_id = v_topic.topic_id and s.seen_at < v_now;
            end if;
            return;
        end if;
        if v_attempt = 1 then
            perform duewheel.check_subscriber(
                subscribe.consumer_group, subscribe.start, subscribe.mode, subscribe.instance, subscribe.start_at,
                v_now);
            perform duewheel.require_read_committed();
            -- One lock for all topics: the group's mode is decided under it.
            perform duewheel.lock_until(array[duewheel.group_lock_key(subscribe.consumer_group)]);
            -- Keeps delete_topic and update_topic away until this is committed.
            v_topic := duewheel.locked_topic(subscribe.topic, 'share');
        end if;
    end loop;
    perform duewheel.check_new_subscription(v_topic, subscribe.consumer_group, subscribe.mode);
    -- The position is exclusive.
    v_start_at := coalesce(
        greatest(case when subscribe.start_at > duewheel.first_instant() then subscribe.start_at end, v_topic.kept_from)
        - interval '1 microsecond', '-infinity');
    select s.group_id, s.topic_id, s.retry_topic_id, s.dead_letter_topic_id, duewheel.tag_expression(s.tags), s.filter
    into group_id, topic_id, retry_topic_id, dead_letter_topic_id, tags, filter
    from duewheel.make_subscription(
        v_topic, subscribe.consumer_group, v_instance, v_now, duewheel.parse_tags(v_tags), v_filter) s;
    created := true;
    if subscribe.start = 'latest' or subscribe.start_at is not null then
        perform duewheel.await_tick(topic_id);
        select case when subscribe.start_at is null then r.hi else v_start_at end, r.straggler_id
        into v_start_at, v_straggler_id
        from duewheel.released_before(v_topic.topic_id, subscribe.start_at) r;
    end if;
    insert into duewheel.lease
        (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
         message_count, leased_at, expires_at, revived_to)
    select q.topic_id, group_id, q.queue, 0, 0, q.at, duewheel.last_seq(), q.at, duewheel.last_seq(), q.straggler_id,
           q.straggler_id, 0, v_now, v_now, '-infinity'
    from (
        select v_topic.topic_id, n, v_start_at, v_straggler_id from generate_series(0, v_topic.queues - 1) n
        union all
        select retry_topic_id, 0, '-infinity', 0 where retry_topic_id is not null
    ) q (topic_id, queue, at, straggler_id);
exception when lock_not_available then
    perform duewheel.raise_busy(format('topic "%s"', left(subscribe.topic, 127)));
end
$$;

-- Sets how often and after which intervals a group retries: on FIFO topics (ordered) one interval for all retries, on
-- other topics a list whose last interval serves for all further retries. The last call decides for the whole group.
-- max_retries null: as many retries as intervals, or on FIFO topics without end. Returns the previous settings, and
-- whether they differed.
-- role: consumer
create or replace function duewheel.set_retry_policy(
    topic text, consumer_group text, max_retries integer, intervals interval[], jitter real default 0,
    set_by text default null,
    -- Null: as the topic is.
    ordered boolean default null,
    now timestamptz default null,
    out changed boolean, out old_max_retries integer, out old_intervals interval[], out old_jitter real,
    out old_set_by text, out old_set_at timestamptz
)
language plpgsql set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic := duewheel.topic_by_name(set_retry_policy.topic);
    v_group duewheel.consumer_group;
    v_ordered constant boolean := v_topic.message_type = 'FIFO';
    -- A day is 24 hours.
    v_intervals constant interval[] := array(
        select duewheel.span(i) from unnest(set_retry_policy.intervals) with ordinality w (i, place) order by place);
    v_max_retries constant integer := coalesce(
        set_retry_policy.max_retries,
        case when v_ordered then 2147483647 else cardinality(set_retry_policy.intervals) end);
    v_problem text;
begin
    perform duewheel.clock_at(set_retry_policy.now);
    v_problem := case
        when set_retry_policy.ordered <> v_ordered then format(
            'topic "%s" is of type %s, whose retries are %s; the policy is for %s ones', v_topic.name,
            v_topic.message_type,
            case when v_ordered then 'ordered' else 'unordered' end,
            case when v_ordered then 'unordered' else 'ordered' end)
        when set_retry_policy.intervals is null or cardinality(set_retry_policy.intervals) not between 1 and 1000
            then format('a retry policy must have 1 to 1000 intervals; got %s',
                        coalesce(cardinality(set_retry_policy.intervals), 0))
        when exists (select from unnest(set_retry_policy.intervals) i
                     where i is null or i < interval '0' or i > interval '3660 days')
            then (select format('a retry interval must be 0 to 3660 days; got %s', coalesce(i::text, 'null'))
                  from unnest(set_retry_policy.intervals) i
                  where i is null or i < interval '0' or i > interval '3660 days' limit 1)
        when v_max_retries < 0 then format('max_retries must be 0 to 2147483647; got %s', v_max_retries)
        when set_retry_policy.jitter is null or not set_retry_policy.jitter between 0 and 1
            then format('jitter must be 0 to 1; got %s', coalesce(set_retry_policy.jitter::text, 'null'))
        when v_ordered and (cardinality(set_retry_policy.intervals) > 1 or set_retry_policy.jitter <> 0)
            then format('the policy of a FIFO topic must have one interval and no jitter; got %s intervals and '
                        'jitter %s', cardinality(set_retry_policy.intervals), set_retry_policy.jitter)
        -- A minute is the HTTP profile's.
        when v_ordered and set_retry_policy.intervals[1] not between interval '10 ms' and interval '30 s'
             and set_retry_policy.intervals[1] <> interval '1 min'
            then format('the retry interval of a FIFO topic must be 10 ms to 30 s, or the 1 minute of the HTTP '
                        'profile; got %s', set_retry_policy.intervals[1])
    end;
    if v_problem is not null then
        raise exception using
            errcode = 'DW010', message = v_problem,
            hint = 'Give a policy within these limits, ordered for FIFO topics and unordered for other topics.';
    end if;
    v_group := duewheel.group_by_name(set_retry_policy.consumer_group);
    if v_group.mode = 'broadcasting' then
        raise exception using
            errcode = 'DW010',
            message = format('group "%s" is broadcasting: its messages are not retried', v_group.name),
            hint = 'Leave the retry policy out, or use a clustering group.';
    end if;
    select * into v_group from duewheel.consumer_group g where g.name = v_group.name for no key update;
    if not found then
        -- It was deleted meanwhile.
        v_group := duewheel.group_by_name(set_retry_policy.consumer_group);
    end if;
    old_max_retries := case when v_ordered then v_group.ordered_max_retries else v_group.max_retries end;
    old_intervals := case when v_ordered then array[v_group.ordered_interval] else v_group.retry_intervals end;
    old_jitter := case when v_ordered then 0 else v_group.retry_jitter end;
    old_set_by := v_group.settings_by;
    old_set_at := v_group.settings_at;
    changed := (old_max_retries, old_intervals, old_jitter)
               <> (v_max_retries, v_intervals, set_retry_policy.jitter);
    update duewheel.consumer_group g
    set max_retries = case when v_ordered then g.max_retries else v_max_retries end,
        retry_intervals = case when v_ordered then g.retry_intervals else v_intervals end,
        retry_jitter = case when v_ordered then g.retry_jitter else set_retry_policy.jitter end,
        ordered_max_retries = case when v_ordered then v_max_retries else g.ordered_max_retries end,
        ordered_interval = case when v_ordered then v_intervals[1] else g.ordered_interval end,
        settings_by = coalesce(set_retry_policy.set_by, session_user),
        settings_at = coalesce(set_retry_policy.now, clock_timestamp())
    where g.name = v_group.name;
exception when lock_not_available then
    perform duewheel.raise_busy(format('group "%s"', left(set_retry_policy.consumer_group, 127)));
end
$$;
