-- Streams: readers whose place is kept elsewhere, as by Spark in its checkpoint. A place in a queue is the instant and
-- number of the last message read, and the number of the last straggler read. The rows between two places never change:
-- a tick is never changed, and a released message cannot be recalled. So a stream takes no leases. It moves the group's
-- position when it has finished a part, so that its lag is seen and retention knows.
--
-- Instants are microseconds here, null for the beginning.

create or replace function duewheel.stream_instant(p_micros bigint) returns timestamptz
language sql stable parallel safe
return case when p_micros is null then '-infinity'::timestamptz else duewheel.from_unix_micros(p_micros) end;

create or replace function duewheel.stream_micros(p_at timestamptz) returns bigint
language sql immutable parallel safe
return case when p_at = '-infinity' then null else duewheel.unix_micros(p_at) end;

-- Raises if another program has moved the group since the stream did.
create or replace function duewheel.require_stream(p_group_id integer, p_topic_id integer, p_stream text) returns void
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_position record;
    v_newest duewheel.lease;
    v_own duewheel.lease;
begin
    for v_position in select * from duewheel.positions(p_group_id, p_topic_id) loop
        select * into v_newest from duewheel.newest_lease(p_group_id, v_position.topic_id, v_position.queue);
        continue when v_newest.consumer = duewheel.stream_name(p_stream);
        select * into v_own from (
            select * from duewheel.lease l
            where l.topic_id = v_position.topic_id and l.group_id = p_group_id and l.queue = v_position.queue
            order by l.n desc limit 1000) l
        where l.consumer = duewheel.stream_name(p_stream) limit 1;
        -- A queue that was added later has no row of the stream yet; upkeep leaves rows that move nothing.
        continue when v_own.n is null and v_newest.n = 0;
        continue when (v_own.to_at, v_own.to_seq, v_own.straggler_to)
                      = (v_newest.to_at, v_newest.to_seq, v_newest.straggler_to);
        raise exception using
            errcode = 'DW017',
            message = format('the group of this stream was %s, in queue %s', case
                when v_newest.consumer is not null then format('read by "%s"', v_newest.consumer)
                when v_newest.token = -1 then 'rewound'
                else 'skipped by upkeep, because it had read nothing for the broker''s abandoned_after' end,
                v_position.queue),
            hint = 'Only one stream may read a group. Give each stream and each consumer its own group; begin a new '
                   'stream with a new checkpoint after a rewind or a skip.';
    end loop;
end
$$;

-- Moves the group of a stream to the stream's place, if that is ahead of the group.
-- role: consumer
create or replace function duewheel.stream_commit(
    p_group_id integer, p_topic_id integer, p_stream text, p_topic_ids integer[], p_queues integer[], p_ats bigint[],
    p_seqs bigint[], p_stragglers bigint[]
) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    perform duewheel.require_read_committed();
    perform duewheel.lock_queues(p_group_id, p_topic_id);
    perform duewheel.require_stream(p_group_id, p_topic_id, p_stream);
    if exists (
        select from duewheel.positions(p_group_id, p_topic_id) p
        join unnest(p_topic_ids, p_queues, p_ats) s (topic_id, queue, at)
            on s.topic_id = p.topic_id and s.queue = p.queue
        where duewheel.stream_instant(s.at) > greatest(p.hi, p.to_at)
    ) or exists (
        select from unnest(p_stragglers) s (straggler)
        where s.straggler > coalesce(pg_sequence_last_value('duewheel.straggler_straggler_id_seq'), 0)
    ) then
        raise exception using
            errcode = 'DW010',
            message = 'the places of the stream are after the newest released message',
            hint = 'Give places that stream_latest returned in this database, as a checkpoint holds them.';
    end if;
    insert into duewheel.lease
        (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
         message_count, consumer, leased_at, expires_at, revived_to)
    select p.topic_id, p_group_id, p.queue, p.n + 1, 0, p.to_at, p.to_seq, s.at, s.seq, p.straggler_to, s.straggler, 0,
           duewheel.stream_name(p_stream), now.at, now.at, p.revived_to
    from duewheel.positions(p_group_id, p_topic_id) p
    join (
        select u.topic_id, u.queue, duewheel.stream_instant(u.at) as at, u.seq, u.straggler
        from unnest(p_topic_ids, p_queues, p_ats, p_seqs, p_stragglers) u (topic_id, queue, at, seq, straggler)
    ) s on s.topic_id = p.topic_id and s.queue = p.queue
    cross join (select clock_timestamp() as at) now
    where (s.at, s.seq) >= (p.to_at, p.to_seq) and s.straggler >= p.straggler_to
      and (s.at, s.seq, s.straggler) <> (p.to_at, p.to_seq, p.straggler_to);
