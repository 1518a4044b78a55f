-- Leases: which messages one covers, and how it ends.

-- When a lease ends: at its newest extension, and not while an answer to it is in an open transaction.
create or replace function duewheel.lease_end(p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint)
returns timestamptz
language sql stable
begin atomic
    select greatest(
        coalesce(
            (select e.expires_at from duewheel.lease_extension e
             where e.topic_id = p_topic_id and e.group_id = p_group_id and e.queue = p_queue and e.n = p_n
               and e.extension_id > 0 order by e.extension_id desc limit 1),
            (select l.expires_at from duewheel.lease l
             where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue and l.n = p_n)),
        (select e.expires_at from duewheel.lease_extension e
         where e.topic_id = p_topic_id and e.group_id = p_group_id and e.queue = p_queue and e.n = p_n
           and e.extension_id < 0 order by e.extension_id limit 1));
end;

-- The event that ended a lease.
create or replace function duewheel.final_event(p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint)
returns setof duewheel.lease_event
language sql stable rows 1
begin atomic
    select * from duewheel.lease_event e
    where e.topic_id = p_topic_id and e.group_id = p_group_id and e.queue = p_queue and e.n = p_n
    limit 1;
end;

-- Whether a lease ended by p_to, with no final answer and no later end.
create or replace function duewheel.lease_has_ended(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint, p_to timestamptz
) returns boolean
language sql stable
begin atomic
    select not exists (select from duewheel.final_event(p_group_id, p_topic_id, p_queue, p_n))
      and duewheel.lease_end(p_group_id, p_topic_id, p_queue, p_n) <= p_to;
end;

-- The ends that leases of a queue had in (p_after, p_to], answered or not, by the index of this queue's ends. With
-- p_limit: at least the first p_limit ends after the end of lease p_after_n at p_after.
create or replace function duewheel.ends_in(
    p_group_id integer, p_topic_id integer, p_queue integer, p_after timestamptz, p_to timestamptz,
    p_after_n bigint default 9223372036854775807, p_limit integer default null
) returns table (n bigint, ends_at timestamptz)
language sql stable
begin atomic
    (select l.n, l.expires_at from duewheel.lease l
     where l.message_count > 0 and l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue
       and (l.expires_at, l.n) > (p_after, p_after_n) and l.expires_at <= p_to
     order by l.topic_id, l.group_id, l.queue, l.expires_at, l.n limit p_limit)
    union all
    (select e.n, e.expires_at from duewheel.lease_extension e
     where e.expires_at > '-infinity' and e.topic_id = p_topic_id and e.group_id = p_group_id and e.queue = p_queue
       and (e.expires_at, e.n) > (p_after, p_after_n) and e.expires_at <= p_to
     order by e.topic_id, e.group_id, e.queue, e.expires_at, e.n limit p_limit);
end;

-- Leases of a queue without a final answer that have an end behind p_after.
create or replace function duewheel.unanswered_leases(
    p_group_id integer, p_topic_id integer, p_queue integer, p_after timestamptz
) returns setof bigint
language sql stable
begin atomic
    with ends as materialized (
        select e.n from duewheel.ends_in(p_group_id, p_topic_id, p_queue, p_after, 'infinity') e
    )
    select e.n from ends e
    except
    -- One scan of the index, also over other leases: a lookup for each costs ten times as much.
    select e.n from duewheel.lease_event e
    where e.topic_id = p_topic_id and e.group_id = p_group_id and e.queue = p_queue
      and e.n = any (array(select o.n from ends o));
end;

-- Whether leases ended unanswered, or more than 32 ended in all, in (p_after, p_to].
create or replace function duewheel.has_ended_leases(
    p_group_id integer, p_topic_id integer, p_queue integer, p_after timestamptz, p_to timestamptz
) returns boolean
language plpgsql stable as $$
begin
    if (select count(*) from (
            select from duewheel.lease l
            where l.message_count > 0
              and l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue
              and l.expires_at > p_after and l.expires_at <= p_to
            order by l.topic_id, l.group_id, l.queue, l.expires_at limit 33) l) > 32 then
        return true;
    end if;
    -- A lookup by the key for each: there are few, mostly none.
    return exists (
        select from duewheel.ends_in(p_group_id, p_topic_id, p_queue, p_after, p_to) e
        where duewheel.lease_has_ended(p_group_id, p_topic_id, p_queue, e.n, p_to));
