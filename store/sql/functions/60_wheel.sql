-- What the wheel asks: when to come, what ended, whom to ring.

-- Distinct due instants per topic in (p_from, p_to] that no tick has reached yet, thinned to the topic's granularity: a loose
-- index scan, one look-up per instant and queue. Without p_from, everything since each topic's last tick: as many slots as the
-- most idle topic has been idle for. What is due just after a topic's last tick is due now, though the clock may have stepped
-- back behind it.
create or replace function duewheel.due_instants(p_from timestamptz, p_to timestamptz)
returns table (topic_id integer, due_at timestamptz, granularity interval)
language plpgsql stable as $$
declare
    v_slot record;
    v_from timestamptz;
    v_last timestamptz;
begin
    perform duewheel.require_home();
    select min(greatest(p_from, coalesce(k.hi, '-infinity'))), max(k.hi) + interval '1 microsecond' into v_from, v_last
    from duewheel.topic t
    left join lateral (
        select k.hi from duewheel.tick k where k.topic_id = t.topic_id order by k.hi desc, k.tick_id desc limit 1
    ) k on true
    where t.deleted_at is null and t.message_type <> 'DEAD_LETTER';
    for v_slot in select * from duewheel.slots_between(least(v_from, p_to), greatest(p_to, v_last)) loop
        return query execute format(
            'with recursive source as (
                select t.topic_id, q::smallint as queue, t.granularity, a.after_at
                from duewheel.topic t
                cross join lateral (
                    select greatest($1, coalesce((select k.hi from duewheel.tick k where k.topic_id = t.topic_id
                                                  order by k.hi desc, k.tick_id desc limit 1), ''-infinity''))) a (after_at)
                cross join generate_series(0, t.queues - 1) q
                where t.deleted_at is null and t.message_type <> ''DEAD_LETTER'' and a.after_at < $3
            ), walk as (
                select s.topic_id, s.queue, s.granularity, (
                    select m.deliver_at from duewheel.%1$I m
                    where m.topic_id = s.topic_id and m.queue = s.queue and m.deliver_at > s.after_at
                      and m.deliver_at <= greatest($2, s.after_at + interval ''1 microsecond'')
                    order by m.deliver_at limit 1) as due_at
                from source s
                union all
                select w.topic_id, w.queue, w.granularity, (
                    select m.deliver_at from duewheel.%1$I m
                    where m.topic_id = w.topic_id and m.queue = w.queue
                      and m.deliver_at > greatest(w.due_at, clock_timestamp()) + w.granularity - interval ''1 microsecond''
                      and m.deliver_at <= $2 order by m.deliver_at limit 1)
                from walk w where w.due_at is not null
            )
            select distinct w.topic_id, case when w.due_at > $2 then clock_timestamp() else w.due_at end, w.granularity
            from walk w where w.due_at is not null', v_slot.table_name)
        using p_from, p_to, v_slot.ends_at;
    end loop;
end
$$;

-- The next end of an unanswered lease of each subscription in (p_from, p_to]: at the cost of the leases that were to end in
-- that time. Without p_from, however long ago it was: at the cost of all subscriptions, for programs of the version before.
create or replace function duewheel.lease_ends(p_from timestamptz, p_to timestamptz)
returns table (group_id integer, topic_id integer, expires_at timestamptz)
language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
begin
    if p_from is null then
        return query select * from duewheel.lease_ends_of_topics(0, 2147483647, p_to);
        return;
    end if;
    return query
    select s.group_id, s.topic_id, min(e.expires_at)
    from (
        select l.topic_id, l.group_id, l.queue, l.n from duewheel.lease l
        where l.message_count > 0 and l.expires_at > p_from and l.expires_at <= p_to
        union
        select e.topic_id, e.group_id, e.queue, e.n from duewheel.lease_event e
        where e.expires_at is not null and e.expires_at > p_from and e.expires_at <= p_to
    ) l
    cross join lateral (
        select duewheel.lease_end(l.group_id, l.topic_id, l.queue, l.n) as expires_at
        -- A look-up by the key for each lease; as a join the events of all leases would be read.
        where (
            select true from duewheel.lease_event e
            where e.topic_id = l.topic_id and e.group_id = l.group_id and e.queue = l.queue and e.n = l.n
              and (e.kind in ('expired', 'rewound') or (e.kind in ('acked', 'failed', 'returned') and e.seqs is null))
            limit 1) is null
    ) e
    join duewheel.topic t on t.topic_id = l.topic_id
    join duewheel.subscription s on s.group_id = l.group_id and s.topic_id = coalesce(t.parent_topic_id, t.topic_id)
    join duewheel.topic parent on parent.topic_id = s.topic_id and parent.deleted_at is null
    where e.expires_at > p_from and e.expires_at <= p_to
    group by s.group_id, s.topic_id;
