-- Releasing when no wheel turns: procedures for consumers, and for programs in any language. They commit, so each tick
-- is a separate transaction, and Postgres refuses them in a transaction block. Each names the isolation level that it
-- needs, because the login's default_transaction_isolation may differ. A procedure that runs with its owner's rights
-- may not commit: these run with the caller's rights and search_path, and call entry points.

-- The topic and the retries of a subscription, if a message may be due there. A wheel that has just ticked will tick
-- again. is_overdue: a message has been due for a second, so the transaction that has the lock is slow, and a tick
-- waits for it.
-- role: consumer
create or replace function duewheel.topics_to_tick(p_group_id integer, p_topic_id integer, p_now timestamptz)
returns table (topic_id integer, is_overdue boolean)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_now constant timestamptz := coalesce(p_now, clock_timestamp() - interval '1 microsecond');
begin
    perform duewheel.clock_at(p_now);
    return query
    select t.topic_id, coalesce(d.due_at < v_now - interval '1 second', false)
    from duewheel.topic t
    left join lateral duewheel.newest_tick(t.topic_id) k on true
    cross join lateral duewheel.first_due(t.topic_id, t.queues, t.message_type, k.hi, null, v_now) d
    where t.topic_id in (
        p_topic_id,
        (select s.retry_topic_id from duewheel.subscription s
         where s.group_id = p_group_id and s.topic_id = p_topic_id))
      and (p_now is not null or k.by_wheel is not true or v_now >= duewheel.wheel_comes_by(k.hi, t.granularity))
      and (k.open_count > 0 or d.due_at is not null
           or k.hi > v_now and duewheel.sent_behind(t.topic_id, k.tick_xid, k.hi));
end
$$;

-- Before a receive: revives a group's expired leases, and releases its due messages.
-- role: consumer
create or replace procedure duewheel.tick_group(
    p_group_id integer, p_topic_id integer, p_now timestamptz default null
)
language plpgsql as $$
declare
    v_topic record;
begin
    -- Fails in a transaction block.
    commit;
    set transaction isolation level read committed, read write;
    perform duewheel.revive_chunk(p_group_id, p_topic_id, p_now);
    commit and chain;
    for v_topic in select * from duewheel.topics_to_tick(p_group_id, p_topic_id, p_now) loop
        perform pg_catalog.set_config('duewheel.own_transaction', 'on', true);
        perform duewheel.tick_topic(v_topic.topic_id, p_now, false, v_topic.is_overdue);
        commit and chain;
    end loop;
end
$$;

-- The same for several groups: pairs of a topic and a group, of which those without a subscription are passed over.
-- role: consumer
create or replace procedure duewheel.tick_groups(
    p_topics text[], p_groups text[], p_now timestamptz default null
)
language plpgsql as $$
declare
    v_subscription record;
begin
    commit;
    set transaction isolation level read committed, read write;
    for v_subscription in select * from duewheel.subscriptions_named(p_topics, p_groups, p_now) loop
        call duewheel.tick_group(v_subscription.group_id, v_subscription.topic_id, p_now);
    end loop;
end
$$;

-- The subscriptions of pairs of a topic and a group, in the order of the pairs, to be ticked at p_now.
-- role: consumer
create or replace function duewheel.subscriptions_named(p_topics text[], p_groups text[], p_now timestamptz)
returns table (group_id integer, topic_id integer)
language plpgsql stable as $$
begin
    perform duewheel.clock_at(p_now);
    return query
    select s.group_id, s.topic_id
    from unnest(p_topics, p_groups) with ordinality pair (topic, consumer_group, place)
    join duewheel.topic t on t.name = pair.topic and t.deleted_at is null
    join duewheel.subscription s on s.group_name = pair.consumer_group and s.topic_id = t.topic_id
    order by pair.place;
end
$$;

-- A topic, and the retries of each clustering group that reads it.
-- role: consumer
create or replace function duewheel.topic_with_retries(p_topic text)
returns table (topic_id integer, group_id integer, retry_topic_id integer)
language plpgsql stable as $$
begin
    return query
    select t.topic_id, s.group_id, s.retry_topic_id from duewheel.topic_by_name(p_topic) t
    left join duewheel.subscription s on s.topic_id = t.topic_id and s.retry_topic_id is not null
    order by s.group_id;
end
$$;

-- Releases the due messages of a topic, and for its groups expired leases and due retries. For programs that receive
-- when no wheel turns: call it before duewheel.receive. released: whether anything was released.
-- role: consumer
create or replace procedure duewheel.tick(
    topic text, now timestamptz default null, inout released boolean default null
)
language plpgsql as $$
#variable_conflict use_column
declare
    v_reader record;
    v_topic_ids integer[] := '{}';
    v_topic_id integer;
    v_tick record;
begin
    -- Fails in a transaction block.
    commit;
    set transaction isolation level read committed, read write;
    released := false;
    for v_reader in select * from duewheel.topic_with_retries(tick.topic) loop
        v_topic_ids := array[v_reader.topic_id] || v_topic_ids[2:] || v_reader.retry_topic_id;
        if v_reader.group_id is not null then
            perform duewheel.revive_chunk(v_reader.group_id, v_reader.topic_id, tick.now);
            commit and chain;
        end if;
    end loop;
    foreach v_topic_id in array pg_catalog.array_remove(v_topic_ids, null) loop
        loop
            perform pg_catalog.set_config('duewheel.own_transaction', 'on', true);
            v_tick := duewheel.tick_topic(v_topic_id, tick.now, false);
            commit and chain;
            released := v_tick.released or released;
            exit when not v_tick.more;
        end loop;
    end loop;
end
$$;
