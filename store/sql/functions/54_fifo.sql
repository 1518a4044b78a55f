-- FIFO topics. The messages of one message group are given out in order, and while one of them is in somebody's hands none
-- of the others is given to anybody.
--
-- A group reads on in a queue as in any other topic, but what it passes is not always for it: the message group may be in
-- other hands, or wait for a retry. Such messages stand in fifo_backlog until their message group is free. So the position
-- says up to where messages were seen, and a lease lists its messages. Order within a message group is the order in which
-- they were seen, (place_n, deliver_at, seq); a retry keeps its place.
--
-- The tables were empty when a session made its plans, and every index looked the same then. So conditions and orders here
-- are written such that one index alone gives them: a range of one value, and the order of that index.
--
-- All of it happens under the lock of the queue, except that answers put failed messages back. That is safe: a message group
-- without unanswered messages stays so while the lock is held, and the rows of an answer appear together with it.

-- The lease that holds unanswered messages of a message group, of those before p_below_n; null where the group is free.
create or replace function duewheel.fifo_holder(
    p_group_id integer, p_topic_id integer, p_queue integer, p_message_group text,
    p_below_n bigint default 9223372036854775807
) returns bigint
language plpgsql stable as $$
declare
    v_n bigint;
begin
    select m.n into v_n from duewheel.lease_message m
    where m.topic_id = p_topic_id and m.group_id = p_group_id and m.queue = p_queue
      and m.message_group >= p_message_group and m.message_group <= p_message_group
    order by m.message_group desc, m.n desc limit 1;
    -- The newest one decides: it was given out when no older one held any.
    if v_n is null or v_n >= p_below_n
       or not duewheel.fifo_holds(p_group_id, p_topic_id, p_queue, v_n, p_message_group) then
        return null;
    end if;
    return v_n;
end
$$;

create or replace function duewheel.fifo_holds(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint, p_message_group text
) returns boolean
language plpgsql stable as $$
declare
    v_final boolean;
begin
    select bool_or(e.kind in ('expired', 'rewound') or (e.seqs is null and e.kind in ('acked', 'failed', 'returned')))
    into v_final
    from duewheel.lease_event e
    where e.topic_id = p_topic_id and e.group_id = p_group_id and e.queue = p_queue and e.n = p_n;
    if v_final then
        return false;
    end if;
    perform from duewheel.lease_message m
    where m.topic_id = p_topic_id and m.group_id = p_group_id and m.queue = p_queue
      and m.message_group >= p_message_group and m.message_group <= p_message_group and m.n = p_n
      and not exists (select from duewheel.message_answer(p_group_id, p_topic_id, p_queue, p_n, m.seq))
    order by m.message_group limit 1;
    return found;
end
$$;

-- Whether the first message that a message group has in the backlog can be leased.
create or replace function duewheel.fifo_is_free(
    p_group_id integer, p_topic_id integer, p_queue integer, p_message_group text, p_below_n bigint, p_now timestamptz
) returns boolean
language plpgsql stable as $$
declare
    v_due_at timestamptz;
begin
    select b.due_at into v_due_at from duewheel.fifo_backlog b
    where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
      and b.message_group = p_message_group
    order by b.place_n, b.deliver_at, b.seq limit 1;
    return found and (v_due_at is null or v_due_at <= p_now)
        and duewheel.fifo_holder(p_group_id, p_topic_id, p_queue, p_message_group, p_below_n) is null;
end
$$;

-- Message groups that are free and have something in the backlog, at most p_limit: those whose retry is due, and those
-- whose lease was answered, in turn, the longest waiting first. A loose index scan over the leases that block others, not
-- over the backlog.
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
        where w.blocked_n = 0 or (
            select true from duewheel.lease_event e
            where e.topic_id = p_topic_id and e.group_id = p_group_id and e.queue = p_queue and e.n = w.blocked_n
              and e.kind not in ('extended', 'deferred') limit 1)
           or duewheel.last_answered_count(p_group_id, p_topic_id, p_queue, w.blocked_n) > 0
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
            order by b.place_n, b.deliver_at, b.seq limit p_limit - v_count
        loop
            exit when v_row.due_at > p_now;
            return next v_row;
            v_count := v_count + 1;
        end loop;
        exit when v_count >= p_limit;
    end loop;
end
$$;

-- Puts messages of the backlog into a lease: at most p_room, of free message groups, each from its first one on as far as
-- they are due. Answers how many.
create or replace function duewheel.fifo_lease_backlog(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint, p_now timestamptz, p_room bigint
) returns bigint
language plpgsql as $$
declare
    -- Those that the lease has messages of already go on.
    v_message_groups constant text[] :=
        duewheel.fifo_groups_of_lease(p_group_id, p_topic_id, p_queue, p_n)
        || array(select * from duewheel.fifo_free_groups(p_group_id, p_topic_id, p_queue, p_n, p_now, p_room));
    v_row duewheel.fifo_backlog;
    v_rows duewheel.fifo_backlog[] := '{}';
