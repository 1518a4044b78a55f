-- Staging: many writers send one batch, all or nothing. Each stages its part in a separate transaction, and may repeat
-- it. Then one call publishes one run of each part. No consumer sees a message before.

-- Notes a part in the transaction that stages its messages.
-- role: producer
create or replace function duewheel.stage_part(p_staging text, p_part_id bigint) returns void
language plpgsql as $$
begin
    perform duewheel.require_home();
    insert into duewheel.staged_part (part_id, staging) values (p_part_id, p_staging);
end
$$;

-- The delivery instant of a staged message, checked like that of a single message. An error names the row.
create or replace function duewheel.staged_instant(
    p_topic text, p_message_type text, p_max_delay interval, p_out_of_range text, p_delay_levels interval[],
    p_now timestamptz, p_part bigint, p_place integer, p_deliver_at timestamptz, p_delay_microseconds bigint,
    p_delay_level integer, p_tag text, p_key text, p_properties jsonb, p_message_group text, p_body bytea
) returns timestamptz
language plpgsql stable as $$
declare
    v_message text;
    v_hint text;
begin
    perform duewheel.check_message(p_body, p_key, p_tag, p_properties, p_message_group, null);
    perform duewheel.check_message_group(p_topic, p_message_type, p_message_group);
    return duewheel.asked_instant(
        p_topic, p_message_type, p_max_delay, p_out_of_range, p_delay_levels, p_now,
        p_delay_microseconds * interval '1 microsecond', p_deliver_at, p_delay_level);
exception when others then
    get stacked diagnostics v_message = message_text, v_hint = pg_exception_hint;
    raise exception using
        errcode = sqlstate,
        message = format('row %s of partition %s%s: %s', p_place, p_part - 1,
                         coalesce(' with the key "' || left(nullif(p_key, ''), 80) || '"', ''), v_message),
        hint = v_hint;
end
$$;

-- The messages of staged parts in their stored form. Inlined in FROM. Plain messages are checked here, and the rest by
-- the functions that check a single message.
create or replace function duewheel.staged_rows(
    p_topic text, p_message_type text, p_queues integer, p_max_delay interval, p_out_of_range text,
    p_delay_levels interval[], p_now timestamptz, p_floor timestamptz, p_part_ids bigint[], p_firsts bigint[],
    p_blocks bigint[], p_are_texts boolean
) returns table (
    queue smallint, deliver_at timestamptz, seq bigint, asked_at timestamptz, tag text, key text, content_type "char",
    properties jsonb, message_group text, body bytea
)
language sql stable
begin atomic
    select ((case when j.message_group is null then j.seq else hashtextextended(j.message_group, 0) & 2147483647 end)
                % p_queues)::smallint,
           greatest(j.asked_at, p_floor), j.seq, j.asked_at, j.tag, j.key, j.content_type,
           duewheel.properties_beside(j.content_type, j.properties), j.message_group, j.body
    from (
        select m.tag, m.key, m.properties, m.message_group, m.body,
               case when p_are_texts and not coalesce(m.properties ? 'content-type', false) then 't'
                    else duewheel.content_type_mark(m.properties) end as content_type,
               p_blocks[1 + (p.first + m.place) / 1048576] * 65536 + (p.first + m.place) % 1048576 as seq,
               case
               when num_nonnulls(m.deliver_at, m.delay_microseconds, m.delay_level)
                        = case p_message_type when 'DELAY' then 1 when 'NORMAL' then 0 when 'FIFO' then 0 end
                    and coalesce(m.delay_level >= 0, true)
                    and a.asked_at >= duewheel.first_instant() and a.asked_at <= p_now + p_max_delay
                    and octet_length(m.body) <= 4194304
                    and coalesce(length(m.key) between 1 and 255, true)
                    and coalesce(m.tag ~ '^[A-Za-z0-9_.:-]{1,127}$', true)
                    and duewheel.are_plain(m.properties)
                    and coalesce(length(m.message_group) between 1 and 255, p_message_type <> 'FIFO')
               then a.asked_at
               else duewheel.staged_instant(
                   p_topic, p_message_type, p_max_delay, p_out_of_range, p_delay_levels, p_now, p.part, m.place,
                   m.deliver_at, m.delay_microseconds, m.delay_level, m.tag, m.key, m.properties, m.message_group,
                   m.body)
               end as asked_at
        from unnest(p_part_ids, p_firsts) with ordinality p (part_id, first, part)
        -- A lookup by the key for each.
        cross join lateral (select * from duewheel.staged_message s where s.part_id = p.part_id offset 0) m
        cross join lateral (
            select coalesce(m.deliver_at, p_now + m.delay_microseconds * interval '1 microsecond',
                            case when m.delay_level > 0 then
                                p_now + p_delay_levels[least(m.delay_level, cardinality(p_delay_levels))] end, p_now)
                       as asked_at) a
        offset 0
    ) j;
