-- The floor: which messages groups still need, and so what upkeep may forget. duewheel.needs alone decides whether a
-- group needs a message that is due before an instant. Slots, logs, stragglers and recalls are compared with
-- topic.floor_at, which upkeep renews. Stalled groups and the limit on the size call duewheel.needs directly.

-- Whether a group has unread or unanswered messages due in [p_from, p_until), in a topic and its retries, or in
-- p_only_topic_id alone.
create or replace function duewheel.needs(
    p_group_id integer, p_topic_id integer, p_from timestamptz, p_until timestamptz,
    p_only_topic_id integer default null
) returns boolean
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_at record;
begin
    -- Messages that are redriven on a FIFO topic are stored in its retry topic.
    if (select true from duewheel.fifo_backlog b
        where (b.topic_id::bigint << 32 | b.group_id) = (p_topic_id::bigint << 32 | p_group_id)
          and timezone('UTC', b.deliver_at) >= timezone('UTC', p_from)
          and timezone('UTC', b.deliver_at) < timezone('UTC', p_until)
        order by timezone('UTC', b.deliver_at) limit 1) then
        return true;
    end if;
    -- In a loop: with plain parameters for its range, Postgres walks an index in order.
    for v_at in
        select * from duewheel.positions(p_group_id, p_topic_id) p
        where coalesce(p.topic_id = p_only_topic_id, true)
    loop
        if (exists (
            select from duewheel.any_message m
            where m.topic_id = v_at.topic_id and m.queue = v_at.queue
              and (m.deliver_at, m.seq) > (v_at.to_at, v_at.to_seq)
              and m.deliver_at >= greatest(v_at.to_at, p_from) and m.deliver_at < p_until
              -- The messages in between were released late: a group reads them as stragglers, and its position stays.
              and (m.deliver_at <= v_at.queue_hi or m.deliver_at > coalesce(v_at.hi, '-infinity')))
        or duewheel.needs_late(v_at.topic_id, v_at.queue, v_at.straggler_to, p_from, p_until)
        or exists (
            select from duewheel.unanswered_leases(p_group_id, v_at.topic_id, v_at.queue, v_at.revived_to) o (n)
            -- A lookup by the key for each: a join might search the messages of all leases.
            cross join lateral (
                select * from duewheel.lease l
                where l.topic_id = v_at.topic_id and l.group_id = p_group_id and l.queue = v_at.queue
                  and l.n = o.n
                offset 0) l
            where duewheel.lease_needs(l, p_from, p_until)))
        then
            return true;
        end if;
    end loop;
    return false;
end
$$;

-- Whether a straggler due in [p_from, p_until) is behind p_straggler_to. 1 000 are looked at from each side. If these
-- do not tell, it is taken to be there until the group has read on.
create or replace function duewheel.needs_late(
    p_topic_id integer, p_queue smallint, p_straggler_to bigint, p_from timestamptz, p_until timestamptz
) returns boolean
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_looked_at bigint;
    v_is_found boolean;
begin
    perform from duewheel.straggler s
    where s.topic_id = p_topic_id and s.queue = p_queue and s.straggler_id > p_straggler_to
    order by s.straggler_id limit 1;
    if not found then
        return false;
    end if;
    select count(*), coalesce(bool_or(s.straggler_id > p_straggler_to), false) into v_looked_at, v_is_found
    from (
        select s.straggler_id from duewheel.straggler s
        where s.topic_id = p_topic_id and s.queue = p_queue and s.deliver_at >= p_from and s.deliver_at < p_until
        order by s.deliver_at, s.seq limit 1000) s;
    if v_is_found or v_looked_at < 1000 then
        return v_is_found;
    end if;
    select count(*), coalesce(bool_or(s.deliver_at >= p_from and s.deliver_at < p_until), false)
    into v_looked_at, v_is_found
    from (
        select s.deliver_at from duewheel.straggler s
        where s.topic_id = p_topic_id and s.queue = p_queue and s.straggler_id > p_straggler_to
        order by s.straggler_id limit 1000) s;
    return v_is_found or v_looked_at = 1000;
end
$$;