end
$$;

-- Notes that a lease is not to be revived before p_to, although its time is over.
create or replace function duewheel.add_deferral(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint, p_at timestamptz, p_to timestamptz
) returns void
language sql
begin atomic
    insert into duewheel.lease_extension (topic_id, group_id, queue, n, extension_id, at, expires_at)
    values (p_topic_id, p_group_id, p_queue, p_n, -nextval('duewheel.lease_extension_number'), p_at, p_to);
end;

-- Notes that a lease ends at p_to. Consumers do not read ends twice. If they have read up to a later instant, because
-- the clock was ahead, the lease ends at that instant until it is shortened.
create or replace function duewheel.add_extension(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint, p_at timestamptz, p_to timestamptz
) returns void
language sql
begin atomic
    insert into duewheel.lease_extension (topic_id, group_id, queue, n, extension_id, at, expires_at)
    values (p_topic_id, p_group_id, p_queue, p_n, nextval('duewheel.lease_extension_number'), p_at, p_to);
    select duewheel.add_deferral(
        p_group_id, p_topic_id, p_queue, p_n, p_at, l.revived_to + interval '1 microsecond')
    from duewheel.newest_lease(p_group_id, p_topic_id, p_queue) l where l.revived_to >= p_to;
end;

-- The consumer that the leases of a stream name.
create or replace function duewheel.stream_name(p_stream text) returns text
language sql immutable parallel safe
return 'spark-stream/' || p_stream;

-- Whether a queue shows that the clock was ahead and has been put right: it was read, or a lease of it extended, more
-- than a minute from now.
create or replace function duewheel.was_ahead(
    p_group_id integer, p_topic_id integer, p_queue integer, p_now timestamptz
) returns boolean
language sql stable
begin atomic
    select exists (
        select from duewheel.newest_lease(p_group_id, p_topic_id, p_queue) l
        where greatest(l.leased_at, l.revived_to) > p_now + interval '1 minute'
          -- A stream holds no leases, and only the stream moves its group.
          and l.consumer like duewheel.stream_name('%') is not true
    ) or (
        select true from duewheel.lease_extension e
        where e.expires_at > '-infinity' and e.topic_id = p_topic_id and e.group_id = p_group_id and e.queue = p_queue
          and e.expires_at > p_now + interval '1 minute' and e.at > p_now + interval '1 minute'
          and not exists (select from duewheel.final_event(p_group_id, p_topic_id, p_queue, e.n))
          and not exists (
            select from duewheel.lease_extension f
            where f.topic_id = e.topic_id and f.group_id = e.group_id and f.queue = e.queue and f.n = e.n
              and abs(f.extension_id) > abs(e.extension_id))
        -- By the index of ends: few end so late.
        order by e.topic_id, e.group_id, e.queue, e.expires_at limit 1
    ) is not null;
end;

-- Notes the last end of a lease that was read; the position stays. The caller holds the queue's lock.
create or replace function duewheel.note_revived(
    p_group_id integer, p_topic_id integer, p_queue integer, p_now timestamptz, p_revived_to timestamptz
) returns void
language sql
begin atomic
    insert into duewheel.lease
        (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
         message_count, leased_at, expires_at, revived_to)
    select l.topic_id, l.group_id, l.queue, l.n + 1, 0, l.to_at, l.to_seq, l.to_at, l.to_seq, l.straggler_to,
           l.straggler_to, 0, p_now, p_now, p_revived_to
    from duewheel.newest_lease(p_group_id, p_topic_id, p_queue) l;
end;

