-- Bulk recall: everything that waits of a tag, a key prefix or a window of delivery instants.
--
-- It goes in chunks. On a connection of the broker each chunk is a transaction of its own, so the wheel waits for one
-- chunk at most; in a caller's transaction each chunk leaves one row in bulk_recall, whose check at COMMIT stands for
-- all of it.

create or replace function duewheel.check_bulk_recall_in_time() returns trigger
language plpgsql as $$
declare
    v_hi timestamptz;
begin
    perform duewheel.require_read_committed();
    perform duewheel.lock_recall_commit(new.topic_id);
    select t.hi into v_hi from duewheel.newest_tick(new.topic_id) t;
    if v_hi >= new.first_deliver_at then
        raise exception using
            errcode = 'DW012',
            message = format('messages due from %s were released up to %s, before their recall was committed',
                             new.first_deliver_at, v_hi),
            hint = 'The whole transaction is rolled back. Run it again: what is still waiting is recalled. With a '
                   'due_from that leaves time for the commit it cannot happen.';
    end if;
    return null;
end
$$;

do $$
begin
    if not exists (
        select from pg_trigger where tgname = 'bulk_recall_in_time' and tgrelid = 'duewheel.bulk_recall'::regclass
    ) then
        create constraint trigger bulk_recall_in_time after insert on duewheel.bulk_recall
        deferrable initially deferred for each row execute function duewheel.check_bulk_recall_in_time();
    end if;
end
$$;

-- The last key there can be with a prefix, in the order of the keys' bytes: keys have at most 255 characters. Null
-- where the database's encoding has no last character to go by.
create or replace function duewheel.last_key_with(p_prefix text) returns text
language sql stable
return case when getdatabaseencoding() = 'UTF8' then p_prefix || repeat(chr(1114111), 255) end;

create or replace function duewheel.check_bulk_recall(
    p_tag text, p_key_prefix text, p_due_from timestamptz, p_due_until timestamptz, p_everything boolean
) returns void
language plpgsql as $$
begin
    perform duewheel.require_read_committed();
    perform duewheel.check_message('', p_key_prefix, p_tag, null, null, null);
    if p_due_from >= p_due_until then
        raise exception using
            errcode = 'DW010',
            message = format('due_from is %s and due_until is %s; the window is empty', p_due_from, p_due_until),
            hint = 'Give a due_until after due_from: it is exclusive.';
    end if;
    if p_everything is not true and num_nonnulls(p_tag, p_key_prefix, p_due_from, p_due_until) = 0 then
        raise exception using
            errcode = 'DW010',
            message = 'no criterion says which messages to recall',
            hint = 'Give tag, key_prefix, due_from or due_until, or everything => true for all that waits.';
    end if;
    if p_everything and num_nonnulls(p_tag, p_key_prefix, p_due_from, p_due_until) > 0 then
        raise exception using
            errcode = 'DW010',
            message = 'everything is to be recalled, and there are criteria too',
            hint = 'Give one or the other.';
    end if;
end
$$;

