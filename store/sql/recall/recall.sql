-- Recall. The row in duewheel.recall holds only if the message's topic had not been ticked past it when the recall
-- committed: the check runs at COMMIT under the shared tick lock, so a recall in a long transaction holds up no other
-- session.

-- The lock is held until the end of a recall's COMMIT, so either the recall or the tick sees the other. A prepared
-- transaction would hold it without end, after its check. So if the server allows prepared transactions, a notification
-- keeps this transaction from being prepared. SET CONSTRAINTS makes the check run before the COMMIT: a session that
-- does this and then waits for long is ended by the server.
create or replace function duewheel.lock_recall_commit(p_topic_id integer) returns void
language plpgsql as $$
begin
    if current_setting('max_prepared_transactions') <> '0' then
        perform pg_notify('duewheel_unprepared', '');
    end if;
    if current_setting('idle_in_transaction_session_timeout')::interval not between '1 ms' and '5 seconds' then
        perform set_config('idle_in_transaction_session_timeout', '5s', true);
    end if;
    perform duewheel.lock_ticking(p_topic_id, true);
end
$$;

create or replace function duewheel.check_recall_in_time() returns trigger
language plpgsql as $$
begin
    perform duewheel.require_read_committed();
    perform duewheel.lock_recall_commit(new.topic_id);
    -- A rewind also recalls released retries that no consumer has; it holds the locks under which they are leased. A
    -- retry that is sent again, to be due now, is not among them.
    if duewheel.is_released(new.topic_id, new.queue, new.deliver_at, new.seq) and not exists (
        select from duewheel.topic t where t.topic_id = new.topic_id and t.message_type = 'RETRY' and not exists (
            select from duewheel.redrive d
            where d.topic_id = new.topic_id and d.deliver_at = new.deliver_at and d.seq = new.seq)
    ) then
        raise exception using
            errcode = 'DW012',
            message = format('message %s was released at %s, before its recall was committed',
                             duewheel.message_id(new.topic_id, new.queue, new.deliver_at, new.seq),
                             (select t.hi from duewheel.newest_tick(new.topic_id) t)),
            hint = 'The whole transaction is rolled back. Run it again: the recall then answers already_released.';
    end if;
    return null;
end
$$;

do $$
begin
    if not exists (select from pg_trigger where tgname = 'recall_in_time'
                   and tgrelid = 'duewheel.recall'::regclass) then
        create constraint trigger recall_in_time after insert on duewheel.recall
        deferrable initially deferred for each row when (not new.bulk) execute function duewheel.check_recall_in_time();
        -- Also if session_replication_role is replica, which tools that load data set.
        alter table duewheel.recall enable always trigger recall_in_time;
    end if;
end
$$;

-- Recalls one message by its position: recalled, recalled_before (by another call, or moved) or already_released. It
-- waits for another open recall of the message. p_replaced_by: the id of the message that replaces it. p_answer: the
-- answer to a run that waits; null for a plain recall.
create or replace function duewheel.recall_position(
    p_topic_id integer, p_queue integer, p_deliver_at timestamptz, p_seq bigint, p_now timestamptz,
    p_replaced_by text default null, p_answer jsonb default null
) returns text
language plpgsql as $$
declare
    -- First: once a tick has passed the message, every recall in time is committed and is seen below.
    v_released constant boolean := duewheel.is_released(p_topic_id, p_queue, p_deliver_at, p_seq);
begin
    if exists (select from duewheel.recall_of(p_topic_id, p_queue, p_deliver_at, p_seq)) then
        return 'recalled_before';
    end if;
    if v_released then
        return 'already_released';
    end if;
    insert into duewheel.recall (topic_id, queue, deliver_at, seq, recalled_at, replaced_by, answer, answer_xid)
    values (p_topic_id, p_queue, p_deliver_at, p_seq, coalesce(p_now, clock_timestamp()), p_replaced_by, p_answer,
            case when p_answer is not null then pg_current_xact_id() end)
    on conflict on constraint recall_pkey do nothing;
    return case when found then 'recalled' else 'recalled_before' end;
end
$$;

