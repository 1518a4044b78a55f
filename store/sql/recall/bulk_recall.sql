-- Bulk recall: recalls all waiting messages of a tag, a key prefix or a window of delivery instants.
--
-- It works in chunks. On a connection of the broker each chunk is a separate transaction, so the wheel waits for one
-- chunk at most. In a caller's transaction each chunk leaves one row in bulk_recall, whose check at COMMIT covers the
-- whole chunk.

create or replace function duewheel.check_bulk_recall_in_time() returns trigger
language plpgsql as $$
declare
    v_hi timestamptz;
begin
    perform duewheel.require_read_committed();
    perform duewheel.lock_recall_commit(new.topic_id);
    v_hi := duewheel.released_to(new.topic_id);
    if v_hi >= new.first_deliver_at then
        raise exception using
            errcode = 'DW012',
            message = format('messages due from %s were released up to %s, before their recall was committed',
                             new.first_deliver_at, v_hi),
            hint = 'The whole transaction is rolled back. Run it again: it recalls the messages that still wait. A '
                   'due_from that leaves time for the COMMIT avoids this error.';
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
        alter table duewheel.bulk_recall enable always trigger bulk_recall_in_time;
    end if;
end
$$;

-- The last possible key with a prefix, in the order of the keys' bytes: keys have at most 255 characters. Null if the
-- database's encoding has no last character. In plpgsql, because planning must not compute a character that the
-- encoding lacks.
create or replace function duewheel.last_key_with(p_prefix text) returns text
language plpgsql stable as $$
begin
    if getdatabaseencoding() = 'UTF8' then
        return p_prefix || repeat(chr(1114111), 255);
    elsif pg_encoding_max_length((select d.encoding from pg_database d where d.datname = current_database())) = 1 then
        return p_prefix || repeat(chr(255), 255);
    end if;
    return null;
end
$$;

-- role: producer
create or replace function duewheel.check_bulk_recall(
    p_tag text, p_key_prefix text, p_due_from timestamptz, p_due_until timestamptz, p_everything boolean
) returns void
language plpgsql as $$
declare
    v_criteria constant integer := num_nonnulls(p_tag, p_key_prefix, p_due_from, p_due_until);
    v_problem constant text := case
        when p_due_from >= p_due_until
            then format('due_until must be after due_from; got due_from %s and due_until %s', p_due_from, p_due_until)
        when p_everything is not true and v_criteria = 0 then 'no criterion was given, and everything is not true'
        when p_everything and v_criteria > 0
            then format('everything => true must be given alone; got %s criteria, too', v_criteria)
    end;
begin
    perform duewheel.require_read_committed();
    perform duewheel.check_message('', p_key_prefix, p_tag, null, null, null);
    if v_problem is not null then
        raise exception using
            errcode = 'DW010', message = v_problem,
            hint = 'Give a tag, key_prefix, due_from or due_until, which is exclusive; or everything => true for all '
                   'that waits.';
    end if;
end
$$;

-- The condition for messages m of a topic that match all criteria and are not recalled.
create or replace function duewheel.recall_condition(
    p_topic_id integer, p_tag text, p_key_prefix text, p_due_from timestamptz, p_due_until timestamptz
) returns text
language sql stable set datestyle = 'ISO'
return concat(
    format('m.topic_id = %s and m.deliver_at >= %L and m.deliver_at < %L', p_topic_id,
           coalesce(p_due_from, '-infinity'), coalesce(p_due_until, 'infinity')),
    case when p_tag is not null then format(' and m.tag = %L', p_tag) end,
    case when p_key_prefix is not null
        then format(' and m.key >= %1$L and starts_with(m.key, %1$L)', p_key_prefix) end,
    case when duewheel.last_key_with(p_key_prefix) is not null
        then format(' and m.key <= %L', duewheel.last_key_with(p_key_prefix)) end,
    ' and (select true from duewheel.recall_of(m.topic_id, m.queue, m.deliver_at, m.seq)) is null');

-- The matching messages among those held back, which were sent before the newest tick's instant and wait.
create or replace function duewheel.held_back_found(p_topic_id integer, p_condition text)
returns duewheel.message_position[]
language plpgsql stable as $$
declare
    v_positions duewheel.message_position[];
