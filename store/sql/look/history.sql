-- The history of a message, from the logs alone: its retries and dead letters, the leases that held any of them, and
-- the states that follow from both.

-- The first lease of a queue between two numbers that reaches a place, or if p_leased_at is given, that was taken after
-- it. Ranges are in order between two rewinds, and instants always are. So a binary search finds it, without an index
-- that every lease would pay for: twenty lookups among a million.
create or replace function duewheel.first_reaching(
    p_group_id integer, p_topic_id integer, p_queue integer, p_from_n bigint, p_to_n bigint, p_deliver_at timestamptz,
    p_seq bigint, p_leased_at timestamptz default null
) returns bigint
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
declare
    -- It is above the one and below the other, or it is v_found.
    v_above bigint := p_from_n;
    v_below bigint := p_to_n;
    v_middle bigint;
    v_lease record;
    v_found bigint;
begin
    if v_below is null then
        select l.n + 1 into v_below from duewheel.newest_lease(p_group_id, p_topic_id, p_queue) l;
    end if;
    while v_below - v_above > 1 loop
        v_middle := v_above + (v_below - v_above) / 2;
        -- Some ticks in between may have been trimmed.
        select l.n, l.to_at, l.to_seq, l.leased_at into v_lease from duewheel.lease l
        where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue
          and l.n >= v_middle and l.n < v_below
        order by l.n limit 1;
        if found and coalesce(v_lease.leased_at <= p_leased_at,
                              (v_lease.to_at, v_lease.to_seq) < (p_deliver_at, p_seq)) then
            v_above := v_lease.n;
        else
            v_below := v_middle;
            v_found := coalesce(v_lease.n, v_found);
        end if;
    end loop;
    return v_found;
end
$$;

-- The leases of a group that held the message at a position, with the attempt of each: of range leases the one that
-- covers it, one between two rewinds, and on FIFO topics the leases that list it. p_source_topic_id is the topic in
-- which the message is stored; p_topic_id and p_queue are the topic and queue of its leases.
create or replace function duewheel.leases_over(
    p_group_id integer, p_topic_id integer, p_queue integer, p_source_topic_id integer, p_deliver_at timestamptz,
    p_seq bigint, p_message_group text, p_attempt integer
) returns table (held duewheel.lease, attempt integer)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
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
          and l.message_count > 0 and l.straggler_from = l.straggler_to and not l.listed
          and l.n = duewheel.first_reaching(p_group_id, p_topic_id, p_queue, v_rewind.from_n, v_rewind.to_n,
                                            p_deliver_at, p_seq);
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

-- The message itself, for each group that reads it, with its retries and dead letters.
create or replace function duewheel.chain_of(p_message duewheel.any_message, p_recalled_at timestamptz)
returns setof duewheel.chain_link
language sql stable
begin atomic
    select s.group_id, s.topic_id, (p_message).queue, (p_message).topic_id, (p_message).queue, (p_message).deliver_at,
           (p_message).seq, (p_message).attempt, null::text, null::text, null::bigint, null::bigint, null::timestamptz,
           null::timestamptz, null::boolean, p_recalled_at
    from duewheel.subscription s where s.topic_id = (p_message).topic_id
    union all
    select s.group_id, case when o.message_type = 'FIFO' then s.topic_id else m.topic_id end,
           case when o.message_type = 'FIFO' then (p_message).queue else m.queue end, m.topic_id, m.queue,
           m.deliver_at, m.seq, m.attempt, t.message_type, m.reason, m.previous_seq, m.lease_n,
           case when t.message_type = 'RETRY'
                then duewheel.release_of(m.topic_id, m.queue, m.deliver_at, m.seq, m.xid) end,
           d.redriven_at, d.is_discarded, r.recalled_at
    from duewheel.any_message m
    join duewheel.topic t on t.topic_id = m.topic_id
    join duewheel.subscription s
      on s.topic_id = t.parent_topic_id and m.topic_id in (s.retry_topic_id, s.dead_letter_topic_id)
    join duewheel.topic o on o.topic_id = s.topic_id
    -- A lookup for each row, because a join would read the whole table.
    left join lateral (
        select d.redriven_at, d.is_discarded from duewheel.redrive d
        where d.topic_id = m.topic_id and d.deliver_at = m.deliver_at and d.seq = m.seq limit 1
    ) d on true
    left join lateral duewheel.recall_of(m.topic_id, m.queue, m.deliver_at, m.seq) r on true
    -- Whatever their instants: if the clock was ahead when the message was sent, its retries are due before that.
    where m.origin_seq = (p_message).seq and m.origin_topic_id = (p_message).topic_id;
