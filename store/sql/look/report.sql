-- The events between two instants, for counters: each release and each ended lease counts once, whichever process turns
-- a wheel and however many report.

-- Claims the time since the last report, if that is at_least so long ago: the caller reports it, and commits after
-- reading it. Null if another caller has claimed it. The time ends 2 seconds ago, and before the oldest open
-- transaction that has ticked or ended a lease: such transactions carry instants after their begin, and have committed
-- by then. It does not wait for a transaction that has been open for half the age limit, nor for one that
-- pg_stat_activity hides from this login. The age limit is 10 minutes or twice at_least; older events are left out,
-- because a counter cannot place them.
-- role: consumer
create or replace function duewheel.claim_report(
    at_least interval, out since_at timestamptz, out until_at timestamptz
)
language plpgsql as $$
declare
    v_now constant timestamptz := clock_timestamp();
    -- Cut to spans that are as good, and that can be taken from an instant.
    v_at_least constant interval := least(greatest(at_least, interval '0'), interval '3660 days');
    v_age constant interval := greatest(interval '10 minutes', 2 * v_at_least);
    v_to timestamptz;
    v_reported_to timestamptz;
begin
    perform duewheel.require_home();
    if (at_least >= interval '0') is not true then
        raise exception using
            errcode = 'DW010',
            message = format('at_least must be 0 or more; got %s', at_least),
            hint = 'Give how long ago the last report has to be.';
    end if;
    select least(v_now - interval '2 seconds', min(a.xact_start)) into v_to
    from pg_locks l join pg_stat_activity a on a.pid = l.pid
    where l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.relation in ('duewheel.tick'::regclass, 'duewheel.lease_event'::regclass)
      and l.mode = 'RowExclusiveLock' and l.pid <> pg_backend_pid() and a.xact_start > v_now - v_age / 2;
    select r.reported_to into v_reported_to from duewheel.report r
    -- After a clock was set back, reported_to is in the future.
    where r.reported_to <= v_to - v_at_least or r.reported_to > v_now
    for update skip locked;
    if found then
        update duewheel.report set reported_to = v_to;
        until_at := v_to;
        since_at := least(greatest(v_reported_to, v_to - v_age), v_to);
    end if;
end
$$;

-- The messages of each topic that the ticks between two instants released, and the lateness of the newest max_ticks.
-- Messages are counted by the index, at least 10 000 of each queue. Counting more takes at most max_ms, of which a
-- queue gets a quarter of the remaining time. If that was too short, exact is false, and the number is extrapolated
-- from the counted share of time, up to ten times the count. After max_ms at most 5 ticks of a topic are read.
-- role: consumer
create or replace function duewheel.releases_between(
    since_at timestamptz, until_at timestamptz, max_ticks integer default 100, max_ms integer default 1000
) returns table (topic_name text, messages bigint, exact boolean, late interval[])
language plpgsql set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
declare
    v_stop_at constant timestamptz := clock_timestamp() + max_ms * interval '1 millisecond';
    v_queue_stop_at timestamptz;
    v_topic record;
    v_ticks record;
    v_queue smallint;
    v_at timestamptz;
    v_seq bigint;
    v_to_at timestamptz;
    v_to_seq bigint;
    v_is_full boolean;
    v_count bigint;
    v_share double precision;