end;

create or replace function duewheel.raise_staging_failed(p_found numeric, p_named numeric) returns void
language plpgsql immutable as $$
begin
    raise exception using
        errcode = 'DW022',
        message = format('%s of the %s staged messages are there, and nothing was sent', p_found, p_named),
        hint = 'Run the job again: a crash of the database, or upkeep after seven days, deletes staged messages.';
end
$$;

-- Sends the messages of these parts, in one transaction; sent is their number. If this batch of the writer, or a later
-- batch, was published before, nothing is sent: sent is null, and sent_before is the number of messages of the
-- published batch. p_counts: the number of messages of each part. p_keep: how long the publication is remembered.
-- p_are_texts: bodies whose properties name no content type are text.
-- role: producer
create or replace function duewheel.publish_batch(
    p_topic text, p_writer text, p_batch bigint, p_part_ids bigint[], p_counts bigint[],
    p_keep interval default '365 days', p_are_texts boolean default false, out sent bigint, out sent_before bigint
)
-- By the keys, whatever the tables held when the plan was made. Indexes are filled in order, for which memory is taken.
language plpgsql set plan_cache_mode = force_generic_plan set enable_hashjoin = off set enable_mergejoin = off
set work_mem = '64MB' as $$
declare
    -- The place in the batch of the first message of each part.
    v_firsts bigint[];
    b record;
    v_blocks bigint[];
    v_sent bigint;
    v_sent_far bigint := 0;
    v_first timestamptz;
    v_due timestamptz;
