-- Receiving: a group leases the next range of a queue. The position moves by the lease row itself; nothing is updated.

create or replace function duewheel.new_token() returns bigint
language sql volatile
return (random() * 9007199254740991)::bigint;

-- The instant until which messages due after a wheel's tick are left to the wheel, which ticks again after the
-- granularity.
create or replace function duewheel.wheel_comes_by(p_hi timestamptz, p_granularity interval) returns timestamptz
language sql stable parallel safe
return p_hi + p_granularity + least(p_granularity, interval '1 second');

-- The settings for a walk over the queues of a subscription: the number of its topic's queues, the topic of its
-- retries, whether its topic is of type FIFO, the instant from which a broadcasting instance reads, and whether the
-- group is paused.
create or replace function duewheel.check_receive(
    p_group_id integer, p_topic_id integer, p_max bigint, p_chunk integer, p_invisible interval, p_now timestamptz,
    out queues integer, out retry_topic_id integer, out is_fifo boolean, out is_paused boolean,
    out tags text[], out filter jsonpath
)
language plpgsql as $$
#variable_conflict use_column
declare
    v_seen_at timestamptz;
begin
    -- One expression checks the usual case, in which all is well.
    if (p_max > 0 and p_chunk between 1 and duewheel.portion() and p_now is null
        and p_invisible between interval '1 second' and interval '12 hours'
        and current_setting('transaction_isolation') = 'read committed'
        and current_setting('duewheel.home', true) = 'duewheel.broker'::regclass::oid::text) is not true
    then
        perform duewheel.require_read_committed();
        perform duewheel.clock_at(p_now) where p_now is not null;
        -- In a session's first receive only the session had to be checked.
        if (p_max > 0 and p_chunk between 1 and duewheel.portion()
            and p_invisible between interval '1 second' and interval '12 hours') is not true
        then
            perform duewheel.check_limit('max', p_max, 1, 9223372036854775807);
            perform duewheel.check_limit('chunk', p_chunk, 1, duewheel.portion());
            perform duewheel.check_invisible(p_invisible);
        end if;
    end if;
    select t.queues, s.retry_topic_id, t.message_type = 'FIFO', s.paused_at is not null, s.tags, s.filter, s.seen_at
    into queues, retry_topic_id, is_fifo, is_paused, tags, filter, v_seen_at
    from duewheel.subscription s join duewheel.topic t on t.topic_id = s.topic_id
    where s.group_id = p_group_id and s.topic_id = p_topic_id and t.deleted_at is null;
    if not found then
        perform duewheel.raise_gone(p_topic_id);
    end if;
    -- Only broadcasting instances have it; upkeep forgets instances that have not been seen for long.
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
            message = format('invisible must be 1 second to 12 hours; got %s', p_invisible),
            hint = 'Give a span of time within these limits. A lease can be extended during the work.';
    end if;
end
$$;

