-- The losses of a stream: in how many queues retention has dropped messages behind its places, and up to how many
-- messages as far as that was counted when they were dropped; the group's position is then behind the stream's place by
-- one part at most. A slot is dropped before the topic's kept_from says so, and is asked for by itself.
create or replace function duewheel.stream_lost(
    p_group_id integer, p_topic_id integer, p_topic_ids integer[], p_queues integer[], p_ats bigint[]
) returns table (queues bigint, messages bigint)
language sql stable
begin atomic
    with dropped as (
        select d.ends_at, (u.value ->> 'messages')::bigint as messages
        from duewheel.dropped_slot d cross join lateral jsonb_array_elements(d.unread) u (value)
        where u.value ->> 'topic' = (select t.name from duewheel.topic t where t.topic_id = p_topic_id)
          and u.value ->> 'consumer_group'
              = (select g.name from duewheel.consumer_group g where g.group_id = p_group_id)
    ), lost as (
        select p.at from unnest(p_topic_ids, p_queues, p_ats) p (topic_id, queue, at)
        where p.at is not null and (
            duewheel.stream_has_lost(p.topic_id, p.at)
            or p.topic_id = p_topic_id
                and exists (select from dropped d where d.ends_at > duewheel.stream_instant(p.at)))
    )
    select (select count(*) from lost), (
        select sum(d.messages)::bigint from dropped d
        where d.ends_at > (select duewheel.stream_instant(min(l.at)) from lost l));
end;