-- Shortens the leases of a queue that were taken, extended or deferred while the clock was ahead: each lasts for its
-- length from p_now on. The next read begins after p_now, so the mark moves back in the same transaction. The caller
-- holds the queue's lock.
create or replace function duewheel.shorten_leases(
    p_group_id integer, p_topic_id integer, p_queue integer, p_now timestamptz
) returns void
language sql
begin atomic
    with ahead as materialized (
        select l.n, coalesce(e.expires_at - e.at, l.expires_at - l.leased_at) as length
        from duewheel.unanswered_leases(p_group_id, p_topic_id, p_queue, p_now) o (n)
        join duewheel.lease l
          on l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue and l.n = o.n
        left join lateral (
            select e.at, e.expires_at from duewheel.lease_extension e
            where e.topic_id = p_topic_id and e.group_id = p_group_id and e.queue = p_queue and e.n = o.n
              and e.extension_id > 0 order by e.extension_id desc limit 1) e on true
        where coalesce(e.at, l.leased_at) > p_now
           or duewheel.lease_end(p_group_id, p_topic_id, p_queue, o.n) > coalesce(e.expires_at, l.expires_at)
    )
    insert into duewheel.lease_extension (topic_id, group_id, queue, n, extension_id, at, expires_at)
    select p_topic_id, p_group_id, p_queue, a.n, nextval('duewheel.lease_extension_number') * k.sign, p_now,
           p_now + a.length
    from ahead a cross join (values (1), (-1)) k (sign);
    select duewheel.note_revived(p_group_id, p_topic_id, p_queue, p_now, least(l.revived_to, p_now))
    from duewheel.newest_lease(p_group_id, p_topic_id, p_queue) l;
end;

-- At COMMIT of an extension: defers an end that has passed, or may pass before the COMMIT is done. Consumers that read
-- the ends up to now do not see this one yet.
create or replace function duewheel.put_off_passed_end() returns trigger
language plpgsql as $$
begin
    if new.expires_at <= clock_timestamp() + interval '3 seconds'
       and new.at >= transaction_timestamp() and clock_timestamp() > transaction_timestamp() + interval '0.5 seconds'
    then
        perform duewheel.add_deferral(new.group_id, new.topic_id, new.queue, new.n, clock_timestamp(),
                                      clock_timestamp() + interval '3 seconds');
    end if;
    return null;
end
$$;

do $$
begin
    if not exists (
        select from pg_trigger where tgname = 'passed_end' and tgrelid = 'duewheel.lease_extension'::regclass
    ) then
        create constraint trigger passed_end after insert on duewheel.lease_extension
        deferrable initially deferred for each row when (new.extension_id > 0)
        execute function duewheel.put_off_passed_end();
        alter table duewheel.lease_extension enable always trigger passed_end;
    end if;
end
$$;

-- The SELECT that yields exactly the messages of one lease: seen by their tick's snapshot, not recalled, chosen by the
-- lease's tags and filter. A client may run it itself, for instance through COPY. p_in_order false: in any order,
-- unless the topic is of type FIFO; a read in the order of deliver_at takes half as long again. p_last_n: the messages
-- of all leases from p_n to this one, which are a run of duewheel.lease_runs.
-- role: consumer
create or replace function duewheel.lease_query(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint, p_in_order boolean default true,
    p_last_n bigint default null
) returns text
language plpgsql stable set datestyle = 'ISO' as $$
declare
    v_lease duewheel.lease;
    v_to_at timestamptz;
    v_to_seq bigint;
    v_first_at timestamptz;
    v_last_at timestamptz;