end
$$;

-- The places at which a new stream of a group begins; the stream then owns the group. p_start: "group" for the group's
-- position, "earliest", "latest", or "at" p_at: with messages due from then on, or released after it although they were
-- due earlier. A stream that has not finished its first part yet is returned again, by its name: no checkpoint has its
-- beginning. p_removed_after: when a group without a chosen name is removed, once its stream is gone for good.
-- role: consumer
create or replace function duewheel.stream_start(
    p_group_id integer, p_topic_id integer, p_stream text, p_start text, p_at timestamptz default null,
    p_removed_after interval default null
) returns table (stream text, topic_id integer, queue integer, at bigint, seq bigint, straggler bigint)
language plpgsql set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
declare
    v_begins boolean;
    v_other text;
    v_hi timestamptz;
    v_straggler_id bigint;
begin
    perform duewheel.require_read_committed();
    if duewheel.is_fifo(p_topic_id) then
        raise exception using
            errcode = 'DW010',
            message = 'the topic is of type FIFO: a stream cannot keep the order of each message group over retries',
            hint = 'Receive its messages in batches.';
    end if;
    perform duewheel.lock_queues(p_group_id, p_topic_id);
    update duewheel.subscription s set removed_after = p_removed_after
    where s.group_id = p_group_id and s.topic_id = p_topic_id and s.removed_after is distinct from p_removed_after;
    -- A rewind does not move the retries.
    select max(l.consumer) filter (where p.ordinal > 0),
           count(distinct l.consumer) = 1
               and bool_and(l.consumer is not null and (l.from_at, l.from_seq, l.straggler_from)
                                                       = (l.to_at, l.to_seq, l.straggler_to))
    into v_other, v_begins
    from duewheel.positions(p_group_id, p_topic_id) p
    -- By its key: a join would read all leases of the group.
    left join lateral (
        select * from duewheel.lease l
        where l.topic_id = p.topic_id and l.group_id = p_group_id and l.queue = p.queue and l.n = p.n
          and l.consumer like duewheel.stream_name('%')
        limit 1
    ) l on true;
    if v_begins then
        return query
        select substr(v_other, length(duewheel.stream_name('')) + 1), p.topic_id, p.queue::integer,
               duewheel.stream_micros(p.to_at), p.to_seq, p.straggler_to
        from duewheel.positions(p_group_id, p_topic_id) p order by p.ordinal;
        return;
    end if;
    if v_other is not null then
        raise exception using
            errcode = 'DW017',
            message = format('the group is read by another stream, "%s"', v_other),
            hint = 'Give each stream its own group, or continue from the checkpoint of the other stream. If that '
                   'checkpoint is lost, rewind the group to take it over.';
    end if;
    select r.hi, r.straggler_id into v_hi, v_straggler_id
    from duewheel.released_before(p_topic_id, case p_start when 'at' then p_at when 'earliest' then '-infinity' end) r;
    if p_start = 'at' then
        v_hi := greatest(p_at, (select t.kept_from from duewheel.topic t where t.topic_id = p_topic_id))
                - interval '1 microsecond';
    end if;
    insert into duewheel.lease
        (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,
         message_count, consumer, leased_at, expires_at, revived_to)
    select p.topic_id, p_group_id, p.queue, p.n + 1, case when (s.at, s.seq) < (p.to_at, p.to_seq) then -1 else 0 end,
           s.at, s.seq, s.at, s.seq, s.straggler, s.straggler, 0, duewheel.stream_name(p_stream), now.at, now.at,
           p.revived_to
    from duewheel.positions(p_group_id, p_topic_id) p
    cross join lateral (
        -- Retries belong to the group: they continue at its position.
        select case when p_start <> 'group' and p.ordinal > 0 then v_hi else p.to_at end as at,
               case when p_start <> 'group' and p.ordinal > 0 then duewheel.last_seq() else p.to_seq end as seq,
               case when p_start <> 'group' and p.ordinal > 0 then v_straggler_id else p.straggler_to end as straggler
    ) s
    cross join (select clock_timestamp() as at) now;
    return query
    select p_stream, p.topic_id, p.queue::integer, duewheel.stream_micros(p.to_at), p.to_seq, p.straggler_to
    from duewheel.positions(p_group_id, p_topic_id) p order by p.ordinal;
