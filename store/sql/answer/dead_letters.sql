-- Dead letters: the messages whose retries are used up, kept for their group.

-- A page of a group's dead letters: of one topic, the oldest first, then of the next topic. It ends after max_messages,
-- or before the message whose body would make it larger than max_bytes; one message always fits. Discarded dead letters
-- are not listed. The next page begins after place of the last row. A rare filter also ends a page: after max_looked_at
-- dead letters the last row has only a place. kept_until is when a dead letter may be dropped.
-- role: consumer
create or replace function duewheel.dead_letter_page(
    consumer_group text, topic text default null, redriven boolean default null,
    after jsonb default null, max_messages integer default 500, max_bytes bigint default 4194304,
    reason_contains text default null, with_bodies boolean default true, max_looked_at integer default 10000,
    key_prefix text default null, reason_lacks text default null, dead_from timestamptz default null,
    dead_until timestamptz default null
) returns table (
    topic_name text, message_id text, key text, tag text, properties jsonb, body bytea, born_at timestamptz,
    dead_at timestamptz, attempt integer, reason text, redriven_at timestamptz, kept_until timestamptz, place jsonb
)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
declare
    v_group duewheel.consumer_group := duewheel.group_by_name(dead_letter_page.consumer_group);
    v_after_topic constant integer := coalesce((dead_letter_page.after ->> 'topic')::integer, 0);
    v_left integer := dead_letter_page.max_looked_at;
    v_count integer := 0;
    v_bytes bigint := 0;
    v_subscription record;
    v_seq bigint;
    v_is_discarded boolean;
begin
    perform duewheel.require_known(null, dead_letter_page.topic);
    perform duewheel.check_limit('max_messages', max_messages, 1, 1000);
    perform duewheel.check_limit('max_bytes', max_bytes, 1, 1073741824);
    perform duewheel.check_limit('max_looked_at', max_looked_at, 1, 1000000);
    for v_subscription in
        select s.dead_letter_topic_id, t.name, t.dead_letter_retention,
               a.after_at, a.after_seq
        from duewheel.subscription s join duewheel.topic t on t.topic_id = s.topic_id and t.deleted_at is null
        cross join lateral duewheel.dead_letters_after(
            s.dead_letter_topic_id, dead_letter_page.after, dead_letter_page.redriven is false) a
        where s.group_name = v_group.name and s.dead_letter_topic_id >= v_after_topic
          and (dead_letter_page.topic is null or t.name = dead_letter_page.topic)
        order by s.dead_letter_topic_id
    loop
        for message_id, key, tag, properties, body, born_at, dead_at, attempt, reason, redriven_at, kept_until, v_seq,
            v_is_discarded in
            select duewheel.message_id(m.origin_topic_id, m.origin_queue, m.origin_deliver_at, m.origin_seq), m.key,
                   m.tag, duewheel.all_properties(m.content_type, m.properties), case when with_bodies then m.body end,
                   m.born_at, m.deliver_at, m.attempt, m.reason, r.redriven_at,
                   m.deliver_at + v_subscription.dead_letter_retention, m.seq, r.is_discarded
            from (
                select * from duewheel.any_message m
                where m.topic_id = v_subscription.dead_letter_topic_id and m.queue = 0
                  and (m.deliver_at, m.seq) > (v_subscription.after_at, v_subscription.after_seq)
                  and m.deliver_at >= v_subscription.after_at
                  and m.deliver_at >= coalesce(dead_letter_page.dead_from, '-infinity')
                  and m.deliver_at < coalesce(dead_letter_page.dead_until, 'infinity')
                order by m.deliver_at, m.seq limit v_left
            ) m
            left join lateral (
                select r.redriven_at, r.is_discarded from duewheel.redrive r
                where r.topic_id = m.topic_id and r.deliver_at = m.deliver_at and r.seq = m.seq limit 1) r on true
            order by m.deliver_at, m.seq
        loop
            v_left := v_left - 1;
            topic_name := v_subscription.name;
            continue when v_is_discarded or dead_letter_page.redriven <> (redriven_at is not null)
                or not coalesce(starts_with(key, dead_letter_page.key_prefix), dead_letter_page.key_prefix is null)
                or coalesce(strpos(reason, reason_contains), (reason_contains is null)::integer) = 0
                or strpos(reason, reason_lacks) > 0;
            v_count := v_count + 1;
            v_bytes := v_bytes + coalesce(octet_length(body), 0);
            if v_bytes > max_bytes and v_count > 1 then
                return;
            end if;
            place := jsonb_build_object('topic', v_subscription.dead_letter_topic_id, 'at', dead_at, 'seq', v_seq);
            return next;
            if v_count = max_messages then
                return;
            end if;
        end loop;
        if v_left = 0 then
            return query select null::text, null::text, null::text, null::text, null::jsonb, null::bytea,
                                null::timestamptz, null::timestamptz, null::integer, null::text, null::timestamptz,
                                null::timestamptz,
                                jsonb_build_object('topic', v_subscription.dead_letter_topic_id, 'at', dead_at,
                                                   'seq', v_seq);
            return;
        end if;
    end loop;