begin
    perform duewheel.require_read_committed();
    -- A second call for the same batch waits here for the first.
    insert into duewheel.published_batch (topic_id, writer, batch, messages, published_at, until_at)
    select t.topic_id, p_writer, p_batch,
           -- A sum that is too large is refused below.
           (select least(coalesce(sum(u.c), 0), 9223372036854775807) from unnest(p_counts) u (c)), now.at,
           now.at + duewheel.span(p_keep)
    from duewheel.topic_by_name(p_topic) t cross join (select clock_timestamp() as at) now
    on conflict on constraint published_batch_pkey do update
    set batch = excluded.batch, messages = excluded.messages, published_at = excluded.published_at,
        until_at = excluded.until_at
    where published_batch.batch < excluded.batch;
    if not found then
        select p.messages into sent_before
        from duewheel.published_batch p join duewheel.topic_by_name(p_topic) t using (topic_id)
        where p.writer = p_writer;
        return;
    end if;
    -- The sent messages are counted below. But any producer may call this, so at most as many numbers are reserved as
    -- the table can hold messages of 28 bytes.
    select case when cardinality(p_part_ids) = count(*) and coalesce(bool_and(u.c >= 0), true)
                     and coalesce(sum(u.c), 0) <= pg_relation_size('duewheel.staged_message') / 28
           then coalesce(sum(u.c), 0) end
    into sent from unnest(p_counts) u (c);
    if sent is null then
        -- All parts in one count: a part may be named very often.
        perform duewheel.raise_staging_failed(count(*), (select sum(u.c) from unnest(p_counts) u (c)))
        from duewheel.staged_message m where m.part_id = any (p_part_ids);
    elsif sent = 0 then
        return;
    end if;
    v_firsts := array(
        select (sum(u.c) over (order by u.i) - u.c)::bigint
        from unnest(p_counts) with ordinality u (c, i) order by u.i);
    select * into b from duewheel.begin_copy(p_topic, 16);
    -- Each value of the sequence is 16 blocks of 65536 messages.
    v_blocks := b.first_block || array(
        select nextval('duewheel.message_block') from generate_series(1, (sent - 1) / 1048576));
    with near as (
        insert into duewheel.message
            (topic_id, queue, content_type, deliver_at, seq, born_at, asked_at, tag, key, properties, message_group,
             body)
        select b.topic_id, r.queue, r.content_type, r.deliver_at, r.seq, b.now_at, nullif(r.asked_at, r.deliver_at),
               r.tag, r.key, r.properties, r.message_group, r.body
        from duewheel.staged_rows(p_topic, b.message_type, b.queues, b.max_delay, b.out_of_range, b.delay_levels,
                                  b.now_at, b.floor_at, p_part_ids, v_firsts, v_blocks, p_are_texts) r
        where r.deliver_at < b.near_until
        order by r.deliver_at, r.seq
        returning deliver_at
    )
    select count(*), min(s.deliver_at),
           min(s.deliver_at) filter (
               where s.deliver_at < b.notify_before and coalesce(s.deliver_at > b.quiet_until, true))
    into v_sent, v_first, v_due
    from near s;
    if v_sent < sent then
        insert into duewheel.far_message
            (topic_id, queue, content_type, deliver_at, seq, born_at, asked_at, tag, key, properties, message_group,
             body)
        select b.topic_id, r.queue, r.content_type, r.deliver_at, r.seq, b.now_at, nullif(r.asked_at, r.deliver_at),
               r.tag, r.key, r.properties, r.message_group, r.body
        from duewheel.staged_rows(p_topic, b.message_type, b.queues, b.max_delay, b.out_of_range, b.delay_levels,
                                  b.now_at, b.floor_at, p_part_ids, v_firsts, v_blocks, p_are_texts) r
        where r.deliver_at >= b.near_until
        order by r.deliver_at, r.seq;
        get diagnostics v_sent_far = row_count;
    end if;
    -- Some may have been discarded since they were counted.
    if v_sent + v_sent_far <> sent then
        perform duewheel.raise_staging_failed(v_sent + v_sent_far, sent);
    end if;
    if v_first <= b.released_to or b.near_until <= b.released_to then
        perform duewheel.hold_back(b.topic_id, b.released_to);
    end if;
    if v_due is not null then
        perform duewheel.notify_due(b.topic_id, v_due);
    end if;
end
$$;

-- Deletes at most p_limit messages that were staged under a name, or if that is null, before an instant.
create or replace function duewheel.forget_staged(p_limit integer, p_staging text, p_before timestamptz)
returns bigint
language plpgsql as $$
declare
    v_part_id bigint;
    v_forgotten bigint := 0;
    v_count bigint;
begin
    for v_part_id in
        select p.part_id from duewheel.staged_part p
        where case when p_staging is null then p.began_at < p_before else p.staging = p_staging end
        order by p.part_id
    loop
        delete from duewheel.staged_message m where m.ctid = any (array(
            select o.ctid from duewheel.staged_message o where o.part_id = v_part_id limit p_limit - v_forgotten));
        get diagnostics v_count = row_count;
        v_forgotten := v_forgotten + v_count;
        exit when v_forgotten >= p_limit;
        delete from duewheel.staged_part p where p.part_id = v_part_id;
        v_forgotten := v_forgotten + 1;
    end loop;
    return v_forgotten;
end
$$;

-- Deletes a portion of the committed messages that are staged under a name. Returns true if more are left: commit, and
-- call it again. Upkeep deletes the messages that a caller leaves.
-- role: producer
create or replace function duewheel.discard_staged(p_staging text) returns boolean
language sql
begin atomic
    select duewheel.forget_staged(duewheel.portion(), p_staging, null) >= duewheel.portion();
end;
