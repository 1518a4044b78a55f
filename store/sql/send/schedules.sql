-- Schedules. The caller, who knows cron and time zones, computes when a schedule occurs next; these functions send each
-- occurrence once. A wheel that sends names the next_at from which it computed. One transaction that holds the
-- schedule's row compares it, sends, and writes the next next_at.

create or replace function duewheel.schedule_by_name(p_name text) returns duewheel.schedule
language plpgsql set lock_timeout = '10s' as $$
declare
    v_schedule duewheel.schedule;
begin
    perform duewheel.require_read_committed();
    select * into v_schedule from duewheel.schedule s where s.name = p_name for update;
    if not found then
        raise exception using
            errcode = 'DW018',
            message = format('there is no schedule "%s"', left(p_name, 127)),
            hint = 'Correct the name, or create the schedule: duewheel schedule list shows all names.';
    end if;
    return v_schedule;
exception when lock_not_available then
    perform duewheel.raise_busy(format('schedule "%s"', left(p_name, 127)));
end
$$;

-- The properties of the message of one occurrence: the schedule's, its name and the occurrence in UTC.
create or replace function duewheel.occurrence_properties(p_name text, p_properties jsonb, p_occurs_at timestamptz)
returns jsonb
language sql stable parallel safe
return coalesce(p_properties, '{}') || jsonb_build_object(
    'schedule', p_name,
    'occurrence', to_char(
        p_occurs_at at time zone 'UTC',
        case when date_trunc('second', p_occurs_at) = p_occurs_at
            then 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"' else 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"' end));

-- The idempotency key of an occurrence, which is sent once even if the clock was ahead, or the schedule paused.
create or replace function duewheel.occurrence_key(p_schedule_id integer, p_occurs_at timestamptz) returns text
language sql immutable
return format('duewheel.schedule/%s/%s', p_schedule_id, duewheel.unix_micros(p_occurs_at));

-- Creates a schedule; creating the same schedule again changes nothing. Returns whether it is new.
-- role: admin
create or replace function duewheel.create_schedule(
    name text,
    topic text,
    body bytea,
    cron text,
    every interval,
    timezone text,
    start_at timestamptz,
    misfire text,
    key text,
    tag text,
    properties jsonb,
    anchor_at timestamptz,
    next_at timestamptz,
    now timestamptz default null,
    out schedule_id integer,
    out created boolean
)
language plpgsql set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := duewheel.clock_at(create_schedule.now);
    v_topic duewheel.topic;
    v_old duewheel.schedule;
    v_old_topic text;
    v_problem text;
begin
    perform duewheel.require_read_committed();
    every := duewheel.span(every);
    v_problem := case
        when create_schedule.name is null or create_schedule.name !~ '^[A-Za-z0-9_.-]{1,127}$'
            then format('"%s" is not a name of a schedule: a name has 1 to 127 letters, digits, dots, '
                        'hyphens or underscores', left(create_schedule.name, 200))
        when (create_schedule.cron is null) = (every is null)
            then format('exactly one of cron and every must be given; got cron %s and every %s',
                        coalesce(left(create_schedule.cron, 80), 'null'), coalesce(every::text, 'null'))
        when every < interval '1 second' or every > interval '3660 days'
            then format('every must be 1 second to 3660 days; got %s', every)
        when create_schedule.start_at > v_now + interval '3660 days'
            then format('start_at must be at most 3660 days from now; got %s', create_schedule.start_at)
        when create_schedule.misfire is null or create_schedule.misfire not in ('skip', 'once', 'all')
            then format('misfire must be "skip", "once" or "all"; got "%s"', left(create_schedule.misfire, 80))
        when num_nonnulls(create_schedule.timezone, create_schedule.anchor_at) < 2
            then format('timezone and anchor_at must be given; got timezone %s and anchor_at %s',
                        coalesce(left(create_schedule.timezone, 80), 'null'),
                        coalesce(create_schedule.anchor_at::text, 'null'))
        when create_schedule.properties ?| array['schedule', 'occurrence']
            then 'the properties "schedule" and "occurrence" must not be given: each occurrence sets them'
    end;
    if v_problem is not null then
        raise exception using errcode = 'DW010', message = v_problem,
                        hint = 'Correct it, and call create_schedule again.';
    end if;
    -- Keeps delete_topic away until this is committed.
    v_topic := duewheel.locked_topic(create_schedule.topic, 'key share');
    if v_topic.message_type <> 'DELAY' then
        raise exception using
            errcode = 'DW003',
            message = format('topic "%s" is of type %s; a schedule sends to a topic of type DELAY',
                             v_topic.name, v_topic.message_type),
            hint = 'Choose or create a topic of type DELAY.';
    end if;
    perform duewheel.check_message(
        create_schedule.body, create_schedule.key, create_schedule.tag,
        duewheel.occurrence_properties(create_schedule.name, create_schedule.properties,
                                       '2026-01-01 00:00:00.000001+00'),
        create_schedule.name, null);

    insert into duewheel.schedule
        (name, topic_id, cron, every, timezone, start_at, anchor_at, misfire, body, key, tag, properties, next_at,
         created_at)
    -- Creating an existing schedule again takes no id.
    select create_schedule.name, v_topic.topic_id, create_schedule.cron, create_schedule.every,
           create_schedule.timezone, create_schedule.start_at, create_schedule.anchor_at, create_schedule.misfire,
           create_schedule.body, create_schedule.key, create_schedule.tag, create_schedule.properties,
           create_schedule.next_at, v_now
    where not exists (select from duewheel.schedule s where s.name = create_schedule.name)
    on conflict on constraint schedule_name_key do nothing
    returning schedule.schedule_id into schedule_id;
    created := found;
    if created then
        return;
    end if;

    v_old := duewheel.schedule_by_name(create_schedule.name);
    select t.name into v_old_topic from duewheel.topic t where t.topic_id = v_old.topic_id;
    select string_agg(format('%s %s', d.name, coalesce(left(d.old, 200), 'not given')), ', ' order by d.place)
    into v_problem
    from (values
        (1, 'topic', v_old_topic, v_topic.name),
        (2, 'cron', v_old.cron, create_schedule.cron),
        (3, 'every', v_old.every::text, create_schedule.every::text),
        (4, 'timezone', v_old.timezone, create_schedule.timezone),
        (5, 'start_at', v_old.start_at::text, create_schedule.start_at::text),
        (6, 'misfire', v_old.misfire, create_schedule.misfire),
        (7, 'another', case when v_old.body <> create_schedule.body then 'body' end, null),
        (8, 'key', v_old.key, create_schedule.key),
        (9, 'tag', v_old.tag, create_schedule.tag),
        (10, 'properties', v_old.properties::text, create_schedule.properties::text)) d (place, name, old, given)
    where d.old is distinct from d.given;
    if v_problem is not null then
        raise exception using
            errcode = 'DW019',
            message = format('schedule "%s" exists with other settings: %s', v_old.name, v_problem),
            hint = 'Delete it first, or choose another name.';
    end if;
    schedule_id := v_old.schedule_id;
exception when lock_not_available then
    perform duewheel.raise_busy(format('topic "%s"', left(create_schedule.topic, 127)));
end
$$;

-- The schedules of topics, by name. next_at is the next due occurrence, whether it was sent ahead or not; last_at is
-- the newest occurrence that has been due.
-- role: admin
create or replace function duewheel.schedules(now timestamptz default null)
returns table (
    name text, topic text, cron text, every interval, timezone text, start_at timestamptz, misfire text, body bytea,
    key text, tag text, properties jsonb, paused_at timestamptz, next_at timestamptz, last_at timestamptz,
    last_message_id text, created_at timestamptz
)
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := duewheel.clock_at(schedules.now);
begin
    perform duewheel.require_home();
    return query
    select s.name, t.name, s.cron, s.every, s.timezone, s.start_at, s.misfire, s.body, s.key, s.tag, s.properties,
           s.paused_at,
           case when s.paused_at is null then coalesce(
               (select min(a.occurs_at) from duewheel.schedule_ahead a
                where a.schedule_id = s.schedule_id and a.occurs_at > v_now), s.next_at) end,
           last.occurs_at, last.message_id, s.created_at
    from duewheel.schedule s
    join duewheel.topic t on t.topic_id = s.topic_id and t.deleted_at is null
    left join lateral (
        select a.occurs_at, a.message_id from duewheel.schedule_ahead a
        where a.schedule_id = s.schedule_id and a.occurs_at <= v_now order by a.occurs_at desc limit 1) last on true
    order by s.name;
end
$$;

-- The schedules to send for soon: their next occurrence is nearer than their reach and p_notice together, and they are
-- not in p_but. The reach is how far ahead an occurrence may be sent: p_horizon, or the topic's max_delay if that is
-- less. restarts_at: the schedule was sent while the clock was ahead, and continues from then; each occurrence is still
-- sent once.
-- role: admin
create or replace function duewheel.due_schedules(
    p_horizon interval, p_notice interval, p_limit integer, p_topics text[] default null,
    p_schedule_id integer default null, p_now timestamptz default null, p_but integer[] default '{}'
) returns table (
    schedule_id integer, generation integer, name text, cron text, every interval, timezone text,
    anchor_at timestamptz,
    misfire text, next_at timestamptz, reach interval, now_at timestamptz, restarts_at timestamptz
)
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := duewheel.clock_at(p_now);
    v_ahead constant timestamptz := v_now + interval '1 minute';
begin
    perform duewheel.require_home();
    return query
    select s.schedule_id, s.generation, s.name, s.cron, s.every, s.timezone, s.anchor_at, s.misfire, s.next_at,
           least(p_horizon, t.max_delay), v_now,
           case when coalesce(s.advanced_at, s.created_at) > v_ahead then greatest(v_now, s.start_at) end
    from duewheel.schedule s
    join duewheel.topic t on t.topic_id = s.topic_id and t.deleted_at is null
    where s.paused_at is null
      and (s.next_at <= v_now + p_horizon + p_notice and s.next_at <= v_now + least(p_horizon, t.max_delay) + p_notice
           or coalesce(s.advanced_at, s.created_at) > v_ahead and s.next_at > v_now)
      and (p_topics is null or t.name = any (p_topics))
      and (p_schedule_id is null or s.schedule_id = p_schedule_id) and s.schedule_id <> all (p_but)
    order by s.advanced_at nulls first, s.next_at
    limit p_limit;
end
$$;

-- Sends occurrences of a schedule and writes the next one. Returns how many were sent. Returns null, and does nothing,
-- if another session holds the schedule, if it has changed since the caller read it, or if the occurrences are farther
-- ahead than the topic allows.
-- role: admin
create or replace function duewheel.advance_schedule(
    p_schedule_id integer, p_generation integer, p_seen_next_at timestamptz, p_occurrences timestamptz[],
    p_next_at timestamptz, p_now timestamptz default null
) returns integer
language plpgsql as $$
declare
    v_schedule duewheel.schedule;
    v_topic record;
    v_now timestamptz;
    v_occurs_at timestamptz;
    v_receipt duewheel.send_receipt;
begin
    perform duewheel.clock_at(p_now);
    perform duewheel.require_read_committed();
    select s.* into v_schedule from duewheel.schedule s
    where s.schedule_id = p_schedule_id and s.generation = p_generation and s.next_at = p_seen_next_at
      and s.paused_at is null
    -- Another session changes the schedule, or sends; its open transaction holds up no other schedule.
    for update skip locked;
    if not found then
        return null;
    end if;
    select t.name, t.max_delay into v_topic from duewheel.topic t
    where t.topic_id = v_schedule.topic_id and t.deleted_at is null;
    if not found then
        return null;
    end if;
    -- The transaction id is taken before the clock is read, as for every send.
    perform pg_current_xact_id();
    v_now := coalesce(p_now, clock_timestamp());
    if p_occurrences[cardinality(p_occurrences)] > v_now + v_topic.max_delay then
        return null;
    end if;
    foreach v_occurs_at in array p_occurrences loop
        -- One message group, so one queue: the occurrences of a schedule are read in their order.
        v_receipt := duewheel.send(
            v_topic.name, v_schedule.body, deliver_at => v_occurs_at, key => v_schedule.key, tag => v_schedule.tag,
            properties => duewheel.occurrence_properties(v_schedule.name, v_schedule.properties, v_occurs_at),
            message_group => v_schedule.name,
            idempotency_key => duewheel.occurrence_key(p_schedule_id, v_occurs_at),
            now => p_now);
        insert into duewheel.schedule_ahead (schedule_id, occurs_at, message_id)
        values (p_schedule_id, v_occurs_at, v_receipt.message_id)
        on conflict on constraint schedule_ahead_pkey do nothing;
    end loop;
    delete from duewheel.schedule_ahead a
    where a.schedule_id = p_schedule_id and a.occurs_at < (
        select max(newest.occurs_at) from duewheel.schedule_ahead newest
        where newest.schedule_id = p_schedule_id and newest.occurs_at <= v_now);
    update duewheel.schedule s
    set next_at = p_next_at, advanced_at = v_now
    where s.schedule_id = p_schedule_id;
    return cardinality(p_occurrences);
end
$$;

-- Recalls the occurrences that were sent ahead; due occurrences are delivered. A resume may send recalled ones again.
create or replace function duewheel.recall_ahead(p_schedule_id integer, p_now timestamptz) returns integer
language plpgsql set lock_timeout = '10s' as $$
declare
    v_ahead duewheel.schedule_ahead;
    v_recalled integer := 0;
begin
    for v_ahead in
        select * from duewheel.schedule_ahead a
        where a.schedule_id = p_schedule_id and a.occurs_at > coalesce(p_now, clock_timestamp())
        order by a.occurs_at desc
    loop
        if (duewheel.recall(v_ahead.message_id, p_now)).outcome = 'recalled' then
            delete from duewheel.schedule_ahead a
            where a.schedule_id = p_schedule_id and a.occurs_at = v_ahead.occurs_at;
            delete from duewheel.idempotency i
            where i.topic_id = (duewheel.parse_message_id(v_ahead.message_id)).topic_id
              and i.idempotency_key = duewheel.occurrence_key(p_schedule_id, v_ahead.occurs_at) collate "default";
            v_recalled := v_recalled + 1;
        end if;
    end loop;
    return v_recalled;
exception when lock_not_available then
    perform duewheel.raise_busy(format('an occurrence of schedule "%s"', (
        select s.name from duewheel.schedule s where s.schedule_id = p_schedule_id)));
end
$$;

-- Stops a schedule until it is resumed. Returns how many occurrences that were sent ahead it has recalled.
-- role: admin
create or replace function duewheel.pause_schedule(name text, now timestamptz default null) returns integer
language plpgsql as $$
#variable_conflict use_column
declare
    v_schedule duewheel.schedule := duewheel.schedule_by_name(pause_schedule.name);
    v_recalled integer;
begin
    perform duewheel.clock_at(pause_schedule.now);
    if v_schedule.paused_at is not null then
        return 0;
    end if;
    v_recalled := duewheel.recall_ahead(v_schedule.schedule_id, pause_schedule.now);
    update duewheel.schedule s
    set paused_at = coalesce(pause_schedule.now, clock_timestamp())
    where s.schedule_id = v_schedule.schedule_id;
    return v_recalled;
end
$$;

-- The facts from which a resume is computed: the occurrences continue after resumes_after. No row if the schedule is
-- not paused.
-- role: admin
create or replace function duewheel.paused_schedule(
    p_name text, p_now timestamptz default null,
    out schedule_id integer, out generation integer, out cron text, out every interval, out timezone text,
    out anchor_at timestamptz, out start_at timestamptz, out resumes_after timestamptz
) returns setof record
language plpgsql as $$
declare
    v_schedule duewheel.schedule := duewheel.schedule_by_name(p_name);
begin
    perform duewheel.clock_at(p_now);
    if v_schedule.paused_at is null then
        return;
    end if;
    return query
    select v_schedule.schedule_id, v_schedule.generation, v_schedule.cron, v_schedule.every, v_schedule.timezone,
           v_schedule.anchor_at, v_schedule.start_at,
           coalesce(p_now, clock_timestamp());
end
$$;

-- Returns whether the schedule was still paused as the caller had read it.
-- role: admin
create or replace function duewheel.resume_schedule(
    p_schedule_id integer, p_generation integer, p_next_at timestamptz, p_now timestamptz default null
) returns boolean
language plpgsql set lock_timeout = '10s' as $$
declare
    v_now constant timestamptz := duewheel.clock_at(p_now);
begin
    perform duewheel.require_read_committed();
    update duewheel.schedule s
    set paused_at = null, next_at = p_next_at, generation = s.generation + 1, advanced_at = v_now
    where s.schedule_id = p_schedule_id and s.generation = p_generation and s.paused_at is not null;
    return found;
exception when lock_not_available then
    perform duewheel.raise_busy(format('schedule "%s"', (
        select s.name from duewheel.schedule s where s.schedule_id = p_schedule_id)));
end
$$;

-- Deletes a schedule. Returns how many occurrences that were sent ahead it has recalled.
-- role: admin
create or replace function duewheel.delete_schedule(name text, now timestamptz default null) returns integer
language plpgsql as $$
#variable_conflict use_column
declare
    v_schedule duewheel.schedule := duewheel.schedule_by_name(delete_schedule.name);
    v_recalled integer := duewheel.recall_ahead(v_schedule.schedule_id, delete_schedule.now);
begin
    perform duewheel.clock_at(delete_schedule.now);
    delete from duewheel.schedule s where s.schedule_id = v_schedule.schedule_id;
    return v_recalled;
end
$$;