end
$$;

-- Where to read on in a dead-letter topic: after the place where a call ended. p_only_open: not before all dead letters
-- that were sent again or discarded.
create or replace function duewheel.dead_letters_after(
    p_topic_id integer, p_after jsonb, p_only_open boolean, out after_at timestamptz, out after_seq bigint
)
language plpgsql stable as $$
declare
    v_redrive_from constant timestamptz := case when p_only_open then duewheel.redrive_from(p_topic_id)
                                             else '-infinity' end;
begin
    after_at := v_redrive_from;
    after_seq := 0;
    if (p_after ->> 'topic')::integer = p_topic_id and (p_after ->> 'at')::timestamptz >= v_redrive_from then
        after_at := (p_after ->> 'at')::timestamptz;
        after_seq := (p_after ->> 'seq')::bigint;
    end if;
end
$$;

-- Notes on a dead-letter topic how far all dead letters were sent again or discarded, if that is at least a tenth of a
-- portion further than noted; at most a portion further. Redrives begin there. Returns whether it is further. Under the
-- lock no transaction has dead letters that are not committed, and each later one is due at that instant or later.
create or replace function duewheel.note_redrive_from(p_topic_id integer) returns boolean
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set jit = off set lock_timeout = '100ms' as $$
declare
    v_least constant integer := greatest(2, duewheel.portion() / 10);
    v_from timestamptz;
    v_to timestamptz;
begin
    select coalesce(t.redrive_from, '-infinity') into v_from from duewheel.topic t
    where t.topic_id = p_topic_id and t.message_type = 'DEAD_LETTER' and t.deleted_at is null;
    -- The usual reason comes first: the search ends at the first open one.
    if not found or exists (
        select from (
            select m.deliver_at, m.seq from duewheel.any_message m
            where m.topic_id = p_topic_id and m.queue = 0 and m.deliver_at >= v_from
            order by m.deliver_at, m.seq limit v_least) m
        where (select true from duewheel.redrive r
               where r.topic_id = p_topic_id and r.deliver_at = m.deliver_at and r.seq = m.seq limit 1) is null)
       or not exists (
        select from duewheel.any_message m
        where m.topic_id = p_topic_id and m.queue = 0 and m.deliver_at >= v_from
        order by m.deliver_at, m.seq offset v_least - 1 limit 1) then
        return false;
    end if;
    begin
        -- Some waiting, because a busy group always has new dead letters. Later deaths wait as long.
        perform pg_advisory_xact_lock(duewheel.dead_letter_lock_key(p_topic_id));
    exception when lock_not_available then
        return false;
    end;
    -- One join: a lookup for each would keep the lock for several times as long.
    with portion as materialized (
        select m.deliver_at, m.seq from duewheel.any_message m
        where m.topic_id = p_topic_id and m.queue = 0 and m.deliver_at >= v_from
        order by m.deliver_at, m.seq limit duewheel.portion() + 1
    )
    select coalesce(min(p.deliver_at) filter (where r.seq is null), max(p.deliver_at)) into v_to
    from portion p
    left join (
        select r.deliver_at, r.seq from duewheel.redrive r
        where r.topic_id = p_topic_id and r.deliver_at >= v_from
          and r.deliver_at <= (select max(e.deliver_at) from portion e)
    ) r on r.deliver_at = p.deliver_at and r.seq = p.seq;
    update duewheel.topic t set redrive_from = v_to
    where v_to > v_from and t.topic_id = (
        select o.topic_id from duewheel.topic o where o.topic_id = p_topic_id for no key update skip locked);
    return found;
end
$$;

