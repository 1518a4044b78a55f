-- Ticks: the release of everything due, in one row.
--
-- A message belongs to exactly one tick: by its interval (lo, hi] if its transaction is visible in that tick's
-- snapshot, else as a straggler of the first later tick that sees it. Postgres's snapshot ends at the latest completed
-- id + 1 and does not list open transactions above it. Ticks find these transactions by the messages that they left, so
-- that 100 000 subtransactions of another session cost nothing.
--
-- A tick is a separate transaction. It holds the topic's lock from its start to the end of its COMMIT, so of two ticks
-- the second sees the first, and of a tick and a recall that commit at the same time one sees the other.

-- A snapshot that lists transactions as open though they have ended.
create or replace function duewheel.without(p_snapshot pg_snapshot, p_xids xid8[]) returns pg_snapshot
language sql immutable
begin atomic
    select format('%s:%s:%s', min(x), pg_snapshot_xmax(p_snapshot), string_agg(x::text, ',' order by x))::pg_snapshot
    from (select pg_snapshot_xip(p_snapshot) as x union select unnest(p_xids)) listed;
end;

-- Returns the transactions that were open at a tick and have ended in a later snapshot: transactions that the tick's
-- snapshot lists, and transactions above the snapshot's end that have sent a message due by the end of hi's minute.
create or replace function duewheel.ended_since_tick(p_tick duewheel.tick, p_snapshot pg_snapshot) returns xid8[]
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_ended xid8[] := array(
        select x from pg_snapshot_xip((p_tick).snapshot) x where pg_visible_in_snapshot(x, p_snapshot));
    v_xid xid8 := pg_snapshot_xmax((p_tick).snapshot);
    v_sent_from timestamptz;
begin
    if v_xid >= (p_tick).tick_xid then
        return v_ended;
    end if;
    v_sent_from := duewheel.sent_from((p_tick).topic_id, v_xid);
    v_xid := (v_xid::text::bigint - 1)::text::xid8;
    loop
        select m.xid into v_xid from duewheel.any_message m
        where m.topic_id = (p_tick).topic_id and m.xid > v_xid and m.xid < (p_tick).tick_xid
          and m.deliver_at >= duewheel.minute_of(v_sent_from)
          and m.deliver_at < duewheel.minute_of((p_tick).hi) + interval '1 minute'
          and duewheel.minute_of(m.deliver_at) >= duewheel.minute_of(v_sent_from)
          and duewheel.minute_of(m.deliver_at) <= duewheel.minute_of((p_tick).hi)
        order by m.topic_id, m.xid limit 1;
        exit when not found;
        if pg_visible_in_snapshot(v_xid, p_snapshot) then
            v_ended := v_ended || v_xid;
        end if;
    end loop;
    return v_ended;
end
$$;

-- Takes a topic's tick lock until the transaction ends, exclusive or shared. Its holders are about to commit, so a
-- wait is short: 10 seconds at most, or the caller's lock_timeout.
create or replace function duewheel.lock_ticking(p_topic_id integer, p_shared boolean) returns void
language plpgsql as $$
declare
    v_lock_timeout constant text := current_setting('lock_timeout');
begin
    if (case when p_shared then pg_try_advisory_xact_lock_shared(duewheel.tick_lock_class(), p_topic_id)
             else pg_try_advisory_xact_lock(duewheel.tick_lock_class(), p_topic_id) end) then
        return;
    end if;
    if v_lock_timeout::interval not between interval '1 ms' and interval '10 s' then
        perform set_config('lock_timeout', '10s', true);
    end if;
    if p_shared then
        perform pg_advisory_xact_lock_shared(duewheel.tick_lock_class(), p_topic_id);
    else
        perform pg_advisory_xact_lock(duewheel.tick_lock_class(), p_topic_id);
    end if;
    perform set_config('lock_timeout', v_lock_timeout, true);
exception when lock_not_available then
    raise exception using
        errcode = 'lock_not_available',
        message = 'a release or a recall of the same topic has been committing for longer than 10 s or lock_timeout',
        hint = 'The whole transaction is rolled back; run it again. A COMMIT takes this long while a synchronous '
               'standby does not answer.';
