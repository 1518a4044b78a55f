-- Forgetting: upkeep deletes rows that are no longer needed, in portions of a bounded number of rows, each in a
-- separate transaction.

-- Forgets idempotency keys, the p_limit that ended first. A key lives as long as its message, and for its topic's
-- retention: if the message was moved to a later instant, the end of the key is put off. Returns how many keys it has
-- dealt with.
create or replace function duewheel.forget_idempotency_keys(p_limit integer, p_now timestamptz) returns bigint
language sql
begin atomic
    with over as (
        select o.topic_id, o.idempotency_key, o.seq from duewheel.idempotency o where o.until_at < p_now
        order by o.until_at limit p_limit for update skip locked
    ), put_off as (
        update duewheel.idempotency i set until_at = p.deliver_at + t.retention
        from over o
        cross join lateral duewheel.present_place(o.topic_id, o.seq) p
        cross join lateral (select * from duewheel.topic t where t.topic_id = o.topic_id limit 1) t
        where i.topic_id = o.topic_id and i.idempotency_key = o.idempotency_key
          and t.deleted_at is null and p.deliver_at + t.retention >= p_now
        returning i.topic_id, i.idempotency_key
    ), gone as (
        delete from duewheel.idempotency i using over o
        where i.topic_id = o.topic_id and i.idempotency_key = o.idempotency_key
          and (o.topic_id, o.idempotency_key) not in (select p.topic_id, p.idempotency_key from put_off p)
    )
    select count(*) from over;
end;

-- Forgets rows with their own end, whatever happens to the messages. Returns how many.
create or replace function duewheel.forget_expired(p_limit integer, p_now timestamptz) returns bigint
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_forgotten bigint := duewheel.forget_staged(p_limit, null, p_now - interval '7 days')
        + duewheel.forget_idempotency_keys(p_limit, p_now);
    v_kept record;
    v_count bigint;
begin
    for v_kept in
        select * from (values
            ('key_mark', 'marked_at', p_now - interval '7 days'), ('published_batch', 'until_at', p_now),
            ('early_answer', 'until_at', p_now), ('dropped_slot', 'dropped_at', p_now - interval '365 days')
        ) k (table_name, at_column, up_to)
    loop
        execute format(
            'delete from duewheel.%1$I d where d.%2$I < $1 and d.ctid = any (array(
                 select o.ctid from duewheel.%1$I o where o.%2$I < $1 order by o.%2$I limit $2
                 for update skip locked))',
            v_kept.table_name, v_kept.at_column) using v_kept.up_to, greatest(0, p_limit - v_forgotten);
        get diagnostics v_count = row_count;
        v_forgotten := v_forgotten + v_count;
    end loop;
    return v_forgotten;
end
$$;

-- Forgets the log rows of a topic about messages due before p_kept_from, its floor: at most p_limit rows of each log.
-- No group can be rewound to an earlier instant. Returns how many. Ticks are deleted before stragglers, the oldest
-- first: a straggler is kept as long as it shows that its message was released.
create or replace function duewheel.trim_topic_logs(p_topic_id integer, p_kept_from timestamptz, p_limit integer)
returns bigint
language plpgsql set plan_cache_mode = force_generic_plan set enable_sort = on as $$
declare
    -- Earlier ticks are deleted. From then on only its snapshot shows that a message due before it was released.
    v_last constant duewheel.tick := (
        select t from duewheel.tick t where t.topic_id = p_topic_id and t.hi < p_kept_from
        order by t.hi desc, t.tick_id desc limit 1);
    v_trimmed bigint;
    v_count bigint;
