-- Open transactions, and whose they are. Snapshots list the transactions of the whole cluster; only this database's
-- transactions can leave messages here.

-- The transactions of other databases that a snapshot of the caller lists as open: a session of another database holds
-- each, or it is prepared there. Any other transaction may be of this database, such as one that is just ending.
create or replace function duewheel.foreign_transactions(p_snapshot pg_snapshot) returns xid8[]
language plpgsql as $$
declare
    v_pids integer[];
begin
    if pg_snapshot_xmin(p_snapshot) = pg_snapshot_xmax(p_snapshot) then
        return '{}';
    end if;
    -- The sessions are read after the snapshot and before the locks. A session that holds a transaction now has held it
    -- since the snapshot, so it was there when the sessions were read: a process id that is used again does not
    -- deceive. Postgres shows a transaction the sessions that it saw first.
    perform pg_stat_clear_snapshot();
    v_pids := array(
        select a.pid from pg_stat_activity a
        where a.datid <> (select d.oid from pg_database d where d.datname = current_database()));
    return array(
        select x from pg_snapshot_xip(p_snapshot) x
        where x::xid in (
            -- Sessions that wait for a transaction have the other mode.
            select l.transactionid from pg_locks l
            where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted and l.pid = any (v_pids)
            union all
            select p.transaction from pg_prepared_xacts p where p.database <> current_database()));
end
$$;

-- Whether a snapshot lists a transaction up to p_to as open that is not among p_but.
create or replace function duewheel.lists_one_up_to(p_snapshot pg_snapshot, p_to xid8, p_but xid8[]) returns boolean
language sql immutable
begin atomic
    select exists (select from pg_snapshot_xip(p_snapshot) x where x <= p_to and x <> all (p_but));
end;

-- The id below which all transactions of this database have ended.
create or replace function duewheel.open_from() returns xid8
language plpgsql as $$
declare
    v_snapshot constant pg_snapshot := pg_current_snapshot();
    v_foreign constant xid8[] := duewheel.foreign_transactions(v_snapshot);
begin
    return coalesce((select min(x) from pg_snapshot_xip(v_snapshot) x where x <> all (v_foreign)),
                    pg_snapshot_xmax(v_snapshot));
end
$$;

-- The topics that a wheel has to tick again, because their newest ticks saw open transactions. is_late: a transaction
-- has ended and left messages that a tick releases now. Otherwise a transaction that may be of this database is still
-- open.
-- role: admin
create or replace function duewheel.unsettled_topics(p_topic_ids integer[])
returns table (topic_id integer, is_late boolean)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    -- One snapshot for both questions, which transactions have ended and which are open: otherwise a transaction that
    -- ends between the two is in neither answer.
    v_snapshot constant pg_snapshot := pg_current_snapshot();
    v_foreign constant xid8[] := duewheel.foreign_transactions(v_snapshot);
begin
    perform duewheel.require_read_committed();
    return query
    select k.topic_id, late.is_late
    from unnest(p_topic_ids) asked (topic_id)
    cross join lateral duewheel.newest_tick(asked.topic_id) k
    cross join lateral (
        select duewheel.has_late_messages(k, v_snapshot) as is_late
    ) late
    where k.open_count > 0 and (late.is_late or exists (
        select from pg_snapshot_xip(v_snapshot) x where x < k.tick_xid and x <> all (v_foreign)));
end
$$;

-- The same of the topics in (p_after_topic_id, p_last_topic_id]. The wheel that made their newest ticks may be gone,
-- and with it the knowledge that they are unsettled.
-- role: admin
create or replace function duewheel.unsettled_topics_between(p_after_topic_id integer, p_last_topic_id integer)
returns setof integer
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    return query
    select u.topic_id
    from duewheel.unsettled_topics(array(
        select t.topic_id from duewheel.topic t cross join lateral duewheel.newest_tick(t.topic_id) k
        where t.topic_id > p_after_topic_id and t.topic_id <= p_last_topic_id and t.deleted_at is null
          and k.open_count > 0)) u;
end
$$;
