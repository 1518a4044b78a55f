-- The wheel's questions: which leases end.

-- The next end of an unanswered lease of each subscription in (p_from, p_to]: at the cost of the leases that were to
-- end in that time.
create or replace function duewheel.lease_ends(p_from timestamptz, p_to timestamptz)
returns table (group_id integer, topic_id integer, expires_at timestamptz)
language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
begin
    return query
    select s.group_id, s.topic_id, min(e.expires_at)
    from (
        select l.topic_id, l.group_id, l.queue, l.n from duewheel.lease l
        where l.message_count > 0 and l.expires_at > p_from and l.expires_at <= p_to
        union
        select e.topic_id, e.group_id, e.queue, e.n from duewheel.lease_event e
        where e.expires_at is not null and e.expires_at > p_from and e.expires_at <= p_to
    ) l
    cross join lateral (
        select duewheel.lease_end(l.group_id, l.topic_id, l.queue, l.n) as expires_at
        where not exists (select from duewheel.final_event(l.group_id, l.topic_id, l.queue, l.n))
    ) e
    join duewheel.topic t on t.topic_id = l.topic_id
    join duewheel.subscription s on s.group_id = l.group_id and s.topic_id = coalesce(t.parent_topic_id, t.topic_id)
    join duewheel.topic parent on parent.topic_id = s.topic_id and parent.deleted_at is null
    where e.expires_at > p_from and e.expires_at <= p_to
    group by s.group_id, s.topic_id;
end
$$;
