-- Looking up messages, and what became of them.

create or replace function duewheel.find(message_id text)
returns setof duewheel.described_message
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_id record := duewheel.parse_message_id(find.message_id);
begin
    perform duewheel.require_home();
    return query select * from duewheel.describe_messages(v_id.topic_id, v_id.queue, v_id.deliver_at, v_id.seq, null);
end
$$;

create or replace function duewheel.find_key(topic text, key text)
returns setof duewheel.described_message
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic := duewheel.topic_by_name(find_key.topic);
begin
    return query select * from duewheel.describe_messages(v_topic.topic_id, null, null, null, find_key.key);
end
$$;

-- One message by its position, or all of a key.
create or replace function duewheel.describe_messages(
    p_topic_id integer, p_queue integer, p_deliver_at timestamptz, p_seq bigint, p_key text
) returns setof duewheel.described_message
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_hi constant timestamptz := coalesce(
        (select t.hi from duewheel.newest_tick(p_topic_id) t), '-infinity');
begin
    return query
    select d.*
    from (
        select m as message from duewheel.any_message m where m.topic_id = p_topic_id and m.key = p_key collate "C"
        union all
        select m from duewheel.message_at(p_topic_id, p_queue::smallint, p_deliver_at, p_seq) m where p_key is null
    ) f
    cross join lateral (select (f.message).*) m
    join duewheel.topic t on t.topic_id = p_topic_id
    cross join lateral duewheel.as_described(
        f.message, t.name,
        -- A look-up for each row: "exists" may be answered by reading all recalls of all topics first.
        coalesce((select true from duewheel.recall r
                  where r.topic_id = m.topic_id and r.queue = m.queue and r.deliver_at = m.deliver_at
                    and r.seq = m.seq limit 1), false),
        m.deliver_at <= v_hi
        and duewheel.release_of(m.topic_id, m.queue, m.deliver_at, m.seq, m.xid) is not null) d
    where t.message_type not in ('RETRY', 'DEAD_LETTER')
      and not duewheel.is_forgotten(m.topic_id, m.queue, m.deliver_at, m.seq, m.xid)
    order by m.deliver_at, m.seq;
end
$$;

-- How late messages were released that were due in (p_from, p_to].
create or replace function duewheel.lateness(p_topic text, p_from timestamptz, p_to timestamptz)
returns table (released bigint, p50 interval, p99 interval, max interval)
language plpgsql stable as $$
declare
    v_topic duewheel.topic := duewheel.topic_by_name(p_topic);
begin
    return query
    select count(*), percentile_disc(0.5) within group (order by late),
           percentile_disc(0.99) within group (order by late), pg_catalog.max(late)
    from (
        select duewheel.release_of(m.topic_id, m.queue, m.deliver_at, m.seq, m.xid) - m.deliver_at as late
        from duewheel.any_message m
        where m.topic_id = v_topic.topic_id and m.deliver_at > p_from and m.deliver_at <= p_to
          and not exists (
            select from duewheel.recall r
            where r.topic_id = m.topic_id and r.queue = m.queue and r.deliver_at = m.deliver_at and r.seq = m.seq)
    ) m where late is not null;
end
$$;

-- The leases of a group that held the message at a position, with the attempt that each was: of ranges the one that
-- covers it, one between two rewinds, and on FIFO topics those that list it. p_source_topic_id is where the message
-- stands, p_topic_id and p_queue where its leases are.
create or replace function duewheel.leases_over(
    p_group_id integer, p_topic_id integer, p_queue integer, p_source_topic_id integer, p_deliver_at timestamptz,
    p_seq bigint, p_message_group text, p_attempt integer
) returns table (held duewheel.lease, attempt integer)
language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_straggler_id bigint;
    v_rewind record;