begin
    perform duewheel.require_home();
    select * into v_lease from duewheel.lease l
    where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue and l.n = p_n;
    if not found then
        raise exception using
            errcode = 'DW011',
            message = format('lease %s in queue %s of topic %s does not exist', p_n, p_queue, coalesce(
                (select t.name from duewheel.topic t where t.topic_id = p_topic_id), p_topic_id::text)),
            hint = 'Receive the messages again: the lease was forgotten, or the database lost it in a crash.';
    end if;
    if v_lease.listed then
        select min(m.deliver_at), max(m.deliver_at) into v_first_at, v_last_at from duewheel.lease_message m
        where m.topic_id = p_topic_id and m.group_id = p_group_id and m.queue = p_queue and m.n = p_n;
        return format(
            'select a.* from duewheel.lease_message h join duewheel.any_message m'
            ' on m.topic_id = h.source_topic_id and m.queue = h.source_queue and m.deliver_at = h.deliver_at'
            ' and m.seq = h.seq and m.deliver_at between %L and %L'
            ' cross join lateral duewheel.with_attempt(m, h.attempt) a'
            ' where h.topic_id = %s and h.group_id = %s and h.queue = %s and h.n = %s'
            ' order by h.place',
            v_first_at, v_last_at, p_topic_id, p_group_id, p_queue, p_n);
    end if;
    if v_lease.straggler_to > v_lease.straggler_from then
        return format(
            'select (s.message).* from duewheel.straggler_rows('
            '%s, %s::smallint, %s, %s, %L, %L::text[], %L::jsonpath) s'
            || case when p_in_order then ' order by s.straggler_id' else '' end,
            p_topic_id, p_queue, v_lease.straggler_from, v_lease.straggler_to,
            num_nonnulls(v_lease.tags, v_lease.filter) = 0, v_lease.tags, v_lease.filter);
    end if;
    select l.to_at, l.to_seq into v_to_at, v_to_seq from duewheel.lease l
    where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue and l.n = coalesce(p_last_n, p_n);
    -- Ids below the xmin of the first tick that reaches into the lease are seen by all its ticks.
    return format(
        'select * from duewheel.released_rows(%s, %s::smallint, %L::timestamptz, %s, %L::timestamptz, %s, %L::xid8, %L,'
        ' %L::text[], %L::jsonpath, %L) m'
        || case when p_in_order then ' order by m.deliver_at, m.seq' else '' end,
        p_topic_id, p_queue, v_lease.from_at, v_lease.from_seq, v_to_at, v_to_seq,
        coalesce((select pg_snapshot_xmin(t.snapshot) from duewheel.tick_over(p_topic_id, v_lease.from_at) t), '0'),
        num_nonnulls(v_lease.tags, v_lease.filter) = 0, v_lease.tags, v_lease.filter,
        not exists (
            select from duewheel.recall r
            where r.topic_id = p_topic_id and r.queue = p_queue and r.deliver_at >= v_lease.from_at
              and r.deliver_at <= v_to_at));
end
$$;

-- A message with the attempt of its message group.
-- role: everyone
create or replace function duewheel.with_attempt(p_message duewheel.any_message, p_attempt integer)
returns duewheel.any_message
language plpgsql immutable as $$
begin
    p_message.attempt := p_attempt;
    return p_message;
end
$$;

-- The messages that duewheel.lease_query yields. Nearly every lease covers a range whose messages are all for the
-- group: its plan is made once in a session. A plan for each lease costs three times as much as the reading.
-- role: consumer
create or replace function duewheel.lease_rows(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint, p_last_n bigint default null
) returns setof duewheel.any_message
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_queue constant smallint := p_queue;
    v_from_at timestamptz;
    v_from_seq bigint;
    v_to_at timestamptz;
    v_to_seq bigint;
    v_seen_below xid8;
begin
    select l.from_at, l.from_seq, z.to_at, z.to_seq, coalesce((
               select pg_snapshot_xmin(t.snapshot) from duewheel.tick_over(p_topic_id, l.from_at) t), '0')
    into v_from_at, v_from_seq, v_to_at, v_to_seq, v_seen_below
    from duewheel.lease l
    join duewheel.lease z
      on z.topic_id = p_topic_id and z.group_id = p_group_id and z.queue = p_queue and z.n = coalesce(p_last_n, p_n)
    where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue and l.n = p_n
      and not l.listed and l.straggler_to = l.straggler_from and num_nonnulls(l.tags, l.filter) = 0
      and (select true from duewheel.recall r
           where r.topic_id = p_topic_id and r.queue = p_queue and r.deliver_at >= l.from_at
             and r.deliver_at <= z.to_at
           order by r.deliver_at limit 1) is null;
    if not found then
        return query execute duewheel.lease_query(p_group_id, p_topic_id, p_queue, p_n, p_last_n => p_last_n);
        return;
    end if;
    perform duewheel.require_home();
    return query
    select m.*
    from duewheel.released_rows(
        p_topic_id, v_queue, v_from_at, v_from_seq, v_to_at, v_to_seq, v_seen_below, true, null, null, true) m
    order by m.deliver_at, m.seq;
end
$$;