end
$$;

-- Waits until every tick of the topic that began before has ended, so the next statement sees them all. A
-- subtransaction that fails releases the lock, so neither a caller's open transaction nor a cancelled call blocks a
-- tick. A lock of the session would outlive the cancellation.
create or replace function duewheel.await_tick(p_topic_id integer) returns void
language plpgsql set lock_timeout = '10s' as $$
begin
    perform pg_advisory_xact_lock_shared(duewheel.tick_lock_class(), p_topic_id);
    raise exception 'the lock goes';
exception
    when raise_exception then
        return;
    when lock_not_available then
        perform duewheel.raise_busy(coalesce(
            (select format('topic "%s"', t.name) from duewheel.topic t where t.topic_id = p_topic_id), 'the topic'));
end
$$;

-- The instant up to which a tick releases. FIFO messages have no delay: a message that was sent while the clock was
-- ahead precedes one that is sent later.
create or replace function duewheel.tick_hi(p_topic duewheel.topic, p_lo timestamptz, p_now timestamptz)
returns timestamptz
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    return greatest(p_now, p_lo, (
        select max(m.deliver_at) from generate_series(0, (p_topic).queues - 1) q cross join lateral (
            select m.deliver_at from duewheel.any_message m
            where m.topic_id = (p_topic).topic_id and m.queue = q::smallint and m.deliver_at > greatest(p_now, p_lo)
            order by m.deliver_at desc limit 1) m
        where (p_topic).message_type = 'FIFO'));
end
$$;

-- The queues of a topic in which something is due in (p_lo, p_hi].
create or replace function duewheel.queues_due(
    p_topic_id integer, p_queues integer, p_lo timestamptz, p_hi timestamptz
) returns setof smallint
language sql stable
begin atomic
    select q::smallint from generate_series(0, p_queues - 1) q cross join lateral (
        select from duewheel.any_message m
        where m.topic_id = p_topic_id and m.queue = q::smallint and m.deliver_at > p_lo and m.deliver_at <= p_hi
        order by m.deliver_at, m.seq limit 1) m;
end;

-- How many late messages a tick releases at most. A transaction may have left a million of them.
create or replace function duewheel.late_limit() returns integer
language sql immutable
return 10000;

-- The instant before which transactions from an id on have sent nothing to a topic: they took their ids after the
-- newest tick below that id had read its hi.
create or replace function duewheel.sent_from(p_topic_id integer, p_from xid8) returns timestamptz
language sql stable
begin atomic
    select coalesce((
        select t.hi from duewheel.tick t
        where t.topic_id = p_topic_id and t.tick_xid < p_from
        order by t.tick_xid desc limit 1), '-infinity');
end;

-- The first position of late messages, whose transactions have ended since a tick.
create or replace function duewheel.late_from(p_last duewheel.tick, p_ended xid8[])
returns duewheel.message_position
language sql stable
begin atomic
    select row(
        coalesce((p_last).late_queue, -1),
        coalesce((p_last).late_at, duewheel.sent_from((p_last).topic_id, (select min(x) from unnest(p_ended) x))),
        coalesce((p_last).late_seq, 0))::duewheel.message_position;
end;

-- Whether a tick now would release late messages: of transactions that have ended since the newest tick, as far as they
-- are not released yet. If a portion of their messages does not tell, the answer is true: the next tick looks further.
create or replace function duewheel.has_late_messages(p_last duewheel.tick, p_snapshot pg_snapshot) returns boolean
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_ended constant xid8[] := duewheel.ended_since_tick(p_last, p_snapshot);
    v_sent_from timestamptz;
begin
    if cardinality(v_ended) = 0 then
        return false;
    elsif (p_last).late_xids is not null then
        return true;
    end if;
    v_sent_from := (duewheel.late_from(p_last, v_ended)).deliver_at;
    return (
        select coalesce(bool_or(s.deliver_at >= v_sent_from and s.deliver_at <= (p_last).hi), false)
               or count(*) = duewheel.late_limit()
        from (
            select m.deliver_at
            from unnest(v_ended) x cross join lateral (
                select m.deliver_at from duewheel.any_message m
                where m.topic_id = (p_last).topic_id and m.xid = x
                  and m.deliver_at >= duewheel.minute_of(v_sent_from)
                  and m.deliver_at < duewheel.minute_of((p_last).hi) + interval '1 minute'
                  and duewheel.minute_of(m.deliver_at) >= duewheel.minute_of(v_sent_from)
                  and duewheel.minute_of(m.deliver_at) <= duewheel.minute_of((p_last).hi)
                order by duewheel.minute_of(m.deliver_at)) m
            limit duewheel.late_limit()) s);