begin
    if exists (
        select from duewheel.topic t
        where t.topic_id = p_topic_id and t.deleted_at is null and t.floor_at is distinct from p_kept_from
          -- A topic without a release has no rows to delete.
          and exists (select from duewheel.newest_tick(p_topic_id))
    ) then
        update duewheel.topic t
        set floor_at = p_kept_from, kept_from = greatest(t.kept_from, p_kept_from)
        where t.topic_id = (
            select o.topic_id from duewheel.topic o where o.topic_id = p_topic_id for no key update skip locked);
        if not found then
            -- Another session has locked the topic: the next round deals with it, and the other topics do not wait.
            return 0;
        end if;
    end if;
    -- The newest tick of a topic and the newest lease of a queue are the state itself and stay.
    delete from duewheel.tick t where t.ctid = any (array(
        select o.ctid from duewheel.tick o
        where o.topic_id = p_topic_id and (o.hi, o.tick_id) < (v_last.hi, v_last.tick_id)
        order by o.hi, o.tick_id limit p_limit));
    get diagnostics v_trimmed = row_count;
    if v_trimmed >= p_limit then
        return v_trimmed;
    end if;
    with queue as (
        select q::smallint as queue from duewheel.topic t cross join generate_series(0, t.queues - 1) q
        where t.topic_id = p_topic_id
    ), stragglers as (
        delete from duewheel.straggler s where s.ctid = any (array(
            select o.ctid from queue q cross join lateral (
                select s.ctid, s.tick_id from duewheel.straggler s
                where s.topic_id = p_topic_id and s.queue = q.queue and s.deliver_at < p_kept_from
                order by s.deliver_at limit p_limit) o
            -- One of a later tick stays: v_last may not have seen its message, and the sweep needs both.
            where o.tick_id <= v_last.tick_id or p_kept_from = 'infinity'
            limit p_limit))
        returning 1
    ), recalls as (
        delete from duewheel.recall r where r.ctid = any (array(
            select o.ctid from queue q cross join lateral (
                select r.ctid from duewheel.recall r
                where r.topic_id = p_topic_id and r.queue = q.queue and r.deliver_at < p_kept_from
                order by r.deliver_at limit p_limit) o
            limit p_limit))
        returning 1
    ), bulk_recalls as (
        delete from duewheel.bulk_recall r where r.ctid = any (array(
            select o.ctid from duewheel.bulk_recall o
            where o.topic_id = p_topic_id and o.first_deliver_at < p_kept_from
            order by o.first_deliver_at limit p_limit))
        returning 1
    ), redrives as (
        delete from duewheel.redrive r where r.ctid = any (array(
            select o.ctid from duewheel.redrive o
            where o.topic_id = p_topic_id and o.deliver_at < p_kept_from and o.redriven_at < p_kept_from
            order by o.deliver_at limit p_limit))
        returning 1
    ), held as (
        delete from duewheel.held_back b where b.ctid = any (array(
            select o.ctid from duewheel.held_back o
            where o.topic_id = p_topic_id and p_kept_from = 'infinity' order by o.deliver_at limit p_limit))
        returning 1
    )
    select count(*) into v_count from (
        select from stragglers union all select from recalls union all select from bulk_recalls
        union all select from redrives union all select from held) gone;
    return v_trimmed + v_count + duewheel.trim_moved(p_topic_id, p_kept_from, p_limit)
        + duewheel.trim_leases(p_topic_id, p_kept_from, p_limit)
        + duewheel.trim_late_answers(p_topic_id, p_limit);
end
$$;

-- Forgets leases of a topic that ended before p_kept_from, with their answers: without answers a lease would seem to be
-- unanswered. A lease counts as many rows as it has messages; p_limit rows are deleted, or one lease. The leases of a
-- queue are deleted in order, up to the first that is still needed, so that no later lease is read. All leases of a
-- removed subscription are deleted.
create or replace function duewheel.trim_leases(p_topic_id integer, p_kept_from timestamptz, p_limit integer)
returns bigint
language plpgsql set plan_cache_mode = force_generic_plan set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    v_newest record;
    v_group_id integer := -1;
    v_queue smallint := 0;
    v_is_left_over boolean;
    v_kept_n bigint;
    v_last_n bigint;
    v_trimmed bigint := 0;
    v_count bigint;
