-- Numbers that stay cheap with any number of waiting messages: counts up to a limit are exact, above it an estimate.

-- How many messages of a topic are due after p_after: counted up to 10 000, else estimated from the slots' sizes.
create or replace function duewheel.count_waiting(
    p_topic_id integer, p_after timestamptz, out waiting bigint, out exact boolean
)
language plpgsql as $$
declare
    v_slot record;
    v_count bigint;
    v_queues smallint[];
    v_plan jsonb;
begin
    select array(select q::smallint from generate_series(0, t.queues - 1) q) into v_queues
    from duewheel.topic t where t.topic_id = p_topic_id;
    waiting := 0;
    exact := true;
    for v_slot in select * from duewheel.slots_between(p_after, 'infinity') loop
        if exact then
            execute format(
                'select count(*) from (select from duewheel.%I m
                    where m.topic_id = $1 and m.queue = any ($2) and m.deliver_at > $3 limit 10001) m', v_slot.table_name)
            into v_count using p_topic_id, v_queues, p_after;
            if waiting + v_count <= 10000 then
                waiting := waiting + v_count;
                continue;
            end if;
            exact := false;
        else
            v_count := 0;
        end if;
        -- The planner's estimate: it looks at sizes and statistics, not at rows.
        execute format('explain (format json) select from duewheel.%I m where m.topic_id = %s and m.deliver_at > %L',
                       v_slot.table_name, p_topic_id, p_after)
        into v_plan;
        waiting := waiting + greatest(v_count, (v_plan -> 0 -> 'Plan' ->> 'Plan Rows')::bigint);
    end loop;
end
$$;

create or replace function duewheel.topic_stats(now timestamptz default null)
returns table (
    topic text, message_type text, waiting bigint, waiting_is_exact boolean, next_due_at timestamptz,
    released_to timestamptz, stragglers bigint
)
language plpgsql as $$
#variable_conflict use_column
declare
    v_topic record;
    v_slot record;
    v_count record;
begin
    perform duewheel.require_home();
    for v_topic in
        select t.topic_id, t.name, t.message_type, t.queues, k.hi
        from duewheel.topic t
        left join lateral (
            select k.hi from duewheel.tick k where k.topic_id = t.topic_id order by k.hi desc, k.tick_id desc limit 1
        ) k on true
        where t.deleted_at is null and t.message_type not in ('RETRY', 'DEAD_LETTER')
        order by t.name
    loop
        topic := v_topic.name;
        message_type := v_topic.message_type;
        released_to := v_topic.hi;
        v_count := duewheel.count_waiting(v_topic.topic_id, coalesce(v_topic.hi, '-infinity'));
        waiting := v_count.waiting;
        waiting_is_exact := v_count.exact;
        next_due_at := null;
        for v_slot in select * from duewheel.slots_between(coalesce(v_topic.hi, '-infinity'), 'infinity') loop
            execute format(
                'select min(m.deliver_at) from generate_series(0, %s) q cross join lateral (
                    select m.deliver_at from duewheel.%I m
                    where m.topic_id = $1 and m.queue = q::smallint and m.deliver_at > $2
                    order by m.deliver_at limit 1) m', v_topic.queues - 1, v_slot.table_name)
            into next_due_at using v_topic.topic_id, coalesce(v_topic.hi, '-infinity');
            exit when next_due_at is not null;
        end loop;
        select count(*) into stragglers from duewheel.straggler s where s.topic_id = v_topic.topic_id;
        return next;
    end loop;
end
$$;

create or replace function duewheel.group_stats(now timestamptz default null)
returns table (
    consumer_group text, topic text, ready bigint, oldest_deliver_at timestamptz, inflight bigint, waiting_retry bigint,
    dead bigint
)
language plpgsql as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := coalesce(group_stats.now, clock_timestamp());
    v_subscription record;
    v_position record;
    v_slot record;
    v_count bigint;
    v_oldest timestamptz;
    v_fifo boolean;
