-- Sending. The sender takes its transaction id before it reads the clock. So every message that is due at or before a
-- tick's hi has a transaction id that the tick knows of.

-- The first instant that is read by programs whose years begin with 1, whatever their time zone.
create or replace function duewheel.first_instant() returns timestamptz
language sql immutable parallel safe
return timestamptz '0001-01-03 00:00:00+00';

-- No message is due as late as this: clients read years up to 9999.
create or replace function duewheel.last_instant() returns timestamptz
language sql immutable parallel safe
return timestamptz '10000-01-01 00:00:00+00';

-- Whether properties need no further check: short ones are neither deep nor large.
create or replace function duewheel.are_plain(p_properties jsonb) returns boolean
language sql immutable parallel safe
return coalesce(jsonb_typeof(p_properties) = 'object' and octet_length(p_properties::text) <= 200, true);

-- Properties that every program can read: JSON as deep, and numbers as large, as the readers of most languages take.
create or replace function duewheel.check_properties(p_properties jsonb, p_name text default 'properties')
returns void
language plpgsql immutable as $$
declare
    v_text constant text := p_properties::text;
begin
    if jsonb_typeof(p_properties) <> 'object' then
        raise exception using
            errcode = 'DW010',
            message = format('%s must be a JSON object; got a JSON %s', p_name, jsonb_typeof(p_properties)),
            hint = 'Give an object of names and values.';
    end if;
    if octet_length(v_text) > 16384 then
        raise exception using
            errcode = 'DW006',
            message = format('the %s have %s bytes as JSON text; the limit is 16384 bytes (16 KiB)', p_name,
                             octet_length(v_text)),
            hint = 'Store large values elsewhere, such as in the body of a message.';
    end if;
    -- Short ones are neither deep nor large.
    if octet_length(v_text) > 200 then
        if jsonb_path_exists(p_properties, '$.**{101 to last}') then
            raise exception using
                errcode = 'DW010', message = format('the %s are nested more than 100 deep', p_name),
                hint = 'Give the nested structure as text.';
        end if;
        if jsonb_path_exists(p_properties, '$.** ? (@.type() == "number" && (@ > 1e308 || @ < -1e308))') then
            raise exception using
                errcode = 'DW010', message = format('a number in the %s is beyond 1e308 or below -1e308', p_name),
                hint = 'Give the number as text.';
        end if;
    end if;
end
$$;

create or replace function duewheel.is_tag(p_tag text) returns boolean
language sql immutable parallel safe
return p_tag ~ '^[^|[:space:][:cntrl:]*][^|[:space:][:cntrl:]]{0,126}$';

-- The limits of a message that do not depend on its topic.
-- role: admin
create or replace function duewheel.check_message(
    p_body bytea, p_key text, p_tag text, p_properties jsonb, p_message_group text, p_idempotency_key text
) returns void
language plpgsql immutable as $$
begin
    if p_body is null then
        raise exception using
            errcode = 'DW010', message = 'the body is null', hint = 'Send an empty body instead.';
    end if;
    if octet_length(p_body) > 4194304 then
        raise exception using
            errcode = 'DW005',
            message = format('the body has %s bytes; the limit is 4194304 bytes (4 MiB)', octet_length(p_body)),
            hint = 'Store the data elsewhere and send a reference to it.';
    end if;
    if p_properties is not null then
        perform duewheel.check_properties(p_properties);
    end if;
    if p_key is not null and (p_key = '' or length(p_key) > 255) then
        raise exception using
            errcode = 'DW007',
            message = format('the key must have 1 to 255 characters; got %s', length(p_key)),
            hint = 'Leave the key out, or give one within these limits.';
    end if;
    if p_tag is not null and not duewheel.is_tag(p_tag) then
        raise exception using
            errcode = 'DW009',
            message = format('"%s" is not a tag: a tag has 1 to 127 characters without spaces or "|", and does not '
                             'begin with "*"', left(p_tag, 200)),
            hint = 'Leave the tag out, or give one within these limits.';
    end if;
    if p_message_group is not null and (p_message_group = '' or length(p_message_group) > 255) then
        raise exception using
            errcode = 'DW010',
            message = format('the message group must have 1 to 255 characters; got %s', length(p_message_group)),
            hint = 'Leave the message group out, or give one within these limits.';
    end if;
    if p_idempotency_key is not null and (p_idempotency_key = '' or length(p_idempotency_key) > 512) then
        raise exception using
            errcode = 'DW007',
            message = format('the idempotency key must have 1 to 512 characters; got %s', length(p_idempotency_key)),
            hint = 'Leave it out, or give one within these limits.';
    end if;