begin
    perform duewheel.require_home();
    perform duewheel.check_limit('max_ticks', max_ticks, 1, 10000);
    perform duewheel.check_limit('max_ms', max_ms, 1, 10000);
    for v_topic in
        select t.topic_id, t.name, t.queues from duewheel.topic t
        where t.deleted_at is null and t.message_type not in ('RETRY', 'DEAD_LETTER')
          and (select k.hi from duewheel.tick k where k.topic_id = t.topic_id order by k.hi desc limit 1) > since_at
        order by t.name
    loop
        select min(k.lo) as lo, max(k.hi) as hi, sum(k.stragglers) as stragglers into v_ticks from duewheel.tick k
        where k.topic_id = v_topic.topic_id and k.hi > since_at and k.hi <= until_at;
        continue when v_ticks.hi is null;
        -- Stragglers are counted with the tick that released them.
        messages := v_ticks.stragglers;
        exact := true;
        for v_queue in select generate_series(0, v_topic.queues - 1) loop
            v_queue_stop_at := clock_timestamp() + (v_stop_at - clock_timestamp()) / 4;
            v_at := v_ticks.lo;
            v_seq := duewheel.last_seq();
            v_count := 0;
            loop
                select m.deliver_at, m.seq into v_to_at, v_to_seq from duewheel.any_message m
                where m.topic_id = v_topic.topic_id and m.queue = v_queue
                  and (m.deliver_at, m.seq) > (v_at, v_seq) and m.deliver_at >= v_at and m.deliver_at <= v_ticks.hi
                order by m.deliver_at, m.seq offset 9999 limit 1;
                v_is_full := found;
                if v_is_full then
                    v_count := v_count + 10000;
                else
                    v_to_at := v_ticks.hi;
                    v_to_seq := duewheel.last_seq();
                    v_count := v_count + (
                        select count(*) from (
                            select from duewheel.any_message m
                            where m.topic_id = v_topic.topic_id and m.queue = v_queue
                              and (m.deliver_at, m.seq) > (v_at, v_seq) and m.deliver_at >= v_at
                              and m.deliver_at <= v_to_at
                            order by m.deliver_at, m.seq limit 10000) m);
                end if;
                v_count := v_count - (
                    select count(*) from duewheel.straggler s
                    where s.topic_id = v_topic.topic_id and s.queue = v_queue
                      and (s.deliver_at, s.seq) > (v_at, v_seq) and (s.deliver_at, s.seq) <= (v_to_at, v_to_seq)) - (
                    select count(*) from duewheel.recall r
                    where r.topic_id = v_topic.topic_id and r.queue = v_queue
                      and (r.deliver_at, r.seq) > (v_at, v_seq) and (r.deliver_at, r.seq) <= (v_to_at, v_to_seq));
                v_at := v_to_at;
                v_seq := v_to_seq;
                exit when not v_is_full;
                if clock_timestamp() > v_queue_stop_at then
                    exact := false;
                    -- From the first message on: the first tick of a topic begins at -infinity.
                    select extract(epoch from v_at - m.deliver_at)
                           / nullif(extract(epoch from v_ticks.hi - m.deliver_at), 0) into v_share
                    from duewheel.any_message m
                    where m.topic_id = v_topic.topic_id and m.queue = v_queue
                      and m.deliver_at > v_ticks.lo and m.deliver_at <= v_ticks.hi
                    order by m.deliver_at, m.seq limit 1;
                    v_count := v_count / greatest(coalesce(v_share, 1), 0.1);
                    exit;
                end if;
            end loop;
            messages := messages + v_count;
        end loop;
        messages := greatest(0, messages);
        select coalesce(array_agg(k.late), '{}') into late
        from duewheel.late_ticks(
            v_topic.topic_id, v_topic.queues, since_at, until_at,
            case when clock_timestamp() > v_stop_at then least(max_ticks, 5) else max_ticks end) k;
        topic_name := v_topic.name;
        return next;
    end loop;
end
$$;

-- The leases whose end without an answer was noticed between two instants, of the newest max_leases.
-- role: consumer
create or replace function duewheel.expired_between(
    since_at timestamptz, until_at timestamptz, max_leases integer default 100000
) returns table (consumer_group text, topic text, leases bigint)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
begin
    perform duewheel.require_home();
    perform duewheel.check_limit('max_leases', max_leases, 1, 100000);
    return query
    select s.group_name, coalesce(parent.name, t.name), sum(l.leases)::bigint
    from (
        select e.topic_id, e.group_id, count(*) as leases
        from (
            select e.topic_id, e.group_id from duewheel.lease_event e
            where e.kind = 'expired' and e.at > since_at and e.at <= until_at
            order by e.at desc limit max_leases
        ) e
        group by 1, 2
    ) l
    join duewheel.topic t on t.topic_id = l.topic_id
    left join duewheel.topic parent on parent.topic_id = t.parent_topic_id
    join duewheel.subscription s on s.group_id = l.group_id
    group by 1, 2;
end
$$;