end;

-- The leases that held a message, one of its retries or a dead letter, each with its outcome.
create or replace function duewheel.leases_of_chain(p_message duewheel.any_message, p_chain duewheel.chain_link[])
returns setof duewheel.chain_lease
language sql stable
begin atomic
    select c.group_id, l.attempt, c.seq, (l.held).n, (l.held).leased_at, (l.held).consumer, (l.held).listed,
           duewheel.lease_end(c.group_id, (l.held).topic_id, (l.held).queue, (l.held).n), o.kind, o.at, o.reason
    from unnest(p_chain) c
    cross join lateral duewheel.leases_over(
        c.group_id, c.lease_topic_id, c.lease_queue, c.topic_id, c.deliver_at, c.seq, (p_message).message_group,
        c.attempt) l
    left join lateral duewheel.outcome_of(l.held, c.seq) o on true
    -- A range may cover an unreleased message, which was sent after the range was read, or committed late.
    where c.message_type is distinct from 'DEAD_LETTER' and c.recalled_at is null
      and case when c.message_type is not null then c.released_at else duewheel.release_of(
          (p_message).topic_id, (p_message).queue, (p_message).deliver_at, (p_message).seq, (p_message).xid) end
          is not null
      and duewheel.is_chosen((p_message).tag, (p_message).content_type, (p_message).properties, (l.held).tags,
                             (l.held).filter);
end;

-- Whether a group had not read a message when a rewind set its position. If the lease before the rewind was trimmed, it
-- held no message that is kept.
create or replace function duewheel.was_unread(p_rewind duewheel.lease, p_deliver_at timestamptz, p_seq bigint)
returns boolean
language sql stable
begin atomic
    select coalesce(
        (select s.straggler_id > l.straggler_to from duewheel.straggler s
         where s.topic_id = (p_rewind).topic_id and s.queue = (p_rewind).queue and s.deliver_at = p_deliver_at
           and s.seq = p_seq),
        (p_deliver_at, p_seq) > (l.to_at, l.to_seq), true)
    from (select) here
    left join lateral (
        select * from duewheel.lease l
        where l.topic_id = (p_rewind).topic_id and l.group_id = (p_rewind).group_id and l.queue = (p_rewind).queue
          and l.n < (p_rewind).n
        order by l.n desc limit 1) l on true;
end;

