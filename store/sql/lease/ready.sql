-- Ready: what a group could receive now.

-- The released messages of a queue that a group has not received: the first p_limit in the order of their instants, as
-- many late messages, and one more of each kind. Recalled messages are among them, so that a call costs the same
-- however many there are. It skips a portion of messages that no tick has released yet; the message after that portion
-- takes the place p_limit + 1. is_wanted: the message is within p_limit, was not recalled, and has a chosen tag and
-- properties.
create or replace function duewheel.unread_rows(
    p_group_id integer, p_topic_id integer, p_queue smallint, p_limit bigint, p_tags text[] default null,
    p_filter jsonpath default null
) returns table (deliver_at timestamptz, message_group text, place bigint, is_wanted boolean)
language sql stable
begin atomic
    select m.deliver_at, m.message_group, m.place,
           m.place <= p_limit
           and duewheel.is_chosen(m.tag, m.content_type, m.properties, p_tags, p_filter)
           and (m.no_recalls
                or (select true from duewheel.recall_of(p_topic_id, p_queue, m.deliver_at, m.seq)) is null)
    -- Asked once, not for each message.
    from (select * from duewheel.queue_state(p_group_id, p_topic_id, p_queue) offset 0) p
    cross join lateral (
        (select r.deliver_at, r.seq, r.tag, r.content_type, r.properties, r.message_group, p.no_recalls,
                case when r.looked_at > p_limit + duewheel.portion() then p_limit + 1
                     else row_number() over (order by r.deliver_at, r.seq) end as place
         from (
            select r.deliver_at, r.seq, r.tag, r.content_type, r.properties, r.message_group,
                   row_number() over (order by r.deliver_at, r.seq) as looked_at,
                   p.seen_below is null or r.xid < p.seen_below or pg_visible_in_snapshot(r.xid, (
                       select t.snapshot from duewheel.tick_over(p_topic_id, r.deliver_at) t)) as is_seen
            from duewheel.released_rows(
                p_topic_id, p_queue, p.to_at, p.to_seq, p.hi, duewheel.last_seq(), null, true, null, null, true) r
            where p.has_messages
            order by r.deliver_at, r.seq limit p_limit + duewheel.portion() + 1
         ) r
         where r.is_seen or r.looked_at > p_limit + duewheel.portion()
         order by r.deliver_at, r.seq limit p_limit + 1)
        union all
        (select r.deliver_at, r.seq, r.tag, r.content_type, r.properties, r.message_group, false, s.place
         from (
            select s.deliver_at, s.seq, row_number() over (order by s.straggler_id) as place
            from duewheel.straggler s
            where s.topic_id = p_topic_id and s.queue = p_queue and s.straggler_id > p.straggler_to
              and s.straggler_id <= p.last_straggler
            order by s.straggler_id limit p_limit + 1
         ) s
         cross join lateral duewheel.message_at(p_topic_id, p_queue, s.deliver_at, s.seq) r)
    ) m;
end;

