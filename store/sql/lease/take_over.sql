-- Taking over: a consumer that continues the work of a lost one gets its leases with their messages.

-- Gives live leases of p_consumer to the caller, who has the same name: with new tokens, so that answers of the
-- previous holder are refused, and for p_invisible from now on. These are the first p_leases leases after p_after, the
-- last lease that the call before gave: each is locked, and all transactions share one table of locks. Rows as of
-- receive_batch: the unanswered messages, then their lease. A lease that an open transaction is answering is left to
-- that transaction. No other function updates a lease; each update leaves a dead row.
-- role: consumer
create or replace function duewheel.take_over(
    p_group_id integer, p_topic_id integer, p_consumer text, p_invisible interval, p_now timestamptz default null,
    p_rows boolean default true, p_after duewheel.lease_handle default null, p_leases integer default 200
) returns setof duewheel.leased_message
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz;
    v_live record;
    v_token bigint;
    v_count integer;
    v_taken integer := 0;
    v_row duewheel.leased_message;
begin
    perform duewheel.clock_at(p_now);
    perform duewheel.require_read_committed();
    perform duewheel.check_invisible(p_invisible);
    perform duewheel.check_limit('leases', p_leases, 1, 200);
    for v_live in
        select l.topic_id, l.queue, l.n
        from duewheel.open_leases(p_group_id, p_topic_id, coalesce(p_now, clock_timestamp())) l
        where l.consumer = p_consumer
          and ((p_after).n is null
               or (l.topic_id, l.queue, l.n) > ((p_after).topic_id, (p_after).queue, (p_after).n))
        order by l.topic_id, l.queue, l.n
    loop
        exit when v_taken = p_leases;
        continue when not pg_try_advisory_xact_lock(
            duewheel.lease_lock_key(p_group_id, v_live.topic_id, v_live.queue, v_live.n));
        v_now := coalesce(p_now, clock_timestamp());
        -- Under the lock: it may have been answered, or have ended, since.
        continue when not duewheel.lease_has_ended(
                p_group_id, v_live.topic_id, v_live.queue, v_live.n, 'infinity')
            or duewheel.lease_end(p_group_id, v_live.topic_id, v_live.queue, v_live.n) <= v_now;
        if p_rows then
            return query
            select l.*
            from duewheel.lease_rows(p_group_id, v_live.topic_id, v_live.queue, v_live.n) m
            cross join lateral duewheel.as_leased(m) l
            where m.seq not in (
                select a.seq
                from duewheel.message_answers(p_group_id, v_live.topic_id, v_live.queue, v_live.n) a);
            get diagnostics v_count = row_count;
        else
            select o.messages into v_count
            from duewheel.open_messages(p_group_id, v_live.topic_id, v_live.queue, v_live.n) o;
        end if;
        continue when v_count = 0;
        v_token := duewheel.new_token();
        update duewheel.lease l set token = v_token
        where l.topic_id = v_live.topic_id and l.group_id = p_group_id and l.queue = v_live.queue and l.n = v_live.n;
        perform duewheel.add_extension(p_group_id, v_live.topic_id, v_live.queue, v_live.n, v_now,
                                       v_now + p_invisible);
        v_row.lease := (v_live.topic_id, v_live.queue, v_live.n, v_token, v_now + p_invisible, v_count);
        return next v_row;
        v_taken := v_taken + 1;
    end loop;
end
$$;