end
$$;

-- How far streams at these places may read, all queues of all their topics up to one instant: Spark decides by the
-- newest of all earlier rows whether a row is late. The instant is before every message that still waits. A straggler
-- is read with the messages of its instant or, being late, after them. p_streams null: no stream reads, the places are
-- for display. p_to_*: not further than these places, which such a call has returned. The stream of a paused group does
-- not move.
-- role: consumer
create or replace function duewheel.stream_latest(
    p_group_ids integer[], p_subscribed integer[], p_streams text[], p_topic_ids integer[], p_queues integer[],
    p_ats bigint[], p_seqs bigint[], p_stragglers bigint[], p_to_topic_ids integer[] default null,
    p_to_queues integer[] default null, p_to_ats bigint[] default null, p_to_stragglers bigint[] default null
) returns table (subscribed integer, topic_id integer, queue integer, at bigint, seq bigint, straggler bigint)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_paused constant integer[] := array(
        select r.topic_id from unnest(p_group_ids, p_subscribed) r (group_id, topic_id)
        where p_streams is not null and duewheel.is_paused(r.group_id, r.topic_id));
    v_instant timestamptz;
begin
    perform duewheel.require_read_committed();
    perform duewheel.require_stream(r.group_id, r.topic_id, r.stream)
    from unnest(p_group_ids, p_subscribed, p_streams) r (group_id, topic_id, stream) where r.stream is not null;
    select min(coalesce(m.deliver_at - interval '1 microsecond', p.furthest)) into v_instant
    from (
        select p.topic_id, p.queue, p.hi, max(p.hi) over () as furthest
        from unnest(p_group_ids, p_subscribed) r (group_id, topic_id)
        cross join lateral duewheel.positions(r.group_id, r.topic_id) p
        where r.topic_id <> all (v_paused)
    ) p
    left join lateral (
        select m.deliver_at from duewheel.any_message m
        where m.topic_id = p.topic_id and m.queue = p.queue and m.deliver_at > coalesce(p.hi, '-infinity')
          and m.deliver_at <= p.furthest
        order by m.deliver_at, m.seq limit 1) m on true;
    return query
    select s.subscribed, s.topic_id, s.queue::integer, duewheel.stream_micros(greatest(s.at, s.to_at)),
           case when s.to_at >= s.at then duewheel.last_seq() else s.seq end, coalesce((
                select max(g.straggler_id) from duewheel.straggler g
                where s.to_straggler is not null and g.topic_id = s.topic_id and g.queue = s.queue
                  and g.straggler_id > s.straggler and g.straggler_id <= s.to_straggler
                  and g.straggler_id < coalesce((
                        select min(l.straggler_id) from duewheel.straggler l
                        where l.topic_id = s.topic_id and l.queue = s.queue and l.straggler_id > s.straggler
                          and l.deliver_at > v_instant), duewheel.last_seq())), s.straggler)
    from (
        select r.topic_id as subscribed, p.ordinal, p.topic_id, p.queue, duewheel.stream_instant(s.at) as at,
               coalesce(s.seq, duewheel.last_seq()) as seq, coalesce(s.straggler, 0) as straggler,
               case when r.topic_id <> all (v_paused) then least(
                    coalesce(p.hi, '-infinity'), v_instant,
                    case when p_to_queues is not null then duewheel.stream_instant(g.at) end) end as to_at,
               case when r.topic_id = any (v_paused) then null when p_to_queues is null then duewheel.last_seq()
                    else g.straggler end as to_straggler
        from unnest(p_group_ids, p_subscribed) r (group_id, topic_id)
        cross join lateral duewheel.positions(r.group_id, r.topic_id) p
        left join unnest(p_topic_ids, p_queues, p_ats, p_seqs, p_stragglers) s (topic_id, queue, at, seq, straggler)
            on s.topic_id = p.topic_id and s.queue = p.queue
        left join unnest(p_to_topic_ids, p_to_queues, p_to_ats, p_to_stragglers) g (topic_id, queue, at, straggler)
            on g.topic_id = p.topic_id and g.queue = p.queue
    ) s
    order by s.subscribed, s.ordinal;