-- Whether an unanswered lease has messages due in [p_from, p_until).
create or replace function duewheel.lease_needs(p_lease duewheel.lease, p_from timestamptz, p_until timestamptz)
returns boolean
language sql stable
return case
    when not (p_lease.listed or p_lease.straggler_to > p_lease.straggler_from
              or p_lease.from_at < p_until and p_lease.to_at >= p_from) then false
    when p_lease.listed then exists (
        select from duewheel.lease_message m
        where m.topic_id = p_lease.topic_id and m.group_id = p_lease.group_id and m.queue = p_lease.queue
          and m.n = p_lease.n and m.deliver_at >= p_from and m.deliver_at < p_until)
    -- For stragglers, the range is the group's position and not the instants of the messages.
    when p_lease.straggler_to > p_lease.straggler_from then (
        select true from duewheel.straggler s
        where s.topic_id = p_lease.topic_id and s.queue = p_lease.queue and s.straggler_id > p_lease.straggler_from
          and s.straggler_id <= p_lease.straggler_to and s.deliver_at >= p_from and s.deliver_at < p_until
        order by s.straggler_id limit 1)
    else true end;

-- How many messages due in [p_from, p_until) a lease holds without an answer: counted up to 1 000. In order, so that
-- Postgres reads them by an index that begins there.
create or replace function duewheel.count_held(p_lease duewheel.lease, p_from timestamptz, p_until timestamptz)
returns bigint
language sql stable
begin atomic
    select least(
        (p_lease).message_count - duewheel.answered_count(
            (p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n), (
            select count(*) from (
                (select from duewheel.lease_message m
                 where (p_lease).listed and m.topic_id = (p_lease).topic_id and m.group_id = (p_lease).group_id
                   and m.queue = (p_lease).queue and m.n = (p_lease).n and m.deliver_at >= p_from
                   and m.deliver_at < p_until order by m.place limit 1000)
                union all
                (select from duewheel.straggler s
                 where not (p_lease).listed and s.topic_id = (p_lease).topic_id and s.queue = (p_lease).queue
                   and s.straggler_id > (p_lease).straggler_from and s.straggler_id <= (p_lease).straggler_to
                   and s.deliver_at >= p_from and s.deliver_at < p_until
                 order by s.straggler_id limit 1000)
                union all
                (select from duewheel.any_message m
                 where not (p_lease).listed and m.topic_id = (p_lease).topic_id and m.queue = (p_lease).queue
                   and (m.deliver_at, m.seq) > ((p_lease).from_at, (p_lease).from_seq)
                   and (m.deliver_at, m.seq) <= ((p_lease).to_at, (p_lease).to_seq)
                   and m.deliver_at >= greatest((p_lease).from_at, p_from) and m.deliver_at < p_until
                 order by m.deliver_at, m.seq limit 1000)) m));
end;

-- Returns how many messages due in [p_from, p_until) a group needs, and their size with indexes. Unread messages are
-- counted up to 1 000 of each queue and estimated above. Late and leased messages count, and so do recalled messages;
-- leased messages until there are 1 000 in all. is_estimate: there may be more.
create or replace function duewheel.kept_for(
    p_group_id integer, p_topic_id integer, p_from timestamptz, p_until timestamptz,
    out messages bigint, out bytes bigint, out is_estimate boolean
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_counted record;
    v_lease duewheel.lease;
begin
    select coalesce(sum(c.messages), 0)::bigint as messages, coalesce(sum(c.bytes), 0)::bigint as bytes,
           min(c.from_at) filter (where c.messages = 1000) as from_at, sum(late.messages) as late
    into v_counted
    from duewheel.positions(p_group_id, p_topic_id) p
    cross join lateral (
        select count(*) as messages, greatest(p.to_at, p_from) as from_at,
               -- A body that is stored elsewhere is not fetched for its size.
               sum(pg_column_size(m.body) + coalesce(pg_column_size(m.properties), 0) + 180) as bytes
        from (
            select m.body, m.properties from duewheel.any_message m
            where m.topic_id = p.topic_id and m.queue = p.queue and (m.deliver_at, m.seq) > (p.to_at, p.to_seq)
              and m.deliver_at >= greatest(p.to_at, p_from) and m.deliver_at < p_until
            order by m.deliver_at, m.seq limit 1000
        ) m
    ) c
    cross join lateral (
        select count(*) filter (where s.deliver_at >= p_from and s.deliver_at < p_until) as messages
        from (
            select s.deliver_at from duewheel.straggler s
            where s.topic_id = p.topic_id and s.queue = p.queue and s.straggler_id > p.straggler_to
            order by s.straggler_id limit 1000
        ) s
    ) late;
    messages := v_counted.messages + coalesce(v_counted.late, 0) + (
        select count(*) from (
            select from duewheel.fifo_backlog b
            where (b.topic_id::bigint << 32 | b.group_id) = (p_topic_id::bigint << 32 | p_group_id)
              and timezone('UTC', b.deliver_at) >= timezone('UTC', p_from)
              and timezone('UTC', b.deliver_at) < timezone('UTC', p_until)
            order by timezone('UTC', b.deliver_at) limit 1000) b);
    for v_lease in
        select * from duewheel.open_leases(p_group_id, p_topic_id) l where duewheel.lease_needs(l, p_from, p_until)
    loop
        exit when messages >= 1000;
        messages := messages + duewheel.count_held(v_lease, p_from, p_until);
    end loop;
    bytes := v_counted.bytes;
    is_estimate := messages >= 1000;
    if v_counted.from_at is not null then
        messages := greatest(messages, duewheel.estimate_due(p_topic_id, v_counted.from_at, p_until));
        bytes := v_counted.bytes * (messages::numeric / v_counted.messages);
    end if;
end
$$;

-- The clustering groups that need something due in [p_from, p_until). Nothing is kept for broadcasting instances.
create or replace function duewheel.groups_that_need(p_from timestamptz, p_until timestamptz)
returns table (group_id integer, topic_id integer)
language sql stable
begin atomic
    select s.group_id, s.topic_id from duewheel.subscription s
    where s.retry_topic_id is not null and duewheel.needs(s.group_id, s.topic_id, p_from, p_until);
end;

-- Whether such a group needs something of a topic, or of the retries of one, that is due before p_until.
create or replace function duewheel.is_needed(p_topic duewheel.topic, p_until timestamptz) returns boolean
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    return exists (
        select from duewheel.subscription s
        where s.topic_id = coalesce(p_topic.parent_topic_id, p_topic.topic_id) and s.retry_topic_id is not null
          and duewheel.needs(s.group_id, s.topic_id, '-infinity', p_until, p_topic.topic_id));
end
$$;

-- The instant before which no group needs a message of a topic: the messages are dropped, or past retention and
-- finished by every group. If a group needs some, it is the end of the last slot before them. All transactions below
-- p_open_from have ended.
create or replace function duewheel.topic_floor(p_topic duewheel.topic, p_open_from xid8, p_now timestamptz)
returns timestamptz
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
declare
    -- Open transactions send messages that are due after the hi of the newest tick below their id, and later
    -- transactions send later messages. Only messages that are held back are due before it.
    v_settled_to constant timestamptz := least(
        duewheel.sent_from(p_topic.topic_id, p_open_from) + interval '1 microsecond',
        (select min(b.deliver_at) from duewheel.held_back b where b.topic_id = p_topic.topic_id));
    -- Into a slot that is not sealed, an open transaction may still send something.
    v_retained_from constant timestamptz := least(v_settled_to, coalesce(
        (select min(s.starts_at) from duewheel.slot s
         where s.sealed_at is null and s.ends_at <= p_now - p_topic.retention),
        p_now - p_topic.retention));
    -- Dropped messages are gone for all, finished or not.
    v_dropped_to constant timestamptz := least(
        (select min(s.starts_at) from duewheel.slot s), (
            select min(f.deliver_at) from generate_series(0, p_topic.queues - 1) q
            cross join lateral (
                select f.deliver_at from duewheel.far_message f
                where f.topic_id = p_topic.topic_id and f.queue = q::smallint
                order by f.deliver_at, f.seq limit 1) f),
        p_now);
    v_to timestamptz := least(v_dropped_to, v_settled_to);
    v_end timestamptz;
begin
    if p_topic.deleted_at is not null then
        return 'infinity';
    end if;
    if p_topic.message_type = 'DEAD_LETTER' then
        -- An existing dead letter keeps its row in duewheel.redrive, so that it is redriven once.
        return v_dropped_to;
    elsif v_retained_from <= v_to then
        return v_to;
    elsif not duewheel.is_needed(p_topic, v_retained_from) then
        return v_retained_from;
    elsif p_topic.floor_at between v_to and v_retained_from
        -- It may be of a time when the clock was ahead, and messages were sent after that.
        and not duewheel.is_needed(p_topic, p_topic.floor_at)
    then
        v_to := p_topic.floor_at;
    end if;
    for v_end in
        select s.ends_at from duewheel.slot s where s.ends_at > v_to and s.ends_at < v_retained_from
        union
        select o.ends_at from duewheel.outlived_slot o where o.ends_at > v_to and o.ends_at < v_retained_from
        order by 1
    loop
        exit when duewheel.is_needed(p_topic, v_end);
        v_to := v_end;
    end loop;
    return v_to;
end
$$;
