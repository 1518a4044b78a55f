-- Moving a message once, however often it is asked for: a move gives the message a new id, so whoever lost the answer
-- could neither repeat the question by the old id nor know the new one.

-- As reschedule; the same idempotency key again is answered with the receipt of the first move, as for a send.
create or replace function duewheel.reschedule_once(
    message_id text, idempotency_key text, deliver_at timestamptz default null, delay interval default null,
    now timestamptz default null
) returns duewheel.send_receipt
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_id record := duewheel.parse_message_id(reschedule_once.message_id);
    v_moved record;
    v_retention interval;
    v_receipt duewheel.send_receipt;
begin
    if reschedule_once.now is not null then
        perform duewheel.require_clock_right(reschedule_once.now);
    end if;
    perform duewheel.check_message(''::bytea, null, null, null, null, reschedule_once.idempotency_key);
    select t.retention into v_retention
    from duewheel.topic t where t.topic_id = v_id.topic_id and t.deleted_at is null;
    if not found or reschedule_once.idempotency_key is null then
        return duewheel.reschedule(reschedule_once.message_id, reschedule_once.deliver_at, reschedule_once.delay,
                                   reschedule_once.now);
    end if;
    -- Another try of the same move waits here for the first.
    v_receipt := duewheel.claim_idempotency_key(
        v_id.topic_id, reschedule_once.idempotency_key, v_id.queue::smallint, v_id.deliver_at, v_id.seq, 'infinity');
    if v_receipt.message_id is not null then
        return v_receipt;
    end if;
    v_receipt := duewheel.reschedule(reschedule_once.message_id, reschedule_once.deliver_at, reschedule_once.delay,
                                     reschedule_once.now);
    v_moved := duewheel.parse_message_id(v_receipt.message_id);
    update duewheel.idempotency i
    set queue = v_moved.queue, deliver_at = v_moved.deliver_at, seq = v_moved.seq,
        until_at = v_moved.deliver_at + v_retention
    where i.topic_id = v_id.topic_id and i.idempotency_key = reschedule_once.idempotency_key;
    return v_receipt;
end
$$;