-- The position of a group in one queue, and whether there is something for it.
-- has_messages: a message was due in the queue that the group has not seen. last_straggler: the newest straggler of the
-- queue; read together with hi, because a straggler of a later tick may follow it, which the position must not pass.
-- seen_below: every tick from the first one after the position on sees the transactions below this. no_recalls: nothing
-- up to hi is recalled. none_late: no message up to hi is a straggler.
--
-- Every receive runs this, and its cost is the start of the plan. So it names its columns; functions would return whole
-- rows. It reads on from the end of the newest lease, whatever the topic's kept_from is: an earlier tick sees less, and
-- an earlier recall is one more.
create or replace function duewheel.queue_state(p_group_id integer, p_topic_id integer, p_queue smallint)
returns table (
    n bigint, to_at timestamptz, to_seq bigint, straggler_to bigint, revived_to timestamptz, leased_at timestamptz,
    hi timestamptz, has_messages boolean, last_straggler bigint, seen_below xid8, no_recalls boolean, none_late boolean
)
language sql stable rows 1
begin atomic
    select l.n,
           case when k.kept_from > l.to_at then k.kept_from - interval '1 microsecond' else l.to_at end,
           case when k.kept_from > l.to_at then duewheel.last_seq() else l.to_seq end,
           l.straggler_to, l.revived_to, l.leased_at, t.hi,
           coalesce((t.queue_hi[p_queue + 1], duewheel.last_seq()) > (l.to_at, l.to_seq)
                    and (k.kept_from > t.queue_hi[p_queue + 1]) is not true, false),
           coalesce((
                select s.straggler_id from duewheel.straggler s
                where s.topic_id = p_topic_id and s.queue = p_queue and s.straggler_id > l.straggler_to
                order by s.straggler_id desc limit 1), l.straggler_to),
           -- Like duewheel.tick_behind.
           (select pg_snapshot_xmin(b.snapshot) from duewheel.tick b
            where b.topic_id = p_topic_id and b.hi >= l.to_at and (b.hi > l.to_at or l.to_seq < duewheel.last_seq())
            order by b.hi, b.tick_id limit 1),
           (select true from duewheel.recall r
            where r.topic_id = p_topic_id and r.queue = p_queue and r.deliver_at >= l.to_at and r.deliver_at <= t.hi
            order by r.deliver_at limit 1) is null,
           (select true from duewheel.straggler s
            where s.topic_id = p_topic_id and s.queue = p_queue and s.deliver_at >= l.to_at and s.deliver_at <= t.hi
            order by s.deliver_at, s.seq limit 1) is null
    -- Each is ordered, so that one index is enough, whatever the tables held when the plan was made.
    from (
        select l.n, l.to_at, l.to_seq, l.straggler_to, l.revived_to, l.leased_at from duewheel.lease l
        where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue order by l.n desc limit 1) l
    cross join lateral (select k.kept_from from duewheel.topic k where k.topic_id = p_topic_id limit 1) k
    left join lateral (
        select t.hi, t.queue_hi from duewheel.tick t
        where t.topic_id = p_topic_id order by t.hi desc, t.tick_id desc limit 1) t on true;
end;

-- The queues of a subscription that have messages, in the order of a walk from p_first_source: source 0 is the queue of
-- the retries, here -1; sources from 1 on are queues of the topic. It takes no locks, so that a receive locks no queue
-- in vain.
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

-- Takes the lock of a queue and reads the group's position there; null if another consumer is reading the queue, which
-- leaves nothing for this one, or if the queue has no messages.
create or replace function duewheel.enter_queue(
    p_group_id integer, p_topic_id integer, p_queue smallint, p_is_fifo boolean, p_now timestamptz
) returns duewheel.queue_walk
language plpgsql as $$
declare
    v_walk duewheel.queue_walk;
begin
    if not pg_try_advisory_xact_lock(duewheel.queue_lock_key(p_group_id, p_topic_id, p_queue)) then
        return null;
    end if;
    select p_topic_id, p_queue, coalesce(p_now, clock_timestamp()), s.*, null, null, null, null, null, null, null
    into v_walk
    from duewheel.queue_state(p_group_id, p_topic_id, p_queue) s;
    if (p_is_fifo or v_walk.has_messages or v_walk.last_straggler > v_walk.straggler_to) is not true
       or v_walk.n is null then
        return null;
    end if;
    -- Leases that are taken after a clock was set back end before the mark, and must be found. A lease from before is
    -- shortened now, because only the newest lease shows that the clock was ahead.
    if greatest(v_walk.revived_to, v_walk.leased_at) > v_walk.now_at + interval '1 minute' then
        perform duewheel.shorten_leases(p_group_id, p_topic_id, p_queue, v_walk.now_at);
        v_walk.n := v_walk.n + 1;
    end if;
    v_walk.revived_to := least(v_walk.revived_to, v_walk.now_at);
    -- Ten times a second is enough in a queue that is being read: this check costs as much as reading one message.
    -- Leases that have ended are left to a wheel, or to duewheel.tick.
    if v_walk.now_at >= v_walk.revived_to + interval '100 milliseconds'
       and not duewheel.has_ended_leases(p_group_id, p_topic_id, p_queue, v_walk.revived_to, v_walk.now_at) then
        v_walk.revived_to := v_walk.now_at;
    end if;
    return v_walk;
end
$$;