begin
    execute format(
        'select array_agg((m.queue, m.deliver_at, m.seq)::duewheel.message_position)
         from duewheel.held_back b cross join lateral (
            select * from duewheel.any_message m
            where m.topic_id = b.topic_id and m.queue = b.queue and m.deliver_at = b.deliver_at and m.seq = b.seq
            limit 1) m
         where b.topic_id = %s and %s', p_topic_id, p_condition)
    into v_positions;
    return coalesce(v_positions, '{}');
end
$$;

-- Reads the next p_limit messages of a slot after a walk's position: by key from p_key to p_last_key, or for a null
-- p_key queue by queue, in each the messages due after p_from and before p_until. Returns the matching messages that
-- wait, the number of matching messages released after p_from, the number of messages read, and the last of them.
create or replace function duewheel.recall_page(
    p_topic duewheel.topic, p_table_name text, p_condition text, p_walk duewheel.recall_walk, p_key text,
    p_last_key text, p_from timestamptz, p_until timestamptz, p_limit integer
) returns table (
    positions duewheel.message_position[], released bigint, looked_at bigint, last duewheel.message_position
)
language plpgsql stable as $$
declare
    v_order constant text := case when p_key is null then 'm.queue, m.deliver_at, m.seq'
                                  else 'm.key, m.deliver_at, m.seq' end;
begin
    return query execute format(
        'with looked_at as materialized (
            select m.queue, m.deliver_at, m.seq, m.key, %1$s as matches from (%2$s) m
         )
         select coalesce(
                    array_agg((m.queue, m.deliver_at, m.seq)::duewheel.message_position order by %3$s)
                        filter (where m.matches and m.deliver_at > $4), ''{}''),
                count(*) filter (where m.matches and m.deliver_at <= $4 and m.deliver_at > $8),
                count(*),
                (array_agg((m.queue, m.deliver_at, m.seq)::duewheel.message_position order by %3$s))[count(*)::integer]
         from looked_at m',
        p_condition, format(case when p_key is not null then
            'select * from duewheel.%1$I m
             where m.topic_id = $1 and m.key >= $2 and ($3 is null or m.key <= $3)
               and (m.key, m.deliver_at, m.seq) > ($2, $6, $7)
             order by %2$s limit $10'
        else
            'select m.* from generate_series($5::integer, $11 - 1) q
             cross join lateral (
                select case when q = $5 then $6 else $8 end as at, case when q = $5 then $7 else duewheel.last_seq() end
             ) behind (at, seq)
             cross join lateral (
                select * from duewheel.%1$I m
                where m.topic_id = $1 and m.queue = q::smallint and (m.deliver_at, m.seq) > (behind.at, behind.seq)
                  and m.deliver_at >= behind.at and m.deliver_at < $9
                order by m.deliver_at, m.seq limit $10) m
             limit $10'
        end, p_table_name, v_order), v_order)
    using p_topic.topic_id, p_key, p_last_key, p_walk.hi, p_walk.queue, p_walk.at, p_walk.seq, p_from, p_until, p_limit,
          p_topic.queues;
end
$$;

-- Marks the found messages that are due after p_hi as recalled; returns the marked messages by their instants. Messages
-- that another transaction has recalled meanwhile are not among them.
create or replace function duewheel.take_found(
    p_topic_id integer, p_found duewheel.message_position[], p_hi timestamptz, p_now timestamptz
) returns duewheel.message_position[]
language sql
begin atomic
    -- In the order of recall_key and replace_keys: they wait for each other and never in a circle.
    with made as (
        insert into duewheel.recall (topic_id, queue, bulk, deliver_at, seq, recalled_at)
        select p_topic_id, f.queue, true, f.deliver_at, f.seq, coalesce(p_now, clock_timestamp())
        from unnest(p_found) f where f.deliver_at > p_hi order by f.deliver_at, f.seq
        on conflict on constraint recall_pkey do nothing
        returning queue, deliver_at, seq
    )
    select coalesce(
        array_agg((m.queue, m.deliver_at, m.seq)::duewheel.message_position order by m.deliver_at, m.seq), '{}')
    from made m;
end;

-- Removes the marks of messages that have been released since; no other transaction has seen these marks. Returns how
-- many. The topic's wheel waits from here to the COMMIT.
create or replace function duewheel.give_late_back(p_topic_id integer, p_made duewheel.message_position[])
returns bigint
language plpgsql as $$
declare
    v_hi timestamptz;
    v_late bigint;
