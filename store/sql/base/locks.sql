-- Advisory lock keys. Tick locks use the two-integer form under one class; all others use the bigint form under a
-- prefix.

-- The topic's tick lock: exclusive while a tick is made and committed, shared while a recall commits. Both end with a
-- transaction that does nothing else.
create or replace function duewheel.tick_lock_class() returns integer
language sql immutable parallel safe
return 1146438743;  -- the letters DUEW

-- Shared by the sessions of wheels that look after all topics, as long as they listen.
create or replace function duewheel.wheel_lock_key() returns bigint
language sql immutable parallel safe
return 17498::bigint << 48;

-- Taken while a group reads on in a queue: its position and its ended leases change only under it.
create or replace function duewheel.queue_lock_key(p_group_id integer, p_topic_id integer, p_queue integer)
returns bigint
language sql immutable parallel safe
return (17495::bigint << 48) | (p_group_id::bigint << 28) | (p_topic_id::bigint << 8) | p_queue::bigint;

-- Taken while one lease is answered, extended or revived.
create or replace function duewheel.lease_lock_key(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint
) returns bigint
language sql immutable parallel safe
return (17496::bigint << 48)
    | (hashint8extended(p_n, duewheel.queue_lock_key(p_group_id, p_topic_id, p_queue)) & 281474976710655);

-- Shared by each transaction that makes dead letters of a topic until it ends: a session that has the lock alone sees
-- all dead letters.
create or replace function duewheel.dead_letter_lock_key(p_topic_id integer) returns bigint
language sql immutable parallel safe
return (17499::bigint << 48) | p_topic_id::bigint;

-- Taken while the messages of one key are kept, replaced or moved.
create or replace function duewheel.key_lock_key(p_topic_id integer, p_key text) returns bigint
language sql immutable parallel safe
return (17497::bigint << 48) | (hashtextextended(p_key, p_topic_id) & 281474976710655);

-- Taken while a group is made, renamed or deleted; its broadcasting instances share the lock.
create or replace function duewheel.group_lock_key(p_group text) returns bigint
language sql immutable parallel safe
return duewheel.key_lock_key(0, '%GROUP%' || split_part(p_group, '/', 1));

-- Takes the locks of all keys that a batch of messages needs, in one order, before it waits for anything else. So two
-- batches wait for each other and never in a circle. Their idempotency keys have locks for batches alone.
-- role: producer
create or replace function duewheel.lock_keys(p_topic text, p_keys text[], p_idempotency_keys text[])
returns void
language plpgsql as $$
declare
    v_topic_id constant integer := (duewheel.topic_by_name(p_topic)).topic_id;
begin
    perform pg_advisory_xact_lock(l.lock_key)
    from (
        select duewheel.key_lock_key(v_topic_id, k) as lock_key from unnest(p_keys) k where k is not null
        union
        select duewheel.key_lock_key(-v_topic_id, i) from unnest(p_idempotency_keys) i where i is not null
        order by lock_key offset 0
    ) l;
end
$$;

-- The logs are valid only in the cluster in which they were written. A session checks that once, and keeps the number
-- of the table that it has read in the setting duewheel.home. A restored schema has another number, so the session
-- checks again.
create or replace function duewheel.require_home() returns void
language plpgsql as $$
begin
    if current_setting('duewheel.home', true) = 'duewheel.broker'::regclass::oid::text then
        return;
    end if;
    -- By the key of the one row: the caller may have switched off reads of whole tables.
    if (select b.system_identifier from duewheel.broker b where b.only_row)
       is distinct from (select c.system_identifier from pg_control_system() c) then
        raise exception using
            errcode = 'DW016',
            message = 'this database was restored into another cluster, where the transaction ids in the '
                      'broker''s logs mean something else',
            hint = 'Run `duewheel db rebase` (or select duewheel.rebase()) once; then every waiting message is '
                   'delivered exactly once.';
    end if;
    perform set_config('duewheel.home', 'duewheel.broker'::regclass::oid::text, false);
end
$$;

-- Ticks, receives and recalls must read what other transactions have just committed.
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
            hint = 'Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED, whatever the login''s or the '
                   'database''s default_transaction_isolation is.';
    end if;
end
$$;

-- Raises the error of a call that has waited ten seconds for a locked row.
create or replace function duewheel.raise_busy(p_what text) returns void
language plpgsql immutable as $$
begin
    raise exception using
        errcode = 'DW017',
        message = format('%s is being changed in another transaction, which was still open after 10 s',
                         p_what),
        hint = 'Run the call again when that transaction has ended.';
