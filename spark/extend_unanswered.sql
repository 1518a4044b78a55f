-- Extends those of these leases that have no answer, and returns the state of each.
select s.state
from duewheel.extend_unanswered(%s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s, %s) s (state)
