-- Lets what of these leases has no answer go on, and says what each is.
select s.state
from duewheel.extend_unanswered(%s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s, %s) s (state)
