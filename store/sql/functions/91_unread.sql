-- What is unread in a slot: how many messages each clustering group has still to read, or to answer for. It is counted
-- a page after the other, and on from there by the next call.

-- Counts on in a slot, until it is done or p_until is over. What was counted before a group came, or looked back, is
-- counted anew.
create or replace function duewheel.count_unread_in(p_slot duewheel.slot, p_until timestamptz)
returns duewheel.unread_count
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_look_back constant bigint := (select n.last_value from duewheel.look_back_number n);
    v_count duewheel.unread_count;
    v_read record;
    v_is_over boolean := false;
begin
    select * into v_count from duewheel.unread_count c
    where c.starts_at = (p_slot).starts_at and c.look_back = v_look_back;
    if v_count.is_done then
        return v_count;
    elsif v_count.starts_at is null then
        v_count := row((p_slot).starts_at, v_look_back, 0, 0, 0, null, null, null, 0, '[]', false);
    end if;
    for v_read in
        select s.group_id, s.topic_id, g.name as group_name, t.name as topic_name
        from duewheel.subscription s
        cross join lateral (
            select g.name from duewheel.consumer_group g
            where g.group_id = s.group_id and g.mode = 'clustering' limit 1) g
        cross join lateral (
            select t.name from duewheel.topic t where t.topic_id = s.topic_id and t.deleted_at is null limit 1) t
        where (s.group_id, s.topic_id) >= (v_count.group_id, v_count.topic_id)
        order by s.group_id, s.topic_id
    loop
        if (v_read.group_id, v_read.topic_id) <> (v_count.group_id, v_count.topic_id) then
            v_count.group_id := v_read.group_id;
            v_count.topic_id := v_read.topic_id;
            v_count.ordinal := 0;
            v_count.at := null;
            v_count.messages := 0;
        end if;
        v_count := duewheel.count_unread_by(v_count, p_slot, p_until);
        v_is_over := clock_timestamp() >= p_until;
        exit when v_count.at is not null;
        if v_count.messages > 0 then
            v_count.unread := v_count.unread || jsonb_build_object(
                'topic', v_read.topic_name, 'consumer_group', v_read.group_name, 'messages', v_count.messages);
            v_count.messages := 0;
        end if;
        exit when v_is_over;
    end loop;
    v_count.is_done := v_count.at is null and not v_is_over;
    if v_count.is_done then
        select coalesce(jsonb_agg(u order by u ->> 'topic', u ->> 'consumer_group'), '[]') into v_count.unread
        from jsonb_array_elements(v_count.unread) u;
    end if;
    delete from duewheel.unread_count c where c.starts_at = v_count.starts_at;
    insert into duewheel.unread_count select (v_count).*;
    return v_count;
end
$$;

-- Counts on for one group and topic: "at" is null where it is done, else it goes on there.
create or replace function duewheel.count_unread_by(
    p_count duewheel.unread_count, p_slot duewheel.slot, p_until timestamptz
) returns duewheel.unread_count
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_position record;
    v_page record;
begin
    for v_position in
        select * from duewheel.positions(p_count.group_id, p_count.topic_id) p
        where p.ordinal >= p_count.ordinal order by p.ordinal
    loop
        if p_count.at is null then
            p_count.messages := p_count.messages + duewheel.count_held(
                p_count.group_id, v_position.topic_id, v_position.queue, v_position.revived_to, p_slot);
            p_count.at := (p_slot).starts_at - interval '1 microsecond';
            p_count.seq := duewheel.last_seq();
            p_count.straggler_to := v_position.straggler_to;
        end if;
        p_count.ordinal := v_position.ordinal;
        loop
            -- It may have read on meanwhile.
            if (v_position.to_at, v_position.to_seq) > (p_count.at, p_count.seq) then
                p_count.at := v_position.to_at;
                p_count.seq := v_position.to_seq;
            end if;
            v_page := duewheel.count_unread_page(
                p_count.group_id, v_position.topic_id, v_position.queue, p_count.at, p_count.seq,
                p_count.straggler_to, p_slot);
            exit when v_page.next_at is null;
            p_count.messages := p_count.messages + v_page.messages;
            p_count.at := v_page.next_at;
            p_count.seq := v_page.next_seq;
            p_count.straggler_to := v_page.next_straggler_to;
            if clock_timestamp() >= p_until then
                return p_count;
            end if;
        end loop;
        p_count.at := null;
        p_count.ordinal := v_position.ordinal + 1;
    end loop;
    p_count.ordinal := 2147483647;
    return p_count;