begin
    for v_row in
        select * from duewheel.fifo_backlog_rows(p_group_id, p_topic_id, p_queue, v_message_groups, p_now, p_room)
    loop
        delete from duewheel.fifo_backlog b
        where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
          and b.message_group = v_row.message_group and b.place_n = v_row.place_n
          and b.deliver_at = v_row.deliver_at and b.seq = v_row.seq;
        if found then
            v_rows := v_rows || v_row;
        end if;
    end loop;
    insert into duewheel.lease_message
        (topic_id, group_id, queue, n, place_n, deliver_at, seq, source_topic_id, source_queue, attempt, message_group)
    select p_topic_id, p_group_id, p_queue, p_n, r.place_n, r.deliver_at, r.seq, r.source_topic_id, r.source_queue,
           r.attempt, r.message_group
    from unnest(v_rows) r;
    -- Also of message groups that this very receive has parked, where an answer came in between.
    perform duewheel.fifo_mark_first(
        p_group_id, p_topic_id, p_queue, array(select distinct r.message_group from unnest(v_rows) r), p_n);
    return cardinality(v_rows);
end
$$;

-- The message groups of which a lease has messages from the backlog.
create or replace function duewheel.fifo_groups_of_lease(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint
) returns text[]
language plpgsql stable as $$
begin
    return array(
        select distinct m.message_group
        from (
            select m.message_group from duewheel.lease_message m
            where m.topic_id = p_topic_id and m.group_id = p_group_id and m.queue = p_queue
              and m.n >= p_n and m.n <= p_n and m.place_n < p_n
            order by m.n, m.place_n, m.deliver_at, m.seq
        ) m);
end
$$;

-- Sees to it that what is left of message groups in the backlog is found: when the lease p_n has been answered; for 0, at
-- once, where it would not be found otherwise.
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
        order by b.place_n, b.deliver_at, b.seq limit 1;
        continue when not found or v_row.due_at is not null or (p_n = 0 and v_row.blocked_n is not null);
        update duewheel.fifo_backlog b set blocked_n = p_n
        where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
          and b.message_group = v_message_group and b.place_n = v_row.place_n
          and b.deliver_at = v_row.deliver_at and b.seq = v_row.seq;
    end loop;
end
$$;

-- Sorts messages that were just seen, in order: those of free message groups into the lease p_n, at most p_room, the others
-- into the backlog. Answers how many of them were sorted in, the rest is behind the last one the lease had room for, and
-- how many are leased.
create or replace function duewheel.fifo_sort_in(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint, p_room bigint,
    p_ats timestamptz[], p_seqs bigint[], p_message_groups text[], p_attempts integer[],
    out sorted bigint, out leased bigint
)
language plpgsql as $$
begin
    with fresh as materialized (
        select * from unnest(p_ats, p_seqs, p_message_groups, p_attempts)
            with ordinality f (deliver_at, seq, message_group, attempt, place)
    ), known as materialized (
        select g.message_group,
               duewheel.fifo_holder(p_group_id, p_topic_id, p_queue, g.message_group, p_n) as holder,
               (select true from duewheel.fifo_backlog b
                where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
                  and b.message_group = g.message_group limit 1) as has_backlog
        from (select distinct f.message_group from fresh f) g
    ), judged as (
        select f.*, k.holder, k.has_backlog, k.holder is null and k.has_backlog is null as free,
               count(*) filter (where k.holder is null and k.has_backlog is null) over (order by f.place) as taken,
               row_number() over (partition by f.message_group order by f.place) as turn
        from fresh f join known k on k.message_group = f.message_group
    ), sorted_in as materialized (
        select * from judged j where j.taken - j.free::integer < p_room
    ), parked as (
        insert into duewheel.fifo_backlog
            (topic_id, group_id, queue, message_group, place_n, deliver_at, seq, source_topic_id, source_queue, attempt,
             blocked_n)
        select p_topic_id, p_group_id, p_queue, s.message_group, p_n, s.deliver_at, s.seq, p_topic_id, p_queue,
               s.attempt, case when s.has_backlog is null and s.turn = 1 then s.holder end
        from sorted_in s where not s.free
    ), held as (
        insert into duewheel.lease_message
            (topic_id, group_id, queue, n, place_n, deliver_at, seq, source_topic_id, source_queue, attempt,
             message_group)
        select p_topic_id, p_group_id, p_queue, p_n, p_n, s.deliver_at, s.seq, p_topic_id, p_queue, s.attempt,
               s.message_group
        from sorted_in s where s.free
    )
    select count(*), count(*) filter (where s.free) into sorted, leased from sorted_in s;
end
$$;

