-- The backlog of a FIFO topic: messages that a group has seen and that wait for their message group.

-- Free message groups with messages in the backlog, at most p_limit: groups whose retry is due, and groups whose lease
-- was answered, in turn, the longest wait first. A loose index scan over the blocking leases, not over the backlog.
create or replace function duewheel.fifo_free_groups(
    p_group_id integer, p_topic_id integer, p_queue integer, p_below_n bigint, p_now timestamptz, p_limit bigint
) returns setof text
language plpgsql stable as $$
begin
    return query
    with recursive blocker as (
        (select b.blocked_n from duewheel.fifo_backlog b
         where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue and b.blocked_n is not null
         order by b.blocked_n limit 1)
        union all
        select (select b.blocked_n from duewheel.fifo_backlog b
                where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
                  and b.blocked_n > w.blocked_n
                order by b.blocked_n limit 1)
        from blocker w where w.blocked_n is not null
    ), freed as (
        select b.message_group, b.blocked_n
        from blocker w
        cross join lateral (
            select b.message_group, b.blocked_n from duewheel.fifo_backlog b
            where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
              and b.blocked_n >= w.blocked_n and b.blocked_n <= w.blocked_n
              and duewheel.fifo_is_free(p_group_id, p_topic_id, p_queue, b.message_group, p_below_n, p_now)
            order by b.blocked_n, b.message_group limit p_limit) b
        -- Behind a lease without any answer nothing is free yet. Lease 0 is that of messages that were sent on again.
        where w.blocked_n = 0
           or exists (select from duewheel.final_event(p_group_id, p_topic_id, p_queue, w.blocked_n))
           or duewheel.answered_count(p_group_id, p_topic_id, p_queue, w.blocked_n) > 0
        limit p_limit
    ), due as (
        select b.message_group, b.due_at from duewheel.fifo_backlog b
        where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue and b.due_at <= p_now
          and duewheel.fifo_is_free(p_group_id, p_topic_id, p_queue, b.message_group, p_below_n, p_now)
        order by b.due_at limit p_limit
    )
    select c.message_group
    from (
        select f.message_group, row_number() over (order by f.blocked_n) as turn from freed f
        union all
        select d.message_group, row_number() over (order by d.due_at) from due d
    ) c
    group by c.message_group
    order by min(c.turn)
    limit p_limit;
end
$$;

-- The rows that message groups have in the backlog, in their order, each group from its first row on as far as they are
-- due, at most p_limit in all.
create or replace function duewheel.fifo_backlog_rows(
    p_group_id integer, p_topic_id integer, p_queue integer, p_message_groups text[], p_now timestamptz, p_limit bigint
) returns setof duewheel.fifo_backlog
language plpgsql stable as $$
declare
    v_message_group text;
    v_row duewheel.fifo_backlog;
    v_count bigint := 0;
begin
    foreach v_message_group in array p_message_groups loop
        for v_row in
            select * from duewheel.fifo_backlog b
            where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
              and b.message_group = v_message_group
            order by b.place limit p_limit - v_count
        loop
            exit when v_row.due_at > p_now;
            return next v_row;
            v_count := v_count + 1;
        end loop;
        exit when v_count >= p_limit;
    end loop;
end
$$;

-- Puts messages of the backlog into a lease: at most p_room, of free message groups, each from its first one on as far
-- as they are due. Returns how many.
create or replace function duewheel.fifo_lease_backlog(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint, p_now timestamptz, p_room bigint
) returns bigint
language plpgsql as $$
declare
    -- Messages of these message groups are in the lease already.
    v_leased constant text[] :=
        array(select distinct m.message_group from (
            select m.message_group from duewheel.lease_message m
            where m.topic_id = p_topic_id and m.group_id = p_group_id and m.queue = p_queue
              and m.n >= p_n and m.n <= p_n
            order by m.n, m.place) m);
    -- Free message groups may be among them, if a retry follows the messages of the lease.
    v_message_groups constant text[] := v_leased || array(
        select f from duewheel.fifo_free_groups(p_group_id, p_topic_id, p_queue, p_n, p_now, p_room) f
        where f <> all (v_leased));
    v_rows constant duewheel.fifo_backlog[] := array(
        select r from duewheel.fifo_backlog_rows(p_group_id, p_topic_id, p_queue, v_message_groups, p_now, p_room) r);
    v_row duewheel.fifo_backlog;
begin
    foreach v_row in array v_rows loop
        delete from duewheel.fifo_backlog b
        where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
          and b.message_group = v_row.message_group and b.place = v_row.place;
    end loop;
    insert into duewheel.lease_message
        (topic_id, group_id, queue, n, place, deliver_at, seq, source_topic_id, source_queue, attempt, message_group)
    select p_topic_id, p_group_id, p_queue, p_n, r.place, r.deliver_at, r.seq, r.source_topic_id, r.source_queue,
           r.attempt, r.message_group
    from unnest(v_rows) r;
    -- Also message groups that this receive has parked, if their lease was answered in between.
    perform duewheel.fifo_mark_first(
        p_group_id, p_topic_id, p_queue, array(select distinct r.message_group from unnest(v_rows) r), p_n);
    return cardinality(v_rows);
end
$$;

-- Marks the rest of message groups in the backlog, so that it is found: when the lease p_n has been answered; for 0, at
-- once, if it would not be found otherwise.
create or replace function duewheel.fifo_mark_first(
    p_group_id integer, p_topic_id integer, p_queue integer, p_message_groups text[], p_n bigint
) returns void
language plpgsql as $$
declare
    v_message_group text;
    v_row duewheel.fifo_backlog;
