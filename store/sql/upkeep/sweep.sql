-- The sweep: looks through the slots that are over for messages that no release covered, and seals them.

-- Notes, for the slots that are over, which transactions can still send into them: the transactions with an earlier id
-- than this one. A transaction with a later id reads the clock after that.
create or replace function duewheel.note_slots_over(p_now timestamptz) returns void
language sql
begin atomic
    update duewheel.slot s set open_below = pg_current_xact_id() where s.open_below is null and s.ends_at < p_now;
end;

-- Whether a transaction of this database is open that can still send into a slot. The noted id belongs to a transaction
-- that has ended, so a snapshot lists all below it that have not.
create or replace function duewheel.may_be_sent_into(p_slot duewheel.slot) returns boolean
language plpgsql as $$
declare
    v_snapshot constant pg_snapshot := pg_current_snapshot();
begin
    return (p_slot).open_below is null or (p_slot).open_below >= pg_snapshot_xmin(v_snapshot)
        and duewheel.lists_one_up_to(
            v_snapshot, (p_slot).open_below, duewheel.foreign_transactions(v_snapshot));
end
$$;

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
            where w.starts_at = $2 and w.topic_id = t.topic_id and w.seq is null)
        limit 1
    $query$, (p_slot).table_name) into v_topic_id using p_after_topic_id, (p_slot).starts_at;
    return v_topic_id;
end
$$;

-- Whether transactions from p_from on have written messages of a topic into a slot.
create or replace function duewheel.has_written(p_slot duewheel.slot, p_topic_id integer, p_from xid8) returns boolean
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
    v_has_written boolean;
begin
    execute format(
        'select exists (select from duewheel.%I m where m.topic_id = $1 and m.xid >= $2)',
        (p_slot).table_name)
    into v_has_written using p_topic_id, p_from;
    return v_has_written;
end
$$;

-- The last row of the next portion of a topic's part of a slot, after p_from: about 10 000 rows; null if there are
-- fewer.
create or replace function duewheel.portion_to_sweep(
    p_slot duewheel.slot, p_topic_id integer, p_from duewheel.message_position
) returns duewheel.message_position
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
    v_to duewheel.message_position;
begin
    execute format($query$
        select m.queue, m.deliver_at, m.seq from duewheel.%I m
        where m.topic_id = $1 and (m.queue, m.deliver_at, m.seq) > ($2, $3, $4)
        order by m.queue, m.deliver_at, m.seq offset 9999 limit 1
    $query$, (p_slot).table_name)
    into v_to using p_topic_id, (p_from).queue, (p_from).deliver_at, (p_from).seq;
    return v_to;
end
$$;

-- The messages of a topic in a portion of a slot, written from p_written_from on, that no release covered. Messages
-- that the newest tick does not see are left to the next tick.
create or replace function duewheel.uncovered(
    p_slot duewheel.slot, p_topic_id integer, p_from duewheel.message_position, p_to duewheel.message_position,
    p_written_from xid8
) returns setof duewheel.message_position
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
begin
    return query execute format($query$
        select m.queue, m.deliver_at, m.seq from duewheel.%I m
        where m.topic_id = $1 and (m.queue, m.deliver_at, m.seq) > ($2, $3, $4)
          and (m.queue, m.deliver_at, m.seq) <= ($5, $6, $7) and m.xid >= $8
          and pg_visible_in_snapshot(m.xid, (select t.snapshot from duewheel.newest_tick($1) t))
          and not pg_visible_in_snapshot(m.xid, (
                select t.snapshot from duewheel.tick_over(m.topic_id, m.deliver_at) t))
          and not exists (select from duewheel.straggler s
                where s.topic_id = m.topic_id and s.queue = m.queue and s.deliver_at = m.deliver_at and s.seq = m.seq)
          and not exists (select from duewheel.held_back b
                where b.topic_id = m.topic_id and b.deliver_at = m.deliver_at and b.queue = m.queue and b.seq = m.seq)
        -- The order of the primary key: otherwise Postgres may read the whole topic in the index of ids.
        order by m.queue, m.deliver_at, m.seq
    $query$, (p_slot).table_name)
    using p_topic_id, (p_from).queue, (p_from).deliver_at, (p_from).seq, (p_to).queue, (p_to).deliver_at, (p_to).seq,
          p_written_from;
end
$$;

-- Sweeps a portion of one topic's part of a slot. It makes ticks wait only if it finds messages that no release
-- covered; it releases them as stragglers of a separate tick, and counts them.
create or replace function duewheel.sweep_topic(p_slot duewheel.slot, p_topic_id integer, p_now timestamptz)
returns bigint
language plpgsql as $$
declare
    -- The ticks of the slot see every message that was written before the slot began.
    v_written_from constant xid8 := (
        select pg_snapshot_xmin(t.snapshot) from duewheel.tick_over(p_topic_id, (p_slot).starts_at) t);
    v_has_written constant boolean := duewheel.has_written(p_slot, p_topic_id, v_written_from);
    v_from duewheel.message_position;
    v_to duewheel.message_position;
    v_rows bigint;
    v_last duewheel.tick;
    v_tick_id bigint;
