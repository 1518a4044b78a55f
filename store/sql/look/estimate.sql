-- Estimates of numbers of messages. Every function here costs the same however many messages there are.

-- Whether the planner knows what a table holds: it has been analyzed, and has not grown to twice its size since.
-- Without that, the planner takes any span of time for a two-hundredth of the table.
create or replace function duewheel.is_known_to_planner(p_table regclass) returns boolean
language sql stable
begin atomic
    select pg_relation_size(c.oid) <= 2 * c.relpages * current_setting('block_size')::bigint
       and exists (select from pg_stats s
                   where s.schemaname = n.nspname and s.tablename = c.relname and s.attname = 'deliver_at')
        or pg_relation_size(c.oid) = 0
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.oid = p_table;
end;

-- How many rows of a table meet a condition, and how many bytes their bodies have, from about a hundred of its pages:
-- always the same pages, so the estimate of an unchanged table does not change.
create or replace function duewheel.sampled_rows(
    p_table regclass, p_condition text, out messages bigint, out body_bytes bigint
)
language plpgsql stable as $$
declare
    v_share constant double precision :=
        least(1, 100 * current_setting('block_size')::double precision / greatest(pg_relation_size(p_table), 1));
begin
    execute format('select count(*) / %s, coalesce(sum(octet_length(body)), 0) / %1$s '
                   'from %s tablesample system (%s) repeatable (1) where %s',
                   v_share, p_table, 100 * v_share, p_condition) into messages, body_bytes;
end
$$;

-- How many messages of a topic, or of all topics if it is null, are due from an instant on and before another: the
-- planner's estimate from the sizes of the tables, and a sample for tables that it does not know.
create or replace function duewheel.estimate_due(p_topic_id integer, p_from timestamptz, p_until timestamptz)
returns bigint
language plpgsql set datestyle = 'ISO' as $$
declare
    v_condition constant text := format(
        '%s deliver_at >= %L and deliver_at < %L', 'topic_id = ' || p_topic_id || ' and', p_from, p_until);
    v_plan jsonb;
begin
    execute 'explain (format json) select from duewheel.any_message where ' || v_condition into v_plan;
    return (
        select coalesce(sum(
            case when duewheel.is_known_to_planner(t.read) then t.rows
                 else (duewheel.sampled_rows(t.read, v_condition)).messages end), 0)
        from (
            select format('duewheel.%I', node ->> 'Relation Name')::regclass as read,
                   (node ->> 'Plan Rows')::bigint as rows
            from jsonb_path_query(v_plan, 'strict $.** ? (exists(@."Relation Name"))') node
        ) t);
end
$$;

-- About how many messages of each topic are due in each of a row of equal steps of time, recalled ones left out: from a
-- sample of the tables, as sampled_rows takes it. It costs the same however many topics and messages there are.
create or replace function duewheel.sampled_steps(p_from timestamptz, p_step interval, p_steps integer)
returns table (topic_id integer, step_number integer, messages bigint)
language plpgsql stable as $$
declare
    v_end constant timestamptz := p_from + p_step * p_steps;
    v_table regclass;
    v_share double precision;
begin
    for v_table in
        select format('duewheel.%I', s.table_name)::regclass from duewheel.slot s
        where s.starts_at < v_end and s.ends_at > p_from
        union all
        select 'duewheel.far_message'::regclass
    loop
        v_share := least(1, 100 * current_setting('block_size')::double precision
                            / greatest(pg_relation_size(v_table), 1));
        return query execute format($sample$
            select m.topic_id, floor(extract(epoch from m.deliver_at - $1) / extract(epoch from $2))::integer,
                   (count(*) / $3)::bigint
            from %s m tablesample system (%s) repeatable (1)
            where m.deliver_at >= $1 and m.deliver_at < $4
              and not exists (select from duewheel.recall_of(m.topic_id, m.queue, m.deliver_at, m.seq))
            group by 1, 2 $sample$, v_table, 100 * v_share) using p_from, p_step, v_share, v_end;
    end loop;
end
$$;
