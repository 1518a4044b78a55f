-- Takes the leases of a part for this transaction, and returns the transaction's id. The keepalives end the session of
-- a machine that vanished, so its task holds the leases for two minutes at most.
select set_config('tcp_keepalives_idle', '60', true), set_config('tcp_keepalives_interval', '10', true),
       set_config('tcp_keepalives_count', '6', true),
       duewheel.answer('fence', %s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], null),
       pg_current_xact_id()::text
