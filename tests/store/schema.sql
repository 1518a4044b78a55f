-- Everything the schema consists of, one line each, but for the hourly slots.
select line from (
    select format('table %s: %s %s%s%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
                  case when a.attnotnull then ' not null' else '' end,
                  coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')) as line
    from pg_class c
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
    where c.relnamespace = 'duewheel'::regnamespace and c.relkind in ('r', 'p', 'v', 'c') and not c.relispartition
    union all
    select format('constraint on %s: %s %s', c.relname, k.conname, pg_get_constraintdef(k.oid))
    from pg_constraint k join pg_class c on c.oid = k.conrelid
    where k.connamespace = 'duewheel'::regnamespace and k.contype <> 'n' and not c.relispartition
    union all
    select format('index: %s', pg_get_indexdef(i.indexrelid))
    from pg_index i join pg_class c on c.oid = i.indrelid
    where c.relnamespace = 'duewheel'::regnamespace and not c.relispartition
    union all
    select format('function %s(%s) returns %s', p.proname, pg_get_function_arguments(p.oid),
                  pg_get_function_result(p.oid))
    from pg_proc p where p.pronamespace = 'duewheel'::regnamespace
    union all
    select format('sequence %s: increment %s', sequencename, increment_by)
    from pg_sequences where schemaname = 'duewheel'
) schema
order by line collate "C"
