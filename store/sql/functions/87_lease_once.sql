-- As lease_evenly, once for each consumer name: a later call with the same name answers what the first one leased. For
-- a reader that is planned anew for every action on a DataFrame. p_since: no lease of that name is older.
create or replace function duewheel.lease_once(
    p_group_id integer, p_topic_id integer, p_tags text[], p_max bigint, p_parts integer, p_invisible interval,
    p_consumer text, p_since timestamptz, p_now timestamptz default null, p_filter jsonpath default null
) returns table (
    topic_id integer, queue smallint, lease_n bigint, lease_token bigint, expires_at timestamptz, lease_count integer
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_position record;
    v_lease record;
    v_found boolean := false;
begin
    if p_now is not null then
        perform duewheel.require_clock_right(p_now);
    end if;
    perform duewheel.require_home();
    perform duewheel.lock_until(array[duewheel.key_lock_key(p_topic_id, '%LEASE%' || p_consumer)]);
    for v_position in select * from duewheel.positions(p_group_id, p_topic_id) loop
        for v_lease in
            select l.* from duewheel.lease l
            where l.topic_id = v_position.topic_id and l.group_id = p_group_id and l.queue = v_position.queue
            order by l.n desc
        loop
            exit when v_lease.leased_at < p_since;
            if v_lease.consumer = p_consumer and v_lease.message_count > 0 then
                v_found := true;
                return query
                select v_lease.topic_id, v_lease.queue, v_lease.n, v_lease.token, v_lease.expires_at,
                       v_lease.message_count;
            end if;
        end loop;
    end loop;
    if not v_found then
        return query
        select * from duewheel.lease_evenly(p_group_id, p_topic_id, p_tags, p_max, p_parts, p_invisible, p_consumer,
                                            p_now, p_filter);
    end if;
end
$$;
