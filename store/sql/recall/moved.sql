-- Moved messages: a move gives a message a new id, and all its earlier ids still refer to it.
--
-- Any id is two lookups away from the present id, however often the message was moved. A call comes here only if it
-- finds nothing to do at an id, so messages that were never moved cost nothing extra.

-- The present position of the message with an id; no row if it was never moved.
create or replace function duewheel.present_place(p_topic_id integer, p_seq bigint)
returns setof duewheel.message_position
language sql stable rows 1
begin atomic
    select p.queue, p.deliver_at, p.seq
    from duewheel.moved_id m
    cross join lateral (
        select n.queue, n.deliver_at, n.seq from duewheel.moved_id n
        where n.topic_id = p_topic_id and n.first_seq = m.first_seq order by n.seq desc limit 1) p
    where m.topic_id = p_topic_id and m.seq = p_seq;
end;

-- The ids that a moved message has had, in order.
create or replace function duewheel.ids_of_moved(p_topic_id integer, p_seq bigint) returns setof duewheel.moved_id
language sql stable
begin atomic
    select n.* from duewheel.moved_id m
    join duewheel.moved_id n on n.topic_id = p_topic_id and n.first_seq = m.first_seq
    where m.topic_id = p_topic_id and m.seq = p_seq
    order by n.seq;
end;

-- A message as this transaction stores it at another place: with everything that its sender gave.
create or replace function duewheel.as_moved(
    p_message duewheel.any_message, p_deliver_at timestamptz, p_asked_at timestamptz, p_seq bigint, p_now timestamptz
) returns duewheel.any_message
language plpgsql as $$
begin
    p_message.deliver_at := p_deliver_at;
    p_message.asked_at := nullif(p_asked_at, p_deliver_at);
    p_message.seq := p_seq;
    p_message.born_at := p_now;
    p_message.xid := pg_current_xact_id();
    return p_message;
end
$$;

-- Notes a move. The recall at the old place has kept any other move of the message out until this one is committed, so
-- the rows of a message have the order of its moves.
create or replace function duewheel.note_moved(p_from duewheel.any_message, p_to duewheel.any_message) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_first_seq bigint;
begin
    select m.first_seq into v_first_seq from duewheel.moved_id m
    where m.topic_id = p_from.topic_id and m.seq = p_from.seq;
    if not found then
        v_first_seq := p_from.seq;
        insert into duewheel.moved_id (topic_id, queue, deliver_at, seq, first_seq, since_at)
        values (p_from.topic_id, p_from.queue, p_from.deliver_at, p_from.seq, v_first_seq, p_from.born_at);
    end if;
    insert into duewheel.moved_id (topic_id, queue, deliver_at, seq, first_seq, since_at)
    values (p_to.topic_id, p_to.queue, p_to.deliver_at, p_to.seq, v_first_seq, p_to.born_at);
end
$$;

-- Forgets the ids of messages of which nothing is kept: neither the message at its present position, nor a row that it
-- left at a later instant, which only these ids tell from a recalled message. Looks up p_limit messages, and puts the
-- kept ones off until the last instant that they have had. Returns how many ids it has forgotten and put off.
create or replace function duewheel.trim_moved(p_topic_id integer, p_kept_from timestamptz, p_limit integer)
returns bigint
language sql set enable_seqscan = off set enable_sort = off
begin atomic
    with looked_at as (
        select f.ctid as row_id, f.seq, (
            select max(n.deliver_at) from duewheel.moved_id n
            where n.topic_id = p_topic_id and n.first_seq = f.seq) >= p_kept_from as is_kept
        from duewheel.moved_id f
        where f.topic_id = p_topic_id and f.seq = f.first_seq
          and coalesce(f.put_off_to, f.deliver_at) < p_kept_from
        order by coalesce(f.put_off_to, f.deliver_at) limit p_limit
    ), put_off as (
        update duewheel.moved_id m
        set put_off_to = (
            select max(n.deliver_at) from duewheel.moved_id n
            where n.topic_id = p_topic_id and n.first_seq = m.seq)
        where m.ctid = any (array(select l.row_id from looked_at l where l.is_kept))
        returning m.seq
    ), gone as (
        delete from duewheel.moved_id m
        where m.ctid = any (array(
            select n.ctid from looked_at l
            cross join lateral (
                select n.ctid from duewheel.moved_id n
                where n.topic_id = p_topic_id and n.first_seq = l.seq order by n.seq offset 0) n
            where not l.is_kept))
        returning m.seq
    )
    select (select count(*) from put_off) + (select count(*) from gone);
end;