-- A cursor over the next stragglers, which are late already and are delivered first. It reads p_most stragglers, and
-- yields up to p_room that are for the group. straggler_to: the last one that was passed.
create or replace function duewheel.open_stragglers(
    p_walk duewheel.queue_walk, p_room bigint, p_most bigint, p_tags text[], p_filter jsonpath,
    out straggler_to bigint, out rows refcursor
)
language plpgsql as $$
declare
    v_every constant boolean := p_tags is null and p_filter is null;
begin
    select coalesce(max(s.straggler_id), (p_walk).last_straggler) into straggler_to from (
        select s.straggler_id from duewheel.straggler s
        where s.topic_id = (p_walk).topic_id and s.queue = (p_walk).queue
          and s.straggler_id > (p_walk).straggler_to and s.straggler_id <= (p_walk).last_straggler
        order by s.straggler_id limit p_most) s;
    if p_most > p_room then
        straggler_to := coalesce((
            select r.straggler_id
            from duewheel.straggler_rows(
                (p_walk).topic_id, (p_walk).queue, (p_walk).straggler_to, straggler_to, v_every, p_tags, p_filter) r
            order by r.straggler_id offset p_room - 1 limit 1), straggler_to);
    end if;
    open rows no scroll for
        select l.*
        from duewheel.straggler_rows(
            (p_walk).topic_id, (p_walk).queue, (p_walk).straggler_to, straggler_to, v_every, p_tags, p_filter) r
        cross join lateral duewheel.as_leased(r.message) l
        order by r.straggler_id;
end
$$;

-- A cursor over the released messages of a queue after the position. Without p_rows, and if all of them are for the
-- group, it reads only their places, and no message. If some are not, it passes p_most messages at most, whether they
-- are for the group or not; a second cursor has the place of the last of p_most. Stable, so both use one snapshot.
create or replace function duewheel.open_range(
    p_walk duewheel.queue_walk, p_tags text[], p_filter jsonpath, p_rows boolean, p_most bigint,
    out rows refcursor, out ends refcursor
)
language plpgsql stable as $$
begin
    if num_nonnulls(p_tags, p_filter) > 0 or not (p_walk).no_recalls or not (p_walk).none_late then
        open rows no scroll for
            select l.*
            from (
                select m as message
                from duewheel.released_rows(
                    (p_walk).topic_id, (p_walk).queue, (p_walk).to_at, (p_walk).to_seq, (p_walk).hi,
                    duewheel.last_seq(), null, true, null, null, true) m
                order by m.deliver_at, m.seq limit p_most) r
            cross join lateral duewheel.as_leased(r.message) l
            where ((p_walk).seen_below is null or (r.message).xid < (p_walk).seen_below
                   or pg_visible_in_snapshot((r.message).xid, (
                        select t.snapshot from duewheel.tick_over((p_walk).topic_id, (r.message).deliver_at) t)))
              and (p_tags is null or (r.message).tag = any (p_tags))
              and (p_filter is null or coalesce(l.properties, '{}') @@ p_filter)
              and ((p_walk).no_recalls or (select true from duewheel.recall_of(
                    (p_walk).topic_id, (p_walk).queue, (r.message).deliver_at, (r.message).seq)) is null);
        open ends no scroll for
            select m.queue, m.deliver_at, m.seq
            from duewheel.released_rows(
                (p_walk).topic_id, (p_walk).queue, (p_walk).to_at, (p_walk).to_seq, (p_walk).hi, duewheel.last_seq(),
                null, true, null, null, true) m
            order by m.deliver_at, m.seq offset p_most - 1 limit 1;
        return;
    end if;
    if not p_rows then
        open rows no scroll for
            select * from duewheel.range_places(
                (p_walk).topic_id, (p_walk).queue, (p_walk).to_at, (p_walk).to_seq, (p_walk).hi) m
            order by m.deliver_at, m.seq;
        if duewheel.released_whole((p_walk).topic_id, (p_walk).queue, (p_walk).to_at, (p_walk).hi) then
            return;
        end if;
        close rows;
        rows := null;
    end if;
    open rows no scroll for
        select l.*
        from duewheel.released_rows(
            (p_walk).topic_id, (p_walk).queue, (p_walk).to_at, (p_walk).to_seq, (p_walk).hi, duewheel.last_seq(),
            (p_walk).seen_below, true, null, null, true) m
        cross join lateral duewheel.as_leased(m) l
        order by m.deliver_at, m.seq;
