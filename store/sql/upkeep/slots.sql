-- Upkeep: slots made ahead, retention.

-- Drops a slot, unless other sessions use messages for longer than p_patience: dropping takes a lock of the whole
-- table, and senders queue up behind a wait for it. Where the slot itself is gone, those go that have outlived it, with
-- the next portions that are forgotten.
create or replace function duewheel.drop_slot(
    p_slot duewheel.slot, p_reason text, p_patience interval, p_now timestamptz
) returns boolean
language plpgsql as $$
begin
    perform set_config('lock_timeout', extract(milliseconds from p_patience)::integer::text, true);
    if exists (select from duewheel.slot s where s.starts_at = (p_slot).starts_at) then
        insert into duewheel.outlived_slot (starts_at, ends_at, table_name, topic_ids)
        select (p_slot).starts_at, (p_slot).ends_at, (p_slot).table_name, o.topic_ids
        from duewheel.topics_outside((p_slot).starts_at, (p_slot).ends_at) o (topic_ids)
        where o.topic_ids <> '{}'
        on conflict do nothing;
        perform duewheel.fifo_forget_slot(p_slot);
        execute format('drop table duewheel.%I', (p_slot).table_name);
    else
        update duewheel.outlived_slot o set is_dropped = true where o.starts_at = (p_slot).starts_at;
        perform duewheel.fifo_forget_slot(p_slot);
    end if;
    delete from duewheel.slot s where s.starts_at = (p_slot).starts_at;
    delete from duewheel.closed_slot c where c.starts_at = (p_slot).starts_at;
    insert into duewheel.dropped_slot (starts_at, ends_at, dropped_at, reason)
    values ((p_slot).starts_at, (p_slot).ends_at, p_now, p_reason) on conflict do nothing;
    return true;
exception when lock_not_available then
    return false;
end
$$;

-- Makes the slots of the time ahead and drops slots: those past retention that every group has finished, and while
-- those that have begun are larger than the broker's retention_bytes, further ones. A slot in which a message waits or
-- may still come is never dropped. The answer is JSON; "more" says that there was more to do than one transaction
-- should: it locks what it drops.
-- role: admin
create or replace function duewheel.maintain(now timestamptz default null) returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := duewheel.clock_at(maintain.now);
    v_believed constant timestamptz := duewheel.begin_upkeep(maintain.now);
    v_slot duewheel.slot;
    v_until constant timestamptz := clock_timestamp() + interval '50 milliseconds';
    v_longest constant interval := (
        select max(t.retention) from duewheel.topic t where t.deleted_at is null and t.message_type <> 'DEAD_LETTER');
    v_past duewheel.slot[] := '{}';
    v_dropped text[] := '{}';
    v_unread text[] := '{}';
    v_busy text[] := '{}';
    -- Of a wait for one slot; short for those behind one that stayed in use, so that a call waits for 130 ms at most.
    v_patience interval := interval '100 milliseconds';
    v_full record;
    v_dropped_full jsonb := '[]';
    v_kept_full jsonb := '[]';
    -- So many slots are dropped in one transaction.
    v_most constant integer := 4;
    v_more boolean := false;
begin
    if v_believed is null then
        return jsonb_build_object('busy', true, 'maintained_at', (select b.maintained_at from duewheel.broker b),
                                  'is_overdue', (select b.maintained_at < v_now - interval '2 hours'
                                                 from duewheel.broker b));
    end if;
    update duewheel.broker b
    set maintained_at = v_now,
        came_back_at = case when b.maintained_at > v_now - greatest(b.abandoned_after / 2, interval '2 hours')
                            then b.came_back_at else v_now end
    -- Settings that are being changed keep no slot from being made.
    where b.only_row = (select o.only_row from duewheel.broker o for no key update skip locked);
    perform duewheel.open_slots();
    perform duewheel.make_slots_ahead(v_now);

    for v_slot in
        select * from duewheel.slot s
        -- Of what is not sealed, an open transaction may still send something to be released.
        where s.sealed_at is not null and s.ends_at <= v_believed - coalesce(
            (select min(t.retention) from duewheel.topic t where t.deleted_at is null), interval '72 hours')
        order by s.starts_at
    loop
        if cardinality(v_past) >= v_most or v_past <> '{}' and clock_timestamp() >= v_until then
            v_more := true;
            exit;
        end if;
        if duewheel.topics_kept(v_slot, v_believed, 1) = '{}' then
            v_past := v_past || v_slot;
        elsif v_slot.ends_at <= v_believed - v_longest and exists (
            select from duewheel.topic t
            where t.topic_id = any (duewheel.topics_kept(v_slot, v_believed)) and t.message_type <> 'DEAD_LETTER'
        ) then
            v_unread := v_unread || v_slot.table_name;
        end if;
    end loop;

    -- Last, as the lock is held until the end. Before the first is dropped, all that go are known.
    for v_full in
        select f.*, jsonb_build_object('slot', (f.slot).table_name, 'starts_at', (f.slot).starts_at, 'bytes', f.bytes,
                                       'unread', f.unread) as report
        from duewheel.slots_over_limit(v_past, v_most - cardinality(v_past), v_believed) f
    loop
        if v_full.slot is null then
            v_more := true;
        elsif v_full.is_kept then
            v_kept_full := v_kept_full || v_full.report;
        elsif v_full.unread = '[]' and exists (
            select from duewheel.groups_that_need((v_full.slot).starts_at, (v_full.slot).ends_at)) then
            v_more := true;
        elsif duewheel.drop_slot(v_full.slot, format(
            'its slot was dropped because all slots together were over the %s bytes of retention_bytes%s',
            (select b.retention_bytes from duewheel.broker b),
            case when v_full.unread <> '[]' then ', though not every group had finished it' else '' end),
            v_patience, v_now) then
            v_dropped_full := v_dropped_full || v_full.report;
            update duewheel.dropped_slot d set unread = v_full.unread
            where d.starts_at = (v_full.slot).starts_at and d.dropped_at = v_now;
        else
            v_busy := v_busy || (v_full.slot).table_name;
            v_patience := interval '10 milliseconds';
        end if;
    end loop;
    foreach v_slot in array v_past loop
        if duewheel.drop_slot(v_slot, 'its slot was dropped when its retention ended', v_patience, v_now) then
            v_dropped := v_dropped || v_slot.table_name;
        else
            v_busy := v_busy || v_slot.table_name;
            v_patience := interval '10 milliseconds';
        end if;
    end loop;
    return jsonb_build_object(
        'dropped', v_dropped, 'dropped_full', v_dropped_full, 'kept_unread', v_unread, 'kept_full', v_kept_full,
        'kept_in_use', v_busy,
        -- Where nothing gets on, the rest is for a later time.
        'more', v_more and cardinality(v_dropped) + jsonb_array_length(v_dropped_full) > 0,
        'message_bytes', duewheel.message_bytes(v_now),
        'retention_bytes', (select b.retention_bytes from duewheel.broker b));
