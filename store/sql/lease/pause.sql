-- Pause: a group gets no messages until it is resumed. Its position stays, and its leases may be answered. Leases still
-- end, and messages are still released.

-- Sets or ends the pause of a group, on one topic or on all that it reads; of a broadcasting group, of all instances or
-- the instance named group/instance. Returns for how many topics, or instances, this was a change.
create or replace function duewheel.set_paused(
    p_group text, p_topic text, p_paused_at timestamptz, p_resumed_at timestamptz
) returns integer
language plpgsql set lock_timeout = '10s' as $$
declare
    v_subscription record;
    v_found boolean := false;
    v_changed integer := 0;
begin
    perform duewheel.require_read_committed();
    perform duewheel.require_known(null, p_topic);
    -- In one order, so that two such calls wait for each other and never in a circle.
    for v_subscription in
        select s.group_id, s.topic_id, (s.paused_at is null) = (p_paused_at is not null) as is_change
        from duewheel.consumer_group g
        join duewheel.subscription s on s.group_name = g.name
        join duewheel.topic t on t.topic_id = s.topic_id
        where (g.name = p_group or g.broadcast_group = p_group) and t.deleted_at is null
          and (p_topic is null or t.name = p_topic)
        order by s.topic_id, s.group_id for update of s
    loop
        v_found := true;
        continue when not v_subscription.is_change;
        v_changed := v_changed + 1;
        update duewheel.subscription s set paused_at = p_paused_at, resumed_at = p_resumed_at
        where s.group_id = v_subscription.group_id and s.topic_id = v_subscription.topic_id;
        -- Waiting consumers poll again.
        perform duewheel.notify('duewheel_released', v_subscription.topic_id::text);
    end loop;
    if not v_found then
        perform duewheel.group_by_name(p_group);
        perform duewheel.raise_unread(
            p_group, p_topic, 'Look at the view duewheel.groups, or leave the topic out for all that it reads.');
    end if;
    return v_changed;
exception when lock_not_available then
    perform duewheel.raise_busy(format('group "%s"', left(p_group, 127)));
end
$$;

-- role: admin
create or replace function duewheel.pause_group(
    consumer_group text, topic text default null, now timestamptz default null
) returns integer
language plpgsql as $$
begin
    return duewheel.set_paused(consumer_group, topic, duewheel.clock_at(now), null);
end
$$;

-- role: admin
create or replace function duewheel.resume_group(
    consumer_group text, topic text default null, now timestamptz default null
) returns integer
language plpgsql as $$
begin
    return duewheel.set_paused(consumer_group, topic, null, duewheel.clock_at(now));
end
$$;

-- Whether a group is paused on a topic.
create or replace function duewheel.is_paused(p_group_id integer, p_topic_id integer) returns boolean
language sql stable
begin atomic
    select s.paused_at is not null from duewheel.subscription s
    where s.group_id = p_group_id and s.topic_id = p_topic_id;
end;
