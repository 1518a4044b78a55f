-- What happens now, for the page: wheels, waiting consumers, leases, retries, and the messages that name a task. Each
-- look reads a bounded number of rows by an index.

-- The wheels that turn, each by the name that it gives its sessions. An address that the caller may not see, or a
-- connection by a Unix socket, is null.
-- role: consumer
create or replace function duewheel.wheels() returns table (
    name text, login text, client_address text, connections bigint, started_at timestamptz, active_at timestamptz
)
language sql stable
begin atomic
    select substr(a.application_name, length('duewheel wheel on ') + 1), a.usename::text,
           case when pg_has_role(session_user, 'pg_read_all_stats', 'usage') or a.usename = session_user
               then host(a.client_addr) end,
           count(*), min(a.backend_start), max(a.state_change)
    from pg_stat_activity a
    where a.datname = current_database() and starts_with(a.application_name, 'duewheel wheel on ')
    group by a.application_name, a.usename, a.client_addr
    order by min(a.backend_start);
end;

-- The consumers that wait for messages, of each program the first few groups, by the name of the listening session: it
-- holds the numbers of topics and groups, and the consumer's name as far as the server has room for it. Behind a pooler
-- that shares sessions no session listens. An address is as in duewheel.wheels. Of more than 200 rows it returns 201.
-- role: consumer
create or replace function duewheel.waiting_consumers() returns table (
    topic_name text, group_name text, consumer text, login text, client_address text, started_at timestamptz
)
language sql stable
begin atomic
    select t.name, s.group_name, substr(a.application_name, length(split_part(a.application_name, ' ', 3)) + 20),
           a.usename::text,
           case when pg_has_role(session_user, 'pg_read_all_stats', 'usage') or a.usename = session_user
               then host(a.client_addr) end,
           a.backend_start
    from pg_stat_activity a
    cross join lateral string_to_table(split_part(a.application_name, ' ', 3), ',') k (place)
    join duewheel.topic t on t.topic_id::text = split_part(k.place, '.', 1)
    join duewheel.subscription s on s.group_id::text = split_part(k.place, '.', 2)
    where a.datname = current_database() and starts_with(a.application_name, 'duewheel consumer ')
    order by 1, 2, 3, a.backend_start
    limit 201;
end;