end
$$;

-- The size of a slot on disk, with its indexes.
create or replace function duewheel.slot_bytes(p_slot duewheel.slot) returns bigint
language sql stable
return pg_total_relation_size(format('duewheel.%I', (p_slot).table_name)::regclass);

-- The size of the slots whose time has begun, and of the messages that outlived theirs. Messages that wait in later
-- slots, or for a slot to be made, do not count: no room is made for them by dropping others, and the table they came
-- in through has room left over when they move.
create or replace function duewheel.message_bytes(p_now timestamptz) returns bigint
language sql stable
begin atomic
    select coalesce(sum(b.bytes), 0)::bigint from (
        select duewheel.slot_bytes(s) as bytes from duewheel.slot s where s.starts_at <= p_now
        union all
        select o.bytes from duewheel.outlived_slot o where not o.is_dropped) b;
end;

-- The broker's own settings, and how large the slots are whose time has begun.
-- role: consumer
create or replace function duewheel.settings(
    now timestamptz default null, out retention_bytes bigint, out when_full text, out message_bytes bigint,
    out abandoned_after interval
)
language plpgsql stable as $$
#variable_conflict use_column
begin
    perform duewheel.require_home();
    select b.retention_bytes, b.when_full, duewheel.message_bytes(duewheel.clock_at(settings.now)), b.abandoned_after
    into retention_bytes, when_full, message_bytes, abandoned_after from duewheel.broker b;
end
$$;

-- Changes what is given. retention_bytes 0 is no limit, abandoned_after 0 is never.
-- role: admin
create or replace function duewheel.update_settings(
    retention_bytes bigint default null, when_full text default null, abandoned_after interval default null
) returns void
language plpgsql as $$
#variable_conflict use_column
begin
    perform duewheel.require_home();
    if update_settings.retention_bytes < 0 then
        raise exception using
            errcode = 'DW010',
            message = format('retention_bytes is %s; the limit is 1 or more, or 0 for no limit',
                             update_settings.retention_bytes),
            hint = 'Give a number of bytes.';
    end if;
    if update_settings.when_full not in ('drop_unread', 'keep_unread') then
        raise exception using
            errcode = 'DW010',
            message = format('when_full is "%s"; it is "drop_unread" or "keep_unread"',
                             left(update_settings.when_full, 80)),
            hint = 'Give one of the two.';
    end if;
    abandoned_after := duewheel.span(abandoned_after);
    if update_settings.abandoned_after < interval '0' or update_settings.abandoned_after > interval '3660 days' then
        raise exception using
            errcode = 'DW010',
            message = format('abandoned_after is %s; the limit is more than 0 and at most 3660 days, or 0 for never',
                             update_settings.abandoned_after),
            hint = 'Give a time within the limit.';
    end if;
    update duewheel.broker b
    set retention_bytes = case when update_settings.retention_bytes is null then b.retention_bytes
                               else nullif(update_settings.retention_bytes, 0) end,
        when_full = coalesce(update_settings.when_full, b.when_full),
        abandoned_after = case when update_settings.abandoned_after is null then b.abandoned_after
                               else nullif(update_settings.abandoned_after, interval '0') end;
end
$$;
