-- Reads stored messages, waiting or released, without a group and without a lease.

-- Cuts the messages due from p_from on and before p_until into ranges of at most p_messages of a queue; null for no
-- limit. Instants are microseconds here. p_is_exact as for stream_cuts.
-- role: consumer
create or replace function duewheel.peek_cuts(
    p_topic text, p_from timestamptz, p_until timestamptz, p_messages bigint, p_bytes bigint,
    p_is_exact boolean default true
) returns table (
    topic_id integer, queue integer, from_at bigint, from_seq bigint, to_at bigint, to_seq bigint, messages bigint
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_topic constant duewheel.topic := duewheel.topic_by_name(p_topic);
    v_from constant bigint := duewheel.stream_micros(least(
        coalesce(p_from, '-infinity'), duewheel.last_instant()));
    v_to constant bigint := duewheel.unix_micros(least(p_until, duewheel.last_instant())) - 1;
begin
    if p_until <= p_from then
        return;
    end if;
    return query
    select v_topic.topic_id, q, case when c.n = 1 then v_from else lag(c.at) over w end,
           case when c.n = 1 then -1 else lag(c.seq) over w end, c.at, c.seq, c.messages
    from generate_series(0, v_topic.queues - 1) q
    cross join lateral duewheel.stream_cuts(
        v_topic.topic_id, q, v_from, -1, v_to, duewheel.last_seq(), null, null, p_messages, p_bytes, p_is_exact
    ) with ordinality c (at, seq, straggler, messages, n)
    window w as (partition by q order by c.n)
    order by q, c.n;
end
$$;
