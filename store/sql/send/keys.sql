-- The messages of a sender's key. A lookup costs the same however many messages the key once had: after each few dozen
-- recalled or released messages, a mark lets the next lookup skip them.

-- How many recalled or released messages a lookup reads before it marks them.
create or replace function duewheel.key_mark_after() returns integer
language sql immutable parallel safe
return 32;

-- The newest mark of a key, and which transactions a lookup reads: from from_xid on, and xids. Inlined in FROM.
create or replace function duewheel.newest_mark(p_topic_id integer, p_key text)
returns table (released_id text, recalled_id text, from_xid xid8, xids xid8[])
language sql stable
begin atomic
    select k.released_id, k.recalled_id, pg_snapshot_xmax(k.snapshot), array(
               select distinct x from unnest(k.but_xids || array(select pg_snapshot_xip(k.snapshot))) x
               where x < pg_snapshot_xmax(k.snapshot))
    from duewheel.key_mark k
    where k.topic_id = p_topic_id and k.key = p_key collate "C"
    order by k.topic_id desc, k.key desc, k.mark_id desc limit 1;
end;

-- The messages of a key that were sent by some transactions, or by one from p_from on. Inlined in FROM.
create or replace function duewheel.key_rows(p_topic_id integer, p_key text, p_from xid8, p_xids xid8[])
returns setof duewheel.any_message
language sql stable
begin atomic
    select * from duewheel.any_message m
    where m.topic_id = p_topic_id and m.key = p_key collate "C" and m.xid >= p_from
    union all
    select m.*
    from unnest(p_xids) x (xid)
    cross join lateral (
        select * from duewheel.any_message m
        where m.topic_id = p_topic_id and m.key = p_key collate "C" and m.xid = x.xid offset 0) m;
end;

-- Whether a message exists and the logs still have its outcome.
create or replace function duewheel.is_known(p_message_id text) returns boolean
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_id record;
begin
    if p_message_id is null then
        return false;
    end if;
    v_id := duewheel.parse_message_id(p_message_id);
    return exists (
        select from duewheel.message_at(v_id.topic_id, v_id.queue::smallint, v_id.deliver_at, v_id.seq) m
        where not duewheel.is_forgotten(m.topic_id, m.queue, m.deliver_at, m.seq, m.xid));
end
$$;

-- The waiting messages of a key, by their instants. If none waits, the answer: already_released, recalled or not_found.
-- released: how many were released; messages before the newest mark count as one.
create or replace function duewheel.messages_of_key(
    p_topic_id integer, p_key text, out queues smallint[], out ats timestamptz[], out seqs bigint[], out otherwise text,
    out released bigint
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_snapshot constant pg_snapshot := pg_current_snapshot();
    -- Before the recalls are read: recalls in time for this tick are committed.
    v_hi constant timestamptz := (select t.hi from duewheel.newest_tick(p_topic_id) t);
    v_kept_from constant timestamptz := (select t.kept_from from duewheel.topic t where t.topic_id = p_topic_id);
    v_mark record;
    v_found record;
begin
    select * into v_mark from duewheel.newest_mark(p_topic_id, p_key);
    select coalesce(array_agg(m.queue order by m.deliver_at, m.seq) filter (where m.state is null), '{}') as queues,
           coalesce(array_agg(m.deliver_at order by m.deliver_at, m.seq) filter (where m.state is null), '{}') as ats,
           coalesce(array_agg(m.seq order by m.deliver_at, m.seq) filter (where m.state is null), '{}') as seqs,
           array_agg(distinct m.xid) filter (where m.state is null) as xids, count(m.state) as over,
           count(*) filter (where m.state = 'released') as released,
           (array_agg(m.id order by m.deliver_at desc) filter (where m.state = 'released'))[1] as released_id,
           (array_agg(m.id order by m.deliver_at desc) filter (where m.state = 'recalled'))[1] as recalled_id
    into v_found
    from (
        select m.queue, m.deliver_at, m.seq, m.xid,
               duewheel.message_id(m.topic_id, m.queue, m.deliver_at, m.seq) as id,
               case when (select true from duewheel.recall_of(m.topic_id, m.queue, m.deliver_at, m.seq))
                    then case when (select p.seq from duewheel.present_place(m.topic_id, m.seq) p) <> m.seq
                              then 'moved' else 'recalled' end
                    when m.deliver_at <= v_hi and (
                            select true from duewheel.held_back b
                            where b.topic_id = m.topic_id and b.deliver_at = m.deliver_at and b.queue = m.queue
                              and b.seq = m.seq limit 1) is null
                    then case when m.deliver_at < v_kept_from and duewheel.is_forgotten(
                                  m.topic_id, m.queue, m.deliver_at, m.seq, m.xid)
                              then 'forgotten' else 'released' end end as state
        from duewheel.key_rows(p_topic_id, p_key, coalesce(v_mark.from_xid, '0'), v_mark.xids) m
        offset 0
    ) m;
    queues := v_found.queues;
    ats := v_found.ats;
    seqs := v_found.seqs;
    released := v_found.released;
    if duewheel.is_known(v_mark.released_id) then
        v_found.released_id := coalesce(v_found.released_id, v_mark.released_id);
        released := released + 1;
    end if;
    if v_found.recalled_id is null and duewheel.is_known(v_mark.recalled_id) then
        v_found.recalled_id := v_mark.recalled_id;
    end if;
    otherwise := case when v_found.released_id is not null then 'already_released'
                      when v_found.recalled_id is not null then 'recalled' else 'not_found' end;
    if v_found.over > duewheel.key_mark_after() and coalesce(cardinality(v_found.xids), 0) <= 32 then
        insert into duewheel.key_mark (topic_id, key, snapshot, but_xids, released_id, recalled_id)
        values (p_topic_id, p_key, v_snapshot, v_found.xids || pg_current_xact_id(), v_found.released_id,
                v_found.recalled_id);
    end if;
end
$$;