begin
    perform duewheel.lock_ticking(p_topic_id, true);
    v_hi := duewheel.released_to(p_topic_id);
    delete from duewheel.recall r using unnest(p_made) m
    where m.deliver_at <= v_hi and r.topic_id = p_topic_id and r.queue = m.queue
      and r.deliver_at = m.deliver_at and r.seq = m.seq;
    get diagnostics v_late = row_count;
    return v_late;
end
$$;

-- Recalls messages that a walk has found. recalled: how many; released: how many were released since they were found.
-- Messages that another transaction has recalled meanwhile are in neither number.
create or replace function duewheel.recall_found(
    p_topic_id integer, p_found duewheel.message_position[], p_deferred boolean, p_now timestamptz,
    out recalled bigint, out released bigint
)
language plpgsql as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := coalesce(p_now, clock_timestamp());
    v_hi constant timestamptz := duewheel.released_to(p_topic_id);
    v_made constant duewheel.message_position[] := duewheel.take_found(p_topic_id, p_found, v_hi, v_now);
    v_late bigint := 0;
begin
    released := (select count(*) from unnest(p_found) f where f.deliver_at <= v_hi);
    recalled := cardinality(v_made);
    if recalled > 0 and not p_deferred then
        v_late := duewheel.give_late_back(p_topic_id, v_made);
        recalled := recalled - v_late;
        released := released + v_late;
    end if;
    insert into duewheel.bulk_recall (topic_id, first_deliver_at, recalled, recalled_at)
    -- The late messages are the first.
    select p_topic_id, (v_made[v_late + 1]).deliver_at, recalled, v_now where recalled > 0;
end
$$;

-- Reads the next p_limit messages after the end of the previous walk, and returns the waiting messages that match. next
-- is the end of this walk, null at the end. p_in_one_slot: the walk also ends with the first slot in which it finds
-- some, so that the next walk can continue after each of them. With p_counting it also reads released messages that are
-- kept; released: how many of them match.
create or replace function duewheel.walk_waiting(
    p_topic duewheel.topic, p_condition text, p_key_prefix text, p_due_from timestamptz, p_due_until timestamptz,
    p_counting boolean, p_in_one_slot boolean, p_limit integer, p_after jsonb,
    out positions duewheel.message_position[], out released bigint, out next jsonb
)
language plpgsql stable as $$
declare
    -- Each walk begins here, or in the slot and after the position in which the previous walk ended.
    v_walk duewheel.recall_walk := jsonb_populate_record(null::duewheel.recall_walk, p_after);
    v_from timestamptz;
    v_key text;
    v_slot record;
    v_page record;
    v_left integer := p_limit;
begin
    positions := '{}';
    released := 0;
    for v_slot in
        select * from (
            -- Far messages first: a message that moves into its slot meanwhile is found there.
            select timestamptz '-infinity' as starts_at, timestamptz 'infinity' as ends_at, 'far_message' as table_name
            union all
            select s.starts_at, s.ends_at, s.table_name from duewheel.slot s
            where s.ends_at > coalesce(p_due_from, '-infinity') and s.starts_at < coalesce(p_due_until, 'infinity')
        ) s
        where s.starts_at >= coalesce(v_walk.slot, '-infinity')
        order by s.starts_at
    loop
        v_key := p_key_prefix;
        if v_slot.starts_at is distinct from v_walk.slot then
            v_walk := (v_slot.starts_at, duewheel.released_to(p_topic.topic_id), 0, null, duewheel.last_seq());
        elsif p_key_prefix is not null then
            -- A producer recalls and may not read: a chunk hands on its position and no key.
            v_key := (select m.key from duewheel.message_at(p_topic.topic_id, v_walk.queue, v_walk.at, v_walk.seq) m);
            if v_key is null then
                raise exception using
                    errcode = 'DW010',
                    message = 'no message is at the position where the chunk before this one ended',
                    hint = 'Begin again from the first chunk: messages that were recalled do not match again.';
            end if;
        end if;
        -- Messages that are past their retention are not counted.
        v_from := coalesce(greatest(
            case when p_counting then p_topic.kept_from - interval '1 microsecond' else v_walk.hi end,
            case when p_due_from > duewheel.first_instant() then p_due_from - interval '1 microsecond' end),
            '-infinity');
        continue when v_slot.ends_at <= v_from;
        -- A walk by keys is ordered by key first, so it begins before all instants.
        v_walk.at := coalesce(v_walk.at, case when p_key_prefix is null then v_from else '-infinity' end);
        select * into v_page from duewheel.recall_page(
            p_topic, v_slot.table_name, p_condition, v_walk, v_key, duewheel.last_key_with(p_key_prefix), v_from,
            coalesce(p_due_until, 'infinity'), v_left);
        positions := positions || v_page.positions;
        released := released + v_page.released;
        v_left := v_left - v_page.looked_at;
        if v_left = 0 or (p_in_one_slot and cardinality(positions) > 0) then
            v_walk.queue := (v_page.last).queue;
            v_walk.at := (v_page.last).deliver_at;
            v_walk.seq := (v_page.last).seq;
            next := to_jsonb(v_walk);
            exit;
        end if;
    end loop;