-- Leases the next messages of a subscription to a FIFO topic; parameters and result are those of duewheel.receive_batch.
-- A lease takes what waits in the backlog and what is new in turn, half of its room each, so that a message group with a
-- long backlog and the others all go on. A call passes at most 10 000 messages that are not for it.
create or replace function duewheel.receive_fifo(
    p_group_id integer, p_topic_id integer, p_tags text[], p_max bigint, p_invisible interval, p_consumer text,
    p_first_source integer, p_durable boolean, p_now timestamptz default null, p_tick boolean default true,
    p_chunk integer default 1000000, p_rows boolean default true, p_filter jsonpath default null
) returns table (
    lease duewheel.lease_handle, deliver_at timestamptz, seq bigint, born_at timestamptz, asked_at timestamptz, tag text,
    key text, properties jsonb, message_group text, body bytea, attempt integer, origin_id text
)
-- One plan for every position: slots are pruned when it runs, and it walks the keys however small the tables are yet.
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
    c_last constant bigint := 9223372036854775807;
    v_queues integer;
    v_retry_topic_id integer;
    v_kept_from timestamptz;
    v_every constant boolean := p_tags is null and p_filter is null;
    v_released boolean := false;
    v_queue smallint;
    v_now timestamptz;
    v_ends timestamptz;
    v_source record;
    v_n bigint;
    v_at timestamptz;
    v_seq bigint;
    v_straggler_at bigint;
    v_from_at timestamptz;
    v_from_seq bigint;
    v_straggler_from bigint;
    v_room bigint;
    v_held bigint;
    v_share bigint;
    v_shared bigint;
    v_more boolean;
    v_is_straggler boolean;
    v_straggler record;
    v_straggler_to bigint;
    v_xmin xid8;
    v_to timestamptz;
    v_to_seq bigint;
    v_step bigint;
    v_ats timestamptz[];
    v_seqs bigint[];
    v_message_groups text[];
    v_attempts integer[];
    v_ids bigint[];
    v_seen bigint;
    v_sorted bigint;
    v_count bigint;
    v_token bigint;
    v_leased bigint := 0;
    v_parked bigint := 0;
    v_revive_room integer := duewheel.revive_limit();
    v_revived_to timestamptz;
