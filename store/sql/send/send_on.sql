-- Messages that go on with all that they have: retries, dead letters, those that are redriven or moved.

-- Stores a message of this transaction, in its slot or where that is not made yet among the far ones. Answers the
-- message as it is stored.
create or replace function duewheel.place_message(p_message duewheel.any_message) returns duewheel.any_message
language plpgsql as $$
declare
    v_hi constant timestamptz := (select t.hi from duewheel.newest_tick(p_message.topic_id) t);
begin
    if p_message.deliver_at <= v_hi then
        -- Released that far while the clock was ahead: it comes at its instant all the same.
        p_message.deliver_at := duewheel.place_behind(p_message.topic_id, p_message.deliver_at, v_hi);
        insert into duewheel.held_back (topic_id, queue, deliver_at, seq)
        select p_message.topic_id, p_message.queue, p_message.deliver_at, p_message.seq
        where p_message.deliver_at <= v_hi;
    end if;
    if (duewheel.open_slot_at(p_message.deliver_at)).starts_at is null then
        insert into duewheel.far_message select p_message.*;
    else
        insert into duewheel.message select p_message.*;
    end if;
    return p_message;
end
$$;

-- Sends a message again, as it is, to another topic of its group; answers its seq. It keeps the position of the first
-- message of its chain, which is its id. Before p_deliver_at is read from the clock the caller takes its transaction
-- id, as for any send.
create or replace function duewheel.send_on(
    p_message duewheel.any_message, p_topic_id integer, p_deliver_at timestamptz, p_attempt integer, p_reason text,
    p_seq bigint default nextval('duewheel.message_block') * 65536
) returns bigint
language plpgsql as $$
begin
    if p_message.origin_seq is null then
        p_message.origin_topic_id := p_message.topic_id;
        p_message.origin_queue := p_message.queue;
        p_message.origin_deliver_at := p_message.deliver_at;
        p_message.origin_seq := p_message.seq;
    end if;
    p_message.topic_id := p_topic_id;
    p_message.queue := 0;
    p_message.deliver_at := greatest(p_deliver_at, p_message.born_at);
    p_message.seq := p_seq;
    p_message.xid := pg_current_xact_id();
    p_message.asked_at := null;
    p_message.attempt := p_attempt;
    p_message.reason := p_reason;
    perform duewheel.place_message(p_message);
    return p_seq;
end
$$;
