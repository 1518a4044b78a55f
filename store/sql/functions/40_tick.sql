-- Ticks: the release of everything due, in one row.
--
-- A message belongs to exactly one tick: by its interval (lo, hi] if its transaction is visible in that tick's
-- snapshot, else as a straggler of the first later tick that sees it. A tick's snapshot says of every transaction up to
-- the tick's own whether it is seen: Postgres's own snapshot ends at the latest completed id + 1, and open transactions
-- above that are not in its list; here they are. Messages that the tick's own transaction sent before are seen.

-- The snapshot to store with a tick of this transaction: of Postgres's snapshot, with the ids from its end to the
-- transaction's own listed as open, and its own as seen.
create or replace function duewheel.tick_snapshot(p_snapshot pg_snapshot, p_tick_xid xid8) returns pg_snapshot
language sql immutable
begin atomic
    select format('%s:%s:%s', coalesce(min(x), p_tick_xid::text::bigint + 1), p_tick_xid::text::bigint + 1,
                  string_agg(x::text, ',' order by x))::pg_snapshot
    from (
        select x::text::bigint as x from pg_snapshot_xip(p_snapshot) x where x < p_tick_xid
        union
        select generate_series(pg_snapshot_xmax(p_snapshot)::text::bigint, p_tick_xid::text::bigint - 1)
    ) open_transactions;
end;

-- A snapshot that says of every transaction that has an id by now whether it is seen: for a transaction whose own id is
-- older than that. A subtransaction takes the newest id there is and is rolled back, which makes it the latest
-- completed one; Postgres's snapshot reaches as far as that. A message to logical decoding takes an id and leaves no
-- row behind.
create or replace function duewheel.fenced_snapshot() returns pg_snapshot
language plpgsql as $$
begin
    begin
        perform pg_logical_emit_message(true, 'duewheel', '');
        raise exception using errcode = 'FENCE';
    exception when sqlstate 'FENCE' then
        null;
    end;
    return pg_current_snapshot();
end
$$;

-- The transactions a tick saw as open that a later snapshot sees as ended.
create or replace function duewheel.ended_since_tick(p_tick duewheel.tick, p_snapshot pg_snapshot) returns xid8[]
language sql stable
begin atomic
    select coalesce(array_agg(x), '{}')
    from pg_snapshot_xip((p_tick).snapshot) x
    where pg_visible_in_snapshot(x, p_snapshot);
end;

-- No message of these transactions that is due at or before the topic's last hi is due before this: they took their ids
-- after the newest tick below them had read its hi.
create or replace function duewheel.oldest_due_of(p_topic_id integer, p_xids xid8[]) returns timestamptz
language sql stable
begin atomic
    select coalesce(
        (select t.hi from duewheel.tick t
         where t.topic_id = p_topic_id and t.tick_xid < (select min(x) from unnest(p_xids) x)
         order by t.tick_xid desc limit 1),
        '-infinity'::timestamptz);
end;

-- Takes a topic's tick lock, exclusive or shared, until the transaction ends. An open transaction that has it holds
-- others up for a second, or their lock_timeout, at most: then they pass it. They leave a row in duewheel.overtaken,
-- which its check at COMMIT finds; while it may still be open, those that come after them hardly wait. Those who pass
-- go one at a time by another lock, and where one of these stays open, too, by a third: else they would refuse each
-- other at COMMIT. Where p_wait is false and somebody has the lock, the answer is false. Whoever passes has written:
-- the transaction has an id.
create or replace function duewheel.lock_ticking(p_topic_id integer, p_shared boolean, p_wait boolean default true)
returns boolean
language plpgsql as $$
declare
    v_timeout_ms integer;
