-- Answers. A run that waits for an answer has sent a message, its timeout. An answer is a recall of that message with a
-- body beside it, so COMMIT decides which of the two came first, and upkeep keeps an answer for as long as a recall.

-- Answers the newest message of a key. outcome: answered, too_late (it was released), already_answered, recalled
-- (without an answer) or not_found. The id is that of the message now.
-- role: answerer
create or replace function duewheel.answer_key(
    topic text, key text, body jsonb default null, properties jsonb default null, now timestamptz default null
) returns duewheel.recall_receipt
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic := duewheel.named_topic(answer_key.topic);
    v_answer constant jsonb := jsonb_build_object('body', answer_key.body, 'properties', answer_key.properties);
    v_place duewheel.message_position;
    v_recalled record;
begin
    perform duewheel.clock_at(answer_key.now);
    perform duewheel.require_read_committed();
    perform duewheel.check_properties(v_answer, 'contents of the answer');
    select m.queue, m.deliver_at, m.seq into v_place from duewheel.any_message m
    where m.topic_id = v_topic.topic_id and m.key = answer_key.key collate "C"
    order by m.xid desc, m.seq desc limit 1;
    if not found then
        return ('not_found', null)::duewheel.recall_receipt;
    end if;
    loop
        v_recalled := duewheel.recall_moved(v_topic.topic_id, answer_key.now, v_place, p_answer => v_answer);
        exit when v_recalled.replaced_by is null;
        -- Just now, by a transaction that this one has waited for.
        select i.queue, i.deliver_at, i.seq into v_place from duewheel.parse_message_id(v_recalled.replaced_by) i;
    end loop;
    v_place := v_recalled.place;
    return (
        case v_recalled.outcome
            when 'recalled' then 'answered'
            when 'already_released' then 'too_late'
            when 'recalled_before' then (
                select case when r.answer is null then 'recalled' else 'already_answered' end
                from duewheel.recall_of(v_topic.topic_id, v_place.queue, v_place.deliver_at, v_place.seq) r)
            else 'not_found' end,
        duewheel.message_id(v_topic.topic_id, v_place.queue, v_place.deliver_at, v_place.seq)
    )::duewheel.recall_receipt;
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
    -- First: once a tick has passed a message, every answer that came in time is committed and is seen below.
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