end
$$;

-- Takes the lock of upkeep. Returns the instant by which this step decides what to forget, or null if another session
-- has had the lock for a second. Upkeep believes a clock reading if it runs again ten minutes later and the clock has
-- not been set back meanwhile. So a clock that is ahead for a while makes upkeep forget nothing.
create or replace function duewheel.begin_upkeep(p_now timestamptz) returns timestamptz
language plpgsql as $$
declare
    v_now constant timestamptz := duewheel.clock_at(p_now);
begin
    -- For the whole transaction: a step of upkeep holds locks, so it waits for no other lock for long.
    if current_setting('lock_timeout')::interval not between interval '1 ms' and interval '1 s' then
        perform set_config('lock_timeout', '1s', true);
    end if;
    begin
        perform pg_advisory_xact_lock(duewheel.tick_lock_class(), -2);
    exception when lock_not_available then
        return null;
    end;
    update duewheel.broker b
    set believed_at = case when b.noted_at > v_now then least(b.believed_at, v_now) else b.noted_at end,
        noted_at = v_now
    where b.only_row = (
        select o.only_row from duewheel.broker o
        where o.noted_at not between v_now - interval '10 minutes' and v_now
        -- Settings that are being changed keep no upkeep waiting.
        for no key update skip locked);
    return (select least(b.believed_at, v_now) from duewheel.broker b);
end
$$;

-- A tick holds its topic's lock until it is committed. So it runs in a separate transaction, and no open transaction of
-- a caller keeps a topic from being ticked. The procedures below and the wheel announce such a transaction in a setting
-- that ends with it. The arithmetic of ticks needs it, too: the transaction has no id before the clock is read.
create or replace function duewheel.require_own_transaction() returns void
language plpgsql as $$
begin
    perform duewheel.require_read_committed();
    if current_setting('duewheel.own_transaction', true) is distinct from 'on'
       or pg_current_xact_id_if_assigned() is not null then
        raise exception using
            errcode = 'DW021',
            message = 'a tick needs its own transaction, and this call is part of a larger one',
            hint = 'Call it as a single statement, outside of a transaction block.';
    end if;
end
$$;

-- An instant that a caller gives for now counts for all groups: a receive with an instant in twenty days releases every
-- message that is due by then. So only an owner of the schema may give one, for tests. The caller is the login, because
-- entry points run with their owner's rights.
create or replace function duewheel.require_clock_right(p_now timestamptz) returns void
language plpgsql stable as $$
begin
    if not pg_has_role(
        session_user, (select n.nspowner from pg_namespace n where n.nspname = 'duewheel'), 'member'
    ) then
        raise exception using
            errcode = '42501',
            message = format('the login "%s" passed now => %s; only an owner of the schema duewheel may set the time',
                             session_user, p_now),
            hint = 'Leave now out: the database''s clock is used.';
    end if;
    if not isfinite(p_now) then
        raise exception using
            errcode = 'DW010', message = format('now must be a finite instant; got %s', p_now),
            hint = 'Give an instant, or leave now out: the database''s clock is used.';
    end if;
end
$$;

-- A notification is a hint and never the truth: its listeners also poll. A session of any database that listens and
-- stays in a transaction keeps all notifications of the cluster in its queue. When that queue is full, the commit of
-- every notifying transaction fails. So nothing is sent shortly before that.
create or replace function duewheel.may_notify() returns boolean
language sql volatile
return pg_notification_queue_usage() < 0.9;

create or replace function duewheel.notify(p_channel text, p_payload text) returns void
language plpgsql as $$
begin
    if duewheel.may_notify() then
        perform pg_notify(p_channel, p_payload);
    end if;
end
$$;

-- Notifies from a transaction that may be a caller's. A transaction that has notified cannot be prepared. So if the
-- server allows prepared transactions, only a statement that commits by itself notifies; otherwise the next poll finds
-- the change.
create or replace function duewheel.announce(p_channel text, p_payload text) returns void
language plpgsql as $$
begin
    if (current_setting('max_prepared_transactions') = '0' or statement_timestamp() = transaction_timestamp())
       and duewheel.may_notify()
    then
        perform pg_notify(p_channel, p_payload);
    end if;
end
$$;