begin
    return query
    select l, h.attempt
    from duewheel.lease_message h
    join duewheel.lease l on l.topic_id = h.topic_id and l.group_id = h.group_id and l.queue = h.queue and l.n = h.n
    where h.topic_id = p_topic_id and h.group_id = p_group_id and h.queue = p_queue
      and h.message_group = coalesce(p_message_group, '') and h.source_topic_id = p_source_topic_id
      and h.deliver_at = p_deliver_at and h.seq = p_seq;
    if p_source_topic_id <> p_topic_id then
        return;
    end if;
    select s.straggler_id into v_straggler_id from duewheel.straggler s
    where s.topic_id = p_topic_id and s.queue = p_queue and s.deliver_at = p_deliver_at and s.seq = p_seq;
    if found then
        return query
        select l, p_attempt from duewheel.lease l
        where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue and l.message_count > 0
          and not l.listed and v_straggler_id > l.straggler_from and v_straggler_id <= l.straggler_to;
        return;
    end if;
    if exists (
        select from duewheel.held_back b
        where b.topic_id = p_topic_id and b.deliver_at = p_deliver_at and b.queue = p_queue and b.seq = p_seq
    ) then
        -- A range that reaches over it was read before it was sent.
        return;
    end if;
    for v_rewind in
        select r.n as from_n, lead(r.n) over (order by r.n) as to_n
        from (
            select -1 as n
            union all
            select l.n from duewheel.lease l
            where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue and l.token = -1
        ) r
    loop
        return query
        select l, p_attempt from duewheel.lease l
        where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue
          and (l.from_at, l.from_seq) < (p_deliver_at, p_seq)
          -- The first one that reaches so far.
          and l.n = (
            select r.n from duewheel.lease r
            where r.topic_id = p_topic_id and r.group_id = p_group_id and r.queue = p_queue and r.message_count > 0
              and (r.to_at, r.to_seq) >= (p_deliver_at, p_seq) and r.straggler_from = r.straggler_to and not r.listed
              and r.n > v_rewind.from_n and (v_rewind.to_n is null or r.n < v_rewind.to_n)
            order by r.to_at, r.to_seq limit 1);
    end loop;
end
$$;

