-- Receiving: a group leases the next range of a queue. The position moves by the lease row itself; nothing is updated.

create or replace function duewheel.new_token() returns bigint
language sql volatile
return (random() * 9007199254740991)::bigint;

-- Until when what came due after a wheel's tick is left to the wheel, which comes again after the granularity.
create or replace function duewheel.wheel_comes_by(p_hi timestamptz, p_granularity interval) returns timestamptz
language sql immutable parallel safe
return p_hi + p_granularity + least(p_granularity, interval '1 second');

-- Answers how many queues a subscription reads, its topic's and one for retries, the topic of the retries, and its
-- type.
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

-- Where a group stands in one queue, and what there is for it.
-- has_messages: something was due in the queue that it has not seen. last_straggler: the newest one of the queue; read
-- with hi, as a straggler of a later tick may lie behind it, where the position must not go yet. seen_below: every tick
-- from the first one behind the position on sees the transactions below this. no_recalls: nothing up to hi is recalled.
create or replace function duewheel.queue_state(p_group_id integer, p_topic_id integer, p_queue smallint)
returns table (
    n bigint, to_at timestamptz, to_seq bigint, straggler_to bigint, revived_to timestamptz, hi timestamptz,
    has_messages boolean, last_straggler bigint, seen_below xid8, no_recalls boolean
)
language sql stable rows 1
begin atomic
    select p.n, p.to_at, p.to_seq, p.straggler_to, p.revived_to, p.hi,
           coalesce((p.queue_hi, duewheel.last_seq()) > (p.to_at, p.to_seq), false),
           -- Ordered, as then one index alone will do, whatever the tables held when the plan was made.
           coalesce((
                select s.straggler_id from duewheel.straggler s
                where s.topic_id = p_topic_id and s.queue = p_queue and s.straggler_id > p.straggler_to
                order by s.straggler_id desc limit 1), p.straggler_to),
           (select pg_snapshot_xmin(t.snapshot) from duewheel.tick_behind(p_topic_id, p.to_at, p.to_seq) t),
           (select true from duewheel.recall r
            where r.topic_id = p_topic_id and r.queue = p_queue and r.deliver_at >= p.to_at and r.deliver_at <= p.hi
            order by r.deliver_at limit 1) is null
    from duewheel.position_in(p_group_id, p_topic_id, p_queue) p;
end;

-- The queues of a subscription in which there is something, in the order of a walk from p_first_source: source 0 is the
-- one queue of the retries, here -1, the others are the topic's. One look without locks, so that a receive locks no
-- queue in vain.
create or replace function duewheel.ready_queues(
    p_group_id integer, p_topic_id integer, p_queues integer, p_first_source integer
) returns setof smallint
language sql stable
begin atomic
    select (p.ordinal - 1)::smallint
    from duewheel.positions(p_group_id, p_topic_id) p
    where (p.queue_hi, duewheel.last_seq()) > (p.to_at, p.to_seq)
       or (select true from duewheel.straggler s
           where s.topic_id = p.topic_id and s.queue = p.queue and s.straggler_id > p.straggler_to
           order by s.straggler_id limit 1)
    order by (p.ordinal - p_first_source % (p_queues + 1) + p_queues + 1) % (p_queues + 1);
end;

