-- Messages that outlive their slot. A slot is dropped when the shortest retention of its topics has passed. So each
-- topic keeps its messages for its own retention. Messages of topics with a longer retention, and messages that a group
-- has not finished, move to duewheel.far_message first, and stay there. As when messages move into a slot, one
-- statement keeps position and xid, so no reader notices. A slot of which more than half is needed waits as a whole,
-- for at most 16 times its width, so that there are never many.

-- Whether a topic's messages due before p_until are kept: its retention has not passed, or a group had not finished
-- them when the logs were last trimmed. No group can be rewound to before that, so a finished message stays finished.
create or replace function duewheel.is_kept(p_topic duewheel.topic, p_until timestamptz, p_now timestamptz)
returns boolean
language sql immutable
return p_topic.deleted_at is null and p_topic.topic_id is not null and (
    p_until > p_now - p_topic.retention
    or p_topic.message_type <> 'DEAD_LETTER' and coalesce(p_topic.floor_at, '-infinity') < p_until);

-- The topics that have messages in a slot's own table and keep them, at most p_limit. A loose scan of the primary key:
-- the scans that moved messages out have marked their entries there as dead, and in no other index.
create or replace function duewheel.topics_kept(
    p_slot duewheel.slot, p_now timestamptz, p_limit integer default null
) returns integer[]
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_kept integer[];
begin
    execute format($query$
        with recursive present (topic_id) as (
            (select m.topic_id from duewheel.%1$I m order by m.topic_id, m.queue limit 1)
            union all
            select (
                select m.topic_id from duewheel.%1$I m where m.topic_id > p.topic_id
                order by m.topic_id, m.queue limit 1)
            from present p where p.topic_id is not null
        )
        select array(
            select t.topic_id from present p
            cross join lateral (select * from duewheel.topic t where t.topic_id = p.topic_id limit 1) t
            where duewheel.is_kept(t::duewheel.topic, $1, $2)
            limit $3)
    $query$, (p_slot).table_name) into v_kept using (p_slot).ends_at, p_now, p_limit;
    return v_kept;
end
$$;

-- Whether at most half of a slot is of these topics, by a sample of some 200 of its pages.
create or replace function duewheel.is_mostly_done(p_slot duewheel.slot, p_topic_ids integer[]) returns boolean
language plpgsql set jit = off as $$
declare
    v_pages constant bigint := pg_relation_size(format('duewheel.%I', (p_slot).table_name)::regclass) / 8192;
    v_is_done boolean;
begin
    execute format(
        'select 2 * count(*) filter (where m.topic_id = any ($1)) <= count(*)'
        ' from duewheel.%I m tablesample system ($2)',
        (p_slot).table_name)
    into v_is_done using p_topic_ids, least(100, 20000.0 / greatest(1, v_pages));
    return v_is_done;
end
$$;

-- Moves at most p_limit messages out of the slot that they outlive, first of topics that are known to keep some, then
-- of all topics. Returns how many.
create or replace function duewheel.move_some_out(p_slot duewheel.slot, p_limit integer, p_now timestamptz)
returns bigint
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_kept integer[] := (
        select o.topic_ids from duewheel.outlived_slot o where o.starts_at = (p_slot).starts_at);
    v_moved bigint;
begin
    if v_kept is not null then
        v_moved := duewheel.move_out_of(p_slot, v_kept, p_limit);
        if v_moved > 0 then
            return v_moved;
        end if;
    end if;
    v_kept := duewheel.topics_kept(p_slot, p_now);
    if v_kept = '{}' then
        return 0;
    end if;
    if not exists (select from duewheel.outlived_slot o where o.starts_at = (p_slot).starts_at) then
        if (p_slot).ends_at + 16 * ((p_slot).ends_at - (p_slot).starts_at) > p_now
            and not duewheel.is_mostly_done(p_slot, v_kept)
        then
            return 0;
        end if;
        insert into duewheel.outlived_slot (starts_at, ends_at, table_name, topic_ids)
        values ((p_slot).starts_at, (p_slot).ends_at, (p_slot).table_name,
                duewheel.topics_outside((p_slot).starts_at, (p_slot).ends_at));
    end if;
    update duewheel.outlived_slot o
    set topic_ids = array(select unnest(o.topic_ids) union select unnest(v_kept) order by 1)
    where o.starts_at = (p_slot).starts_at and not o.topic_ids @> v_kept;
    return duewheel.move_out_of(p_slot, v_kept, p_limit);
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
            where m.ctid = any (array(
                select o.ctid
                from unnest($1) t (topic_id)
                cross join lateral (
                    select o.ctid from duewheel.%1$I o where o.topic_id = t.topic_id
                    order by o.queue, o.deliver_at, o.seq limit $2) o
                limit $2))
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