begin
    if duewheel.try_topic_lock(duewheel.tick_lock_class(), p_topic_id, p_shared) then
        return true;
    end if;
    if not p_wait then
        return false;
    end if;
    -- Of the last seconds, too: who read and found nothing to write has no id to go by.
    v_timeout_ms := case when exists (
        select from duewheel.overtaken o
        where o.topic_id = p_topic_id
          and (o.xid >= pg_snapshot_xmin(pg_current_snapshot()) or o.at > clock_timestamp() - interval '5 seconds')
        ) then 25 else 1000 end;
    for n in 0 .. duewheel.most_passing() loop
        exit when duewheel.wait_for_lock(duewheel.tick_lock_class(n), p_topic_id, p_shared, v_timeout_ms);
        v_timeout_ms := 50;
        if n = 0 then
            insert into duewheel.overtaken (topic_id) values (p_topic_id);
        end if;
    end loop;
    return true;
end
$$;

-- Waits for an advisory lock of the transaction for so long, or the caller's lock_timeout where that is shorter;
-- answers whether it was got.
create or replace function duewheel.wait_for_lock(
    p_class integer, p_topic_id integer, p_shared boolean, p_timeout_ms integer
) returns boolean
language plpgsql as $$
declare
    v_lock_timeout constant text := current_setting('lock_timeout');
begin
    if v_lock_timeout::interval not between interval '1 ms' and p_timeout_ms * interval '1 ms' then
        perform set_config('lock_timeout', p_timeout_ms || 'ms', true);
    end if;
    if p_shared then
        perform pg_advisory_xact_lock_shared(p_class, p_topic_id);
    else
        perform pg_advisory_xact_lock(p_class, p_topic_id);
    end if;
    perform set_config('lock_timeout', v_lock_timeout, true);
    return true;
exception when lock_not_available then
    -- The setting goes back with the block.
    return false;
end
$$;

-- Held through the COMMIT, exclusively by who commits a tick and shared by who commits a recall: of these, one sees
-- what the other did. A prepared transaction would hold it without end, and has had its check: where there can be any,
-- a notification keeps this transaction from being prepared. SET CONSTRAINTS has the check run before the COMMIT: who
-- does that and then waits for long is ended by the server.
create or replace function duewheel.lock_tick_commit(p_topic_id integer, p_shared boolean) returns void
language plpgsql as $$
begin
    if current_setting('max_prepared_transactions') <> '0' then
        perform pg_notify('duewheel_unprepared', '');
    end if;
    if current_setting('idle_in_transaction_session_timeout')::interval not between '1 ms' and '5 seconds' then
        perform set_config('idle_in_transaction_session_timeout', '5s', true);
    end if;
    if duewheel.try_topic_lock(duewheel.tick_commit_class(), p_topic_id, p_shared)
        or duewheel.wait_for_lock(duewheel.tick_commit_class(), p_topic_id, p_shared, 10000)
    then
        return;
    end if;
    raise exception using
        errcode = 'lock_not_available',
        message = 'another transaction is committing a release or a recall of the same topic, and takes too long',
        hint = 'The whole transaction is rolled back; run it again. A COMMIT is waited for for 10 seconds, or for '
               'lock_timeout. It takes so long where a synchronous standby is away, or where its check was made '
               'early, by SET CONSTRAINTS.';
end
$$;

