-- Advisory lock keys. Tick locks use the two-integer form under one class; the others the bigint form under a prefix.

-- The topic's tick lock: exclusive while ticking, shared while a recall commits.
create or replace function duewheel.tick_lock_class() returns integer
language sql immutable parallel safe
return 1146438743;  -- the letters DUEW

-- Exclusive while a transaction commits a tick of the topic, and for whoever passes its tick lock.
create or replace function duewheel.tick_commit_class() returns integer
language sql immutable parallel safe
return 1146438744;

-- Held while a group's queue is read on: its position and its ended leases change only under it.
create or replace function duewheel.queue_lock_key(p_group_id integer, p_topic_id integer, p_queue integer)
returns bigint
language sql immutable parallel safe
return (17495::bigint << 48) | (p_group_id::bigint << 28) | (p_topic_id::bigint << 8) | p_queue::bigint;

-- Held while one lease is answered, extended or revived.
create or replace function duewheel.lease_lock_key(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint
) returns bigint
language sql immutable parallel safe
return (17496::bigint << 48)
    | (hashint8extended(p_n, duewheel.queue_lock_key(p_group_id, p_topic_id, p_queue)) & 281474976710655);

-- Held while the messages of one key are looked at and replaced, or one idempotency key is decided.
create or replace function duewheel.key_lock_key(p_topic_id integer, p_key text) returns bigint
language sql immutable parallel safe
return (17497::bigint << 48) | (hashtextextended(p_key, p_topic_id) & 281474976710655);

-- The logs mean something only in the cluster they were written in. Asked once in each session, which remembers the answer in
-- the setting duewheel.home: the number of the table that was looked at, so that a schema restored meanwhile is looked at anew.
create or replace function duewheel.require_home() returns void
language plpgsql as $$
begin
    if current_setting('duewheel.home', true) = 'duewheel.broker'::regclass::oid::text then
        return;
    end if;
    if not exists (
        select from duewheel.broker b join pg_control_system() c on c.system_identifier = b.system_identifier
    ) then
        raise exception using
            errcode = 'DW016',
            message = 'this database was restored into another cluster, where the transaction ids in the broker''s logs mean '
                      'something else',
            hint = 'Run `duewheel db rebase` (or select duewheel.rebase()) once; then every waiting message comes exactly once.';
    end if;
    perform set_config('duewheel.home', 'duewheel.broker'::regclass::oid::text, false);
end
$$;

-- Ticks, receives and recalls look at what others have just committed.
create or replace function duewheel.require_read_committed() returns void
language plpgsql as $$
begin
    if current_setting('duewheel.home', true) is distinct from 'duewheel.broker'::regclass::oid::text then
        perform duewheel.require_home();
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using
            errcode = 'DW015',
            message = format('the transaction runs in isolation level %s; ticks, receives, answers and recalls need '
                             'READ COMMITTED', current_setting('transaction_isolation')),
            hint = 'Call it in a transaction of its own, or SET TRANSACTION ISOLATION LEVEL READ COMMITTED.';
    end if;
end
$$;