end
$$;

-- For each pair of a topic and a group, after ticking what is due and reviving what ended: how many messages are ready and
-- not leased (counted up to 10 000; other tags may be among them), the oldest of them, whether some are
-- being consumed, and when there could next be one.
create or replace function duewheel.doorbells(p_topics text[], p_groups text[], p_now timestamptz default null)
returns table (
    topic text, consumer_group text, ready bigint, oldest_deliver_at timestamptz, inflight boolean, next_at timestamptz
)
-- One plan for all, by the keys, though tables were small when it was made.
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_pair record;
    v_subscription duewheel.subscription;
    v_position record;
    v_slot record;
    v_count bigint;
    v_oldest timestamptz;
    v_fifo boolean;
begin
    for v_pair in select * from unnest(p_topics, p_groups) pair (topic, consumer_group) loop
        select s.* into v_subscription
        from duewheel.subscription s
        join duewheel.topic t on t.topic_id = s.topic_id
        join duewheel.consumer_group g on g.group_id = s.group_id
        where t.name = v_pair.topic and t.deleted_at is null and g.name = v_pair.consumer_group;
        continue when not found;
        perform duewheel.tick_subscription(v_subscription.group_id, v_subscription.topic_id, p_now);
        v_now := coalesce(p_now, clock_timestamp());
        perform duewheel.revive(v_subscription.group_id, v_subscription.topic_id, p_now);
        topic := v_pair.topic;
        consumer_group := v_pair.consumer_group;
        ready := 0;
        oldest_deliver_at := null;
        inflight := false;
        v_fifo := duewheel.is_fifo(v_subscription.topic_id);
        for v_position in
            select * from duewheel.positions(v_subscription.group_id, v_subscription.topic_id)
        loop
            if v_fifo and v_position.topic_id = v_subscription.topic_id then
                select r.ready, r.oldest_deliver_at into v_count, v_oldest
                from duewheel.fifo_ready(v_subscription.group_id, v_position.topic_id, v_position.queue,
                                         v_position.to_at, v_position.to_seq, v_position.straggler_to, v_position.hi,
                                         v_now, 10000 - ready) r;
                ready := ready + v_count;
                oldest_deliver_at := least(oldest_deliver_at, v_oldest);
            elsif v_position.queue_hi > v_position.to_at
               or (v_position.queue_hi = v_position.to_at and v_position.to_seq < 9223372036854775807) then
                for v_slot in select * from duewheel.slots_between(v_position.to_at, v_position.hi) loop
                    execute format(
                        'select count(*), min(m.deliver_at) from (
                            select m.deliver_at from duewheel.%I m
                            where m.topic_id = $1 and m.queue = $2::smallint and (m.deliver_at, m.seq) > ($3, $4)
                              and m.deliver_at <= $5
                              and (select true from duewheel.recall r where r.topic_id = $1 and r.queue = $2::smallint
                                   and r.deliver_at = m.deliver_at and r.seq = m.seq limit 1) is null
                            order by m.deliver_at, m.seq limit $6) m', v_slot.table_name)
                    into v_count, v_oldest
                    using v_position.topic_id, v_position.queue, v_position.to_at, v_position.to_seq, v_position.hi,
                          10000 - ready;
                    ready := ready + v_count;
                    oldest_deliver_at := least(oldest_deliver_at, v_oldest);
                    exit when ready >= 10000;
                end loop;
            end if;
            select count(*), min(s.deliver_at) into v_count, v_oldest from (
                select s.deliver_at from duewheel.straggler s
                where s.topic_id = v_position.topic_id and s.queue = v_position.queue
                  and s.straggler_id > v_position.straggler_to
                  and not (v_fifo and v_position.topic_id = v_subscription.topic_id)
                order by s.straggler_id limit 10000 - ready) s;
            ready := ready + v_count;
            oldest_deliver_at := least(oldest_deliver_at, v_oldest);
            inflight := inflight or exists (
                select from duewheel.ended_leases(v_subscription.group_id, v_position.topic_id, v_position.queue,
                                                  v_now, v_now + interval '13 hours'));
        end loop;
        next_at := duewheel.next_due(v_subscription.group_id, v_subscription.topic_id, p_now);
        return next;
    end loop;
end
$$;
