-- Receiving: a group leases the next range of a queue. The position moves by the lease row itself; nothing is updated.

create or replace function duewheel.new_token() returns bigint
language sql volatile
return (random() * 9007199254740991)::bigint;

-- Ticks the topic and the group's retries where something may have come due. Answers whether anything was released here.
create or replace function duewheel.tick_subscription(p_group_id integer, p_topic_id integer, p_now timestamptz)
returns boolean
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set jit = off
as $$
declare
    v_now constant timestamptz := coalesce(p_now, clock_timestamp() - interval '1 microsecond');
    v_released boolean := false;
    v_topic record;
    v_tick record;
begin
    for v_topic in
        -- What has been due for a second is not being released by anybody who gets on: then this one waits for the lock.
        select t.topic_id, least(due.deliver_at, held.deliver_at) < v_now - interval '1 second' as is_overdue
        from duewheel.topic t
        left join lateral (
            select k.hi, k.open_count, k.by_wheel from duewheel.newest_tick(t.topic_id) k
        ) k on true
        left join lateral (
            select b.deliver_at from duewheel.held_back b
            where b.topic_id = t.topic_id and (b.deliver_at <= v_now or t.message_type = 'FIFO')
            order by b.deliver_at limit 1
        ) held on true
        left join lateral (
            select m.deliver_at from generate_series(0, t.queues - 1) q cross join lateral (
                select m.deliver_at from duewheel.any_message m
                where m.topic_id = t.topic_id and m.queue = q::smallint and m.deliver_at > coalesce(k.hi, '-infinity')
                  and m.deliver_at <= v_now
                order by m.deliver_at, m.seq limit 1) m
            limit 1
        ) due on true
        where t.topic_id in (
            p_topic_id,
            (select s.retry_topic_id from duewheel.subscription s
             where s.group_id = p_group_id and s.topic_id = p_topic_id))
          -- A wheel that has just ticked comes again by itself.
          and (p_now is not null or k.by_wheel is not true or v_now >= k.hi + 2 * t.granularity)
          and (k.open_count > 0 or due.deliver_at is not null or held.deliver_at is not null)
    loop
        v_tick := duewheel.tick_topic(v_topic.topic_id, p_now, false, coalesce(v_topic.is_overdue, false));
        v_released := v_released or v_tick.released;
    end loop;
    return v_released;
end
$$;

-- Answers how many queues a subscription reads, its topic's and one for retries, the topic of the retries, and its type.
create or replace function duewheel.check_receive(
    p_group_id integer, p_topic_id integer, p_max bigint, p_chunk integer, p_invisible interval, p_now timestamptz,
    out sources integer, out retry_topic_id integer, out message_type text
)
language plpgsql as $$
#variable_conflict use_column
declare
    v_seen_at timestamptz;
begin
    perform duewheel.require_read_committed();
    if p_max is null or p_max < 1 or p_chunk is null or p_chunk < 1 or p_chunk > 1000000 then
        raise exception using
            errcode = 'DW010',
            message = format('max is %s and chunk is %s; the limits are 1 or more, and 1 to 1000000', p_max, p_chunk),
            hint = 'Give numbers within the limits.';
    end if;
    perform duewheel.check_invisible(p_invisible);
    select t.queues + 1, s.retry_topic_id, t.message_type, s.seen_at
    into sources, retry_topic_id, message_type, v_seen_at
    from duewheel.subscription s join duewheel.topic t on t.topic_id = s.topic_id
    where s.group_id = p_group_id and s.topic_id = p_topic_id and t.deleted_at is null;
    if not found then
        raise exception using
            errcode = 'DW001',
            message = 'this subscription is gone: its topic or its group was deleted, or it was a broadcasting '
                      'instance that had not received for longer than the topic''s retention',
            hint = 'Make the topic, or the consumer, again.';
    end if;
    -- Only broadcasting instances have it; upkeep forgets those that have not been seen for long.
    if v_seen_at < coalesce(p_now, clock_timestamp()) - interval '1 hour' then
        update duewheel.subscription s set seen_at = coalesce(p_now, clock_timestamp())
        where s.group_id = p_group_id and s.topic_id = p_topic_id;
    end if;