-- The topics that have messages due in [p_from, p_until) outside of any slot; if there are very many, the first 1 000.
create or replace function duewheel.topics_outside(p_from timestamptz, p_until timestamptz) returns integer[]
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
begin
    return array(
        select distinct f.topic_id from (
            select f.topic_id from duewheel.far_message f
            where timezone('UTC', f.deliver_at) >= timezone('UTC', p_from)
              and timezone('UTC', f.deliver_at) < timezone('UTC', p_until)
            order by timezone('UTC', f.deliver_at) limit 1000) f);
end
$$;

-- Deletes at most p_limit messages that outlived their slot and are no longer needed. Returns how many.
create or replace function duewheel.forget_outlived(
    p_slot duewheel.outlived_slot, p_limit integer, p_now timestamptz
) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_kept integer[] := array(
        select t.topic_id from unnest((p_slot).topic_ids) p (topic_id)
        cross join lateral (select * from duewheel.topic t where t.topic_id = p.topic_id limit 1) t
        where not (p_slot).is_dropped and duewheel.is_kept(t::duewheel.topic, (p_slot).ends_at, p_now)
        order by t.topic_id);
    v_forgotten constant bigint := duewheel.forget_some(p_slot, v_kept, p_limit);
begin
    if v_forgotten > 0 then
        return v_forgotten;
    end if;
    if v_kept = '{}' then
        v_kept := duewheel.topics_outside((p_slot).starts_at, (p_slot).ends_at);
    end if;
    if v_kept = '{}' and not exists (select from duewheel.slot s where s.starts_at = (p_slot).starts_at) then
        delete from duewheel.outlived_slot o where o.starts_at = (p_slot).starts_at;
    else
        update duewheel.outlived_slot o set topic_ids = v_kept
        where o.starts_at = (p_slot).starts_at and o.topic_ids <> v_kept;
    end if;
    return 0;
end
$$;

-- Deletes messages that outlived a slot, except those of the topics p_kept. Messages of a deleted topic are deleted
-- elsewhere.
create or replace function duewheel.forget_some(
    p_slot duewheel.outlived_slot, p_kept integer[], p_limit integer
) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    v_over constant integer[] := array(
        select unnest((p_slot).topic_ids) except select unnest(p_kept) order by 1);
    v_forgotten bigint;
    v_bytes bigint;
begin
    with gone as (
        delete from duewheel.far_message f
        where f.ctid = any (array(
            select d.ctid
            from unnest(v_over) o (topic_id)
            cross join lateral (
                select * from duewheel.topic t where t.topic_id = o.topic_id and t.deleted_at is null limit 1) t
            cross join lateral generate_series(0, t.queues - 1) q
            cross join lateral (
                select d.ctid from duewheel.far_message d
                where d.topic_id = t.topic_id and d.queue = q::smallint
                  and d.deliver_at >= (p_slot).starts_at and d.deliver_at < (p_slot).ends_at
                order by d.deliver_at limit p_limit) d
            limit p_limit))
        returning f.*
    )
    select count(*), coalesce(sum(pg_column_size(g)), 0) into v_forgotten, v_bytes from gone g;
    update duewheel.outlived_slot o set bytes = greatest(0, o.bytes - v_bytes)
    where o.starts_at = (p_slot).starts_at and v_forgotten > 0;
    return v_forgotten;
end
$$;