-- At COMMIT: a tick holds only if it follows the tick that it went by and none has come between them, if nobody has
-- passed its lock, and if no sender that it does not know of is at or before its hi: such a one read a clock that had
-- been set back meanwhile.
create or replace function duewheel.check_tick_in_time() returns trigger
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    perform duewheel.lock_tick_commit(new.topic_id, false);
    if exists (
        select from duewheel.overtaken o
        where o.topic_id = new.topic_id and o.xid <> pg_current_xact_id()
          and not pg_visible_in_snapshot(o.xid, new.snapshot)
    ) or new.after_tick_id is distinct from (
        select t.tick_id from duewheel.tick t
        where t.topic_id = new.topic_id and (t.hi, t.tick_id) < (new.hi, new.tick_id)
        order by t.hi desc, t.tick_id desc limit 1
    ) or exists (
        select from (
            select t.after_tick_id from duewheel.tick t
            where t.topic_id = new.topic_id and (t.hi, t.tick_id) > (new.hi, new.tick_id)
            order by t.hi, t.tick_id limit 1
        ) successor
        where successor.after_tick_id is distinct from new.tick_id
    ) then
        raise exception using
            errcode = 'DW021',
            message = 'this transaction stayed open after it had released messages of a topic, and another one has '
                      'released them meanwhile',
            hint = 'The whole transaction is rolled back. Run it again, and receive in a transaction of its own: the '
                   'lease keeps the messages while the work goes on.';
    end if;
    if (new.ticked_at > new.hi and new.hi > new.lo and clock_timestamp() <= new.hi) or (
        -- In the order of the transactions, of which hardly any are so new.
        select true from duewheel.any_message m
        where m.topic_id = new.topic_id and m.xid > new.tick_xid and m.deliver_at > new.lo and m.deliver_at <= new.hi
        order by m.topic_id, m.xid limit 1
    ) then
        raise exception using
            errcode = 'DW021',
            message = 'the clock was set back while this transaction released messages of a topic, and others may have '
                      'sent messages behind it',
            hint = 'The whole transaction is rolled back; run it again.';
    end if;
    return null;
end
$$;

do $$
begin
    if not exists (select from pg_trigger where tgname = 'tick_in_time' and tgrelid = 'duewheel.tick'::regclass) then
        create constraint trigger tick_in_time after insert on duewheel.tick
        deferrable initially deferred for each row execute function duewheel.check_tick_in_time();
    end if;
end
$$;

create or replace function duewheel.tick_topic(
    p_topic_id integer,
    p_now timestamptz default null,
    p_by_wheel boolean default true,
    p_wait boolean default true,
    -- Also where nothing is due: says that nothing is, up to now.
    p_force boolean default false,
    -- busy: the wheel is to go on ticking for a while, as senders leave it to that.
    out released boolean, out hi timestamptz, out unsettled boolean, out busy boolean
)
-- One plan for every instant: slots are pruned when it runs, and it walks the primary key however small a slot is yet.
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_has_written boolean;
    v_topic duewheel.topic;
    v_last duewheel.tick;
    v_now timestamptz;
    v_lo timestamptz;
    v_any boolean;
    v_held boolean;
    v_held_to timestamptz;
    v_queues smallint[];
    v_due smallint[] := '{}';
    v_ended xid8[] := '{}';
    v_oldest_at timestamptz;
    v_tick_xid xid8;
    v_snapshot pg_snapshot;
    v_tick_id bigint;
    v_count integer;
    v_stragglers integer := 0;
    v_open_count integer;
