-- Rows of a queue. These functions are inlined in FROM: a constant argument, such as true for "everything", takes its
-- conditions out of the plan. The comparison of a pair precedes the comparison of the instant alone, here and wherever
-- a page begins after a message: an index scan begins at the first bound that was written, and many messages may share
-- one instant.

-- The message of a position. A range of one pair in the order of the keys: an equality would do for the index of the
-- transactions, too, in a plan that was made while the table was small, and thousands may be due at one instant.
-- role: everyone
create or replace function duewheel.message_at(
    p_topic_id integer, p_queue smallint, p_deliver_at timestamptz, p_seq bigint
) returns setof duewheel.any_message
language sql stable rows 1
begin atomic
    (select * from duewheel.message m
     where m.topic_id = p_topic_id and m.queue = p_queue and (m.deliver_at, m.seq) >= (p_deliver_at, p_seq)
       and (m.deliver_at, m.seq) <= (p_deliver_at, p_seq) and m.deliver_at >= p_deliver_at
       and m.deliver_at <= p_deliver_at
     order by m.deliver_at, m.seq limit 1)
    union all
    (select * from duewheel.far_message m
     where m.topic_id = p_topic_id and m.queue = p_queue and (m.deliver_at, m.seq) >= (p_deliver_at, p_seq)
       and (m.deliver_at, m.seq) <= (p_deliver_at, p_seq)
     order by m.deliver_at, m.seq limit 1);
end;

-- The same for a single lookup; null if no row matches.
create or replace function duewheel.message_of(
    p_topic_id integer, p_queue integer, p_deliver_at timestamptz, p_seq bigint
) returns duewheel.any_message
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_message duewheel.any_message;
begin
    select * into v_message from duewheel.message_at(p_topic_id, p_queue::smallint, p_deliver_at, p_seq);
    return v_message;
end
$$;

-- The message id that a message shows: the id of a retry's origin; null for the id of its own position. In plpgsql,
-- because a plan would carry the arithmetic of an id for messages that need none.
create or replace function duewheel.origin_id(
    p_topic_id integer, p_queue smallint, p_deliver_at timestamptz, p_seq bigint
) returns text
language plpgsql immutable as $$
begin
    return duewheel.message_id(p_topic_id, p_queue, p_deliver_at, p_seq);
end
$$;

-- A message as a consumer gets it. p_attempt: the attempt of its message group, on FIFO topics.
create or replace function duewheel.as_leased(p_message duewheel.any_message, p_attempt integer default null)
returns setof duewheel.leased_message
language sql stable rows 1
begin atomic
    select null::duewheel.lease_handle, p_message.deliver_at, p_message.seq, p_message.born_at, p_message.asked_at,
           p_message.tag, p_message.key, duewheel.all_properties(p_message.content_type, p_message.properties),
           p_message.message_group, p_message.body,
           coalesce(p_attempt, p_message.attempt),
           case when p_message.origin_seq is not null then duewheel.origin_id(
               p_message.origin_topic_id, p_message.origin_queue, p_message.origin_deliver_at,
               p_message.origin_seq) end;
end;

-- A leased message as an SQL program gets it.
create or replace function duewheel.as_received(
    p_message duewheel.leased_message, p_lease duewheel.lease_handle, p_group_id integer, p_topic text
) returns setof duewheel.received_message
language sql stable rows 1
begin atomic
    select concat_ws('.', p_group_id, p_lease.topic_id, p_lease.queue, p_lease.n, p_lease.token, p_message.seq),
           coalesce(p_message.origin_id,
                    duewheel.message_id(p_lease.topic_id, p_lease.queue, p_message.deliver_at, p_message.seq)),
           p_topic, p_message.key, p_message.tag, p_message.properties, p_message.body, p_message.born_at,
           p_message.deliver_at, p_message.attempt, p_lease.expires_at;
end;

-- A message as the broker stores it. For a moved message also the id that its sender got, and at any other place than
-- its present one its present id.
create or replace function duewheel.as_described(
    p_message duewheel.any_message, p_topic text, p_recalled boolean, p_released boolean, p_moved_from text,
    p_moved_to text, p_replaced_by text
) returns setof duewheel.described_message
language sql stable rows 1
begin atomic
    select p_topic, duewheel.message_id(p_message.topic_id, p_message.queue, p_message.deliver_at, p_message.seq),
           p_message.key, p_message.tag, duewheel.all_properties(p_message.content_type, p_message.properties),
           p_message.body, p_message.born_at, p_message.deliver_at,
           p_message.asked_at, p_message.message_group, p_recalled, p_released, p_moved_from, p_moved_to,
           p_replaced_by;
end;

-- The recall of a message, also of one that was moved away from its place. One lookup for each message: its limit keeps
-- the planner from reading, or hashing, all recalls of all topics first.
-- role: everyone
create or replace function duewheel.recall_of(
    p_topic_id integer, p_queue integer, p_deliver_at timestamptz, p_seq bigint
) returns setof duewheel.recall
language sql stable rows 1
begin atomic
    select * from duewheel.recall r
    where r.topic_id = p_topic_id and r.queue = p_queue and r.deliver_at = p_deliver_at and r.seq = p_seq limit 1;
