-- Messages that outlive their slot. A slot goes once the shortest retention of its topics is over, so each topic is
-- kept as long as it says, and no other with it. Messages of topics with a longer retention, and those that a group has
-- not finished, move out before, into duewheel.far_message, where they stay. Moving out is as moving in: in one
-- statement, with position and xid, so nothing else notices. A slot of which more than half is needed waits as a whole,
-- for 16 times its width at most, so that there are never many.

-- Whether a topic's messages due in [p_from, p_until) are kept: its retention is not over, or a group has still to read
-- there, or to answer for what it read there. Nothing is kept for broadcasting instances.
create or replace function duewheel.is_kept(
    p_from timestamptz, p_until timestamptz, p_topic duewheel.topic, p_now timestamptz
) returns boolean
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    if p_topic.deleted_at is not null or p_topic.topic_id is null then
        return false;
    end if;
    return p_until > p_now - p_topic.retention
        or exists (
            select from duewheel.subscription s
            join duewheel.consumer_group g on g.group_id = s.group_id and g.mode = 'clustering'
            cross join lateral duewheel.positions(s.group_id, s.topic_id) p
            where s.topic_id = coalesce(p_topic.parent_topic_id, p_topic.topic_id) and p.topic_id = p_topic.topic_id
              and duewheel.is_unread(s.group_id, p.topic_id, p.queue, p.to_at, p.to_seq, p.straggler_to, p.revived_to,
                                     p.hi, p.queue_hi, p_from, p_until))
        or exists (
            select from duewheel.fifo_backlog b
            join duewheel.consumer_group g on g.group_id = b.group_id and g.mode = 'clustering'
            where b.topic_id = p_topic.topic_id
              and date_bin(interval '1 hour', b.deliver_at, timestamptz '2000-01-01 00:00:00+00') >= p_from
              and date_bin(interval '1 hour', b.deliver_at, timestamptz '2000-01-01 00:00:00+00') < p_until);
end
$$;

-- The topics that have messages in a slot's own table and keep them. A loose scan, from topic to topic.
create or replace function duewheel.topics_kept(p_slot duewheel.slot, p_now timestamptz) returns integer[]
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
    v_present integer[];
begin
    execute format($query$
        with recursive present (topic_id) as (
            (select m.topic_id from duewheel.%1$I m order by m.topic_id limit 1)
            union all
            select (select m.topic_id from duewheel.%1$I m where m.topic_id > p.topic_id order by m.topic_id limit 1)
            from present p where p.topic_id is not null
        )
        select array_agg(p.topic_id) from present p where p.topic_id is not null
    $query$, (p_slot).table_name) into v_present;
    return array(
        select t.topic_id from unnest(v_present) p (topic_id)
        cross join lateral (select * from duewheel.topic t where t.topic_id = p.topic_id limit 1) t
        where duewheel.is_kept((p_slot).starts_at, (p_slot).ends_at, t, p_now)
        order by t.topic_id);
end
$$;

-- Whether at most half of a slot is of these topics. Where no statistics say how many messages there are, they are
-- counted.
create or replace function duewheel.is_mostly_done(p_slot duewheel.slot, p_topic_ids integer[]) returns boolean
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
    v_all bigint := (select c.reltuples from pg_class c
                     where c.oid = format('duewheel.%I', (p_slot).table_name)::regclass);
    v_kept bigint;
begin
    if v_all < 0 then
        execute format('select count(*) from duewheel.%I', (p_slot).table_name) into v_all;
    end if;
    execute format('select count(*) from (select from duewheel.%I m where m.topic_id = any ($1) limit $2) m',
                   (p_slot).table_name) into v_kept using p_topic_ids, v_all / 2 + 1;
    return v_kept <= v_all / 2;
end
$$;