begin
    foreach v_message_group in array coalesce(p_message_groups, '{}') loop
        select * into v_row from duewheel.fifo_backlog b
        where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
          and b.message_group = v_message_group
        order by b.place limit 1;
        continue when not found or v_row.due_at is not null or (p_n = 0 and v_row.blocked_n is not null);
        update duewheel.fifo_backlog b set blocked_n = p_n
        where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
          and b.message_group = v_message_group and b.place = v_row.place;
    end loop;
end
$$;

-- The rows that a subscription loses from its backlog with a slot. If the topic's messages outlive the slot, only
-- redriven messages can go: these are stored in the retry topic, and have an index.
create or replace function duewheel.fifo_of_slot(p_slot duewheel.slot, p_subscription duewheel.subscription)
returns table (row_id tid, queue smallint)
language plpgsql stable set enable_seqscan = off as $$
declare
    v_outliving constant integer[] := coalesce((
        select o.topic_ids from duewheel.outlived_slot o
        where o.starts_at = (p_slot).starts_at and not o.is_dropped), '{}');
begin
    return query execute format(
        'select b.ctid, b.queue from duewheel.fifo_backlog b
         where %s and b.source_topic_id <> all ($1)
           and timezone(''UTC'', b.deliver_at) >= $3 and timezone(''UTC'', b.deliver_at) < $4
         order by timezone(''UTC'', b.deliver_at)',
        case when (p_subscription).topic_id <> all (v_outliving)
                 then '(b.topic_id::bigint << 32 | b.group_id) = $2'
             when (p_subscription).retry_topic_id <> all (v_outliving)
                 then 'b.source_topic_id <> b.topic_id and b.source_topic_id = $5'
             else 'false' end)
    using v_outliving, (p_subscription).topic_id::bigint << 32 | (p_subscription).group_id,
          timezone('UTC', (p_slot).starts_at), timezone('UTC', (p_slot).ends_at), (p_subscription).retry_topic_id;
end
$$;

-- Forgets the messages of a slot that is dropped unread, except messages that outlive it. The caller has a short lock
-- timeout.
create or replace function duewheel.fifo_forget_slot(p_slot duewheel.slot) returns void
language plpgsql as $$
declare
    v_source record;
    v_message_groups text[];
begin
    for v_source in
        select s as subscription, s.group_id, s.topic_id, b.queue
        from duewheel.subscription s
        join duewheel.topic t on t.topic_id = s.topic_id and t.message_type = 'FIFO'
        cross join lateral (select distinct o.queue from duewheel.fifo_of_slot(p_slot, s) o) b
        order by s.group_id, s.topic_id, b.queue
    loop
        perform pg_advisory_xact_lock(
            duewheel.queue_lock_key(v_source.group_id, v_source.topic_id, v_source.queue));
        with gone as (
            delete from duewheel.fifo_backlog b where b.ctid = any (array(
                select o.row_id from duewheel.fifo_of_slot(p_slot, v_source.subscription) o
                where o.queue = v_source.queue))
            returning b.message_group
        )
        select array_agg(distinct g.message_group) into v_message_groups from gone g;
        perform duewheel.fifo_mark_first(v_source.group_id, v_source.topic_id, v_source.queue, v_message_groups, 0);
    end loop;
end
$$;

-- Removes messages from the backlogs that were seen before a rewind and that its new position delivers again. Reads the
-- next p_limit messages, and returns as place the last one. p_rest: as rest of duewheel.rewind_chunk.
create or replace function duewheel.fifo_rewind(
    p_rest jsonb, p_limit integer, out looked_at integer, out recalled bigint, out place jsonb
)
language plpgsql set enable_seqscan = off as $$
declare
    v_subscription constant duewheel.subscription := (
        select s from duewheel.subscription s where s.group_id = (p_rest ->> 'group_id')::integer);
    v_gone jsonb;
begin
    with portion as materialized (
        select b.ctid as row_id, b.queue, b.message_group, b.place, b.attempt,
               b.place < (p_rest ->> 'before')::bigint and (
                    select duewheel.comes_again(
                        m, v_subscription, (p_rest ->> 'hi')::timestamptz, (p_rest ->> 'straggler_id')::bigint)
                    from duewheel.message_at(b.source_topic_id, b.source_queue, b.deliver_at, b.seq) m) as is_gone
        from duewheel.fifo_backlog b
        where b.topic_id = (p_rest ->> 'topic_id')::integer and b.group_id = (p_rest ->> 'group_id')::integer
          and (b.queue, b.message_group, b.place)
              > ((p_rest ->> 'queue')::smallint, p_rest ->> 'message_group', (p_rest ->> 'place')::bigint)
        order by b.queue, b.message_group, b.place limit p_limit
    ), gone as (
        delete from duewheel.fifo_backlog b
        where b.ctid = any (array(select p.row_id from portion p where p.is_gone))
        returning b.queue, b.message_group
    )
    select count(*), count(*) filter (where p.is_gone and p.attempt > 1),
           (array_agg(jsonb_build_object('queue', p.queue, 'message_group', p.message_group, 'place', p.place)
                      order by p.queue desc, p.message_group desc, p.place desc))[1],
           (select jsonb_agg(distinct jsonb_build_array(g.queue, g.message_group)) from gone g)
    into looked_at, recalled, place, v_gone from portion p;
    perform duewheel.fifo_mark_first((p_rest ->> 'group_id')::integer, (p_rest ->> 'topic_id')::integer,
                                     (g ->> 0)::smallint, array[g ->> 1], 0)
    from jsonb_array_elements(v_gone) g;
end
$$;