end
$$;

-- How far streams read that may read from the first places to the second ones: the first p_messages messages of all
-- queues by their instants, with bodies of p_bytes at most and one body more; null for no limit. A straggler counts at
-- its instant or, being late, right after the straggler before it.
-- role: consumer
create or replace function duewheel.stream_cut(
    p_topic_ids integer[], p_queues integer[], p_ats bigint[], p_seqs bigint[], p_stragglers bigint[],
    p_to_ats bigint[], p_to_seqs bigint[], p_to_stragglers bigint[], p_messages bigint, p_bytes bigint
) returns table (topic_id integer, queue integer, at bigint, seq bigint, straggler bigint)
language plpgsql stable set datestyle = 'ISO' set enable_sort = off set jit = off as $$
#variable_conflict use_column
declare
    -- The number of a straggler as that of a message, before all messages of its instant.
    v_before constant bigint := -duewheel.last_seq();
    v_bytes constant text := case when p_bytes is null then '0' else 'octet_length(m.body)' end;
    v_messages text;
    v_cut record;
begin
    perform duewheel.require_home();
    -- One plan that merges the indexes of all queues, and reads no further than to the cut.
    select string_agg(format(
        '(select m.deliver_at, m.seq, %1$s from duewheel.any_message m where m.topic_id = %2$s and m.queue = %3$s '
        'and (m.deliver_at, m.seq) > (%4$L, %5$s) and m.deliver_at >= %4$L '
        'and m.deliver_at <= %6$L and (m.deliver_at, m.seq) <= (%6$L, %7$s) order by m.deliver_at, m.seq)',
        v_bytes, s.topic_id, s.queue, duewheel.stream_instant(s.at), s.seq, duewheel.stream_instant(s.to_at), s.to_seq)
        || case when s.to_straggler > s.straggler then format(
            ' union all (select m.deliver_at, m.straggler_id + %1$s, %2$s from (select s.straggler_id, m.body, '
            'max(s.deliver_at) over (order by s.straggler_id) as deliver_at from duewheel.straggler s '
            'cross join lateral duewheel.message_at(%3$s, %4$s::smallint, s.deliver_at, s.seq) m '
            'where s.topic_id = %3$s and s.queue = %4$s and s.straggler_id > %5$s and s.straggler_id <= %6$s '
            'order by s.straggler_id limit %7$L) m order by 1, 2)',
            v_before, v_bytes, s.topic_id, s.queue, s.straggler, s.to_straggler, p_messages + 1) else '' end,
        ' union all ')
    into v_messages
    from unnest(p_topic_ids, p_queues, p_ats, p_seqs, p_stragglers, p_to_ats, p_to_seqs, p_to_stragglers)
        s (topic_id, queue, at, seq, straggler, to_at, to_seq, to_straggler);
    execute format(
        'select m.deliver_at, m.seq from ('
        'select m.*, row_number() over w as place, sum(m.bytes) over w as bytes_to, lead(true) over w as is_followed '
        'from (%s) m (deliver_at, seq, bytes) '
        'window w as (order by m.deliver_at, m.seq rows unbounded preceding)) m '
        'where m.is_followed and (m.place = $1 or m.bytes_to >= $2) order by m.deliver_at, m.seq limit 1', v_messages)
    into v_cut using p_messages, p_bytes;
    return query
    select s.topic_id, s.queue, case when c.is_end then s.to_at else duewheel.stream_micros(c.at) end,
           case when c.is_end then s.to_seq else c.seq end,
           case when v_cut.seq is null then s.to_straggler else coalesce((
                select max(g.straggler_id) from (
                    select g.straggler_id, max(g.deliver_at) over (order by g.straggler_id) as deliver_at
                    from duewheel.straggler g
                    where g.topic_id = s.topic_id and g.queue = s.queue and g.straggler_id > s.straggler
                      and g.straggler_id <= s.to_straggler) g
                where (g.deliver_at, g.straggler_id + v_before) <= (v_cut.deliver_at, v_cut.seq)), s.straggler) end
    from unnest(p_topic_ids, p_queues, p_ats, p_seqs, p_stragglers, p_to_ats, p_to_seqs, p_to_stragglers)
        s (topic_id, queue, at, seq, straggler, to_at, to_seq, to_straggler)
    cross join lateral (
        -- The place before the messages of an instant is the one after the messages of the previous instant.
        select case when v_cut.seq < 0 then v_cut.deliver_at - interval '1 microsecond' else v_cut.deliver_at end,
               case when v_cut.seq < 0 then duewheel.last_seq() else v_cut.seq end) cut (at, seq)
    cross join lateral (
        select (cut.at, cut.seq) >= (duewheel.stream_instant(s.to_at), s.to_seq) is not false as is_end,
               greatest(cut.at, duewheel.stream_instant(s.at)) as at,
               case when (cut.at, cut.seq) > (duewheel.stream_instant(s.at), s.seq) then cut.seq else s.seq end as seq
    ) c;
