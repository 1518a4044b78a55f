-- Bulk reschedule: moves all waiting messages of a tag, a key prefix or a window of delivery instants to one instant.
--
-- It works in chunks, as a bulk recall does, each in a separate transaction. A message matches if it was sent before
-- the first chunk and has another instant. So a moved message matches neither in a later chunk nor when the whole
-- reschedule is repeated.

-- How many of the found messages fit into a chunk, whose bodies are written again.
create or replace function duewheel.fitting(p_topic_id integer, p_found duewheel.message_position[]) returns bigint
language sql stable
begin atomic
    select count(*) from (
        select f.place, sum(octet_length(m.body)) over (order by f.place) as bytes
        from unnest(p_found) with ordinality f (queue, deliver_at, seq, place)
        cross join lateral duewheel.message_at(p_topic_id, f.queue, f.deliver_at, f.seq) m
    ) m where m.place = 1 or m.bytes <= 33554432;
end;

-- Writes messages that are marked as recalled at their new instant, in the order of the old instants, and notes the
-- moves. p_first_seq: the seq of the first. Returns the instant at which they are stored.
create or replace function duewheel.put_moved(
    p_topic_id integer, p_made duewheel.message_position[], p_now timestamptz, p_asked_at timestamptz,
    p_first_seq bigint
) returns timestamptz
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_hi constant timestamptz := duewheel.released_to(p_topic_id);
    v_at timestamptz := greatest(p_asked_at, p_now);
    v_is_far boolean;
begin
    if v_at <= v_hi then
        v_at := duewheel.place_behind(p_topic_id, v_at, v_hi);
    end if;
    v_is_far := (duewheel.open_slot_at(v_at)).starts_at is null;
    with taken as materialized (
        select p_first_seq + f.place - 1 as new_seq, m.topic_id, m.queue, m.deliver_at, m.seq, m.born_at, i.first_seq,
               duewheel.as_moved(m, v_at, p_asked_at, p_first_seq + f.place - 1, p_now) as moved
        from unnest(p_made) with ordinality f (queue, deliver_at, seq, place)
        cross join lateral duewheel.message_at(p_topic_id, f.queue, f.deliver_at, f.seq) m
        left join duewheel.moved_id i on i.topic_id = p_topic_id and i.seq = m.seq
    ), near as (
        insert into duewheel.message select (t.moved).* from taken t where not v_is_far
    ), far as (
        insert into duewheel.far_message select (t.moved).* from taken t where v_is_far
    ), held as (
        -- The topic was released that far while the clock was ahead: the messages still wait for their instant.
        insert into duewheel.held_back (topic_id, queue, deliver_at, seq)
        select t.topic_id, t.queue, v_at, t.new_seq from taken t where v_at <= v_hi
    )
    insert into duewheel.moved_id (topic_id, queue, deliver_at, seq, first_seq, since_at)
    select t.topic_id, t.queue, t.deliver_at, t.seq, t.seq, t.born_at from taken t where t.first_seq is null
    union all
    select t.topic_id, t.queue, v_at, t.new_seq, coalesce(t.first_seq, t.seq), p_now from taken t;
    return v_at;
end
$$;

-- Takes the first moves of a chunk back, as many as p_late: their messages had been released before.
create or replace function duewheel.undo_moves(
    p_topic_id integer, p_made duewheel.message_position[], p_at timestamptz, p_first_seq bigint, p_late bigint
) returns void
language sql
begin atomic
    delete from duewheel.moved_id i
    where i.topic_id = p_topic_id and i.seq >= p_first_seq and i.seq < p_first_seq + p_late;
    delete from duewheel.moved_id i using unnest(p_made[:p_late]) m
    where i.topic_id = p_topic_id and i.first_seq = m.seq and i.seq = m.seq and not exists (
        select from duewheel.moved_id n
        where n.topic_id = p_topic_id and n.first_seq = m.seq and n.seq > m.seq);
    delete from duewheel.held_back b using unnest(p_made[:p_late]) with ordinality m (queue, deliver_at, seq, place)
    where b.topic_id = p_topic_id and b.queue = m.queue and b.deliver_at = p_at and b.seq = p_first_seq + m.place - 1;
    delete from duewheel.message b using unnest(p_made[:p_late]) with ordinality m (queue, deliver_at, seq, place)
    where b.topic_id = p_topic_id and b.queue = m.queue and b.deliver_at = p_at and b.seq = p_first_seq + m.place - 1;
    delete from duewheel.far_message b using unnest(p_made[:p_late]) with ordinality m (queue, deliver_at, seq, place)
    where b.topic_id = p_topic_id and b.queue = m.queue and b.deliver_at = p_at and b.seq = p_first_seq + m.place - 1;
