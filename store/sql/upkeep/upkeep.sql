-- Upkeep is one function. It is called again and again, each time in a separate transaction, until it returns that its
-- round is finished. A round has steps. A step proceeds from place to place: topics, slots, or groups on their topics.
-- A call deals with the places that fit into its number of rows and 50 ms.

-- The place of a step after p_after; null after the last. A step without places has one.
create or replace function duewheel.next_upkeep_place(
    p_step text, p_after duewheel.upkeep_place, p_now timestamptz
) returns duewheel.upkeep_place
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    case p_step
    when 'sweep' then
        return duewheel.next_to_sweep(p_after, p_now);
    when 'watch' then
        return (
            select row(p_after.starts_at, s.group_id, s.topic_id) from duewheel.subscription s
            where (s.group_id, s.topic_id) > (p_after.group_id, p_after.topic_id)
            order by s.group_id, s.topic_id limit 1);
    when 'move_out', 'drop' then
        return (
            select row(s.starts_at, 0, 0) from duewheel.slots_past(p_now) s where s.starts_at > p_after.starts_at
            order by s.starts_at limit 1);
    when 'forget_outlived' then
        return (
            select row(o.starts_at, 0, 0) from duewheel.outlived_slot o where o.starts_at > p_after.starts_at
            order by o.starts_at limit 1);
    else
        if p_after.topic_id < 0 then
            return row(p_after.starts_at, 0, 0);
        elsif p_step = 'forget' then
            return (
                select row(p_after.starts_at, 0, t.topic_id) from duewheel.topic t where t.topic_id > p_after.topic_id
                order by t.topic_id limit 1);
        end if;
        return null;
    end case;
end
$$;

-- Does a portion of a step at a place. Returns how many rows it dealt with, whether the place has more, and a report,
-- or null if there is nothing to report.
create or replace function duewheel.upkeep_portion(
    p_step text, p_place duewheel.upkeep_place, p_rows integer, p_believed_at timestamptz, p_now timestamptz,
    out done bigint, out more boolean, out report jsonb
)
language plpgsql as $$
declare
    v_now constant timestamptz := duewheel.clock_at(p_now);
    v_at record;
begin
    done := 0;
    case p_step
    when 'prepare' then
        perform duewheel.prepare_slots(v_now);
    when 'settle' then
        select s.settled, s.more into done, more from duewheel.settle_far(p_rows, p_now) s;
    when 'note_over' then
        perform duewheel.note_slots_over(v_now);
    when 'sweep' then
        v_at := duewheel.sweep(p_place, p_now);
        more := v_at.more;
        done := case when more then p_rows else 0 end;
        report := case when v_at.swept > 0 then jsonb_build_object('swept', v_at.swept) end;
    when 'watch' then
        v_at := duewheel.watch_group(p_place.group_id, p_place.topic_id, p_rows, p_believed_at, p_now);
        more := v_at.more;
        done := case when more then p_rows else 0 end;
        report := case when v_at.standing is not null then jsonb_build_object('watched', array[v_at.standing]) end;
    when 'forget' then
        if p_place.topic_id = 0 then
            done := duewheel.forget_expired(p_rows, p_believed_at);
            more := done >= p_rows
                or duewheel.forget_instances(clock_timestamp() + interval '50 milliseconds', p_believed_at);
        else
            select duewheel.trim_topic_logs(
                t.topic_id, duewheel.topic_floor(t, duewheel.open_from(), p_believed_at), p_rows)
            into done from duewheel.topic t where t.topic_id = p_place.topic_id;
            more := duewheel.note_redrive_from(p_place.topic_id) or done >= p_rows;
            done := case when more then greatest(done, p_rows) else done end;
        end if;
    when 'move_out' then
        select duewheel.move_some_out(s, p_rows, p_believed_at) into done
        from duewheel.slot s where s.starts_at = p_place.starts_at;
        more := done > 0;
    when 'drop' then
        select duewheel.drop_past(s, p_believed_at, v_now) into report
        from duewheel.slot s where s.starts_at = p_place.starts_at;
    when 'drop_over_limit' then
        select d.report, d.more into report, more from duewheel.drop_over_limit(p_believed_at, v_now) d;
    when 'forget_outlived' then
        select duewheel.forget_outlived(o, p_rows, p_believed_at) into done
        from duewheel.outlived_slot o where o.starts_at = p_place.starts_at;
        more := done > 0;
    when 'report' then
        select jsonb_build_object(
            'message_bytes', duewheel.message_bytes(v_now), 'retention_bytes', b.retention_bytes,
            'left', u.slots_to_seal + u.messages_to_settle)
        into report from duewheel.broker b cross join duewheel.upkeep_state(p_now) u;
    end case;
end
$$;