begin
    if p_now is not null then
        perform duewheel.require_clock_right(p_now);
    end if;
    released := false;
    unsettled := false;
    busy := false;
    perform duewheel.require_read_committed();
    if not (pg_try_advisory_xact_lock(duewheel.tick_lock_class(), p_topic_id)
            or duewheel.lock_ticking(p_topic_id, false, p_wait)) then
        return;
    end if;
    -- Its id is older than the clock that is read below: there may be senders with later ids and earlier instants.
    v_has_written := pg_current_xact_id_if_assigned() is not null;
    select * into v_topic from duewheel.topic t where t.topic_id = p_topic_id and t.deleted_at is null;
    if not found then
        return;
    end if;
    select * into v_last from duewheel.newest_tick(p_topic_id);
    -- One microsecond behind the clock: a sender that reads the clock after this has a later deliver_at.
    v_now := coalesce(p_now, clock_timestamp() - interval '1 microsecond');
    v_lo := coalesce(v_last.hi, '-infinity');
    -- Nobody asks for a delay on a FIFO topic.
    v_held_to := case when v_topic.message_type = 'FIFO' then 'infinity' else v_now end;
    -- Where the clock was ahead at the last tick there is nothing to do but for what was held back.
    hi := greatest(v_now, v_lo);
    if v_has_written and v_now = v_lo and pg_visible_in_snapshot(pg_current_xact_id(), v_last.snapshot) then
        -- The messages that this transaction sent after its own tick are there.
        hi := v_lo + interval '1 microsecond';
    elsif v_topic.message_type = 'FIFO' then
        -- Nobody asked for a delay: what was sent while the clock was ahead goes before what is sent after it.
        hi := greatest(hi, (
            select max(m.deliver_at) from generate_series(0, v_topic.queues - 1) q cross join lateral (
                select m.deliver_at from duewheel.any_message m
                where m.topic_id = p_topic_id and m.queue = q::smallint and m.deliver_at > greatest(v_now, v_lo)
                order by m.deliver_at desc limit 1) m));
    end if;
    v_queues := array(select generate_series(0, v_topic.queues - 1)::smallint);

    -- Without anything to do an idle tick writes nothing and takes no transaction id.
    v_held := exists (
        select from duewheel.held_back b
        where b.topic_id = p_topic_id and b.deliver_at <= v_held_to order by b.deliver_at limit 1);
    v_any := p_force or v_held or exists (
        select from unnest(v_queues) q cross join lateral (
            select from duewheel.any_message m
            where m.topic_id = p_topic_id and m.queue = q and m.deliver_at > v_lo and m.deliver_at <= hi
            order by m.deliver_at, m.seq limit 1) m);
    if not v_any and v_last.tick_id is not null then
        -- One snapshot for both questions, who has ended and who is open: else one that ends between them is in neither
        -- answer.
        v_snapshot := pg_current_snapshot();
        v_ended := duewheel.ended_since_tick(v_last, v_snapshot);
        if cardinality(v_ended) > 0 then
            v_oldest_at := duewheel.oldest_due_of(p_topic_id, v_ended);
            v_any := exists (
                select from unnest(v_ended) x cross join lateral (
                    select from duewheel.any_message m
                    where m.topic_id = p_topic_id and m.xid = x and m.deliver_at >= v_oldest_at and m.deliver_at <= v_lo
                    limit 1) m);
        end if;
    end if;
    if not v_any then
        hi := v_last.hi;
        if v_last.tick_id is not null then
            select coalesce(bool_or(not pg_visible_in_snapshot(x, v_snapshot)), false) into unsettled
            from pg_snapshot_xip(v_last.snapshot) x;
        end if;
        return;
    end if;

    -- In this order, each in a statement of its own: hi (above), the transaction id, the snapshot. The rest goes by
    -- that snapshot, not by what was seen on the way here.
    if v_has_written then
        v_snapshot := duewheel.fenced_snapshot();
        v_tick_xid := (pg_snapshot_xmax(v_snapshot)::text::bigint - 1)::text::xid8;
    else
        v_tick_xid := pg_current_xact_id();
        v_snapshot := pg_current_snapshot();
    end if;
    v_snapshot := duewheel.tick_snapshot(v_snapshot, v_tick_xid);
    v_tick_id := nextval('duewheel.tick_tick_id_seq');

    v_due := array(
        select q from unnest(v_queues) q cross join lateral (
            select from duewheel.any_message m
            where m.topic_id = p_topic_id and m.queue = q and m.deliver_at > v_lo and m.deliver_at <= hi
            order by m.deliver_at, m.seq limit 1) m);

    if v_last.tick_id is not null then
        v_ended := duewheel.ended_since_tick(v_last, v_snapshot);
        if cardinality(v_ended) > 0 then
            v_oldest_at := duewheel.oldest_due_of(p_topic_id, v_ended);
            insert into duewheel.straggler (topic_id, queue, tick_id, deliver_at, seq)
            select p_topic_id, m.queue, v_tick_id, m.deliver_at, m.seq
            from unnest(v_ended) x cross join lateral (
                select m.queue, m.deliver_at, m.seq from duewheel.any_message m
                where m.topic_id = p_topic_id and m.xid = x and m.deliver_at >= v_oldest_at
                  and m.deliver_at <= least(v_lo, v_held_to)) m
            order by m.deliver_at, m.seq;
            get diagnostics v_stragglers = row_count;
            if v_held_to < v_lo then
                insert into duewheel.held_back (topic_id, queue, deliver_at, seq)
                select p_topic_id, m.queue, m.deliver_at, m.seq
                from unnest(v_ended) x cross join lateral (
                    select m.queue, m.deliver_at, m.seq from duewheel.any_message m
                    where m.topic_id = p_topic_id and m.xid = x and m.deliver_at > v_held_to and m.deliver_at <= v_lo) m
                on conflict on constraint held_back_pkey do nothing;
            end if;
        end if;
        -- Asked again, as the snapshot is a later one: a straggler that was held back is not any more.
        if v_held or v_held_to < v_lo or v_stragglers > 0 then
            with free as materialized (
                -- Those that a transaction has taken which is still open come when it is over.
                select b.deliver_at, b.queue, b.seq from duewheel.held_back b
                where b.topic_id = p_topic_id and b.deliver_at <= v_held_to
                order by b.deliver_at for update skip locked
            ), due as (
                delete from duewheel.held_back b using free f
                where b.topic_id = p_topic_id and b.deliver_at = f.deliver_at and b.queue = f.queue and b.seq = f.seq
                  and pg_visible_in_snapshot((
                        select m.xid from duewheel.any_message m
                        where m.topic_id = p_topic_id and m.queue = f.queue and m.deliver_at = f.deliver_at
                          and m.seq = f.seq), v_snapshot)
                returning b.queue, b.deliver_at, b.seq
            )
            insert into duewheel.straggler (topic_id, queue, tick_id, deliver_at, seq)
            select p_topic_id, d.queue, v_tick_id, d.deliver_at, d.seq
            from due d
            where not exists (
                select from duewheel.straggler s
                where s.topic_id = p_topic_id and s.queue = d.queue and s.deliver_at = d.deliver_at and s.seq = d.seq)
            order by d.deliver_at, d.seq;
            get diagnostics v_count = row_count;
            v_stragglers := v_stragglers + v_count;
        end if;
    end if;

    select count(*) into v_open_count from pg_snapshot_xip(v_snapshot) x;
    insert into duewheel.tick
        (topic_id, tick_id, after_tick_id, lo, hi, snapshot, tick_xid, open_count, ticked_at, by_wheel, stragglers,
         queue_hi)
    overriding system value
    values (p_topic_id, v_tick_id, v_last.tick_id, v_lo, hi, v_snapshot, v_tick_xid, v_open_count,
            coalesce(p_now, clock_timestamp()), p_by_wheel, v_stragglers,
            array(select case when (q - 1)::smallint = any (v_due) then hi
                  else coalesce(v_last.queue_hi[q], '-infinity') end
                  from generate_series(1, v_topic.queues) q order by q));
    released := cardinality(v_due) > 0 or v_stragglers > 0;
    if released then
        -- The 1 says that a wheel is turning.
        perform pg_notify('duewheel_released',
                          coalesce(v_topic.parent_topic_id, p_topic_id) || case when p_by_wheel then ' 1' else '' end);
    end if;
    unsettled := v_open_count > 0;
    busy := p_by_wheel and duewheel.is_busy(v_lo, hi, v_topic.granularity);
end
$$;

-- For callers in any language: releases what is due now; answers whether anything was.
create or replace function duewheel.tick(topic text, now timestamptz default null) returns boolean
language plpgsql as $$
declare
    v_topic duewheel.topic := duewheel.topic_by_name(tick.topic);
begin
    if tick.now is not null then
        perform duewheel.require_clock_right(tick.now);
    end if;
    return (duewheel.tick_topic(v_topic.topic_id, tick.now, false)).released;
end
$$;