begin
    select t.queues, s.retry_topic_id, t.kept_from into v_queues, v_retry_topic_id, v_kept_from
    from duewheel.subscription s join duewheel.topic t on t.topic_id = s.topic_id
    where s.group_id = p_group_id and s.topic_id = p_topic_id;
    if p_tick then
        v_released := duewheel.tick_subscription(p_group_id, p_topic_id, p_now);
    end if;
    if v_retry_topic_id is not null then
        perform duewheel.fifo_take_back(p_group_id, p_topic_id, v_retry_topic_id);
    end if;
    for v_turn in 0 .. v_queues - 1 loop
        -- Source 0 is that of the retries elsewhere; a FIFO topic has its retries in the backlogs.
        v_queue := (v_turn + p_first_source + v_queues - 1) % v_queues;
        -- Where another consumer is reading now, there is nothing for this one.
        continue when not pg_try_advisory_xact_lock(duewheel.queue_lock_key(p_group_id, p_topic_id, v_queue));
        v_now := coalesce(p_now, clock_timestamp());
        v_ends := v_now + p_invisible;
        select l.n, l.to_at, l.to_seq, l.straggler_to, l.revived_to, t.hi, t.queue_hi[v_queue + 1] as queue_hi,
               exists (
                    select from duewheel.lease e
                    where e.topic_id = p_topic_id and e.group_id = p_group_id and e.queue = v_queue
                      and e.message_count > 0 and e.expires_at > l.revived_to and e.expires_at <= v_now)
               or exists (
                    select from duewheel.lease_event e
                    where e.topic_id = p_topic_id and e.group_id = p_group_id and e.queue = v_queue
                      and e.expires_at is not null and e.expires_at > l.revived_to and e.expires_at <= v_now)
                    as has_ended,
               -- Read with hi: a straggler of a later tick may lie behind it, where the position must not go yet.
               coalesce((
                    select s.straggler_id from duewheel.straggler s
                    where s.topic_id = p_topic_id and s.queue = v_queue and s.straggler_id > l.straggler_to
                    order by s.straggler_id desc limit 1), l.straggler_to) as last_straggler
        into v_source
        from (
            select l.n, l.to_at, l.to_seq, l.straggler_to, l.revived_to from duewheel.lease l
            where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = v_queue order by l.n desc limit 1
        ) l left join lateral (
            select t.hi, t.queue_hi from duewheel.newest_tick(p_topic_id) t
        ) t on true;
        v_revived_to := v_now;
        if v_source.has_ended then
            select v_revive_room - r.leases, r.revived_to into v_revive_room, v_revived_to
            from duewheel.revive_leases(p_group_id, p_topic_id, v_queue, v_source.revived_to, v_now, p_now,
                                        v_revive_room) r;
        end if;
        v_n := v_source.n;
        v_at := v_source.to_at;
        v_seq := v_source.to_seq;
        if v_kept_from > v_at then
            v_at := v_kept_from - interval '1 microsecond';
            v_seq := c_last;
        end if;
        v_straggler_at := v_source.straggler_to;
        loop
            v_room := least(p_max - v_leased, p_chunk);
            v_held := 0;
            v_from_at := v_at;
            v_from_seq := v_seq;
            v_straggler_from := v_straggler_at;
            v_more := coalesce(v_source.queue_hi > v_at or (v_source.queue_hi = v_at and v_seq < c_last), false)
                or v_source.last_straggler > v_straggler_at;
            v_share := case when v_more then (v_room + (v_n + 1) % 2) / 2 else v_room end;
            if v_share > 0 then
                v_held := duewheel.fifo_lease_backlog(p_group_id, p_topic_id, v_queue, v_n + 1, v_now, v_share);
            end if;
            v_shared := v_held;

            v_step := greatest(v_room - v_held, 16);
            while v_more and v_held < v_room and v_parked < 10000 loop
                -- Stragglers and the interval are read as one stream in the order of delivery: a straggler that is due behind
                -- the position waits until the position has come there. What was sent after it is due later still.
                select s.straggler_id, s.deliver_at, s.seq into v_straggler from duewheel.straggler s
                where s.topic_id = p_topic_id and s.queue = v_queue
                  and s.straggler_id > v_straggler_at and s.straggler_id <= v_source.last_straggler
                order by s.straggler_id limit 1;
                v_is_straggler := found and (v_straggler.deliver_at, v_straggler.seq) <= (v_at, v_seq);
                if v_is_straggler then
                    select max(s.straggler_id) into v_straggler_to from (
                        select s.straggler_id,
                               bool_and((s.deliver_at, s.seq) <= (v_at, v_seq)) over (order by s.straggler_id) as is_passed
                        from (
                            select s.straggler_id, s.deliver_at, s.seq from duewheel.straggler s
                            where s.topic_id = p_topic_id and s.queue = v_queue
                              and s.straggler_id > v_straggler_at and s.straggler_id <= v_source.last_straggler
                            order by s.straggler_id limit v_step) s
                    ) s where s.is_passed;
                    select array_agg(f.deliver_at), array_agg(f.seq), array_agg(f.message_group), array_agg(f.attempt),
                           array_agg(f.straggler_id)
                    into v_ats, v_seqs, v_message_groups, v_attempts, v_ids
                    from (
                        select m.deliver_at, m.seq, coalesce(m.message_group, '') as message_group, m.attempt,
                               s.straggler_id
                        from (
                            select s.straggler_id, s.deliver_at, s.seq from duewheel.straggler s
                            where s.topic_id = p_topic_id and s.queue = v_queue
                              and s.straggler_id > v_straggler_at and s.straggler_id <= v_straggler_to
                            order by s.straggler_id offset 0
                        ) s
                        cross join lateral (
                            select * from duewheel.any_message m
                            where m.topic_id = p_topic_id and m.queue = v_queue
                              and m.deliver_at >= s.deliver_at and m.deliver_at <= s.deliver_at and m.seq = s.seq
                            order by m.deliver_at, m.seq limit 1) m
                        where (v_every or ((p_tags is null or m.tag = any (p_tags))
                               and (p_filter is null or coalesce(m.properties, '{}') @@ p_filter)))
                          and (select true from duewheel.recall r
                               where r.topic_id = p_topic_id and r.queue = v_queue
                                 and r.deliver_at = m.deliver_at and r.seq = m.seq limit 1) is null
                        order by s.straggler_id
                    ) f;
                else
                    -- As far as the next straggler's place.
                    v_to := coalesce(v_straggler.deliver_at, v_source.hi);
                    v_to_seq := coalesce(v_straggler.seq, c_last);
                    select pg_snapshot_xmin(t.snapshot) into v_xmin from duewheel.tick t
                    where t.topic_id = p_topic_id and t.hi >= v_at and (t.hi > v_at or v_seq < c_last)
                    order by t.hi, t.tick_id limit 1;
                    select array_agg(f.deliver_at), array_agg(f.seq), array_agg(f.message_group), array_agg(f.attempt)
                    into v_ats, v_seqs, v_message_groups, v_attempts
                    from (
                        select m.deliver_at, m.seq, coalesce(m.message_group, '') as message_group, m.attempt
                        from duewheel.any_message m
                        where m.topic_id = p_topic_id and m.queue = v_queue
                          and (m.deliver_at, m.seq) > (v_at, v_seq) and m.deliver_at >= v_at
                          and m.deliver_at <= v_to and (m.deliver_at, m.seq) <= (v_to, v_to_seq)
                          and (m.xid < v_xmin or pg_visible_in_snapshot(m.xid, (
                                select t.snapshot from duewheel.tick_over(p_topic_id, m.deliver_at) t)))
                          and (v_every or ((p_tags is null or m.tag = any (p_tags))
                               and (p_filter is null or coalesce(m.properties, '{}') @@ p_filter)))
                          and (select true from duewheel.recall r
                               where r.topic_id = p_topic_id and r.queue = v_queue
                                 and r.deliver_at = m.deliver_at and r.seq = m.seq limit 1) is null
                        order by m.deliver_at, m.seq limit v_step
                    ) f;
                end if;
                v_seen := coalesce(cardinality(v_ats), 0);
                v_sorted := 0;
                if v_seen > 0 then
                    select i.sorted, i.leased into v_sorted, v_count
                    from duewheel.fifo_sort_in(p_group_id, p_topic_id, v_queue, v_n + 1, v_room - v_held, v_ats, v_seqs,
                                               v_message_groups, v_attempts) i;
                    v_held := v_held + v_count;
                    v_parked := v_parked + v_sorted - v_count;
                end if;
                if v_is_straggler then
                    v_straggler_at := case when v_sorted < v_seen then v_ids[v_sorted] else v_straggler_to end;
                elsif v_sorted < v_seen or v_seen = v_step then
                    v_at := v_ats[v_sorted];
                    v_seq := v_seqs[v_sorted];
                else
                    v_at := v_to;
                    v_seq := v_to_seq;
                end if;
                v_step := least(v_step * 4, 10000);
                v_more := v_straggler.straggler_id is not null or v_source.hi > v_at
                    or (v_source.hi = v_at and v_seq < c_last);
            end loop;
            if v_held < v_room and v_share < v_room and v_shared = v_share then
                v_held := v_held + duewheel.fifo_lease_backlog(
                    p_group_id, p_topic_id, v_queue, v_n + 1, v_now, v_room - v_held);
            end if;

            if v_held > 0 then
                -- What is left of a message group is looked at when this lease has been answered.
                perform duewheel.fifo_mark_first(
                    p_group_id, p_topic_id, v_queue,
                    duewheel.fifo_groups_of_lease(p_group_id, p_topic_id, v_queue, v_n + 1), v_n + 1);
            end if;
            if v_held > 0 or (v_from_at, v_from_seq, v_straggler_from) <> (v_at, v_seq, v_straggler_at)
               or (v_source.has_ended and v_n = v_source.n) then
                -- Without messages only the position moves, and the mark up to which leases were looked at.
                v_n := v_n + 1;
                v_token := case when v_held > 0 then duewheel.new_token() else 0 end;
                insert into duewheel.lease
                    (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
                     message_count, tags, filter, consumer, listed, leased_at, expires_at, revived_to)
                values (p_topic_id, p_group_id, v_queue, v_n, v_token, v_from_at, v_from_seq, v_at, v_seq,
                        v_straggler_from, v_straggler_at, v_held, p_tags, p_filter, p_consumer, true, v_now,
                        case when v_held > 0 then v_ends else v_now end, v_revived_to);
            end if;
            exit when v_held = 0;
            v_leased := v_leased + v_held;
            if p_rows then
                return query
                select null::duewheel.lease_handle, m.deliver_at, m.seq, m.born_at, m.asked_at, m.tag, m.key,
                       m.properties, m.message_group, m.body, h.attempt,
                       case when m.origin_seq is not null then duewheel.message_id(
                           m.origin_topic_id, m.origin_queue, m.origin_deliver_at, m.origin_seq) end
                from duewheel.lease_message h
                -- In an order that the primary key alone gives: of a slot that was empty another index looks as good.
                cross join lateral (
                    select * from duewheel.any_message m
                    where m.topic_id = h.source_topic_id and m.queue = h.source_queue
                      and m.deliver_at >= h.deliver_at and m.deliver_at <= h.deliver_at and m.seq = h.seq
                    order by m.deliver_at, m.seq limit 1) m
                where h.topic_id = p_topic_id and h.group_id = p_group_id and h.queue = v_queue and h.n = v_n
                order by h.place_n, h.deliver_at, h.seq;
            end if;
            lease := (p_topic_id, v_queue, v_n, v_token, v_ends, v_held)::duewheel.lease_handle;
            return next;
            exit when v_leased >= p_max or v_held < v_room;
        end loop;
        exit when v_leased >= p_max;
    end loop;
    -- A tick must be on disk before its messages are handed out, or a recall could come after them.
    if not p_durable and not v_released then
        perform set_config('synchronous_commit', 'off', true);
    end if;