end
$$;

create or replace function duewheel.check_invisible(p_invisible interval) returns void
language plpgsql immutable as $$
begin
    if p_invisible is null or p_invisible < interval '1 second' or p_invisible > interval '12 hours' then
        raise exception using
            errcode = 'DW010',
            message = format('the invisible duration is %s; the limit is 1 second to 12 hours', p_invisible),
            hint = 'Give a duration within the limit; a lease can be extended while the work goes on.';
    end if;
end
$$;

-- Leases the next messages of a subscription, queue by queue, each under its lock, and slot by slot, one lease row each.
-- For every lease a row with its handle comes back (the message's columns null), and with p_rows before it the messages it
-- covers (the handle null): what is the same for thousands of messages is said once. origin_id is the message id of a retry.
create or replace function duewheel.receive_batch(
    p_group_id integer, p_topic_id integer, p_tags text[], p_max bigint, p_invisible interval, p_consumer text,
    -- Where the walk over the queues begins; changes from call to call.
    p_first_source integer,
    -- False: the lease need not be on disk when the call returns. A crash that loses it delivers again.
    p_durable boolean,
    p_now timestamptz default null,
    -- False: release nothing; for callers that have just done so.
    p_tick boolean default true,
    -- Without rows: no lease covers more.
    p_chunk integer default 1000000,
    p_rows boolean default true,
    -- A predicate over the properties, {} where a message has none; with p_tags, both must choose a message.
    p_filter jsonpath default null
) returns setof duewheel.leased_message
-- One plan for every position: slots are pruned when it runs, and it walks the primary key however small a slot is yet.
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_sources integer;
    v_retry_topic_id integer;
    v_message_type text;
    v_kept_from timestamptz;
    v_released boolean := false;
    v_source record;
    v_topic_id integer;
    v_queue smallint;
    v_tags text[];
    v_filter jsonpath;
    -- Neither tags nor a filter choose among the messages.
    v_every boolean;
    v_now timestamptz;
    v_ends timestamptz;
    v_at timestamptz;
    v_seq bigint;
    v_n bigint;
    v_straggler_at bigint;
    v_straggler_to bigint;
    v_no_recalls boolean;
    v_to timestamptz;
    v_to_seq bigint;
    v_xmin xid8;
    v_limit bigint;
    v_rows refcursor;
    v_last record;
    v_token bigint;
    v_count bigint;
    v_leased bigint := 0;
    v_revived integer := 0;
    v_revive_room integer := duewheel.revive_limit();
    v_revived_to timestamptz;
begin
    if p_now is not null then
        perform duewheel.require_clock_right(p_now);
    end if;
    select t.queues + 1, s.retry_topic_id, t.message_type, t.kept_from
    into v_sources, v_retry_topic_id, v_message_type, v_kept_from
    from duewheel.subscription s join duewheel.topic t on t.topic_id = s.topic_id
    where s.group_id = p_group_id and s.topic_id = p_topic_id and t.deleted_at is null and s.seen_at is null;
    -- What is right at a glance needs no closer look.
    if (v_sources > 0 and p_max >= 1 and p_chunk between 1 and 1000000
        and p_invisible between interval '1 second' and interval '12 hours'
        and current_setting('transaction_isolation') = 'read committed'
        and current_setting('duewheel.home', true) = 'duewheel.broker'::regclass::oid::text) is not true
    then
        select checked.sources, checked.retry_topic_id, checked.message_type, t.kept_from
        into v_sources, v_retry_topic_id, v_message_type, v_kept_from
        from duewheel.check_receive(p_group_id, p_topic_id, p_max, p_chunk, p_invisible, p_now) checked
        join duewheel.topic t on t.topic_id = p_topic_id;
    end if;
    if v_message_type = 'FIFO' then
        return query
        select * from duewheel.receive_fifo(p_group_id, p_topic_id, p_tags, p_max, p_invisible, p_consumer, p_first_source,
                                            p_durable, p_now, p_tick, p_chunk, p_rows, p_filter);
        return;
    end if;
    if p_tick then
        v_released := duewheel.tick_subscription(p_group_id, p_topic_id, p_now);
    end if;
    -- The walk stops at the first queue that fills the batch.
    for v_step in 0 .. v_sources loop
        -- Source 0 is the retries' one queue, the others are the topic's.
        v_queue := (v_step + p_first_source) % v_sources - 1;
        if v_step = v_sources then
            -- What was revived on the way is due again.
            exit when v_revived = 0;
            v_released := (duewheel.tick_topic(v_retry_topic_id, p_now, false, false)).released or v_released;
            v_queue := -1;
        end if;
        if v_queue >= 0 then
            v_topic_id := p_topic_id;
            v_tags := p_tags;
            v_filter := p_filter;
        else
            -- A group without retries has no such topic.
            continue when v_retry_topic_id is null;
            v_topic_id := v_retry_topic_id;
            v_queue := 0;
            v_tags := null;
            v_filter := null;
        end if;
        v_every := v_tags is null and v_filter is null;
        -- Where another consumer is reading now, there is nothing for this one.
        continue when not pg_try_advisory_xact_lock(duewheel.queue_lock_key(p_group_id, v_topic_id, v_queue));
        v_now := coalesce(p_now, clock_timestamp());
        v_ends := v_now + p_invisible;
        select l.n, l.to_at, l.to_seq, l.straggler_to, l.revived_to, t.hi,
               t.queue_hi[v_queue + 1] > l.to_at
                   or (t.queue_hi[v_queue + 1] = l.to_at and l.to_seq < 9223372036854775807) as has_messages,
               -- Ordered, as then one index alone will do, whatever the tables held when the plan was made.
               (select s.straggler_id from duewheel.straggler s
                where s.topic_id = v_topic_id and s.queue = v_queue and s.straggler_id > l.straggler_to
                order by s.straggler_id limit 1) is not null as has_stragglers,
               (select e.expires_at from duewheel.lease e
                where e.topic_id = v_topic_id and e.group_id = p_group_id and e.queue = v_queue
                  and e.message_count > 0 and e.expires_at > l.revived_to and e.expires_at <= v_now
                order by e.expires_at limit 1) is not null
               or (select e.expires_at from duewheel.lease_event e
                   where e.topic_id = v_topic_id and e.group_id = p_group_id and e.queue = v_queue
                     and e.expires_at is not null and e.expires_at > l.revived_to and e.expires_at <= v_now
                   order by e.expires_at limit 1) is not null as has_ended
        into v_source
        from (
            select l.n, l.to_at, l.to_seq, l.straggler_to, l.revived_to from duewheel.lease l
            where l.topic_id = v_topic_id and l.group_id = p_group_id and l.queue = v_queue order by l.n desc limit 1
        ) l left join lateral (
            select t.hi, t.queue_hi from duewheel.newest_tick(v_topic_id) t
        ) t on true;
        v_revived_to := v_now;
        if v_source.has_ended then
            if not coalesce(v_source.has_messages or v_source.has_stragglers, false)
               and (v_revive_room = 0
                    or not duewheel.has_ended_leases(p_group_id, v_topic_id, v_queue, v_source.revived_to, v_now)) then
                continue;
            end if;
            select v_revived + r.messages, v_revive_room - r.leases, r.revived_to
            into v_revived, v_revive_room, v_revived_to
            from duewheel.revive_leases(p_group_id, v_topic_id, v_queue, v_source.revived_to, v_now, p_now,
                                        v_revive_room) r;
        elsif not coalesce(v_source.has_messages or v_source.has_stragglers, false) then
            continue;
        end if;
        v_n := v_source.n;
        v_at := v_source.to_at;
        v_seq := v_source.to_seq;
        if v_kept_from > v_at and v_queue >= 0 and v_topic_id = p_topic_id then
            -- A broadcasting instance that is behind: what was recalled before is forgotten.
            v_at := v_kept_from - interval '1 microsecond';
            v_seq := 9223372036854775807;
        end if;
        v_straggler_at := v_source.straggler_to;

        if v_source.has_stragglers then
            -- They are late already and go first.
            v_limit := least(p_max - v_leased, p_chunk);
            select max(s.straggler_id) into v_straggler_to from (
                select s.straggler_id from duewheel.straggler s
                where s.topic_id = v_topic_id and s.queue = v_queue and s.straggler_id > v_straggler_at
                order by s.straggler_id limit v_limit) s;
            if v_straggler_to is not null then
                open v_rows no scroll for
                    select null::duewheel.lease_handle, m.deliver_at, m.seq, m.born_at, m.asked_at, m.tag, m.key,
                           m.properties, m.message_group, m.body, m.attempt,
                           case when m.origin_seq is not null then duewheel.message_id(
                               m.origin_topic_id, m.origin_queue, m.origin_deliver_at, m.origin_seq) end
                    from (
                        select s.straggler_id, s.deliver_at, s.seq from duewheel.straggler s
                        where s.topic_id = v_topic_id and s.queue = v_queue
                          and s.straggler_id > v_straggler_at and s.straggler_id <= v_straggler_to
                        order by s.straggler_id offset 0
                    ) s
                    -- A look-up by the key for each; as a join all messages of the queue might be read for each.
                    cross join lateral (
                        select * from duewheel.any_message m
                        where m.topic_id = v_topic_id and m.queue = v_queue
                          and m.deliver_at >= s.deliver_at and m.deliver_at <= s.deliver_at and m.seq = s.seq
                        order by m.deliver_at, m.seq limit 1) m
                    where (v_every or ((v_tags is null or m.tag = any (v_tags))
                           and (v_filter is null or coalesce(m.properties, '{}') @@ v_filter)))
                      and (select true from duewheel.recall r
                           where r.topic_id = v_topic_id and r.queue = v_queue
                             and r.deliver_at = m.deliver_at and r.seq = m.seq limit 1) is null
                    order by s.straggler_id;
                if p_rows then
                    return query execute format('fetch all from %I', v_rows);
                else
                    move forward all from v_rows;
                end if;
                get diagnostics v_count = row_count;
                close v_rows;
                v_n := v_n + 1;
                v_token := duewheel.new_token();
                insert into duewheel.lease
                    (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from,
                     straggler_to, message_count, tags, filter, consumer, leased_at, expires_at, revived_to)
                values (v_topic_id, p_group_id, v_queue, v_n, v_token, v_at, v_seq, v_at, v_seq, v_straggler_at,
                        v_straggler_to, v_count, v_tags, v_filter, p_consumer, v_now, v_ends, v_revived_to);
                v_straggler_at := v_straggler_to;
                v_leased := v_leased + v_count;
                if v_count > 0 then
                    return query
                    select (v_topic_id, v_queue, v_n, v_token, v_ends, v_count)::duewheel.lease_handle,
                           null::timestamptz, null::bigint, null::timestamptz, null::timestamptz, null::text, null::text,
                           null::jsonb, null::text, null::bytea, null::integer, null::text;
                end if;
            end if;
        end if;

        while v_leased < p_max and (v_source.hi > v_at or (v_source.hi = v_at and v_seq < 9223372036854775807)) loop
            -- A row between two ticks' bounds belongs to the first tick whose hi reaches it; ids below the oldest such
            -- snapshot's xmin are seen by every tick from there on. Behind the end of a tick that is the next one.
            select pg_snapshot_xmin(t.snapshot), not exists (
                    select from duewheel.recall r
                    where r.topic_id = v_topic_id and r.queue = v_queue and r.deliver_at >= v_at
                      and r.deliver_at <= v_source.hi)
            into v_xmin, v_no_recalls
            from duewheel.tick t
            where t.topic_id = v_topic_id and t.hi >= v_at and (t.hi > v_at or v_seq < 9223372036854775807)
            order by t.hi, t.tick_id limit 1;
            v_to := v_source.hi;
            v_to_seq := 9223372036854775807;
            v_limit := case when p_rows then p_max - v_leased else least(p_max - v_leased, p_chunk) end;
            -- The limit in the look for a recall keeps the planner from hashing all recalls.
            open v_rows no scroll for
                select null::duewheel.lease_handle, m.deliver_at, m.seq, m.born_at, m.asked_at, m.tag, m.key,
                       m.properties, m.message_group, m.body, m.attempt,
                       case when m.origin_seq is not null then duewheel.message_id(
                           m.origin_topic_id, m.origin_queue, m.origin_deliver_at, m.origin_seq) end
                from duewheel.any_message m
                where m.topic_id = v_topic_id and m.queue = v_queue
                  and (m.deliver_at, m.seq) > (v_at, v_seq) and m.deliver_at >= v_at
                  and m.deliver_at <= v_to and (m.deliver_at, m.seq) <= (v_to, v_to_seq)
                  and (m.xid < v_xmin or pg_visible_in_snapshot(m.xid, (
                        select t.snapshot from duewheel.tick_over(v_topic_id, m.deliver_at) t)))
                  and (v_every or ((v_tags is null or m.tag = any (v_tags))
                       and (v_filter is null or coalesce(m.properties, '{}') @@ v_filter)))
                  and (v_no_recalls or (
                        select true from duewheel.recall r
                        where r.topic_id = v_topic_id and r.queue = v_queue
                          and r.deliver_at = m.deliver_at and r.seq = m.seq limit 1) is null)
                order by m.deliver_at, m.seq;
            -- All but the last go into the answer at once. The range of a full batch ends at its last message, any other at
            -- the end of what may be read.
            v_count := 0;
            if v_limit > 1 then
                if p_rows then
                    return query execute format('fetch %s from %I', v_limit - 1, v_rows);
                else
                    move forward (v_limit - 1) from v_rows;
                end if;
                get diagnostics v_count = row_count;
            end if;
            if v_count = v_limit - 1 then
                fetch v_rows into v_last;
                if found then
                    v_count := v_limit;
                    v_to := v_last.deliver_at;
                    v_to_seq := v_last.seq;
                    if p_rows then
                        return next v_last;
                    end if;
                end if;
            end if;
            close v_rows;
            if v_count > 0 then
                v_n := v_n + 1;
                v_leased := v_leased + v_count;
                return query insert into duewheel.lease
                    (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
                     message_count, tags, filter, consumer, leased_at, expires_at, revived_to)
                values (v_topic_id, p_group_id, v_queue, v_n, duewheel.new_token(), v_at, v_seq, v_to, v_to_seq,
                        v_straggler_at, v_straggler_at, v_count, v_tags, v_filter, p_consumer, v_now, v_ends,
                        v_revived_to)
                returning (topic_id, queue, n, token, expires_at, message_count)::duewheel.lease_handle,
                          null::timestamptz, null::bigint, null::timestamptz, null::timestamptz, null::text, null::text,
                          null::jsonb, null::text, null::bytea, null::integer, null::text;
            end if;
            v_at := v_to;
            v_seq := v_to_seq;
        end loop;

        if v_n = v_source.n then
            -- Nothing to lease: only the position moves on, past what is recalled or of other tags.
            insert into duewheel.lease
                (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
                 message_count, tags, filter, consumer, leased_at, expires_at, revived_to)
            values (v_topic_id, p_group_id, v_queue, v_n + 1, 0, v_source.to_at, v_source.to_seq, v_at, v_seq,
                    v_straggler_at, v_straggler_at, 0, v_tags, v_filter, p_consumer, v_now, v_now,
                    v_revived_to);
        end if;
        exit when v_leased >= p_max;
    end loop;
    -- A tick must be on disk before its messages are handed out, or a recall could come after them.
    if not p_durable and not v_released then
        perform set_config('synchronous_commit', 'off', true);
    end if;
end
$$;

-- Leases up to p_max messages without returning them, at most p_chunk in one lease: for jobs that read their leases in
-- parallel, each by duewheel.lease_query or duewheel.lease_rows. One row per lease.
create or replace function duewheel.lease_range(
    p_group_id integer, p_topic_id integer, p_tags text[], p_max bigint, p_chunk integer, p_invisible interval, p_consumer text,
    p_now timestamptz default null, p_filter jsonpath default null
) returns table (
    topic_id integer, queue smallint, lease_n bigint, lease_token bigint, expires_at timestamptz, lease_count integer
)
language sql
begin atomic
    select (r.lease).topic_id, (r.lease).queue::smallint, (r.lease).n, (r.lease).token, (r.lease).expires_at,
           (r.lease).message_count
    from duewheel.receive_batch(
        p_group_id, p_topic_id, p_tags, p_max, p_invisible, p_consumer, 0, true, p_now, true, p_chunk, false, p_filter) r;
end;

-- When the group could next have something: now where something is ready, the next due instant or lease end of the next
-- minute, else null.
create or replace function duewheel.next_due(p_group_id integer, p_topic_id integer, p_now timestamptz default null)
returns timestamptz
-- One plan for all, by the keys, though tables were small when it was made.
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set jit = off
as $$
declare
    v_now constant timestamptz := coalesce(p_now, clock_timestamp());
    v_to constant timestamptz := v_now + interval '1 minute';
    v_position record;
    v_one timestamptz;
    v_next timestamptz;
    v_fifo constant boolean := duewheel.is_fifo(p_topic_id);
begin
    if p_now is not null then
        perform duewheel.require_clock_right(p_now);
    end if;
    perform duewheel.require_home();
    for v_position in select * from duewheel.positions(p_group_id, p_topic_id) loop
        if duewheel.has_ended_leases(p_group_id, v_position.topic_id, v_position.queue, v_position.revived_to, v_now) then
            return v_now;
        end if;
        if v_fifo and v_position.topic_id = p_topic_id then
            if (select r.ready > 0 or r.has_more
                from duewheel.fifo_ready(p_group_id, p_topic_id, v_position.queue, v_position.to_at, v_position.to_seq,
                                         v_position.straggler_to, v_position.hi, v_now, 1) r) then
                return v_now;
            end if;
            v_next := least(v_next, duewheel.fifo_next_retry(p_group_id, p_topic_id, v_position.queue, v_now, v_to));
        elsif v_position.queue_hi > v_position.to_at
            or (v_position.queue_hi = v_position.to_at and v_position.to_seq < 9223372036854775807)
            or exists (
                select from duewheel.straggler s
                where s.topic_id = v_position.topic_id and s.queue = v_position.queue
                  and s.straggler_id > v_position.straggler_to)
        then
            return v_now;
        end if;
        select m.deliver_at into v_one from duewheel.any_message m
        where m.topic_id = v_position.topic_id and m.queue = v_position.queue
          and m.deliver_at > coalesce(v_position.hi, '-infinity') and m.deliver_at <= v_to
        order by m.deliver_at, m.seq limit 1;
        v_next := least(v_next, v_one);
        select b.deliver_at into v_one from duewheel.held_back b
        where b.topic_id = v_position.topic_id and b.deliver_at <= v_to order by b.deliver_at limit 1;
        v_next := least(v_next, v_one);
        v_next := least(v_next, duewheel.next_lease_end(
            p_group_id, v_position.topic_id, v_position.queue, v_now, v_to));
    end loop;
    return v_next;
end
$$;
