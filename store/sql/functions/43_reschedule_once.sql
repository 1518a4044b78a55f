-- Moving a message once, however often it is asked for: a move gives the message a new id, so a caller that lost the
-- answer could neither repeat the question by the old id nor know the new one.

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

-- As reschedule_key; the same idempotency key again is answered with the receipts of the first move, and moves nothing,
-- also not what was sent under the key since.
create or replace function duewheel.reschedule_key_once(
    topic text, key text, idempotency_key text, deliver_at timestamptz default null, delay interval default null,
    now timestamptz default null
) returns setof duewheel.send_receipt
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic := duewheel.topic_to_recall_from(reschedule_key_once.topic);
    v_claim constant text := reschedule_key_once.idempotency_key;
    v_receipt duewheel.send_receipt;
    v_moved duewheel.send_receipt[] := '{}';
    v_first record;
begin
    if reschedule_key_once.now is not null then
        perform duewheel.require_clock_right(reschedule_key_once.now);
    end if;
    perform duewheel.check_message(''::bytea, reschedule_key_once.key, null, null, null, v_claim);
    if v_claim is null then
        return query select * from duewheel.reschedule_key(
            reschedule_key_once.topic, reschedule_key_once.key, reschedule_key_once.deliver_at,
            reschedule_key_once.delay, reschedule_key_once.now);
        return;
    end if;
    -- Another try of the same move waits here for the first.
    v_receipt := duewheel.claim_idempotency_key(v_topic.topic_id, v_claim, 0::smallint, 'epoch', 0, 'infinity');
    if v_receipt.message_id is not null then
        return next v_receipt;
        return query
        select m.message_id, (duewheel.parse_message_id(m.message_id)).deliver_at, 'duplicate'
        from duewheel.idempotency i
        cross join unnest(i.also_moved) with ordinality m (message_id, place)
        where i.topic_id = v_topic.topic_id and i.idempotency_key = v_claim
        order by m.place;
        return;
    end if;
    for v_receipt in
        select * from duewheel.reschedule_key(
            reschedule_key_once.topic, reschedule_key_once.key, reschedule_key_once.deliver_at,
            reschedule_key_once.delay, reschedule_key_once.now)
    loop
        v_moved := v_moved || v_receipt;
        return next v_receipt;
    end loop;
    v_first := duewheel.parse_message_id(v_moved[1].message_id);
    update duewheel.idempotency i
    set queue = v_first.queue, deliver_at = v_first.deliver_at, seq = v_first.seq,
        until_at = v_first.deliver_at + v_topic.retention,
        also_moved = (select array_agg(m.message_id order by m.place)
                      from unnest(v_moved) with ordinality m (message_id, deliver_at, outcome, place) where m.place > 1)
    where i.topic_id = v_topic.topic_id and i.idempotency_key = v_claim;
end
$$;
