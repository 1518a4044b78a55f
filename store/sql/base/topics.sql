-- Topics: made, changed, deleted, found.

-- A table of delay levels as spans of hours; whether a level is within max_delay is decided when a message asks for it.
create or replace function duewheel.checked_delay_levels(p_levels interval[]) returns interval[]
language plpgsql immutable as $$
declare
    v_problem text;
begin
    v_problem := case
        when array_ndims(p_levels) <> 1 or cardinality(p_levels) not between 1 and 64
            then format('delay_levels must be a list of 1 to 64 levels; got %s', cardinality(p_levels))
        when array_position(p_levels, null) is not null
            then format('level %s of delay_levels is null', array_position(p_levels, null))
        else (select format('level %s of delay_levels must be 0 to 3660 days; got %s', l.n, l.level)
              from unnest(p_levels) with ordinality l (level, n)
              where l.level < interval '0' or l.level > interval '3660 days' order by l.n limit 1)
    end;
    if v_problem is not null then
        raise exception using
            errcode = 'DW010', message = v_problem, hint = 'Give the delay of level 1, of level 2 and so on.';
    end if;
    return array(select duewheel.span(l.level) from unnest(p_levels) with ordinality l (level, n) order by l.n);
end
$$;

create or replace function duewheel.check_topic_settings(
    p_queues integer, p_max_delay interval, p_out_of_range text, p_granularity interval, p_retention interval,
    p_dead_letter_retention interval
) returns void
language plpgsql as $$
declare
    v_problem text;
begin
    v_problem := case
        when (p_queues between 1 and 64) is not true
            then format('queues must be 1 to 64; got %s', coalesce(p_queues::text, 'null'))
        when p_out_of_range is null or p_out_of_range not in ('reject', 'deliver')
            then format('out_of_range must be "reject" or "deliver"; got "%s"', left(p_out_of_range, 80))
        when p_granularity < interval '1 ms' or p_granularity > interval '1 hour'
            then format('granularity must be 1 ms to 1 hour; got %s', p_granularity)
        else (select format('%s must be more than 0 and at most 3660 days; got %s', s.name,
                            coalesce(s.given::text, 'null'))
              from (values ('max_delay', p_max_delay), ('retention', p_retention),
                           ('dead_letter_retention', p_dead_letter_retention)) s (name, given)
              where (s.given > interval '0' and s.given <= interval '3660 days') is not true limit 1)
    end;
    if v_problem is not null then
        raise exception using errcode = 'DW010', message = v_problem, hint = 'Give a value within these limits.';
    end if;
end
$$;

-- role: admin
create or replace function duewheel.topic_by_name(p_name text) returns duewheel.topic
language plpgsql stable as $$
declare
    v_topic duewheel.topic;
begin
    perform duewheel.require_home();
    -- With the collation of the index: p_name has that of the caller's column.
    select * into v_topic from duewheel.topic t where t.name = p_name collate "default" and t.deleted_at is null;
    if not found then
        raise exception using
            errcode = 'DW001',
            message = format('there is no topic "%s"', left(p_name, 127)),
            hint = 'Correct the name, or create the topic: duewheel topic create NAME, broker.create_topic(NAME) or '
                   'select duewheel.create_topic(NAME).';
    end if;
    return v_topic;
end
$$;

-- As topic_by_name, but refuses the retry and dead-letter topics of a group. Both belong to its subscription and are
-- deleted with it. A message on them is a delivery in progress; the check of recalls at COMMIT leaves it out, because
-- rewinds need that.
create or replace function duewheel.named_topic(p_name text) returns duewheel.topic
language plpgsql stable as $$
declare
    v_topic constant duewheel.topic := duewheel.topic_by_name(p_name);
begin
    if v_topic.parent_topic_id is not null then
        raise exception using
            errcode = 'DW003',
            message = format(
                'topic "%s" is of type %s and belongs to a group of topic "%s": it is not changed, deleted or '
                'subscribed to, and its messages are not recalled or rescheduled',
                v_topic.name, v_topic.message_type,
                (select t.name from duewheel.topic t where t.topic_id = v_topic.parent_topic_id)),
            hint = 'Give the topic that the messages were sent to, or delete the group.';
    end if;
    return v_topic;
