-- Answers. A run that waits for an answer has sent a message, its timeout. An answer is a recall of that message that
-- carries a body. So COMMIT decides whether the answer or the timeout came first, and upkeep keeps an answer for as
-- long as a recall.

-- Answers the newest message of a key. outcome: answered, too_late (it was released), already_answered, recalled
-- (without an answer), not_found, or early: no run waits yet, and the next wait under the key begins answered. Only
-- with early => true, because an answer under a mistyped key would be kept, too. message_id is the present id.
-- role: answerer
create or replace function duewheel.answer_key(
    topic text, key text, body jsonb default null, properties jsonb default null, early boolean default false,
    now timestamptz default null
) returns duewheel.recall_receipt
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic := duewheel.named_topic(answer_key.topic);
    v_answer constant jsonb := jsonb_build_object('body', answer_key.body, 'properties', answer_key.properties);
    v_is_locked boolean := false;
    v_place duewheel.message_position;
    v_recalled record;
begin
    perform duewheel.clock_at(answer_key.now);
    perform duewheel.require_read_committed();
    perform duewheel.check_properties(v_answer, 'contents of the answer');
    loop
        select m.queue, m.deliver_at, m.seq into v_place from duewheel.any_message m
        where m.topic_id = v_topic.topic_id and m.key = answer_key.key collate "C"
        order by m.xid desc, m.seq desc limit 1;
        while v_place.seq is not null loop
            v_recalled := duewheel.recall_moved(v_topic.topic_id, answer_key.now, v_place, p_answer => v_answer);
            v_place := v_recalled.place;
            if v_recalled.outcome <> 'not_found' and v_recalled.replaced_by is null then
                return (
                    case v_recalled.outcome
                        when 'recalled' then 'answered'
                        when 'already_released' then 'too_late'
                        else (
                            select case when r.answer is null then 'recalled' else 'already_answered' end
                            from duewheel.recall_of(v_topic.topic_id, v_place.queue, v_place.deliver_at, v_place.seq) r
                        ) end,
                    duewheel.message_id(v_topic.topic_id, v_place.queue, v_place.deliver_at, v_place.seq)
                )::duewheel.recall_receipt;
            end if;
            exit when v_recalled.replaced_by is null;
            -- Just now, by a transaction that this one has waited for.
            select i.queue, i.deliver_at, i.seq into v_place from duewheel.parse_message_id(v_recalled.replaced_by) i;
        end loop;
        exit when answer_key.early is not true or v_is_locked;
        -- A wait that begins at this moment has the lock until it is committed: then the next look finds it.
        perform duewheel.check_message('', coalesce(answer_key.key, ''), null, null, null, null);
        perform pg_advisory_xact_lock(duewheel.key_lock_key(v_topic.topic_id, answer_key.key));
        v_is_locked := true;
    end loop;
    if not v_is_locked then
        return ('not_found', null)::duewheel.recall_receipt;
    end if;
    insert into duewheel.early_answer (topic_id, key, answer, until_at)
    values (v_topic.topic_id, answer_key.key, v_answer,
            coalesce(answer_key.now, clock_timestamp()) + v_topic.retention)
    on conflict on constraint early_answer_pkey do nothing;
    return (case when found then 'early' else 'already_answered' end, null)::duewheel.recall_receipt;
end
$$;

-- Sends the timeout of a run that waits under a key, in place of a message that waits there. An early answer to the key
-- goes to this message, in this transaction. So an answer is either early and taken here, or finds the message: both
-- calls hold the lock of the key. The property awaits_answer marks the message.
-- role: producer
create or replace function duewheel.begin_wait(
    topic text, key text, timeout interval, body bytea default '', properties jsonb default null,
    idempotency_key text default null, now timestamptz default null
) returns duewheel.send_receipt
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_receipt constant duewheel.send_receipt := duewheel.send(
        begin_wait.topic, begin_wait.body, delay => begin_wait.timeout, key => begin_wait.key,
        properties => coalesce(begin_wait.properties, '{}') || '{"awaits_answer": true}',
        idempotency_key => begin_wait.idempotency_key, on_conflict => 'replace', now => begin_wait.now);
    v_id constant record := duewheel.parse_message_id(v_receipt.message_id);
    v_answer jsonb;
begin
    if v_receipt.outcome <> 'duplicate' then
        delete from duewheel.early_answer e
        where e.topic_id = v_id.topic_id and e.key = begin_wait.key collate "C" returning e.answer into v_answer;
    end if;
    if v_answer is not null then
        perform duewheel.recall_position(v_id.topic_id, v_id.queue, v_id.deliver_at, v_id.seq, begin_wait.now,
                                         p_answer => v_answer);
    end if;
    return v_receipt;
