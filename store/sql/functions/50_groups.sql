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
            hint = 'A group is made when its first consumer subscribes: broker.consumer(topic, group).';
    end if;
    return v_group;
end
$$;

-- Makes the group and its subscription where missing, with the topics for its retries and dead letters, and puts it at its
-- start: "earliest" is the oldest message kept, "latest" what is released from now on, start_at what is due from an
-- instant on or came, later than its own, after it. Where the subscription exists, start changes nothing. mode "broadcasting" makes a group row for the instance
-- alone, named group/instance, which reads everything by itself and has no retries; a name is of one mode only.
create or replace function duewheel.subscribe(
    p_topic text, p_group text, p_start text default 'earliest', p_start_at timestamptz default null,
    p_now timestamptz default null, p_mode text default 'clustering', p_instance text default null,
    out group_id integer, out topic_id integer, out retry_topic_id integer, out dead_letter_topic_id integer,
    -- The subscription was made by this call.
    out made boolean
)
language plpgsql as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic := duewheel.topic_by_name(p_topic);
    v_broadcasting constant boolean := p_mode is not distinct from 'broadcasting';
    v_name constant text := case when v_broadcasting then p_group || '/' || p_instance else p_group end;
    v_now constant timestamptz := coalesce(p_now, clock_timestamp());
    -- The position is exclusive.
    v_start_at timestamptz := coalesce(p_start_at - interval '1 microsecond', '-infinity');
    v_seq bigint := 9223372036854775807;
    v_straggler_id bigint := 0;
begin
    topic_id := v_topic.topic_id;
    made := false;
    select s.group_id, s.retry_topic_id, s.dead_letter_topic_id into group_id, retry_topic_id, dead_letter_topic_id
    from duewheel.subscription s join duewheel.consumer_group g on g.group_id = s.group_id
    where g.name = v_name and s.topic_id = v_topic.topic_id;
    if found then
        if v_broadcasting then
            -- It is back: upkeep does not forget it now.
            update duewheel.subscription s set seen_at = v_now
            where s.group_id = subscribe.group_id and s.topic_id = v_topic.topic_id;
        end if;
        return;
    end if;
    if p_mode is null or p_mode not in ('clustering', 'broadcasting') then
        raise exception using
            errcode = 'DW010',
            message = format('mode is "%s"; it is "clustering" or "broadcasting"', left(p_mode, 80)),
            hint = 'Give one of them.';
    end if;
    if p_group is null or p_group !~ '^[A-Za-z0-9_.-]{1,127}$' then
        raise exception using
            errcode = 'DW010',
            message = format('"%s" is not a group name: a name has 1 to 127 letters, digits, dots, hyphens or underscores',
                             left(p_group, 200)),
            hint = 'Choose another name.';
    end if;
    if v_broadcasting and (p_instance is null or p_instance !~ '^[^[:cntrl:]]{1,127}$') then
        raise exception using
            errcode = 'DW010',
            message = format('"%s" cannot name a broadcasting instance: a name has 1 to 127 characters, no control '
                             'characters', left(p_instance, 200)),
            hint = 'Give each instance a name that stays the same when it starts again.';
    end if;
    if p_start is null or p_start not in ('earliest', 'latest') then
        raise exception using
            errcode = 'DW010',
            message = format('start is "%s"; it is "earliest", "latest" or an instant', left(p_start, 80)),
            hint = 'Give one of them.';
    end if;
    perform duewheel.require_read_committed();
    -- One lock for all topics: the group's mode is decided under it.
    perform pg_advisory_xact_lock(duewheel.key_lock_key(0, '%GROUP%' || p_group));
    select s.group_id, s.retry_topic_id, s.dead_letter_topic_id into group_id, retry_topic_id, dead_letter_topic_id
    from duewheel.subscription s join duewheel.consumer_group g on g.group_id = s.group_id
    where g.name = v_name and s.topic_id = v_topic.topic_id;
    if found then
        return;
    end if;
    if exists (
        select from duewheel.consumer_group g
        join duewheel.subscription s on s.group_id = g.group_id
        join duewheel.topic t on t.topic_id = s.topic_id and t.deleted_at is null
        where case when v_broadcasting then g.name = p_group else g.broadcast_group = p_group end
    ) then
        raise exception using
            errcode = 'DW010',
            message = format('group "%s" is %s; this consumer is %s', p_group,
                             case when v_broadcasting then 'clustering' else 'broadcasting' end, p_mode),
            hint = 'All consumers of a group have one mode. Give the consumer the mode of its group, or another group.';
    end if;
    insert into duewheel.consumer_group (name, mode, broadcast_group, instance)
    values (v_name, p_mode, case when v_broadcasting then p_group end, case when v_broadcasting then p_instance end)
    on conflict do nothing;
    group_id := (duewheel.group_by_name(v_name)).group_id;
    if not v_broadcasting then
        insert into duewheel.topic
            (name, message_type, queues, max_delay, out_of_range, granularity, retention, delay_levels, parent_topic_id)
        values ('%RETRY%' || p_group || '%' || p_topic, 'RETRY', 1, v_topic.max_delay, v_topic.out_of_range,
                v_topic.granularity, v_topic.retention, v_topic.delay_levels, topic_id)
        returning topic.topic_id into retry_topic_id;
        insert into duewheel.topic
            (name, message_type, queues, max_delay, out_of_range, granularity, retention, delay_levels, parent_topic_id)
        values ('%DLQ%' || p_group || '%' || p_topic, 'DEAD_LETTER', 1, v_topic.max_delay, v_topic.out_of_range,
                v_topic.granularity, v_topic.retention, v_topic.delay_levels, topic_id)
        returning topic.topic_id into dead_letter_topic_id;
    end if;
    insert into duewheel.subscription (group_id, topic_id, retry_topic_id, dead_letter_topic_id, seen_at)
    values (group_id, topic_id, retry_topic_id, dead_letter_topic_id, case when v_broadcasting then v_now end);
    made := true;
    if p_start = 'latest' or p_start_at is not null then
        -- After the lock no tick of this topic is on its way.
        perform pg_advisory_xact_lock_shared(duewheel.tick_lock_class(), topic_id);
        select case when p_start_at is null then r.hi else v_start_at end, r.straggler_id into v_start_at, v_straggler_id
        from duewheel.released_before(v_topic.topic_id, p_start_at) r;
    end if;
    insert into duewheel.lease
        (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
         message_count, leased_at, expires_at, revived_to)
    select v_topic.topic_id, group_id, q, 0, 0, v_start_at, v_seq, v_start_at, v_seq, v_straggler_id, v_straggler_id,
           0, v_now, v_now, '-infinity'::timestamptz
    from generate_series(0, v_topic.queues - 1) q
    union all
    select retry_topic_id, group_id, 0, 0, 0, '-infinity'::timestamptz, v_seq, '-infinity'::timestamptz, v_seq, 0, 0,
           0, v_now, v_now, '-infinity'::timestamptz
    where retry_topic_id is not null;