-- The states before any group has a message, and the states to which rewinds bring it.
create or replace function duewheel.states_of_message(
    p_message duewheel.any_message, p_recalled_at timestamptz, p_chain duewheel.chain_link[],
    p_held duewheel.chain_lease[]
) returns setof duewheel.message_state
language sql stable
begin atomic
    with released as materialized (
        select duewheel.release_of((p_message).topic_id, (p_message).queue, (p_message).deliver_at, (p_message).seq,
                                   (p_message).xid) as at
    )
    select null::integer, 'Initialized', (p_message).born_at, null::timestamptz, (p_message).attempt, null::text,
           null::text, null::bigint, 0
    union all
    select null, 'Timing', (p_message).born_at, (p_message).deliver_at, (p_message).attempt, null, null, null, 1
    union all
    select null, 'Deleted', p_recalled_at, null, (p_message).attempt, null,
           coalesce((
                select case when r.answer is not null then 'answered' else 'replaced by ' || r.replaced_by end
                from duewheel.recall_of((p_message).topic_id, (p_message).queue, (p_message).deliver_at,
                                        (p_message).seq) r), 'recalled'),
           null, 2
    where p_recalled_at is not null
    union all
    select null, 'Ready', r.at, null, (p_message).attempt, null, null, null, 2
    from released r where r.at is not null and p_recalled_at is null
    union all
    select c.group_id, r.state, l.leased_at, null, (p_message).attempt, null,
           case r.state when 'Ready' then 'the group was rewound' else 'the group was rewound to a later position' end,
           l.n, 2
    from unnest(p_chain) c
    join duewheel.lease l
      on l.topic_id = c.topic_id and l.group_id = c.group_id and l.queue = c.queue and l.token = -1
    cross join lateral (
        select case when duewheel.comes_after(c.topic_id, c.queue, c.deliver_at, c.seq, l.to_at, l.straggler_to)
            then case when exists (
                select from unnest(p_held) h
                where h.group_id = c.group_id and h.leased_at <= l.leased_at) then 'Ready' end
            when p_recalled_at is null and duewheel.was_unread(l, c.deliver_at, c.seq) and exists (
                select from duewheel.subscription s
                where s.group_id = c.group_id
                  and duewheel.is_chosen((p_message).tag, (p_message).content_type, (p_message).properties, s.tags,
                                         s.filter)) then 'Skipped' end
    ) r (state)
    where c.message_type is null and (select r.at from released r) <= l.leased_at and r.state is not null;
end;

-- The states of retries and dead letters.
create or replace function duewheel.states_of_chain(p_chain duewheel.chain_link[], p_held duewheel.chain_lease[])
returns setof duewheel.message_state
language sql stable
begin atomic
    with sent_on as (
        -- The event that ended its lease, and the dead letter or retry that was redriven as this message.
        select c.*, h.kind, h.outcome_at, h.reason as outcome_reason, p.redriven_at as resent_at,
               p.message_type as resent_type
        from unnest(p_chain) c
        left join unnest(p_held) h on h.group_id = c.group_id and h.seq = c.previous_seq and h.n = c.lease_n
        left join unnest(p_chain) p on p.group_id = c.group_id and p.seq = c.previous_seq and c.lease_n is null
        where c.message_type is not null
    )
    select c.group_id, case when c.message_type = 'RETRY' then 'WaitingRetry' else 'DLQ' end,
           coalesce(c.outcome_at, c.resent_at), case when c.message_type = 'RETRY' then c.deliver_at end, c.attempt,
           null::text,
           concat_ws(': ', case when c.resent_at is not null
                                then case c.resent_type when 'RETRY' then 'retried now' else 'redriven' end end,
                     c.reason, case when c.kind = 'returned' then c.outcome_reason end),
           -- A dead letter follows all states of its attempt.
           case when c.message_type <> 'RETRY' then duewheel.last_seq() end,
           -- A retry that was made due at the instant of the failure follows the failure.
           case when c.resent_at is null then 1 else 2 end
    from sent_on c
    union all
    select c.group_id, 'Deleted', c.recalled_at, null, c.attempt, null, 'taken back when the group was rewound',
           null, 0
    from sent_on c where c.recalled_at is not null and c.redriven_at is null
    union all
    select c.group_id, 'Deleted', c.redriven_at, null, c.attempt, null, 'discarded as a dead letter',
           duewheel.last_seq(), 2
    from sent_on c where c.is_discarded
    union all
    select c.group_id, 'Ready', c.released_at, null, c.attempt, null, null, null, 3
    from sent_on c where c.released_at is not null and (c.recalled_at is null or c.released_at < c.recalled_at);
end;