end
$$;

-- Checks the arguments of a chunk of a bulk recall or reschedule.
create or replace function duewheel.check_chunk(p_limit integer, p_dry_run boolean, p_now timestamptz) returns void
language plpgsql as $$
begin
    perform duewheel.clock_at(p_now);
    if not p_dry_run then
        perform duewheel.require_own_transaction();
    end if;
    perform duewheel.check_limit('the number of messages of a chunk', p_limit, 1, 10000);
end
$$;

-- One chunk of a bulk recall: reads p_limit messages, recalls the waiting ones, and counts the released ones. p_after
-- is the end of the previous chunk, null at first; next is the end of this chunk, null at the end. A message that was
-- recalled before does not match. p_deferred: the check that the recall was in time runs at COMMIT only, and no tick
-- waits until then; otherwise the topic's wheel waits for the COMMIT.
-- role: producer
create or replace function duewheel.recall_chunk(
    p_topic text, p_tag text, p_key_prefix text, p_due_from timestamptz, p_due_until timestamptz, p_dry_run boolean,
    p_deferred boolean, p_limit integer, p_after jsonb, p_now timestamptz,
    out matched bigint, out recalled bigint, out already_released bigint, out next jsonb
)
-- By the keys, though tables were small when they were last looked at.
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_topic duewheel.topic := duewheel.named_topic(p_topic);
    v_condition text := duewheel.recall_condition(v_topic.topic_id, p_tag, p_key_prefix, p_due_from, p_due_until);
    v_held_back bigint := 0;
    v_walk record;
    v_done record;
begin
    perform duewheel.check_chunk(p_limit, p_deferred or p_dry_run, p_now);
    if exists (select from duewheel.held_back b where b.topic_id = v_topic.topic_id) then
        select count(*) into v_held_back from unnest(duewheel.held_back_found(v_topic.topic_id, v_condition)) m
        where p_after is null and (p_dry_run or duewheel.recall_position(
            v_topic.topic_id, m.queue, m.deliver_at, m.seq, p_now) = 'recalled');
        if p_dry_run then
            -- Due before the newest tick, and not released.
            v_condition := v_condition || ' and not exists (select from duewheel.held_back b'
                ' where b.topic_id = m.topic_id and b.queue = m.queue and b.deliver_at = m.deliver_at'
                ' and b.seq = m.seq)';
        end if;
    end if;
    v_walk := duewheel.walk_waiting(
        v_topic, v_condition, p_key_prefix, p_due_from, p_due_until, true, false, p_limit, p_after);
    next := v_walk.next;
    if p_dry_run then
        recalled := 0;
        already_released := v_walk.released;
        matched := already_released + v_held_back + cardinality(v_walk.positions);
        return;
    end if;
    v_done := duewheel.recall_found(v_topic.topic_id, v_walk.positions, p_deferred, p_now);
    already_released := v_walk.released + v_done.released;
    recalled := v_held_back + v_done.recalled;
    matched := already_released + recalled;
end
$$;

-- Recalls all waiting messages of a topic that have the tag, a key with the prefix, and an instant in [due_from,
-- due_until). It works in the caller's transaction: a message counted as recalled is never delivered if that
-- transaction commits.
-- role: producer
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