end
$$;

-- The outcomes of waits, by the ids of their messages: waiting, answered, timed_out, recalled (without an answer, or
-- replaced) or not_found (past retention). With since, further rows follow, without an answer: the first ids of all
-- messages that were answered by transactions which that snapshot did not see.
-- role: consumer
create or replace function duewheel.answers(message_ids text[], since pg_snapshot default null)
returns table (message_id text, outcome text, answer jsonb, deliver_at timestamptz)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    -- First: once a tick has passed a message, every answer in time is committed and is seen below.
    v_looked record;
begin
    perform duewheel.require_home();
    perform duewheel.require_read_committed();
    select array_agg(g.id) as ids, array_agg(i.topic_id) as topic_ids, array_agg(p.queue) as queues,
           array_agg(p.deliver_at) as ats, array_agg(p.seq) as seqs,
           array_agg(duewheel.is_released(i.topic_id, p.queue, p.deliver_at, p.seq)) as released
    into v_looked
    from unnest(answers.message_ids) g (id)
    cross join lateral duewheel.parse_message_id(g.id) i
    left join lateral duewheel.present_place(i.topic_id, i.seq) n on true
    cross join lateral (
        select coalesce(n.queue, i.queue) as queue, coalesce(n.deliver_at, i.deliver_at) as deliver_at,
               coalesce(n.seq, i.seq) as seq) p;
    return query
    select l.id,
           case when t.topic_id is null or m.is_forgotten then 'not_found'
                -- Moved since.
                when n.seq <> l.seq then 'waiting'
                when r.answer is not null then 'answered'
                when r.seq is not null then 'recalled'
                when m.is_forgotten is null then 'not_found'
                when l.released then 'timed_out'
                else 'waiting' end,
           r.answer, l.deliver_at
    from unnest(v_looked.ids, v_looked.topic_ids, v_looked.queues, v_looked.ats, v_looked.seqs, v_looked.released)
        l (id, topic_id, queue, deliver_at, seq, released)
    left join duewheel.topic t on t.topic_id = l.topic_id and t.deleted_at is null
    left join lateral duewheel.present_place(l.topic_id, l.seq) n on true
    left join lateral duewheel.recall_of(l.topic_id, l.queue, l.deliver_at, l.seq) r on true
    left join lateral (
        select duewheel.is_forgotten(m.topic_id, m.queue, m.deliver_at, m.seq, m.xid)
        from duewheel.message_at(l.topic_id, l.queue, l.deliver_at, l.seq) m) m (is_forgotten) on true
    union all
    select duewheel.message_id(r.topic_id, coalesce(o.queue, r.queue), coalesce(o.deliver_at, r.deliver_at),
                               coalesce(o.seq, r.seq)),
           'answered', null, null
    from duewheel.recall r
    left join lateral (
        select * from duewheel.ids_of_moved(r.topic_id, r.seq) m where m.seq = m.first_seq) o on true
    where r.answer_xid >= pg_snapshot_xmin(answers.since)
      and not pg_visible_in_snapshot(r.answer_xid, answers.since);
end
$$;

-- The early answers that no wait has taken yet. An answer whose until_at has passed counts until upkeep deletes it.
-- role: consumer
create or replace function duewheel.early_answers(max_answers integer default 1000)
returns table (topic_name text, key text, answer jsonb, until_at timestamptz)
language plpgsql stable as $$
#variable_conflict use_column
begin
    perform duewheel.require_home();
    perform duewheel.check_limit('max_answers', coalesce(max_answers, 1), 1, 2147483647);
    return query
    select t.name, e.key, e.answer, e.until_at
    from duewheel.early_answer e
    join duewheel.topic t on t.topic_id = e.topic_id and t.deleted_at is null
    order by e.until_at, e.topic_id, e.key limit max_answers;
end
$$;

-- Deletes an early answer. A wait that takes it at this moment locks the row, so one of the two gets it.
-- role: producer
create or replace function duewheel.withdraw_early_answer(topic text, key text) returns boolean
language plpgsql as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic := duewheel.named_topic(withdraw_early_answer.topic);
begin
    perform duewheel.require_read_committed();
    delete from duewheel.early_answer e
    where e.topic_id = v_topic.topic_id and e.key = withdraw_early_answer.key collate "C";
    return found;
end
$$;