-- The outcome of one message of a lease: the answer that names it, else the end of the whole lease.
create or replace function duewheel.outcome_of(
    p_lease duewheel.lease, p_seq bigint, out kind text, out at timestamptz, out reason text
)
language sql stable
begin atomic
    (select a.kind, a.at, a.reason
     from duewheel.message_answer((p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n, p_seq) a)
    union all
    select e.kind, e.at, e.reason
    from duewheel.final_event((p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n) e
    limit 1;
end;

-- The history of a message, from the logs alone: one row per state, in the order of time. Rows of no group are about
-- the message itself.
create or replace function duewheel.history(message_id text, now timestamptz default null)
returns table (
    consumer_group text, state text, at timestamptz, until_at timestamptz, attempt integer, consumer text, reason text
)
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_id record := duewheel.parse_message_id(history.message_id);
    v_now constant timestamptz := coalesce(history.now, clock_timestamp());
    v_message duewheel.any_message;
    v_released_at timestamptz;
    v_recalled_at timestamptz;
begin
    if history.now is not null then
        perform duewheel.require_clock_right(history.now);
    end if;
    perform duewheel.require_home();
    select * into v_message from duewheel.any_message m
    where m.topic_id = v_id.topic_id and m.queue = v_id.queue and m.deliver_at = v_id.deliver_at and m.seq = v_id.seq;
    if duewheel.is_forgotten(v_message.topic_id, v_message.queue, v_message.deliver_at, v_message.seq,
                             v_message.xid) then
        return query
        select null::text, 'Deleted', t.kept_from + t.retention, null::timestamptz, null::integer, null::text,
               'its retention ended'
        from duewheel.topic t where t.topic_id = v_id.topic_id and v_message.seq is not null;
        if found then
            return;
        end if;
    end if;
    if v_message.seq is null then
        if exists (
            select from duewheel.topic t where t.topic_id = v_id.topic_id and v_id.queue < t.queues)
            and v_id.deliver_at < v_now
            and (duewheel.slot_at(v_id.deliver_at)).starts_at is null then
            return query
            select null::text, 'Deleted', d.dropped_at, null::timestamptz, null::integer, null::text,
                   coalesce(d.reason, 'its slot was dropped')
            from (select) only_row left join lateral (
                select d.dropped_at, d.reason from duewheel.dropped_slot d
                where d.starts_at <= v_id.deliver_at and d.ends_at > v_id.deliver_at
                order by d.dropped_at desc limit 1) d on true;
        end if;
        return;
    end if;
    v_released_at := duewheel.release_of(v_message.topic_id, v_message.queue, v_message.deliver_at, v_message.seq,
                                         v_message.xid);
    select r.recalled_at into v_recalled_at from duewheel.recall r
    where r.topic_id = v_message.topic_id and r.queue = v_message.queue and r.deliver_at = v_message.deliver_at
      and r.seq = v_message.seq;
    return query
    with chain as materialized (
        -- The message itself, for each group that reads it, and what it was sent on as.
        select s.group_id, s.topic_id as lease_topic_id, v_message.queue as lease_queue, v_message.topic_id,
               v_message.queue, v_message.deliver_at, v_message.seq, v_message.attempt, v_message.xid,
               null::text as message_type, null::text as reason, null::timestamptz as redriven_at,
               v_recalled_at as recalled_at
        from duewheel.subscription s where s.topic_id = v_message.topic_id
        union all
        select s.group_id, case when o.message_type = 'FIFO' then s.topic_id else m.topic_id end,
               case when o.message_type = 'FIFO' then v_message.queue else m.queue end, m.topic_id, m.queue,
               m.deliver_at,
               m.seq, m.attempt, m.xid, t.message_type, m.reason, d.redriven_at, r.recalled_at
        from duewheel.any_message m
        join duewheel.topic t on t.topic_id = m.topic_id
        join duewheel.subscription s
          on s.topic_id = t.parent_topic_id and m.topic_id in (s.retry_topic_id, s.dead_letter_topic_id)
        join duewheel.topic o on o.topic_id = s.topic_id
        -- Look-ups for each row, and never all that there are.
        left join lateral (
            select d.redriven_at from duewheel.redrive d where d.retry_seq = m.seq limit 1
        ) d on true
        left join lateral (
            select r.recalled_at from duewheel.recall r
            where r.topic_id = m.topic_id and r.queue = m.queue and r.deliver_at = m.deliver_at and r.seq = m.seq
            limit 1
        ) r on true
        where m.origin_seq = v_message.seq and m.origin_topic_id = v_message.topic_id
          -- Not before it was sent; before its own instant, where the clock stepped back.
          and m.deliver_at >= v_message.born_at
    ), held as materialized (
        select c.group_id, l.attempt, c.seq, (l.held).n, (l.held).leased_at, (l.held).consumer, (l.held).listed,
               duewheel.lease_end(c.group_id, (l.held).topic_id, (l.held).queue, (l.held).n) as ends_at,
               o.kind, o.at as outcome_at, o.reason
        from chain c
        cross join lateral duewheel.leases_over(
            c.group_id, c.lease_topic_id, c.lease_queue, c.topic_id, c.deliver_at, c.seq, v_message.message_group,
            c.attempt) l
        left join lateral duewheel.outcome_of(l.held, c.seq) o on true
        where c.message_type is distinct from 'DEAD_LETTER' and c.recalled_at is null
          and ((l.held).tags is null or v_message.tag = any ((l.held).tags))
          and ((l.held).filter is null or coalesce(v_message.properties, '{}') @@ (l.held).filter)
    ), failure as (
        -- Every failure made one row of the chain, in the same order; on FIFO topics only dead letters are rows.
        select h.group_id, h.attempt, h.outcome_at, h.listed,
               row_number() over (partition by h.group_id, h.attempt order by h.outcome_at, h.n) as place
        from held h where h.kind in ('failed', 'expired')
    ), sent_on as (
        select c.*, row_number() over (
                   partition by c.group_id, c.attempt - (c.message_type = 'RETRY')::integer,
                                c.redriven_at is null and c.put_back is null
                   order by c.seq) as place
        from (
            -- What its lease became, where the message came again without a failure.
            select c.*, case c.reason when duewheel.rewound_reason() then 'rewound'
                                      when duewheel.given_back_reason() then 'returned' end as put_back
            from chain c
        ) c where c.message_type is not null
    ), rewind as (
        select c.group_id, l.leased_at, l.n
        from chain c
        join duewheel.lease l
          on l.topic_id = c.topic_id and l.group_id = c.group_id and l.queue = c.queue and l.token = -1
        where c.message_type is null and v_released_at <= l.leased_at
          and duewheel.comes_after(c.topic_id, c.queue, c.deliver_at, c.seq, l.to_at, l.straggler_to)
          and exists (select from held h where h.group_id = c.group_id and h.leased_at <= l.leased_at)
    ), states as (
        select null::integer as group_id, 'Initialized' as state, v_message.born_at as at,
               null::timestamptz as until_at,
               v_message.attempt, null::text as consumer, null::text as reason, null::bigint as n,
               0 as step
        union all
        select null, 'Timing', v_message.born_at, v_message.deliver_at, v_message.attempt, null, null, null, 1
        union all
        select null, 'Deleted', v_recalled_at, null, v_message.attempt, null, 'recalled', null, 2
        where v_recalled_at is not null
        union all
        select null, 'Ready', v_released_at, null, v_message.attempt, null, null, null, 2
        where v_released_at is not null and v_recalled_at is null
        union all
        select r.group_id, 'Ready', r.leased_at, null, v_message.attempt, null, 'the group was rewound', r.n, 2
        from rewind r
        union all
        select c.group_id, case when c.message_type = 'RETRY' then 'WaitingRetry' else 'DLQ' end,
               coalesce(c.redriven_at, case
                   when c.put_back is not null then (
                       select max(h.outcome_at) from held h
                       where h.group_id = c.group_id and h.kind = c.put_back and h.attempt = c.attempt
                         and h.outcome_at <= c.deliver_at)
                   else coalesce(
                       (select f.outcome_at from failure f
                        where f.group_id = c.group_id and f.attempt = c.attempt - (c.message_type = 'RETRY')::integer
                          and f.place = c.place and not f.listed),
                       (select max(f.outcome_at) from failure f
                        where f.group_id = c.group_id and f.attempt = c.attempt and f.listed
                          and f.outcome_at <= c.deliver_at)) end),
               case when c.message_type = 'RETRY' then c.deliver_at end, c.attempt, null,
               case when c.put_back = 'returned' then concat_ws(': ', c.reason, (
                        select h.reason from held h
                        where h.group_id = c.group_id and h.kind = 'returned' and h.attempt = c.attempt
                          and h.outcome_at <= c.deliver_at
                        order by h.outcome_at desc, h.n desc limit 1))
                    when c.redriven_at is null then c.reason else concat_ws(': ', 'redriven', c.reason) end,
               -- A dead letter comes after everything that its attempt went through.
               case when c.message_type <> 'RETRY' then duewheel.last_seq() end, 1
        from sent_on c
        union all
        select c.group_id, 'Deleted', c.recalled_at, null, c.attempt, null, 'taken back when the group was rewound',
               null, 0
        from sent_on c where c.recalled_at is not null
        union all
        select c.group_id, 'Ready', r.at, null, c.attempt, null, null, null, 2
        from sent_on c, duewheel.release_of(c.topic_id, c.queue, c.deliver_at, c.seq, c.xid) r (at)
        where c.message_type = 'RETRY' and r.at is not null and (c.recalled_at is null or r.at < c.recalled_at)
        union all
        select h.group_id, 'Inflight', h.leased_at, case when h.kind = 'rewound' then h.outcome_at else h.ends_at end,
               h.attempt, h.consumer, null, h.n, 3
        from held h
        union all
        select h.group_id, 'Acked', h.outcome_at, null, h.attempt, h.consumer, null, h.n, 4
        from held h where h.kind = 'acked'
        union all
        -- Broadcasting: passed over.
        select h.group_id, 'Skipped', h.outcome_at, null, h.attempt, h.consumer,
               coalesce(h.reason, format('not answered until %s', h.ends_at)), h.n, 4
        from held h
        join duewheel.consumer_group g on g.group_id = h.group_id and g.mode = 'broadcasting'
        where h.kind in ('failed', 'expired')
        union all
        -- FIFO topics keep what comes again in its place.
        select h.group_id, 'WaitingRetry', h.outcome_at, b.due_at, h.attempt + 1, null,
               coalesce(h.reason, format('not answered until %s', h.ends_at)), null, 1
        from held h
        left join duewheel.fifo_backlog b
          on b.topic_id = v_message.topic_id and b.group_id = h.group_id and b.queue = v_message.queue
         and b.message_group = coalesce(v_message.message_group, '') and b.seq = h.seq and b.attempt = h.attempt + 1
        where h.listed and h.kind in ('failed', 'expired') and (b.seq is not null or exists (
            select from held n where n.group_id = h.group_id and n.seq = h.seq and n.n > h.n
            and n.attempt = h.attempt + 1))
        union all
        select h.group_id, 'Ready', h.outcome_at, null, h.attempt, null,
               case h.kind when 'returned' then coalesce(h.reason, duewheel.given_back_reason())
                           else duewheel.rewound_reason() end, h.n, 4
        from held h
        where h.listed and (h.kind = 'returned' or (h.kind = 'rewound' and not exists (
            select from rewind r where r.group_id = h.group_id and r.leased_at = h.outcome_at)))
    )
    select g.name, s.state, s.at, s.until_at, s.attempt, s.consumer, s.reason
    from states s left join duewheel.consumer_group g on g.group_id = s.group_id
    -- Of one instant, in the order in which it happened.
    order by s.at, s.attempt, s.n nulls first, s.step;
end
$$;
