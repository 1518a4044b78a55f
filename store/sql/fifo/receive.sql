-- Receiving from a FIFO topic. A step of the walk runs under the queue's lock.

-- Sorts messages that were just seen, in order: messages of free message groups into the lease p_n, at most p_room, the
-- rest into the backlog. sorted: how many were sorted; the others follow the last message that the lease had room for.
-- leased: how many of the sorted messages are in the lease.
create or replace function duewheel.fifo_sort_in(
    p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint, p_room bigint,
    p_ats timestamptz[], p_seqs bigint[], p_message_groups text[], p_attempts integer[],
    out sorted bigint, out leased bigint
)
language plpgsql as $$
declare
    v_place constant bigint := nextval('duewheel.message_block') * 65536;
begin
    with fresh as materialized (
        select f.deliver_at, f.seq, f.message_group, f.attempt, v_place + f.number as place
        from unnest(p_ats, p_seqs, p_message_groups, p_attempts)
            with ordinality f (deliver_at, seq, message_group, attempt, number)
    ), known as materialized (
        select g.message_group,
               duewheel.fifo_holder(p_group_id, p_topic_id, p_queue, g.message_group, p_n) as holder,
               (select true from duewheel.fifo_backlog b
                where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
                  and b.message_group = g.message_group limit 1) as has_backlog
        from (select distinct f.message_group from fresh f) g
    ), judged as (
        select f.*, k.holder, k.has_backlog, k.holder is null and k.has_backlog is null as free,
               count(*) filter (where k.holder is null and k.has_backlog is null) over (order by f.place) as taken,
               row_number() over (partition by f.message_group order by f.place) as turn
        from fresh f join known k on k.message_group = f.message_group
    ), sorted_in as materialized (
        select * from judged j where j.taken - j.free::integer < p_room
    ), parked as (
        insert into duewheel.fifo_backlog
            (topic_id, group_id, queue, message_group, place, deliver_at, seq, source_topic_id, source_queue, attempt,
             blocked_n)
        select p_topic_id, p_group_id, p_queue, s.message_group, s.place, s.deliver_at, s.seq, p_topic_id, p_queue,
               s.attempt, case when s.has_backlog is null and s.turn = 1 then s.holder end
        from sorted_in s where not s.free
    ), held as (
        insert into duewheel.lease_message
            (topic_id, group_id, queue, n, place, deliver_at, seq, source_topic_id, source_queue, attempt,
             message_group)
        select p_topic_id, p_group_id, p_queue, p_n, s.place, s.deliver_at, s.seq, p_topic_id, p_queue, s.attempt,
               s.message_group
        from sorted_in s where s.free
    )
    select count(*), count(*) filter (where s.free) into sorted, leased from sorted_in s;
end
$$;

-- Returns the next messages of a queue in the order in which ticks released them, at most p_limit, and the position
-- after them. Stragglers of a tick follow the interval of the previous tick. straggler_ids is null if the messages are
-- not stragglers.
create or replace function duewheel.fifo_read(
    p_topic_id integer, p_queue smallint, p_at timestamptz, p_seq bigint, p_straggler bigint, p_last_straggler bigint,
    p_hi timestamptz, p_limit bigint, p_every boolean, p_tags text[], p_filter jsonpath,
    out ats timestamptz[], out seqs bigint[], out message_groups text[], out attempts integer[],
    out straggler_ids bigint[], out to_at timestamptz, out to_seq bigint, out to_straggler bigint
)
language plpgsql as $$
declare
    v_seen_below xid8;
begin
    select max(s.straggler_id) filter (where (s.behind_at, duewheel.last_seq()) <= (p_at, p_seq)), min(s.behind_at)
    into to_straggler, to_at
    from (
        select s.straggler_id, s.behind_at from duewheel.straggler s
        where s.topic_id = p_topic_id and s.queue = p_queue
          and s.straggler_id > p_straggler and s.straggler_id <= p_last_straggler
        order by s.straggler_id limit p_limit) s;
    if to_straggler is not null then
        to_at := p_at;
        to_seq := p_seq;
        select array_agg(r.deliver_at), array_agg(r.seq), array_agg(r.message_group), array_agg(r.attempt),
               array_agg(r.straggler_id)
        into ats, seqs, message_groups, attempts, straggler_ids
        from (
            select (r.message).deliver_at, (r.message).seq,
                   coalesce((r.message).message_group, '') as message_group, (r.message).attempt, r.straggler_id
            from duewheel.straggler_rows(p_topic_id, p_queue, p_straggler, to_straggler, p_every, p_tags, p_filter) r
            order by r.straggler_id
        ) r;
        return;
    end if;
    to_straggler := p_straggler;
    to_at := coalesce(to_at, p_hi);
    to_seq := duewheel.last_seq();
    select pg_snapshot_xmin(t.snapshot) into v_seen_below from duewheel.tick_behind(p_topic_id, p_at, p_seq) t;
    select array_agg(r.deliver_at), array_agg(r.seq), array_agg(r.message_group), array_agg(r.attempt)
    into ats, seqs, message_groups, attempts
    from (
        select r.deliver_at, r.seq, coalesce(r.message_group, '') as message_group, r.attempt
        from duewheel.released_rows(
            p_topic_id, p_queue, p_at, p_seq, to_at, to_seq, v_seen_below, p_every, p_tags, p_filter, false) r
        order by r.deliver_at, r.seq limit p_limit
    ) r;
    if cardinality(ats) = p_limit then
        to_at := ats[p_limit];
        to_seq := seqs[p_limit];
    end if;
