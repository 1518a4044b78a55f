-- The limit on the size, retention_bytes: which slots go for want of room, and what that loses. Every look at a slot is
-- one statement, and so of one instant: a message that is received meanwhile is seen as unread or as held. Where
-- unread ones are there the look ends with the first; their number is counted for the report alone, within bounds. A
-- slot that was finished is asked for again right before it goes: a group may have gone back to it meanwhile.

-- The slots that may go for want of room, the oldest first: sealed and over, and not of p_past, which go anyway; and
-- what has outlived a slot that is gone.
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

-- The slots that go while those whose time has begun, without those of p_past, are larger than the broker's
-- retention_bytes: finished ones first, the oldest first. Unread ones go where when_full says so and that gets below
-- the limit; else they are kept, and said to be. p_room of them go at most, then a row without a slot says that there
-- are more. After 50 ms it looks for no second finished one, and after as long of counting it counts less.
create or replace function duewheel.slots_over_limit(p_past duewheel.slot[], p_room integer, p_now timestamptz)
returns table (slot duewheel.slot, bytes bigint, unread jsonb, is_kept boolean)
language plpgsql as $$
declare
    v_until timestamptz := clock_timestamp() + interval '50 milliseconds';
    v_broker duewheel.broker;
    v_bytes bigint := duewheel.message_bytes(p_now) - (
        select coalesce(sum(duewheel.slot_bytes(p)), 0) from unnest(p_past) p);
    -- Without all that may go.
    v_least_bytes bigint;
    v_unread duewheel.slot[] := '{}';
    v_unread_bytes bigint[] := '{}';
    -- Of the groups that need something that is due by now, what and from when on.
    v_group_ids integer[];
    v_topic_ids integer[];
    v_needed_from timestamptz[];
    v_found boolean := false;
    v_one record;
begin
    select * into v_broker from duewheel.broker;
    if coalesce(v_bytes <= v_broker.retention_bytes, true) then
        return;
    end if;
    -- Looked up once for all slots, as most groups need nothing of any.
    select array_agg(n.group_id), array_agg(n.topic_id), array_agg(n.needed_from)
    into v_group_ids, v_topic_ids, v_needed_from
    from (
        select s.group_id, s.topic_id, duewheel.needed_from(s.group_id, s.topic_id, p_now) as needed_from
        from duewheel.clustering_subscriptions() s offset 0) n
    where n.needed_from is not null;
    for v_one in
        select c.*, sum(c.bytes) over () as all_bytes from duewheel.slots_that_may_go(p_past, p_now) c
        order by (c.slot).starts_at
    loop
        v_least_bytes := coalesce(v_least_bytes, v_bytes - v_one.all_bytes);
        if exists (
            select from unnest(v_group_ids, v_topic_ids, v_needed_from) n (group_id, topic_id, needed_from)
            where case when n.needed_from < (v_one.slot).ends_at then duewheel.unread_due(
                n.group_id, n.topic_id, (v_one.slot).starts_at, (v_one.slot).ends_at, 1) > 0 end
        ) then
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
    v_until := clock_timestamp() + interval '50 milliseconds';
    for i in 1 .. cardinality(v_unread) loop
        if p_room = 0 and not is_kept then
            return query select null::duewheel.slot, null::bigint, null::jsonb, false;
            return;
        end if;
        return query select
            v_unread[i], v_unread_bytes[i], duewheel.slot_unread(v_unread[i], v_until, not is_kept), is_kept;
        if not is_kept then
            v_bytes := v_bytes - v_unread_bytes[i];
            p_room := p_room - 1;
            exit when v_bytes <= v_broker.retention_bytes;
        end if;
    end loop;
end
$$;

-- Whether a clustering group has still to read messages of a slot, or to answer for them.
create or replace function duewheel.has_unread(p_slot duewheel.slot) returns boolean
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    return exists (
        select from duewheel.clustering_subscriptions() s
        where case when duewheel.needed_from(s.group_id, s.topic_id, (p_slot).ends_at) < (p_slot).ends_at
            then duewheel.unread_due(s.group_id, s.topic_id, (p_slot).starts_at, (p_slot).ends_at, 1) > 0 end);
end
$$;