-- The positions of the open dead letters of a topic that died between two instants: the oldest p_most. Dead letters
-- that were sent again or discarded are skipped by the keys of both tables alone, portion by portion. Usually the open
-- ones are all at one end: if the oldest p_max_looked_at have fewer than p_most, as many of the newest are read.
-- is_all: the topic has no further one.
create or replace function duewheel.open_dead_letters(
    p_topic_id integer, p_from timestamptz, p_until timestamptz, p_most integer, p_max_looked_at integer,
    out ats timestamptz[], out seqs bigint[], out is_all boolean
)
-- A portion is joined with the done ones of its range: single lookups would cost several times as much.
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set jit = off
as $$
declare
    v_low_at timestamptz := greatest(p_from, duewheel.redrive_from(p_topic_id));
    v_low_seq bigint := 0;
    v_high_at timestamptz := p_until;
    v_high_seq bigint := 0;
    v_order text;
    v_left integer;
    v_portion integer;
    v_some record;
    v_open record;
begin
    ats := '{}';
    seqs := '{}';
    foreach v_order in array array['asc', 'desc'] loop
        v_left := p_max_looked_at;
        while v_left > 0 loop
            v_portion := least(5000, v_left);
            execute format(
                'select count(*)::integer as count, array_agg(m.deliver_at order by m.deliver_at, m.seq) as ats,
                        array_agg(m.seq order by m.deliver_at, m.seq) as seqs
                 from (select m.deliver_at, m.seq from duewheel.any_message m
                       where m.topic_id = $1 and m.queue = 0 and (m.deliver_at, m.seq) > ($2, $3)
                         and (m.deliver_at, m.seq) < ($4, $5) and m.deliver_at >= $2 and m.deliver_at <= $4
                       order by m.deliver_at %1$s, m.seq %1$s limit $6) m', v_order)
            into v_some using p_topic_id, v_low_at, v_low_seq, v_high_at, v_high_seq, v_portion;
            select array_agg(p.deliver_at order by p.n) as ats, array_agg(p.seq order by p.n) as seqs into v_open
            from unnest(v_some.ats, v_some.seqs) with ordinality p (deliver_at, seq, n)
            left join (
                select r.deliver_at, r.seq from duewheel.redrive r
                where r.topic_id = p_topic_id and (r.deliver_at, r.seq) >= (v_some.ats[1], v_some.seqs[1])
                  and (r.deliver_at, r.seq) <= (v_some.ats[v_some.count], v_some.seqs[v_some.count])
            ) r on r.deliver_at = p.deliver_at and r.seq = p.seq
            where r.seq is null;
            ats := ats || v_open.ats;
            seqs := seqs || v_open.seqs;
            is_all := v_some.count < v_portion and cardinality(seqs) <= p_most;
            if v_some.count < v_portion or cardinality(seqs) >= p_most then
                ats := ats[:p_most];
                seqs := seqs[:p_most];
                return;
            elsif v_order = 'asc' then
                v_low_at := v_some.ats[v_portion];
                v_low_seq := v_some.seqs[v_portion];
            else
                v_high_at := v_some.ats[1];
                v_high_seq := v_some.seqs[1];
            end if;
            v_left := v_left - v_portion;
        end loop;
    end loop;
end
$$;

-- Counts a group's open dead letters that died between two instants by their reasons, the most frequent reason first,
-- with the instants of the first and the last death. Of each topic it counts the oldest max_open, among the oldest and
-- the newest max_looked_at; complete is false if there may be more. If none of them is open, one row without a reason
-- has the count 0.
-- role: consumer
create or replace function duewheel.dead_letter_reasons(
    consumer_group text, topic text default null, max_looked_at integer default 50000,
    max_reasons integer default 50, dead_from timestamptz default null, dead_until timestamptz default null,
    max_open integer default 20000
) returns table (reason text, messages bigint, first_dead_at timestamptz, last_dead_at timestamptz, complete boolean)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_sort = on as $$
#variable_conflict use_column
declare
    v_group duewheel.consumer_group := duewheel.group_by_name(dead_letter_reasons.consumer_group);
begin
    perform duewheel.require_known(null, dead_letter_reasons.topic);
    perform duewheel.check_limit('max_looked_at', max_looked_at, 1, 1000000);
    perform duewheel.check_limit('max_reasons', max_reasons, 1, 1000);
    perform duewheel.check_limit('max_open', max_open, 1, 1000000);
    return query
    with looked as materialized (
        select s.dead_letter_topic_id, o.ats, o.seqs, o.is_all
        from duewheel.subscription s
        join duewheel.topic t on t.topic_id = s.topic_id and t.deleted_at is null
        cross join lateral duewheel.open_dead_letters(
            s.dead_letter_topic_id, coalesce(dead_from, '-infinity'), coalesce(dead_until, 'infinity'),
            max_open, max_looked_at) o
        where s.group_name = v_group.name
          and (dead_letter_reasons.topic is null or t.name = dead_letter_reasons.topic)
    ), whole as (
        select bool_and(l.is_all) as is_all from looked l
    ), counted as (
        select m.reason, count(*) as messages, min(m.deliver_at) as first_at, max(m.deliver_at) as last_at
        from looked l
        cross join lateral unnest(l.ats, l.seqs) p (deliver_at, seq)
        cross join lateral duewheel.message_at(l.dead_letter_topic_id, 0::smallint, p.deliver_at, p.seq) m
        group by m.reason
    )
    select c.reason, coalesce(c.messages, 0), c.first_at, c.last_at, w.is_all
    from whole w left join counted c on true
    where c.messages is not null or not w.is_all
    order by c.messages desc, c.reason limit max_reasons;
end
$$;

-- One chunk of a redrive: sends up to p_limit dead letters again, as messages of the group's retry topic that are due
-- now. Without ids it scans a portion of the dead letters of a topic. It inserts a row into duewheel.redrive for each,
-- so every dead letter is redriven once. p_after is the end of the previous chunk, null for the first; next is the end
-- of this chunk, null after the last. Dead letters that appear after the first chunk are left to the next redrive.
-- p_reason: the exact reason. p_discard: discards the dead letters instead.
-- role: admin
create or replace function duewheel.redrive_chunk(
    p_group text, p_topic text, p_message_ids text[], p_tag text, p_key_prefix text, p_reason_contains text,
    p_dead_from timestamptz, p_dead_until timestamptz, p_limit integer, p_dry_run boolean, p_after jsonb,
    p_now timestamptz, p_reason text default null, p_discard boolean default false, p_reason_lacks text default null,
    out matched bigint, out redriven bigint, out next jsonb
)
-- By the keys, although the tables were small when they were last analyzed.
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_group duewheel.consumer_group := duewheel.group_by_name(p_group);
    v_criteria constant text :=
        case when p_message_ids is not null
             then ' and m.origin_seq = any ($8) and duewheel.message_id('
                  'm.origin_topic_id, m.origin_queue, m.origin_deliver_at, m.origin_seq) = any ($7)' else '' end
        || case when p_tag is not null then ' and m.tag = $9' else '' end
        || case when p_key_prefix is not null then ' and starts_with(m.key, $10)' else '' end
        || case when p_reason_contains is not null then ' and strpos(m.reason, $11) > 0' else '' end
        || case when p_reason is not null then ' and m.reason = $13' else '' end
        || case when p_reason_lacks is not null then ' and coalesce(strpos(m.reason, $14), 0) = 0' else '' end;
    -- A portion is joined with the done ones of its range; of given ids each is looked up.
    v_open constant text :=
        case when p_message_ids is null
             then 'and not exists (
                       select from duewheel.redrive r
                       where r.topic_id = $1 and (r.deliver_at, r.seq) > ($4, $5) and r.deliver_at >= $4
                         and ($15 is null or (r.deliver_at, r.seq) <= ($15, $16))
                         and r.deliver_at = m.deliver_at and r.seq = m.seq)'
             else 'and (select true from duewheel.redrive r
                        where r.topic_id = $1 and r.deliver_at = m.deliver_at and r.seq = m.seq limit 1) is null' end;
    v_origin_seqs bigint[];
    v_before_seq constant bigint := coalesce((p_after ->> 'before')::bigint, nextval('duewheel.message_block') * 65536);
    v_subscription record;
    v_some record;
    v_room integer;
    v_after record;
    -- The last dead letter of this portion; null if the portion is the last.
    v_end record;
    v_claimed record;
    v_rows refcursor;