end
$$;

-- Sets how often and after which waits a group retries: of FIFO topics (ordered) one interval for all retries, of the
-- others a list whose last interval serves for all further ones. The call made last decides for the whole group. max_retries
-- null: as many as there are intervals, or for FIFO topics without end. Answers what was set before, and whether that
-- was something else.
create or replace function duewheel.set_retry_policy(
    topic text, consumer_group text, max_retries integer, intervals interval[], jitter real default 0,
    set_by text default null,
    -- Null: as the topic is.
    ordered boolean default null,
    now timestamptz default null,
    out changed boolean, out old_max_retries integer, out old_intervals interval[], out old_jitter real,
    out old_set_by text, out old_set_at timestamptz
)
language plpgsql as $$
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
    v_problem := case
        when set_retry_policy.ordered <> v_ordered then format(
            'topic "%s" is of type %s, whose retries are %s; the policy is for %s ones', v_topic.name, v_topic.message_type,
            case when v_ordered then 'ordered' else 'unordered' end,
            case when v_ordered then 'unordered' else 'ordered' end)
        when set_retry_policy.intervals is null or cardinality(set_retry_policy.intervals) not between 1 and 1000
            then format('there are %s retry intervals; the limit is 1 to 1000',
                        coalesce(cardinality(set_retry_policy.intervals), 0))
        when exists (select from unnest(set_retry_policy.intervals) i
                     where i is null or i < interval '0' or i > interval '3660 days')
            then 'a retry interval is not within 0 to 3660 days'
        when v_max_retries < 0 then format('max_retries is %s; the limit is 0 to 2147483647', v_max_retries)
        when set_retry_policy.jitter is null or not set_retry_policy.jitter between 0 and 1
            then format('jitter is %s; the limit is 0 to 1', set_retry_policy.jitter)
        when v_ordered and (cardinality(set_retry_policy.intervals) > 1 or set_retry_policy.jitter <> 0)
            then 'a FIFO topic has one retry interval, without jitter'
        -- A minute is the HTTP profile's.
        when v_ordered and set_retry_policy.intervals[1] not between interval '10 ms' and interval '30 s'
             and set_retry_policy.intervals[1] <> interval '1 min'
            then format('the retry interval of a FIFO topic is %s; the limit is 10 ms to 30 s, or the 1 minute of the '
                        'HTTP profile', set_retry_policy.intervals[1])
    end;
    if v_problem is not null then
        raise exception using
            errcode = 'DW010', message = v_problem, hint = 'Give a policy within the limits and for this kind of topic.';
    end if;
    v_group := duewheel.group_by_name(set_retry_policy.consumer_group);
    if v_group.mode = 'broadcasting' then
        raise exception using
            errcode = 'DW010',
            message = format('"%s" is broadcasting: what fails there is not retried', v_group.name),
            hint = 'Leave the retry policy out, or use a clustering group.';
    end if;
    select * into v_group from duewheel.consumer_group g where g.group_id = v_group.group_id for update;
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
    where g.group_id = v_group.group_id;
