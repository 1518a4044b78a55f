-- Messages of a FIFO lease that failed or were given back, and those behind them.

-- Puts back what an answer gives back of a FIFO lease, in its place: the messages p_seqs, or all without an answer for
-- null, for a retry due at p_due_at, or after the group's interval where that is null; the unanswered ones behind them
-- in their message groups, without a retry. The last retry of a message ends it as a dead letter, and its message group
-- goes on. p_reasons: one for each of p_seqs, or one for all. p_given_back: p_seqs are put back without a retry, too.
-- p_is_dead: p_seqs are dead letters whatever retries they have left, and those behind them stay in the lease.
-- returned: the numbers of the messages that were put back with these.
create or replace function duewheel.fifo_put_back(
    p_lease duewheel.lease, p_seqs bigint[], p_reasons text[], p_due_at timestamptz, p_now timestamptz,
    p_given_back boolean default false, p_is_dead boolean default false,
    out failed integer, out returned bigint[]
)
language plpgsql as $$
declare
    -- Before the clock is read: dead letters are sends too.
    v_xid constant xid8 := pg_current_xact_id();
    v_now timestamptz;
    v_group duewheel.consumer_group;
    v_dead_letter_topic_id integer;
    v_answered bigint[];
    v_due_at timestamptz;
    v_message_groups text[];
    v_dead_count bigint;
    v_row duewheel.fifo_backlog;
begin
    returned := '{}';
    v_now := coalesce(p_now, clock_timestamp());
    select * into v_group from duewheel.consumer_group g where g.group_id = (p_lease).group_id;
    select s.dead_letter_topic_id into v_dead_letter_topic_id from duewheel.subscription s
    where s.group_id = (p_lease).group_id and s.topic_id = (p_lease).topic_id;
    select coalesce(array_agg(a.seq), '{}') into v_answered
    from duewheel.message_answers((p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n) a;
    if v_dead_letter_topic_id is null then
        -- Broadcasting: what failed is passed over.
        select count(*) into failed from duewheel.lease_message m
        where m.topic_id = (p_lease).topic_id and m.group_id = (p_lease).group_id and m.queue = (p_lease).queue
          and m.n = (p_lease).n and (p_seqs is null or m.seq = any (p_seqs)) and m.seq <> all (v_answered);
        return;
    end if;
    v_due_at := case
        when p_due_at is null then v_now + v_group.ordered_interval else p_due_at end;
    with open_message as materialized (
        select m.*, p_seqs is null or chosen.seq is not null as is_chosen,
               (p_seqs is null or chosen.seq is not null) and not p_given_back as has_failed,
               case when cardinality(p_reasons) = 1 then p_reasons[1] else chosen.reason end as reason
        from duewheel.lease_message m
        left join unnest(p_seqs, p_reasons) chosen (seq, reason) on chosen.seq = m.seq
        where m.topic_id = (p_lease).topic_id and m.group_id = (p_lease).group_id and m.queue = (p_lease).queue
          and m.n >= (p_lease).n and m.n <= (p_lease).n and m.seq <> all (v_answered)
        order by m.n, m.place_n, m.deliver_at, m.seq
    ), touched as materialized (
        -- Of a slot that was dropped meanwhile there is nothing to put back: what is behind it goes on.
        select m.*,
               (m.has_failed and (p_is_dead or m.attempt > v_group.ordered_max_retries)) or not exists (
                    select from duewheel.message_at(m.source_topic_id, m.source_queue, m.deliver_at, m.seq)) as is_dead
        from (
            select m.*, bool_or(m.is_chosen) over (
                partition by m.message_group order by m.place_n, m.deliver_at, m.seq) as is_behind
            from open_message m
        ) m where m.is_chosen or (m.is_behind and not p_is_dead)
    ), dead as materialized (
        select duewheel.send_on(m, v_dead_letter_topic_id, v_now, t.attempt, t.reason) as seq
        from touched t
        cross join lateral duewheel.message_at(t.source_topic_id, t.source_queue, t.deliver_at, t.seq) m
        where t.is_dead
    ), put_back as (
        insert into duewheel.fifo_backlog
            (topic_id, group_id, queue, message_group, place_n, deliver_at, seq, source_topic_id, source_queue, attempt,
             due_at, reason)
        select t.topic_id, t.group_id, t.queue, t.message_group, t.place_n, t.deliver_at, t.seq, t.source_topic_id,
               t.source_queue, t.attempt + t.has_failed::integer,
               -- The first one says when the message group goes on: at once also after the clock was set back.
               case when row_number() over (
                        partition by t.message_group order by t.place_n, t.deliver_at, t.seq) = 1
                    then case when t.has_failed then v_due_at else t.deliver_at end end,
               case when t.has_failed then t.reason end
        from touched t where not t.is_dead
    )
    select count(*) filter (where t.has_failed), coalesce(array_agg(t.seq) filter (where not t.is_chosen), '{}'),
           array_agg(distinct t.message_group) filter (where not t.is_dead), (select count(d.seq) from dead d)
    into failed, returned, v_message_groups, v_dead_count
    from touched t;
    -- Messages behind this lease are behind those now.
    for v_row in
        select * from duewheel.fifo_backlog b
        where b.topic_id = (p_lease).topic_id and b.group_id = (p_lease).group_id and b.queue = (p_lease).queue
          and b.blocked_n >= (p_lease).n and b.blocked_n <= (p_lease).n and b.message_group = any (v_message_groups)
        order by b.blocked_n, b.message_group
    loop
        update duewheel.fifo_backlog b set blocked_n = null
        where b.topic_id = v_row.topic_id and b.group_id = v_row.group_id and b.queue = v_row.queue
          and b.message_group = v_row.message_group and b.place_n = v_row.place_n
          and b.deliver_at = v_row.deliver_at and b.seq = v_row.seq;
    end loop;
    -- Waiting consumers ask again, as there may be a next message.
    perform duewheel.announce('duewheel_released', (p_lease).topic_id::text);
end
$$;