-- Of the first p_limit unread messages of a queue, the number that the group receives, and the oldest of them; and the
-- number of unread messages up to p_limit + 1, in order or late, whichever is larger. More than p_limit means that
-- further messages follow. Without tags, a filter, recalls and late messages it reads the primary key alone.
create or replace function duewheel.count_unread(
    p_group_id integer, p_topic_id integer, p_queue smallint, p_limit bigint, p_tags text[] default null,
    p_filter jsonpath default null,
    out wanted bigint, out oldest_deliver_at timestamptz, out unread bigint
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_at record;
begin
    if p_tags is null and p_filter is null then
        select p.to_at, p.to_seq, p.hi into v_at from duewheel.queue_state(p_group_id, p_topic_id, p_queue) p
        where p.no_recalls and p.last_straggler = p.straggler_to;
        if found and duewheel.released_whole(p_topic_id, p_queue, v_at.to_at, v_at.hi) then
            select least(count(*), p_limit), case when p_limit > 0 then min(m.deliver_at) end, count(*)
            into wanted, oldest_deliver_at, unread
            from (
                select m.deliver_at
                from duewheel.released_rows(
                    p_topic_id, p_queue, v_at.to_at, v_at.to_seq, v_at.hi, duewheel.last_seq(), null, true, null, null,
                    true) m
                order by m.deliver_at, m.seq limit p_limit + 1
            ) m;
            return;
        end if;
    end if;
    select count(*) filter (where m.is_wanted), min(m.deliver_at) filter (where m.is_wanted), coalesce(max(m.place), 0)
    into wanted, oldest_deliver_at, unread
    -- With the offset, each is judged once.
    from (select * from duewheel.unread_rows(p_group_id, p_topic_id, p_queue, p_limit, p_tags, p_filter) offset 0) m;
end
$$;

-- How many messages of a queue are ready for a group, the oldest of them, and how many unread ones there are: as
-- count_unread says. On a FIFO topic all tags count, and only messages whose message group is free: up to p_limit of
-- the backlog, and free messages among the first p_limit unread messages. Only 100 message groups of each kind are
-- looked up. With more, the whole backlog counts, and so do unread messages of further message groups.
create or replace function duewheel.count_ready(
    p_group_id integer, p_topic_id integer, p_queue smallint, p_now timestamptz, p_limit bigint,
    p_tags text[] default null, p_filter jsonpath default null,
    out ready bigint, out oldest_deliver_at timestamptz, out unread bigint
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    c_looked_up constant bigint := 100;
    v_is_every_free boolean := true;
    v_message_groups text[];
    v_backlog record;
begin
    -- Without a backlog and an unanswered lease every message group is free.
    if duewheel.is_fifo(p_topic_id) then
        v_is_every_free := not exists (
            select from duewheel.fifo_backlog b
            where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue)
        and not duewheel.has_ended_leases(
            p_group_id, p_topic_id, p_queue,
            (select l.revived_to from duewheel.newest_lease(p_group_id, p_topic_id, p_queue) l), 'infinity');
    end if;
    if v_is_every_free then
        select c.wanted, c.oldest_deliver_at, c.unread into ready, oldest_deliver_at, unread
        from duewheel.count_unread(p_group_id, p_topic_id, p_queue, p_limit, p_tags, p_filter) c;
        return;
    end if;
    v_message_groups := array(select * from duewheel.fifo_free_groups(
        p_group_id, p_topic_id, p_queue, null, p_now, least(p_limit, c_looked_up)));
    select case when cardinality(v_message_groups) < c_looked_up then count(*) else (
               select count(*) from (
                   select from duewheel.fifo_backlog b
                   where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue limit p_limit) b
           ) end as ready, min(b.deliver_at) as oldest_deliver_at
    into v_backlog
    from duewheel.fifo_backlog_rows(p_group_id, p_topic_id, p_queue, v_message_groups, p_now, p_limit) b;
    with unread_of_group as materialized (
        select coalesce(m.message_group, '') as message_group, count(*) filter (where m.is_wanted) as messages,
               min(m.deliver_at) filter (where m.is_wanted) as deliver_at,
               max(m.place) as place,
               row_number() over (order by min(m.deliver_at)) as number
        from (select * from duewheel.unread_rows(p_group_id, p_topic_id, p_queue, p_limit) offset 0) m
        group by 1
    )
    select coalesce(sum(u.messages) filter (where f.is_free), 0), min(u.deliver_at) filter (where f.is_free),
           coalesce(max(u.place), 0)
    into ready, oldest_deliver_at, unread
    from unread_of_group u
    cross join lateral (
        select case when u.number > c_looked_up then true
            when (select b.due_at from duewheel.fifo_backlog b
                  where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
                    and b.message_group = u.message_group
                  order by b.place limit 1) > p_now then false
            else duewheel.fifo_holder(p_group_id, p_topic_id, p_queue, u.message_group) is null end as is_free offset 0
    ) f;
    ready := least(ready + v_backlog.ready, p_limit);
    oldest_deliver_at := least(oldest_deliver_at, v_backlog.oldest_deliver_at);
end
$$;