-- One chunk of a bulk recall: at most p_limit messages that wait, and a count of those that were released before.
-- p_after is where the chunk before it ended, null at first; next is where this one did, null at the end. A message
-- recalled before does not match.
create or replace function duewheel.recall_chunk(
    p_topic text, p_tag text, p_key_prefix text, p_due_from timestamptz, p_due_until timestamptz, p_dry_run boolean,
    p_deferred boolean, p_limit integer, p_after jsonb, p_now timestamptz,
    out matched bigint, out recalled bigint, out already_released bigint, out next jsonb
)
-- By the keys, though tables were small when they were last looked at.
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_topic duewheel.topic := duewheel.topic_to_recall_from(p_topic);
    v_from constant timestamptz := coalesce(p_due_from, '-infinity');
    v_until constant timestamptz := coalesce(p_due_until, 'infinity');
    v_last_key constant text := duewheel.last_key_with(p_key_prefix);
    v_criteria constant text :=
        ' m.topic_id = $1 and m.deliver_at >= $2 and m.deliver_at < $3'
        || case when p_tag is not null then ' and m.tag = $4' else '' end
        || case when p_key_prefix is not null
                then ' and m.key >= $5 and starts_with(m.key, $5)' else '' end
        || case when v_last_key is not null then ' and m.key <= $6' else '' end
        || ' and (select true from duewheel.recall r where r.topic_id = m.topic_id and r.queue = m.queue'
           ' and r.deliver_at = m.deliver_at and r.seq = m.seq limit 1) is null';
    v_slot record;
    v_hi timestamptz;
    -- Where the walk through a slot stands: by key, or by queue.
    v_hi_of_slot timestamptz;
    v_queue integer;
    v_key text;
    v_at timestamptz;
    v_seq bigint;
    v_some record;
    v_room integer;
    v_queues smallint[] := '{}';
    v_ats timestamptz[] := '{}';
    v_seqs bigint[] := '{}';
    v_ours record;
    v_held bigint := 0;
    v_held_recalled bigint := 0;
    v_count bigint;