end
$$;

-- Stores the next lease of a queue, from p_from to the present place of the walk. A lease without messages only moves
-- the position.
create or replace function duewheel.note_lease(
    p_group_id integer, p_from duewheel.queue_walk, p_walk duewheel.queue_walk, p_count bigint, p_invisible interval,
    p_tags text[], p_filter jsonpath, p_consumer text, p_is_fifo boolean
) returns duewheel.lease_handle
language plpgsql as $$
declare
    v_handle duewheel.lease_handle;
begin
    insert into duewheel.lease
        (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
         message_count, tags, filter, consumer, listed, leased_at, expires_at, revived_to)
    values ((p_walk).topic_id, p_group_id, (p_walk).queue, (p_walk).n,
            case when p_count > 0 then duewheel.new_token() else 0 end, (p_from).to_at, (p_from).to_seq,
            (p_walk).to_at, (p_walk).to_seq, (p_from).straggler_to, (p_walk).straggler_to, p_count, p_tags, p_filter,
            p_consumer, p_is_fifo, (p_walk).now_at,
            case when p_count > 0 then (p_walk).now_at + p_invisible else (p_walk).now_at end, (p_walk).revived_to)
    returning topic_id, queue, n, token, expires_at, message_count into v_handle;
    return case when p_count > 0 then v_handle end;
end
$$;

-- Opens the cursor of the next step of a walk, which takes p_room messages at most and passes p_most.
create or replace function duewheel.open_step(
    p_walk duewheel.queue_walk, p_room bigint, p_most bigint, p_tags text[], p_filter jsonpath, p_rows boolean
) returns duewheel.queue_walk
language plpgsql as $$
declare
    v_opened record;
begin
    p_walk.takes_every := p_tags is null and p_filter is null;
    if (p_walk).last_straggler > (p_walk).straggler_to then
        -- Nearly always the group chooses all of them.
        p_walk.most_stragglers :=
            case when (p_walk).most_stragglers is null and p_walk.takes_every then p_room else p_most end;
        v_opened := duewheel.open_stragglers(p_walk, p_room, p_walk.most_stragglers, p_tags, p_filter);
        p_walk.rows := v_opened.rows;
        p_walk.next_straggler_to := v_opened.straggler_to;
    elsif (p_walk).rows is null then
        v_opened := duewheel.open_range(p_walk, p_tags, p_filter, p_rows, p_most);
        p_walk.rows := v_opened.rows;
        p_walk.ends := v_opened.ends;
    end if;
    return p_walk;
end
$$;

-- Ends that step, after p_count messages, the last of which is p_last. p_is_full: the receive is complete.
create or replace function duewheel.end_step(
    p_walk duewheel.queue_walk, p_last duewheel.leased_message, p_count bigint, p_room bigint, p_is_full boolean
) returns duewheel.queue_walk
language plpgsql as $$
declare
    v_rows constant refcursor := (p_walk).rows;
    v_ends constant refcursor := (p_walk).ends;
    v_is_last boolean := p_count < p_room;
    v_end duewheel.message_position;
begin
    if (p_walk).next_straggler_to is not null then
        p_walk.straggler_to := (p_walk).next_straggler_to;
        p_walk.ends_early := v_is_last and (p_walk).most_stragglers > p_room
            and p_walk.straggler_to < (p_walk).last_straggler;
        p_walk.next_straggler_to := null;
        v_is_last := true;
    else
        -- The lease ends at the newest release, not at its last message, so the next receive need not move the position
        -- by a lease without messages. The next consumer may have other tags.
        if p_is_full and not v_is_last and (p_walk).takes_every then
            move forward 1 from v_rows;
            v_is_last := not found;
        end if;
        if v_is_last and v_ends is not null then
            fetch v_ends into v_end;
            p_walk.ends_early := found;
        end if;
        p_walk.to_at := case when v_is_last then coalesce(v_end.deliver_at, (p_walk).hi) else (p_last).deliver_at end;
        p_walk.to_seq := case when v_is_last then coalesce(v_end.seq, duewheel.last_seq()) else (p_last).seq end;
    end if;
    if v_is_last or p_is_full then
        close v_rows;
        p_walk.rows := null;
        if v_ends is not null then
            close v_ends;
            p_walk.ends := null;
        end if;
    end if;
    return p_walk;