begin
    select w.queue, w.deliver_at, w.seq into v_from
    from duewheel.swept_topic w where w.starts_at = (p_slot).starts_at and w.topic_id = p_topic_id;
    if not found then
        v_from := row(-1, '-infinity', 0);
    end if;
    if v_has_written then
        v_to := duewheel.portion_to_sweep(p_slot, p_topic_id, v_from);
    end if;
    insert into duewheel.swept_topic as w (starts_at, topic_id, queue, deliver_at, seq)
    values ((p_slot).starts_at, p_topic_id, v_to.queue, v_to.deliver_at, v_to.seq)
    on conflict (starts_at, topic_id) do update
    set queue = excluded.queue, deliver_at = excluded.deliver_at, seq = excluded.seq;
    if v_to.seq is null then
        v_to := row(32767, 'infinity', duewheel.last_seq());
    end if;
    if not v_has_written or not exists (
        select from duewheel.uncovered(p_slot, p_topic_id, v_from, v_to, v_written_from)
    ) then
        return 0;
    end if;
    perform duewheel.lock_ticking(p_topic_id, false);
    select * into v_last from duewheel.newest_tick(p_topic_id) t;
    v_tick_id := nextval('duewheel.tick_tick_id_seq');
    insert into duewheel.straggler (topic_id, queue, tick_id, deliver_at, seq, behind_at)
    select p_topic_id, u.queue, v_tick_id, u.deliver_at, u.seq, v_last.hi
    from duewheel.uncovered(p_slot, p_topic_id, v_from, v_to, v_written_from) u;
    get diagnostics v_rows = row_count;
    if v_rows > 0 then
        v_last.tick_id := v_tick_id;
        v_last.lo := v_last.hi;
        v_last.ticked_at := p_now;
        v_last.by_wheel := false;
        v_last.stragglers := v_rows;
        insert into duewheel.tick overriding system value select (v_last).*;
    end if;
    return v_rows;
end
$$;

-- One step with one topic of a slot that nothing can be sent into any more: a tick, or a look at a portion of its
-- messages.
create or replace function duewheel.sweep_step(p_slot duewheel.slot, p_topic_id integer, p_now timestamptz)
returns bigint
language plpgsql as $$
declare
    -- Who has sent into the slot has a lower id: a tick past its end was made, or it was over already.
    v_below constant xid8 := (
        select least(t.tick_xid, (p_slot).open_below) from duewheel.tick_over(p_topic_id, (p_slot).ends_at) t);
    v_seen constant pg_snapshot := (select t.snapshot from duewheel.newest_tick(p_topic_id) t);
begin
    if v_below is null or v_below >= pg_snapshot_xmax(v_seen)
        or v_below >= pg_snapshot_xmin(v_seen) and duewheel.lists_one_up_to(
            v_seen, v_below, duewheel.foreign_transactions(pg_current_snapshot()))
    then
        -- No message has been due since, or no tick has seen yet what the transactions that were open then have sent: a
        -- separate tick sees it, and the next step uses that tick.
        perform duewheel.tick_topic(p_topic_id, p_now, false, true, true);
        return 0;
    end if;
    return duewheel.sweep_topic(p_slot, p_topic_id, duewheel.clock_at(p_now));
end
$$;

-- The place after p_after in the slots that are over: a topic that the sweep has not read, or after all topics the slot
-- itself, to be sealed. A slot is sealed when no open transaction can still send into it and every topic with rows
-- there was ticked after that. Then every row is covered, by its tick's snapshot or as a straggler, and the sweep finds
-- none. A slot without rows waits as well: an open transaction may be the only one that has sent into it.
create or replace function duewheel.next_to_sweep(p_after duewheel.upkeep_place, p_now timestamptz)
returns duewheel.upkeep_place
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_slot duewheel.slot;
    v_next duewheel.upkeep_place;
begin
    for v_slot in
        select * from duewheel.slot s
        where s.sealed_at is null and s.ends_at < p_now and s.starts_at >= p_after.starts_at order by s.starts_at
    loop
        -- Read before its topics: these transactions include every one that had sent by then. Later slots wait for the
        -- same transactions.
        exit when duewheel.may_be_sent_into(v_slot);
        v_next := row(v_slot.starts_at, 0, coalesce(
            duewheel.topic_to_sweep(
                v_slot, case when v_slot.starts_at = p_after.starts_at then p_after.topic_id else 0 end),
            2147483647));
        if v_next > p_after then
            return v_next;
        end if;
    end loop;
    return null;
end
$$;

-- Sweeps a portion of a topic, or seals a slot. more says that the topic has further portions. Each transaction that
-- writes deals with one place: it may keep that topic from being ticked. If it waited for a second tick lock, it could
-- meet a transaction that recalls on both topics and waits for the first lock.
create or replace function duewheel.sweep(
    p_place duewheel.upkeep_place, p_now timestamptz, out swept bigint, out more boolean
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_slot constant duewheel.slot := (select s from duewheel.slot s where s.starts_at = p_place.starts_at);
begin
    swept := 0;
    more := p_place.topic_id < 2147483647;
    if more then
        swept := duewheel.sweep_step(v_slot, p_place.topic_id, p_now);
        more := not exists (
            select from duewheel.swept_topic w
            where w.starts_at = v_slot.starts_at and w.topic_id = p_place.topic_id and w.seq is null);
    elsif duewheel.topic_to_sweep(v_slot, 0) is null
        -- Messages that still have to move into the slot are swept in it.
        and duewheel.topics_outside(v_slot.starts_at, v_slot.ends_at) = '{}'
    then
        update duewheel.slot s set sealed_at = duewheel.clock_at(p_now) where s.starts_at = v_slot.starts_at;
        delete from duewheel.swept_topic w where w.starts_at = v_slot.starts_at;
    end if;
end
$$;