end
$$;

-- The places at which to cut the messages between two places of a queue, the last one included: into parts of at most
-- p_messages, whose bodies have at most p_bytes and one body more. Stragglers precede all others; in the mode peek,
-- which has none, their numbers are null. p_is_exact false: 1 000 messages are counted and the others estimated, and
-- only a range that may be too large for one part is counted and cut, which costs a third of the read. A part may then
-- exceed p_messages and p_bytes by far if nearly all rows next to this range belong to other topics.
-- role: consumer
create or replace function duewheel.stream_cuts(
    p_topic_id integer, p_queue integer, p_from bigint, p_from_seq bigint, p_to bigint, p_to_seq bigint,
    p_straggler_from bigint, p_straggler_to bigint, p_messages bigint, p_bytes bigint, p_is_exact boolean default true
) returns table (at bigint, seq bigint, straggler bigint, messages bigint)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on set datestyle = 'ISO' as $$
#variable_conflict use_column
declare
    v_from constant timestamptz := duewheel.stream_instant(p_from);
    v_to constant timestamptz := duewheel.stream_instant(p_to);
    v_counted constant bigint := 1000;
    v_condition text;
    v_all record;
begin
    perform duewheel.require_home();
    if not p_is_exact then
        select count(*) as messages, coalesce(sum(octet_length(m.body)), 0) as bytes,
               count(*) filter (where m.is_late) as late
        into v_all
        from (
            (select m.body, true as is_late from duewheel.straggler s
             cross join lateral duewheel.message_at(p_topic_id, p_queue::smallint, s.deliver_at, s.seq) m
             where s.topic_id = p_topic_id and s.queue = p_queue and s.straggler_id > p_straggler_from
               and s.straggler_id <= p_straggler_to
             order by s.straggler_id limit v_counted)
            union all
            (select m.body, false from duewheel.any_message m
             where m.topic_id = p_topic_id and m.queue = p_queue
               and (m.deliver_at, m.seq) > (v_from, p_from_seq) and m.deliver_at >= v_from and m.deliver_at <= v_to
               and (m.deliver_at, m.seq) <= (v_to, p_to_seq)
             order by m.deliver_at, m.seq limit v_counted)) m;
        if v_all.messages - v_all.late >= v_counted then
            v_condition := format('topic_id = %s and queue = %s and deliver_at >= %L and deliver_at <= %L',
                                  p_topic_id, p_queue, v_from, v_to);
            select v_all.messages + sum(e.messages)::bigint as messages,
                   v_all.bytes + sum(e.body_bytes)::bigint as bytes, v_all.late
            into v_all
            from (
                select format('duewheel.%I', s.table_name)::regclass as sampled from duewheel.slot s
                where s.starts_at <= v_to and s.ends_at > v_from
                union all
                select 'duewheel.far_message'::regclass) t
            cross join lateral duewheel.sampled_rows(t.sampled, v_condition) e;
        end if;
        if v_all.late < v_counted and 2 * v_all.messages <= p_messages and 2 * v_all.bytes <= p_bytes then
            return query select p_to, p_to_seq, p_straggler_to, v_all.messages where v_all.messages > 0;
            return;
        end if;
    end if;
    return query
    with late as (
        select s.straggler_id, row_number() over w as place, octet_length(m.body) as bytes,
               sum(octet_length(m.body)) over w as bytes_to
        from duewheel.straggler s
        cross join lateral duewheel.message_at(p_topic_id, p_queue::smallint, s.deliver_at, s.seq) m
        where s.topic_id = p_topic_id and s.queue = p_queue and s.straggler_id > p_straggler_from
          and s.straggler_id <= p_straggler_to
        window w as (order by s.straggler_id rows unbounded preceding)
    ), others as (
        select m.deliver_at, m.seq, row_number() over w + l.messages as place, octet_length(m.body) as bytes,
               sum(octet_length(m.body)) over w + l.bytes as bytes_to
        from duewheel.any_message m
        cross join (select count(*) as messages, coalesce(sum(l.bytes), 0) as bytes from late l) l
        where m.topic_id = p_topic_id and m.queue = p_queue
          and (m.deliver_at, m.seq) > (v_from, p_from_seq) and m.deliver_at >= v_from and m.deliver_at <= v_to
          and (m.deliver_at, m.seq) <= (v_to, p_to_seq)
        window w as (order by m.deliver_at, m.seq rows unbounded preceding)
    )
    select duewheel.stream_micros(c.deliver_at), c.seq, c.straggler_id,
           c.place - lag(c.place, 1, 0::bigint) over (order by c.place)
    from (
        select m.deliver_at, m.seq, m.straggler_id, m.place,
               (lead(m.by_count) over w, lead(m.by_bytes) over w) is distinct from (m.by_count, m.by_bytes) as is_last
        from (
            select m.*, (m.place - 1) / p_messages as by_count, (m.bytes_to - m.bytes) / p_bytes as by_bytes
            from (
                select v_from as deliver_at, p_from_seq as seq, l.straggler_id, l.place, l.bytes, l.bytes_to from late l
                union all
                select o.deliver_at, o.seq, p_straggler_to, o.place, o.bytes, o.bytes_to from others o
            ) m
        ) m
        window w as (order by m.place)
    ) c
    where c.is_last
    order by c.place;