begin
    perform duewheel.clock_at(p_now);
    perform duewheel.require_read_committed();
    perform duewheel.require_known(null, p_topic);
    perform duewheel.check_limit('the number of dead letters to redrive', p_limit, 1, 10000);
    if p_dead_from >= p_dead_until then
        raise exception using
            errcode = 'DW010',
            message = format('dead_until must be after dead_from; got dead_from %s and dead_until %s', p_dead_from,
                             p_dead_until),
            hint = 'Give a later dead_until: it is exclusive.';
    end if;
    v_origin_seqs := array(select (duewheel.parse_message_id(i)).seq from unnest(p_message_ids) i);
    matched := 0;
    redriven := 0;
    for v_subscription in
        select s as subscription, s.dead_letter_topic_id
        from duewheel.subscription s join duewheel.topic t on t.topic_id = s.topic_id and t.deleted_at is null
        where s.group_name = v_group.name and (p_topic is null or t.name = p_topic)
          and s.dead_letter_topic_id >= coalesce((p_after ->> 'topic')::integer, 0)
        order by s.dead_letter_topic_id
    loop
        v_room := p_limit - matched;
        v_after := duewheel.dead_letters_after(v_subscription.dead_letter_topic_id, p_after, true);
        -- An index finds dead letters by their ids.
        select m.deliver_at, m.seq into v_end from duewheel.any_message m
        where p_message_ids is null and m.topic_id = v_subscription.dead_letter_topic_id and m.queue = 0
          and m.deliver_at >= greatest(v_after.after_at, p_dead_from)
          and m.deliver_at < coalesce(p_dead_until, 'infinity')
          and (m.deliver_at, m.seq) > (v_after.after_at, v_after.after_seq)
        order by m.deliver_at, m.seq offset greatest(v_room, duewheel.portion()) - 1 limit 1;
        execute format(
            'select count(*) as count,
                    array_agg(m.deliver_at order by m.deliver_at, m.seq) as ats,
                    array_agg(m.seq order by m.deliver_at, m.seq) as seqs
             from (select m.deliver_at, m.seq from duewheel.any_message m
                   where m.topic_id = $1 and m.queue = 0 and m.deliver_at >= greatest($2, $4) and m.deliver_at < $3
                     and (m.deliver_at, m.seq) > ($4, $5) and m.seq < $6
                     and ($15 is null or (m.deliver_at, m.seq) <= ($15, $16)) %s %s
                   order by m.deliver_at, m.seq limit $12) m', v_criteria, v_open)
        into v_some
        using v_subscription.dead_letter_topic_id, coalesce(p_dead_from, '-infinity'),
              coalesce(p_dead_until, 'infinity'), v_after.after_at, v_after.after_seq, v_before_seq, p_message_ids,
              v_origin_seqs, p_tag, p_key_prefix, p_reason_contains, v_room, p_reason, p_reason_lacks,
              v_end.deliver_at, v_end.seq;
        matched := matched + v_some.count;
        if v_some.count > 0 and not p_dry_run then
            -- Always in this order: two redrives wait for each other and never in a circle.
            with claimed as (
                insert into duewheel.redrive (topic_id, deliver_at, seq, redriven_at, is_discarded)
                select v_subscription.dead_letter_topic_id, c.deliver_at, c.seq, coalesce(p_now, clock_timestamp()),
                       p_discard
                from unnest(v_some.ats, v_some.seqs) c (deliver_at, seq) order by c.deliver_at, c.seq
                on conflict on constraint redrive_pkey do nothing
                returning deliver_at, seq
            )
            select count(*) as count, array_agg(c.deliver_at) as ats, array_agg(c.seq) as seqs into v_claimed
            from claimed c;
            redriven := redriven + v_claimed.count;
            if not p_discard then
                open v_rows no scroll for
                    select m as message, m.reason as why from unnest(v_claimed.ats, v_claimed.seqs) c (deliver_at, seq)
                    cross join lateral duewheel.message_at(
                        v_subscription.dead_letter_topic_id, 0::smallint, c.deliver_at, c.seq) m;
                perform duewheel.resend(v_subscription.subscription, v_rows, 'redrive', null, p_now);
            end if;
        end if;
        if v_some.count = v_room or v_end.seq is not null then
            next := jsonb_build_object(
                'topic', v_subscription.dead_letter_topic_id,
                'at', case when v_some.count = v_room then v_some.ats[v_room] else v_end.deliver_at end,
                'seq', case when v_some.count = v_room then v_some.seqs[v_room] else v_end.seq end,
                'before', v_before_seq);
            exit;
        end if;
    end loop;
end
$$;

-- Redrives the dead letters of a group that meet every criterion and are open, the oldest first: up to max_messages,
-- and 10 000 in a call. Each keeps its id, attempts and last error, and gets one more attempt. If there may be more,
-- the next call begins after place.
-- role: admin
create or replace function duewheel.redrive(
    consumer_group text, topic text default null, message_ids text[] default null, tag text default null,
    key_prefix text default null, reason_contains text default null, dead_from timestamptz default null,
    dead_until timestamptz default null, max_messages integer default null, dry_run boolean default false,
    now timestamptz default null, reason_lacks text default null, after jsonb default null,
    out matched bigint, out redriven bigint, out place jsonb
)
language sql
return duewheel.redrive_chunk(
    consumer_group, topic, message_ids, tag, key_prefix, reason_contains, dead_from, dead_until,
    least(duewheel.portion(), max_messages), coalesce(dry_run, false), after, now, p_reason_lacks => reason_lacks);
