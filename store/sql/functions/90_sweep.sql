-- The sweep: looks through the slots that are over for messages that no release covered, and seals them.

-- The next topic of a slot to look through, behind p_after_topic_id. A loose scan, from topic to topic.
create or replace function duewheel.topic_to_sweep(p_slot duewheel.slot, p_after_topic_id integer) returns integer
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_topic_id integer;
begin
    execute format($query$
        with recursive present (topic_id) as (
            (select m.topic_id from duewheel.%1$I m where m.topic_id > $1 order by m.topic_id limit 1)
            union all
            select (select m.topic_id from duewheel.%1$I m where m.topic_id > p.topic_id order by m.topic_id limit 1)
            from present p where p.topic_id is not null
        )
        select t.topic_id from present p
        cross join lateral (select * from duewheel.topic t where t.topic_id = p.topic_id limit 1) t
        where t.deleted_at is null and t.message_type <> 'DEAD_LETTER' and not exists (
            select from duewheel.swept_topic w
            where w.starts_at = $2 and w.topic_id = t.topic_id and w.swept_to is null)
        limit 1
    $query$, (p_slot).table_name) into v_topic_id using p_after_topic_id, (p_slot).starts_at;
    return v_topic_id;
end
$$;

-- The messages of a topic in a slot that transactions from p_from to p_until wrote, and that no release covered. Those
-- that the newest tick does not see are left to the next one.
create or replace function duewheel.uncovered(
    p_slot duewheel.slot, p_topic_id integer, p_from xid8, p_until xid8
) returns setof duewheel.message_position
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
begin
    return query execute format($query$
        select m.queue, m.deliver_at, m.seq from duewheel.%I m
        where m.topic_id = $1 and m.xid >= $2 and m.xid <= $3
          and pg_visible_in_snapshot(m.xid, (select t.snapshot from duewheel.newest_tick($1) t))
          and not pg_visible_in_snapshot(m.xid, (
                select t.snapshot from duewheel.tick_over(m.topic_id, m.deliver_at) t))
          and not exists (select from duewheel.straggler s
                where s.topic_id = m.topic_id and s.queue = m.queue and s.deliver_at = m.deliver_at and s.seq = m.seq)
          and not exists (select from duewheel.held_back b
                where b.topic_id = m.topic_id and b.deliver_at = m.deliver_at and b.queue = m.queue and b.seq = m.seq)
        order by m.deliver_at, m.seq
    $query$, (p_slot).table_name) using p_topic_id, p_from, p_until;
end
$$;

-- Looks through a portion of one topic's part of a slot: some 10 000 messages, in the order of the transactions that
-- wrote them. It keeps ticks waiting only where it finds some that no release covered; it releases them as stragglers
-- of a tick of its own, and counts them.
create or replace function duewheel.sweep_topic(p_slot duewheel.slot, p_topic_id integer, p_now timestamptz)
returns bigint
language plpgsql as $$
declare
    -- Of what was written before the slot began, the ticks of the slot see all.
    v_from constant xid8 := coalesce(
        (select w.swept_to from duewheel.swept_topic w
         where w.starts_at = (p_slot).starts_at and w.topic_id = p_topic_id),
        (select pg_snapshot_xmin(t.snapshot) from duewheel.tick_over(p_topic_id, (p_slot).starts_at) t));
    v_most constant integer := 10000;
    v_until xid8;
    v_rows bigint;
    v_last duewheel.tick;
    v_tick_id bigint;
begin
    execute format(
        'select max(f.xid), count(*) from (select m.xid from duewheel.%I m where m.topic_id = $1 and m.xid >= $2'
        ' order by m.xid limit $3) f', (p_slot).table_name)
    into v_until, v_rows using p_topic_id, v_from, v_most;
    insert into duewheel.swept_topic as w (starts_at, topic_id, swept_to)
    values ((p_slot).starts_at, p_topic_id, case when v_rows = v_most then (v_until::text::bigint + 1)::text::xid8 end)
    on conflict (starts_at, topic_id) do update set swept_to = excluded.swept_to;
    if not exists (select from duewheel.uncovered(p_slot, p_topic_id, v_from, v_until)) then
        return 0;
    end if;
    perform duewheel.lock_ticking(p_topic_id, false);
    select * into v_last from duewheel.newest_tick(p_topic_id) t;
    v_tick_id := nextval('duewheel.tick_tick_id_seq');
    insert into duewheel.straggler (topic_id, queue, tick_id, deliver_at, seq)
    select p_topic_id, u.queue, v_tick_id, u.deliver_at, u.seq
    from duewheel.uncovered(p_slot, p_topic_id, v_from, v_until) u;
    get diagnostics v_rows = row_count;
    if v_rows > 0 then
        insert into duewheel.tick
            (topic_id, tick_id, lo, hi, snapshot, tick_xid, open_count, ticked_at, by_wheel, stragglers,
             queue_hi)
        overriding system value
        values (p_topic_id, v_tick_id, v_last.hi, v_last.hi, v_last.snapshot, v_last.tick_xid,
                v_last.open_count, p_now, false, v_rows, v_last.queue_hi);
    end if;
    return v_rows;
