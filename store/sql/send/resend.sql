-- Messages that are stored again with all their fields: retries, dead letters, redriven and moved messages.

-- Stores a message of this transaction in p_slot, or in the slot of its instant, or in far_message if that slot does
-- not exist yet. p_hi: the newest release of its topic. Returns the stored message.
create or replace function duewheel.place_message(
    p_message duewheel.any_message, p_hi timestamptz, p_slot duewheel.slot default null
) returns duewheel.any_message
language plpgsql as $$
begin
    if p_message.deliver_at <= p_hi then
        -- A tick while the clock was ahead has passed this instant: the message still waits for it.
        p_message.deliver_at := duewheel.place_behind(p_message.topic_id, p_message.deliver_at, p_hi);
        insert into duewheel.held_back (topic_id, queue, deliver_at, seq)
        select p_message.topic_id, p_message.queue, p_message.deliver_at, p_message.seq
        where p_message.deliver_at <= p_hi;
    end if;
    if (p_message.deliver_at >= p_slot.starts_at and p_message.deliver_at < p_slot.ends_at) is not true
       and (duewheel.open_slot_at(p_message.deliver_at)).starts_at is null
    then
        insert into duewheel.far_message select p_message.*;
    else
        insert into duewheel.message select p_message.*;
    end if;
    return p_message;
end
$$;

-- The instant before which a dead-letter topic has only dead letters that were sent again or discarded.
create or replace function duewheel.redrive_from(p_topic_id integer) returns timestamptz
language sql stable
return coalesce((select t.redrive_from from duewheel.topic t where t.topic_id = p_topic_id), '-infinity');

-- Sends messages of a subscription again and returns their number. No other function makes a retry or a dead letter.
-- p_rows yields the columns message and why, its new reason. p_step: "retry" makes the next attempt, due at p_due_at or
-- after the policy's interval, or a dead letter if the retries are used up; "dead_letter" makes a dead letter;
-- "redrive" makes the next attempt, due now; "again" repeats the same attempt, due now. p_lease_n: the lease that held
-- the messages, or the stream that read them.
create or replace function duewheel.resend(
    p_subscription duewheel.subscription, p_rows refcursor, p_step text, p_due_at timestamptz, p_now timestamptz,
    p_lease_n bigint default null
) returns integer
language plpgsql as $$
declare
    -- Taken before the clock is read, as in every send.
    v_xid constant xid8 := pg_current_xact_id();
    v_now constant timestamptz := coalesce(p_now, clock_timestamp());
    v_hi constant timestamptz := duewheel.released_to(p_subscription.retry_topic_id);
    v_group duewheel.consumer_group;
    v_slot duewheel.slot;
    v_row record;
    v_message duewheel.any_message;
    v_is_dead boolean;
    v_redrive_from timestamptz;
    v_first timestamptz;
    v_count integer := 0;
begin
    if p_step = 'retry' then
        -- The group may have been renamed since the caller read its subscription.
        v_group := duewheel.subscribed_group(p_subscription.group_id, p_subscription.topic_id);
    end if;
    loop
        fetch p_rows into v_row;
        exit when not found;
        v_count := v_count + 1;
        v_message := v_row.message;
        v_is_dead := p_step = 'dead_letter' or p_step = 'retry' and v_message.attempt > v_group.max_retries;
        if v_is_dead and v_redrive_from is null then
            -- Two statements: the second sees what the lock waited for.
            perform pg_advisory_xact_lock_shared(
                duewheel.dead_letter_lock_key(p_subscription.dead_letter_topic_id));
            v_redrive_from := duewheel.redrive_from(p_subscription.dead_letter_topic_id);
        end if;
        if v_message.origin_seq is null then
            v_message.origin_topic_id := v_message.topic_id;
            v_message.origin_queue := v_message.queue;
            v_message.origin_deliver_at := v_message.deliver_at;
            v_message.origin_seq := v_message.seq;
        end if;
        v_message.previous_seq := v_message.seq;
        v_message.lease_n := p_lease_n;
        v_message.topic_id := case when v_is_dead then p_subscription.dead_letter_topic_id
                                   else p_subscription.retry_topic_id end;
        v_message.queue := 0;
        -- The clock may have been set back since redrives passed an instant.
        v_message.deliver_at := greatest(v_now, case when v_is_dead then v_redrive_from end, case
            when p_step = 'retry' and not v_is_dead then coalesce(p_due_at, v_now
                + v_group.retry_intervals[least(v_message.attempt, cardinality(v_group.retry_intervals))]
                * (1 + v_group.retry_jitter * (2 * random() - 1))) end);
        v_message.seq := nextval('duewheel.message_block') * 65536;
        v_message.xid := v_xid;
        v_message.asked_at := null;
        v_message.attempt := v_message.attempt + (p_step in ('retry', 'redrive') and not v_is_dead)::integer;
        v_message.reason := v_row.why;
        if (v_message.deliver_at < v_slot.ends_at and v_message.deliver_at >= v_slot.starts_at) is not true then
            v_slot := duewheel.open_slot_at(v_message.deliver_at);
        end if;
        v_message := duewheel.place_message(v_message, case when not v_is_dead then v_hi end, v_slot);
        if not v_is_dead then
            v_first := least(v_first, v_message.deliver_at);
        end if;
    end loop;
    close p_rows;
    if v_first < v_now + duewheel.wheel_reach() then
        perform duewheel.notify_due(p_subscription.retry_topic_id, v_first);
    end if;
    return v_count;
end
$$;
