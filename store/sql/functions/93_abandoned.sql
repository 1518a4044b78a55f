-- Abandoned groups: those that take nothing of a topic while messages that they have not read are past its retention.
-- These are kept for them, until they go on or are deleted, or for the broker's abandoned_after.

-- The end of the last slot that is past a retention: what was due before is there because it is needed still.
create or replace function duewheel.retained_from(p_retention interval, p_now timestamptz) returns timestamptz
language sql stable
begin atomic
    select greatest(
        (select s.ends_at from duewheel.slot s where s.ends_at <= p_now - p_retention
         order by s.ends_at desc limit 1),
        (select o.ends_at from duewheel.outlived_slot o where o.ends_at <= p_now - p_retention
         order by o.starts_at desc limit 1));
end;

-- Whether messages due before p_until are there that a group has still to read, or to answer for: of the topic and its
-- retries, or of one of these alone.
create or replace function duewheel.keeps_before(
    p_group_id integer, p_topic_id integer, p_until timestamptz, p_only_topic_id integer default null
) returns boolean
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    return exists (
            select from duewheel.positions(p_group_id, p_topic_id) p
            where coalesce(p.topic_id = p_only_topic_id, true)
              and duewheel.is_unread(p_group_id, p.topic_id, p.queue, p.to_at, p.to_seq, p.straggler_to, p.revived_to,
                                     p.hi, p.queue_hi, p_until))
        or exists (
            select from duewheel.fifo_backlog b
            where b.topic_id = coalesce(p_only_topic_id, p_topic_id) and b.group_id = p_group_id
              and b.deliver_at < p_until);
end
$$;