end
$$;

-- On a FIFO topic a message must name its message group.
-- role: admin
create or replace function duewheel.check_message_group(p_topic text, p_message_type text, p_message_group text)
returns void
language plpgsql immutable as $$
begin
    if p_message_type = 'FIFO' and p_message_group is null then
        raise exception using
            errcode = 'DW003',
            message = format('topic "%s" is of type FIFO and the message has no message group', p_topic),
            hint = 'Give message_group, which names what the messages are kept in order for, or send to a topic of '
                   'type NORMAL.';
    end if;
end
$$;

-- The earliest instant of a FIFO message that is sent now: after the earlier messages of its message group that the
-- next tick releases with it, even if the clock has stepped back. Messages due up to p_hi are released before it,
-- unless they are held back or of this transaction. If 100 messages of the queue are due later than p_floor and p_hi,
-- or p_message_group is null: after all messages of the queue.
create or replace function duewheel.fifo_floor(
    p_topic_id integer, p_queues smallint[], p_floor timestamptz, p_hi timestamptz, p_message_group text default null
) returns timestamptz
language sql stable
begin atomic
    select greatest(p_floor, (
        select b.deliver_at from duewheel.held_back b
        where b.topic_id = p_topic_id and b.deliver_at > p_floor order by b.deliver_at desc limit 1
    ), (
        select m.deliver_at from duewheel.any_message m
        where p_hi > p_floor and m.topic_id = p_topic_id and m.xid = pg_current_xact_id_if_assigned()
          and m.deliver_at > p_floor and m.deliver_at <= p_hi
          and duewheel.minute_of(m.deliver_at) >= duewheel.minute_of(p_floor)
          and duewheel.minute_of(m.deliver_at) <= duewheel.minute_of(p_hi)
        order by duewheel.minute_of(m.deliver_at) desc, m.deliver_at desc limit 1
    ), max(m.deliver_at) filter (
        where p_message_group is null or m.message_group = p_message_group or m.places = 100))
    from unnest(p_queues) q (queue)
    cross join lateral (
        select a.deliver_at, a.message_group, count(*) over () as places
        from (
            select m.deliver_at, m.message_group from duewheel.any_message m
            where m.topic_id = p_topic_id and m.queue = q.queue and m.deliver_at > greatest(p_floor, p_hi)
            order by m.deliver_at desc limit 100
        ) a
    ) m;
end;

-- Makes messages of this transaction due at their instants even if the topic is released farther, because the clock
-- was ahead then.
-- role: admin
create or replace function duewheel.hold_back(p_topic_id integer, p_hi timestamptz) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    insert into duewheel.held_back (topic_id, queue, deliver_at, seq)
    select m.topic_id, m.queue, m.deliver_at, m.seq from duewheel.any_message m
    where m.topic_id = p_topic_id and m.xid = pg_current_xact_id() and m.deliver_at <= p_hi
      and duewheel.minute_of(m.deliver_at) <= duewheel.minute_of(p_hi)
    -- By the index of transactions, in a plan that was made while the table was empty, too.
    order by duewheel.minute_of(m.deliver_at)
    on conflict on constraint held_back_pkey do nothing;
end
$$;

