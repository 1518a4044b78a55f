-- Open transactions, and whose they are. Snapshots list those of the whole cluster; only those of this database can
-- leave messages here.

-- Of the transactions that a snapshot of the caller lists as open, those that belong to other databases: each is seen
-- to be held by a session of another database, or to be prepared in one. Any other may be of this database, such as
-- one that is ending just now.
create or replace function duewheel.foreign_transactions(p_snapshot pg_snapshot) returns xid8[]
language plpgsql as $$
declare
    v_pids integer[];
begin
    if pg_snapshot_xmin(p_snapshot) = pg_snapshot_xmax(p_snapshot) then
        return '{}';
    end if;
    -- The sessions are read after the snapshot and before the locks. Who holds a transaction now has held it since the
    -- snapshot, so that session was there when the sessions were read: a process id that came round does not deceive.
    -- Postgres shows a transaction the sessions that it saw first.
    perform pg_stat_clear_snapshot();
    v_pids := array(
        select a.pid from pg_stat_activity a
        where a.datid <> (select d.oid from pg_database d where d.datname = current_database()));
    return array(
        select x from pg_snapshot_xip(p_snapshot) x
        where x::xid in (
            -- Those who wait for a transaction have the other mode.
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