end
$$;

-- How many messages of a slot are in the backlog of message groups of a queue, or in leases that have no final answer.
create or replace function duewheel.count_held(
    p_group_id integer, p_topic_id integer, p_queue smallint, p_revived_to timestamptz, p_slot duewheel.slot
) returns bigint
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    return (
            select count(*) from duewheel.fifo_backlog b
            where b.topic_id = p_topic_id and b.group_id = p_group_id and b.queue = p_queue
              and b.deliver_at >= (p_slot).starts_at and b.deliver_at < (p_slot).ends_at
        ) + (
            select count(*)
            from duewheel.ended_leases(p_group_id, p_topic_id, p_queue, p_revived_to, 'infinity') ended (n)
            cross join lateral duewheel.lease_rows(p_group_id, p_topic_id, p_queue, ended.n) m
            where m.deliver_at >= (p_slot).starts_at and m.deliver_at < (p_slot).ends_at
              and not exists (
                select from duewheel.message_answer(p_group_id, p_topic_id, p_queue, ended.n, m.seq) a
                where a.kind in ('acked', 'failed'))
        );
end
$$;

-- Looks at the next 2 000 messages of a slot in a queue, behind a place, or else at as many stragglers: how many of
-- them a group has still to read, and the place behind them; next_at is null at the end.
create or replace function duewheel.count_unread_page(
    p_group_id integer, p_topic_id integer, p_queue smallint, p_at timestamptz, p_seq bigint, p_straggler_to bigint,
    p_slot duewheel.slot,
    out messages bigint, out next_at timestamptz, out next_seq bigint, out next_straggler_to bigint
)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    v_most constant integer := 2000;
    v_state record;
    v_to timestamptz;
begin
    select * into v_state from duewheel.queue_state(p_group_id, p_topic_id, p_queue);
    v_to := least(v_state.hi, (p_slot).ends_at - interval '1 microsecond');
    if v_state.has_messages and (v_to, duewheel.last_seq()) > (p_at, p_seq) then
        select m.deliver_at, m.seq into next_at, next_seq from duewheel.any_message m
        where m.topic_id = p_topic_id and m.queue = p_queue
          and (m.deliver_at, m.seq) > (p_at, p_seq) and m.deliver_at >= p_at and m.deliver_at <= v_to
        order by m.deliver_at, m.seq offset v_most - 1 limit 1;
        next_at := coalesce(next_at, v_to);
        next_seq := coalesce(next_seq, duewheel.last_seq());
        next_straggler_to := p_straggler_to;
        select count(*) into messages
        from duewheel.released_rows(p_topic_id, p_queue, p_at, p_seq, next_at, next_seq, v_state.seen_below, true,
                                    null, null, v_state.no_recalls);
        return;
    end if;
    select max(s.straggler_id) into next_straggler_to
    from (
        select s.straggler_id from duewheel.straggler s
        where s.topic_id = p_topic_id and s.queue = p_queue and s.straggler_id > p_straggler_to
        order by s.straggler_id limit v_most) s;
    if next_straggler_to is not null then
        next_at := p_at;
        next_seq := p_seq;
        select count(*) into messages
        from duewheel.straggler_rows(p_topic_id, p_queue, p_straggler_to, next_straggler_to, true, null, null) s
        where (s.message).deliver_at >= (p_slot).starts_at and (s.message).deliver_at < (p_slot).ends_at;
    end if;
end
$$;
