-- After a logical dump and restore into another cluster, the transaction ids and snapshots of the logs get new stamps.
--
-- Snapshots and transaction ids say which messages a tick released, and nothing else needs to be carried over.
-- Afterwards there are two stamps, both below every id that a cluster gives to a transaction. All rebased ticks see 3,
-- the stamp of messages that belong to their tick's interval or still wait. No rebased tick sees 4, the stamp of
-- messages in duewheel.straggler or duewheel.held_back. Because no rebased tick lists an open transaction, it gets no
-- further straggler; a transaction of this cluster, however old, only sends messages due after the topic's last hi.

-- The row of a message that the tick of its instant does not release: it is a straggler, or is held back to become one.
create or replace function duewheel.released_apart(
    p_topic_id integer, p_queue smallint, p_deliver_at timestamptz, p_seq bigint
) returns setof bigint
language sql stable
begin atomic
    select s.seq from duewheel.straggler s
    where s.topic_id = p_topic_id and s.queue = p_queue and s.deliver_at = p_deliver_at and s.seq = p_seq
    union all
    select b.seq from duewheel.held_back b
    where b.topic_id = p_topic_id and b.queue = p_queue and b.deliver_at = p_deliver_at and b.seq = p_seq;
end;

-- Carries the broker over to the cluster it is in, in the caller's transaction, under locks that keep all writers out.
-- If the broker has not been moved, it does nothing and rebased is false.
-- role: admin
create or replace function duewheel.rebase(
    now timestamptz default null, out rebased boolean, out messages bigint, out ticks bigint, out released_late bigint
)
language plpgsql set jit = off as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := duewheel.clock_at(rebase.now);
    v_table text;
    v_topic_ids integer[];
    v_his timestamptz[];
    v_tick_ids bigint[];
    v_rows bigint;
begin
    rebased := false;
    messages := 0;
    ticks := 0;
    released_late := 0;
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using
            errcode = 'DW015',
            message = format('the transaction runs in isolation level %s; a rebase needs READ COMMITTED',
                             current_setting('transaction_isolation')),
            hint = 'Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED, whatever the login''s or the '
                   'database''s default_transaction_isolation is.';
    end if;
    -- The first one in does the work; a second waits here and finds it done.
    lock table duewheel.broker in exclusive mode;
    if exists (
        select from duewheel.broker b join pg_control_system() c on c.system_identifier = b.system_identifier
    ) then
        return;
    end if;
    lock table duewheel.topic, duewheel.message, duewheel.far_message, duewheel.slot, duewheel.tick, duewheel.straggler,
        duewheel.held_back, duewheel.recall, duewheel.lease, duewheel.lease_event,
        duewheel.lease_extension, duewheel.lease_answer, duewheel.idempotency
        in exclusive mode;

    -- First by the old stamps: a message due at or before its topic's last tick that is neither in that tick's interval
    -- nor a straggler had not been committed when the tick ran. It is released now, as a straggler of a separate tick,
    -- or held back if the clock was ahead at that tick.
    select coalesce(array_agg(t.topic_id), '{}'), coalesce(array_agg(k.hi), '{}'),
           coalesce(array_agg(nextval('duewheel.tick_tick_id_seq')), '{}')
    into v_topic_ids, v_his, v_tick_ids
    from duewheel.topic t
    cross join lateral duewheel.newest_tick(t.topic_id) k
    where t.deleted_at is null and t.message_type <> 'DEAD_LETTER';
    with uncovered as materialized (
        select m.topic_id, m.queue, n.tick_id, m.deliver_at, m.seq, n.hi,
               m.deliver_at > v_now and t.message_type <> 'FIFO' as waits
        from unnest(v_topic_ids, v_his, v_tick_ids) n (topic_id, hi, tick_id)
        join duewheel.topic t on t.topic_id = n.topic_id
        join duewheel.any_message m on m.topic_id = n.topic_id and m.deliver_at <= n.hi
        where not pg_visible_in_snapshot(m.xid, (
                select t.snapshot from duewheel.tick_over(m.topic_id, m.deliver_at) t))
          and not exists (
                select from duewheel.released_apart(m.topic_id, m.queue, m.deliver_at, m.seq))
    ), held as (
        insert into duewheel.held_back (topic_id, queue, deliver_at, seq)
        select u.topic_id, u.queue, u.deliver_at, u.seq from uncovered u where u.waits
    )
    insert into duewheel.straggler (topic_id, queue, tick_id, deliver_at, seq, behind_at)
    select u.topic_id, u.queue, u.tick_id, u.deliver_at, u.seq, u.hi from uncovered u where not u.waits
    order by u.deliver_at, u.seq;
    get diagnostics released_late = row_count;
    insert into duewheel.tick
        (topic_id, tick_id, lo, hi, snapshot, tick_xid, open_count, ticked_at, by_wheel, stragglers, queue_hi)
    overriding system value
    select k.topic_id, n.tick_id, k.hi, k.hi, k.snapshot, k.tick_xid, 0, v_now, false, late.stragglers, k.queue_hi
    from unnest(v_topic_ids, v_tick_ids) n (topic_id, tick_id)
    cross join lateral duewheel.newest_tick(n.topic_id) k
    cross join lateral (
        select count(*) as stragglers from duewheel.straggler s
        where s.topic_id = n.topic_id and s.tick_id = n.tick_id) late
    where late.stragglers > 0;

    -- Then the new stamps.
    for v_table in select s.table_name from duewheel.slot s union all select 'far_message' loop
        execute format(
            'update duewheel.%I m
             set xid = case when exists (
                select from duewheel.released_apart(m.topic_id, m.queue, m.deliver_at, m.seq))
                then xid8 ''4'' else xid8 ''3'' end', v_table);
        get diagnostics v_rows = row_count;
        messages := messages + v_rows;
    end loop;
    -- They name old stamps; without them the next lookup of a key, or the next sweep, begins again.
    delete from duewheel.key_mark;
    delete from duewheel.swept_topic;
    update duewheel.slot s set open_below = null where s.open_below is not null;
    update duewheel.tick t set snapshot = '4:4:', tick_xid = '4', open_count = 0, by_wheel = false,
        late_xids = null, late_at = null, late_queue = null, late_seq = null;
    get diagnostics ticks = row_count;
    -- No transaction of this cluster has answered.
    update duewheel.lease_event e set xid = null where e.xid is not null;
    update duewheel.lease_extension e set xid = null where e.xid is not null;
    update duewheel.lease_answer a set xid = '3';
    update duewheel.recall r set answer_xid = '3' where r.answer_xid is not null;
    update duewheel.broker b
    set system_identifier = (select c.system_identifier from pg_control_system() c), rebased_at = v_now;
    rebased := true;
end
$$;