end
$$;

-- One step with one topic of a slot that is over: a tick, or a look at a portion of its messages. "waits" says that an
-- open transaction may still send into it.
create or replace function duewheel.sweep_step(
    p_slot duewheel.slot, p_topic_id integer, p_now timestamptz, out swept bigint, out waits boolean
)
language plpgsql as $$
declare
    v_past xid8;
    v_snapshot pg_snapshot;
    v_foreign xid8[] := '{}';
begin
    swept := 0;
    waits := false;
    select t.tick_xid into v_past from duewheel.tick_over(p_topic_id, (p_slot).ends_at) t;
    v_snapshot := pg_current_snapshot();
    if v_past >= pg_snapshot_xmin(v_snapshot) then
        v_foreign := duewheel.foreign_transactions(v_snapshot);
    end if;
    if v_past is not null and duewheel.lists_one_up_to(v_snapshot, v_past, v_foreign) then
        waits := true;
    elsif v_past is null or duewheel.lists_one_up_to(
        (select t.snapshot from duewheel.newest_tick(p_topic_id) t), v_past, v_foreign
    ) then
        -- Nothing has been due since, or no tick has said yet what those left that were open then: a tick of its own
        -- says so, for the next step to go by.
        perform duewheel.tick_topic(p_topic_id, p_now, false, true, true);
    else
        swept := duewheel.sweep_topic(p_slot, p_topic_id, duewheel.clock_at(p_now));
    end if;
end
$$;

-- One step towards sealing the slots that are over, the oldest first. A slot is sealed once no open transaction can
-- still send into it: every topic with rows there was ticked past its end, and all transactions of this database up to
-- that tick have ended. Then every row is covered, by its tick's snapshot or as a straggler, and the sweep that looks
-- finds none. The step is with the next topic behind p_after_topic_id; got_on is false where it waits. next_topic_id is
-- what the next step is to begin behind, so one that waits is passed over; null at the end of the topics. All are null
-- while others are at upkeep. Whoever comes back to those that waited may find them free: on a busy server there is
-- always some transaction open, and rarely the same one. One topic for each transaction: it may keep that topic from
-- being ticked, and whoever waited for a second tick lock could meet a transaction that recalls on both topics and
-- waits for the first.
create or replace function duewheel.sweep(
    p_after_topic_id integer default 0, p_now timestamptz default null,
    out swept bigint, out got_on boolean, out next_topic_id integer
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_now constant timestamptz := duewheel.clock_at(p_now);
    v_until constant timestamptz := clock_timestamp() + interval '50 milliseconds';
    v_slot duewheel.slot;
    v_topic_id integer;
    v_step record;
begin
    perform duewheel.require_own_transaction();
    if not duewheel.begin_upkeep() then
        return;
    end if;
    swept := 0;
    got_on := false;
    for v_slot in select * from duewheel.slot s where s.sealed_at is null and s.ends_at < v_now
    order by s.starts_at loop
        v_topic_id := duewheel.topic_to_sweep(v_slot, p_after_topic_id);
        if v_topic_id is not null then
            if got_on then
                -- A tick is a transaction of its own: none stands behind a slot that was sealed in this one.
                next_topic_id := 0;
                return;
            end if;
            v_step := duewheel.sweep_step(v_slot, v_topic_id, p_now);
            swept := v_step.swept;
            got_on := not v_step.waits;
            next_topic_id := case when v_step.waits then v_topic_id else v_topic_id - 1 end;
            return;
        elsif p_after_topic_id > 0 and duewheel.topic_to_sweep(v_slot, 0) is not null then
            return;
        end if;
        -- Those that are still to come into it are looked at there.
        continue when duewheel.topics_outside(v_slot.starts_at, v_slot.ends_at) <> '{}';
        update duewheel.slot s set sealed_at = v_now where s.starts_at = v_slot.starts_at;
        delete from duewheel.swept_topic w where w.starts_at = v_slot.starts_at;
        got_on := true;
        p_after_topic_id := 0;
        if clock_timestamp() >= v_until then
            next_topic_id := 0;
            return;
        end if;
    end loop;
end
$$;