-- The running leases of one topic or group, or of all, the lease that ends first at the top. Reads at most
-- max_looked_at leases that have not ended, and leaves out answered leases. A last row without a group says that there
-- may be more.
-- role: consumer
create or replace function duewheel.running_leases(
    now timestamptz default null, max_leases integer default 200, max_looked_at integer default 20000,
    of_topic text default null, of_group text default null
) returns table (
    consumer_group text, topic text, queue integer, consumer text, leased_at timestamptz, expires_at timestamptz,
    messages integer, answered integer, is_retry boolean, lease_id text
)
language plpgsql set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := duewheel.clock_at(running_leases.now);
begin
    perform duewheel.require_home();
    perform duewheel.require_known(of_group, of_topic);
    return query
    with looked_at as materialized (
        (select 1 as arm, l.topic_id, l.group_id, l.queue, l.n from duewheel.lease l
         where of_group is null and of_topic is null and l.message_count > 0 and l.expires_at > v_now
           and date_bin('100 ms', timezone('UTC', l.expires_at), '2000-01-01')
               >= date_bin('100 ms', timezone('UTC', v_now), '2000-01-01')
         order by date_bin('100 ms', timezone('UTC', l.expires_at), '2000-01-01') limit max_looked_at)
        union all
        (select 2, e.topic_id, e.group_id, e.queue, e.n from duewheel.lease_extension e
         where of_group is null and of_topic is null
           and timezone('UTC', e.expires_at) > timezone('UTC', v_now)
         order by timezone('UTC', e.expires_at) limit max_looked_at)
        union all
        -- The leases of other groups and topics are not read.
        (select 3, p.topic_id, s.group_id, p.queue, e.n
         from duewheel.subscription s
         join duewheel.topic t on t.topic_id = s.topic_id
         cross join lateral duewheel.positions(s.group_id, s.topic_id) p
         cross join lateral duewheel.ends_in(
             s.group_id, p.topic_id, p.queue, v_now, 'infinity', p_limit => max_looked_at) e
         where (of_group is not null or of_topic is not null)
           and (of_group is null or s.group_name = of_group) and (of_topic is null or t.name = of_topic)
         limit max_looked_at)
    ), open as materialized (
        -- An answered lease costs one lookup. Of the others, the rest is read for twice as many as are returned.
        select k.*
        from generate_series(1, 3) a (arm)
        cross join lateral (
            select k.* from looked_at k
            where k.arm = a.arm
              and not exists (select from duewheel.final_event(k.group_id, k.topic_id, k.queue, k.n))
            limit case when a.arm < 3 then 2 * max_leases + 1 end) k
    ), found as materialized (
        select s.group_name, coalesce(parent.name, t.name), l.queue::integer, l.consumer, l.leased_at, l_now.ends_at,
               l.message_count, l_now.answered,
               parent.name is not null, duewheel.lease_id(l)
        from (select distinct o.topic_id, o.group_id, o.queue, o.n from open o) k
        join duewheel.lease l on l.topic_id = k.topic_id and l.group_id = k.group_id and l.queue = k.queue and l.n = k.n
        join duewheel.topic t on t.topic_id = l.topic_id
        left join duewheel.topic parent on parent.topic_id = t.parent_topic_id
        join duewheel.subscription s on s.group_id = l.group_id
        -- Called once for each open lease: without the offset, once for each lease that the join reads.
        cross join lateral (
            select duewheel.lease_end(l.group_id, l.topic_id, l.queue, l.n),
                   duewheel.answered_count(l.group_id, l.topic_id, l.queue, l.n)
            offset 0
        ) l_now (ends_at, answered)
        where l_now.ends_at > v_now
          and (of_group is null or s.group_name = of_group)
          and (of_topic is null or coalesce(parent.name, t.name) = of_topic)
          and l_now.answered < l.message_count
        order by l_now.ends_at limit max_leases + 1
    )
    (select * from found f order by f.ends_at limit max_leases)
    union all
    select null, null, null, null, null, null, null, null, null, null
    where (select count(*) from found) > max_leases
       or exists (select from looked_at k group by k.arm having count(*) >= max_looked_at)
       or exists (select from open k where k.arm < 3 group by k.arm having count(*) > 2 * max_leases);
end
$$;

-- The messages that wait for their next attempt, the next one first: at most max_messages of each subscription looked
-- at.
-- role: consumer
create or replace function duewheel.waiting_retries(
    consumer_group text default null, topic text default null, max_messages integer default 100
) returns table (
    group_name text, topic_name text, message_id text, key text, tag text, attempt integer, deliver_at timestamptz,
    reason text
)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
begin
    perform duewheel.require_home();
    perform duewheel.check_limit('max_messages', coalesce(max_messages, 1), 1, 2147483647);
    perform duewheel.require_known(waiting_retries.consumer_group, waiting_retries.topic);
    return query
    select s.group_name, t.name,
           duewheel.message_id(m.origin_topic_id, m.origin_queue, m.origin_deliver_at, m.origin_seq), m.key, m.tag,
           m.attempt, m.deliver_at, m.reason
    from duewheel.subscription s
    join duewheel.topic t on t.topic_id = s.topic_id
    left join lateral duewheel.newest_tick(s.retry_topic_id) k on true
    cross join lateral (
        -- Among 10 000, because a rewind may have recalled many.
        select * from duewheel.waiting_rows(
            s.retry_topic_id, 0::smallint, coalesce(k.hi, '-infinity'), '-infinity', 0, 'infinity', 10000) m
        where (select true from duewheel.recall_of(m.topic_id, m.queue, m.deliver_at, m.seq)) is null
        limit max_messages) m
    where s.retry_topic_id is not null
      and (waiting_retries.consumer_group is null or s.group_name = waiting_retries.consumer_group)
      and (waiting_retries.topic is null or t.name = waiting_retries.topic)
    order by m.deliver_at, m.seq limit max_messages;