end;

-- The messages of a queue after (p_at, p_seq) and up to (p_to, p_to_seq) that their ticks released. p_seen_below: every
-- tick after (p_at, p_seq) sees the transactions below this id; null returns unreleased messages, too. p_every: neither
-- tags nor a filter choose among the messages; p_no_recalls: none of them is recalled.
-- role: everyone
create or replace function duewheel.released_rows(
    p_topic_id integer, p_queue smallint, p_at timestamptz, p_seq bigint, p_to timestamptz, p_to_seq bigint,
    p_seen_below xid8, p_every boolean, p_tags text[], p_filter jsonpath, p_no_recalls boolean
) returns setof duewheel.any_message
language sql stable
begin atomic
    select * from duewheel.any_message m
    where m.topic_id = p_topic_id and m.queue = p_queue
      and (m.deliver_at, m.seq) > (p_at, p_seq) and m.deliver_at >= p_at
      and m.deliver_at <= p_to and (m.deliver_at, m.seq) <= (p_to, p_to_seq)
      and (p_seen_below is null or m.xid < p_seen_below or pg_visible_in_snapshot(m.xid, (
            -- As duewheel.tick_over, without the columns that nothing needs here: each receive starts this plan.
            select t.snapshot from duewheel.tick t
            where t.topic_id = p_topic_id and t.hi >= m.deliver_at order by t.hi, t.tick_id limit 1)))
      and (p_every or ((p_tags is null or m.tag = any (p_tags))
           and (p_filter is null or coalesce(duewheel.all_properties(m.content_type, m.properties), '{}') @@ p_filter)))
      and (p_no_recalls
           or (select true from duewheel.recall_of(p_topic_id, p_queue, m.deliver_at, m.seq)) is null);
end;

-- Only the places of the same rows, by the primary key alone, which reads no message. Correct if the group receives all
-- of them, and if duewheel.released_whole, called after this has begun, returns true.
create or replace function duewheel.range_places(
    p_topic_id integer, p_queue smallint, p_at timestamptz, p_seq bigint, p_to timestamptz
) returns setof duewheel.leased_message
language sql stable
begin atomic
    select null::duewheel.lease_handle, m.deliver_at, m.seq, null::timestamptz, null::timestamptz, null::text,
           null::text, null::jsonb, null::text, null::bytea, null::integer, null::text
    from duewheel.any_message m
    where m.topic_id = p_topic_id and m.queue = p_queue
      and (m.deliver_at, m.seq) > (p_at, p_seq) and m.deliver_at >= p_at and m.deliver_at <= p_to;
end;

-- The stragglers of a queue in (p_from, p_to] that tags and a filter choose and that are not recalled.
-- role: everyone
create or replace function duewheel.straggler_rows(
    p_topic_id integer, p_queue smallint, p_from bigint, p_to bigint, p_every boolean, p_tags text[], p_filter jsonpath
) returns table (straggler_id bigint, message duewheel.any_message)
language sql stable
begin atomic
    select s.straggler_id, m
    from (
        select s.straggler_id, s.deliver_at, s.seq from duewheel.straggler s
        where s.topic_id = p_topic_id and s.queue = p_queue and s.straggler_id > p_from and s.straggler_id <= p_to
        order by s.straggler_id offset 0
    ) s
    -- A lookup by the key for each; as a join all messages of the queue might be read for each.
    cross join lateral duewheel.message_at(p_topic_id, p_queue, s.deliver_at, s.seq) m
    where (p_every or ((p_tags is null or m.tag = any (p_tags))
           and (p_filter is null or coalesce(duewheel.all_properties(m.content_type, m.properties), '{}') @@ p_filter)))
      and (select true from duewheel.recall_of(p_topic_id, p_queue, m.deliver_at, m.seq)) is null;
end;

-- The waiting messages of a queue, after (p_at, p_seq) and before p_until, at most p_limit held back ones and then as
-- many that are due after p_hi, how far the topic is released.
create or replace function duewheel.waiting_rows(
    p_topic_id integer, p_queue smallint, p_hi timestamptz, p_at timestamptz, p_seq bigint, p_until timestamptz,
    p_limit integer
) returns setof duewheel.any_message
language sql stable
begin atomic
    (select m.*
     from (
        select b.deliver_at, b.seq from duewheel.held_back b
        where b.topic_id = p_topic_id and b.queue = p_queue and (b.deliver_at, b.seq) > (p_at, p_seq)
          and b.deliver_at >= p_at and b.deliver_at < p_until
        order by b.deliver_at, b.seq limit p_limit
     ) b
     cross join lateral duewheel.message_at(p_topic_id, p_queue, b.deliver_at, b.seq) m)
    union all
    (select * from duewheel.any_message m
     -- One bound, behind both: an index scan begins at the pair, however far ahead the other one is.
     where m.topic_id = p_topic_id and m.queue = p_queue
       and (m.deliver_at, m.seq) > (greatest(p_hi, p_at), case when p_at > p_hi then p_seq else duewheel.last_seq() end)
       and m.deliver_at >= greatest(p_hi, p_at) and m.deliver_at < p_until
     order by m.deliver_at, m.seq limit p_limit);
end;
