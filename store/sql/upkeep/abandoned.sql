-- An abandoned group takes nothing of a topic while unread messages are past the topic's retention. These messages are
-- kept until the group receives again or is deleted, or until the broker's abandoned_after has passed.

-- The end of the last slot that is past a retention: an earlier message is kept only because it is still needed.
create or replace function duewheel.retained_from(p_retention interval, p_now timestamptz) returns timestamptz
language sql stable
begin atomic
    select greatest(
        (select s.ends_at from duewheel.slot s where s.ends_at <= p_now - p_retention
         order by s.ends_at desc limit 1),
        (select o.ends_at from duewheel.outlived_slot o where o.ends_at <= p_now - p_retention
         order by o.starts_at desc limit 1));
end;

-- A clustering group that takes nothing of a topic for longer than its retention, or is paused, while messages are kept
-- for it: since_at is when it last took messages in any queue, or was rewound, resumed or paused; messages due before
-- kept_before are past retention. All null for other groups.
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
        select max(p.leased_at) from duewheel.positions(p_group_id, p_topic_id) p)));
    if v_read.paused_at is null and v_since >= p_now - v_read.retention then
        return;
    end if;
    v_before := duewheel.retained_from(v_read.retention, p_now);
    if v_before is null or not duewheel.needs(p_group_id, p_topic_id, '-infinity', v_before) then
        return;
    end if;
    since_at := v_since;
    is_paused := v_read.paused_at is not null;
    kept_before := v_before;
end
$$;

-- Reads the next p_limit unread messages of a group due before p_until, and as many stragglers, and finds how far the
-- group may skip them: to the end, or with p_only_recalled to the first message that was not recalled. The caller has
-- the lock of the queue. Returns the group's position after the skipped messages, and how many of them the group could
-- have received.
create or replace function duewheel.walk_past(
    inout walk duewheel.queue_walk, p_until timestamptz, p_limit integer, p_only_recalled boolean, out passed bigint
)
language plpgsql set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
declare
    v_to constant timestamptz := least(walk.hi, p_until - interval '1 microsecond');
    v_late record;
    v_due record;
begin
    -- As far as the first that is not past retention.
    select max(s.straggler_id) filter (where s.is_past) as straggler_to,
           count(*) filter (where s.is_past and not s.is_gone) as messages
    into v_late
    from (
        select s.straggler_id, s.is_gone, bool_and(s.deliver_at < p_until and (s.is_gone or not p_only_recalled))
                                              over (order by s.straggler_id) as is_past
        from (
            select s.straggler_id, s.deliver_at,
                   (select true from duewheel.message_at(walk.topic_id, walk.queue, s.deliver_at, s.seq)) is null
                   or (select true from duewheel.recall_of(walk.topic_id, walk.queue, s.deliver_at, s.seq))
                        is not null as is_gone
            from duewheel.straggler s
            where s.topic_id = walk.topic_id and s.queue = walk.queue and s.straggler_id > walk.straggler_to
              and s.straggler_id <= walk.last_straggler
            order by s.straggler_id limit p_limit) s
    ) s;
    passed := v_late.messages;
    walk.straggler_to := coalesce(v_late.straggler_to, walk.straggler_to);
    if walk.hi is null or (v_to, duewheel.last_seq()) <= (walk.to_at, walk.to_seq) then
        return;
    end if;
    with looked_at as materialized (
        select m.deliver_at, m.seq, not walk.no_recalls and (
                select true from duewheel.recall_of(walk.topic_id, walk.queue, m.deliver_at, m.seq)
            ) is not null as is_gone
        from duewheel.released_rows(
            walk.topic_id, walk.queue, walk.to_at, walk.to_seq, v_to, duewheel.last_seq(), walk.seen_below, true,
            null, null, true) m
        order by m.deliver_at, m.seq limit p_limit
    )
    select count(*) as looked_at, count(*) filter (where m.is_past) as past,
           count(*) filter (where m.is_past and not m.is_gone) as messages,
           (array_agg(m.deliver_at order by m.deliver_at desc, m.seq desc) filter (where m.is_past))[1] as at,
           (array_agg(m.seq order by m.deliver_at desc, m.seq desc) filter (where m.is_past))[1] as seq
    into v_due
    from (
        select *, bool_and(l.is_gone or not p_only_recalled) over (order by l.deliver_at, l.seq) as is_past
        from looked_at l) m;
    passed := passed + v_due.messages;
    if v_due.past = v_due.looked_at and v_due.looked_at < p_limit then
        walk.to_at := v_to;
        walk.to_seq := duewheel.last_seq();
    elsif v_due.past > 0 then
        walk.to_at := v_due.at;
        walk.to_seq := v_due.seq;
    end if;
