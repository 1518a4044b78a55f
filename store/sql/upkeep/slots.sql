-- Upkeep: slots made ahead, retention.

-- Drops a slot, unless other sessions use messages for longer than 100 ms: dropping locks the whole table, and senders
-- queue up behind a wait for that lock. If the slot itself is already gone, the messages that outlived it are deleted
-- with the next portions that are forgotten.
create or replace function duewheel.drop_slot(p_slot duewheel.slot, p_reason text, p_now timestamptz) returns boolean
language plpgsql as $$
begin
    perform set_config('lock_timeout', '100ms', true);
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

-- Notes that upkeep is done, and makes the slots of the time ahead.
create or replace function duewheel.prepare_slots(p_now timestamptz) returns void
language plpgsql as $$
begin
    update duewheel.broker b
    set maintained_at = p_now,
        came_back_at = case when b.maintained_at > p_now - greatest(b.abandoned_after / 2, interval '2 hours')
                            then b.came_back_at else p_now end
    -- A change of settings in an open transaction does not block the creation of slots.
    where b.only_row = (select o.only_row from duewheel.broker o for no key update skip locked);
    perform duewheel.open_slots();
    perform duewheel.make_slots_ahead(p_now);
end
$$;

-- The slots past the shortest retention. Into a slot that is not sealed, an open transaction may still send something.
create or replace function duewheel.slots_past(p_now timestamptz) returns setof duewheel.slot
language sql stable
begin atomic
    select s from duewheel.slot s
    where s.sealed_at is not null and s.ends_at <= p_now - coalesce(
        (select min(t.retention) from duewheel.topic t where t.deleted_at is null), interval '72 hours');
end;

-- Drops a slot past retention if every group has finished it. Returns a report, or null if it is kept for a topic.
create or replace function duewheel.drop_past(p_slot duewheel.slot, p_believed_at timestamptz, p_now timestamptz)
returns jsonb
language plpgsql as $$
begin
    if duewheel.topics_kept(p_slot, p_believed_at, 1) = '{}' then
        return jsonb_build_object(
            case when duewheel.drop_slot(p_slot, 'its slot was dropped when its retention ended', p_now)
                 then 'dropped' else 'kept_in_use' end, array[(p_slot).table_name]);
    elsif (p_slot).ends_at <= p_believed_at - (
        select max(t.retention) from duewheel.topic t where t.deleted_at is null and t.message_type <> 'DEAD_LETTER')
        and exists (
            select from duewheel.topic t
            where t.topic_id = any (duewheel.topics_kept(p_slot, p_believed_at)) and t.message_type <> 'DEAD_LETTER')
    then
        return jsonb_build_object('kept_unread', array[(p_slot).table_name]);
    end if;
    return null;
end
$$;

-- Drops a slot if the slots that have begun are larger than the broker's retention_bytes. A slot in which a message
-- waits, or which may still get one, is never dropped. more says that the next call may drop another.
create or replace function duewheel.drop_over_limit(
    p_believed_at timestamptz, p_now timestamptz, out report jsonb, out more boolean
)
language plpgsql as $$
declare
    v_past constant duewheel.slot[] := array(
        select s from duewheel.slots_past(p_believed_at) s where duewheel.topics_kept(s, p_believed_at, 1) = '{}');
    v_full record;
    v_kept jsonb := '[]';
    v_in_use text[] := '{}';
begin
    for v_full in
        select f.*, jsonb_build_object('slot', (f.slot).table_name, 'starts_at', (f.slot).starts_at, 'bytes', f.bytes,
                                       'unread', f.unread) as report
        from duewheel.slots_over_limit(v_past, 4, p_believed_at) f
    loop
        -- A row without a slot says that there are more; a finished slot may be needed again after a rewind.
        continue when v_full.slot is null or not v_full.is_kept and v_full.unread = '[]' and exists (
            select from duewheel.groups_that_need((v_full.slot).starts_at, (v_full.slot).ends_at));
        if v_full.is_kept then
            v_kept := v_kept || v_full.report;
        elsif duewheel.drop_slot(v_full.slot, format(
            'its slot was dropped because all slots together were over the %s bytes of retention_bytes%s',
            (select b.retention_bytes from duewheel.broker b),
            case when v_full.unread <> '[]' then ', though not every group had finished it' else '' end), p_now) then
            update duewheel.dropped_slot d set unread = v_full.unread
            where d.starts_at = (v_full.slot).starts_at and d.dropped_at = p_now;
            report := jsonb_build_object('dropped_full', jsonb_build_array(v_full.report));
            more := true;
            return;
        else
            v_in_use := v_in_use || (v_full.slot).table_name;
        end if;
    end loop;
    -- No slot could be dropped: a later round tries again.
    more := false;
    report := jsonb_build_object('kept_full', v_kept, 'kept_in_use', v_in_use);
end
$$;

-- The size of a slot on disk, with its indexes.
create or replace function duewheel.slot_bytes(p_slot duewheel.slot) returns bigint
language sql stable
return pg_total_relation_size(format('duewheel.%I', (p_slot).table_name)::regclass);

-- The size of the slots whose time has begun, and of the messages that outlived their slot. Messages in later slots, or
-- in duewheel.far_message, do not count: dropping others makes no room for them, and that table has free room when they
-- move.
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

-- Changes the given settings. retention_bytes 0 is no limit, abandoned_after 0 is never.
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
            message = format('retention_bytes must be 1 or more, or 0 for no limit; got %s',
                             update_settings.retention_bytes),
            hint = 'Give a number of bytes.';
    end if;
    if update_settings.when_full not in ('drop_unread', 'keep_unread') then
        raise exception using
            errcode = 'DW010',
            message = format('when_full must be "drop_unread" or "keep_unread"; got "%s"',
                             left(update_settings.when_full, 80)),
            hint = 'Give one of the two.';
    end if;
    abandoned_after := duewheel.span(abandoned_after);
    if update_settings.abandoned_after < interval '0' or update_settings.abandoned_after > interval '3660 days' then
        raise exception using
            errcode = 'DW010',
            message = format('abandoned_after must be more than 0 and at most 3660 days, or 0 for never; got %s',
                             update_settings.abandoned_after),
            hint = 'Give a span of time within these limits.';
    end if;
    update duewheel.broker b
    set retention_bytes = case when update_settings.retention_bytes is null then b.retention_bytes
                               else nullif(update_settings.retention_bytes, 0) end,
        when_full = coalesce(update_settings.when_full, b.when_full),
        abandoned_after = case when update_settings.abandoned_after is null then b.abandoned_after
                               else nullif(update_settings.abandoned_after, interval '0') end;
end
$$;