end
$$;

-- Fills the lease that follows a walk with at most p_room messages: backlog and new messages in turn, half of the room
-- each, so that neither a message group with a long backlog nor new message groups starve. walk: the group's position,
-- which moves past seen messages; parked: how many messages of other message groups this receive has put into the
-- backlog, at most 10 000.
create or replace function duewheel.fifo_lease(
    p_group_id integer, inout walk duewheel.queue_walk, p_room bigint, p_tags text[], p_filter jsonpath,
    inout parked bigint, out leased bigint
)
language plpgsql as $$
declare
    v_n constant bigint := walk.n + 1;
    v_every constant boolean := p_tags is null and p_filter is null;
    v_more boolean := walk.has_messages or walk.last_straggler > walk.straggler_to;
    v_share constant bigint := case when v_more then (p_room + v_n % 2) / 2 else p_room end;
    v_shared bigint := 0;
    v_limit bigint;
    v_read record;
    v_sorted record;
begin
    if v_share > 0 then
        v_shared := duewheel.fifo_lease_backlog(p_group_id, walk.topic_id, walk.queue, v_n, walk.now_at, v_share);
    end if;
    leased := v_shared;
    v_limit := greatest(p_room - leased, 16);
    while v_more and leased < p_room and parked < 10000 loop
        v_read := duewheel.fifo_read(walk.topic_id, walk.queue, walk.to_at, walk.to_seq, walk.straggler_to,
                                     walk.last_straggler, walk.hi, v_limit, v_every, p_tags, p_filter);
        v_sorted := duewheel.fifo_sort_in(p_group_id, walk.topic_id, walk.queue, v_n, p_room - leased, v_read.ats,
                                          v_read.seqs, v_read.message_groups, v_read.attempts);
        leased := leased + v_sorted.leased;
        parked := parked + v_sorted.sorted - v_sorted.leased;
        if v_sorted.sorted = coalesce(cardinality(v_read.ats), 0) then
            walk.to_at := v_read.to_at;
            walk.to_seq := v_read.to_seq;
            walk.straggler_to := v_read.to_straggler;
        elsif v_read.straggler_ids is null then
            walk.to_at := v_read.ats[v_sorted.sorted];
            walk.to_seq := v_read.seqs[v_sorted.sorted];
        else
            walk.straggler_to := v_read.straggler_ids[v_sorted.sorted];
        end if;
        v_limit := least(v_limit * 4, 10000);
        walk.has_messages := (walk.hi, duewheel.last_seq()) > (walk.to_at, walk.to_seq);
        v_more := walk.last_straggler > walk.straggler_to or walk.has_messages;
    end loop;
    if leased < p_room and v_share < p_room and v_shared = v_share then
        leased := leased + duewheel.fifo_lease_backlog(p_group_id, walk.topic_id, walk.queue, v_n, walk.now_at,
                                                       p_room - leased);
    end if;
end
$$;

-- The messages that a lease lists, in their order.
create or replace function duewheel.fifo_rows(p_group_id integer, p_topic_id integer, p_queue integer, p_n bigint)
returns setof duewheel.leased_message
language sql stable
begin atomic
    select l.*
    from duewheel.lease_message h
    cross join lateral duewheel.message_at(h.source_topic_id, h.source_queue, h.deliver_at, h.seq) m
    cross join lateral duewheel.as_leased(m, h.attempt) l
    where h.topic_id = p_topic_id and h.group_id = p_group_id and h.queue = p_queue and h.n = p_n
    order by h.place;
end;

-- Puts redriven dead letters from the group's retries into the backlogs, 1 000 in a call: each after the seen messages
-- of its message group. The dead letter is still stored in the retry topic; only its place is in the backlog.
create or replace function duewheel.fifo_take_back(p_group_id integer, p_topic_id integer, p_retry_topic_id integer)
returns void
language plpgsql as $$
declare
    v_state record;
    v_place constant bigint := nextval('duewheel.message_block') * 65536;
    v_most constant integer := 1000;
    v_taken record;