end
$$;

-- Moves a group's position from p_from to the end of the skipped messages; the group has taken nothing since
-- p_since_at. Returns whether the position changed.
create or replace function duewheel.go_on(
    p_group_id integer, p_from duewheel.queue_walk, p_walk duewheel.queue_walk, p_since_at timestamptz,
    p_is_fifo boolean
) returns boolean
language plpgsql as $$
begin
    if (p_walk.to_at, p_walk.to_seq, p_walk.straggler_to) = (p_from.to_at, p_from.to_seq, p_from.straggler_to) then
        return false;
    end if;
    p_walk.n := p_walk.n + 1;
    p_walk.now_at := p_since_at;
    perform duewheel.note_lease(p_group_id, p_from, p_walk, 0, null, null, null, null, p_is_fifo);
    return true;
end
$$;

-- Whether the next message of a queue that a group has not read is recalled and due before p_until, or the next
-- straggler is.
create or replace function duewheel.next_is_recalled(
    p_group_id integer, p_topic_id integer, p_queue smallint, p_until timestamptz
) returns boolean
language sql stable
begin atomic
    select exists (
        select from (select * from duewheel.queue_state(p_group_id, p_topic_id, p_queue) offset 0) p
        cross join lateral (
            (select m.deliver_at, m.seq
             from duewheel.released_rows(
                 p_topic_id, p_queue, p.to_at, p.to_seq, p.hi, duewheel.last_seq(), p.seen_below, true, null, null,
                 true) m
             where p.has_messages and not p.no_recalls
             order by m.deliver_at, m.seq limit 1)
            union all
            (select s.deliver_at, s.seq from duewheel.straggler s
             where s.topic_id = p_topic_id and s.queue = p_queue and s.straggler_id > p.straggler_to
               and s.straggler_id <= p.last_straggler
             order by s.straggler_id limit 1)
        ) m
        cross join lateral duewheel.recall_of(p_topic_id, p_queue, m.deliver_at, m.seq)
        where m.deliver_at < p_until);
end;

-- Moves a group past recalled messages due before p_until, up to the first message that was not recalled: about p_limit
-- in one queue. Otherwise every poll of the group would read them again, and they would be kept for it. Returns whether
-- the position changed, so that there may be more. A queue that a consumer is reading is left alone, and so is a queue
-- that only a stream may move.
create or replace function duewheel.pass_recalled(
    p_group_id integer, p_topic_id integer, p_until timestamptz, p_limit integer, p_now timestamptz
) returns boolean
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_is_fifo constant boolean := duewheel.is_fifo(p_topic_id);
    v_position record;
    v_from duewheel.queue_walk;
begin
    for v_position in
        select p.topic_id, p.queue, l.leased_at from duewheel.positions(p_group_id, p_topic_id) p
        cross join lateral (
            select l.leased_at, l.consumer from duewheel.lease l
            where l.topic_id = p.topic_id and l.group_id = p_group_id and l.queue = p.queue and l.n = p.n limit 1) l
        where (l.consumer like duewheel.stream_name('%')) is not true
          -- Otherwise the position would stay and be reported as moved.
          and duewheel.next_is_recalled(p_group_id, p.topic_id, p.queue, p_until)
    loop
        v_from := duewheel.enter_queue(p_group_id, v_position.topic_id, v_position.queue, v_is_fifo, p_now);
        continue when v_from.n is null;
        if duewheel.go_on(
            p_group_id, v_from, (duewheel.walk_past(v_from, p_until, p_limit, true)).walk, v_position.leased_at,
            v_is_fifo)
        then
            return true;
        end if;
    end loop;
    return false;
end
$$;

-- Moves a group that has taken nothing since p_since_at past messages due before p_until, about p_limit in each queue.
-- The group loses them. Returns how many they were. A queue that a consumer is reading is left alone.
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
    v_message_groups text[];
    v_count bigint;
    v_lost bigint := 0;
