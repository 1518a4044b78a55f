-- Plans by the keys. A session makes the plan of a statement when it first runs it, and may keep it for days. The
-- tables may have been empty then, or never analyzed, and every index looked the same: without help the planner reads
-- all messages, or plans again for each position, which costs more than the statement. A function that says "set
-- plan_cache_mode = force_generic_plan", and no more, gets the rest here: one plan for all positions, whose slots are
-- pruned when it runs, and which walks an index in its order however small the tables were. A function that has to sort
-- also says "set enable_sort = on", and a function that switches other ways off names these alone. Functions that need
-- other settings name all of theirs. Functions that it calls run under its settings, too, unless they have their own.
do $$
declare
    v_function record;
begin
    for v_function in
        select p.oid::regprocedure as signature,
               exists (select from unnest(p.proconfig) setting where setting like 'enable%') as sorts
        from pg_proc p
        where p.pronamespace = 'duewheel'::regnamespace and 'plan_cache_mode=force_generic_plan' = any (p.proconfig)
          and 'enable_seqscan=off' <> all (p.proconfig)
    loop
        execute format('alter function %s set enable_seqscan = off set enable_bitmapscan = off set jit = off %s',
                       v_function.signature,
                       case when v_function.sorts then 'reset enable_sort' else 'set enable_sort = off' end);
    end loop;
end
$$;
