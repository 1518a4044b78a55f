-- Retry now: waiting retries are due at once. No attempt is lost, and the reason of the last one is kept.

-- Makes the retries of some messages in one subscription due now; returns the numbers of the messages that waited. The
-- caller has the locks of its queues, so no consumer and no rewind has the retries meanwhile.
create or replace function duewheel.hasten_retries(
    p_subscription duewheel.subscription, p_seqs bigint[], p_now timestamptz
) returns bigint[]
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_now constant timestamptz := coalesce(p_now, clock_timestamp());
    v_retry record;
    v_ats timestamptz[];
    v_seqs bigint[];
    v_hastened bigint[] := '{}';
    v_rows refcursor;
begin
    for v_retry in
        select m.* from unnest(p_seqs) s (seq)
        cross join lateral (
            select m.topic_id, m.queue, m.deliver_at, m.seq, m.origin_seq from duewheel.any_message m
            where m.origin_seq = s.seq and m.origin_topic_id = p_subscription.topic_id
              and m.topic_id = p_subscription.retry_topic_id and m.deliver_at > v_now offset 0) m
        order by m.deliver_at, m.seq
    loop
        continue when duewheel.recall_position(v_retry.topic_id, v_retry.queue, v_retry.deliver_at, v_retry.seq, v_now)
            <> 'recalled';
        insert into duewheel.redrive (topic_id, deliver_at, seq, redriven_at, is_discarded)
        values (v_retry.topic_id, v_retry.deliver_at, v_retry.seq, v_now, false);
        v_ats := v_ats || v_retry.deliver_at;
        v_seqs := v_seqs || v_retry.seq;
        v_hastened := v_hastened || v_retry.origin_seq;
    end loop;
    open v_rows no scroll for
        select m as message, m.reason as why from unnest(v_ats, v_seqs) u (deliver_at, seq)
        cross join lateral duewheel.message_at(p_subscription.retry_topic_id, 0::smallint, u.deliver_at, u.seq) m;
    perform duewheel.resend(p_subscription, v_rows, 'again', null, p_now);
    return v_hastened;
end
$$;

-- The same for a message of a FIFO topic: it waits in the backlog as the first of its message group, and the rest of
-- the group waits for it. Returns whether it waited.
create or replace function duewheel.fifo_hasten_retry(
    p_subscription duewheel.subscription, p_message duewheel.any_message, p_now timestamptz
) returns boolean
language plpgsql as $$
declare
    v_now constant timestamptz := coalesce(p_now, clock_timestamp());
    v_first duewheel.fifo_backlog;
begin
    select * into v_first from duewheel.fifo_backlog b
    where b.topic_id = p_subscription.topic_id and b.group_id = p_subscription.group_id and b.queue = p_message.queue
      and b.message_group = coalesce(p_message.message_group, '')
    order by b.place limit 1;
    if v_first.due_at > v_now and p_message.seq in (v_first.seq, (
            select m.origin_seq from duewheel.message_at(
                v_first.source_topic_id, v_first.source_queue, v_first.deliver_at, v_first.seq) m)) then
        update duewheel.fifo_backlog b set due_at = v_now
        where b.topic_id = v_first.topic_id and b.group_id = v_first.group_id and b.queue = v_first.queue
          and b.message_group = v_first.message_group and b.place = v_first.place;
        perform duewheel.announce('duewheel_released', p_subscription.topic_id::text);
        return true;
    end if;
    return false;
end
$$;

-- Makes a group's waiting retries of the messages with these ids due now; returns the ids of the messages that waited.
-- It waits up to 10 seconds for a consumer that is receiving.
-- role: admin
create or replace function duewheel.retry_now(
    consumer_group text, message_ids text[], now timestamptz default null
) returns text[]
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_group constant duewheel.consumer_group := duewheel.group_by_name(retry_now.consumer_group);
    v_until constant timestamptz := clock_timestamp() + interval '10 seconds';
    v_asked record;
    v_hastened bigint[];
    v_found text[] := '{}';
begin
    perform duewheel.clock_at(retry_now.now);
    perform duewheel.require_read_committed();
    perform duewheel.check_limit('the number of message_ids', cardinality(message_ids), 1, 1000);
    -- In one order, so that two such calls cannot deadlock.
    for v_asked in
        select a.*, s as subscription
        from (
            select i.topic_id, array_agg(i.id) as ids, array_agg(coalesce(p.seq, i.seq)) as seqs,
                   array_agg(coalesce(p.queue, i.queue::smallint)) as queues,
                   array_agg(coalesce(p.deliver_at, i.deliver_at)) as ats
            from (
                select u.id, (duewheel.parse_message_id(u.id)).* from (select distinct unnest(message_ids) as id) u
            ) i
            left join lateral duewheel.present_place(i.topic_id, i.seq) p on true
            group by i.topic_id
        ) a
        join duewheel.subscription s on s.group_name = v_group.name and s.topic_id = a.topic_id
        where s.retry_topic_id is not null
        order by s.topic_id
    loop
        perform duewheel.lock_queues((v_asked.subscription).group_id, v_asked.topic_id, v_until);
        v_hastened := duewheel.hasten_retries(v_asked.subscription, v_asked.seqs, retry_now.now);
        if duewheel.is_fifo(v_asked.topic_id) then
            v_hastened := v_hastened || array(
                select m.seq from unnest(v_asked.queues, v_asked.ats, v_asked.seqs) u (queue, deliver_at, seq)
                cross join lateral duewheel.message_at(v_asked.topic_id, u.queue, u.deliver_at, u.seq) m
                where duewheel.fifo_hasten_retry(v_asked.subscription, m, retry_now.now));
        end if;
        v_found := v_found || coalesce((
            select array_agg(u.id) from unnest(v_asked.ids, v_asked.seqs) u (id, seq)
            where u.seq = any (v_hastened)), '{}');
    end loop;
    return v_found;
end
$$;
