-- Released: which tick released a message, and how far a topic is released.
--
-- A message belongs to the first tick whose hi reaches its instant, if that tick's snapshot sees its transaction.
-- Otherwise it is a straggler of the first later tick that does, and has a row in duewheel.straggler. Messages due
-- after the newest tick wait, and so do the messages in duewheel.held_back, which were sent before its instant.

-- The minute of an instant, as in the index of transactions: the minutes of an interval find the messages of a
-- transaction that are due in it. A plan uses the index because the function is inlined.
create or replace function duewheel.minute_of(p_at timestamptz) returns timestamptz
language sql immutable parallel safe
return date_bin('1 minute', p_at, '2000-01-01 00:00:00+00');

-- The newest tick of a topic.
create or replace function duewheel.newest_tick(p_topic_id integer) returns setof duewheel.tick
language sql stable rows 1
begin atomic
    select * from duewheel.tick t where t.topic_id = p_topic_id order by t.hi desc, t.tick_id desc limit 1;
end;

create or replace function duewheel.released_to(p_topic_id integer) returns timestamptz
language sql stable
begin atomic
    select coalesce((select t.hi from duewheel.newest_tick(p_topic_id) t), '-infinity');
end;

-- The tick whose interval holds an instant.
-- role: everyone
create or replace function duewheel.tick_over(p_topic_id integer, p_at timestamptz) returns setof duewheel.tick
language sql stable rows 1
begin atomic
    select * from duewheel.tick t where t.topic_id = p_topic_id and t.hi >= p_at order by t.hi, t.tick_id limit 1;
end;

-- The tick that releases the messages after a position. After the end of a tick that is the next tick.
create or replace function duewheel.tick_behind(p_topic_id integer, p_at timestamptz, p_seq bigint)
returns setof duewheel.tick
language sql stable rows 1
begin atomic
    select * from duewheel.tick t
    where t.topic_id = p_topic_id and t.hi >= p_at and (t.hi > p_at or p_seq < duewheel.last_seq())
    order by t.hi, t.tick_id limit 1;
end;

-- True if a message has been released, or may be released at any moment. A held-back message still waits for its
-- instant.
create or replace function duewheel.is_released(
    p_topic_id integer, p_queue integer, p_deliver_at timestamptz, p_seq bigint
) returns boolean
language sql stable
begin atomic
    select coalesce((select t.hi >= p_deliver_at from duewheel.newest_tick(p_topic_id) t), false) and not exists (
        select from duewheel.held_back b
        where b.topic_id = p_topic_id and b.deliver_at = p_deliver_at and b.queue = p_queue and b.seq = p_seq);
end;

-- Whether the ticks of their instants released all messages of a queue in [p_from, p_hi], p_hi being how far the topic
-- is released: no message was late, none is held back, and no transaction that was open at the newest tick, according
-- to its snapshot, has left a message there since.
create or replace function duewheel.released_whole(
    p_topic_id integer, p_queue smallint, p_from timestamptz, p_hi timestamptz
) returns boolean
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    return (select true from duewheel.straggler s
            where s.topic_id = p_topic_id and s.queue = p_queue and s.deliver_at >= p_from and s.deliver_at <= p_hi
            order by s.deliver_at, s.seq limit 1) is null
       and (select true from duewheel.held_back b
            where b.topic_id = p_topic_id and b.deliver_at >= p_from and b.deliver_at <= p_hi
            order by b.deliver_at limit 1) is null
       and not exists (
            select from duewheel.newest_tick(p_topic_id) t
            cross join lateral pg_snapshot_xip(t.snapshot) x
            cross join lateral (
                select from duewheel.any_message m
                where m.topic_id = p_topic_id and m.xid = x and m.deliver_at >= p_from and m.deliver_at <= p_hi
                  and duewheel.minute_of(m.deliver_at) >= duewheel.minute_of(p_from)
                  and duewheel.minute_of(m.deliver_at) <= duewheel.minute_of(p_hi)
                order by duewheel.minute_of(m.deliver_at) limit 1) m
            -- Rows of open transactions are not visible, and there may be a million of them.
            where pg_visible_in_snapshot(x, pg_current_snapshot()) or x = pg_current_xact_id_if_assigned())
       and not exists (
            select from duewheel.newest_tick(p_topic_id) t
            cross join lateral (
                select from duewheel.any_message m
                where m.topic_id = p_topic_id and m.xid >= pg_snapshot_xmax(t.snapshot) and m.xid <= t.tick_xid
                  and m.deliver_at >= p_from and m.deliver_at <= p_hi
                  and duewheel.minute_of(m.deliver_at) >= duewheel.minute_of(p_from)
                  and duewheel.minute_of(m.deliver_at) <= duewheel.minute_of(p_hi)
                order by m.xid limit 1) m
            where pg_snapshot_xmax(t.snapshot) < t.tick_xid);
end
$$;

-- The instant at which a message of this transaction is stored that is due at or before p_hi, how far its topic is
-- released: its own, to be held back until then. If a tick of this transaction would see it there, just after p_hi.
create or replace function duewheel.place_behind(p_topic_id integer, p_deliver_at timestamptz, p_hi timestamptz)
returns timestamptz
language sql volatile
begin atomic
    select case when pg_visible_in_snapshot(pg_current_xact_id(), t.snapshot)
        then p_hi + interval '1 microsecond' else p_deliver_at end
    from duewheel.tick_over(p_topic_id, p_deliver_at) t;
end;

-- The instant at which a message was released: of the tick whose snapshot sees it, or of the tick that found it as a
-- straggler; null while it waits.
create or replace function duewheel.release_of(
    p_topic_id integer, p_queue integer, p_deliver_at timestamptz, p_seq bigint, p_xid xid8
) returns timestamptz
language sql stable
begin atomic
    select case when pg_visible_in_snapshot(p_xid, t.snapshot) then t.ticked_at else (
            select k.ticked_at from duewheel.straggler s
            join duewheel.tick k on k.topic_id = s.topic_id and k.tick_id = s.tick_id
            where s.topic_id = p_topic_id and s.queue = p_queue and s.deliver_at = p_deliver_at and s.seq = p_seq
        ) end
    from duewheel.tick_over(p_topic_id, p_deliver_at) t;
end;

-- Whether the logs no longer cover a message: it was due before kept_from of its topic, and was not released later, as
-- a late commit is.
create or replace function duewheel.is_forgotten(
    p_topic_id integer, p_queue integer, p_deliver_at timestamptz, p_seq bigint, p_xid xid8
) returns boolean
language sql stable
begin atomic
    select exists (select from duewheel.topic t where t.topic_id = p_topic_id and t.kept_from > p_deliver_at)
        and exists (
            select from duewheel.tick_over(p_topic_id, p_deliver_at) t where pg_visible_in_snapshot(p_xid, t.snapshot))
        and not exists (
            select from duewheel.straggler s
            where s.topic_id = p_topic_id and s.queue = p_queue and s.deliver_at = p_deliver_at and s.seq = p_seq);
end;