end
$$;

-- Returns the next portion of the late messages of transactions, after place and up to p_hi, in the order of their
-- instants. place is then the start of the next portion, or null after the last portion. The index of transactions is
-- read, and for a minute in which they have more messages than a portion the primary key.
create or replace function duewheel.late_portion(
    p_topic_id integer, p_xids xid8[], p_hi timestamptz, inout place duewheel.message_position,
    out portion duewheel.message_position[]
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_limit constant integer := duewheel.late_limit();
    -- The minute of the first message behind a portion.
    v_next timestamptz;
    v_to timestamptz;
begin
    loop
        select duewheel.minute_of(m.deliver_at) into v_next
        from unnest(p_xids) x cross join lateral (
            select m.deliver_at from duewheel.any_message m
            where m.topic_id = p_topic_id and m.xid = x
              and m.deliver_at >= duewheel.minute_of((place).deliver_at)
              and m.deliver_at < duewheel.minute_of(p_hi) + interval '1 minute'
              and duewheel.minute_of(m.deliver_at) >= duewheel.minute_of((place).deliver_at)
              and duewheel.minute_of(m.deliver_at) <= duewheel.minute_of(p_hi)
            order by m.topic_id, m.xid, duewheel.minute_of(m.deliver_at) limit v_limit + 1) m
        order by duewheel.minute_of(m.deliver_at) offset v_limit limit 1;
        if v_next <= (place).deliver_at then
            v_to := least(p_hi, v_next + interval '1 minute' - interval '1 microsecond');
            portion := array(
                select row(m.queue, m.deliver_at, m.seq)::duewheel.message_position
                from duewheel.topic t
                cross join lateral generate_series(0, t.queues - 1) q
                cross join lateral (
                    select m.queue, m.deliver_at, m.seq from duewheel.any_message m
                    where m.topic_id = p_topic_id and m.queue = q::smallint
                      and (m.deliver_at, m.seq) > ((place).deliver_at, case
                        when q < (place).queue then duewheel.last_seq() when q = (place).queue then (place).seq
                        else 0 end)
                      and m.deliver_at >= (place).deliver_at and m.deliver_at <= v_to and m.xid = any (p_xids)
                    order by m.deliver_at, m.seq limit v_limit) m
                where t.topic_id = p_topic_id
                order by m.deliver_at, m.queue, m.seq limit v_limit);
            place := case
                when cardinality(portion) = v_limit then portion[v_limit]
                when v_to < p_hi then row(-1, v_to + interval '1 microsecond', 0)::duewheel.message_position end;
        else
            v_to := least(p_hi, v_next - interval '1 microsecond');
            portion := array(
                select row(m.queue, m.deliver_at, m.seq)::duewheel.message_position
                from unnest(p_xids) x cross join lateral (
                    select m.queue, m.deliver_at, m.seq from duewheel.any_message m
                    where m.topic_id = p_topic_id and m.xid = x and m.deliver_at >= (place).deliver_at
                      and m.deliver_at <= v_to
                      and duewheel.minute_of(m.deliver_at) >= duewheel.minute_of((place).deliver_at)
                      and duewheel.minute_of(m.deliver_at) <= duewheel.minute_of(v_to)
                    order by duewheel.minute_of(m.deliver_at)) m
                where (m.deliver_at, m.queue, m.seq) > ((place).deliver_at, (place).queue, (place).seq)
                order by m.deliver_at, m.seq);
            place := case when v_next is not null then row(-1, v_next, 0) end;
        end if;
        exit when place is null or portion <> '{}';
    end loop;
end
$$;

-- Whether transactions have sent something behind a tick since it was made: the clock was ahead at the tick. If a
-- portion was sent that does not tell, it is taken to be so: the next tick begins behind that.
create or replace function duewheel.sent_behind(p_topic_id integer, p_tick_xid xid8, p_hi timestamptz) returns boolean
language sql stable
begin atomic
    select coalesce(bool_or(s.deliver_at <= p_hi), false) or count(*) = duewheel.portion()
    from (
        select m.deliver_at from duewheel.any_message m
        where m.topic_id = p_topic_id and m.xid > p_tick_xid
        order by m.topic_id, m.xid limit duewheel.portion()) s;
end;

-- Holds back a portion of the messages that transactions have sent behind a tick without a pointer: their snapshots
-- were older than the tick. Returns whether there may be more.
create or replace function duewheel.hold_back_unseen(p_last duewheel.tick) returns boolean
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_rows bigint;
begin
    insert into duewheel.held_back (topic_id, queue, deliver_at, seq)
    select m.topic_id, m.queue, m.deliver_at, m.seq from duewheel.any_message m
    where m.topic_id = (p_last).topic_id and m.xid > (p_last).tick_xid and m.deliver_at <= (p_last).hi
      and duewheel.minute_of(m.deliver_at) <= duewheel.minute_of((p_last).hi)
      and not exists (
        select from duewheel.held_back b
        where b.topic_id = m.topic_id and b.deliver_at = m.deliver_at and b.queue = m.queue and b.seq = m.seq)
      and not exists (
        select from duewheel.straggler s
        where s.topic_id = m.topic_id and s.queue = m.queue and s.deliver_at = m.deliver_at and s.seq = m.seq)
    order by m.topic_id, m.xid limit duewheel.late_limit()
    on conflict on constraint held_back_pkey do nothing;
    get diagnostics v_rows = row_count;
    return v_rows = duewheel.late_limit();
end
$$;

-- Makes stragglers of a portion of the late messages, and of a portion of the held-back messages, if they are due by
-- p_held_to. Holds back late messages that are not due yet. On a FIFO topic (p_held_to is infinity) the order is that
-- of sending: of two messages that were sent behind a tick, the first may have the later instant.
create or replace function duewheel.release_late(
    p_last duewheel.tick, p_tick_id bigint, p_snapshot pg_snapshot, p_held_to timestamptz
) returns duewheel.late_release
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_ended constant xid8[] := duewheel.ended_since_tick(p_last, p_snapshot);
    v_release duewheel.late_release;
    v_late record;
    v_freed bigint;
begin
    v_release.late_xids := coalesce((p_last).late_xids, v_ended);
    select * into v_late from duewheel.late_portion(
        (p_last).topic_id, v_release.late_xids, (p_last).hi, duewheel.late_from(p_last, v_ended));
    v_release.place := v_late.place;
    -- Transactions that have ended since the first portion wait for the last one.
    v_release.unfinished := array(
        select x from unnest(v_ended) x where v_late.place is not null or x <> all (v_release.late_xids));
    insert into duewheel.held_back (topic_id, queue, deliver_at, seq)
    select (p_last).topic_id, m.queue, m.deliver_at, m.seq
    from unnest(v_late.portion) m where m.deliver_at > p_held_to
    on conflict on constraint held_back_pkey do nothing;
    with free as materialized (
        -- A later tick takes a row that an open transaction has locked.
        select b.deliver_at, b.queue, b.seq from duewheel.held_back b
        where b.topic_id = (p_last).topic_id and b.deliver_at <= p_held_to
          -- On a FIFO topic held-back messages were sent after the late messages.
          and (p_held_to < 'infinity' or v_release.unfinished = '{}')
        order by b.deliver_at limit duewheel.late_limit() for update skip locked
    ), due as (
        delete from duewheel.held_back b using free f
        where b.topic_id = (p_last).topic_id and b.deliver_at = f.deliver_at and b.queue = f.queue and b.seq = f.seq
          and pg_visible_in_snapshot((
                select m.xid from duewheel.any_message m
                where m.topic_id = (p_last).topic_id and m.queue = f.queue and m.deliver_at = f.deliver_at
                  and m.seq = f.seq), p_snapshot)
        returning b.queue, b.deliver_at, b.seq
    ), released as (
        insert into duewheel.straggler (topic_id, queue, tick_id, deliver_at, seq, behind_at)
        select (p_last).topic_id, r.queue, p_tick_id, r.deliver_at, r.seq, (p_last).hi
        from (
            select m.queue, m.deliver_at, m.seq from unnest(v_late.portion) m where m.deliver_at <= p_held_to
            union
            -- A straggler that was held back is not released again.
            select d.queue, d.deliver_at, d.seq from due d
            where not exists (
                select from duewheel.straggler s
                where s.topic_id = (p_last).topic_id and s.queue = d.queue and s.deliver_at = d.deliver_at
                  and s.seq = d.seq)) r
        order by case when p_held_to < 'infinity' then r.deliver_at end, r.seq
        returning 1
    )
    select (select count(*) from due), (select count(*) from released) into v_freed, v_release.stragglers;
    v_release.more := cardinality(v_release.unfinished) > 0 or v_freed = duewheel.late_limit();
    return v_release;
end
$$;

-- Refuses a tick during which the clock was set back: a sender that it does not see may have read the new clock, and so
-- have sent something at or before its hi.
create or replace function duewheel.check_clock(
    p_topic_id integer, p_tick_xid xid8, p_lo timestamptz, p_hi timestamptz, p_ticked_at timestamptz
) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    if (p_ticked_at > p_hi and p_hi > p_lo and clock_timestamp() <= p_hi) or (
        -- In the order of the transactions, of which hardly any are so new. EXISTS would ignore the order.
        select true from duewheel.any_message m
        where m.topic_id = p_topic_id and m.xid > p_tick_xid and m.deliver_at > p_lo and m.deliver_at <= p_hi
          and duewheel.minute_of(m.deliver_at) >= duewheel.minute_of(p_lo)
          and duewheel.minute_of(m.deliver_at) <= duewheel.minute_of(p_hi)
        order by m.topic_id, m.xid limit 1
    ) then
        raise exception using
            errcode = 'DW023',
            message = 'the clock was set back during a tick, and others may have sent messages with earlier instants',
            hint = 'Nothing was released; run the tick again.';
    end if;
end
$$;

-- Releases everything that is due on a topic. An idle tick writes nothing and takes no transaction id.
-- role: consumer
create or replace function duewheel.tick_topic(
    p_topic_id integer,
    p_now timestamptz default null,
    p_by_wheel boolean default true,
    -- False: does nothing if the lock is taken.
    p_wait boolean default true,
    -- True: writes a tick even if nothing is due up to now.
    p_force boolean default false,
    -- unsettled: stragglers may still commit. busy: the wheel must keep ticking for a while, which senders rely on.
    -- more: the next tick has more to release at once, because a tick has a limit of late messages.
    out released boolean, out hi timestamptz, out unsettled boolean, out busy boolean, out more boolean
)
-- One plan for every instant: slots are pruned when it runs, and it walks the primary key however small a slot is yet.
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic;
    v_last duewheel.tick;
    v_now timestamptz;
    v_lo timestamptz;
    -- Held-back messages are released when they are due by the clock; on a FIFO topic at once.
    v_held_to timestamptz;
    v_is_held boolean;
    v_tick_xid xid8;
    v_snapshot pg_snapshot;
    v_tick_id bigint;
    v_ticked_at timestamptz;
    v_due smallint[];
    v_late duewheel.late_release := row(0, null, null, '{}', false);
    v_open_count integer;
begin
    if p_now is not null then
        perform duewheel.require_clock_right(p_now);
    end if;
    perform duewheel.require_own_transaction();
    released := false;
    unsettled := false;
    busy := false;
    more := false;
    if p_wait then
        perform duewheel.lock_ticking(p_topic_id, false);
    elsif not pg_try_advisory_xact_lock(duewheel.tick_lock_class(), p_topic_id) then
        return;
    end if;
    select * into v_topic from duewheel.topic t where t.topic_id = p_topic_id and t.deleted_at is null;
    if not found then
        return;
    end if;
    select * into v_last from duewheel.newest_tick(p_topic_id);
    -- One microsecond behind the clock: a sender that reads the clock after this has a later deliver_at.
    v_now := coalesce(p_now, clock_timestamp() - interval '1 microsecond');
    v_lo := coalesce(v_last.hi, '-infinity');
    -- If the clock was ahead at the last tick, only held-back messages may be due.
    hi := case when v_topic.message_type = 'FIFO' then duewheel.tick_hi(v_topic, v_lo, v_now)
               else greatest(v_now, v_lo) end;
    v_held_to := case when v_topic.message_type = 'FIFO' then 'infinity' else v_now end;
    v_is_held := exists (
        select from duewheel.held_back b
        where b.topic_id = p_topic_id and b.deliver_at <= v_held_to);
    if not (p_force or v_is_held or (v_now < v_lo and duewheel.sent_behind(p_topic_id, v_last.tick_xid, v_lo))
            or exists (select from duewheel.queues_due(p_topic_id, v_topic.queues, v_lo, hi))) then
        -- One snapshot for both questions, which transactions have ended and which are open: else one that ends between
        -- them is in neither answer.
        v_snapshot := pg_current_snapshot();
        if v_last.tick_id is null or not duewheel.has_late_messages(v_last, v_snapshot) then
            hi := v_last.hi;
            unsettled := exists (select from pg_snapshot_xip(v_snapshot) x where x < v_last.tick_xid);
            return;
        end if;
    end if;

    -- In this order, each in a separate statement: hi (above), the transaction id, the snapshot. The rest uses that
    -- snapshot, not the rows that were read before.
    v_tick_xid := pg_current_xact_id();
    v_snapshot := pg_current_snapshot();
    -- Read again: messages that were sent since then may be held back behind unseen ones.
    if v_now < v_lo and duewheel.hold_back_unseen(v_last) then
        hi := v_lo;
        more := true;
        return;
    end if;
    v_tick_id := nextval('duewheel.tick_tick_id_seq');
    if v_is_held or v_last.open_count > 0 or v_now < v_lo then
        v_late := duewheel.release_late(v_last, v_tick_id, v_snapshot, v_held_to);
    end if;
    if v_late.unfinished <> '{}' then
        v_snapshot := duewheel.without(v_snapshot, v_late.unfinished);
    end if;
    if v_late.more and v_topic.message_type = 'FIFO' then
        -- Later messages wait for the late and the held-back messages.
        hi := v_lo;
    end if;
    v_due := array(select q from duewheel.queues_due(p_topic_id, v_topic.queues, v_lo, hi) q);
    select count(*) + greatest(0, v_tick_xid::text::bigint - pg_snapshot_xmax(v_snapshot)::text::bigint)
    into v_open_count from pg_snapshot_xip(v_snapshot) x;
    v_ticked_at := coalesce(p_now, clock_timestamp());
    insert into duewheel.tick
        (topic_id, tick_id, lo, hi, snapshot, tick_xid, open_count, ticked_at, by_wheel, stragglers, late_xids,
         late_at, late_queue, late_seq, queue_hi)
    overriding system value
    values (p_topic_id, v_tick_id, v_lo, hi, v_snapshot, v_tick_xid, v_open_count, v_ticked_at, p_by_wheel,
            v_late.stragglers, case when v_late.place is not null then v_late.late_xids end,
            (v_late.place).deliver_at, (v_late.place).queue, (v_late.place).seq,
            array(select case when (q - 1)::smallint = any (v_due) then hi
                  else coalesce(v_last.queue_hi[q], '-infinity') end
                  from generate_series(1, v_topic.queues) q order by q));
    perform duewheel.check_clock(p_topic_id, v_tick_xid, v_lo, hi, v_ticked_at);
    released := cardinality(v_due) > 0 or v_late.stragglers > 0;
    more := v_late.more;
    if released then
        -- The 1 says that a wheel is turning.
        perform duewheel.notify(
            'duewheel_released',
            coalesce(v_topic.parent_topic_id, p_topic_id) || case when p_by_wheel then ' 1' else '' end);
    end if;
    unsettled := v_open_count > 0;
    busy := p_by_wheel and duewheel.is_busy(v_lo, hi, v_topic.granularity);
end
$$;
