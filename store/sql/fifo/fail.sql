-- Messages of a FIFO lease that failed or were given back, and the later messages of their message groups.

-- Puts messages of a FIFO lease back in their place for duewheel.resend_lease: for a retry due at p_due_at, or if that
-- is null after the group's interval. Later unanswered messages of the same message groups return too, without a retry.
-- After its last retry a message becomes a dead letter, and its message group continues. With the step "dead_letter"
-- the later messages stay in the lease. Returns how many failed.
create or replace function duewheel.fifo_put_back(
    p_lease duewheel.lease, p_seqs bigint[], p_reasons text[], p_step text, p_due_at timestamptz, p_now timestamptz
) returns integer
language plpgsql as $$
declare
    v_xid constant xid8 := pg_current_xact_id();
    v_now constant timestamptz := coalesce(p_now, clock_timestamp());
    v_group duewheel.consumer_group;
    v_subscription duewheel.subscription;
    v_answered bigint[];
    v_due_at timestamptz;
    v_message_groups text[];
    v_failed integer;
    v_returned bigint[];
    v_dead bigint[];
    v_rows refcursor;
    v_row duewheel.fifo_backlog;
begin
    select * into v_subscription from duewheel.subscription s where s.group_id = (p_lease).group_id;
    v_group := duewheel.subscribed_group((p_lease).group_id, (p_lease).topic_id);
    select coalesce(array_agg(a.seq), '{}') into v_answered
    from duewheel.message_answers((p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n) a;
    if v_subscription.dead_letter_topic_id is null then
        -- Broadcasting skips failed messages.
        return (
            select count(*) from duewheel.lease_message m
            where m.topic_id = (p_lease).topic_id and m.group_id = (p_lease).group_id and m.queue = (p_lease).queue
              and m.n = (p_lease).n and (p_seqs is null or m.seq = any (p_seqs)) and m.seq <> all (v_answered));
    end if;
    v_due_at := coalesce(p_due_at, v_now + v_group.ordered_interval);
    with open_message as materialized (
        select m.*, p_seqs is null or chosen.seq is not null as is_chosen,
               (p_seqs is null or chosen.seq is not null) and p_step <> 'again' as has_failed,
               case when cardinality(p_reasons) = 1 then p_reasons[1] else chosen.reason end as reason
        from duewheel.lease_message m
        left join unnest(p_seqs, p_reasons) chosen (seq, reason) on chosen.seq = m.seq
        where m.topic_id = (p_lease).topic_id and m.group_id = (p_lease).group_id and m.queue = (p_lease).queue
          and m.n >= (p_lease).n and m.n <= (p_lease).n and m.seq <> all (v_answered)
        order by m.n, m.place
    ), touched as materialized (
        -- A message whose slot was dropped meanwhile is not put back: its message group continues with the next one.
        select m.*,
               (m.has_failed and (p_step = 'dead_letter' or m.attempt > v_group.ordered_max_retries)) or not exists (
                    select from duewheel.message_at(m.source_topic_id, m.source_queue, m.deliver_at, m.seq)) as is_dead
        from (
            select m.*, bool_or(m.is_chosen) over (
                partition by m.message_group order by m.place) as is_behind
            from open_message m
        ) m where m.is_chosen or (m.is_behind and p_step <> 'dead_letter')
    ), put_back as (
        insert into duewheel.fifo_backlog
            (topic_id, group_id, queue, message_group, place, deliver_at, seq, source_topic_id, source_queue, attempt,
             due_at, blocked_n, reason)
        select t.topic_id, t.group_id, t.queue, t.message_group, t.place, t.deliver_at, t.seq, t.source_topic_id,
               t.source_queue, t.attempt + t.has_failed::integer,
               -- The first message decides when the message group continues: if it was given back, at once on any
               -- clock.
               case when t.has_failed and row_number() over w = 1 then v_due_at end,
               case when not t.has_failed and row_number() over w = 1 then 0 end,
               case when t.has_failed then t.reason end
        from touched t where not t.is_dead
        window w as (partition by t.message_group order by t.place)
    )
    select count(*) filter (where t.has_failed), coalesce(array_agg(t.seq) filter (where not t.is_chosen), '{}'),
           array_agg(distinct t.message_group) filter (where not t.is_dead), array_agg(t.seq) filter (where t.is_dead)
    into v_failed, v_returned, v_message_groups, v_dead
    from touched t;
    if v_dead is not null then
        open v_rows no scroll for
            select a as message, case when cardinality(p_reasons) = 1 then p_reasons[1] else chosen.reason end as why
            from duewheel.lease_message h
            left join unnest(p_seqs, p_reasons) chosen (seq, reason) on chosen.seq = h.seq
            cross join lateral duewheel.message_at(h.source_topic_id, h.source_queue, h.deliver_at, h.seq) m
            cross join lateral duewheel.with_attempt(m, h.attempt) a
            where h.topic_id = (p_lease).topic_id and h.group_id = (p_lease).group_id and h.queue = (p_lease).queue
              and h.n = (p_lease).n and h.seq = any (v_dead)
            order by h.place;
        perform duewheel.resend(v_subscription, v_rows, 'dead_letter', null, p_now, (p_lease).n);
    end if;
    if p_seqs is not null then
        perform duewheel.add_message_answers(p_lease, v_returned, 'returned', v_now, array[
            'one before it in its message group ' || case p_step when 'again' then 'was given back' else 'failed' end]);
    end if;
    -- Messages that waited for this lease now wait for the messages that were put back.
    for v_row in
        select * from duewheel.fifo_backlog b
        where b.topic_id = (p_lease).topic_id and b.group_id = (p_lease).group_id and b.queue = (p_lease).queue
          and b.blocked_n >= (p_lease).n and b.blocked_n <= (p_lease).n and b.message_group = any (v_message_groups)
        order by b.blocked_n, b.message_group
    loop
        update duewheel.fifo_backlog b set blocked_n = null
        where b.topic_id = v_row.topic_id and b.group_id = v_row.group_id and b.queue = v_row.queue
          and b.message_group = v_row.message_group and b.place = v_row.place;
    end loop;
    -- Waiting consumers poll again, because a message may be free.
    perform duewheel.announce('duewheel_released', (p_lease).topic_id::text);
    return v_failed;
end
$$;