end
$$;

-- Puts what was sent again (redriven dead letters) from the group's retries into the backlogs: each behind the messages of
-- its message group that were seen by now. It stays a message of the retries; only its place is elsewhere.
create or replace function duewheel.fifo_take_back(p_group_id integer, p_topic_id integer, p_retry_topic_id integer)
returns void
language plpgsql as $$
declare
    v_source record;
begin
    for v_source in
        select l.n, l.to_at, l.to_seq, l.straggler_to, l.revived_to, t.hi, g.last_id
        from (
            select l.n, l.to_at, l.to_seq, l.straggler_to, l.revived_to from duewheel.lease l
            where l.topic_id = p_retry_topic_id and l.group_id = p_group_id and l.queue = 0 order by l.n desc limit 1
        ) l
        cross join lateral (
            select t.hi, t.queue_hi from duewheel.newest_tick(p_retry_topic_id) t
        ) t
        cross join lateral (
            select coalesce(max(s.straggler_id), l.straggler_to) as last_id from duewheel.straggler s
            where s.topic_id = p_retry_topic_id and s.queue = 0 and s.straggler_id > l.straggler_to
        ) g
        where (t.queue_hi[1] > l.to_at or (t.queue_hi[1] = l.to_at and l.to_seq < 9223372036854775807)
               or g.last_id > l.straggler_to)
          and pg_try_advisory_xact_lock(duewheel.queue_lock_key(p_group_id, p_retry_topic_id, 0))
    loop
        -- Another consumer may have done it just before this one had the lock.
        continue when exists (
            select from duewheel.lease l
            where l.topic_id = p_retry_topic_id and l.group_id = p_group_id and l.queue = 0 and l.n > v_source.n);
        insert into duewheel.fifo_backlog
            (topic_id, group_id, queue, message_group, place_n, deliver_at, seq, source_topic_id, source_queue, attempt,
             blocked_n, reason)
        select p_topic_id, p_group_id, m.origin_queue, coalesce(m.message_group, ''), l.n, m.deliver_at, m.seq,
               p_retry_topic_id, 0, m.attempt, 0, m.reason
        from (
            select m.* from duewheel.any_message m
            where m.topic_id = p_retry_topic_id and m.queue = 0
              and (m.deliver_at, m.seq) > (v_source.to_at, v_source.to_seq) and m.deliver_at >= v_source.to_at
              and m.deliver_at <= v_source.hi
              and pg_visible_in_snapshot(m.xid, (
                    select t.snapshot from duewheel.tick_over(p_retry_topic_id, m.deliver_at) t))
            union all
            select m.* from duewheel.straggler s
            join duewheel.any_message m
              on m.topic_id = s.topic_id and m.queue = s.queue and m.deliver_at = s.deliver_at and m.seq = s.seq
            where s.topic_id = p_retry_topic_id and s.queue = 0
              and s.straggler_id > v_source.straggler_to and s.straggler_id <= v_source.last_id
        ) m
        -- A rewind takes them back this way.
        left join duewheel.recall r
          on r.topic_id = m.topic_id and r.queue = m.queue and r.deliver_at = m.deliver_at and r.seq = m.seq
        cross join lateral (
            select l.n from duewheel.lease l
            where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = m.origin_queue
            order by l.n desc limit 1
        ) l
        where r.seq is null;
        insert into duewheel.lease
            (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
             message_count, listed, leased_at, expires_at, revived_to)
        values (p_retry_topic_id, p_group_id, 0, v_source.n + 1, 0, v_source.to_at, v_source.to_seq, v_source.hi,
                9223372036854775807, v_source.straggler_to, v_source.last_id, 0, true, v_source.revived_to,
                v_source.revived_to, v_source.revived_to);
    end loop;
