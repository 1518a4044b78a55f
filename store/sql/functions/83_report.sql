-- What happened between two instants, for counters: each release and each lease that ended counts once, whoever turns
-- a wheel and however many report.

-- Claims what has happened since the last report, if that is at_least so long ago: the caller is the one to report it.
-- Null where another has. It ends 2 seconds ago: ticks and ends of leases carry the instant at which their transaction
-- began, and have committed by then. What is more than 10 minutes old is left out: a counter has no place for it.
create or replace function duewheel.claim_report(
    at_least interval, out since_at timestamptz, out until_at timestamptz
)
language plpgsql as $$
declare
    v_to constant timestamptz := clock_timestamp() - interval '2 seconds';
    v_reported_to timestamptz;
begin
    perform duewheel.require_home();
    select r.reported_to into v_reported_to from duewheel.report r
    -- A clock that was put back is behind it.
    where r.reported_to <= v_to - at_least or r.reported_to > v_to
    for update skip locked;
    if found then
        update duewheel.report set reported_to = v_to;
        until_at := v_to;
        since_at := least(greatest(v_reported_to, v_to - interval '10 minutes'), v_to);
    end if;
end
$$;

-- What the ticks between two instants released of each topic, and how late the newest max_ticks of them were. Messages
-- are counted up to 10 000 for each topic; above that the planner estimates, and exact is false. What max_ms leaves no
-- time for is left out.
create or replace function duewheel.releases_between(
    since_at timestamptz, until_at timestamptz, max_ticks integer default 100, max_ms integer default 1000
) returns table (topic_name text, messages bigint, exact boolean, late interval[])
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_stop_at constant timestamptz := clock_timestamp() + max_ms * interval '1 millisecond';
    v_topic record;
    v_ticks record;
    v_plan jsonb;
begin
    perform duewheel.require_home();
    for v_topic in
        select t.topic_id, t.name, t.queues from duewheel.topic t
        where t.deleted_at is null and t.message_type not in ('RETRY', 'DEAD_LETTER')
          and (select k.hi from duewheel.tick k where k.topic_id = t.topic_id order by k.hi desc limit 1) > since_at
        order by t.name
    loop
        exit when clock_timestamp() > v_stop_at;
        select min(k.lo) as lo, max(k.hi) as hi, sum(k.stragglers) as stragglers into v_ticks from duewheel.tick k
        where k.topic_id = v_topic.topic_id and k.hi > since_at and k.hi <= until_at;
        continue when v_ticks.hi is null;
        select count(*) into messages from (
            select from generate_series(0, v_topic.queues - 1) q cross join lateral (
                select from duewheel.any_message m
                where m.topic_id = v_topic.topic_id and m.queue = q::smallint
                  and m.deliver_at > v_ticks.lo and m.deliver_at <= v_ticks.hi
                order by m.deliver_at limit 10001) m
            limit 10001) m;
        exact := messages <= 10000;
        if not exact then
            execute format('explain (format json) select from duewheel.any_message m where m.topic_id = %s '
                           'and m.deliver_at > %L and m.deliver_at <= %L', v_topic.topic_id, v_ticks.lo, v_ticks.hi)
            into v_plan;
            messages := greatest(messages, (v_plan -> 0 -> 'Plan' ->> 'Plan Rows')::bigint);
        end if;
        -- What came later than its instant is counted with the tick that released it.
        messages := greatest(0, messages + v_ticks.stragglers - (
            select count(*) from duewheel.straggler s
            where s.topic_id = v_topic.topic_id and s.deliver_at > v_ticks.lo and s.deliver_at <= v_ticks.hi) - (
            select count(*) from (
                select from generate_series(0, v_topic.queues - 1) q cross join lateral (
                    select from duewheel.recall r
                    where r.topic_id = v_topic.topic_id and r.queue = q::smallint
                      and r.deliver_at > v_ticks.lo and r.deliver_at <= v_ticks.hi
                    limit 10001) r
                limit 10001) r));
        select coalesce(array_agg(k.late), '{}') into late
        from duewheel.late_ticks(v_topic.topic_id, v_topic.queues, since_at, until_at, max_ticks) k;
        topic_name := v_topic.name;
        return next;
    end loop;
end
$$;

-- The leases that ended without an answer between two instants; those that were noticed more than 10 minutes after
-- their end, as without a wheel, are left out.
create or replace function duewheel.expired_between(
    since_at timestamptz, until_at timestamptz
) returns table (consumer_group text, topic text, leases bigint)
language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
begin
    perform duewheel.require_home();
    return query
    select g.name, coalesce(parent.name, t.name), count(*)
    from (
        select l.topic_id, l.group_id, l.queue, l.n from duewheel.lease l
        where l.message_count > 0 and l.expires_at > since_at - interval '10 minutes' and l.expires_at <= until_at
        union
        select e.topic_id, e.group_id, e.queue, e.n from duewheel.lease_event e
        where e.expires_at is not null and e.expires_at > since_at - interval '10 minutes'
          and e.expires_at <= until_at
    ) l
    join duewheel.topic t on t.topic_id = l.topic_id
    left join duewheel.topic parent on parent.topic_id = t.parent_topic_id
    join duewheel.consumer_group g on g.group_id = l.group_id
    where exists (
        select from duewheel.lease_event e
        where e.topic_id = l.topic_id and e.group_id = l.group_id and e.queue = l.queue and e.n = l.n
          and e.kind = 'expired' and e.at > since_at and e.at <= until_at)
    group by 1, 2;
end
$$;
