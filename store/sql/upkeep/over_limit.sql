-- The limit on the size, retention_bytes: which slots are dropped for want of room, and which messages are lost. Right
-- before a finished slot is dropped it is checked again: a group may have been rewound to it meanwhile.

-- The slots that may be dropped to make room, the oldest first: sealed and over, and not in p_past, which are dropped
-- anyway; and the messages that outlived a dropped slot.
create or replace function duewheel.slots_that_may_go(p_past duewheel.slot[], p_now timestamptz)
returns table (slot duewheel.slot, bytes bigint)
language sql stable
begin atomic
    select s, duewheel.slot_bytes(s) from duewheel.slot s
    where s.ends_at <= p_now and s.sealed_at is not null
      and s.starts_at <> all (array(select p.starts_at from unnest(p_past) p))
    union all
    select row(o.starts_at, o.ends_at, o.table_name, null, null)::duewheel.slot, o.bytes from duewheel.outlived_slot o
    where not o.is_dropped and not exists (select from duewheel.slot s where s.starts_at = o.starts_at);
end;

-- The slots to drop while the slots whose time has begun, without p_past, are larger than the broker's retention_bytes:
-- finished slots first, the oldest first. Unread slots are dropped if when_full allows it and that brings the size
-- below the limit; otherwise they are kept and reported. At most p_room of them are dropped; then a row without a slot
-- says that there are more. After 50 ms it looks for no second finished slot.
create or replace function duewheel.slots_over_limit(p_past duewheel.slot[], p_room integer, p_now timestamptz)
returns table (slot duewheel.slot, bytes bigint, unread jsonb, is_kept boolean)
language plpgsql as $$
declare
    v_until constant timestamptz := clock_timestamp() + interval '50 milliseconds';
    v_broker duewheel.broker;
    v_bytes bigint := duewheel.message_bytes(p_now) - (
        select coalesce(sum(duewheel.slot_bytes(p)), 0) from unnest(p_past) p);
    -- Without the messages that may be dropped.
    v_least_bytes bigint;
    v_unread duewheel.slot[] := '{}';
    v_unread_bytes bigint[] := '{}';
    v_found boolean := false;
    v_one record;
begin
    select * into v_broker from duewheel.broker;
    if coalesce(v_bytes <= v_broker.retention_bytes, true) then
        return;
    end if;
    for v_one in
        select c.*, sum(c.bytes) over () as all_bytes from duewheel.slots_that_may_go(p_past, p_now) c
        order by (c.slot).starts_at
    loop
        v_least_bytes := coalesce(v_least_bytes, v_bytes - v_one.all_bytes);
        if exists (select from duewheel.groups_that_need((v_one.slot).starts_at, (v_one.slot).ends_at)) then
            v_unread := v_unread || v_one.slot;
            v_unread_bytes := v_unread_bytes || v_one.bytes;
            continue;
        elsif p_room = 0 or v_found and clock_timestamp() >= v_until then
            return query select null::duewheel.slot, null::bigint, null::jsonb, false;
            return;
        end if;
        v_found := true;
        return query select v_one.slot, v_one.bytes, '[]'::jsonb, false;
        v_bytes := v_bytes - v_one.bytes;
        p_room := p_room - 1;
        if v_bytes <= v_broker.retention_bytes then
            return;
        end if;
    end loop;
    is_kept := v_broker.when_full = 'keep_unread' or v_least_bytes > v_broker.retention_bytes;
    for i in 1 .. cardinality(v_unread) loop
        if p_room = 0 and not is_kept then
            return query select null::duewheel.slot, null::bigint, null::jsonb, false;
            return;
        end if;
        return query select v_unread[i], v_unread_bytes[i], duewheel.slot_unread(v_unread[i]), is_kept;
        if not is_kept then
            v_bytes := v_bytes - v_unread_bytes[i];
            p_room := p_room - 1;
            exit when v_bytes <= v_broker.retention_bytes;
        end if;
    end loop;
end
$$;

-- The clustering groups that need something of a slot, with how many messages that is.
create or replace function duewheel.slot_unread(p_slot duewheel.slot) returns jsonb
language sql stable
begin atomic
    select coalesce(jsonb_agg(jsonb_build_object(
        'topic', t.name, 'consumer_group', s.group_name, 'messages', k.messages, 'at_least', k.is_estimate)
        order by t.name, s.group_name), '[]')
    from duewheel.groups_that_need((p_slot).starts_at, (p_slot).ends_at) n
    join duewheel.topic t on t.topic_id = n.topic_id and t.deleted_at is null
    join duewheel.subscription s on s.group_id = n.group_id
    cross join lateral duewheel.kept_for(n.group_id, n.topic_id, (p_slot).starts_at, (p_slot).ends_at) k;
end;