end;

-- Moves messages that a walk has found. released: how many were released since they were found.
create or replace function duewheel.move_found(
    p_topic duewheel.topic, p_found duewheel.message_position[], p_deliver_at timestamptz, p_now timestamptz,
    out moved bigint, out released bigint
)
language plpgsql as $$
declare
    v_hi constant timestamptz := duewheel.released_to(p_topic.topic_id);
    v_made constant duewheel.message_position[] := duewheel.take_found(p_topic.topic_id, p_found, v_hi, p_now);
    -- The marks have taken the transaction id, before the clock is read.
    v_now constant timestamptz := coalesce(p_now, clock_timestamp());
    v_first_seq constant bigint := nextval('duewheel.message_block') * 65536;
    v_at timestamptz;
    v_late bigint;
begin
    moved := cardinality(v_made);
    released := (select count(*) from unnest(p_found) f where f.deliver_at <= v_hi);
    if moved = 0 then
        return;
    end if;
    v_at := duewheel.put_moved(
        p_topic.topic_id, v_made, v_now, duewheel.asked_instant(
            p_topic.name, p_topic.message_type, p_topic.max_delay, p_topic.out_of_range, p_topic.delay_levels, v_now,
            null, p_deliver_at, null), v_first_seq);
    if v_at < v_now + duewheel.wheel_reach() then
        perform duewheel.notify_due(p_topic.topic_id, v_at);
    end if;
    -- The last thing of all, as the wheel waits for it.
    v_late := duewheel.give_late_back(p_topic.topic_id, v_made);
    if v_late > 0 then
        perform duewheel.undo_moves(p_topic.topic_id, v_made, v_at, v_first_seq, v_late);
    end if;
    moved := moved - v_late;
    released := released + v_late;
end
$$;

-- One chunk of a bulk reschedule: reads p_limit messages, and moves the waiting ones that match to p_deliver_at, or in
-- a dry run counts them. p_after and next are as in duewheel.recall_chunk; next also says which messages the first
-- chunk was for.
-- role: producer
create or replace function duewheel.reschedule_chunk(
    p_topic text, p_tag text, p_key_prefix text, p_due_from timestamptz, p_due_until timestamptz,
    p_deliver_at timestamptz, p_dry_run boolean, p_limit integer, p_after jsonb, p_now timestamptz,
    out matched bigint, out moved bigint, out next jsonb
)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set datestyle = 'ISO'
as $$
declare
    v_topic duewheel.topic := duewheel.named_topic(p_topic);
    v_before_seq bigint;
    v_condition text;
    v_held_back duewheel.message_position[] := '{}';
    v_walk record;
    v_fitting integer;
    v_last duewheel.message_position;
    v_done record;
begin
    -- First: a number of the sequence may take a transaction id.
    perform duewheel.check_chunk(p_limit, p_dry_run, p_now);
    moved := 0;
    v_before_seq := coalesce((p_after ->> 'before')::bigint, nextval('duewheel.message_block') * 65536);
    v_condition := duewheel.recall_condition(v_topic.topic_id, p_tag, p_key_prefix, p_due_from, p_due_until)
        || format(' and m.seq < %s and m.deliver_at <> %L', v_before_seq, p_deliver_at);
    if p_after is null then
        v_held_back := duewheel.held_back_found(v_topic.topic_id, v_condition);
    end if;
    v_walk := duewheel.walk_waiting(
        v_topic, v_condition, p_key_prefix, p_due_from, p_due_until, false, not p_dry_run, p_limit, p_after);
    if not p_dry_run then
        v_fitting := duewheel.fitting(v_topic.topic_id, v_walk.positions);
        if v_fitting < cardinality(v_walk.positions) then
            v_walk.positions := v_walk.positions[:v_fitting];
            v_last := v_walk.positions[v_fitting];
            v_walk.next := v_walk.next || jsonb_build_object(
                'queue', v_last.queue, 'at', v_last.deliver_at, 'seq', v_last.seq);
        end if;
        perform duewheel.reschedule(duewheel.message_id(v_topic.topic_id, h.queue, h.deliver_at, h.seq), p_deliver_at,
                                    now => p_now)
        from unnest(v_held_back) h;
        v_done := duewheel.move_found(v_topic, v_walk.positions, p_deliver_at, p_now);
        moved := cardinality(v_held_back) + v_done.moved;
    end if;
    matched := cardinality(v_held_back) + cardinality(v_walk.positions);
    next := v_walk.next || jsonb_build_object('before', v_before_seq);
end
$$;