end
$$;

-- The queues a subscription reads, with where it stands in each and how far its topic is released. Retries come first.
create or replace function duewheel.positions(p_group_id integer, p_topic_id integer)
returns table (
    ordinal integer, topic_id integer, queue smallint, n bigint, to_at timestamptz, to_seq bigint, straggler_to bigint,
    revived_to timestamptz, hi timestamptz, queue_hi timestamptz
)
language sql stable
begin atomic
    select source.ordinal, source.topic_id, source.queue, l.n, l.to_at, l.to_seq, l.straggler_to, l.revived_to, t.hi,
           t.queue_hi[source.queue + 1]
    from (
        select 0, s.retry_topic_id, 0::smallint from duewheel.subscription s
        where s.group_id = p_group_id and s.topic_id = p_topic_id and s.retry_topic_id is not null
        union all
        select q + 1, p_topic_id, q::smallint
        from generate_series(0, (select t.queues - 1 from duewheel.topic t where t.topic_id = p_topic_id)) q
    ) source (ordinal, topic_id, queue)
    cross join lateral (
        select l.n, l.to_at, l.to_seq, l.straggler_to, l.revived_to from duewheel.lease l
        where l.topic_id = source.topic_id and l.group_id = p_group_id and l.queue = source.queue
        order by l.n desc limit 1
    ) l
    left join lateral (
        select t.hi, t.queue_hi from duewheel.tick t
        where t.topic_id = source.topic_id order by t.hi desc, t.tick_id desc limit 1
    ) t on true;
end;

-- How far a group has read a topic, by the queue that is furthest behind, and how far the topic is released. A function of
-- its own, as a view calls functions with the rights of whoever reads it.
create or replace function duewheel.progress(
    p_group_id integer, p_topic_id integer, out read_to timestamptz, out released_to timestamptz
)
language sql stable
begin atomic
    -- Where nothing was found due since, a queue is read as far as its topic is released.
    select nullif(min(case when (p.queue_hi, 9223372036854775807) > (p.to_at, p.to_seq) then p.to_at
                           else greatest(p.to_at, p.hi) end), '-infinity'),
           max(p.hi)
    from duewheel.positions(p_group_id, p_topic_id) p where p.ordinal > 0;
end;

-- Forgets broadcasting instances that have not asked for longer than their topic's retention: their position speaks of
-- nothing that is kept. seen_at is up to an hour behind.
create or replace function duewheel.forget_instances(p_now timestamptz) returns void
language plpgsql as $$
declare
    v_group_id integer;
    v_topic_id integer;
begin
    for v_group_id, v_topic_id in
        delete from duewheel.subscription s using duewheel.topic t
        where t.topic_id = s.topic_id and s.seen_at < p_now - t.retention - interval '1 hour'
        returning s.group_id, s.topic_id
    loop
        delete from duewheel.lease_event e where e.group_id = v_group_id and e.topic_id = v_topic_id;
        delete from duewheel.lease_answer a where a.group_id = v_group_id and a.topic_id = v_topic_id;
        delete from duewheel.lease_message m where m.group_id = v_group_id and m.topic_id = v_topic_id;
        delete from duewheel.fifo_backlog b where b.group_id = v_group_id and b.topic_id = v_topic_id;
        delete from duewheel.lease l where l.group_id = v_group_id and l.topic_id = v_topic_id;
        delete from duewheel.consumer_group g
        where g.group_id = v_group_id and not exists (select from duewheel.subscription s where s.group_id = g.group_id);
    end loop;
end
$$;