end
$$;

-- The lag of a stream at these places: the number of unread messages, counted up to 2 500 in a queue and estimated
-- above, and the time since the oldest of them was due; null without an unread message.
-- role: consumer
create or replace function duewheel.stream_lag(
    p_group_id integer, p_topic_id integer, p_topic_ids integer[], p_queues integer[], p_ats bigint[],
    p_seqs bigint[], p_stragglers bigint[], out messages bigint, out behind interval
)
language plpgsql set plan_cache_mode = force_generic_plan set enable_sort = on as $$
declare
    v_oldest timestamptz;
    v_hi timestamptz;
begin
    perform duewheel.require_home();
    select count(*), min(m.deliver_at), max(m.hi) into messages, v_oldest, v_hi
    from (
        select m.deliver_at, s.hi
        from (
            select p.ordinal, p.topic_id, p.queue, p.hi, duewheel.stream_instant(s.at) as at,
                   coalesce(s.seq, duewheel.last_seq()) as seq, coalesce(s.straggler, 0) as straggler
            from duewheel.positions(p_group_id, p_topic_id) p
            left join unnest(p_topic_ids, p_queues, p_ats, p_seqs, p_stragglers)
                s (topic_id, queue, at, seq, straggler)
                on s.topic_id = p.topic_id and s.queue = p.queue
        ) s
        cross join lateral (
            (select m.deliver_at from duewheel.any_message m
             where m.topic_id = s.topic_id and m.queue = s.queue and (m.deliver_at, m.seq) > (s.at, s.seq)
               and m.deliver_at >= s.at and m.deliver_at <= s.hi
             order by m.deliver_at, m.seq limit 2500)
            union all
            (select g.deliver_at from duewheel.straggler g
             where g.topic_id = s.topic_id and g.queue = s.queue and g.straggler_id > s.straggler
             order by g.straggler_id limit 2500)
        ) m
    ) m;
    if messages >= 2500 then
        messages := greatest(messages, duewheel.estimate_due(p_topic_id, v_oldest, v_hi));
    end if;
    behind := clock_timestamp() - v_oldest;
end
$$;