end
$$;

-- The messages that a program sent and received, by its name: sent with it as the idempotency key, or with the name, a
-- slash and a place of 0 to max_messages; received by the group's consumer of this name between two instants, of the
-- newest max_leases leases of each queue. Sent ones have no leased_at.
-- role: consumer
create or replace function duewheel.messages_by_name(
    name text, topic text, consumer_group text default null, since_at timestamptz default '-infinity',
    until_at timestamptz default 'infinity', max_messages integer default 200, max_leases integer default 2000,
    max_ms integer default 500
) returns table (
    message_id text, key text, tag text, born_at timestamptz, deliver_at timestamptz, attempt integer,
    leased_at timestamptz
)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
declare
    v_stop_at constant timestamptz := clock_timestamp() + max_ms * interval '1 millisecond';
    v_name constant text := messages_by_name.name;
    v_topic constant duewheel.topic := duewheel.topic_by_name(messages_by_name.topic);
    v_since constant timestamptz := messages_by_name.since_at;
    v_until constant timestamptz := messages_by_name.until_at;
    v_room integer := messages_by_name.max_messages;
    v_group_id integer;
    v_source record;
    v_lease record;
    v_count bigint;
begin
    perform duewheel.check_limit('max_messages', max_messages, 1, 1000);
    perform duewheel.check_limit('max_leases', max_leases, 1, 100000);
    perform duewheel.check_limit('max_ms', max_ms, 1, 10000);
    return query
    select duewheel.message_id(m.topic_id, m.queue, m.deliver_at, m.seq), m.key, m.tag, m.born_at, m.deliver_at,
           m.attempt, null::timestamptz
    from (
        select v_name as idempotency_key, -1 as place
        union all
        select format('%s/%s', v_name, p), p from generate_series(0, messages_by_name.max_messages - 1) p
    ) k
    cross join lateral (
        select i.queue, i.deliver_at, i.seq from duewheel.idempotency i
        where i.topic_id = v_topic.topic_id and i.idempotency_key = k.idempotency_key limit 1) i
    cross join lateral duewheel.message_at(v_topic.topic_id, i.queue, i.deliver_at, i.seq) m
    order by k.place;
    if messages_by_name.consumer_group is null then
        return;
    end if;
    perform duewheel.group_by_name(messages_by_name.consumer_group);
    select s.group_id into v_group_id from duewheel.subscription s
    where s.group_name = messages_by_name.consumer_group and s.topic_id = v_topic.topic_id;
    for v_source in
        select p.topic_id, p.queue, duewheel.first_reaching(
                   v_group_id, p.topic_id, p.queue, -1, null, null, null, v_until) as n
        from duewheel.positions(v_group_id, v_topic.topic_id) p
        order by p.topic_id, p.queue
    loop
        for v_lease in
            select l.n, l.leased_at from (
                select l.n, l.leased_at, l.consumer, l.message_count from duewheel.lease l
                where l.topic_id = v_source.topic_id and l.group_id = v_group_id and l.queue = v_source.queue
                  and l.n < coalesce(v_source.n, 9223372036854775807)
                order by l.n desc limit messages_by_name.max_leases) l
            where l.consumer = v_name and l.message_count > 0 and l.leased_at >= v_since
            order by l.n
        loop
            exit when v_room = 0 or clock_timestamp() > v_stop_at;
            return query execute format(
                'select coalesce(duewheel.message_id(m.origin_topic_id, m.origin_queue, m.origin_deliver_at,'
                '       m.origin_seq), duewheel.message_id($1, $2, m.deliver_at, m.seq)), m.key, m.tag, m.born_at,'
                '       m.deliver_at, m.attempt, $3 from (%s) m limit $4',
                duewheel.lease_query(v_group_id, v_source.topic_id, v_source.queue, v_lease.n))
            using v_source.topic_id, v_source.queue::integer, v_lease.leased_at, v_room;
            get diagnostics v_count = row_count;
            v_room := v_room - v_count;
        end loop;
    end loop;
end
$$;