-- Begins a COPY of many messages: takes the transaction id, then reads the clock, and reserves message numbers.
-- role: producer
create or replace function duewheel.begin_copy(
    p_topic text, p_block_count integer, p_now timestamptz default null,
    out topic_id integer, out message_type text, out queues integer, out first_block bigint, out xid xid8,
    out now_at timestamptz, out floor_at timestamptz, out max_delay interval, out out_of_range text,
    out delay_levels interval[], out quiet_until timestamptz, out notify_before timestamptz,
    -- Messages due before near_until go into duewheel.message, whose slots exist, and the rest into
    -- duewheel.far_message. For messages due up to released_to duewheel.hold_back is to be called.
    out near_until timestamptz, out released_to timestamptz
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic;
    v_tick record;
begin
    if p_now is not null then
        perform duewheel.require_clock_right(p_now);
    end if;
    perform duewheel.require_home();
    xid := pg_current_xact_id();
    now_at := coalesce(p_now, clock_timestamp());
    v_topic := duewheel.topic_by_name(p_topic);
    select t.lo, t.hi, t.by_wheel, pg_visible_in_snapshot(xid, t.snapshot) as is_ours into v_tick
    from duewheel.newest_tick(v_topic.topic_id) t;
    topic_id := v_topic.topic_id;
    message_type := v_topic.message_type;
    queues := v_topic.queues;
    released_to := v_tick.hi;
    floor_at := case when v_tick.is_ours is not true then now_at
        else greatest(now_at, v_tick.hi + interval '1 microsecond') end;
    if v_topic.message_type = 'FIFO' then
        floor_at := duewheel.fifo_floor(
            v_topic.topic_id, array(select generate_series(0, v_topic.queues - 1)::smallint), floor_at, v_tick.hi);
    end if;
    max_delay := v_topic.max_delay;
    out_of_range := v_topic.out_of_range;
    delay_levels := v_topic.delay_levels;
    near_until := duewheel.near_until(floor_at);
    quiet_until := duewheel.quiet_until(now_at, v_tick.lo, v_tick.hi, v_tick.by_wheel, v_topic.granularity);
    notify_before := now_at + duewheel.wheel_reach();
    perform duewheel.check_limit('the number of blocks of 65536 messages', p_block_count, 1, 16);
    first_block := nextval('duewheel.message_block');
end
$$;

-- For a COPY: messages due from the floor on and before this instant go into duewheel.message, whose slots exist, later
-- ones into duewheel.far_message. It is the first end of a slot that no other slot follows.
create or replace function duewheel.near_until(p_floor_at timestamptz) returns timestamptz
language plpgsql stable as $$
begin
    return (
        select coalesce(min(s.ends_at), p_floor_at)
        from duewheel.slot s
        where s.ends_at > p_floor_at and (duewheel.open_slot_at(p_floor_at)).starts_at is not null
          and not exists (select from duewheel.slot n where n.starts_at = s.ends_at
                          and not exists (select from duewheel.closed_slot c where c.starts_at = n.starts_at)));
end
$$;

-- The instant until which a sender needs no NOTIFY; null if it always needs one. A wheel polls for messages due later
-- than duewheel.wheel_reach(). It ticks a topic again at hi + granularity, and a busy topic for 0.3 s; these ticks
-- release the messages due by this instant. NOTIFY takes a lock of the whole database cluster until the commit is on
-- disk, so with one in each transaction they would commit one at a time. STABLE like the addition of an interval to an
-- instant, or calls would not be inlined.
create or replace function duewheel.quiet_until(
    p_now_at timestamptz, p_lo timestamptz, p_hi timestamptz, p_by_wheel boolean, p_granularity interval
) returns timestamptz
language sql stable parallel safe
return case when p_by_wheel then greatest(
    case when p_hi + p_granularity > p_now_at + interval '20 milliseconds' then p_hi + p_granularity end,
    case when p_hi > p_now_at - interval '100 milliseconds' and duewheel.is_busy(p_lo, p_hi, p_granularity)
         then p_hi + interval '200 milliseconds' end) end;

-- What a notification of the wheel says.
create or replace function duewheel.due_payload(p_topic_id integer, p_deliver_at timestamptz) returns text
language sql stable parallel safe
return p_topic_id || ' ' || duewheel.unix_micros(least(p_deliver_at, duewheel.last_instant()));

-- role: admin
create or replace function duewheel.notify_due(p_topic_id integer, p_deliver_at timestamptz) returns void
language sql
begin atomic
    select duewheel.announce('duewheel_due', duewheel.due_payload(p_topic_id, p_deliver_at));
end;

-- Stores an idempotency key for a message. If the key is taken, returns the receipt of its message, else null. Waits
-- for another transaction that claims the same key.
create or replace function duewheel.claim_idempotency_key(
    p_topic_id integer, p_idempotency_key text, p_queue smallint, p_deliver_at timestamptz, p_seq bigint,
    p_until_at timestamptz
) returns duewheel.send_receipt
language plpgsql as $$
declare
    v_receipt duewheel.send_receipt;
begin
    loop
        insert into duewheel.idempotency (topic_id, idempotency_key, queue, deliver_at, seq, until_at)
        values (p_topic_id, p_idempotency_key, p_queue, p_deliver_at, p_seq, p_until_at)
        on conflict on constraint idempotency_pkey do nothing;
        if found then
            return null;
        end if;
        select duewheel.message_id(i.topic_id, i.queue, i.deliver_at, i.seq), i.deliver_at, 'duplicate'
        into v_receipt
        from duewheel.idempotency i
        where i.topic_id = p_topic_id and i.idempotency_key = p_idempotency_key collate "default";
        if found then
            return v_receipt;
        end if;
        -- Upkeep has forgotten the key between the two statements.
    end loop;
end
$$;

-- Sends one message in the caller's transaction.
-- role: producer
create or replace function duewheel.send(
    topic text,
    body bytea,
    delay interval default null,
    deliver_at timestamptz default null,
    delay_level integer default null,
    key text default null,
    tag text default null,
    properties jsonb default null,
    message_group text default null,
    idempotency_key text default null,
    on_conflict text default 'allow',
    now timestamptz default null
) returns duewheel.send_receipt
-- One plan for all calls, by the keys, though tables were small when it was made. Each setting costs a call most of a
-- microsecond, so this function has only the needed settings of entry/plans.sql.
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    -- The transaction id is taken before the clock is read.
    v_now constant timestamptz :=
        case when pg_current_xact_id() is not null then coalesce(send.now, clock_timestamp()) end;
    v_asked constant timestamptz := coalesce(send.deliver_at, v_now + duewheel.span(send.delay), v_now);
    v_deliver_at constant timestamptz := greatest(v_asked, v_now);
    v_content_type constant "char" := duewheel.content_type_mark(send.properties);
    v_topic_id integer;
    v_message_type text;
    v_queues integer;
    v_granularity interval;
    v_latest timestamptz;
    v_lo timestamptz;
    v_hi timestamptz;
    v_by_wheel boolean;
    v_slot_ends_at timestamptz;
    v_seq bigint;
    v_queue smallint;
begin
    if (send.now is null
        and current_setting('duewheel.home', true) = 'duewheel.broker'::regclass::oid::text) is not true
    then
        perform duewheel.require_home();
        perform duewheel.require_clock_right(send.now) where send.now is not null;
    end if;
    -- With the collation of the index, which all texts have that the caller takes from columns.
    select t.topic_id, t.message_type, t.queues, t.granularity, v_now + t.max_delay, k.lo, k.hi, k.by_wheel, s.ends_at
    into v_topic_id, v_message_type, v_queues, v_granularity, v_latest, v_lo, v_hi, v_by_wheel, v_slot_ends_at
    from duewheel.topic t
    left join lateral (
        select k.lo, k.hi, k.by_wheel from duewheel.tick k
        where k.topic_id = t.topic_id order by k.hi desc, k.tick_id desc limit 1) k on true
    left join lateral (
        select s.starts_at, s.ends_at from duewheel.slot s
        where s.starts_at <= v_deliver_at order by s.starts_at desc limit 1) s
        on (select true from duewheel.closed_slot c where c.starts_at = s.starts_at) is null
    where t.name = send.topic collate "default" and t.deleted_at is null;
    -- Most senders send a body with its time and perhaps a key and a tag, all within the limits, due after the newest
    -- release and in an existing slot. It needs no further check.
    if (num_nonnulls(send.delay, send.deliver_at) = case v_message_type when 'DELAY' then 1 when 'NORMAL' then 0 end
        and num_nonnulls(send.delay_level, send.message_group, send.idempotency_key) = 0
        and send.on_conflict = 'allow' and octet_length(send.body) <= 4194304
        and (send.key is null or length(send.key) between 1 and 255)
        and (send.tag is null or duewheel.is_tag(send.tag))
        and duewheel.are_plain(send.properties)
        and v_asked >= duewheel.first_instant() and v_asked <= v_latest
        and (v_hi is null or v_deliver_at > v_hi) and v_deliver_at < v_slot_ends_at) is not true
    then
        return duewheel.send_checked(send.topic, send.body, send.delay, send.deliver_at, send.delay_level, send.key,
                                     send.tag, send.properties, send.message_group, send.idempotency_key,
                                     send.on_conflict, send.now);
    end if;
    v_seq := nextval('duewheel.message_block') * 65536;
    -- In turn: a session draws 16 blocks at once.
    v_queue := v_seq / 1048576 % v_queues;
    insert into duewheel.message
        (topic_id, queue, content_type, deliver_at, seq, born_at, asked_at, tag, key, properties, body)
    values (v_topic_id, v_queue, v_content_type, v_deliver_at, v_seq, v_now, nullif(v_asked, v_deliver_at), send.tag,
            send.key, duewheel.properties_beside(v_content_type, send.properties), send.body);
    if v_deliver_at < v_now + duewheel.wheel_reach() then
        -- A second condition: most messages are due later, and need not initialize it.
        if coalesce(v_deliver_at > duewheel.quiet_until(v_now, v_lo, v_hi, v_by_wheel, v_granularity), true) then
            -- Not duewheel.notify_due: a function of a role runs with its owner's rights, so it is not inlined.
            perform duewheel.announce('duewheel_due', duewheel.due_payload(v_topic_id, v_deliver_at));
        end if;
    end if;
    return (duewheel.message_id(v_topic_id, v_queue, v_deliver_at, v_seq), v_deliver_at, 'sent')::duewheel.send_receipt;
end
$$;

-- The same for a message that needs a further check or is refused.
create or replace function duewheel.send_checked(
    p_topic text, p_body bytea, p_delay interval, p_deliver_at timestamptz, p_delay_level integer, p_key text,
    p_tag text, p_properties jsonb, p_message_group text, p_idempotency_key text, p_on_conflict text,
    p_now timestamptz
) returns duewheel.send_receipt
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_now constant timestamptz :=
        case when pg_current_xact_id() is not null then coalesce(p_now, clock_timestamp()) end;
    v_topic constant duewheel.topic := duewheel.topic_by_name(p_topic);
    v_seq constant bigint := nextval('duewheel.message_block') * 65536;
    v_content_type constant "char" := duewheel.content_type_mark(p_properties);
    v_tick record;
    v_asked timestamptz;
    v_deliver_at timestamptz;
    v_queue smallint;
    v_outcome text := 'sent';
    v_kept record;
    v_receipt duewheel.send_receipt;
begin
    perform duewheel.check_message(p_body, p_key, p_tag, p_properties, p_message_group, p_idempotency_key);
    select k.lo, k.hi, k.by_wheel into v_tick from duewheel.newest_tick(v_topic.topic_id) k;
    v_asked := duewheel.asked_instant(p_topic, v_topic.message_type, v_topic.max_delay, v_topic.out_of_range,
                                      v_topic.delay_levels, v_now, p_delay, p_deliver_at, p_delay_level);
    v_deliver_at := greatest(v_asked, v_now);
    v_queue := case
        when p_message_group is null then v_seq / 1048576 % v_topic.queues
        else (hashtextextended(p_message_group, 0) & 2147483647) % v_topic.queues
    end;
    if v_topic.message_type = 'FIFO' then
        perform duewheel.check_message_group(p_topic, v_topic.message_type, p_message_group);
        v_deliver_at := duewheel.fifo_floor(
            v_topic.topic_id, array[v_queue], v_deliver_at, v_tick.hi, p_message_group);
    end if;

    if v_deliver_at <= v_tick.hi then
        v_deliver_at := duewheel.place_behind(v_topic.topic_id, v_deliver_at, v_tick.hi);
    end if;

    -- Before the idempotency key, like a batch.
    if p_on_conflict <> 'allow' and p_key is not null then
        perform pg_advisory_xact_lock(duewheel.key_lock_key(v_topic.topic_id, p_key));
    end if;
    if p_idempotency_key is not null then
        v_receipt := duewheel.claim_idempotency_key(
            v_topic.topic_id, p_idempotency_key, v_queue, v_deliver_at, v_seq, v_deliver_at + v_topic.retention);
        if v_receipt.message_id is not null then
            return v_receipt;
        end if;
    end if;

    if p_on_conflict <> 'allow' or p_on_conflict is null then
        v_receipt := duewheel.resolve_key_conflict(
            v_topic.topic_id, p_key, p_on_conflict,
            duewheel.message_id(v_topic.topic_id, v_queue, v_deliver_at, v_seq), v_now);
        v_outcome := v_receipt.outcome;
        if v_outcome = 'kept' then
            -- The same idempotency key again finds the message that was kept.
            v_kept := duewheel.parse_message_id(v_receipt.message_id);
            update duewheel.idempotency i
            set queue = v_kept.queue, deliver_at = v_kept.deliver_at, seq = v_kept.seq,
                until_at = v_kept.deliver_at + v_topic.retention
            where i.topic_id = v_topic.topic_id and i.idempotency_key = p_idempotency_key collate "default";
            return v_receipt;
        end if;
    end if;

    if v_deliver_at <= v_tick.hi then
        -- Released that far while the clock was ahead: the message still waits for its instant.
        insert into duewheel.held_back (topic_id, queue, deliver_at, seq)
        values (v_topic.topic_id, v_queue, v_deliver_at, v_seq);
    end if;
    if (duewheel.open_slot_at(v_deliver_at)).starts_at is not null then
        insert into duewheel.message
            (topic_id, queue, content_type, deliver_at, seq, born_at, asked_at, tag, key, properties, message_group,
             body)
        values (v_topic.topic_id, v_queue, v_content_type, v_deliver_at, v_seq, v_now,
                nullif(v_asked, v_deliver_at), p_tag, p_key,
                duewheel.properties_beside(v_content_type, p_properties), p_message_group, p_body);
    else
        insert into duewheel.far_message
            (topic_id, queue, content_type, deliver_at, seq, born_at, asked_at, tag, key, properties, message_group,
             body)
        values (v_topic.topic_id, v_queue, v_content_type, v_deliver_at, v_seq, v_now,
                nullif(v_asked, v_deliver_at), p_tag, p_key,
                duewheel.properties_beside(v_content_type, p_properties), p_message_group, p_body);
    end if;

    if (v_deliver_at < v_now + duewheel.wheel_reach() or v_topic.message_type = 'FIFO')
       and coalesce(v_deliver_at > duewheel.quiet_until(
           v_now, v_tick.lo, v_tick.hi, v_tick.by_wheel, v_topic.granularity), true)
    then
        perform duewheel.notify_due(
            v_topic.topic_id, case when v_topic.message_type = 'FIFO' then v_now else v_deliver_at end);
    end if;
    return (duewheel.message_id(v_topic.topic_id, v_queue, v_deliver_at, v_seq), v_deliver_at, v_outcome
           )::duewheel.send_receipt;
end
$$;

-- The requested instant of a send, from exactly one of delay, deliver_at and delay_level, checked against the topic.
-- role: admin
create or replace function duewheel.asked_instant(
    p_topic text, p_message_type text, p_max_delay interval, p_out_of_range text, p_delay_levels interval[],
    p_now timestamptz, p_delay interval, p_deliver_at timestamptz, p_delay_level integer
) returns timestamptz
language plpgsql stable as $$
declare
    v_asked timestamptz;
begin
    if num_nonnulls(p_delay, p_deliver_at, p_delay_level) > 1 then
        raise exception using
            errcode = 'DW010',
            message = 'more than one of delay, deliver_at and delay_level is given',
            hint = 'Give exactly one of the three.';
    end if;
    if p_delay_level < 0 then
        raise exception using
            errcode = 'DW008',
            message = format('the delay level must be 0 (not delayed) or more; got %s', p_delay_level),
            hint = 'Levels above the last one count as the last one.';
    end if;
    if p_message_type = 'DELAY' then
        if num_nonnulls(p_delay, p_deliver_at, p_delay_level) = 0 then
            raise exception using
                errcode = 'DW003',
                message = format('topic "%s" is of type DELAY and the message has no delivery time', p_topic),
                hint = 'Give delay, deliver_at or delay_level, or send to a topic of type NORMAL.';
        end if;
    elsif p_message_type in ('NORMAL', 'FIFO') then
        if p_delay is not null or p_deliver_at is not null or p_delay_level > 0 then
            raise exception using
                errcode = 'DW003',
                message = format('topic "%s" is of type %s and the message has a delivery time', p_topic,
                                 p_message_type),
                hint = 'Leave delay, deliver_at and delay_level out, or send to a topic of type DELAY.';
        end if;
    else
        raise exception using
            errcode = 'DW003',
            message = format('topic "%s" is of type %s; only retries and dead letters go there', p_topic,
                             p_message_type),
            hint = 'Send to the topic that the group subscribes to.';
    end if;
    v_asked := case
        when p_deliver_at is not null then p_deliver_at
        when p_delay is not null then p_now + duewheel.span(p_delay)
        when p_delay_level > 0 then p_now + p_delay_levels[least(p_delay_level, cardinality(p_delay_levels))]
        else p_now
    end;
    if v_asked > p_now + p_max_delay then
        if p_out_of_range = 'reject' or not isfinite(v_asked) then
            raise exception using
                errcode = 'DW004',
                message = format('the delivery instant %s is more than %s ahead; the limit of topic "%s" is %s',
                                 v_asked, p_max_delay, p_topic, p_max_delay),
                hint = 'Choose an earlier instant, or raise the topic''s max_delay.';
        end if;
        return p_now;
    end if;
    -- A past instant is delivered at once; it is stored as asked if every program can read it.
    return case when v_asked >= duewheel.first_instant() then v_asked else p_now end;
end
$$;

-- Text and JSON bodies are sent as their UTF-8 bytes. The content type tells which of the two they are, unless the
-- properties name another type.
-- role: producer
create or replace function duewheel.send(
    topic text, body text, delay interval default null, deliver_at timestamptz default null,
    delay_level integer default null, key text default null, tag text default null, properties jsonb default null,
    message_group text default null, idempotency_key text default null, on_conflict text default 'allow',
    now timestamptz default null
) returns duewheel.send_receipt
language sql
begin atomic
    select duewheel.send(topic, convert_to(body, 'UTF8'), delay, deliver_at, delay_level, key, tag,
                         '{"content-type": "text/plain; charset=utf-8"}'::jsonb || coalesce(properties, '{}'),
                         message_group, idempotency_key, on_conflict, now);
end;

-- role: producer
create or replace function duewheel.send(
    topic text, body jsonb, delay interval default null, deliver_at timestamptz default null,
    delay_level integer default null, key text default null, tag text default null, properties jsonb default null,
    message_group text default null, idempotency_key text default null, on_conflict text default 'allow',
    now timestamptz default null
) returns duewheel.send_receipt
language sql
begin atomic
    select duewheel.send(topic, convert_to(body::text, 'UTF8'), delay, deliver_at, delay_level, key, tag,
                         '{"content-type": "application/json"}'::jsonb || coalesce(properties, '{}'),
                         message_group, idempotency_key, on_conflict, now);
end;