end
$$;

-- Leases the next messages of a subscription: walks over its queues, each under its lock, and stores what it leases as
-- a range, or on a FIFO topic message by message (duewheel.fifo_receive). One lease covers a range, or stragglers. For
-- every lease it returns a row with its handle (the message's columns null). With p_rows the messages of the lease
-- precede that row (the handle null), so the handle is not repeated for thousands of messages. origin_id is the message
-- id of a retry. In each queue a transaction passes at most a portion of messages that are recalled or not chosen. If
-- more follow, the last row is null as a whole: commit, and receive again. p_first_source: the first queue of the walk;
-- changes from call to call. p_durable: false: the lease need not be on disk when the call returns; a crash that loses
-- it delivers again. p_stays: the walk begins in the queue p_first_source, of which the caller has just got a full
-- batch. p_chunk: no lease covers more; at most a portion, because one transaction revives a lease that ended.
-- p_passes: how many messages of a queue that are recalled or not chosen the transaction passes; null for a portion.
-- role: consumer
create or replace function duewheel.receive_batch(
    p_group_id integer, p_topic_id integer, p_max bigint, p_invisible interval, p_consumer text,
    p_first_source integer, p_durable boolean, p_now timestamptz default null, p_stays boolean default false,
    p_chunk integer default duewheel.portion(), p_rows boolean default true,
    p_passes bigint default null
) returns setof duewheel.leased_message
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_reads record;
    -- The queues of the walk, its progress, and whether it knows all that have messages. -1: the queue of the retries.
    v_queues smallint[] := '{}';
    v_step integer := 0;
    v_knows_all boolean := false;
    -- In one queue: how the group chooses, its position, and the beginning of its newest lease.
    v_tags text[];
    v_filter jsonpath;
    v_walk duewheel.queue_walk;
    v_from duewheel.queue_walk;
    v_rows refcursor;
    v_last duewheel.leased_message;
    v_room bigint;
    v_count bigint;
    v_leased bigint := 0;
    v_is_cut boolean := false;
begin
    v_reads := duewheel.check_receive(p_group_id, p_topic_id, p_max, p_chunk, p_invisible, p_now);
    -- More than possible; sums with it are still a bigint.
    p_max := least(p_max, 1000000000000000);
    perform set_config('synchronous_commit', 'off', true) where not p_durable and not v_reads.is_paused;
    if v_reads.is_paused then
        return;
    elsif v_reads.is_fifo then
        return query select * from duewheel.fifo_receive(
            p_group_id, p_topic_id, v_reads.retry_topic_id, v_reads.queues, v_reads.tags, v_reads.filter, p_max,
            p_chunk, p_invisible, p_consumer, p_first_source, p_rows, p_now);
        return;
    elsif p_stays then
        -- It does not check the other queues as long as that one fills its batches.
        v_queues := array[(p_first_source % (v_reads.queues + 1) - 1)::smallint];
    end if;
    while v_leased < p_max loop
        if v_step = cardinality(v_queues) then
            exit when v_knows_all;
            v_knows_all := true;
            v_queues := v_queues || array(
                select * from duewheel.ready_queues(p_group_id, p_topic_id, v_reads.queues, p_first_source));
            continue;
        end if;
        v_step := v_step + 1;
        -- A group without retries has no retry topic.
        continue when v_queues[v_step] < 0 and v_reads.retry_topic_id is null;
        v_walk := duewheel.enter_queue(
            p_group_id, case when v_queues[v_step] < 0 then v_reads.retry_topic_id else p_topic_id end,
            greatest(v_queues[v_step], 0::smallint), false, p_now);
        continue when v_walk.n is null;
        v_tags := case when v_queues[v_step] >= 0 then v_reads.tags end;
        v_filter := case when v_queues[v_step] >= 0 then v_reads.filter end;
        loop
            v_from := v_walk;
            v_room := least(p_max - v_leased, p_chunk);
            v_count := 0;
            exit when v_walk.last_straggler = v_walk.straggler_to
                and (v_walk.hi, duewheel.last_seq()) <= (v_walk.to_at, v_walk.to_seq);
            if v_room <= 100 and p_rows and v_walk.last_straggler = v_walk.straggler_to and v_walk.none_late
               and v_walk.no_recalls and v_walk.rows is null and num_nonnulls(v_tags, v_filter) = 0 then
                -- A few messages, all of which are for the group, need no cursor.
                for v_last in
                    select l.*
                    from duewheel.released_rows(
                        v_walk.topic_id, v_walk.queue, v_from.to_at, v_from.to_seq, v_walk.hi, duewheel.last_seq(),
                        v_walk.seen_below, true, null, null, true) m
                    cross join lateral duewheel.as_leased(m) l
                    order by m.deliver_at, m.seq limit v_room + 1
                loop
                    v_count := v_count + 1;
                    exit when v_count > v_room;
                    v_walk.to_at := v_last.deliver_at;
                    v_walk.to_seq := v_last.seq;
                    return next v_last;
                end loop;
                if v_count > v_room then
                    v_count := v_room;
                else
                    v_walk.to_at := v_walk.hi;
                    v_walk.to_seq := duewheel.last_seq();
                end if;
            else
                v_walk := duewheel.open_step(
                    v_walk, v_room, p_max - v_leased + coalesce(p_passes, duewheel.portion()), v_tags, v_filter,
                    p_rows);
                v_rows := v_walk.rows;
                -- All but the last are returned at once.
                if v_room > 1 and p_rows then
                    return query execute format('fetch %s from %I', v_room - 1, v_rows);
                    get diagnostics v_count = row_count;
                elsif v_room > 1 then
                    move forward (v_room - 1) from v_rows;
                    get diagnostics v_count = row_count;
                end if;
                fetch v_rows into v_last;
                v_count := v_count + found::integer;
                if p_rows and v_last.seq is not null then
                    return next v_last;
                end if;
                v_walk := duewheel.end_step(v_walk, v_last, v_count, v_room, v_leased + v_count = p_max);
            end if;
            v_leased := v_leased + v_count;
            -- Without messages only the position moves, past messages that are recalled or have other tags.
            if v_count > 0 or v_walk.straggler_to > v_from.straggler_to
               or (v_walk.has_lease is not true and (v_walk.to_at, v_walk.to_seq) <> (v_from.to_at, v_from.to_seq))
            then
                v_walk.n := v_walk.n + 1;
                v_walk.has_lease := true;
                v_last := null;
                v_last.lease := duewheel.note_lease(
                    p_group_id, v_from, v_walk, v_count, p_invisible, v_tags, v_filter, p_consumer, false);
                if v_count > 0 then
                    return next v_last;
                end if;
            end if;
            exit when v_leased >= p_max or v_walk.ends_early;
        end loop;
        -- Messages follow that it might have taken.
        v_is_cut := v_is_cut or v_walk.ends_early;
    end loop;
    if v_is_cut then
        return next null::duewheel.leased_message;
    end if;
end
$$;

-- Whether the tick over an instant sees a transaction. In PL/pgSQL: an SQL function would be inlined, and each start of
-- a plan that seldom needs the answer would open the table of ticks.
create or replace function duewheel.is_seen(p_topic_id integer, p_deliver_at timestamptz, p_xid xid8) returns boolean
language plpgsql stable as $$
begin
    return (select pg_visible_in_snapshot(p_xid, t.snapshot) from duewheel.tick_over(p_topic_id, p_deliver_at) t);
end
$$;

-- The same for a consumer that stays in the queue p_first_source - 1 and wants few messages: most receives of single
-- messages. One statement finds out whether that queue has a full batch, all of it for the group and none of it late.
-- If not, and ten times a second, duewheel.receive_batch walks over the queues; it also raises the error for a wrong
-- parameter. First it acks a whole lease, if p_acked_n is given, like duewheel.answer.
-- role: consumer
create or replace function duewheel.receive_few(
    p_group_id integer, p_topic_id integer, p_max bigint, p_invisible interval, p_consumer text,
    p_first_source integer, p_durable boolean, p_now timestamptz default null, p_stays boolean default true,
    p_acked_topic_id integer default null, p_acked_queue integer default null, p_acked_n bigint default null,
    p_acked_token bigint default null
) returns setof duewheel.leased_message
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_queue smallint;
    v_now timestamptz;
    v_n bigint;
    v_from_at timestamptz;
    v_from_seq bigint;
    v_straggler_to bigint;
    v_revived_to timestamptz;
    v_hi timestamptz;
    v_seen_below xid8;
    v_to_at timestamptz;
    v_to_seq bigint;
    v_count bigint := 0;
    v_setting text;
    v_row duewheel.leased_message;
begin
    if p_acked_n is not null then
        -- The receive below raises the errors about the session, and the ack is then rolled back. This condition is
        -- apart from p_acked_n's, because a receive without an ack need not initialize it.
        if ((p_now is null or p_now = duewheel.clock_at(p_now))
            and pg_try_advisory_xact_lock(
                duewheel.lease_lock_key(p_group_id, p_acked_topic_id, p_acked_queue, p_acked_n))
            and duewheel.ack_whole(p_group_id, p_acked_topic_id, p_acked_queue, p_acked_n, p_acked_token, null, false,
                                   coalesce(p_now, clock_timestamp()))) is not true
        then
            perform duewheel.answer('ack', p_group_id, array[p_acked_topic_id], array[p_acked_queue],
                                    array[p_acked_n], array[p_acked_token], null, p_now => p_now);
        end if;
    end if;
    if (p_max between 1 and 32 and p_first_source between 1 and 256
        and p_invisible between interval '1 second' and interval '12 hours'
        and (p_now is null or p_now = duewheel.clock_at(p_now))
        and current_setting('transaction_isolation') = 'read committed'
        and current_setting('duewheel.home', true) = 'duewheel.broker'::regclass::oid::text
        and pg_try_advisory_xact_lock(duewheel.queue_lock_key(p_group_id, p_topic_id, p_first_source - 1))) is true
    then
        v_queue := p_first_source - 1;
        v_now := coalesce(p_now, clock_timestamp());
        -- Like duewheel.queue_state, with all cases for the long way as conditions.
        select l.n, l.to_at, l.to_seq, l.straggler_to, l.revived_to, t.hi,
               (select pg_snapshot_xmin(b.snapshot) from duewheel.tick b
                where b.topic_id = p_topic_id and b.hi >= l.to_at and (b.hi > l.to_at or l.to_seq < duewheel.last_seq())
                order by b.hi, b.tick_id limit 1)
        into v_n, v_from_at, v_from_seq, v_straggler_to, v_revived_to, v_hi, v_seen_below
        from (
            select s.tags, s.filter, s.paused_at, s.seen_at from duewheel.subscription s
            where s.group_id = p_group_id and s.topic_id = p_topic_id limit 1) s
        cross join lateral (
            select k.kept_from, k.message_type, k.deleted_at from duewheel.topic k
            where k.topic_id = p_topic_id limit 1) k
        cross join lateral (
            select l.n, l.to_at, l.to_seq, l.straggler_to, l.revived_to, l.leased_at from duewheel.lease l
            where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = v_queue order by l.n desc limit 1) l
        cross join lateral (
            select t.hi, t.queue_hi from duewheel.tick t
            where t.topic_id = p_topic_id order by t.hi desc, t.tick_id desc limit 1) t
        where num_nonnulls(s.tags, s.filter, s.paused_at, s.seen_at, k.deleted_at) = 0 and k.message_type <> 'FIFO'
          and (k.kept_from > l.to_at) is not true and t.queue_hi[v_queue + 1] >= l.to_at
          and l.revived_to > v_now - interval '100 milliseconds'
          and greatest(l.revived_to, l.leased_at) <= v_now + interval '1 minute'
          and (select true from duewheel.straggler s
               where s.topic_id = p_topic_id and s.queue = v_queue and s.straggler_id > l.straggler_to
               order by s.straggler_id limit 1) is null
          and (select true from duewheel.straggler s
               where s.topic_id = p_topic_id and s.queue = v_queue and s.deliver_at >= l.to_at and s.deliver_at <= t.hi
               order by s.deliver_at, s.seq limit 1) is null
          and (select true from duewheel.recall r
               where r.topic_id = p_topic_id and r.queue = v_queue and r.deliver_at >= l.to_at and r.deliver_at <= t.hi
               order by r.deliver_at limit 1) is null;
    end if;
    if v_n is not null then
        for v_row in
            -- Like duewheel.released_rows.
            select l.*
            from duewheel.any_message m
            cross join lateral duewheel.as_leased(m) l
            where m.topic_id = p_topic_id and m.queue = v_queue and (m.deliver_at, m.seq) > (v_from_at, v_from_seq)
              and m.deliver_at >= v_from_at and m.deliver_at <= v_hi
              and (m.xid < v_seen_below or duewheel.is_seen(p_topic_id, m.deliver_at, m.xid))
            order by m.deliver_at, m.seq limit p_max + 1
        loop
            v_count := v_count + 1;
            exit when v_count > p_max;
            v_to_at := v_row.deliver_at;
            v_to_seq := v_row.seq;
            return next v_row;
        end loop;
        if v_count <= p_max then
            v_to_at := v_hi;
            v_to_seq := duewheel.last_seq();
        end if;
    end if;
    if v_count > 0 then
        if not p_durable then
            -- A PERFORM would be a query.
            v_setting := set_config('synchronous_commit', 'off', true);
        end if;
        v_count := least(v_count, p_max);
        v_row := null;
        insert into duewheel.lease
            (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
             message_count, consumer, leased_at, expires_at, revived_to)
        values (p_topic_id, p_group_id, v_queue, v_n + 1, duewheel.new_token(), v_from_at, v_from_seq, v_to_at,
                v_to_seq, v_straggler_to, v_straggler_to, v_count, p_consumer, v_now, v_now + p_invisible,
                least(v_revived_to, v_now))
        -- Without the cast of the row, the assignment would convert it to text and back.
        returning row(topic_id, queue, n, token, expires_at, message_count)::duewheel.lease_handle into v_row.lease;
        return next v_row;
    end if;
    -- No row also for a wrong p_max, even null.
    if v_count = 0 or v_count < p_max then
        return query select * from duewheel.receive_batch(
            p_group_id, p_topic_id, p_max - v_count, p_invisible, p_consumer, p_first_source, p_durable, p_now,
            p_stays and v_count = 0);
    end if;
end
$$;

-- The instant at which the group could next have a message: now if one is ready, the next due instant or lease end of
-- the next minute, else null. A paused group has none. p_behind_unread: released messages do not count, because none of
-- them is for the group.
-- role: consumer
create or replace function duewheel.next_due(
    p_group_id integer, p_topic_id integer, p_now timestamptz default null, p_behind_unread boolean default false
) returns timestamptz
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_now constant timestamptz := duewheel.clock_at(p_now);
    v_to constant timestamptz := v_now + interval '1 minute';
    v_position record;
    v_one timestamptz;
    v_next timestamptz;
    v_fifo constant boolean := duewheel.is_fifo(p_topic_id);
    c_most constant bigint := 100;
begin
    perform duewheel.require_home();
    if duewheel.is_paused(p_group_id, p_topic_id) then
        return null;
    end if;
    for v_position in select * from duewheel.positions(p_group_id, p_topic_id) loop
        if duewheel.has_ended_leases(p_group_id, v_position.topic_id, v_position.queue, v_position.revived_to,
                                     v_now) then
            return v_now;
        end if;
        if v_fifo and v_position.topic_id = p_topic_id then
            if not p_behind_unread and (
                select c.ready > 0 or c.unread > c_most
                from duewheel.count_ready(p_group_id, p_topic_id, v_position.queue, v_now, c_most) c) then
                return v_now;
            end if;
            -- The instant at which a retry in the backlog is due next.
            v_next := least(v_next, (
                select b.due_at from duewheel.fifo_backlog b
                where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = v_position.queue
                  and b.due_at > v_now and b.due_at <= v_to
                order by b.due_at limit 1));
        elsif not p_behind_unread and (
            (v_position.queue_hi, duewheel.last_seq()) > (v_position.to_at, v_position.to_seq)
            or (select true from duewheel.straggler s
                where s.topic_id = v_position.topic_id and s.queue = v_position.queue
                  and s.straggler_id > v_position.straggler_to
                order by s.straggler_id limit 1))
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