begin
    if p_now is not null then
        perform duewheel.require_clock_right(p_now);
    end if;
    if not (p_deferred or p_dry_run) then
        -- The topic's wheel waits for the chunk.
        perform duewheel.require_own_transaction();
    end if;
    if p_limit is null or p_limit not between 1 and 10000 then
        raise exception using
            errcode = 'DW010',
            message = format('a chunk of %s messages is asked for; the limit is 1 to 10000', p_limit),
            hint = 'Recall in several chunks.';
    end if;
    matched := 0;
    recalled := 0;
    already_released := 0;
    if p_after is null and exists (select from duewheel.held_back b where b.topic_id = v_topic.topic_id) then
        -- Sent behind the newest tick: these wait, though the counts below take them for released.
        for v_some in execute format(
            'select m.queue, m.deliver_at, m.seq from duewheel.held_back b cross join lateral (
                select * from duewheel.any_message m
                where m.topic_id = b.topic_id and m.queue = b.queue and m.deliver_at = b.deliver_at and m.seq = b.seq
                limit 1) m
             where b.topic_id = $1 and %s', v_criteria)
            using v_topic.topic_id, v_from, v_until, p_tag, p_key_prefix, v_last_key
        loop
            v_held := v_held + 1;
            if p_dry_run then
                already_released := already_released - 1;
            elsif duewheel.recall_position(v_topic.topic_id, v_some.queue, v_some.deliver_at, v_some.seq, p_now)
                  = 'recalled' then
                v_held_recalled := v_held_recalled + 1;
            end if;
        end loop;
    end if;
    <<walk>>
    for v_slot in
        select * from (
            -- Far messages first: one that is moved into its slot meanwhile is met there.
            select timestamptz '-infinity' as starts_at, timestamptz 'infinity' as ends_at, 'far_message' as table_name
            union all
            select s.starts_at, s.ends_at, s.table_name from duewheel.slot s
            where s.ends_at > v_from and s.starts_at < v_until
        ) s
        where s.starts_at >= coalesce((p_after ->> 'slot')::timestamptz, '-infinity')
        order by s.starts_at
    loop
        if v_slot.starts_at = (p_after ->> 'slot')::timestamptz then
            v_hi_of_slot := (p_after ->> 'hi')::timestamptz;
            v_queue := (p_after ->> 'queue')::integer;
            v_at := (p_after ->> 'at')::timestamptz;
            v_seq := (p_after ->> 'seq')::bigint;
            if p_key_prefix is not null then
                -- Who recalls may not read: the position is handed on, and the key is looked up anew.
                select m.key into v_key from duewheel.any_message m
                where m.topic_id = v_topic.topic_id and m.queue = v_queue and m.deliver_at = v_at and m.seq = v_seq;
                if v_key is null then
                    raise exception using
                        errcode = 'DW010',
                        message = 'no message is at the position where the chunk before this one ended',
                        hint = 'Begin anew: what was recalled before does not match again.';
                end if;
                v_queue := 0;
            end if;
        else
            select coalesce(max(t.hi), '-infinity') into v_hi_of_slot from (
                select t.hi from duewheel.newest_tick(v_topic.topic_id) t) t;
            v_queue := 0;
            v_key := p_key_prefix;
            v_at := v_hi_of_slot;
            v_seq := duewheel.last_seq();
            if v_slot.starts_at <= v_hi_of_slot then
                execute format(
                    'select count(*) from duewheel.%I m where %s and m.queue = any ($7) and m.deliver_at <= $8',
                    v_slot.table_name, v_criteria)
                into v_count
                using v_topic.topic_id, v_from, v_until, p_tag, p_key_prefix, v_last_key,
                      array(select generate_series(0, v_topic.queues - 1)::smallint), v_hi_of_slot;
                already_released := already_released + v_count;
            end if;
            if p_key_prefix is not null then
                -- Keys come first in this walk, so its beginning is before all instants.
                v_at := '-infinity';
                v_seq := -1;
            end if;
        end if;
        continue when v_slot.ends_at <= v_hi_of_slot;
        while v_queue < case when p_key_prefix is null then v_topic.queues else 1 end loop
            v_room := p_limit - cardinality(v_seqs);
            execute format(
                case when p_key_prefix is null then
                    'select array_agg(m.queue order by m.deliver_at, m.seq) as queues,
                            array_agg(m.deliver_at order by m.deliver_at, m.seq) as ats,
                            array_agg(m.seq order by m.deliver_at, m.seq) as seqs
                     from (select m.queue, m.deliver_at, m.seq from duewheel.%I m
                           where %s and m.queue = $7::smallint and m.deliver_at >= $9
                             and (m.deliver_at, m.seq) > ($9, $10)
                           order by m.deliver_at, m.seq limit $11) m'
                else
                    'select array_agg(m.queue order by m.key, m.deliver_at, m.seq) as queues,
                            array_agg(m.deliver_at order by m.key, m.deliver_at, m.seq) as ats,
                            array_agg(m.seq order by m.key, m.deliver_at, m.seq) as seqs
                     from (select m.queue, m.deliver_at, m.seq, m.key from duewheel.%I m
                           where %s and m.deliver_at > $8 and m.key >= $12
                             and (m.key, m.deliver_at, m.seq) > ($12, $9, $10)
                           order by m.key, m.deliver_at, m.seq limit $11) m'
                end, v_slot.table_name, v_criteria)
            into v_some
            using v_topic.topic_id, v_from, v_until, p_tag, p_key_prefix, v_last_key, v_queue,
                  v_hi_of_slot, v_at, v_seq, v_room, v_key;
            v_queues := v_queues || v_some.queues;
            v_ats := v_ats || v_some.ats;
            v_seqs := v_seqs || v_some.seqs;
            if cardinality(v_some.seqs) = v_room then
                next := jsonb_build_object(
                    'slot', v_slot.starts_at, 'hi', v_hi_of_slot, 'queue', v_some.queues[v_room],
                    'at', v_some.ats[v_room], 'seq', v_some.seqs[v_room]);
                exit walk;
            end if;
            v_queue := v_queue + 1;
            v_at := v_hi_of_slot;
            v_seq := duewheel.last_seq();
        end loop;
    end loop;

    recalled := v_held_recalled;
    matched := already_released + cardinality(v_seqs) + case when p_dry_run then v_held else v_held_recalled end;
    if p_dry_run or cardinality(v_seqs) = 0 then
        return;
    end if;
    select coalesce(max(t.hi), '-infinity') into v_hi from (
        select t.hi from duewheel.newest_tick(v_topic.topic_id) t) t;
    -- Always in this order: two bulk recalls wait for each other and never in a circle.
    with chosen as (
        select * from unnest(v_queues, v_ats, v_seqs) c (queue, deliver_at, seq) where c.deliver_at > v_hi
    ), made as (
        insert into duewheel.recall (topic_id, queue, bulk, deliver_at, seq, recalled_at)
        select v_topic.topic_id, c.queue, true, c.deliver_at, c.seq, coalesce(p_now, clock_timestamp())
        from chosen c order by c.queue, c.deliver_at, c.seq
        on conflict on constraint recall_pkey do nothing
        returning queue, deliver_at, seq
    )
    select (select count(*) from chosen) as chosen, count(*) as made, min(m.deliver_at) as first_at,
           array_agg(m.queue) as queues, array_agg(m.deliver_at) as ats, array_agg(m.seq) as seqs
    into v_ours from made m;
    recalled := v_held_recalled + v_ours.made;
    already_released := already_released + cardinality(v_seqs) - v_ours.chosen;
    -- Messages that another transaction recalled at the same time are that one's.
    matched := matched - (v_ours.chosen - v_ours.made);
    if v_ours.made = 0 then
        return;
    end if;
    if p_deferred then
        insert into duewheel.bulk_recall (topic_id, first_deliver_at, recalled, recalled_at)
        values (v_topic.topic_id, v_ours.first_at, v_ours.made, coalesce(p_now, clock_timestamp()));
        return;
    end if;
    perform duewheel.lock_ticking(v_topic.topic_id, true);
    select t.hi into v_hi from duewheel.newest_tick(v_topic.topic_id) t;
    if v_hi >= v_ours.first_at then
        -- Released while the rows were written: nobody has seen these.
        delete from duewheel.recall r
        using unnest(v_ours.queues, v_ours.ats, v_ours.seqs) o (queue, deliver_at, seq)
        where o.deliver_at <= v_hi and r.topic_id = v_topic.topic_id and r.queue = o.queue
          and r.deliver_at = o.deliver_at and r.seq = o.seq;
        get diagnostics v_count = row_count;
        recalled := recalled - v_count;
        already_released := already_released + v_count;
    end if;
    -- At COMMIT, that nobody has passed the lock.
    insert into duewheel.bulk_recall (topic_id, first_deliver_at, recalled, recalled_at)
    select v_topic.topic_id, min(o.deliver_at), recalled, coalesce(p_now, clock_timestamp())
    from unnest(v_ours.ats) o (deliver_at) where v_hi is null or o.deliver_at > v_hi
    having count(*) > 0;