-- An instant before which a group has nothing left of a topic to read, or to answer for; null where it needs nothing
-- that is due before p_until. A look at where it stands and what it holds, and at no message.
create or replace function duewheel.needed_from(p_group_id integer, p_topic_id integer, p_until timestamptz)
returns timestamptz
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    if (select true from duewheel.fifo_backlog b
        where b.topic_id = p_topic_id and b.group_id = p_group_id and b.deliver_at < p_until limit 1) then
        return '-infinity';
    end if;
    return (
        select min(least(
            case when p.to_at < p_until and p.queue_hi >= p.to_at then p.to_at end,
            -- Latecomers lie anywhere.
            case when (
                select true from duewheel.straggler s
                where s.topic_id = p.topic_id and s.queue = p.queue and s.straggler_id > p.straggler_to
                order by s.straggler_id limit 1) then timestamptz '-infinity' end,
            (select min(l.from_at)
             from duewheel.ends_in(p_group_id, p.topic_id, p.queue, p.revived_to, 'infinity') ended
             cross join lateral (
                select case when l.listed or l.straggler_to > l.straggler_from then timestamptz '-infinity'
                            else l.from_at end as from_at
                from duewheel.lease l
                where l.topic_id = p.topic_id and l.group_id = p_group_id and l.queue = p.queue and l.n = ended.n
                offset 0) l
             where case when l.from_at < p_until
                then not exists (select from duewheel.final_event(p_group_id, p.topic_id, p.queue, ended.n)) end)))
        from duewheel.positions(p_group_id, p_topic_id) p);
end
$$;

-- The clustering groups that have still to read messages of a slot, or to answer for them, with how many: counted up
-- to 10 000, and from p_until on up to 100, which costs no more than to ask. at_least: there may be more. Unless every
-- such group is wanted, it leaves out those that it has not come to by then, but for the first.
create or replace function duewheel.slot_unread(p_slot duewheel.slot, p_until timestamptz, p_every boolean)
returns jsonb
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_unread jsonb := '[]';
    v_read record;
    v_most bigint;
    v_count bigint;
begin
    for v_read in select * from duewheel.clustering_subscriptions() s order by s.topic, s.consumer_group loop
        exit when not p_every and v_unread <> '[]' and clock_timestamp() >= p_until;
        v_most := case when clock_timestamp() < p_until then 10000 else 100 end;
        v_count := duewheel.unread_due(
            v_read.group_id, v_read.topic_id, (p_slot).starts_at, (p_slot).ends_at, v_most);
        if v_count > 0 then
            v_unread := v_unread || jsonb_build_object(
                'topic', v_read.topic, 'consumer_group', v_read.consumer_group, 'messages', v_count,
                'at_least', v_count >= v_most);
        end if;
    end loop;
    return v_unread;
end
$$;

-- What clustering groups read. Nothing is kept for broadcasting instances.
create or replace function duewheel.clustering_subscriptions()
returns table (group_id integer, topic_id integer, topic text, consumer_group text)
language sql stable
begin atomic
    select s.group_id, s.topic_id, t.name, g.name
    from duewheel.subscription s
    join duewheel.topic t on t.topic_id = s.topic_id and t.deleted_at is null
    join duewheel.consumer_group g on g.group_id = s.group_id and g.mode = 'clustering';
end;

-- How many messages due in [p_from, p_until) a group has still to read of a topic, or to answer for: counted up to
-- p_limit.
create or replace function duewheel.unread_due(
    p_group_id integer, p_topic_id integer, p_from timestamptz, p_until timestamptz, p_limit bigint
) returns bigint
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_position record;
    v_count bigint := (
        select count(*) from (
            select from duewheel.fifo_backlog b
            where b.group_id = p_group_id and b.topic_id = p_topic_id
              and b.deliver_at >= p_from and b.deliver_at < p_until
            limit p_limit) b);
begin
    for v_position in select * from duewheel.positions(p_group_id, p_topic_id) loop
        -- Most groups have read on, which is seen without a look at messages.
        if v_count < p_limit and v_position.to_at < p_until and v_position.queue_hi >= v_position.to_at
            and v_position.hi >= p_from
        then
            v_count := v_count + duewheel.count_ahead(
                p_group_id, v_position.topic_id, v_position.queue, p_from, p_until, p_limit - v_count);
        end if;
        if v_count < p_limit then
            v_count := v_count + (
                select count(*) from (
                    select from duewheel.stragglers_due(
                        v_position.topic_id, v_position.queue, v_position.straggler_to, null, p_from, p_until, null,
                        null)
                    limit p_limit - v_count) m);
        end if;
        if v_count < p_limit then
            v_count := v_count + duewheel.count_held(
                p_group_id, v_position.topic_id, v_position.queue, v_position.revived_to, p_from, p_until,
                p_limit - v_count);
        end if;
    end loop;
    return v_count;
