-- What holds upkeep up: transactions that sealing waits for, and locks that dropping waits for; and what it has left to
-- do.

-- Who has held upkeep up for over an hour: sessions of this database, and its prepared transactions, which have a gid
-- and no pid. holds: "transaction" for one that has written, "tables" for a lock of the broker's tables, "topic" and
-- "upkeep" for locks that ticks and upkeep take. state and since_at are null of sessions that the owner of the schema
-- may not see. Of these, a transaction is an hour old if a tick of that age has a later one.
-- role: consumer
create or replace function duewheel.upkeep_holders(now timestamptz default null) returns table (
    pid integer, login text, application text, state text, since_at timestamptz, gid text, holds text
)
language plpgsql set jit = off as $$
#variable_conflict use_column
declare
    v_hour_ago constant timestamptz := duewheel.clock_at(upkeep_holders.now) - interval '1 hour';
    v_database constant oid := (select d.oid from pg_database d where d.datname = current_database());
    -- Upkeep runs every hour.
    v_is_overdue constant boolean := (select b.maintained_at < v_hour_ago - interval '1 hour' from duewheel.broker b);
begin
    perform duewheel.require_home();
    perform pg_stat_clear_snapshot();
    return query
    with held as (
        select distinct on (l.pid) l.pid, h.holds
        from pg_locks l
        cross join lateral (
            select case when l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' then 'transaction'
                        when l.database is distinct from v_database then null
                        when l.locktype = 'advisory' and l.classid::bigint = duewheel.tick_lock_class()
                            -- The key is -2 as an oid.
                            then case when l.objid = 4294967294 then 'upkeep' else 'topic' end
                        when l.locktype = 'relation' and l.relation in (
                            select c.oid from pg_class c where c.relnamespace = 'duewheel'::regnamespace)
                            then 'tables' end as holds
        ) h
        where l.granted and l.pid <> pg_backend_pid() and h.holds is not null
        order by l.pid, array_position(array['upkeep', 'topic', 'transaction', 'tables'], h.holds)
    )
    select a.pid, a.usename::text, a.application_name, a.state, coalesce(a.xact_start, a.state_change), null::text,
           held.holds
    from held join pg_stat_activity a on a.pid = held.pid and a.datid = v_database
    where coalesce(a.xact_start, a.state_change) < v_hour_ago
       or a.xact_start is null and held.holds = 'upkeep' and v_is_overdue
       or a.state_change is null and exists (
            select from pg_snapshot_xip(pg_current_snapshot()) x
            where x::xid = a.backend_xid and x < (
                select max(k.tick_xid) from duewheel.topic t cross join lateral (
                    select k.tick_xid from duewheel.tick k where k.topic_id = t.topic_id and k.hi < v_hour_ago
                    order by k.hi desc, k.tick_id desc limit 1) k))
    union all
    select null, p.owner::text, null, 'prepared', p.prepared, p.gid, 'transaction'
    from pg_prepared_xacts p where p.database = current_database() and p.prepared < v_hour_ago
    order by 5 nulls last, 1;
end
$$;

-- The same as JSON, for the state of upkeep.
create or replace function duewheel.held_up_by(p_now timestamptz) returns jsonb
language sql
begin atomic
    select coalesce(jsonb_agg(to_jsonb(h)), '[]') from duewheel.upkeep_holders(p_now) h;
end;

-- What upkeep has left to do, and when it was last done. slots_to_seal are over and not yet swept; slots_past_retention
-- are past that of every topic, and are there as they were not dropped yet or a group needs them; messages_to_settle
-- wait to go to their slots, counted up to 10 000.
-- role: consumer
create or replace function duewheel.upkeep_state(
    now timestamptz default null, out maintained_at timestamptz, out slots_to_seal bigint,
    out slots_past_retention bigint, out messages_to_settle bigint
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := duewheel.clock_at(upkeep_state.now);
begin
    perform duewheel.require_home();
    select b.maintained_at into maintained_at from duewheel.broker b;
    select count(*) into slots_to_seal from duewheel.slot s where s.sealed_at is null and s.ends_at < v_now;
    select count(*) into slots_past_retention from duewheel.slot s
    where s.ends_at <= v_now - coalesce(
        (select max(t.retention) from duewheel.topic t where t.deleted_at is null and t.message_type <> 'DEAD_LETTER'),
        interval '72 hours');
    select count(*) into messages_to_settle from (
        select from duewheel.far_message f
        where timezone('UTC', f.deliver_at) >= timezone('UTC', (
            select min(s.starts_at) from duewheel.slot s where s.sealed_at is null))
          and timezone('UTC', f.deliver_at) < timezone('UTC', (select max(s.ends_at) from duewheel.slot s))
        limit 10000) f;
end
$$;