end
$$;

-- The topic of a name, whose row is locked for p_lock until this transaction ends: "update" to delete it, "no key
-- update" to change it, "share" and "key share" to refer to it. While this waits for the lock, the topic may be deleted
-- and another one created under its name.
create or replace function duewheel.locked_topic(p_name text, p_lock text) returns duewheel.topic
language plpgsql as $$
declare
    v_topic duewheel.topic;
begin
    loop
        v_topic := duewheel.named_topic(p_name);
        execute format('select t.* from duewheel.topic t where t.topic_id = $1 and t.deleted_at is null for %s', p_lock)
        into v_topic using v_topic.topic_id;
        if v_topic.topic_id is not null then
            return v_topic;
        end if;
    end loop;
end
$$;

-- role: consumer
create or replace function duewheel.is_fifo(p_topic_id integer) returns boolean
language sql stable
begin atomic
    select t.message_type = 'FIFO' from duewheel.topic t where t.topic_id = p_topic_id;
end;

-- An unused topic id. The sequence wraps around: a freed id is used again after all others. The last ids are reserved
-- for topics that an administrator creates, however many groups there are, each with two topics.
create or replace function duewheel.free_topic_id(p_for_group boolean) returns integer
language plpgsql as $$
declare
    v_topic_id integer;
begin
    for v_tries in 1 .. 1048575 loop
        v_topic_id := nextval('duewheel.topic_topic_id_seq');
        if not (p_for_group and v_topic_id > 1000000)
           and not exists (select from duewheel.topic t where t.topic_id = v_topic_id) then
            return v_topic_id;
        end if;
    end loop;
    raise exception using
        errcode = 'DW010',
        message = 'all ids of topics are in use; the limit is 1048575 topics, and each group has two',
        hint = 'Delete groups or topics that are no longer used; upkeep frees their ids when it drops their messages.';
end
$$;