-- The states under leases and after them. FIFO topics keep a failed message in its place, not as a retry.
create or replace function duewheel.states_of_leases(
    p_message duewheel.any_message, p_held duewheel.chain_lease[], p_states duewheel.message_state[]
) returns setof duewheel.message_state
language sql stable
begin atomic
    select h.group_id, 'Inflight', h.leased_at,
           -- Released or rewound before its end.
           case when h.kind in ('expired', 'rewound') then least(h.outcome_at, h.ends_at) else h.ends_at end,
           h.attempt, h.consumer, null::text, h.n, 3
    from unnest(p_held) h
    union all
    -- A message that was skipped on purpose has a reason.
    select h.group_id, case when h.reason is null then 'Acked' else 'Skipped' end, h.outcome_at, null, h.attempt,
           h.consumer, h.reason, h.n, 4
    from unnest(p_held) h where h.kind = 'acked'
    union all
    -- A broadcasting instance receives a message once, unless a rewind delivers it again.
    select h.group_id, 'Skipped', h.outcome_at, null, h.attempt, h.consumer,
           coalesce(h.reason, case h.kind when 'rewound' then duewheel.rewound_reason()
                                          else format('not answered until %s', h.ends_at) end), h.n, 4
    from unnest(p_held) h
    join duewheel.subscription s on s.group_id = h.group_id and s.retry_topic_id is null
    where h.kind in ('failed', 'expired') or (h.kind = 'rewound' and not exists (
        select from unnest(p_states) s
        where s.group_id = h.group_id and s.state = 'Ready' and s.at = h.outcome_at))
    union all
    select h.group_id, 'WaitingRetry', h.outcome_at, b.due_at, h.attempt + 1, null,
           coalesce(h.reason, format('not answered until %s', h.ends_at)), null, 1
    from unnest(p_held) h
    left join duewheel.fifo_backlog b
      on b.topic_id = (p_message).topic_id and b.group_id = h.group_id and b.queue = (p_message).queue
     and b.message_group = coalesce((p_message).message_group, '') and b.seq = h.seq and b.attempt = h.attempt + 1
    where h.listed and h.kind in ('failed', 'expired') and (b.seq is not null or exists (
        select from unnest(p_held) n where n.group_id = h.group_id and n.seq = h.seq and n.n > h.n
        and n.attempt = h.attempt + 1))
    union all
    select h.group_id, 'Ready', h.outcome_at, null, h.attempt, null,
           case h.kind when 'returned' then coalesce(h.reason, duewheel.given_back_reason())
                       else duewheel.rewound_reason() end, h.n, 4
    from unnest(p_held) h
    where h.listed and (h.kind = 'returned' or (h.kind = 'rewound' and not exists (
        -- The message itself has the state of this rewind already.
        select from unnest(p_states) s
        where s.group_id = h.group_id and s.state = 'Ready' and s.at = h.outcome_at)));
end;

-- When and why a message was deleted whose retention ended, or whose slot was dropped; no row for any other.
create or replace function duewheel.deletion_of(
    p_topic_id integer, p_queue integer, p_deliver_at timestamptz, p_message duewheel.any_message, p_now timestamptz
) returns table (deleted_at timestamptz, reason text)
language sql stable
begin atomic
    select t.kept_from + t.retention, 'its retention ended'
    from duewheel.topic t
    where t.topic_id = p_topic_id and (p_message).seq is not null
      and duewheel.is_forgotten(p_topic_id, p_queue, p_deliver_at, (p_message).seq, (p_message).xid)
    union all
    select d.dropped_at, coalesce(d.reason, 'its slot was dropped')
    from duewheel.topic t
    left join lateral (
        select d.dropped_at, d.reason from duewheel.dropped_slot d
        where d.starts_at <= p_deliver_at and d.ends_at > p_deliver_at
        order by d.dropped_at desc limit 1) d on true
    where t.topic_id = p_topic_id and p_queue < t.queues and (p_message).seq is null and p_deliver_at < p_now
      and (duewheel.slot_at(p_deliver_at)).starts_at is null;
end;