begin
    select * into v_state from duewheel.queue_state(p_group_id, p_retry_topic_id, 0::smallint);
    if (v_state.has_messages or v_state.last_straggler > v_state.straggler_to) is not true
       or not pg_try_advisory_xact_lock(duewheel.queue_lock_key(p_group_id, p_retry_topic_id, 0))
       -- Another consumer may have done it just before this one had the lock.
       or exists (
           select from duewheel.newest_lease(p_group_id, p_retry_topic_id, 0) l where l.n > v_state.n) then
        return;
    end if;
    with late as materialized (
        select s.straggler_id from duewheel.straggler s
        where s.topic_id = p_retry_topic_id and s.queue = 0 and s.straggler_id > v_state.straggler_to
          and s.straggler_id <= v_state.last_straggler
        order by s.straggler_id limit v_most
    ), due as materialized (
        -- Without recalled messages: a rewind recalls redriven ones.
        select r.deliver_at, r.seq
        from duewheel.released_rows(
            p_retry_topic_id, 0::smallint, v_state.to_at, v_state.to_seq, v_state.hi, duewheel.last_seq(),
            v_state.seen_below, true, null, null, false) r
        order by r.deliver_at, r.seq limit v_most
    ), put as (
        insert into duewheel.fifo_backlog
            (topic_id, group_id, queue, message_group, place, deliver_at, seq, source_topic_id, source_queue, attempt,
             blocked_n, reason)
        select p_topic_id, p_group_id, m.origin_queue, coalesce(m.message_group, ''),
               v_place + row_number() over (order by m.deliver_at, m.seq), m.deliver_at, m.seq, p_retry_topic_id, 0,
               m.attempt, 0, m.reason
        from (
            select d.deliver_at, d.seq from due d
            union all
            select (r.message).deliver_at, (r.message).seq
            from duewheel.straggler_rows(
                p_retry_topic_id, 0::smallint, v_state.straggler_to,
                (select max(l.straggler_id) from late l), true, null, null) r
        ) r
        cross join lateral duewheel.message_at(p_retry_topic_id, 0::smallint, r.deliver_at, r.seq) m
    )
    select (select max(l.straggler_id) from late l) as straggler_to,
           (array_agg(row(0, d.deliver_at, d.seq)::duewheel.message_position order by d.deliver_at, d.seq)
            )[v_most] as at
    into v_taken from due d;
    insert into duewheel.lease
        (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
         message_count, listed, leased_at, expires_at, revived_to)
    values (p_retry_topic_id, p_group_id, 0, v_state.n + 1, 0, v_state.to_at, v_state.to_seq,
            coalesce((v_taken.at).deliver_at, v_state.hi), coalesce((v_taken.at).seq, duewheel.last_seq()),
            v_state.straggler_to, coalesce(v_taken.straggler_to, v_state.straggler_to), 0, true, v_state.revived_to,
            v_state.revived_to, v_state.revived_to);
end
$$;

-- As duewheel.receive_batch, of a FIFO topic.
create or replace function duewheel.fifo_receive(
    p_group_id integer, p_topic_id integer, p_retry_topic_id integer, p_queues integer, p_tags text[],
    p_filter jsonpath, p_max bigint, p_chunk integer, p_invisible interval, p_consumer text, p_first_source integer,
    p_rows boolean, p_now timestamptz
) returns setof duewheel.leased_message
language plpgsql as $$
declare
    v_walk duewheel.queue_walk;
    v_from duewheel.queue_walk;
    v_room bigint;
    v_taken record;
    v_row duewheel.leased_message;
    v_leased bigint := 0;
    v_parked bigint := 0;
begin
    perform duewheel.fifo_take_back(p_group_id, p_topic_id, p_retry_topic_id);
    -- Only the queue's lock shows its backlog, so the walk visits every queue. The backlogs also hold the retries.
    for v_turn in p_queues .. 2 * p_queues - 1 loop
        exit when v_leased >= p_max;
        v_walk := duewheel.enter_queue(
            p_group_id, p_topic_id, ((p_first_source + v_turn - 1) % p_queues)::smallint, true, p_now);
        while v_walk.n is not null and v_leased < p_max loop
            v_from := v_walk;
            v_room := least(p_max - v_leased, p_chunk);
            v_taken := duewheel.fifo_lease(p_group_id, v_walk, v_room, p_tags, p_filter, v_parked);
            v_walk := v_taken.walk;
            v_parked := v_taken.parked;
            v_leased := v_leased + v_taken.leased;
            if v_taken.leased > 0 or v_walk.straggler_to > v_from.straggler_to
               or (v_walk.to_at, v_walk.to_seq) <> (v_from.to_at, v_from.to_seq)
            then
                v_walk.n := v_walk.n + 1;
                v_row.lease := duewheel.note_lease(p_group_id, v_from, v_walk, v_taken.leased, p_invisible, p_tags,
                                                   p_filter, p_consumer, true);
            end if;
            if v_taken.leased > 0 then
                if p_rows then
                    return query select * from duewheel.fifo_rows(p_group_id, p_topic_id, v_walk.queue, v_walk.n);
                end if;
                return next v_row;
            end if;
            exit when v_taken.leased < v_room;
        end loop;
    end loop;
end
$$;