end
$$;

-- The first 10 000 messages of a queue that are due in [p_from, p_until), released, and ahead of a group.
create or replace function duewheel.rows_ahead(
    p_group_id integer, p_topic_id integer, p_queue smallint, p_from timestamptz, p_until timestamptz
) returns table (deliver_at timestamptz, seq bigint, no_recalls boolean)
language sql stable
begin atomic
    select r.deliver_at, r.seq, p.no_recalls
    from (select * from duewheel.queue_state(p_group_id, p_topic_id, p_queue) offset 0) p
    cross join lateral (
        select r.deliver_at, r.seq
        from duewheel.released_rows(
            p_topic_id, p_queue, greatest(p.to_at, p_from - interval '1 microsecond'),
            case when p.to_at >= p_from then p.to_seq else duewheel.last_seq() end,
            least(p.hi, p_until - interval '1 microsecond'), duewheel.last_seq(), p.seen_below, true, null, null,
            true) r
        where p.has_messages
        -- In here, or the order would come from a walk through the whole queue.
        order by r.deliver_at, r.seq limit 10000) r;
end;

-- How many messages of a queue that are due in [p_from, p_until), released and not recalled, lie ahead of a group:
-- counted up to p_limit. The first 10 000 may all be recalled; then it says 1, as others may lie behind them.
create or replace function duewheel.count_ahead(
    p_group_id integer, p_topic_id integer, p_queue smallint, p_from timestamptz, p_until timestamptz, p_limit bigint
) returns bigint
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_count bigint;
begin
    select count(*) into v_count from (
        select from duewheel.rows_ahead(p_group_id, p_topic_id, p_queue, p_from, p_until) r
        where r.no_recalls
           or (select true from duewheel.recall_of(p_topic_id, p_queue, r.deliver_at, r.seq)) is null
        limit p_limit) r;
    if v_count = 0 then
        return (
            select count(*) from (
                select from duewheel.rows_ahead(p_group_id, p_topic_id, p_queue, p_from, p_until)
                offset 9999 limit 1) r);
    end if;
    return v_count;
end
$$;

-- The messages due in [p_from, p_until) of the stragglers of a queue in (p_after, p_to], null for all behind p_after,
-- that tags and a filter choose and that are not recalled. By their instants, so that only those of this time are
-- looked up.
create or replace function duewheel.stragglers_due(
    p_topic_id integer, p_queue smallint, p_after bigint, p_to bigint, p_from timestamptz, p_until timestamptz,
    p_tags text[], p_filter jsonpath
) returns setof duewheel.any_message
language sql stable
begin atomic
    select m.*
    from (
        select s.deliver_at, s.seq from duewheel.straggler s
        where s.topic_id = p_topic_id and s.queue = p_queue and s.straggler_id > p_after
          and coalesce(s.straggler_id <= p_to, true) and s.deliver_at >= p_from and s.deliver_at < p_until
        order by s.deliver_at, s.seq offset 0
    ) s
    cross join lateral duewheel.message_at(p_topic_id, p_queue, s.deliver_at, s.seq) m
    where (p_tags is null or m.tag = any (p_tags))
      and (p_filter is null or coalesce(m.properties, '{}') @@ p_filter)
      and (select true from duewheel.recall_of(p_topic_id, p_queue, m.deliver_at, m.seq)) is null;
end;

-- How many messages due in [p_from, p_until) the leases of a queue hold without an answer: of leases that were not
-- looked at when they ended, up to p_revived_to; counted up to p_limit. Any end of a lease counts: one that was
-- shortened may have passed its new end unseen, and is looked at by its first one.
create or replace function duewheel.count_held(
    p_group_id integer, p_topic_id integer, p_queue smallint, p_revived_to timestamptz, p_from timestamptz,
    p_until timestamptz, p_limit bigint
) returns bigint
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_lease duewheel.lease;
    v_seen bigint[] := '{}';
    v_count bigint := 0;
