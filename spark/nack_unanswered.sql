-- Gives back what of these leases has no answer, and says what each was.
select s.state
from duewheel.nack_unanswered(
    %s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], p_delay => %s, p_reason => %s, p_wait => %s,
    p_now => %s) s (state)
