-- Rejects messages of a lease, each with its reason.
select duewheel.reject_messages(
    %s, %s, %s, %s, %s, %s::bigint[], %s::text[], p_delay => %s::interval, p_now => %s::timestamptz)