-- role: admin
create or replace function duewheel.create_topic(
    name text,
    message_type text default 'DELAY',
    queues integer default 4,
    max_delay interval default '24 hours',
    out_of_range text default 'reject',
    -- Null: 15 ms, or the topic's present value.
    granularity interval default null,
    retention interval default '72 hours',
    -- The delay of level 1, of level 2 and so on; null for RocketMQ's eighteen.
    delay_levels interval[] default null,
    dead_letter_retention interval default '30 days'
) returns void
language plpgsql set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic;
begin
    perform duewheel.require_home();
    if create_topic.name is null or create_topic.name !~ '^[A-Za-z0-9_.-]{1,127}$' then
        raise exception using
            errcode = 'DW010',
            message = format('"%s" is not a topic name: a name has 1 to 127 letters, digits, dots, hyphens or '
                             'underscores', left(create_topic.name, 200)),
            hint = 'Choose another name.';
    end if;
    if create_topic.message_type is null or create_topic.message_type not in ('NORMAL', 'DELAY', 'FIFO') then
        raise exception using
            errcode = 'DW010',
            message = format('message_type is "%s"; a topic is of type DELAY, NORMAL or FIFO',
                             left(create_topic.message_type, 80)),
            hint = 'Choose DELAY for messages with a delivery time, NORMAL for messages without one, FIFO for messages '
                   'without one that are consumed in order within their message group.';
    end if;
    max_delay := duewheel.span(max_delay);
    retention := duewheel.span(retention);
    dead_letter_retention := duewheel.span(dead_letter_retention);
    perform duewheel.check_topic_settings(
        queues, max_delay, out_of_range, granularity, retention, dead_letter_retention);
    delay_levels := duewheel.checked_delay_levels(coalesce(
        delay_levels,
        '{1 s, 5 s, 10 s, 30 s, 1 min, 2 min, 3 min, 4 min, 5 min, 6 min, 7 min, 8 min, 9 min, 10 min, 20 min, 30 min,'
        '1 hour, 2 hours}'));
    -- Made again and again, a topic that is there takes no id.
    select * into v_topic from duewheel.topic t where t.name = create_topic.name and t.deleted_at is null;
    if not found then
        perform pg_advisory_xact_lock(duewheel.key_lock_key(0, '%TOPIC%' || create_topic.name));
        insert into duewheel.topic
            (topic_id, name, message_type, queues, max_delay, out_of_range, granularity, retention, delay_levels,
             dead_letter_retention)
        overriding system value
        select duewheel.free_topic_id(false), create_topic.name, create_topic.message_type, create_topic.queues,
               create_topic.max_delay, create_topic.out_of_range, coalesce(create_topic.granularity, interval '15 ms'),
               create_topic.retention, create_topic.delay_levels, create_topic.dead_letter_retention
        where not exists (select from duewheel.topic t where t.name = create_topic.name)
        on conflict on constraint topic_name_key do nothing;
        if found then
            return;
        end if;
        v_topic := duewheel.topic_by_name(create_topic.name);
    end if;
    if (v_topic.message_type, v_topic.queues::integer, v_topic.max_delay, v_topic.out_of_range, v_topic.granularity,
        v_topic.retention, v_topic.delay_levels, v_topic.dead_letter_retention)
       is distinct from
       (create_topic.message_type, create_topic.queues, create_topic.max_delay, create_topic.out_of_range,
        coalesce(create_topic.granularity, v_topic.granularity), create_topic.retention,
        create_topic.delay_levels, create_topic.dead_letter_retention) then
        raise exception using
            errcode = 'DW002',
            message = format('topic "%s" exists with other settings: message_type %s, queues %s, max_delay %s, '
                             'out_of_range %s, granularity %s, retention %s, delay_levels %s, dead_letter_retention %s',
                             v_topic.name, v_topic.message_type, v_topic.queues, v_topic.max_delay,
                             v_topic.out_of_range, v_topic.granularity,
                             v_topic.retention, v_topic.delay_levels, v_topic.dead_letter_retention),
            hint = 'Change it with update_topic, or create a topic of another name.';
    end if;
exception when lock_not_available then
    perform duewheel.raise_busy(format('topic "%s"', left(create_topic.name, 127)));
end
$$;

-- role: admin
create or replace function duewheel.update_topic(
    name text,
    max_delay interval default null,
    out_of_range text default null,
    granularity interval default null,
    retention interval default null,
    delay_levels interval[] default null,
    dead_letter_retention interval default null
) returns void
language plpgsql set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic;
begin
    -- The changes of a call at the same time are read after its commit, and stay.
    v_topic := duewheel.locked_topic(update_topic.name, 'no key update');
    v_topic.max_delay := coalesce(duewheel.span(update_topic.max_delay), v_topic.max_delay);
    v_topic.out_of_range := coalesce(update_topic.out_of_range, v_topic.out_of_range);
    v_topic.granularity := coalesce(update_topic.granularity, v_topic.granularity);
    v_topic.retention := coalesce(duewheel.span(update_topic.retention), v_topic.retention);
    v_topic.dead_letter_retention := coalesce(
        duewheel.span(update_topic.dead_letter_retention), v_topic.dead_letter_retention);
    perform duewheel.check_topic_settings(v_topic.queues, v_topic.max_delay, v_topic.out_of_range,
                                          v_topic.granularity, v_topic.retention, v_topic.dead_letter_retention);
    if update_topic.delay_levels is not null then
        v_topic.delay_levels := duewheel.checked_delay_levels(update_topic.delay_levels);
    end if;
    update duewheel.topic t
    set max_delay = v_topic.max_delay, out_of_range = v_topic.out_of_range,
        granularity = v_topic.granularity, retention = v_topic.retention, delay_levels = v_topic.delay_levels,
        dead_letter_retention = v_topic.dead_letter_retention
    where t.topic_id = v_topic.topic_id;
    -- The topics of groups. A transaction that subscribes now has locked the topic's row, or reads it after this
    -- commit.
    update duewheel.topic t
    set retention = case t.message_type when 'DEAD_LETTER' then v_topic.dead_letter_retention
                                        else v_topic.retention end
    where t.parent_topic_id = v_topic.topic_id and t.deleted_at is null;