-- Leases the next messages of a subscription: walks over its queues, each under its lock, and notes what it takes of
-- each as a range, or on a FIFO topic message by message (duewheel.fifo_lease). One lease covers a range, or
-- stragglers. For every lease a row with its handle comes back (the message's columns null), and with p_rows before it
-- the messages it covers (the handle null): what is the same for thousands of messages is said once. origin_id is the
-- message id of a retry.
create or replace function duewheel.receive_batch(
    p_group_id integer, p_topic_id integer, p_tags text[], p_max bigint, p_invisible interval, p_consumer text,
    -- Where the walk over the queues begins; changes from call to call.
    p_first_source integer,
    -- False: the lease need not be on disk when the call returns. A crash that loses it delivers again.
    p_durable boolean,
    p_now timestamptz default null,
    -- True: the walk begins in the queue p_first_source, of which the caller has just got a full batch.
    p_stays boolean default false,
    -- No lease covers more.
    p_chunk integer default 1000000,
    p_rows boolean default true,
    -- A predicate over the properties, {} where a message has none; with p_tags, both must choose a message.
    p_filter jsonpath default null
) returns setof duewheel.leased_message
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_queues integer;
    v_retry_topic_id integer;
    v_listed boolean;
    v_kept_from timestamptz;
    -- The walk: the queues it goes to, how far it is, and whether all with messages were added. -1 is the one queue of
    -- the retries.
    v_walk smallint[] := '{}';
    v_step integer := 0;
    v_looked boolean := false;
    v_topic_id integer;
    v_queue smallint;
    v_tags text[];
    v_filter jsonpath;
    v_every boolean;
    v_now timestamptz;
    -- Where the group stands in a queue, what it begins from there, and what one lease begins from.
    v_n bigint;
    v_at timestamptz;
    v_seq bigint;
    v_straggler bigint;
    v_first_n bigint;
    v_from_at timestamptz;
    v_from_seq bigint;
    v_from_straggler bigint;
    v_hi timestamptz;
    v_has_messages boolean;
    v_last_straggler bigint;
    v_seen_below xid8;
    v_no_recalls boolean;
    v_revived_to timestamptz;
    v_room bigint;
    v_count bigint;
    v_done boolean;
    v_rows refcursor;
    -- The cursor is one for the whole queue, and reads no messages.
    v_by_place boolean;
    v_row duewheel.leased_message;
    v_handle duewheel.lease_handle;
    v_leased bigint := 0;
    v_parked bigint := 0;
begin
    if p_now is not null then
        perform duewheel.require_clock_right(p_now);
    end if;
    select t.queues, s.retry_topic_id, t.message_type = 'FIFO', t.kept_from
    into v_queues, v_retry_topic_id, v_listed, v_kept_from
    from duewheel.subscription s join duewheel.topic t on t.topic_id = s.topic_id
    where s.group_id = p_group_id and s.topic_id = p_topic_id and t.deleted_at is null and s.seen_at is null;
    -- Plain arguments need no closer look.
    if (v_queues > 0 and p_max >= 1 and p_chunk between 1 and 1000000
        and p_invisible between interval '1 second' and interval '12 hours'
        and current_setting('transaction_isolation') = 'read committed'
        and current_setting('duewheel.home', true) = 'duewheel.broker'::regclass::oid::text) is not true
    then
        select checked.sources - 1, checked.retry_topic_id, checked.message_type = 'FIFO', t.kept_from
        into v_queues, v_retry_topic_id, v_listed, v_kept_from
        from duewheel.check_receive(p_group_id, p_topic_id, p_max, p_chunk, p_invisible, p_now) checked
        join duewheel.topic t on t.topic_id = p_topic_id;
    end if;
    if v_listed then
        -- Retries stand in the backlogs; what is ready there is not seen from outside, so the walk goes to every queue.
        perform duewheel.fifo_take_back(p_group_id, p_topic_id, v_retry_topic_id);
        v_walk := array(
            select ((p_first_source + turn - 1) % v_queues)::smallint
                   from generate_series(v_queues, 2 * v_queues - 1) turn);
        v_looked := true;
    elsif p_stays then
        -- It needs no look at the others as long as that fills its batches.
        v_walk := array[(p_first_source % (v_queues + 1) - 1)::smallint];
    end if;
    while v_leased < p_max loop
        if v_step = cardinality(v_walk) then
            exit when v_looked;
            v_looked := true;
            v_walk := v_walk || array(
                select * from duewheel.ready_queues(p_group_id, p_topic_id, v_queues, p_first_source));
            continue;
        end if;
        v_step := v_step + 1;
        v_queue := v_walk[v_step];
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
        select * into v_n, v_at, v_seq, v_straggler, v_revived_to, v_hi, v_has_messages, v_last_straggler, v_seen_below,
                      v_no_recalls
        from duewheel.queue_state(p_group_id, v_topic_id, v_queue);
        continue when not found or not (v_listed or v_has_messages or v_last_straggler > v_straggler);
        -- Leases that are taken after a clock was set back end before the mark, and must be found.
        v_revived_to := least(v_revived_to, v_now);
        -- Ten times a second will do in a queue that is being read: this look costs as much as reading one message.
        -- Leases that have ended are left to a wheel, or to duewheel.tick.
        if v_now >= v_revived_to + interval '100 milliseconds'
           and not duewheel.has_ended_leases(p_group_id, v_topic_id, v_queue, v_revived_to, v_now) then
            v_revived_to := v_now;
        end if;
        if v_kept_from > v_at and v_topic_id = p_topic_id then
            -- A broadcasting instance that is behind: what was recalled before is forgotten.
            v_at := v_kept_from - interval '1 microsecond';
            v_seq := duewheel.last_seq();
        end if;
        v_first_n := v_n;
        v_by_place := not p_rows and v_every and v_no_recalls and v_has_messages and not v_listed
            and v_last_straggler = v_straggler;
        if v_by_place then
            open v_rows no scroll for
                select * from duewheel.range_places(v_topic_id, v_queue, v_at, v_seq, v_hi) m
                order by m.deliver_at, m.seq;
            v_by_place := not duewheel.has_unseen(v_topic_id, v_queue, v_at, v_hi);
            if not v_by_place then
                close v_rows;
            end if;
        end if;

        loop
            v_room := least(p_max - v_leased, p_chunk);
            v_from_at := v_at;
            v_from_seq := v_seq;
            v_from_straggler := v_straggler;
            v_count := 0;
            v_done := false;
            if v_listed then
                select * into v_at, v_seq, v_straggler, v_parked, v_count
                from duewheel.fifo_lease(
                    p_group_id, p_topic_id, v_queue, v_n + 1, v_room, v_now, v_hi, v_has_messages, v_last_straggler,
                    v_every, v_tags, v_filter, v_at, v_seq, v_straggler, v_parked);
                v_has_messages := (v_hi, duewheel.last_seq()) > (v_at, v_seq);
                v_done := v_count < v_room;
                if p_rows and v_count > 0 then
                    return query select * from duewheel.fifo_rows(p_group_id, p_topic_id, v_queue, v_n + 1);
                end if;
            elsif v_last_straggler > v_straggler then
                -- They are late already and go first.
                select coalesce(max(s.straggler_id), v_last_straggler) into v_straggler from (
                    select s.straggler_id from duewheel.straggler s
                    where s.topic_id = v_topic_id and s.queue = v_queue
                      and s.straggler_id > v_from_straggler and s.straggler_id <= v_last_straggler
                    order by s.straggler_id limit v_room) s;
                open v_rows no scroll for
                    select l.*
                    from duewheel.straggler_rows(
                        v_topic_id, v_queue, v_from_straggler, v_straggler, v_every, v_tags, v_filter) r
                    cross join lateral duewheel.as_leased(r.message) l
                    order by r.straggler_id;
                if p_rows then
                    return query execute format('fetch all from %I', v_rows);
                else
                    move forward all from v_rows;
                end if;
                get diagnostics v_count = row_count;
                close v_rows;
            elsif (v_hi, duewheel.last_seq()) > (v_at, v_seq) then
                -- The range of a full batch ends at its last message, any other at the end of what may be read.
                if v_room = 1 and v_every and v_no_recalls and not v_by_place then
                    -- The same rows, without a cursor, and without conditions that are true.
                    select * into v_row
                    from duewheel.range_rows(v_topic_id, v_queue, v_at, v_seq, v_hi, duewheel.last_seq(), v_seen_below,
                                             true, null, null, true) m
                    order by m.deliver_at, m.seq limit 1;
                    v_done := not found;
                else
                    if not v_by_place then
                        open v_rows no scroll for
                            select * from duewheel.range_rows(
                                v_topic_id, v_queue, v_at, v_seq, v_hi, duewheel.last_seq(), v_seen_below, v_every,
                                v_tags, v_filter, v_no_recalls) m
                            order by m.deliver_at, m.seq;
                    end if;
                    -- All but the last go into the answer at once.
                    if v_room > 1 then
                        if p_rows then
                            return query execute format('fetch %s from %I', v_room - 1, v_rows);
                        else
                            move forward (v_room - 1) from v_rows;
                        end if;
                        get diagnostics v_count = row_count;
                    end if;
                    v_done := v_count < v_room - 1;
                    if not v_done then
                        fetch v_rows into v_row;
                        v_done := not found;
                    end if;
                    if not v_by_place then
                        close v_rows;
                    end if;
                end if;
                if v_done then
                    v_at := v_hi;
                    v_seq := duewheel.last_seq();
                else
                    v_count := v_room;
                    v_at := v_row.deliver_at;
                    v_seq := v_row.seq;
                    if p_rows then
                        return next v_row;
                    end if;
                end if;
            else
                v_done := true;
            end if;
            v_leased := v_leased + v_count;
            v_done := v_done or v_leased >= p_max;

            -- Without messages only the position moves on, past what is recalled or of other tags.
            if v_count > 0 or v_straggler > v_from_straggler
               or ((v_listed or v_n = v_first_n) and (v_at, v_seq) <> (v_from_at, v_from_seq))
            then
                v_n := v_n + 1;
                insert into duewheel.lease
                    (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from,
                     straggler_to,
                     message_count, tags, filter, consumer, listed, leased_at, expires_at, revived_to)
                values (v_topic_id, p_group_id, v_queue, v_n, case when v_count > 0 then duewheel.new_token()
                        else 0 end,
                        v_from_at, v_from_seq, v_at, v_seq, v_from_straggler, v_straggler, v_count, v_tags, v_filter,
                        p_consumer, v_listed, v_now, case when v_count > 0 then v_now + p_invisible else v_now end,
                        v_revived_to)
                returning topic_id, queue, n, token, expires_at, message_count into v_handle;
                if v_count > 0 then
                    return next duewheel.lease_row(v_handle);
                end if;
            end if;
            exit when v_done;
        end loop;
        if v_by_place then
            close v_rows;
        end if;
    end loop;
    if not p_durable then
        perform set_config('synchronous_commit', 'off', true);
    end if;
end
$$;

-- When the group could next have something: now where something is ready, the next due instant or lease end of the next
-- minute, else null.
create or replace function duewheel.next_due(p_group_id integer, p_topic_id integer, p_now timestamptz default null)
returns timestamptz
language plpgsql set plan_cache_mode = force_generic_plan as $$
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
        if duewheel.has_ended_leases(p_group_id, v_position.topic_id, v_position.queue, v_position.revived_to,
                                     v_now) then
            return v_now;
        end if;
        if v_fifo and v_position.topic_id = p_topic_id then
            if (select c.ready > 0 or c.unread >= 10000
                from duewheel.count_ready(p_group_id, p_topic_id, v_position.queue, v_now, 1) c) then
                return v_now;
            end if;
            v_next := least(v_next, duewheel.fifo_next_retry(p_group_id, p_topic_id, v_position.queue, v_now, v_to));
        elsif (v_position.queue_hi, duewheel.last_seq()) > (v_position.to_at, v_position.to_seq)
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
        -- A message that is due in a wheel's rest is released after it.
        v_next := least(v_next, greatest(v_one, case when v_one is not null then (
            select duewheel.wheel_comes_by(k.hi, t.granularity)
            from duewheel.topic t cross join lateral duewheel.newest_tick(t.topic_id) k
            where t.topic_id = v_position.topic_id and k.by_wheel) end));
        select b.deliver_at into v_one from duewheel.held_back b
        where b.topic_id = v_position.topic_id and b.deliver_at <= v_to order by b.deliver_at limit 1;
        v_next := least(v_next, v_one);
        v_next := least(v_next, duewheel.next_lease_end(
            p_group_id, v_position.topic_id, v_position.queue, v_now, v_to));
    end loop;
    return v_next;
end
$$;