begin
    while v_trimmed < p_limit loop
        select l.group_id, l.queue into v_group_id, v_queue from duewheel.lease l
        where l.topic_id = p_topic_id and (l.group_id, l.queue) > (v_group_id, v_queue)
        order by l.group_id, l.queue limit 1;
        exit when not found;
        v_is_left_over := not exists (select from duewheel.subscription s where s.group_id = v_group_id);
        if v_is_left_over then
            delete from duewheel.fifo_backlog b where b.ctid = any (array(
                select o.ctid from duewheel.fifo_backlog o
                where o.topic_id = p_topic_id and o.group_id = v_group_id and o.queue = v_queue
                order by o.message_group, o.place limit p_limit - v_trimmed));
            get diagnostics v_count = row_count;
            v_trimmed := v_trimmed + v_count;
            exit when v_trimmed >= p_limit;
        end if;
        select l.n, l.revived_to into v_newest from duewheel.lease l
        where l.topic_id = p_topic_id and l.group_id = v_group_id and l.queue = v_queue order by l.n desc limit 1;
        v_kept_n := case when v_is_left_over then v_newest.n + 1 else coalesce((
            select f.n from (
                select * from duewheel.lease l
                where l.topic_id = p_topic_id and l.group_id = v_group_id and l.queue = v_queue
                order by l.n limit p_limit - v_trimmed
            ) f
            where f.to_at >= p_kept_from or greatest(f.leased_at, f.expires_at) >= p_kept_from
               or f.expires_at > v_newest.revived_to
               or exists (select from duewheel.lease_event e
                          where e.topic_id = p_topic_id and e.group_id = v_group_id and e.queue = v_queue and e.n = f.n
                            and e.at >= p_kept_from)
               or exists (select from duewheel.lease_extension e
                          where e.topic_id = p_topic_id and e.group_id = v_group_id and e.queue = v_queue and e.n = f.n
                            and greatest(e.at, e.expires_at) >= p_kept_from)
            order by f.n limit 1), v_newest.n) end;
        select c.n, c.before + c.counted into v_last_n, v_count from (
            select o.n, o.counted, sum(o.counted) over (order by o.n) - o.counted as before
            from (
                select o.n, greatest(1, o.message_count) as counted from duewheel.lease o
                where o.topic_id = p_topic_id and o.group_id = v_group_id and o.queue = v_queue
                  and o.n < v_kept_n
                order by o.n limit p_limit - v_trimmed
            ) o
        ) c where c.before < p_limit - v_trimmed order by c.n desc limit 1;
        continue when not found;
        delete from duewheel.lease l
        where l.topic_id = p_topic_id and l.group_id = v_group_id and l.queue = v_queue and l.n <= v_last_n;
        delete from duewheel.lease_event e
        where e.topic_id = p_topic_id and e.group_id = v_group_id and e.queue = v_queue and e.n <= v_last_n;
        delete from duewheel.lease_extension e
        where e.topic_id = p_topic_id and e.group_id = v_group_id and e.queue = v_queue and e.n <= v_last_n;
        delete from duewheel.lease_answer a
        where a.topic_id = p_topic_id and a.group_id = v_group_id and a.queue = v_queue and a.n <= v_last_n;
        delete from duewheel.lease_message m
        where m.topic_id = p_topic_id and m.group_id = v_group_id and m.queue = v_queue and m.n <= v_last_n;
        v_trimmed := v_trimmed + v_count;
    end loop;
    return v_trimmed;
end
$$;

-- Forgets answers that a transaction committed after its group had been deleted and the group's leases forgotten: at
-- most p_limit. Returns how many.
create or replace function duewheel.trim_late_answers(p_topic_id integer, p_limit integer) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_group_id integer := -1;
    v_table text;
    v_trimmed bigint := 0;
    v_count bigint;
begin
    while v_trimmed < p_limit loop
        select min(o.group_id) into v_group_id from (
            (select e.group_id from duewheel.lease_event e
             where e.topic_id = p_topic_id and e.group_id > v_group_id order by e.group_id limit 1)
            union all
            (select e.group_id from duewheel.lease_extension e
             where e.topic_id = p_topic_id and e.group_id > v_group_id order by e.group_id limit 1)
            union all
            (select a.group_id from duewheel.lease_answer a
             where a.topic_id = p_topic_id and a.group_id > v_group_id order by a.group_id limit 1)
        ) o;
        exit when v_group_id is null;
        continue when exists (select from duewheel.subscription s where s.group_id = v_group_id)
            or exists (select from duewheel.lease l where l.topic_id = p_topic_id and l.group_id = v_group_id);
        foreach v_table in array array['lease_event', 'lease_extension', 'lease_answer'] loop
            execute format(
                'delete from duewheel.%1$I d where d.ctid = any (array(
                     select o.ctid from duewheel.%1$I o where o.topic_id = $1 and o.group_id = $2
                     order by o.queue, o.n limit $3))', v_table)
            using p_topic_id, v_group_id, p_limit - v_trimmed;
            get diagnostics v_count = row_count;
            v_trimmed := v_trimmed + v_count;
        end loop;
    end loop;
    return v_trimmed;
end
$$;
