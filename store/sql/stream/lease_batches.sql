-- Batches of leases: for jobs that take very many messages at once, work on parts of them side by side, and answer each
-- part when its work is done.

-- Leases up to p_max messages without returning them, in leases that are small enough to be dealt out evenly to
-- p_parts. Their size follows from the number of ready messages, which is counted no further than it matters, and not
-- from the number asked for. One row for each lease, and a last null row as that of receive_batch. p_min_parts: for at
-- least so many parts, a lease may have a single message. p_largest: no lease has more messages.
-- role: consumer
create or replace function duewheel.lease_evenly(
    p_group_id integer, p_topic_id integer, p_max bigint, p_parts integer, p_invisible interval,
    p_consumer text, p_now timestamptz default null, p_min_parts integer default 1,
    p_largest bigint default null
) returns table (
    topic_id integer, queue smallint, lease_n bigint, lease_token bigint, expires_at timestamptz, lease_count integer
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    -- Each part gets several leases, so that queues of different lengths even out.
    v_leases constant bigint := 4 * greatest(p_parts, 1)::bigint;
    -- Fewer messages than this are not worth a separate lease.
    v_smallest constant integer := 100;
    v_most constant integer := duewheel.portion();
    v_limit constant bigint := least(greatest(p_max, 1), v_leases * v_most);
    -- Of a queue, if tags or a filter choose, or messages are recalled: as many as the receive passes.
    v_most_looked_at constant bigint := p_max + duewheel.portion();
    v_now constant timestamptz := duewheel.clock_at(p_now);
    v_reads record;
    v_chunk integer;
    v_largest bigint;
    v_position record;
    v_wanted bigint;
    v_looks_at bigint;
    v_counted record;
    v_ready bigint := 0;
begin
    v_reads := duewheel.check_receive(p_group_id, p_topic_id, p_max, 1, p_invisible, p_now);
    for v_position in select * from duewheel.positions(p_group_id, p_topic_id) loop
        v_wanted := v_limit - v_ready;
        exit when v_wanted <= 0;
        -- Filters apply to first deliveries only.
        v_looks_at := case when num_nonnulls(v_reads.tags, v_reads.filter) = 0 or v_position.ordinal = 0
                           then v_wanted else v_most_looked_at end;
        loop
            v_counted := duewheel.count_ready(
                p_group_id, v_position.topic_id, v_position.queue, v_now, v_looks_at,
                case when v_position.ordinal > 0 then v_reads.tags end,
                case when v_position.ordinal > 0 then v_reads.filter end);
            -- Some of the messages that it has read are recalled, and further messages follow.
            exit when v_counted.ready >= v_wanted or v_counted.unread <= v_looks_at or v_looks_at >= v_most_looked_at;
            v_looks_at := least(4 * v_looks_at, v_most_looked_at);
        end loop;
        v_ready := least(v_limit, v_ready + v_counted.ready);
    end loop;
    -- Each lease of a batch is extended and answered separately, so p_largest makes at most 2 000 of them.
    v_largest := greatest(p_largest, case when p_largest > 0 then (least(v_ready, v_limit) + 1999) / 2000 end);
    v_chunk := least(v_most, v_largest, greatest(1, least(v_smallest, v_ready / greatest(p_min_parts, 1)),
                                                    (v_ready + v_leases - 1) / v_leases));
    return query
    select (r.lease).topic_id, (r.lease).queue::smallint, (r.lease).n, (r.lease).token, (r.lease).expires_at,
           (r.lease).message_count
    from duewheel.receive_batch(
        p_group_id, p_topic_id, p_max, p_invisible, p_consumer, 0, true, p_now, false, v_chunk, false) r;
end
$$;

-- Leases of a group, as runs that duewheel.lease_query reads at once: in the order given, each lease of a run begins
-- where the lease before it ends, and its messages were chosen alike. place: that of the first lease; end_micros and
-- end_seqs: where each lease ends.
-- role: consumer
create or replace function duewheel.lease_runs(
    p_group_id integer, p_topic_ids integer[], p_queues integer[], p_ns bigint[]
) returns table (
    place bigint, topic_id integer, queue integer, first_n bigint, last_n bigint, end_micros bigint[],
    end_seqs bigint[]
)
language sql stable
begin atomic
    select min(r.place), r.topic_id, r.queue, min(r.n), max(r.n),
           -- A lease of late messages may end at -infinity.
           array_agg(case when isfinite(r.to_at) then duewheel.unix_micros(r.to_at) end order by r.place),
           array_agg(r.to_seq order by r.place)
    from (
        select l.*, count(*) filter (where not l.follows) over (order by l.place) as run
        from (
            select h.topic_id, h.queue, h.n, h.place, l.to_at, l.to_seq,
                   coalesce(
                       not l.listed and not lag(l.listed) over w
                       and l.straggler_to = l.straggler_from
                       and lag(l.straggler_to) over w = lag(l.straggler_from) over w
                       and h.topic_id = lag(h.topic_id) over w and h.queue = lag(h.queue) over w
                       and l.from_at = lag(l.to_at) over w and l.from_seq = lag(l.to_seq) over w
                       and l.tags is not distinct from lag(l.tags) over w
                       and l.filter::text is not distinct from lag(l.filter::text) over w, false) as follows
            from unnest(p_topic_ids, p_queues, p_ns) with ordinality h (topic_id, queue, n, place)
            left join lateral (
                select l.* from duewheel.lease l
                where l.topic_id = h.topic_id and l.group_id = p_group_id and l.queue = h.queue and l.n = h.n
            ) l on true
            window w as (order by h.place)
        ) l
    ) r
    group by r.topic_id, r.queue, r.run
    order by min(r.place);
end;

-- About how many bytes the body of a message has that a group reads next: the mean of the next 25 of each queue and of
-- 25 in its backlog, 0 without any. Lengths are read without the bodies.
-- role: consumer
create or replace function duewheel.unread_body_bytes(p_group_id integer, p_topic_id integer) returns integer
language sql stable set plan_cache_mode = force_generic_plan
begin atomic
    select coalesce(avg(octet_length(m.body)), 0)::integer
    from duewheel.positions(p_group_id, p_topic_id) p
    cross join lateral (
        (select n.body from duewheel.any_message n
         where n.topic_id = p.topic_id and n.queue = p.queue and (n.deliver_at, n.seq) > (p.to_at, p.to_seq)
           and n.deliver_at >= p.to_at and n.deliver_at <= p.queue_hi
         order by n.deliver_at, n.seq limit 25)
        union all
        (select n.body
         from (select * from duewheel.fifo_backlog b
               where b.topic_id = p.topic_id and b.group_id = p_group_id and b.queue = p.queue limit 25) b
         cross join lateral duewheel.message_at(b.source_topic_id, b.source_queue, b.deliver_at, b.seq) n)) m;
end;

-- The states of leases, in the order in which they are given. state: "held" and no other consumer's, "over" as its time
-- is over, "unknown", or its last answer: "acked", "failed", "returned", "expired", "rewound". acked, given_back: how
-- many of its messages were acked, and given back one by one. reason: that of the last answer.
-- role: consumer
create or replace function duewheel.lease_states(
    p_group_id integer, p_topic_ids integer[], p_queues integer[], p_ns bigint[], p_tokens bigint[],
    p_now timestamptz default null
) returns table (state text, acked integer, given_back integer, reason text)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
declare
    v_now constant timestamptz := duewheel.clock_at(p_now);
begin
    perform duewheel.require_home();
    return query
    select case when l.n is null then 'unknown' when e.kind is not null then e.kind
                when duewheel.lease_end(p_group_id, h.topic_id, h.queue, h.n) <= v_now then 'over'
                else 'held' end,
           case when l.n is null then 0 when e.kind = 'acked' then l.message_count - a.given_back
                else a.acked end::integer,
           case when l.n is null then 0 else a.given_back end::integer, e.reason
    from unnest(p_topic_ids, p_queues, p_ns, p_tokens) with ordinality h (topic_id, queue, n, token, place)
    left join lateral (
        select l.n, l.message_count from duewheel.lease l
        where l.topic_id = h.topic_id and l.group_id = p_group_id and l.queue = h.queue and l.n = h.n
          and l.token = h.token and exists (select from duewheel.subscription s where s.group_id = p_group_id)
    ) l on true
    left join lateral duewheel.final_event(p_group_id, h.topic_id, h.queue, h.n) e on true
    cross join lateral (
        select count(*) filter (where a.kind = 'acked') as acked,
               count(*) filter (where a.kind <> 'acked') as given_back
        from duewheel.message_answers(p_group_id, h.topic_id, h.queue, h.n) a) a
    order by h.place;
end
$$;