exception when lock_not_available then
    perform duewheel.raise_busy(format('topic "%s"', left(update_topic.name, 127)));
end
$$;

-- Deleted topics accept no more messages and are no longer released; their schedules are deleted with them, their rows
-- with their slots.
-- role: admin
create or replace function duewheel.delete_topic(name text) returns void
language plpgsql set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic;
begin
    -- Waits for subscribers: their retry topics are seen, and deleted, only after they have committed them.
    v_topic := duewheel.locked_topic(delete_topic.name, 'update');
    update duewheel.topic t
    set name = format('%s~deleted~%s', t.name, t.topic_id), deleted_at = clock_timestamp()
    where t.topic_id = v_topic.topic_id or (t.parent_topic_id = v_topic.topic_id and t.deleted_at is null);
    delete from duewheel.schedule s where s.topic_id = v_topic.topic_id;
exception when lock_not_available then
    perform duewheel.raise_busy(format('topic "%s"', left(delete_topic.name, 127)));
end
$$;

-- Frees the ids of topics that were deleted at least a day ago, because transactions that saw them have ended by then.
-- Their subscriptions go at once, the topics when no slot holds a message of theirs any more. Says whether some are
-- left: it deletes a portion of rows, and ends when p_until is over.
create or replace function duewheel.forget_topics(p_until timestamptz, p_now timestamptz) returns boolean
language plpgsql set plan_cache_mode = force_generic_plan set enable_sort = on as $$
declare
    v_subscription duewheel.subscription;
    v_topic_ids integer[];
    v_room bigint := duewheel.portion();
    v_table text;
    v_count bigint;
begin
    for v_subscription in
        select s.* from duewheel.topic t join duewheel.subscription s on s.topic_id = t.topic_id
        where t.deleted_at < p_now - interval '1 day' order by s.group_id, s.topic_id limit 1000
        for update of s skip locked
    loop
        -- Upkeep waits for no group that is being made.
        continue when not pg_try_advisory_xact_lock(duewheel.group_lock_key(v_subscription.group_name));
        perform duewheel.remove_subscription(v_subscription.group_id);
        if clock_timestamp() >= p_until then
            return true;
        end if;
    end loop;
    -- In random order, so that topics that still have messages cannot starve the rest.
    v_topic_ids := array(
        select d.topic_id
        from (
            select t.topic_id from duewheel.topic t
            where t.deleted_at < p_now - interval '1 day'
              and not exists (select from duewheel.topic child where child.parent_topic_id = t.topic_id)
              and not exists (select from duewheel.subscription s where s.topic_id = t.topic_id)
              and not exists (select from duewheel.subscription s where s.retry_topic_id = t.topic_id)
              and not exists (select from duewheel.subscription s where s.dead_letter_topic_id = t.topic_id)
              and not exists (select from duewheel.lease l where l.topic_id = t.topic_id)
            order by random() limit 100
        ) d
        -- A lookup for each: an anti-join would read all waiting messages.
        where (select true from duewheel.any_message m where m.topic_id = d.topic_id limit 1) is null);
    if cardinality(v_topic_ids) = 0 then
        return false;
    end if;
    foreach v_table in array array[
        'tick', 'straggler', 'held_back', 'recall', 'bulk_recall', 'early_answer', 'moved_id', 'key_mark',
        'idempotency', 'published_batch', 'redrive', 'lease', 'lease_event', 'lease_extension', 'lease_answer',
        'lease_message', 'fifo_backlog', 'topic']
    loop
        execute format(
            'delete from duewheel.%1$I d where d.ctid = any (array(
                 select o.ctid from duewheel.%1$I o where o.topic_id = any ($1) limit $2))', v_table)
        using v_topic_ids, v_room;
        get diagnostics v_count = row_count;
        v_room := v_room - v_count;
        if v_room = 0 then
            return true;
        end if;
    end loop;
    return false;
end
$$;