-- Moves messages that outlive their slot out of it, at most p_limit of them. Answers how many, and whether there is
-- more to do now.
create or replace function duewheel.move_out(
    p_limit integer default 5000, p_now timestamptz default null, out moved bigint, out more boolean
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := duewheel.clock_at(p_now);
    v_slot duewheel.slot;
    v_kept integer[];
begin
    moved := 0;
    more := false;
    perform duewheel.require_read_committed();
    -- One upkeep at a time; a second has nothing to do.
    if not pg_try_advisory_xact_lock(duewheel.tick_lock_class(), -2) then
        return;
    end if;
    for v_slot in
        select * from duewheel.slot s
        -- Of what is not sealed, an open transaction may still send something to be released.
        where s.sealed_at is not null and s.ends_at <= v_now - (
            select min(t.retention) from duewheel.topic t where t.deleted_at is null)
        order by s.starts_at
    loop
        v_kept := duewheel.topics_kept(v_slot, v_now);
        continue when v_kept = '{}';
        if not exists (select from duewheel.outlived_slot o where o.starts_at = v_slot.starts_at) then
            continue when v_slot.ends_at + 16 * (v_slot.ends_at - v_slot.starts_at) > v_now
                and not duewheel.is_mostly_done(v_slot, v_kept);
            insert into duewheel.outlived_slot (starts_at, ends_at, table_name, topic_ids)
            values (v_slot.starts_at, v_slot.ends_at, v_slot.table_name,
                    duewheel.topics_outside(v_slot.starts_at, v_slot.ends_at));
        end if;
        update duewheel.outlived_slot o
        set topic_ids = array(select unnest(o.topic_ids) union select unnest(v_kept) order by 1)
        where o.starts_at = v_slot.starts_at and not o.topic_ids @> v_kept;
        moved := duewheel.move_out_of(v_slot, v_kept, p_limit);
        more := moved > 0;
        exit when more;
    end loop;
end
$$;

create or replace function duewheel.move_out_of(p_slot duewheel.slot, p_topic_ids integer[], p_limit integer)
returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set jit = off as $$
declare
    v_moved bigint;
    v_bytes bigint;
begin
    execute format($query$
        with moved as (
            delete from duewheel.%1$I m
            where (m.topic_id, m.queue, m.deliver_at, m.seq) in (
                select o.topic_id, o.queue, o.deliver_at, o.seq
                from unnest($1) t (topic_id)
                cross join lateral (
                    select * from duewheel.%1$I o where o.topic_id = t.topic_id
                    order by o.queue, o.deliver_at, o.seq limit $2) o
                limit $2)
            returning m.*
        ), stored as (
            insert into duewheel.far_message select * from moved
        )
        select count(*), coalesce(sum(pg_column_size(m)), 0) from moved m
    $query$, (p_slot).table_name) into v_moved, v_bytes using p_topic_ids, p_limit;
    update duewheel.outlived_slot o set bytes = o.bytes + v_bytes
    where o.starts_at = (p_slot).starts_at and v_moved > 0;
    return v_moved;
end
$$;

-- The topics that have messages due in [p_from, p_until) outside of any slot; of very many, those of the first 1 000.
create or replace function duewheel.topics_outside(p_from timestamptz, p_until timestamptz) returns integer[]
language sql stable
begin atomic
    select coalesce(array_agg(distinct f.topic_id), '{}') from (
        select f.topic_id from duewheel.far_message f
        where timezone('UTC', f.deliver_at) >= timezone('UTC', p_from)
          and timezone('UTC', f.deliver_at) < timezone('UTC', p_until)
        order by timezone('UTC', f.deliver_at) limit 1000) f;
end;

-- Deletes messages that outlived their slot and that nobody keeps any more, at most p_limit of them. Answers how
-- many, and whether there is more to do now.
create or replace function duewheel.forget_outlived(
    p_limit integer default 5000, p_now timestamptz default null, out forgotten bigint, out more boolean
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := duewheel.clock_at(p_now);
    v_slot duewheel.outlived_slot;
    v_topic duewheel.topic;
    v_kept integer[];
begin
    forgotten := 0;
    more := false;
    perform duewheel.require_read_committed();
    if not pg_try_advisory_xact_lock(duewheel.tick_lock_class(), -2) then
        return;
    end if;
    for v_slot in select * from duewheel.outlived_slot o order by o.starts_at loop
        v_kept := '{}';
        for v_topic in
            select t.* from unnest(v_slot.topic_ids) p (topic_id)
            join duewheel.topic t on t.topic_id = p.topic_id and t.deleted_at is null
        loop
            if not v_slot.is_dropped and duewheel.is_kept(v_slot.starts_at, v_slot.ends_at, v_topic, v_now) then
                v_kept := v_kept || v_topic.topic_id;
                continue;
            end if;
            forgotten := duewheel.forget_some(v_slot, v_topic, p_limit);
            more := forgotten > 0;
            if more then
                return;
            end if;
        end loop;
        if v_kept = '{}' then
            v_kept := duewheel.topics_outside(v_slot.starts_at, v_slot.ends_at);
        end if;
        if v_kept = '{}' and not exists (select from duewheel.slot s where s.starts_at = v_slot.starts_at) then
            delete from duewheel.outlived_slot o where o.starts_at = v_slot.starts_at;
        else
            update duewheel.outlived_slot o set topic_ids = v_kept
            where o.starts_at = v_slot.starts_at and o.topic_ids <> v_kept;
        end if;
    end loop;
end
$$;

create or replace function duewheel.forget_some(
    p_slot duewheel.outlived_slot, p_topic duewheel.topic, p_limit integer
) returns bigint
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set jit = off as $$
declare
    v_forgotten bigint;
    v_bytes bigint;
begin
    with gone as (
        delete from duewheel.far_message f
        where (f.topic_id, f.queue, f.deliver_at, f.seq) in (
            select d.topic_id, d.queue, d.deliver_at, d.seq
            from generate_series(0, (p_topic).queues - 1) q
            cross join lateral (
                select * from duewheel.far_message d
                where d.topic_id = (p_topic).topic_id and d.queue = q::smallint
                  and d.deliver_at >= (p_slot).starts_at and d.deliver_at < (p_slot).ends_at
                order by d.deliver_at limit p_limit) d
            limit p_limit)
        returning f.*
    )
    select count(*), coalesce(sum(pg_column_size(g)), 0) into v_forgotten, v_bytes from gone g;
    update duewheel.outlived_slot o set bytes = greatest(0, o.bytes - v_bytes)
    where o.starts_at = (p_slot).starts_at and v_forgotten > 0;
    return v_forgotten;
end
$$;