-- Does the next portion of upkeep, of about as many rows as given, and returns the state for the next call. It needs a
-- separate transaction. A null state begins a round. In the state: "finished", after which a round is over. "todo", the
-- remaining steps, each with the place "at" that it has reached. "done", the rows that this call has dealt with.
-- "report", its findings. "failed", the steps and places of this round that failed, with the cause: the round leaves
-- them out. "held_up_by", the sessions that have held upkeep up for an hour. "busy", if another session has the lock of
-- upkeep.
--
-- A portion that fails is rolled back. The next call ends before the place that failed, and the call after it begins
-- there. If that fails too, the round continues after it. A portion that is canceled, as by statement_timeout, is tried
-- four times, for which the caller gives fewer rows.
-- role: admin
create or replace function duewheel.upkeep_step(
    state jsonb default null, rows integer default 1000, now timestamptz default null
) returns jsonb
language plpgsql as $$
declare
    v_until constant timestamptz := clock_timestamp() + interval '50 milliseconds';
    v_now constant timestamptz := duewheel.clock_at(upkeep_step.now);
    v_state jsonb := coalesce(upkeep_step.state, jsonb_build_object('begun_at', v_now, 'failed', '[]'::jsonb, 'todo', (
        select jsonb_agg(jsonb_build_object('step', s)) from unnest(array[
            'prepare', 'settle', 'note_over', 'sweep', 'watch',
            -- Finds out which topics have finished a slot.
            'forget', 'move_out', 'drop', 'drop_over_limit',
            -- To slots that are new.
            'settle', 'forget_outlived',
            -- The logs of dropped messages.
            'forget', 'report']) s)))
        || '{"done": 0, "report": {}, "finished": false}';
    v_task jsonb := v_state #> '{todo,0}';
    v_step constant text := v_task ->> 'step';
    v_stop constant duewheel.upkeep_place := jsonb_populate_record(null::duewheel.upkeep_place, v_task -> 'stop');
    v_at duewheel.upkeep_place := coalesce(
        jsonb_populate_record(null::duewheel.upkeep_place, v_task -> 'at'),
        row('-infinity', 0, -1)::duewheel.upkeep_place);
    v_first constant duewheel.upkeep_place := v_at;
    v_place duewheel.upkeep_place;
    v_portion record;
    v_done bigint := 0;
    v_report jsonb;
    v_canceled integer;
    v_believed_at timestamptz;
begin
    perform duewheel.check_limit('rows', upkeep_step.rows, 1, 100000);
    if (v_step is not null and jsonb_typeof(v_state -> 'failed') = 'array') is not true then
        raise exception using
            errcode = 'DW010',
            message = format('state must be that of an unfinished round; got "%s"', left(upkeep_step.state::text, 80)),
            hint = 'Give the state that the call before returned. After "finished", begin a new round with null.';
    end if;
    -- The first statement of its transaction, and likely the only one.
    if statement_timestamp() = transaction_timestamp() then
        perform set_config('duewheel.own_transaction', 'on', true);
    end if;
    perform duewheel.require_own_transaction();
    v_believed_at := duewheel.begin_upkeep(upkeep_step.now);
    if v_believed_at is null then
        return v_state || (
            select jsonb_build_object('finished', true, 'busy', true, 'maintained_at', b.maintained_at,
                                      'is_overdue', b.maintained_at < v_now - interval '2 hours',
                                      'held_up_by', duewheel.held_up_by(upkeep_step.now))
            from duewheel.broker b);
    elsif pg_current_xact_id_if_assigned() is not null then
        -- It has noted the clock, and no tick may follow in this transaction.
        return v_state;
    end if;
    begin
        loop
            v_place := null;
            v_place := duewheel.next_upkeep_place(v_step, v_at, v_believed_at);
            exit when v_place is null or v_place = v_stop;
            v_portion := duewheel.upkeep_portion(
                v_step, v_place, (upkeep_step.rows - v_done)::integer, v_believed_at, upkeep_step.now);
            v_done := v_done + v_portion.done;
            v_report := v_portion.report;
            exit when v_portion.more;
            v_at := v_place;
            exit when v_report is not null or v_done >= upkeep_step.rows or clock_timestamp() >= v_until
                or v_step = 'sweep' and pg_current_xact_id_if_assigned() is not null;
        end loop;
        v_task := v_task - '{stop,canceled}'::text[] || jsonb_build_object('at', v_at);
        v_state := v_state || jsonb_build_object('done', v_done, 'report', coalesce(v_report, '{}'));
    exception when query_canceled or others then
        v_canceled := case when sqlstate = '57014' then coalesce((v_task ->> 'canceled')::integer, 0) + 1 end;
        if v_place is not null and v_at <> v_first then
            v_task := v_task || jsonb_build_object('stop', v_place, 'canceled', v_canceled);
        elsif v_place is not null and v_canceled < 4 then
            v_task := v_task || jsonb_build_object('canceled', v_canceled);
        else
            v_task := v_task - '{stop,canceled}'::text[] || jsonb_build_object('at', v_place);
            v_state := jsonb_set(v_state, '{failed}', v_state -> 'failed' || jsonb_build_object(
                'step', v_step, 'at', v_place, 'cause', sqlerrm));
        end if;
    end;
    v_state := jsonb_set(v_state, '{todo}', case when v_place is null then (v_state -> 'todo') - 0
                                                 else jsonb_set(v_state -> 'todo', '{0}', v_task) end);
    if v_state -> 'todo' = '[]' then
        v_state := v_state || jsonb_build_object('finished', true, 'held_up_by', duewheel.held_up_by(upkeep_step.now));
    elsif v_now > (v_state ->> 'begun_at')::timestamptz + interval '20 minutes' and v_step <> 'prepare' then
        -- A round that takes long makes and drops slots meanwhile, and does not look overdue.
        v_state := v_state || jsonb_build_object('begun_at', v_now, 'todo', case
            when v_step like 'drop%' then jsonb '[{"step": "prepare"}]'
            else jsonb '[{"step": "prepare"}, {"step": "drop"}, {"step": "drop_over_limit"}]' end
            || (v_state -> 'todo'));
    end if;
    return v_state;
end
$$;
