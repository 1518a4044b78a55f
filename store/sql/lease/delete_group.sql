-- Deleting groups, and broadcasting instances that are gone.

-- Takes locks that other transactions hold until they end; gives up at an instant.
create or replace function duewheel.lock_until(
    p_keys bigint[], p_until timestamptz default clock_timestamp() + interval '10 seconds'
) returns void
language plpgsql set lock_timeout = '10s' as $$
declare
    v_key bigint;
begin
    foreach v_key in array p_keys loop
        if not pg_try_advisory_xact_lock(v_key) then
            perform set_config('lock_timeout', greatest(
                1, ceil(extract(epoch from p_until - clock_timestamp()) * 1000))::integer || 'ms', true);
            perform pg_advisory_xact_lock(v_key);
        end if;
    end loop;
exception when lock_not_available then
    raise exception using
        errcode = 'DW017',
        message = 'the group is being read, created or renamed in another transaction, which was still open after 10 s',
        hint = 'Run the call again when that transaction has ended.';
end
$$;

-- Locks a subscription's queues, so that no consumer receives until this transaction ends; it waits for a receiving
-- consumer until an instant.
create or replace function duewheel.lock_queues(
    p_group_id integer, p_topic_id integer, p_until timestamptz default clock_timestamp() + interval '10 seconds'
) returns void
language sql
begin atomic
    select case when count(*) = 0 then duewheel.raise_gone(p_topic_id) else duewheel.lock_until(array_agg(
        duewheel.queue_lock_key(p_group_id, p.topic_id, p.queue) order by p.ordinal), p_until) end
    from duewheel.positions(p_group_id, p_topic_id) p;
end;

-- Deletes a group, or its part on one topic: position, leases, retries and dead letters. Of a broadcasting group it
-- deletes all instances, or the instance named group/instance. Calls of its consumers then fail with DW014. It waits up
-- to 10 seconds for a consumer that is receiving. One transaction takes a bounded number of locks: "more" says that
-- there is more to delete.
-- role: admin
create or replace function duewheel.delete_group(
    consumer_group text, topic text default null, out deleted integer, out more boolean
)
language plpgsql as $$
#variable_conflict use_column
declare
    v_until constant timestamptz := clock_timestamp() + interval '10 seconds';
    v_most_locks constant integer := 64;
    v_locks integer := 0;
    v_subscription record;
begin
    perform duewheel.require_read_committed();
    deleted := 0;
    more := false;
    perform duewheel.require_known(null, delete_group.topic);
    perform duewheel.lock_until(array[duewheel.group_lock_key(delete_group.consumer_group)], v_until);
    for v_subscription in
        select s.group_id, s.topic_id, t.queues
        from duewheel.consumer_group g
        join duewheel.subscription s on s.group_name = g.name
        join duewheel.topic t on t.topic_id = s.topic_id
        where (g.name = delete_group.consumer_group or g.broadcast_group = delete_group.consumer_group)
          and (delete_group.topic is null or (t.name = delete_group.topic and t.deleted_at is null))
        order by s.topic_id, s.group_id
    loop
        more := v_locks >= v_most_locks;
        exit when more;
        v_locks := v_locks + v_subscription.queues + 1;
        perform duewheel.lock_queues(v_subscription.group_id, v_subscription.topic_id, v_until);
        perform duewheel.remove_subscription(v_subscription.group_id);
        deleted := deleted + 1;
    end loop;
    if deleted = 0 then
        perform duewheel.group_by_name(delete_group.consumer_group);
        perform duewheel.raise_unread(
            delete_group.consumer_group, delete_group.topic,
            'Look at the view duewheel.groups, or leave the topic out to delete the group on all of them.');
    end if;
end
$$;

-- Deletes broadcasting instances that have not received for longer than their topic's retention, because no message
-- after their position is kept. seen_at is up to an hour old. Also deletes the rest of deleted topics. Returns true if
-- p_until ended it early.
create or replace function duewheel.forget_instances(p_until timestamptz, p_now timestamptz) returns boolean
language plpgsql as $$
declare
    v_subscription record;
begin
    for v_subscription in
        select s.* from duewheel.subscription s join duewheel.topic t on t.topic_id = s.topic_id
        where s.seen_at < p_now - t.retention - interval '1 hour'
        -- An instance that has just returned is not forgotten.
        for update of s skip locked
    loop
        -- Upkeep waits for no group that is being made.
        continue when not pg_try_advisory_xact_lock(duewheel.group_lock_key(v_subscription.group_name));
        perform duewheel.remove_subscription(v_subscription.group_id);
        if clock_timestamp() >= p_until then
            return true;
        end if;
    end loop;
    return duewheel.forget_topics(p_until, p_now);
end
$$;