-- The SELECT that yields the messages released between two places of a queue; without stragglers (null), for the mode
-- peek, all that is stored there. A client may run it itself, for instance through COPY.
-- role: consumer
create or replace function duewheel.stream_query(
    p_topic_id integer, p_queue integer, p_from bigint, p_from_seq bigint, p_to bigint, p_to_seq bigint,
    p_straggler_from bigint, p_straggler_to bigint, p_tags text[] default null, p_filter jsonpath default null
) returns text
language plpgsql stable set plan_cache_mode = force_generic_plan set datestyle = 'ISO' as $$
declare
    v_from constant timestamptz := duewheel.stream_instant(p_from);
    v_to constant timestamptz := duewheel.stream_instant(p_to);
    v_every constant boolean := num_nonnulls(p_tags, p_filter) = 0;
begin
    perform duewheel.require_home();
    return format(
        'select * from duewheel.released_rows(%s, %s::smallint, %L::timestamptz, %s, %L::timestamptz, %s, %L::xid8, %L,'
        ' %L::text[], %L::jsonpath, %L)',
        p_topic_id, p_queue, v_from, p_from_seq, v_to, p_to_seq,
        -- Without a tick nothing is released.
        case when p_straggler_to is not null then
            coalesce((select pg_snapshot_xmin(t.snapshot) from duewheel.tick_over(p_topic_id, v_from) t), '0') end,
        v_every, p_tags, p_filter,
        not exists (
            select from duewheel.recall r
            where r.topic_id = p_topic_id and r.queue = p_queue and r.deliver_at >= v_from and r.deliver_at <= v_to))
        || case when p_straggler_to > p_straggler_from then format(
            ' union all select (s.message).* from duewheel.straggler_rows('
            '%s, %s::smallint, %s, %s, %L, %L::text[], %L::jsonpath) s',
            p_topic_id, p_queue, p_straggler_from, p_straggler_to, v_every, p_tags, p_filter) else '' end;
end
$$;

-- The same messages for a login that may not read the tables.
-- role: consumer
create or replace function duewheel.stream_rows(
    p_topic_id integer, p_queue integer, p_from bigint, p_from_seq bigint, p_to bigint, p_to_seq bigint,
    p_straggler_from bigint, p_straggler_to bigint, p_tags text[] default null, p_filter jsonpath default null
) returns setof duewheel.any_message
language plpgsql stable as $$
begin
    return query execute duewheel.stream_query(
        p_topic_id, p_queue, p_from, p_from_seq, p_to, p_to_seq, p_straggler_from, p_straggler_to, p_tags, p_filter);
end
$$;

-- The losses of a stream: the number of queues in which retention has dropped messages after its places, and an upper
-- bound of these messages, null if not all were counted when they were dropped; the group's position is then at most
-- one part behind the stream's place. A slot is dropped before the topic's kept_from shows it, and is looked up
-- separately.
-- role: consumer
create or replace function duewheel.stream_lost(
    p_group_id integer, p_topic_id integer, p_topic_ids integer[], p_queues integer[], p_ats bigint[]
) returns table (queues bigint, messages bigint)
language sql stable
begin atomic
    with dropped as (
        select d.ends_at, (u.value ->> 'messages')::bigint as messages,
               coalesce((u.value ->> 'at_least')::boolean, false) as is_at_least
        from duewheel.dropped_slot d cross join lateral jsonb_array_elements(d.unread) u (value)
        where u.value ->> 'topic' = (select t.name from duewheel.topic t where t.topic_id = p_topic_id)
          and u.value ->> 'consumer_group'
              = (select s.group_name from duewheel.subscription s where s.group_id = p_group_id)
    ), lost as (
        select duewheel.stream_instant(p.at) as at from unnest(p_topic_ids, p_queues, p_ats) p (topic_id, queue, at)
        left join duewheel.topic t on t.topic_id = p.topic_id and t.deleted_at is null
        where p.at is not null and (
            t.topic_id is null or t.kept_from > duewheel.stream_instant(p.at) + interval '1 microsecond'
            or p.topic_id = p_topic_id
                and exists (select from dropped d where d.ends_at > duewheel.stream_instant(p.at)))
    )
    select (select count(*) from lost),
           (select case when not bool_or(d.is_at_least) then sum(d.messages)::bigint end
            from dropped d where d.ends_at > (select min(l.at) from lost l));
end;
