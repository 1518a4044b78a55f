-- The states of leases, in their order.
select s.state, s.acked
from duewheel.lease_states(%s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s) s
