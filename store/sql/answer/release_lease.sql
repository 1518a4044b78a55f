-- Releasing a lease: an operator ends the lease of a consumer that hangs, as if it had expired. Its messages are ready
-- again at once and count an attempt, because the work may be what hangs. A late answer is refused.

-- The id of a lease for operators. The instant tells it from a lease with the same number after a crash. It holds no
-- token, so it cannot answer the lease.
create or replace function duewheel.lease_id(p_lease duewheel.lease) returns text
language sql immutable
return concat_ws('.', p_lease.group_id, p_lease.topic_id, p_lease.queue, p_lease.n,
                 (extract(epoch from p_lease.leased_at) * 1000000)::bigint);

-- Ends the lease of an id. Returns how many messages are ready again or become dead letters, null if the lease was
-- answered or had ended. It waits up to 10 seconds for an answer in an open transaction.
-- role: admin
create or replace function duewheel.release_lease(
    lease_id text, reason text default null, now timestamptz default null
) returns integer
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_until constant timestamptz := clock_timestamp() + interval '10 seconds';
    v_id constant bigint[] := regexp_match(
        release_lease.lease_id, '^(\d{1,9})\.(\d{1,9})\.(\d{1,4})\.(\d{1,18})\.(\d{1,18})$')::bigint[];
    v_reason constant text := left(concat_ws(': ', 'its lease was released', release_lease.reason), 10000);
    v_lease duewheel.lease;
    v_now timestamptz;
    v_messages integer;
begin
    perform duewheel.clock_at(release_lease.now);
    perform duewheel.require_read_committed();
    if v_id is null then
        raise exception using
            errcode = 'DW010', message = format('"%s" is not the id of a lease', left(release_lease.lease_id, 80)),
            hint = 'Pass the lease_id of duewheel.running_leases() unchanged.';
    end if;
    if not duewheel.lock_lease(duewheel.lease_lock_key(v_id[1]::integer, v_id[2]::integer, v_id[3]::integer, v_id[4]),
                               'release', v_until) then
        raise exception using
            errcode = 'DW017',
            message = 'the lease is being answered in another transaction, which was still open after 10 s',
            hint = 'Run the call again when that transaction has ended, or end its session.';
    end if;
    v_now := coalesce(release_lease.now, clock_timestamp());
    select * into v_lease from duewheel.lease l
    where l.group_id = v_id[1] and l.topic_id = v_id[2] and l.queue = v_id[3] and l.n = v_id[4]
      and l.message_count > 0 and exists (select from duewheel.subscription s where s.group_id = l.group_id);
    if not found or duewheel.lease_id(v_lease) <> release_lease.lease_id
       or exists (select from duewheel.final_event(v_lease.group_id, v_lease.topic_id, v_lease.queue, v_lease.n))
       or duewheel.lease_end(v_lease.group_id, v_lease.topic_id, v_lease.queue, v_lease.n) <= v_now
    then
        return null;
    end if;
    perform duewheel.require_retries(v_lease.group_id);
    v_messages := duewheel.resend_lease(v_lease, null, array[v_reason], 'retry', v_now, release_lease.now);
    insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at, reason)
    values (v_lease.topic_id, v_lease.group_id, v_lease.queue, v_lease.n, 'expired', v_now, v_reason);
    return v_messages;
end
$$;
