-- Batches of leases: for jobs that take very many messages at once, work on parts of them side by side, and answer each
-- part when its work is done.

-- Leases what is released in a queue, up to p_max messages, in leases of p_chunk, by the primary key alone: it reads no
-- message. That is right where all that lies in the range is for the group. Where it may not be, or where there is more
-- to do than that, this leases nothing and leaves the queue to receive_batch, and so it does where another consumer is
-- at it. The caller has released what is due.
create or replace function duewheel.lease_places(
    p_group_id integer, p_topic_id integer, p_queue smallint, p_max bigint, p_chunk integer, p_invisible interval,
    p_consumer text, p_now timestamptz default null
) returns setof duewheel.lease_handle
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now timestamptz;
    v_state record;
    v_places refcursor;
    v_place record;
    v_room bigint;
    v_count bigint;
    v_total bigint := 0;
    v_done boolean := false;
    v_ats timestamptz[];
    v_seqs bigint[];
    v_counts bigint[] := '{}';
    v_unseen_from xid8;
begin
    if not pg_try_advisory_xact_lock(duewheel.queue_lock_key(p_group_id, p_topic_id, p_queue)) then
        return;
    end if;
    v_now := coalesce(p_now, clock_timestamp());
    select * into v_state from duewheel.queue_state(p_group_id, p_topic_id, p_queue);
    if (v_state.has_messages and v_state.no_recalls and v_state.last_straggler <= v_state.straggler_to) is not true
       or exists (select from duewheel.topic t where t.topic_id = p_topic_id and t.kept_from > v_state.to_at)
       or exists (select from duewheel.ended_leases(p_group_id, p_topic_id, p_queue, v_state.revived_to, v_now))
    then
        return;
    end if;
    v_ats := array[v_state.to_at];
    v_seqs := array[v_state.to_seq];
    open v_places no scroll for
        select m.deliver_at, m.seq from duewheel.any_message m
        where m.topic_id = p_topic_id and m.queue = p_queue
          and (m.deliver_at, m.seq) > (v_state.to_at, v_state.to_seq) and m.deliver_at >= v_state.to_at
          and m.deliver_at <= v_state.hi
        order by m.deliver_at, m.seq;
    while not v_done and v_total < p_max loop
        v_room := least(p_max - v_total, p_chunk);
        v_count := 0;
        if v_room > 1 then
            move forward (v_room - 1) from v_places;
            get diagnostics v_count = row_count;
        end if;
        fetch v_places into v_place;
        v_done := not found;
        if not v_done then
            v_count := v_count + 1;
        end if;
        exit when v_count = 0;
        v_total := v_total + v_count;
        v_counts := v_counts || v_count;
        v_ats := v_ats || case when v_done then v_state.hi else v_place.deliver_at end;
        v_seqs := v_seqs || case when v_done then duewheel.last_seq() else v_place.seq end;
    end loop;
    close v_places;

    -- A message that its tick does not see is a straggler of a later one, or waits to be, or the newest tick does not
    -- see it either.
    -- Asked after the messages were: what was committed since the tick is among both.
    select pg_snapshot_xmin(t.snapshot) into v_unseen_from from duewheel.newest_tick(p_topic_id) t;
    if exists (
        select from duewheel.straggler s
        where s.topic_id = p_topic_id and s.queue = p_queue and s.deliver_at >= v_state.to_at
          and s.deliver_at <= v_state.hi
        order by s.deliver_at, s.seq limit 1
    ) or exists (
        select from duewheel.held_back b
        where b.topic_id = p_topic_id and b.deliver_at >= v_state.to_at and b.deliver_at <= v_state.hi
        order by b.deliver_at limit 1
    ) or (
        -- A transaction that is open for long lets many be sent behind it, and this is no way to look through them.
        select count(*) >= 10000 or coalesce(bool_or(m.deliver_at <= v_state.hi), false) from (
            select m.deliver_at from duewheel.any_message m
            where m.topic_id = p_topic_id and m.xid >= v_unseen_from
            order by m.xid limit 10000) m
    ) then
        return;
    end if;
    return query
    insert into duewheel.lease
        (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
         message_count, consumer, leased_at, expires_at, revived_to)
    select p_topic_id, p_group_id, p_queue, v_state.n + c.place, duewheel.new_token(), v_ats[c.place],
           v_seqs[c.place], v_ats[c.place + 1], v_seqs[c.place + 1], v_state.straggler_to, v_state.straggler_to,
           c.messages, p_consumer, v_now, v_now + p_invisible, greatest(v_state.revived_to, v_now)
    from unnest(v_counts) with ordinality c (messages, place)
    returning topic_id, queue::integer, n, token, expires_at, message_count;
end
$$;

