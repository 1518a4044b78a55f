-- Rejecting messages that a stream has read, each with a reason: from many tasks, any of which may run again.

-- Rejects messages that a stream has read: each is delivered again from its group's retry queue, which the stream reads
-- too, or is a dead letter after its last retry. A message that the stream has rejected before is unchanged. p_handles:
-- as the stream gives them, "0.topic.queue.microseconds.stream.seq.group".
-- role: consumer
create or replace function duewheel.stream_reject(p_handles text[], p_reasons text[], p_delay interval default null)
returns void
language plpgsql set plan_cache_mode = force_generic_plan set enable_sort = on as $$
declare
    v_source record;
    v_subscription duewheel.subscription;
    v_found bigint;
    v_rows refcursor;
    v_bad text;
begin
    perform duewheel.require_read_committed();
    perform duewheel.check_answer('nack', p_delay, null);
    select coalesce(h.handle, 'null') into v_bad from unnest(p_handles) h (handle)
    -- Written in one way only: else one message could be rejected by two handles.
    where (h.handle ~ '^0\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,3})\.(0|-?[1-9]\d{0,17})\.(0|-?[1-9]\d{0,18})'
                      '\.(0|[1-9]\d{0,17})\.(0|[1-9]\d{0,8})$') is not true
    limit 1;
    if found then
        raise exception using
            errcode = 'DW010', message = format('"%s" is not a receipt handle of a stream', left(v_bad, 120)),
            hint = 'Pass the column receipt_handle of a stream''s rows unchanged.';
    end if;
    for v_source in
        select p[2]::integer as topic_id, p[3]::integer as queue, p[5]::bigint as stream, p[7]::integer as group_id,
               array_agg(p[4]::bigint) as ats, array_agg(p[6]::bigint) as seqs, array_agg(h.reason) as reasons
        from (select distinct on (u.handle) u.handle, left(u.reason, 10000) as reason
              from unnest(p_handles, p_reasons) u (handle, reason) order by u.handle, u.reason) h
        cross join string_to_array(h.handle, '.') p
        group by p[2], p[3], p[5], p[7]
        order by 1, 2
    loop
        select * into v_subscription from duewheel.subscription s
        where s.group_id = v_source.group_id
          and (s.topic_id = v_source.topic_id or s.retry_topic_id = v_source.topic_id);
        if not found then
            raise exception using
                errcode = 'DW014', message = 'the group of this stream, or its topic, was deleted',
                hint = 'Begin a new stream, with a new checkpoint.';
        end if;
        perform duewheel.require_stream(v_source.group_id, v_subscription.topic_id,
                                        lpad(to_hex(v_source.stream), 16, '0'));
        -- Waits for another run of the same task. Spark's tasks are cut by the same number, so other tasks do not wait:
        -- duewheel.spark.rejecting.
        perform pg_advisory_xact_lock(duewheel.key_lock_key(
            v_source.topic_id, concat_ws(' ', '%REJECT%', v_source.queue, v_source.stream, u.share)))
        from (select distinct ((s.seq >> 20) + s.seq) & 15 as share from unnest(v_source.seqs) s (seq) order by 1) u;
        select count(m.seq) into v_found
        from unnest(v_source.ats, v_source.seqs) s (at, seq)
        cross join lateral duewheel.message_at(
            v_source.topic_id, v_source.queue::smallint, duewheel.stream_instant(s.at), s.seq) m
        -- A stream reads released messages only.
        where duewheel.is_released(v_source.topic_id, v_source.queue, m.deliver_at, m.seq);
        if v_found < cardinality(v_source.seqs) then
            raise exception using
                errcode = 'DW013',
                message = format('%s of %s messages to reject do not exist',
                                 cardinality(v_source.seqs) - v_found, cardinality(v_source.seqs)),
                hint = 'Leave them out: retention has dropped them, or this stream did not read them.';
        end if;
        open v_rows no scroll for
            select m as message, s.reason as why
            from unnest(v_source.ats, v_source.seqs, v_source.reasons) s (at, seq, reason)
            cross join lateral duewheel.message_at(
                v_source.topic_id, v_source.queue::smallint, duewheel.stream_instant(s.at), s.seq) m
            where not exists (
                select from duewheel.any_message a
                where a.origin_seq = coalesce(m.origin_seq, m.seq) and a.previous_seq = m.seq
                  and a.lease_n = v_source.stream
                  and a.topic_id in (v_subscription.retry_topic_id, v_subscription.dead_letter_topic_id))
            order by s.seq;
        perform duewheel.resend(v_subscription, v_rows, 'retry', clock_timestamp() + duewheel.span(p_delay), null,
                                v_source.stream);
    end loop;
end
$$;