-- Recalls the message that was at a place, wherever it was moved. outcome: recalled, recalled_before, already_released
-- or not_found; place: its present place; replaced_by: the id of the message that replaced it.
create or replace function duewheel.recall_moved(
    p_topic_id integer, p_now timestamptz, inout place duewheel.message_position, out outcome text,
    out replaced_by text, p_answer jsonb default null
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_present duewheel.message_position;
    v_xid xid8;
begin
    loop
        outcome := 'not_found';
        select m.xid into v_xid
        from duewheel.message_at(p_topic_id, place.queue, place.deliver_at, place.seq) m
        join duewheel.topic t on t.topic_id = m.topic_id
        where t.message_type not in ('RETRY', 'DEAD_LETTER');
        if found and not duewheel.is_forgotten(p_topic_id, place.queue, place.deliver_at, place.seq, v_xid) then
            outcome := duewheel.recall_position(
                p_topic_id, place.queue, place.deliver_at, place.seq, p_now, p_answer => p_answer);
        end if;
        exit when outcome in ('recalled', 'already_released');
        select * into v_present from duewheel.present_place(p_topic_id, place.seq);
        exit when not found or v_present.seq = place.seq;
        -- Perhaps just now: while this waited for the transaction that moved it.
        place := v_present;
    end loop;
    if outcome = 'recalled_before' then
        replaced_by := (select r.replaced_by
                        from duewheel.recall_of(p_topic_id, place.queue, place.deliver_at, place.seq) r);
    end if;
end
$$;

-- Recalls the message of an id.
-- role: producer
create or replace function duewheel.recall(message_id text, now timestamptz default null)
returns duewheel.recall_receipt
language plpgsql as $$
declare
    v_id constant record := duewheel.parse_message_id(recall.message_id);
    v_recalled record;
begin
    perform duewheel.clock_at(recall.now);
    perform duewheel.require_read_committed();
    v_recalled := duewheel.recall_moved(v_id.topic_id, recall.now, (v_id.queue, v_id.deliver_at, v_id.seq));
    return case
        when v_recalled.outcome = 'not_found' then ('not_found', null)::duewheel.recall_receipt
        when v_recalled.replaced_by is not null then ('replaced', v_recalled.replaced_by)::duewheel.recall_receipt
        else (replace(v_recalled.outcome, 'recalled_before', 'recalled'), duewheel.message_id(
                v_id.topic_id, (v_recalled.place).queue, (v_recalled.place).deliver_at, (v_recalled.place).seq)
             )::duewheel.recall_receipt end;
end
$$;

-- Recalls every waiting message of a key, and counts the recalled and the released ones. outcome: already_released if
-- one had been released, otherwise recalled if one waited or had been recalled before, otherwise not_found.
-- role: producer
create or replace function duewheel.recall_key(topic text, key text, now timestamptz default null)
returns duewheel.key_recall
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic := duewheel.named_topic(recall_key.topic);
    v_found record;
    v_too_late bigint := 0;
begin
    perform duewheel.clock_at(recall_key.now);
    perform duewheel.require_read_committed();
    v_found := duewheel.messages_of_key(v_topic.topic_id, recall_key.key);
    for i in 1 .. cardinality(v_found.seqs) loop
        if duewheel.recall_position(v_topic.topic_id, v_found.queues[i], v_found.ats[i], v_found.seqs[i],
                                    recall_key.now) = 'already_released' then
            v_too_late := v_too_late + 1;
        end if;
    end loop;
    return (case when v_too_late > 0 then 'already_released'
                 when v_found.otherwise = 'not_found' and cardinality(v_found.seqs) > 0 then 'recalled'
                 else v_found.otherwise end,
            cardinality(v_found.seqs) - v_too_late, v_found.released + v_too_late)::duewheel.key_recall;
end
$$;

-- The effect of a send with on_conflict keep or replace on the waiting messages of its key, whose lock the caller has.
-- p_message_id: the id of the sent message. outcome: kept, replaced or sent.
create or replace function duewheel.resolve_key_conflict(
    p_topic_id integer, p_key text, p_on_conflict text, p_message_id text, p_now timestamptz
) returns duewheel.send_receipt
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_waiting record;
    v_receipt duewheel.send_receipt;
begin
    if p_on_conflict is null or p_on_conflict not in ('keep', 'replace') then
        raise exception using
            errcode = 'DW010',
            message = format('on_conflict must be "allow", "keep" or "replace"; got "%s"', left(p_on_conflict, 80)),
            hint = 'Give one of these words.';
    end if;
    if p_key is null then
        raise exception using
            errcode = 'DW007',
            message = format('on_conflict is "%s" and the message has no key', p_on_conflict),
            hint = 'Give the key that the waiting message was sent with.';
    end if;
    perform duewheel.require_read_committed();
    v_waiting := duewheel.messages_of_key(p_topic_id, p_key);
    v_receipt.outcome := 'sent';
    for i in 1 .. cardinality(v_waiting.seqs) loop
        if p_on_conflict = 'keep' then
            return (duewheel.message_id(p_topic_id, v_waiting.queues[i], v_waiting.ats[i], v_waiting.seqs[i]),
                    v_waiting.ats[i], 'kept')::duewheel.send_receipt;
        end if;
        if duewheel.recall_position(p_topic_id, v_waiting.queues[i], v_waiting.ats[i], v_waiting.seqs[i], p_now,
                                    p_message_id) = 'recalled' then
            v_receipt.outcome := 'replaced';
        end if;
    end loop;
    return v_receipt;
end
$$;

-- Recalls the waiting messages of many keys, for messages that are sent in their stead with the ids p_message_ids.
-- Returns the keys under which a message waited.
-- role: admin
create or replace function duewheel.replace_keys(
    p_topic_id integer, p_keys text[], p_message_ids text[], p_now timestamptz
) returns setof text
language plpgsql set plan_cache_mode = force_generic_plan set enable_sort = on as $$
declare
    v_hi timestamptz;
    v_found record;
begin
    perform duewheel.clock_at(p_now);
    perform duewheel.require_read_committed();
    perform duewheel.lock_keys(t.name, p_keys, null) from duewheel.topic t where t.topic_id = p_topic_id;
    -- Before the recalls are looked at, as in messages_of_key.
    v_hi := coalesce(duewheel.released_to(p_topic_id), '-infinity');
    with found as materialized (
        select k.key, k.message_id, m.queue, m.deliver_at, m.seq,
               case when (select true from duewheel.recall_of(m.topic_id, m.queue, m.deliver_at, m.seq)) then true
                    when m.deliver_at <= v_hi then not exists (
                        select from duewheel.held_back b
                        where b.topic_id = m.topic_id and b.deliver_at = m.deliver_at and b.queue = m.queue
                          and b.seq = m.seq)
                    else false end as is_over
        from unnest(p_keys, p_message_ids) k (key, message_id)
        left join lateral duewheel.newest_mark(p_topic_id, k.key) c on true
        cross join lateral duewheel.key_rows(p_topic_id, k.key, coalesce(c.from_xid, '0'), c.xids) m
    ), made as (
        -- A held-back message is due before the tick, so only a separate check can tell whether it was released.
        insert into duewheel.recall (topic_id, queue, bulk, deliver_at, seq, recalled_at, replaced_by)
        select p_topic_id, f.queue, f.deliver_at > v_hi, f.deliver_at, f.seq,
               coalesce(p_now, clock_timestamp()), f.message_id
        from found f where not f.is_over order by f.deliver_at, f.seq
        on conflict on constraint recall_pkey do nothing
        returning bulk, deliver_at, seq
    )
    select array(select distinct f.key from found f join made m on m.seq = f.seq) as replaced,
           array(select f.key from found f where f.is_over group by f.key
                 having count(*) > duewheel.key_mark_after()) as to_mark,
           (select count(*) from made m where m.bulk) as bulk_count,
           (select min(m.deliver_at) from made m where m.bulk) as first_deliver_at
    into v_found;
    if v_found.bulk_count > 0 then
        insert into duewheel.bulk_recall (topic_id, first_deliver_at, recalled, recalled_at)
        values (p_topic_id, v_found.first_deliver_at, v_found.bulk_count, coalesce(p_now, clock_timestamp()));
    end if;
    perform duewheel.messages_of_key(p_topic_id, k.key) from unnest(v_found.to_mark) k (key);
    return query select * from unnest(v_found.replaced);
end
$$;

-- Claims an idempotency key for a move, which gives a message a new id: a caller that lost the answer could neither
-- repeat the question by the old id nor know the new one. Answers the receipts of the move that has the key already;
-- none: it is the caller's, who notes its receipts by note_move. Another try of the same move waits here for the first.
create or replace function duewheel.claim_move(p_topic_id integer, p_idempotency_key text)
returns setof duewheel.send_receipt
language plpgsql as $$
declare
    v_receipt duewheel.send_receipt;
begin
    perform duewheel.check_message(''::bytea, null, null, null, null, p_idempotency_key);
    v_receipt := duewheel.claim_idempotency_key(p_topic_id, p_idempotency_key, 0::smallint, 'epoch', 0, 'infinity');
    if v_receipt.message_id is null then
        return;
    end if;
    return next v_receipt;
    return query
    select m.message_id, (duewheel.parse_message_id(m.message_id)).deliver_at, 'duplicate'
    from duewheel.idempotency i
    cross join unnest(i.also_moved) with ordinality m (message_id, place)
    where i.topic_id = p_topic_id and i.idempotency_key = p_idempotency_key collate "default"
    order by m.place;
end
$$;

create or replace function duewheel.note_move(
    p_topic_id integer, p_idempotency_key text, p_moved duewheel.send_receipt[]
) returns void
language plpgsql as $$
declare
    v_first constant record := duewheel.parse_message_id(p_moved[1].message_id);
begin
    update duewheel.idempotency i
    set queue = v_first.queue, deliver_at = v_first.deliver_at, seq = v_first.seq,
        until_at = v_first.deliver_at + (select t.retention from duewheel.topic t where t.topic_id = p_topic_id),
        also_moved = (select array_agg(m.message_id order by m.place)
                      from unnest(p_moved) with ordinality m (message_id, deliver_at, outcome, place) where m.place > 1)
    where i.topic_id = p_topic_id and i.idempotency_key = p_idempotency_key collate "default";
end
$$;

-- Recalls a message in order to move it, wherever an earlier move has put it; answers it as it was there.
create or replace function duewheel.take_to_move(p_topic_id integer, p_message_id text, p_now timestamptz)
returns duewheel.any_message
language plpgsql as $$
declare
    v_id constant record := duewheel.parse_message_id(p_message_id);
    v_recalled constant record := duewheel.recall_moved(p_topic_id, p_now, (v_id.queue, v_id.deliver_at, v_id.seq));
begin
    if v_recalled.outcome = 'recalled' then
        return duewheel.message_of(p_topic_id, (v_recalled.place).queue, (v_recalled.place).deliver_at,
                                   (v_recalled.place).seq);
    elsif v_recalled.outcome = 'not_found' then
        raise exception using
            errcode = 'DW013',
            message = format('there is no delay message %s', p_message_id),
            hint = 'Correct the id. Or retention has dropped the message: find no longer returns it.';
    elsif v_recalled.outcome = 'already_released' then
        raise exception using
            errcode = 'DW012',
            message = format('message %s has been released already', p_message_id),
            hint = 'Consumers get it. Send another message, if one is needed.';
    end if;
    -- Also if another transaction recalled it just now: that transaction decides about the message, and this call does
    -- not send it again.
    raise exception using
        errcode = 'DW013',
        message = case when v_recalled.replaced_by is null then format('message %s was recalled before', p_message_id)
                       else format('message %s was replaced by %s', p_message_id, v_recalled.replaced_by) end,
        hint = case when v_recalled.replaced_by is null then 'Send a new message.'
                        else 'Reschedule the message that replaced it.' end;
end
$$;

-- Recall and send in one step: the same message at another instant.
-- role: producer
create or replace function duewheel.reschedule(
    message_id text, deliver_at timestamptz default null, delay interval default null,
    idempotency_key text default null, now timestamptz default null
) returns duewheel.send_receipt
language plpgsql as $$
#variable_conflict use_column
declare
    v_id constant record := duewheel.parse_message_id(reschedule.message_id);
    v_from duewheel.any_message;
    v_message duewheel.any_message;
    v_topic duewheel.topic;
    v_receipt duewheel.send_receipt;
    v_now timestamptz;
    v_asked_at timestamptz;
begin
    perform duewheel.clock_at(reschedule.now);
    perform duewheel.require_home();
    if reschedule.idempotency_key is not null then
        select * into v_receipt from duewheel.claim_move(v_id.topic_id, reschedule.idempotency_key);
        if found then
            return v_receipt;
        end if;
    end if;
    select t.* into v_topic from duewheel.topic t
    where t.topic_id = v_id.topic_id and t.message_type = 'DELAY' and t.deleted_at is null;
    v_from := duewheel.take_to_move(v_topic.topic_id, reschedule.message_id, reschedule.now);
    -- The recall has taken the transaction id, before the clock is read.
    v_now := coalesce(reschedule.now, clock_timestamp());
    v_asked_at := duewheel.asked_instant(
        v_topic.name, v_topic.message_type, v_topic.max_delay, v_topic.out_of_range, v_topic.delay_levels, v_now,
        reschedule.delay, reschedule.deliver_at, null);
    v_message := duewheel.place_message(
        duewheel.as_moved(v_from, greatest(v_asked_at, v_now), v_asked_at, nextval('duewheel.message_block') * 65536,
                          v_now),
        duewheel.released_to(v_topic.topic_id));
    perform duewheel.note_moved(v_from, v_message);
    if v_message.deliver_at < v_now + duewheel.wheel_reach() then
        perform duewheel.notify_due(v_message.topic_id, v_message.deliver_at);
    end if;
    v_receipt := (duewheel.message_id(v_message.topic_id, v_message.queue, v_message.deliver_at, v_message.seq),
                  v_message.deliver_at, 'sent');
    if reschedule.idempotency_key is not null then
        perform duewheel.note_move(v_id.topic_id, reschedule.idempotency_key, array[v_receipt]);
    end if;
    return v_receipt;
end
$$;

-- Moves every waiting message of a key to another instant; a receipt for each, in the order they were due.
-- role: producer
create or replace function duewheel.reschedule_key(
    topic text, key text, deliver_at timestamptz default null, delay interval default null,
    idempotency_key text default null, now timestamptz default null
) returns setof duewheel.send_receipt
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic := duewheel.named_topic(reschedule_key.topic);
    v_waiting record;
    v_moved duewheel.send_receipt[] := '{}';
begin
    perform duewheel.clock_at(reschedule_key.now);
    perform duewheel.require_read_committed();
    -- Excludes sends that keep or replace the messages of the key; before the idempotency key, in the same order as a
    -- send.
    perform pg_advisory_xact_lock(duewheel.key_lock_key(v_topic.topic_id, reschedule_key.key));
    if reschedule_key.idempotency_key is not null then
        return query select * from duewheel.claim_move(v_topic.topic_id, reschedule_key.idempotency_key);
        if found then
            return;
        end if;
    end if;
    v_waiting := duewheel.messages_of_key(v_topic.topic_id, reschedule_key.key);
    for i in 1 .. cardinality(v_waiting.seqs) loop
        v_moved := v_moved || duewheel.reschedule(
            duewheel.message_id(v_topic.topic_id, v_waiting.queues[i], v_waiting.ats[i], v_waiting.seqs[i]),
            reschedule_key.deliver_at, reschedule_key.delay, null, reschedule_key.now);
    end loop;
    if cardinality(v_moved) > 0 then
        if reschedule_key.idempotency_key is not null then
            perform duewheel.note_move(v_topic.topic_id, reschedule_key.idempotency_key, v_moved);
        end if;
        return query select * from unnest(v_moved);
        return;
    end if;
    if v_waiting.otherwise = 'already_released' then
        raise exception using
            errcode = 'DW012',
            message = format('every message with the key "%s" has been released already', reschedule_key.key),
            hint = 'Consumers get them. Send another message, if one is needed.';
    end if;
    raise exception using
        errcode = 'DW013',
        message = format('no message with the key "%s" waits on topic "%s"', reschedule_key.key, v_topic.name),
        hint = 'It was recalled, or retention dropped it: find_key shows all messages of the key that are left.';
end
$$;
