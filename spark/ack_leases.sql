-- Acks the leases of a part in the transaction that has done its work.
select duewheel.answer('ack_once', %s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], null)
