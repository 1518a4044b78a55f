-- Rights to call functions. The tables belong to the role that upgrades; programs with another login get a role.
-- duewheel_producer sends and recalls, and reads no message. duewheel_consumer receives, answers and looks up.
-- duewheel_answerer answers runs that wait, and does nothing else. duewheel_admin has all three, manages the topics,
-- the groups and the schedules, and turns the wheel.
--
-- An entry point has a line "-- role: NAME" above it. An upgrade makes duewheel.entry_points() of these lines. Entry
-- points run with their owner's rights and a fixed search path. So a role needs nothing but EXECUTE, and no object of a
-- caller can replace an object that they use. All other functions are called by entry points alone, or have the role
-- "everyone" and run with the caller's rights, so that they can be inlined.

-- Whether the roles exist and have their rights, and no other role has any: false after a restore without them, too. It
-- does not compare which function is for which role, because applying the functions grants all rights again.
create or replace function duewheel.rights_are_granted() returns boolean
language plpgsql stable as $$
begin
    return (select count(*) from pg_roles r join pg_roles admin on admin.rolname = 'duewheel_admin'
            where r.rolname in ('duewheel_answerer', 'duewheel_producer', 'duewheel_consumer', 'duewheel_admin')
              and has_schema_privilege(r.oid, 'duewheel', 'usage') and pg_has_role(admin.oid, r.oid, 'member')) = 4
       and not exists (select from pg_proc p where p.pronamespace = 'duewheel'::regnamespace and p.proacl is null);
end
$$;

-- Creates missing roles and gives them exactly their rights on every function and table; rights that a login was given
-- in addition stay. Returns the statements that the caller may not run, for another login to run first; the rest is
-- done.
create or replace function duewheel.grant_rights() returns setof text
language plpgsql as $$
declare
    v_programs constant text[] := array['duewheel_answerer', 'duewheel_producer', 'duewheel_consumer'];
    v_roles constant text[] := v_programs || array['duewheel_admin'];
    v_role text;
    v_function record;
    v_relation record;
begin
    foreach v_role in array v_roles loop
        continue when exists (select from pg_roles r where r.rolname = v_role);
        begin
            execute format('create role %I nologin', v_role);
        exception
            when insufficient_privilege then
                return next format('create role %I nologin', v_role);
            when duplicate_object or unique_violation then
                -- Roles belong to the whole cluster: another database was upgraded at the same moment.
                continue;
        end;
    end loop;
    foreach v_role in array v_programs loop
        begin
            if not pg_has_role('duewheel_admin', v_role, 'member') then
                execute format('grant %I to duewheel_admin', v_role);
            end if;
        exception
            when insufficient_privilege or undefined_object then
                return next format('grant %I to duewheel_admin', v_role);
            when unique_violation then
                continue;
        end;
    end loop;

    revoke all on schema duewheel from public;
    revoke all on all routines in schema duewheel from public;
    foreach v_role in array v_roles loop
        continue when to_regrole(v_role) is null;
        execute format('revoke all on all routines in schema duewheel from %I', v_role);
        execute format('revoke all on all tables in schema duewheel from %I', v_role);
    end loop;
    for v_function in
        select p.oid::regprocedure as signature, p.prorettype = 'trigger'::regtype as is_trigger,
               p.prokind = 'p' as is_procedure,
               p.proname = any (duewheel.plain_functions()) as is_plain,
               array(select e.role_name from duewheel.entry_points() e where e.function_name = p.proname) as roles
        from pg_proc p
        where p.pronamespace = 'duewheel'::regnamespace
    loop
        -- A procedure that commits runs with the caller's rights.
        if not v_function.is_procedure and (v_function.is_trigger or cardinality(v_function.roles) > 0) then
            execute format('alter function %s security definer set search_path = pg_catalog, pg_temp',
                           v_function.signature);
        end if;
        -- Functions of administrators read many partitions: compiling such a plan takes a hundred times as long as its
        -- run.
        if not v_function.is_procedure and 'duewheel_admin' = any (v_function.roles) then
            execute format('alter function %s set jit = off', v_function.signature);
        end if;
        if v_function.is_plain then
            v_function.roles := v_programs;
        end if;
        foreach v_role in array v_function.roles loop
            if to_regrole(v_role) is not null then
                execute format('grant execute on routine %s to %I', v_function.signature, v_role);
            end if;
        end loop;
    end loop;

    foreach v_role in array v_roles loop
        continue when to_regrole(v_role) is null;
        execute format('grant usage on schema duewheel to %I', v_role);
        -- A program reads these before its first call.
        execute format('grant select on duewheel.alembic_version, duewheel.broker, duewheel.topics to %I', v_role);
    end loop;
    if to_regrole('duewheel_producer') is not null then
        -- By COPY. It is judged when it is published, and no role reads it.
        grant insert on duewheel.staged_message to duewheel_producer;
    end if;
    if to_regrole('duewheel_consumer') is not null then
        grant select on duewheel.groups, duewheel.waiting to duewheel_consumer;
    end if;
    if to_regrole('duewheel_admin') is not null then
        -- Slots are read through duewheel.message.
        for v_relation in
            select c.oid::regclass as name from pg_class c
            where c.relnamespace = 'duewheel'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
        loop
            execute format('grant select on %s to duewheel_admin', v_relation.name);
        end loop;
    end if;
end
$$;