-- A clustering group that takes nothing of a topic for longer than its retention, or is paused, while messages are kept
-- for it: since_at, when it last took some in any of its queues, was rewound, resumed or paused; kept_before, up to
-- where messages are past retention. All null of any other.
create or replace function duewheel.standstill(
    p_group_id integer, p_topic_id integer, p_now timestamptz,
    out since_at timestamptz, out is_paused boolean, out kept_before timestamptz
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_read record;
    v_before timestamptz;
    v_since timestamptz;
begin
    select s.paused_at, s.resumed_at, t.retention into v_read
    from duewheel.subscription s join duewheel.topic t on t.topic_id = s.topic_id
    where s.group_id = p_group_id and s.topic_id = p_topic_id and s.retry_topic_id is not null
      and t.deleted_at is null;
    if not found then
        return;
    end if;
    v_since := coalesce(v_read.paused_at, greatest(v_read.resumed_at, (
        select max(l.leased_at) from duewheel.positions(p_group_id, p_topic_id) p
        cross join lateral (
            select l.leased_at from duewheel.lease l
            where l.topic_id = p.topic_id and l.group_id = p_group_id and l.queue = p.queue and l.n = p.n limit 1) l)));
    if v_read.paused_at is null and v_since >= p_now - v_read.retention then
        return;
    end if;
    v_before := duewheel.retained_from(v_read.retention, p_now);
    if v_before is null or not duewheel.keeps_before(p_group_id, p_topic_id, v_before) then
        return;
    end if;
    since_at := v_since;
    is_paused := v_read.paused_at is not null;
    kept_before := v_before;
end
$$;

-- The messages due before p_until that a group has still to read, and their size with indexes: counted up to 1 000 of
-- each queue, of more an estimate.
create or replace function duewheel.kept_for(
    p_group_id integer, p_topic_id integer, p_until timestamptz, out messages bigint, out bytes bigint
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_counted record;
begin
    select coalesce(sum(c.messages), 0)::bigint as messages, coalesce(sum(c.bytes), 0)::bigint as bytes,
           min(c.to_at) filter (where c.messages = 1000) as from_at into v_counted
    from duewheel.positions(p_group_id, p_topic_id) p
    cross join lateral (
        select count(*) as messages, p.to_at,
               -- A body that is stored elsewhere is not fetched for its size.
               sum(pg_column_size(m.body) + coalesce(pg_column_size(m.properties), 0) + 180) as bytes
        from (
            select m.body, m.properties from duewheel.any_message m
            where m.topic_id = p.topic_id and m.queue = p.queue and (m.deliver_at, m.seq) > (p.to_at, p.to_seq)
              and m.deliver_at >= p.to_at and m.deliver_at < p_until
            order by m.deliver_at, m.seq limit 1000
        ) m
    ) c;
    messages := v_counted.messages + (
        select count(*) from duewheel.fifo_backlog b
        where b.topic_id = p_topic_id and b.group_id = p_group_id and b.deliver_at < p_until);
    bytes := v_counted.bytes;
    if v_counted.from_at is not null then
        messages := greatest(messages, duewheel.estimate_due(p_topic_id, v_counted.from_at, p_until));
        bytes := v_counted.bytes * (messages::numeric / v_counted.messages);
    end if;
end
$$;

-- The next messages due before p_until that a group has not read in a queue of which the caller has the lock, at most
-- p_limit of the stragglers and of the others: where it stands behind them, and how many they are.
create or replace function duewheel.walk_past(
    inout walk duewheel.queue_walk, p_until timestamptz, p_limit integer, out passed bigint
)
language plpgsql set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
declare
    v_to constant timestamptz := least(walk.hi, p_until - interval '1 microsecond');
    v_straggler_to bigint;
    v_last record;
begin
    -- As far as the first that is not past retention.
    select max(s.straggler_id) filter (where s.is_past) into v_straggler_to
    from (
        select s.straggler_id, bool_and(s.deliver_at < p_until) over (order by s.straggler_id) as is_past
        from (
            select s.straggler_id, s.deliver_at from duewheel.straggler s
            where s.topic_id = walk.topic_id and s.queue = walk.queue and s.straggler_id > walk.straggler_to
              and s.straggler_id <= walk.last_straggler
            order by s.straggler_id limit p_limit) s
    ) s;
    select count(*) into passed
    from duewheel.straggler_rows(walk.topic_id, walk.queue, walk.straggler_to, v_straggler_to, true, null, null);
    walk.straggler_to := coalesce(v_straggler_to, walk.straggler_to);
    if walk.hi is not null and (v_to, duewheel.last_seq()) > (walk.to_at, walk.to_seq) then
        select count(*) as messages, (array_agg(m.deliver_at))[p_limit] as at, (array_agg(m.seq))[p_limit] as seq
        into v_last
        from (
            select m.deliver_at, m.seq
            from duewheel.released_rows(
                walk.topic_id, walk.queue, walk.to_at, walk.to_seq, v_to, duewheel.last_seq(), walk.seen_below, true,
                null, null, walk.no_recalls) m
            order by m.deliver_at, m.seq limit p_limit) m;
        passed := passed + v_last.messages;
        walk.to_at := coalesce(v_last.at, v_to);
        walk.to_seq := coalesce(v_last.seq, duewheel.last_seq());
    end if;
end
$$;

-- Lets a group that has stood still since p_since_at go on behind messages due before p_until, which it loses: about
-- p_limit in each queue. Answers how many they were. A queue that somebody reads just now is left as it is. As
-- before, the group has taken nothing since p_since_at.
create or replace function duewheel.pass_over(
    p_group_id integer, p_topic_id integer, p_since_at timestamptz, p_until timestamptz, p_limit integer,
    p_now timestamptz
) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_is_fifo constant boolean := duewheel.is_fifo(p_topic_id);
    v_position record;
    v_from duewheel.queue_walk;
    v_walked record;
    v_walk duewheel.queue_walk;
    v_message_groups text[];
    v_count bigint;
    v_lost bigint := 0;
begin
    -- Where no wheel turns, leases that have ended hold messages still. These are ready again now, and kept anew.
    perform duewheel.revive_chunk(p_group_id, p_topic_id, p_now);
    if exists (select from duewheel.open_leases(p_group_id, p_topic_id, duewheel.clock_at(p_now))) then
        -- Somebody works on what was taken long ago.
        return 0;
    end if;
    for v_position in select * from duewheel.positions(p_group_id, p_topic_id) loop
        v_from := duewheel.enter_queue(p_group_id, v_position.topic_id, v_position.queue, v_is_fifo, p_now);
        continue when v_from.n is null;
        -- Somebody may have come back.
        exit when (duewheel.standstill(p_group_id, p_topic_id, p_now)).since_at is distinct from p_since_at;
        v_walked := duewheel.walk_past(v_from, p_until, p_limit);
        v_walk := v_walked.walk;
        v_lost := v_lost + v_walked.passed;
        if (v_walk.to_at, v_walk.to_seq, v_walk.straggler_to) <> (v_from.to_at, v_from.to_seq, v_from.straggler_to) then
            v_walk.n := v_walk.n + 1;
            v_walk.now_at := p_since_at;
            perform duewheel.note_lease(p_group_id, v_from, v_walk, 0, null, null, null, null, v_is_fifo);
        end if;
        if v_is_fifo then
            with gone as (
                delete from duewheel.fifo_backlog b where b.ctid = any (array(
                    select o.ctid from duewheel.fifo_backlog o
                    where o.topic_id = v_position.topic_id and o.group_id = p_group_id and o.queue = v_position.queue
                      and o.deliver_at < p_until limit p_limit))
                returning b.message_group
            )
            select array_agg(distinct g.message_group), count(*) into v_message_groups, v_count from gone g;
            perform duewheel.fifo_mark_first(p_group_id, v_position.topic_id, v_position.queue, v_message_groups, 0);
            v_lost := v_lost + v_count;
        end if;
    end loop;
    return v_lost;
end
$$;

-- One portion of a look at all groups, behind the subscription that is named, in 50 ms or the time of one: those for
-- which messages past retention are kept, with how many. Groups that have stood still for the broker's abandoned_after
-- go on behind these messages, and "lost" says how many they lose, as far as this portion comes. Not so where upkeep
-- has rested for half of that time, and for two hours: consumers may have rested, too, and have an hour from its return
-- to come back. next_group_id is null at the end.
create or replace function duewheel.watch_groups(
    p_limit integer default 4000, p_after_group_id integer default 0, p_after_topic_id integer default 0,
    p_now timestamptz default null,
    out standing jsonb, out next_group_id integer, out next_topic_id integer
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := duewheel.clock_at(p_now);
    v_until constant timestamptz := clock_timestamp() + interval '50 milliseconds';
    v_abandoned_before constant timestamptz := (
        select v_now - b.abandoned_after from duewheel.broker b
        where b.maintained_at > v_now - greatest(b.abandoned_after / 2, interval '2 hours')
          and (b.came_back_at <= v_now - interval '1 hour') is not false);
    v_read record;
    v_still record;
    v_kept record;
    v_lost bigint;
begin
    perform duewheel.check_limit('p_limit', p_limit, 1, 100000);
    if not duewheel.begin_upkeep() then
        return;
    end if;
    standing := '[]';
    for v_read in
        select s.group_id, s.topic_id, g.name as group_name, t.name as topic_name
        from duewheel.subscription s
        cross join lateral (
            select g.name from duewheel.consumer_group g where g.group_id = s.group_id limit 1) g
        cross join lateral (
            select t.name from duewheel.topic t where t.topic_id = s.topic_id and t.deleted_at is null limit 1) t
        where (s.group_id, s.topic_id) > (p_after_group_id, p_after_topic_id)
        order by s.group_id, s.topic_id
    loop
        v_still := duewheel.standstill(v_read.group_id, v_read.topic_id, v_now);
        if v_still.since_at is not null then
            v_lost := 0;
            if not v_still.is_paused and v_still.since_at <= v_abandoned_before then
                v_lost := duewheel.pass_over(v_read.group_id, v_read.topic_id, v_still.since_at, v_still.kept_before,
                                             p_limit, p_now);
            end if;
            select k.messages, k.bytes into v_kept
            from duewheel.kept_for(v_read.group_id, v_read.topic_id, v_still.kept_before) k where v_lost = 0;
            if v_lost > 0 or v_kept.messages > 0 then
                standing := standing || jsonb_build_object(
                    'consumer_group', v_read.group_name, 'topic', v_read.topic_name, 'since_at', v_still.since_at,
                    'is_paused', v_still.is_paused, 'messages', v_kept.messages, 'bytes', v_kept.bytes,
                    'lost', v_lost);
            end if;
            if v_lost > 0 then
                -- There may be more of it.
                next_group_id := v_read.group_id;
                next_topic_id := v_read.topic_id - 1;
                return;
            end if;
        end if;
        if clock_timestamp() >= v_until then
            next_group_id := v_read.group_id;
            next_topic_id := v_read.topic_id;
            return;
        end if;
    end loop;
end
$$;