-- Leases up to p_max messages without returning them, in leases that are small enough to be dealt out evenly to
-- p_parts: by what is ready, which is counted no further than it matters, and not by what was asked for. One row per
-- lease.
create or replace function duewheel.lease_evenly(
    p_group_id integer, p_topic_id integer, p_tags text[], p_max bigint, p_parts integer, p_invisible interval,
    p_consumer text, p_now timestamptz default null, p_filter jsonpath default null
) returns table (
    topic_id integer, queue smallint, lease_n bigint, lease_token bigint, expires_at timestamptz, lease_count integer
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    -- Each part gets several leases, so that queues of different lengths even out.
    v_leases constant bigint := 4 * greatest(p_parts, 1)::bigint;
    -- Fewer messages than this are not worth a lease of their own.
    v_smallest constant integer := 100;
    v_largest constant integer := 15000;
    v_limit constant bigint := least(greatest(p_max, 1), v_leases * v_largest);
    -- Fewer messages than this are read while they are leased.
    v_many constant integer := 1000;
    -- Of a queue, where tags or a filter choose.
    v_most_looked_at constant bigint := 1000000;
    v_every constant boolean := p_tags is null and p_filter is null;
    v_type text;
    v_chunk integer;
    v_position record;
    v_ready bigint := 0;
    v_retries bigint := 0;
    v_has_ended boolean := false;
    v_lease record;
    v_leased bigint := 0;
begin
    if p_now is not null then
        perform duewheel.require_clock_right(p_now);
    end if;
    select c.message_type into v_type
    from duewheel.check_receive(p_group_id, p_topic_id, p_max, 1, p_invisible, p_now) c;
    for v_position in select * from duewheel.positions(p_group_id, p_topic_id) loop
        exit when v_ready >= v_limit;
        -- Retries were chosen when they came first.
        v_ready := v_ready + (duewheel.count_unread(
            p_group_id, v_position.topic_id, v_position.queue,
            case when v_every or v_position.ordinal = 0 then v_limit - v_ready else v_most_looked_at end,
            case when v_position.ordinal > 0 then p_tags end,
            case when v_position.ordinal > 0 then p_filter end)).wanted;
        if v_position.ordinal = 0 then
            v_retries := v_ready;
        end if;
        v_has_ended := v_has_ended or exists (
            select from duewheel.ended_leases(
                p_group_id, v_position.topic_id, v_position.queue, v_position.revived_to,
                coalesce(p_now, clock_timestamp())));
    end loop;
    v_chunk := least(v_largest, greatest(v_smallest, (v_ready + v_leases - 1) / v_leases));
    -- Retries come first, and so does what is to be revived.
    if v_every and v_ready - v_retries >= v_many and v_type <> 'FIFO' and not v_has_ended then
        if v_retries > 0 then
            for v_lease in
                select (r.lease).* from duewheel.receive_batch(
                    p_group_id, p_topic_id, null, v_retries, p_invisible, p_consumer, 0, true, p_now, false, v_chunk,
                    false) r
            loop
                v_leased := v_leased + v_lease.message_count;
                return query select v_lease.topic_id, v_lease.queue::smallint, v_lease.n, v_lease.token,
                                    v_lease.expires_at, v_lease.message_count;
            end loop;
        end if;
        for v_position in
            select p.queue from duewheel.positions(p_group_id, p_topic_id) p where p.ordinal > 0 order by p.ordinal
        loop
            exit when v_leased >= p_max;
            for v_lease in
                select * from duewheel.lease_places(
                    p_group_id, p_topic_id, v_position.queue, p_max - v_leased, v_chunk, p_invisible, p_consumer, p_now)
            loop
                v_leased := v_leased + v_lease.message_count;
                return query select v_lease.topic_id, v_lease.queue::smallint, v_lease.n, v_lease.token,
                                    v_lease.expires_at, v_lease.message_count;
            end loop;
        end loop;
        if v_leased >= p_max then
            return;
        end if;
    end if;
    return query
    select (r.lease).topic_id, (r.lease).queue::smallint, (r.lease).n, (r.lease).token, (r.lease).expires_at,
           (r.lease).message_count
    from duewheel.receive_batch(
        p_group_id, p_topic_id, p_tags, p_max - v_leased, p_invisible, p_consumer, 0, true, p_now, false, v_chunk,
        false, p_filter) r;
end
$$;

-- The states of leases, in the order in which they are given. state: "held" and no other consumer's, "over" as its time
-- is over, "unknown", or its last answer: "acked", "failed", "returned", "expired", "rewound". acked: how many of its
-- messages were acked.
create or replace function duewheel.lease_states(
    p_group_id integer, p_topic_ids integer[], p_queues integer[], p_ns bigint[], p_tokens bigint[],
    p_now timestamptz default null
) returns table (state text, acked integer)
language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now constant timestamptz := coalesce(p_now, clock_timestamp());
begin
    if p_now is not null then
        perform duewheel.require_clock_right(p_now);
    end if;
    perform duewheel.require_home();
    return query
    select case when l.n is null then 'unknown' when e.kind is not null then e.kind
                when duewheel.lease_end(p_group_id, h.topic_id, h.queue, h.n) <= v_now then 'over'
                else 'held' end,
           case when l.n is null then 0
                when e.kind = 'acked' then l.message_count - (
                    select count(*) from duewheel.message_answers(p_group_id, h.topic_id, h.queue, h.n) a
                    where a.kind <> 'acked')
                else (
                    select count(*) from duewheel.message_answers(p_group_id, h.topic_id, h.queue, h.n) a
                    where a.kind = 'acked') end::integer
    from unnest(p_topic_ids, p_queues, p_ns, p_tokens) with ordinality h (topic_id, queue, n, token, place)
    left join lateral (
        select l.n, l.message_count from duewheel.lease l
        where l.topic_id = h.topic_id and l.group_id = p_group_id and l.queue = h.queue and l.n = h.n
          and l.token = h.token) l on true
    left join lateral duewheel.final_event(p_group_id, h.topic_id, h.queue, h.n) e on true
    order by h.place;
end
$$;