begin
    perform duewheel.require_home();
    for v_subscription in
        select s.*, g.name as group_name, t.name as topic_name
        from duewheel.subscription s
        join duewheel.consumer_group g on g.group_id = s.group_id
        join duewheel.topic t on t.topic_id = s.topic_id
        where t.deleted_at is null
        order by g.name, t.name
    loop
        consumer_group := v_subscription.group_name;
        topic := v_subscription.topic_name;
        ready := 0;
        inflight := 0;
        oldest_deliver_at := null;
        v_fifo := duewheel.is_fifo(v_subscription.topic_id);
        for v_position in
            select * from duewheel.positions(v_subscription.group_id, v_subscription.topic_id)
        loop
            if v_fifo and v_position.topic_id = v_subscription.topic_id then
                select r.ready, r.oldest_deliver_at into v_count, v_oldest
                from duewheel.fifo_ready(v_subscription.group_id, v_position.topic_id, v_position.queue,
                                         v_position.to_at, v_position.to_seq, v_position.straggler_to, v_position.hi,
                                         v_now, 10000) r;
                ready := ready + v_count;
                oldest_deliver_at := least(oldest_deliver_at, v_oldest);
            end if;
            for v_slot in
                select * from duewheel.slots_between(v_position.to_at, v_position.hi)
                where v_position.queue_hi >= v_position.to_at
                  and not (v_fifo and v_position.topic_id = v_subscription.topic_id)
            loop
                execute format(
                    'select count(*), min(m.deliver_at) from (
                        select m.deliver_at from duewheel.%I m
                        where m.topic_id = $1 and m.queue = $2::smallint and (m.deliver_at, m.seq) > ($3, $4)
                          and m.deliver_at <= $5
                              and (select true from duewheel.recall r where r.topic_id = $1 and r.queue = $2::smallint
                                   and r.deliver_at = m.deliver_at and r.seq = m.seq limit 1) is null
                            order by m.deliver_at, m.seq limit 10000) m', v_slot.table_name)
                into v_count, v_oldest
                using v_position.topic_id, v_position.queue, v_position.to_at, v_position.to_seq, v_position.hi;
                ready := ready + v_count;
                oldest_deliver_at := least(oldest_deliver_at, v_oldest);
                exit when ready >= 10000;
            end loop;
            select ready + count(*) into ready from (
                select from duewheel.straggler s
                where s.topic_id = v_position.topic_id and s.queue = v_position.queue
                  and s.straggler_id > v_position.straggler_to
                  and not (v_fifo and v_position.topic_id = v_subscription.topic_id) limit 10000) s;
            select inflight + coalesce(sum(l.message_count - (
                       select duewheel.answered_count(l.group_id, l.topic_id, l.queue, l.n))), 0)
            into inflight
            from duewheel.ended_leases(v_subscription.group_id, v_position.topic_id, v_position.queue, v_now,
                                       v_now + interval '13 hours') ended (n)
            join duewheel.lease l
              on l.topic_id = v_position.topic_id and l.group_id = v_subscription.group_id
             and l.queue = v_position.queue and l.n = ended.n;
        end loop;
        waiting_retry := (duewheel.count_waiting(v_subscription.retry_topic_id, coalesce((
            select k.hi from duewheel.tick k where k.topic_id = v_subscription.retry_topic_id
            order by k.hi desc, k.tick_id desc limit 1), '-infinity'))).waiting - (
            -- A rewind took them back.
            select count(*) from duewheel.recall r
            where r.topic_id = v_subscription.retry_topic_id and r.deliver_at > coalesce((
                select k.hi from duewheel.tick k where k.topic_id = v_subscription.retry_topic_id
                order by k.hi desc, k.tick_id desc limit 1), '-infinity')) + (
            select count(*) from duewheel.fifo_backlog b
            where b.topic_id = v_subscription.topic_id and b.group_id = v_subscription.group_id and b.due_at > v_now);
        -- Those that were not sent again.
        dead := greatest(0, (duewheel.count_waiting(v_subscription.dead_letter_topic_id, '-infinity')).waiting - (
            select count(*) from duewheel.redrive r
            where r.topic_id = v_subscription.dead_letter_topic_id
              and r.deliver_at >= (select min(o.starts_at) from duewheel.slot o)));
        return next;
    end loop;
end
$$;
