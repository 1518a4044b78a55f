-- Constraints, indexes, and the functions for programs, one line each, but for those of slots.
select line from (
    select format('constraint on %s: %s %s', c.relname, k.conname, pg_get_constraintdef(k.oid)) as line
    from pg_constraint k join pg_class c on c.oid = k.conrelid
    where k.connamespace = 'duewheel'::regnamespace and k.contype <> 'n' and not c.relispartition
    union all
    select format('index: %s', pg_get_indexdef(i.indexrelid))
    from pg_index i join pg_class c on c.oid = i.indrelid
    where c.relnamespace = 'duewheel'::regnamespace and not c.relispartition
    union all
    select format('function %s(%s) returns %s', p.proname, pg_get_function_arguments(p.oid),
                  pg_get_function_result(p.oid))
    from pg_proc p where p.pronamespace = 'duewheel'::regnamespace and obj_description(p.oid, 'pg_proc') is not null
) schema
order by line collate "C"