-- The states of a message at the places that it was moved away from.
create or replace function duewheel.states_before_moves(p_topic_id integer, p_seq bigint)
returns table (state text, at timestamptz, until_at timestamptz, reason text, known_as text)
language sql stable
begin atomic
    with place as (
        select i.*, i.first_seq = i.seq as is_first,
               duewheel.message_id(i.topic_id, i.queue, i.deliver_at, i.seq) as id
        from duewheel.ids_of_moved(p_topic_id, p_seq) i
    ), left_place as (
        select p.*, lead(p.since_at) over (order by p.seq) as moved_at, lead(p.id) over (order by p.seq) as next_id,
               lead(p.deliver_at) over (order by p.seq) as moved_to_at
        from place p
    )
    select s.state, s.at, s.until_at, s.reason, p.id
    from left_place p
    cross join lateral (values
        (0, 'Initialized', p.since_at, null::timestamptz, null::text),
        (1, 'Timing', p.since_at, p.deliver_at, null),
        (2, 'Moved', p.moved_at, p.moved_to_at, 'to ' || p.next_id)
    ) s (step, state, at, until_at, reason)
    where p.next_id is not null and (p.is_first or s.step > 0)
    order by p.seq, s.step;
end;

-- The history of a message: one row for each state, in the order of time. Rows without a group are about the message
-- itself. Every id that the message has had leads to its whole history; known_as is the id that it had at the time.
-- role: consumer
create or replace function duewheel.history(message_id text, now timestamptz default null)
returns table (
    consumer_group text, state text, at timestamptz, until_at timestamptz, attempt integer, consumer text, reason text,
    known_as text
)
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_id constant record := duewheel.parse_message_id(history.message_id);
    v_now constant timestamptz := duewheel.clock_at(history.now);
    v_place duewheel.message_position;
    v_is_moved boolean;
    v_known_as text;
    v_message duewheel.any_message;
    v_recalled_at timestamptz;
    v_chain duewheel.chain_link[];
    v_held duewheel.chain_lease[];
    v_states duewheel.message_state[];
begin
    perform duewheel.require_home();
    select * into v_place from duewheel.present_place(v_id.topic_id, v_id.seq);
    v_is_moved := found;
    if not v_is_moved then
        v_place := (v_id.queue, v_id.deliver_at, v_id.seq);
    end if;
    v_known_as := duewheel.message_id(v_id.topic_id, v_place.queue, v_place.deliver_at, v_place.seq);
    v_message := duewheel.message_of(v_id.topic_id, v_place.queue, v_place.deliver_at, v_place.seq);
    return query
    select null::text, b.state, b.at, b.until_at, 1, null::text, b.reason, b.known_as
    from duewheel.states_before_moves(v_id.topic_id, v_id.seq) b;
    return query
    select null::text, 'Deleted', d.deleted_at, null::timestamptz, null::integer, null::text, d.reason, v_known_as
    from duewheel.deletion_of(v_id.topic_id, v_place.queue, v_place.deliver_at, v_message, v_now) d;
    if found or v_message.seq is null then
        return;
    end if;
    select r.recalled_at into v_recalled_at
    from duewheel.recall_of(v_message.topic_id, v_message.queue, v_message.deliver_at, v_message.seq) r;
    v_chain := array(select c from duewheel.chain_of(v_message, v_recalled_at) c);
    v_held := array(select h from duewheel.leases_of_chain(v_message, v_chain) h);
    v_states := array(select s from duewheel.states_of_message(v_message, v_recalled_at, v_chain, v_held) s);
    return query
    select g.group_name, s.state, s.at, s.until_at, s.attempt, s.consumer, s.reason, v_known_as
    from (
        select * from unnest(v_states)
        union all
        select * from duewheel.states_of_chain(v_chain, v_held)
        union all
        select * from duewheel.states_of_leases(v_message, v_held, v_states)
    ) s
    left join duewheel.subscription g on g.group_id = s.group_id
    where not (v_is_moved and s.state = 'Initialized')
    -- Of one instant, in the order in which it happened.
    order by s.at, s.attempt, s.n nulls first, s.step;
end
$$;
