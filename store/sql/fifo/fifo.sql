-- FIFO topics. Messages of one message group are delivered in order, and while a consumer has one of them, no consumer
-- gets any other.
--
-- A group reads a queue as on any other topic, but cannot take every message that it passes: the message group may be
-- leased, or wait for a retry. Such messages are in fifo_backlog until their message group is free. So the position
-- marks the last message seen, and a lease lists its messages. A message group is in the order of its releases,
-- whatever the instants are: a message gets its place when a group sees it.
--
-- The tables were empty when a session made its plans, and every index looked the same then. So conditions and orders
-- here are written such that one index alone gives them: a range of one value, and the order of that index.
--
-- All of this happens under the lock of the queue, except that answers put failed messages back. That is safe: a
-- message group without unanswered messages stays so while the lock is held, and the rows of an answer appear together
-- with it.
--
-- An example. Of two message groups, a and b, a queue has a1 b1 a2 b2 a3, in this order.
--
-- 1. A consumer receives two messages: lease 1 lists a1 and b1. The position is behind b1; the backlog is empty.
--
-- 2. Another consumer receives. It sees a2, b2 and a3, but lease 1 has both message groups: all three are parked in the
-- backlog. The first ones of their message groups, a2 and b2, name lease 1 as the lease that they wait for. Lease 2
-- lists nothing; it moves the position behind a3.
--
-- 3. a1 is acked. Lease 1 has an answer, so the next receive looks up which of its message groups are free: a is, b is
-- not. Lease 3 lists a2 and a3, which leave the backlog.
--
-- 4. a2 fails. It returns to the backlog, in its place, due after the group's interval; a3 returns behind it, without
-- an attempt counted. b2 still waits for lease 1.
--
-- 5. b1 is acked. The next receive leases b2 (lease 4), and the first receive after the interval leases a2, now in its
-- second attempt, and a3 (lease 5).

-- The lease before p_below_n, or for null any lease, that has unanswered messages of a message group; null if the group
-- is free.
create or replace function duewheel.fifo_holder(
    p_group_id integer, p_topic_id integer, p_queue integer, p_message_group text,
    p_below_n bigint default null
) returns bigint
language plpgsql stable as $$
declare
    v_n bigint;
begin
    select m.n into v_n from duewheel.lease_message m
    where m.topic_id = p_topic_id and m.group_id = p_group_id and m.queue = p_queue
      and m.message_group >= p_message_group and m.message_group <= p_message_group
    order by m.message_group desc, m.n desc limit 1;
    -- The newest one decides: it was given out when no older one had any.
    if v_n is null or v_n >= p_below_n then
        return null;
    end if;
    perform from duewheel.final_event(p_group_id, p_topic_id, p_queue, v_n);
    if found then
        return null;
    end if;
    perform from duewheel.lease_message m
    where m.topic_id = p_topic_id and m.group_id = p_group_id and m.queue = p_queue
      and m.message_group >= p_message_group and m.message_group <= p_message_group and m.n = v_n
      and not exists (select from duewheel.message_answer(p_group_id, p_topic_id, p_queue, v_n, m.seq))
    order by m.message_group limit 1;
    return case when found then v_n end;
end
$$;

-- Whether the first message that a message group has in the backlog can be leased.
create or replace function duewheel.fifo_is_free(
    p_group_id integer, p_topic_id integer, p_queue integer, p_message_group text, p_below_n bigint, p_now timestamptz
) returns boolean
language plpgsql stable as $$
declare
    v_due_at timestamptz;
begin
    select b.due_at into v_due_at from duewheel.fifo_backlog b
    where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
      and b.message_group = p_message_group
    order by b.place limit 1;
    return found and (v_due_at is null or v_due_at <= p_now)
        and duewheel.fifo_holder(p_group_id, p_topic_id, p_queue, p_message_group, p_below_n) is null;
end
$$;