end
$$;

-- Recalls everything that waits on a topic and has the tag, a key with the prefix, and an instant in [due_from,
-- due_until). In one transaction, the caller's: what is counted as recalled is never delivered if that commits.
-- Deferred, the check that it came in time runs at COMMIT, and until then nobody waits; else now, and the topic's wheel
-- waits for the COMMIT.
create or replace function duewheel.recall_many(
    topic text, tag text default null, key_prefix text default null, due_from timestamptz default null,
    due_until timestamptz default null, everything boolean default false, dry_run boolean default false,
    now timestamptz default null,
    out matched bigint, out recalled bigint, out already_released bigint
)
language plpgsql as $$
#variable_conflict use_column
declare
    v_chunk record;
    v_after jsonb;
begin
    if recall_many.now is not null then
        perform duewheel.require_clock_right(recall_many.now);
    end if;
    perform duewheel.check_bulk_recall(tag, key_prefix, due_from, due_until, everything);
    matched := 0;
    recalled := 0;
    already_released := 0;
    loop
        v_chunk := duewheel.recall_chunk(topic, tag, key_prefix, due_from, due_until, coalesce(dry_run, false),
                                         true, 10000, v_after, recall_many.now);
        matched := matched + v_chunk.matched;
        recalled := recalled + v_chunk.recalled;
        already_released := already_released + v_chunk.already_released;
        v_after := v_chunk.next;
        exit when v_after is null;
    end loop;
end
$$;
