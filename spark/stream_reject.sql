-- Rejects messages that a stream has read, each with its reason.
select duewheel.stream_reject(%s::text[], %s::text[], p_delay => %s::interval)