begin
    if exists (select from duewheel.open_leases(p_group_id, p_topic_id, duewheel.clock_at(p_now), 1)) then
        -- A consumer still works on messages that it took long ago.
        return 0;
    end if;
    for v_position in select * from duewheel.positions(p_group_id, p_topic_id) loop
        v_from := duewheel.enter_queue(p_group_id, v_position.topic_id, v_position.queue, v_is_fifo, p_now);
        continue when v_from.n is null;
        -- A consumer may be back.
        exit when (duewheel.standstill(p_group_id, p_topic_id, p_now)).since_at is distinct from p_since_at;
        v_walked := duewheel.walk_past(v_from, p_until, p_limit, false);
        v_lost := v_lost + v_walked.passed;
        perform duewheel.go_on(p_group_id, v_from, v_walked.walk, p_since_at, v_is_fifo);
        if v_is_fifo then
            with gone as (
                delete from duewheel.fifo_backlog b where b.ctid = any (array(
                    select o.ctid from duewheel.fifo_backlog o
                    where (o.topic_id::bigint << 32 | o.group_id) = (v_position.topic_id::bigint << 32 | p_group_id)
                      and o.queue = v_position.queue and timezone('UTC', o.deliver_at) < timezone('UTC', p_until)
                    order by timezone('UTC', o.deliver_at) limit p_limit))
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

-- Moves a group past recalled messages, and reports messages past retention that are kept for it. A group that has
-- taken nothing for the broker's abandoned_after is moved past these messages, too, and "lost" counts them; a group
-- with its own limit is removed after it. This does not happen if upkeep has rested for half of that time and for two
-- hours: the consumers may have rested, too, and have an hour from upkeep's return. more: p_limit was reached.
create or replace function duewheel.watch_group(
    p_group_id integer, p_topic_id integer, p_limit integer, p_believed_at timestamptz, p_now timestamptz,
    out standing jsonb, out more boolean
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    -- No instant while upkeep has not been back for an hour.
    v_looked_at constant timestamptz := (
        select p_believed_at from duewheel.broker b
        where b.maintained_at > p_believed_at - greatest(b.abandoned_after / 2, interval '2 hours')
          and (b.came_back_at <= p_believed_at - interval '1 hour') is not false);
    v_read record;
    v_still record;
    v_kept record;
    v_lost bigint := 0;
    v_is_removed boolean;
begin
    -- If no wheel turns, ended leases still hold messages. These become ready now, and are kept for the group again.
    more := (duewheel.revive_chunk(p_group_id, p_topic_id, p_now)).more;
    if more then
        return;
    end if;
    more := duewheel.pass_recalled(p_group_id, p_topic_id, p_believed_at - interval '1 hour', p_limit, p_now);
    if more then
        return;
    end if;
    v_still := duewheel.standstill(p_group_id, p_topic_id, p_believed_at);
    if v_still.since_at is null then
        return;
    end if;
    select s.removed_after, s.group_name, t.name as topic_name into v_read
    from duewheel.subscription s
    join duewheel.topic t on t.topic_id = s.topic_id
    where s.group_id = p_group_id and s.topic_id = p_topic_id;
    v_is_removed := coalesce(not v_still.is_paused and v_still.since_at <= v_looked_at - v_read.removed_after, false);
    if not v_is_removed and not v_still.is_paused
        and v_still.since_at <= (select v_looked_at - b.abandoned_after from duewheel.broker b)
    then
        v_lost := duewheel.pass_over(
            p_group_id, p_topic_id, v_still.since_at, v_still.kept_before, p_limit, p_now);
        -- There may be more of it.
        more := v_lost > 0;
    end if;
    select k.messages, k.bytes into v_kept
    from duewheel.kept_for(p_group_id, p_topic_id, '-infinity', v_still.kept_before) k
    where v_lost = 0;
    if v_is_removed then
        perform from duewheel.subscription s
        where s.group_id = p_group_id and s.topic_id = p_topic_id for update skip locked;
        v_is_removed := found;
    end if;
    if v_is_removed then
        perform duewheel.remove_subscription(p_group_id);
    end if;
    if v_lost > 0 or v_kept.messages > 0 then
        standing := jsonb_build_object(
            'consumer_group', v_read.group_name, 'topic', v_read.topic_name, 'since_at', v_still.since_at,
            'is_paused', v_still.is_paused, 'is_removed', v_is_removed, 'messages', v_kept.messages,
            'bytes', v_kept.bytes, 'lost', v_lost);
    end if;
end
$$;
