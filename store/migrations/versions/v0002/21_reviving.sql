-- It revived all leases that had ended, each under a lock, in one transaction.
drop function if exists duewheel.revive_queue(integer, integer, integer, timestamptz, timestamptz, timestamptz);
