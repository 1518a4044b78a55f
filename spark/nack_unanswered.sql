-- Gives back the unanswered messages of these leases, and returns the state that each lease had before.
select s.state
from duewheel.nack_unanswered(
    %s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], p_delay => %s, p_reason => %s, p_wait => %s,
    p_now => %s) s (state)