begin
    for v_lease in
        select l.* from duewheel.ends_in(p_group_id, p_topic_id, p_queue, p_revived_to, 'infinity') ended
        -- Each by its key: as a join the messages of all leases might be looked for.
        cross join lateral (
            select * from duewheel.lease l
            where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue and l.n = ended.n
            offset 0) l
        where case
            -- What costs least is asked first: where many leases run, most are of other messages.
            when not (l.listed or l.straggler_to > l.straggler_from or l.from_at < p_until and l.to_at >= p_from)
                then false
            else not exists (select from duewheel.final_event(p_group_id, p_topic_id, p_queue, l.n)) end
    loop
        continue when v_lease.n = any (v_seen);
        if exists (
            select from duewheel.lease_event e
            where e.topic_id = p_topic_id and e.group_id = p_group_id and e.queue = p_queue and e.n = v_lease.n
              and e.event_id <> 0)
        then
            -- It was extended or put off, and has several ends.
            v_seen := v_seen || v_lease.n;
        end if;
        v_count := v_count + duewheel.count_held_by(v_lease, p_from, p_until, p_limit - v_count);
        exit when v_count >= p_limit;
    end loop;
    return least(v_count, p_limit);
end
$$;

-- How many messages due in [p_from, p_until) one lease holds without an answer: counted up to p_limit. Where all of it
-- is of this time no message is read, and there is one at least, as the lease has not ended.
create or replace function duewheel.count_held_by(
    p_lease duewheel.lease, p_from timestamptz, p_until timestamptz, p_limit bigint
) returns bigint
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    if (p_lease).listed then
        return (
            select count(*) from (
                select from duewheel.lease_message m
                where m.topic_id = (p_lease).topic_id and m.group_id = (p_lease).group_id
                  and m.queue = (p_lease).queue and m.n = (p_lease).n and m.deliver_at >= p_from
                  and m.deliver_at < p_until and not duewheel.is_answered(p_lease, m.seq)
                limit p_limit) m);
    elsif (p_lease).straggler_to > (p_lease).straggler_from then
        return (
            select count(*) from (
                select from duewheel.stragglers_due(
                    (p_lease).topic_id, (p_lease).queue, (p_lease).straggler_from, (p_lease).straggler_to, p_from,
                    p_until, (p_lease).tags, (p_lease).filter) m
                where not duewheel.is_answered(p_lease, m.seq)
                limit p_limit) m);
    elsif (p_lease).from_at >= p_from and (p_lease).to_at < p_until then
        return greatest(1, (p_lease).message_count - duewheel.answered_count(
            (p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n));
    end if;
    return duewheel.count_leased(
        p_lease, (p_lease).topic_id, (p_lease).queue,
        greatest((p_lease).from_at, p_from - interval '1 microsecond'),
        case when (p_lease).from_at >= p_from then (p_lease).from_seq else duewheel.last_seq() end,
        least((p_lease).to_at, p_until - interval '1 microsecond'),
        case when (p_lease).to_at < p_until then (p_lease).to_seq else duewheel.last_seq() end, p_limit);
end
$$;

-- How many messages without an answer a lease holds behind (p_at, p_seq) and up to (p_to, p_to_seq), of those that
-- follow each other in its queue: counted up to p_limit. The queue is given beside the lease: an index is walked in
-- its order where plain parameters say which part of it, and not the fields of one.
create or replace function duewheel.count_leased(
    p_lease duewheel.lease, p_topic_id integer, p_queue smallint, p_at timestamptz, p_seq bigint, p_to timestamptz,
    p_to_seq bigint, p_limit bigint
) returns bigint
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_seen_below constant xid8 := coalesce((
        select pg_snapshot_xmin(t.snapshot) from duewheel.tick_over(p_topic_id, (p_lease).from_at) t), '0');
begin
    return (
        select count(*) from (
            select from duewheel.released_rows(
                p_topic_id, p_queue, p_at, p_seq, p_to, p_to_seq, v_seen_below,
                num_nonnulls((p_lease).tags, (p_lease).filter) = 0, (p_lease).tags, (p_lease).filter, false) m
            where not duewheel.is_answered(p_lease, m.seq)
            order by m.deliver_at, m.seq limit p_limit) m);
end
$$;

-- Whether a message of a lease has an answer of its own. One that was given back waits elsewhere.
create or replace function duewheel.is_answered(p_lease duewheel.lease, p_seq bigint) returns boolean
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    return exists (
        select from duewheel.message_answer(
            (p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n, p_seq));
end
$$;