-- The messages of a lease that have no separate answer: their number, and which messages its rows leave out.
-- role: consumer
create or replace function duewheel.open_messages(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint, out messages integer, out answered bigint[]
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    answered := array(select a.seq from duewheel.message_answers(p_group_id, p_topic_id, p_queue, p_n) a);
    select l.message_count - cardinality(answered) into messages from duewheel.lease l
    where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue and l.n = p_n;
end
$$;

-- The name of the topic that the messages of a lease were sent to: a retry's lease is on the retry topic of its group.
-- role: consumer
create or replace function duewheel.lease_topic(p_topic_id integer) returns text
language sql stable
begin atomic
    select coalesce(parent.name, t.name) from duewheel.topic t
    left join duewheel.topic parent on parent.topic_id = t.parent_topic_id
    where t.topic_id = p_topic_id;
end;

-- The reason noted for a message that was given back: its next delivery is the same attempt.
create or replace function duewheel.given_back_reason() returns text
language sql immutable
return 'given back';

-- Sends messages of a lease again by duewheel.resend; on FIFO topics it puts them back in their place. p_seqs: the
-- messages, none of which has an answer; null: all messages without an answer. p_reasons: one for each of p_seqs, or
-- one for all. Returns their number; a broadcasting instance skips them and returns 0.
create or replace function duewheel.resend_lease(
    p_lease duewheel.lease, p_seqs bigint[], p_reasons text[], p_step text, p_due_at timestamptz, p_now timestamptz
) returns integer
language plpgsql as $$
declare
    v_subscription duewheel.subscription;
    v_answered bigint[];
    v_rows refcursor;
begin
    if (p_lease).listed then
        return duewheel.fifo_put_back(p_lease, p_seqs, p_reasons, p_step, p_due_at, p_now);
    end if;
    select * into v_subscription from duewheel.subscription s
    where s.group_id = (p_lease).group_id and (s.topic_id = (p_lease).topic_id
                                               or s.retry_topic_id = (p_lease).topic_id);
    if v_subscription.retry_topic_id is null then
        return 0;
    end if;
    if p_seqs is null then
        v_answered := array(
            select a.seq
            from duewheel.message_answers((p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n) a);
    end if;
    open v_rows no scroll for
        select m as message, case when cardinality(p_reasons) = 1 then p_reasons[1] else chosen.reason end as why
        from duewheel.lease_rows((p_lease).group_id, (p_lease).topic_id, (p_lease).queue, (p_lease).n) m
        left join unnest(p_seqs, p_reasons) chosen (seq, reason) on chosen.seq = m.seq
        where case when p_seqs is null then m.seq <> all (v_answered) else chosen.seq is not null end;
    return duewheel.resend(v_subscription, v_rows, p_step, p_due_at, p_now, (p_lease).n);
end
$$;

-- Revives leases of a queue whose time was over at p_to, the first ones first: their messages are due again at once. A
-- call takes at most p_limit leases, and no further one after 10 000 messages or 1 000 ends. revived_to: all leases
-- that ended up to there have been looked at. The caller holds the queue's lock. p_now is the injected instant; the
-- messages are sends, and read the clock for themselves.
create or replace function duewheel.revive_leases(
    p_group_id integer, p_topic_id integer, p_queue integer, p_after timestamptz, p_to timestamptz, p_now timestamptz,
    p_limit integer, out leases integer, out messages integer, out revived_to timestamptz
)
-- In the order of the index of ends, as duewheel.lease_ends_of_topics.
language plpgsql set enable_sort = off set jit = off as $$
#variable_conflict use_column
declare
    v_to constant timestamptz := least(p_to, (
        select e.ends_at from duewheel.ends_in(p_group_id, p_topic_id, p_queue, p_after, p_to, p_limit => 1000) e
        order by e.ends_at offset 999 limit 1));
    v_ended record;
    v_lease duewheel.lease;
    v_end timestamptz;
begin
    leases := 0;
    messages := 0;
    for v_ended in
        select u.n, u.ends_at
        from duewheel.ends_in(p_group_id, p_topic_id, p_queue, p_after, v_to) u
        order by u.ends_at
    loop
        continue when not duewheel.lease_has_ended(p_group_id, p_topic_id, p_queue, v_ended.n, p_to);
        if leases >= p_limit or messages >= 10000 then
            -- Other leases may have ended at the same instant.
            revived_to := greatest(p_after, v_ended.ends_at - interval '1 microsecond');
            return;
        end if;
        leases := leases + 1;
        if not pg_try_advisory_xact_lock(duewheel.lease_lock_key(p_group_id, p_topic_id, p_queue, v_ended.n)) then
            -- An open transaction has fenced it or answers it: read it again in a second.
            perform duewheel.add_deferral(p_group_id, p_topic_id, p_queue, v_ended.n, p_to,
                                          p_to + interval '1 second');
            continue;
        end if;
        -- Under the lock: an answer may have been committed since.
        continue when not duewheel.lease_has_ended(p_group_id, p_topic_id, p_queue, v_ended.n, p_to);
        select * into v_lease from duewheel.lease l
        where l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue and l.n = v_ended.n;
        v_end := duewheel.lease_end(p_group_id, p_topic_id, p_queue, v_ended.n);
        messages := messages + duewheel.resend_lease(
            v_lease, null, array[format('not answered until %s', v_end)], 'retry', v_end, p_now);
        insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at)
        values (p_topic_id, p_group_id, p_queue, v_ended.n, 'expired', p_to);
    end loop;
    revived_to := greatest(p_after, v_to);
end
$$;

-- For the wheel: revives ended leases of any queue of a subscription, as many as fit into one transaction. messages:
-- how many messages were revived; more: some leases are left, for another call in another transaction.
-- role: consumer
create or replace function duewheel.revive_chunk(
    p_group_id integer, p_topic_id integer, p_now timestamptz default null, out messages integer, out more boolean
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_now constant timestamptz := duewheel.clock_at(p_now);
    v_position record;
    v_chunk record;
    -- Each lease is locked, and all transactions share one table of locks.
    v_room integer := 200;
begin
    messages := 0;
    more := false;
    perform duewheel.require_read_committed();
    for v_position in
        select p.*, duewheel.was_ahead(p_group_id, p.topic_id, p.queue, v_now) as was_ahead
        from duewheel.positions(p_group_id, p_topic_id) p
    loop
        if (v_position.was_ahead or duewheel.has_ended_leases(
                p_group_id, v_position.topic_id, v_position.queue, v_position.revived_to, v_now))
           and pg_try_advisory_xact_lock(
               duewheel.queue_lock_key(p_group_id, v_position.topic_id, v_position.queue)) then
            if v_position.was_ahead then
                perform duewheel.shorten_leases(p_group_id, v_position.topic_id, v_position.queue, v_now);
            end if;
            v_chunk := duewheel.revive_leases(p_group_id, v_position.topic_id, v_position.queue,
                                              least(v_position.revived_to, v_now), v_now, p_now, v_room);
            v_room := v_room - v_chunk.leases;
            messages := messages + v_chunk.messages;
            more := more or v_chunk.revived_to < v_now;
            perform duewheel.note_revived(
                p_group_id, v_position.topic_id, v_position.queue, v_now, v_chunk.revived_to)
            from duewheel.newest_lease(p_group_id, v_position.topic_id, v_position.queue) l
            where l.revived_to < v_chunk.revived_to;
        end if;
    end loop;
end
$$;

-- The end of the first unanswered lease of a queue in (p_after, p_to]. It reads sixteen leases. If all of them are
-- answered, it returns the end of the last one, but at least a second after p_after.
create or replace function duewheel.next_lease_end(
    p_group_id integer, p_topic_id integer, p_queue integer, p_after timestamptz, p_to timestamptz
) returns timestamptz
language sql stable
begin atomic
    select case when o.is_open then l.expires_at else greatest(l.expires_at, p_after + interval '1 second') end
    from (
        select l.n, l.expires_at, row_number() over (order by l.expires_at) as place
        from (
            select l.n, l.expires_at from duewheel.lease l
            where l.message_count > 0
              and l.topic_id = p_topic_id and l.group_id = p_group_id and l.queue = p_queue
              and l.expires_at > p_after and l.expires_at <= p_to
            order by l.topic_id, l.group_id, l.queue, l.expires_at limit 16
        ) l
    ) l
    cross join lateral (
        select not exists (select from duewheel.final_event(p_group_id, p_topic_id, p_queue, l.n)) as is_open
    ) o
    where o.is_open or l.place = 16
    order by l.expires_at limit 1;
end;
