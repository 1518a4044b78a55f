-- Takes the leases of a part for this transaction, and names the transaction. A task whose machine is gone without a
-- word holds them no longer than two minutes.
select set_config('tcp_keepalives_idle', '60', true), set_config('tcp_keepalives_interval', '10', true),
       set_config('tcp_keepalives_count', '6', true),
       duewheel.answer('fence', %s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], null),
       pg_current_xact_id()::text
