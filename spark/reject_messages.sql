-- Rejects messages of a lease, each with its reason.
select duewheel.answer(
    'reject', %s, array[%s], array[%s], array[%s::bigint], array[%s::bigint], %s::jsonb, p_delay => %s::interval,
    p_now => %s::timestamptz, p_reasons => %s::jsonb)