end
$$;

-- Puts back what an answer gives back of a FIFO lease, in its place: the messages p_seqs, or all without an answer for null,
-- for a retry due at p_due_at, or after the group's interval where that is null; the unanswered ones behind them in their
-- message groups, without a retry. The last retry of a message ends it as a dead letter, and its message group goes on.
-- Answers the numbers of those that were put back without a retry.
create or replace function duewheel.fifo_fail(
    p_lease duewheel.lease, p_seqs bigint[], p_reason text, p_due_at timestamptz, p_now timestamptz,
    out failed integer, out returned bigint[]
)
language plpgsql as $$
declare
    -- Before the clock is read: dead letters are sends too.
    v_xid constant xid8 := pg_current_xact_id();
    v_now timestamptz;
    v_group duewheel.consumer_group;
    v_dead_letter_topic_id integer;
    v_answered bigint[];
    v_due_at timestamptz;
    v_message_groups text[];
    v_row duewheel.fifo_backlog;
begin
    returned := '{}';
    v_now := coalesce(p_now, clock_timestamp());
    select * into v_group from duewheel.consumer_group g where g.group_id = (p_lease).group_id;
    select s.dead_letter_topic_id into v_dead_letter_topic_id from duewheel.subscription s
    where s.group_id = (p_lease).group_id and s.topic_id = (p_lease).topic_id;
    select coalesce(array_agg(a.seq), '{}') into v_answered
    from duewheel.message_answers((p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n) a;
    if v_dead_letter_topic_id is null then
        -- Broadcasting: what failed is passed over.
        select count(*) into failed from duewheel.lease_message m
        where m.topic_id = (p_lease).topic_id and m.group_id = (p_lease).group_id and m.queue = (p_lease).queue
          and m.n = (p_lease).n and (p_seqs is null or m.seq = any (p_seqs)) and m.seq <> all (v_answered);
        return;
    end if;
    v_due_at := case
        when p_due_at is null then v_now + v_group.ordered_interval
        -- Ended: due since then.
        when p_due_at = '-infinity' then least(v_now, (p_lease).expires_at)
        else p_due_at end;
    with open_message as materialized (
        select m.*, p_seqs is null or m.seq = any (p_seqs) as has_failed
        from duewheel.lease_message m
        where m.topic_id = (p_lease).topic_id and m.group_id = (p_lease).group_id and m.queue = (p_lease).queue
          and m.n >= (p_lease).n and m.n <= (p_lease).n and m.seq <> all (v_answered)
        order by m.n, m.place_n, m.deliver_at, m.seq
    ), touched as materialized (
        -- Of a slot that was dropped meanwhile there is nothing to put back: what is behind it goes on.
        select m.*,
               (m.has_failed and m.attempt > v_group.ordered_max_retries) or not exists (
                    select from duewheel.any_message a
                    where a.topic_id = m.source_topic_id and a.queue = m.source_queue and a.deliver_at = m.deliver_at
                      and a.seq = m.seq) as is_dead
        from (
            select m.*, bool_or(m.has_failed) over (
                partition by m.message_group order by m.place_n, m.deliver_at, m.seq) as is_behind
            from open_message m
        ) m where m.is_behind
    ), dead as (
        insert into duewheel.any_message
            (topic_id, queue, deliver_at, seq, born_at, tag, key, properties, message_group, body, attempt,
             origin_topic_id, origin_queue, origin_deliver_at, origin_seq, reason)
        select v_dead_letter_topic_id, 0, greatest(v_now, m.born_at), nextval('duewheel.message_block') * 65536, m.born_at,
               m.tag, m.key, m.properties, m.message_group, m.body, t.attempt,
               coalesce(m.origin_topic_id, m.topic_id), coalesce(m.origin_queue, m.queue),
               coalesce(m.origin_deliver_at, m.deliver_at), coalesce(m.origin_seq, m.seq), p_reason
        from touched t
        join duewheel.any_message m
          on m.topic_id = t.source_topic_id and m.queue = t.source_queue and m.deliver_at = t.deliver_at and m.seq = t.seq
        where t.is_dead
    ), put_back as (
        insert into duewheel.fifo_backlog
            (topic_id, group_id, queue, message_group, place_n, deliver_at, seq, source_topic_id, source_queue, attempt,
             due_at, reason)
        select t.topic_id, t.group_id, t.queue, t.message_group, t.place_n, t.deliver_at, t.seq, t.source_topic_id,
               t.source_queue, t.attempt + t.has_failed::integer,
               -- The first one says when the message group goes on.
               case when row_number() over (
                        partition by t.message_group order by t.place_n, t.deliver_at, t.seq) = 1
                    then case when t.has_failed then v_due_at else v_now end end,
               case when t.has_failed then p_reason end
        from touched t where not t.is_dead
    )
    select count(*) filter (where t.has_failed), coalesce(array_agg(t.seq) filter (where not t.has_failed), '{}'),
           array_agg(distinct t.message_group) filter (where not t.is_dead)
    into failed, returned, v_message_groups
    from touched t;
    -- What was behind this lease is behind those now.
    for v_row in
        select * from duewheel.fifo_backlog b
        where b.topic_id = (p_lease).topic_id and b.group_id = (p_lease).group_id and b.queue = (p_lease).queue
          and b.blocked_n >= (p_lease).n and b.blocked_n <= (p_lease).n and b.message_group = any (v_message_groups)
        order by b.blocked_n, b.message_group
    loop
        update duewheel.fifo_backlog b set blocked_n = null
        where b.topic_id = v_row.topic_id and b.group_id = v_row.group_id and b.queue = v_row.queue
          and b.message_group = v_row.message_group and b.place_n = v_row.place_n
          and b.deliver_at = v_row.deliver_at and b.seq = v_row.seq;
    end loop;
    -- Whoever waits should look again when there is something next.
    perform duewheel.announce('duewheel_released', (p_lease).topic_id::text);
end
$$;

-- Forgets the messages of a slot that is dropped unread. The caller has a short lock timeout.
create or replace function duewheel.fifo_forget_slot(p_slot duewheel.slot) returns void
language plpgsql as $$
declare
    v_source record;
    v_message_groups text[];
begin
    for v_source in
        select distinct b.group_id, b.topic_id, b.queue from duewheel.fifo_backlog b
        where b.deliver_at >= (p_slot).starts_at and b.deliver_at < (p_slot).ends_at
        order by b.group_id, b.topic_id, b.queue
    loop
        perform pg_advisory_xact_lock(
            duewheel.queue_lock_key(v_source.group_id, v_source.topic_id, v_source.queue));
        with gone as (
            delete from duewheel.fifo_backlog b
            where b.topic_id = v_source.topic_id and b.group_id = v_source.group_id and b.queue = v_source.queue
              and b.deliver_at >= (p_slot).starts_at and b.deliver_at < (p_slot).ends_at
            returning b.message_group
        )
        select array_agg(distinct g.message_group) into v_message_groups from gone g;
        perform duewheel.fifo_mark_first(v_source.group_id, v_source.topic_id, v_source.queue, v_message_groups, 0);
    end loop;
end
$$;

-- How many messages of a queue can be leased now, counted up to p_limit, the oldest of them, and whether there are more to
-- look at than were looked at. p_to_at, p_to_seq and p_straggler_to: the group's position; p_hi: how far is released.
create or replace function duewheel.fifo_ready(
    p_group_id integer, p_topic_id integer, p_queue integer, p_to_at timestamptz, p_to_seq bigint, p_straggler_to bigint,
    p_hi timestamptz, p_now timestamptz, p_limit bigint,
    out ready bigint, out oldest_deliver_at timestamptz, out has_more boolean
)
language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set jit = off
as $$
declare
    v_ats timestamptz[];
    v_message_groups text[];
    v_count bigint;
    v_oldest timestamptz;
begin
    select count(*), min(b.deliver_at) into ready, oldest_deliver_at
    from duewheel.fifo_backlog_rows(
        p_group_id, p_topic_id, p_queue,
        array(select * from duewheel.fifo_free_groups(p_group_id, p_topic_id, p_queue, 9223372036854775807, p_now, p_limit)),
        p_now, p_limit) b;
    select array_agg(f.deliver_at), array_agg(f.message_group) into v_ats, v_message_groups
    from (
        select m.deliver_at, coalesce(m.message_group, '') as message_group
        from (
            (select m.deliver_at, m.seq, m.message_group from duewheel.any_message m
             where m.topic_id = p_topic_id and m.queue = p_queue::smallint
               and (m.deliver_at, m.seq) > (p_to_at, p_to_seq) and m.deliver_at >= p_to_at and m.deliver_at <= p_hi
             order by m.deliver_at, m.seq limit 10000)
            union
            (select m.deliver_at, m.seq, m.message_group
             from (select s.* from duewheel.straggler s
                   where s.topic_id = p_topic_id and s.queue = p_queue::smallint and s.straggler_id > p_straggler_to
                   order by s.straggler_id limit 10000) s
             cross join lateral (
                select * from duewheel.any_message m
                where m.topic_id = p_topic_id and m.queue = p_queue::smallint
                  and m.deliver_at >= s.deliver_at and m.deliver_at <= s.deliver_at and m.seq = s.seq
                order by m.deliver_at, m.seq limit 1) m)
        ) m
        where (select true from duewheel.recall r
               where r.topic_id = p_topic_id and r.queue = p_queue::smallint and r.deliver_at = m.deliver_at
                 and r.seq = m.seq limit 1) is null
    ) f;
    has_more := coalesce(cardinality(v_ats) >= 10000, false);
    select count(*), min(f.deliver_at) into v_count, v_oldest
    from unnest(v_ats, v_message_groups) f (deliver_at, message_group)
    join (
        select distinct g.message_group from unnest(v_message_groups) g (message_group)
    ) g on g.message_group = f.message_group
    where case
        when (select true from duewheel.fifo_backlog b
              where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
                and b.message_group = g.message_group limit 1)
            then duewheel.fifo_is_free(p_group_id, p_topic_id, p_queue, g.message_group, 9223372036854775807, p_now)
        else duewheel.fifo_holder(p_group_id, p_topic_id, p_queue, g.message_group) is null
    end;
    ready := least(ready + v_count, p_limit);
    oldest_deliver_at := least(oldest_deliver_at, v_oldest);
end
$$;

-- When a retry in the backlog of a queue comes due next, in (p_from, p_to].
create or replace function duewheel.fifo_next_retry(
    p_group_id integer, p_topic_id integer, p_queue integer, p_from timestamptz, p_to timestamptz
) returns timestamptz
language sql stable
begin atomic
    select b.due_at from duewheel.fifo_backlog b
    where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
      and b.due_at > p_from and b.due_at <= p_to
    order by b.due_at limit 1;
end;
